//! The ladder: an open loop at a constant arrival rate, tier by tier, until the server falls over.
//!
//! Calls come when they are due, whether or not earlier ones were answered, and a latency counts from the
//! time at which its call was due. A closed loop would wait for a slow server and so hide how slow it is.

use crate::load::{COMMON, Connection, key_numbers, prepare};
use crate::server::Server;
use crate::table::{Call, Extent, Table};
use anyhow::Result;
use hdrhistogram::Histogram;
use mio::{Events, Poll};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

/// Calls per second of the first tier; each further one doubles it.
const FIRST_RATE: f64 = 10_000.0;

/// The last tier that is tried, held or not.
const LAST_RATE: f64 = 2_560_000.0;

/// Connections that the calls are spread over, in turn.
const CONNECTIONS: usize = 50;

/// A tier holds only if at least this share of what was due was answered in its time,
const MIN_ACHIEVED: f64 = 0.95;

/// and if 99 % of the calls were answered within so many milliseconds of being due.
const MAX_P99_MS: f64 = 10.0;

/// Replies under way at most: beyond them, due calls wait in the generator, their clock running.
const MAX_UNDER_WAY: u64 = 200_000;

/// The longest latency that is told apart, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies keep three digits.
const DIGITS: u8 = 3;

/// What happened at one arrival rate. Latencies are in milliseconds.
#[derive(Serialize, Deserialize)]
pub struct Tier {
    pub name: String,
    /// Calls per second that were due.
    pub rate: f64,
    /// Calls per second that were answered.
    pub achieved: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    /// How late the generator itself handed 99 % of the calls to their sockets.
    pub sent_late_p99: f64,
    pub holds: bool,
}

/// The tiers of each call of the table that climbs: the last one failed, or nothing did.
pub fn measure(program: &Path, module: &Path, table: &Table, extent: &Extent) -> Result<Vec<Tier>> {
    let (keys, time) = (extent.plans[0].keys, Duration::from_millis(extent.tier_ms));
    let server = Server::start(program, &[module], &[])?;
    let mut calls = table.calls(&mut server.client()?)?;
    calls.retain(|call| call.row.ladder);
    prepare(server.port, &calls, keys, COMMON)?;
    let mut tiers = Vec::new();
    for call in calls {
        let mut rate = FIRST_RATE;
        loop {
            // A shared machine that stops for a moment must not look like the server's limit.
            let mut tier = stand(server.port, &call, keys, rate, time)?;
            for _ in 1..TRIES {
                if !tier.holds {
                    tier = stand(server.port, &call, keys, rate, time)?;
                }
            }
            let is_last = !tier.holds || rate >= LAST_RATE;
            tiers.push(tier);
            if is_last {
                break;
            }
            rate *= 2.0;
        }
    }
    Ok(tiers)
}

/// How often a tier that fails is tried in all.
const TRIES: usize = 3;

/// One tier.
fn stand(port: u16, call: &Call, keys: u32, rate: f64, time: Duration) -> Result<Tier> {
    let (template, keys) = (&call.template, call.numbers(keys));
    let mut poll = Poll::new()?;
    let mut connections = Connection::open(&poll, port, CONNECTIONS)?;
    let mut under_way: Vec<VecDeque<u64>> = vec![VecDeque::new(); CONNECTIONS];
    let mut events = Events::with_capacity(CONNECTIONS);
    let mut chunk = vec![0; 64 * 1024];
    let mut random = key_numbers();
    let mut latencies = Histogram::<u64>::new_with_max(LONGEST_NS, DIGITS)?;
    let mut lateness = Histogram::<u64>::new_with_max(LONGEST_NS, DIGITS)?;

    let replies_each = template.commands as u64;
    let due_at = |call: u64| Duration::from_secs_f64(call as f64 / rate);
    let late = |call: u64, now: Duration| now.saturating_sub(due_at(call)).as_nanos() as u64;
    let (mut sent, mut replies) = (0u64, 0u64);
    let start = Instant::now();
    loop {
        let now = start.elapsed();
        if now >= time {
            break;
        }
        let due = (now.as_secs_f64() * rate) as u64 + 1;
        let first = sent;
        while sent < due && sent * replies_each - replies < MAX_UNDER_WAY {
            let place = sent as usize % CONNECTIONS;
            template.append(random.u32(..keys), &mut connections[place].outgoing);
            under_way[place].extend(std::iter::repeat_n(sent, template.commands));
            sent += 1;
        }
        for connection in connections
            .iter_mut()
            .filter(|connection| !connection.outgoing.is_empty())
        {
            connection.send()?;
        }
        let now = start.elapsed();
        for call in first..sent {
            lateness.saturating_record(late(call, now));
        }
        poll.poll(&mut events, Some(Duration::ZERO))?;
        for event in &events {
            let place = event.token().0;
            let received = connections[place].receive(&mut chunk)?;
            let now = start.elapsed();
            for call in under_way[place].drain(..received) {
                latencies.saturating_record(late(call, now));
            }
            replies += received as u64;
        }
    }
    let achieved = (replies / replies_each) as f64 / start.elapsed().as_secs_f64();
    // What was due and has no answer has waited at least until now.
    let unsent = sent..(time.as_secs_f64() * rate) as u64;
    for call in under_way.into_iter().flatten().chain(unsent) {
        latencies.saturating_record(late(call, time));
    }
    let ms =
        |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64 / 1e6;
    let p99 = ms(&latencies, 0.99);
    Ok(Tier {
        name: call.row.name.clone(),
        rate,
        achieved,
        p50: ms(&latencies, 0.5),
        p95: ms(&latencies, 0.95),
        p99,
        p999: ms(&latencies, 0.999),
        sent_late_p99: ms(&lateness, 0.99),
        holds: achieved >= MIN_ACHIEVED * rate && p99 <= MAX_P99_MS,
    })
}
