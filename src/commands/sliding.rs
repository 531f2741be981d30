//! RL.SLIDING and RL.SLIDING_RO (design sections 1, 3 and 6).

use super::arguments::{COST, COST_OR_REFUND, KEY, LIMIT, MS, NOW, WINDOW};
use super::error::Error;
use super::steps::{carry_out, outcome, stored_state};
use super::syntax::{SingleCall, single, single_preview};
use crate::host::{
    Arguments, Command, CommandInfo, Context, Counters, KeyAccess, KeyPositions, Outcome,
};
use crate::limiter::codec::Stored;
use crate::limiter::{SlidingWindow, WindowCounters, decide};

/// Counts requests in a sliding window, or takes some out again.
pub struct SlidingCommand;

impl Command for SlidingCommand {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.sliding",
        summary: c"Counts a request if there is room for it in the last window seconds.",
        complexity: c"O(1)",
        since: c"0.1.0",
        least_words: 4,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        arguments: &[KEY, LIMIT, WINDOW, COST_OR_REFUND, NOW, MS],
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        let call: SingleCall<SlidingWindow> = single(arguments.words_from(2))?;
        let server_now_ms = context.now_ms();
        let now_ms = call.options.now_ms.unwrap_or(server_now_ms);
        let mut key = context.open_for_writing(arguments.key(1));
        let stored = stored_state(key.value(WindowCounters::LEN))?;
        let decision = decide(call.rule, call.request, stored, now_ms);
        carry_out(&decision, &mut key, server_now_ms);
        let outcome = outcome(&decision);
        context.publish(key.close(), outcome);
        context.reply_integers(&call.options.unit.reply(decision.carried_out()));
        Ok(outcome)
    }
}

/// What the write form would decide now; changes nothing.
pub struct SlidingPreview;

impl Command for SlidingPreview {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.sliding_ro",
        summary: c"Tells what RL.SLIDING would decide now, and counts nothing.",
        access: KeyAccess::Read,
        arguments: &[KEY, LIMIT, WINDOW, COST, NOW, MS],
        ..SlidingCommand::INFO
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        let call: SingleCall<SlidingWindow> = single_preview(arguments.words_from(2))?;
        let now_ms = call.options.now_ms.unwrap_or_else(|| context.now_ms());
        let key = context.open_for_reading(arguments.key(1));
        let stored = stored_state(key.value(WindowCounters::LEN))?;
        let decision = decide(call.rule, call.request, stored, now_ms);
        context.reply_integers(&call.options.unit.reply(decision.previewed()));
        Ok(outcome(&decision))
    }
}
