//! The sliding window of two counters: the previous window counts by the share of it that still lies
//! within the last `window` seconds (design section 3).

use super::codec::{HEADER_LEN, Stored, is_amount};
use super::settle::first_where;
use super::{Limiter, MAX_REPORTED_TIME, MS_PER_S, NEVER_MS, TTL_MARGIN_S};

/// The last time that is looked at: 2^53 from the latest `NOW`.
const HORIZON_MS: i64 = 1 << 54;

/// At most `limit` in any `window_s` seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindow {
    /// Requests in a window, 0 to 2^53.
    pub limit: f64,
    /// Length of the window in seconds, 0.001 to 2^53 / 1000.
    pub window_s: f64,
}

/// What was counted in the stored window and in the one before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowCounters {
    /// Length in seconds of the windows that were counted in.
    pub window_s: f64,
    /// Number of the window that `current` counts, from Unix time 0 on.
    pub index: i64,
    /// Counted in the window before it.
    pub previous: f64,
    /// Counted in it.
    pub current: f64,
}

impl WindowCounters {
    /// The number of the last window in which something is still counted, if anything is.
    fn last_counted(self) -> Option<i64> {
        if self.current > 0.0 {
            Some(self.index.saturating_add(1))
        } else if self.previous > 0.0 {
            Some(self.index)
        } else {
            None
        }
    }
}

impl SlidingWindow {
    /// The number of the window that `at_ms` lies in. It never falls when `at_ms` rises.
    fn index_at(self, at_ms: i64) -> i64 {
        // Rounded down, since what is not negative is cut off after the point.
        (at_ms as f64 / MS_PER_S / self.window_s) as i64
    }

    /// Unix time in seconds at which window `index` starts, and the seconds from then to `at_ms`.
    fn start_and_elapsed_s(self, index: i64, at_ms: i64) -> (f64, f64) {
        let window_start_s = index as f64 * self.window_s;
        (window_start_s, at_ms as f64 / MS_PER_S - window_start_s)
    }

    /// The estimated use of the last `window_s` seconds before `at_ms`, which lies in window `index`,
    /// from counters as of then. Within the window it never rises with `at_ms`: each `f64` operation in
    /// it is monotone.
    fn estimate(self, counters: WindowCounters, index: i64, at_ms: i64) -> f64 {
        let (_, elapsed_s) = self.start_and_elapsed_s(index, at_ms);
        let weight = 1.0 - elapsed_s / self.window_s;
        counters.previous * weight + counters.current
    }

    /// Whether there is room for `cost` at `at_ms`, which lies in window `index`.
    fn admits(self, counters: WindowCounters, cost: f64, index: i64, at_ms: i64) -> bool {
        self.estimate(counters, index, at_ms) + cost <= self.limit
    }

    /// The counters as of window `index`: rolled over into it if they are of an earlier one.
    fn roll_over(counters: WindowCounters, index: i64) -> WindowCounters {
        if counters.index >= index {
            return counters;
        }
        WindowCounters {
            index,
            previous: if counters.index == index - 1 {
                counters.current
            } else {
                0.0
            },
            current: 0.0,
            ..counters
        }
    }

    /// The counters, of windows of another length, as of `now_ms`, which lies in window `index` of this
    /// length: what they estimate then, as if it had been spread evenly over the windows of this length.
    /// A rule that changes gives nobody a fresh limit.
    #[cold]
    fn carry_over(self, counters: WindowCounters, index: i64, now_ms: i64) -> WindowCounters {
        let (_, elapsed_s) = self.start_and_elapsed_s(index, now_ms);
        let estimate = self.stated_before(counters).estimate_of(counters, now_ms);
        // Bounded, since a stored number may be any that is finite, and the new state has to be one again.
        WindowCounters {
            window_s: self.window_s,
            index,
            previous: estimate.clamp(0.0, f64::MAX),
            current: (estimate * (elapsed_s / self.window_s)).clamp(0.0, f64::MAX),
        }
    }

