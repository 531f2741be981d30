//! The sliding window of two counters: the window before counts by the share of it that still lies within the
//! last `window` seconds. `lua-reference/sliding_window.lua`.
//!
//! The estimate never passes `limit`. Counted exactly, any stretch of t <= `window` seconds can hold up to
//! `limit * (1 + t / window)`: what was used up at the end of one window is taken as if it had been spread over it.

use super::codec::{HEADER_LEN, Record, is_amount};
use super::search::partition_point_near;
use super::{
    Answer, MAX_REPORTED_TIME, MS_PER_S, NEVER_MS, Rule, TTL_MARGIN_S, Times, reported_time,
};

/// The last time that is looked at: 2^53 ms after the latest `NOW`.
const HORIZON_MS: i64 = 1 << 54;

/// An estimate of the last `window_s` seconds that may reach `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindow {
    /// What the estimate may reach, 0 to 2^53.
    pub limit: f64,
    /// Length of the window in seconds, 0.001 to 2^53 / 1000.
    pub window_s: f64,
}

/// What was counted in the stored window and in the one before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowCounters {
    /// Length in seconds of the windows that were counted in.
    pub window_s: f64,
    /// Number of the window that `curr` counts, from Unix time 0 on.
    pub index: i64,
    /// Counted in the window before it.
    pub prev: f64,
    /// Counted in it.
    pub curr: f64,
}

impl WindowCounters {
    /// The number of the last window in which something still counts, if anything does.
    fn last_counted(self) -> Option<i64> {
        if self.curr > 0.0 {
            Some(self.index.saturating_add(1))
        } else if self.prev > 0.0 {
            Some(self.index)
        } else {
            None
        }
    }

    /// The counters as of window `index`: rolled over into it if they are of an earlier one.
    fn roll_over(self, index: i64) -> Self {
        if self.index >= index {
            return self;
        }
        Self {
            index,
            prev: if self.index == index - 1 {
                self.curr
            } else {
                0.0
            },
            curr: 0.0,
            ..self
        }
    }
}

impl SlidingWindow {
    /// The number of the window that `at_ms` lies in. It never falls as `at_ms` rises.
    fn index_at(self, at_ms: i64) -> i64 {
        // Rounded down, since casting cuts off the fraction of what is not negative.
        (at_ms as f64 / MS_PER_S / self.window_s) as i64
    }

    /// Unix time in seconds at which window `index` starts, and the seconds from then to `at_ms`.
    fn start_and_elapsed_s(self, index: i64, at_ms: i64) -> (f64, f64) {
        let window_start_s = index as f64 * self.window_s;
        (window_start_s, at_ms as f64 / MS_PER_S - window_start_s)
    }

    /// The estimated use of the last `window_s` seconds before `at_ms`, which lies in window `index`, from
    /// counters as of then. Within the window it never rises with `at_ms`: each `f64` operation in it is monotone.
    fn estimate(self, counters: WindowCounters, index: i64, at_ms: i64) -> f64 {
        let (_, elapsed_s) = self.start_and_elapsed_s(index, at_ms);
        let weight = 1.0 - elapsed_s / self.window_s;
        counters.prev * weight + counters.curr
    }

    /// Whether there is room for `cost` at `at_ms`, which lies in window `index`.
    fn admits(self, counters: WindowCounters, cost: f64, index: i64, at_ms: i64) -> bool {
        self.estimate(counters, index, at_ms) + cost <= self.limit
    }

    /// The first millisecond of window `index`, as [`index_at`](Self::index_at) has it; the horizon if that
    /// comes first.
    fn first_ms_of(self, index: i64) -> i64 {
        let guess = (index as f64 * self.window_s * MS_PER_S).ceil() as i64;
        partition_point_near(0, HORIZON_MS, guess, |at_ms| self.index_at(at_ms) >= index)
            .unwrap_or(HORIZON_MS)
    }

    /// Milliseconds from `now_ms` until nothing of `left` counts any more.
    fn reset_after_ms(self, left: WindowCounters, now_ms: i64) -> i64 {
        match self.advance(Some(left), now_ms).last_counted() {
            Some(last) => {
                let fresh_ms = self.first_ms_of(last.saturating_add(1));
                (fresh_ms - now_ms).min(MAX_REPORTED_TIME)
            }
            None => 0,
        }
    }

