//! Sorted sets: members with times as scores.

use super::api;
use super::argv::{self, Arg, Argv};
use super::context::Context;
use super::key::{Handle, OpenKey, WriteKey};
use super::replicate::{self, NotReplicated};
use libc::c_int;
use redis_module::raw::{self, RedisModuleKey, RedisModuleString};
use std::ptr::{NonNull, null_mut};

/// The key holds a value of another type.
pub struct NotASortedSet;

/// The sorted set that a key holds.
pub struct SortedSet<'key> {
    handle: &'key Handle<'key>,
}

impl<'key> SortedSet<'key> {
    /// The sorted set that `key` holds; `None` if it is missing.
    pub fn of(key: &'key mut impl OpenKey) -> Result<Option<Self>, NotASortedSet> {
        let Some(handle) = key.handle() else {
            return Ok(None);
        };
        match handle.key_type() {
            raw::REDISMODULE_KEYTYPE_ZSET => Ok(Some(Self { handle })),
            raw::REDISMODULE_KEYTYPE_EMPTY => Ok(None),
            _ => Err(NotASortedSet),
        }
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        // SAFETY: the handle is open as long as it is borrowed.
        unsafe { api::value_length(self.handle.raw.as_ptr()) }
    }

    /// The score of a member.
    pub fn score(&self, member: Arg<'_>) -> Option<f64> {
        let mut score = 0.0;
        // SAFETY: the handle is open on a sorted set; the member is a string of the running call.
        let status = unsafe { api::zset_score(self.handle.raw.as_ptr(), member.raw, &mut score) };
        (status == raw::REDISMODULE_OK as c_int).then_some(score)
    }

    /// Whether it has a member with a score of at most `max`.
    pub fn has_up_to(&mut self, max: f64) -> bool {
        let key = self.handle.raw.as_ptr();
        // SAFETY: the handle is open on a sorted set. A set borrows its key mutably and a walk its set, so no other walk
        // is under way.
        unsafe {
            api::zset_first_in_score_range(key, f64::NEG_INFINITY, max, 0, 0);
            let is_empty = api::zset_range_end_reached(key) != 0;
            api::zset_range_stop(key);
            !is_empty
        }
    }

    /// Removes the first member if its score is at most `max`; whether it did.
    fn remove_first_up_to(&mut self, max: f64) -> bool {
        let handle = self.handle;
        let Some(first) = self.ascending().next().filter(|first| first.score <= max) else {
            return false;
        };
        // SAFETY: whoever removes has the key open for writing; the member is alive, and its walk has ended.
        unsafe { handle.remove(first.raw.as_ptr()) > 0 }
    }

    /// Walks the members from the lowest score upwards.
    pub fn ascending(&mut self) -> Walk<'_> {
        // SAFETY: the handle is open on a sorted set. A set borrows its key mutably and a walk its set, so no other walk
        // is under way.
        unsafe {
            api::zset_first_in_score_range(
                self.handle.raw.as_ptr(),
                f64::NEG_INFINITY,
                f64::INFINITY,
                0,
                0,
            )
        };
        Walk::new(self.handle, api::zset_range_next)
    }

    /// Walks the members from the highest score downwards.
    pub fn descending(&mut self) -> Walk<'_> {
        // SAFETY: as in `ascending`.
        unsafe {
            api::zset_last_in_score_range(
                self.handle.raw.as_ptr(),
                f64::NEG_INFINITY,
                f64::INFINITY,
                0,
                0,
            )
        };
        Walk::new(self.handle, api::zset_range_prev)
    }
}

/// A walk over the members of a sorted set, which ends when it is dropped.
pub struct Walk<'set> {
    handle: &'set Handle<'set>,
    step: unsafe fn(*mut RedisModuleKey) -> c_int,
    is_started: bool,
}

impl<'set> Walk<'set> {
    fn new(handle: &'set Handle<'set>, step: unsafe fn(*mut RedisModuleKey) -> c_int) -> Self {
        Self {
            handle,
            step,
            is_started: false,
        }
    }
}

impl<'set> Iterator for Walk<'set> {
    type Item = Member<'set>;

    fn next(&mut self) -> Option<Member<'set>> {
        let key = self.handle.raw.as_ptr();
        // SAFETY: the handle is open on a sorted set, and the walk was started by whoever made this.
        if std::mem::replace(&mut self.is_started, true) && unsafe { (self.step)(key) } == 0 {
            return None;
        }
        let mut score = 0.0;
        // SAFETY: as above. The server returns null where the walk has no member.
        let raw = unsafe { api::zset_range_current_element(key, &mut score) };
        NonNull::new(raw).map(|raw| Member {
            score,
            raw,
            context: self.handle.context,
        })
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is open.
        unsafe { api::zset_range_stop(self.handle.raw.as_ptr()) };
    }
}

