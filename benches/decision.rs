//! Nanoseconds per decision, without Redis; and that no decision allocates.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --example decision -- --bench`; without
//! `--bench` it only checks that no decision allocates.

use criterion::{Criterion, criterion_group};
use limiter::{BucketLevel, Request, SlidingWindow, TokenBucket, WindowCounters, decide};
use std::hint::black_box;
use std::time::Duration;

/// The time of every decision, a little after what is stored.
const NOW_MS: i64 = 1_700_000_030_250;

const BUCKET: TokenBucket = TokenBucket {
    capacity: 100.0,
    refill_rate: 10.0,
};

const WINDOW: SlidingWindow = SlidingWindow {
    limit: 100.0,
    window_s: 60.0,
};

fn level(tokens: f64) -> Option<BucketLevel> {
    Some(BucketLevel {
        tokens,
        last_ms: NOW_MS - 7,
    })
}

/// Counters of the window of [`NOW_MS`].
fn counters(prev: f64, curr: f64) -> Option<WindowCounters> {
    Some(WindowCounters {
        window_s: WINDOW.window_s,
        index: NOW_MS / 60_000,
        prev,
        curr,
    })
}

/// A decision that is measured: its name, whether it allows, and how to make it.
type Case = (&'static str, bool, Box<dyn Fn() -> bool>);

/// A case of a decision of 1 by a rule on a state, with its reply.
macro_rules! case {
    ($name:literal, $allowed:literal, $rule:expr, $state:expr, $unit:ident) => {
        (
            $name,
            $allowed,
            Box::new(|| {
                let (rule, request, state) = black_box(($rule, Request::Cost(1.0), $state));
                let decision = decide(rule, request, state, black_box(NOW_MS));
                black_box(decision.committed().$unit()).integers[0] == 1
            }),
        )
    };
}

/// Every decision that is measured.
#[rustfmt::skip]
fn cases() -> Vec<Case> {
    vec![
        case!("bucket new", true, BUCKET, None, in_seconds),
        case!("bucket allowed", true, BUCKET, level(50.5), in_seconds),
        case!("bucket denied", false, BUCKET, level(0.25), in_seconds),
        case!("bucket allowed, MS", true, BUCKET, level(50.5), in_milliseconds),
        case!("bucket denied, MS", false, BUCKET, level(0.25), in_milliseconds),
        case!("window new", true, WINDOW, None, in_seconds),
        case!("window allowed", true, WINDOW, counters(40.0, 20.0), in_seconds),
        case!("window denied", false, WINDOW, counters(100.0, 95.0), in_seconds),
        case!("window allowed, MS", true, WINDOW, counters(40.0, 20.0), in_milliseconds),
        case!("window denied, MS", false, WINDOW, counters(100.0, 95.0), in_milliseconds),
    ]
}

/// Fails if a decision allocates, or is not the one that its name tells.
fn check_cases() {
    for (name, allows, decision) in cases() {
        let mut allowed = None;
        let allocated = allocation_counter::measure(|| allowed = Some(decision()));
        assert_eq!(allocated.count_total, 0, "{name} allocates");
        assert_eq!(allowed, Some(allows), "{name}");
    }
    println!("no decision allocates");
}

fn time_cases(criterion: &mut Criterion) {
    for (name, _, decision) in cases() {
        criterion.bench_function(name, |bencher| bencher.iter(&decision));
    }
}

criterion_group! {
    name = timings;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .without_plots();
    targets = time_cases
}

fn main() {
    check_cases();
    timings();
    Criterion::default().configure_from_args().final_summary();
}
