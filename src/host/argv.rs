//! The arguments of a call.

use super::api;
use redis_module::raw::RedisModuleString;
use std::marker::PhantomData;

/// The arguments of one call, the command's name first. They live as long as the call.
#[derive(Clone, Copy)]
pub struct Argv<'call> {
    args: &'call [*mut RedisModuleString],
}

/// One argument, as the server's own string: the name of a key, the id of a lease.
#[derive(Clone, Copy)]
pub struct Arg<'call> {
    pub(super) raw: *mut RedisModuleString,
    call: PhantomData<&'call ()>,
}

impl<'call> Arg<'call> {
    /// Its bytes.
    pub fn bytes(self) -> &'call [u8] {
        // SAFETY: it is an argument of a call that runs for `'call`, and the server does not change those.
        unsafe { bytes(self.raw) }
    }
}

impl<'call> Argv<'call> {
    /// # Safety
    /// `argv` points at `argc` arguments that live for `'call`, as the server hands them to a handler.
    pub(super) unsafe fn from_raw(argv: *mut *mut RedisModuleString, argc: libc::c_int) -> Self {
        let count = usize::try_from(argc).unwrap_or(0);
        let args = if argv.is_null() || count == 0 {
            &[]
        } else {
            // SAFETY: the caller promises `argc` arguments at `argv`, alive for 'call.
            unsafe { std::slice::from_raw_parts(argv, count) }
        };
        Self { args }
    }

    /// How many arguments there are, the command's name included.
    pub fn len(self) -> usize {
        self.args.len()
    }

    /// The argument at `position`, where 0 is the command's name; empty beyond the last.
    pub fn get(self, position: usize) -> &'call [u8] {
        // SAFETY: as for `Arg::bytes`.
        let bytes = |arg: &*mut RedisModuleString| unsafe { bytes(*arg) };
        self.args.get(position).map_or(&[], bytes)
    }

    /// The arguments from `position` on.
    pub fn iter_from(self, position: usize) -> impl ExactSizeIterator<Item = &'call [u8]> + Clone {
        let args = self.args.get(position..).unwrap_or_default();
        // SAFETY: as for `Arg::bytes`.
        args.iter().map(|arg| unsafe { bytes(*arg) })
    }

    /// The server's own strings of the arguments from `position` on.
    pub(super) fn raw_from(self, position: usize) -> &'call [*mut RedisModuleString] {
        self.args.get(position..).unwrap_or_default()
    }

    /// The argument at `position`, to hand to the server.
    ///
    /// # Panics
    /// Beyond the last argument, which the arity that each command is registered with rules out.
    pub fn arg(self, position: usize) -> Arg<'call> {
        Arg {
            raw: self.args[position],
            call: PhantomData,
        }
    }
}

/// The bytes of a string of the server.
///
/// # Safety
/// The string is alive and unchanged for `'string`.
#[inline(always)]
pub(super) unsafe fn bytes<'string>(string: *mut RedisModuleString) -> &'string [u8] {
    let mut len = 0;
    // SAFETY: the caller promises that the string is alive.
    let start = unsafe { api::string_ptr_len(string, &mut len) };
    if start.is_null() {
        return &[];
    }
    // SAFETY: the server says that `len` bytes are there, and the caller that they stay.
    unsafe { std::slice::from_raw_parts(start.cast(), len) }
}
