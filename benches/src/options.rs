//! The command line.

use crate::Result;
use crate::server::{Program, known_programs, on_path};
use std::path::{Path, PathBuf};

pub const USAGE: &str = "\
Usage: redis-rl-bench [--quick] [OPTIONS]            measure, print the report, write docs/benchmarks.md
       redis-rl-bench instructions [--check | --accept] [OPTIONS]

  --quick             less of everything, on the first server, under a minute; writes nothing
  --servers A[,B..]   server programs; default: REDIS_SERVER or redis-server, and the fetched ones
  --module PATH       the library; default: target/release
  --check             fail if an instruction count exceeds benches/instructions.json by more than its slack
  --accept            write benches/instructions.json anew

Environment: REDIS_SERVER; BENCH_PEERS='path.so=COMMAND {key} ..' (`;` or a line end between two)
measures commands of other modules too.";

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Task {
    Report,
    QuickReport,
    CountInstructions,
    CheckInstructions,
    AcceptInstructions,
    Help,
}

pub struct Options {
    pub task: Task,
    pub programs: Vec<Program>,
    pub module: PathBuf,
    pub repository: PathBuf,
}

impl Options {
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut task = Task::Report;
        let mut programs = None;
        let mut module = None;
        while let Some(word) = words.next() {
            let mut value = || {
                words
                    .next()
                    .ok_or_else(|| format!("{word}: a value is missing"))
            };
            match (word.as_str(), task) {
                ("instructions", Task::Report) => task = Task::CountInstructions,
                ("--check", Task::CountInstructions) => task = Task::CheckInstructions,
                ("--accept", Task::CountInstructions) => task = Task::AcceptInstructions,
                ("--quick", Task::Report) => task = Task::QuickReport,
                // `cargo bench` passes it on.
                ("--bench", _) => {}
                ("--help" | "-h", _) => task = Task::Help,
                ("--servers", _) => {
                    let paths = value()?;
                    let paths = paths.split(',').map(|path| Program {
                        path: on_path(Path::new(path)),
                    });
                    programs = Some(paths.collect());
                }
                ("--module", _) => module = Some(PathBuf::from(value()?)),
                _ => return Err(format!("{word} is not understood here\n{USAGE}").into()),
            }
        }
        let library = format!(
            "{}redis_rl{}",
            std::env::consts::DLL_PREFIX,
            std::env::consts::DLL_SUFFIX
        );
        let module = module.unwrap_or_else(|| repository.join("target/release").join(library));
        let module = if task == Task::Help {
            module
        } else {
            // The server reads it by full path.
            std::fs::canonicalize(&module)
                .map_err(|error| format!("{}: {error}: build the module first", module.display()))?
        };
        Ok(Self {
            task,
            programs: match programs {
                Some(programs) => programs,
                None => known_programs(&repository)?,
            },
            module,
            repository,
        })
    }
}
