//! What must hold for any bytes at all. The fuzz targets run it on bytes that they make, `cargo test`
//! on those of `fuzz/corpus/`.

use crate::commands::syntax::{
    AnyRule, Options, Rules, SyntaxError, all, all_preview, distinct, numkeys, single,
    single_preview, throttle,
};
use limiter::codec::{self, Stored};
use limiter::{
    BucketLevel, Decision, Effect, Limiter, MAX_NUMBER, MAX_REPORTED_TIME, NEVER_MS, Request,
    SlidingWindow, TokenBucket, WindowCounters, decide,
};

const MAX_NOW_MS: i64 = MAX_NUMBER as i64;
const LEAST_WINDOW_S: f64 = 0.001;
const MOST_WINDOW_S: f64 = MAX_NUMBER / 1000.0;

/// Reads `bytes`, words with line breaks between them, as the words of each command after its name.
///
/// Whatever they are, they are refused with one line, or every number is in its range, letter case
/// does not matter, and the preview accepts the same words unless they say `REFUND`.
pub fn check_syntax(bytes: &[u8]) {
    let words: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    check_single::<TokenBucket>(&words, check_bucket_rule);
    check_single::<SlidingWindow>(&words, check_window_rule);
    check_throttle(&words);
    check_all(&words);
}

fn check_single<L: Limiter + crate::commands::syntax::RuleSyntax + PartialEq + std::fmt::Debug>(
    words: &[&[u8]],
    check_rule: fn(L),
) {
    // The first word is the key.
    let words = &words[1..];
    let call = single::<L>(words.iter().copied());
    let preview = single_preview::<L>(words.iter().copied());
    match call {
        Ok(call) => {
            check_rule(call.rule);
            check_options(call.options);
            match check_request(call.request) {
                Asks::ToTake => assert_eq!(preview, Ok(call)),
                Asks::ToGiveBack => assert_eq!(preview, Err(SyntaxError::RefundInPreview)),
            }
        }
        Err(error) => {
            check_message(error);
            assert_eq!(preview, Err(error));
        }
    }
    let swapped = swapped_case(words);
    assert_eq!(single::<L>(swapped.iter().map(Vec::as_slice)), call);
}

/// The first word is the key here too. Nothing in the call is a letter.
fn check_throttle(words: &[&[u8]]) {
    match throttle(words[1..].iter().copied()) {
        Ok(call) => {
            check_bucket_rule(call.rule);
            assert!(call.rule.capacity >= 1.0 && call.rule.refill_rate > 0.0);
            check_request(call.request);
            assert!((4..=5).contains(&words.len()));
        }
        Err(error) => check_message(error),
    }
}

fn check_all(words: &[&[u8]]) {
    let count = match numkeys(words[0], words.len() - 1) {
        Ok(count) => count,
        Err(error) => return check_message(error),
    };
    assert!(1 <= count && count < words.len());
    assert_eq!(count.to_string().as_bytes(), words[0]);
    let (keys, rules) = words[1..].split_at(count);
    check_distinct(keys);
    let mut read = Rules::new();
    let call = all(count, rules.iter().copied(), &mut read);
    let mut previewed = Rules::new();
    let preview = all_preview(count, rules.iter().copied(), &mut previewed);
    match call {
        Ok(options) => {
            assert_eq!(read.len(), count);
            check_options(options);
            let mut gives_back = false;
            for (rule, request) in &read {
                match *rule {
                    AnyRule::TokenBucket(rule) => check_bucket_rule(rule),
                    AnyRule::Sliding(rule) => check_window_rule(rule),
                }
                gives_back |= matches!(check_request(*request), Asks::ToGiveBack);
            }
            if gives_back {
                assert_eq!(preview, Err(SyntaxError::RefundInPreview));
            } else {
                assert_eq!((preview, &previewed), (call, &read));
            }
        }
        Err(error) => {
            check_message(error);
            assert_eq!(preview, Err(error));
        }
    }
    let swapped = swapped_case(rules);
    let mut read_swapped = Rules::new();
    let swapped = all(count, swapped.iter().map(Vec::as_slice), &mut read_swapped);
    assert_eq!((swapped, read_swapped), (call, read));
}

