//! The protocol: a client for setting up and asking, and the counting of replies for load generation.

use crate::Result;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// How long an answer may take before a run is given up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A reply, as far as a benchmark looks into it.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Text(String),
    Integer(i64),
    Array(Vec<Reply>),
    Nothing,
}

impl Reply {
    /// The text of a simple or bulk string.
    pub fn text(self) -> Result<String> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(format!("a text was expected, not {other:?}").into()),
        }
    }

    pub fn integer(&self) -> Result<i64> {
        match self {
            Self::Integer(integer) => Ok(*integer),
            other => Err(format!("an integer was expected, not {other:?}").into()),
        }
    }
}

/// The bytes of a command.
pub fn encode(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The length of the first reply in `bytes`; `None` if it is not complete.
pub fn reply_len(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut awaited = 1usize;
    while awaited > 0 {
        let line_len = bytes.get(at..)?.iter().position(|&byte| byte == b'\n')? + 1;
        let line = &bytes[at..at + line_len];
        at += line_len;
        awaited -= 1;
        match line[0] {
            b'$' => {
                if let Some(len) = announced(line) {
                    at += len + 2;
                }
            }
            b'*' => awaited += announced(line).unwrap_or(0),
            _ => {}
        }
    }
    (at <= bytes.len()).then_some(at)
}

/// The length or count in a header line; `None` for a null.
fn announced(line: &[u8]) -> Option<usize> {
    std::str::from_utf8(&line[1..line.len() - 2])
        .ok()?
        .parse()
        .ok()
}

/// Takes the replies out of `bytes` that are complete, and tells their number. An error reply ends the
/// run: a benchmark of errors would be one of something else.
pub fn take_replies(bytes: &mut Vec<u8>) -> Result<usize> {
    let mut at = 0;
    let mut replies = 0;
    while let Some(len) = reply_len(&bytes[at..]) {
        if bytes[at] == b'-' {
            return Err(String::from_utf8_lossy(&bytes[at..at + len])
                .trim_end()
                .into());
        }
        at += len;
        replies += 1;
    }
    bytes.drain(..at);
    Ok(replies)
}

/// One connection, one call at a time.
pub struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Client {
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            received: Vec::new(),
        })
    }

    /// Calls a command; an error reply is an error.
    pub fn call(&mut self, words: &[&str]) -> Result<Reply> {
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.stream.write_all(&encode(&words))?;
        let mut chunk = [0; 16 * 1024];
        loop {
            if let Some(len) = reply_len(&self.received) {
                let reply = decode(&mut &self.received[..len]);
                self.received.drain(..len);
                return reply;
            }
            match self.stream.read(&mut chunk)? {
                0 => return Err("the server closed the connection".into()),
                read => self.received.extend_from_slice(&chunk[..read]),
            }
        }
    }

    /// A field of INFO, as a number.
    pub fn info_number(&mut self, section: &str, field: &str) -> Result<u64> {
        Ok(self.info(section, field)?.parse()?)
    }

    /// A field of INFO.
    pub fn info(&mut self, section: &str, field: &str) -> Result<String> {
        let info = self.call(&["INFO", section])?.text()?;
        info.lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .map(|value| value.trim_end().to_owned())
            .ok_or_else(|| format!("INFO {section} lacks {field}").into())
    }
}

/// Takes the first reply, known to be complete, off `bytes`.
fn decode(bytes: &mut &[u8]) -> Result<Reply> {
    let end = bytes
        .iter()
        .position(|&byte| byte == b'\n')
        .ok_or("a reply without an end")?;
    let line = &bytes[..=end];
    *bytes = &bytes[end + 1..];
    let text = String::from_utf8_lossy(&line[1..line.len() - 2]).into_owned();
    Ok(match line[0] {
        b'-' => return Err(text.into()),
        b':' => Reply::Integer(text.parse()?),
        b'$' => match announced(line) {
            None => Reply::Nothing,
            Some(len) => {
                let bulk = String::from_utf8_lossy(&bytes[..len]).into_owned();
                *bytes = &bytes[len + 2..];
                Reply::Text(bulk)
            }
        },
        b'*' => match announced(line) {
            None => Reply::Nothing,
            Some(len) => Reply::Array((0..len).map(|_| decode(bytes)).collect::<Result<_>>()?),
        },
        _ => Reply::Text(text),
    })
}
