//! Concurrency: at most `limit` leases at once.
//!
//! A lease has an id and an expiry. It counts until its expiry and is dead from then on, so the place of a client that
//! crashed comes back by itself.

use super::{MAX_REPORTED_TIME, MAX_TTL_S, MS_PER_S, NEVER_MS, Reply, TTL_MARGIN_S, Times};

/// At most `limit` live leases, each of `lease_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Leases live at once, 0 to 2^53.
    pub limit: i64,
    /// How long a lease lives, 1 to 2^53 ms.
    pub lease_ms: i64,
}

/// What a call asks for its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRequest {
    /// Renew the lease, or take one if there is room.
    Acquire,
    /// `XX`: renew the lease; denied if it is not live.
    Renew,
    /// `RELEASE`: end the lease, if there is one.
    Release,
    /// `RELEASE` with `XX`: end the lease; denied if it is not live.
    ReleaseLive,
}

/// What a set of leases holds, as far as a decision needs it. Unix times in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// How many are live.
    pub live: i64,
    /// The expiry of the call's own lease, if it is live.
    pub own_expiry_ms: Option<i64>,
    /// The last expiry of the other live leases.
    pub last_other_expiry_ms: Option<i64>,
    /// The expiry with which the number of live leases falls below the limit, if it is reached and not 0.
    pub room_at_ms: Option<i64>,
}

/// What a call does to the set. One that changes it removes the dead leases first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// The lease of the call's id lives until then.
    Set { expiry_ms: i64 },
    /// There is no lease of the call's id.
    Remove,
}

/// A request that was decided and is yet to be committed, or not.
#[derive(Clone, Copy, Debug)]
pub struct LeaseDecision {
    rule: Concurrency,
    request: LeaseRequest,
    found: Leases,
    now_ms: i64,
    is_allowed: bool,
}

impl Concurrency {
    /// Decides `request` at `now_ms`, 0 to 2^53, on the leases found.
    pub fn decide(self, request: LeaseRequest, found: Leases, now_ms: i64) -> LeaseDecision {
        let is_live = found.own_expiry_ms.is_some();
        LeaseDecision {
            rule: self,
            request,
            found,
            now_ms,
            is_allowed: match request {
                // The limit is not looked at for a live lease: a lowered limit evicts no one.
                LeaseRequest::Acquire => is_live || found.live < self.limit,
                LeaseRequest::Renew | LeaseRequest::ReleaseLive => is_live,
                LeaseRequest::Release => true,
            },
        }
    }
}

impl LeaseDecision {
    /// Whether the request is granted.
    pub fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Whether it is for a lease, not for its end.
    pub fn acquires(&self) -> bool {
        matches!(self.request, LeaseRequest::Acquire | LeaseRequest::Renew)
    }

    /// Whether the call's lease is live already.
    pub fn is_live(&self) -> bool {
        self.found.own_expiry_ms.is_some()
    }

    /// What committing the request does to the set; `None` if it is denied.
    pub fn change(&self) -> Option<LeaseChange> {
        self.is_allowed.then(|| {
            if self.acquires() {
                LeaseChange::Set {
                    expiry_ms: self.expiry_ms(),
                }
            } else {
                LeaseChange::Remove
            }
        })
    }

    /// How long the key has to live, and how long it is to live if its deadline comes before that, in ms: the second
    /// is longer, so that the deadline of a set in use need not move with each call.
    pub fn ttl_ms(&self) -> (i64, i64) {
        let margin_ms = (TTL_MARGIN_S * MS_PER_S) as i64;
        let max_ms = (MAX_TTL_S * MS_PER_S) as i64;
        let bounded = |ms: i64| ms.saturating_add(margin_ms).min(max_ms);
        let last_expiry_ms = self.found.last_other_expiry_ms.max(Some(self.expiry_ms()));
        let needed_ms = bounded(last_expiry_ms.map_or(0, |last_ms| self.until(last_ms)));
        (needed_ms, needed_ms.max(bounded(2 * self.rule.lease_ms)))
    }

    /// The time of the decision.
    pub fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// The reply of a call that is committed.
    pub fn committed(&self) -> LeaseAnswer {
        let (live, own_expiry_ms) = match self.change() {
            None => return self.previewed(),
            Some(LeaseChange::Set { expiry_ms }) => (
                self.found.live + i64::from(!self.is_live()),
                Some(expiry_ms),
            ),
            Some(LeaseChange::Remove) => (self.found.live - i64::from(self.is_live()), None),
        };
        self.answer(live, own_expiry_ms)
    }

    /// The reply of a call that changes nothing: what holds now, before the request.
    pub fn previewed(&self) -> LeaseAnswer {
        self.answer(self.found.live, self.found.own_expiry_ms)
    }

    /// The reply of a repeated call in which this rule changes nothing.
    pub fn repeated(&self) -> LeaseAnswer {
        LeaseAnswer {
            is_allowed: true,
            times: Times {
                retry: 0,
                ..self.previewed().times
            },
            ..self.previewed()
        }
    }

    /// A renewal never shortens a lease. The expiry is a sorted set's score, so it is rounded as an `f64` is.
    fn expiry_ms(&self) -> i64 {
        let expiry_ms = (self.now_ms + self.rule.lease_ms) as f64 as i64;
        Some(expiry_ms)
            .max(self.found.own_expiry_ms)
            .unwrap_or(expiry_ms)
    }

    /// Milliseconds from now until then.
    fn until(&self, at_ms: i64) -> i64 {
        at_ms.saturating_sub(self.now_ms).min(MAX_REPORTED_TIME)
    }

