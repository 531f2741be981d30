//! From words to a typed call (design section 1). Pure: it sees bytes and gives numbers or an error.
//!
//! Everything is checked here, before any key is opened.

use super::number::{self, Range};
use limiter::{Limiter, MAX_NUMBER, Request, SlidingWindow, TokenBucket};
use smallvec::SmallVec;
use std::fmt;

/// Rules of an RL.ALL call for which nothing is allocated.
pub const RULES_ON_STACK: usize = 8;

/// An argument of a command, as the reference names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    Capacity,
    RefillRate,
    Limit,
    Window,
    Cost,
    Refund,
    At,
    Now,
    Numkeys,
    MaxBurst,
    Count,
    Period,
    Quantity,
}

impl Argument {
    /// Its name as an error shows it: behind its keyword where it has one.
    fn name(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::RefillRate => "refill_rate",
            Self::Limit => "limit",
            Self::Window => "window",
            Self::Cost => "COST cost",
            Self::Refund => "REFUND amount",
            Self::At => "AT unix_ms",
            Self::Now => "NOW unix_ms",
            Self::Numkeys => "numkeys",
            Self::MaxBurst => "max_burst",
            Self::Count => "count",
            Self::Period => "period",
            Self::Quantity => "quantity",
        }
    }

    /// What it accepts, with the unit.
    fn accepted(self) -> &'static str {
        match self {
            Self::Capacity | Self::Limit | Self::Cost | Self::Refund => {
                "a decimal number from 0 to 9007199254740992 (2^53)"
            }
            Self::RefillRate => {
                "a decimal number from 0 to 9007199254740992 (2^53), in tokens per second"
            }
            Self::Window => {
                "a decimal number from 0.001 to 9007199254740.992 (2^53 / 1000), in seconds"
            }
            Self::Now | Self::At => {
                "an integer from 0 to 9007199254740992 (2^53), in milliseconds of Unix time"
            }
            Self::MaxBurst => "an integer from 0 to 9007199254740991 (2^53 - 1)",
            Self::Count => "an integer from 1 to 9007199254740992 (2^53)",
            Self::Period => "an integer from 1 to 9007199254740992 (2^53), in seconds",
            Self::Quantity => {
                "an integer from -9007199254740992 to 9007199254740992 (-2^53 to 2^53)"
            }
            Self::Numkeys => {
                "an integer from 1 to the number of keys that follow, without leading zeros"
            }
        }
    }

    fn number(self, word: &[u8], range: Range) -> Result<f64, SyntaxError> {
        number::decimal(word, range).ok_or(SyntaxError::OutOfRange(self))
    }

    /// The time that is the next of `words`.
    fn time<'a>(self, words: &mut impl Iterator<Item = &'a [u8]>) -> Result<i64, SyntaxError> {
        let word = words.next().ok_or(SyntaxError::NoValue(self))?;
        number::integer(word).ok_or(SyntaxError::OutOfRange(self))
    }

    fn integer(self, word: &[u8], least: i64, most: i64) -> Result<f64, SyntaxError> {
        number::integer(word)
            .filter(|value| (least..=most).contains(value))
            .map(|value| value as f64)
            .ok_or(SyntaxError::OutOfRange(self))
    }
}

/// Why a call was refused before it touched anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyntaxError {
    /// The argument is not a number, or not one in its range.
    OutOfRange(Argument),
    /// The keyword of the argument is the last word of its rule.
    NoValue(Argument),
    /// The keyword stands twice.
    Repeated(&'static str),
    /// Both `COST` and `REFUND` in one rule.
    CostAndRefund,
    /// `AT` without a `REFUND` in front of it.
    AtWithoutRefund,
    /// A word where a keyword of a single-key command was expected.
    UnknownKeyword,
    /// Words after the last argument of CL.THROTTLE.
    TooManyWords,
    /// A preview with `REFUND`.
    RefundInPreview,
    /// The rule for this key, counted from 1, does not start with the name of an algorithm.
    NoRule { key: usize },
    /// The rule for this key, counted from 1, lacks a parameter.
    ShortRule { key: usize },
    /// A word after the last rule that is neither `NOW` nor `MS`.
    AfterTheRules,
    /// This key, counted from 1, stands in the list before.
    DuplicateKey { key: usize },
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfRange(argument) => {
                write!(f, "{} must be {}", argument.name(), argument.accepted())
            }
            Self::NoValue(argument) => {
                write!(f, "{} is missing: {}", argument.name(), argument.accepted())
            }
            Self::Repeated(keyword) => write!(f, "{keyword} may be given at most once"),
            Self::CostAndRefund => write!(f, "COST and REFUND exclude one another"),
            Self::AtWithoutRefund => write!(f, "AT unix_ms must follow REFUND amount"),
            Self::UnknownKeyword => write!(
                f,
                "syntax error: accepted here are COST cost or, by a command that writes, REFUND \
                 amount [AT unix_ms], NOW unix_ms and MS, each at most once"
            ),
            Self::TooManyWords => write!(
                f,
                "syntax error: the arguments are key max_burst count period [quantity]"
            ),
            Self::RefundInPreview => write!(
                f,
                "REFUND is not accepted by a read-only command: accepted are COST cost, \
                 NOW unix_ms and MS"
            ),
            Self::NoRule { key } => write!(
                f,
                "rule of key {key} must be TOKENBUCKET capacity refill_rate or SLIDING limit window, \
                 each with COST cost or, by a command that writes, REFUND amount: there must be as \
                 many rules as keys, and NOW and MS stand after the last"
            ),
            Self::ShortRule { key } => write!(
                f,
                "rule of key {key} is cut short: it must be TOKENBUCKET capacity refill_rate or \
                 SLIDING limit window"
            ),
            Self::AfterTheRules => write!(
                f,
                "syntax error after the last rule: accepted here are NOW unix_ms and MS, and there \
                 must be as many rules as keys"
            ),
            Self::DuplicateKey { key } => write!(
                f,
                "key {key} is named twice: each key of a call must be another one"
            ),
        }
    }
}

