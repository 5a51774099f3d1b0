//! The limits of a server: each declared once, with a name, a default, a unit and what it bounds.
//!
//! `clink serve --limit NAME=VALUE` sets one. An error that a limit gives names it; `/metrics` counts
//! how often each was hit.

use std::fmt;
use std::time::Duration;

use super::error::{Error, SqlState};

/// What the value of a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes.
    Bytes,
    /// Milliseconds.
    Time,
}

impl Unit {
    /// As tables show it.
    pub const fn name(self) -> &'static str {
        match self {
            Unit::Count => "",
            Unit::Bytes => "B",
            Unit::Time => "ms",
        }
    }
}

/// Everything that is fixed about a limit.
struct Fixed {
    name: &'static str,
    default: u64,
    /// The highest value that can be set.
    most: u64,
    unit: Unit,
    code: SqlState,
    description: &'static str,
}

macro_rules! limits {
    ($($variant:ident = $name:literal, $unit:ident, $default:expr, up to $most:expr, $code:ident, $description:literal;)*) => {
        /// A limit.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Limit { $(#[doc = $description] $variant,)* }

        impl Limit {
            /// All of them.
            pub const ALL: &[Limit] = &[$(Limit::$variant,)*];

            const fn fixed(self) -> Fixed {
                match self {
                    $(Limit::$variant => Fixed {
                        name: $name,
                        default: $default,
                        most: $most,
                        unit: Unit::$unit,
                        code: SqlState::$code,
                        description: $description,
                    },)*
                }
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000;
const DAY: u64 = 86_400 * SECOND;

limits! {
    Sessions = "sessions", Count, 200, up to 10_000, TooManyConnections,
        "sessions of PostgreSQL's protocol at a time";
    Logins = "logins", Count, 64, up to 10_000, TooManyConnections,
        "connections that have not logged in; the oldest is cut for a new one";
    LoginTime = "login_time", Time, 10 * SECOND, up to DAY, ProtocolViolation,
        "how long a client may take to log in";
    StartupBytes = "startup_bytes", Bytes, 10_000, up to MIB, ProtocolViolation,
        "the message with which a client logs in";
    MessageBytes = "message_bytes", Bytes, 64 * MIB, up to GIB - 1, ProgramLimitExceeded,
        "one message of a client";
    ReaderTime = "reader_time", Time, 60 * SECOND, up to DAY, ProtocolViolation,
        "how long a client may take nothing of what it is sent";
    RowBytes = "row_bytes", Bytes, 64 * MIB, up to GIB - 1, ProgramLimitExceeded,
        "one row of a result or of a COPY";
    ResultColumns = "result_columns", Count, 1_664, up to 1_664, ProgramLimitExceeded,
        "columns of a result";
    Portals = "portals", Count, 1_000, up to 1_000_000, ProgramLimitExceeded,
        "portals of a connection";
    PreparedStatements = "prepared_statements", Count, 10_000, up to 1_000_000, ProgramLimitExceeded,
        "prepared statements of a session";
    Cursors = "cursors", Count, 1_000, up to 1_000_000, ProgramLimitExceeded,
        "cursors of a session";
    Savepoints = "savepoints", Count, 1_000, up to 1_000_000, ProgramLimitExceeded,
        "savepoints of a transaction block";
    BlockBytes = "block_bytes", Bytes, GIB, up to GIB, ProgramLimitExceeded,
        "the changes of a transaction block";
    CopyBytes = "copy_bytes", Bytes, GIB, up to GIB, ProgramLimitExceeded,
        "the rows of one COPY";
    SqlBytes = "sql_bytes", Bytes, MIB, up to MIB, ProgramLimitExceeded,
        "the text of a message";
    SqlDepth = "sql_depth", Count, 128, up to 128, StatementTooComplex,
        "nesting of parentheses, brackets and CASE";
    SqlChain = "sql_chain", Count, 500, up to 500, StatementTooComplex,
        "operators in a chain, and set operations of a query";
    SqlListItems = "sql_list_items", Count, 10_000, up to 10_000, StatementTooComplex,
        "values of one IN (…)";
    SqlJoins = "sql_joins", Count, 64, up to 64, StatementTooComplex,
        "joins of one FROM";
    SqlSubqueries = "sql_subqueries", Count, 6, up to 8, StatementTooComplex,
        "subqueries in expressions, and queries with WITH, each within the one before";
    HttpConnections = "http_connections", Count, 512, up to 100_000, TooManyConnections,
        "HTTP connections at a time; the one that has been silent longest is cut for a new one";
    HttpHeaderTime = "http_header_time", Time, 10 * SECOND, up to DAY, ProtocolViolation,
        "how long a client may take to send the header of its next request";
    HttpHeaderBytes = "http_header_bytes", Bytes, 64 * KIB, up to MIB, ProtocolViolation,
        "the header of a request";
    HttpBodyBytes = "http_body_bytes", Bytes, 16 * MIB, up to GIB, ProgramLimitExceeded,
        "the body of a request";
    HttpBodyTime = "http_body_time", Time, 10 * SECOND, up to DAY, ProtocolViolation,
        "how long a body may take, and a second more for each 1,000 bytes of it";
}

impl Limit {
    /// Its name, as settings, metrics and errors spell it.
    pub const fn name(self) -> &'static str {
        self.fixed().name
    }

    /// What it counts.
    pub const fn unit(self) -> Unit {
        self.fixed().unit
    }

    /// Its value when nothing is set.
    pub const fn default_value(self) -> u64 {
        self.fixed().default
    }

    /// What it bounds.
    pub const fn description(self) -> &'static str {
        self.fixed().description
    }
}

/// The values of all limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In the order of [`Limit::ALL`].
    values: Vec<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { values: Limit::ALL.iter().map(|limit| limit.default_value()).collect() }
    }
}

