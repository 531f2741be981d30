//! The flow of RL.ALL and RL.ALL_RO: several limits, all or nothing.
//!
//! Each rule is decided on its own key, and then the call as a whole: denied if a rule without SHADOW denies;
//! repeated if all leases that it would take are already live; otherwise allowed. What each rule then does follows
//! from both: see [`Fate`].

use super::docs::{CALL_ID, KEY, MAXWAIT, MS, NOW, NUMKEYS, PREVIEW_RULES, RULES};
use super::error::Error;
use super::kind::{Commit, StoredRule, check_until};
use super::leases::{LeaseRule, LeaseSetDecision, lease_request};
use super::record::RecordDecision;
use crate::host::{
    Argv, Command, CommandInfo, Context, KeyAccess, KeyPositions, OpenKey, Outcome, WriteKey,
    counters, injected_panic,
};
use limiter::{Quota, Reply, SlidingWindow, TokenBucket};
use smallvec::SmallVec;
use std::ops::Range;
use syntax::{
    AllOptions, AnyRule, Lease, RULES_ON_STACK, RuleArgs, Rules, SyntaxError, TimeUnit,
    check_distinct, check_read_only, parse_all, parse_numkeys,
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
        complexity: c"O(N*log(N)) where N is the number of keys, and that of RL.CONCURRENCY for each of its rules.",
        since: c"0.1.0",
        arity: 6,
        access: KeyAccess::Update,
        key_positions: KeyPositions::Counted(key_positions),
        args: &[NUMKEYS, KEY.repeated(), RULES, CALL_ID, MAXWAIT, NOW, MS],
        counters: counters!(),
    };

    /// Parse; open and decide each; decide the whole; store and replicate all or none, publish, reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let mut rules = Rules::new();
        let AllOptions { options, lease } =
            parse(argv, &mut rules).map_err(|error| Error::Syntax(error, &Self::INFO))?;
        let server_now_ms = context.now_ms();
        let now_ms = options.now_ms.unwrap_or(server_now_ms);
        check_times(&rules, now_ms)?;

        let mut decisions = Decisions::new();
        for (position, args) in (FIRST_KEY..).zip(&rules) {
            let mut key = context.open_for_writing(argv.arg(position));
            let any = decide(args, lease, argv, &mut key, now_ms)?;
            decisions.push(RuleDecision::new(key, any, args.is_shadow));
        }
        let outcome = outcome_of(&decisions, lease);

        // Computed before anything is written, so that a call that fails changes nothing.
        let mut replies = Replies::new();
        for decision in &decisions {
            injected_panic(decision.key.name().bytes());
            replies.push(match decision.fate(outcome) {
                Fate::Committed => decision.any.committed(options.unit),
                Fate::Untouched => decision.any.previewed(options.unit),
                Fate::Repeated => decision.any.repeated(options.unit),
            });
        }
        for decision in &mut decisions {
            if decision.fate(outcome) == Fate::Committed {
                decision.any.commit(&mut decision.key, server_now_ms)?;
            }
            decision.key.close();
        }
        for decision in &decisions {
            decision.publish(context, outcome);
        }
        reply(context, outcome, &replies);
        Ok(outcome)
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
        args: &[
            NUMKEYS,
            KEY.repeated(),
            PREVIEW_RULES,
            CALL_ID,
            MAXWAIT,
            NOW,
            MS,
        ],
        counters: counters!(),
        ..All::INFO
    };

    /// Parse; open and decide each; decide the whole; reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        let mut rules = Rules::new();
        let AllOptions { options, lease } = parse(argv, &mut rules)
            .and_then(|options| check_read_only(&rules).map(|()| options))
            .map_err(|error| Error::Syntax(error, &Self::INFO))?;
        let now_ms = options.now_ms.unwrap_or_else(|| context.now_ms());
        check_times(&rules, now_ms)?;

        let mut decisions = Decisions::new();
        for (position, args) in (FIRST_KEY..).zip(&rules) {
            let mut key = context.open_for_reading(argv.arg(position));
            let any = decide(args, lease, argv, &mut key, now_ms)?;
            decisions.push(RuleDecision::new((), any, args.is_shadow));
        }
        let outcome = outcome_of(&decisions, lease);
        let mut replies = Replies::new();
        for (position, decision) in (FIRST_KEY..).zip(&decisions) {
            injected_panic(argv.get(position));
            replies.push(match decision.fate(outcome) {
                Fate::Committed | Fate::Untouched => decision.any.previewed(options.unit),
                Fate::Repeated => decision.any.repeated(options.unit),
            });
        }
        reply(context, outcome, &replies);
        Ok(outcome)
    }
}

