//! Limits as pure arithmetic, without Redis.
//!
//! Words: a *limiter* is the state that one key holds; a *rule* is what a call says about it, an algorithm
//! with its parameters; a *request* is what the call asks of it; a *decision* is what comes of both.
//!
//! A decision is a function of a rule, a request, the state found and a time: nothing here reads a clock or a
//! key. Arithmetic is in `f64`, in the order of operations of the scripts in `lua-reference/`, so that the
//! replies agree with theirs bit for bit.
//!
//! Times are Unix time in whole milliseconds (`_ms`) or in seconds (`_s`).
//!
//! ```
//! use limiter::{Request, TokenBucket, decide};
//!
//! let rule = TokenBucket { capacity: 5.0, refill_rate: 0.5 };
//! let decision = decide(rule, Request::Cost(1.0), None, 1_790_000_000_000);
//! assert_eq!(decision.committed().in_seconds().integers, [1, 4, 1_790_000_002, 0]);
//! ```

#![forbid(unsafe_code)]

pub mod calendar;
pub mod codec;
#[cfg(test)]
mod properties;
mod search;
mod sliding_window;
mod token_bucket;

pub use sliding_window::{SlidingWindow, WindowCounters};
pub use token_bucket::{BucketLevel, TokenBucket};

use codec::Record;

/// 2^53: the largest number that an argument may be. Up to here every whole number is an exact `f64`.
pub const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;

/// The largest time that a reply holds, in seconds or milliseconds: reported times saturate here.
pub const MAX_REPORTED_TIME: i64 = (1 << 53) - 1;

/// `retry_after_ms` and `reset_after_ms` of what can never happen.
pub const NEVER_MS: i64 = -1;

/// Milliseconds in a second, as the arithmetic uses it.
const MS_PER_S: f64 = 1000.0;

/// Seconds that a key outlives the time at which its limiter is as good as a new one.
const TTL_MARGIN_S: f64 = 60.0;

/// The longest time to live in seconds, 36,500 days: a slow refill must not overflow a deadline.
const MAX_TTL_S: f64 = 36_500.0 * 86_400.0;

/// What a call asks of a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request {
    /// `COST`: take this much, 0 to 2^53, if there is room.
    Cost(f64),
    /// `REFUND`: give back what was not used.
    Refund {
        /// How much, 0 to 2^53.
        amount: f64,
        /// `AT`: when it was taken; `None` if the call does not say.
        at_ms: Option<i64>,
    },
}

/// What a call says about a limiter: an algorithm with its parameters.
pub trait Rule: Copy {
    /// What the key holds between calls.
    type State: Record;

    /// The state as of `now_ms`: refilled or rolled over; that of a new limiter if none was found.
    fn advance(self, found: Option<Self::State>, now_ms: i64) -> Self::State;

    /// The state after taking `cost`; `None` if there is no room. `state` is as of `now_ms`, here and below.
    fn take(self, state: Self::State, cost: f64, now_ms: i64) -> Option<Self::State>;

    /// The state after giving back `amount`, which was taken at `at_ms`, no later than now: never more than a
    /// new limiter has.
    fn refund(self, state: Self::State, amount: f64, at_ms: Option<i64>) -> Self::State;

    /// What remains, not yet rounded down, after taking `taken`.
    fn remaining(self, state: Self::State, taken: f64, now_ms: i64) -> f64;

    /// The times of a reply in Unix seconds and in seconds, as the scripts reply them.
    fn times_s(answer: &Answer<Self>) -> Times;

    /// The exact times of a reply, in milliseconds from now.
    fn times_ms(answer: &Answer<Self>) -> Times;

    /// Milliseconds that a key may live with this state; `None` if it must not expire.
    fn ttl_ms(self, state: Self::State) -> Option<i64>;
}

/// What a call does to its key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Write<S> {
    /// Neither the value nor the deadline is touched.
    None,
    /// The state and the deadline are stored here alone: a refill or a roll-over that any server works out by
    /// itself, and that a flood of denied calls must not turn into replication traffic.
    Local(S),
    /// The state and the deadline are stored, replicated and signalled.
    Replicated(S),
}

/// A request that was decided and is yet to be committed, or not.
#[derive(Clone, Copy, Debug)]
pub struct Decision<R: Rule> {
    rule: R,
    request: Request,
    now_ms: i64,
    found: Option<R::State>,
    /// The state as of now, before the request.
    before: R::State,
    /// The state once the request is committed; `before` if it is denied.
    after: R::State,
    is_allowed: bool,
}

