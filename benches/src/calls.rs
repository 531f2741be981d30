//! The calls that are measured, and what must be in the server before they are.

use crate::Result;
use crate::resp::{Client, encode};
use std::time::{SystemTime, UNIX_EPOCH};

/// The mark in a command line that a key's number replaces.
const KEY_MARK: &str = "{key}";

/// Digits of a key's number: always as many, so that every key is as long as any other.
const KEY_DIGITS: usize = 8;

/// A command with holes for the numbers of its keys.
#[derive(Clone, PartialEq)]
pub struct Template {
    bytes: Vec<u8>,
    /// Where the digits stand.
    holes: Vec<usize>,
}

impl Template {
    /// Words separated by blanks; `{key}` stands for a key's number.
    pub fn new(line: &str) -> Self {
        let digits = "#".repeat(KEY_DIGITS);
        let line = line.replace(KEY_MARK, &digits);
        let words: Vec<&[u8]> = line.split_whitespace().map(str::as_bytes).collect();
        let bytes = encode(&words);
        let holes = bytes
            .windows(KEY_DIGITS)
            .enumerate()
            .filter(|(_, window)| *window == digits.as_bytes())
            .map(|(at, _)| at)
            .collect();
        Self { bytes, holes }
    }

    /// Appends the command for key number `key`.
    pub fn append(&self, key: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        for hole in &self.holes {
            let mut rest = key;
            for digit in out[start + hole..][..KEY_DIGITS].iter_mut().rev() {
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
    }
}

/// What a call is for in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    Ping,
    Set,
    Incr,
    Get,
    BucketAllowed,
    BucketDenied,
    BucketDeniedMs,
    BucketPreview,
    MissingPreview,
    SlidingAllowed,
    SlidingDenied,
    SlidingDeniedMs,
    SlidingPreview,
    All,
    AllDenied,
    AllPreview,
    BucketScript,
    SlidingScript,
    /// Another module's command: its place in BENCH_PEERS.
    Peer(usize),
}

/// A call that is measured.
#[derive(Clone)]
pub struct Call {
    pub subject: Subject,
    /// As the report names it.
    pub title: String,
    /// As INFO commandstats names it.
    pub counted_as: String,
    pub template: Template,
    /// What is called once for each key beforehand; the call itself if nothing else is said.
    pub preparation: Template,
    /// Limiters that one call works on.
    pub limiters: u32,
}

impl Call {
    fn new(subject: Subject, title: &str, line: &str, preparation: &str) -> Self {
        let name = line.split_whitespace().next().unwrap_or_default();
        Self {
            subject,
            title: title.to_owned(),
            counted_as: name.to_ascii_lowercase(),
            template: Template::new(line),
            preparation: Template::new(preparation),
            limiters: 1,
        }
    }

    /// The same call, of several limiters.
    pub fn of_limiters(self, limiters: u32) -> Self {
        Self { limiters, ..self }
    }

    /// The key numbers to call with, for a working set of `keys` limiters whatever the call.
    pub fn numbers(&self, keys: u32) -> u32 {
        keys.div_ceil(self.limiters)
    }
}

/// The scripts that the module is compared with, loaded into a server.
pub struct Scripts {
    token_bucket: String,
    sliding_window: String,
}

impl Scripts {
    pub fn load(client: &mut Client) -> Result<Self> {
        let mut load = |text| client.call(&["SCRIPT", "LOAD", text])?.text();
        Ok(Self {
            token_bucket: load(include_str!("../../lua-reference/token_bucket.lua"))?,
            sliding_window: load(include_str!("../../lua-reference/sliding_window.lua"))?,
        })
    }

    /// A call of the token bucket's script: `rule` is capacity and refill rate.
    pub fn token_bucket_line(&self, key: &str, rule: &str, now_ms: u64, cost: u32) -> String {
        let digest = &self.token_bucket;
        format!("EVALSHA {digest} 1 {key} {rule} {now_ms} {cost}")
    }

