//! Keys: opened once a call, closed by drop.

use super::argv::Arg;
use super::context::Context;
use super::replicate::NotReplicated;
use super::{api, argv, replicate};
use libc::{c_int, c_void};
use redis_module::raw::{self, RedisModuleKey, RedisModuleString};
use std::ffi::CStr;
use std::ptr::{NonNull, null_mut};

/// What a key holds.
pub enum Value<'key> {
    /// Nothing: it is missing, or expired.
    Missing,
    /// A string of the length that was asked for.
    Bytes(&'key [u8]),
    /// A hash.
    Hash(Hash<'key>),
    /// A value of any other type, or a string of another length.
    OtherType,
}

/// The hash that a key holds.
pub struct Hash<'key> {
    handle: &'key Handle<'key>,
}

impl Hash<'_> {
    /// How many fields it has.
    pub fn len(&self) -> usize {
        // SAFETY: the handle is open as long as it is borrowed.
        unsafe { api::value_length(self.handle.raw.as_ptr()) }
    }

    /// The value of a field.
    pub fn field(&self, name: &CStr) -> Option<Vec<u8>> {
        let mut value: *mut RedisModuleString = null_mut();
        // SAFETY: the pointer was checked at load, the handle is open on a hash, and the arguments are
        // a field's name as a C string, where to put its value, and the null that ends the pairs.
        unsafe {
            raw::RedisModule_HashGet.unwrap_unchecked()(
                self.handle.raw.as_ptr(),
                raw::REDISMODULE_HASH_CFIELDS as c_int,
                name.as_ptr(),
                &raw mut value,
                null_mut::<c_void>(),
            );
        }
        if value.is_null() {
            return None;
        }
        // SAFETY: the server made the string for us, and its bytes are copied before it is freed.
        unsafe {
            let bytes = argv::bytes(value).to_vec();
            api::free_string(self.handle.context.raw, value);
            Some(bytes)
        }
    }
}

/// A key that is open for reading at least.
pub trait OpenKey {
    /// The key's value, read if it is a string of `len` bytes, at least 1.
    fn value(&mut self, len: usize) -> Value<'_>;

    /// The server's handle; `None` if the key is missing and open for reading alone.
    fn handle(&self) -> Option<&Handle<'_>>;
}

impl<'call> Context<'call> {
    /// Opens the key for reading: nothing of it can change.
    pub fn open_for_reading(self, name: Arg<'call>) -> ReadKey<'call> {
        ReadKey {
            handle: Handle::open(self, name, raw::REDISMODULE_READ),
        }
    }

    /// Opens the key for reading and writing.
    pub fn open_for_writing(self, name: Arg<'call>) -> WriteKey<'call> {
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        WriteKey {
            context: self,
            name,
            handle: Handle::open(self, name, mode),
            dma: None,
        }
    }
}

/// A key that was opened for reading.
pub struct ReadKey<'call> {
    /// `None` if it is missing.
    handle: Option<Handle<'call>>,
}

impl OpenKey for ReadKey<'_> {
    #[inline(always)]
    fn value(&mut self, len: usize) -> Value<'_> {
        let Some(handle) = &self.handle else {
            return Value::Missing;
        };
        match handle.string(len, raw::REDISMODULE_READ) {
            // SAFETY: the bytes stay while nothing is written to the key, which was opened for reading alone.
            Some(bytes) => Value::Bytes(unsafe { bytes.as_ref() }),
            None => handle.classify(),
        }
    }

    fn handle(&self) -> Option<&Handle<'_>> {
        self.handle.as_ref()
    }
}

/// A key that was opened for reading and writing.
pub struct WriteKey<'call> {
    pub(super) context: Context<'call>,
    name: Arg<'call>,
    /// A handle on nothing if the key is missing; `None` once it is closed.
    handle: Option<Handle<'call>>,
    /// Where the value's bytes are, once [`value`](OpenKey::value) found them and until something is stored.
    dma: Option<NonNull<[u8]>>,
}

impl OpenKey for WriteKey<'_> {
    #[inline(always)]
    fn value(&mut self, len: usize) -> Value<'_> {
        let Some(handle) = &self.handle else {
            return Value::Missing;
        };
        self.dma = handle.string(len, raw::REDISMODULE_WRITE);
        match self.dma {
            // SAFETY: the bytes stay while nothing is written to the key, and what writes is called
            // through `&mut self`, which this borrow excludes.
            Some(bytes) => Value::Bytes(unsafe { bytes.as_ref() }),
            None => handle.classify(),
        }
    }

    fn handle(&self) -> Option<&Handle<'_>> {
        self.handle.as_ref()
    }
}