/// The unit of the times in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Unix seconds and seconds, as the Lua scripts reply.
    Seconds,
    /// `MS`: exact milliseconds from now.
    Milliseconds,
}

/// What may stand in any call: `NOW` and `MS`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The time to decide at, 0 to 2^53 ms; `None` for the server's clock.
    pub now_ms: Option<i64>,
    /// The unit of the reply's times.
    pub unit: TimeUnit,
}

/// A call of a command with one key: the words after the key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SingleCall<L> {
    pub rule: L,
    pub request: Request,
    pub options: Options,
}

/// A rule of RL.ALL: one of the algorithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AnyRule {
    TokenBucket(TokenBucket),
    Sliding(SlidingWindow),
}

/// The rules of an RL.ALL call, each with what it is asked for, in the order of the keys.
pub type Rules = SmallVec<[(AnyRule, Request); RULES_ON_STACK]>;

/// A call of CL.THROTTLE: the words after the key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleCall {
    /// max_burst + 1 tokens, count / period a second.
    pub rule: TokenBucket,
    /// Takes the quantity, or gives it back if it is negative.
    pub request: Request,
}

/// An algorithm whose parameters can be read from words.
pub trait RuleSyntax: Limiter {
    /// The two parameters in the order in which they stand.
    fn from_parameters(first: &[u8], second: &[u8]) -> Result<Self, SyntaxError>;
}

impl RuleSyntax for TokenBucket {
    fn from_parameters(capacity: &[u8], refill_rate: &[u8]) -> Result<Self, SyntaxError> {
        Ok(Self {
            capacity: Argument::Capacity.number(capacity, number::AMOUNT)?,
            refill_rate: Argument::RefillRate.number(refill_rate, number::AMOUNT)?,
        })
    }
}

impl RuleSyntax for SlidingWindow {
    fn from_parameters(limit: &[u8], window_s: &[u8]) -> Result<Self, SyntaxError> {
        Ok(Self {
            limit: Argument::Limit.number(limit, number::AMOUNT)?,
            window_s: Argument::Window.number(window_s, number::WINDOW_S)?,
        })
    }
}

/// Reads the words after the key of RL.TOKENBUCKET or RL.SLIDING. The server has checked the arity.
// Always inlined: the call would else go through memory, which costs 60 instructions.
#[inline(always)]
pub fn single<'a, L: RuleSyntax>(
    mut words: impl Iterator<Item = &'a [u8]>,
) -> Result<SingleCall<L>, SyntaxError> {
    let (first, second) = two_parameters(&mut words).ok_or(SyntaxError::UnknownKeyword)?;
    let rule = L::from_parameters(first, second)?;
    let mut request = RequestWords::default();
    let mut options = OptionWords::default();
    while let Some(word) = words.next() {
        let is_known = request.read(word, &mut words)? || options.read(word, &mut words)?;
        if !is_known {
            return Err(SyntaxError::UnknownKeyword);
        }
    }
    Ok(SingleCall {
        rule,
        request: request.finish()?,
        options: options.finish(),
    })
}

/// As [`single`], for the _RO commands: a preview has no `REFUND`.
#[inline(always)]
pub fn single_preview<'a, L: RuleSyntax>(
    words: impl Iterator<Item = &'a [u8]>,
) -> Result<SingleCall<L>, SyntaxError> {
    let call = single(words)?;
    refuse_refund(call.request)?;
    Ok(call)
}