    /// The rule with the window length under which `counters` were stored.
    fn stated_before(self, counters: WindowCounters) -> Self {
        Self {
            window_s: counters.window_s,
            ..self
        }
    }

    /// The estimate at `at_ms` from counters that may be of an earlier window; 0 if it is no number,
    /// which forged counters can bring about.
    fn estimate_of(self, counters: WindowCounters, at_ms: i64) -> f64 {
        let index = self.index_at(at_ms);
        let estimate = self.estimate(Self::roll_over(counters, index), index, at_ms);
        if estimate.is_nan() { 0.0 } else { estimate }
    }

    /// The first millisecond of window `index`, as [`index_at`](Self::index_at) has it; the horizon
    /// if that comes first.
    fn first_ms_of(self, index: i64) -> i64 {
        let guess = (index as f64 * self.window_s * MS_PER_S).ceil() as i64;
        first_where(0, HORIZON_MS, guess, |at_ms| self.index_at(at_ms) >= index)
            .unwrap_or(HORIZON_MS)
    }

    /// The retry time of a call that leaves counters of another length behind, as a preview does: a
    /// wait that is long enough, not always the shortest. What is carried over at any time is the
    /// estimate by the stored length, so its retry time is the first guess; spreading it rounds once
    /// more, so the guess is moved on, in doubling steps, until the decision itself agrees.
    #[cold]
    fn retry_after_change_ms(self, left: WindowCounters, cost: f64, now_ms: i64) -> i64 {
        let before = self.stated_before(left);
        let fresh_ms = before.reset_after_ms(left, now_ms).max(1);
        let guess_ms = before.retry_after_ms(left, cost, now_ms, fresh_ms);
        let mut step_ms = 1;
        let mut wait_ms = guess_ms;
        while wait_ms < fresh_ms {
            let at_ms = now_ms + wait_ms;
            if self
                .take(self.advance(Some(left), at_ms), cost, at_ms)
                .is_some()
            {
                return wait_ms;
            }
            wait_ms = guess_ms + step_ms;
            step_ms *= 2;
        }
        fresh_ms
    }

    /// When within window `index`, by the closed form, there is room for `cost`.
    fn guess_admitted(self, counters: WindowCounters, cost: f64, index: i64) -> i64 {
        let room = self.limit - cost - counters.current;
        let elapsed_s = self.window_s * (1.0 - room / counters.previous);
        ((index as f64 * self.window_s + elapsed_s) * MS_PER_S).ceil() as i64
    }
}

impl Limiter for SlidingWindow {
    type State = WindowCounters;

    fn advance(self, stored: Option<WindowCounters>, now_ms: i64) -> WindowCounters {
        let index = self.index_at(now_ms);
        match stored {
            Some(counters) if counters.window_s == self.window_s => {
                Self::roll_over(counters, index)
            }
            Some(counters) => self.carry_over(counters, index, now_ms),
            None => WindowCounters {
                window_s: self.window_s,
                index,
                previous: 0.0,
                current: 0.0,
            },
        }
    }

    fn take(self, counters: WindowCounters, cost: f64, now_ms: i64) -> Option<WindowCounters> {
        self.admits(counters, cost, self.index_at(now_ms), now_ms)
            .then_some(WindowCounters {
                current: counters.current + cost,
                ..counters
            })
    }

    /// Without a time the current counter gives first, then the previous one; with a time only the one
    /// that counted then.
    fn give_back(
        self,
        counters: WindowCounters,
        amount: f64,
        at_ms: Option<i64>,
    ) -> WindowCounters {
        let windows_ago = at_ms.map(|at_ms| counters.index.saturating_sub(self.index_at(at_ms)));
        let from_current = match windows_ago {
            None | Some(0) => amount.min(counters.current),
            Some(_) => 0.0,
        };
        let from_previous = match windows_ago {
            None | Some(1) => (amount - from_current).min(counters.previous),
            Some(_) => 0.0,
        };
        WindowCounters {
            current: counters.current - from_current,
            previous: counters.previous - from_previous,
            ..counters
        }
    }

