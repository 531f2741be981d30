//! What INFO tells: how often each command allowed, denied, gave back and failed since the module was
//! loaded. The server has no hook for CONFIG RESETSTAT, so these count on.

use super::api;
use super::load::LoadError;
use super::register::{CommandInfo, KeyAccess};
use libc::c_int;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleInfoCtx};
use std::ffi::CString;
use std::ptr::null;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What became of a call that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Allowed,
    Denied,
    /// `REFUND`, whether or not there was something to give back to.
    Refunded,
}

/// The counts of one command.
#[derive(Default)]
pub struct Counters {
    allowed: AtomicU64,
    denied: AtomicU64,
    refunded: AtomicU64,
    errors: AtomicU64,
}

impl Counters {
    pub const fn new() -> Self {
        Self {
            allowed: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            refunded: AtomicU64::new(0),
            errors: AtomicU64::new(0),
        }
    }

    pub(super) fn count<E>(&self, result: &Result<Outcome, E>) {
        let counter = match result {
            Ok(Outcome::Allowed) => &self.allowed,
            Ok(Outcome::Denied) => &self.denied,
            Ok(Outcome::Refunded) => &self.refunded,
            Err(_) => &self.errors,
        };
        // Calls run one at a time: two plain moves do what a locked addition would.
        counter.store(counter.load(Relaxed) + 1, Relaxed);
    }

    fn fields(&self) -> [(&'static str, u64); 4] {
        [
            ("allowed", self.allowed.load(Relaxed)),
            ("denied", self.denied.load(Relaxed)),
            ("refunded", self.refunded.load(Relaxed)),
            ("errors", self.errors.load(Relaxed)),
        ]
    }
}

/// A command in INFO.
struct Counted {
    /// `all_ro` for `RL.ALL_RO`, so that a field is `rl_all_ro_denied`.
    field: String,
    /// A preview decides nothing: it is left out of the totals.
    access: KeyAccess,
    counters: &'static Counters,
}

/// The commands that INFO lists. Locked at load and by INFO, by no call.
static COUNTED: Mutex<Vec<Counted>> = Mutex::new(Vec::new());

/// Lists a command in INFO.
pub(super) fn list(command: &CommandInfo, counters: &'static Counters) {
    let name = command.name.to_string_lossy();
    if let Ok(mut counted) = COUNTED.lock() {
        counted.push(Counted {
            field: name.strip_prefix("rl.").unwrap_or(&name).replace('.', "_"),
            access: command.access,
            counters,
        });
    }
}

/// Makes `INFO rl` answer with the counts.
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
        let mut totals: [(&str, u64); 4] = Counters::new().fields();
        for command in counted.iter() {
            for (total, (outcome, count)) in totals.iter_mut().zip(command.counters.fields()) {
                if command.access == KeyAccess::Update {
                    total.1 += count;
                }
                add_field(info, format!("{}_{outcome}", command.field), count);
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
