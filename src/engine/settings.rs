//! A session's settings: `SET`, `RESET`, `SHOW`.
//!
//! Each is declared once in [`SETTINGS`], with its default and the values it takes. What would be
//! accepted without any effect is refused instead.

use std::time::Duration;

use crate::catalog::near_miss;
use crate::types::{Error, Result, SqlState, TimeZone};

use super::api::Notice;

/// The time that reads take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// The latest closed time, not before what the session has seen.
    Session,
    /// The latest time handed out.
    Strict,
    /// What there is.
    Available,
}

/// What values a setting takes.
enum Kind {
    /// Any text.
    Text,
    /// One of a few words.
    Choice(&'static [&'static str]),
    /// Spellings of the one value that there is; it is shown as the default is.
    Only(&'static [&'static str], &'static str),
    /// A time zone.
    Zone,
    /// on or off.
    Switch,
    /// An integer in a range, ends included.
    Integer(i64, i64),
    /// Milliseconds, or a number with a unit.
    Milliseconds,
    /// Reported, never set.
    ReadOnly,
    /// Known from other systems: taken with a notice.
    Alias(fn(&str) -> Result<Notice>),
    /// Not built yet.
    Refused(&'static str),
}

struct Setting {
    name: &'static str,
    default: &'static str,
    kind: Kind,
    description: &'static str,
}

const ON: &[&str] = &["on", "true", "yes", "1"];
const OFF: &[&str] = &["off", "false", "no", "0"];

