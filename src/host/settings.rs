//! The module's settings as the server keeps them: `CONFIG GET rl.*`, `CONFIG SET`, `CONFIG REWRITE`, and `CONFIG` of
//! `MODULE LOADEX`.

use super::api;
use super::error::LoadError;
use super::register::Registrar;
use libc::c_int;
use redis_module::configuration::{ConfigurationFlags, register_bool_configuration};
use redis_module::{Context, raw};
use std::sync::atomic::AtomicBool;

/// A setting that is `yes` or `no`.
pub struct Setting {
    /// Its name without `rl.`.
    pub name: &'static str,
    /// Its value. The server reads and writes it.
    pub value: &'static AtomicBool,
    /// Whether it is fixed once the module is loaded.
    pub is_immutable: bool,
}

impl Registrar {
    /// Registers settings with their defaults. When this returns, each has its value: that of the configuration file
    /// or of `MODULE LOADEX`, otherwise the default.
    pub fn register_settings(
        &self,
        settings: impl IntoIterator<Item = (&'static Setting, bool)>,
    ) -> Result<(), LoadError> {
        let context = Context::new(self.ctx);
        for (setting, default) in settings {
            let flags = if setting.is_immutable {
                ConfigurationFlags::IMMUTABLE
            } else {
                ConfigurationFlags::DEFAULT
            };
            register_bool_configuration(
                &context,
                setting.name,
                setting.value,
                default,
                flags,
                None,
            );
        }
        // SAFETY: the context is that of the load function.
        if unsafe { api::load_configs(self.ctx) } == raw::REDISMODULE_OK as c_int {
            Ok(())
        } else {
            Err(LoadError::SettingRefused)
        }
    }
}
