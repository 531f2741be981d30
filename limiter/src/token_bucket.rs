//! The token bucket with lazy refill: `lua-reference/token_bucket.lua`.

use super::codec::{HEADER_LEN, Record};
use super::search::partition_point_near;
use super::{
    Answer, MAX_NUMBER, MAX_REPORTED_TIME, MAX_TTL_S, MS_PER_S, NEVER_MS, Request, Rule,
    TTL_MARGIN_S, Times, reported_time, seconds_up,
};

/// The largest debt.
const MIN_TOKENS: f64 = -MAX_NUMBER;

/// A burst of `capacity` tokens, refilled at `refill_rate` tokens per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    /// Tokens that the bucket holds, 0 to 2^53.
    pub capacity: f64,
    /// Tokens per second, 0 to 2^53; 0 never refills.
    pub refill_rate: f64,
}

/// What is in a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketLevel {
    /// Tokens at `last_ms`, finite; negative is a debt, of 2^53 at most.
    pub tokens: f64,
    /// Unix time in milliseconds up to which the bucket is refilled, not negative.
    pub last_ms: i64,
}

impl TokenBucket {
    /// The tokens at `at_ms`. It never falls as `at_ms` rises, since each `f64` operation in it is monotone:
    /// that is what lets [`partition_point_near`] search times by it.
    fn tokens_at(self, level: BucketLevel, at_ms: i64) -> f64 {
        let elapsed_ms = at_ms.saturating_sub(level.last_ms).max(0) as f64;
        self.capacity
            .min(level.tokens + (elapsed_ms / MS_PER_S) * self.refill_rate)
    }

    /// The smallest wait in ms, at least `min_wait_ms`, after which the bucket holds `tokens`, at most its
    /// capacity; [`NEVER_MS`] if it does not hold them and never refills.
    fn wait_for(self, tokens: f64, level: BucketLevel, now_ms: i64, min_wait_ms: i64) -> i64 {
        if self.refill_rate == 0.0 {
            let holds_them = self.tokens_at(level, now_ms) >= tokens;
            return if holds_them { min_wait_ms } else { NEVER_MS };
        }
        let refill_ms = ((tokens - level.tokens) / self.refill_rate * MS_PER_S).ceil();
        let guess = level
            .last_ms
            .saturating_sub(now_ms)
            .saturating_add(refill_ms as i64);
        partition_point_near(min_wait_ms, MAX_REPORTED_TIME, guess, |wait_ms| {
            self.tokens_at(level, now_ms + wait_ms) >= tokens
        })
        .unwrap_or(MAX_REPORTED_TIME)
    }
}

impl TokenBucket {
    /// The smallest wait in ms, at least 1, after which the same reservation is granted, or [`NEVER_MS`].
    #[cold]
    fn retry_reserve_ms(self, left: BucketLevel, cost: f64, max_wait_ms: i64, now_ms: i64) -> i64 {
        if cost > self.capacity || self.refill_rate == 0.0 {
            return NEVER_MS;
        }
        let guess = self.wait_for(cost, left, now_ms, 1) - max_wait_ms;
        partition_point_near(1, MAX_REPORTED_TIME, guess, |wait_ms| {
            let at_ms = now_ms + wait_ms;
            let level = self.advance(Some(left), at_ms);
            self.reserve(level, cost, max_wait_ms, at_ms).is_some()
        })
        .unwrap_or(MAX_REPORTED_TIME)
    }
}

impl Rule for TokenBucket {
    type State = BucketLevel;

    const ADVANCES: bool = true;

    fn advance(self, found: Option<BucketLevel>, now_ms: i64) -> BucketLevel {
        BucketLevel {
            tokens: match found {
                None => self.capacity,
                Some(level) => self.tokens_at(level, now_ms),
            },
            last_ms: now_ms,
        }
    }

    fn take(self, level: BucketLevel, cost: f64, _now_ms: i64) -> Option<BucketLevel> {
        (level.tokens >= cost).then_some(BucketLevel {
            tokens: level.tokens - cost,
            ..level
        })
    }

