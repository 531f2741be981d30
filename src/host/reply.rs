//! Replies, written straight to the client.

use super::api;
use super::context::Context;
use libc::c_long;
use std::ffi::CString;
use std::fmt::Display;

impl Context<'_> {
    /// Starts an array of `len` parts, which the next replies fill.
    pub fn reply_array(self, len: usize) {
        let len = c_long::try_from(len).unwrap_or(c_long::MAX);
        // SAFETY: `raw` is the context of a running call.
        unsafe { api::reply_with_array(self.raw, len) };
    }

    /// An integer.
    pub fn reply_integer(self, integer: i64) {
        // SAFETY: `raw` is the context of a running call.
        unsafe { api::reply_with_long_long(self.raw, integer) };
    }

    /// An array of integers.
    pub fn reply_integers(self, integers: &[i64]) {
        self.reply_array(integers.len());
        for integer in integers {
            self.reply_integer(*integer);
        }
    }

    /// An error, its code first.
    pub(super) fn reply_error(self, error: &dyn Display) {
        let message = CString::new(error.to_string()).unwrap_or_default();
        // SAFETY: `raw` is the context of a running call; the server copies the message.
        unsafe { api::reply_with_error(self.raw, message.as_ptr()) };
    }
}
