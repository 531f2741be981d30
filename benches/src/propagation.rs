//! Bytes that a call adds to the AOF and to the replication stream.

use crate::load::{COMMON, Keys, prepare, run};
use crate::server::{Client, Server, await_info, info};
use crate::table::Table;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// Limiters that are called.
const KEYS: u32 = 100;

/// Calls that the bytes are spread over.
const CALLS: u32 = 1_000;

/// No PING to the replica, and no new AOF, may fall into a measurement.
const PRIMARY: &str = "--appendonly yes --appendfsync everysec --repl-ping-replica-period 3600 \
     --auto-aof-rewrite-percentage 0 --repl-diskless-sync-delay 0";

/// Bytes per call.
#[derive(Serialize, Deserialize)]
pub struct Propagated {
    pub name: String,
    pub aof: f64,
    pub replication: f64,
}

pub fn measure(program: &Path, module: &Path, table: &Table) -> Result<Vec<Propagated>> {
    let options: Vec<&str> = PRIMARY.split_whitespace().collect();
    let primary = Server::start(program, &[module], &options)?;
    let replica = Server::start(
        program,
        &[module],
        &["--replicaof", "127.0.0.1", &primary.port.to_string()],
    )?;
    let mut client = primary.client()?;
    await_info(
        &mut replica.client()?,
        "replication",
        "master_link_status",
        "up",
    )?;
    await_info(&mut client, "persistence", "aof_rewrite_in_progress", "0")?;
    let calls = table.calls(&mut client)?;
    prepare(primary.port, &calls, KEYS, COMMON)?;
    let mut propagated = Vec::new();
    for call in calls {
        let before = written(&mut client)?;
        run(
            primary.port,
            &call.template,
            COMMON,
            Keys::Calls(call.numbers(KEYS), CALLS),
        )?;
        let after = written(&mut client)?;
        propagated.push(Propagated {
            name: call.row.name,
            aof: (after.0 - before.0) / f64::from(CALLS),
            replication: (after.1 - before.1) / f64::from(CALLS),
        });
    }
    Ok(propagated)
}

/// Bytes in the AOF and in the replication stream so far.
fn written(client: &mut Client) -> Result<(f64, f64)> {
    // Long enough for what the last call left to be written.
    sleep(Duration::from_millis(50));
    Ok((
        info(client, "persistence", "aof_current_size")?.parse()?,
        info(client, "replication", "master_repl_offset")?.parse()?,
    ))
}
