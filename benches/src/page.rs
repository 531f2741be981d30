//! The page and its charts: figures into templates.

use crate::instructions::Counts;
use crate::ladder::Tier;
use crate::memory::Bytes;
use crate::propagation::Propagated;
use crate::scaling::Scaling;
use crate::timing::{Planned, median};
use anyhow::Result;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, UndefinedBehavior, context};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// Everything that a run measured.
#[derive(Default, Serialize, Deserialize)]
pub struct Figures {
    pub machine: String,
    /// Servers that could not be measured, and why.
    pub skipped: Vec<String>,
    pub plans: Vec<Planned>,
    pub ladder: Vec<Tier>,
    pub memory: Vec<Bytes>,
    pub propagated: Vec<Propagated>,
    pub scaling: Vec<Scaling>,
    pub counts: Vec<Counts>,
}

const PAGE: &str = include_str!("../templates/benchmarks.md.j2");
const CHART: &str = include_str!("../templates/chart.svg.j2");
const CHARTS: [&str; 6] = [
    "server-time",
    "ladder",
    "memory",
    "scaling-keys",
    "scaling-rules",
    "scaling-connections",
];

impl Figures {
    /// Writes the page and its charts into `folder`.
    pub fn publish(&self, folder: &Path) -> Result<()> {
        let mut syntax = SyntaxConfig::builder();
        syntax
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true);
        let mut templates = Environment::new();
        templates.set_syntax(syntax.build()?);
        templates.set_undefined_behavior(UndefinedBehavior::Strict);
        templates.add_filter("commas", with_commas);
        templates.add_filter("fixed", |value: f64, digits: usize| {
            format!("{value:.digits$}")
        });
        templates.add_filter("log_between", log_between);
        templates.add_filter("median", median);
        templates.add_filter("per", per);
        templates.add_filter("rounded", rounded);
        let charts = folder.join("charts");
        fs::create_dir_all(&charts)?;
        for chart in CHARTS {
            let svg =
                templates.render_str(CHART, context! { chart, ..Value::from(Serde(self)) })?;
            fs::write(charts.join(format!("{chart}.svg")), svg)?;
        }
        let page = folder.join("benchmarks.md");
        fs::write(&page, templates.render_str(PAGE, Serde(self))?)?;
        eprintln!("{} is written", page.display());
        Ok(())
    }
}

/// The median of the rounds' ratios.
fn per(rounds: Vec<f64>, base: Vec<f64>) -> f64 {
    let ratios = rounds.iter().zip(base).map(|(own, base)| own / base);
    median(ratios.collect())
}

/// Three digits, thousands as k and M.
fn rounded(value: f64) -> String {
    let (value, unit) = match value {
        _ if value >= 1e6 => (value / 1e6, "M"),
        _ if value >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value {
        _ if value >= 100.0 || value == value.trunc() => 0,
        _ if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}

/// Where a value stands on a logarithmic axis from `low` at `start` to `high` at `end`.
fn log_between(value: f64, low: f64, high: f64, start: f64, end: f64) -> String {
    let share = (value / low).ln() / (high / low).ln().max(f64::MIN_POSITIVE);
    format!("{:.1}", start + share * (end - start))
}

/// "1,000,000".
fn with_commas(number: u32) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}

/// "4 cores of Some CPU, Linux 6.1.0".
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model);
    format!(
        "{cores} cores of {model}, {} {}",
        std::env::consts::OS,
        read("/proc/sys/kernel/osrelease").trim()
    )
}
