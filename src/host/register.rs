//! Registering a command: handler, flags, arity, key specs, documentation.

use super::error::LoadError;
use super::handler::{Command, handle};
use super::info::{ArgDoc, ArgKind, CommandInfo, KeyPositions};
use super::{api, stats};
use libc::c_int;
use redis_module::raw::{self, RedisModuleCtx};
use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};

/// The commands of a module that is being loaded.
pub struct Registrar {
    pub(super) ctx: *mut RedisModuleCtx,
}

impl Registrar {
    /// Registers a command.
    pub fn register<C: Command>(&self) -> Result<(), LoadError> {
        let info = &C::INFO;
        let (getkeys, first_key) = match info.key_positions {
            KeyPositions::First => ("", 1),
            // The server's cluster code asks the module for the keys, and looks at this flag alone.
            KeyPositions::Counted(_) => (" getkeys-api", 0),
        };
        let flags = format!("{}{getkeys}", info.access.command_flags());
        let refused = || LoadError::InfoRefused(info.name);
        let flags = CString::new(flags).map_err(|_| refused())?;
        let name = info.name.as_ptr();
        // SAFETY: the context is that of the load function; the server copies name and flags.
        let created = unsafe {
            api::create_command(
                self.ctx,
                name,
                Some(handle::<C>),
                flags.as_ptr(),
                first_key,
                first_key,
                first_key,
            )
        };
        if created != raw::REDISMODULE_OK as c_int {
            return Err(LoadError::NameTaken(info.name));
        }
        // SAFETY: as above.
        let command = unsafe { api::get_command(self.ctx, name) };
        if command.is_null() || !set_info(command, info) || !set_acl_categories(command, info) {
            return Err(refused());
        }
        stats::list(info);
        Ok(())
    }
}

/// Puts the command into its ACL categories, where the server has the call (7.2); whether it took them.
fn set_acl_categories(command: *mut raw::RedisModuleCommand, info: &CommandInfo) -> bool {
    let categories = info.access.acl_categories().as_ptr();
    // SAFETY: the pointer is read as an option; `command` is the server's own, which copies the categories.
    unsafe { raw::RedisModule_SetCommandACLCategories }
        .is_none_or(|set| unsafe { set(command, categories) } == raw::REDISMODULE_OK as c_int)
}

/// Hands `info` to the server; whether it took it.
fn set_info(command: *mut raw::RedisModuleCommand, info: &CommandInfo) -> bool {
    // The header's RedisModule_CurrentCommandInfoVersion is `static const`, out of reach of a linker.
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    // A zeroed element ends each array.
    // SAFETY: the struct is plain C data, for which zeroes are the end mark that the API defines.
    let mut key_specs = [key_spec(info), unsafe { std::mem::zeroed() }];
    let mut args = ArgTable::of(info.args);
    let c_info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: info.summary.as_ptr(),
        complexity: info.complexity.as_ptr(),
        since: info.since.as_ptr(),
        history: null_mut(),
        tips: info.access.tips().map_or(null(), CStr::as_ptr),
        // A negative arity is a minimum.
        arity: -c_int::try_from(info.arity).unwrap_or(c_int::MAX),
        key_specs: key_specs.as_mut_ptr(),
        args: args.as_mut_ptr(),
    };
    // SAFETY: `command` is the server's own; everything that `c_info` points at lives until here, and
    // the server copies it all.
    unsafe { api::set_command_info(command, &c_info) == raw::REDISMODULE_OK as c_int }
}

fn key_spec(info: &CommandInfo) -> raw::RedisModuleCommandKeySpec {
    // SAFETY: plain C data, filled in below; zeroes are its empty values.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = u64::from(info.access.key_flags());
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    match info.key_positions {
        KeyPositions::First => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range.lastkey = 0;
            spec.fk.range.keystep = 1;
            spec.fk.range.limit = 0;
        }
        KeyPositions::Counted(_) => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum.keynumidx = 0;
            spec.fk.keynum.firstkey = 1;
            spec.fk.keynum.keystep = 1;
        }
    }
    spec
}

/// Arguments in the server's form, with what they point into: their names and the tables of their parts.
struct ArgTable {
    elements: Vec<raw::RedisModuleCommandArg>,
    names: Vec<CString>,
    parts: Vec<ArgTable>,
}

impl ArgTable {
    fn of(args: &[ArgDoc]) -> Self {
        let mut table = Self {
            elements: Vec::with_capacity(args.len() + 1),
            names: Vec::new(),
            parts: Vec::new(),
        };
        for arg in args {
            let element = table.element(arg);
            table.elements.push(element);
        }
        // SAFETY: plain C data; a zeroed element ends the array.
        table.elements.push(unsafe { std::mem::zeroed() });
        table
    }

    fn element(&mut self, arg: &ArgDoc) -> raw::RedisModuleCommandArg {
        let subargs = if arg.parts().is_empty() {
            null_mut()
        } else {
            let mut table = Self::of(arg.parts());
            // The table's elements stay where they are on the heap when the table itself moves.
            let elements = table.as_mut_ptr();
            self.parts.push(table);
            elements
        };
        let mut flags = raw::REDISMODULE_CMD_ARG_NONE;
        if arg.is_optional {
            flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
        }
        if arg.is_repeated {
            flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
        }
        raw::RedisModuleCommandArg {
            name: self.c_string(arg.name),
            type_: arg_type(arg.kind),
            // The only key spec there is, for a key; none for any other argument.
            key_spec_index: if matches!(arg.kind, ArgKind::Key) {
                0
            } else {
                -1
            },
            token: arg.token.map_or(null(), |token| self.c_string(token)),
            summary: null(),
            since: null(),
            flags: flags as c_int,
            deprecated_since: null(),
            subargs,
            display_text: null(),
        }
    }

    /// `text` as a C string that lives as long as the table.
    fn c_string(&mut self, text: &str) -> *const c_char {
        let c_string = CString::new(text).unwrap_or_default();
        // The bytes stay where they are on the heap when the string itself moves.
        let start = c_string.as_ptr();
        self.names.push(c_string);
        start
    }

    fn as_mut_ptr(&mut self) -> *mut raw::RedisModuleCommandArg {
        self.elements.as_mut_ptr()
    }
}

/// The type of an argument in the module API.
fn arg_type(kind: ArgKind) -> raw::RedisModuleCommandArgType {
    match kind {
        ArgKind::Key => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY,
        ArgKind::Integer => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
        ArgKind::Double => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
        ArgKind::Text => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_STRING,
        ArgKind::UnixTime => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_UNIX_TIME,
        ArgKind::Flag => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
        ArgKind::OneOf(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
        ArgKind::Block(_) => raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
    }
}
