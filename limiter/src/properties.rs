//! Properties that hold for every rule, state and time.

use super::calendar::{Period, Unit};
use super::*;
use proptest::prelude::*;

const MAX_MS: i64 = 1 << 53;

/// From this length on, windows of whole milliseconds were all found to have their edges in place.
const MIN_EQUAL_WINDOW_S: f64 = 0.1;

/// Amounts as people write them, and anything else in range.
fn amount() -> impl Strategy<Value = f64> {
    prop_oneof![
        (0u32..2000).prop_map(f64::from),
        (0u32..2000).prop_map(|tenths| f64::from(tenths) / 10.0),
        0.0..100.0,
        0.0..=MAX_NUMBER,
        Just(0.0),
        Just(MAX_NUMBER),
    ]
}

/// Tokens a second: none, one in months, thousands in a millisecond.
fn refill_rate() -> impl Strategy<Value = f64> {
    prop_oneof![
        amount(),
        (1u32..1_000_000).prop_map(|s| 1.0 / f64::from(s)),
        1e-12..1e-3,
        Just(f64::MIN_POSITIVE),
    ]
}

/// Windows of whole milliseconds, up to months, and of fractions of one.
fn window_s() -> impl Strategy<Value = f64> {
    prop_oneof![
        (1u32..10_000_000).prop_map(f64::from),
        (1u32..100_000).prop_map(|ms| f64::from(ms) / 1000.0),
        0.001..1e6,
        Just(0.001),
        Just(MAX_NUMBER / 1000.0),
    ]
}

fn now_ms() -> impl Strategy<Value = i64> {
    prop_oneof![
        1_700_000_000_000i64..1_900_000_000_000,
        0..=MAX_MS,
        Just(0),
        Just(MAX_MS),
    ]
}

fn token_bucket() -> impl Strategy<Value = TokenBucket> {
    (amount(), refill_rate()).prop_map(|(capacity, refill_rate)| TokenBucket {
        capacity,
        refill_rate,
    })
}

fn sliding_window() -> impl Strategy<Value = SlidingWindow> {
    (amount(), window_s()).prop_map(|(limit, window_s)| SlidingWindow { limit, window_s })
}

/// Steps of a clock that stands still, runs, jumps, and goes back, within the range of `NOW`.
fn clock() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![
        3 => Just(0i64),
        4 => 0i64..2000,
        2 => 0i64..100_000_000,
        1 => -100_000i64..0,
    ];
    (now_ms(), prop::collection::vec(step, 1..40)).prop_map(|(start, steps)| {
        steps
            .into_iter()
            .scan(start, |now, step| {
                *now = (*now + step).clamp(0, MAX_MS);
                Some(*now)
            })
            .collect()
    })
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        5 => prop_oneof![Just(1.0), amount()].prop_map(Request::Cost),
        1 => (amount(), prop::option::of(now_ms()))
            .prop_map(|(amount, at_ms)| Request::Refund { amount, at_ms }),
    ]
}

/// Everything that a call can ask.
fn any_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        4 => request(),
        1 => (1i64..2000, 1i64..2000).prop_map(|(one, other)| Request::Batch {
            cost: one.max(other),
            min: one.min(other),
        }),
        2 => (prop_oneof![Just(1.0), amount()], 0i64..1_000_000).prop_map(|(cost, max_wait_ms)| {
            Request::Reserve { cost, max_wait_ms }
        }),
        2 => prop_oneof![Just(1.0), amount()].prop_map(Request::Force),
    ]
}

fn period() -> impl Strategy<Value = Period> {
    let unit = prop_oneof![
        Just(Unit::Day),
        Just(Unit::Week),
        Just(Unit::Month),
        Just(Unit::Year)
    ];
    prop_oneof![
        (1i64..100_000_000, prop::option::of(now_ms())).prop_map(|(length_ms, anchor_ms)| {
            Period::Length {
                length_ms,
                anchor_ms,
            }
        }),
        (unit, prop::option::of(now_ms()))
            .prop_map(|(unit, anchor_ms)| Period::Calendar { unit, anchor_ms }),
    ]
}

fn quota() -> impl Strategy<Value = Quota> {
    (amount(), period()).prop_map(|(limit, period)| Quota { limit, period })
}