    /// The smallest wait in ms, at least 1, after which there is room for `cost`.
    ///
    /// Within one window the room never shrinks, so its last millisecond tells whether the answer lies in it. The
    /// windows to try, in order:
    ///
    /// * the one of `now_ms` and, where time went back before the stored window, the one after it. Every window
    ///   from there up to the stored one has the same counters, and, being as many milliseconds long, the same
    ///   weights: if the first whole one has no room, none has. (Where windows are not whole milliseconds, or so
    ///   few that rounding moves the edge of some of them, a later one may have it sooner: the wait then
    ///   suffices without being the least.);
    /// * the stored one, and the one after it, where `curr` has become the previous counter.
    ///
    /// If none of these has room, there is some once nothing counts any more, after `reset_after_ms`.
    fn retry_after_ms(
        self,
        left: WindowCounters,
        cost: f64,
        now_ms: i64,
        reset_after_ms: i64,
    ) -> i64 {
        if cost > self.limit {
            return NEVER_MS;
        }
        if left.window_s != self.window_s {
            return self.retry_after_change_ms(left, cost, now_ms);
        }
        let counters = self.advance(Some(left), now_ms);
        let last_counted = counters.last_counted();
        let (index, stored) = (self.index_at(now_ms), counters.index);
        let mut tried = index - 1;
        // Forged counters may have windows so short that their numbers end before now.
        let next = |index: i64| index.saturating_add(1);
        for candidate in [index, next(index), stored, next(stored)] {
            if candidate <= tried {
                continue;
            }
            tried = candidate;
            let start_ms = (candidate == index).then_some(now_ms + 1);
            let end_ms = (last_counted == Some(candidate)).then_some(now_ms + reset_after_ms);
            let counters = counters.roll_over(candidate);
            if let Some(at_ms) = self.first_admitted_ms(counters, cost, candidate, start_ms, end_ms)
            {
                return (at_ms - now_ms).min(MAX_REPORTED_TIME);
            }
        }
        reset_after_ms.max(1)
    }

    /// The first millisecond of window `index` at which there is room for `cost`, from counters as of that
    /// window. It is searched from `start_ms` and before `end_ms`, where these are known not to be the window's own.
    // Always inlined: otherwise the counters are copied for each window tried.
    #[inline(always)]
    fn first_admitted_ms(
        self,
        counters: WindowCounters,
        cost: f64,
        index: i64,
        start_ms: Option<i64>,
        end_ms: Option<i64>,
    ) -> Option<i64> {
        // Without a previous counter the estimate is the same all through the window.
        if counters.prev == 0.0 && counters.curr + cost > self.limit {
            return None;
        }
        let last_ms = end_ms.unwrap_or_else(|| self.first_ms_of(index.saturating_add(1))) - 1;
        if !self.admits(counters, cost, index, last_ms) {
            return None;
        }
        let start_ms = start_ms.unwrap_or_else(|| self.first_ms_of(index));
        // Empty where now is the last millisecond of its window, or beyond the horizon.
        if start_ms > last_ms {
            return None;
        }
        let room = self.limit - cost - counters.curr;
        let elapsed_s = self.window_s * (1.0 - room / counters.prev);
        let guess_ms = ((index as f64 * self.window_s + elapsed_s) * MS_PER_S).ceil() as i64;
        partition_point_near(start_ms, last_ms, guess_ms, |at_ms| {
            self.admits(counters, cost, index, at_ms)
        })
    }

    /// The rule with the window length under which `counters` were stored.
    fn with_length_of(self, counters: WindowCounters) -> Self {
        Self {
            window_s: counters.window_s,
            ..self
        }
    }

    /// The counters, of windows of another length, as of `now_ms`, which lies in window `index` of this length:
    /// what they estimate then, as if it had been spread evenly. So a changed rule gives nobody a fresh limit.
    #[cold]
    fn carry_over(self, counters: WindowCounters, index: i64, now_ms: i64) -> WindowCounters {
        let old_rule = self.with_length_of(counters);
        let old_index = old_rule.index_at(now_ms);
        let estimate = old_rule.estimate(counters.roll_over(old_index), old_index, now_ms);
        let (_, elapsed_s) = self.start_and_elapsed_s(index, now_ms);
        // Rounding may bring the estimate below 0, and forged counters may estimate what is no number. What is stored
        // must be finite again.
        let finite = |count: f64| {
            if count > 0.0 {
                count.min(f64::MAX)
            } else {
                0.0
            }
        };
        WindowCounters {
            window_s: self.window_s,
            index,
            prev: finite(estimate),
            curr: finite(estimate * (elapsed_s / self.window_s)),
        }
    }

