//! The closed loop: each connection sends a batch of calls, waits for all their replies, sends the next.

use crate::table::{Call, Template};
use anyhow::{Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Connections and calls per batch of the common tables: `redis-benchmark -c 50 -P 32`.
pub const COMMON: Shape = Shape {
    connections: 50,
    pipeline: 32,
};

/// How long replies may fail to come before a run is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connections and calls per batch.
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
pub fn key_numbers() -> fastrand::Rng {
    fastrand::Rng::with_seed(0)
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
                Ok(0) => bail!("the server closed a connection"),
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

/// Takes the complete replies out of `bytes`; their number. An error reply ends the run: a benchmark of
/// errors would be one of something else.
fn take_replies(bytes: &mut Vec<u8>) -> Result<usize> {
    let (mut at, mut replies) = (0, 0);
    while let Some(len) = reply_len(&bytes[at..]) {
        if bytes[at] == b'-' {
            bail!(
                "{}",
                String::from_utf8_lossy(&bytes[at..at + len]).trim_end()
            );
        }
        at += len;
        replies += 1;
    }
    bytes.drain(..at);
    Ok(replies)
}

/// The length of the first reply in `bytes`; `None` if it is not complete.
fn reply_len(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut awaited) = (0, 1);
    while awaited > 0 {
        let line_len = bytes.get(at..)?.iter().position(|&byte| byte == b'\n')? + 1;
        let line = &bytes[at..at + line_len];
        // A length or a count; a null has none.
        let announced = || -> Option<usize> {
            std::str::from_utf8(&line[1..line_len - 2])
                .ok()?
                .parse()
                .ok()
        };
        at += line_len;
        awaited -= 1;
        match line[0] {
            b'$' => at += announced().map_or(0, |len| len + 2),
            b'*' => awaited += announced().unwrap_or(0),
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// Prepares the keys of `calls`: calls on the same keys share their preparation.
pub fn prepare(port: u16, calls: &[Call], keys: u32, shape: Shape) -> Result<()> {
    let mut prepared: Vec<&Template> = Vec::new();
    for call in calls {
        let template = &call.preparation;
        if template.commands > 0 && !prepared.contains(&template) {
            prepared.push(template);
            for _ in 0..call.row.prepare_times.unwrap_or(1) {
                run(port, template, shape, Keys::EachOnce(call.numbers(keys)))?;
            }
        }
    }
    Ok(())
}

/// Runs `template` against the server at `port`; the calls per second.
pub fn run(port: u16, template: &Template, shape: Shape, keys: Keys) -> Result<f64> {
    let mut poll = Poll::new()?;
    let mut connections = Connection::open(&poll, port, shape.connections)?;
    let mut events = Events::with_capacity(shape.connections);
    let mut chunk = vec![0; 64 * 1024];
    let mut random = key_numbers();
    let mut issued = 0u32;
    let start = Instant::now();

    // The next batch of a connection, and its replies; none once the run is over.
    let mut next_batch = |outgoing: &mut Vec<u8>| {
        if matches!(keys, Keys::AnyOf(_, time) if start.elapsed() >= time) {
            return 0;
        }
        let mut batch = 0;
        while batch < shape.pipeline {
            let key = match keys {
                Keys::EachOnce(count) if issued < count => issued,
                Keys::Calls(count, calls) if issued < calls => random.u32(..count),
                Keys::AnyOf(count, _) => random.u32(..count),
                Keys::EachOnce(_) | Keys::Calls(..) => break,
            };
            template.append(key, outgoing);
            issued = issued.wrapping_add(1);
            batch += 1;
        }
        batch * template.commands
    };

    let mut awaited = vec![0; shape.connections];
    let (mut busy, mut replies) = (0, 0);
    for (connection, awaited) in connections.iter_mut().zip(&mut awaited) {
        *awaited = next_batch(&mut connection.outgoing);
        busy += usize::from(*awaited > 0);
        connection.send()?;
    }
    while busy > 0 {
        poll.poll(&mut events, Some(PATIENCE))?;
        if events.is_empty() {
            bail!("replies fail to come");
        }
        for event in &events {
            let place = event.token().0;
            let connection = &mut connections[place];
            connection.send()?;
            let received = connection.receive(&mut chunk)?;
            replies += received;
            awaited[place] -= received;
            if awaited[place] == 0 {
                awaited[place] = next_batch(&mut connection.outgoing);
                busy -= usize::from(awaited[place] == 0);
                connection.send()?;
            }
        }
    }
    let calls = replies / template.commands;
    Ok(calls as f64 / start.elapsed().as_secs_f64())
}
