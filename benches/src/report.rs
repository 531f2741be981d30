//! The report: Markdown, with charts beside it.

use crate::Result;
use crate::calls::Subject;
use crate::charts::{self, Bar, rounded};
use crate::instructions::Counts;
use crate::ladder::Ladder;
use crate::machine;
use crate::memory::{Kind, Memory};
use crate::propagation::Propagated;
use crate::scaling::{Line, Scaling};
use crate::targets::{self, Verdict};
use crate::timing::Timings;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Everything that a run measured.
pub struct Measured {
    /// Servers that could not be measured, and why.
    pub skipped: Vec<String>,
    pub timings: Vec<Timings>,
    pub ladders: Vec<Ladder>,
    pub memory: Vec<Memory>,
    pub propagated: Vec<Propagated>,
    pub scaling: Scaling,
    pub counts: Vec<Counts>,
}

/// Where the documents' charts are, from the documents.
const CHARTS: &str = "charts";

impl Measured {
    /// The server that the single-server sections are about: the first.
    fn main_server(&self) -> &str {
        self.timings
            .first()
            .map_or("no server", |timings| &timings.server)
    }

    pub fn markdown(&self) -> Result<String> {
        let mut page = String::new();
        self.write_head(&mut page)?;
        self.write_targets(&mut page)?;
        self.write_timings(&mut page)?;
        self.write_ladders(&mut page)?;
        self.write_memory(&mut page)?;
        self.write_propagated(&mut page)?;
        self.write_scaling(&mut page)?;
        self.write_counts(&mut page)?;
        write!(page, "{DECISIONS}")?;
        Ok(page)
    }

    fn write_head(&self, page: &mut String) -> Result<()> {
        let mut servers: Vec<&str> = Vec::new();
        for timings in &self.timings {
            if !servers.contains(&timings.server.as_str()) {
                servers.push(&timings.server);
            }
        }
        writeln!(page, "# Benchmarks\n\n{HEAD}\n")?;
        writeln!(page, "Machine: {}.", machine::description())?;
        writeln!(page, "Servers: {}.", servers.join(", "))?;
        for skipped in &self.skipped {
            writeln!(page, "Not measured: {skipped}.")?;
        }
        Ok(())
    }

    fn write_targets(&self, page: &mut String) -> Result<()> {
        writeln!(page, "\n## Targets\n\n{TARGETS}")?;
        for append_only in [false, true] {
            for keys in self.key_counts(append_only) {
                let columns = self
                    .timings
                    .iter()
                    .filter(|timings| (timings.append_only, timings.keys) == (append_only, keys))
                    .map(|timings| (timings.server.as_str(), targets::of_timings(timings)));
                let aof = if append_only {
                    ", AOF every second"
                } else {
                    ""
                };
                writeln!(page, "\n### Ratios, {} keys{aof}\n", with_commas(keys))?;
                write_verdicts(page, columns)?;
            }
        }
        if !self.counts.is_empty() {
            writeln!(page, "\n### Ratios of instructions in the handler\n")?;
            let columns = self.counts.iter();
            let columns =
                columns.map(|counts| (counts.server.as_str(), targets::of_counts(counts)));
            write_verdicts(page, columns)?;
        }
        writeln!(
            page,
            "\n### Ratios of memory, by the growth of `used_memory`\n"
        )?;
        let columns = self.memory.iter();
        let columns = columns.map(|memory| (memory.server.as_str(), targets::of_memory(memory)));
        write_verdicts(page, columns)
    }

    /// The numbers of keys that were measured, each once.
    fn key_counts(&self, append_only: bool) -> Vec<u32> {
        let mut counts: Vec<u32> = self
            .timings
            .iter()
            .filter(|timings| timings.append_only == append_only)
            .map(|timings| timings.keys)
            .collect();
        counts.sort_unstable();
        counts.dedup();
        counts
    }

    fn write_timings(&self, page: &mut String) -> Result<()> {
        writeln!(page, "\n## Server time and throughput\n\n{TIMINGS}\n")?;
        writeln!(page, "![Server time a call]({CHARTS}/server-time.svg)")?;
        for timings in &self.timings {
            let aof = if timings.append_only {
                ", AOF every second"
            } else {
                ""
            };
            writeln!(
                page,
                "\n### {}, {} keys{aof}\n",
                timings.server,
                with_commas(timings.keys)
            )?;
            writeln!(
                page,
                "| call | µs of server time | x SET | calls a second | x SET |"
            )?;
            writeln!(page, "| --- | ---: | ---: | ---: | ---: |")?;
            for timing in &timings.timings {
                writeln!(
                    page,
                    "| {} | {:.2} | {} | {} | {} |",
                    timing.title,
                    timing.usec,
                    two_digits(timings.time_ratio(timing.subject, Subject::Set)),
                    rounded(timing.calls_per_s),
                    two_digits(timings.rate_ratio(timing.subject, Subject::Set)),
                )?;
            }
        }
        Ok(())
    }