fn refunded(amount: f64) -> Request {
    Request::Refund {
        amount,
        at_ms: None,
    }
}

/// The state after `decision`, as the key then holds it.
fn left_by<R: Rule>(decision: &Decision<R>) -> Option<R::State> {
    match decision.write(false) {
        Write::None => decision.found,
        Write::Local(state) | Write::Replicated(state) => Some(state),
    }
}

/// Runs a trace and calls `check` with every decision and the state that it left.
fn run<R: Rule>(
    rule: R,
    times: &[i64],
    requests: &[Request],
    mut check: impl FnMut(&Decision<R>, Option<R::State>) -> Result<(), TestCaseError>,
) -> Result<Option<R::State>, TestCaseError> {
    let mut state = None;
    for (now_ms, request) in times.iter().zip(requests.iter().cycle()) {
        let decision = decide(rule, *request, state, *now_ms);
        state = left_by(&decision);
        check(&decision, state)?;
    }
    Ok(state)
}

/// Replies are in range, whatever the numbers.
fn check_replies<R: Rule>(decision: &Decision<R>) -> Result<(), TestCaseError> {
    for answer in [decision.committed(), decision.previewed()] {
        for [allowed, remaining, reset, retry] in [
            answer.in_seconds().integers,
            answer.in_milliseconds().integers,
        ] {
            prop_assert_eq!(allowed, i64::from(decision.is_allowed()));
            prop_assert!((0..=MAX_MS).contains(&remaining), "remaining {}", remaining);
            prop_assert!(
                (NEVER_MS..=MAX_REPORTED_TIME).contains(&reset),
                "reset {}",
                reset
            );
            prop_assert!(
                (NEVER_MS..=MAX_REPORTED_TIME).contains(&retry),
                "retry {}",
                retry
            );
            let waits = matches!(decision.request, Request::Reserve { .. });
            prop_assert!(allowed == 0 || retry == 0 || waits);
        }
        prop_assert!(decision.is_allowed() || answer.in_milliseconds().integers[3] != 0);
    }
    Ok(())
}

