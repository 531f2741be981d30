//! The pure parts of redis-rl, compiled without Redis, and what is checked of them.
//!
//! The files are the module's own; only the module tree around them is repeated here.

#![forbid(unsafe_code)]
// The module's host layer uses what the checks do not.
#![allow(dead_code)]

#[path = "../../src/commands"]
mod commands {
    pub mod number;
    pub mod syntax;
}

#[path = "../checks.rs"]
mod checks;

pub use checks::{check_state, check_syntax};