    fn force(self, level: BucketLevel, cost: f64, _now_ms: i64) -> BucketLevel {
        BucketLevel {
            tokens: (level.tokens - cost).max(MIN_TOKENS),
            ..level
        }
    }

    /// The bucket goes into debt, so that the next reservation waits behind this one: the debt is the queue. A debt
    /// that would pass its largest value is refused, since cutting it off would give tokens away.
    #[cold]
    fn reserve(
        self,
        level: BucketLevel,
        cost: f64,
        max_wait_ms: i64,
        now_ms: i64,
    ) -> Option<(BucketLevel, i64)> {
        if let Some(after) = self.take(level, cost, now_ms) {
            return Some((after, 0));
        }
        if cost > self.capacity || self.refill_rate == 0.0 || level.tokens - cost < MIN_TOKENS {
            return None;
        }
        let wait_ms = self.wait_for(cost, level, now_ms, 1);
        let is_covered = wait_ms <= max_wait_ms && self.tokens_at(level, now_ms + wait_ms) >= cost;
        is_covered.then(|| (self.force(level, cost, now_ms), wait_ms))
    }

    #[cold]
    fn reserved_wait_ms(self, left: BucketLevel, now_ms: i64) -> i64 {
        self.wait_for(0.0, left, now_ms, 0)
    }

    fn refund(self, level: BucketLevel, amount: f64, _at_ms: Option<i64>) -> BucketLevel {
        BucketLevel {
            tokens: self.capacity.min(level.tokens + amount),
            ..level
        }
    }

    fn remaining(self, level: BucketLevel, taken: f64, _now_ms: i64) -> f64 {
        level.tokens - taken
    }

    #[inline(always)]
    fn times_s(answer: &Answer<Self>) -> Times {
        let Self {
            capacity,
            refill_rate,
        } = answer.rule;
        let tokens = answer.shown.tokens;
        let now_s = answer.now_ms as f64 / MS_PER_S;
        let reset = if refill_rate > 0.0 {
            reported_time((now_s + (capacity - tokens) / refill_rate).ceil())
        } else {
            0
        };
        let retry = match (answer.request, answer.denied_cost()) {
            // No script waits: its time is the exact one, rounded up.
            (Request::Reserve { .. }, _) => seconds_up(Self::times_ms(answer).retry),
            (_, Some(cost)) if refill_rate > 0.0 => {
                reported_time(((cost - tokens) / refill_rate).ceil())
            }
            _ => 0,
        };
        Times { reset, retry }
    }

    #[inline(always)]
    fn times_ms(answer: &Answer<Self>) -> Times {
        let &Answer {
            rule, left, now_ms, ..
        } = answer;
        Times {
            reset: rule.wait_for(rule.capacity, left, now_ms, 0),
            retry: match (answer.grant, answer.request) {
                (Some(grant), _) => grant.wait_ms,
                (None, Request::Reserve { cost, max_wait_ms }) => {
                    rule.retry_reserve_ms(left, cost, max_wait_ms, now_ms)
                }
                (None, request) => match request.min_cost() {
                    None => 0,
                    Some(cost) if cost > rule.capacity => NEVER_MS,
                    Some(cost) => rule.wait_for(cost, left, now_ms, 1),
                },
            },
        }
    }

    fn ttl_ms(self, level: BucketLevel, _now_ms: i64) -> Option<i64> {
        if self.refill_rate > 0.0 {
            let tokens = self.capacity - level.tokens.min(0.0);
            let ttl_s = (tokens / self.refill_rate).ceil() + TTL_MARGIN_S;
            Some((ttl_s.min(MAX_TTL_S) * MS_PER_S) as i64)
        } else {
            None
        }
    }
}

impl Record for BucketLevel {
    const KIND: u8 = b'T';
    const LEN: usize = HEADER_LEN + size_of::<f64>() + size_of::<i64>();
    type Fields = (f64, i64);

    fn to_fields(self) -> Self::Fields {
        (self.tokens, self.last_ms)
    }

    fn from_fields((tokens, last_ms): Self::Fields) -> Option<Self> {
        let in_range = (MIN_TOKENS..=f64::MAX).contains(&tokens) && last_ms >= 0;
        in_range.then_some(Self { tokens, last_ms })
    }
}
