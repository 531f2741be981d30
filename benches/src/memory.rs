//! Bytes that a limiter takes in the server's memory, with its ttl.

use crate::load::{COMMON, Keys, run};
use crate::server::{Client, Server, info};
use crate::table::{Call, Held, now_ms};
use anyhow::Result;
use redis::cmd;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Calls of each limiter: the first creates its key, later ones may change how it is held.
const CALLS_EACH: u64 = 3;

/// Milliseconds from one call of a limiter to the next.
const STEP_MS: u64 = 137;

/// Bytes per limiter.
#[derive(Serialize, Deserialize)]
pub struct Bytes {
    pub server: String,
    pub name: String,
    pub form: String,
    /// By MEMORY USAGE, over its keys.
    pub usage: u64,
    /// By the growth of used_memory: the tables of keys and of deadlines included.
    pub growth: f64,
    /// That the growth is spread over.
    pub limiters: u32,
}

/// Measures `held` on a dedicated server, so that no memory that another limiter has freed is used again.
pub fn measure(program: &Path, module: &Path, held: &Held, limiters: u32) -> Result<Bytes> {
    let server = Server::start(program, &[module], &[])?;
    let mut client = server.client()?;
    let first_ms = now_ms();
    let call_each = |step: u64, limiters| {
        let call = Call::at(
            held.row.clone(),
            &mut server.client()?,
            first_ms + step * STEP_MS,
        )?;
        run(
            server.port,
            &call.template,
            COMMON,
            Keys::EachOnce(limiters),
        )
    };
    // What a first call allocates for good, such as a script's machine, is not a limiter's.
    call_each(0, 1)?;
    let before = used_memory(&mut client)?;
    for step in 0..CALLS_EACH {
        call_each(step, limiters)?;
    }
    let grown = used_memory(&mut client)? - before;
    let mut usage = 0;
    for key in &held.keys {
        let mut ask = cmd("MEMORY");
        usage += ask
            .arg("USAGE")
            .arg(key)
            .arg("SAMPLES")
            .arg(0)
            .query::<u64>(&mut client)?;
    }
    Ok(Bytes {
        server: server.version()?,
        name: held.row.name.clone(),
        form: held.form.clone(),
        usage,
        growth: grown / f64::from(limiters),
        limiters,
    })
}

/// Memory in use, without what connections that just ended have left behind.
fn used_memory(client: &mut Client) -> Result<f64> {
    std::thread::sleep(Duration::from_millis(150));
    Ok(info(client, "memory", "used_memory")?.parse()?)
}
