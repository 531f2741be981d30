//! `redis-rl-bench`: what a call costs, against the server's own commands and against the scripts.

mod calls;
mod charts;
mod commandstats;
mod instructions;
mod ladder;
mod load;
mod machine;
mod memory;
mod options;
mod peers;
mod propagation;
mod report;
mod resp;
mod scaling;
mod server;
mod targets;
mod timing;

use calls::{Scripts, calls_of_the_module, calls_of_the_scripts, ping};
use instructions::Counts;
use ladder::Ladder;
use load::{COMMON, Keys, run};
use options::{Options, Task, USAGE};
use peers::Peers;
use report::Measured;
use scaling::Sizes;
use server::{Launch, Program, Server};
use std::fs;
use std::process::ExitCode;
use std::time::Duration;
use timing::{Plan, Timings};

/// Errors are for a person to read.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// How much is measured.
struct Extent {
    common: Plan,
    /// The plan with more keys than the caches hold.
    cold: Option<Plan>,
    append_only: Option<Plan>,
    time_a_tier: Duration,
    limiters: u32,
    sizes: Sizes,
}

/// Minutes, on every server.
const FULL: Extent = Extent {
    common: Plan {
        keys: 10_000,
        servers: 5,
        rounds: 5,
        time_a_turn: Duration::from_millis(50),
        append_only: false,
    },
    cold: Some(Plan {
        keys: 1_000_000,
        servers: 1,
        rounds: 9,
        time_a_turn: Duration::from_millis(50),
        append_only: false,
    }),
    append_only: Some(Plan {
        keys: 10_000,
        servers: 3,
        rounds: 4,
        time_a_turn: Duration::from_millis(50),
        append_only: true,
    }),
    time_a_tier: Duration::from_millis(1_000),
    limiters: 100_000,
    sizes: Sizes {
        keys: &[1, 10, 100, 1_000, 10_000, 100_000, 1_000_000],
        rules: &[1, 2, 4, 8, 16],
        connections: &[1, 10, 100, 1_000],
        rounds: 3,
        time_a_turn: Duration::from_millis(120),
    },
};

