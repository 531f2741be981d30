//! What a kind of limit is to the flow of a call.

use super::error::Error;
use crate::host::{CommandInfo, OpenKey, Outcome, WriteKey};
use limiter::Reply;
use syntax::{ParseRule, TimeUnit};

/// A kind of limit with commands of its own. Their documentation is all that a new one adds here; its arithmetic is in
/// the limiter, its parameters in the syntax.
pub trait Kind: ParseRule + Limit {
    /// The command that writes.
    const COMMAND: CommandInfo;
    /// The command that previews.
    const PREVIEW: CommandInfo;
}

/// A rule as the flow of a call sees it: something that decides on what an open key holds.
pub trait Limit: Copy {
    /// What is asked of it.
    type Request: Copy;
    type Decision: Commit;

    /// Reads the limiter that `key` holds and decides at `now_ms`.
    fn decide(
        self,
        request: Self::Request,
        key: &mut impl OpenKey,
        now_ms: i64,
    ) -> Result<Self::Decision, Error>;
}

/// A decision as the flow of a call sees it: something to commit, or not.
pub trait Commit {
    fn is_allowed(&self) -> bool;

    /// What it counts as in INFO and in events.
    fn outcome(&self) -> Outcome;

    /// The reply of a call that commits it.
    fn committed(&self, unit: TimeUnit) -> Reply;

    /// The reply of a call that changes nothing.
    fn previewed(&self, unit: TimeUnit) -> Reply;

    /// Does to the key what the decision does, with deadlines by the server's clock.
    fn commit(&self, key: &mut WriteKey<'_>, server_now_ms: i64) -> Result<(), Error>;
}
