//! Why the module refuses to load.

use std::ffi::CStr;
use std::fmt;

/// Why the load is refused.
#[derive(Debug)]
pub enum LoadError {
    /// The server lacks a function of the module API.
    MissingFunction {
        function: &'static str,
        since: &'static str,
    },
    /// The server lacks a command by which results are replicated.
    MissingCommand(&'static CStr),
    /// Another module has the command.
    NameTaken(&'static CStr),
    /// The server did not take what it was told about the command.
    InfoRefused(&'static CStr),
    /// A module argument is wrong, as the message says.
    Arguments(String),
    /// The configuration file, or MODULE LOADEX, gives a setting a value that the server refuses.
    SettingRefused,
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingFunction { function, since } => write!(
                f,
                "this server lacks {function}, which Redis has since {since}: \
                 redis-rl needs Redis 7.0 or later, or Valkey 8.0 or later"
            ),
            Self::MissingCommand(command) => write!(
                f,
                "this server has no command {0}, by which redis-rl tells replicas and the append-only \
                 file what it decided: remove {0} from rename-command and restrict it by ACL instead",
                command.to_string_lossy()
            ),
            Self::NameTaken(command) => write!(
                f,
                "the command {} is taken: another module has it, or rename-command gave the name away",
                command.to_string_lossy()
            ),
            Self::InfoRefused(command) => write!(
                f,
                "the server refused the description of {}",
                command.to_string_lossy()
            ),
            Self::Arguments(message) => f.write_str(message),
            Self::SettingRefused => f.write_str(
                "a setting rl.* was given an invalid value, which the server's log names just before",
            ),
        }
    }
}