fn check_distinct(keys: &[&[u8]]) {
    let result = distinct(keys.iter().copied());
    let is_repeated = |position: &usize| keys[..*position].contains(&keys[*position]);
    match result {
        Ok(()) => assert_eq!((0..keys.len()).find(is_repeated), None),
        Err(error) => {
            check_message(error);
            let SyntaxError::DuplicateKey { key } = error else {
                panic!("not about a key: {error}");
            };
            assert!(
                is_repeated(&(key - 1)),
                "key {key} is the first of its name"
            );
        }
    }
}

fn check_bucket_rule(rule: TokenBucket) {
    assert!((0.0..=MAX_NUMBER).contains(&rule.capacity), "{rule:?}");
    assert!((0.0..=MAX_NUMBER).contains(&rule.refill_rate), "{rule:?}");
}

fn check_window_rule(rule: SlidingWindow) {
    assert!((0.0..=MAX_NUMBER).contains(&rule.limit), "{rule:?}");
    let range = LEAST_WINDOW_S..=MOST_WINDOW_S;
    assert!(range.contains(&rule.window_s), "{rule:?}");
}

enum Asks {
    ToTake,
    ToGiveBack,
}

fn check_request(request: Request) -> Asks {
    let (amount, asks) = match request {
        Request::Take(cost) => (cost, Asks::ToTake),
        Request::GiveBack { amount, .. } => (amount, Asks::ToGiveBack),
    };
    assert!((0.0..=MAX_NUMBER).contains(&amount), "{request:?}");
    asks
}

fn check_options(options: Options) {
    if let Some(now_ms) = options.now_ms {
        assert!((0..=MAX_NOW_MS).contains(&now_ms), "{now_ms}");
    }
}

/// An error is one line without a NUL byte: neither the protocol nor a C string cuts it.
fn check_message(error: SyntaxError) {
    let message = error.to_string();
    assert!(!message.is_empty());
    assert!(!message.contains(['\0', '\r', '\n']), "{message:?}");
}

fn swapped_case(words: &[&[u8]]) -> Vec<Vec<u8>> {
    let swap = |byte: &u8| match byte {
        b'a'..=b'z' => byte.to_ascii_uppercase(),
        _ => byte.to_ascii_lowercase(),
    };
    let swap_word = |word: &&[u8]| word.iter().map(swap).collect();
    words.iter().map(swap_word).collect()
}

/// Reads `bytes` as what a key holds, and decides on it.
///
/// They are refused, or are the one encoding of one state. A call on such a state, whose parameters are
/// the bytes behind it, leaves a state that is read back as it was, replies with numbers in range,
/// and states a wait that is long enough.
pub fn check_state(bytes: &[u8]) {
    let bucket = check_decode::<BucketLevel>(bytes);
    let window = check_decode::<WindowCounters>(bytes);
    assert!(
        bucket.is_none() || window.is_none(),
        "both algorithms read it"
    );

    if let Some((state, parameters)) = state_and_rest::<BucketLevel>(bytes) {
        let rule = TokenBucket {
            capacity: parameters.amount(0),
            refill_rate: parameters.amount(1),
        };
        check_decisions(rule, state, &parameters);
    }
    if let Some((state, parameters)) = state_and_rest::<WindowCounters>(bytes) {
        // The state's own length of a window where a rule could say it: else it is as if there was none.
        let own = Some(state.window_s).filter(|_| parameters.is_flagged(0));
        let window_s = own.unwrap_or_else(|| parameters.amount(1));
        let rule = SlidingWindow {
            limit: parameters.amount(0),
            window_s: window_s.clamp(LEAST_WINDOW_S, MOST_WINDOW_S),
        };
        check_decisions(rule, state, &parameters);
    }
}

