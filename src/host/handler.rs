//! From the server into a command's handler and back: the panic guard.

use super::argv::Argv;
use super::context::Context;
use super::counters::Outcome;
use super::info::{CommandInfo, KeyPositions};
use super::{api, log};
use libc::c_int;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A command: what it is, and what one call of it does.
pub trait Command {
    /// Why a call can fail, as the client reads it.
    type Error: Display;
    /// What the server and its clients are told about the command.
    const INFO: CommandInfo;

    /// Serves one call: it replies as its last step and returns what became of it, or returns the error to reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Self::Error>;
}

/// The handler that the server calls.
pub(super) extern "C" fn handle<C: Command>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the server hands its handlers the context and the `argc` arguments at `argv` of a call that runs
    // until they return.
    let (context, argv) = unsafe { (Context::from_raw(ctx), Argv::from_raw(argv, argc)) };
    // What a handler holds is dropped by unwinding, which closes keys, and nothing is shared between calls but
    // values that are whole at any time: hence the AssertUnwindSafe.
    let outcome = catch_unwind(AssertUnwindSafe(|| serve::<C>(context, argv)));
    if outcome.is_err() {
        // Handlers reply as their last step, so none has begun to reply when it panics.
        (C::INFO.counters)().count(&Err(()));
        log::warning("a command panicked and was answered with an error. Please report this.");
        context.reply_error(&"ERR internal error in the rl module; see the server's log");
    }
    raw::REDISMODULE_OK as c_int
}

#[inline(always)]
fn serve<C: Command>(context: Context<'_>, argv: Argv<'_>) {
    injected_panic(argv.get(1));
    if let KeyPositions::Counted(positions) = C::INFO.key_positions
        && context.is_keys_position_request()
    {
        context.report_keys(positions(argv), C::INFO.access.key_flags());
        return;
    }
    let result = C::call(context, argv);
    if let Err(error) = &result {
        context.reply_error(error);
    }
    (C::INFO.counters)().count(&result);
}

/// In a test build: panics at a key of that name. In any other it does nothing.
#[inline(always)]
pub fn injected_panic(_key: &[u8]) {
    #[cfg(feature = "inject-panic")]
    assert_ne!(_key, b"inject-panic", "injected");
}

impl Context<'_> {
    /// Whether the call only asks where the keys are.
    fn is_keys_position_request(self) -> bool {
        // SAFETY: `raw` is the context of a running call.
        unsafe { api::is_keys_position_request(self.raw) != 0 }
    }

    /// Answers such a call.
    fn report_keys(self, positions: std::ops::Range<usize>, flags: u32) {
        for position in positions {
            let position = c_int::try_from(position).unwrap_or(c_int::MAX);
            // SAFETY: `raw` is the context of a running call, which is a request for positions.
            unsafe { api::key_at_pos_with_flags(self.raw, position, flags as c_int) };
        }
    }
}
