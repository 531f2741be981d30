//! Making a command known to the server: handler, flags, arity, key specs, documentation.

use super::command::{Command, Keys, handle, handle_or_find_keys};
use super::load::LoadError;
use super::{api, stats};
use libc::c_int;
use redis_module::raw::{self, RedisModuleCmdFunc, RedisModuleCtx};
use std::ffi::CStr;
use std::ptr::{null, null_mut};

/// What the server and its clients are told about a command.
pub struct CommandInfo {
    /// In lower case, as the server lists its own.
    pub name: &'static CStr,
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    /// The first release of redis-rl that has it.
    pub since: &'static CStr,
    /// The least number of words, the command's name included.
    pub least_words: usize,
    pub access: KeyAccess,
    pub key_positions: KeyPositions,
    pub arguments: &'static [Arg],
}

/// What a command does to its keys; its flags and its ACL categories follow from that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyAccess {
    /// Reads and updates them: a write command, refused when memory is full.
    Update,
    /// Reads them: a read-only command.
    Read,
}

/// Where a command's keys stand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum KeyPositions {
    /// The first word after the name.
    First,
    /// Behind their count, which is the first word after the name.
    Counted,
}

/// An argument of a command, for COMMAND DOCS.
pub struct Arg {
    pub name: &'static CStr,
    pub kind: ArgKind,
    /// The keyword in front of it.
    pub token: Option<&'static CStr>,
    pub is_optional: bool,
    pub is_repeated: bool,
}

/// The type of an argument.
pub enum ArgKind {
    Key,
    Integer,
    Double,
    UnixTime,
    /// The keyword alone.
    Flag,
    OneOf(&'static [Arg]),
    Block(&'static [Arg]),
}

impl Arg {
    /// An argument that must be given, once and without a keyword.
    pub const fn required(name: &'static CStr, kind: ArgKind) -> Self {
        Self {
            name,
            kind,
            token: None,
            is_optional: false,
            is_repeated: false,
        }
    }

    /// An argument behind its keyword.
    pub const fn with_token(name: &'static CStr, kind: ArgKind, token: &'static CStr) -> Self {
        Self {
            token: Some(token),
            ..Self::required(name, kind)
        }
    }

    /// The same argument, optional.
    pub const fn optional(self) -> Self {
        Self {
            is_optional: true,
            ..self
        }
    }

    /// The same argument, given once or more.
    pub const fn repeated(self) -> Self {
        Self {
            is_repeated: true,
            ..self
        }
    }
}

impl CommandInfo {
    /// The flags of the command and the ACL categories that go with them.
    fn flags(&self) -> (&'static CStr, &'static CStr) {
        match (self.access, self.key_positions) {
            (KeyAccess::Update, KeyPositions::First) => (c"write deny-oom fast", c"write fast"),
            (KeyAccess::Read, KeyPositions::First) => (c"readonly fast", c"read fast"),
            (KeyAccess::Update, KeyPositions::Counted) => {
                (c"write deny-oom fast getkeys-api", c"write fast")
            }
            (KeyAccess::Read, KeyPositions::Counted) => {
                (c"readonly fast getkeys-api", c"read fast")
            }
        }
    }
}

/// The commands of a module that is being loaded.
pub struct Registrar {
    pub(super) ctx: *mut RedisModuleCtx,
}

impl Registrar {
    /// Registers a command whose key is its first word.
    pub fn register<C: Command>(&self) -> Result<(), LoadError> {
        self.create::<C>(Some(handle::<C>), 1)
    }

    /// Registers a command that is asked where its keys are.
    pub fn register_with_keys<C: Keys>(&self) -> Result<(), LoadError> {
        self.create::<C>(Some(handle_or_find_keys::<C>), 0)
    }

    fn create<C: Command>(&self, handler: RedisModuleCmdFunc, key: c_int) -> Result<(), LoadError> {
        let info = &C::INFO;
        let (flags, categories) = info.flags();
        let name = info.name.as_ptr();
        // SAFETY: the context is that of the load function; the server copies name and flags.
        let created =
            unsafe { api::create_command(self.ctx, name, handler, flags.as_ptr(), key, key, key) };
        if created != raw::REDISMODULE_OK as c_int {
            return Err(LoadError::NameTaken(info.name));
        }
        // SAFETY: as above.
        let command = unsafe { api::get_command(self.ctx, name) };
        if command.is_null() || !set_info(command, info) {
            return Err(LoadError::InfoRefused(info.name));
        }
        stats::list(info, C::counters());
        // SAFETY: the pointer is read as an option; the server filled the table.
        if let Some(set_categories) = unsafe { raw::RedisModule_SetCommandACLCategories } {
            // SAFETY: `command` was just returned by the server, which copies the categories.
            let set = unsafe { set_categories(command, categories.as_ptr()) };
            if set != raw::REDISMODULE_OK as c_int {
                return Err(LoadError::InfoRefused(info.name));
            }
        }
        Ok(())
    }
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
    let mut arguments = ArgumentTable::of(info.arguments);
    let c_info = raw::RedisModuleCommandInfo {
        version: &version,
        summary: info.summary.as_ptr(),
        complexity: info.complexity.as_ptr(),
        since: info.since.as_ptr(),
        history: null_mut(),
        tips: info.access.tips(),
        // A negative arity is a least number of words.
        arity: -c_int::try_from(info.least_words).unwrap_or(c_int::MAX),
        key_specs: key_specs.as_mut_ptr(),
        args: arguments.as_mut_ptr(),
    };
    // SAFETY: `command` is the server's own; everything that `c_info` points at lives until here, and
    // the server copies it all.
    unsafe { api::set_command_info(command, &c_info) == raw::REDISMODULE_OK as c_int }
}

fn key_spec(info: &CommandInfo) -> raw::RedisModuleCommandKeySpec {
    // SAFETY: plain C data, filled in below; zeroes are its empty values.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = u64::from(info.access.flags());
    spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
    spec.bs.index.pos = 1;
    match info.key_positions {
        KeyPositions::First => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range.lastkey = 0;
            spec.fk.range.keystep = 1;
            spec.fk.range.limit = 0;
        }
        KeyPositions::Counted => {
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_KEYNUM;
            spec.fk.keynum.keynumidx = 0;
            spec.fk.keynum.firstkey = 1;
            spec.fk.keynum.keystep = 1;
        }
    }
    spec
}

/// Arguments in the server's form, with the tables of their parts, which the first one points into.
struct ArgumentTable {
    elements: Vec<raw::RedisModuleCommandArg>,
    parts: Vec<ArgumentTable>,
}

impl ArgumentTable {
    fn of(arguments: &[Arg]) -> Self {
        let mut table = Self {
            elements: Vec::with_capacity(arguments.len() + 1),
            parts: Vec::new(),
        };
        for argument in arguments {
            let element = table.element(argument);
            table.elements.push(element);
        }
        // SAFETY: plain C data; a zeroed element ends the array.
        table.elements.push(unsafe { std::mem::zeroed() });
        table
    }

