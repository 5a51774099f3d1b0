//! The one clock's unit.

use std::fmt;

/// When a change became part of the database: milliseconds handed out by the coordinator's clock.
///
/// Times are totally ordered, shared by all jobs and never handed out twice; a later commit has a
/// greater time. A time is not a row's event time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Before every time that the clock hands out.
    pub const ZERO: Time = Time(0);
    /// After every time that the clock hands out: the upper of something that is finished.
    pub const MAX: Time = Time(u64::MAX);

    /// The time of `millis` milliseconds since 1970.
    pub const fn from_millis(millis: u64) -> Time {
        Time(millis)
    }

    /// Milliseconds since 1970.
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The next representable time; [`Time::MAX`] stays.
    #[must_use]
    pub const fn next(self) -> Time {
        Time(self.0.saturating_add(1))
    }

    /// The last time before this one, if there is any.
    pub const fn previous(self) -> Option<Time> {
        match self.0.checked_sub(1) {
            Some(millis) => Some(Time(millis)),
            None => None,
        }
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
