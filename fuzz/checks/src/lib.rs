//! What must hold for any bytes at all. The fuzz targets run it on bytes that they make, `cargo test`
//! on those of `fuzz/corpus/`.

#![forbid(unsafe_code)]

use limiter::calendar::{Period, Unit};
use limiter::codec::{self, Record};
use limiter::{
    BucketLevel, Concurrency, Decision, MAX_NUMBER, MAX_REPORTED_TIME, NEVER_MS, Quota, QuotaCount,
    Request, Rule, SlidingWindow, TokenBucket, WindowCounters, Write, decide,
};
use std::fmt::Debug;
use syntax::{
    AnyRule, Lease, Options, ParseRule, Rules, SyntaxError, check_distinct, check_read_only,
    parse_acquire, parse_all, parse_numkeys, parse_single, parse_single_preview, parse_throttle,
};

const MAX_NOW_MS: i64 = MAX_NUMBER as i64;
const MIN_WINDOW_S: f64 = 0.001;
const MAX_WINDOW_S: f64 = MAX_NUMBER / 1000.0;

/// Reads `bytes`, arguments with line breaks between them, as those of each command after its name.
///
/// Whatever they are, they are refused with one line, or every number is in its range, letter case does not matter, and
/// the preview accepts the same arguments unless they change something whatever is found.
pub fn check_syntax(bytes: &[u8]) {
    let args: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    check_single::<TokenBucket>(&args, check_bucket_rule);
    check_single::<SlidingWindow>(&args, check_window_rule);
    check_single::<Quota>(&args, check_quota_rule);
    check_acquire(&args);
    check_throttle(&args);
    check_all(&args);
}

fn check_single<R: ParseRule + PartialEq + Debug>(args: &[&[u8]], check_rule: fn(R)) {
    // The first argument is the key.
    let args = &args[1..];
    let call = parse_single::<R>(args.iter().copied());
    let preview = parse_single_preview::<R>(args.iter().copied());
    match call {
        Ok(call) => {
            check_rule(call.rule);
            check_options(call.options);
            check_request(call.request);
            if is_read_only(call.request) {
                assert_eq!(preview, Ok(call));
            } else {
                assert!(matches!(preview, Err(SyntaxError::ReadOnly(_))));
            }
        }
        Err(error) => {
            check_message(error);
            assert_eq!(preview, Err(error));
        }
    }
    let swapped = swapped_case(args);
    assert_eq!(parse_single::<R>(swapped.iter().map(Vec::as_slice)), call);
}

/// The first argument is the key here too. Case matters to the id alone, and only its place is read.
fn check_acquire(args: &[&[u8]]) {
    let args = &args[1..];
    let call = parse_acquire(args.iter().copied());
    match call {
        Ok(call) => {
            check_concurrency_rule(call.rule);
            check_options(call.options);
            check_lease(call.lease, args);
        }
        Err(error) => check_message(error),
    }
    let swapped = swapped_case(args);
    assert_eq!(parse_acquire(swapped.iter().map(Vec::as_slice)), call);
}

/// The first argument is the key here too. Nothing in the call is a letter.
fn check_throttle(args: &[&[u8]]) {
    match parse_throttle(args[1..].iter().copied()) {
        Ok(call) => {
            check_bucket_rule(call.rule);
            assert!(call.rule.capacity >= 1.0 && call.rule.refill_rate > 0.0);
            check_request(call.request);
            assert!((4..=5).contains(&args.len()));
        }
        Err(error) => check_message(error),
    }
}

fn check_all(args: &[&[u8]]) {
    let count = match parse_numkeys(args[0], args.len() - 1) {
        Ok(count) => count,
        Err(error) => return check_message(error),
    };
    assert!(1 <= count && count < args.len());
    assert_eq!(count.to_string().as_bytes(), args[0]);
    let (keys, rules) = args[1..].split_at(count);
    check_keys(keys);
    let mut read = Rules::new();
    let call = parse_all(count, rules.iter().copied(), &mut read);
    match call {
        Ok(call) => {
            assert_eq!(read.len(), count);
            check_options(call.options);
            let (mut has_leases, mut changes) = (false, false);
            for args in &read {
                match args.rule {
                    AnyRule::TokenBucket(rule, _) => check_bucket_rule(rule),
                    AnyRule::SlidingWindow(rule, _) => check_window_rule(rule),
                    AnyRule::Quota(rule, _) => check_quota_rule(rule),
                    AnyRule::Concurrency { rule, is_release } => {
                        check_concurrency_rule(rule);
                        has_leases = true;
                        changes |= is_release;
                    }
                }
                if let Some(request) = args.rule.request() {
                    check_request(request);
                    changes |= !is_read_only(request);
                }
            }
            assert_eq!(check_read_only(&read).is_err(), changes);
            assert_eq!(call.lease.is_some(), has_leases);
            if let Some(lease) = call.lease {
                check_lease(lease, rules);
            }
        }
        Err(error) => check_message(error),
    }
    let swapped = swapped_case(rules);
    let mut read_swapped = Rules::new();
    let swapped = parse_all(count, swapped.iter().map(Vec::as_slice), &mut read_swapped);
    assert_eq!((swapped, read_swapped), (call, read));
}

