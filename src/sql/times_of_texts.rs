//! `to_date` and `to_timestamp`: texts read by a template; and `to_timestamp` of seconds since 1970.
//!
//! As in PostgreSQL blanks before a field are passed over, a character that stands for itself takes one of the text, and
//! a number has as many digits as its field unless no digit can follow it.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray as _, Date32Array, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Float64Type, TimeUnit};
use chrono::{Datelike as _, NaiveDate};

use super::arithmetic::is_number;
use super::row_functions::{Arguments, Function, is_text, text_at};
use super::time_templates::{DAYS, Field, JULIAN_1970, MONTHS, Piece, pieces, wrong_format};
use super::types::UTC;
use crate::types::{Error, Result, SqlState};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "to_date", returns: |types| both_texts(types).then_some(DataType::Date32), answer: to_date },
    Function { name: "to_timestamp", returns: timestamp_type, answer: to_timestamp },
];

const DAY_MICROS: i64 = 86_400_000_000;

fn both_texts(types: &[DataType]) -> bool {
    types.len() == 2 && is_text(types.first()) && is_text(types.get(1))
}

fn timestamp_type(types: &[DataType]) -> Option<DataType> {
    let seconds = matches!(types, [of] if is_number(of) || *of == DataType::Null || *of == DataType::Utf8);
    (seconds || both_texts(types)).then(|| DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())))
}

fn to_date(arguments: &Arguments) -> Result<ArrayRef> {
    let dates = read(arguments, |text, found| {
        let days = found.days(text)?;
        i32::try_from(days).map_err(|_| out_of_range(text))
    })?;
    Ok(Arc::new(Date32Array::from(dates)))
}

fn to_timestamp(arguments: &Arguments) -> Result<ArrayRef> {
    let moments = if arguments.columns.len() == 1 {
        let seconds = arguments.cast(0, &DataType::Float64)?;
        let seconds = seconds.as_primitive::<Float64Type>();
        seconds.iter().map(|seconds| seconds.map(moment).transpose()).collect::<Result<Vec<_>>>()?
    } else {
        read(arguments, |text, found| {
            let local = found.days(text)?.checked_mul(DAY_MICROS).and_then(|day| day.checked_add(found.time()?));
            let local = local.ok_or_else(|| out_of_range(text))?;
            Ok(match found.offset {
                Some(seconds) => local.saturating_sub(seconds * 1_000_000),
                None => arguments.zone.utc_of_local(local),
            })
        })?
    };
    Ok(Arc::new(TimestampMicrosecondArray::from(moments).with_timezone(UTC)))
}

/// Seconds since 1970 as microseconds.
fn moment(seconds: f64) -> Result<i64> {
    // From 4713 BC to 294276.
    if !(-210_866_803_200.0..9_224_318_016_000.0).contains(&seconds) {
        return Err(Error::new(SqlState::DatetimeOverflow, format!("timestamp out of range: \"{seconds}\"")));
    }
    // In range of 64 bits by now.
    Ok((seconds * 1_000_000.0).round_ties_even() as i64)
}

fn read<T>(arguments: &Arguments, value: impl Fn(&str, &Found) -> Result<T>) -> Result<Vec<Option<T>>> {
    let (texts, templates) = (arguments.texts(0)?, arguments.texts(1)?);
    let mut known: Option<(&str, Vec<Piece>)> = None;
    let mut values = Vec::with_capacity(arguments.rows);
    for row in 0..arguments.rows {
        let (Some(text), Some(template)) = (text_at(&texts, row), text_at(&templates, row)) else {
            values.push(None);
            continue;
        };
        // A template is mostly the same on all rows.
        if known.as_ref().is_none_or(|(same, _)| *same != template) {
            known = Some((template, pieces(template)?));
        }
        let found = match &known {
            Some((_, pieces)) => Found::read(text, pieces)?,
            None => Found::default(),
        };
        values.push(Some(value(text, &found)?));
    }
    Ok(values)
}

fn out_of_range(text: &str) -> Error {
    Error::new(SqlState::DatetimeOverflow, format!("date/time field value out of range: \"{text}\""))
        .hint("Compare the text with the template: YYYY-MM-DD HH24:MI:SS.")
}

/// What a text says of a time.
#[derive(Debug, Default)]
struct Found {
    year: Option<i64>,
    before_our_era: bool,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    julian: Option<i64>,
    hour: i64,
    /// The hour is one of twelve.
    of_twelve: bool,
    afternoon: Option<bool>,
    minute: i64,
    second: i64,
    micros: i64,
    seconds_of_day: Option<i64>,
    /// Seconds east of Greenwich.
    offset: Option<i64>,
}

