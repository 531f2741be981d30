//! RL.TOKENBUCKET and RL.TOKENBUCKET_RO (design sections 1, 2 and 6), and with them the way of a call
//! that has one rule, which RL.SLIDING takes too.

use super::arguments::{CAPACITY, COST, COST_OR_REFUND, KEY, MS, NOW, REFILL_RATE};
use super::error::Error;
use super::steps::{ScriptState, carry_out, outcome, stored_state};
use super::syntax::{RuleSyntax, SingleCall, single, single_preview};
use crate::host::{
    Arguments, Command, CommandInfo, Context, Counters, KeyAccess, KeyPositions, Outcome,
};
use limiter::codec::Stored;
use limiter::{TokenBucket, decide};

/// Takes tokens from a bucket, or gives some back.
pub struct TokenBucketCommand;

impl Command for TokenBucketCommand {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.tokenbucket",
        summary: c"Takes tokens from a bucket that refills steadily, if it holds as many.",
        complexity: c"O(1)",
        since: c"0.1.0",
        least_words: 4,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        arguments: &[KEY, CAPACITY, REFILL_RATE, COST_OR_REFUND, NOW, MS],
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        call_with_rule::<TokenBucket>(context, arguments)
    }
}

/// What the write form would decide now; changes nothing.
pub struct TokenBucketPreview;

impl Command for TokenBucketPreview {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.tokenbucket_ro",
        summary: c"Tells what RL.TOKENBUCKET would decide now, and takes nothing.",
        access: KeyAccess::Read,
        arguments: &[KEY, CAPACITY, REFILL_RATE, COST, NOW, MS],
        ..TokenBucketCommand::INFO
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        preview_with_rule::<TokenBucket>(context, arguments)
    }
}

/// Parse, open, decide, store and propagate, publish, reply: a call of RL.TOKENBUCKET or RL.SLIDING.
pub fn call_with_rule<L>(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error>
where
    L: RuleSyntax<State: ScriptState>,
{
    let call: SingleCall<L> = single(arguments.words_from(2))?;
    let server_now_ms = context.now_ms();
    let now_ms = call.options.now_ms.unwrap_or(server_now_ms);
    let mut key = context.open_for_writing(arguments.key(1));
    let stored = stored_state(key.value(L::State::LEN))?;
    let decision = decide(call.rule, call.request, stored, now_ms);
    // Before anything is written: what went wrong in it would leave nothing behind.
    let reply = call.options.unit.reply(decision.carried_out());
    carry_out(&decision, &mut key, server_now_ms)?;
    let outcome = outcome(&decision);
    context.publish(key.close(), outcome);
    context.reply_integers(&reply);
    Ok(outcome)
}

/// Parse, open, decide, reply: a call of RL.TOKENBUCKET_RO or RL.SLIDING_RO.
pub fn preview_with_rule<L>(
    context: Context<'_>,
    arguments: Arguments<'_>,
) -> Result<Outcome, Error>
where
    L: RuleSyntax<State: ScriptState>,
{
    let call: SingleCall<L> = single_preview(arguments.words_from(2))?;
    let now_ms = call.options.now_ms.unwrap_or_else(|| context.now_ms());
    let key = context.open_for_reading(arguments.key(1));
    let stored = stored_state(key.value(L::State::LEN))?;
    let decision = decide(call.rule, call.request, stored, now_ms);
    context.reply_integers(&call.options.unit.reply(decision.previewed()));
    Ok(outcome(&decision))
}
