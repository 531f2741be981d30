//! The arguments of each command, from the first after its key or its keys.

use super::options::{
    DEFAULT_REQUEST, Lease, LeaseArgs, OptionArgs, Options, RequestArgs, check_request_read_only,
    parse_at_least, parse_max_wait,
};
use super::parameter::{
    COUNT, ID, MAX_BURST, NUMKEYS, Parameter, QUANTITY, RELEASED_ID, THROTTLE_PERIOD,
};
use super::rule::{AnyRule, ParseRule, RuleArgs, parse_concurrency, push_rule};
use super::{SyntaxError, number};
use limiter::{Concurrency, MAX_NUMBER, Request, TokenBucket};
use smallvec::SmallVec;

/// Rules of an RL.ALL call for which nothing is allocated.
pub const RULES_ON_STACK: usize = 8;

/// A call of a command with one rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SingleArgs<R> {
    pub rule: R,
    pub request: Request,
    pub options: Options,
}

/// A call of RL.CONCURRENCY.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConcurrencyArgs {
    pub rule: Concurrency,
    pub lease: Lease,
    pub options: Options,
}

/// The rules of an RL.ALL call, in the order of the keys.
pub type Rules = SmallVec<[RuleArgs; RULES_ON_STACK]>;

/// What follows the rules of an RL.ALL call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllOptions {
    pub options: Options,
    /// The lease that its CONCURRENCY rules are about, if it has any.
    pub lease: Option<Lease>,
}

/// Reads the arguments after the key of a command with one rule. The server has checked the arity.
// Always inlined: otherwise the result is returned through memory (60 instructions).
#[inline(always)]
pub fn parse_single<'a, R: ParseRule>(
    mut args: impl Iterator<Item = &'a [u8]>,
) -> Result<SingleArgs<R>, SyntaxError> {
    let mut rule = R::parse(&mut args)?.ok_or(SyntaxError::UnknownArgument)?;
    let mut request = RequestArgs::default();
    let mut options = OptionArgs::default();
    let (mut min, mut max_wait_ms) = (None, None);
    while let Some(arg) = args.next() {
        let is_known = request.parse(arg, &mut args)?
            || options.parse(arg, &mut args)?
            || rule.parse_keyword(arg, &mut args)?
            || parse_at_least(arg, &mut args, &mut min)?
            || R::CAN_WAIT && parse_max_wait(arg, &mut args, &mut max_wait_ms)?;
        if !is_known {
            return Err(SyntaxError::UnknownArgument);
        }
    }
    Ok(SingleArgs {
        rule,
        request: request.finish_single(min, max_wait_ms)?,
        options: options.finish(),
    })
}

/// As [`parse_single`], for a read-only command.
#[inline(always)]
pub fn parse_single_preview<'a, R: ParseRule>(
    args: impl Iterator<Item = &'a [u8]>,
) -> Result<SingleArgs<R>, SyntaxError> {
    let single = parse_single(args)?;
    check_request_read_only(single.request)?;
    Ok(single)
}

/// Reads the arguments after the key of RL.CONCURRENCY.
#[inline(always)]
pub fn parse_acquire<'a>(
    mut args: impl ExactSizeIterator<Item = &'a [u8]>,
) -> Result<ConcurrencyArgs, SyntaxError> {
    let rule = parse_concurrency(&mut args)?.ok_or(SyntaxError::UnknownArgument)?;
    let mut lease = LeaseArgs::default();
    let mut options = OptionArgs::default();
    while let Some(arg) = args.next() {
        if !lease.parse(arg, &mut args)? && !options.parse(arg, &mut args)? {
            return Err(SyntaxError::UnknownArgument);
        }
    }
    Ok(ConcurrencyArgs {
        rule,
        lease: lease.finish()?.ok_or(SyntaxError::MissingValue(&ID))?,
        options: options.finish(),
    })
}

/// Checks the ids of RL.RELEASE.
pub fn check_ids<'a>(mut ids: impl Iterator<Item = &'a [u8]>) -> Result<(), SyntaxError> {
    ids.try_for_each(|id| RELEASED_ID.check_id(id))
}