    fn remaining(self, counters: WindowCounters, cost: f64, now_ms: i64) -> f64 {
        self.limit - (self.estimate(counters, self.index_at(now_ms), now_ms) + cost)
    }

    fn reset_at_s(self, _counters: WindowCounters, now_ms: i64) -> f64 {
        let (window_start_s, _) = self.start_and_elapsed_s(self.index_at(now_ms), now_ms);
        window_start_s + self.window_s
    }

    fn retry_after_s(self, _counters: WindowCounters, _cost: f64, now_ms: i64) -> f64 {
        let (_, elapsed_s) = self.start_and_elapsed_s(self.index_at(now_ms), now_ms);
        (self.window_s - elapsed_s).ceil()
    }

    fn reset_after_ms(self, left: WindowCounters, now_ms: i64) -> i64 {
        match self.advance(Some(left), now_ms).last_counted() {
            Some(last) => {
                let fresh_ms = self.first_ms_of(last.saturating_add(1));
                (fresh_ms - now_ms).min(MAX_REPORTED_TIME)
            }
            None => 0,
        }
    }

    /// Within one window the room never shrinks, so the last millisecond of a window tells whether it
    /// has the answer, and [`first_where`] finds it there. The windows to look at, in order:
    ///
    /// * the one of `now_ms` and, where time went back before the stored window, the one after it.
    ///   Every window from there up to the stored one has the same counters, and, being as many
    ///   milliseconds long, the same weights: if the first whole one has no room, none has. (Where
    ///   windows are not whole milliseconds, or so few that rounding moves the edge of some of them, a
    ///   later one may have it sooner: the time is then sufficient and not the least.);
    /// * the stored one, and the one after it, where `current` has become the previous counter.
    ///
    /// If none of these has room, there is some once nothing is counted any more: at the reset.
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
        let index = self.index_at(now_ms);
        let stored = counters.index;
        let mut looked_at = index - 1;
        for candidate in [index, index + 1, stored, stored.saturating_add(1)] {
            if candidate <= looked_at {
                continue;
            }
            looked_at = candidate;
            let counters = Self::roll_over(counters, candidate);
            // Without a previous counter the estimate is the same all through the window.
            if counters.previous == 0.0 && counters.current + cost > self.limit {
                continue;
            }
            let end_ms = if last_counted == Some(candidate) {
                now_ms + reset_after_ms
            } else {
                self.first_ms_of(candidate.saturating_add(1))
            };
            let last_ms = end_ms - 1;
            if !self.admits(counters, cost, candidate, last_ms) {
                continue;
            }
            let first_ms = if candidate == index {
                now_ms + 1
            } else {
                self.first_ms_of(candidate)
            };
            // Empty where `now_ms` is the last millisecond of its window, or beyond the horizon.
            if first_ms > last_ms {
                continue;
            }
            let guess_ms = self.guess_admitted(counters, cost, candidate);
            let admitted_ms = first_where(first_ms, last_ms, guess_ms, |at_ms| {
                self.admits(counters, cost, candidate, at_ms)
            });
            if let Some(at_ms) = admitted_ms {
                return (at_ms - now_ms).min(MAX_REPORTED_TIME);
            }
        }
        reset_after_ms.max(1)
    }

    fn ttl_ms(self) -> Option<i64> {
        let ttl_s = (2.0 * self.window_s).ceil() + TTL_MARGIN_S;
        Some((ttl_s * MS_PER_S) as i64)
    }
}

impl Stored for WindowCounters {
    const KIND: u8 = b'S';
    const LEN: usize = HEADER_LEN + 3 * size_of::<f64>() + size_of::<i64>();
    type Fields = (f64, i64, f64, f64);

    fn to_fields(self) -> Self::Fields {
        (self.window_s, self.index, self.previous, self.current)
    }

    fn from_fields((window_s, index, previous, current): Self::Fields) -> Option<Self> {
        let in_range = is_amount(window_s) && is_amount(previous) && is_amount(current);
        (in_range && index >= 0).then_some(Self {
            window_s,
            index,
            previous,
            current,
        })
    }
}
