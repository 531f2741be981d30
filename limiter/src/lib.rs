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
mod concurrency;
#[cfg(test)]
mod properties;
mod quota;
mod search;
mod sliding_window;
mod token_bucket;

pub use concurrency::{Concurrency, LeaseAnswer, LeaseChange, LeaseDecision, LeaseRequest, Leases};
pub use quota::{Quota, QuotaCount};
pub use sliding_window::{SlidingWindow, WindowCounters};
pub use token_bucket::{BucketLevel, TokenBucket};

/// The table of the kinds of limit whose state is a [`Record`](codec::Record): hands their rules to a macro, which
/// says once what is the same for each of them.
#[macro_export]
macro_rules! record_kinds {
    ($for_each:ident) => {
        $for_each! { TokenBucket, SlidingWindow, Quota }
    };
}

use codec::Record;
use search::partition_point_near;

/// 2^53: the largest number that an argument may be. Up to here every whole number is an exact `f64`.
pub const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;

/// The largest time that a reply holds, in seconds or milliseconds: reported times saturate here.
pub const MAX_REPORTED_TIME: i64 = (1 << 53) - 1;

/// `retry_after_ms` and `reset_after_ms` of what can never happen.
pub const NEVER_MS: i64 = -1;

/// Milliseconds in a second, as the arithmetic uses it.
const MS_PER_S: f64 = 1000.0;

/// Seconds that a key outlives the time after which its limiter is full again.
const TTL_MARGIN_S: f64 = 60.0;

/// The longest time to live in seconds, 36,500 days: a slow refill must not overflow a deadline.
const MAX_TTL_S: f64 = 36_500.0 * 86_400.0;

/// What a call asks of a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request {
    /// `COST`: take this much, 0 to 2^53, if there is room.
    Cost(f64),
    /// `COST` with `ATLEAST`: take the largest whole number from `min` to `cost` for which there is room.
    Batch { cost: i64, min: i64 },
    /// `COST` with `MAXWAIT`: reserve what becomes available within `max_wait_ms`, 0 to 2^53, and act then.
    /// Only a token bucket can wait.
    Reserve { cost: f64, max_wait_ms: i64 },
    /// `FORCE`: take this much, 0 to 2^53, whether or not there is room.
    Force(f64),
    /// `REFUND`: give back what was not used.
    Refund {
        /// How much, 0 to 2^53.
        amount: f64,
        /// `AT`: when it was taken; `None` if the call does not say.
        at_ms: Option<i64>,
    },
}

impl Request {
    /// What there must be room for; `None` if it is granted in any case.
    fn min_cost(self) -> Option<f64> {
        match self {
            Self::Cost(cost) | Self::Reserve { cost, .. } => Some(cost),
            Self::Batch { min, .. } => Some(min as f64),
            Self::Force(_) | Self::Refund { .. } => None,
        }
    }
}

/// What a call says about a limiter: an algorithm with its parameters.
pub trait Rule: Copy {
    /// What the key holds between calls.
    type State: Record;

    /// Whether time alone changes the state, so that a call stores it even if it takes nothing.
    const ADVANCES: bool;

    /// The state as of `now_ms`: refilled or rolled over; that of a new limiter if none was found.
    fn advance(self, found: Option<Self::State>, now_ms: i64) -> Self::State;

    /// The state after taking `cost`; `None` if there is no room. `state` is as of `now_ms`, here and below.
    fn take(self, state: Self::State, cost: f64, now_ms: i64) -> Option<Self::State>;

    /// The state after taking `cost` whether or not there is room.
    fn force(self, state: Self::State, cost: f64, now_ms: i64) -> Self::State;

    /// The state after taking `cost` with a wait of at most `max_wait_ms` before acting, and that wait.
    fn reserve(
        self,
        state: Self::State,
        cost: f64,
        _max_wait_ms: i64,
        now_ms: i64,
    ) -> Option<(Self::State, i64)> {
        self.take(state, cost, now_ms).map(|after| (after, 0))
    }

    /// The state after giving back `amount`, which was taken at `at_ms`, no later than now: never more than a
    /// new limiter has.
    fn refund(self, state: Self::State, amount: f64, at_ms: Option<i64>) -> Self::State;

