//! Instructions per call, counted by callgrind: repeatable where times are not.
//!
//! A server runs under `valgrind --tool=callgrind`. Each ECHO makes callgrind write what it has counted so far
//! and start over, so that one run yields one profile per call. From a profile come
//!
//! - the *command*: all that runs below `setCommand`, `incrCommand` or the dispatcher of module commands,
//!   which is what the server calls in place of a built-in command's handler;
//! - the *handler*: all that runs below the module's own function, which the dispatcher calls. For a
//!   built-in command the two are the same.
//!
//! Reading the request, looking the command up, writing the reply out to the socket and propagation after
//! the call are in neither: they are the same for every command.

use crate::load::{Keys, Shape, prepare, run};
use crate::server::{Server, repository};
use crate::table::{Call, SET, Table};
use anyhow::{Context, Result, ensure};
use redis::cmd;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// One connection, so that the order of the calls is the same in every run.
const SHAPE: Shape = Shape {
    connections: 1,
    pipeline: 32,
};

/// Limiters that are called: few enough to prepare, enough not to be one.
const KEYS: u32 = 100;

/// Calls per profile.
const CALLS: u32 = 2_000;

/// The function whose call ends a profile.
const MARKER: &str = "echoCommand";

/// The counts of one server.
#[derive(Serialize, Deserialize)]
pub struct Counts {
    pub server: String,
    pub calls: Vec<Count>,
}

impl Counts {
    /// Instructions in the handler as a multiple of those of SET.
    pub fn ratio(&self, count: &Count) -> f64 {
        let set = self.calls.iter().find(|count| count.name == SET);
        set.map_or(f64::NAN, |set| count.handler / set.handler)
    }
}

/// Instructions per call.
#[derive(Serialize, Deserialize)]
pub struct Count {
    pub name: String,
    /// Below what the server calls.
    pub command: f64,
    /// Below the module's function.
    pub handler: f64,
    /// Of the handler's, those of the module's own code. The others are in the server's functions that it
    /// calls, and in what these call; a built-in command has no such border.
    pub own: Option<f64>,
}

/// Whether there is a valgrind.
pub fn can_count() -> bool {
    which::which("valgrind").is_ok()
}

pub fn measure(program: &Path, module: &Path, table: &Table) -> Result<Counts> {
    let profiles = TempDir::new()?;
    let mut valgrind = Command::new("valgrind");
    valgrind
        // A program may be a script that runs the server.
        .args(["--tool=callgrind", "--trace-children=yes"])
        .arg(format!("--dump-before={MARKER}"))
        .arg(format!(
            "--callgrind-out-file={}/%p",
            profiles.path().display()
        ))
        .arg(program);
    let server = Server::start_by(valgrind, &[module], &[])?;
    let version = server.version()?;
    let mut client = server.client()?;
    let calls = table.calls(&mut client)?;

    prepare(server.port, &calls, KEYS, SHAPE)?;
    for call in calls.iter().filter(|call| call.row.prepare.is_none()) {
        // Once more: the second call of a key is the first on a key that exists.
        let keys = Keys::EachOnce(call.numbers(KEYS));
        run(server.port, &call.template, SHAPE, keys)?;
    }
    for call in &calls {
        call.check_name(&mut client)?;
    }
    for call in &calls {
        cmd("ECHO").arg(&call.row.name).exec(&mut client)?;
        let keys = Keys::Calls(call.numbers(KEYS), CALLS);
        run(server.port, &call.template, SHAPE, keys)?;
    }
    cmd("ECHO").arg("end").exec(&mut client)?;
    server.shut_down()?;

    let mut counts = Vec::new();
    for (place, call) in calls.iter().enumerate() {
        // The first profile is of what came before the first mark.
        let profile = Profile::read(profiles.path(), place + 2)?;
        let count = count(&profile, call, module);
        counts.push(count.with_context(|| format!("the profile shows no {}", call.row.name))?);
    }
    Ok(Counts {
        server: version,
        calls: counts,
    })
}