/// All settings by name.
const SETTINGS: &[Setting] = &[
    Setting {
        name: "DateStyle",
        default: "ISO, MDY",
        kind: Kind::Only(&["iso", "iso, mdy", "iso,mdy"], "Dates are shown in ISO form."),
        description: "Form of dates and times.",
    },
    Setting {
        name: "IntervalStyle",
        default: "postgres",
        kind: Kind::Only(&["postgres"], "Intervals are shown in PostgreSQL's form."),
        description: "Form of intervals.",
    },
    Setting {
        name: "TimeZone",
        default: "UTC",
        kind: Kind::Zone,
        description: "Time zone of timestamps with time zone.",
    },
    Setting { name: "application_name", default: "", kind: Kind::Text, description: "The client's own name." },
    Setting {
        name: "bytea_output",
        default: "hex",
        kind: Kind::Only(&["hex"], "bytea is shown in hexadecimal digits."),
        description: "Form of bytea.",
    },
    Setting {
        name: "client_encoding",
        default: "UTF8",
        kind: Kind::Only(&["utf8", "utf-8", "unicode"], "Text is UTF-8 throughout."),
        description: "Encoding of the client's text.",
    },
    Setting {
        name: "client_min_messages",
        default: "notice",
        kind: Kind::Choice(&["debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice", "warning", "error"]),
        description: "The least level of messages that are sent.",
    },
    Setting {
        name: "clink.read",
        default: "session",
        kind: Kind::Choice(&["session", "strict", "available"]),
        description: "The time that reads take: not before what the session has seen, the latest handed out, or what there is.",
    },
    Setting {
        name: "clink.tick",
        default: "20ms",
        kind: Kind::Refused("The clock ticks every 20 ms while there is work."),
        description: "How often the clock ticks while there is work.",
    },
    Setting {
        name: "default_table_access_method",
        default: "heap",
        kind: Kind::ReadOnly,
        description: "PostgreSQL's word for ordinary tables.",
    },
    Setting {
        name: "default_transaction_isolation",
        default: "repeatable read",
        kind: Kind::Only(
            &["repeatable read", "read committed", "read uncommitted"],
            "A statement and a block read one time and write one time.",
        ),
        description: "The isolation level of new transaction blocks.",
    },
    Setting {
        name: "default_transaction_read_only",
        default: "off",
        kind: Kind::Switch,
        description: "New transaction blocks only read.",
    },
    Setting {
        name: "extra_float_digits",
        default: "1",
        kind: Kind::Integer(1, 3),
        description: "Above 0: floating-point numbers are shown in as many digits as tell them apart.",
    },
    Setting {
        name: "idle_in_transaction_session_timeout",
        default: "300000",
        kind: Kind::Milliseconds,
        description: "How long a transaction block may be left alone before its connection ends; 0: for ever.",
    },
    Setting { name: "integer_datetimes", default: "on", kind: Kind::ReadOnly, description: "Timestamps are integers." },
    Setting {
        name: "jit",
        default: "off",
        kind: Kind::Only(OFF, "Queries are not compiled to machine code."),
        description: "Queries are compiled to machine code.",
    },
    Setting {
        name: "max_identifier_length",
        default: "63",
        kind: Kind::ReadOnly,
        description: "PostgreSQL's limit; names may be longer here.",
    },
    Setting {
        name: "rw_implicit_flush",
        default: "on",
        kind: Kind::Alias(implicit_flush),
        description: "A session always reads its own writes.",
    },
    Setting {
        name: "search_path",
        default: "public",
        kind: Kind::Only(
            &["public", "\"$user\", public", "\"$user\",public", "$user, public", "$user,public"],
            "Write schema.name for objects of other schemas.",
        ),
        description: "Where names without schema are looked for.",
    },
    Setting { name: "server_encoding", default: "UTF8", kind: Kind::ReadOnly, description: "Encoding of stored text." },
    Setting {
        name: "server_version",
        default: "16.0",
        kind: Kind::ReadOnly,
        description: "The PostgreSQL version whose protocol and SQL are followed.",
    },
    Setting {
        name: "server_version_num",
        default: "160000",
        kind: Kind::ReadOnly,
        description: "The same as a number.",
    },
    Setting {
        name: "standard_conforming_strings",
        default: "on",
        kind: Kind::Only(ON, "A backslash in '...' is itself; write E'...' for escapes."),
        description: "A backslash in '...' is itself.",
    },
    Setting {
        name: "statement_timeout",
        default: "0",
        kind: Kind::Milliseconds,
        description: "How long a statement may take; 0: for ever.",
    },
    Setting {
        name: "streaming_parallelism",
        default: "0",
        kind: Kind::Alias(parallelism),
        description: "All views run on all workers of the server.",
    },
    Setting {
        name: "transaction_isolation",
        default: "repeatable read",
        kind: Kind::Only(
            &["repeatable read", "read committed", "read uncommitted"],
            "A statement and a block read one time and write one time.",
        ),
        description: "A statement and a block read one time and write one time.",
    },
];

fn implicit_flush(value: &str) -> Result<Notice> {
    if !ON.contains(&value.to_lowercase().as_str()) {
        return Err(Error::new(SqlState::InvalidParameterValue, "rw_implicit_flush cannot be turned off")
            .hint("A session always reads its own writes; this needs no flush."));
    }
    Ok(Notice { message: "rw_implicit_flush has no effect: a session always reads its own writes".into(), hint: None })
}

fn parallelism(value: &str) -> Result<Notice> {
    if value.parse::<u32>().is_err() && !value.eq_ignore_ascii_case("adaptive") {
        return Err(invalid("streaming_parallelism", value).hint("Give a number."));
    }
    Ok(Notice {
        message: "streaming_parallelism has no effect: every view runs on all workers".into(),
        hint: Some("clink serve --workers N sets their number.".into()),
    })
}

fn invalid(name: &str, value: &str) -> Error {
    Error::new(SqlState::InvalidParameterValue, format!("invalid value for parameter \"{name}\": \"{value}\""))
}

