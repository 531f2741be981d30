//! The server's side of a call: every `unsafe` line of the module is in this folder.
//!
//! Handlers run on the server's main thread, or with its global lock held, one at a time; what is said
//! below about the lifetime of a context or of an argument rests on that.

mod api;
mod arguments;
mod clock;
mod command;
mod events;
mod key;
mod load;
mod log;
mod options;
mod register;
mod replicate;
mod reply;
mod stats;

pub use arguments::Arguments;
pub use command::{Command, Context, Keys, injected_panic};
pub use events::publish_allowed;
pub use key::{Hash, Value, WriteKey};
pub use load::{LoadError, load, unload};
pub use register::{Arg, ArgKind, CommandInfo, KeyAccess, KeyPositions, Registrar};
pub use replicate::NotPropagated;
pub use stats::{Counters, Outcome};
