//! The words of a call.

use super::api;
use redis_module::raw::RedisModuleString;
use std::marker::PhantomData;

/// The words of one call, the command's name first. They live as long as the call.
#[derive(Clone, Copy)]
pub struct Arguments<'call> {
    words: &'call [*mut RedisModuleString],
}

/// A word that names a key.
#[derive(Clone, Copy)]
pub struct KeyName<'call> {
    pub(super) raw: *mut RedisModuleString,
    call: PhantomData<&'call ()>,
}

impl<'call> Arguments<'call> {
    /// # Safety
    /// `argv` points at `argc` arguments that live for `'call`, as the server hands them to a handler.
    pub(super) unsafe fn from_raw(argv: *mut *mut RedisModuleString, argc: libc::c_int) -> Self {
        let count = usize::try_from(argc).unwrap_or(0);
        let words = if argv.is_null() || count == 0 {
            &[]
        } else {
            // SAFETY: the caller promises `argc` arguments at `argv`, alive for 'call.
            unsafe { std::slice::from_raw_parts(argv, count) }
        };
        Self { words }
    }

    /// How many words there are, the command's name included.
    pub fn len(self) -> usize {
        self.words.len()
    }

    /// The word at `position`, where 0 is the command's name; empty beyond the last.
    pub fn word(self, position: usize) -> &'call [u8] {
        self.words.get(position).map_or(&[], |word| bytes(*word))
    }

    /// The words from `position` on.
    pub fn words_from(self, position: usize) -> impl Iterator<Item = &'call [u8]> + Clone {
        let words = self.words.get(position..).unwrap_or_default();
        words.iter().map(|word| bytes(*word))
    }

    /// The key name at `position`.
    ///
    /// # Panics
    /// Beyond the last word, which the arity that each command is registered with rules out.
    pub fn key(self, position: usize) -> KeyName<'call> {
        KeyName {
            raw: self.words[position],
            call: PhantomData,
        }
    }
}

/// The bytes of a string that the server gave to a running call.
pub(super) fn bytes<'call>(word: *mut RedisModuleString) -> &'call [u8] {
    let mut len = 0;
    // SAFETY: what comes here lives: the arguments of a running call, whose bytes `Arguments` hands out
    // for no longer than that, and strings that the caller frees after this borrow.
    let start = unsafe { api::string_ptr_len(word, &mut len) };
    if start.is_null() {
        return &[];
    }
    // SAFETY: the server says that `len` bytes are there; it does not change an argument during a call.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}
