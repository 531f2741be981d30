//! redis-rl: rate limiting as native Redis commands.
//!
//! `RL.TOKENBUCKET`, `RL.SLIDING` and `RL.ALL`, each with a read-only form, decide inside the server:
//! one round trip, one clock, no script. Three layers, each knowing only those below it:
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