    /// What remains, not yet rounded down, after taking `taken`.
    fn remaining(self, state: Self::State, taken: f64, now_ms: i64) -> f64;

    /// The times of a reply in Unix seconds and in seconds, as the scripts reply them.
    fn times_s(answer: &Answer<Self>) -> Times;

    /// The exact times of a reply, in milliseconds from now.
    fn times_ms(answer: &Answer<Self>) -> Times;

    /// How long a reservation that led to this state still has to wait, in ms.
    fn reserved_wait_ms(self, _left: Self::State, _now_ms: i64) -> i64 {
        0
    }

    /// Milliseconds that a key may live with this state; `None` if it must not expire.
    fn ttl_ms(self, state: Self::State, now_ms: i64) -> Option<i64>;
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
    /// What was granted; `None` if the request is denied.
    grant: Option<Grant>,
}

/// What a request was granted.
#[derive(Clone, Copy, Debug)]
struct Grant {
    /// How much is taken.
    taken: f64,
    /// How long to wait before acting, in ms.
    wait_ms: i64,
}

/// Decides `request` by `rule` at `now_ms`, 0 to 2^53, on the state found.
// Always inlined: otherwise the decision goes through memory.
#[inline(always)]
pub fn decide<R: Rule>(
    rule: R,
    request: Request,
    found: Option<R::State>,
    now_ms: i64,
) -> Decision<R> {
    let before = rule.advance(found, now_ms);
    let granted = match request {
        Request::Cost(cost) => rule.take(before, cost, now_ms).map(|after| {
            let (taken, wait_ms) = (cost, 0);
            (after, Grant { taken, wait_ms })
        }),
        _ => decide_uncommon(rule, request, before, now_ms),
    };
    Decision {
        rule,
        request,
        now_ms,
        found,
        before,
        after: granted.map_or(before, |(after, _)| after),
        grant: granted.map(|(_, grant)| grant),
    }
}

/// What any request but a plain cost leads to; `None` if it is denied.
#[inline(never)]
fn decide_uncommon<R: Rule>(
    rule: R,
    request: Request,
    before: R::State,
    now_ms: i64,
) -> Option<(R::State, Grant)> {
    let (after, taken, wait_ms) = match request {
        Request::Cost(cost) => (rule.take(before, cost, now_ms)?, cost, 0),
        Request::Batch { cost, min } => {
            let (after, taken) = take_batch(rule, before, cost, min, now_ms)?;
            (after, taken, 0)
        }
        Request::Reserve { cost, max_wait_ms } => {
            let (after, wait_ms) = rule.reserve(before, cost, max_wait_ms, now_ms)?;
            (after, cost, wait_ms)
        }
        Request::Force(cost) => (rule.force(before, cost, now_ms), cost, 0),
        Request::Refund { amount, at_ms } => {
            // What the caller's clock puts after now was taken now.
            let at_ms = at_ms.map(|at_ms| at_ms.min(now_ms));
            (rule.refund(before, amount, at_ms), 0.0, 0)
        }
    };
    Some((after, Grant { taken, wait_ms }))
}

/// The state after taking the largest whole number from `min` to `cost` for which there is room, and that number.
#[cold]
fn take_batch<R: Rule>(
    rule: R,
    state: R::State,
    cost: i64,
    min: i64,
    now_ms: i64,
) -> Option<(R::State, f64)> {
    let take = |number: i64| rule.take(state, number as f64, now_ms);
    let guess = rule.remaining(state, 0.0, now_ms) as i64;
    let too_much = partition_point_near(min, cost, guess.saturating_add(1), |number| {
        take(number).is_none()
    });
    let largest = too_much.map_or(cost, |number| number - 1);
    if largest < min {
        return None;
    }
    Some((take(largest)?, largest as f64))
}

impl<R: Rule> Decision<R> {
    /// What was asked.
    pub fn request(&self) -> Request {
        self.request
    }

    /// Whether the request is granted.
    pub fn is_allowed(&self) -> bool {
        self.grant.is_some()
    }

    /// Milliseconds that the key may live after the call; `None` if it must not expire.
    pub fn ttl_ms(&self) -> Option<i64> {
        self.rule.ttl_ms(self.after, self.now_ms)
    }

