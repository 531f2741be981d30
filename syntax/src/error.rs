//! Why the arguments of a call are refused.

use super::Parameter;
use std::fmt;

/// What is wrong with the arguments. The call touches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxError {
    /// The value is not one that the parameter accepts.
    OutOfRange(&'static Parameter),
    /// The keyword of the parameter is the last argument.
    MissingValue(&'static Parameter),
    /// The keyword appears twice.
    Repeated(&'static str),
    /// The two keywords cannot be combined.
    Exclusive(&'static str, &'static str),
    /// The first keyword needs the second.
    Requires(&'static str, &'static str),
    /// The keyword changes something, and the command is read-only.
    ReadOnly(&'static str),
    /// An argument where a keyword of a command with one key was expected.
    UnknownArgument,
    /// An argument after the last rule that is not an option, or after the last argument of CL.THROTTLE.
    TrailingArgument,
    /// The rule for this key, counted from 1, does not begin with the name of an algorithm.
    MissingRule { key: usize },
    /// The rule for this key, counted from 1, lacks a parameter.
    IncompleteRule { key: usize },
    /// The key at this position, counted from 1, is one of those before it.
    DuplicateKey { key: usize },
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfRange(parameter) => write!(f, "{parameter} must be {}", parameter.domain),
            Self::MissingValue(parameter) => {
                write!(f, "{parameter} is missing; it must be {}", parameter.domain)
            }
            Self::Repeated(keyword) => write!(f, "{keyword} may be given at most once"),
            Self::Exclusive(one, other) => write!(f, "{one} and {other} are mutually exclusive"),
            Self::Requires(keyword, other) => write!(f, "{keyword} requires {other}"),
            Self::ReadOnly(keyword) => {
                write!(f, "{keyword} is not accepted by a read-only command")
            }
            Self::UnknownArgument | Self::TrailingArgument => write!(f, "syntax error"),
            Self::MissingRule { key } => write!(f, "the rule for key {key} is missing"),
            Self::IncompleteRule { key } => write!(f, "the rule for key {key} is incomplete"),
            Self::DuplicateKey { key } => {
                write!(f, "duplicate key at position {key}: keys must be distinct")
            }
        }
    }
}

impl std::error::Error for SyntaxError {}
