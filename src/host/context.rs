//! A running call's link to the server. What can be done with it is in the file of what it concerns: the clock,
//! keys, replies, events.

use redis_module::raw::RedisModuleCtx;
use std::marker::PhantomData;

/// The context that the server made for a running call.
#[derive(Clone, Copy)]
pub struct Context<'call> {
    pub(super) raw: *mut RedisModuleCtx,
    call: PhantomData<&'call ()>,
}

impl Context<'_> {
    /// # Safety
    /// `raw` is the context of a call that runs for `'call`.
    pub(super) unsafe fn from_raw(raw: *mut RedisModuleCtx) -> Self {
        Self {
            raw,
            call: PhantomData,
        }
    }
}
