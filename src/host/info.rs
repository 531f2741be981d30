//! What a command is, as data: what the server and its clients are told about it.

use super::argv::Argv;
use super::counters::Counters;
use redis_module::raw;
use std::ffi::CStr;
use std::fmt;
use std::ops::Range;

/// What the server and its clients are told about a command, and where its calls are counted.
#[derive(Clone, Copy)]
pub struct CommandInfo {
    /// In lower case, as the server lists its own.
    pub name: &'static CStr,
    pub summary: &'static CStr,
    pub complexity: &'static CStr,
    /// The first release of redis-rl that has it.
    pub since: &'static CStr,
    /// The smallest number of arguments, the command's name included.
    pub arity: usize,
    pub access: KeyAccess,
    pub key_positions: KeyPositions,
    pub args: &'static [ArgDoc],
    pub counters: fn() -> &'static Counters,
}

/// A counter of a command's own, for [`CommandInfo::counters`].
macro_rules! counters {
    () => {
        || {
            static COUNTERS: $crate::host::Counters = $crate::host::Counters::new();
            &COUNTERS
        }
    };
}
pub(crate) use counters;

/// What a command does to its keys; its flags, ACL categories and tips follow from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAccess {
    /// Reads and updates them: a write command, refused when memory is full.
    Update,
    /// Reads them: a read-only command.
    Read,
    /// Removes from them: a write command that frees memory, so it must work when memory is full.
    Remove,
}

impl KeyAccess {
    /// The flags of the command that go with it.
    pub(super) fn command_flags(self) -> &'static str {
        match self {
            Self::Update => "write deny-oom fast",
            Self::Remove => "write fast",
            Self::Read => "readonly fast",
        }
    }

    pub(super) fn acl_categories(self) -> &'static CStr {
        match self {
            Self::Update | Self::Remove => c"write fast",
            Self::Read => c"read fast",
        }
    }

    /// The tips for clients. What a preview answers changes with time alone, so it must not be cached.
    pub(super) fn tips(self) -> Option<&'static CStr> {
        match self {
            Self::Update | Self::Remove => None,
            Self::Read => Some(c"nondeterministic_output"),
        }
    }

    /// The key flags of the module API.
    pub(super) fn key_flags(self) -> u32 {
        match self {
            Self::Update => {
                raw::REDISMODULE_CMD_KEY_RW
                    | raw::REDISMODULE_CMD_KEY_ACCESS
                    | raw::REDISMODULE_CMD_KEY_UPDATE
            }
            Self::Read => raw::REDISMODULE_CMD_KEY_RO | raw::REDISMODULE_CMD_KEY_ACCESS,
            Self::Remove => raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_DELETE,
        }
    }
}

/// Where a command's keys are.
#[derive(Clone, Copy)]
pub enum KeyPositions {
    /// The first argument after the name.
    First,
    /// After their count, which is the first argument after the name. The function gives the positions to a server
    /// that asks (`getkeys-api`); the arguments may be malformed there.
    Counted(fn(Argv<'_>) -> Range<usize>),
}

/// An argument of a command, for COMMAND DOCS and for the usage that a syntax error shows.
#[derive(Clone, Copy)]
pub struct ArgDoc {
    pub name: &'static str,
    pub kind: ArgKind,
    /// The keyword in front of it.
    pub token: Option<&'static str>,
    pub is_optional: bool,
    pub is_repeated: bool,
}

/// The type of an argument.
#[derive(Clone, Copy)]
pub enum ArgKind {
    Key,
    Integer,
    Double,
    UnixTime,
    Text,
    /// The keyword alone.
    Flag,
    OneOf(&'static [ArgDoc]),
    Block(&'static [ArgDoc]),
}

impl ArgDoc {
    /// An argument that must be given, once and without a keyword.
    pub const fn required(name: &'static str, kind: ArgKind) -> Self {
        Self {
            name,
            kind,
            token: None,
            is_optional: false,
            is_repeated: false,
        }
    }

    /// An argument after its keyword.
    pub const fn with_token(name: &'static str, kind: ArgKind, token: &'static str) -> Self {
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

    /// Whether it is given by a keyword, or a part of it is.
    pub fn has_keyword(&self) -> bool {
        self.token.is_some() || self.parts().iter().any(Self::has_keyword)
    }

    /// The arguments that it consists of.
    pub(super) fn parts(&self) -> &'static [ArgDoc] {
        match self.kind {
            ArgKind::OneOf(parts) | ArgKind::Block(parts) => parts,
            _ => &[],
        }
    }
}

/// As the reference writes it: `[COST cost | REFUND amount]`, `<DAY | WEEK>`.
impl fmt::Display for ArgDoc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = match (self.is_optional, self.kind) {
            (true, _) => ("[", "]"),
            (false, ArgKind::OneOf(_)) => ("<", ">"),
            (false, _) => ("", ""),
        };
        f.write_str(open)?;
        if let Some(token) = self.token {
            f.write_str(token)?;
        }
        let between = match self.kind {
            ArgKind::OneOf(_) => " | ",
            _ => " ",
        };
        match (self.kind, self.token) {
            (ArgKind::Flag, _) => {}
            (_, Some(_)) => f.write_str(" ")?,
            (_, None) => {}
        }
        match self.kind {
            ArgKind::Flag => {}
            ArgKind::OneOf(parts) | ArgKind::Block(parts) => {
                for (position, part) in parts.iter().enumerate() {
                    if position > 0 {
                        f.write_str(between)?;
                    }
                    part.fmt(f)?;
                }
            }
            _ => f.write_str(self.name)?,
        }
        f.write_str(close)
    }
}
