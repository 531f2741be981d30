//! (b) The ladder: an open loop at a constant arrival rate, tier by tier, until the server falls over.
//!
//! Calls come when they are due, whether or not earlier ones were answered, and a latency counts from the
//! time at which its call was due. A closed loop would wait for a slow server and so hide how slow it is.

use crate::Result;
use crate::calls::{Call, Template};
use crate::load::{Connection, Random};
use hdrhistogram::Histogram;
use mio::{Events, Poll};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Calls a second of the first tier; each further one doubles it.
const FIRST_RATE: f64 = 10_000.0;

/// The last tier that is tried, held or not.
const LAST_RATE: f64 = 2_560_000.0;

/// Connections that the calls are spread over, in turn.
const CONNECTIONS: usize = 50;

/// A tier holds only if at least this share of what was due was answered in its time,
const LEAST_ACHIEVED: f64 = 0.95;

/// and if 99 % of the calls were answered within this time of being due.
const MOST_P99: Duration = Duration::from_millis(10);

/// Calls under way at most: beyond them, due calls wait in the generator, their clock running.
const MOST_UNDER_WAY: u64 = 200_000;

/// The longest latency that is told apart, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies keep three digits.
const DIGITS: u8 = 3;

/// What happened at one arrival rate.
pub struct Tier {
    /// Calls a second that were due.
    pub rate: f64,
    /// Calls a second that were answered.
    pub achieved: f64,
    pub p50: Duration,
    pub p95: Duration,
    pub p99: Duration,
    pub p999: Duration,
    /// How late the generator itself handed 99 % of the calls to their sockets.
    pub sent_late_p99: Duration,
}

impl Tier {
    pub fn holds(&self) -> bool {
        self.achieved >= LEAST_ACHIEVED * self.rate && self.p99 <= MOST_P99
    }
}

/// The tiers of one call: the last one failed, or nothing did.
pub struct Ladder {
    pub title: String,
    pub tiers: Vec<Tier>,
}

impl Ladder {
    /// The highest rate that held; 0 if none did.
    pub fn highest_held(&self) -> f64 {
        self.tiers
            .iter()
            .filter(|tier| tier.holds())
            .map(|tier| tier.rate)
            .fold(0.0, f64::max)
    }
}

/// Climbs until a tier fails. The keys must have been prepared.
pub fn climb(port: u16, call: &Call, keys: u32, time: Duration) -> Result<Ladder> {
    let mut tiers = Vec::new();
    let mut rate = FIRST_RATE;
    while rate <= LAST_RATE {
        let tier = stand(port, &call.template, keys, rate, time)?;
        let holds = tier.holds();
        tiers.push(tier);
        if !holds {
            break;
        }
        rate *= 2.0;
    }
    Ok(Ladder {
        title: call.title.clone(),
        tiers,
    })
}

/// One tier.
fn stand(port: u16, template: &Template, keys: u32, rate: f64, time: Duration) -> Result<Tier> {
    let mut poll = Poll::new()?;
    let mut connections = Connection::open(&poll, port, CONNECTIONS)?;
    let mut under_way: Vec<VecDeque<u64>> = vec![VecDeque::new(); CONNECTIONS];
    let mut events = Events::with_capacity(CONNECTIONS);
    let mut chunk = vec![0; 64 * 1024];
    let mut random = Random::new();
    let mut latencies = Histogram::<u64>::new_with_max(LONGEST_NS, DIGITS)?;
    let mut lateness = Histogram::<u64>::new_with_max(LONGEST_NS, DIGITS)?;

    let due_at = |call: u64| Duration::from_secs_f64(call as f64 / rate);
    let late = |call: u64, now: Duration| now.saturating_sub(due_at(call)).as_nanos() as u64;
    let (mut sent, mut answered) = (0u64, 0u64);
    let start = Instant::now();
    loop {
        let now = start.elapsed();
        if now >= time {
            break;
        }
        let due = (now.as_secs_f64() * rate) as u64 + 1;
        let first = sent;
        while sent < due && sent - answered < MOST_UNDER_WAY {
            let place = sent as usize % CONNECTIONS;
            template.append(random.below(keys), &mut connections[place].outgoing);
            under_way[place].push_back(sent);
            sent += 1;
        }
        for connection in &mut connections {
            if !connection.outgoing.is_empty() {
                connection.send()?;
            }
        }
        let now = start.elapsed();
        for call in first..sent {
            lateness.saturating_record(late(call, now));
        }
        poll.poll(&mut events, Some(Duration::ZERO))?;
        for event in &events {
            let place = event.token().0;
            let replies = connections[place].receive(&mut chunk)?;
            let now = start.elapsed();
            for call in under_way[place].drain(..replies) {
                latencies.saturating_record(late(call, now));
            }
            answered += replies as u64;
        }
    }
    let achieved = answered as f64 / start.elapsed().as_secs_f64();
    // What was due and has no answer has waited at least until now.
    for call in under_way.into_iter().flatten() {
        latencies.saturating_record(late(call, time));
    }
    for call in sent..(time.as_secs_f64() * rate) as u64 {
        latencies.saturating_record(late(call, time));
    }
    let at = |quantile| Duration::from_nanos(latencies.value_at_quantile(quantile));
    Ok(Tier {
        rate,
        achieved,
        p50: at(0.5),
        p95: at(0.95),
        p99: at(0.99),
        p999: at(0.999),
        sent_late_p99: Duration::from_nanos(lateness.value_at_quantile(0.99)),
    })
}
