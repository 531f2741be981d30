//! Replies: arrays of integers, written straight to the client.

use super::api;
use super::command::Context;
use libc::c_long;

impl Context<'_> {
    /// Starts an array of `len` parts, which the next replies fill.
    pub fn reply_array(self, len: usize) {
        let len = c_long::try_from(len).unwrap_or(c_long::MAX);
        // SAFETY: `raw` is this call's context.
        unsafe { api::reply_with_array(self.raw, len) };
    }

    /// An integer.
    pub fn reply_integer(self, number: i64) {
        // SAFETY: `raw` is this call's context.
        unsafe { api::reply_with_long_long(self.raw, number) };
    }

    /// An array of integers.
    pub fn reply_integers(self, numbers: &[i64]) {
        self.reply_array(numbers.len());
        for number in numbers {
            self.reply_integer(*number);
        }
    }
}