/// Seconds, to see that everything runs.
const QUICK: Extent = Extent {
    common: Plan {
        keys: 1_000,
        servers: 1,
        rounds: 1,
        time_a_turn: Duration::from_millis(30),
        append_only: false,
    },
    cold: None,
    append_only: None,
    time_a_tier: Duration::from_millis(100),
    limiters: 10_000,
    sizes: Sizes {
        keys: &[1, 1_000],
        rules: &[1, 2],
        connections: &[1, 10],
        rounds: 1,
        time_a_turn: Duration::from_millis(30),
    },
};

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| carry_out(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redis-rl-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(options: &Options) -> Result<()> {
    match options.task {
        Task::Help => println!("{USAGE}"),
        Task::QuickReport => println!("{}", measure(options, &QUICK)?.markdown()?),
        Task::Report => {
            let measured = measure(options, &FULL)?;
            let page = measured.markdown()?;
            print!("{page}");
            let documents = options.repository.join("docs");
            measured.draw_charts(&documents.join("charts"))?;
            fs::write(documents.join("benchmarks.md"), page)?;
        }
        Task::CountInstructions | Task::CheckInstructions | Task::AcceptInstructions => {
            count_instructions(options)?;
        }
    }
    Ok(())
}

fn measure(options: &Options, extent: &Extent) -> Result<Measured> {
    let peers = Peers::from_environment()?;
    let module = &options.module;
    let mut skipped = Vec::new();
    let mut timings: Vec<Timings> = Vec::new();
    let mut programs: Vec<&Program> = Vec::new();
    let is_quick = options.task == Task::QuickReport;
    for program in &options.programs {
        if is_quick && !programs.is_empty() {
            break;
        }
        progress(&format!("server time on {}", program.path.display()));
        match timing::measure(program, module, &peers, extent.common) {
            Ok(measured) => {
                timings.push(measured);
                programs.push(program);
            }
            Err(error) => skipped.push(reason(program, &*error)),
        }
    }
    let first = *programs.first().ok_or("no server could be measured")?;
    // Of each kind of server one is enough where a run takes longer.
    let mut kinds: Vec<&Program> = Vec::new();
    let mut seen = Vec::new();
    for (program, timings) in programs.iter().zip(&timings) {
        let kind = timings.server.split('.').next().unwrap_or_default();
        if !seen.contains(&kind) {
            seen.push(kind);
            kinds.push(program);
        }
    }
    kinds.truncate(MOST_KINDS);
    for plan in [extent.cold, extent.append_only].into_iter().flatten() {
        for program in &kinds {
            let aof = if plan.append_only { "with AOF " } else { "" };
            progress(&format!(
                "server time {aof}with {} keys on {}",
                plan.keys,
                program.path.display()
            ));
            timings.push(timing::measure(program, module, &peers, plan)?);
        }
    }
    progress("ladder");
    let ladders = climb(first, options, extent)?;
    progress("memory");
    let memory = programs
        .iter()
        .map(|program| memory::measure(program, module, extent.limiters))
        .collect::<Result<_>>()?;
    progress("propagation");
    let propagated = propagation::measure(first, module)?;
    progress("scaling");
    let scaling = scaling::measure(first, module, &extent.sizes)?;
    let mut counts = Vec::new();
    if instructions::can_count() && !is_quick {
        for program in &kinds {
            progress(&format!("instructions on {}", program.path.display()));
            counts.push(instructions::measure(program, module)?);
        }
    }
    Ok(Measured {
        skipped,
        timings,
        ladders,
        memory,
        propagated,
        scaling,
        counts,
    })
}

/// Kinds of servers, by name and first number of the version, that the longer runs are made on.
const MOST_KINDS: usize = 3;

fn climb(program: &Program, options: &Options, extent: &Extent) -> Result<Vec<Ladder>> {
    use calls::Subject::{BucketAllowed, BucketScript, Set, SlidingAllowed, SlidingScript};
    let server = Server::start(
        program,
        &Launch {
            modules: std::slice::from_ref(&options.module),
            ..Launch::default()
        },
    )?;
    let scripts = Scripts::load(&mut server.client()?)?;
    let mut calls = vec![ping()];
    calls.extend(calls_of_the_module());
    calls.extend(calls_of_the_scripts(&scripts));
    calls.retain(|call| {
        matches!(
            call.subject,
            calls::Subject::Ping
                | Set
                | BucketAllowed
                | BucketScript
                | SlidingAllowed
                | SlidingScript
        )
    });
    calls
        .iter()
        .map(|call| {
            let keys = extent.common.keys;
            run(server.port, &call.preparation, COMMON, Keys::EachOnce(keys))?;
            ladder::climb(server.port, call, keys, extent.time_a_tier)
        })
        .collect()
}

fn count_instructions(options: &Options) -> Result<()> {
    if !instructions::can_count() {
        println!("instructions: skipped, there is no valgrind on PATH");
        return Ok(());
    }
    // The committed figures are of one server: the first.
    let programs = match options.task {
        Task::CountInstructions => &options.programs[..],
        _ => &options.programs[..1],
    };
    for program in programs {
        match instructions::measure(program, &options.module) {
            Ok(counts) => {
                print_counts(&counts);
                match options.task {
                    Task::AcceptInstructions => {
                        instructions::accept(&options.repository, &counts)?;
                    }
                    Task::CheckInstructions => instructions::check(&options.repository, &counts)?,
                    _ => {}
                }
            }
            Err(error) if options.task == Task::CountInstructions => {
                println!("{}", reason(program, &*error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn print_counts(counts: &Counts) {
    println!(
        "\n| {} | command | handler | x SET | our own code |",
        counts.server
    );
    println!("| --- | ---: | ---: | ---: | ---: |");
    for (subject, title, count) in &counts.counts {
        let ratio = counts.ratio(*subject).unwrap_or(f64::NAN);
        println!(
            "| {title} | {:.0} | {:.0} | {ratio:.3} | {} |",
            count.command,
            count.handler,
            count
                .own
                .map_or_else(String::new, |own| format!("{own:.0}")),
        );
    }
}

/// Why a server is skipped, without the path of the program's folder.
fn reason(program: &Program, error: &dyn std::error::Error) -> String {
    let folder = program.path.parent().and_then(|folder| folder.file_name());
    let name = folder.unwrap_or_default().to_string_lossy().into_owned();
    let error = error.to_string();
    let cause = error.split("load refused: ").nth(1).unwrap_or(&error);
    format!("{name} ({cause})")
}

fn progress(what: &str) {
    eprintln!("measuring {what} ..");
}
