//! `redis-rl-bench`: what a call costs, against the server's own commands and against the scripts.
//!
//! `calls.toml` is what is measured, `templates/` is the page that shows it.

mod instructions;
mod ladder;
mod load;
mod memory;
mod page;
mod propagation;
mod scaling;
mod server;
mod table;
mod timing;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use page::Figures;
use server::Server;
use std::collections::BTreeMap;
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use table::{Extent, Table};
use timing::{Peers, Planned};

/// Measures, and writes docs/benchmarks.md with its charts.
#[derive(Parser)]
#[command(
    after_help = "BENCH_PEERS='path.so=COMMAND {key} ..' (`;` or a line end between two) measures commands of other modules too."
)]
struct Options {
    #[command(subcommand)]
    task: Option<Task>,
    /// Less of everything, on one server if none are named, in seconds; writes into target/quick-bench instead
    #[arg(long)]
    quick: bool,
    /// Server programs; default: REDIS_SERVER or redis-server, and the fetched ones
    #[arg(long, global = true, value_delimiter = ',')]
    servers: Vec<PathBuf>,
    /// The library; default: target/release
    #[arg(long, global = true, env = "REDIS_RL_MODULE")]
    module: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Task {
    /// Counts the instructions of a call
    Instructions {
        /// Fail if a count exceeds benches/instructions.json by more than its slack
        #[arg(long)]
        check: bool,
        /// Write benches/instructions.json anew
        #[arg(long, conflicts_with = "check")]
        accept: bool,
    },
    /// Writes docs/benchmarks.md again from the figures of the last run
    Page,
}

/// Kinds of servers, by name and first number of the version, that the other plans run on: where a
/// run takes longer, one server of each kind is enough.
const MAX_KINDS: usize = 3;

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redis-rl-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let root = fs::canonicalize(server::repository())?;
    let stored = root.join("target/benchmarks.json");
    if let Some(Task::Page) = options.task {
        let text = fs::read_to_string(stored).context("no run has left its figures here")?;
        return serde_json::from_str::<Figures>(&text)?.publish(&root.join("docs"));
    }
    let programs = match &options.servers[..] {
        [] if options.quick => server::known_programs()?.into_iter().take(1).collect(),
        [] => server::known_programs()?,
        named => named.iter().map(which::which).collect::<Result<_, _>>()?,
    };
    let library = format!("target/release/{DLL_PREFIX}redis_rl{DLL_SUFFIX}");
    let module = options.module.unwrap_or_else(|| root.join(library));
    // The server reads it by full path.
    let module = fs::canonicalize(&module)
        .with_context(|| format!("{}: build the module first", module.display()))?;
    let table = Table::read()?;
    if let Some(Task::Instructions { check, accept }) = options.task {
        return count_instructions(&programs, &module, &table, check, accept);
    }
    if options.quick {
        let figures = measure(&programs, &module, &table, &table.quick)?;
        return figures.publish(&root.join("target/quick-bench"));
    }
    let figures = measure(&programs, &module, &table, &table.full)?;
    fs::create_dir_all(root.join("target"))?;
    fs::write(stored, serde_json::to_string(&figures)?)?;
    figures.publish(&root.join("docs"))
}

fn measure(programs: &[PathBuf], module: &Path, table: &Table, extent: &Extent) -> Result<Figures> {
    let peers = Peers::from_environment()?;
    let mut figures = Figures {
        machine: page::machine(),
        ..Figures::default()
    };
    let (mut usable, mut kinds) = (Vec::new(), BTreeMap::new());
    for program in programs {
        let server = Server::start(program, &peers.beside(module), &[]);
        match server.and_then(|server| server.version()) {
            Ok(version) => {
                let kind = version.split('.').next().unwrap_or_default().to_owned();
                kinds.entry(kind).or_insert(program);
                usable.push(program);
            }
            Err(error) => figures.skipped.push(reason(program, &error)),
        }
    }
    let Some(first) = usable.first() else {
        bail!("no server can be measured: {}", figures.skipped.join(", "));
    };
    let kinds: Vec<&PathBuf> = kinds.into_values().take(MAX_KINDS).collect();
    for (place, plan) in extent.plans.iter().enumerate() {
        let mut servers = Vec::new();
        for program in if place == 0 { &usable } else { &kinds } {
            progress(
                &format!("{} keys, append-only: {}", plan.keys, plan.append_only),
                program,
            );
            servers.push(timing::measure(program, module, table, &peers, *plan)?);
        }
        figures.plans.push(Planned {
            keys: plan.keys,
            append_only: plan.append_only,
            servers,
        });
    }
    progress("the ladder", first);
    figures.ladder = ladder::measure(first, module, table, extent)?;
    for program in &usable {
        progress("memory", program);
        for held in &table.memory {
            figures
                .memory
                .push(memory::measure(program, module, held, extent.limiters)?);
        }
    }
    progress("propagation", first);
    figures.propagated = propagation::measure(first, module, table)?;
    progress("scaling", first);
    figures.scaling = scaling::measure(first, module, table, &extent.scaling)?;
    if instructions::can_count() {
        for program in kinds {
            progress("instructions", program);
            figures
                .counts
                .push(instructions::measure(program, module, table)?);
        }
    }
    Ok(figures)
}

fn count_instructions(
    programs: &[PathBuf],
    module: &Path,
    table: &Table,
    check: bool,
    accept: bool,
) -> Result<()> {
    if !instructions::can_count() {
        println!("instructions: skipped, there is no valgrind on PATH");
        return Ok(());
    }
    // The committed figures are of one server: the first.
    let gate = check || accept;
    for program in if gate { &programs[..1] } else { programs } {
        let counts = match instructions::measure(program, module, table) {
            Err(error) if !gate => {
                println!("{}", reason(program, &error));
                continue;
            }
            counts => counts?,
        };
        println!(
            "{:32} {:>8} {:>8} {:>8} {:>8}",
            counts.server, "command", "handler", "x SET", "our own"
        );
        for count in &counts.calls {
            let (ratio, own) = (counts.ratio(count), count.own.map(f64::round));
            let own = own.map_or_else(String::new, |own| own.to_string());
            println!(
                "{:32} {:8.0} {:8.0} {ratio:8.3} {own:>8}",
                count.name, count.command, count.handler
            );
        }
        if check {
            instructions::check(&counts)?;
        } else if accept {
            instructions::accept(&counts)?;
        }
    }
    Ok(())
}

/// Why a server is skipped, without the path of the program's folder.
fn reason(program: &Path, error: &anyhow::Error) -> String {
    let folder = program
        .parent()
        .and_then(Path::file_name)
        .unwrap_or_default();
    let error = format!("{error:#}");
    let cause = error.split("load refused: ").nth(1).unwrap_or(&error);
    format!("{} ({cause})", folder.to_string_lossy())
}

fn progress(what: &str, program: &Path) {
    eprintln!("measuring {what} on {} ..", program.display());
}
