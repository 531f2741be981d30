//! Module options: what the server may do although a module is loaded. A server restricts itself for the
//! sake of a module that does not say that it can cope.

use super::api;
use libc::{c_char, c_int, c_void};
use redis_module::raw::{self, RedisModuleCtx};
use std::ptr::null_mut;

/// Keys are signalled as modified by hand, with what is propagated, and not when one that was opened for
/// writing is closed.
const NO_IMPLICIT_SIGNALS: c_int = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED as c_int;

/// The module keeps nothing of the data set, so it need not hear of one that is loaded beside the old
/// one. Without it the server turns `repl-diskless-load swapdb` off.
const HANDLE_ASYNC_LOADING: c_int = raw::REDISMODULE_OPTIONS_HANDLE_REPL_ASYNC_LOAD as c_int;

/// Valkey 8.1 and later: what is propagated need not be looked up again.
const VALKEY_SKIP_COMMAND_VALIDATION: c_int = 1 << 4;

/// Valkey 9.0 and later: state moves with its slot, as any string does. Without it the whole cluster
/// refuses `CLUSTER MIGRATESLOTS`.
const VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION: c_int = 1 << 5;

/// Sets the options of the module that is being loaded.
pub(super) fn set(ctx: *mut RedisModuleCtx) {
    let mut options = NO_IMPLICIT_SIGNALS | HANDLE_ASYNC_LOADING;
    // Redis will give these bits another meaning.
    if is_valkey(ctx) {
        let wanted = VALKEY_SKIP_COMMAND_VALIDATION | VALKEY_HANDLE_ATOMIC_SLOT_MIGRATION;
        options |= wanted & known_options();
    }
    // SAFETY: the context is that of the load function.
    unsafe { api::set_module_options(ctx, options) };
}

/// The options that the server knows; none if it cannot tell.
fn known_options() -> c_int {
    // SAFETY: the pointer is read as an option, and the function takes nothing.
    unsafe { raw::RedisModule_GetModuleOptionsAll.map_or(0, |options_all| options_all()) }
}

/// Whether the server is Valkey: it has each function under its own name too.
fn is_valkey(ctx: *mut RedisModuleCtx) -> bool {
    type GetApi = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;
    let mut function: *mut c_void = null_mut();
    // SAFETY: by the module API's header, the context of the load function starts with the pointer to the
    // function that finds the others, under their names, and writes where the second argument says.
    let found = unsafe {
        let get_api = ctx.cast::<Option<GetApi>>().read();
        get_api.map(|get_api| {
            get_api(
                c"ValkeyModule_SetModuleOptions".as_ptr(),
                (&raw mut function).cast(),
            )
        })
    };
    found == Some(raw::REDISMODULE_OK as c_int)
}
