//! From the server into a command's handler and back: the panic guard.

use super::arguments::{Arguments, KeyName};
use super::key::{ReadKey, WriteKey};
use super::register::{CommandInfo, KeyAccess};
use super::stats::{Counters, Outcome};
use super::{api, clock, log};
use libc::c_int;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::ffi::CString;
use std::fmt::Display;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A command: its registration and the way of one call.
pub trait Command {
    /// Why a call can fail, as the client reads it.
    type Error: Display;
    /// What the server and its clients are told about the command.
    const INFO: CommandInfo;

    /// Where its calls are counted: a static of the command's own.
    fn counters() -> &'static Counters;

    /// Answers one call: it replies as its last step and says what became of it, or returns the error
    /// to reply.
    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Self::Error>;
}

/// A command that tells the server where its keys are (`getkeys-api`).
pub trait Keys: Command {
    /// The positions of the keys. The arguments may be malformed here.
    fn positions(arguments: Arguments<'_>) -> std::ops::Range<usize>;
}

/// A running call's link to the server.
#[derive(Clone, Copy)]
pub struct Context<'call> {
    pub(super) raw: *mut RedisModuleCtx,
    call: PhantomData<&'call ()>,
}

impl<'call> Context<'call> {
    /// Unix time in milliseconds by the server's clock. Read it once a call.
    pub fn now_ms(self) -> i64 {
        clock::now_ms()
    }

    /// Opens the key for reading: nothing of it can change.
    pub fn open_for_reading(self, name: KeyName<'call>) -> ReadKey<'call> {
        ReadKey::open(self, name)
    }

    /// Opens the key for reading and writing.
    pub fn open_for_writing(self, name: KeyName<'call>) -> WriteKey<'call> {
        WriteKey::open(self, name)
    }

    /// Replies with an error.
    fn reply_error(self, error: &dyn Display) {
        let message = CString::new(error.to_string()).unwrap_or_default();
        // SAFETY: `raw` is this call's context; the server copies the message.
        unsafe { api::reply_with_error(self.raw, message.as_ptr()) };
    }
}

/// The handler that the server calls.
pub(super) extern "C" fn handle<C: Command>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    guarded::<C>(ctx, argv, argc, |context, arguments| {
        let result = C::call(context, arguments);
        if let Err(error) = &result {
            context.reply_error(error);
        }
        C::counters().count(&result);
    })
}

/// The handler of a command that is also asked where its keys are.
pub(super) extern "C" fn handle_or_find_keys<C: Keys>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: `ctx` is the context that the server made for this call.
    if unsafe { api::is_keys_position_request(ctx) } == 0 {
        return handle::<C>(ctx, argv, argc);
    }
    guarded::<C>(ctx, argv, argc, |context, arguments| {
        for position in C::positions(arguments) {
            let position = c_int::try_from(position).unwrap_or(c_int::MAX);
            let flags = C::INFO.access.flags() as c_int;
            // SAFETY: `raw` is this call's context, and the call is a request for positions.
            unsafe { api::key_at_pos_with_flags(context.raw, position, flags) };
        }
    })
}

/// Runs a handler; a panic in it becomes an error reply, since one that reached the server would end
/// it. Handlers reply as their last step, so no reply has begun when one panics.
fn guarded<C: Command>(
    ctx: *mut RedisModuleCtx,
    argv: *mut *mut RedisModuleString,
    argc: c_int,
    handler: impl FnOnce(Context<'_>, Arguments<'_>),
) -> c_int {
    let context = Context {
        raw: ctx,
        call: PhantomData,
    };
    // SAFETY: the server hands `argc` arguments at `argv` to the handler, alive until it returns.
    let arguments = unsafe { Arguments::from_raw(argv, argc) };
    // What a handler holds is dropped by unwinding, keys are closed by it, and nothing is shared
    // between calls but values that are whole at any time: hence the AssertUnwindSafe.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        injected_panic(arguments.word(1));
        handler(context, arguments)
    }));
    if outcome.is_err() {
        C::counters().count(&Err(()));
        log::warning("a command panicked; it was answered with an error. Please report this.");
        context.reply_error(&"ERR internal error in the rl module; see the server's log");
    }
    raw::REDISMODULE_OK as c_int
}

/// In a test build: panics where a key of that name is come to. In any other it does nothing.
#[inline(always)]
pub fn injected_panic(_name: &[u8]) {
    #[cfg(feature = "inject-panic")]
    assert_ne!(_name, b"inject-panic", "injected");
}

impl KeyAccess {
    /// The tips for clients. What a preview answers changes with time alone, so it must not be cached.
    pub(super) fn tips(self) -> *const libc::c_char {
        match self {
            Self::Update => std::ptr::null(),
            Self::Read => c"nondeterministic_output".as_ptr(),
        }
    }

    /// The key flags of the module API.
    pub(super) fn flags(self) -> u32 {
        match self {
            Self::Update => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
            Self::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
        }
    }
}
