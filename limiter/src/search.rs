//! Refines a closed-form estimate to the exact millisecond by testing the decision itself.

/// The smallest `x` in `first..=last` for which `pred(x)` is true, searched from `guess` outwards; `None` if
/// there is none.
///
/// `pred` must be monotone: once true it stays true for every greater `x`. An exact guess costs two calls of
/// it. A guess that is `e` away costs at most 2 * log2(e) + 4: the steps away from the guess double until
/// they bracket the answer, and the bracket, no wider than `e`, is then halved. Within the 2^55 values that
/// times span, that is 114 at the very most, however far off the guess is.
pub fn partition_point_near(
    first: i64,
    last: i64,
    guess: i64,
    pred: impl Fn(i64) -> bool,
) -> Option<i64> {
    let start = guess.clamp(first, last);
    let mut step = 1;
    // The bracket: `pred` is false at `lo` and true at `hi`.
    let (mut lo, mut hi) = if pred(start) {
        let mut hi = start;
        loop {
            if hi == first {
                return Some(first);
            }
            let probe = (hi - step).max(first);
            if !pred(probe) {
                break (probe, hi);
            }
            hi = probe;
            step *= 2;
        }
    } else {
        let mut lo = start;
        loop {
            if lo == last {
                return None;
            }
            let probe = (lo + step).min(last);
            if pred(probe) {
                break (lo, probe);
            }
            lo = probe;
            step *= 2;
        }
    };
    while hi - lo > 1 {
        let middle = lo + (hi - lo) / 2;
        if pred(middle) {
            hi = middle;
        } else {
            lo = middle;
        }
    }
    Some(hi)
}

#[cfg(test)]
mod tests {
    use super::partition_point_near;
    use proptest::prelude::*;
    use std::cell::Cell;

    proptest! {
        #[test]
        fn finds_the_first_whatever_the_guess(first in 0i64..1000, span in 0i64..1 << 53, point in 0i64..1 << 54, guess: i64) {
            let last = first + span;
            let calls = Cell::new(0);
            let found = partition_point_near(first, last, guess, |x| { calls.set(calls.get() + 1); x >= point });
            prop_assert_eq!(found, (point <= last).then_some(point.max(first)));
            let distance = guess.clamp(first, last).abs_diff(point.clamp(first, last)).max(1);
            prop_assert!(calls.get() <= 2 * (distance.ilog2() + 1) + 4, "{} calls for a distance of {distance}", calls.get());
        }
    }

    #[test]
    fn an_exact_guess_costs_two_calls() {
        let calls = Cell::new(0);
        let found = partition_point_near(0, 1000, 77, |x| {
            calls.set(calls.get() + 1);
            x >= 77
        });
        assert_eq!((found, calls.get()), (Some(77), 2));
    }
}
