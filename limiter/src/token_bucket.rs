//! The token bucket with lazy refill: `lua-reference/token_bucket.lua`.

use super::codec::{HEADER_LEN, Record, is_amount};
use super::search::partition_point_near;
use super::{
    Answer, MAX_REPORTED_TIME, MAX_TTL_S, MS_PER_S, NEVER_MS, Rule, TTL_MARGIN_S, Times,
    reported_time,
};

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
    /// Tokens at `last_ms`, finite and not negative.
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

impl Rule for TokenBucket {
    type State = BucketLevel;

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
        if refill_rate == 0.0 {
            return Times { reset: 0, retry: 0 };
        }
        let tokens = answer.shown.tokens;
        let now_s = answer.now_ms as f64 / MS_PER_S;
        Times {
            reset: reported_time((now_s + (capacity - tokens) / refill_rate).ceil()),
            retry: answer.denied_cost.map_or(0, |cost| {
                reported_time(((cost - tokens) / refill_rate).ceil())
            }),
        }
    }

    #[inline(always)]
    fn times_ms(answer: &Answer<Self>) -> Times {
        let &Answer {
            rule, left, now_ms, ..
        } = answer;
        Times {
            reset: rule.wait_for(rule.capacity, left, now_ms, 0),
            retry: match answer.denied_cost {
                None => 0,
                Some(cost) if cost > rule.capacity => NEVER_MS,
                Some(cost) => rule.wait_for(cost, left, now_ms, 1),
            },
        }
    }

    fn ttl_ms(self, _level: BucketLevel) -> Option<i64> {
        if self.refill_rate > 0.0 {
            let ttl_s = (self.capacity / self.refill_rate).ceil() + TTL_MARGIN_S;
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
        (is_amount(tokens) && last_ms >= 0).then_some(Self { tokens, last_ms })
    }
}