/// Decides `request` by `rule` at `now_ms`, 0 to 2^53, on the state found.
pub fn decide<R: Rule>(
    rule: R,
    request: Request,
    found: Option<R::State>,
    now_ms: i64,
) -> Decision<R> {
    let before = rule.advance(found, now_ms);
    let granted = match request {
        Request::Cost(cost) => rule.take(before, cost, now_ms),
        Request::Refund { amount, at_ms } => {
            // What the caller's clock puts after now was taken now.
            let at_ms = at_ms.map(|at_ms| at_ms.min(now_ms));
            Some(rule.refund(before, amount, at_ms))
        }
    };
    Decision {
        rule,
        request,
        now_ms,
        found,
        before,
        after: granted.unwrap_or(before),
        is_allowed: granted.is_some(),
    }
}

impl<R: Rule> Decision<R> {
    /// What was asked.
    pub fn request(&self) -> Request {
        self.request
    }

    /// Whether the request is granted.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Milliseconds that the key may live after the call; `None` if it must not expire.
    pub fn ttl_ms(&self) -> Option<i64> {
        self.rule.ttl_ms(self.after)
    }

    /// What committing the request does to the key. `migrated`: the state was found in another form, which
    /// the key must not keep.
    pub fn write(&self, migrated: bool) -> Write<R::State> {
        match self.request {
            Request::Cost(_) if self.is_allowed => Write::Replicated(self.after),
            _ if migrated => Write::Replicated(self.after),
            // A denial or a refund on a missing key creates nothing, whatever the algorithm.
            _ if self.found.is_none() => Write::None,
            Request::Refund { .. } if self.after != self.before => Write::Replicated(self.after),
            _ => Write::Local(self.after),
        }
    }

    /// The answer to a call that is committed.
    pub fn committed(&self) -> Answer<R> {
        let (state, taken) = match self.request {
            // Of `before` and the cost, not of `after`: the scripts round the sum in that order.
            Request::Cost(cost) if self.is_allowed => (self.before, cost),
            _ => (self.after, 0.0),
        };
        Answer {
            remaining: self.rule.remaining(state, taken, self.now_ms),
            shown: self.after,
            left: self.after,
            ..self.previewed()
        }
    }

    /// The answer to a call that changes nothing: what holds now, before the request.
    pub fn previewed(&self) -> Answer<R> {
        Answer {
            rule: self.rule,
            now_ms: self.now_ms,
            denied_cost: match self.request {
                Request::Cost(cost) if !self.is_allowed => Some(cost),
                _ => None,
            },
            remaining: self.rule.remaining(self.before, 0.0, self.now_ms),
            shown: self.before,
            left: self.found.unwrap_or(self.before),
        }
    }
}

/// What a reply says, before its times are put into a unit.
#[derive(Clone, Copy, Debug)]
pub struct Answer<R: Rule> {
    rule: R,
    now_ms: i64,
    /// The cost that there was no room for; `None` if the request was granted.
    denied_cost: Option<f64>,
    remaining: f64,
    /// The state as of now, which the times in seconds are about.
    shown: R::State,
    /// The state that the call leaves behind, from which the exact times are measured.
    left: R::State,
}

/// The two times of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When the limiter is as good as a new one.
    pub reset: i64,
    /// How long to wait before the same call is allowed.
    pub retry: i64,
}

/// The contents of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Allowed (1 or 0), remaining, reset, retry.
    pub integers: [i64; 4],
}

impl<R: Rule> Answer<R> {
    /// With the reset in Unix seconds and the retry time in seconds.
    // Always inlined, as the exact form is: otherwise the answer goes through memory (60 instructions).
    #[inline(always)]
    pub fn in_seconds(&self) -> Reply {
        self.reply(R::times_s(self))
    }

    /// With both times in exact milliseconds from now.
    #[inline(always)]
    pub fn in_milliseconds(&self) -> Reply {
        self.reply(R::times_ms(self))
    }

    #[inline(always)]
    fn reply(&self, times: Times) -> Reply {
        // Rounded down, since casting cuts off the fraction of what is not negative.
        let remaining = self.remaining.max(0.0) as i64;
        let is_allowed = self.denied_cost.is_none();
        Reply {
            integers: [i64::from(is_allowed), remaining, times.reset, times.retry],
        }
    }
}

/// A time of the arithmetic as the integer that is reported: its fraction cut off, as Redis cuts off that of a
/// number that a script returns, and saturated.
fn reported_time(time: f64) -> i64 {
    (time as i64).min(MAX_REPORTED_TIME)
}