/// Reads `numkeys` of RL.ALL, of which `words_after` follow it: at least 1, without leading zeros, so
/// that it reads the same here and for the server's own key finder.
pub fn numkeys(word: &[u8], words_after: usize) -> Result<usize, SyntaxError> {
    number::integer(word)
        .filter(|_| !word.starts_with(b"0"))
        .and_then(|count| usize::try_from(count).ok())
        .filter(|&count| count <= words_after)
        .ok_or(SyntaxError::OutOfRange(Argument::Numkeys))
}

/// Refuses a call that names a key twice.
pub fn distinct<'a>(names: impl Iterator<Item = &'a [u8]>) -> Result<(), SyntaxError> {
    let mut keys: SmallVec<[&[u8]; RULES_ON_STACK]> = SmallVec::new();
    keys.extend(names);
    let second = if keys.len() <= RULES_ON_STACK {
        (1..keys.len()).find(|&position| keys[..position].contains(&keys[position]))
    } else {
        repeated_among_many(&keys)
    };
    match second {
        None => Ok(()),
        Some(position) => Err(SyntaxError::DuplicateKey { key: position + 1 }),
    }
}

/// The position at which a key stands for the second time, in less than quadratic time.
fn repeated_among_many(keys: &[&[u8]]) -> Option<usize> {
    let mut sorted: Vec<usize> = (0..keys.len()).collect();
    sorted.sort_by_key(|&position| keys[position]);
    let pairs = sorted
        .windows(2)
        .filter(|pair| keys[pair[0]] == keys[pair[1]]);
    pairs.map(|pair| pair[1]).min()
}

/// Reads the words after the keys of RL.ALL: as many rules as keys, then `NOW` and `MS`. The rules go
/// into `rules`, since they are long and a returned value would be moved about.
pub fn all<'a>(
    numkeys: usize,
    mut words: impl Iterator<Item = &'a [u8]> + Clone,
    rules: &mut Rules,
) -> Result<Options, SyntaxError> {
    rules.clear();
    for key in 1..=numkeys {
        rules.push(any_rule(&mut words, key)?);
    }
    let mut options = OptionWords::default();
    while let Some(word) = words.next() {
        if !options.read(word, &mut words)? {
            return Err(SyntaxError::AfterTheRules);
        }
    }
    Ok(options.finish())
}

/// As [`all`], for RL.ALL_RO: a preview has no `REFUND`.
pub fn all_preview<'a>(
    numkeys: usize,
    words: impl Iterator<Item = &'a [u8]> + Clone,
    rules: &mut Rules,
) -> Result<Options, SyntaxError> {
    let options = all(numkeys, words, rules)?;
    for &(_, request) in &*rules {
        refuse_refund(request)?;
    }
    Ok(options)
}

/// Reads the words after the key of CL.THROTTLE. The server has checked that there are three.
pub fn throttle<'a>(
    mut words: impl Iterator<Item = &'a [u8]>,
) -> Result<ThrottleCall, SyntaxError> {
    let mut word = || words.next().unwrap_or_default();
    let max_burst = Argument::MaxBurst.integer(word(), 0, MOST - 1)?;
    let count = Argument::Count.integer(word(), 1, MOST)?;
    let period_s = Argument::Period.integer(word(), 1, MOST)?;
    let request = words.next().map_or(Ok(ONE), parse_quantity)?;
    if words.next().is_some() {
        return Err(SyntaxError::TooManyWords);
    }
    Ok(ThrottleCall {
        rule: TokenBucket {
            capacity: max_burst + 1.0,
            refill_rate: (count / period_s * ABOVE_ROUNDING).min(MAX_NUMBER),
        },
        request,
    })
}

/// Reads the quantity of CL.THROTTLE: a negative one gives back.
fn parse_quantity(word: &[u8]) -> Result<Request, SyntaxError> {
    let quantity = |digits| Argument::Quantity.integer(digits, 0, MOST);
    match word.strip_prefix(b"-") {
        None => Ok(Request::Take(quantity(word)?)),
        Some(digits) => Ok(Request::GiveBack {
            amount: quantity(digits)?,
            at_ms: None,
        }),
    }
}

/// CL.THROTTLE refills faster than count / period by one part in 2^40.
///
/// A bucket adds up binary fractions, whose sum may lack the last bit of a token in the very millisecond in
/// which the token is due. The call would be denied for one more millisecond, and the reply say one more second than
/// redis-cell's. This outweighs such roundings, and shortens a wait by no more than 1 ms in 34 years (2^40 ms).
const ABOVE_ROUNDING: f64 = 1.0 + 1.0 / (1u64 << 40) as f64;

/// The largest integer of an argument.
const MOST: i64 = MAX_NUMBER as i64;

/// What a call takes if it does not say.
const ONE: Request = Request::Take(1.0);

