//! CL.THROTTLE, opt-in: redis-cell's command on the token bucket, for clients that already send it.
//!
//! `CL.THROTTLE key max_burst count period [quantity]` is a bucket of max_burst + 1 tokens that refills
//! count tokens in period seconds. The reply is redis-cell's: limited (0 or 1), limit, remaining,
//! seconds to retry (-1 if allowed, or if it can never be), seconds until the bucket is full.

use super::arguments::{COUNT, KEY, MAX_BURST, PERIOD, QUANTITY};
use super::error::Error;
use super::steps::{carry_out, outcome, stored_state};
use super::syntax::{ThrottleCall, throttle};
use crate::host::{
    Arguments, Command, CommandInfo, Context, Counters, KeyAccess, KeyPositions, Outcome,
};
use limiter::codec::Stored;
use limiter::{BucketLevel, Request, decide};

/// Milliseconds in a second.
const MS_PER_S: i64 = 1000;

/// What redis-cell replies where there is no time to wait for.
const NO_RETRY: i64 = -1;

pub struct ClThrottleCommand;

impl Command for ClThrottleCommand {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"cl.throttle",
        summary: c"Takes from a token bucket, in the syntax and with the reply of redis-cell.",
        complexity: c"O(1)",
        since: c"0.1.0",
        least_words: 5,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        arguments: &[KEY, MAX_BURST, COUNT, PERIOD, QUANTITY],
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        let ThrottleCall { rule, quantity } = throttle(arguments.words_from(2))?;
        let now_ms = context.now_ms();
        let mut key = context.open_for_writing(arguments.key(1));
        let stored = stored_state(key.value(BucketLevel::LEN))?;
        let decision = decide(rule, Request::Take(quantity), stored, now_ms);
        carry_out(&decision, &mut key, now_ms)?;
        let outcome = outcome(&decision);
        context.publish(key.close(), outcome);

        let [allowed, remaining, reset_ms, retry_ms] = decision.carried_out().in_milliseconds();
        context.reply_integers(&[
            1 - allowed,
            rule.capacity as i64,
            remaining,
            if retry_ms > 0 {
                whole_seconds(retry_ms)
            } else {
                NO_RETRY
            },
            whole_seconds(reset_ms),
        ]);
        Ok(outcome)
    }
}

/// Rounded up: a client that waits so long waits long enough.
fn whole_seconds(wait_ms: i64) -> i64 {
    wait_ms.div_euclid(MS_PER_S) + i64::from(wait_ms.rem_euclid(MS_PER_S) != 0)
}
