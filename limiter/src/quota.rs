//! The quota: what one period may count, a fixed window.
//!
//! The stored period is open until it ends, whatever period the call states and wherever the clock went: a changed
//! period begins when the stored one has ended, so a deployment never hands out a second quota. The limit is always the
//! call's.

use super::calendar::{Period, Span};
use super::codec::{HEADER_LEN, Record, is_amount};
use super::{Answer, MAX_REPORTED_TIME, MAX_TTL_S, MS_PER_S, NEVER_MS, Rule, TTL_MARGIN_S, Times};

/// At most `limit` in one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quota {
    /// What a period may count, 0 to 2^53.
    pub limit: f64,
    /// The periods.
    pub period: Period,
}

/// What was counted in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuotaCount {
    /// Unix time in milliseconds at which the period starts; negative before 1970.
    pub start_ms: i64,
    /// Unix time in milliseconds at which it ends; it does not belong to the period.
    pub end_ms: i64,
    /// Counted in it, finite and not negative.
    pub count: f64,
}

impl QuotaCount {
    /// Nothing is counted and no period is open.
    const CLOSED: Self = Self {
        start_ms: 0,
        end_ms: 0,
        count: 0.0,
    };

    fn is_open(self) -> bool {
        self != Self::CLOSED
    }

    /// Milliseconds until the period ends.
    fn left_ms(self, now_ms: i64) -> i64 {
        self.end_ms.saturating_sub(now_ms).min(MAX_REPORTED_TIME)
    }
}

impl Quota {
    /// Opens the period of `now_ms`.
    // Once a period: kept out of the way of the calls within one.
    #[cold]
    #[inline(never)]
    fn open(self, now_ms: i64) -> QuotaCount {
        let Span { start_ms, end_ms } = self.period.containing(now_ms);
        QuotaCount {
            start_ms,
            end_ms,
            count: 0.0,
        }
    }
}

impl Rule for Quota {
    type State = QuotaCount;

    /// A denial, and a call that counts nothing, write nothing.
    const ADVANCES: bool = false;

    fn advance(self, found: Option<QuotaCount>, now_ms: i64) -> QuotaCount {
        match found {
            Some(counted) if now_ms < counted.end_ms => counted,
            _ => QuotaCount::CLOSED,
        }
    }

    fn take(self, counted: QuotaCount, cost: f64, now_ms: i64) -> Option<QuotaCount> {
        (counted.count + cost <= self.limit).then(|| self.force(counted, cost, now_ms))
    }

    fn force(self, counted: QuotaCount, cost: f64, now_ms: i64) -> QuotaCount {
        if cost == 0.0 {
            return counted;
        }
        let open = if counted.is_open() {
            counted
        } else {
            self.open(now_ms)
        };
        QuotaCount {
            count: open.count + cost,
            ..open
        }
    }

    /// Acts on the open period only, and on nothing that was counted before it.
    fn refund(self, counted: QuotaCount, amount: f64, at_ms: Option<i64>) -> QuotaCount {
        if at_ms.is_some_and(|at_ms| at_ms < counted.start_ms) {
            return counted;
        }
        QuotaCount {
            count: (counted.count - amount).max(0.0),
            ..counted
        }
    }

    fn remaining(self, counted: QuotaCount, taken: f64, _now_ms: i64) -> f64 {
        self.limit - (counted.count + taken)
    }

    #[inline(always)]
    fn times_s(answer: &Answer<Self>) -> Times {
        Self::times_ms(answer).in_seconds_from(answer.now_ms)
    }

    #[inline(always)]
    fn times_ms(answer: &Answer<Self>) -> Times {
        let &Answer {
            rule,
            shown,
            now_ms,
            ..
        } = answer;
        Times {
            reset: if shown.count > 0.0 {
                shown.left_ms(now_ms)
            } else {
                0
            },
            retry: match answer.denied_cost() {
                None => 0,
                Some(cost) if cost > rule.limit => NEVER_MS,
                Some(_) => shown.left_ms(now_ms),
            },
        }
    }

    fn ttl_ms(self, counted: QuotaCount, now_ms: i64) -> Option<i64> {
        let margin_ms = (TTL_MARGIN_S * MS_PER_S) as i64;
        let ttl_ms = counted
            .end_ms
            .saturating_sub(now_ms)
            .saturating_add(margin_ms);
        Some(ttl_ms.min((MAX_TTL_S * MS_PER_S) as i64))
    }
}

impl Record for QuotaCount {
    const KIND: u8 = b'Q';
    const LEN: usize = HEADER_LEN + 2 * size_of::<i64>() + size_of::<f64>();
    type Fields = (i64, i64, f64);

    fn to_fields(self) -> Self::Fields {
        (self.start_ms, self.end_ms, self.count)
    }

    fn from_fields((start_ms, end_ms, count): Self::Fields) -> Option<Self> {
        (is_amount(count) && end_ms >= 0).then_some(Self {
            start_ms,
            end_ms,
            count,
        })
    }
}