    /// What committing the request does to the key. `migrated`: the state was found in another form, which
    /// the key must not keep.
    pub fn write(&self, migrated: bool) -> Write<R::State> {
        let takes = self.is_allowed() && !matches!(self.request, Request::Refund { .. });
        if takes && R::ADVANCES || migrated || self.after != self.before {
            Write::Replicated(self.after)
        } else if self.found.is_some() && R::ADVANCES {
            Write::Local(self.after)
        } else {
            // So a denial or a refund on a missing key creates nothing, whatever the algorithm.
            Write::None
        }
    }

    /// The answer to a call that is committed.
    pub fn committed(&self) -> Answer<R> {
        let (state, taken) = match self.grant {
            // Of `before` and the cost, not of `after`: the scripts round the sum in that order.
            Some(grant) if !matches!(self.request, Request::Refund { .. }) => {
                (self.before, grant.taken)
            }
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
            request: self.request,
            grant: self.grant,
            remaining: self.rule.remaining(self.before, 0.0, self.now_ms),
            shown: self.before,
            left: self.found.unwrap_or(self.before),
        }
    }

    /// The answer to a call that repeats one that was committed: nothing more is asked.
    pub fn repeated(&self) -> Answer<R> {
        let previewed = self.previewed();
        let wait_ms = match self.request {
            Request::Reserve { .. } => self.rule.reserved_wait_ms(previewed.left, self.now_ms),
            _ => 0,
        };
        let taken = 0.0;
        Answer {
            grant: Some(Grant { taken, wait_ms }),
            ..previewed
        }
    }
}

/// What a reply says, before its times are put into a unit.
#[derive(Clone, Copy, Debug)]
pub struct Answer<R: Rule> {
    rule: R,
    now_ms: i64,
    request: Request,
    /// `None` if the request is denied.
    grant: Option<Grant>,
    remaining: f64,
    /// The state as of now, which the times in seconds are about.
    shown: R::State,
    /// The state that the call leaves behind, from which the exact times are measured.
    left: R::State,
}

/// The two times of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When the limiter is full again, or counts nothing.
    pub reset: i64,
    /// How long to wait before the same call is allowed.
    pub retry: i64,
}

/// The contents of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Allowed (1 or 0), remaining, reset, retry.
    pub integers: [i64; 4],
    /// How much was granted, for a call with `ATLEAST`; 0 if it is denied.
    pub granted: Option<i64>,
}

impl<R: Rule> Answer<R> {
    /// The times in Unix seconds and in seconds.
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

    /// The cost that there was no room for; `None` if the request was granted.
    fn denied_cost(&self) -> Option<f64> {
        match self.grant {
            None => self.request.min_cost(),
            Some(_) => None,
        }
    }

    #[inline(always)]
    fn reply(&self, times: Times) -> Reply {
        // Rounded down, since casting cuts off the fraction of what is not negative.
        let remaining = self.remaining.max(0.0) as i64;
        let is_allowed = i64::from(self.grant.is_some());
        Reply {
            integers: [is_allowed, remaining, times.reset, times.retry],
            granted: match self.request {
                Request::Batch { .. } => Some(self.grant.map_or(0, |grant| grant.taken as i64)),
                _ => None,
            },
        }
    }
}

impl Times {
    /// Both times in seconds, rounded up: the reset as Unix time, for kinds of limit that no script defines.
    fn in_seconds_from(self, now_ms: i64) -> Self {
        Self {
            reset: seconds_up(now_ms.saturating_add(self.reset)).min(MAX_REPORTED_TIME),
            retry: seconds_up(self.retry),
        }
    }
}

/// Milliseconds as seconds, rounded up; [`NEVER_MS`] stays -1.
fn seconds_up(ms: i64) -> i64 {
    if ms == NEVER_MS {
        return NEVER_MS;
    }
    ms.div_euclid(1000) + i64::from(ms.rem_euclid(1000) != 0)
}

/// A time of the arithmetic as the integer that is reported: its fraction cut off, as Redis cuts off that of a
/// number that a script returns, and saturated.
fn reported_time(time: f64) -> i64 {
    (time as i64).min(MAX_REPORTED_TIME)
}
