//! RL.ALL and RL.ALL_RO: several limits, all or nothing (design sections 1 and 6).

use super::arguments::{KEY, MS, NOW, NUMKEYS, PREVIEW_RULES, RULES};
use super::error::Error;
use super::steps::{carry_out, outcome, stored_state};
use super::syntax::{
    AnyRule, RULES_ON_STACK, Rules, TimeUnit, all, all_preview, distinct, numkeys,
};
use crate::host::{
    Arguments, Command, CommandInfo, Context, Counters, KeyAccess, KeyPositions, Keys, Outcome,
    Value, WriteKey, injected_panic,
};
use limiter::codec::Stored;
use limiter::{BucketLevel, Decision, Request, SlidingWindow, TokenBucket, WindowCounters, decide};
use smallvec::SmallVec;
use std::ops::Range;

/// Where the keys start: behind the command's name and numkeys.
const FIRST_KEY: usize = 2;

/// Takes what every rule asks for, or nothing at all.
pub struct AllCommand;

impl Command for AllCommand {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.all",
        summary: c"Takes from several limiters at once if all of them have room, else from none.",
        complexity: c"O(N*log(N)) where N is the number of keys.",
        since: c"0.1.0",
        least_words: 6,
        access: KeyAccess::Update,
        key_positions: KeyPositions::Counted,
        arguments: &[NUMKEYS, KEY.repeated(), RULES, NOW, MS],
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        let numkeys = numkeys(arguments.word(1), arguments.len() - FIRST_KEY)?;
        let mut rules = Rules::new();
        let options = all(
            numkeys,
            arguments.words_from(FIRST_KEY + numkeys),
            &mut rules,
        )?;
        distinct(arguments.words_from(FIRST_KEY).take(numkeys))?;
        let server_now_ms = context.now_ms();
        let now_ms = options.now_ms.unwrap_or(server_now_ms);

        let mut members: SmallVec<[(WriteKey<'_>, AnyDecision); RULES_ON_STACK]> = SmallVec::new();
        let mut all_allow = true;
        for (position, &(rule, request)) in (FIRST_KEY..).zip(&rules) {
            let mut key = context.open_for_writing(arguments.key(position));
            let decision = rule.decide(request, key.value(rule.state_len()), now_ms)?;
            all_allow &= decision.is_allowed();
            members.push((key, decision));
        }
        // Before anything is written or replied: what went wrong in it would leave nothing behind.
        let answer = if all_allow {
            AnyDecision::carried_out
        } else {
            AnyDecision::previewed
        };
        let mut answers = Answers::new();
        for (position, (_, decision)) in (FIRST_KEY..).zip(&members) {
            injected_panic(arguments.word(position));
            answers.push(answer(decision, options.unit));
        }
        if all_allow {
            for (key, decision) in &mut members {
                decision.carry_out(key, server_now_ms)?;
            }
        }
        for (key, _) in &mut members {
            key.close();
        }
        for (key, decision) in &members {
            // A call that was refused as a whole allowed nobody anything.
            let outcome = decision.outcome();
            if all_allow || outcome == Outcome::Denied {
                context.publish(key.name(), outcome);
            }
        }

        reply(context, all_allow, &answers);
        Ok(outcome_of_all(all_allow))
    }
}

impl Keys for AllCommand {
    fn positions(arguments: Arguments<'_>) -> Range<usize> {
        key_positions(arguments)
    }
}

/// What the write form would decide now; changes nothing.
pub struct AllPreview;

impl Command for AllPreview {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.all_ro",
        summary: c"Tells what RL.ALL would decide now, and takes nothing.",
        access: KeyAccess::Read,
        arguments: &[NUMKEYS, KEY.repeated(), PREVIEW_RULES, NOW, MS],
        ..AllCommand::INFO
    };