/// Reads `numkeys` of RL.ALL, which `args_after` arguments follow: at least 1, without leading zeros, so that it
/// reads the same here and for the server's own key finder.
pub fn parse_numkeys(arg: &[u8], args_after: usize) -> Result<usize, SyntaxError> {
    number::integer(arg)
        .filter(|_| !arg.starts_with(b"0"))
        .and_then(|count| usize::try_from(count).ok())
        .filter(|&count| count <= args_after)
        .ok_or(SyntaxError::OutOfRange(&NUMKEYS))
}

/// Refuses a call in which a key appears twice.
pub fn check_distinct<'a>(names: impl Iterator<Item = &'a [u8]>) -> Result<(), SyntaxError> {
    let mut keys: SmallVec<[&[u8]; RULES_ON_STACK]> = SmallVec::new();
    keys.extend(names);
    let duplicate = if keys.len() <= RULES_ON_STACK {
        (1..keys.len()).find(|&position| keys[..position].contains(&keys[position]))
    } else {
        first_duplicate_of_many(&keys)
    };
    match duplicate {
        None => Ok(()),
        Some(position) => Err(SyntaxError::DuplicateKey { key: position + 1 }),
    }
}

/// The first position of a key that appears before it, in less than quadratic time.
fn first_duplicate_of_many(keys: &[&[u8]]) -> Option<usize> {
    let mut sorted: Vec<usize> = (0..keys.len()).collect();
    sorted.sort_by_key(|&position| keys[position]);
    let pairs = sorted
        .windows(2)
        .filter(|pair| keys[pair[0]] == keys[pair[1]]);
    pairs.map(|pair| pair[1]).min()
}

/// Reads the arguments after the keys of RL.ALL: as many rules as keys, then the options. The rules go into
/// `rules`, since they are long and a returned value would be moved.
pub fn parse_all<'a>(
    numkeys: usize,
    mut args: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    rules: &mut Rules,
) -> Result<AllOptions, SyntaxError> {
    rules.clear();
    for key in 1..=numkeys {
        push_rule(&mut args, key, rules)?;
    }
    let mut options = OptionArgs::default();
    let mut lease = LeaseArgs::default();
    let mut max_wait_ms = None;
    while let Some(arg) = args.next() {
        let is_known = options.parse(arg, &mut args)?
            || lease.parse(arg, &mut args)?
            || parse_max_wait(arg, &mut args, &mut max_wait_ms)?;
        if !is_known {
            return Err(SyntaxError::TrailingArgument);
        }
    }
    // What can wait may; the other kinds must have room now.
    if let Some(max_wait_ms) = max_wait_ms {
        for args in rules.iter_mut() {
            args.rule.let_wait(max_wait_ms);
        }
    }
    let lease = lease.finish()?;
    let has_leases = rules
        .iter()
        .any(|args| matches!(args.rule, AnyRule::Concurrency { .. }));
    match (has_leases, lease) {
        (true, None) => Err(SyntaxError::Requires("CONCURRENCY", "ID")),
        (false, Some(_)) => Err(SyntaxError::Requires("ID", "CONCURRENCY")),
        _ => Ok(AllOptions {
            options: options.finish(),
            lease,
        }),
    }
}

/// Refuses rules that a read-only command cannot preview.
pub fn check_read_only(rules: &Rules) -> Result<(), SyntaxError> {
    rules.iter().try_for_each(|args| match args.rule {
        AnyRule::Concurrency { is_release, .. } if is_release => {
            Err(SyntaxError::ReadOnly("RELEASE"))
        }
        rule => rule.request().map_or(Ok(()), check_request_read_only),
    })
}

/// A call of CL.THROTTLE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleArgs {
    /// max_burst + 1 tokens, count / period of them per second.
    pub rule: TokenBucket,
    /// Takes the quantity, or gives it back if it is negative.
    pub request: Request,
}

/// CL.THROTTLE refills faster than count / period by one part in 2^40.
///
/// redis-cell counts whole nanoseconds; a bucket adds binary fractions, whose sum may lack the last bit of a
/// token in the very millisecond in which the token is due. The caller would wait one more millisecond,
/// and the reply say one more second. This outweighs such roundings. It shortens a wait by 1 ms in
/// 2^40 ms (34 years), so it never lets a call in a whole millisecond early unless the wait is that long.
const ABOVE_ROUNDING: f64 = 1.0 + 1.0 / (1u64 << 40) as f64;

