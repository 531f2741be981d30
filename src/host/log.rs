//! Lines in the server's log.

use redis_module::raw;
use std::ffi::CString;
use std::ptr::null_mut;

/// Writes a warning. The crate's own logging hands the message to the server as the format of printf,
/// where a `%` in it would be read as an instruction; here it is an argument.
pub(super) fn warning(message: &str) {
    let line = CString::new(message.replace('\0', "\\0")).unwrap_or_default();
    // SAFETY: the pointer is read as an option. Without a context the line names no module; the format
    // has one `%s`, for the C string that follows, which the server copies.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(
                null_mut(),
                c"warning".as_ptr(),
                c"<rl> %s".as_ptr(),
                line.as_ptr(),
            );
        }
    }
}