    fn write_ladders(&self, page: &mut String) -> Result<()> {
        writeln!(page, "\n## The ladder: where it falls over\n\n{LADDER}\n")?;
        for ladder in &self.ladders {
            writeln!(
                page,
                "- {}: the highest tier that held is {} calls a second.",
                ladder.title,
                rounded(ladder.highest_held())
            )?;
        }
        writeln!(
            page,
            "\n![Latency by arrival rate, {}]({CHARTS}/ladder.svg)\n",
            self.main_server()
        )?;
        writeln!(
            page,
            "| call | due a second | achieved | p50 | p95 | p99 | p99.9 | sent late, p99 | |"
        )?;
        writeln!(
            page,
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
        )?;
        let rates = {
            let mut rates: Vec<f64> = self
                .ladders
                .iter()
                .flat_map(|ladder| ladder.tiers.iter().map(|tier| tier.rate))
                .collect();
            rates.sort_by(f64::total_cmp);
            rates.dedup();
            rates
        };
        for rate in rates {
            for ladder in &self.ladders {
                for tier in ladder.tiers.iter().filter(|tier| tier.rate == rate) {
                    writeln!(
                        page,
                        "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                        ladder.title,
                        rounded(tier.rate),
                        rounded(tier.achieved),
                        milliseconds(tier.p50),
                        milliseconds(tier.p95),
                        milliseconds(tier.p99),
                        milliseconds(tier.p999),
                        milliseconds(tier.sent_late_p99),
                        if tier.holds() { "" } else { "**fails**" },
                    )?;
                }
            }
        }
        Ok(())
    }

    fn write_memory(&self, page: &mut String) -> Result<()> {
        writeln!(page, "\n## Memory a limiter\n\n{MEMORY}\n")?;
        writeln!(page, "![Memory a limiter]({CHARTS}/memory.svg)\n")?;
        writeln!(
            page,
            "| server | what | MEMORY USAGE | growth of used_memory |"
        )?;
        writeln!(page, "| --- | --- | ---: | ---: |")?;
        for memory in &self.memory {
            for bytes in &memory.bytes {
                writeln!(
                    page,
                    "| {} | {} | {:.0} | {:.1} |",
                    memory.server,
                    bytes.kind.title(),
                    bytes.by_usage,
                    bytes.by_growth
                )?;
            }
        }
        if let Some(memory) = self.memory.first() {
            writeln!(
                page,
                "\nGrowth over {} limiters.",
                with_commas(memory.limiters)
            )?;
        }
        Ok(())
    }

    fn write_propagated(&self, page: &mut String) -> Result<()> {
        writeln!(page, "\n## Bytes to the AOF and to a replica\n")?;
        writeln!(page, "A call, on {}. {PROPAGATED}\n", self.main_server())?;
        writeln!(page, "| call | AOF | replication |\n| --- | ---: | ---: |")?;
        for propagated in &self.propagated {
            writeln!(
                page,
                "| {} | {:.1} | {:.1} |",
                propagated.title, propagated.aof, propagated.replication
            )?;
        }
        Ok(())
    }

    fn write_scaling(&self, page: &mut String) -> Result<()> {
        writeln!(page, "\n## Scaling\n\nOn {}. {SCALING}", self.main_server())?;
        for (what, chart, lines) in [
            ("keys", "scaling-keys", &self.scaling.keys),
            ("rules in RL.ALL", "scaling-rules", &self.scaling.rules),
            (
                "connections",
                "scaling-connections",
                &self.scaling.connections,
            ),
        ] {
            writeln!(page, "\n### {what}\n\n![By {what}]({CHARTS}/{chart}.svg)\n")?;
            writeln!(
                page,
                "| {what} | call | µs of server time | calls a second |"
            )?;
            writeln!(page, "| ---: | --- | ---: | ---: |")?;
            let sizes = lines.first().map_or(0, |line| line.points.len());
            for place in 0..sizes {
                for line in lines {
                    let (size, usec, calls_per_s) = line.points[place];
                    writeln!(
                        page,
                        "| {} | {} | {usec:.2} | {} |",
                        with_commas(size),
                        line.title,
                        rounded(calls_per_s)
                    )?;
                }
            }
        }
        Ok(())
    }