/// A setting and its value.
pub(crate) struct Described<'a> {
    pub(crate) name: &'static str,
    pub(crate) value: &'a str,
    pub(crate) default: &'static str,
    /// What RESET brings back.
    pub(crate) reset: &'a str,
    pub(crate) unit: Option<&'static str>,
    /// PostgreSQL's word for what values it takes.
    pub(crate) kind: &'static str,
    pub(crate) read_only: bool,
    pub(crate) description: &'static str,
}

/// One session's values.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// In the order of [`SETTINGS`].
    values: Vec<String>,
    /// What RESET brings back: the defaults, and what the client set when it connected.
    start: Vec<String>,
}

impl Default for Settings {
    fn default() -> Settings {
        let values: Vec<String> = SETTINGS.iter().map(|setting| setting.default.to_owned()).collect();
        Settings { start: values.clone(), values }
    }
}

impl Settings {
    /// Sets a value; `None` for the default. Gives a notice for what has no effect.
    ///
    /// # Errors
    /// 42704 for an unknown name, 22023 for a value that is not allowed, 0A000 for what is not built.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>) -> Result<Option<Notice>> {
        if name == "all" && value.is_none() {
            *self = self.at_start();
            return Ok(None);
        }
        let (index, setting) = find(name)?;
        let Some(cell) = self.values.get_mut(index) else {
            return Err(Error::internal("a setting without a value"));
        };
        let Some(value) = value else {
            *cell = self.start.get(index).cloned().unwrap_or_default();
            return Ok(None);
        };
        let lower = value.trim().to_lowercase();
        let mut notice = None;
        *cell = match &setting.kind {
            Kind::Text => value.to_owned(),
            Kind::Choice(choices) if choices.contains(&lower.as_str()) => lower,
            Kind::Choice(choices) => {
                return Err(invalid(setting.name, value).hint(format!("Available values: {}.", choices.join(", "))));
            }
            Kind::Only(spellings, _) if spellings.contains(&lower.as_str()) => setting.default.to_owned(),
            Kind::Only(_, reason) => {
                return Err(
                    invalid(setting.name, value).hint(format!("{reason} The only value is {}.", setting.default))
                );
            }
            Kind::Zone => match TimeZone::parse(value) {
                Some(zone) => zone.name().to_owned(),
                None => {
                    return Err(invalid(setting.name, value)
                        .hint("Give a name such as Europe/Berlin, or hours east of Greenwich such as 2."));
                }
            },
            Kind::Switch if ON.contains(&lower.as_str()) => "on".into(),
            Kind::Switch if OFF.contains(&lower.as_str()) => "off".into(),
            Kind::Switch => {
                return Err(invalid(setting.name, value).hint("Write on or off."));
            }
            Kind::Integer(least, most) => match lower.parse::<i64>() {
                Ok(number) if (*least..=*most).contains(&number) => number.to_string(),
                _ => {
                    return Err(invalid(setting.name, value).hint(format!("Give a number from {least} to {most}.")));
                }
            },
            Kind::Milliseconds => match milliseconds(&lower) {
                Some(millis) => millis.to_string(),
                None => {
                    return Err(invalid(setting.name, value)
                        .hint("Give milliseconds, or a number with a unit: ms, s, min, h, d."));
                }
            },
            Kind::ReadOnly => {
                return Err(Error::new(
                    SqlState::InvalidParameterValue,
                    format!("parameter \"{}\" cannot be changed", setting.name),
                )
                .hint(format!("SHOW {} gives its value.", setting.name)));
            }
            Kind::Alias(check) => {
                notice = Some(check(value)?);
                lower
            }
            Kind::Refused(reason) => {
                return Err(
                    Error::unsupported(format!("parameter \"{}\" cannot be set yet", setting.name)).hint(*reason)
                );
            }
        };
        Ok(notice)
    }

    /// Sets what the client asked for when it connected.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub(crate) fn set_at_start(&mut self, name: &str, value: &str) -> Result<()> {
        self.set(name, Some(value))?;
        self.start.clone_from(&self.values);
        Ok(())
    }

    /// The values that RESET brings back.
    pub(crate) fn at_start(&self) -> Settings {
        Settings { values: self.start.clone(), start: self.start.clone() }
    }

    /// Puts a value back that [`Self::show`] gave.
    pub(crate) fn restore(&mut self, name: &str, value: String) {
        if let Ok((index, _)) = find(name)
            && let Some(cell) = self.values.get_mut(index)
        {
            *cell = value;
        }
    }

    /// The zone in which times are shown and read.
    pub(crate) fn time_zone(&self) -> TimeZone {
        TimeZone::parse(self.value("TimeZone")).unwrap_or_else(TimeZone::utc)
    }

    /// True when a switch is on.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.value(name) == "on"
    }

    /// The documented name and value of a setting.
    ///
    /// # Errors
    /// 42704 for an unknown name.
    pub(crate) fn show(&self, name: &str) -> Result<(&'static str, &str)> {
        let (index, setting) = find(name)?;
        Ok((setting.name, self.at(index)))
    }

    /// The same as PostgreSQL shows it: spans of time with their unit.
    ///
    /// # Errors
    /// As [`Self::show`].
    pub(crate) fn shown(&self, name: &str) -> Result<(&'static str, String)> {
        let (index, setting) = find(name)?;
        Ok((setting.name, with_unit(setting, self.at(index))))
    }

    /// All settings: name, value, description.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, String, &'static str)> {
        let shown = |index, setting| with_unit(setting, self.at(index));
        SETTINGS
            .iter()
            .enumerate()
            .map(move |(index, setting)| (setting.name, shown(index, setting), setting.description))
    }

    /// All settings with what there is to say of each.
    pub(crate) fn described(&self) -> impl Iterator<Item = Described<'_>> {
        SETTINGS.iter().enumerate().map(|(index, setting)| Described {
            name: setting.name,
            value: self.at(index),
            default: setting.default,
            reset: self.start.get(index).map(String::as_str).unwrap_or_default(),
            unit: matches!(setting.kind, Kind::Milliseconds).then_some("ms"),
            kind: match setting.kind {
                Kind::Switch => "bool",
                Kind::Integer(..) | Kind::Milliseconds => "integer",
                Kind::Choice(_) => "enum",
                _ => "string",
            },
            read_only: matches!(setting.kind, Kind::ReadOnly | Kind::Refused(_)),
            description: setting.description,
        })
    }

    /// The time that reads take.
    pub(crate) fn read_mode(&self) -> ReadMode {
        match self.value("clink.read") {
            "strict" => ReadMode::Strict,
            "available" => ReadMode::Available,
            _ => ReadMode::Session,
        }
    }

    /// How long a statement may take.
    pub(crate) fn statement_timeout(&self) -> Option<Duration> {
        let millis: u64 = self.value("statement_timeout").parse().unwrap_or(0);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// How long a transaction block may be left alone.
    pub(crate) fn idle_in_transaction_timeout(&self) -> Option<Duration> {
        let millis: u64 = self.value("idle_in_transaction_session_timeout").parse().unwrap_or(0);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// True when notices are sent to the client.
    pub(crate) fn shows_notices(&self) -> bool {
        !matches!(self.value("client_min_messages"), "warning" | "error")
    }

    fn value(&self, name: &str) -> &str {
        find(name).map(|(index, _)| self.at(index)).unwrap_or_default()
    }

    fn at(&self, index: usize) -> &str {
        self.values.get(index).map(String::as_str).unwrap_or_default()
    }
}

fn find(name: &str) -> Result<(usize, &'static Setting)> {
    SETTINGS.iter().enumerate().find(|(_, setting)| setting.name.eq_ignore_ascii_case(name)).ok_or_else(|| {
        let error = Error::new(SqlState::UndefinedObject, format!("unrecognized configuration parameter \"{name}\""));
        match near_miss(name, SETTINGS.iter().map(|setting| setting.name)) {
            Some(near) => error.hint(format!("Perhaps you meant \"{near}\". SHOW ALL lists all parameters.")),
            None => error.hint("SHOW ALL lists all parameters."),
        }
    })
}

/// A span of time in the largest unit that it has a whole number of.
fn with_unit(setting: &Setting, value: &str) -> String {
    let millis = match (&setting.kind, value.parse::<u64>()) {
        (Kind::Milliseconds, Ok(millis)) if millis > 0 => millis,
        _ => return value.to_owned(),
    };
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"), (1, "ms")];
    let unit = units.into_iter().find(|(size, _)| millis.is_multiple_of(*size));
    unit.map_or_else(|| value.to_owned(), |(size, name)| format!("{}{name}", millis / size))
}

/// PostgreSQL's spelling of times: bare milliseconds, or a number and a unit.
fn milliseconds(text: &str) -> Option<u64> {
    // PostgreSQL's limit: the value is an int4.
    const MOST: u64 = 2_147_483_647;
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let factor = match text.get(digits..)?.trim() {
        "" | "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(factor).filter(|millis| *millis <= MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_typed() {
        let mut settings = Settings::default();
        settings.set("statement_timeout", Some("5s")).unwrap();
        assert_eq!(settings.show("statement_timeout").unwrap(), ("statement_timeout", "5000"));
        assert_eq!(settings.statement_timeout(), Some(Duration::from_secs(5)));
        assert_eq!(settings.shown("statement_timeout").unwrap().1, "5s");
        assert_eq!(settings.shown("idle_in_transaction_session_timeout").unwrap().1, "5min");
        settings.set("statement_timeout", None).unwrap();
        assert_eq!(settings.statement_timeout(), None);
        assert_eq!(
            settings.set("statement_timeout", Some("soon")).unwrap_err().code(),
            SqlState::InvalidParameterValue
        );
        assert_eq!(settings.set("statement_timeout", Some("-1")).unwrap_err().code(), SqlState::InvalidParameterValue);
        settings.set("clink.read", Some("STRICT")).unwrap();
        assert_eq!(settings.read_mode(), ReadMode::Strict);
        assert_eq!(settings.set("clink.read", Some("fast")).unwrap_err().code(), SqlState::InvalidParameterValue);
        settings.set("all", None).unwrap();
        assert_eq!(settings.read_mode(), ReadMode::Session);
    }

    #[test]
    fn what_has_no_effect_is_refused_or_said() {
        let mut settings = Settings::default();
        assert_eq!(
            settings.set("timezone", Some("Europe/Nowhere")).unwrap_err().code(),
            SqlState::InvalidParameterValue
        );
        assert!(settings.set("timezone", Some("europe/berlin")).unwrap().is_none());
        assert_eq!(settings.show("timezone").unwrap(), ("TimeZone", "Europe/Berlin"));
        assert!(settings.set("timezone", Some("Etc/UTC")).unwrap().is_none());
        assert_eq!(settings.show("timezone").unwrap(), ("TimeZone", "UTC"));
        assert_eq!(settings.set("server_version", Some("9")).unwrap_err().code(), SqlState::InvalidParameterValue);
        assert_eq!(settings.set("clink.tick", Some("5ms")).unwrap_err().code(), SqlState::FeatureNotSupported);
        assert!(settings.set("rw_implicit_flush", Some("true")).unwrap().is_some());
        assert!(settings.set("rw_implicit_flush", Some("false")).is_err());
        assert!(settings.set("streaming_parallelism", Some("4")).unwrap().is_some());
    }

    #[test]
    fn an_unknown_name_comes_with_the_near_miss() {
        let error = Settings::default().set("statement_timout", Some("1")).unwrap_err();
        assert_eq!(error.code(), SqlState::UndefinedObject);
        assert!(error.hint_text().unwrap().contains("statement_timeout"));
    }
}