fn count(profile: &Profile, call: &Call, module: &Path) -> Option<Count> {
    let name = call.row.name.clone();
    if !call.command.starts_with("rl.") {
        let function = match call.command.as_str() {
            "evalsha" => "evalShaCommand".to_owned(),
            name => format!("{name}Command"),
        };
        let (handler, calls) = profile.sum(|edge| edge.callee.name == function)?;
        let (command, handler, own) = (handler / calls, handler / calls, None);
        return Some(Count {
            name,
            command,
            handler,
            own,
        });
    }
    let library = module.display().to_string();
    let is_dispatcher = |function: &Function| function.name.ends_with("ModuleCommandDispatcher");
    let is_own = |function: &Function| function.object == library;
    let (command, calls) = profile.sum(|edge| is_dispatcher(&edge.callee))?;
    let (handler, _) = profile.sum(|edge| is_dispatcher(&edge.caller) && is_own(&edge.callee))?;
    let (server, _) = profile.sum(|edge| is_own(&edge.caller) && !is_own(&edge.callee))?;
    Some(Count {
        name,
        command: command / calls,
        handler: handler / calls,
        own: Some((handler - server) / calls),
    })
}

/// A function, and the program or library that it is in.
#[derive(Clone, Default)]
struct Function {
    object: String,
    name: String,
}

/// An edge of the call graph.
struct Edge {
    caller: Function,
    callee: Function,
    calls: u64,
    instructions: u64,
}

/// A file in callgrind's format.
struct Profile(Vec<Edge>);

