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
}

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
pub const REFUND: Parameter = keyword("REFUND", "amount", AMOUNT);
pub const AT: Parameter = keyword("AT", "unix_ms", Domain::UnixTime);
pub const NOW: Parameter = keyword("NOW", "unix_ms", Domain::UnixTime);
pub const NUMKEYS: Parameter = required("numkeys", Domain::KeyCount);

// Those of CL.THROTTLE.
pub const MAX_BURST: Parameter = required("max_burst", integer(0, MAX_INTEGER - 1, ""));
pub const COUNT: Parameter = required("count", integer(1, MAX_INTEGER, ""));
pub const PERIOD: Parameter = required("period", integer(1, MAX_INTEGER, ", in seconds"));
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
        let Domain::Decimal { range, .. } = self.domain else {
            return Err(SyntaxError::OutOfRange(self));
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
        }
    }
}
