//! The commands. A call is parsed by `syntax`, decided by `limiter` and committed through `host`; what is here is
//! the flow: [`single`] for a call with one rule, [`all`] for a call with several. [`kind`] says what a kind of limit
//! is to that flow; [`record`] keeps its state in a string, [`leases`] in a sorted set; and each kind has a file for its
//! documentation.

mod all;
mod cl_throttle;
mod docs;
mod error;
mod kind;
mod leases;
mod quota;
mod record;
mod settings;
mod single;
mod sliding;
mod token_bucket;

use crate::host::{LoadError, Registrar};
use leases::ConcurrencyKind;
use limiter::{Quota, SlidingWindow, TokenBucket};
use single::{Preview, Single};

/// Registers the settings, with the module arguments as their defaults, and every command that they ask for.
pub fn register(registrar: &Registrar, arguments: &[String]) -> Result<(), LoadError> {
    settings::register(registrar, arguments)?;
    macro_rules! register_each {
        ($($kind:ident),*) => {
            $(
                registrar.register::<Single<$kind>>()?;
                registrar.register::<Preview<$kind>>()?;
            )*
        };
    }
    limiter::record_kinds!(register_each);
    registrar.register::<Single<ConcurrencyKind>>()?;
    registrar.register::<Preview<ConcurrencyKind>>()?;
    registrar.register::<leases::Release>()?;
    registrar.register::<all::All>()?;
    registrar.register::<all::AllPreview>()?;
    if settings::cl_throttle() {
        registrar.register::<cl_throttle::ClThrottle>()?;
    }
    Ok(())
}
