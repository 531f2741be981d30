//! What is measured: the entries of `calls.toml`, and the bytes of a call with its numbers filled in.

use crate::server::{Client, loaded_script};
use anyhow::{Result, ensure};
use redis::{ConnectionLike, Value};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The built-in command that every call is compared with: a lookup, a write of 16 bytes, a ttl.
pub const SET: &str = "SET .. PX";

/// Key numbers that a call has at least, however many limiters each stands for.
const MIN_NUMBERS: u32 = 10;

/// `calls.toml`, which explains the fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    pub call: Vec<Row>,
    pub memory: Vec<Held>,
    pub full: Extent,
    pub quick: Extent,
}

/// A call that is measured.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Row {
    pub name: String,
    pub line: String,
    pub script: Option<PathBuf>,
    pub prepare: Option<String>,
    pub prepare_times: Option<u32>,
    pub before: Option<String>,
    pub after: Option<String>,
    pub compared_with: Option<String>,
    pub limiters: Option<u32>,
    pub ladder: bool,
}

impl Row {
    pub fn new(name: &str, line: &str) -> Self {
        let (name, line) = (name.to_owned(), line.to_owned());
        Self {
            name,
            line,
            ..Self::default()
        }
    }

    pub fn compared_with(&self) -> &str {
        self.compared_with.as_deref().unwrap_or(SET)
    }
}

/// A limiter whose memory is measured.
#[derive(Deserialize)]
pub struct Held {
    #[serde(flatten)]
    pub row: Row,
    pub form: String,
    pub keys: Vec<String>,
}

/// How much is measured.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// The first on every server, the others on one of each kind.
    pub plans: Vec<Plan>,
    pub tier_ms: u64,
    pub limiters: u32,
    pub scaling: Scale,
}

/// What is measured of each call.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub keys: u32,
    /// Servers that are started for it, one after another.
    pub servers: usize,
    /// Rounds on each of them.
    pub rounds: usize,
    pub turn_ms: u64,
    #[serde(default)]
    pub append_only: bool,
}

/// The sizes, and the plan at each.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    pub plan: Plan,
    pub keys: Vec<u32>,
    pub rules: Vec<u32>,
    pub connections: Vec<u32>,
}

impl Table {
    pub fn read() -> Result<Self> {
        let table: Self = toml::from_str(include_str!("../calls.toml"))?;
        for row in &table.call {
            let (name, base) = (&row.name, row.compared_with());
            let is_known = table.call.iter().any(|other| other.name == base);
            ensure!(is_known, "{name}: there is no call {base}");
            for companion in row.before.iter().chain(&row.after) {
                let command = command_of(companion);
                // INFO and the profile tell it from the call by its command alone.
                let is_apart = command != command_of(&row.line) && !command.starts_with("rl.");
                ensure!(
                    is_apart,
                    "{name}: {companion} must be another, built-in command"
                );
            }
        }
        Ok(table)
    }

    /// The calls, with their scripts loaded into the server of `client`.
    pub fn calls(&self, client: &mut Client) -> Result<Vec<Call>> {
        let rows = self.call.iter().cloned();
        rows.map(|row| Call::new(row, client)).collect()
    }
}

/// A call, ready to be sent.
pub struct Call {
    pub row: Row,
    /// As INFO commandstats names it, in lower case.
    pub command: String,
    /// The call and what goes with it.
    pub template: Template,
    pub preparation: Template,
}

impl Call {
    pub fn new(row: Row, client: &mut Client) -> Result<Self> {
        Self::at(row, client, now_ms())
    }

    /// The call at a time of one's choice.
    pub fn at(row: Row, client: &mut Client, now_ms: u64) -> Result<Self> {
        let sha = loaded_script(client, row.script.as_deref())?;
        let filled = |line: &String| {
            line.replace("{sha}", &sha)
                .replace("{now_ms}", &now_ms.to_string())
                .replace("{now_s}", &(now_ms / 1000).to_string())
        };
        let lines = row.before.iter().chain([&row.line]).chain(&row.after);
        let lines: Vec<String> = lines.map(filled).collect();
        let preparation: Vec<String> = row.prepare.iter().map(filled).collect();
        Ok(Self {
            command: command_of(&row.line),
            template: Template::new(&lines),
            preparation: Template::new(if row.prepare.is_some() {
                &preparation
            } else {
                &lines
            }),
            row,
        })
    }

