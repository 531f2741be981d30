//! From a closed form, which rounds, to the exact millisecond, which the decision's own arithmetic says.

/// The smallest `x` in `low..=high` for which `holds(x)`, near `guess`; `None` if there is none.
///
/// `holds` must be monotone: once it holds it holds for every greater `x`. An exact guess costs two
/// calls of it. A guess that is `e` away costs at most 2 * log2(e) + 4: the steps away from the guess
/// double until they bracket the answer, and the bracket, no wider than `e`, is then halved. Within
/// the 2^55 values that times span, that is 114 at the very most, however far off the guess is.
pub fn first_where(low: i64, high: i64, guess: i64, holds: impl Fn(i64) -> bool) -> Option<i64> {
    let start = guess.clamp(low, high);
    let mut step = 1;
    // The bracket: it does not hold at `without`, it holds at `with`.
    let (mut without, mut with) = if holds(start) {
        let mut with = start;
        loop {
            if with == low {
                return Some(low);
            }
            let probe = (with - step).max(low);
            if !holds(probe) {
                break (probe, with);
            }
            with = probe;
            step *= 2;
        }
    } else {
        let mut without = start;
        loop {
            if without == high {
                return None;
            }
            let probe = (without + step).min(high);
            if holds(probe) {
                break (without, probe);
            }
            without = probe;
            step *= 2;
        }
    };
    while with - without > 1 {
        let middle = without + (with - without) / 2;
        if holds(middle) {
            with = middle;
        } else {
            without = middle;
        }
    }
    Some(with)
}

#[cfg(test)]
mod tests {
    use super::first_where;
    use proptest::prelude::*;
    use std::cell::Cell;

    proptest! {
        #[test]
        fn finds_the_first_whatever_the_guess(low in 0i64..1000, span in 0i64..1 << 53, first in 0i64..1 << 54, guess: i64) {
            let high = low + span;
            let calls = Cell::new(0);
            let found = first_where(low, high, guess, |x| { calls.set(calls.get() + 1); x >= first });
            prop_assert_eq!(found, (first <= high).then_some(first.max(low)));
            let distance = guess.clamp(low, high).abs_diff(first.clamp(low, high)).max(1);
            prop_assert!(calls.get() <= 2 * (distance.ilog2() + 1) + 4, "{} calls for a distance of {distance}", calls.get());
        }
    }

    #[test]
    fn an_exact_guess_costs_two_calls() {
        let calls = Cell::new(0);
        let found = first_where(0, 1000, 77, |x| {
            calls.set(calls.get() + 1);
            x >= 77
        });
        assert_eq!((found, calls.get()), (Some(77), 2));
    }
}