    fn write_counts(&self, page: &mut String) -> Result<()> {
        writeln!(page, "\n## Instructions a call\n\n{COUNTS}")?;
        if self.counts.is_empty() {
            writeln!(page, "\nNot counted in this run: there was no valgrind.")?;
        }
        for counts in &self.counts {
            writeln!(page, "\n### {}\n", counts.server)?;
            writeln!(
                page,
                "| call | command | handler | handler x SET | our own code | the server's part x SET |"
            )?;
            writeln!(page, "| --- | ---: | ---: | ---: | ---: | ---: |")?;
            for (subject, title, count) in &counts.counts {
                writeln!(
                    page,
                    "| {title} | {:.0} | {:.0} | {} | {} | {} |",
                    count.command,
                    count.handler,
                    two_digits(counts.ratio(*subject)),
                    count
                        .own
                        .map_or_else(String::new, |own| format!("{own:.0}")),
                    two_digits(counts.ratio_of_server(*subject)),
                )?;
            }
        }
        Ok(())
    }

    pub fn draw_charts(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        if let Some(timings) = self.timings.first() {
            let bars: Vec<Bar> = timings
                .timings
                .iter()
                .map(|timing| Bar {
                    label: timing.title.clone(),
                    value: timing.usec,
                    colour: colour_of(timing.subject),
                })
                .collect();
            let title = format!("Server time a call, {}", timings.server);
            charts::bars(&folder.join("server-time.svg"), &title, "µs", &bars)?;
        }
        let ladder: Vec<charts::Line> = self
            .ladders
            .iter()
            .map(|ladder| charts::Line {
                name: ladder.title.clone(),
                points: ladder
                    .tiers
                    .iter()
                    .map(|tier| (tier.rate, tier.p99.as_secs_f64() * 1e3))
                    .collect(),
            })
            .collect();
        charts::lines(
            &folder.join("ladder.svg"),
            &format!("p99 by arrival rate, {}", self.main_server()),
            "calls due a second",
            "p99, ms since due",
            &ladder,
        )?;
        let memory: Vec<Bar> = self
            .memory
            .iter()
            .flat_map(|memory| {
                memory.bytes.iter().map(|bytes| Bar {
                    label: format!("{}, {}", memory.server, short_kind(bytes.kind)),
                    value: bytes.by_growth,
                    colour: usize::from(matches!(
                        bytes.kind,
                        Kind::BucketScript | Kind::WindowScript
                    )),
                })
            })
            .collect();
        charts::bars(
            &folder.join("memory.svg"),
            "Memory a limiter",
            "bytes",
            &memory,
        )?;
        let draw = |name: &str, title: &str, x: &str, y: &str, lines: &[Line], rate: bool| {
            let lines: Vec<charts::Line> = lines
                .iter()
                .map(|line| charts::Line {
                    name: line.title.clone(),
                    points: line
                        .points
                        .iter()
                        .map(|&(size, usec, calls_per_s)| {
                            (f64::from(size), if rate { calls_per_s } else { usec })
                        })
                        .collect(),
                })
                .collect();
            charts::lines(&folder.join(name), title, x, y, &lines)
        };
        let (time, rate) = ("µs of server time", "calls a second");
        let scaling = &self.scaling;
        draw(
            "scaling-keys.svg",
            "By keys",
            "keys",
            time,
            &scaling.keys,
            false,
        )?;
        draw(
            "scaling-rules.svg",
            "By rules in RL.ALL",
            "rules",
            time,
            &scaling.rules,
            false,
        )?;
        draw(
            "scaling-connections.svg",
            "By connections, one call each under way",
            "connections",
            rate,
            &scaling.connections,
            true,
        )
    }
}

/// A row a target, a column a server. A run measures the same of each server.
/// A table with a column for each server.
fn write_verdicts<'a>(
    page: &mut String,
    columns: impl Iterator<Item = (&'a str, Vec<Verdict>)>,
) -> Result<()> {
    let (servers, columns): (Vec<_>, Vec<_>) = columns.unzip();
    let Some(first) = columns.first() else {
        return Ok(());
    };
    writeln!(page, "| ratio | {} |", servers.join(" | "))?;
    writeln!(page, "| --- |{}", " --- |".repeat(servers.len()))?;
    for (row, verdict) in first.iter().enumerate() {
        let cells: Vec<String> = columns
            .iter()
            .filter_map(|column| column.get(row))
            .map(|verdict| format!("{} ({})", verdict.measured_text(), verdict.bound_text()))
            .collect();
        writeln!(page, "| {} | {} |", verdict.what, cells.join(" | "))?;
    }
    Ok(())
}

/// The module's calls in one colour, scripts and built-in commands in others.
fn colour_of(subject: Subject) -> usize {
    match subject {
        Subject::BucketScript | Subject::SlidingScript => 1,
        Subject::Ping | Subject::Set | Subject::Incr | Subject::Get => 5,
        Subject::Peer(_) => 2,
        _ => 0,
    }
}

