//! From the arguments of a call to its typed form. Pure: it sees bytes and gives numbers or an error.
//!
//! Everything is checked here, before any key is opened. Each parameter is one row of the table in
//! [`parameter`]: its name, its keyword and its range feed the parser, the error texts and COMMAND DOCS.

#![forbid(unsafe_code)]

mod call;
mod error;
mod number;
mod options;
pub mod parameter;
mod rule;

pub use call::{
    AllOptions, ConcurrencyArgs, RULES_ON_STACK, Rules, SingleArgs, ThrottleArgs, check_distinct,
    check_ids, check_read_only, parse_acquire, parse_all, parse_numkeys, parse_single,
    parse_single_preview, parse_throttle,
};
pub use error::SyntaxError;
pub use number::{AMOUNT, decimal};
pub use options::{Id, Lease, Options, TimeUnit};
pub use parameter::Parameter;
pub use rule::{AnyRule, ParseRule, RuleArgs};