    /// An error if the prepared call is not what its name says: allowed, unless it is denied.
    pub fn check_name(&self, client: &mut Client) -> Result<()> {
        let mut bytes = Vec::new();
        self.template.append(0, &mut bytes);
        let replies = client.req_packed_commands(&bytes, 0, self.template.commands)?;
        let mut reply = &replies[usize::from(self.row.before.is_some())];
        while let Value::Array(items) = reply {
            reply = &items[0];
        }
        let (name, is_limiter) = (
            &self.row.name,
            self.command == "evalsha" || self.command.starts_with("rl."),
        );
        let expected = Value::Int(i64::from(!name.contains("denied")));
        ensure!(
            !is_limiter || *reply == expected,
            "{name}: the reply was {replies:?}"
        );
        Ok(())
    }

    /// The key numbers to call with, for a working set of `keys` limiters.
    pub fn numbers(&self, keys: u32) -> u32 {
        keys.div_ceil(self.row.limiters.unwrap_or(1))
            .max(keys.min(MIN_NUMBERS))
    }
}

fn command_of(line: &str) -> String {
    let command = line.split(' ').next();
    command.unwrap_or_default().to_ascii_lowercase()
}

/// The server and the generator share the machine's clock.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs() * 1000)
}

/// Digits of a number in a call: always as many, so that every key and id is as long as any other.
const DIGITS: usize = 8;

/// The placeholders for a key's number and an id.
const KEY: &str = "########";
const ID: &str = "@@@@@@@@";

/// Commands with holes for the numbers of a call.
#[derive(Clone, PartialEq)]
pub struct Template {
    bytes: Vec<u8>,
    keys: Vec<usize>,
    ids: Vec<usize>,
    /// Commands, and so replies.
    pub commands: usize,
}

impl Template {
    pub fn new(lines: &[String]) -> Self {
        let mut bytes = Vec::new();
        let lines = lines.iter().filter(|line| !line.is_empty());
        for line in lines.clone() {
            let line = line.replace("{key}", KEY).replace("{id}", ID);
            let mut command = redis::Cmd::new();
            command.arg(line.split(' ').collect::<Vec<_>>());
            bytes.extend(command.get_packed_command());
        }
        let holes = |mark: &str| {
            let is_hole = |&at: &usize| bytes[at..].starts_with(mark.as_bytes());
            (0..bytes.len()).filter(is_hole).collect()
        };
        Self {
            keys: holes(KEY),
            ids: holes(ID),
            commands: lines.count(),
            bytes,
        }
    }

    /// Appends the commands for key number `key`.
    pub fn append(&self, key: u32, out: &mut Vec<u8>) {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        let mut write = |holes: &[usize], number: u64| {
            for hole in holes {
                let mut rest = number;
                for digit in out[start + hole..][..DIGITS].iter_mut().rev() {
                    *digit = b'0' + (rest % 10) as u8;
                    rest /= 10;
                }
            }
        };
        write(&self.keys, key.into());
        if !self.ids.is_empty() {
            write(&self.ids, NEXT_ID.fetch_add(1, Ordering::Relaxed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_and_its_companion_share_a_key_and_an_id_of_their_own() {
        let template = Template::new(&["TAKE k{key} {id}".to_owned(), "GIVE {id}".to_owned()]);
        let mut calls = Vec::new();
        template.append(42, &mut calls);
        template.append(42, &mut calls);
        let calls = String::from_utf8(calls).unwrap();
        let words: Vec<&str> = calls
            .split("\r\n")
            .filter(|word| !word.starts_with(['*', '$']))
            .collect();
        let [take, key, id, give, same, _, again, next, .., ""] = words[..] else {
            panic!("{words:?}");
        };
        assert_eq!((take, give, key, again), ("TAKE", "GIVE", "k00000042", key));
        assert_eq!(id, same);
        assert_ne!(id, next);
    }

    #[test]
    fn the_table_can_be_read() {
        Table::read().unwrap();
    }
}