/// Reads a call: its rules, in the order of the keys, go into `rules`.
#[inline(always)]
fn parse(argv: Argv<'_>, rules: &mut Rules) -> Result<AllOptions, SyntaxError> {
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

/// Refuses rules that make no sense at this time, before a key is opened.
fn check_times(rules: &Rules, now_ms: i64) -> Result<(), Error> {
    rules
        .iter()
        .try_for_each(|args| check_until(args.rule.until_ms(), now_ms))
}

/// The decisions on the rules, in the order of the keys.
type Decisions<'call, K> = SmallVec<[RuleDecision<'call, K>; RULES_ON_STACK]>;

/// The replies of the rules, in the order of the keys.
type Replies = SmallVec<[Reply; RULES_ON_STACK]>;

/// The decision on one rule, with its open key if it may be committed.
struct RuleDecision<'call, K> {
    key: K,
    any: AnyDecision<'call>,
    is_allowed: bool,
    /// See [`Commit::has_live_lease`].
    has_live_lease: Option<bool>,
    /// It cannot deny the call.
    is_shadow: bool,
}

/// What a rule does in a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// What it decided.
    Committed,
    /// Nothing: the call is denied, or this rule is and has SHADOW.
    Untouched,
    /// Nothing: the call was committed before.
    Repeated,
}

/// What becomes of the call as a whole.
fn outcome_of<K>(decisions: &Decisions<'_, K>, lease: Option<Lease>) -> Outcome {
    let mut binding = decisions.iter().filter(|decision| !decision.is_shadow);
    if lease.is_some() && is_repeated(binding.clone()) {
        Outcome::Repeated
    } else if binding.all(|decision| decision.is_allowed) {
        Outcome::Allowed
    } else {
        Outcome::Denied
    }
}

/// Whether there are leases to take and all of them are live already.
fn is_repeated<'a, K: 'a>(binding: impl Iterator<Item = &'a RuleDecision<'a, K>> + Clone) -> bool {
    let mut leases = binding.filter_map(|decision| decision.has_live_lease);
    leases.clone().next().is_some() && leases.all(|is_live| is_live)
}

impl<'call, K> RuleDecision<'call, K> {
    #[inline(always)]
    fn new(key: K, any: AnyDecision<'call>, is_shadow: bool) -> Self {
        Self {
            key,
            is_allowed: any.is_allowed(),
            has_live_lease: any.has_live_lease(),
            any,
            is_shadow,
        }
    }

    fn fate(&self, outcome: Outcome) -> Fate {
        match outcome {
            // A live lease is renewed, so that the call that took it can be sent again to keep it.
            Outcome::Repeated if self.has_live_lease == Some(true) => Fate::Committed,
            Outcome::Repeated => Fate::Repeated,
            Outcome::Denied => Fate::Untouched,
            _ if self.is_allowed => Fate::Committed,
            _ => Fate::Untouched,
        }
    }
}

