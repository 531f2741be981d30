//! Loading and unloading: every reason for which redis-rl refuses to be loaded is found here.

use super::register::Registrar;
use super::{api, log, options, replicate, stats};
use redis_module::{Context, RedisString, Status};
use std::ffi::CStr;
use std::fmt;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

/// Why the load was refused.
#[derive(Debug)]
pub enum LoadError {
    /// The server lacks a function of the module API.
    MissingFunction {
        function: &'static str,
        since: &'static str,
    },
    /// The server lacks a command by which results are propagated.
    MissingCommand(&'static CStr),
    /// Another module has the command.
    NameTaken(&'static CStr),
    /// The server did not take what it was told about the command.
    InfoRefused(&'static CStr),
    /// A word on the loadmodule line is wrong, as the message says.
    Arguments(String),
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
                 file what it decided: take {0} out of rename-command, and restrict it by ACL instead",
                command.to_string_lossy()
            ),
            Self::NameTaken(command) => write!(
                f,
                "the command {} is taken: is another module loaded that has it?",
                command.to_string_lossy()
            ),
            Self::InfoRefused(command) => write!(
                f,
                "the server refused the description of {}",
                command.to_string_lossy()
            ),
            Self::Arguments(message) => f.write_str(message),
        }
    }
}

/// Registers the commands that the module arguments ask for.
type RegisterCommands = fn(&Registrar, &[String]) -> Result<(), LoadError>;

/// Loads the module: checks the server and the arguments, then registers the commands. A refusal is
/// one line in the server's log.
pub fn load(context: &Context, arguments: &[RedisString], commands: RegisterCommands) -> Status {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        try_load(context, arguments, commands)
            .inspect_err(|error| log::warning(&format!("load refused: {error}")))
    }));
    match outcome {
        Ok(Ok(())) => Status::Ok,
        // The panic's message is in the log.
        Ok(Err(_)) | Err(_) => Status::Err,
    }
}

fn try_load(
    context: &Context,
    arguments: &[RedisString],
    commands: RegisterCommands,
) -> Result<(), LoadError> {
    std::panic::set_hook(Box::new(log_panic));
    if let Some(api::Missing { function, since }) = api::missing().next() {
        return Err(LoadError::MissingFunction { function, since });
    }
    if let Some(command) = replicate::missing_command(context.get_raw()) {
        return Err(LoadError::MissingCommand(command));
    }
    options::set(context.get_raw());
    stats::register(context.get_raw())?;
    let arguments: Vec<_> = arguments.iter().map(RedisString::to_string_lossy).collect();
    commands(
        &Registrar {
            ctx: context.get_raw(),
        },
        &arguments,
    )
}

/// Writes a panic's message and place into the server's log. Rust's own hook may also print a backtrace,
/// which frees memory that libc gave: under Valkey 8.1 and later, which load a module so that it has an
/// allocator of its own, that ends the server.
fn log_panic(panic: &PanicHookInfo<'_>) {
    log::warning(&panic.to_string());
}

/// Gives back what is kept between calls when the module is unloaded.
pub fn unload(_context: &Context) -> Status {
    // The hook is this library's own code, which is about to go.
    drop(std::panic::take_hook());
    replicate::free_kept_strings();
    Status::Ok
}
