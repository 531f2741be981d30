//! How the cost grows: with the number of keys, of rules, of connections.

use crate::load::{COMMON, Shape};
use crate::server::Server;
use crate::table::{Call, Row, SET, Scale, Table};
use crate::timing::{measure_calls, median};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What was varied, and the medians at each size.
#[derive(Serialize, Deserialize)]
pub struct Scaling {
    pub by: String,
    pub points: Vec<Point>,
}

#[derive(Serialize, Deserialize)]
pub struct Point {
    pub size: u32,
    pub name: String,
    /// Microseconds of server time.
    pub time: f64,
    /// Calls per second.
    pub rate: f64,
}

/// Capacity and refill rate that even one limiter called all the time does not exhaust.
const BUCKET: &str = "1000000 1000000";

pub fn measure(
    program: &Path,
    module: &Path,
    table: &Table,
    scale: &Scale,
) -> Result<Vec<Scaling>> {
    let row = |name: &str| table.call.iter().find(|row| row.name == name).cloned();
    let bucket = Row::new(
        "RL.TOKENBUCKET allowed",
        &format!("RL.TOKENBUCKET bucket:{{key}} {BUCKET}"),
    );
    let pair: Vec<Row> = row(SET).into_iter().chain([bucket]).collect();
    let with_script = [
        pair.clone(),
        row("EVALSHA token bucket").into_iter().collect(),
    ]
    .concat();
    let mut scaling = Vec::new();
    for (by, sizes) in [
        ("keys", &scale.keys),
        ("rules", &scale.rules),
        ("connections", &scale.connections),
    ] {
        let server = Server::start(program, &[module], &[])?;
        let mut client = server.client()?;
        let mut points = Vec::new();
        for &size in sizes {
            let (mut plan, mut shape) = (scale.plan, COMMON);
            let rows = match by {
                "keys" => {
                    plan.keys = size;
                    pair.clone()
                }
                "rules" => vec![all_of(size)],
                _ => {
                    shape = Shape {
                        connections: size as usize,
                        pipeline: 1,
                    };
                    with_script.clone()
                }
            };
            let calls = rows.into_iter().map(|row| Call::new(row, &mut client));
            let calls = calls.collect::<Result<Vec<_>>>()?;
            let measured = measure_calls(&server, &calls, shape, plan)?;
            points.extend(measured.into_iter().map(|rounds| Point {
                size,
                name: rounds.name,
                time: median(rounds.time),
                rate: median(rounds.rate),
            }));
        }
        scaling.push(Scaling {
            by: by.to_owned(),
            points,
        });
    }
    Ok(scaling)
}

/// RL.ALL of `count` buckets.
fn all_of(count: u32) -> Row {
    let keys: String = (0..count)
        .map(|rule| format!(" rule{rule}:{{key}}"))
        .collect();
    let rules = format!(" TOKENBUCKET {BUCKET}").repeat(count as usize);
    let limiters = Some(count);
    Row {
        limiters,
        ..Row::new("RL.ALL allowed", &format!("RL.ALL {count}{keys}{rules}"))
    }
}
