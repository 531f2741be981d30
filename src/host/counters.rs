//! What became of calls, counted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What became of a call that was not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Denied,
    /// `REFUND`, whether or not there was something to give back to.
    Refunded,
    /// RL.RELEASE, whether or not a lease was held.
    Released,
    /// A call of RL.ALL whose lease was live already, so that it took nothing.
    Repeated,
}

/// The counts of one command.
#[derive(Default)]
pub struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    refunded: AtomicU64,
    released: AtomicU64,
    repeated: AtomicU64,
    errors: AtomicU64,
}

impl Counters {
    pub const fn new() -> Self {
        Self {
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            refunded: AtomicU64::new(0),
            released: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    pub(super) fn count<E>(&self, result: &Result<Outcome, E>) {
        let counter = match result {
            Ok(Outcome::Allowed) => &self.allowed,
            Ok(Outcome::Denied) => &self.denied,
            Ok(Outcome::Refunded) => &self.refunded,
            Ok(Outcome::Released) => &self.released,
            Ok(Outcome::Repeated) => &self.repeated,
            Err(_) => &self.errors,
        };
        // Calls run one at a time: two plain moves do what a locked addition would.
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }

    /// The counts with their names in INFO.
    pub(super) fn fields(&self) -> [(&'static str, u64); 6] {
        [
            ("allowed", self.allowed.load(Relaxed)),
            ("denied", self.denied.load(Relaxed)),
            ("refunded", self.refunded.load(Relaxed)),
            ("released", self.released.load(Relaxed)),
            ("repeated", self.repeated.load(Relaxed)),
            ("errors", self.errors.load(Relaxed)),
        ]
    }
}
