//! Why a call is answered with an error.

use super::docs::RULE;
use crate::host::{ArgDoc, CommandInfo, NotASortedSet, NotReplicated};
use std::fmt;
use syntax::SyntaxError;
use syntax::parameter::UNTIL;

/// Why a call is answered with an error. It changed nothing, except where the server fails to replicate, which the load
/// rules out.
pub enum Error {
    /// An argument is wrong. The command's documentation says what it accepts.
    Syntax(SyntaxError, &'static CommandInfo),
    /// A key holds a value that is not a state of the rule's kind.
    WrongType,
    /// The period that a call states with `UNTIL` is over.
    UntilPassed,
    /// The server did not accept what replicas and the append-only file must receive.
    NotReplicated,
}

impl From<NotASortedSet> for Error {
    fn from(_: NotASortedSet) -> Self {
        Self::WrongType
    }
}

impl From<NotReplicated> for Error {
    fn from(_: NotReplicated) -> Self {
        Self::NotReplicated
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Syntax(error, command) => {
                write!(f, "ERR {error}")?;
                match error {
                    SyntaxError::UnknownArgument | SyntaxError::TrailingArgument => {
                        write!(f, "; expected{}", Usage(command.args))
                    }
                    SyntaxError::MissingRule { .. } | SyntaxError::IncompleteRule { .. } => command
                        .args
                        .iter()
                        .filter(|arg| arg.name == RULE)
                        .try_for_each(|rule| write!(f, "; expected {rule}")),
                    _ => Ok(()),
                }
            }
            Self::WrongType => {
                f.write_str("WRONGTYPE Key holds a value that is not this limiter's state")
            }
            Self::UntilPassed => write!(
                f,
                "ERR {UNTIL} must be {}, and later than the time of the call",
                UNTIL.domain
            ),
            Self::NotReplicated => {
                f.write_str("ERR the server cannot replicate the result; see the server's log")
            }
        }
    }
}

/// What a command takes by keyword, but for its rules; all of its arguments where none has a keyword.
struct Usage(&'static [ArgDoc]);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_keywords = self.0.iter().any(ArgDoc::has_keyword);
        self.0
            .iter()
            .filter(|arg| !has_keywords || arg.has_keyword() && arg.name != RULE)
            .try_for_each(|arg| write!(f, " {arg}"))
    }
}
