//! Limiters whose state is a string of fixed size: reading one, and writing it back.

use super::error::Error;
use super::kind::{Call, Commit, Kind, StoredRule, check_until};
use crate::host::{ArgDoc, Argv, CommandInfo, Hash, OpenKey, Outcome, Value, WriteKey};
use limiter::codec::{self, Record};
use limiter::{Answer, Decision, Reply, Request, Rule, Write, decide};
use syntax::{ParseRule, SingleArgs, SyntaxError, TimeUnit, parse_single, parse_single_preview};

/// A kind of limit whose state is a string of fixed size. Its commands' documentation is all that a new one adds here;
/// its arithmetic is in the limiter, its parameters in the syntax.
pub trait RecordKind: ParseRule {
    /// The command that writes.
    const COMMAND: CommandInfo;
    /// The command that previews.
    const PREVIEW: CommandInfo;
    /// The name of its rule of RL.ALL in COMMAND DOCS.
    const RULE_NAME: &'static str;
    /// The parameters of that rule.
    const PARAMETERS: [ArgDoc; 2];

    /// The state in a hash that a Lua script left behind, from which the limiter goes on; `None` if it is not a script's.
    fn from_lua_hash(_hash: &Hash<'_>) -> Option<Self::State> {
        None
    }
}

impl<R: RecordKind> Kind for R {
    const COMMAND: CommandInfo = <R as RecordKind>::COMMAND;
    const PREVIEW: CommandInfo = <R as RecordKind>::PREVIEW;
    type Rule<'call> = R;

    #[inline(always)]
    fn parse(argv: Argv<'_>) -> Result<Call<R>, SyntaxError> {
        parse_single(argv.iter_from(2)).map(Call::from)
    }

    #[inline(always)]
    fn parse_preview(argv: Argv<'_>) -> Result<Call<R>, SyntaxError> {
        parse_single_preview(argv.iter_from(2)).map(Call::from)
    }
}

impl<R: RecordKind> From<SingleArgs<R>> for Call<R> {
    #[inline(always)]
    fn from(args: SingleArgs<R>) -> Self {
        Self {
            rule: args.rule,
            request: args.request,
            options: args.options,
        }
    }
}

/// A decision, and whether the state was found in a script's hash, which the limiter's own string then replaces.
pub struct RecordDecision<R: Rule> {
    decision: Decision<R>,
    migrated: bool,
}

impl<R: RecordKind> StoredRule for R {
    type Request = Request;
    type Decision = RecordDecision<R>;

    #[inline(always)]
    fn check_time(self, now_ms: i64) -> Result<(), Error> {
        check_until(self.until_ms(), now_ms)
    }

    #[inline(always)]
    fn decide(
        self,
        request: Request,
        key: &mut impl OpenKey,
        now_ms: i64,
    ) -> Result<RecordDecision<R>, Error> {
        let (found, migrated) = match key.value(R::State::LEN) {
            Value::Missing => (None, false),
            Value::Bytes(bytes) => (Some(codec::decode(bytes).ok_or(Error::WrongType)?), false),
            Value::Hash(hash) => {
                let state = R::from_lua_hash(&hash).ok_or(Error::WrongType)?;
                (Some(state), true)
            }
            Value::OtherType => return Err(Error::WrongType),
        };
        Ok(RecordDecision {
            decision: decide(self, request, found, now_ms),
            migrated,
        })
    }
}

impl<R: Rule> Commit for RecordDecision<R> {
    fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    fn outcome(&self) -> Outcome {
        match self.decision.request() {
            Request::Refund { .. } => Outcome::Refunded,
            _ if self.is_allowed() => Outcome::Allowed,
            _ => Outcome::Denied,
        }
    }

    // Always inlined, as the parser is: otherwise the decision and the reply go through memory.
    #[inline(always)]
    fn committed(&self, unit: TimeUnit) -> Reply {
        reply(self.decision.committed(), unit)
    }

    #[inline(always)]
    fn previewed(&self, unit: TimeUnit) -> Reply {
        reply(self.decision.previewed(), unit)
    }

    fn repeated(&self, unit: TimeUnit) -> Reply {
        reply(self.decision.repeated(), unit)
    }

    #[inline(always)]
    fn commit(&self, key: &mut WriteKey<'_>, server_now_ms: i64) -> Result<(), Error> {
        let deadline_ms = self.decision.ttl_ms().map(|ttl_ms| server_now_ms + ttl_ms);
        match self.decision.write(self.migrated) {
            Write::None => {}
            Write::Local(state) => key.store(codec::encode(state).as_bytes(), deadline_ms),
            Write::Replicated(state) => {
                key.store_replicated(codec::encode(state).as_bytes(), deadline_ms)?;
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn reply<R: Rule>(answer: Answer<R>, unit: TimeUnit) -> Reply {
    match unit {
        TimeUnit::Seconds => answer.in_seconds(),
        TimeUnit::Milliseconds => answer.in_milliseconds(),
    }
}
