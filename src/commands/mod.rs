//! The commands: one file a family, each the way of a call from its words to its reply.

mod all;
mod arguments;
mod error;
mod number;
mod sliding;
mod steps;
mod syntax;
mod token_bucket;

use crate::host::{LoadError, Registrar};

/// Registers every command.
pub fn register(registrar: &Registrar) -> Result<(), LoadError> {
    registrar.register::<token_bucket::TokenBucketCommand>()?;
    registrar.register::<token_bucket::TokenBucketPreview>()?;
    registrar.register::<sliding::SlidingCommand>()?;
    registrar.register::<sliding::SlidingPreview>()?;
    registrar.register_with_keys::<all::AllCommand>()?;
    registrar.register_with_keys::<all::AllPreview>()
}
