//! `to_char`: times, intervals and numbers as texts by a template.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, StringBuilder};
use arrow::datatypes::{
    DataType, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit, TimestampMicrosecondType,
};
use chrono::{DateTime, Datelike as _, Timelike as _};

use super::arithmetic::is_number;
use super::number_texts::number_texts;
use super::row_functions::{Arguments, Function, is_text};
use super::time_templates::{DAYS, Field, JULIAN_1970, Letters, MONTHS, Piece, pieces, wrong_format};
use super::types::UTC;
use crate::types::{Error, Result, SqlState, TimeZone};

pub(crate) const FUNCTIONS: &[Function] = &[Function { name: "to_char", returns, answer }];

fn returns(types: &[DataType]) -> Option<DataType> {
    use DataType::{Date32, Interval, Null, Timestamp};
    let [value, template] = types else { return None };
    let takes = is_number(value) || matches!(value, Date32 | Timestamp(..) | Interval(_) | Null);
    (takes && is_text(Some(template))).then_some(DataType::Utf8)
}

fn answer(arguments: &Arguments) -> Result<ArrayRef> {
    let value = arguments.column(0)?;
    if is_number(value.data_type()) {
        return number_texts(arguments);
    }
    let templates = arguments.texts(1)?;
    let mut read: Option<(&str, Vec<Piece>)> = None;
    let mut texts = StringBuilder::new();
    let mut text = String::new();
    let parts: Box<dyn Fn(usize) -> Result<Option<Parts>>> = match value.data_type() {
        DataType::Interval(_) => {
            let interval = DataType::Interval(IntervalUnit::MonthDayNano);
            let values = arguments.cast(0, &interval)?.as_primitive::<IntervalMonthDayNanoType>().clone();
            Box::new(move |row| Ok(values.is_valid(row).then(|| Parts::of_interval(values.value(row)))))
        }
        data_type => {
            let zoned = matches!(data_type, DataType::Timestamp(_, Some(_)));
            let to = DataType::Timestamp(TimeUnit::Microsecond, zoned.then(|| UTC.into()));
            let values = arguments.cast(0, &to)?.as_primitive::<TimestampMicrosecondType>().clone();
            let zone = zoned.then(|| arguments.zone.clone());
            Box::new(move |row| {
                let valid = values.is_valid(row);
                valid.then(|| Parts::of_time(values.value(row), zone.as_ref())).transpose()
            })
        }
    };
    for row in 0..arguments.rows {
        let Some(parts) = parts(row)?.filter(|_| templates.is_valid(row)) else {
            texts.append_null();
            continue;
        };
        let template = templates.value(row);
        // A template is mostly the same on all rows.
        if read.as_ref().is_none_or(|(same, _)| *same != template) {
            read = Some((template, pieces(template)?));
        }
        text.clear();
        for piece in read.iter().flat_map(|(_, taken)| taken) {
            match piece {
                Piece::Character(character, _) => text.push(*character),
                Piece::Field { field, fill, ordinal } => parts.write(*field, *fill, *ordinal, &mut text)?,
            }
        }
        texts.append_value(&text);
    }
    Ok(Arc::new(texts.finish()))
}

/// A time taken apart, or an interval.
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    /// What only times have.
    date: Option<Date>,
    /// The zone's name where it is known, and its seconds east of Greenwich.
    zone: Option<(Option<&'static str>, i64)>,
}

struct Date {
    /// From Sunday on, as 0.
    weekday: i64,
    day_of_year: i64,
    iso_year: i64,
    iso_week: i64,
    iso_weekday: i64,
    julian: i64,
}

impl Parts {
    fn of_time(micros: i64, zone: Option<&TimeZone>) -> Result<Parts> {
        let local = zone.map_or(micros, |zone| zone.local(micros));
        let moment = DateTime::from_timestamp_micros(local)
            .ok_or_else(|| Error::new(SqlState::DatetimeOverflow, "timestamp out of range"))?
            .naive_utc();
        let week = moment.iso_week();
        Ok(Parts {
            year: i64::from(moment.year()),
            month: i64::from(moment.month()),
            day: i64::from(moment.day()),
            hour: i64::from(moment.hour()),
            minute: i64::from(moment.minute()),
            second: i64::from(moment.second()),
            micros: i64::from(moment.nanosecond() / 1000),
            date: Some(Date {
                weekday: i64::from(moment.weekday().num_days_from_sunday()),
                day_of_year: i64::from(moment.ordinal()),
                iso_year: i64::from(week.year()),
                iso_week: i64::from(week.week()),
                iso_weekday: i64::from(moment.weekday().number_from_monday()),
                julian: local.div_euclid(86_400_000_000) + JULIAN_1970,
            }),
            zone: zone.map(|zone| (zone.is_utc().then_some("UTC"), i64::from(zone.offset_seconds(micros)))),
        })
    }

