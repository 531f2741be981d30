//! redis-rl: rate limiting as native Redis commands.
//!
//! | command | takes |
//! | --- | --- |
//! | `RL.TOKENBUCKET` | tokens of a bucket that refills at a steady rate |
//! | `RL.SLIDING` | room in the estimate of the last seconds |
//! | `RL.QUOTA` | what one period may count |
//! | `RL.CONCURRENCY`, `RL.RELEASE` | one of a limited number of leases, and gives it back |
//! | `RL.ALL` | from several of these, or from none |
//!
//! Each but `RL.RELEASE` has a read-only form. A call is decided inside the server: one round trip, one clock, no script.
//! Three layers, each knowing only those below it:
//!
//! * [`commands`]: the flow of a call, from its arguments to its reply;
//! * [`host`]: the module API, and every `unsafe` line;
//! * [`syntax`]: from arguments to a typed call, and [`limiter`]: the arithmetic and the state codec. Crates of their
//!   own, so that the compiler keeps Redis out of them.

#[forbid(unsafe_code)]
mod commands;
mod host;

#[cfg(not(test))]
use redis_module::alloc::RedisAlloc as Allocator;
/// The server's allocator is not there under `cargo test`.
#[cfg(test)]
use std::alloc::System as Allocator;

fn init(
    context: &redis_module::Context,
    arguments: &[redis_module::RedisString],
) -> redis_module::Status {
    host::load(context, arguments, commands::register)
}

redis_module::redis_module! {
    name: "rl",
    version: 100,
    allocator: (Allocator, Allocator),
    data_types: [],
    init: init,
    deinit: unload,
}

use host::unload;
