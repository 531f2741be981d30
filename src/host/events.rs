//! Keyspace notifications of the module class (`d`): who is being refused.

use super::api;
use super::argv::KeyName;
use super::context::Context;
use super::counters::Outcome;
use redis_module::raw;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether `rl.allowed` is published too: the module argument `notify-allowed`.
static ALLOWED_TOO: AtomicBool = AtomicBool::new(false);

/// Publishes `rl.allowed` too, or no longer.
pub fn publish_allowed(is_wanted: bool) {
    ALLOWED_TOO.store(is_wanted, Relaxed);
}

impl Context<'_> {
    /// Publishes `rl.denied` (and `rl.allowed` if that is wanted) for a key, which must be closed, if
    /// notify-keyspace-events has the class.
    pub fn publish(self, key: KeyName<'_>, outcome: Outcome) {
        let event = match outcome {
            Outcome::Denied => c"rl.denied",
            Outcome::Allowed if ALLOWED_TOO.load(Relaxed) => c"rl.allowed",
            Outcome::Allowed | Outcome::Refunded => return,
        };
        // SAFETY: the function only reads the server's configuration.
        let published = unsafe { api::get_notify_keyspace_events() };
        if published & raw::REDISMODULE_NOTIFY_MODULE != 0 {
            // SAFETY: the context and the key's name are this call's own; the server copies the event.
            unsafe {
                api::notify_keyspace_event(
                    self.raw,
                    raw::REDISMODULE_NOTIFY_MODULE,
                    event.as_ptr(),
                    key.raw,
                );
            }
        }
    }
}
