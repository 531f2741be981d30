//! (e) How the cost grows: with the number of keys, of rules, of connections.

use crate::Result;
use crate::calls::{
    Call, ROOMY_BUCKET, SET_LINE, Scripts, Subject, calls_of_the_scripts, other_call,
};
use crate::load::{COMMON, Shape};
use crate::server::{Launch, Program, Server};
use crate::timing::{Plan, Timing, measure_calls};
use std::path::Path;
use std::time::Duration;

/// A call's medians at each size.
pub struct Line {
    pub title: String,
    /// Size, microseconds of server time, calls a second.
    pub points: Vec<(u32, f64, f64)>,
}

/// What was varied.
pub struct Scaling {
    pub keys: Vec<Line>,
    pub rules: Vec<Line>,
    pub connections: Vec<Line>,
}

/// The sizes.
pub struct Sizes {
    pub keys: &'static [u32],
    pub rules: &'static [u32],
    pub connections: &'static [u32],
    pub rounds: usize,
    pub time_a_turn: Duration,
}

/// Keys where something else is varied: limiters in all, for RL.ALL too.
const KEYS: u32 = 10_000;

pub fn measure(program: &Program, module: &Path, sizes: &Sizes) -> Result<Scaling> {
    let start = || {
        Server::start(
            program,
            &Launch {
                modules: &[module.to_owned()],
                ..Launch::default()
            },
        )
    };
    let plan = |keys| Plan {
        keys,
        servers: 1,
        rounds: sizes.rounds,
        time_a_turn: sizes.time_a_turn,
        append_only: false,
    };

    let server = start()?;
    let mut keys = Vec::new();
    for &count in sizes.keys {
        let timings = measure_calls(&server, &set_and_allowed(), COMMON, plan(count))?;
        extend(&mut keys, count, timings);
    }

    let server = start()?;
    let mut rules = Vec::new();
    for &count in sizes.rules {
        let call = all_of(count);
        extend(
            &mut rules,
            count,
            measure_calls(&server, &[call], COMMON, plan(KEYS))?,
        );
    }

    let server = start()?;
    let mut connections = Vec::new();
    let mut calls = set_and_allowed();
    let scripts = Scripts::load(&mut server.client()?)?;
    calls.extend(calls_of_the_scripts(&scripts).into_iter().take(1));
    for &count in sizes.connections {
        let shape = Shape {
            connections: count as usize,
            pipeline: 1,
        };
        extend(
            &mut connections,
            count,
            measure_calls(&server, &calls, shape, plan(KEYS))?,
        );
    }
    Ok(Scaling {
        keys,
        rules,
        connections,
    })
}

fn set_and_allowed() -> Vec<Call> {
    let bucket = format!("RL.TOKENBUCKET bucket:{{key}} {ROOMY_BUCKET}");
    vec![
        other_call(Subject::Set, "SET .. PX", SET_LINE),
        other_call(Subject::BucketAllowed, "RL.TOKENBUCKET allowed", &bucket),
    ]
}

/// RL.ALL of `count` buckets.
fn all_of(count: u32) -> Call {
    let keys: Vec<_> = (0..count)
        .map(|rule| format!("rule{rule}:{{key}}"))
        .collect();
    let rules = vec![format!("TOKENBUCKET {ROOMY_BUCKET}"); count as usize];
    let line = format!("RL.ALL {count} {} {}", keys.join(" "), rules.join(" "));
    other_call(Subject::All, "RL.ALL allowed", &line).of_limiters(count)
}

fn extend(lines: &mut Vec<Line>, size: u32, timings: Vec<Timing>) {
    for timing in timings {
        let point = (size, timing.usec, timing.calls_per_s);
        match lines.iter_mut().find(|line| line.title == timing.title) {
            Some(line) => line.points.push(point),
            None => lines.push(Line {
                title: timing.title,
                points: vec![point],
            }),
        }
    }
}