impl Limits {
    /// A limit's value, in its unit.
    pub fn get(&self, limit: Limit) -> u64 {
        // The values stand in the order in which the limits are declared.
        self.values.get(limit as usize).copied().unwrap_or_else(|| limit.default_value())
    }

    /// The same as a size.
    pub fn size(&self, limit: Limit) -> usize {
        usize::try_from(self.get(limit)).unwrap_or(usize::MAX)
    }

    /// The same as a time.
    pub fn time(&self, limit: Limit) -> Duration {
        Duration::from_millis(self.get(limit))
    }

    /// Sets what `name=value` says.
    ///
    /// # Errors
    /// A sentence about an unknown name or a value that is not allowed.
    pub fn set(&mut self, assignment: &str) -> Result<(), String> {
        let Some((name, value)) = assignment.split_once('=') else {
            return Err(format!("\"{assignment}\" is no NAME=VALUE"));
        };
        let Some(limit) = Limit::ALL.iter().find(|limit| limit.name() == name.trim()) else {
            let names: Vec<&str> = Limit::ALL.iter().map(|limit| limit.name()).collect();
            return Err(format!("there is no limit \"{name}\"; the limits are {}", names.join(", ")));
        };
        let most = limit.fixed().most;
        match number(value.trim(), limit.unit()) {
            Some(value) if (1..=most).contains(&value) => {
                if let Some(cell) = self.values.get_mut(*limit as usize) {
                    *cell = value;
                }
                Ok(())
            }
            _ => Err(format!("{name}: \"{value}\" is not between 1 and {}", Shown(most, limit.unit()))),
        }
    }

    /// The error of what goes beyond a limit, which it names.
    pub fn exceeded(&self, limit: Limit, message: impl Into<String>) -> Error {
        let value = Shown(self.get(limit), limit.unit());
        Error::new(limit.fixed().code, message)
            .detail(format!("The limit {} is {value}: {}.", limit.name(), limit.description()))
            .limit(limit)
    }
}

/// A value with its unit.
struct Shown(u64, Unit);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Unit::Count => write!(f, "{}", self.0),
            Unit::Bytes => write!(f, "{} bytes", self.0),
            Unit::Time => write!(f, "{} ms", self.0),
        }
    }
}

/// A number with a unit of its kind, or without.
fn number(text: &str, unit: Unit) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let factor = match (unit, text.get(digits..)?.trim()) {
        (_, "") => 1,
        (Unit::Bytes, "B") => 1,
        (Unit::Bytes, "kB") => 1_000,
        (Unit::Bytes, "KiB") => KIB,
        (Unit::Bytes, "MB") => 1_000_000,
        (Unit::Bytes, "MiB") => MIB,
        (Unit::Bytes, "GiB") => GIB,
        (Unit::Time, "ms") => 1,
        (Unit::Time, "s") => SECOND,
        (Unit::Time, "min") => 60 * SECOND,
        (Unit::Time, "h") => 3_600 * SECOND,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_found_by_its_name() {
        for limit in Limit::ALL {
            let mut limits = Limits::default();
            assert!(limit.default_value() <= limit.fixed().most, "{}", limit.name());
            limits.set(&format!("{}=7", limit.name())).expect("a value");
            assert_eq!(limits.get(*limit), 7);
            let others = Limit::ALL.iter().filter(|other| limits.get(**other) != other.default_value());
            assert_eq!(others.count(), 1, "{}", limit.name());
            let error = limits.exceeded(*limit, "too much");
            assert_eq!(error.limit_hit(), Some(*limit));
            assert!(error.detail_text().expect("a detail").contains(limit.name()));
        }
    }

    #[test]
    fn values_have_units() {
        let mut limits = Limits::default();
        limits.set("row_bytes=2MiB").expect("bytes");
        limits.set("login_time = 1min").expect("a time");
        assert_eq!((limits.get(Limit::RowBytes), limits.get(Limit::LoginTime)), (2 << 20, 60_000));
        for wrong in ["sessions", "sessions=0", "sessions=1s", "row_bytes=2GiB", "nothing=1", "sql_depth=129"] {
            assert!(limits.set(wrong).is_err(), "{wrong}");
        }
    }
}
