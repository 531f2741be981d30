//! Rules as a call states them: the parameters of an algorithm.

use super::SyntaxError;
use super::options::is_keyword;
use super::parameter::{CAPACITY, LIMIT, REFILL_RATE, WINDOW};
use limiter::{Rule, SlidingWindow, TokenBucket};

/// A rule that can be read from arguments.
pub trait ParseRule: Rule {
    /// Reads the parameters from the front of `args`; `None` if they end too early.
    fn parse<'a>(args: &mut impl Iterator<Item = &'a [u8]>) -> Result<Option<Self>, SyntaxError>;
}

impl ParseRule for TokenBucket {
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

/// A rule of RL.ALL: one of the algorithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AnyRule {
    TokenBucket(TokenBucket),
    Sliding(SlidingWindow),
}

impl AnyRule {
    /// Reads the rule for this key, counted from 1, from the front of `args`.
    #[inline(always)]
    pub(crate) fn parse<'a>(
        args: &mut impl Iterator<Item = &'a [u8]>,
        key: usize,
    ) -> Result<Self, SyntaxError> {
        let keyword = args.next().ok_or(SyntaxError::MissingRule { key })?;
        let rule = if is_keyword(keyword, b"TOKENBUCKET") {
            TokenBucket::parse(args)?.map(Self::TokenBucket)
        } else if is_keyword(keyword, b"SLIDING") {
            SlidingWindow::parse(args)?.map(Self::Sliding)
        } else {
            return Err(SyntaxError::MissingRule { key });
        };
        rule.ok_or(SyntaxError::IncompleteRule { key })
    }
}
