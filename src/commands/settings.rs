//! The settings, which are configurations of the server, and their defaults: the module arguments, which may follow
//! the path on the loadmodule line.
//!
//! An argument is a default, so the configuration file wins. `CONFIG REWRITE` keeps the loadmodule line as it is and
//! writes a separate line for a setting that differs from its default: what `CONFIG SET` last said holds after a
//! restart.

use crate::host::{ALLOWED_TOO, LoadError, Registrar, Setting};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether CL.THROTTLE is registered.
static CL_THROTTLE: AtomicBool = AtomicBool::new(false);

static SETTINGS: [Setting; 2] = [
    Setting {
        name: "cl-throttle",
        value: &CL_THROTTLE,
        // A server accepts a command only while the module is loaded.
        is_immutable: true,
    },
    Setting {
        name: "notify-allowed",
        value: &ALLOWED_TOO,
        is_immutable: false,
    },
];

/// Registers the settings, with the module arguments as their defaults, and gives them their values.
pub fn register(registrar: &Registrar, arguments: &[String]) -> Result<(), LoadError> {
    let defaults = defaults(arguments).map_err(|error| LoadError::Arguments(error.to_string()))?;
    registrar.register_settings(SETTINGS.iter().zip(defaults))
}

/// Whether to register CL.THROTTLE.
pub fn cl_throttle() -> bool {
    CL_THROTTLE.load(Relaxed)
}

/// A module argument that is unknown, has no value, or has another value than `yes` or `no`.
#[derive(Debug, PartialEq, Eq)]
pub struct SettingError {
    argument: String,
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "module argument '{}' is unknown, incomplete or given twice: accepted are \
             'cl-throttle yes|no' and 'notify-allowed yes|no', both no if not given",
            // Escaped: neither a NUL, which a log line can't hold, nor a line break.
            self.argument.escape_debug()
        )
    }
}

/// The default of each setting: pairs of its name and `yes` or `no`, or `no`.
fn defaults(arguments: &[String]) -> Result<Vec<bool>, SettingError> {
    let mut defaults = vec![None; SETTINGS.len()];
    for pair in arguments.chunks(2) {
        let error = || SettingError {
            argument: pair.join(" "),
        };
        let [name, value] = pair else {
            return Err(error());
        };
        let setting = SETTINGS
            .iter()
            .position(|setting| name.eq_ignore_ascii_case(setting.name))
            .ok_or_else(error)?;
        let value = match value.to_ascii_lowercase().as_str() {
            "yes" => true,
            "no" => false,
            _ => return Err(error()),
        };
        if defaults[setting].replace(value).is_some() {
            return Err(error());
        }
    }
    Ok(defaults
        .into_iter()
        .map(Option::unwrap_or_default)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By name, what the line sets.
    fn parse(line: &str) -> Result<Vec<(&'static str, bool)>, SettingError> {
        let words: Vec<_> = line.split_whitespace().map(String::from).collect();
        let names = SETTINGS.iter().map(|setting| setting.name);
        Ok(names.zip(defaults(&words)?).collect())
    }

    #[test]
    fn nothing_is_on_unless_it_is_asked_for() {
        for (line, cl_throttle, notify_allowed) in [
            ("", false, false),
            ("cl-throttle no notify-allowed no", false, false),
            ("Notify-Allowed yes", false, true),
            ("NOTIFY-ALLOWED yes CL-Throttle YES", true, true),
        ] {
            let expected = vec![
                ("cl-throttle", cl_throttle),
                ("notify-allowed", notify_allowed),
            ];
            assert_eq!(parse(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_accepted() {
        for line in [
            "cl-throttle",
            "cl-throttle maybe",
            "x yes",
            "yes",
            "cl-throttle yes cl-throttle yes",
        ] {
            let message = parse(line).expect_err(line).to_string();
            assert!(message.contains("cl-throttle yes|no"), "{message}");
        }
        let hostile = defaults(&["a\0b\n".into(), "yes".into()]);
        let message = hostile.expect_err("it is unknown").to_string();
        assert!(!message.contains(['\0', '\n']), "{message:?}");
    }
}