/// The id is one of the arguments, after its keyword.
fn check_lease(lease: Lease, args: &[&[u8]]) {
    let position = args.len() - 1 - lease.id.args_after;
    assert!((1..=512).contains(&args[position].len()));
    assert!(args[position - 1].eq_ignore_ascii_case(b"ID"));
}

fn check_keys(keys: &[&[u8]]) {
    let result = check_distinct(keys.iter().copied());
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
    let range = MIN_WINDOW_S..=MAX_WINDOW_S;
    assert!(range.contains(&rule.window_s), "{rule:?}");
}

fn check_quota_rule(rule: Quota) {
    assert!((0.0..=MAX_NUMBER).contains(&rule.limit), "{rule:?}");
    let times = 0..=MAX_NOW_MS;
    let is_time = |at_ms: Option<i64>| at_ms.is_none_or(|at_ms| times.contains(&at_ms));
    match rule.period {
        Period::Length {
            length_ms,
            anchor_ms,
        } => assert!(
            (1..=MAX_NOW_MS).contains(&length_ms) && is_time(anchor_ms),
            "{rule:?}"
        ),
        Period::Calendar { anchor_ms, .. } => assert!(is_time(anchor_ms), "{rule:?}"),
        Period::Until { end_ms } => assert!(is_time(Some(end_ms)), "{rule:?}"),
    }
}

fn check_concurrency_rule(rule: Concurrency) {
    assert!((0..=MAX_NOW_MS).contains(&rule.limit), "{rule:?}");
    assert!((1..=MAX_NOW_MS).contains(&rule.lease_ms), "{rule:?}");
}

/// Whether a preview can ask it.
fn is_read_only(request: Request) -> bool {
    !matches!(request, Request::Force(_) | Request::Refund { .. })
}