    /// [`retry_after_ms`](Self::retry_after_ms) from counters of another length, which a preview leaves behind: a
    /// wait that suffices without always being the least. What is carried over at any time is the estimate by
    /// the old length, so the wait by that one is the guess. Spreading it rounds once more, so the guess is moved
    /// on, in doubling steps, until the decision itself agrees.
    #[cold]
    fn retry_after_change_ms(self, left: WindowCounters, cost: f64, now_ms: i64) -> i64 {
        let old_rule = self.with_length_of(left);
        let fresh_ms = old_rule.reset_after_ms(left, now_ms).max(1);
        let guess_ms = old_rule.retry_after_ms(left, cost, now_ms, fresh_ms);
        let (mut wait_ms, mut step_ms) = (guess_ms, 1);
        while wait_ms < fresh_ms {
            let at_ms = now_ms + wait_ms;
            let counters = self.advance(Some(left), at_ms);
            if self.take(counters, cost, at_ms).is_some() {
                return wait_ms;
            }
            wait_ms = guess_ms + step_ms;
            step_ms *= 2;
        }
        fresh_ms
    }
}

impl Rule for SlidingWindow {
    type State = WindowCounters;

    const ADVANCES: bool = true;

    fn advance(self, found: Option<WindowCounters>, now_ms: i64) -> WindowCounters {
        let index = self.index_at(now_ms);
        match found {
            Some(counters) if counters.window_s == self.window_s => counters.roll_over(index),
            Some(counters) => self.carry_over(counters, index, now_ms),
            None => WindowCounters {
                window_s: self.window_s,
                index,
                prev: 0.0,
                curr: 0.0,
            },
        }
    }

    fn take(self, counters: WindowCounters, cost: f64, now_ms: i64) -> Option<WindowCounters> {
        self.admits(counters, cost, self.index_at(now_ms), now_ms)
            .then(|| self.force(counters, cost, now_ms))
    }

    fn force(self, counters: WindowCounters, cost: f64, _now_ms: i64) -> WindowCounters {
        WindowCounters {
            curr: counters.curr + cost,
            ..counters
        }
    }

    /// Without a time the current counter gives back first, then the previous one; with a time only the one that
    /// counted then.
    fn refund(self, counters: WindowCounters, amount: f64, at_ms: Option<i64>) -> WindowCounters {
        let windows_ago = at_ms.map(|at_ms| counters.index.saturating_sub(self.index_at(at_ms)));
        let from_curr = match windows_ago {
            None | Some(0) => amount.min(counters.curr),
            Some(_) => 0.0,
        };
        let from_prev = match windows_ago {
            None | Some(1) => (amount - from_curr).min(counters.prev),
            Some(_) => 0.0,
        };
        WindowCounters {
            curr: counters.curr - from_curr,
            prev: counters.prev - from_prev,
            ..counters
        }
    }

    fn remaining(self, counters: WindowCounters, taken: f64, now_ms: i64) -> f64 {
        self.limit - (self.estimate(counters, self.index_at(now_ms), now_ms) + taken)
    }

    #[inline(always)]
    fn times_s(answer: &Answer<Self>) -> Times {
        let &Answer { rule, now_ms, .. } = answer;
        let (window_start_s, elapsed_s) = rule.start_and_elapsed_s(rule.index_at(now_ms), now_ms);
        Times {
            reset: reported_time(window_start_s + rule.window_s),
            retry: match answer.denied_cost() {
                None => 0,
                Some(_) => reported_time((rule.window_s - elapsed_s).ceil()),
            },
        }
    }

    #[inline(always)]
    fn times_ms(answer: &Answer<Self>) -> Times {
        let &Answer {
            rule, left, now_ms, ..
        } = answer;
        let reset = rule.reset_after_ms(left, now_ms);
        Times {
            reset,
            retry: match answer.denied_cost() {
                None => 0,
                Some(cost) => rule.retry_after_ms(left, cost, now_ms, reset),
            },
        }
    }

    fn ttl_ms(self, _counters: WindowCounters, _now_ms: i64) -> Option<i64> {
        let ttl_s = (2.0 * self.window_s).ceil() + TTL_MARGIN_S;
        Some((ttl_s * MS_PER_S) as i64)
    }
}

impl Record for WindowCounters {
    const KIND: u8 = b'S';
    const LEN: usize = HEADER_LEN + 3 * size_of::<f64>() + size_of::<i64>();
    type Fields = (f64, i64, f64, f64);

    fn to_fields(self) -> Self::Fields {
        (self.window_s, self.index, self.prev, self.curr)
    }

    fn from_fields((window_s, index, prev, curr): Self::Fields) -> Option<Self> {
        // A zero with a sign would number windows downwards.
        let in_range = is_amount(window_s)
            && window_s.is_sign_positive()
            && is_amount(prev)
            && is_amount(curr);
        (in_range && index >= 0).then_some(Self {
            window_s,
            index,
            prev,
            curr,
        })
    }
}
