//! The numbers that the commands accept, correctly rounded, as the scripts' `tonumber` rounds them.

use limiter::MAX_NUMBER;
use std::cmp::Ordering;
use std::iter::repeat;

/// The numbers that a parameter accepts, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    min: f64,
    max: f64,
    /// As an error says it.
    pub text: &'static str,
}

impl Eq for Range {}

/// Tokens, requests and tokens per second.
pub const AMOUNT: Range = Range {
    min: 0.0,
    max: MAX_NUMBER,
    text: "0 to 9007199254740992 (2^53)",
};

/// The length of a window in seconds.
pub const DURATION_S: Range = Range {
    min: 0.001,
    max: MAX_NUMBER / 1000.0,
    text: "0.001 to 9007199254740.992 (2^53 / 1000)",
};

/// A wait in seconds.
pub const WAIT_S: Range = Range {
    min: 0.0,
    max: MAX_NUMBER / 1000.0,
    text: "0 to 9007199254740.992 (2^53 / 1000)",
};

/// The digits of 2^53, and of 2^53 / 1000.
const MAX_DIGITS: &[u8] = b"9007199254740992";

/// Digits that always make an exact `i64` and an exact `f64`.
const EXACT_DIGITS: usize = 15;

/// The exact powers of ten by which the digits after the point divide.
const POWERS_OF_TEN: [f64; EXACT_DIGITS + 1] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
];

/// A decimal number with optional fraction and exponent, in `range`. No sign in front, no `inf`,
/// `nan` or hex, no blanks, nothing after it.
#[inline(always)]
pub fn decimal(arg: &[u8], range: &Range) -> Option<f64> {
    let number = short_or_any_decimal(arg)?;
    let is_in_range =
        range.min <= number && (number < range.max || number == range.max && !is_above_max(arg));
    is_in_range.then_some(number)
}

fn short_or_any_decimal(arg: &[u8]) -> Option<f64> {
    short_decimal(arg).or_else(|| any_decimal(arg))
}

/// Whether a number that rounds to the end of its range is above it as written: 9007199254740993
/// rounds to 2^53. The ends of both ranges have the same digits, and where the point stands is known
/// from the rounded number, so that comparing digits is enough.
#[cold]
fn is_above_max(arg: &[u8]) -> bool {
    let digits = arg
        .iter()
        .take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'))
        .filter(|byte| byte.is_ascii_digit())
        .skip_while(|digit| **digit == b'0');
    let max = MAX_DIGITS.iter().chain(repeat(&b'0'));
    digits
        .zip(max)
        .map(|(digit, max)| digit.cmp(max))
        .find(|order| order.is_ne())
        == Some(Ordering::Greater)
}

/// An integer of digits alone, 0 to 2^53.
pub fn integer(arg: &[u8]) -> Option<i64> {
    if arg.is_empty() {
        return None;
    }
    let mut value: i64 = 0;
    for byte in arg {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value = value * 10 + i64::from(digit);
        if value > MAX_NUMBER as i64 {
            return None;
        }
    }
    Some(value)
}

/// The fast path for what nearly every call sends, such as `100` and `2.5`: both the digits and the
/// power of ten are exact, so the one division rounds correctly. `None` leaves it to [`any_decimal`].
fn short_decimal(arg: &[u8]) -> Option<f64> {
    if arg.len() > EXACT_DIGITS {
        return None;
    }
    let mut digits: i64 = 0;
    let after_whole = read_digits(arg, &mut digits);
    let fraction = match after_whole {
        [] if arg.is_empty() => return None,
        [] => return Some(digits as f64),
        [b'.', fraction @ ..] => fraction,
        _ => return None,
    };
    let is_number = arg.len() > 1 && read_digits(fraction, &mut digits).is_empty();
    is_number.then(|| digits as f64 / POWERS_OF_TEN[fraction.len()])
}

