//! Where the figures were taken.

use std::fs;

/// "4 cores of Some CPU, Linux 6.1.0".
pub fn description() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let model = fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            text.lines().find_map(|line| {
                Some(
                    line.strip_prefix("model name")?
                        .split_once(':')?
                        .1
                        .trim()
                        .to_owned(),
                )
            })
        })
        .unwrap_or_else(|| format!("an unnamed {} CPU", std::env::consts::ARCH));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let system = match std::env::consts::OS {
        "linux" => "Linux",
        other => other,
    };
    format!("{cores} cores of {model}, {system} {}", kernel.trim())
}
