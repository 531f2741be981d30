//! Keywords: what is asked (`COST`, `REFUND`), and the options of a call (`NOW`, `MS`).

use super::SyntaxError;
use super::parameter::{AT, COST, NOW, Parameter, REFUND};
use limiter::Request;

/// What a call takes by default.
pub(crate) const DEFAULT_REQUEST: Request = Request::Cost(1.0);

/// The unit of the times in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Unix seconds and seconds, as the Lua scripts reply.
    Seconds,
    /// `MS`: exact milliseconds from now.
    Milliseconds,
}

/// What any call may say: `NOW` and `MS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The time to decide at, 0 to 2^53 ms; `None` for the server's clock.
    pub now_ms: Option<i64>,
    /// The unit of the reply's times.
    pub unit: TimeUnit,
}

/// Whether `arg` is the keyword, in any case; clients mostly send it as the reference writes it.
pub(crate) fn is_keyword<const LEN: usize>(arg: &[u8], keyword: &[u8; LEN]) -> bool {
    arg == keyword || arg.eq_ignore_ascii_case(keyword)
}

/// The value after the keyword of `parameter`.
pub(crate) fn value_of<'a>(
    parameter: &'static Parameter,
    args: &mut impl Iterator<Item = &'a [u8]>,
) -> Result<&'a [u8], SyntaxError> {
    args.next().ok_or(SyntaxError::MissingValue(parameter))
}

/// The time after the keyword of `parameter`, which must not have been given before.
fn time_of<'a>(
    parameter: &'static Parameter,
    before: Option<i64>,
    args: &mut impl Iterator<Item = &'a [u8]>,
) -> Result<Option<i64>, SyntaxError> {
    if before.is_some() {
        return Err(SyntaxError::Repeated(
            parameter.keyword.unwrap_or(parameter.name),
        ));
    }
    parameter.integer(value_of(parameter, args)?).map(Some)
}

/// `COST`, `REFUND` and `AT`, as far as they were read.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestArgs {
    request: Option<Request>,
    at_ms: Option<i64>,
}

impl RequestArgs {
    /// Reads the keyword `arg` with the value that follows in `args`; false if it is none of these keywords.
    pub(crate) fn parse<'a>(
        &mut self,
        arg: &[u8],
        args: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, SyntaxError> {
        if is_keyword(arg, b"COST") {
            self.check_first("COST")?;
            let cost = COST.decimal(value_of(&COST, args)?)?;
            self.request = Some(Request::Cost(cost));
        } else if is_keyword(arg, b"REFUND") {
            self.check_first("REFUND")?;
            self.request = Some(Request::Refund {
                amount: REFUND.decimal(value_of(&REFUND, args)?)?,
                at_ms: None,
            });
        } else if is_keyword(arg, b"AT") {
            self.at_ms = time_of(&AT, self.at_ms, args)?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Refuses a second request.
    fn check_first(&self, keyword: &'static str) -> Result<(), SyntaxError> {
        match self.request {
            None => Ok(()),
            Some(request) if keyword_of(request) == keyword => Err(SyntaxError::Repeated(keyword)),
            Some(request) => Err(SyntaxError::Exclusive(keyword_of(request), keyword)),
        }
    }

    pub(crate) fn finish(self) -> Result<Request, SyntaxError> {
        match (self.request, self.at_ms) {
            (Some(Request::Refund { amount, .. }), at_ms) => Ok(Request::Refund { amount, at_ms }),
            (_, Some(_)) => Err(SyntaxError::Requires("AT", "REFUND")),
            (request, None) => Ok(request.unwrap_or(DEFAULT_REQUEST)),
        }
    }
}

/// The keyword by which a call makes this request.
fn keyword_of(request: Request) -> &'static str {
    match request {
        Request::Cost(_) => "COST",
        Request::Refund { .. } => "REFUND",
    }
}

/// Refuses a request that changes something whatever is found.
pub(crate) fn check_request_read_only(request: Request) -> Result<(), SyntaxError> {
    match request {
        Request::Cost(_) => Ok(()),
        Request::Refund { .. } => Err(SyntaxError::ReadOnly(keyword_of(request))),
    }
}

/// `NOW` and `MS`, as far as they were read.
#[derive(Default)]
pub(crate) struct OptionArgs {
    now_ms: Option<i64>,
    has_ms: bool,
}

impl OptionArgs {
    /// Reads the keyword `arg` with the value that follows in `args`; false if it is none of these keywords.
    pub(crate) fn parse<'a>(
        &mut self,
        arg: &[u8],
        args: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, SyntaxError> {
        if is_keyword(arg, b"NOW") {
            self.now_ms = time_of(&NOW, self.now_ms, args)?;
        } else if is_keyword(arg, b"MS") {
            if self.has_ms {
                return Err(SyntaxError::Repeated("MS"));
            }
            self.has_ms = true;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    pub(crate) fn finish(self) -> Options {
        Options {
            now_ms: self.now_ms,
            unit: if self.has_ms {
                TimeUnit::Milliseconds
            } else {
                TimeUnit::Seconds
            },
        }
    }
}