/// Reads the arguments after the key of CL.THROTTLE. The server has checked that there are three.
pub fn parse_throttle<'a>(
    mut args: impl Iterator<Item = &'a [u8]>,
) -> Result<ThrottleArgs, SyntaxError> {
    let mut next = |parameter: &'static Parameter| {
        parameter
            .integer(args.next().unwrap_or_default())
            .map(|integer| integer as f64)
    };
    let max_burst = next(&MAX_BURST)?;
    let count = next(&COUNT)?;
    let period_s = next(&THROTTLE_PERIOD)?;
    let request = args.next().map_or(Ok(DEFAULT_REQUEST), parse_quantity)?;
    if args.next().is_some() {
        return Err(SyntaxError::TrailingArgument);
    }
    Ok(ThrottleArgs {
        rule: TokenBucket {
            capacity: max_burst + 1.0,
            refill_rate: (count / period_s * ABOVE_ROUNDING).min(MAX_NUMBER),
        },
        request,
    })
}

/// Reads the quantity of CL.THROTTLE: a negative one gives back.
fn parse_quantity(arg: &[u8]) -> Result<Request, SyntaxError> {
    let quantity = |digits| QUANTITY.integer(digits).map(|integer| integer as f64);
    Ok(match arg.strip_prefix(b"-") {
        None => Request::Cost(quantity(arg)?),
        Some(digits) => Request::Refund {
            amount: quantity(digits)?,
            at_ms: None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use limiter::{BucketLevel, decide};
    use proptest::prelude::*;

    /// In 2^39 ms, 17 years, a wait loses at most a millisecond to the rate, which is above count / period by one
    /// part in 2^40, and to the rounding of a single refill.
    const MS_FOR_ONE_LOST: u128 = 1 << 39;

    /// 1 to 2^`bits`, any magnitude as likely as another.
    fn up_to_bits(bits: u32) -> impl Strategy<Value = u64> {
        (0..=bits).prop_flat_map(|bits| 1..=1u64 << bits)
    }

    proptest! {
        /// Held against whole numbers, in which nothing is rounded.
        #[test]
        fn a_throttled_wait_is_that_of_count_in_period_to_the_millisecond(
            count in up_to_bits(53), period_s in up_to_bits(30), tokens in up_to_bits(24),
        ) {
            let owed = u128::from(tokens) * u128::from(period_s) * 1000;
            let due_ms = owed.div_ceil(u128::from(count));
            prop_assume!(due_ms < 1 << 52);

            let args = [tokens - 1, count, period_s, tokens].map(|number| number.to_string());
            let throttle = parse_throttle(args.iter().map(String::as_bytes)).unwrap();
            let empty = BucketLevel { tokens: 0.0, last_ms: 0 };
            let denied = decide(throttle.rule, throttle.request, Some(empty), 0);
            let [_, _, _, retry_ms] = denied.committed().in_milliseconds().integers;

            let retry_ms = retry_ms as u128;
            let earliest_ms = (owed - owed / MS_FOR_ONE_LOST).div_ceil(u128::from(count));
            prop_assert!((earliest_ms..=due_ms).contains(&retry_ms), "{retry_ms} ms, due at {due_ms} ms");
            if owed < MS_FOR_ONE_LOST {
                prop_assert_eq!(retry_ms, due_ms);
            }
        }
    }

    #[test]
    fn a_negative_quantity_gives_back() {
        let refund = |amount| Request::Refund {
            amount,
            at_ms: None,
        };
        for (quantity, request) in [
            (&b"3"[..], Request::Cost(3.0)),
            (b"0", Request::Cost(0.0)),
            (b"-3", refund(3.0)),
            (b"-9007199254740992", refund(MAX_NUMBER)),
        ] {
            let args = parse_throttle([&b"15"[..], b"30", b"60", quantity].into_iter());
            assert_eq!(args.map(|args| args.request), Ok(request), "{quantity:?}");
        }
    }
}
