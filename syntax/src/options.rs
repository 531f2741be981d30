//! Keywords: what is asked (`COST`, `FORCE`, `REFUND`), how (`ATLEAST`, `MAXWAIT`, `ID`, `XX`), and the options of a call
//! (`NOW`, `MS`).

use super::SyntaxError;
use super::parameter::{AT, ATLEAST, COST, FORCE, ID, MAXWAIT, NOW, Parameter, REFUND, WHOLE_COST};
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
#[inline(always)]
pub(crate) fn is_keyword(arg: &[u8], keyword: &[u8]) -> bool {
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
pub(crate) fn time_of<'a>(
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

/// `COST`, `FORCE`, `REFUND` and `AT`, as far as they were read.
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
        } else if is_keyword(arg, b"FORCE") {
            self.check_first("FORCE")?;
            let cost = FORCE.decimal(value_of(&FORCE, args)?)?;
            self.request = Some(Request::Force(cost));
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

    /// The request of a call that may ask for a part (`ATLEAST`) or wait (`MAXWAIT`).
    #[inline(always)]
    pub(crate) fn finish_single(
        self,
        min: Option<i64>,
        max_wait_ms: Option<i64>,
    ) -> Result<Request, SyntaxError> {
        let is_cost_given = self.request.is_some();
        let request = self.finish()?;
        match (min, max_wait_ms) {
            (None, None) => Ok(request),
            (Some(_), Some(_)) => Err(SyntaxError::Exclusive("ATLEAST", "MAXWAIT")),
            (Some(min), None) if is_cost_given => batch(request, min),
            (Some(_), None) => Err(SyntaxError::Requires("ATLEAST", "COST")),
            (None, Some(max_wait_ms)) => reserve(request, max_wait_ms),
        }
    }
}

/// `COST` with `ATLEAST`: both are integers.
#[cold]
fn batch(request: Request, min: i64) -> Result<Request, SyntaxError> {
    let Request::Cost(cost) = request else {
        return Err(SyntaxError::Exclusive(keyword_of(request), "ATLEAST"));
    };
    if cost.fract() != 0.0 || cost < 1.0 {
        return Err(SyntaxError::OutOfRange(&WHOLE_COST));
    }
    let cost = cost as i64;
    if min > cost {
        return Err(SyntaxError::OutOfRange(&ATLEAST));
    }
    Ok(Request::Batch { cost, min })
}

/// `COST` with `MAXWAIT`.
#[cold]
fn reserve(request: Request, max_wait_ms: i64) -> Result<Request, SyntaxError> {
    match request {
        Request::Cost(cost) => Ok(Request::Reserve { cost, max_wait_ms }),
        _ => Err(SyntaxError::Exclusive(keyword_of(request), "MAXWAIT")),
    }
}

/// Reads `ATLEAST min` into `min`; false if `arg` is another keyword.
pub(crate) fn parse_at_least<'a>(
    arg: &[u8],
    args: &mut impl Iterator<Item = &'a [u8]>,
    min: &mut Option<i64>,
) -> Result<bool, SyntaxError> {
    if !is_keyword(arg, b"ATLEAST") {
        return Ok(false);
    }
    if min.is_some() {
        return Err(SyntaxError::Repeated("ATLEAST"));
    }
    let value = ATLEAST.integer(value_of(&ATLEAST, args)?)?;
    if value == 0 {
        return Err(SyntaxError::OutOfRange(&ATLEAST));
    }
    *min = Some(value);
    Ok(true)
}

/// Reads `MAXWAIT seconds` into `max_wait_ms`; false if `arg` is another keyword.
pub(crate) fn parse_max_wait<'a>(
    arg: &[u8],
    args: &mut impl Iterator<Item = &'a [u8]>,
    max_wait_ms: &mut Option<i64>,
) -> Result<bool, SyntaxError> {
    if !is_keyword(arg, b"MAXWAIT") {
        return Ok(false);
    }
    if max_wait_ms.is_some() {
        return Err(SyntaxError::Repeated("MAXWAIT"));
    }
    *max_wait_ms = Some(MAXWAIT.whole_ms(value_of(&MAXWAIT, args)?)?);
    Ok(true)
}

/// Sets a flag that may be given once.
pub(crate) fn set_once(flag: &mut bool, keyword: &'static str) -> Result<bool, SyntaxError> {
    if std::mem::replace(flag, true) {
        return Err(SyntaxError::Repeated(keyword));
    }
    Ok(true)
}

/// The id that names a lease, by its place: how many arguments follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    pub args_after: usize,
}

/// `ID` and `XX`, as far as they were read.
#[derive(Clone, Copy, Default)]
pub(crate) struct LeaseArgs {
    id: Option<Id>,
    has_xx: bool,
}

impl LeaseArgs {
    /// Reads the keyword `arg` with the value that follows in `args`; false if it is none of these keywords.
    pub(crate) fn parse<'a>(
        &mut self,
        arg: &[u8],
        args: &mut impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<bool, SyntaxError> {
        if is_keyword(arg, b"ID") {
            if self.id.is_some() {
                return Err(SyntaxError::Repeated("ID"));
            }
            ID.check_id(value_of(&ID, args)?)?;
            let args_after = args.len();
            self.id = Some(Id { args_after });
            Ok(true)
        } else if is_keyword(arg, b"XX") {
            set_once(&mut self.has_xx, "XX")
        } else {
            Ok(false)
        }
    }

    pub(crate) fn finish(self) -> Result<Option<Lease>, SyntaxError> {
        match self.id {
            Some(id) => Ok(Some(Lease {
                id,
                must_be_live: self.has_xx,
            })),
            None if self.has_xx => Err(SyntaxError::Requires("XX", "ID")),
            None => Ok(None),
        }
    }
}

/// The lease that a call is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub id: Id,
    /// `XX`: denied unless the lease is live.
    pub must_be_live: bool,
}

/// The keyword by which a call makes this request.
fn keyword_of(request: Request) -> &'static str {
    match request {
        Request::Cost(_) | Request::Batch { .. } | Request::Reserve { .. } => "COST",
        Request::Force(_) => "FORCE",
        Request::Refund { .. } => "REFUND",
    }
}

/// Refuses a request that changes something whatever is found.
pub(crate) fn check_request_read_only(request: Request) -> Result<(), SyntaxError> {
    match request {
        Request::Cost(_) | Request::Batch { .. } | Request::Reserve { .. } => Ok(()),
        Request::Force(_) | Request::Refund { .. } => {
            Err(SyntaxError::ReadOnly(keyword_of(request)))
        }
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
            set_once(&mut self.has_ms, "MS")?;
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
