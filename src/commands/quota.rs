//! RL.QUOTA and RL.QUOTA_RO.

use super::docs::{KEY, LIMIT, MS, NOW, PERIOD, PREVIEW_REQUEST, REQUEST};
use super::record::RecordKind;
use crate::host::{ArgDoc, CommandInfo, KeyAccess, KeyPositions, counters};
use limiter::Quota;

impl RecordKind for Quota {
    const COMMAND: CommandInfo = CommandInfo {
        name: c"rl.quota",
        summary: c"Counts a request if the current period has room for it.",
        complexity: c"O(1)",
        since: c"0.2.0",
        arity: 4,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        args: &[KEY, LIMIT, PERIOD, REQUEST, NOW, MS],
        counters: counters!(),
    };
    const PREVIEW: CommandInfo = CommandInfo {
        name: c"rl.quota_ro",
        summary: c"Returns what RL.QUOTA would decide now, without counting the request.",
        access: KeyAccess::Read,
        args: &[KEY, LIMIT, PERIOD, PREVIEW_REQUEST, NOW, MS],
        counters: counters!(),
        ..<Self as RecordKind>::COMMAND
    };
    const RULE_NAME: &'static str = "quota";
    const PARAMETERS: [ArgDoc; 2] = [LIMIT, PERIOD];
}
