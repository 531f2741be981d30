//! CL.THROTTLE, opt-in: redis-cell's command on the token bucket, for clients that already send it.
//!
//! `CL.THROTTLE key max_burst count period [quantity]` is a bucket of max_burst + 1 tokens that refills
//! count tokens in period seconds. The reply is redis-cell's: limited (0 or 1), limit, remaining,
//! seconds to retry (-1 if allowed, or if it can never be), seconds until the bucket is full.

use super::docs::{KEY, doc};
use super::error::Error;
use super::kind::{Commit, StoredRule};
use crate::host::{
    Argv, Command, CommandInfo, Context, KeyAccess, KeyPositions, Outcome, counters,
};
use syntax::parameter::{COUNT, MAX_BURST, QUANTITY, THROTTLE_PERIOD};
use syntax::{ThrottleArgs, TimeUnit, parse_throttle};

/// Milliseconds in a second.
const MS_PER_S: i64 = 1000;

/// What redis-cell replies where there is no time to wait for.
const NO_RETRY: i64 = -1;

pub struct ClThrottle;

impl Command for ClThrottle {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"cl.throttle",
        summary: c"Takes from a token bucket, in the syntax and with the reply of redis-cell.",
        complexity: c"O(1)",
        since: c"0.1.0",
        arity: 5,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        args: &[
            KEY,
            doc(&MAX_BURST),
            doc(&COUNT),
            doc(&THROTTLE_PERIOD),
            doc(&QUANTITY).optional(),
        ],
        counters: counters!(),
    };

    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let ThrottleArgs { rule, request } =
            parse_throttle(argv.iter_from(2)).map_err(|error| Error::Syntax(error, &Self::INFO))?;
        let now_ms = context.now_ms();
        let mut key = context.open_for_writing(argv.arg(1));
        let decision = rule.decide(request, &mut key, now_ms)?;
        let reply = decision.committed(TimeUnit::Milliseconds);
        decision.commit(&mut key, now_ms)?;
        context.publish(key.close(), decision.outcome());

        let [allowed, remaining, reset_ms, retry_ms] = reply.integers;
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
        Ok(decision.outcome())
    }
}

/// Rounded up: a client that waits so long waits long enough.
fn whole_seconds(wait_ms: i64) -> i64 {
    wait_ms.div_euclid(MS_PER_S) + i64::from(wait_ms.rem_euclid(MS_PER_S) != 0)
}
