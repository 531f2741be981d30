//! The server's clock.

use super::api;
use super::context::Context;
use redis_module::raw;

/// Microseconds in a millisecond.
const US_PER_MS: i64 = 1000;

impl Context<'_> {
    /// Unix time in milliseconds by the server's clock. Where the server has one time for a whole command, script
    /// or MULTI (Redis 7.2, Valkey 8), that one. Read it once per call.
    pub fn now_ms(self) -> i64 {
        // SAFETY: the server fills the table at load and never changes it; a null pointer is `None`.
        match unsafe { raw::RedisModule_CachedMicroseconds } {
            // SAFETY: the function takes nothing and only reads the server's clock.
            Some(cached_us) => unsafe { cached_us() / US_PER_MS },
            // SAFETY: as above; it was checked at load.
            None => unsafe { api::milliseconds() },
        }
    }
}
