//! Limiters whose state is a sorted set of leases: member = id, score = expiry in ms. RL.CONCURRENCY, RL.CONCURRENCY_RO
//! and RL.RELEASE.
//!
//! There is no second counter that could drift: ZRANGE shows who holds a lease, ZREM frees one by hand. Low-level walks
//! are ended by a removal, so what a decision needs is read first.

use super::docs::{ID, KEY, LEASE, MAX_LEASES, MS, NOW, RELEASED_IDS, XX};
use super::error::Error;
use super::kind::{Call, Commit, Kind, StoredRule};
use crate::host::{
    Arg, Argv, Command, CommandInfo, Context, KeyAccess, KeyPositions, OpenKey, Outcome, SortedSet,
    WriteKey, counters,
};
use limiter::{Concurrency, LeaseAnswer, LeaseChange, LeaseDecision, LeaseRequest, Leases, Reply};
use syntax::{Lease, SyntaxError, TimeUnit, check_ids, parse_acquire};

/// The kind of limit that RL.CONCURRENCY is about.
pub struct ConcurrencyKind;

impl Kind for ConcurrencyKind {
    const COMMAND: CommandInfo = CommandInfo {
        name: c"rl.concurrency",
        summary: c"Takes or renews a lease if fewer than limit leases are live.",
        complexity:
            c"O(log(N)+M) where N is the number of leases and M the number of those that have ended, O(N) up to zset-max-listpack-entries.",
        since: c"0.2.0",
        arity: 6,
        access: KeyAccess::Update,
        key_positions: KeyPositions::First,
        args: &[KEY, MAX_LEASES, LEASE, ID, XX, NOW, MS],
        counters: counters!(),
    };
    const PREVIEW: CommandInfo = CommandInfo {
        name: c"rl.concurrency_ro",
        summary: c"Returns what RL.CONCURRENCY would decide now, without taking a lease.",
        access: KeyAccess::Read,
        counters: counters!(),
        ..Self::COMMAND
    };

    type Rule<'call> = LeaseRule<'call>;

    #[inline(always)]
    fn parse(argv: Argv<'_>) -> Result<Call<LeaseRule<'_>>, SyntaxError> {
        let args = parse_acquire(argv.iter_from(2))?;
        Ok(Call {
            rule: LeaseRule::new(args.rule, args.lease, argv),
            request: lease_request(false, args.lease),
            options: args.options,
        })
    }

    #[inline(always)]
    fn parse_preview(argv: Argv<'_>) -> Result<Call<LeaseRule<'_>>, SyntaxError> {
        Self::parse(argv)
    }
}

/// What a rule asks for the lease of a call.
pub fn lease_request(is_release: bool, lease: Lease) -> LeaseRequest {
    match (is_release, lease.must_be_live) {
        (false, false) => LeaseRequest::Acquire,
        (false, true) => LeaseRequest::Renew,
        (true, false) => LeaseRequest::Release,
        (true, true) => LeaseRequest::ReleaseLive,
    }
}

/// A rule about leases, and the id of the call's own.
#[derive(Clone, Copy)]
pub struct LeaseRule<'call> {
    rule: Concurrency,
    id: Arg<'call>,
}

impl<'call> LeaseRule<'call> {
    pub fn new(rule: Concurrency, lease: Lease, argv: Argv<'call>) -> Self {
        Self {
            rule,
            id: argv.arg(argv.len() - 1 - lease.id.args_after),
        }
    }

    /// What the set holds at `now_ms`, and how many of its leases are dead.
    fn read(self, set: &mut SortedSet<'_>, now_ms: i64) -> (Leases, usize) {
        let own_expiry_ms = set
            .score(self.id)
            .map(expiry_ms)
            .filter(|&expiry_ms| expiry_ms > now_ms);
        let limit = usize::try_from(self.rule.limit).unwrap_or(usize::MAX);
        let (mut dead, mut first_expiry_ms) = (0, None);
        // Below the limit the first live lease does not matter, and asking for dead ones is cheaper than a look at it.
        if set.len() >= limit || set.has_up_to(now_ms as f64) {
            for member in set.ascending() {
                let expiry_ms = expiry_ms(member.score);
                if expiry_ms > now_ms {
                    first_expiry_ms = Some(expiry_ms);
                    break;
                }
                dead += 1;
            }
        }
        let live = set.len() - dead;
        let last_other_expiry_ms = set
            .descending()
            .take(live)
            .find(|member| own_expiry_ms.is_none() || !member.is(self.id))
            .map(|member| expiry_ms(member.score));
        let room_at_ms = match live.checked_sub(limit) {
            _ if own_expiry_ms.is_some() || limit == 0 => None,
            None => None,
            Some(0) => first_expiry_ms,
            // The limit was lowered: enough leases have to end.
            Some(excess) => {
                let (from_first, from_last) = (dead + excess, limit - 1);
                let member = if from_first <= from_last {
                    set.ascending().nth(from_first)
                } else {
                    set.descending().nth(from_last)
                };
                member.map(|member| expiry_ms(member.score))
            }
        };
        let leases = Leases {
            live: i64::try_from(live).unwrap_or(i64::MAX),
            own_expiry_ms,
            last_other_expiry_ms,
            room_at_ms,
        };
        (leases, dead)
    }
}

/// The first millisecond at which a lease with this score is dead. Scores of foreign members may have fractions.
fn expiry_ms(score: f64) -> i64 {
    score.ceil() as i64
}

/// A decision on leases.
pub struct LeaseSetDecision<'call> {
    decision: LeaseDecision,
    id: Arg<'call>,
    has_dead: bool,
}

