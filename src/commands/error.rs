//! What a call is answered with when it is refused.

use super::syntax::SyntaxError;
use crate::host::NotPropagated;
use std::fmt;

/// Why a call was refused. Nothing was changed by it.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// A word of it is wrong.
    Syntax(SyntaxError),
    /// A key holds something else than a state of the rule's algorithm.
    WrongType,
    /// The server did not take what replicas and the append-only file have to be told.
    NotPropagated,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(error) => write!(f, "ERR {error}"),
            Self::WrongType => write!(
                f,
                "WRONGTYPE Operation against a key that holds something else than a state of this \
                 rate limiting algorithm"
            ),
            Self::NotPropagated => write!(
                f,
                "ERR the server cannot propagate the result to replicas and the append-only file; \
                 nothing was changed"
            ),
        }
    }
}

impl From<NotPropagated> for Error {
    fn from(_: NotPropagated) -> Self {
        Self::NotPropagated
    }
}

impl From<SyntaxError> for Error {
    fn from(error: SyntaxError) -> Self {
        Self::Syntax(error)
    }
}
