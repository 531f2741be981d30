//! Server time a call, as the server itself counts it: INFO commandstats.

use crate::Result;
use crate::resp::Client;

/// Calls of one command so far, and the microseconds that they took in its handler.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    calls: u64,
    usec: u64,
}

impl Spent {
    /// What `command` has cost so far. EVALSHA counts its script as a whole.
    pub fn on(client: &mut Client, command: &str) -> Result<Self> {
        let stats = client.call(&["INFO", "commandstats"])?.text()?;
        // The server writes its own commands small and those of a module as the module does.
        let Some(line) = stats.lines().find_map(|line| {
            let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            name.eq_ignore_ascii_case(command).then_some(counts)
        }) else {
            return Ok(Self::default());
        };
        let number = |field: &str| -> Result<u64> {
            line.split(',')
                .find_map(|pair| pair.strip_prefix(field)?.strip_prefix('='))
                .ok_or_else(|| format!("commandstats of {command} lacks {field}"))?
                .parse()
                .map_err(Into::into)
        };
        Ok(Self {
            calls: number("calls")?,
            usec: number("usec")?,
        })
    }

    /// Microseconds a call since `earlier`. A call's time is cut to whole microseconds, but by a clock
    /// that its start is not aligned with, so that the mean of many is exact.
    pub fn usec_per_call_since(self, earlier: Self) -> f64 {
        (self.usec - earlier.usec) as f64 / (self.calls - earlier.calls).max(1) as f64
    }
}
