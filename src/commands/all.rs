//! The flow of RL.ALL and RL.ALL_RO: several limits, all or nothing.

use super::docs::{KEY, MS, NOW, NUMKEYS, PREVIEW_RULES, RULES};
use super::error::Error;
use super::kind::{Commit, Limit};
use super::record::RecordDecision;
use crate::host::{
    Argv, Command, CommandInfo, Context, KeyAccess, KeyPositions, OpenKey, Outcome, WriteKey,
    counters, injected_panic,
};
use limiter::{Reply, Request, SlidingWindow, TokenBucket};
use smallvec::SmallVec;
use std::ops::Range;
use syntax::{
    AnyRule, Options, RULES_ON_STACK, Rules, SyntaxError, TimeUnit, check_distinct,
    check_read_only, parse_all, parse_numkeys,
};

/// The position of the first key: after the command's name and numkeys.
const FIRST_KEY: usize = 2;

/// RL.ALL: takes what every rule asks, or nothing at all.
pub struct All;

impl Command for All {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.all",
        summary: c"Takes from several limiters atomically: from all of them, or from none.",
        complexity: c"O(N*log(N)) where N is the number of keys.",
        since: c"0.1.0",
        arity: 6,
        access: KeyAccess::Update,
        key_positions: KeyPositions::Counted(key_positions),
        args: &[NUMKEYS, KEY.repeated(), RULES, NOW, MS],
        counters: counters!(),
    };

    /// Parse; open and decide each; then store and replicate all or none, publish, reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let mut rules = Rules::new();
        let options = parse(argv, &mut rules).map_err(|error| Error::Syntax(error, &Self::INFO))?;
        let server_now_ms = context.now_ms();
        let now_ms = options.now_ms.unwrap_or(server_now_ms);

        let mut limiters: SmallVec<[(WriteKey<'_>, AnyDecision); RULES_ON_STACK]> = SmallVec::new();
        for (position, &(rule, request)) in (FIRST_KEY..).zip(&rules) {
            let mut key = context.open_for_writing(argv.key(position));
            let decision = decide(rule, request, &mut key, now_ms)?;
            limiters.push((key, decision));
        }
        let all_allow = limiters.iter().all(|(_, decision)| decision.is_allowed());

        // Computed before anything is written, so that a call that fails changes nothing.
        let mut replies = Replies::new();
        for (key, decision) in &limiters {
            injected_panic(key.name().bytes());
            replies.push(if all_allow {
                decision.committed(options.unit)
            } else {
                decision.previewed(options.unit)
            });
        }
        for (key, decision) in &mut limiters {
            if all_allow {
                decision.commit(key, server_now_ms)?;
            }
            key.close();
        }
        for (key, decision) in &limiters {
            // A call that is denied as a whole allowed nobody anything.
            let outcome = decision.outcome();
            if all_allow || outcome == Outcome::Denied {
                context.publish(key.name(), outcome);
            }
        }
        Ok(reply(context, all_allow, &replies))
    }
}

/// RL.ALL_RO: what RL.ALL would decide now. It changes nothing.
pub struct AllPreview;

impl Command for AllPreview {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.all_ro",
        summary: c"Returns what RL.ALL would decide now, without taking anything.",
        access: KeyAccess::Read,
        args: &[NUMKEYS, KEY.repeated(), PREVIEW_RULES, NOW, MS],
        counters: counters!(),
        ..All::INFO
    };

    /// Parse; open and decide each; reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let mut rules = Rules::new();
        let options = parse(argv, &mut rules)
            .and_then(|options| check_read_only(&rules).map(|()| options))
            .map_err(|error| Error::Syntax(error, &Self::INFO))?;
        let now_ms = options.now_ms.unwrap_or_else(|| context.now_ms());

        let mut all_allow = true;
        let mut replies = Replies::new();
        for (position, &(rule, request)) in (FIRST_KEY..).zip(&rules) {
            let mut key = context.open_for_reading(argv.key(position));
            injected_panic(argv.get(position));
            let decision = decide(rule, request, &mut key, now_ms)?;
            all_allow &= decision.is_allowed();
            replies.push(decision.previewed(options.unit));
        }
        Ok(reply(context, all_allow, &replies))
    }
}

/// The replies of the rules, in the order of the keys.
type Replies = SmallVec<[Reply; RULES_ON_STACK]>;

/// Reads a call: its rules, in the order of the keys, go into `rules`.
#[inline(always)]
fn parse(argv: Argv<'_>, rules: &mut Rules) -> Result<Options, SyntaxError> {
    let numkeys = parse_numkeys(argv.get(1), argv.len() - FIRST_KEY)?;
    let args = argv.iter_from(FIRST_KEY + numkeys);
    let options = parse_all(numkeys, args, rules)?;
    check_distinct(argv.iter_from(FIRST_KEY).take(numkeys))?;
    Ok(options)
}

/// The positions of the keys; the arguments may be malformed.
fn key_positions(argv: Argv<'_>) -> Range<usize> {
    let args_after = argv.len().saturating_sub(FIRST_KEY);
    let numkeys = parse_numkeys(argv.get(1), args_after).unwrap_or(0);
    FIRST_KEY..FIRST_KEY + numkeys
}

/// Replies with what was computed before: once an array has begun, nothing may fail. Returns what the call counts as.
fn reply(context: Context<'_>, all_allow: bool, replies: &Replies) -> Outcome {
    context.reply_array(1 + replies.len());
    context.reply_integer(i64::from(all_allow));
    for reply in replies {
        context.reply_integers(&reply.integers);
    }
    if all_allow {
        Outcome::Allowed
    } else {
        Outcome::Denied
    }
}

/// A decision of any kind.
enum AnyDecision {
    TokenBucket(RecordDecision<TokenBucket>),
    Sliding(RecordDecision<SlidingWindow>),
}

/// Reads the limiter that `key` holds and decides, by whichever rule it is.
// Always inlined: the decision is made where the call keeps it.
#[inline(always)]
fn decide(
    rule: AnyRule,
    request: Request,
    key: &mut impl OpenKey,
    now_ms: i64,
) -> Result<AnyDecision, Error> {
    Ok(match rule {
        AnyRule::TokenBucket(rule) => AnyDecision::TokenBucket(rule.decide(request, key, now_ms)?),
        AnyRule::Sliding(rule) => AnyDecision::Sliding(rule.decide(request, key, now_ms)?),
    })
}

/// Does the same with a decision of any kind: a `dyn` would cost an RL.ALL of two 11 %.
macro_rules! with_decision {
    ($any:expr, $decision:ident => $result:expr) => {
        match $any {
            AnyDecision::TokenBucket($decision) => $result,
            AnyDecision::Sliding($decision) => $result,
        }
    };
}

impl Commit for AnyDecision {
    fn is_allowed(&self) -> bool {
        with_decision!(self, decision => decision.is_allowed())
    }

    fn outcome(&self) -> Outcome {
        with_decision!(self, decision => decision.outcome())
    }

    fn committed(&self, unit: TimeUnit) -> Reply {
        with_decision!(self, decision => decision.committed(unit))
    }

    fn previewed(&self, unit: TimeUnit) -> Reply {
        with_decision!(self, decision => decision.previewed(unit))
    }

    fn commit(&self, key: &mut WriteKey<'_>, server_now_ms: i64) -> Result<(), Error> {
        with_decision!(self, decision => decision.commit(key, server_now_ms))
    }
}
