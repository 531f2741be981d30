//! The arguments as COMMAND DOCS describes them: redis-cli shows hints from these while one types.

use super::record::RecordKind;
use crate::host::{ArgDoc, ArgKind};
use limiter::{Quota, SlidingWindow, TokenBucket};
use std::marker::PhantomData;
use syntax::parameter::{self, Domain};
use syntax::{Parameter, ParseRule};

/// The documentation of a parameter.
pub const fn doc(parameter: &Parameter) -> ArgDoc {
    let kind = match parameter.domain {
        Domain::Decimal { .. } => ArgKind::Double,
        Domain::UnixTime => ArgKind::UnixTime,
        Domain::Integer { .. } | Domain::SignedInteger | Domain::KeyCount | Domain::Batch => {
            ArgKind::Integer
        }
        Domain::Period | Domain::Id => ArgKind::Text,
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

const COST: ArgDoc = doc(&parameter::COST);
const FORCE: ArgDoc = doc(&parameter::FORCE);

/// A cost, of which a part may do.
const COST_OR_PART: ArgDoc = ArgDoc::with_token(
    "cost",
    ArgKind::Block(&[
        ArgDoc {
            token: None,
            ..doc(&parameter::COST)
        },
        doc(&parameter::ATLEAST).optional(),
    ]),
    "COST",
);

/// What a call asks.
pub const REQUEST: ArgDoc =
    ArgDoc::required("request", ArgKind::OneOf(&[COST_OR_PART, FORCE, REFUND])).optional();

/// What a preview asks.
pub const PREVIEW_REQUEST: ArgDoc = COST_OR_PART.optional();

/// What a rule of RL.ALL asks.
const RULE_REQUEST: ArgDoc =
    ArgDoc::required("request", ArgKind::OneOf(&[COST, FORCE, REFUND])).optional();

pub const MAXWAIT: ArgDoc = doc(&parameter::MAXWAIT).optional();
pub const ID: ArgDoc = doc(&parameter::ID);
pub const XX: ArgDoc = ArgDoc::with_token("xx", ArgKind::Flag, "XX").optional();
pub const RELEASED_IDS: ArgDoc = doc(&parameter::RELEASED_ID).repeated();

/// The lease of an RL.ALL call.
pub const CALL_ID: ArgDoc = ArgDoc::with_token(
    "lease",
    ArgKind::Block(&[ArgDoc { token: None, ..ID }, XX]),
    "ID",
)
.optional();

const SHADOW: ArgDoc = ArgDoc::with_token("shadow", ArgKind::Flag, "SHADOW").optional();
const RELEASE: ArgDoc = ArgDoc::with_token("release", ArgKind::Flag, "RELEASE").optional();

pub const CAPACITY: ArgDoc = doc(&parameter::CAPACITY);
pub const REFILL_RATE: ArgDoc = doc(&parameter::REFILL_RATE);
pub const LIMIT: ArgDoc = doc(&parameter::LIMIT);
pub const WINDOW: ArgDoc = doc(&parameter::WINDOW);

pub const MAX_LEASES: ArgDoc = doc(&parameter::MAX_LEASES);
pub const LEASE: ArgDoc = doc(&parameter::LEASE);

const ANCHOR: ArgDoc = doc(&parameter::ANCHOR).optional();

const fn unit(name: &'static str, token: &'static str) -> ArgDoc {
    ArgDoc::with_token(name, ArgKind::Flag, token)
}

/// Seconds, a unit of the calendar, or an end.
pub const PERIOD: ArgDoc = ArgDoc::required(
    "period",
    ArgKind::OneOf(&[
        ArgDoc::required(
            "length",
            ArgKind::Block(&[ArgDoc::required("seconds", ArgKind::Double), ANCHOR]),
        ),
        ArgDoc::required(
            "calendar",
            ArgKind::Block(&[
                ArgDoc::required(
                    "unit",
                    ArgKind::OneOf(&[
                        unit("day", "DAY"),
                        unit("week", "WEEK"),
                        unit("month", "MONTH"),
                        unit("year", "YEAR"),
                    ]),
                ),
                ANCHOR,
            ]),
        ),
        doc(&parameter::UNTIL),
    ]),
);

/// The name of the rules in COMMAND DOCS.
pub const RULE: &str = "rule";

/// The parts of a rule of RL.ALL: its parameters and what is asked of it.
struct RuleParts<R>(PhantomData<R>);

impl<R: RecordKind> RuleParts<R> {
    const WRITE: [ArgDoc; 4] = [R::PARAMETERS[0], R::PARAMETERS[1], RULE_REQUEST, SHADOW];
    const PREVIEW: [ArgDoc; 4] = [R::PARAMETERS[0], R::PARAMETERS[1], COST.optional(), SHADOW];
}

const fn rule(name: &'static str, keyword: &'static str, parts: &'static [ArgDoc]) -> ArgDoc {
    ArgDoc::with_token(name, ArgKind::Block(parts), keyword)
}

macro_rules! rules {
    ($($kind:ident),*) => {
        /// The rules of RL.ALL, one for each key.
        pub const RULES: ArgDoc = ArgDoc::required(
            RULE,
            ArgKind::OneOf(&[
                $(rule($kind::RULE_NAME, $kind::KEYWORD, &RuleParts::<$kind>::WRITE),)*
                rule("concurrency", "CONCURRENCY", &[MAX_LEASES, LEASE, RELEASE, SHADOW]),
            ]),
        )
        .repeated();

        /// The rules of RL.ALL_RO.
        pub const PREVIEW_RULES: ArgDoc = ArgDoc::required(
            RULE,
            ArgKind::OneOf(&[
                $(rule($kind::RULE_NAME, $kind::KEYWORD, &RuleParts::<$kind>::PREVIEW),)*
                rule("concurrency", "CONCURRENCY", &[MAX_LEASES, LEASE, SHADOW]),
            ]),
        )
        .repeated();
    };
}
limiter::record_kinds!(rules);
