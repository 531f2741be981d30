//! Instructions a call, counted by callgrind: repeatable where times are not.
//!
//! A server runs under `valgrind --tool=callgrind`. Each ECHO makes callgrind write what it has counted
//! so far and start over, so that one run yields one profile a call. From a profile come
//!
//! - the *command*: all that runs below `setCommand`, `incrCommand` or the dispatcher of module commands,
//!   which is what the server calls in place of a built-in command's handler;
//! - the *handler*: all that runs below the module's own function, which the dispatcher calls. For a
//!   built-in command the two are the same.
//!
//! Reading the request, looking the command up, writing the reply out to the socket and propagation after
//! the call are in neither: they are the same for every command.

use crate::Result;
use crate::calls::{Call, Scripts, Subject, calls_of_the_module, calls_of_the_scripts};
use crate::load::{Keys, Shape, run};
use crate::server::{Launch, Program, Server, on_path};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// One connection, so that the order of the calls is the same in every run.
const SHAPE: Shape = Shape {
    connections: 1,
    pipeline: 32,
};

/// Limiters that are called: few enough to prepare, enough not to be one.
const KEYS: u32 = 100;

/// Calls a profile.
const CALLS: u32 = 2_000;

/// The function whose call ends a profile.
const MARKER: &str = "echoCommand";

/// Instructions a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// Below what the server calls.
    pub command: f64,
    /// Below the module's function.
    pub handler: f64,
    /// Of the handler's, those of the module's own code. The others are in the server's functions that
    /// it calls, and in what these call; a built-in command has no such border.
    pub own: Option<f64>,
}

/// The counts of one server.
pub struct Counts {
    pub server: String,
    pub counts: Vec<(Subject, String, Count)>,
}

impl Counts {
    pub fn of(&self, subject: Subject) -> Option<Count> {
        self.counts
            .iter()
            .find(|(counted, ..)| *counted == subject)
            .map(|&(.., count)| count)
    }

    /// Instructions in the handler as a multiple of those of SET.
    pub fn ratio(&self, subject: Subject) -> Option<f64> {
        Some(self.of(subject)?.handler / self.of(Subject::Set)?.handler)
    }

    /// The same of what the handler calls in the server; `None` for built-in commands.
    pub fn ratio_of_server(&self, subject: Subject) -> Option<f64> {
        let count = self.of(subject)?;
        Some((count.handler - count.own?) / self.of(Subject::Set)?.handler)
    }
}

/// Whether there is a valgrind.
pub fn can_count() -> bool {
    on_path(Path::new("valgrind")).is_file()
}

pub fn measure(program: &Program, module: &Path) -> Result<Counts> {
    let profiles = Profiles::new()?;
    let server = Server::start(
        program,
        &Launch {
            runner: &[
                on_path(Path::new("valgrind")).display().to_string(),
                "--tool=callgrind".to_owned(),
                // A program may be a script that runs the server.
                "--trace-children=yes".to_owned(),
                format!("--dump-before={MARKER}"),
                format!("--callgrind-out-file={}", profiles.0.join("%p").display()),
            ],
            modules: &[module.to_owned()],
            ..Launch::default()
        },
    )?;
    let mut client = server.client()?;
    let version = server.version()?;
    let mut calls = calls_of_the_module();
    calls.extend(calls_of_the_scripts(&Scripts::load(&mut client)?));

    for call in &calls {
        // Twice: the second call of a key is the first on a key that exists.
        for _ in 0..2 {
            run(server.port, &call.preparation, SHAPE, Keys::EachOnce(KEYS))?;
        }
    }
    for call in &calls {
        client.call(&["ECHO", &call.title])?;
        run(server.port, &call.template, SHAPE, Keys::Calls(KEYS, CALLS))?;
    }
    client.call(&["ECHO", "end"])?;
    server.shut_down()?;

    let mut counts = Vec::new();
    for (place, call) in calls.iter().enumerate() {
        // The first profile is of what came before the first mark.
        let profile = Profile::read(&profiles.part(place + 2)?)?;
        let count = count(&profile, call, module)
            .ok_or_else(|| format!("the profile shows no {}", call.title))?;
        counts.push((call.subject, call.title.clone(), count));
    }
    Ok(Counts {
        server: version,
        counts,
    })
}