    fn of_interval(value: IntervalMonthDayNano) -> Parts {
        let micros = value.nanoseconds / 1000;
        Parts {
            year: i64::from(value.months / 12),
            month: i64::from(value.months % 12),
            day: i64::from(value.days),
            hour: micros / 3_600_000_000,
            minute: micros / 60_000_000 % 60,
            second: micros / 1_000_000 % 60,
            micros: micros % 1_000_000,
            date: None,
            zone: None,
        }
    }

    /// The date, which intervals do not have.
    fn date(&self) -> Result<&Date> {
        self.date.as_ref().ok_or_else(|| {
            wrong_format("invalid format specification for an interval value".into())
                .detail("Intervals are not tied to specific calendar dates.")
                .hint("Leave names of days and months, eras and weeks out.")
        })
    }

    /// The year as it is counted: there is no year 0.
    fn shown_year(&self, year: i64) -> i64 {
        if self.date.is_some() && year <= 0 { 1 - year } else { year }
    }

    fn zone(&self) -> Result<Option<(Option<&'static str>, i64)>> {
        self.date()?;
        Ok(self.zone)
    }

    fn write(&self, field: Field, fill: bool, ordinal: Option<Letters>, out: &mut String) -> Result<()> {
        let start = out.len();
        let mut number = |value: i64, digits: usize| {
            // A sign is no digit.
            let width = digits + usize::from(value < 0);
            // Writing into a text cannot fail.
            let _ = if fill { write!(out, "{value}") } else { write!(out, "{value:0width$}") };
        };
        match field {
            Field::Hour24 => number(self.hour, 2),
            Field::Hour12 => number(if self.hour % 12 == 0 { 12 } else { self.hour % 12 }, 2),
            Field::Minute => number(self.minute, 2),
            Field::Second => number(self.second, 2),
            Field::SecondsOfDay => number(self.hour * 3600 + self.minute * 60 + self.second, 1),
            Field::Fraction(digits) => {
                let value = self.micros / 10_i64.pow(6 - u32::from(digits.min(6)));
                let _ = write!(out, "{value:0width$}", width = usize::from(digits) + usize::from(value < 0));
            }
            Field::Year(4) => number(self.shown_year(self.year), 4),
            Field::Year(digits) => number(last(self.shown_year(self.year), digits), usize::from(digits)),
            Field::IsoYear(4) => number(self.shown_year(self.date()?.iso_year), 4),
            Field::IsoYear(digits) => {
                number(last(self.shown_year(self.date()?.iso_year), digits), usize::from(digits));
            }
            Field::YearWithComma => {
                let year = self.shown_year(self.year);
                let _ = write!(out, "{},{:03}", year / 1000, year % 1000);
            }
            Field::Century => {
                let year = self.year;
                let century = match self.date {
                    None => year / 100,
                    Some(_) if year > 0 => (year - 1) / 100 + 1,
                    Some(_) => year / 100 - 1,
                };
                number(century, 2);
            }
            Field::Quarter if self.month == 0 => {}
            Field::Quarter => number((self.month - 1) / 3 + 1, 1),
            Field::Month => number(self.month, 2),
            Field::Day => number(self.day, 2),
            Field::DayOfYear => match &self.date {
                Some(date) => number(date.day_of_year, 3),
                None => number((self.year * 12 + self.month) * 30 + self.day, 3),
            },
            Field::IsoDayOfYear => {
                let date = self.date()?;
                number((date.iso_week - 1) * 7 + date.iso_weekday, 3);
            }
            Field::Weekday => number(self.date()?.weekday + 1, 1),
            Field::IsoWeekday => number(self.date()?.iso_weekday, 1),
            Field::WeekOfMonth => number((self.day - 1) / 7 + 1, 1),
            Field::WeekOfYear => match &self.date {
                Some(date) => number((date.day_of_year - 1) / 7 + 1, 2),
                None => number(((self.year * 12 + self.month) * 30 + self.day - 1) / 7 + 1, 2),
            },
            Field::IsoWeek => number(self.date()?.iso_week, 2),
            Field::JulianDay => number(self.date()?.julian, 1),
            Field::HalfDay(letters, dots) => {
                let text = match (self.hour.rem_euclid(24) >= 12, dots) {
                    (false, false) => "AM",
                    (true, false) => "PM",
                    (false, true) => "A.M.",
                    (true, true) => "P.M.",
                };
                out.push_str(&letters.of(text));
            }
            Field::Era(letters, dots) => {
                self.date()?;
                let text = match (self.year > 0, dots) {
                    (true, false) => "AD",
                    (false, false) => "BC",
                    (true, true) => "A.D.",
                    (false, true) => "B.C.",
                };
                out.push_str(&letters.of(text));
            }
            Field::MonthName(letters) => name(self.month_name()?, letters, fill, out),
            Field::ShortMonth(letters) => name(self.month_name()?.get(..3).unwrap_or_default(), letters, true, out),
            Field::DayName(letters) => name(self.day_name()?, letters, fill, out),
            Field::ShortDay(letters) => name(self.day_name()?.get(..3).unwrap_or_default(), letters, true, out),
            Field::RomanMonth(letters) => {
                const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];
                let roman = usize::try_from(self.month - 1).ok().and_then(|at| ROMAN.get(at)).copied();
                let text = letters.of(roman.unwrap_or_default());
                let _ = if fill { write!(out, "{text}") } else { write!(out, "{text:<4}") };
            }
            Field::Zone(letters) => match self.zone()? {
                None => {}
                Some((Some(name), _)) => out.push_str(&letters.of(name)),
                Some((None, _)) => {
                    return Err(Error::unsupported("the template pattern TZ is not supported outside of UTC")
                        .hint("Write OF or TZH:TZM for the offset."));
                }
            },
            Field::ZoneHours => {
                if let Some((_, offset)) = self.zone()? {
                    let _ = write!(out, "{}{:02}", if offset < 0 { '-' } else { '+' }, offset.abs() / 3600);
                }
            }
            Field::ZoneMinutes => {
                if let Some((_, offset)) = self.zone()? {
                    let _ = write!(out, "{:02}", offset.abs() % 3600 / 60);
                }
            }
            Field::ZoneOffset => {
                if let Some((_, offset)) = self.zone()? {
                    let (sign, hours) = (if offset < 0 { '-' } else { '+' }, offset.abs() / 3600);
                    let _ = if fill { write!(out, "{sign}{hours}") } else { write!(out, "{sign}{hours:02}") };
                    let minutes = offset.abs() % 3600 / 60;
                    if minutes != 0 {
                        let _ = write!(out, ":{minutes:02}");
                    }
                }
            }
        }
        if let Some(letters) = ordinal
            && out.get(start..).is_some_and(|written| written.ends_with(|last: char| last.is_ascii_digit()))
        {
            let written = out.get(start..).unwrap_or_default();
            let ending = ordinal_of(written);
            out.push_str(&letters.of(ending));
        }
        Ok(())
    }

    fn month_name(&self) -> Result<&'static str> {
        self.date()?;
        let name = usize::try_from(self.month - 1).ok().and_then(|at| MONTHS.get(at));
        Ok(name.copied().unwrap_or_default())
    }

    fn day_name(&self) -> Result<&'static str> {
        let name = usize::try_from(self.date()?.weekday).ok().and_then(|at| DAYS.get(at));
        Ok(name.copied().unwrap_or_default())
    }
}

