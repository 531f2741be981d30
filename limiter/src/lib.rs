//! The limiters: pure arithmetic and the state codec, without Redis.
//!
//! A decision is a function of a rule, a request, the stored state and a time; nothing here reads a
//! clock or a key. All arithmetic is in `f64` and in the order of operations of design sections 2 and
//! 3, so that it agrees with the scripts in `lua-reference/` bit for bit.
//!
//! Times are Unix time in whole milliseconds (`_ms`) or in seconds (`_s`).

#![forbid(unsafe_code)]

pub mod calendar;
pub mod codec;
#[cfg(test)]
mod properties;
mod settle;
mod sliding_window;
mod token_bucket;

pub use sliding_window::{SlidingWindow, WindowCounters};
pub use token_bucket::{BucketLevel, TokenBucket};

use codec::Stored;

/// 2^53: the largest number that an argument may be. Up to here every whole number is an exact `f64`.
pub const MAX_NUMBER: f64 = 9_007_199_254_740_992.0;

/// The largest time that a reply holds, in seconds or milliseconds: reported times saturate here.
pub const MAX_REPORTED_TIME: i64 = (1 << 53) - 1;

/// `retry_after_ms` and `reset_after_ms` of what can never happen.
pub const NEVER_MS: i64 = -1;

/// Milliseconds in a second, as the arithmetic uses it.
const MS_PER_S: f64 = 1000.0;

/// Seconds that a key outlives the moment from which on it could only be as good as new.
const TTL_MARGIN_S: f64 = 60.0;

/// What a call asks of a limiter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request {
    /// `COST`: take this much, 0 to 2^53, if there is room for it.
    Take(f64),
    /// `REFUND`: give back what was not used.
    GiveBack {
        /// How much, 0 to 2^53.
        amount: f64,
        /// `AT`: when it was taken, Unix time in ms; `None` if the call does not say.
        at_ms: Option<i64>,
    },
}

/// An algorithm with its parameters: the rule that a call states (design sections 2, 3, 4 and 6).
pub trait Limiter: Copy {
    /// What is stored between calls.
    type State: Stored;

    /// The state as of `now_ms`: refilled or rolled over; that of a new limiter if none is stored.
    fn advance(self, stored: Option<Self::State>, now_ms: i64) -> Self::State;

    /// The state after taking `cost` from `state`, which is as of `now_ms`; `None` if there is no room.
    fn take(self, state: Self::State, cost: f64, now_ms: i64) -> Option<Self::State>;

    /// The state after giving back `amount`, which was taken at `at_ms`: never above what a new limiter
    /// has. `state` is as of now, and `at_ms` is no later.
    fn give_back(self, state: Self::State, amount: f64, at_ms: Option<i64>) -> Self::State;

    /// What remains, not yet rounded down, once `cost` is taken from `state`, which is as of `now_ms`.
    fn remaining(self, state: Self::State, cost: f64, now_ms: i64) -> f64;

    /// Unix time in seconds at which the bucket is full or the window ends; 0 if it never refills.
    fn reset_at_s(self, state: Self::State, now_ms: i64) -> f64;

    /// Seconds to wait before `cost` is worth asking for again, as the Lua scripts say it.
    fn retry_after_s(self, state: Self::State, cost: f64, now_ms: i64) -> f64;

    /// Milliseconds from `now_ms` until the limiter is as good as new, or [`NEVER_MS`], from the state
    /// `left` behind, which may be older than `now_ms`.
    fn reset_after_ms(self, left: Self::State, now_ms: i64) -> i64;

    /// The smallest d >= 1 such that [`take`](Self::take) of `cost` succeeds at `now_ms` + d from the
    /// state `left` behind, which may be older than `now_ms`, or [`NEVER_MS`] (section 4).
    ///
    /// `reset_after_ms` is what [`reset_after_ms`](Self::reset_after_ms) says of that state.
    fn retry_after_ms(self, left: Self::State, cost: f64, now_ms: i64, reset_after_ms: i64) -> i64;

    /// Milliseconds that a key may live after the call; `None` if it must not expire.
    fn ttl_ms(self) -> Option<i64>;
}

/// What a call does to its key (section 5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect<S> {
    /// Neither the value nor the ttl is touched.
    Nothing,
    /// The state and the ttl are kept in memory; nobody else hears of it.
    InMemory(S),
    /// The state and the ttl are kept, propagated and signalled.
    Propagated(S),
}

/// What was found under a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found<S> {
    /// No limiter yet.
    Nothing,
    /// The limiter's state.
    State(S),
    /// What a Lua script kept there: the limiter goes on from it, under a state of its own.
    ScriptState(S),
}

impl<S> From<Option<S>> for Found<S> {
    fn from(state: Option<S>) -> Self {
        state.map_or(Self::Nothing, Self::State)
    }
}

impl<S: Copy> Found<S> {
    fn state(self) -> Option<S> {
        match self {
            Self::Nothing => None,
            Self::State(state) | Self::ScriptState(state) => Some(state),
        }
    }
}

