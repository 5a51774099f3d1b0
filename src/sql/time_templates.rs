//! Templates of `to_char`, `to_date` and `to_timestamp` for times, such as `YYYY-MM-DD HH24:MI:SS`.
//!
//! As in PostgreSQL the longest word of the table is taken at each place, upper and lower case apart; what is no word
//! stands for itself, and so does all between double quotes.

use crate::types::{Error, Result, SqlState};

/// How letters are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letters {
    Upper,
    Capital,
    Lower,
}

impl Letters {
    pub(crate) fn of(self, text: &str) -> String {
        match self {
            Letters::Upper => text.to_uppercase(),
            Letters::Capital => text.to_owned(),
            Letters::Lower => text.to_lowercase(),
        }
    }
}

/// A part of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Hour12,
    Hour24,
    Minute,
    Second,
    SecondsOfDay,
    /// So many digits of the second's fraction.
    Fraction(u8),
    /// AM or PM, with dots or without.
    HalfDay(Letters, bool),
    /// AD or BC, with dots or without.
    Era(Letters, bool),
    /// The last digits of the year.
    Year(u8),
    YearWithComma,
    IsoYear(u8),
    Century,
    Quarter,
    Month,
    MonthName(Letters),
    ShortMonth(Letters),
    RomanMonth(Letters),
    Day,
    DayOfYear,
    IsoDayOfYear,
    /// From Sunday on, as 1.
    Weekday,
    /// From Monday on, as 1.
    IsoWeekday,
    DayName(Letters),
    ShortDay(Letters),
    WeekOfMonth,
    WeekOfYear,
    IsoWeek,
    JulianDay,
    Zone(Letters),
    ZoneHours,
    ZoneMinutes,
    ZoneOffset,
}

/// The words, in upper case where a lower case one means the same.
const WORDS: &[(&str, Field)] = &[
    ("A.D.", Field::Era(Letters::Upper, true)),
    ("B.C.", Field::Era(Letters::Upper, true)),
    ("a.d.", Field::Era(Letters::Lower, true)),
    ("b.c.", Field::Era(Letters::Lower, true)),
    ("AD", Field::Era(Letters::Upper, false)),
    ("BC", Field::Era(Letters::Upper, false)),
    ("ad", Field::Era(Letters::Lower, false)),
    ("bc", Field::Era(Letters::Lower, false)),
    ("A.M.", Field::HalfDay(Letters::Upper, true)),
    ("P.M.", Field::HalfDay(Letters::Upper, true)),
    ("a.m.", Field::HalfDay(Letters::Lower, true)),
    ("p.m.", Field::HalfDay(Letters::Lower, true)),
    ("AM", Field::HalfDay(Letters::Upper, false)),
    ("PM", Field::HalfDay(Letters::Upper, false)),
    ("am", Field::HalfDay(Letters::Lower, false)),
    ("pm", Field::HalfDay(Letters::Lower, false)),
    ("CC", Field::Century),
    ("DAY", Field::DayName(Letters::Upper)),
    ("Day", Field::DayName(Letters::Capital)),
    ("day", Field::DayName(Letters::Lower)),
    ("DDD", Field::DayOfYear),
    ("DD", Field::Day),
    ("DY", Field::ShortDay(Letters::Upper)),
    ("Dy", Field::ShortDay(Letters::Capital)),
    ("dy", Field::ShortDay(Letters::Lower)),
    ("D", Field::Weekday),
    ("FF1", Field::Fraction(1)),
    ("FF2", Field::Fraction(2)),
    ("FF3", Field::Fraction(3)),
    ("FF4", Field::Fraction(4)),
    ("FF5", Field::Fraction(5)),
    ("FF6", Field::Fraction(6)),
    ("HH24", Field::Hour24),
    ("HH12", Field::Hour12),
    ("HH", Field::Hour12),
    ("IDDD", Field::IsoDayOfYear),
    ("ID", Field::IsoWeekday),
    ("IW", Field::IsoWeek),
    ("IYYY", Field::IsoYear(4)),
    ("IYY", Field::IsoYear(3)),
    ("IY", Field::IsoYear(2)),
    ("I", Field::IsoYear(1)),
    ("J", Field::JulianDay),
    ("MI", Field::Minute),
    ("MM", Field::Month),
    ("MONTH", Field::MonthName(Letters::Upper)),
    ("Month", Field::MonthName(Letters::Capital)),
    ("month", Field::MonthName(Letters::Lower)),
    ("MON", Field::ShortMonth(Letters::Upper)),
    ("Mon", Field::ShortMonth(Letters::Capital)),
    ("mon", Field::ShortMonth(Letters::Lower)),
    ("MS", Field::Fraction(3)),
    ("OF", Field::ZoneOffset),
    ("Q", Field::Quarter),
    ("RM", Field::RomanMonth(Letters::Upper)),
    ("rm", Field::RomanMonth(Letters::Lower)),
    ("SSSSS", Field::SecondsOfDay),
    ("SSSS", Field::SecondsOfDay),
    ("SS", Field::Second),
    ("TZH", Field::ZoneHours),
    ("TZM", Field::ZoneMinutes),
    ("TZ", Field::Zone(Letters::Upper)),
    ("tz", Field::Zone(Letters::Lower)),
    ("US", Field::Fraction(6)),
    ("WW", Field::WeekOfYear),
    ("W", Field::WeekOfMonth),
    ("Y,YYY", Field::YearWithComma),
    ("YYYY", Field::Year(4)),
    ("YYY", Field::Year(3)),
    ("YY", Field::Year(2)),
    ("Y", Field::Year(1)),
];