fn short_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Bucket => "bucket",
        Kind::BucketScript => "script's hash",
        Kind::Window => "window",
        Kind::WindowScript => "script's strings",
    }
}

fn two_digits(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"))
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

/// "1,000,000".
fn with_commas(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const HEAD: &str = "\
`make bench` writes this page. Absolute figures vary with the machine, with the server's build and with what
else runs; **the ratios are what counts**: they are taken in one run, in rounds in which every call has its
turn, each round's figure divided by SET's of the same round, and the median of the rounds shown: for the common
table rounds on five servers started one after another, since where a server's keys come to lie in memory counts.

Server and load generator share one machine and talk over 127.0.0.1. All times are the server's own clock:
no call that is timed states NOW, but the scripts, which must be told the time.

Other modules are measured beside this one, in the same rounds, with a command line each:
`BENCH_PEERS='/path/to/libredis_cell.so=CL.THROTTLE cell:{key} 1000 60000 60' make bench`.";

const TARGETS: &str = "\
What the project set out to reach, as ratios, and what this run measured; in brackets the target. The yardstick
is `SET key <16 bytes> PX ms`, the built-in command that does the same kind of work: one lookup, one write, a
ttl, propagation. On a shared machine the ratios of times vary by a tenth from run to run, with what others leave
of the caches; those of instructions by a hundredth.

Why some are missed: most of a call runs in the functions of the module API, and the last column of
[Instructions a call](#instructions-a-call) shows what ratio these alone come to. The largest are RM_Replicate,
which looks SET up by its name each time, RM_OpenKey with its two lookups, and the four integers of the reply.";

const TIMINGS: &str = "\
Server time is `usec / calls` of INFO commandstats, which is what runs in the command's handler; EVALSHA is timed
as a whole, with the commands that the script calls. Throughput is the whole server's: 50 connections with 32 calls
each under way, random keys. The keys in a heading are limiters: RL.ALL of two draws from half as many pairs, so
that its working set is that of the others. Allowed calls have room for any run; denied ones are on limiters that
are used up. With AOF, what is propagated after the handler is not in its time, but is in the throughput.";

const LADDER: &str = "\
An open loop: calls come at a constant rate whether or not earlier ones were answered, one by one over 50
connections, and each latency counts from the time at which the call was *due*. The rate doubles until a tier
fails: less than 95 % of what was due is answered in time, or p99 is over 10 ms. Failing tiers are shown too. A
call without an answer at a tier's end counts with the time that it had waited by then.

Whether the generator is the bottleneck: PING's ladder is the ceiling of generator, sockets and server together,
and the column \"sent late\" tells how far behind the generator itself was with 99 % of the calls (in
failing tiers that is also the server, which has stopped reading).";

const MEMORY: &str = "\
With a ttl, after three calls, keys `user:00000042`; the script of the sliding window has a suffix to tell its three
keys apart. The bucket's calls leave a fraction of a token, as nearly all do in use: the script's hash holds it as
digits (with a whole number of tokens it is 16 bytes less). The growth of `used_memory` includes what MEMORY USAGE leaves out: the entry of the ttl and
the tables.";

const PROPAGATED: &str = "\
An allowed call propagates its result, a plain SET; a denied one on a key that exists propagates nothing.
RL.ALL's SETs come in MULTI and EXEC. The scripts propagate each write, of a denied call too.";

const SCALING: &str = "\
By keys and by rules with 50 connections and 32 calls each under way; by connections with one call each
under way.";

const COUNTS: &str = "\
By `valgrind --tool=callgrind`, repeatable to about a percent where times are not. *Command* is all that runs below
the function that the server calls for the command (`setCommand`, or the dispatcher of module commands);
*handler* is all that runs below the module's own function, so without the dispatcher. Both include what they call
in the server: lookup, expiry, replication, reply. *Our own code* is what of the handler runs in the module itself;
the rest is the module API's share, which no module can go below that opens, writes, propagates and replies as
this one does. Neither includes reading the request, finding the command and
writing to the socket and the AOF, which are alike for all. `benches/instructions.json` holds committed ratios
with slack; `redis-rl-bench instructions --check` fails when one is exceeded. Under valgrind a call takes some
fifty times as long, so what is done once a millisecond weighs more than in earnest.";

const DECISIONS: &str = "
## The decision alone

`cargo run --release --manifest-path benches/Cargo.toml --example decision -- --bench` measures the pure
arithmetic, in nanoseconds a decision. `make check-instructions` runs it without `--bench`: then it only fails if a
decision allocates.
";