impl Profile {
    /// Reads the profile number `part`, from 1 on, of the only process that wrote parts.
    fn read(folder: &Path, part: usize) -> Result<Self> {
        let is_part = |path: &PathBuf| {
            path.extension()
                .is_some_and(|end| *end == *part.to_string())
        };
        let mut paths = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let path = paths.find(is_part);
        let path = path.with_context(|| format!("no profile {part}: has the server symbols?"))?;
        Self::parse(&fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> Result<Self> {
        // A name is spelt out once, `fn=(7) name`, and then told by its number, `fn=(7)`.
        let mut names = HashMap::new();
        let mut name_of = |kind: u8, value: &str| {
            let (number, name) = value.split_once(' ').unwrap_or((value, ""));
            let known = names.entry((kind, number.to_owned()));
            known.or_insert_with(|| name.to_owned()).clone()
        };
        let (mut caller, mut callee) = (Function::default(), Function::default());
        let mut calls = None;
        let mut edges = Vec::new();
        for line in text.lines() {
            if let Some(calls) = calls.take() {
                // The line below `calls=`: a position and the inclusive cost.
                let cost = line.split(' ').nth(1).context("a call without cost")?;
                edges.push(Edge {
                    caller: caller.clone(),
                    callee: callee.clone(),
                    calls,
                    instructions: cost.parse()?,
                });
                callee.object.clone_from(&caller.object);
            } else if let Some((key, value)) = line.split_once('=') {
                match key {
                    "ob" => {
                        caller.object = name_of(b'o', value);
                        callee.object.clone_from(&caller.object);
                    }
                    "fn" => caller.name = name_of(b'f', value),
                    "cob" => callee.object = name_of(b'o', value),
                    "cfn" => callee.name = name_of(b'f', value),
                    "calls" => calls = Some(value.split(' ').next().unwrap_or_default().parse()?),
                    _ => {}
                }
            }
        }
        Ok(Self(edges))
    }

    /// Instructions and calls over the edges chosen; `None` if there is none.
    fn sum(&self, chosen: impl Fn(&Edge) -> bool) -> Option<(f64, f64)> {
        let chosen = self.0.iter().filter(|edge| chosen(edge));
        let (instructions, calls) = chosen.fold((0, 0), |(instructions, calls), edge| {
            (instructions + edge.instructions, calls + edge.calls)
        });
        (calls > 0).then_some((instructions as f64, calls as f64))
    }
}

/// The committed figures, of the module's commands alone.
#[derive(Serialize, Deserialize)]
struct Committed {
    /// How far above its figure a count may be, as a share of it.
    slack: f64,
    /// Server on which they were counted, as a hint: those of another differ.
    server: String,
    /// Handler instructions as a multiple of SET's in the same run.
    ratios_to_set: BTreeMap<String, f64>,
}

/// Where they are, in the repository.
const COMMITTED: &str = "benches/instructions.json";

/// Slack of newly written figures. Runs on one machine differ by less than 1 %; compilers and C libraries by
/// more.
const SLACK: f64 = 0.08;

impl Committed {
    fn of(counts: &Counts) -> Self {
        let own = counts
            .calls
            .iter()
            .filter(|count| count.name.starts_with("RL."));
        let ratio = |count: &Count| (counts.ratio(count) * 1000.0).round() / 1000.0;
        Self {
            slack: SLACK,
            server: counts.server.clone(),
            ratios_to_set: own
                .map(|count| (count.name.clone(), ratio(count)))
                .collect(),
        }
    }

    /// Compares `now` with these figures; an error names each that grew beyond the slack.
    fn check(&self, now: &Self) -> Result<()> {
        let (committed, now) = (&self.ratios_to_set, &now.ratios_to_set);
        let mut wrong = Vec::new();
        for name in committed.keys().chain(now.keys()).collect::<BTreeSet<_>>() {
            match (committed.get(name), now.get(name)) {
                (Some(figure), Some(ratio)) if *ratio > figure * (1.0 + self.slack) => wrong.push(format!(
                    "{name}: {ratio:.3} x SET's instructions, committed are {figure:.3} with a slack of {}", self.slack
                )),
                (Some(_), Some(_)) => {}
                (_, None) => wrong.push(format!("{name} is committed but was not counted")),
                (None, _) => wrong.push(format!("{name} is not committed: `instructions --accept` does")),
            }
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }
}

/// Writes the committed figures anew.
pub fn accept(counts: &Counts) -> Result<()> {
    let text = serde_json::to_string_pretty(&Committed::of(counts))? + "\n";
    Ok(fs::write(repository().join(COMMITTED), text)?)
}

/// Compares with the committed figures.
pub fn check(counts: &Counts) -> Result<()> {
    let committed = fs::read_to_string(repository().join(COMMITTED))?;
    serde_json::from_str::<Committed>(&committed)?.check(&Committed::of(counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelt_out_once_and_a_callee_without_object_is_its_callers() {
        let profile = Profile::parse(
            "ob=(1) server\nfn=(1) call\n0 5\ncob=(2) module\ncfn=(2) handler\ncalls=2 0\n0 30\n\
             cfn=(3) setCommand\ncalls=4 0\n0 100\nfn=(4) other\ncfn=(3)\ncalls=1 0\n0 50\n",
        );
        let sum = |chosen: fn(&Edge) -> bool| profile.as_ref().unwrap().sum(chosen);
        assert_eq!(
            sum(|edge| edge.callee.name == "setCommand"),
            Some((150.0, 5.0))
        );
        let leaves = |edge: &Edge| edge.caller.object != edge.callee.object;
        assert_eq!(sum(leaves), Some((30.0, 2.0)));
        assert_eq!(sum(|edge| edge.callee.name == "getCommand"), None);
    }

    #[test]
    fn the_gate_fails_on_growth_beyond_the_slack_and_on_what_is_on_one_side_alone() {
        let of = |ratios: &[(&str, f64)]| Committed {
            slack: 0.08,
            server: String::new(),
            ratios_to_set: ratios
                .iter()
                .map(|&(name, ratio)| (name.to_owned(), ratio))
                .collect(),
        };
        let committed = of(&[("RL.A", 1.0)]);
        assert!(committed.check(&of(&[("RL.A", 1.08)])).is_ok());
        assert!(committed.check(&of(&[("RL.A", 1.081)])).is_err());
        assert!(committed.check(&of(&[])).is_err());
        assert!(
            committed
                .check(&of(&[("RL.A", 1.0), ("RL.B", 0.1)]))
                .is_err()
        );
    }
}
