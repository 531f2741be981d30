//! The functions of the module API that redis-rl calls, in one list: checked once when the module is
//! loaded, then called without a check.
//!
//! The server fills a table of pointers and leaves null what it does not have. Calling through a null
//! pointer would kill it, so [`missing`] names every gap first and [`load`](super::load()) refuses.

use libc::{c_char, c_int, c_long, c_longlong};
use redis_module::raw;
use redis_module::raw::{RedisModuleCtx, RedisModuleKey, RedisModuleString};

/// A function that the server lacks.
pub struct Missing {
    /// Its name in the module API.
    pub function: &'static str,
    /// The first server release that has it.
    pub since: &'static str,
}

macro_rules! required_functions {
    ($(
        $(#[$doc:meta])*
        $pointer:ident since $since:literal: fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// [`missing`] returned nothing for this server, and the arguments are as the module API
            /// asks: alive, from this call, and used on the thread that holds the server's lock.
            #[inline(always)]
            pub(super) unsafe fn $name($($argument: $kind),*) $(-> $result)? {
                // SAFETY: the pointer was found not to be null when the module was loaded and the
                // server never changes it after; the caller answers for the arguments.
                unsafe { raw::$pointer.unwrap_unchecked()($($argument),*) }
            }
        )*

        /// The functions that the server lacks.
        pub fn missing() -> impl Iterator<Item = Missing> {
            // SAFETY: the server filled the table before the module's load function went on, and no
            // other thread of ours reads or writes it.
            let found = unsafe {
                [
                    // Variadic, so that their callers go by the pointer.
                    ({ raw::RedisModule_HashGet }.is_some(), "RedisModule_HashGet", "4.0"),
                    ({ raw::RedisModule_Replicate }.is_some(), "RedisModule_Replicate", "4.0"),
                    $(({ raw::$pointer }.is_some(), stringify!($pointer), $since),)*
                    // Called through the crate, which panics at a null pointer.
                    ({ raw::RedisModule_InfoAddSection }.is_some(), "RedisModule_InfoAddSection", "6.0"),
                    (
                        { raw::RedisModule_InfoAddFieldULongLong }.is_some(),
                        "RedisModule_InfoAddFieldULongLong",
                        "6.0",
                    ),
                    (
                        { raw::RedisModule_RegisterBoolConfig }.is_some(),
                        "RedisModule_RegisterBoolConfig",
                        "7.0",
                    ),
                ]
            };
            found
                .into_iter()
                .filter(|(is_there, ..)| !is_there)
                .map(|(_, function, since)| Missing { function, since })
        }
    };
}

required_functions! {
    /// Registers a command.
    RedisModule_CreateCommand since "4.0": fn create_command(
        ctx: *mut RedisModuleCtx, name: *const c_char, handler: raw::RedisModuleCmdFunc,
        flags: *const c_char, first_key: c_int, last_key: c_int, key_step: c_int
    ) -> c_int;
    /// The command of that name, for what is set after its creation.
    RedisModule_GetCommand since "7.0": fn get_command(
        ctx: *mut RedisModuleCtx, name: *const c_char
    ) -> *mut raw::RedisModuleCommand;
    /// Sets arity, key specs and documentation.
    RedisModule_SetCommandInfo since "7.0": fn set_command_info(
        command: *mut raw::RedisModuleCommand, info: *const raw::RedisModuleCommandInfo
    ) -> c_int;
    /// Where the keys of a call are; null, with `errno`, if there is no such command or no such call.
    RedisModule_GetCommandKeys since "6.2": fn get_command_keys(
        ctx: *mut RedisModuleCtx, argv: *mut *mut RedisModuleString, argc: c_int, count: *mut c_int
    ) -> *mut c_int;
    /// Gives back memory that the server gave.
    RedisModule_Free since "4.0": fn free(memory: *mut libc::c_void);
    /// Sets the module's options.
    RedisModule_SetModuleOptions since "6.0": fn set_module_options(
        ctx: *mut RedisModuleCtx, options: c_int
    );
    /// Whether the call only asks where the keys are.
    RedisModule_IsKeysPositionRequest since "4.0": fn is_keys_position_request(
        ctx: *mut RedisModuleCtx
    ) -> c_int;
    /// Answers such a call with one key.
    RedisModule_KeyAtPosWithFlags since "7.0": fn key_at_pos_with_flags(
        ctx: *mut RedisModuleCtx, position: c_int, flags: c_int
    );
    /// The bytes of an argument, valid as long as the argument is.
    RedisModule_StringPtrLen since "4.0": fn string_ptr_len(
        string: *const RedisModuleString, len: *mut usize
    ) -> *const c_char;
    /// A new string of these bytes.
    RedisModule_CreateString since "4.0": fn create_string(
        ctx: *mut RedisModuleCtx, bytes: *const c_char, len: usize
    ) -> *mut RedisModuleString;
    /// A new string of this number.
    RedisModule_CreateStringFromLongLong since "4.0": fn create_string_from_long_long(
        ctx: *mut RedisModuleCtx, number: c_longlong
    ) -> *mut RedisModuleString;
    /// Gives back a string that was created.
    RedisModule_FreeString since "4.0": fn free_string(
        ctx: *mut RedisModuleCtx, string: *mut RedisModuleString
    );
    /// Opens a key; null if it is missing and opened for reading.
    RedisModule_OpenKey since "4.0": fn open_key(
        ctx: *mut RedisModuleCtx, name: *mut RedisModuleString, mode: c_int
    ) -> *mut RedisModuleKey;
    /// Closes it.
    RedisModule_CloseKey since "4.0": fn close_key(key: *mut RedisModuleKey);
    /// The type of its value.
    RedisModule_KeyType since "4.0": fn key_type(key: *mut RedisModuleKey) -> c_int;
    /// The length of its value.
    RedisModule_ValueLength since "4.0": fn value_length(key: *mut RedisModuleKey) -> usize;
    /// The bytes of its string value, in place.
    RedisModule_StringDMA since "4.0": fn string_dma(
        key: *mut RedisModuleKey, len: *mut usize, mode: c_int
    ) -> *mut c_char;
    /// Gives it a string value, without a ttl.
    RedisModule_StringSet since "4.0": fn string_set(
        key: *mut RedisModuleKey, value: *mut RedisModuleString
    ) -> c_int;
    /// Sets the deadline of its value.
    RedisModule_SetAbsExpire since "6.2": fn set_abs_expire(
        key: *mut RedisModuleKey, deadline_ms: raw::mstime_t
    ) -> c_int;
    /// The deadline of its value; -1 without one.
    RedisModule_GetAbsExpire since "7.0": fn get_abs_expire(
        key: *mut RedisModuleKey
    ) -> raw::mstime_t;
    /// Adds a member to its sorted set, or changes the score of one.
    RedisModule_ZsetAdd since "4.0": fn zset_add(
        key: *mut RedisModuleKey, score: f64, member: *mut RedisModuleString, flags: *mut c_int
    ) -> c_int;
    /// Removes a member of its sorted set; the last one takes the key with it.
    RedisModule_ZsetRem since "4.0": fn zset_rem(
        key: *mut RedisModuleKey, member: *mut RedisModuleString, removed: *mut c_int
    ) -> c_int;
    /// The score of a member of its sorted set.
    RedisModule_ZsetScore since "4.0": fn zset_score(
        key: *mut RedisModuleKey, member: *mut RedisModuleString, score: *mut f64
    ) -> c_int;
    /// Starts a walk at the lowest score of a range.
    RedisModule_ZsetFirstInScoreRange since "4.0": fn zset_first_in_score_range(
        key: *mut RedisModuleKey, min: f64, max: f64, min_exclusive: c_int, max_exclusive: c_int
    ) -> c_int;
    /// Starts a walk at the highest score of a range.
    RedisModule_ZsetLastInScoreRange since "4.0": fn zset_last_in_score_range(
        key: *mut RedisModuleKey, min: f64, max: f64, min_exclusive: c_int, max_exclusive: c_int
    ) -> c_int;
    /// The member that the walk is at, as a new string.
    RedisModule_ZsetRangeCurrentElement since "4.0": fn zset_range_current_element(
        key: *mut RedisModuleKey, score: *mut f64
    ) -> *mut RedisModuleString;
    /// Whether the walk has no member.
    RedisModule_ZsetRangeEndReached since "4.0": fn zset_range_end_reached(
        key: *mut RedisModuleKey
    ) -> c_int;
    /// Goes on to the next member; 0 if there is none.
    RedisModule_ZsetRangeNext since "4.0": fn zset_range_next(key: *mut RedisModuleKey) -> c_int;
    /// Goes back to the member before; 0 if there is none.
    RedisModule_ZsetRangePrev since "4.0": fn zset_range_prev(key: *mut RedisModuleKey) -> c_int;
    /// Ends the walk.
    RedisModule_ZsetRangeStop since "4.0": fn zset_range_stop(key: *mut RedisModuleKey);
    /// Tells WATCH and client tracking that the key was modified.
    RedisModule_SignalModifiedKey since "6.0": fn signal_modified_key(
        ctx: *mut RedisModuleCtx, name: *mut RedisModuleString
    ) -> c_int;
    /// The events that the server publishes, as flags.
    RedisModule_GetNotifyKeyspaceEvents since "6.0": fn get_notify_keyspace_events() -> c_int;
    /// Publishes an event about a key.
    RedisModule_NotifyKeyspaceEvent since "4.0": fn notify_keyspace_event(
        ctx: *mut RedisModuleCtx, class: c_int, event: *const c_char, key: *mut RedisModuleString
    ) -> c_int;
    /// Sets the function that INFO calls.
    RedisModule_RegisterInfoFunc since "6.0": fn register_info_func(
        ctx: *mut RedisModuleCtx, write_info: raw::RedisModuleInfoFunc
    ) -> c_int;
    /// Gives each configuration that was registered its value.
    RedisModule_LoadConfigs since "7.0": fn load_configs(ctx: *mut RedisModuleCtx) -> c_int;
    /// The server's clock.
    RedisModule_Milliseconds since "4.0": fn milliseconds() -> raw::mstime_t;
    /// Starts a reply of several parts.
    RedisModule_ReplyWithArray since "4.0": fn reply_with_array(
        ctx: *mut RedisModuleCtx, len: c_long
    ) -> c_int;
    /// An integer of a reply.
    RedisModule_ReplyWithLongLong since "4.0": fn reply_with_long_long(
        ctx: *mut RedisModuleCtx, number: c_longlong
    ) -> c_int;
    /// An error as the reply.
    RedisModule_ReplyWithError since "4.0": fn reply_with_error(
        ctx: *mut RedisModuleCtx, message: *const c_char
    ) -> c_int;
}