fn check_decode<S: Stored>(bytes: &[u8]) -> Option<S> {
    let state = codec::decode::<S>(bytes)?;
    assert_eq!(bytes.len(), S::LEN);
    assert_eq!(codec::encode(state).as_bytes(), bytes);
    Some(state)
}

fn state_and_rest<S: Stored>(bytes: &[u8]) -> Option<(S, Parameters<'_>)> {
    let (state, rest) = bytes.split_at_checked(S::LEN)?;
    Some((codec::decode(state)?, Parameters { bytes: rest }))
}

/// The parameters of a call, eight bytes each; zeros beyond the last.
struct Parameters<'bytes> {
    bytes: &'bytes [u8],
}

impl Parameters<'_> {
    fn eight(&self, position: usize) -> [u8; 8] {
        let mut eight = [0; 8];
        let rest = self.bytes.iter().skip(position * eight.len());
        for (to, from) in eight.iter_mut().zip(rest) {
            *to = *from;
        }
        eight
    }

    /// A number from 0 to 2^53.
    fn amount(&self, position: usize) -> f64 {
        let number = f64::from_le_bytes(self.eight(position)).abs();
        if number.is_nan() {
            return 0.0;
        }
        number.min(MAX_NUMBER)
    }

    fn now_ms(&self, position: usize) -> i64 {
        (i64::from_le_bytes(self.eight(position)) & i64::MAX) % (MAX_NOW_MS + 1)
    }

    /// One bit of the parameter behind the four that every call has.
    fn is_flagged(&self, bit: u32) -> bool {
        self.eight(4)[0] >> bit & 1 == 1
    }
}

fn check_decisions<L: Limiter>(rule: L, stored: L::State, parameters: &Parameters<'_>) {
    let (amount, now_ms) = (parameters.amount(2), parameters.now_ms(3));
    let taken = decide(rule, Request::Take(amount), Some(stored), now_ms);
    let refund = Request::GiveBack {
        amount,
        at_ms: None,
    };
    let given_back = decide(rule, refund, Some(stored), now_ms);
    assert!(given_back.is_allowed());
    for decision in [&taken, &given_back] {
        check_replies(decision);
    }
    let left = [stored_after(&taken), stored_after(&given_back)];

    // The wait is measured from what the call leaves behind.
    let [.., wait_ms] = taken.carried_out().in_milliseconds();
    if !taken.is_allowed() && wait_ms != NEVER_MS && wait_ms < MAX_REPORTED_TIME {
        assert!(wait_ms > 0);
        let later = decide(rule, Request::Take(amount), left[0], now_ms + wait_ms);
        assert!(later.is_allowed(), "still denied after {wait_ms} ms");
    }
    // A second call at the same time, on each state that the first may leave.
    for state in left {
        check_replies(&decide(rule, Request::Take(amount), state, now_ms));
    }
}

/// The state under the key after the call, which must be one that can be read.
fn stored_after<L: Limiter>(decision: &Decision<L>) -> Option<L::State> {
    match decision.effect() {
        Effect::Nothing => None,
        Effect::InMemory(state) | Effect::Propagated(state) => {
            let read_back = codec::decode::<L::State>(codec::encode(state).as_bytes());
            assert!(read_back == Some(state), "the state left cannot be read");
            Some(state)
        }
    }
}

fn check_replies<L: Limiter>(decision: &Decision<L>) {
    for answer in [decision.carried_out(), decision.previewed()] {
        for (reply, least) in [
            (answer.in_seconds(), 0),
            (answer.in_milliseconds(), NEVER_MS),
        ] {
            let [allowed, remaining, reset, retry] = reply;
            assert_eq!(allowed, i64::from(decision.is_allowed()));
            assert!(remaining >= 0, "{reply:?}");
            for time in [reset, retry] {
                assert!((least..=MAX_REPORTED_TIME).contains(&time), "{reply:?}");
            }
            assert!(allowed == 0 || retry == 0, "{reply:?}");
        }
    }
    if let Some(ttl_ms) = decision.ttl_ms() {
        assert!(ttl_ms > 0, "{ttl_ms}");
    }
}
