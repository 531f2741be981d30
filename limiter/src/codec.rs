//! The state codec: the bytes that a limiter's key holds.
//!
//! `"RL"`, a version byte, a kind byte, then the fields as fixed-width little-endian. The layout is
//! bincode's fixed-int configuration of a tuple; only this file knows bincode, and the test on the
//! bytes is what a replacement has to pass.

use bincode::config::{self, Configuration, Fixint, LittleEndian, NoLimit};

const MAGIC: [u8; 2] = *b"RL";
const VERSION: u8 = 1;
const LAYOUT: Configuration<LittleEndian, Fixint, NoLimit> =
    config::standard().with_fixed_int_encoding();

/// Bytes before the fields: the magic, the version and the kind.
pub const HEADER_LEN: usize = MAGIC.len() + 2;

/// Bytes of the longest state, the sliding window's.
pub const MAX_LEN: usize = 36;

/// A state of fixed size: what a key holds between calls.
pub trait Record: Copy + PartialEq {
    /// The byte that tells the algorithms apart.
    const KIND: u8;
    /// Bytes of the encoded state, at most [`MAX_LEN`].
    const LEN: usize;
    /// The fields in the order in which they are stored.
    type Fields: bincode::Encode + bincode::Decode<()>;

    /// The fields to store.
    fn to_fields(self) -> Self::Fields;

    /// The state of stored fields; `None` if one is out of range.
    fn from_fields(fields: Self::Fields) -> Option<Self>;
}

/// An encoded state, on the stack.
pub struct Encoded {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Encoded {
    /// The bytes to store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The bytes of a state.
pub fn encode<S: Record>(state: S) -> Encoded {
    const { assert!(S::LEN <= MAX_LEN) };
    let mut bytes = [0; MAX_LEN];
    let record = (MAGIC, VERSION, S::KIND, state.to_fields());
    // A fixed-width record of `LEN` bytes always fits; were it ever not to, the empty value that is
    // left would be refused when read, never taken for another state.
    let len = bincode::encode_into_slice(record, &mut bytes, LAYOUT).unwrap_or(0);
    Encoded { bytes, len }
}

/// The state in `bytes`; `None` unless they are exactly an encoded state of this algorithm with every
/// field in its range.
pub fn decode<S: Record>(bytes: &[u8]) -> Option<S> {
    let ((magic, version, kind, fields), read): (([u8; 2], u8, u8, S::Fields), usize) =
        bincode::decode_from_slice(bytes, LAYOUT).ok()?;
    let is_ours = magic == MAGIC && version == VERSION && kind == S::KIND && read == bytes.len();
    if is_ours {
        S::from_fields(fields)
    } else {
        None
    }
}

/// Whether a stored number can be an amount: finite and not negative.
pub fn is_amount(number: f64) -> bool {
    (0.0..=f64::MAX).contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BucketLevel, MAX_NUMBER, QuotaCount, WindowCounters};
    use proptest::prelude::*;

    const BUCKET: BucketLevel = BucketLevel {
        tokens: 2.5,
        last_ms: 1_751_662_800_000,
    };
    const WINDOW: WindowCounters = WindowCounters {
        window_s: 60.0,
        index: 29_194_380,
        prev: 7.0,
        curr: 0.1,
    };

    const QUOTA: QuotaCount = QuotaCount {
        start_ms: 1_751_662_800_000,
        end_ms: 1_751_662_860_000,
        count: 3.0,
    };

    #[test]
    fn a_bucket_is_these_twenty_bytes() {
        let bytes = b"RL\x01T\x00\x00\x00\x00\x00\x00\x04\x40\x80\x2c\x3d\xd7\x97\x01\x00\x00";
        assert_eq!(encode(BUCKET).as_bytes(), bytes);
        assert_eq!(bytes.len(), BucketLevel::LEN);
        assert_eq!(decode(bytes), Some(BUCKET));
    }

    #[test]
    fn a_window_is_these_thirty_six_bytes() {
        let bytes = b"RL\x01S\x00\x00\x00\x00\x00\x00\x4e\x40\x8c\x78\xbd\x01\x00\x00\x00\x00\
            \x00\x00\x00\x00\x00\x00\x1c\x40\x9a\x99\x99\x99\x99\x99\xb9\x3f";
        assert_eq!(encode(WINDOW).as_bytes(), bytes);
        assert_eq!(bytes.len(), WindowCounters::LEN);
        assert_eq!(decode(bytes), Some(WINDOW));
    }