fn check_request(request: Request) {
    let in_range = match request {
        Request::Cost(amount) | Request::Force(amount) => (0.0..=MAX_NUMBER).contains(&amount),
        Request::Refund { amount, at_ms } => {
            (0.0..=MAX_NUMBER).contains(&amount)
                && at_ms.is_none_or(|at_ms| (0..=MAX_NOW_MS).contains(&at_ms))
        }
        Request::Batch { cost, min } => 1 <= min && min <= cost && cost <= MAX_NOW_MS,
        Request::Reserve { cost, max_wait_ms } => {
            (0.0..=MAX_NUMBER).contains(&cost) && (0..=MAX_NOW_MS).contains(&max_wait_ms)
        }
    };
    assert!(in_range, "{request:?}");
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

fn swapped_case(args: &[&[u8]]) -> Vec<Vec<u8>> {
    let swap = |byte: &u8| match byte {
        b'a'..=b'z' => byte.to_ascii_uppercase(),
        _ => byte.to_ascii_lowercase(),
    };
    let swap_arg = |arg: &&[u8]| arg.iter().map(swap).collect();
    args.iter().map(swap_arg).collect()
}

/// Reads `bytes` as what a key holds, and decides on it.
///
/// They are refused, or are the one encoding of one state. A call on such a state, whose parameters are
/// the bytes behind it, leaves a state that is read back as it was, replies with numbers in range,
/// and states a wait that is long enough.
pub fn check_state(bytes: &[u8]) {
    let bucket = check_decode::<BucketLevel>(bytes);
    let window = check_decode::<WindowCounters>(bytes);
    let quota = check_decode::<QuotaCount>(bytes);
    let kinds = [bucket.is_some(), window.is_some(), quota.is_some()];
    let readers = kinds.into_iter().filter(|reads| *reads).count();
    assert!(readers <= 1, "{readers} kinds read it");

    if let Some((state, parameters)) = state_and_rest::<BucketLevel>(bytes) {
        let rule = TokenBucket {
            capacity: parameters.amount(0),
            refill_rate: parameters.amount(1),
        };
        check_decisions(rule, state, &parameters);
    }
    if let Some((state, parameters)) = state_and_rest::<WindowCounters>(bytes) {
        // The state's own length of a window where a rule could say it; otherwise it is as if there were none.
        let own = Some(state.window_s).filter(|_| parameters.is_flagged(0));
        let window_s = own.unwrap_or_else(|| parameters.amount(1));
        let rule = SlidingWindow {
            limit: parameters.amount(0),
            window_s: window_s.clamp(MIN_WINDOW_S, MAX_WINDOW_S),
        };
        check_decisions(rule, state, &parameters);
    }
    if let Some((state, parameters)) = state_and_rest::<QuotaCount>(bytes) {
        let anchor_ms = Some(parameters.now_ms(1)).filter(|_| parameters.is_flagged(0));
        let unit = match (parameters.is_flagged(1), parameters.is_flagged(2)) {
            (false, false) => Unit::Day,
            (false, true) => Unit::Week,
            (true, false) => Unit::Month,
            (true, true) => Unit::Year,
        };
        let rule = Quota {
            limit: parameters.amount(0),
            period: Period::Calendar { unit, anchor_ms },
        };
        check_decisions(rule, state, &parameters);
    }
}

fn check_decode<S: Record>(bytes: &[u8]) -> Option<S> {
    let state = codec::decode::<S>(bytes)?;
    assert_eq!(bytes.len(), S::LEN);
    assert_eq!(codec::encode(state).as_bytes(), bytes);
    Some(state)
}

fn state_and_rest<S: Record>(bytes: &[u8]) -> Option<(S, Parameters<'_>)> {
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

fn check_decisions<R: Rule>(rule: R, stored: R::State, parameters: &Parameters<'_>) {
    let (amount, now_ms) = (parameters.amount(2), parameters.now_ms(3));
    let max_wait_ms = parameters.now_ms(4);
    let (min, cost) = (1, (amount as i64).max(1));
    let requests = [
        Request::Cost(amount),
        Request::Batch { cost, min },
        Request::Reserve {
            cost: amount,
            max_wait_ms,
        },
        Request::Force(amount),
        Request::Refund {
            amount,
            at_ms: None,
        },
        Request::Refund {
            amount,
            at_ms: Some(max_wait_ms),
        },
    ];
    for request in requests {
        let decision = decide(rule, request, Some(stored), now_ms);
        check_replies(&decision, request);
        let left = left_by(&decision, stored);
        // The wait is measured from what the call leaves behind.
        let [allowed, _, _, wait_ms] = decision.committed().in_milliseconds().integers;
        if allowed == 0 && wait_ms != NEVER_MS && wait_ms < MAX_REPORTED_TIME {
            assert!(wait_ms > 0);
            let later = decide(rule, request, Some(left), now_ms + wait_ms);
            assert!(later.is_allowed(), "still denied after {wait_ms} ms");
        }
        // A second call at the same time, on the state that the first leaves.
        for second in requests {
            check_replies(&decide(rule, second, Some(left), now_ms), second);
        }
    }
}

/// The state under the key after the call, which must be one that can be read.
fn left_by<R: Rule>(decision: &Decision<R>, stored: R::State) -> R::State {
    match decision.write(false) {
        Write::None => stored,
        Write::Local(state) | Write::Replicated(state) => {
            let read_back = codec::decode::<R::State>(codec::encode(state).as_bytes());
            assert!(read_back == Some(state), "the state left cannot be read");
            let ttl_ms = decision.ttl_ms().unwrap_or(1);
            assert!(ttl_ms > 0, "{ttl_ms}");
            state
        }
    }
}

fn check_replies<R: Rule>(decision: &Decision<R>, request: Request) {
    let is_allowed = decision.is_allowed();
    for answer in [decision.committed(), decision.previewed()] {
        for reply in [answer.in_seconds(), answer.in_milliseconds()] {
            let [allowed, remaining, reset, retry] = reply.integers;
            assert_eq!(allowed, i64::from(is_allowed));
            assert!(remaining >= 0, "{reply:?}");
            for time in [reset, retry] {
                let range = NEVER_MS..=MAX_REPORTED_TIME;
                assert!(range.contains(&time), "{reply:?}");
            }
            let waits = matches!(request, Request::Reserve { .. });
            assert!(allowed == 0 || retry == 0 || waits, "{reply:?}");
            match (request, reply.granted) {
                (Request::Batch { cost, min }, Some(granted)) => {
                    let range = if is_allowed { min..=cost } else { 0..=0 };
                    assert!(range.contains(&granted), "{reply:?}");
                }
                (_, granted) => assert_eq!(granted, None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    /// Files that a target's corpus has at least: fewer means that it was not found.
    const MIN_FILES: usize = 10;

    fn replay(target: &str, check: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../corpus")
            .join(target);
        let files = fs::read_dir(&folder).expect("the corpus is in the repository");
        let paths: Vec<_> = files
            .map(|file| file.expect("the corpus can be listed").path())
            .collect();
        assert!(paths.len() >= MIN_FILES, "{} files", paths.len());
        for path in paths {
            let bytes = fs::read(&path).expect("the file can be read");
            // Shown by the test harness if the check fails.
            println!("{}", path.display());
            check(&bytes);
        }
    }

    #[test]
    fn the_argument_parser_passes_on_its_corpus() {
        replay("syntax", super::check_syntax);
    }

    #[test]
    fn the_state_codec_and_the_decisions_pass_on_their_corpus() {
        replay("state", super::check_state);
    }
}
