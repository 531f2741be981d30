//! (d) Bytes that a call adds to the AOF and to the replication stream.

use crate::Result;
use crate::calls::{Call, Scripts, Subject, calls_of_the_module, calls_of_the_scripts};
use crate::load::{COMMON, Keys, run};
use crate::resp::Client;
use crate::server::{Launch, Program, Server};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Limiters that are called.
const KEYS: u32 = 100;

/// Calls that the bytes are spread over.
const CALLS: u32 = 1_000;

/// How long a replica may take to be in step, and an AOF to be written anew.
const PATIENCE: Duration = Duration::from_secs(15);

/// Bytes a call.
pub struct Propagated {
    pub title: String,
    pub aof: f64,
    pub replication: f64,
}

pub fn measure(program: &Program, module: &Path) -> Result<Vec<Propagated>> {
    let launch = |options: &[&str]| {
        Server::start(
            program,
            &Launch {
                modules: &[module.to_owned()],
                options,
                ..Launch::default()
            },
        )
    };
    let primary = launch(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "everysec",
        // No PING to the replica, and no new AOF, may fall into a measurement.
        "--repl-ping-replica-period",
        "3600",
        "--auto-aof-rewrite-percentage",
        "0",
        "--repl-diskless-sync-delay",
        "0",
    ])?;
    let replica = launch(&["--replicaof", &format!("127.0.0.1 {}", primary.port)])?;
    let mut client = primary.client()?;
    await_state(
        &mut replica.client()?,
        "replication",
        "master_link_status",
        "up",
    )?;
    await_state(&mut client, "persistence", "aof_rewrite_in_progress", "0")?;

    let mut calls = calls_of_the_module();
    calls.extend(calls_of_the_scripts(&Scripts::load(&mut client)?));
    calls
        .iter()
        .filter(|call| !is_told_by_another(call))
        .map(|call| {
            run(
                primary.port,
                &call.preparation,
                COMMON,
                Keys::EachOnce(KEYS),
            )?;
            let (aof, replication) = written(&mut client)?;
            run(
                primary.port,
                &call.template,
                COMMON,
                Keys::Calls(KEYS, CALLS),
            )?;
            let (aof_after, replication_after) = written(&mut client)?;
            let a_call = |bytes: u64| bytes as f64 / f64::from(CALLS);
            Ok(Propagated {
                title: call.title.clone(),
                aof: a_call(aof_after - aof),
                replication: a_call(replication_after - replication),
            })
        })
        .collect()
}

/// GET writes nothing, one preview is as the other, and the unit of a reply changes nothing.
fn is_told_by_another(call: &Call) -> bool {
    matches!(
        call.subject,
        Subject::Get | Subject::MissingPreview | Subject::BucketDeniedMs | Subject::SlidingDeniedMs
    )
}

/// Bytes in the AOF and in the replication stream so far.
fn written(client: &mut Client) -> Result<(u64, u64)> {
    // Long enough for what the last call left to be written.
    sleep(Duration::from_millis(50));
    Ok((
        client.info_number("persistence", "aof_current_size")?,
        client.info_number("replication", "master_repl_offset")?,
    ))
}

fn await_state(client: &mut Client, section: &str, field: &str, state: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while client.info(section, field)? != state {
        if Instant::now() > deadline {
            return Err(format!("{field} did not become {state}").into());
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}
