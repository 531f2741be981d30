//! The closed loop: each connection sends a batch of calls, waits for all their replies, sends the next.

use crate::Result;
use crate::calls::Template;
use crate::resp::take_replies;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Connections and calls a batch of the common tables: `redis-benchmark -c 50 -P 32`.
pub const COMMON: Shape = Shape {
    connections: 50,
    pipeline: 32,
};

/// How long replies may fail to come before a run is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connections and calls a batch.
#[derive(Clone, Copy)]
pub struct Shape {
    pub connections: usize,
    pub pipeline: usize,
}

/// Which keys are called.
#[derive(Clone, Copy)]
pub enum Keys {
    /// Each of so many, in order, once: then the run ends.
    EachOnce(u32),
    /// Any of so many, for a time.
    AnyOf(u32, Duration),
    /// Any of so many, so many calls in all.
    Calls(u32, u32),
}

/// A stream of key numbers that is the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }

    /// A number below `bound` (xorshift64 by Marsaglia).
    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * u128::from(bound)) >> 64) as u32
    }
}

/// A connection of a load generator.
pub struct Connection {
    stream: TcpStream,
    pub outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

impl Connection {
    /// Connections to a server, told apart in `poll` by their place.
    pub fn open(poll: &Poll, port: u16, count: usize) -> Result<Vec<Self>> {
        (0..count)
            .map(|place| {
                let stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let mut stream = TcpStream::from_std(stream);
                poll.registry()
                    .register(&mut stream, Token(place), Interest::READABLE)?;
                Ok(Self {
                    stream,
                    outgoing: Vec::new(),
                    incoming: Vec::new(),
                })
            })
            .collect()
    }

    /// Sends as much as the socket takes.
    pub fn send(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.outgoing.drain(..sent);
        Ok(())
    }

    /// Reads what there is; the number of replies that it completes.
    pub fn receive(&mut self, chunk: &mut [u8]) -> Result<usize> {
        loop {
            match self.stream.read(chunk) {
                Ok(0) => return Err("the server closed a connection".into()),
                Ok(count) => {
                    self.incoming.extend_from_slice(&chunk[..count]);
                    if count < chunk.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        take_replies(&mut self.incoming)
    }
}

/// What a run did.
pub struct Done {
    pub calls: u64,
    pub time: Duration,
}

impl Done {
    pub fn calls_per_s(&self) -> f64 {
        self.calls as f64 / self.time.as_secs_f64()
    }
}

/// Runs `template` against the server at `port`.
pub fn run(port: u16, template: &Template, shape: Shape, keys: Keys) -> Result<Done> {
    let mut poll = Poll::new()?;
    let mut connections = Connection::open(&poll, port, shape.connections)?;
    let mut events = Events::with_capacity(shape.connections);
    let mut chunk = vec![0; 64 * 1024];
    let mut random = Random::new();
    let mut issued = 0u32;
    let start = Instant::now();

    // The next batch of a connection; empty once the run is over.
    let mut next_batch = |outgoing: &mut Vec<u8>| {
        let mut batch = 0;
        if let Keys::AnyOf(_, time) = keys
            && start.elapsed() >= time
        {
            return batch;
        }
        while batch < shape.pipeline {
            let key = match keys {
                Keys::EachOnce(count) if issued < count => issued,
                Keys::Calls(count, calls) if issued < calls => random.below(count),
                Keys::AnyOf(count, _) => random.below(count),
                Keys::EachOnce(_) | Keys::Calls(..) => break,
            };
            template.append(key, outgoing);
            issued = issued.wrapping_add(1);
            batch += 1;
        }
        batch
    };

    let mut awaited = vec![0; shape.connections];
    let mut busy = 0;
    let mut calls = 0u64;
    for (connection, awaited) in connections.iter_mut().zip(&mut awaited) {
        *awaited = next_batch(&mut connection.outgoing);
        busy += usize::from(*awaited > 0);
        connection.send()?;
    }
    while busy > 0 {
        poll.poll(&mut events, Some(PATIENCE))?;
        if events.is_empty() {
            return Err("replies fail to come".into());
        }
        for event in &events {
            let place = event.token().0;
            let connection = &mut connections[place];
            connection.send()?;
            let replies = connection.receive(&mut chunk)?;
            calls += replies as u64;
            awaited[place] -= replies;
            if awaited[place] == 0 {
                awaited[place] = next_batch(&mut connection.outgoing);
                if awaited[place] == 0 {
                    busy -= 1;
                }
                connection.send()?;
            }
        }
    }
    Ok(Done {
        calls,
        time: start.elapsed(),
    })
}
