//! The arguments as COMMAND DOCS describes them: redis-cli shows hints from these while one types.

use crate::host::{Arg, ArgKind};

pub const KEY: Arg = Arg::required(c"key", ArgKind::Key);
pub const CAPACITY: Arg = Arg::required(c"capacity", ArgKind::Double);
pub const REFILL_RATE: Arg = Arg::required(c"refill_rate", ArgKind::Double);
pub const LIMIT: Arg = Arg::required(c"limit", ArgKind::Double);
pub const WINDOW: Arg = Arg::required(c"window", ArgKind::Double);
pub const NOW: Arg = Arg::with_token(c"unix_ms", ArgKind::UnixTime, c"NOW").optional();
pub const MS: Arg = Arg::with_token(c"ms", ArgKind::Flag, c"MS").optional();

// Those of CL.THROTTLE.
pub const MAX_BURST: Arg = Arg::required(c"max_burst", ArgKind::Integer);
pub const COUNT: Arg = Arg::required(c"count", ArgKind::Integer);
pub const PERIOD: Arg = Arg::required(c"period", ArgKind::Integer);
pub const QUANTITY: Arg = Arg::required(c"quantity", ArgKind::Integer).optional();

const COST_REQUIRED: Arg = Arg::with_token(c"cost", ArgKind::Double, c"COST");
const REFUND: Arg = Arg::with_token(
    c"refund",
    ArgKind::Block(&[
        Arg::required(c"amount", ArgKind::Double),
        Arg::with_token(c"at", ArgKind::UnixTime, c"AT").optional(),
    ]),
    c"REFUND",
);

/// What a preview takes.
pub const COST: Arg = COST_REQUIRED.optional();

/// What a call takes or gives back.
pub const COST_OR_REFUND: Arg =
    Arg::required(c"request", ArgKind::OneOf(&[COST_REQUIRED, REFUND])).optional();

const ALGORITHM: Arg = Arg::required(
    c"algorithm",
    ArgKind::OneOf(&[
        Arg::with_token(
            c"token_bucket",
            ArgKind::Block(&[CAPACITY, REFILL_RATE]),
            c"TOKENBUCKET",
        ),
        Arg::with_token(c"sliding", ArgKind::Block(&[LIMIT, WINDOW]), c"SLIDING"),
    ]),
);

pub const NUMKEYS: Arg = Arg::required(c"numkeys", ArgKind::Integer);

/// The rules of RL.ALL, one for each key.
pub const RULES: Arg =
    Arg::required(c"rule", ArgKind::Block(&[ALGORITHM, COST_OR_REFUND])).repeated();

/// The rules of RL.ALL_RO.
pub const PREVIEW_RULES: Arg =
    Arg::required(c"rule", ArgKind::Block(&[ALGORITHM, COST])).repeated();
