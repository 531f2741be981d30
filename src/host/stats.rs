//! `INFO rl`: how often each command allowed, denied, refunded and failed since the module was loaded. The server has
//! no hook for CONFIG RESETSTAT, so these counts go on.

use super::api;
use super::counters::Counters;
use super::error::LoadError;
use super::info::{CommandInfo, KeyAccess};
use libc::c_int;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleInfoCtx};
use std::ffi::CString;
use std::ptr::null;
use std::sync::Mutex;

/// A command in INFO.
struct Counted {
    /// `all_ro` for `RL.ALL_RO`, so that a field is `rl_all_ro_denied`.
    prefix: String,
    /// A preview decides nothing: it is left out of the totals.
    access: KeyAccess,
    counters: &'static Counters,
}

/// The commands that INFO lists. Locked at load and by INFO, by no call.
static COUNTED: Mutex<Vec<Counted>> = Mutex::new(Vec::new());

/// Lists a command in INFO.
pub(super) fn list(command: &CommandInfo) {
    let name = command.name.to_string_lossy();
    if let Ok(mut counted) = COUNTED.lock() {
        counted.push(Counted {
            prefix: name.strip_prefix("rl.").unwrap_or(&name).replace('.', "_"),
            access: command.access,
            counters: (command.counters)(),
        });
    }
}

/// Makes `INFO rl` show the counts.
pub(super) fn register(ctx: *mut RedisModuleCtx) -> Result<(), LoadError> {
    if let Ok(mut counted) = COUNTED.lock() {
        // Left over if the library stayed in memory when the module was unloaded.
        counted.clear();
    }
    // SAFETY: the context is that of the load function; the handler lives as long as the module.
    let registered = unsafe { api::register_info_func(ctx, Some(write_info)) };
    if registered == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(LoadError::InfoRefused(c"INFO rl"))
    }
}

unsafe extern "C" fn write_info(info: *mut RedisModuleInfoCtx, _for_crash_report: c_int) {
    // A panic must not reach the server; INFO then lacks the rest of the section.
    let _ = std::panic::catch_unwind(|| {
        // A server that crashed may hold the lock: its report goes without these fields.
        let Ok(counted) = COUNTED.try_lock() else {
            return;
        };
        // SAFETY: `info` is what the server made for this call. Without a name the section is `rl`.
        if unsafe { api::info_add_section(info, null()) } != raw::REDISMODULE_OK as c_int {
            return;
        }
        let mut totals = Counters::new().fields();
        for command in counted.iter() {
            for (total, (outcome, count)) in totals.iter_mut().zip(command.counters.fields()) {
                if command.access != KeyAccess::Read {
                    total.1 += count;
                }
                add_field(info, format!("{}_{outcome}", command.prefix), count);
            }
        }
        for (outcome, total) in totals {
            add_field(info, format!("total_{outcome}"), total);
        }
    });
}

fn add_field(info: *mut RedisModuleInfoCtx, field: String, count: u64) {
    let Ok(field) = CString::new(field) else {
        return;
    };
    // SAFETY: `info` is what the server made for this call; it copies the field's name.
    unsafe { api::info_add_field_u_long_long(info, field.as_ptr(), count) };
}
