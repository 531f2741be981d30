//! (a) Server time a call and throughput, by rounds in which every call has its turn.

use crate::Result;
use crate::calls::{
    Call, Scripts, Subject, Template, call_of_a_peer, calls_of_the_module, calls_of_the_scripts,
};
use crate::commandstats::Spent;
use crate::load::{COMMON, Keys, Shape, run};
use crate::peers::Peers;
use crate::server::{Launch, Program, Server};
use std::path::Path;
use std::time::Duration;

/// What is measured of each call.
#[derive(Clone, Copy)]
pub struct Plan {
    pub keys: u32,
    /// Servers that are started for it, one after another: where in memory a server's keys come to lie
    /// weighs as much as anything else.
    pub servers: usize,
    /// Rounds on each of them.
    pub rounds: usize,
    pub time_a_turn: Duration,
    pub append_only: bool,
}

/// A call's medians over the rounds.
pub struct Timing {
    pub subject: Subject,
    pub title: String,
    pub usec: f64,
    pub calls_per_s: f64,
    usec_by_round: Vec<f64>,
    calls_per_s_by_round: Vec<f64>,
}

/// The calls of one server.
pub struct Timings {
    pub server: String,
    pub keys: u32,
    pub append_only: bool,
    pub timings: Vec<Timing>,
}

impl Timings {
    pub fn of(&self, subject: Subject) -> Option<&Timing> {
        self.timings.iter().find(|timing| timing.subject == subject)
    }

    /// Server time of `subject` as a multiple of that of `base`: the median of the rounds' ratios, so
    /// that what slows the machine down for a while slows both.
    pub fn time_ratio(&self, subject: Subject, base: Subject) -> Option<f64> {
        let (subject, base) = (self.of(subject)?, self.of(base)?);
        Some(median_ratio(&subject.usec_by_round, &base.usec_by_round))
    }

    /// Calls a second of `subject` as a multiple of those of `base`.
    pub fn rate_ratio(&self, subject: Subject, base: Subject) -> Option<f64> {
        let (subject, base) = (self.of(subject)?, self.of(base)?);
        Some(median_ratio(
            &subject.calls_per_s_by_round,
            &base.calls_per_s_by_round,
        ))
    }
}

pub fn measure(program: &Program, module: &Path, peers: &Peers, plan: Plan) -> Result<Timings> {
    let mut modules = vec![module.to_owned()];
    modules.extend(peers.modules());
    let append_only = ["--appendonly", "yes", "--appendfsync", "everysec"];
    let launch = Launch {
        modules: &modules,
        options: if plan.append_only { &append_only } else { &[] },
        ..Launch::default()
    };
    let mut version = String::new();
    let mut measured = Vec::new();
    for _ in 0..plan.servers {
        let server = Server::start(program, &launch)?;
        let mut client = server.client()?;
        version = server.version()?;
        let mut calls = calls_of_the_module();
        calls.extend(calls_of_the_scripts(&Scripts::load(&mut client)?));
        calls.extend(
            peers
                .lines()
                .enumerate()
                .map(|(place, line)| call_of_a_peer(place, line)),
        );
        measured.push(measure_calls(&server, &calls, COMMON, plan)?);
    }
    Ok(Timings {
        server: version,
        keys: plan.keys,
        append_only: plan.append_only,
        timings: merge(measured),
    })
}

/// The calls' medians over the rounds on all servers.
fn merge(measured: Vec<Vec<Timing>>) -> Vec<Timing> {
    measured
        .into_iter()
        .reduce(|mut all, next| {
            for (timing, next) in all.iter_mut().zip(next) {
                timing.usec_by_round.extend(next.usec_by_round);
                timing
                    .calls_per_s_by_round
                    .extend(next.calls_per_s_by_round);
                timing.usec = median(timing.usec_by_round.clone());
                timing.calls_per_s = median(timing.calls_per_s_by_round.clone());
            }
            all
        })
        .unwrap_or_default()
}

/// Measures `calls` on a running server, after preparing each key.
pub fn measure_calls(
    server: &Server,
    calls: &[Call],
    shape: Shape,
    plan: Plan,
) -> Result<Vec<Timing>> {
    let mut client = server.client()?;
    let mut prepared: Vec<&Template> = Vec::new();
    for call in calls {
        // Calls on the same keys share their preparation.
        if !prepared.contains(&&call.preparation) {
            prepared.push(&call.preparation);
            let keys = Keys::EachOnce(call.numbers(plan.keys));
            run(server.port, &call.preparation, COMMON, keys)?;
        }
    }
    let mut measured = vec![(Vec::new(), Vec::new()); calls.len()];
    for _ in 0..plan.rounds {
        for (call, (usec, calls_per_s)) in calls.iter().zip(&mut measured) {
            let before = Spent::on(&mut client, &call.counted_as)?;
            let keys = Keys::AnyOf(call.numbers(plan.keys), plan.time_a_turn);
            let done = run(server.port, &call.template, shape, keys)?;
            let after = Spent::on(&mut client, &call.counted_as)?;
            usec.push(after.usec_per_call_since(before));
            calls_per_s.push(done.calls_per_s());
        }
    }
    Ok(calls
        .iter()
        .zip(measured)
        .map(|(call, (usec, calls_per_s))| Timing {
            subject: call.subject,
            title: call.title.clone(),
            usec: median(usec.clone()),
            calls_per_s: median(calls_per_s.clone()),
            usec_by_round: usec,
            calls_per_s_by_round: calls_per_s,
        })
        .collect())
}

fn median_ratio(numbers: &[f64], bases: &[f64]) -> f64 {
    median(
        numbers
            .iter()
            .zip(bases)
            .map(|(number, base)| number / base)
            .collect(),
    )
}

/// The median; of an even number of values the lower of the two in the middle.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() - 1) / 2]
}
