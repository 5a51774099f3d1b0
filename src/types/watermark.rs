//! How far event time is.

use std::fmt;

/// The claim about a column of event time that no row will come any more whose value is at or before this one:
/// microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Watermark(i64);

impl Watermark {
    /// Nothing is claimed.
    pub const NONE: Watermark = Watermark(i64::MIN);
    /// No row at all will come any more.
    pub const END: Watermark = Watermark(i64::MAX);

    /// The claim for values up to `micros` microseconds since 1970.
    pub const fn from_micros(micros: i64) -> Watermark {
        Watermark(micros)
    }

    /// Microseconds since 1970.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// The same claim about values that are `delay` microseconds after those that it was made of, or before them when it
    /// is negative. Nothing stays nothing, and the end the end.
    #[must_use]
    pub const fn after(self, delay: i64) -> Watermark {
        match self {
            Watermark::NONE | Watermark::END => self,
            Watermark(micros) => match micros.saturating_sub(delay) {
                i64::MIN => Watermark(i64::MIN + 1),
                i64::MAX => Watermark(i64::MAX - 1),
                micros => Watermark(micros),
            },
        }
    }

    /// True when no row with this value will come any more.
    pub const fn is_past(self, value: i64) -> bool {
        !matches!(self, Watermark::NONE) && value <= self.0
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Watermark::NONE => f.write_str("none"),
            Watermark::END => f.write_str("end"),
            Watermark(micros) => micros.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_keeps_nothing_and_the_end() {
        assert_eq!(Watermark::NONE.after(-5), Watermark::NONE);
        assert_eq!(Watermark::END.after(5), Watermark::END);
        assert_eq!(Watermark::from_micros(10).after(3), Watermark::from_micros(7));
        assert!(Watermark::from_micros(i64::MIN + 2).after(5) > Watermark::NONE);
        assert!(Watermark::from_micros(i64::MAX - 2).after(-5) < Watermark::END);
        assert!(Watermark::from_micros(7).is_past(7) && !Watermark::from_micros(7).is_past(8));
        assert!(!Watermark::NONE.is_past(i64::MIN) && Watermark::END.is_past(i64::MAX));
    }
}