    fn element(&mut self, argument: &Arg) -> raw::RedisModuleCommandArg {
        let (kind, parts): (_, &[Arg]) = match argument.kind {
            ArgKind::Key => (raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_KEY, &[]),
            ArgKind::Integer => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_INTEGER,
                &[],
            ),
            ArgKind::Double => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_DOUBLE,
                &[],
            ),
            ArgKind::UnixTime => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_UNIX_TIME,
                &[],
            ),
            ArgKind::Flag => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_PURE_TOKEN,
                &[],
            ),
            ArgKind::OneOf(parts) => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_ONEOF,
                parts,
            ),
            ArgKind::Block(parts) => (
                raw::RedisModuleCommandArgType_REDISMODULE_ARG_TYPE_BLOCK,
                parts,
            ),
        };
        let subargs = if parts.is_empty() {
            null_mut()
        } else {
            let mut table = Self::of(parts);
            // The table's elements stay where they are on the heap when the table itself moves.
            let elements = table.as_mut_ptr();
            self.parts.push(table);
            elements
        };
        let mut flags = raw::REDISMODULE_CMD_ARG_NONE;
        if argument.is_optional {
            flags |= raw::REDISMODULE_CMD_ARG_OPTIONAL;
        }
        if argument.is_repeated {
            flags |= raw::REDISMODULE_CMD_ARG_MULTIPLE;
        }
        raw::RedisModuleCommandArg {
            name: argument.name.as_ptr(),
            type_: kind,
            // The only key spec there is, for a key; none for any other argument.
            key_spec_index: if matches!(argument.kind, ArgKind::Key) {
                0
            } else {
                -1
            },
            token: argument.token.map_or(null(), CStr::as_ptr),
            summary: null(),
            since: null(),
            flags: flags as c_int,
            deprecated_since: null(),
            subargs,
            display_text: null(),
        }
    }

    fn as_mut_ptr(&mut self) -> *mut raw::RedisModuleCommandArg {
        self.elements.as_mut_ptr()
    }
}