    fn answer(&self, live: i64, own_expiry_ms: Option<i64>) -> LeaseAnswer {
        let last_expiry_ms = self.found.last_other_expiry_ms.max(own_expiry_ms);
        LeaseAnswer {
            is_allowed: self.is_allowed,
            remaining: (self.rule.limit - live).max(0),
            now_ms: self.now_ms,
            times: Times {
                reset: last_expiry_ms.map_or(0, |last_ms| self.until(last_ms)),
                retry: match (self.is_allowed, self.request) {
                    (true, _) => 0,
                    (false, LeaseRequest::Acquire) => self
                        .found
                        .room_at_ms
                        .map_or(NEVER_MS, |at_ms| self.until(at_ms)),
                    // A lost lease does not come back.
                    (false, _) => NEVER_MS,
                },
            },
        }
    }
}

/// What a reply says, before its times are put into a unit.
#[derive(Clone, Copy, Debug)]
pub struct LeaseAnswer {
    is_allowed: bool,
    remaining: i64,
    now_ms: i64,
    times: Times,
}

impl LeaseAnswer {
    /// The times in Unix seconds and in seconds.
    pub fn in_seconds(&self) -> Reply {
        self.reply(self.times.in_seconds_from(self.now_ms))
    }

    /// With both times in exact milliseconds from now.
    pub fn in_milliseconds(&self) -> Reply {
        self.reply(self.times)
    }

    fn reply(&self, times: Times) -> Reply {
        Reply {
            integers: [
                i64::from(self.is_allowed),
                self.remaining,
                times.reset,
                times.retry,
            ],
            granted: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWN: usize = 0;

    /// Leases as (id, expiry), of which each id has one at most.
    type Set = Vec<(usize, i64)>;

    /// What a set holds for the lease of id [`OWN`].
    fn leases(set: &Set, limit: i64, now_ms: i64) -> Leases {
        let mut live: Set = set
            .iter()
            .copied()
            .filter(|lease| lease.1 > now_ms)
            .collect();
        live.sort_by_key(|lease| lease.1);
        let others = live.iter().filter(|lease| lease.0 != OWN);
        let excess = usize::try_from(live.len() as i64 - limit).ok();
        Leases {
            live: live.len() as i64,
            own_expiry_ms: live
                .iter()
                .find(|lease| lease.0 == OWN)
                .map(|lease| lease.1),
            last_other_expiry_ms: others.map(|lease| lease.1).max(),
            room_at_ms: excess.filter(|_| limit > 0).map(|excess| live[excess].1),
        }
    }

    fn set() -> impl Strategy<Value = Set> {
        prop::collection::vec(0i64..10_000, 0..12)
            .prop_map(|expiries| expiries.into_iter().enumerate().collect())
    }

    proptest! {
        #[test]
        fn a_lease_is_denied_until_there_is_room_and_allowed_then(
            set in set(), limit in 0i64..8, lease_ms in 1i64..10_000, now_ms in 0i64..10_000,
        ) {
            let rule = Concurrency { limit, lease_ms };
            let others: Set = set.into_iter().filter(|lease| lease.0 != OWN).collect();
            let at = |now_ms| rule.decide(LeaseRequest::Acquire, leases(&others, limit, now_ms), now_ms);
            let denied = at(now_ms);
            let [allowed, _, _, retry_ms] = denied.committed().in_milliseconds().integers;
            prop_assert_eq!(allowed == 1, denied.is_allowed());
            if denied.is_allowed() {
                prop_assert_eq!(retry_ms, 0);
            } else if limit == 0 {
                prop_assert_eq!(retry_ms, NEVER_MS);
            } else {
                prop_assert!(at(now_ms + retry_ms).is_allowed());
                prop_assert!(!at(now_ms + retry_ms - 1).is_allowed());
            }
        }

        #[test]
        fn a_change_keeps_the_count_and_never_shortens_a_lease(
            set in set(), limit in 0i64..8, lease_ms in 1i64..10_000, now_ms in 0i64..10_000,
            request in prop_oneof![
                Just(LeaseRequest::Acquire), Just(LeaseRequest::Renew),
                Just(LeaseRequest::Release), Just(LeaseRequest::ReleaseLive),
            ],
        ) {
            let rule = Concurrency { limit, lease_ms };
            let found = leases(&set, limit, now_ms);
            let decision = rule.decide(request, found, now_ms);
            let mut left = set.clone();
            match decision.change() {
                None => prop_assert!(!decision.is_allowed()),
                Some(change) => {
                    left.retain(|lease| lease.0 != OWN);
                    if let LeaseChange::Set { expiry_ms } = change {
                        prop_assert!(expiry_ms >= now_ms + lease_ms);
                        prop_assert!(Some(expiry_ms) >= found.own_expiry_ms);
                        left.push((OWN, expiry_ms));
                    }
                }
            }
            let after = leases(&left, limit, now_ms);
            let [_, remaining, reset_ms, _] = decision.committed().in_milliseconds().integers;
            prop_assert_eq!(remaining, (limit - after.live).max(0));
            let last_ms = after.last_other_expiry_ms.max(after.own_expiry_ms);
            prop_assert_eq!(reset_ms, last_ms.map_or(0, |last_ms| last_ms - now_ms));
            // Whoever has a lease keeps it; a newcomer needs room.
            let is_new = after.live > found.live;
            prop_assert!(!is_new || found.live < limit);
            let (needed_ms, ttl_ms) = decision.ttl_ms();
            prop_assert!(needed_ms <= ttl_ms);
        }
    }
}