fn last(year: i64, digits: u8) -> i64 {
    year % 10_i64.pow(u32::from(digits))
}

/// Long names have nine places.
fn name(text: &str, letters: Letters, fill: bool, out: &mut String) {
    let text = letters.of(text);
    // Writing into a text cannot fail.
    let _ = if fill { write!(out, "{text}") } else { write!(out, "{text:<9}") };
}

/// What makes an ordinal of a number.
pub(crate) fn ordinal_of(number: &str) -> &'static str {
    let teen = number.len() > 1 && number.bytes().rev().nth(1) == Some(b'1');
    match number.bytes().last() {
        Some(b'1') if !teen => "st",
        Some(b'2') if !teen => "nd",
        Some(b'3') if !teen => "rd",
        _ => "th",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(micros: i64, zone: Option<&str>, template: &str) -> String {
        let zone = zone.map(|name| TimeZone::parse(name).expect("a zone"));
        let parts = Parts::of_time(micros, zone.as_ref()).expect("a time");
        let mut out = String::new();
        for piece in pieces(template).expect("a template") {
            match piece {
                Piece::Character(character, _) => out.push(character),
                Piece::Field { field, fill, ordinal } => parts.write(field, fill, ordinal, &mut out).expect("a part"),
            }
        }
        out
    }

    #[test]
    fn times_are_written_as_postgresql_writes_them() {
        // 2026-03-01 14:05:09.012345, a Sunday.
        let moment = 1_772_373_909_012_345;
        for (template, wanted) in [
            ("YYYY-MM-DD HH24:MI:SS.US", "2026-03-01 14:05:09.012345"),
            ("Day, DD Month", "Sunday   , 01 March    "),
            ("FMDay, FMDDth FMMonth", "Sunday, 1st March"),
            ("HH12:MI am, Q, DDD, IYYY-IW-ID, J", "02:05 pm, 1, 060, 2026-09-7, 2461101"),
            ("\"at\" HH MS SSSS CC YY rm", "at 02 012 50709 21 26 iii "),
            ("Y,YYY AD", "2,026 AD"),
        ] {
            assert_eq!(shown(moment, None, template), wanted, "{template}");
        }
        assert_eq!(shown(moment, Some("Europe/Berlin"), "HH24 OF TZH:TZM"), "15 +01 +01:00");
        assert_eq!(shown(moment, Some("UTC"), "TZ tz OF"), "UTC utc +00");
    }

    #[test]
    fn ordinals_know_the_teens() {
        for (number, wanted) in [("1", "st"), ("11", "th"), ("22", "nd"), ("03", "rd"), ("13", "th"), ("30", "th")] {
            assert_eq!(ordinal_of(number), wanted, "{number}");
        }
    }
}
