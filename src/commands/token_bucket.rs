//! RL.TOKENBUCKET and RL.TOKENBUCKET_RO.

use super::docs::{CAPACITY, KEY, MAXWAIT, MS, NOW, PREVIEW_REQUEST, REFILL_RATE, REQUEST};
use super::record::RecordKind;
use crate::host::{ArgDoc, CommandInfo, Hash, KeyAccess, KeyPositions, counters};
use limiter::{BucketLevel, TokenBucket};

impl RecordKind for TokenBucket {
    const COMMAND: CommandInfo = CommandInfo {
        name: c"rl.tokenbucket",
        summary: c"Takes tokens from a token bucket if enough are available.",
        complexity: c"O(1)",
        since: c"0.1.0",
        arity: 4,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        args: &[KEY, CAPACITY, REFILL_RATE, REQUEST, MAXWAIT, NOW, MS],
        counters: counters!(),
    };
    const PREVIEW: CommandInfo = CommandInfo {
        name: c"rl.tokenbucket_ro",
        summary: c"Returns what RL.TOKENBUCKET would decide now, without taking tokens.",
        access: KeyAccess::Read,
        args: &[
            KEY,
            CAPACITY,
            REFILL_RATE,
            PREVIEW_REQUEST,
            MAXWAIT,
            NOW,
            MS,
        ],
        counters: counters!(),
        ..<Self as RecordKind>::COMMAND
    };
    const RULE_NAME: &'static str = "token_bucket";
    const PARAMETERS: [ArgDoc; 2] = [CAPACITY, REFILL_RATE];

    /// The hash of lua-reference/token_bucket.lua: `tokens` and `last_refill_ms`, and nothing else.
    fn from_lua_hash(hash: &Hash<'_>) -> Option<BucketLevel> {
        let field = |name| syntax::decimal(&hash.field(name)?, &syntax::AMOUNT);
        if hash.len() != 2 {
            return None;
        }
        Some(BucketLevel {
            tokens: field(c"tokens")?,
            last_ms: field(c"last_refill_ms")? as i64,
        })
    }
}