    #[test]
    fn a_quota_is_these_twenty_eight_bytes() {
        let bytes = b"RL\x01Q\x80\x2c\x3d\xd7\x97\x01\x00\x00\xe0\x16\x3e\xd7\x97\x01\x00\x00\
            \x00\x00\x00\x00\x00\x00\x08\x40";
        assert_eq!(encode(QUOTA).as_bytes(), bytes);
        assert_eq!(bytes.len(), QuotaCount::LEN);
        assert_eq!(decode(bytes), Some(QUOTA));
    }

    #[test]
    fn a_cut_longer_or_altered_header_is_no_state() {
        let whole = encode(BUCKET);
        let whole = whole.as_bytes();
        for len in 0..whole.len() {
            assert_eq!(decode::<BucketLevel>(&whole[..len]), None, "{len} bytes");
        }
        assert_eq!(decode::<BucketLevel>(&[whole, b"\0"].concat()), None);
        for position in 0..HEADER_LEN {
            let mut altered = whole.to_vec();
            altered[position] ^= 1;
            assert_eq!(decode::<BucketLevel>(&altered), None, "byte {position}");
        }
        assert_eq!(decode::<WindowCounters>(whole), None);
        assert_eq!(decode::<BucketLevel>(encode(WINDOW).as_bytes()), None);
    }

    #[test]
    fn a_number_out_of_range_is_no_state() {
        let not_finite = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        // A bucket may be in debt, of 2^53 tokens at most.
        for tokens in [not_finite.as_slice(), &[-MAX_NUMBER - 2.0]].concat() {
            assert_refused(BucketLevel { tokens, ..BUCKET });
        }
        for number in [not_finite.as_slice(), &[-1.0, -f64::MIN_POSITIVE]].concat() {
            assert_refused(WindowCounters {
                window_s: number,
                ..WINDOW
            });
            assert_refused(WindowCounters {
                prev: number,
                ..WINDOW
            });
            assert_refused(WindowCounters {
                curr: number,
                ..WINDOW
            });
            assert_refused(QuotaCount {
                count: number,
                ..QUOTA
            });
        }
        assert_refused(BucketLevel {
            last_ms: -1,
            ..BUCKET
        });
        assert_refused(WindowCounters {
            index: -1,
            ..WINDOW
        });
        assert_refused(QuotaCount {
            end_ms: -1,
            ..QUOTA
        });
    }

    fn assert_refused<S: Record + std::fmt::Debug>(state: S) {
        assert_eq!(decode::<S>(encode(state).as_bytes()), None, "{state:?}");
    }

    #[test]
    fn a_debt_and_a_period_before_1970_are_states() {
        let debt = BucketLevel {
            tokens: -MAX_NUMBER,
            ..BUCKET
        };
        assert_eq!(decode(encode(debt).as_bytes()), Some(debt));
        let early = QuotaCount {
            start_ms: -1,
            ..QUOTA
        };
        assert_eq!(decode(encode(early).as_bytes()), Some(early));
    }

    proptest! {
        #[test]
        fn a_state_survives_the_round_trip(
            amounts in [0.0..f64::MAX, 0.0..f64::MAX, 0.0..f64::MAX],
            count in 0..i64::MAX,
        ) {
            let bucket = BucketLevel { tokens: amounts[0], last_ms: count };
            prop_assert_eq!(decode(encode(bucket).as_bytes()), Some(bucket));
            let window = WindowCounters {
                window_s: amounts[0], index: count, prev: amounts[1], curr: amounts[2],
            };
            prop_assert_eq!(decode(encode(window).as_bytes()), Some(window));
        }

        #[test]
        fn any_bytes_are_refused_or_encode_to_themselves(bytes: Vec<u8>, header: bool) {
            let bytes = if header { [b"RL\x01T".as_slice(), &bytes].concat() } else { bytes };
            if let Some(bucket) = decode::<BucketLevel>(&bytes) {
                let encoded = encode(bucket);
                prop_assert_eq!(encoded.as_bytes(), &bytes[..]);
            }
        }
    }
}