    fn counters() -> &'static Counters {
        static COUNTERS: Counters = Counters::new();
        &COUNTERS
    }

    fn call(context: Context<'_>, arguments: Arguments<'_>) -> Result<Outcome, Error> {
        let numkeys = numkeys(arguments.word(1), arguments.len() - FIRST_KEY)?;
        let mut rules = Rules::new();
        let options = all_preview(
            numkeys,
            arguments.words_from(FIRST_KEY + numkeys),
            &mut rules,
        )?;
        distinct(arguments.words_from(FIRST_KEY).take(numkeys))?;
        let now_ms = options.now_ms.unwrap_or_else(|| context.now_ms());

        let mut decisions: SmallVec<[AnyDecision; RULES_ON_STACK]> = SmallVec::new();
        for (position, &(rule, request)) in (FIRST_KEY..).zip(&rules) {
            let key = context.open_for_reading(arguments.key(position));
            decisions.push(rule.decide(request, key.value(rule.state_len()), now_ms)?);
        }

        let all_allow = decisions.iter().all(AnyDecision::is_allowed);
        let mut answers = Answers::new();
        for (position, decision) in (FIRST_KEY..).zip(&decisions) {
            injected_panic(arguments.word(position));
            answers.push(decision.previewed(options.unit));
        }
        reply(context, all_allow, &answers);
        Ok(outcome_of_all(all_allow))
    }
}

impl Keys for AllPreview {
    fn positions(arguments: Arguments<'_>) -> Range<usize> {
        key_positions(arguments)
    }
}

/// Where the keys of a call are that may be malformed: none beyond its last word.
fn key_positions(arguments: Arguments<'_>) -> Range<usize> {
    let words_after = arguments.len().saturating_sub(FIRST_KEY);
    let numkeys = numkeys(arguments.word(1), words_after).unwrap_or(0);
    FIRST_KEY..FIRST_KEY + numkeys
}

/// The four integers of each rule.
type Answers = SmallVec<[[i64; 4]; RULES_ON_STACK]>;

/// Replies with what was computed before: once an array has begun, nothing may fail.
fn reply(context: Context<'_>, all_allow: bool, answers: &Answers) {
    context.reply_array(1 + answers.len());
    context.reply_integer(i64::from(all_allow));
    for answer in answers {
        context.reply_integers(answer);
    }
}

/// What a call of several rules counts as.
fn outcome_of_all(all_allow: bool) -> Outcome {
    if all_allow {
        Outcome::Allowed
    } else {
        Outcome::Denied
    }
}

/// A decision of either algorithm.
enum AnyDecision {
    TokenBucket(Decision<TokenBucket>),
    Sliding(Decision<SlidingWindow>),
}

impl AnyRule {
    /// Bytes of the rule's state.
    fn state_len(self) -> usize {
        match self {
            Self::TokenBucket(_) => BucketLevel::LEN,
            Self::Sliding(_) => WindowCounters::LEN,
        }
    }

    // Always inlined: the decision is made where the call keeps it.
    #[inline(always)]
    fn decide(self, request: Request, value: Value<'_>, now_ms: i64) -> Result<AnyDecision, Error> {
        Ok(match self {
            Self::TokenBucket(rule) => {
                AnyDecision::TokenBucket(decide(rule, request, stored_state(value)?, now_ms))
            }
            Self::Sliding(rule) => {
                AnyDecision::Sliding(decide(rule, request, stored_state(value)?, now_ms))
            }
        })
    }
}

impl AnyDecision {
    fn is_allowed(&self) -> bool {
        match self {
            Self::TokenBucket(decision) => decision.is_allowed(),
            Self::Sliding(decision) => decision.is_allowed(),
        }
    }

    fn outcome(&self) -> Outcome {
        match self {
            Self::TokenBucket(decision) => outcome(decision),
            Self::Sliding(decision) => outcome(decision),
        }
    }

    fn carry_out(&self, key: &mut WriteKey<'_>, server_now_ms: i64) -> Result<(), Error> {
        match self {
            Self::TokenBucket(decision) => carry_out(decision, key, server_now_ms),
            Self::Sliding(decision) => carry_out(decision, key, server_now_ms),
        }
    }

    fn carried_out(&self, unit: TimeUnit) -> [i64; 4] {
        match self {
            Self::TokenBucket(decision) => unit.reply(decision.carried_out()),
            Self::Sliding(decision) => unit.reply(decision.carried_out()),
        }
    }

    fn previewed(&self, unit: TimeUnit) -> [i64; 4] {
        match self {
            Self::TokenBucket(decision) => unit.reply(decision.previewed()),
            Self::Sliding(decision) => unit.reply(decision.previewed()),
        }
    }
}