impl<'call> StoredRule for LeaseRule<'call> {
    type Request = LeaseRequest;
    type Decision = LeaseSetDecision<'call>;

    #[inline(always)]
    fn decide(
        self,
        request: LeaseRequest,
        key: &mut impl OpenKey,
        now_ms: i64,
    ) -> Result<LeaseSetDecision<'call>, Error> {
        let (leases, dead) = match SortedSet::of(key)? {
            Some(mut set) => self.read(&mut set, now_ms),
            None => (Leases::default(), 0),
        };
        Ok(LeaseSetDecision {
            decision: self.rule.decide(request, leases, now_ms),
            id: self.id,
            has_dead: dead > 0,
        })
    }
}

impl Commit for LeaseSetDecision<'_> {
    fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    fn has_live_lease(&self) -> Option<bool> {
        self.decision.acquires().then(|| self.decision.is_live())
    }

    fn outcome(&self) -> Outcome {
        if self.is_allowed() {
            Outcome::Allowed
        } else {
            Outcome::Denied
        }
    }

    fn committed(&self, unit: TimeUnit) -> Reply {
        reply(self.decision.committed(), unit)
    }

    fn previewed(&self, unit: TimeUnit) -> Reply {
        reply(self.decision.previewed(), unit)
    }

    fn repeated(&self, unit: TimeUnit) -> Reply {
        reply(self.decision.repeated(), unit)
    }

    fn commit(&self, key: &mut WriteKey<'_>, server_now_ms: i64) -> Result<(), Error> {
        let Some(change) = self.decision.change() else {
            return Ok(());
        };
        if self.has_dead {
            key.remove_up_to(self.decision.now_ms())?;
        }
        match change {
            LeaseChange::Set { expiry_ms } => {
                key.add_member(self.id, expiry_ms)?;
                let (needed_ms, ttl_ms) = self.decision.ttl_ms();
                key.live_until(server_now_ms + needed_ms, server_now_ms + ttl_ms)?;
            }
            LeaseChange::Remove if self.decision.is_live() => key.remove_member(self.id)?,
            LeaseChange::Remove if !self.has_dead => return Ok(()),
            LeaseChange::Remove => {}
        }
        key.signal_modified();
        Ok(())
    }
}

fn reply(answer: LeaseAnswer, unit: TimeUnit) -> Reply {
    match unit {
        TimeUnit::Seconds => answer.in_seconds(),
        TimeUnit::Milliseconds => answer.in_milliseconds(),
    }
}

/// RL.RELEASE: ends leases by their ids.
pub struct Release;

impl Command for Release {
    type Error = Error;
    const INFO: CommandInfo = CommandInfo {
        name: c"rl.release",
        summary: c"Ends leases and returns how many of the ids were held.",
        complexity: c"O(M*log(N)) where M is the number of ids and N the number of leases.",
        since: c"0.2.0",
        arity: 3,
        access: KeyAccess::Remove,
        key_positions: KeyPositions::First,
        args: &[KEY, RELEASED_IDS],
        counters: counters!(),
    };

    /// Parse, open, remove and replicate, reply.
    fn call(context: Context<'_>, argv: Argv<'_>) -> Result<Outcome, Error> {
        check_ids(argv.iter_from(2)).map_err(|error| Error::Syntax(error, &Self::INFO))?;
        let mut key = context.open_for_writing(argv.arg(1));
        let removed = match SortedSet::of(&mut key)? {
            Some(_) => key.remove_members(argv, 2)?,
            None => 0,
        };
        context.reply_integer(removed);
        Ok(Outcome::Released)
    }
}