/// A member of a sorted set and its score.
pub struct Member<'set> {
    pub score: f64,
    raw: NonNull<RedisModuleString>,
    context: Context<'set>,
}

impl Member<'_> {
    /// Whether it is the one that the argument names.
    pub fn is(&self, arg: Arg<'_>) -> bool {
        // SAFETY: the string is this member's own, alive until it is dropped.
        unsafe { argv::bytes(self.raw.as_ptr()) == arg.bytes() }
    }
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        // SAFETY: the server made the string for us, and it is not used again.
        unsafe { api::free_string(self.context.raw, self.raw.as_ptr()) };
    }
}

impl Handle<'_> {
    /// Removes a member: 1 if it was there. It ends a walk.
    ///
    /// # Safety
    /// The handle is open for writing, on a sorted set or on nothing, and the member is a live string.
    unsafe fn remove(&self, member: *mut RedisModuleString) -> i64 {
        let mut removed = 0;
        // SAFETY: the caller promises it.
        unsafe { api::zset_rem(self.raw.as_ptr(), member, &mut removed) };
        i64::from(removed)
    }
}

impl WriteKey<'_> {
    /// Replicates the removal of every member with a score of at most `max_ms`, then removes them.
    pub fn remove_up_to(&mut self, max_ms: i64) -> Result<(), NotReplicated> {
        replicate::zremrangebyscore(self.context, self.name(), max_ms)?;
        // Removing a member ends the walk, so each starts one.
        while let Ok(Some(mut set)) = SortedSet::of(self)
            && set.remove_first_up_to(max_ms as f64)
        {}
        Ok(())
    }

    /// Replicates a member with its score, then adds it or changes its score.
    pub fn add_member(&mut self, member: Arg<'_>, score_ms: i64) -> Result<(), NotReplicated> {
        let handle = self.handle().ok_or(NotReplicated)?;
        replicate::zadd(self.context, self.name(), score_ms, member)?;
        let (key, score) = (handle.raw.as_ptr(), score_ms as f64);
        // SAFETY: the handle is open for writing, on a sorted set or on nothing.
        unsafe { api::zset_add(key, score, member.raw, null_mut()) };
        Ok(())
    }

    /// Replicates the removal of a member that is there, then removes it.
    pub fn remove_member(&mut self, member: Arg<'_>) -> Result<(), NotReplicated> {
        replicate::zrem(self.context, self.name(), member)?;
        if let Some(handle) = self.handle() {
            // SAFETY: the handle is open for writing; the member is a string of the running call.
            unsafe { handle.remove(member.raw) };
        }
        Ok(())
    }

    /// Removes the members that the arguments from `first` on name, and replicates that if there were any. Returns how
    /// many there were.
    ///
    /// What is removed is known only once it is, so this is the one change that comes before its replication.
    pub fn remove_members(&mut self, argv: Argv<'_>, first: usize) -> Result<i64, NotReplicated> {
        let members = argv.raw_from(first);
        let Some(handle) = self.handle() else {
            return Ok(0);
        };
        // SAFETY: the handle is open for writing; the members are strings of the running call.
        let remove = |member: &*mut RedisModuleString| unsafe { handle.remove(*member) };
        let removed = members.iter().map(remove).sum();
        if removed > 0 {
            match members {
                [_] => replicate::zrem(self.context, self.name(), argv.arg(first))?,
                _ => replicate::zrem_all(self.context, self.name(), argv, first)?,
            }
            self.signal_modified();
        }
        Ok(removed)
    }

    /// Ensures that the key lives until `needed_ms`: if its deadline is earlier, or it has none, it is moved to
    /// `deadline_ms`, which is replicated.
    pub fn live_until(&mut self, needed_ms: i64, deadline_ms: i64) -> Result<(), NotReplicated> {
        let Some(handle) = self.handle() else {
            return Ok(());
        };
        // SAFETY: the handle is open. Without a deadline the server gives -1, which is before any.
        if unsafe { api::get_abs_expire(handle.raw.as_ptr()) } < needed_ms {
            replicate::pexpireat(self.context, self.name(), deadline_ms)?;
            handle.set_deadline(Some(deadline_ms));
        }
        Ok(())
    }
}
