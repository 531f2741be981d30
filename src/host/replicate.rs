//! What replicas and the append-only file receive: the result of a call, as the server's own commands.

use super::api;
use super::argv::{Arg, Argv};
use super::context::Context;
use libc::c_int;
use redis_module::raw::{self, RedisModuleCtx, RedisModuleString};
use std::ffi::CStr;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering::Relaxed};

/// The server did not accept what was to be replicated. This cannot happen while it has the commands that
/// [`missing_command`] looks for; if it ever does, the caller must not store either.
pub struct NotReplicated;

/// The commands by which results are replicated.
const REPLICATION_COMMANDS: [&CStr; 5] =
    [c"SET", c"ZADD", c"ZREM", c"ZREMRANGEBYSCORE", c"PEXPIREAT"];

/// The first of them that the server lacks, as where `rename-command` removed it: nothing could then be
/// replicated, and the server would not even count a change.
pub(super) fn missing_command(ctx: *mut RedisModuleCtx) -> Option<&'static CStr> {
    REPLICATION_COMMANDS
        .into_iter()
        .find(|name| !has_command(ctx, name))
}

/// Whether the server knows a command of that name.
fn has_command(ctx: *mut RedisModuleCtx, name: &CStr) -> bool {
    let bytes = name.to_bytes();
    // SAFETY: the context is that of the load function; the string is freed below, after its last use.
    // Keys are asked of a call that lacks every argument, so the server gives none, and says by `errno`
    // whether it was the command or the arguments that it did not find.
    unsafe {
        let mut word = api::create_string(ctx, bytes.as_ptr().cast(), bytes.len());
        let mut count = 0;
        let positions = api::get_command_keys(ctx, &mut word, 1, &mut count);
        let error = std::io::Error::last_os_error();
        if !positions.is_null() {
            api::free(positions.cast());
        }
        api::free_string(ctx, word);
        !positions.is_null() || error.raw_os_error() != Some(libc::ENOENT)
    }
}

/// Replicates one command of [`REPLICATION_COMMANDS`]. It counts as a change, so save points fire.
///
/// The format names what follows: `s` a string object, `b` a buffer with its length, `c` a C string, `l` a number, `v`
/// an array of string objects with its length.
macro_rules! replicate {
    ($context:expr, $command:expr, $format:expr, $($value:expr),* $(,)?) => {{
        // SAFETY: the pointer was checked at load, the context is that of a running call, and the values are what the
        // format says; the server copies or retains each of them.
        let status = unsafe {
            raw::RedisModule_Replicate.unwrap_unchecked()(
                $context.raw,
                $command.as_ptr(),
                $format.as_ptr(),
                $($value),*
            )
        };
        if status == raw::REDISMODULE_OK as c_int {
            Ok(())
        } else {
            Err(NotReplicated)
        }
    }};
}

/// Replicates `SET key bytes PXAT deadline_ms`, or `SET key bytes` without a deadline.
#[inline(always)]
pub(super) fn set(
    context: Context<'_>,
    key: Arg<'_>,
    bytes: &[u8],
    deadline_ms: Option<i64>,
) -> Result<(), NotReplicated> {
    let (start, len) = (bytes.as_ptr(), bytes.len());
    match deadline_ms {
        Some(at_ms) => {
            let deadline = time_string(at_ms);
            replicate!(
                context,
                c"SET",
                c"sbss",
                key.raw,
                start,
                len,
                pxat(),
                deadline
            )
        }
        None => replicate!(context, c"SET", c"sb", key.raw, start, len),
    }
}

/// Replicates `ZADD key score member`.
pub(super) fn zadd(
    context: Context<'_>,
    key: Arg<'_>,
    score_ms: i64,
    member: Arg<'_>,
) -> Result<(), NotReplicated> {
    let score = time_string(score_ms);
    replicate!(context, c"ZADD", c"sss", key.raw, score, member.raw)
}

