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
fn counters(previous: f64, current: f64) -> Option<WindowCounters> {
    Some(WindowCounters {
        window_s: WINDOW.window_s,
        index: NOW_MS / 60_000,
        previous,
        current,
    })
}

/// A decision that is measured: its name, what its reply's first number must be, and how to make it.
type Case = (&'static str, i64, Box<dyn Fn() -> [i64; 4]>);

/// The reply of a decision of 1 by a rule on a state.
macro_rules! reply {
    ($rule:expr, $state:expr, $unit:ident) => {
        Box::new(|| {
            let (rule, request, state) = black_box(($rule, Request::Take(1.0), $state));
            decide(rule, request, state, black_box(NOW_MS))
                .carried_out()
                .$unit()
        })
    };
}

/// Every decision that is measured.
#[rustfmt::skip]
fn cases() -> Vec<Case> {
    vec![
        ("bucket new", 1, reply!(BUCKET, None, in_seconds)),
        ("bucket allowed", 1, reply!(BUCKET, level(50.5), in_seconds)),
        ("bucket denied", 0, reply!(BUCKET, level(0.25), in_seconds)),
        ("bucket allowed, MS", 1, reply!(BUCKET, level(50.5), in_milliseconds)),
        ("bucket denied, MS", 0, reply!(BUCKET, level(0.25), in_milliseconds)),
        ("window new", 1, reply!(WINDOW, None, in_seconds)),
        ("window allowed", 1, reply!(WINDOW, counters(40.0, 20.0), in_seconds)),
        ("window denied", 0, reply!(WINDOW, counters(100.0, 95.0), in_seconds)),
        ("window allowed, MS", 1, reply!(WINDOW, counters(40.0, 20.0), in_milliseconds)),
        ("window denied, MS", 0, reply!(WINDOW, counters(100.0, 95.0), in_milliseconds)),
    ]
}

/// Fails if a decision allocates, or is not the one that its name tells.
fn check_cases() {
    for (name, allowed, decision) in cases() {
        let mut reply = [-1; 4];
        let allocated = allocation_counter::measure(|| reply = decision());
        assert_eq!(allocated.count_total, 0, "{name} allocates");
        assert_eq!(reply[0], allowed, "{name} is {reply:?}");
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
