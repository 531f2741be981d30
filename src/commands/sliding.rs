//! RL.SLIDING and RL.SLIDING_RO.

use super::docs::{KEY, LIMIT, MS, NOW, PREVIEW_REQUEST, REQUEST, WINDOW};
use super::record::RecordKind;
use crate::host::{ArgDoc, CommandInfo, KeyAccess, KeyPositions, counters};
use limiter::SlidingWindow;

impl RecordKind for SlidingWindow {
    const COMMAND: CommandInfo = CommandInfo {
        name: c"rl.sliding",
        summary: c"Counts a request in a sliding window if there is room.",
        complexity: c"O(1)",
        since: c"0.1.0",
        arity: 4,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        args: &[KEY, LIMIT, WINDOW, REQUEST, NOW, MS],
        counters: counters!(),
    };
    const PREVIEW: CommandInfo = CommandInfo {
        name: c"rl.sliding_ro",
        summary: c"Returns what RL.SLIDING would decide now, without counting the request.",
        access: KeyAccess::Read,
        args: &[KEY, LIMIT, WINDOW, PREVIEW_REQUEST, NOW, MS],
        counters: counters!(),
        ..<Self as RecordKind>::COMMAND
    };
    const RULE_NAME: &'static str = "sliding";
    const PARAMETERS: [ArgDoc; 2] = [LIMIT, WINDOW];
}
