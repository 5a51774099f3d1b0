//! The session's time zone and user, on their way from the session to the functions that need them.

use datafusion::common::config::{ConfigExtension, ConfigOptions};
use datafusion::common::extensions_options;

use crate::types::TimeZone;

extensions_options! {
    /// The zone that texts of times are in when they name none.
    pub struct SessionZone {
        /// Its name.
        pub name: String, default = "UTC".to_owned()
        /// The user that is connected.
        pub user: String, default = "clink".to_owned()
    }
}

impl ConfigExtension for SessionZone {
    const PREFIX: &'static str = "session_zone";
}

/// Puts a zone and a user into the settings that a statement is planned and run with.
pub fn set_zone(options: &mut ConfigOptions, zone: &TimeZone, user: &str) {
    options.extensions.insert(SessionZone { name: zone.name().to_owned(), user: user.to_owned() });
}

/// The user whose statement it is; the server's own for views.
pub(crate) fn user_of(options: &ConfigOptions) -> String {
    options.extensions.get::<SessionZone>().map_or_else(|| "clink".to_owned(), |session| session.user.clone())
}

/// The zone of a statement; UTC for views.
pub(crate) fn zone_of(options: &ConfigOptions) -> TimeZone {
    let named = options.extensions.get::<SessionZone>().and_then(|zone| TimeZone::parse(&zone.name));
    named.unwrap_or_else(TimeZone::utc)
}

/// True when a time's text says which zone it is in: an offset or letters behind its hours.
pub(crate) fn names_zone(text: &str) -> bool {
    let text = text.trim();
    let text = text.strip_suffix("BC").or_else(|| text.strip_suffix("bc")).unwrap_or(text);
    match text.find(':') {
        Some(at) => text.bytes().skip(at).any(|byte| matches!(byte, b'+' | b'-') || byte.is_ascii_alphabetic()),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_stands_behind_the_hours() {
        for zoned in ["2020-01-01 00:00+02", "2020-01-01T00:00:00Z", "2020-01-01 00:00:00 Europe/Berlin"] {
            assert!(names_zone(zoned), "{zoned}");
        }
        for bare in ["2020-01-01", "2020-01-01T00:00:00.5", "0044-03-15 12:00:00 BC"] {
            assert!(!names_zone(bare), "{bare}");
        }
    }
}
