//! RL.SLIDING and RL.SLIDING_RO (design sections 1, 3 and 6). The way of a call is that of
//! RL.TOKENBUCKET, spelt out beside it; here is what differs.

use super::arguments::{COST, COST_OR_REFUND, KEY, LIMIT, MS, NOW, WINDOW};
use super::error::Error;
use super::token_bucket::{
    TokenBucketCommand, TokenBucketPreview, call_with_rule, preview_with_rule,
};
use crate::host::{Arguments, Command, CommandInfo, Context, Counters, Outcome};
use limiter::SlidingWindow;

/// Counts requests in a sliding window, or takes some out again.
pub struct SlidingCommand;

impl Command for SlidingCommand {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.sliding",
        summary: c"Counts a request if there is room for it in the last window seconds.",
        arguments: &[KEY, LIMIT, WINDOW, COST_OR_REFUND, NOW, MS],
        ..TokenBucketCommand::INFO
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        call_with_rule::<SlidingWindow>(context, arguments)
    }
}

/// What the write form would decide now; changes nothing.
pub struct SlidingPreview;

impl Command for SlidingPreview {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.sliding_ro",
        summary: c"Tells what RL.SLIDING would decide now, and counts nothing.",
        arguments: &[KEY, LIMIT, WINDOW, COST, NOW, MS],
        ..TokenBucketPreview::INFO
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        preview_with_rule::<SlidingWindow>(context, arguments)
    }
}