/// Appends the digits that `arg` starts with to `digits`, and returns what follows them.
fn read_digits<'a>(mut arg: &'a [u8], digits: &mut i64) -> &'a [u8] {
    while let [digit @ b'0'..=b'9', after @ ..] = arg {
        *digits = *digits * 10 + i64::from(digit - b'0');
        arg = after;
    }
    arg
}

/// Rust's parser, which rounds correctly. Signs, `inf` and `nan`, which it would accept, are refused first.
#[cold]
fn any_decimal(arg: &[u8]) -> Option<f64> {
    arg.first()
        .filter(|first| first.is_ascii_digit() || **first == b'.')?;
    str::from_utf8(arg).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimals_are_read_as_written() {
        for (arg, number) in [
            ("0", 0.0),
            ("5", 5.0),
            ("5.", 5.0),
            (".5", 0.5),
            ("0.1", 0.1),
            ("007", 7.0),
            ("1e-3", 0.001),
            ("1E+3", 1000.0),
            ("123456789012345678e-17", 1.2345678901234567),
            ("9007199254740992", MAX_NUMBER),
            ("09007199254740992.000", MAX_NUMBER),
            ("9.007199254740992e15", MAX_NUMBER),
            ("9007199254740991.6", MAX_NUMBER),
            ("1e-400", 0.0),
        ] {
            assert_eq!(decimal(arg.as_bytes(), &AMOUNT), Some(number), "{arg}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for arg in [
            "",
            ".",
            "-1",
            "-0",
            "+1",
            "inf",
            "nan",
            "infinity",
            "NaN",
            ".inf",
            "0x10",
            "1_0",
            " 1",
            "1 ",
            "1,5",
            "1e",
            "e1",
            "1.2.3",
            "1\0",
            "5f",
            "9007199254740993",
            "9007199254740992.5",
            "9.007199254740993e15",
            "9007199254740994",
            "1e16",
            "1e400",
            "٣",
        ] {
            assert_eq!(decimal(arg.as_bytes(), &AMOUNT), None, "{arg:?}");
        }
        assert_eq!(decimal(b"1\xff", &AMOUNT), None);
        assert_eq!(decimal(b"0.0009", &DURATION_S), None);
        assert_eq!(decimal(b"9007199254741", &DURATION_S), None);
        assert_eq!(decimal(b"9007199254740.9921", &DURATION_S), None);
        assert_eq!(
            decimal(b"9007199254740.992", &DURATION_S),
            Some(9_007_199_254_740.992)
        );
    }

    #[test]
    fn integers_are_digits_up_to_two_to_the_53() {
        assert_eq!(integer(b"0"), Some(0));
        assert_eq!(integer(b"9007199254740992"), Some(1 << 53));
        for arg in [
            "",
            "9007199254740993",
            "99999999999999999999999999",
            "-1",
            "+1",
            "1.0",
            "1e3",
            " 1",
            "1\0",
        ] {
            assert_eq!(integer(arg.as_bytes()), None, "{arg:?}");
        }
    }

    proptest! {
        #[test]
        fn the_fast_path_rounds_as_the_parser_does(arg in "[0-9]{0,9}\\.?[0-9]{0,9}") {
            if let Some(number) = short_decimal(arg.as_bytes()) {
                prop_assert_eq!(Some(number), any_decimal(arg.as_bytes()));
            }
        }

        #[test]
        fn every_number_that_rust_prints_is_read_back(number in 0.0..MAX_NUMBER) {
            prop_assert_eq!(decimal(number.to_string().as_bytes(), &AMOUNT), Some(number));
            prop_assert_eq!(decimal(format!("{number:e}").as_bytes(), &AMOUNT), Some(number));
        }

        #[test]
        fn any_bytes_give_a_number_in_range_or_nothing(arg: Vec<u8>) {
            if let Some(number) = decimal(&arg, &DURATION_S) {
                prop_assert!((DURATION_S.min..=DURATION_S.max).contains(&number));
            }
        }
    }
}
