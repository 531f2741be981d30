//! (c) Bytes that a limiter takes in the server's memory, with its ttl.

use crate::Result;
use crate::calls::{STEADY_WINDOW, Scripts, Template, since_epoch_s};
use crate::load::{COMMON, Keys, run};
use crate::resp::Client;
use crate::server::{Launch, Program, Server};
use std::path::Path;

/// Calls of each limiter: the first creates its key, later ones may change how it is held.
const CALLS_A_LIMITER: u64 = 3;

/// Milliseconds from one call of a bucket to the next.
const STEP_MS: u64 = 137;

/// The rule and the cost of a bucket's calls, by which, as in nearly every bucket that is in use, no
/// whole number of tokens is left: the script's hash holds them as digits.
const BUCKET: &str = "100 10";
const BUCKET_COST: u32 = 5;

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bucket,
    Window,
    BucketScript,
    WindowScript,
}

pub const KINDS: [Kind; 4] = [
    Kind::Bucket,
    Kind::BucketScript,
    Kind::Window,
    Kind::WindowScript,
];

impl Kind {
    pub fn title(self) -> &'static str {
        match self {
            Self::Bucket => "RL.TOKENBUCKET: a string of 20 bytes",
            Self::BucketScript => "its script: a hash",
            Self::Window => "RL.SLIDING: a string of 36 bytes",
            Self::WindowScript => "its script: three strings",
        }
    }
}

/// Bytes a limiter.
pub struct Bytes {
    pub kind: Kind,
    /// By MEMORY USAGE, over its keys.
    pub by_usage: f64,
    /// By the growth of used_memory: the tables of keys and of deadlines included.
    pub by_growth: f64,
}

/// The bytes on one server.
pub struct Memory {
    pub server: String,
    pub limiters: u32,
    pub bytes: Vec<Bytes>,
}

impl Memory {
    pub fn of(&self, kind: Kind) -> Option<&Bytes> {
        self.bytes.iter().find(|bytes| bytes.kind == kind)
    }

    /// Growth of `kind` as a multiple of that of `base`.
    pub fn ratio(&self, kind: Kind, base: Kind) -> Option<f64> {
        Some(self.of(kind)?.by_growth / self.of(base)?.by_growth)
    }
}

pub fn measure(program: &Program, module: &Path, limiters: u32) -> Result<Memory> {
    let mut bytes = Vec::new();
    let mut version = String::new();
    for kind in KINDS {
        // A server of its own, so that no memory freed by another kind is used again.
        let server = Server::start(
            program,
            &Launch {
                modules: &[module.to_owned()],
                ..Launch::default()
            },
        )?;
        version = server.version()?;
        bytes.push(measure_kind(&server, kind, limiters)?);
    }
    Ok(Memory {
        server: version,
        limiters,
        bytes,
    })
}

fn measure_kind(server: &Server, kind: Kind, limiters: u32) -> Result<Bytes> {
    let mut client = server.client()?;
    let scripts = Scripts::load(&mut client)?;
    let first_ms = since_epoch_s() * 1000;
    let template = |step: u64| {
        let now_ms = first_ms + step * STEP_MS;
        Template::new(&match kind {
            Kind::Bucket => {
                format!("RL.TOKENBUCKET user:{{key}} {BUCKET} COST {BUCKET_COST} NOW {now_ms}")
            }
            Kind::Window => format!("RL.SLIDING user:{{key}} {STEADY_WINDOW}"),
            Kind::BucketScript => {
                scripts.token_bucket_line("user:{key}", BUCKET, now_ms, BUCKET_COST)
            }
            Kind::WindowScript => scripts.sliding_window_line("user:{key}"),
        })
    };
    // What a first call allocates for good, such as a script's machine, is not a limiter's.
    run(server.port, &template(0), COMMON, Keys::EachOnce(1))?;
    let before = used_memory(&mut client)?;
    for step in 0..CALLS_A_LIMITER {
        run(
            server.port,
            &template(step),
            COMMON,
            Keys::EachOnce(limiters),
        )?;
    }
    let grown = used_memory(&mut client)?.saturating_sub(before);
    let keys = match kind {
        Kind::WindowScript => vec!["user:00000001:c", "user:00000001:p", "user:00000001:i"],
        _ => vec!["user:00000001"],
    };
    let mut by_usage = 0;
    for key in keys {
        by_usage += client
            .call(&["MEMORY", "USAGE", key, "SAMPLES", "0"])?
            .integer()?;
    }
    Ok(Bytes {
        kind,
        by_usage: by_usage as f64,
        by_growth: grown as f64 / f64::from(limiters),
    })
}

/// Memory in use, without what connections that just ended have left behind.
fn used_memory(client: &mut Client) -> Result<u64> {
    std::thread::sleep(std::time::Duration::from_millis(150));
    client.info_number("memory", "used_memory")
}