    /// A call of the sliding window's script, at the present time.
    pub fn sliding_window_line(&self, key: &str) -> String {
        let now_s = since_epoch_s();
        format!(
            "EVALSHA {} 3 {key}:c {key}:p {key}:i {STEADY_WINDOW} {now_s} 1",
            self.sliding_window
        )
    }
}

pub fn since_epoch_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Capacity and refill rate that a thousand limiters and more do not exhaust when they share the calls.
pub const STEADY_BUCKET: &str = "1000 1000";

/// Capacity and refill rate that even one limiter called all the time does not exhaust.
pub const ROOMY_BUCKET: &str = "1000000 1000000";

/// Limit and window that no run exhausts.
pub const STEADY_WINDOW: &str = "100000 60";

/// Capacity and refill rate of a bucket that the preparation empties for hours.
pub const TIGHT_BUCKET: &str = "1 0.0001";

/// Limit and window that the preparation exhausts for a day.
pub const TIGHT_WINDOW: &str = "1 86400";

/// The built-in command that everything is compared with: a lookup, a write of 16 bytes, a ttl.
pub const SET_LINE: &str = "SET set:{key} 0123456789abcdef PX 3600000";

/// The calls of the module and of the server itself.
pub fn calls_of_the_module() -> Vec<Call> {
    let bucket = format!("RL.TOKENBUCKET bucket:{{key}} {STEADY_BUCKET}");
    let empty_bucket = format!("RL.TOKENBUCKET empty:{{key}} {TIGHT_BUCKET}");
    let window = format!("RL.SLIDING window:{{key}} {STEADY_WINDOW}");
    let full_window = format!("RL.SLIDING full:{{key}} {TIGHT_WINDOW}");
    let all = format!(
        "RL.ALL 2 first:{{key}} second:{{key}} TOKENBUCKET {STEADY_BUCKET} SLIDING {STEADY_WINDOW}"
    );
    [
        (Subject::Set, "SET .. PX", SET_LINE.to_owned(), None),
        (Subject::Incr, "INCR", "INCR incr:{key}".to_owned(), None),
        (
            Subject::Get,
            "GET",
            "GET set:{key}".to_owned(),
            Some(SET_LINE.to_owned()),
        ),
        (
            Subject::BucketAllowed,
            "RL.TOKENBUCKET allowed",
            bucket.clone(),
            None,
        ),
        (
            Subject::BucketDenied,
            "RL.TOKENBUCKET denied",
            empty_bucket.clone(),
            None,
        ),
        (
            Subject::BucketDeniedMs,
            "RL.TOKENBUCKET denied, MS",
            format!("{empty_bucket} MS"),
            Some(empty_bucket),
        ),
        (
            Subject::BucketPreview,
            "RL.TOKENBUCKET_RO",
            bucket.replace("BUCKET ", "BUCKET_RO "),
            Some(bucket),
        ),
        (
            Subject::MissingPreview,
            "RL.TOKENBUCKET_RO, no such key",
            format!("RL.TOKENBUCKET_RO missing:{{key}} {STEADY_BUCKET}"),
            Some("PING".to_owned()),
        ),
        (
            Subject::SlidingAllowed,
            "RL.SLIDING allowed",
            window.clone(),
            None,
        ),
        (
            Subject::SlidingDenied,
            "RL.SLIDING denied",
            full_window.clone(),
            None,
        ),
        (
            Subject::SlidingDeniedMs,
            "RL.SLIDING denied, MS",
            format!("{full_window} MS"),
            Some(full_window),
        ),
        (
            Subject::SlidingPreview,
            "RL.SLIDING_RO",
            window.replace("SLIDING ", "SLIDING_RO "),
            Some(window),
        ),
        (Subject::All, "RL.ALL of two, allowed", all.clone(), None),
        (
            Subject::AllDenied,
            "RL.ALL of two, denied",
            format!(
                "RL.ALL 2 tight:{{key}} loose:{{key}} TOKENBUCKET {TIGHT_BUCKET} SLIDING {STEADY_WINDOW}"
            ),
            None,
        ),
        (
            Subject::AllPreview,
            "RL.ALL_RO of two",
            all.replace("RL.ALL ", "RL.ALL_RO "),
            Some(all),
        ),
    ]
    .into_iter()
    .map(|(subject, title, line, preparation)| {
        let call = Call::new(subject, title, &line, preparation.as_ref().unwrap_or(&line));
        call.of_limiters(match subject {
            Subject::All | Subject::AllDenied | Subject::AllPreview => 2,
            _ => 1,
        })
    })
    .collect()
}

/// The scripts by EVALSHA.
pub fn calls_of_the_scripts(scripts: &Scripts) -> Vec<Call> {
    let bucket = scripts.token_bucket_line("hash:{key}", STEADY_BUCKET, since_epoch_s() * 1000, 1);
    let window = scripts.sliding_window_line("strings:{key}");
    vec![
        Call::new(
            Subject::BucketScript,
            "EVALSHA token bucket",
            &bucket,
            &bucket,
        ),
        Call::new(
            Subject::SlidingScript,
            "EVALSHA sliding window",
            &window,
            &window,
        ),
    ]
}

/// A command of another module.
pub fn call_of_a_peer(place: usize, line: &str) -> Call {
    Call::new(Subject::Peer(place), line, line, line)
}

/// What a round trip costs without any work.
pub fn ping() -> Call {
    Call::new(Subject::Ping, "PING", "PING", "PING")
}

/// A call that is not in the common table.
pub fn other_call(subject: Subject, title: &str, line: &str) -> Call {
    Call::new(subject, title, line, line)
}