impl Found {
    fn read(text: &str, pieces: &[Piece]) -> Result<Found> {
        let mut found = Found::default();
        let mut rest = text;
        for (at, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Character(character, quoted) => rest = passed(rest, (*character, *quoted), pieces.get(at + 1)),
                Piece::Field { field, fill, ordinal } => {
                    rest = rest.trim_start();
                    if rest.is_empty() {
                        break;
                    }
                    let open = *fill || ends_number(pieces.get(at + 1));
                    let ahead = found.field(*field, rest, open)?;
                    rest = match ordinal {
                        Some(_) => ahead.get(2..).unwrap_or_default(),
                        None => ahead,
                    };
                }
            }
        }
        Ok(found)
    }

    /// Reads a field, and gives what is left.
    fn field<'a>(&mut self, field: Field, rest: &'a str, open: bool) -> Result<&'a str> {
        let number = |digits: usize, name: &str| number(rest, digits, open, name);
        match field {
            Field::Year(digits) => {
                let name = match digits {
                    1 => "Y",
                    2 => "YY",
                    3 => "YYY",
                    _ => "YYYY",
                };
                let (year, after) = number(usize::from(digits), name)?;
                let short = rest.len() - after.len() < 4 && digits < 4;
                self.year = Some(if short { nearest(year) } else { year });
                Ok(after)
            }
            Field::YearWithComma => {
                let (thousands, after) = number_of(rest, 9, "Y,YYY")?;
                let after = after.strip_prefix(',').ok_or_else(|| not_integer(rest, "Y,YYY"))?;
                let (years, after) = number_of(after, 3, "Y,YYY")?;
                self.year = Some(thousands * 1000 + years);
                Ok(after)
            }
            Field::Month => set(&mut self.month, number(2, "MM")?),
            Field::Day => set(&mut self.day, number(2, "DD")?),
            Field::DayOfYear => set(&mut self.day_of_year, number(3, "DDD")?),
            Field::JulianDay => set(&mut self.julian, number_of(rest, 9, "J")?),
            Field::MonthName(_) => {
                let (month, after) = named(rest, &MONTHS, None, "Month")?;
                self.month = Some(month + 1);
                Ok(after)
            }
            Field::ShortMonth(_) => {
                let (month, after) = named(rest, &MONTHS, Some(3), "Mon")?;
                self.month = Some(month + 1);
                Ok(after)
            }
            // Days of the week and quarters tell nothing that the date does not.
            Field::DayName(_) => Ok(named(rest, &DAYS, None, "Day")?.1),
            Field::ShortDay(_) => Ok(named(rest, &DAYS, Some(3), "Dy")?.1),
            Field::Quarter => Ok(number(1, "Q")?.1),
            Field::Hour24 => {
                let (hour, after) = number(2, "HH24")?;
                (self.hour, self.of_twelve) = (hour, false);
                Ok(after)
            }
            Field::Hour12 => {
                let (hour, after) = number(2, "HH12")?;
                (self.hour, self.of_twelve) = (hour, true);
                Ok(after)
            }
            Field::Minute => {
                let (minute, after) = number(2, "MI")?;
                self.minute = minute;
                Ok(after)
            }
            Field::Second => {
                let (second, after) = number(2, "SS")?;
                self.second = second;
                Ok(after)
            }
            Field::SecondsOfDay => set(&mut self.seconds_of_day, number(5, "SSSSS")?),
            Field::Fraction(digits) => {
                let (value, after) = number(usize::from(digits), "FF")?;
                // The digits are those behind the point: .5 is half a second.
                let read = u32::try_from(rest.len() - after.len()).unwrap_or(u32::MAX);
                self.micros = match read {
                    0..=6 => value * 10_i64.pow(6 - read),
                    _ => value / 10_i64.pow((read - 6).min(12)),
                };
                Ok(after)
            }
            Field::HalfDay(_, dots) => {
                let names = if dots { ["a.m.", "p.m."] } else { ["am", "pm"] };
                let (half, after) = named(rest, &names, None, if dots { "P.M." } else { "PM" })?;
                self.afternoon = Some(half == 1);
                Ok(after)
            }
            Field::Era(_, dots) => {
                let names = if dots { ["a.d.", "b.c."] } else { ["ad", "bc"] };
                let (era, after) = named(rest, &names, None, if dots { "B.C." } else { "BC" })?;
                self.before_our_era = era == 1;
                Ok(after)
            }
            Field::ZoneHours => {
                let (sign, digits) = match rest.strip_prefix('-') {
                    Some(digits) => (-1, digits),
                    None => (1, rest.strip_prefix('+').unwrap_or(rest)),
                };
                let (hours, after) = number_of(digits, 2, "TZH")?;
                self.offset = Some(sign * hours * 3600);
                Ok(after)
            }
            Field::ZoneMinutes => {
                let (minutes, after) = number(2, "TZM")?;
                let hours = self.offset.unwrap_or(0);
                self.offset = Some(if hours < 0 { hours - minutes * 60 } else { hours + minutes * 60 });
                Ok(after)
            }
            Field::IsoYear(_)
            | Field::IsoWeek
            | Field::IsoWeekday
            | Field::IsoDayOfYear
            | Field::Century
            | Field::Weekday
            | Field::WeekOfMonth
            | Field::WeekOfYear
            | Field::RomanMonth(_)
            | Field::Zone(_)
            | Field::ZoneOffset => {
                Err(Error::unsupported("weeks, centuries, Roman months and zones are not read by a template")
                    .hint("Read YYYY, MM, Mon, DD, DDD, HH24, MI, SS, MS, US, AM, TZH and TZM."))
            }
        }
    }

    /// Days since 1970 of the date; the first of what is not said.
    fn days(&self, text: &str) -> Result<i64> {
        if let Some(julian) = self.julian {
            return Ok(julian - JULIAN_1970);
        }
        let year = match (self.year, self.before_our_era) {
            (Some(year), true) => 1 - year,
            (Some(year), false) => year,
            // The year before year 1.
            (None, _) => 0,
        };
        let year = i32::try_from(year).map_err(|_| out_of_range(text))?;
        let small = |value: Option<i64>| u32::try_from(value.unwrap_or(1)).unwrap_or(u32::MAX);
        let date = match self.day_of_year.filter(|_| self.month.is_none() && self.day.is_none()) {
            Some(day) => NaiveDate::from_yo_opt(year, small(Some(day))),
            None => NaiveDate::from_ymd_opt(year, small(self.month), small(self.day)),
        };
        let date = date.ok_or_else(|| out_of_range(text))?;
        Ok(i64::from(date.num_days_from_ce()) - i64::from(NaiveDate::default().num_days_from_ce()))
    }

    /// Microseconds of the day; `None` where there is no such time.
    fn time(&self) -> Option<i64> {
        if let Some(seconds) = self.seconds_of_day {
            return (0..86_400).contains(&seconds).then_some(seconds * 1_000_000 + self.micros);
        }
        let hour = match (self.of_twelve, self.afternoon) {
            (true, _) if !(1..=12).contains(&self.hour) => return None,
            (_, Some(true)) if self.hour < 12 => self.hour + 12,
            (_, Some(false)) if self.hour == 12 => 0,
            _ => self.hour,
        };
        let fits = (0..24).contains(&hour) && (0..60).contains(&self.minute) && (0..60).contains(&self.second);
        fits.then(|| ((hour * 60 + self.minute) * 60 + self.second) * 1_000_000 + self.micros)
    }
}