/// The word at the start of a template, and its length.
fn word(template: &str) -> Option<(Field, usize)> {
    let fits = |word: &str| {
        let start = template.get(..word.len())?;
        // Either as it stands or all of it in lower case.
        (start == word || start == word.to_ascii_lowercase()).then_some(word.len())
    };
    let found = WORDS.iter().filter_map(|(word, field)| Some((*field, fits(word)?)));
    // A word that is another one in lower case comes later in the table.
    found.reduce(|longest, other| if other.1 >= longest.1 { other } else { longest })
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Field {
        field: Field,
        /// `FM`: without blanks and zeros.
        fill: bool,
        /// `TH` or `th` behind it.
        ordinal: Option<Letters>,
    },
    /// A character that stands for itself, and whether it stood between quotes.
    Character(char, bool),
}

/// Takes a template apart.
///
/// # Errors
/// 0A000 for `FX` and `TM`.
pub(crate) fn pieces(template: &str) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut rest = template;
    while let Some(first) = rest.chars().next() {
        let (mut ahead, mut fill) = (rest, false);
        if let Some(after) = ahead.strip_prefix("FM").or_else(|| ahead.strip_prefix("fm")) {
            (ahead, fill) = (after, true);
        }
        for modifier in ["FX", "fx", "TM", "tm"] {
            if ahead.starts_with(modifier) {
                return Err(Error::unsupported(format!("the template pattern {modifier} is not supported"))
                    .hint("Leave it out."));
            }
        }
        if let Some((field, length)) = word(ahead) {
            rest = ahead.get(length..).unwrap_or_default();
            let mut ordinal = None;
            for (suffix, letters) in [("TH", Letters::Upper), ("th", Letters::Lower)] {
                if let Some(after) = rest.strip_prefix(suffix) {
                    (rest, ordinal) = (after, Some(letters));
                    break;
                }
            }
            pieces.push(Piece::Field { field, fill, ordinal });
            continue;
        }
        if fill {
            // It changes only the field behind it.
            rest = ahead;
            continue;
        }
        rest = literal(rest, first, &mut pieces);
    }
    Ok(pieces)
}

/// Takes a character, or all between quotes, for itself.
fn literal<'a>(rest: &'a str, first: char, pieces: &mut Vec<Piece>) -> &'a str {
    let after = |text: &'a str, character: char| text.get(character.len_utf8()..).unwrap_or_default();
    let mut rest = after(rest, first);
    if first == '\\' && rest.starts_with('"') {
        pieces.push(Piece::Character('"', false));
        return after(rest, '"');
    }
    if first != '"' {
        pieces.push(Piece::Character(first, false));
        return rest;
    }
    while let Some(mut character) = rest.chars().next() {
        rest = after(rest, character);
        if character == '"' {
            break;
        }
        if character == '\\'
            && let Some(escaped) = rest.chars().next()
        {
            rest = after(rest, escaped);
            character = escaped;
        }
        pieces.push(Piece::Character(character, true));
    }
    rest
}

/// Days from the first one that Julian days count to 1970.
pub(crate) const JULIAN_1970: i64 = 2_440_588;

/// The names of the months.
pub(crate) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The names of the days of a week.
pub(crate) const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// 22007 with a message.
pub(crate) fn wrong_format(message: String) -> Error {
    Error::new(SqlState::InvalidDatetimeFormat, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(field: Field) -> Piece {
        Piece::Field { field, fill: false, ordinal: None }
    }

    #[test]
    fn the_longest_word_is_taken() {
        let taken = pieces("YYYY-MM-DD").unwrap();
        let dash = || Piece::Character('-', false);
        assert_eq!(taken, [field(Field::Year(4)), dash(), field(Field::Month), dash(), field(Field::Day)]);
        assert_eq!(pieces("HH24MISS").unwrap(), [field(Field::Hour24), field(Field::Minute), field(Field::Second)]);
        assert_eq!(pieces("month").unwrap(), [field(Field::MonthName(Letters::Lower))]);
        assert_eq!(
            pieces("FMDDth").unwrap(),
            [Piece::Field { field: Field::Day, fill: true, ordinal: Some(Letters::Lower) }]
        );
        assert_eq!(pieces("\"a\"T").unwrap(), [Piece::Character('a', true), Piece::Character('T', false)]);
        assert!(pieces("FXYYYY").is_err());
    }
}
