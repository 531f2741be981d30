//! Keys: opened once a call, closed by drop.

use super::arguments::KeyName;
use super::command::Context;
use super::{api, arguments, replicate};
use libc::{c_char, c_int, c_void};
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
    /// Anything else.
    Other,
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
        let bytes = arguments::bytes(value).to_vec();
        // SAFETY: the server made the string for us; its bytes were copied.
        unsafe { api::free_string(self.handle.context.raw, value) };
        Some(bytes)
    }
}

/// A key that was opened for reading.
pub struct ReadKey<'call> {
    /// `None` if it is missing.
    handle: Option<Handle<'call>>,
}

impl<'call> ReadKey<'call> {
    pub(super) fn open(context: Context<'call>, name: KeyName<'call>) -> Self {
        Self {
            handle: Handle::open(context, name, raw::REDISMODULE_READ),
        }
    }

    /// The key's value if it is a string of `len` bytes.
    pub fn value(&self, len: usize) -> Value<'_> {
        self.handle
            .as_ref()
            .map_or(Value::Missing, |handle| handle.value(len))
    }
}

/// A key that was opened for reading and writing.
pub struct WriteKey<'call> {
    context: Context<'call>,
    name: KeyName<'call>,
    /// A handle on nothing if the key is missing; `None` once it is closed.
    handle: Option<Handle<'call>>,
}

impl<'call> WriteKey<'call> {
    pub(super) fn open(context: Context<'call>, name: KeyName<'call>) -> Self {
        let mode = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;
        Self {
            context,
            name,
            handle: Handle::open(context, name, mode),
        }
    }

    /// The key's value if it is a string of `len` bytes.
    pub fn value(&self, len: usize) -> Value<'_> {
        self.handle
            .as_ref()
            .map_or(Value::Missing, |handle| handle.value(len))
    }

    /// Closes the key, which can then no longer be stored to.
    pub fn close(&mut self) -> KeyName<'call> {
        self.handle = None;
        self.name
    }

    /// Its name.
    pub fn name(&self) -> KeyName<'call> {
        self.name
    }

    /// Stores `bytes` with a deadline (Unix time in ms; `None` to live on), unseen by anyone else.
    pub fn store(&mut self, bytes: &[u8], deadline_ms: Option<i64>) {
        let Some(handle) = &self.handle else { return };
        handle.set(bytes);
        // After the bytes: newer servers may move the value when it gets a deadline.
        handle.set_deadline(deadline_ms);
    }

    /// Stores as [`store`](Self::store) does, propagates the result to replicas and to the append-only
    /// file, and signals the key as modified.
    pub fn store_and_propagate(&mut self, bytes: &[u8], deadline_ms: Option<i64>) {
        self.store(bytes, deadline_ms);
        replicate::set(self.context, self.name, bytes, deadline_ms);
        // SAFETY: the context and the name are this call's own.
        unsafe { api::signal_modified_key(self.context.raw, self.name.raw) };
    }
}

/// An open key of the server.
pub struct Handle<'call> {
    raw: NonNull<RedisModuleKey>,
    context: Context<'call>,
}

impl<'call> Handle<'call> {
    fn open(context: Context<'call>, name: KeyName<'call>, mode: u32) -> Option<Self> {
        // SAFETY: the context and the name are this call's own. The handle is closed by drop, before
        // the call ends: it cannot outlive 'call.
        let raw = unsafe { api::open_key(context.raw, name.raw, mode as c_int) };
        NonNull::new(raw).map(|raw| Self { raw, context })
    }

    fn value(&self, len: usize) -> Value<'_> {
        // SAFETY: the handle is open until drop.
        let key_type = unsafe { api::key_type(self.raw.as_ptr()) };
        if key_type == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
            return Value::Missing;
        }
        if key_type == raw::REDISMODULE_KEYTYPE_HASH as c_int {
            return Value::Hash(Hash { handle: self });
        }
        // The length comes first: direct access re-encodes what it opens, and what is not ours stays
        // as it is.
        if key_type != raw::REDISMODULE_KEYTYPE_STRING as c_int
            // SAFETY: as above.
            || unsafe { api::value_length(self.raw.as_ptr()) } != len
        {
            return Value::Other;
        }
        let Some((start, len)) = self.direct_access(raw::REDISMODULE_READ) else {
            return Value::Other;
        };
        // SAFETY: the server says that `len` bytes are there. They stay while nothing is written to
        // the key, and what writes is called through `&mut WriteKey`, which this borrow excludes.
        Value::Bytes(unsafe { std::slice::from_raw_parts(start.as_ptr().cast(), len) })
    }

    fn direct_access(&self, mode: u32) -> Option<(NonNull<c_char>, usize)> {
        let mut len = 0;
        // SAFETY: the handle is open and was opened with that mode.
        let start = unsafe { api::string_dma(self.raw.as_ptr(), &mut len, mode as c_int) };
        NonNull::new(start).map(|start| (start, len))
    }

    /// Makes `bytes` the value: in place where it is a string of that length already.
    fn set(&self, bytes: &[u8]) {
        // A key without a string value has no bytes of that length, which is never 0.
        if let Some((start, len)) = self.direct_access(raw::REDISMODULE_WRITE)
            && len == bytes.len()
        {
            // SAFETY: `len` bytes are writable at `start`, since the value was opened for writing and
            // is not empty; `bytes` is on our stack and does not overlap them.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr().cast(), len) };
            return;
        }
        // SAFETY: without a context the string is ours until it is freed; the key keeps a reference
        // of its own.
        unsafe {
            let value = api::create_string(null_mut(), bytes.as_ptr().cast(), bytes.len());
            api::string_set(self.raw.as_ptr(), value);
            api::free_string(null_mut(), value);
        }
    }

    fn set_deadline(&self, deadline_ms: Option<i64>) {
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
