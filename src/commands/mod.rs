//! The commands: one file a family, each the way of a call from its words to its reply.

mod all;
mod arguments;
mod cl_throttle;
#[cfg(test)]
mod corpus;
mod error;
mod number;
mod settings;
mod sliding;
mod steps;
mod syntax;
mod token_bucket;

use crate::host::{LoadError, Registrar, publish_allowed};
use settings::Settings;

/// Registers every command that the module arguments ask for.
pub fn register(registrar: &Registrar, arguments: &[String]) -> Result<(), LoadError> {
    let settings =
        Settings::parse(arguments).map_err(|error| LoadError::Arguments(error.to_string()))?;
    publish_allowed(settings.notify_allowed);
    registrar.register::<token_bucket::TokenBucketCommand>()?;
    registrar.register::<token_bucket::TokenBucketPreview>()?;
    registrar.register::<sliding::SlidingCommand>()?;
    registrar.register::<sliding::SlidingPreview>()?;
    registrar.register_with_keys::<all::AllCommand>()?;
    registrar.register_with_keys::<all::AllPreview>()?;
    if settings.cl_throttle {
        registrar.register::<cl_throttle::ClThrottleCommand>()?;
    }
    Ok(())
}
