//! The parameters of the commands, one row each.

use super::SyntaxError;
use super::number::{self, Range};
use std::fmt;

/// A parameter of a command, as the reference names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name in the reference, in errors and in COMMAND DOCS.
    pub name: &'static str,
    /// The keyword in front of it, if it has one.
    pub keyword: Option<&'static str>,
    /// What it accepts.
    pub domain: Domain,
}

/// The values that a parameter accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// A decimal number with optional fraction and exponent.
    Decimal {
        range: &'static Range,
        unit: &'static str,
    },
    /// A decimal integer.
    Integer {
        min: i64,
        max: i64,
        unit: &'static str,
    },
    /// An integer that may have a minus sign in front.
    SignedInteger,
    /// Unix time in milliseconds.
    UnixTime,
    /// The number of keys that follow.
    KeyCount,
    /// The least number that is worth granting.
    Batch,
    /// Seconds, a unit of the calendar, or `UNTIL` and a time.
    Period,
    /// The bytes that name a lease.
    Id,
}

/// Bytes of the longest id of a lease.
const MAX_ID_LEN: usize = 512;

const MAX_INTEGER: i64 = limiter::MAX_NUMBER as i64;

const AMOUNT: Domain = Domain::Decimal {
    range: &number::AMOUNT,
    unit: "",
};

/// Seconds, with fractions of them.
const DURATION: Domain = Domain::Decimal {
    range: &number::DURATION_S,
    unit: ", in seconds",
};

pub const CAPACITY: Parameter = required("capacity", AMOUNT);
pub const REFILL_RATE: Parameter = required(
    "refill_rate",
    Domain::Decimal {
        range: &number::AMOUNT,
        unit: ", in tokens per second",
    },
);
pub const LIMIT: Parameter = required("limit", AMOUNT);
pub const WINDOW: Parameter = required("window", DURATION);
pub const COST: Parameter = keyword("COST", "cost", AMOUNT);
/// The cost of a call with `ATLEAST`.
pub(crate) const WHOLE_COST: Parameter =
    keyword("COST", "cost", integer(1, MAX_INTEGER, ", with ATLEAST"));
pub const ATLEAST: Parameter = keyword("ATLEAST", "min", Domain::Batch);
pub const FORCE: Parameter = keyword("FORCE", "cost", AMOUNT);
pub const REFUND: Parameter = keyword("REFUND", "amount", AMOUNT);
pub const AT: Parameter = keyword("AT", "unix_ms", Domain::UnixTime);
pub const NOW: Parameter = keyword("NOW", "unix_ms", Domain::UnixTime);
pub const MAXWAIT: Parameter = keyword(
    "MAXWAIT",
    "seconds",
    Domain::Decimal {
        range: &number::WAIT_S,
        unit: ", in seconds",
    },
);
pub const PERIOD: Parameter = required("period", Domain::Period);
pub const ANCHOR: Parameter = keyword("ANCHOR", "unix_ms", Domain::UnixTime);
pub const UNTIL: Parameter = keyword("UNTIL", "unix_ms", Domain::UnixTime);
pub const MAX_LEASES: Parameter = required("limit", integer(0, MAX_INTEGER, ""));
pub const LEASE: Parameter = required("lease", DURATION);
pub const ID: Parameter = keyword("ID", "id", Domain::Id);
/// An id of RL.RELEASE, which needs no keyword.
pub const RELEASED_ID: Parameter = required("id", Domain::Id);
pub const NUMKEYS: Parameter = required("numkeys", Domain::KeyCount);

// Those of CL.THROTTLE.
pub const MAX_BURST: Parameter = required("max_burst", integer(0, MAX_INTEGER - 1, ""));
pub const COUNT: Parameter = required("count", integer(1, MAX_INTEGER, ""));
pub const THROTTLE_PERIOD: Parameter = required("period", integer(1, MAX_INTEGER, ", in seconds"));
pub const QUANTITY: Parameter = required("quantity", Domain::SignedInteger);

const fn required(name: &'static str, domain: Domain) -> Parameter {
    Parameter {
        name,
        keyword: None,
        domain,
    }
}

const fn keyword(keyword: &'static str, name: &'static str, domain: Domain) -> Parameter {
    Parameter {
        name,
        keyword: Some(keyword),
        domain,
    }
}

const fn integer(min: i64, max: i64, unit: &'static str) -> Domain {
    Domain::Integer { min, max, unit }
}

impl Parameter {
    /// The value of a decimal parameter.
    // Always inlined: the row is then a constant, and only its range is passed on.
    #[inline(always)]
    pub(crate) fn decimal(&'static self, arg: &[u8]) -> Result<f64, SyntaxError> {
        let range = match self.domain {
            Domain::Decimal { range, .. } => range,
            Domain::Period => &number::DURATION_S,
            _ => return Err(SyntaxError::OutOfRange(self)),
        };
        number::decimal(arg, range).ok_or(SyntaxError::OutOfRange(self))
    }

    /// The value of an integer parameter without its sign, or of a time.
    pub(crate) fn integer(&'static self, arg: &[u8]) -> Result<i64, SyntaxError> {
        let range = match self.domain {
            Domain::Integer { min, max, .. } => min..=max,
            _ => 0..=MAX_INTEGER,
        };
        number::integer(arg)
            .filter(|value| range.contains(value))
            .ok_or(SyntaxError::OutOfRange(self))
    }
}

impl Parameter {
    /// The value of a parameter in seconds, rounded to whole milliseconds.
    pub(crate) fn whole_ms(&'static self, arg: &[u8]) -> Result<i64, SyntaxError> {
        let seconds = self.decimal(arg)?;
        Ok((seconds * 1000.0).round() as i64)
    }

    /// Refuses what cannot name a lease.
    pub(crate) fn check_id(&'static self, arg: &[u8]) -> Result<(), SyntaxError> {
        if (1..=MAX_ID_LEN).contains(&arg.len()) {
            Ok(())
        } else {
            Err(SyntaxError::OutOfRange(self))
        }
    }
}

/// As an error names it: after its keyword where it has one.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(keyword) = self.keyword {
            write!(f, "{keyword} ")?;
        }
        f.write_str(self.name)
    }
}

/// What is accepted, with the unit.
impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decimal { range, unit } => {
                write!(f, "a decimal number from {}{unit}", range.text)
            }
            Self::Integer { min, max, unit } => {
                let power = match MAX_INTEGER - max {
                    0 => " (2^53)",
                    1 => " (2^53 - 1)",
                    _ => "",
                };
                write!(f, "an integer from {min} to {max}{power}{unit}")
            }
            Self::SignedInteger => write!(
                f,
                "an integer from -{MAX_INTEGER} to {MAX_INTEGER} (-2^53 to 2^53)"
            ),
            Self::UnixTime => write!(
                f,
                "an integer from 0 to {MAX_INTEGER} (2^53), in milliseconds of Unix time"
            ),
            Self::KeyCount => write!(
                f,
                "an integer from 1 to the number of keys that follow, without leading zeros"
            ),
            Self::Batch => write!(f, "an integer from 1 to cost"),
            Self::Period => write!(
                f,
                "a decimal number from {}, in seconds, or DAY, WEEK, MONTH, YEAR, or UNTIL unix_ms",
                number::DURATION_S.text
            ),
            Self::Id => write!(f, "1 to {MAX_ID_LEN} bytes"),
        }
    }
}
