//! RL.SLIDING and RL.SLIDING_RO.

use super::docs::{KEY, LIMIT, MS, NOW, PREVIEW_REQUEST, REQUEST, WINDOW};
use super::kind::Kind;
use crate::host::{CommandInfo, KeyAccess, counters};
use limiter::{SlidingWindow, TokenBucket};

impl Kind for SlidingWindow {
    const COMMAND: CommandInfo = CommandInfo {
        name: c"rl.sliding",
        summary: c"Counts a request if the estimate of the last window seconds leaves room for it.",
        args: &[KEY, LIMIT, WINDOW, REQUEST, NOW, MS],
        counters: counters!(),
        ..TokenBucket::COMMAND
    };
    const PREVIEW: CommandInfo = CommandInfo {
        name: c"rl.sliding_ro",
        summary: c"Returns what RL.SLIDING would decide now, without counting the request.",
        access: KeyAccess::Read,
        args: &[KEY, LIMIT, WINDOW, PREVIEW_REQUEST, NOW, MS],
        counters: counters!(),
        ..Self::COMMAND
    };
}
