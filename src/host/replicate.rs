//! What replicas and the append-only file are told: the result of a call, as the server's own `SET`.

use super::api;
use super::arguments::KeyName;
use super::command::Context;
use redis_module::raw::{self, RedisModuleString};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering::Relaxed};

/// Propagates `SET key bytes PXAT deadline_ms`, or `SET key bytes` without a deadline. It counts as a
/// change, so save points fire.
pub(super) fn set(context: Context<'_>, name: KeyName<'_>, bytes: &[u8], deadline_ms: Option<i64>) {
    // SAFETY: the pointer was checked at load. The formats name what follows: a string object, a buffer
    // with its length, and two string objects; the server copies or retains each of them.
    unsafe {
        let replicate = raw::RedisModule_Replicate.unwrap_unchecked();
        let buffer = bytes.as_ptr();
        match deadline_ms {
            Some(at_ms) => replicate(
                context.raw,
                c"SET".as_ptr(),
                c"sbss".as_ptr(),
                name.raw,
                buffer,
                bytes.len(),
                pxat(),
                deadline(at_ms),
            ),
            None => replicate(
                context.raw,
                c"SET".as_ptr(),
                c"sb".as_ptr(),
                name.raw,
                buffer,
                bytes.len(),
            ),
        }
    };
}

/// The word `PXAT`, made by the first call that needs it.
static PXAT: AtomicPtr<RedisModuleString> = AtomicPtr::new(null_mut());

/// The last deadline as a string, and its number: the calls of one millisecond under one rule share
/// it. Handlers run one at a time, so the two belong together.
static DEADLINE: AtomicPtr<RedisModuleString> = AtomicPtr::new(null_mut());
static DEADLINE_MS: AtomicI64 = AtomicI64::new(0);

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

fn deadline(at_ms: i64) -> *mut RedisModuleString {
    let kept = DEADLINE.load(Relaxed);
    if !kept.is_null() && DEADLINE_MS.load(Relaxed) == at_ms {
        return kept;
    }
    // SAFETY: without a context the string lives until it is freed.
    let made = unsafe { api::create_string_from_long_long(null_mut(), at_ms) };
    DEADLINE_MS.store(at_ms, Relaxed);
    DEADLINE.store(made, Relaxed);
    free(kept);
    made
}

/// Frees the strings that are kept between calls, when the module is unloaded.
pub(super) fn free_kept_strings() {
    free(PXAT.swap(null_mut(), Relaxed));
    free(DEADLINE.swap(null_mut(), Relaxed));
}

fn free(kept: *mut RedisModuleString) {
    if !kept.is_null() {
        // SAFETY: it was made here without a context, and is no longer in either static. What still
        // propagates it holds a reference of its own.
        unsafe { api::free_string(null_mut(), kept) };
    }
}
