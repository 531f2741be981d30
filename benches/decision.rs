//! Nanoseconds a decision, without Redis; and that none of it allocates.
//!
//! `cargo run --release --manifest-path benches/Cargo.toml --example decision -- --bench`; without
//! `--bench` it only checks that no decision allocates.

use criterion::{Criterion, criterion_group};
use limiter::{
    Answer, BucketLevel, Limiter, Request, SlidingWindow, TokenBucket, WindowCounters, decide,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as for this function.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    let index = NOW_MS / 60_000;
    Some(WindowCounters {
        window_s: WINDOW.window_s,
        index,
        previous,
        current,
    })
}

/// A decision, carried out.
fn decided<L: Limiter>(rule: L, stored: Option<L::State>) -> Answer<L> {
    let decision = decide(
        black_box(rule),
        black_box(Request::Take(1.0)),
        black_box(stored),
        black_box(NOW_MS),
    );
    black_box(decision.effect());
    decision.carried_out()
}

/// A decision that is measured: its name, what its reply's first number must be, and how to make it.
type Case = (&'static str, i64, Box<dyn Fn() -> [i64; 4]>);

/// Every decision that is measured.
fn cases() -> Vec<Case> {
    vec![
        (
            "bucket new",
            1,
            Box::new(|| decided(BUCKET, None).in_seconds()),
        ),
        (
            "bucket allowed",
            1,
            Box::new(|| decided(BUCKET, level(50.5)).in_seconds()),
        ),
        (
            "bucket denied",
            0,
            Box::new(|| decided(BUCKET, level(0.25)).in_seconds()),
        ),
        (
            "bucket allowed, MS",
            1,
            Box::new(|| decided(BUCKET, level(50.5)).in_milliseconds()),
        ),
        (
            "bucket denied, MS",
            0,
            Box::new(|| decided(BUCKET, level(0.25)).in_milliseconds()),
        ),
        (
            "window new",
            1,
            Box::new(|| decided(WINDOW, None).in_seconds()),
        ),
        (
            "window allowed",
            1,
            Box::new(|| decided(WINDOW, counters(40.0, 20.0)).in_seconds()),
        ),
        (
            "window denied",
            0,
            Box::new(|| decided(WINDOW, counters(100.0, 95.0)).in_seconds()),
        ),
        (
            "window allowed, MS",
            1,
            Box::new(|| decided(WINDOW, counters(40.0, 20.0)).in_milliseconds()),
        ),
        (
            "window denied, MS",
            0,
            Box::new(|| decided(WINDOW, counters(100.0, 95.0)).in_milliseconds()),
        ),
    ]
}

/// Fails if a decision allocates, or is not the one that its name tells.
fn check_cases() {
    for (name, allowed, decision) in cases() {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let reply = decision();
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocations, 0, "{name} allocates");
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
