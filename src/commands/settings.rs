//! The module arguments: what may follow the path on the loadmodule line.

use std::fmt;

/// What the module arguments ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// `cl-throttle yes`: register CL.THROTTLE.
    pub cl_throttle: bool,
    /// `notify-allowed yes`: publish the event `rl.allowed` too.
    pub notify_allowed: bool,
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
            // Escaped: neither a NUL, which a log line can't hold, nor a line break of its own.
            self.argument.escape_debug()
        )
    }
}

impl Settings {
    /// Reads pairs of a name and `yes` or `no`.
    pub fn parse(arguments: &[String]) -> Result<Self, SettingError> {
        let (mut cl_throttle, mut notify_allowed) = (None, None);
        for pair in arguments.chunks(2) {
            let error = || SettingError {
                argument: pair.join(" "),
            };
            let [name, value] = pair else {
                return Err(error());
            };
            let setting = match name.to_ascii_lowercase().as_str() {
                "cl-throttle" => &mut cl_throttle,
                "notify-allowed" => &mut notify_allowed,
                _ => return Err(error()),
            };
            let value = match value.to_ascii_lowercase().as_str() {
                "yes" => true,
                "no" => false,
                _ => return Err(error()),
            };
            if setting.replace(value).is_some() {
                return Err(error());
            }
        }
        Ok(Self {
            cl_throttle: cl_throttle.unwrap_or_default(),
            notify_allowed: notify_allowed.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Settings, SettingError> {
        let words: Vec<_> = line.split_whitespace().map(String::from).collect();
        Settings::parse(&words)
    }

    #[test]
    fn nothing_is_on_unless_it_is_asked_for() {
        assert_eq!(parse(""), Ok(Settings::default()));
        let both_no = parse("cl-throttle no notify-allowed no");
        assert_eq!(both_no, Ok(Settings::default()));
        let both = Settings {
            cl_throttle: true,
            notify_allowed: true,
        };
        assert_eq!(parse("NOTIFY-ALLOWED yes CL-Throttle YES"), Ok(both));
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
        let hostile = Settings::parse(&["a\0b\n".into(), "yes".into()]);
        let message = hostile.expect_err("it is unknown").to_string();
        assert!(!message.contains(['\0', '\n']), "{message:?}");
    }
}
