//! Steps that every command takes: reading the stored state, carrying a decision out, replying.

use super::error::Error;
use super::syntax::TimeUnit;
use crate::host::{Value, WriteKey};
use crate::limiter::codec::{self, Stored};
use crate::limiter::{Answer, Decision, Effect, Limiter};

/// The state that a key's value is: none if it is missing, `WRONGTYPE` if it is anything else.
pub fn stored_state<S: Stored>(value: Value<'_>) -> Result<Option<S>, Error> {
    match value {
        Value::Missing => Ok(None),
        Value::Bytes(bytes) => codec::decode(bytes).map(Some).ok_or(Error::WrongType),
        Value::Other => Err(Error::WrongType),
    }
}

/// Does to the key what the decision does (design section 5), with the ttl on the server's clock.
pub fn carry_out<L: Limiter>(decision: &Decision<L>, key: &mut WriteKey<'_>, server_now_ms: i64) {
    let deadline_ms = decision.ttl_ms().map(|ttl_ms| server_now_ms + ttl_ms);
    match decision.effect() {
        Effect::Nothing => {}
        Effect::InMemory(state) => key.store(codec::encode(state).as_bytes(), deadline_ms),
        Effect::Propagated(state) => {
            key.store_and_propagate(codec::encode(state).as_bytes(), deadline_ms);
        }
    }
}

impl TimeUnit {
    /// The four integers of a reply.
    pub fn reply<L: Limiter>(self, answer: Answer<L>) -> [i64; 4] {
        match self {
            Self::Seconds => answer.in_seconds(),
            Self::Milliseconds => answer.in_milliseconds(),
        }
    }
}
