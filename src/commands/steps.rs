//! Steps that every command takes: reading the stored state, carrying a decision out, replying.

use super::error::Error;
use super::number;
use super::syntax::TimeUnit;
use crate::host::{Hash, Outcome, Value, WriteKey};
use limiter::codec::{self, Stored};
use limiter::{Answer, BucketLevel, Decision, Effect, Found, Limiter, Request, WindowCounters};

/// What a Lua script may have left under a key, from which a limiter goes on.
pub trait ScriptState: Stored {
    /// The state that the script's hash holds, if it is one.
    fn from_hash(hash: &Hash<'_>) -> Option<Self>;
}

impl ScriptState for BucketLevel {
    /// The hash of lua-reference/token_bucket.lua: `tokens` and `last_refill_ms`, and nothing else.
    fn from_hash(hash: &Hash<'_>) -> Option<Self> {
        let field = |name| number::decimal(&hash.field(name)?, number::AMOUNT);
        if hash.len() != 2 {
            return None;
        }
        Some(Self {
            tokens: field(c"tokens")?,
            last_ms: field(c"last_refill_ms")? as i64,
        })
    }
}

impl ScriptState for WindowCounters {
    /// The sliding window's script keeps strings under three keys of its own.
    fn from_hash(_hash: &Hash<'_>) -> Option<Self> {
        None
    }
}

/// The state that a key's value is: none if it is missing, `WRONGTYPE` if it is anything else.
#[inline(always)]
pub fn stored_state<S: ScriptState>(value: Value<'_>) -> Result<Found<S>, Error> {
    match value {
        Value::Missing => Ok(Found::Nothing),
        Value::Bytes(bytes) => codec::decode(bytes)
            .map(Found::State)
            .ok_or(Error::WrongType),
        Value::Hash(hash) => S::from_hash(&hash)
            .map(Found::ScriptState)
            .ok_or(Error::WrongType),
        Value::Other => Err(Error::WrongType),
    }
}

/// Does to the key what the decision does (design section 5), with the ttl on the server's clock.
// Always inlined, as the parser is: the decision would else go through memory.
#[inline(always)]
pub fn carry_out<L: Limiter>(
    decision: &Decision<L>,
    key: &mut WriteKey<'_>,
    server_now_ms: i64,
) -> Result<(), Error> {
    let deadline_ms = decision.ttl_ms().map(|ttl_ms| server_now_ms + ttl_ms);
    match decision.effect() {
        Effect::Nothing => {}
        Effect::InMemory(state) => key.store(codec::encode(state).as_bytes(), deadline_ms),
        Effect::Propagated(state) => {
            key.propagate_and_store(codec::encode(state).as_bytes(), deadline_ms)?;
        }
    }
    Ok(())
}

/// What the decision counts as in INFO and in events.
pub fn outcome<L: Limiter>(decision: &Decision<L>) -> Outcome {
    match decision.request() {
        Request::GiveBack { .. } => Outcome::Refunded,
        Request::Take(_) if decision.is_allowed() => Outcome::Allowed,
        Request::Take(_) => Outcome::Denied,
    }
}

impl TimeUnit {
    /// The four integers of a reply.
    // Always inlined: the answer would else go through memory.
    #[inline(always)]
    pub fn reply<L: Limiter>(self, answer: Answer<L>) -> [i64; 4] {
        match self {
            Self::Seconds => answer.in_seconds(),
            Self::Milliseconds => answer.in_milliseconds(),
        }
    }
}
