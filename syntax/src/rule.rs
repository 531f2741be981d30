//! Rules as a call states them: the parameters of an algorithm.

use super::SyntaxError;
use super::call::Rules;
use super::options::{RequestArgs, is_keyword, set_once, time_of, value_of};
use super::parameter::{
    ANCHOR, CAPACITY, LEASE, LIMIT, MAX_LEASES, PERIOD, REFILL_RATE, UNTIL, WINDOW,
};
use limiter::calendar::{Period, Unit};
use limiter::{Concurrency, Quota, Request, Rule, SlidingWindow, TokenBucket};

/// A rule that can be read from arguments.
pub trait ParseRule: Rule {
    /// What it begins with in RL.ALL.
    const KEYWORD: &'static str;

    /// Whether a call may wait for it: `MAXWAIT`.
    const CAN_WAIT: bool = false;

    /// Reads the parameters from the front of `args`; `None` if they end too early.
    fn parse<'a>(args: &mut impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, SyntaxError>;

    /// Reads the keyword `arg` of the rule's own with the value that follows in `args`; false if it is not one.
    #[inline(always)]
    fn parse_keyword<'a>(
        &mut self,
        _arg: &[u8],
        _args: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, SyntaxError> {
        Ok(false)
    }

    /// When the period ends that the call states, if it says so itself: `UNTIL`.
    fn until_ms(&self) -> Option<i64> {
        None
    }
}

impl ParseRule for TokenBucket {
    const KEYWORD: &'static str = "TOKENBUCKET";
    const CAN_WAIT: bool = true;

    #[inline(always)]
    fn parse<'a>(args: &mut impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, SyntaxError> {
        let (Some(capacity), Some(refill_rate)) = (args.next(), args.next()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            capacity: CAPACITY.decimal(capacity)?,
            refill_rate: REFILL_RATE.decimal(refill_rate)?,
        }))
    }
}

impl ParseRule for SlidingWindow {
    const KEYWORD: &'static str = "SLIDING";

    #[inline(always)]
    fn parse<'a>(args: &mut impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, SyntaxError> {
        let (Some(limit), Some(window_s)) = (args.next(), args.next()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            limit: LIMIT.decimal(limit)?,
            window_s: WINDOW.decimal(window_s)?,
        }))
    }
}

impl ParseRule for Quota {
    const KEYWORD: &'static str = "QUOTA";

    #[inline(always)]
    fn parse<'a>(args: &mut impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, SyntaxError> {
        let (Some(limit), Some(period)) = (args.next(), args.next()) else {
            return Ok(None);
        };
        Ok(Some(Self {
            limit: LIMIT.decimal(limit)?,
            period: parse_period(period, args)?,
        }))
    }

    fn parse_keyword<'a>(
        &mut self,
        arg: &[u8],
        args: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, SyntaxError> {
        if !is_keyword(arg, b"ANCHOR") {
            return Ok(false);
        }
        match &mut self.period {
            Period::Length { anchor_ms, .. } | Period::Calendar { anchor_ms, .. } => {
                *anchor_ms = time_of(&ANCHOR, *anchor_ms, args)?;
                Ok(true)
            }
            Period::Until { .. } => Err(SyntaxError::Exclusive("UNTIL", "ANCHOR")),
        }
    }

    fn until_ms(&self) -> Option<i64> {
        match self.period {
            Period::Until { end_ms } => Some(end_ms),
            _ => None,
        }
    }
}

/// Reads `seconds`, a unit of the calendar, or `UNTIL unix_ms`.
fn parse_period<'a>(
    arg: &[u8],
    args: &mut impl Iterator<Item = &'a [u8]>,
) -> Result<Period, SyntaxError> {
    let anchor_ms = None;
    let unit = if is_keyword(arg, b"DAY") {
        Unit::Day
    } else if is_keyword(arg, b"WEEK") {
        Unit::Week
    } else if is_keyword(arg, b"MONTH") {
        Unit::Month
    } else if is_keyword(arg, b"YEAR") {
        Unit::Year
    } else if is_keyword(arg, b"UNTIL") {
        let end_ms = UNTIL.integer(value_of(&UNTIL, args)?)?;
        return Ok(Period::Until { end_ms });
    } else {
        let length_ms = PERIOD.whole_ms(arg)?;
        return Ok(Period::Length {
            length_ms,
            anchor_ms,
        });
    };
    Ok(Period::Calendar { unit, anchor_ms })
}

/// Reads the parameters of a `CONCURRENCY` rule from the front of `args`; `None` if they end too early.
#[inline(always)]
pub(crate) fn parse_concurrency<'a>(
    args: &mut impl Iterator<Item = &'a [u8]>,
) -> Result<Option<Concurrency>, SyntaxError> {
    let (Some(limit), Some(lease_s)) = (args.next(), args.next()) else {
        return Ok(None);
    };
    Ok(Some(Concurrency {
        limit: MAX_LEASES.integer(limit)?,
        lease_ms: LEASE.whole_ms(lease_s)?,
    }))
}

