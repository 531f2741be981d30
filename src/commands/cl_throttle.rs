//! CL.THROTTLE, opt-in: redis-cell's command on the token bucket, for clients that already send it.
//!
//! `CL.THROTTLE key max_burst count period [quantity]` is a bucket of max_burst + 1 tokens that refills
//! count tokens in period seconds. A negative quantity gives tokens back. The reply is redis-cell's:
//! limited (0 or 1), limit, remaining, seconds to retry (-1 if allowed, or if it can never be), seconds
//! until the bucket is full.

use super::arguments::{COUNT, KEY, MAX_BURST, PERIOD, QUANTITY};
use super::error::Error;
use super::steps::{carry_out, outcome, stored_state};
use super::syntax::{ThrottleCall, throttle};
use crate::host::{
    Arguments, Command, CommandInfo, Context, Counters, KeyAccess, KeyPositions, Outcome,
};
use limiter::codec::Stored;
use limiter::{BucketLevel, decide};

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
        let ThrottleCall { rule, request } = throttle(arguments.words_from(2))?;
        let now_ms = context.now_ms();
        let mut key = context.open_for_writing(arguments.key(1));
        let stored = stored_state(key.value(BucketLevel::LEN))?;
        let decision = decide(rule, request, stored, now_ms);
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

#[cfg(test)]
mod tests {
    use super::*;
    use limiter::Request;
    use proptest::prelude::*;

    /// In 2^39 ms, 17 years, a wait loses at most a millisecond to the rate, which is above count / period by one
    /// part in 2^40, and to the rounding of a single refill.
    const MS_FOR_ONE_LOST: u128 = 1 << 39;

    /// 1 to 2^`bits`, any magnitude as likely as another.
    fn up_to_bits(bits: u32) -> impl Strategy<Value = u64> {
        (0..=bits).prop_flat_map(|bits| 1..=1u64 << bits)
    }

    proptest! {
        /// Held against whole numbers, in which nothing is rounded.
        #[test]
        fn a_wait_is_that_of_count_in_period_to_the_millisecond(
            count in up_to_bits(53), period_s in up_to_bits(30), tokens in up_to_bits(24),
        ) {
            let owed = u128::from(tokens) * u128::from(period_s) * 1000;
            let due_ms = owed.div_ceil(u128::from(count));
            prop_assume!(due_ms < 1 << 52);

            let words = [tokens - 1, count, period_s, tokens].map(|number| number.to_string());
            let ThrottleCall { rule, request } = throttle(words.iter().map(String::as_bytes)).unwrap();
            let empty = BucketLevel { tokens: 0.0, last_ms: 0 };
            let denied = decide(rule, request, Some(empty), 0);
            let [_, _, _, retry_ms] = denied.carried_out().in_milliseconds();

            let retry_ms = retry_ms as u128;
            let least_ms = (owed - owed / MS_FOR_ONE_LOST).div_ceil(u128::from(count));
            prop_assert!((least_ms..=due_ms).contains(&retry_ms), "{retry_ms} ms, due at {due_ms} ms");
            if owed < MS_FOR_ONE_LOST {
                prop_assert_eq!(retry_ms, due_ms);
            }
        }
    }

    #[test]
    fn a_negative_quantity_gives_back() {
        let give_back = |amount| Request::GiveBack {
            amount,
            at_ms: None,
        };
        for (quantity, request) in [
            ("3", Request::Take(3.0)),
            ("0", Request::Take(0.0)),
            ("-3", give_back(3.0)),
            ("-9007199254740992", give_back(9_007_199_254_740_992.0)),
        ] {
            let words = ["15", "30", "60", quantity];
            let call = throttle(words.iter().map(|word| word.as_bytes()));
            assert_eq!(call.map(|call| call.request), Ok(request), "{quantity}");
        }
    }
}