fn count(profile: &Profile, call: &Call, module: &Path) -> Option<Count> {
    let handler = match call.counted_as.as_str() {
        "evalsha" => "evalShaCommand".to_owned(),
        name if name.starts_with("rl.") => {
            let library = module.display().to_string();
            let is_dispatcher = |name: &str| name.ends_with("ModuleCommandDispatcher");
            let enters = |edge: &Edge| is_dispatcher(&edge.caller) && edge.callee_object == library;
            let leaves =
                |edge: &Edge| edge.caller_object == library && edge.callee_object != library;
            let handler = profile.mean(enters)?;
            return Some(Count {
                command: profile.mean(|edge| is_dispatcher(&edge.callee))?,
                handler,
                own: Some(handler - profile.total(leaves) / profile.calls(enters)),
            });
        }
        name => format!("{name}Command"),
    };
    let cost = profile.mean(|edge| edge.callee == handler)?;
    Some(Count {
        command: cost,
        handler: cost,
        own: None,
    })
}

/// The folder of callgrind's files.
struct Profiles(PathBuf);

impl Profiles {
    fn new() -> Result<Self> {
        let folder =
            std::env::temp_dir().join(format!("redis-rl-callgrind-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    /// The file of the profile number `part`, from 1 on, of the only process that wrote parts.
    fn part(&self, part: usize) -> Result<PathBuf> {
        let ending = format!(".{part}");
        fs::read_dir(&self.0)?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .find(|path| path.display().to_string().ends_with(&ending))
            .ok_or_else(|| {
                format!("callgrind wrote no profile {part}: has the server symbols?").into()
            })
    }
}

impl Drop for Profiles {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// An edge of the call graph.
struct Edge {
    caller: String,
    caller_object: String,
    callee: String,
    callee_object: String,
    calls: u64,
    instructions: u64,
}

/// A file in callgrind's format.
struct Profile(Vec<Edge>);

impl Profile {
    fn read(path: &Path) -> Result<Self> {
        Self::parse(&fs::read_to_string(path)?)
    }

    fn parse(text: &str) -> Result<Self> {
        let mut functions = Names::default();
        let mut objects = Names::default();
        let (mut object, mut caller) = (String::new(), String::new());
        let (mut callee, mut callee_object) = (String::new(), None);
        let mut calls = None;
        let mut edges = Vec::new();
        for line in text.lines() {
            if let Some(calls) = calls.take() {
                // The line below `calls=`: a position and the inclusive cost.
                let cost = line
                    .split_whitespace()
                    .nth(1)
                    .ok_or("a call without cost")?;
                edges.push(Edge {
                    caller: caller.clone(),
                    caller_object: object.clone(),
                    callee: callee.clone(),
                    callee_object: callee_object.take().unwrap_or_else(|| object.clone()),
                    calls,
                    instructions: cost.parse()?,
                });
            } else if let Some((key, value)) = line.split_once('=') {
                match key {
                    "ob" => object = objects.name(value),
                    "fn" => caller = functions.name(value),
                    "cob" => callee_object = Some(objects.name(value)),
                    "cfn" => callee = functions.name(value),
                    "calls" => {
                        let count = value.split_whitespace().next().unwrap_or_default();
                        calls = Some(count.parse()?);
                    }
                    _ => {}
                }
            }
        }
        Ok(Self(edges))
    }

    /// Instructions a call over the edges chosen; `None` if there is none.
    fn mean(&self, chosen: impl Fn(&Edge) -> bool) -> Option<f64> {
        let calls = self.calls(&chosen);
        (calls > 0.0).then(|| self.total(&chosen) / calls)
    }

    /// Calls over the edges chosen.
    fn calls(&self, chosen: impl Fn(&Edge) -> bool) -> f64 {
        let chosen = self.0.iter().filter(|edge| chosen(edge));
        chosen.map(|edge| edge.calls).sum::<u64>() as f64
    }

    /// Instructions over the edges chosen.
    fn total(&self, chosen: impl Fn(&Edge) -> bool) -> f64 {
        let chosen = self.0.iter().filter(|edge| chosen(edge));
        chosen.map(|edge| edge.instructions).sum::<u64>() as f64
    }
}

/// Names that are spelt out once, `(7) name`, and then told by their number, `(7)`.
#[derive(Default)]
struct Names(HashMap<String, String>);

impl Names {
    fn name(&mut self, value: &str) -> String {
        match value.split_once(' ') {
            Some((number, name)) if number.starts_with('(') => {
                self.0.insert(number.to_owned(), name.to_owned());
                name.to_owned()
            }
            _ => self
                .0
                .get(value)
                .cloned()
                .unwrap_or_else(|| value.to_owned()),
        }
    }
}

/// The committed figures: benches/instructions.json.
#[derive(Serialize, Deserialize)]
struct Committed {
    /// How far above its figure a count may be, as a share of it.
    slack: f64,
    /// Server on which they were counted, as a hint: those of another differ.
    server: String,
    /// Handler instructions as a multiple of SET's in the same run.
    ratios_to_set: BTreeMap<String, f64>,
}

/// Slack of newly written figures. Runs on one machine differ by less than 1 %; compilers and C
/// libraries by more.
const SLACK: f64 = 0.08;

fn committed_path(repository: &Path) -> PathBuf {
    repository.join("benches/instructions.json")
}

/// The figures that are committed: of the module's commands alone.
fn figures(counts: &Counts) -> BTreeMap<String, f64> {
    counts
        .counts
        .iter()
        .filter(|(_, title, _)| title.starts_with("RL."))
        .filter_map(|(subject, title, _)| {
            let ratio = counts.ratio(*subject)?;
            Some((title.clone(), (ratio * 1000.0).round() / 1000.0))
        })
        .collect()
}

/// Writes the committed figures anew.
pub fn accept(repository: &Path, counts: &Counts) -> Result<()> {
    let committed = Committed {
        slack: SLACK,
        server: counts.server.clone(),
        ratios_to_set: figures(counts),
    };
    let text = serde_json::to_string_pretty(&committed)? + "\n";
    fs::write(committed_path(repository), text)?;
    Ok(())
}

/// Compares with the committed figures; an error names each that grew beyond the slack.
pub fn check(repository: &Path, counts: &Counts) -> Result<()> {
    let path = committed_path(repository);
    let committed: Committed = serde_json::from_str(&fs::read_to_string(path)?)?;
    let now = figures(counts);
    let mut grown = Vec::new();
    for (title, figure) in &committed.ratios_to_set {
        let ratio = now
            .get(title)
            .ok_or_else(|| format!("{title} is committed but was not counted"))?;
        let most = figure * (1.0 + committed.slack);
        if *ratio > most {
            grown.push(format!(
                "{title}: {ratio:.3} x SET's instructions, committed are {figure:.3}, at most {most:.3}"
            ));
        }
    }
    if grown.is_empty() {
        Ok(())
    } else {
        Err(grown.join("\n").into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelt_out_once_and_a_callee_without_object_is_in_its_callers() {
        let profile = Profile::parse(
            "ob=(1) server\nfn=(1) call\n0 5\ncob=(2) module\ncfn=(2) handler\ncalls=2 0\n0 30\n\
             cfn=(3) setCommand\ncalls=4 0\n0 100\nfn=(4) other\ncfn=(3)\ncalls=1 0\n0 50\n",
        )
        .unwrap();
        assert_eq!(profile.mean(|edge| edge.callee == "setCommand"), Some(30.0));
        assert_eq!(
            profile.mean(|edge| edge.caller == "call" && edge.callee_object == "module"),
            Some(15.0)
        );
        assert_eq!(profile.mean(|edge| edge.callee == "getCommand"), None);
        let leaves = |edge: &Edge| edge.caller_object != edge.callee_object;
        assert_eq!((profile.calls(leaves), profile.total(leaves)), (2.0, 30.0));
    }
}