/// A rule of RL.ALL and whether it may deny the call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RuleArgs {
    pub rule: AnyRule,
    /// `SHADOW`: it decides as usual, but cannot deny the call.
    pub is_shadow: bool,
}

macro_rules! any_rule {
    ($($kind:ident),*) => {
        /// A rule of RL.ALL, with what is asked of it.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum AnyRule {
            $($kind($kind, Request),)*
            Concurrency {
                rule: Concurrency,
                /// `RELEASE`: end the lease instead of taking it.
                is_release: bool,
            },
        }

        impl AnyRule {
            /// What is asked of a rule that can be asked for a cost.
            pub fn request(&self) -> Option<Request> {
                match self {
                    $(Self::$kind(_, request) => Some(*request),)*
                    Self::Concurrency { .. } => None,
                }
            }

            /// See [`ParseRule::until_ms`].
            pub fn until_ms(&self) -> Option<i64> {
                match self {
                    $(Self::$kind(rule, _) => rule.until_ms(),)*
                    Self::Concurrency { .. } => None,
                }
            }

            /// Lets a rule that can wait, and is asked for a cost, wait for it.
            pub(crate) fn let_wait(&mut self, max_wait_ms: i64) {
                match self {
                    $(Self::$kind(_, request) if $kind::CAN_WAIT => {
                        if let Request::Cost(cost) = *request {
                            *request = Request::Reserve { cost, max_wait_ms };
                        }
                    })*
                    _ => {}
                }
            }
        }

        /// Reads the rule for this key, counted from 1, from the front of `args`, onto the end of `rules`.
        #[inline(always)]
        pub(crate) fn push_rule<'a>(
            args: &mut (impl Iterator<Item = &'a [u8]> + Clone),
            key: usize,
            rules: &mut Rules,
        ) -> Result<(), SyntaxError> {
            let keyword = args.next().ok_or(SyntaxError::MissingRule { key })?;
            $(if is_keyword(keyword, $kind::KEYWORD.as_bytes()) {
                return push_with_request(args, key, AnyRule::$kind, rules);
            })*
            if is_keyword(keyword, b"CONCURRENCY") {
                return push_concurrency(args, key, rules);
            }
            Err(SyntaxError::MissingRule { key })
        }
    };
}
limiter::record_kinds!(any_rule);

/// Reads a rule of which a cost can be asked.
#[inline(always)]
fn push_with_request<'a, R: ParseRule>(
    args: &mut (impl Iterator<Item = &'a [u8]> + Clone),
    key: usize,
    into_any: fn(R, Request) -> AnyRule,
    rules: &mut Rules,
) -> Result<(), SyntaxError> {
    let mut rule = R::parse(args)?.ok_or(SyntaxError::IncompleteRule { key })?;
    let mut request = RequestArgs::default();
    let mut is_shadow = false;
    parse_keywords(args, |arg, args| {
        Ok(request.parse(arg, args)?
            || rule.parse_keyword(arg, args)?
            || parse_shadow(arg, &mut is_shadow)?)
    })?;
    rules.push(RuleArgs {
        rule: into_any(rule, request.finish()?),
        is_shadow,
    });
    Ok(())
}

fn push_concurrency<'a>(
    args: &mut (impl Iterator<Item = &'a [u8]> + Clone),
    key: usize,
    rules: &mut Rules,
) -> Result<(), SyntaxError> {
    let rule = parse_concurrency(args)?.ok_or(SyntaxError::IncompleteRule { key })?;
    let (mut is_release, mut is_shadow) = (false, false);
    parse_keywords(args, |arg, _| {
        if is_keyword(arg, b"RELEASE") {
            set_once(&mut is_release, "RELEASE")
        } else {
            parse_shadow(arg, &mut is_shadow)
        }
    })?;
    rules.push(RuleArgs {
        rule: AnyRule::Concurrency { rule, is_release },
        is_shadow,
    });
    Ok(())
}

/// Reads keywords for as long as `parse` knows them: the next argument may be the next rule's.
#[inline(always)]
fn parse_keywords<'a, I: Iterator<Item = &'a [u8]> + Clone>(
    args: &mut I,
    mut parse: impl FnMut(&[u8], &mut I) -> Result<bool, SyntaxError>,
) -> Result<(), SyntaxError> {
    let mut ahead = args.clone();
    while let Some(arg) = ahead.next()
        && parse(arg, &mut ahead)?
    {
        *args = ahead.clone();
    }
    Ok(())
}

/// Reads `SHADOW`; false if `arg` is another keyword.
fn parse_shadow(arg: &[u8], is_shadow: &mut bool) -> Result<bool, SyntaxError> {
    if is_keyword(arg, b"SHADOW") {
        set_once(is_shadow, "SHADOW")
    } else {
        Ok(false)
    }
}