fn set<'a>(field: &mut Option<i64>, (value, after): (i64, &'a str)) -> Result<&'a str> {
    *field = Some(value);
    Ok(after)
}

/// A year of few digits: that of them which is nearest to 2020.
fn nearest(year: i64) -> i64 {
    match year {
        0..70 => year + 2000,
        70..100 => year + 1900,
        100..520 => year + 2000,
        520..1000 => year + 1000,
        _ => year,
    }
}

/// What a character of the template takes of the text: a separator takes one where there is one, anything else takes
/// whatever stands there.
fn passed<'a>(rest: &'a str, piece: (char, bool), next: Option<&Piece>) -> &'a str {
    let is_separator = |c: char| c.is_ascii_punctuation() || c.is_whitespace();
    let Some(first) = rest.chars().next() else { return rest };
    let (character, quoted) = piece;
    // The sign of a zone is no separator.
    let sign = matches!(first, '+' | '-') && matches!(next, Some(Piece::Field { field: Field::ZoneHours, .. }));
    if !quoted && is_separator(character) && (!is_separator(first) || sign) {
        return rest;
    }
    rest.get(first.len_utf8()..).unwrap_or_default()
}

/// True when no digit can follow: at the end, and before what is no number.
fn ends_number(next: Option<&Piece>) -> bool {
    match next {
        None => true,
        Some(Piece::Character(character, _)) => !character.is_ascii_digit(),
        Some(Piece::Field { field, .. }) => matches!(
            field,
            Field::MonthName(_)
                | Field::ShortMonth(_)
                | Field::DayName(_)
                | Field::ShortDay(_)
                | Field::HalfDay(..)
                | Field::Era(..)
        ),
    }
}

