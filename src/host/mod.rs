//! The server's side of a call: every `unsafe` line of the module is in this folder.
//!
//! Handlers run on the server's main thread, or with its global lock held, one at a time; what is said below about
//! the lifetime of a context or of an argument rests on that.
//!
//! Each file knows only those above it:
//!
//! * [`api`], [`log`]: the functions of the module API;
//! * [`context`], [`argv`]: a running call and its arguments;
//! * [`counters`], [`info`], [`error`]: data: what became of calls, what a command is, why a load is refused;
//! * [`clock`], [`reply`], [`events`], [`replicate`], [`key`], [`sorted_set`]: what a call can do;
//! * [`handler`]: from the server into a command, and the panic guard;
//! * [`stats`], [`options`], [`register`], [`settings`], [`load`]: once, when the module is loaded.

mod api;
mod argv;
mod clock;
mod context;
mod counters;
mod error;
mod events;
mod handler;
mod info;
mod key;
mod load;
mod log;
mod options;
mod register;
mod replicate;
mod reply;
mod settings;
mod sorted_set;
mod stats;

pub use argv::{Arg, Argv};
pub use context::Context;
pub use counters::{Counters, Outcome};
pub use error::LoadError;
pub use events::ALLOWED_TOO;
pub use handler::{Command, injected_panic};
pub(crate) use info::counters;
pub use info::{ArgDoc, ArgKind, CommandInfo, KeyAccess, KeyPositions};
pub use key::{Hash, OpenKey, Value, WriteKey};
pub use load::{load, unload};
pub use register::Registrar;
pub use replicate::NotReplicated;
pub use settings::Setting;
pub use sorted_set::{NotASortedSet, SortedSet};
