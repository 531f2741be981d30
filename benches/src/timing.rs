//! Server time per call and throughput, by rounds in which every call has its turn.

use crate::load::{COMMON, Keys, Shape, prepare, run};
use crate::server::{Client, Server, info};
use crate::table::{Call, Plan, Row, Table};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a plan measured.
#[derive(Serialize, Deserialize)]
pub struct Planned {
    pub keys: u32,
    pub append_only: bool,
    pub servers: Vec<Timings>,
}

/// The calls of one server.
#[derive(Serialize, Deserialize)]
pub struct Timings {
    pub server: String,
    pub calls: Vec<Rounds>,
}

/// A call's figures of each round. The page shows their medians, and those of the rounds' ratios, so that what
/// slows the machine down for a while slows both.
#[derive(Default, Serialize, Deserialize)]
pub struct Rounds {
    pub name: String,
    pub compared_with: String,
    /// Microseconds of server time.
    pub time: Vec<f64>,
    /// Calls per second.
    pub rate: Vec<f64>,
}

/// Other modules, measured beside this one: BENCH_PEERS. None is shipped.
#[derive(Default)]
pub struct Peers {
    modules: Vec<PathBuf>,
    rows: Vec<Row>,
}

impl Peers {
    /// Libraries with a command line each: `path.so=COMMAND {key} ...`, separated by `;` or by lines.
    pub fn from_environment() -> Result<Self> {
        let text = std::env::var("BENCH_PEERS").unwrap_or_default();
        let mut peers = Self::default();
        let entries = text.split([';', '\n']).map(str::trim);
        for entry in entries.filter(|entry| !entry.is_empty()) {
            let (path, line) = entry.split_once('=').with_context(|| {
                format!("BENCH_PEERS: path.so=COMMAND {{key}} .. expected, not {entry}")
            })?;
            let module = std::fs::canonicalize(path.trim())
                .with_context(|| format!("BENCH_PEERS: {path}"))?;
            if !peers.modules.contains(&module) {
                peers.modules.push(module);
            }
            peers.rows.push(Row::new(line.trim(), line.trim()));
        }
        Ok(peers)
    }

    /// The libraries to load, with the module's.
    pub fn beside<'a>(&'a self, module: &'a Path) -> Vec<&'a Path> {
        let peers = self.modules.iter().map(PathBuf::as_path);
        std::iter::once(module).chain(peers).collect()
    }
}

pub fn measure(
    program: &Path,
    module: &Path,
    table: &Table,
    peers: &Peers,
    plan: Plan,
) -> Result<Timings> {
    let append_only: &[&str] = if plan.append_only {
        &["--appendonly", "yes", "--appendfsync", "everysec"]
    } else {
        &[]
    };
    let mut timings = Timings {
        server: String::new(),
        calls: Vec::new(),
    };
    for _ in 0..plan.servers {
        let server = Server::start(program, &peers.beside(module), append_only)?;
        let mut client = server.client()?;
        let mut calls = table.calls(&mut client)?;
        for row in &peers.rows {
            calls.push(Call::new(row.clone(), &mut client)?);
        }
        let measured = measure_calls(&server, &calls, COMMON, plan)?;
        timings.server = server.version()?;
        if timings.calls.is_empty() {
            timings.calls = measured;
            continue;
        }
        for (all, more) in timings.calls.iter_mut().zip(measured) {
            all.time.extend(more.time);
            all.rate.extend(more.rate);
        }
    }
    Ok(timings)
}

/// Measures `calls` on a running server, after preparing each key.
pub fn measure_calls(
    server: &Server,
    calls: &[Call],
    shape: Shape,
    plan: Plan,
) -> Result<Vec<Rounds>> {
    let mut client = server.client()?;
    prepare(server.port, calls, plan.keys, COMMON)?;
    let rounds = calls.iter().map(|call| Rounds {
        name: call.row.name.clone(),
        compared_with: call.row.compared_with().to_owned(),
        ..Rounds::default()
    });
    let mut measured: Vec<Rounds> = rounds.collect();
    for _ in 0..plan.rounds {
        for (call, rounds) in calls.iter().zip(&mut measured) {
            let before = spent(&mut client, &call.command)?;
            let keys = Keys::AnyOf(call.numbers(plan.keys), Duration::from_millis(plan.turn_ms));
            let rate = run(server.port, &call.template, shape, keys)?;
            let after = spent(&mut client, &call.command)?;
            rounds.rate.push(rate);
            rounds
                .time
                .push((after.1 - before.1) / (after.0 - before.0));
        }
    }
    Ok(measured)
}

/// Calls of a command so far, and the microseconds that they took in its handler. EVALSHA counts its script
/// as a whole. A call's time is cut to whole microseconds, but by a clock that its start is not aligned with,
/// so that the mean of many is exact.
fn spent(client: &mut Client, command: &str) -> Result<(f64, f64)> {
    let Ok(counts) = info(client, "commandstats", &format!("cmdstat_{command}")) else {
        // Nobody has called it.
        return Ok((0.0, 0.0));
    };
    let number = |field: &str| -> Result<f64> {
        let mut pairs = counts.split(',').filter_map(|pair| pair.split_once('='));
        let (_, value) = pairs
            .find(|(name, _)| *name == field)
            .with_context(|| format!("commandstats of {command} lacks {field}"))?;
        Ok(value.parse()?)
    };
    Ok((number("calls")?, number("usec")?))
}

/// The median; of an even number of values the lower of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}
