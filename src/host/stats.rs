//! `INFO rl`: how often each command allowed, denied, refunded and failed since the module was loaded. The server has
//! no hook for CONFIG RESETSTAT, so these counts go on.

use super::api;
use super::counters::Counters;
use super::error::LoadError;
use super::info::{CommandInfo, KeyAccess};
use libc::c_int;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleInfoCtx};
use redis_module::{InfoContext, InfoContextFieldTopLevelData};
use std::panic::catch_unwind;
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

/// Lists no command any more: for an unload, after which the library may stay in memory.
pub(super) fn clear() {
    if let Ok(mut counted) = COUNTED.lock() {
        *counted = Vec::new();
    }
}

/// Makes `INFO rl` show the counts. The server keeps the function that was registered last, so this one replaces the
/// crate's, which has no panic guard and begins a crash report with a backtrace: it allocates and reads debug
/// information, and Valkey crashes in it a second time, before the counts.
pub(super) fn register(ctx: *mut RedisModuleCtx) -> Result<(), LoadError> {
    clear();
    // SAFETY: the context is that of the load function; the handler lives as long as the module.
    let registered = unsafe { api::register_info_func(ctx, Some(write_info)) };
    if registered == raw::REDISMODULE_OK as c_int {
        Ok(())
    } else {
        Err(LoadError::InfoRefused(c"INFO rl"))
    }
}

unsafe extern "C" fn write_info(info: *mut RedisModuleInfoCtx, _for_crash_report: c_int) {
    // A panic must not reach the server; INFO then lacks these fields.
    let _ = catch_unwind(|| {
        // A server that crashed may hold the lock: its report goes without these fields.
        let Ok(counted) = COUNTED.try_lock() else {
            return;
        };
        // Without a name the section is `rl`. An error means that the server took no more of it.
        let section = (String::new(), fields(&counted));
        let _ = InfoContext::new(info).build_one_section(section);
    });
}

/// The counts of each command, then their totals.
fn fields(counted: &[Counted]) -> InfoContextFieldTopLevelData {
    let mut fields = InfoContextFieldTopLevelData::new();
    let mut totals = Counters::new().fields();
    for command in counted {
        for (total, (outcome, count)) in totals.iter_mut().zip(command.counters.fields()) {
            if command.access != KeyAccess::Read {
                total.1 += count;
            }
            fields.push((format!("{}_{outcome}", command.prefix), count.into()));
        }
    }
    fields.extend(totals.map(|(outcome, total)| (format!("total_{outcome}"), total.into())));
    fields
}