impl RuleDecision<'_, WriteKey<'_>> {
    /// Publishes what became of the rule. A call that is denied as a whole allowed nobody anything.
    fn publish(&self, context: Context<'_>, outcome: Outcome) {
        let key = &self.key;
        match (outcome, self.is_shadow) {
            (Outcome::Repeated, false) if self.has_live_lease == Some(true) => {
                context.publish(key.name(), Outcome::Repeated);
            }
            (Outcome::Repeated, _) => {}
            (_, true) if !self.is_allowed => context.publish_shadow(key.name()),
            (Outcome::Denied, _) if self.is_allowed => {}
            _ => context.publish(key.name(), self.any.outcome()),
        }
    }
}

/// Replies with what was computed before: once an array has begun, nothing may fail.
fn reply(context: Context<'_>, outcome: Outcome, replies: &Replies) {
    context.reply_array(1 + replies.len());
    context.reply_integer(i64::from(outcome != Outcome::Denied));
    for reply in replies {
        context.reply_integers(&reply.integers);
    }
}

macro_rules! any_decision {
    ($($kind:ident),*) => {
        /// A decision of any kind. A `dyn` would cost an RL.ALL of two 11 %.
        enum AnyDecision<'call> {
            $($kind(RecordDecision<$kind>),)*
            Concurrency(LeaseSetDecision<'call>),
        }

        /// Reads the limiter that `key` holds and decides, by whichever rule it is.
        // Always inlined: the decision is made where the call keeps it.
        #[inline(always)]
        fn decide<'call>(
            args: &RuleArgs,
            lease: Option<Lease>,
            argv: Argv<'call>,
            key: &mut impl OpenKey,
            now_ms: i64,
        ) -> Result<AnyDecision<'call>, Error> {
            Ok(match &args.rule {
                $(AnyRule::$kind(rule, request) => {
                    AnyDecision::$kind(rule.decide(*request, key, now_ms)?)
                })*
                AnyRule::Concurrency { rule, is_release } => {
                    // parse_all refuses CONCURRENCY without ID: not reached.
                    let Some(lease) = lease else {
                        let error = SyntaxError::Requires("CONCURRENCY", "ID");
                        return Err(Error::Syntax(error, &All::INFO));
                    };
                    let request = lease_request(*is_release, lease);
                    let rule = LeaseRule::new(*rule, lease, argv);
                    AnyDecision::Concurrency(rule.decide(request, key, now_ms)?)
                }
            })
        }

        impl Commit for AnyDecision<'_> {
            fn is_allowed(&self) -> bool {
                match self {
                    $(Self::$kind(decision) => decision.is_allowed(),)*
                    Self::Concurrency(decision) => decision.is_allowed(),
                }
            }

            fn has_live_lease(&self) -> Option<bool> {
                match self {
                    $(Self::$kind(decision) => decision.has_live_lease(),)*
                    Self::Concurrency(decision) => decision.has_live_lease(),
                }
            }

            fn outcome(&self) -> Outcome {
                match self {
                    $(Self::$kind(decision) => decision.outcome(),)*
                    Self::Concurrency(decision) => decision.outcome(),
                }
            }

            fn committed(&self, unit: TimeUnit) -> Reply {
                match self {
                    $(Self::$kind(decision) => decision.committed(unit),)*
                    Self::Concurrency(decision) => decision.committed(unit),
                }
            }

            fn previewed(&self, unit: TimeUnit) -> Reply {
                match self {
                    $(Self::$kind(decision) => decision.previewed(unit),)*
                    Self::Concurrency(decision) => decision.previewed(unit),
                }
            }

            fn repeated(&self, unit: TimeUnit) -> Reply {
                match self {
                    $(Self::$kind(decision) => decision.repeated(unit),)*
                    Self::Concurrency(decision) => decision.repeated(unit),
                }
            }

            fn commit(&self, key: &mut WriteKey<'_>, server_now_ms: i64) -> Result<(), Error> {
                match self {
                    $(Self::$kind(decision) => decision.commit(key, server_now_ms),)*
                    Self::Concurrency(decision) => decision.commit(key, server_now_ms),
                }
            }
        }
    };
}
limiter::record_kinds!(any_decision);
