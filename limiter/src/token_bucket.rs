//! The token bucket with lazy refill (design section 2).

use super::codec::{HEADER_LEN, Stored, is_amount};
use super::settle::first_where;
use super::{Limiter, MAX_REPORTED_TIME, MS_PER_S, NEVER_MS, TTL_MARGIN_S};

/// The longest ttl of a bucket in seconds, 36,500 days: a slow refill must not overflow a deadline.
const MAX_TTL_S: f64 = 36_500.0 * 86_400.0;

/// A burst of `capacity` tokens, refilled at `refill_rate` tokens a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    /// Tokens that the bucket holds, 0 to 2^53.
    pub capacity: f64,
    /// Tokens a second, 0 to 2^53; 0 never refills.
    pub refill_rate: f64,
}

/// What is in a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketLevel {
    /// Tokens at `last_ms`, finite and not negative.
    pub tokens: f64,
    /// Unix time in milliseconds up to which the bucket is refilled, not negative.
    pub last_ms: i64,
}

impl TokenBucket {
    /// The tokens at `at_ms`. No step of it falls when `at_ms` rises (each `f64` operation in it is
    /// monotone), which is what lets [`first_where`] settle a time by it.
    fn tokens_at(self, level: BucketLevel, at_ms: i64) -> f64 {
        let elapsed_ms = at_ms.saturating_sub(level.last_ms).max(0) as f64;
        self.capacity
            .min(level.tokens + (elapsed_ms / MS_PER_S) * self.refill_rate)
    }

    /// The smallest wait in ms, at least `least_ms`, after which the bucket holds `tokens`, at most
    /// its capacity; [`NEVER_MS`] if it does not hold them and never refills.
    fn wait_for(self, tokens: f64, level: BucketLevel, now_ms: i64, least_ms: i64) -> i64 {
        if self.refill_rate == 0.0 {
            let holds_them = self.tokens_at(level, now_ms) >= tokens;
            return if holds_them { least_ms } else { NEVER_MS };
        }
        let refill_ms = ((tokens - level.tokens) / self.refill_rate * MS_PER_S).ceil();
        let guess = level
            .last_ms
            .saturating_sub(now_ms)
            .saturating_add(refill_ms as i64);
        first_where(least_ms, MAX_REPORTED_TIME, guess, |wait_ms| {
            self.tokens_at(level, now_ms + wait_ms) >= tokens
        })
        .unwrap_or(MAX_REPORTED_TIME)
    }
}

impl Limiter for TokenBucket {
    type State = BucketLevel;

    fn advance(self, stored: Option<BucketLevel>, now_ms: i64) -> BucketLevel {
        BucketLevel {
            tokens: match stored {
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

    fn give_back(self, level: BucketLevel, amount: f64, _at_ms: Option<i64>) -> BucketLevel {
        BucketLevel {
            tokens: self.capacity.min(level.tokens + amount),
            ..level
        }
    }

    fn remaining(self, level: BucketLevel, cost: f64, _now_ms: i64) -> f64 {
        level.tokens - cost
    }

    fn reset_at_s(self, level: BucketLevel, now_ms: i64) -> f64 {
        if self.refill_rate > 0.0 {
            (now_ms as f64 / MS_PER_S + (self.capacity - level.tokens) / self.refill_rate).ceil()
        } else {
            0.0
        }
    }

    fn retry_after_s(self, level: BucketLevel, cost: f64, _now_ms: i64) -> f64 {
        if self.refill_rate > 0.0 {
            ((cost - level.tokens) / self.refill_rate).ceil()
        } else {
            0.0
        }
    }

    fn reset_after_ms(self, left: BucketLevel, now_ms: i64) -> i64 {
        self.wait_for(self.capacity, left, now_ms, 0)
    }

    fn retry_after_ms(
        self,
        left: BucketLevel,
        cost: f64,
        now_ms: i64,
        _reset_after_ms: i64,
    ) -> i64 {
        if cost > self.capacity {
            return NEVER_MS;
        }
        self.wait_for(cost, left, now_ms, 1)
    }

    fn ttl_ms(self) -> Option<i64> {
        if self.refill_rate > 0.0 {
            let ttl_s = (self.capacity / self.refill_rate).ceil() + TTL_MARGIN_S;
            Some((ttl_s.min(MAX_TTL_S) * MS_PER_S) as i64)
        } else {
            None
        }
    }
}

impl Stored for BucketLevel {
    const KIND: u8 = b'T';
    const LEN: usize = HEADER_LEN + size_of::<f64>() + size_of::<i64>();
    type Fields = (f64, i64);

    fn to_fields(self) -> Self::Fields {
        (self.tokens, self.last_ms)
    }

    fn from_fields((tokens, last_ms): Self::Fields) -> Option<Self> {
        (is_amount(tokens) && last_ms >= 0).then_some(Self { tokens, last_ms })
    }
}