/// Replicates `ZREM key member`.
pub(super) fn zrem(
    context: Context<'_>,
    key: Arg<'_>,
    member: Arg<'_>,
) -> Result<(), NotReplicated> {
    replicate!(context, c"ZREM", c"ss", key.raw, member.raw)
}

/// Replicates `ZREM key member [member ...]`, with the arguments from `first` on as members.
pub(super) fn zrem_all(
    context: Context<'_>,
    key: Arg<'_>,
    argv: Argv<'_>,
    first: usize,
) -> Result<(), NotReplicated> {
    let members = argv.raw_from(first);
    let (start, len) = (members.as_ptr(), members.len());
    replicate!(context, c"ZREM", c"sv", key.raw, start, len)
}

/// Replicates `ZREMRANGEBYSCORE key -inf max_ms`.
pub(super) fn zremrangebyscore(
    context: Context<'_>,
    key: Arg<'_>,
    max_ms: i64,
) -> Result<(), NotReplicated> {
    let min = c"-inf".as_ptr();
    replicate!(context, c"ZREMRANGEBYSCORE", c"scl", key.raw, min, max_ms)
}

/// Replicates `PEXPIREAT key deadline_ms`.
pub(super) fn pexpireat(
    context: Context<'_>,
    key: Arg<'_>,
    deadline_ms: i64,
) -> Result<(), NotReplicated> {
    let deadline = time_string(deadline_ms);
    replicate!(context, c"PEXPIREAT", c"ss", key.raw, deadline)
}

/// The word `PXAT`, made by the first call that needs it.
static PXAT: AtomicPtr<RedisModuleString> = AtomicPtr::new(null_mut());

/// The latest deadlines as strings: the calls of one millisecond under one rule share one.
static TIMES: [KeptTime; KEPT_TIMES] = [const { KeptTime::none() }; KEPT_TIMES];

/// How many rules may be in use at once before they evict each other's deadlines.
const KEPT_TIMES: usize = 1 << KEPT_TIMES_BITS;
const KEPT_TIMES_BITS: u32 = 4;

/// A time and its string. Calls run one at a time, so the two belong together.
struct KeptTime {
    at_ms: AtomicI64,
    string: AtomicPtr<RedisModuleString>,
}

impl KeptTime {
    const fn none() -> Self {
        Self {
            at_ms: AtomicI64::new(0),
            string: AtomicPtr::new(null_mut()),
        }
    }

    /// The slot of a time. Multiplicative hashing: neighbouring times are spread.
    fn of(at_ms: i64) -> &'static Self {
        let hash = at_ms.cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &TIMES[(hash >> (u64::BITS - KEPT_TIMES_BITS)) as usize]
    }
}

fn pxat() -> *mut RedisModuleString {
    let kept = PXAT.load(Relaxed);
    if !kept.is_null() {
        return kept;
    }
    let word = b"PXAT";
    // SAFETY: `word` is four bytes; without a context the string lives until it is freed.
    let made = unsafe { api::create_string(null_mut(), word.as_ptr().cast(), word.len()) };
    PXAT.store(made, Relaxed);
    made
}

fn time_string(at_ms: i64) -> *mut RedisModuleString {
    let kept = KeptTime::of(at_ms);
    let string = kept.string.load(Relaxed);
    if !string.is_null() && kept.at_ms.load(Relaxed) == at_ms {
        return string;
    }
    // SAFETY: without a context the string lives until it is freed.
    let made = unsafe { api::create_string_from_long_long(null_mut(), at_ms) };
    kept.at_ms.store(at_ms, Relaxed);
    kept.string.store(made, Relaxed);
    free(string);
    made
}

/// Frees the strings that are kept between calls, when the module is unloaded.
pub(super) fn free_kept_strings() {
    free(PXAT.swap(null_mut(), Relaxed));
    for kept in &TIMES {
        free(kept.string.swap(null_mut(), Relaxed));
    }
}

fn free(kept: *mut RedisModuleString) {
    if !kept.is_null() {
        // SAFETY: it was made here without a context, and is no longer in a static. What still
        // replicates it holds its own reference.
        unsafe { api::free_string(null_mut(), kept) };
    }
}