fn refuse_refund(request: Request) -> Result<(), SyntaxError> {
    match request {
        Request::Take(_) => Ok(()),
        Request::GiveBack { .. } => Err(SyntaxError::RefundInPreview),
    }
}

fn two_parameters<'a>(words: &mut impl Iterator<Item = &'a [u8]>) -> Option<(&'a [u8], &'a [u8])> {
    Some((words.next()?, words.next()?))
}

fn any_rule<'a>(
    words: &mut (impl Iterator<Item = &'a [u8]> + Clone),
    key: usize,
) -> Result<(AnyRule, Request), SyntaxError> {
    let algorithm = words.next().ok_or(SyntaxError::NoRule { key })?;
    let is_bucket = is_keyword(algorithm, b"TOKENBUCKET");
    if !is_bucket && !is_keyword(algorithm, b"SLIDING") {
        return Err(SyntaxError::NoRule { key });
    }
    let (first, second) = two_parameters(words).ok_or(SyntaxError::ShortRule { key })?;
    let rule = if is_bucket {
        AnyRule::TokenBucket(TokenBucket::from_parameters(first, second)?)
    } else {
        AnyRule::Sliding(SlidingWindow::from_parameters(first, second)?)
    };
    let mut request = RequestWords::default();
    // The next word may be the next rule's.
    let mut ahead = words.clone();
    while let Some(word) = ahead.next()
        && request.read(word, &mut ahead)?
    {
        *words = ahead.clone();
    }
    Ok((rule, request.finish()?))
}

/// Whether `word` is the keyword in any case; clients mostly send it as the reference writes it.
fn is_keyword<const LEN: usize>(word: &[u8], keyword: &[u8; LEN]) -> bool {
    word == keyword || word.eq_ignore_ascii_case(keyword)
}

/// `COST`, `REFUND` and `AT` as far as they were read.
#[derive(Clone, Copy, Default)]
struct RequestWords {
    request: Option<Request>,
    at_ms: Option<i64>,
}

impl RequestWords {
    /// Reads `COST cost`, `REFUND amount` or `AT unix_ms` if `word`, which `words` follow, is its
    /// keyword, and says whether it was.
    fn read<'a>(
        &mut self,
        word: &[u8],
        words: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, SyntaxError> {
        if is_keyword(word, b"COST") {
            self.accept("COST")?;
            let value = words.next().ok_or(SyntaxError::NoValue(Argument::Cost))?;
            let cost = Argument::Cost.number(value, number::AMOUNT)?;
            self.request = Some(Request::Take(cost));
        } else if is_keyword(word, b"REFUND") {
            self.accept("REFUND")?;
            let value = words.next().ok_or(SyntaxError::NoValue(Argument::Refund))?;
            let amount = Argument::Refund.number(value, number::AMOUNT)?;
            self.request = Some(Request::GiveBack {
                amount,
                at_ms: None,
            });
        } else if is_keyword(word, b"AT") {
            if self.at_ms.is_some() {
                return Err(SyntaxError::Repeated("AT"));
            }
            self.at_ms = Some(Argument::At.time(words)?);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Refuses a second request.
    fn accept(&self, keyword: &'static str) -> Result<(), SyntaxError> {
        let given = match self.request {
            None => return Ok(()),
            Some(Request::Take(_)) => "COST",
            Some(Request::GiveBack { .. }) => "REFUND",
        };
        Err(if given == keyword {
            SyntaxError::Repeated(keyword)
        } else {
            SyntaxError::CostAndRefund
        })
    }

    fn finish(self) -> Result<Request, SyntaxError> {
        match (self.request, self.at_ms) {
            (Some(Request::GiveBack { amount, .. }), at_ms) => {
                Ok(Request::GiveBack { amount, at_ms })
            }
            (_, Some(_)) => Err(SyntaxError::AtWithoutRefund),
            (request, None) => Ok(request.unwrap_or(ONE)),
        }
    }
}

/// `NOW` and `MS` as far as they were read.
#[derive(Default)]
struct OptionWords {
    now_ms: Option<i64>,
    has_ms: bool,
}

impl OptionWords {
    /// Reads `NOW unix_ms` or `MS` if `word`, which `words` follow, is its keyword, and says whether
    /// it was.
    fn read<'a>(
        &mut self,
        word: &[u8],
        words: &mut impl Iterator<Item = &'a [u8]>,
    ) -> Result<bool, SyntaxError> {
        if is_keyword(word, b"NOW") {
            if self.now_ms.is_some() {
                return Err(SyntaxError::Repeated("NOW"));
            }
            self.now_ms = Some(Argument::Now.time(words)?);
        } else if is_keyword(word, b"MS") {
            if self.has_ms {
                return Err(SyntaxError::Repeated("MS"));
            }
            self.has_ms = true;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    fn finish(self) -> Options {
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