/// A denied call would be allowed after its retry time, and at no earlier millisecond.
fn check_retry<R: Rule>(
    decision: &Decision<R>,
    left: Option<R::State>,
    answer: Answer<R>,
    probes: &[f64],
) -> Result<(), TestCaseError> {
    let retry_ms = answer.in_milliseconds().integers[3];
    if answer.grant.is_some() {
        return Ok(());
    }
    let is_allowed_after = |wait_ms: i64| {
        decide(
            decision.rule,
            decision.request,
            left,
            decision.now_ms + wait_ms,
        )
        .is_allowed()
    };
    let last_denied = match retry_ms {
        NEVER_MS | MAX_REPORTED_TIME => MAX_REPORTED_TIME - 1,
        retry_ms => {
            prop_assert!(is_allowed_after(retry_ms), "denied after {} ms", retry_ms);
            retry_ms - 1
        }
    };
    prop_assert!(
        last_denied == 0 || !is_allowed_after(last_denied),
        "allowed {} ms before the retry time of {}",
        retry_ms - last_denied,
        retry_ms
    );
    for probe in probes {
        let earlier = (last_denied as f64 * probe) as i64;
        prop_assert!(
            earlier == 0 || !is_allowed_after(earlier),
            "allowed after {} ms, before the retry time of {}",
            earlier,
            retry_ms
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn a_bucket_never_gives_more_than_its_capacity_and_what_it_refilled(
        rule in token_bucket(), times in clock(), requests in prop::collection::vec(request(), 1..40),
    ) {
        // Time that goes back and forth refills again each time, as it does in the script: the promise
        // holds for the time that passed forwards.
        let (mut last_ms, mut forwards_ms, mut given) = (times[0], 0.0, 0.0);
        run(rule, &times, &requests, |decision, left| {
            forwards_ms += (decision.now_ms - last_ms).max(0) as f64;
            last_ms = decision.now_ms;
            match decision.request {
                Request::Cost(cost) if decision.is_allowed() => given += cost,
                Request::Refund { amount, .. } => given -= amount.min(decision.after.tokens),
                _ => {}
            }
            let refilled = forwards_ms / MS_PER_S * rule.refill_rate;
            prop_assert!(given <= (rule.capacity + refilled) * (1.0 + 1e-9) + 1e-6);
            if let Some(level) = left {
                prop_assert!((0.0..=rule.capacity).contains(&level.tokens));
            }
            check_replies(decision)
        })?;
    }

    #[test]
    fn a_window_never_counts_more_than_its_limit(
        rule in sliding_window(), times in clock(), requests in prop::collection::vec(request(), 1..40),
    ) {
        run(rule, &times, &requests, |decision, left| {
            if let Some(counters) = left {
                prop_assert!((0.0..=rule.limit * (1.0 + 1e-12)).contains(&counters.curr));
                prop_assert!((0.0..=rule.limit * (1.0 + 1e-12)).contains(&counters.prev));
            }
            if decision.is_allowed() && matches!(decision.request, Request::Cost(_)) {
                let estimate = rule.limit - rule.remaining(decision.after, 0.0, decision.now_ms);
                prop_assert!(estimate <= rule.limit * (1.0 + 1e-9) + 1e-9);
            }
            check_replies(decision)
        })?;
    }

    #[test]
    fn a_bucket_is_denied_before_the_retry_time_and_allowed_at_it(
        rule in token_bucket(), times in clock(), requests in prop::collection::vec(any_request(), 1..40),
        probes in prop::collection::vec(0.0..1.0, 8),
    ) {
        run(rule, &times, &requests, |decision, left| {
            check_retry(decision, left, decision.committed(), &probes)?;
            check_retry(decision, decision.found, decision.previewed(), &probes)
        })?;
    }

    #[test]
    fn a_window_is_denied_before_the_retry_time_and_allowed_at_it(
        rule in sliding_window(), times in clock(), requests in prop::collection::vec(any_request(), 1..40),
        probes in prop::collection::vec(0.0..1.0, 8),
    ) {
        run(rule, &times, &requests, |decision, left| {
            // Before the stored window the time need only be sufficient where windows are not whole
            // milliseconds, or so few that rounding moves the edge of some of them.
            let is_before = decision.before.index > rule.advance(None, decision.now_ms).index;
            let has_equal_windows =
                (rule.window_s * MS_PER_S).fract() == 0.0 && rule.window_s >= MIN_EQUAL_WINDOW_S;
            if is_before && !has_equal_windows {
                return Ok(());
            }
            check_retry(decision, left, decision.committed(), &probes)?;
            check_retry(decision, decision.found, decision.previewed(), &probes)
        })?;
    }

    #[test]
    fn a_window_of_another_length_goes_on_from_the_estimate(
        rule in sliding_window(), other_s in window_s(), times in clock(),
        requests in prop::collection::vec(request(), 1..40), later_ms in 0i64..100_000,
    ) {
        let Some(stored) = run(rule, &times, &requests, |_, _| Ok(()))? else { return Ok(()) };
        let now_ms = (times.last().unwrap_or(&0) + later_ms).min(MAX_MS);
        let before = rule.limit - rule.remaining(rule.advance(Some(stored), now_ms), 0.0, now_ms);
        let changed = SlidingWindow { window_s: other_s, ..rule };
        let carried = changed.advance(Some(stored), now_ms);
        let after = changed.limit - changed.remaining(carried, 0.0, now_ms);
        // The start of a window is rounded to what a time of that size can hold, and with it the weights.
        let weight_error = f64::EPSILON * (now_ms as f64 / MS_PER_S) / other_s.min(rule.window_s);
        let scale = rule.limit.max(before.abs()).max(1.0);
        let tolerance = (1e-9 + 2.0 * weight_error) * scale;
        prop_assert!((after - before.max(0.0)).abs() <= tolerance, "{} became {}", before, after);
    }

    #[test]
    fn a_preview_of_another_window_length_reports_a_wait_that_suffices(
        rule in sliding_window(), other_s in window_s(), times in clock(),
        requests in prop::collection::vec(request(), 1..40), cost in amount(), later_ms in 0i64..100_000,
    ) {
        let Some(stored) = run(rule, &times, &requests, |_, _| Ok(()))? else { return Ok(()) };
        let now_ms = (times.last().unwrap_or(&0) + later_ms).min(MAX_MS);
        let changed = SlidingWindow { window_s: other_s, ..rule };
        let preview = |at_ms| decide(changed, Request::Cost(cost), Some(stored), at_ms);
        let decision = preview(now_ms);
        let [allowed, .., retry_ms] = decision.previewed().in_milliseconds().integers;
        check_replies(&decision)?;
        if allowed == 0 && retry_ms != NEVER_MS && retry_ms != MAX_REPORTED_TIME {
            prop_assert!(preview(now_ms + retry_ms).is_allowed(), "denied after {} ms", retry_ms);
        }
    }

    #[test]
    fn a_quota_is_denied_before_the_retry_time_and_allowed_at_it(
        rule in quota(), times in clock(), requests in prop::collection::vec(any_request(), 1..40),
        probes in prop::collection::vec(0.0..1.0, 8),
    ) {
        run(rule, &times, &requests, |decision, left| {
            check_replies(decision)?;
            check_retry(decision, left, decision.committed(), &probes)?;
            check_retry(decision, decision.found, decision.previewed(), &probes)
        })?;
    }

    #[test]
    fn a_quota_counts_in_one_period_what_its_limit_allows(
        rule in quota(), times in clock(), requests in prop::collection::vec(request(), 1..40),
    ) {
        run(rule, &times, &requests, |decision, left| {
            if let Some(counted) = left {
                prop_assert!((0.0..=rule.limit).contains(&counted.count));
            }
            // What takes nothing, writes nothing.
            if decision.after == decision.before {
                prop_assert_eq!(decision.write(false), Write::None);
            } else {
                prop_assert!(matches!(decision.write(false), Write::Replicated(_)));
                let ttl_ms = decision.ttl_ms().unwrap_or(0);
                prop_assert!(ttl_ms > (TTL_MARGIN_S * MS_PER_S) as i64);
            }
            Ok(())
        })?;
    }

    #[test]
    fn an_open_period_stays_whatever_the_rule_states(
        rule in quota(), other in quota(), now_ms in now_ms(), later_ms in 0i64..100_000, cost in amount(),
    ) {
        let opened = rule.force(QuotaCount { start_ms: 0, end_ms: 0, count: 0.0 }, 1.0, now_ms);
        let later_ms = now_ms + later_ms;
        let decision = decide(other, Request::Force(cost), Some(opened), later_ms);
        if later_ms < opened.end_ms {
            prop_assert_eq!(decision.after.start_ms, opened.start_ms);
            prop_assert_eq!(decision.after.end_ms, opened.end_ms);
        } else if cost > 0.0 {
            prop_assert!(decision.after.start_ms <= later_ms && later_ms < decision.after.end_ms);
            prop_assert_eq!(decision.after.count, cost);
        }
    }

    #[test]
    fn a_batch_is_the_largest_number_that_there_is_room_for(
        bucket in token_bucket(), window in sliding_window(), quota in quota(),
        times in clock(), requests in prop::collection::vec(any_request(), 1..20),
    ) {
        fn check<R: Rule>(decision: &Decision<R>) -> Result<(), TestCaseError> {
            let Request::Batch { cost, min } = decision.request else { return Ok(()) };
            let fits = |number: i64| {
                decision.rule.take(decision.before, number as f64, decision.now_ms).is_some()
            };
            let granted = decision.committed().in_milliseconds().granted.unwrap_or(-1);
            if decision.is_allowed() {
                prop_assert!((min..=cost).contains(&granted));
                prop_assert!(fits(granted) && (granted == cost || !fits(granted + 1)));
            } else {
                prop_assert_eq!(granted, 0);
                prop_assert!(!fits(min));
            }
            Ok(())
        }
        run(bucket, &times, &requests, |decision, _| check(decision))?;
        run(window, &times, &requests, |decision, _| check(decision))?;
        run(quota, &times, &requests, |decision, _| check(decision))?;
    }

    #[test]
    fn a_reservation_may_act_once_what_it_took_is_there(
        rule in token_bucket(), times in clock(), requests in prop::collection::vec(any_request(), 1..40),
    ) {
        run(rule, &times, &requests, |decision, _| {
            let Request::Reserve { cost, max_wait_ms } = decision.request else { return Ok(()) };
            let [allowed, .., wait_ms] = decision.committed().in_milliseconds().integers;
            if allowed == 1 {
                let holds = |wait_ms| {
                    rule.advance(Some(decision.before), decision.now_ms + wait_ms).tokens >= cost
                };
                prop_assert!((0..=max_wait_ms).contains(&wait_ms));
                prop_assert!(holds(wait_ms) && (wait_ms == 0 || !holds(wait_ms - 1)));
                prop_assert!(cost <= rule.capacity);
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_state_that_a_call_leaves_can_be_read_again(
        bucket in token_bucket(), window in sliding_window(), quota in quota(),
        times in clock(), requests in prop::collection::vec(any_request(), 1..40),
    ) {
        fn check<S: Record + std::fmt::Debug>(left: Option<S>) -> Result<(), TestCaseError> {
            if let Some(state) = left {
                prop_assert_eq!(codec::decode(codec::encode(state).as_bytes()), Some(state));
            }
            Ok(())
        }
        run(bucket, &times, &requests, |decision, left| {
            check_replies(decision)?;
            check(left)
        })?;
        run(window, &times, &requests, |decision, left| {
            check_replies(decision)?;
            check(left)
        })?;
        run(quota, &times, &requests, |_, left| check(left))?;
    }

    #[test]
    fn a_bucket_is_full_at_its_reset_and_not_before(
        rule in token_bucket(), times in clock(), requests in prop::collection::vec(any_request(), 1..40),
    ) {
        run(rule, &times, &requests, |decision, left| {
            for (answer, left) in [
                (decision.committed(), left),
                (decision.previewed(), decision.found),
            ] {
                let reset_ms = answer.in_milliseconds().integers[2];
                let tokens_after =
                    |wait_ms| rule.advance(left.or(Some(decision.before)), decision.now_ms + wait_ms).tokens;
                match reset_ms {
                    NEVER_MS => prop_assert!(rule.refill_rate == 0.0 && tokens_after(0) < rule.capacity),
                    MAX_REPORTED_TIME => {}
                    0 => prop_assert_eq!(tokens_after(0), rule.capacity),
                    _ => {
                        prop_assert_eq!(tokens_after(reset_ms), rule.capacity);
                        prop_assert!(tokens_after(reset_ms - 1) < rule.capacity);
                    }
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_window_counts_nothing_from_its_reset_on_and_something_before(
        rule in sliding_window(), times in clock(), requests in prop::collection::vec(any_request(), 1..40),
    ) {
        run(rule, &times, &requests, |decision, left| {
            let reset_ms = decision.committed().in_milliseconds().integers[2];
            let counts_after = |wait_ms| {
                let counters = rule.advance(left, decision.now_ms + wait_ms);
                counters.curr > 0.0 || counters.prev > 0.0
            };
            if reset_ms < MAX_REPORTED_TIME {
                prop_assert!(!counts_after(reset_ms));
                prop_assert!(reset_ms == 0 || counts_after(reset_ms - 1));
            }
            Ok(())
        })?;
    }

    #[test]
    fn any_stored_numbers_give_a_reply_in_range(
        bucket in token_bucket(), window in sliding_window(), request in any_request(), now_ms in now_ms(),
        amounts in [0.0..f64::MAX, 0.0..f64::MAX], count in 0..=i64::MAX, is_same_window: bool,
    ) {
        let level = BucketLevel { tokens: amounts[0], last_ms: count };
        check_replies(&decide(bucket, request, Some(level), now_ms))?;
        let window_s = if is_same_window { window.window_s } else { amounts[0] };
        let counters = WindowCounters { window_s, index: count, prev: amounts[0], curr: amounts[1] };
        check_replies(&decide(window, request, Some(counters), now_ms))?;
    }

    #[test]
    fn a_preview_says_what_the_call_then_decides(
        rule in token_bucket(), times in clock(), requests in prop::collection::vec(any_request(), 1..40),
    ) {
        run(rule, &times, &requests, |decision, _| {
            let [allowed, before, ..] = decision.previewed().in_seconds().integers;
            let [committed, after, ..] = decision.committed().in_seconds().integers;
            prop_assert_eq!(allowed, committed);
            match decision.request {
                Request::Refund { .. } => prop_assert!(after >= before),
                _ => prop_assert!(after <= before),
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_refund_that_changes_nothing_is_not_propagated() {
    let rule = TokenBucket {
        capacity: 5.0,
        refill_rate: 1.0,
    };
    let full = rule.advance(None, 1000);
    let refund = |stored, amount| decide(rule, refunded(amount), stored, 2000).write(false);
    assert_eq!(refund(None, 3.0), Write::None);
    assert!(matches!(refund(Some(full), 3.0), Write::Local(_)));
    let emptied = BucketLevel {
        tokens: 1.0,
        ..full
    };
    assert!(matches!(refund(Some(emptied), 0.0), Write::Local(_)));
    assert!(matches!(refund(Some(emptied), 3.0), Write::Replicated(_)));
}

#[test]
fn a_denial_on_a_missing_key_creates_nothing() {
    let bucket = TokenBucket {
        capacity: 5.0,
        refill_rate: 1.0,
    };
    let denied = decide(bucket, Request::Cost(6.0), None, 1000);
    assert_eq!(denied.write(false), Write::None);
    let window = SlidingWindow {
        limit: 5.0,
        window_s: 1.0,
    };
    let denied = decide(window, Request::Cost(6.0), None, 1000);
    assert_eq!(denied.write(false), Write::None);
}

/// In this window, whose length is no whole number of milliseconds, rounding makes the prev counter's
/// weight negative at the last millisecond: there is room then, though `curr` alone is at the limit.
#[test]
fn rounding_may_open_the_last_millisecond_of_a_full_window() {
    let rule = SlidingWindow {
        limit: 1000.0,
        window_s: 0.135_504_696_807_016_35,
    };
    let counters = WindowCounters {
        window_s: rule.window_s,
        index: 7_946_598_799,
        prev: 1e12,
        curr: rule.limit,
    };
    let last_ms = 1_076_801_461_041;
    let at = |now_ms| decide(rule, Request::Cost(1.0), Some(counters), now_ms);
    assert!(at(last_ms).is_allowed());
    for wait_ms in 1..=5 {
        let [allowed, .., retry_after_ms] =
            at(last_ms - wait_ms).committed().in_milliseconds().integers;
        assert_eq!((allowed, retry_after_ms), (0, wait_ms));
    }
}

#[test]
fn a_refund_takes_from_the_curr_window_first() {
    let rule = SlidingWindow {
        limit: 10.0,
        window_s: 1.0,
    };
    let counters = WindowCounters {
        window_s: 1.0,
        index: 1,
        prev: 4.0,
        curr: 3.0,
    };
    for (amount, prev, curr) in [(2.0, 4.0, 1.0), (5.0, 2.0, 0.0), (99.0, 0.0, 0.0)] {
        let left = rule.refund(counters, amount, None);
        assert_eq!((left.prev, left.curr), (prev, curr));
    }
}

#[test]
fn a_refund_with_its_time_takes_from_the_window_of_that_time() {
    let rule = SlidingWindow {
        limit: 10.0,
        window_s: 1.0,
    };
    let counters = WindowCounters {
        window_s: 1.0,
        index: 5,
        prev: 4.0,
        curr: 3.0,
    };
    for (at_ms, prev, curr) in [
        (5999, 4.0, 0.0),
        (5000, 4.0, 0.0),
        (4999, 0.0, 3.0),
        (4000, 0.0, 3.0),
        (3999, 4.0, 3.0),
        (0, 4.0, 3.0),
    ] {
        let left = rule.refund(counters, 9.0, Some(at_ms));
        assert_eq!((left.prev, left.curr), (prev, curr), "{at_ms}");
    }
    // A time after now counts as now.
    let request = Request::Refund {
        amount: 9.0,
        at_ms: Some(MAX_MS),
    };
    let left = left_by(&decide(rule, request, Some(counters), 5500)).expect("it is kept");
    assert_eq!((left.prev, left.curr), (4.0, 0.0));
}

#[test]
fn what_a_script_kept_is_replaced_whatever_is_decided() {
    let rule = TokenBucket {
        capacity: 5.0,
        refill_rate: 0.0,
    };
    let kept = BucketLevel {
        tokens: 2.0,
        last_ms: 1000,
    };
    for (request, tokens) in [
        (Request::Cost(1.0), 1.0),
        (Request::Cost(3.0), 2.0),
        (refunded(0.0), 2.0),
    ] {
        let write = decide(rule, request, Some(kept), 2000).write(true);
        let left = BucketLevel {
            tokens,
            last_ms: 2000,
        };
        assert_eq!(write, Write::Replicated(left), "{request:?}");
    }
}
