//! The arguments as COMMAND DOCS describes them: redis-cli shows hints from these while one types.

use crate::host::{ArgDoc, ArgKind};
use syntax::Parameter;
use syntax::parameter::{self, Domain};

/// The documentation of a parameter.
pub const fn doc(parameter: &Parameter) -> ArgDoc {
    let kind = match parameter.domain {
        Domain::Decimal { .. } => ArgKind::Double,
        Domain::UnixTime => ArgKind::UnixTime,
        Domain::Integer { .. } | Domain::SignedInteger | Domain::KeyCount => ArgKind::Integer,
    };
    match parameter.keyword {
        None => ArgDoc::required(parameter.name, kind),
        Some(keyword) => ArgDoc::with_token(parameter.name, kind, keyword),
    }
}

pub const KEY: ArgDoc = ArgDoc::required("key", ArgKind::Key);
pub const NUMKEYS: ArgDoc = doc(&parameter::NUMKEYS);
pub const NOW: ArgDoc = doc(&parameter::NOW).optional();
pub const MS: ArgDoc = ArgDoc::with_token("ms", ArgKind::Flag, "MS").optional();

const REFUND: ArgDoc = ArgDoc::with_token(
    "refund",
    ArgKind::Block(&[
        ArgDoc {
            token: None,
            ..doc(&parameter::REFUND)
        },
        doc(&parameter::AT).optional(),
    ]),
    "REFUND",
);

/// What a call asks.
pub const REQUEST: ArgDoc =
    ArgDoc::required("request", ArgKind::OneOf(&[doc(&parameter::COST), REFUND])).optional();

/// What a preview asks.
pub const PREVIEW_REQUEST: ArgDoc = doc(&parameter::COST).optional();

pub const CAPACITY: ArgDoc = doc(&parameter::CAPACITY);
pub const REFILL_RATE: ArgDoc = doc(&parameter::REFILL_RATE);
pub const LIMIT: ArgDoc = doc(&parameter::LIMIT);
pub const WINDOW: ArgDoc = doc(&parameter::WINDOW);

const ALGORITHM: ArgDoc = ArgDoc::required(
    "algorithm",
    ArgKind::OneOf(&[
        ArgDoc::with_token(
            "token_bucket",
            ArgKind::Block(&[CAPACITY, REFILL_RATE]),
            "TOKENBUCKET",
        ),
        ArgDoc::with_token("sliding", ArgKind::Block(&[LIMIT, WINDOW]), "SLIDING"),
    ]),
);

/// The name of the rules in COMMAND DOCS.
pub const RULE: &str = "rule";

/// The rules of RL.ALL, one for each key.
pub const RULES: ArgDoc = ArgDoc::required(RULE, ArgKind::Block(&[ALGORITHM, REQUEST])).repeated();

/// The rules of RL.ALL_RO.
pub const PREVIEW_RULES: ArgDoc =
    ArgDoc::required(RULE, ArgKind::Block(&[ALGORITHM, PREVIEW_REQUEST])).repeated();