impl<'call> WriteKey<'call> {
    /// Closes the key, which can then no longer be stored to.
    pub fn close(&mut self) -> Arg<'call> {
        self.dma = None;
        self.handle = None;
        self.name
    }

    /// Its name.
    pub fn name(&self) -> Arg<'call> {
        self.name
    }

    /// Stores `bytes` with a deadline (Unix time in ms; `None` to live on) in this server alone.
    #[inline(always)]
    pub fn store(&mut self, bytes: &[u8], deadline_ms: Option<i64>) {
        let Some(handle) = &self.handle else { return };
        match self.dma.take() {
            Some(place) if place.len() == bytes.len() => {
                // SAFETY: the server gave `place` for writing, and nothing was written to the key
                // since: not by us, and a callback of another module that runs when an expired key
                // is opened may not write. `bytes` is ours and does not overlap it.
                unsafe {
                    place
                        .cast()
                        .copy_from_nonoverlapping(NonNull::from(bytes).cast::<u8>(), bytes.len())
                };
            }
            _ => handle.replace(bytes),
        }
        // After the bytes: newer servers may move the value when it gets a deadline.
        handle.set_deadline(deadline_ms);
    }

    /// Replicates `bytes` and the deadline, stores them as [`store`](Self::store) does, and signals the key as
    /// modified. What cannot be replicated is not stored.
    #[inline(always)]
    pub fn store_replicated(
        &mut self,
        bytes: &[u8],
        deadline_ms: Option<i64>,
    ) -> Result<(), NotReplicated> {
        if self.handle.is_none() {
            return Err(NotReplicated);
        }
        replicate::set(self.context, self.name, bytes, deadline_ms)?;
        self.store(bytes, deadline_ms);
        self.signal_modified();
        Ok(())
    }

    /// Tells WATCH and client tracking that the key was modified.
    pub fn signal_modified(&self) {
        // SAFETY: the context and the name are this call's own.
        unsafe { api::signal_modified_key(self.context.raw, self.name.raw) };
    }
}

/// An open key of the server.
pub struct Handle<'call> {
    pub(super) raw: NonNull<RedisModuleKey>,
    pub(super) context: Context<'call>,
}

impl<'call> Handle<'call> {
    fn open(context: Context<'call>, name: Arg<'call>, mode: u32) -> Option<Self> {
        // SAFETY: the context and the name are this call's own. The handle is closed by drop, before
        // the call ends: it cannot outlive 'call.
        let raw = unsafe { api::open_key(context.raw, name.raw, mode as c_int) };
        NonNull::new(raw).map(|raw| Self { raw, context })
    }

    /// Where the value's bytes are, if it is a string of `len` of them, at least 1: for reading, or for
    /// writing too, as `mode` says, until the next change of the key.
    fn string(&self, len: usize, mode: u32) -> Option<NonNull<[u8]>> {
        // The length comes first: direct access may re-encode what it opens, and a foreign value is left alone.
        // SAFETY: the handle is open until drop.
        if unsafe { api::value_length(self.raw.as_ptr()) } != len {
            return None;
        }
        let mut found_len = 0;
        // SAFETY: as above, and it was opened with that mode. The server returns null for what has a
        // length but is not a string.
        let start = unsafe { api::string_dma(self.raw.as_ptr(), &mut found_len, mode as c_int) };
        let start = NonNull::new(start).filter(|_| found_len == len)?;
        Some(NonNull::slice_from_raw_parts(start.cast(), len))
    }

    /// The type of the value.
    pub(super) fn key_type(&self) -> isize {
        // SAFETY: the handle is open until drop.
        unsafe { api::key_type(self.raw.as_ptr()) as isize }
    }

    /// What the value is, given that it is not a string of the requested length.
    fn classify(&self) -> Value<'_> {
        match self.key_type() {
            raw::REDISMODULE_KEYTYPE_EMPTY => Value::Missing,
            raw::REDISMODULE_KEYTYPE_HASH => Value::Hash(Hash { handle: self }),
            _ => Value::OtherType,
        }
    }

    /// Makes `bytes` the value, whatever it was.
    fn replace(&self, bytes: &[u8]) {
        // SAFETY: without a context the string is ours until it is freed; the key keeps its own
        // reference.
        unsafe {
            let value = api::create_string(null_mut(), bytes.as_ptr().cast(), bytes.len());
            api::string_set(self.raw.as_ptr(), value);
            api::free_string(null_mut(), value);
        }
    }

    pub(super) fn set_deadline(&self, deadline_ms: Option<i64>) {
        let deadline_ms = deadline_ms.unwrap_or(i64::from(raw::REDISMODULE_NO_EXPIRE));
        // SAFETY: the handle is open for writing and has a value.
        unsafe { api::set_abs_expire(self.raw.as_ptr(), deadline_ms) };
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is open and not used again.
        unsafe { api::close_key(self.raw.as_ptr()) };
    }
}
