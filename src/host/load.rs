//! Loading and unloading: every reason for which redis-rl refuses to be loaded is found here.

use super::error::LoadError;
use super::register::Registrar;
use super::{api, log, options, replicate, stats};
use redis_module::{Context, RedisString, Status};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};

/// Registers the settings, with the module arguments as their defaults, and the commands that they ask for.
type RegisterCommands = fn(&Registrar, &[String]) -> Result<(), LoadError>;

/// Loads the module: checks the server and the arguments, then registers settings and commands.
/// A refusal is one line in the server's log.
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
/// which frees memory that libc gave: under Valkey 8.1 and later, which load a module so that it has its
/// own allocator, that ends the server.
fn log_panic(panic: &PanicHookInfo<'_>) {
    log::warning(&panic.to_string());
}

/// Gives back what is kept between calls when the module is unloaded.
pub fn unload(_context: &Context) -> Status {
    // The hook is this library's own code, which is about to go.
    drop(std::panic::take_hook());
    replicate::free_kept_strings();
    stats::clear();
    Status::Ok
}
