//! Other modules, measured beside this one: BENCH_PEERS. None is shipped.

use crate::Result;
use std::path::PathBuf;

/// Libraries with a command line each: `path.so=COMMAND {key} ...`, separated by `;` or by lines.
#[derive(Default)]
pub struct Peers(Vec<(PathBuf, String)>);

impl Peers {
    pub fn from_environment() -> Result<Self> {
        let Ok(text) = std::env::var("BENCH_PEERS") else {
            return Ok(Self::default());
        };
        text.split([';', '\n'])
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .map(|entry| {
                let (path, line) = entry.split_once('=').ok_or_else(|| {
                    format!("BENCH_PEERS: path.so=COMMAND {{key}} .. expected, not {entry}")
                })?;
                let path = std::fs::canonicalize(path.trim())
                    .map_err(|error| format!("BENCH_PEERS: {path}: {error}"))?;
                Ok((path, line.trim().to_owned()))
            })
            .collect::<Result<_>>()
            .map(Self)
    }

    /// The libraries, each once.
    pub fn modules(&self) -> Vec<PathBuf> {
        let mut modules: Vec<_> = self.0.iter().map(|(path, _)| path.clone()).collect();
        modules.dedup();
        modules
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(_, line)| line.as_str())
    }
}
