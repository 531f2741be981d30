//! What a kind of limit is to the flow of a call.

use super::error::Error;
use crate::host::{Argv, CommandInfo, OpenKey, Outcome, WriteKey};
use limiter::Reply;
use syntax::{Options, SyntaxError, TimeUnit};

/// A kind of limit with its own commands.
pub trait Kind {
    /// The command that writes.
    const COMMAND: CommandInfo;
    /// The command that previews.
    const PREVIEW: CommandInfo;

    type Rule<'call>: StoredRule;

    /// Reads the arguments of the command that writes.
    fn parse(argv: Argv<'_>) -> Result<Call<Self::Rule<'_>>, SyntaxError>;

    /// Reads the arguments of the command that previews.
    fn parse_preview(argv: Argv<'_>) -> Result<Call<Self::Rule<'_>>, SyntaxError>;
}

/// A call of a command with one rule.
pub struct Call<R: StoredRule> {
    pub rule: R,
    pub request: R::Request,
    pub options: Options,
}

/// A rule as the flow of a call sees it: something that decides on what an open key holds.
pub trait StoredRule: Copy {
    /// What is asked of it.
    type Request: Copy;
    type Decision: Commit;

    /// Refuses a rule that makes no sense at this time.
    fn check_time(self, _now_ms: i64) -> Result<(), Error> {
        Ok(())
    }

    /// Reads the limiter that `key` holds and decides at `now_ms`.
    fn decide(
        self,
        request: Self::Request,
        key: &mut impl OpenKey,
        now_ms: i64,
    ) -> Result<Self::Decision, Error>;
}

/// Refuses a period that is over, where a call says when its period ends.
pub fn check_until(until_ms: Option<i64>, now_ms: i64) -> Result<(), Error> {
    match until_ms {
        Some(until_ms) if until_ms <= now_ms => Err(Error::UntilPassed),
        _ => Ok(()),
    }
}

/// A decision as the flow of a call sees it: something to commit, or not.
pub trait Commit {
    fn is_allowed(&self) -> bool;

    /// Whether the lease that it is to give is live already; `None` if it is not about taking a lease.
    fn has_live_lease(&self) -> Option<bool> {
        None
    }

    /// What it counts as in INFO and in events.
    fn outcome(&self) -> Outcome;

    /// The reply of a call that commits it.
    fn committed(&self, unit: TimeUnit) -> Reply;

    /// The reply of a call that changes nothing.
    fn previewed(&self, unit: TimeUnit) -> Reply;

    /// The reply of a call that repeats one that committed it.
    fn repeated(&self, unit: TimeUnit) -> Reply;

    /// Does to the key what the decision does, with deadlines by the server's clock.
    fn commit(&self, key: &mut WriteKey<'_>, server_now_ms: i64) -> Result<(), Error>;
}
