//! Keyspace notifications of the module class (`d`): who is being refused.

use super::api;
use super::argv::Arg;
use super::context::Context;
use super::counters::Outcome;
use redis_module::raw;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether `rl.allowed` is published too: the setting `notify-allowed`.
pub static ALLOWED_TOO: AtomicBool = AtomicBool::new(false);

impl Context<'_> {
    /// Publishes `rl.denied` or `rl.repeated` (and `rl.allowed` if that is wanted) for a key, which must be closed,
    /// if notify-keyspace-events has the class.
    pub fn publish(self, key: Arg<'_>, outcome: Outcome) {
        match outcome {
            Outcome::Denied => self.publish_event(key, c"rl.denied"),
            Outcome::Repeated => self.publish_event(key, c"rl.repeated"),
            Outcome::Allowed if ALLOWED_TOO.load(Relaxed) => self.publish_event(key, c"rl.allowed"),
            Outcome::Allowed | Outcome::Refunded | Outcome::Released => {}
        }
    }

    /// Publishes `rl.shadow` for the key of a rule that would have denied the call.
    pub fn publish_shadow(self, key: Arg<'_>) {
        self.publish_event(key, c"rl.shadow");
    }

    fn publish_event(self, key: Arg<'_>, event: &CStr) {
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