/// A request that was decided and may yet be carried out or not.
#[derive(Clone, Copy, Debug)]
pub struct Decision<L: Limiter> {
    rule: L,
    request: Request,
    now_ms: i64,
    found: Found<L::State>,
    /// The state as of now, before the request.
    before: L::State,
    /// The state once the request is carried out; `before` if it is denied.
    after: L::State,
    allowed: bool,
}

/// Decides `request` by `rule` at `now_ms`, 0 to 2^53, on what was found.
pub fn decide<L: Limiter>(
    rule: L,
    request: Request,
    found: impl Into<Found<L::State>>,
    now_ms: i64,
) -> Decision<L> {
    let found = found.into();
    let before = rule.advance(found.state(), now_ms);
    let carried_out = match request {
        Request::Take(cost) => rule.take(before, cost, now_ms),
        Request::GiveBack { amount, at_ms } => {
            // What the caller's clock puts after now was taken now.
            let at_ms = at_ms.map(|at_ms| at_ms.min(now_ms));
            Some(rule.give_back(before, amount, at_ms))
        }
    };
    Decision {
        rule,
        request,
        now_ms,
        found,
        before,
        after: carried_out.unwrap_or(before),
        allowed: carried_out.is_some(),
    }
}

impl<L: Limiter> Decision<L> {
    /// What was asked for.
    pub fn request(&self) -> Request {
        self.request
    }

    /// Whether the limiter has room for the request.
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Milliseconds that a key may live after the call; `None` if it must not expire.
    pub fn ttl_ms(&self) -> Option<i64> {
        self.rule.ttl_ms()
    }

    /// What carrying the request out does to the key (section 5).
    pub fn effect(&self) -> Effect<L::State> {
        match (self.request, self.found) {
            (Request::Take(_), _) if self.allowed => Effect::Propagated(self.after),
            (_, Found::ScriptState(_)) => Effect::Propagated(self.after),
            (_, Found::Nothing) => Effect::Nothing,
            (Request::GiveBack { .. }, _) if self.after != self.before => {
                Effect::Propagated(self.after)
            }
            (_, Found::State(_)) => Effect::InMemory(self.after),
        }
    }

    /// The answer to a call that was carried out.
    pub fn carried_out(&self) -> Answer<L> {
        let (shown, taken) = match self.request {
            // Of `before` and the cost, not of `after`: the sum is rounded in that order (section 3).
            Request::Take(cost) if self.allowed => (self.before, cost),
            _ => (self.after, 0.0),
        };
        Answer {
            remaining: self.rule.remaining(shown, taken, self.now_ms),
            shown: self.after,
            left: self.after,
            ..self.previewed()
        }
    }

    /// The answer to a call that changed nothing: what holds now, before taking the cost (section 6).
    pub fn previewed(&self) -> Answer<L> {
        Answer {
            rule: self.rule,
            now_ms: self.now_ms,
            denied_cost: match self.request {
                Request::Take(cost) if !self.allowed => Some(cost),
                _ => None,
            },
            remaining: self.rule.remaining(self.before, 0.0, self.now_ms),
            shown: self.before,
            left: self.found.state().unwrap_or(self.before),
        }
    }
}

/// The contents of a reply, before it is put into one of the two units of time.
#[derive(Clone, Copy, Debug)]
pub struct Answer<L: Limiter> {
    rule: L,
    now_ms: i64,
    /// The cost that there was no room for; `None` if the call was allowed.
    denied_cost: Option<f64>,
    remaining: f64,
    /// The state as of now, which the times in seconds are about.
    shown: L::State,
    /// The state that the call leaves behind, from which the exact times are measured.
    left: L::State,
}

impl<L: Limiter> Answer<L> {
    /// `[allowed, remaining, reset_at, retry_after]` in Unix seconds and seconds (section 1).
    pub fn in_seconds(&self) -> [i64; 4] {
        let reset_at_s = self.rule.reset_at_s(self.shown, self.now_ms);
        let retry_after_s = match self.denied_cost {
            Some(cost) => self.rule.retry_after_s(self.shown, cost, self.now_ms),
            None => 0.0,
        };
        self.reply(reported_time(reset_at_s), reported_time(retry_after_s))
    }

    /// `[allowed, remaining, reset_after_ms, retry_after_ms]`, exact (section 4).
    pub fn in_milliseconds(&self) -> [i64; 4] {
        let reset_after_ms = self.rule.reset_after_ms(self.left, self.now_ms);
        let retry_after_ms = match self.denied_cost {
            Some(cost) => self
                .rule
                .retry_after_ms(self.left, cost, self.now_ms, reset_after_ms),
            None => 0,
        };
        self.reply(reset_after_ms, retry_after_ms)
    }

    fn reply(&self, reset: i64, retry: i64) -> [i64; 4] {
        // Rounded down, since what is not negative is cut off after the point.
        let remaining = self.remaining.max(0.0) as i64;
        [
            i64::from(self.denied_cost.is_none()),
            remaining,
            reset,
            retry,
        ]
    }
}

/// A time of the arithmetic as the integer that is reported: cut off after the point, as Redis cuts
/// the numbers that a script returns, and saturated.
fn reported_time(time: f64) -> i64 {
    (time as i64).min(MAX_REPORTED_TIME)
}