fn not_integer(rest: &str, name: &str) -> Error {
    let start: String = rest.chars().take(name.len().max(2)).collect();
    wrong_format(format!("invalid value \"{start}\" for \"{name}\""))
        .detail("Value must be an integer.")
        .hint("Compare the text with the template.")
}

/// A number of at most so many digits.
fn number_of<'a>(rest: &'a str, most: usize, name: &str) -> Result<(i64, &'a str)> {
    let signed = rest.strip_prefix(['-', '+']).unwrap_or(rest);
    let digits = signed.bytes().take_while(u8::is_ascii_digit).count().min(most);
    let end = rest.len() - signed.len() + digits;
    let (text, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
    match text.parse() {
        Ok(number) if digits > 0 => Ok((number, after)),
        _ => Err(not_integer(rest, name)),
    }
}

/// A number of a field: all digits there are when the field is open.
fn number<'a>(rest: &'a str, digits: usize, open: bool, name: &str) -> Result<(i64, &'a str)> {
    number_of(rest, if open { 9 } else { digits }, name)
}

/// One of a few names, in any case: its place, and what is left. Short names are their first letters.
fn named<'a>(rest: &'a str, names: &[&str], short: Option<usize>, field: &str) -> Result<(i64, &'a str)> {
    let found = names.iter().enumerate().find_map(|(at, name)| {
        let name = name.get(..short.unwrap_or(name.len())).unwrap_or(name);
        let start = rest.get(..name.len())?;
        start.eq_ignore_ascii_case(name).then(|| (at, rest.get(name.len()..).unwrap_or_default()))
    });
    match found {
        Some((at, after)) => Ok((i64::try_from(at).unwrap_or(0), after)),
        None => {
            let start: String = rest.chars().take_while(|c| !c.is_whitespace()).take(9).collect();
            Err(wrong_format(format!("invalid value \"{start}\" for \"{field}\""))
                .detail("The given value did not match any of the allowed values for this field.")
                .hint("Compare the text with the template."))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str, template: &str) -> Result<String> {
        let found = Found::read(text, &pieces(template)?)?;
        let (days, time) = (found.days(text)?, found.time().ok_or_else(|| out_of_range(text))?);
        let mut out = Vec::new();
        crate::types::text::write_timestamp(&mut out, days * DAY_MICROS + time, b' ', "");
        Ok(String::from_utf8(out).expect("a text"))
    }

    #[test]
    fn texts_are_read_as_postgresql_reads_them() {
        for (text, template, wanted) in [
            ("2026-03-01", "YYYY-MM-DD", "2026-03-01 00:00:00"),
            ("05 Dec 2000", "DD Mon YYYY", "2000-12-05 00:00:00"),
            ("20260301 140509", "YYYYMMDD HH24MISS", "2026-03-01 14:05:09"),
            ("3/1/26 2:05 pm", "MM/DD/YY HH12:MI am", "2026-03-01 14:05:00"),
            ("2026-060 12.5", "YYYY-DDD SS.MS", "2026-03-01 00:00:12.5"),
            ("Sunday, 1st March 2026", "Day, DDth Month YYYY", "2026-03-01 00:00:00"),
            ("2026-03-01T10:20:30", "YYYY-MM-DD\"T\"HH24:MI:SS", "2026-03-01 10:20:30"),
        ] {
            assert_eq!(date(text, template).expect(text), wanted, "{text}");
        }
        for (text, template, code) in [
            ("2026-02-30", "YYYY-MM-DD", SqlState::DatetimeOverflow),
            ("x", "YYYY", SqlState::InvalidDatetimeFormat),
            ("1 Foo 2026", "DD Mon YYYY", SqlState::InvalidDatetimeFormat),
            ("25:00", "HH24:MI", SqlState::DatetimeOverflow),
        ] {
            assert_eq!(date(text, template).expect_err(text).code(), code, "{text}");
        }
        assert!(moment(1e20).is_err() && moment(f64::NAN).is_err());
        assert_eq!(moment(1.5).unwrap(), 1_500_000);
    }
}
