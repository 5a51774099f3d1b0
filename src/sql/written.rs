//! Functions that put texts together of values of any type, each as it is shown: `format`, `concat`, `concat_ws`, those
//! that quote, and `pg_typeof`.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, Int64Array, StringArray, StringBuilder};
use arrow::datatypes::DataType;

use super::names::quote_ident;
use super::row_functions::{Arguments, Function, is_text, text_at};
use super::types::sql_name;
use crate::types::text::Column;
use crate::types::{Error, Result, SqlState};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "concat", returns: |types| (!types.is_empty()).then_some(DataType::Utf8), answer: concat },
    Function {
        name: "concat_ws",
        returns: |types| (types.len() > 1 && is_text(types.first())).then_some(DataType::Utf8),
        answer: concat_ws,
    },
    Function {
        name: "to_hex",
        returns: |types| matches!(types, [of] if of.is_integer()).then_some(DataType::Utf8),
        answer: to_hex,
    },
    Function { name: "format", returns: |types| is_text(types.first()).then_some(DataType::Utf8), answer: format },
    Function { name: "array_to_string", returns: of_array, answer: array_to_string },
    Function { name: "pg_typeof", returns: of_one, answer: type_names },
    Function {
        name: "quote_ident",
        returns: of_one,
        answer: |arguments| each(arguments, |text| text.map(quote_ident)),
    },
    Function { name: "quote_literal", returns: of_one, answer: |arguments| each(arguments, |text| text.map(literal)) },
    Function {
        name: "quote_nullable",
        returns: of_one,
        answer: |arguments| each(arguments, |text| Some(text.map_or_else(|| "NULL".to_owned(), literal))),
    },
];

fn of_one(types: &[DataType]) -> Option<DataType> {
    (types.len() == 1).then_some(DataType::Utf8)
}

/// Values as they are shown.
struct Values<'a> {
    arguments: &'a Arguments,
    columns: Vec<Column>,
    bytes: Vec<u8>,
}

impl<'a> Values<'a> {
    fn of(arguments: &'a Arguments) -> Result<Values<'a>> {
        let columns = arguments.columns.iter().map(|column| Column::in_zone(column, &arguments.zone));
        Ok(Values { arguments, columns: columns.collect::<Result<_>>()?, bytes: Vec::new() })
    }

    /// A row's value of a column; `None` for NULL.
    ///
    /// # Errors
    /// A fault of the program.
    fn text(&mut self, column: usize, row: usize) -> Result<Option<&str>> {
        let Some(values) = self.columns.get(column) else { return Ok(None) };
        if values.is_null(row) {
            return Ok(None);
        }
        self.bytes.clear();
        values.write_text(row, &mut self.bytes);
        match std::str::from_utf8(&self.bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(Error::internal("a value is shown in bytes that are no text")),
        }
    }

    /// A row's whole number, as a width is one.
    fn whole(&self, column: usize, row: usize, cast: &mut Vec<(usize, Int64Array)>) -> Result<i64> {
        if !cast.iter().any(|(at, _)| *at == column) {
            cast.push((column, self.arguments.integers(column)?));
        }
        let numbers = cast.iter().find(|(at, _)| *at == column);
        Ok(numbers.map_or(0, |(_, numbers)| if numbers.is_valid(row) { numbers.value(row) } else { 0 }))
    }
}

fn concat(arguments: &Arguments) -> Result<ArrayRef> {
    joined(arguments, 0, |_| Some(""))
}

fn concat_ws(arguments: &Arguments) -> Result<ArrayRef> {
    let separators = arguments.texts(0)?;
    joined(arguments, 1, |row| text_at(&separators, row))
}

/// The values of each row from a column on, without those that are NULL; NULL without a separator.
fn joined<'a>(arguments: &Arguments, first: usize, separator: impl Fn(usize) -> Option<&'a str>) -> Result<ArrayRef> {
    let mut values = Values::of(arguments)?;
    let mut texts = StringBuilder::new();
    let mut text = String::new();
    for row in 0..arguments.rows {
        let Some(separator) = separator(row) else {
            texts.append_null();
            continue;
        };
        text.clear();
        let mut any = false;
        for column in first..arguments.columns.len() {
            if let Some(value) = values.text(column, row)? {
                if any {
                    text.push_str(separator);
                }
                text.push_str(value);
                any = true;
            }
        }
        texts.append_value(&text);
    }
    Ok(Arc::new(texts.finish()))
}

/// A text as a literal of SQL.
fn literal(text: &str) -> String {
    let escaped = text.replace('\'', "''").replace('\\', "\\\\");
    if text.contains('\\') { format!("E'{escaped}'") } else { format!("'{escaped}'") }
}

/// A text of each row's value as it is shown.
fn each(arguments: &Arguments, of: fn(Option<&str>) -> Option<String>) -> Result<ArrayRef> {
    let mut values = Values::of(arguments)?;
    let rows = (0..arguments.rows).map(|row| Ok(of(values.text(0, row)?)));
    Ok(Arc::new(rows.collect::<Result<StringArray>>()?))
}

fn of_array(types: &[DataType]) -> Option<DataType> {
    let array = matches!(types.first(), Some(DataType::List(_) | DataType::Null));
    let texts = types.iter().skip(1).all(|of| is_text(Some(of)));
    (array && texts && matches!(types.len(), 2 | 3)).then_some(DataType::Utf8)
}

/// The elements of each row's array with a separator between; those that are NULL are left out, or another text.
fn array_to_string(arguments: &Arguments) -> Result<ArrayRef> {
    let Some(lists) = arguments.column(0)?.as_list_opt::<i32>() else {
        return Ok(Arc::new(StringArray::new_null(arguments.rows)));
    };
    let separators = arguments.texts(1)?;
    let nulls = if arguments.columns.len() > 2 { Some(arguments.texts(2)?) } else { None };
    let elements = Column::in_zone(lists.values(), &arguments.zone)?;
    let mut texts = StringBuilder::new();
    let mut bytes = Vec::new();
    for row in 0..arguments.rows {
        let Some(separator) = text_at(&separators, row).filter(|_| lists.is_valid(row)) else {
            texts.append_null();
            continue;
        };
        let null = nulls.as_ref().and_then(|nulls| text_at(nulls, row));
        let (from, to) = (lists.value_offsets().get(row), lists.value_offsets().get(row + 1));
        let place = |offset: Option<&i32>| offset.and_then(|offset| usize::try_from(*offset).ok()).unwrap_or(0);
        bytes.clear();
        let mut any = false;
        for element in place(from)..place(to) {
            let is_null = elements.is_null(element);
            if is_null && null.is_none() {
                continue;
            }
            if any {
                bytes.extend_from_slice(separator.as_bytes());
            }
            any = true;
            match null.filter(|_| is_null) {
                Some(null) => bytes.extend_from_slice(null.as_bytes()),
                None => elements.write_text(element, &mut bytes),
            }
        }
        texts.append_value(String::from_utf8_lossy(&bytes));
    }
    Ok(Arc::new(texts.finish()))
}

/// Whole numbers in hexadecimal digits, those below zero in two's complement of their type.
fn to_hex(arguments: &Arguments) -> Result<ArrayRef> {
    let wide = *arguments.column(0)?.data_type() == DataType::Int64;
    let numbers = arguments.integers(0)?;
    let texts: StringArray = numbers
        .iter()
        .map(|number| {
            number.map(|number| if wide { format!("{number:x}") } else { format!("{:x}", number & 0xffff_ffff) })
        })
        .collect();
    Ok(Arc::new(texts))
}

/// The name of a type as PostgreSQL's catalog has it.
fn type_names(arguments: &Arguments) -> Result<ArrayRef> {
    let name = type_name(arguments.column(0)?.data_type());
    Ok(Arc::new(StringArray::from(vec![name; arguments.rows])))
}

fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Timestamp(_, None) => "timestamp without time zone".into(),
        DataType::Timestamp(_, Some(_)) => "timestamp with time zone".into(),
        DataType::Time32(_) | DataType::Time64(_) => "time without time zone".into(),
        DataType::Decimal128(..) => "numeric".into(),
        DataType::List(element) => format!("{}[]", type_name(element.data_type())),
        other => sql_name(other),
    }
}

fn wrong(message: String) -> Error {
    Error::new(SqlState::InvalidParameterValue, message)
        .hint("Write %s for a text, %I for a name, %L for a literal, and %% for a percent sign.")
}

/// What stands behind a percent sign.
#[derive(Default)]
struct Specifier {
    /// The place of the value, counted from 1.
    place: Option<usize>,
    left: bool,
    width: Width,
}

#[derive(Clone, Copy, Default)]
enum Width {
    #[default]
    None,
    Fixed(i64),
    /// That of an argument, the next one without a place.
    Argument(Option<usize>),
}

/// Reads digits at the start of a text.
fn digits(rest: &str) -> Result<Option<(i64, &str)>> {
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, after) = rest.split_at(end);
    if number.is_empty() {
        return Ok(None);
    }
    match number.parse::<i32>() {
        Ok(number) => Ok(Some((i64::from(number), after))),
        Err(_) => Err(Error::new(SqlState::NumericOutOfRange, "number is out of range")),
    }
}

fn place(number: i64) -> Result<usize> {
    match usize::try_from(number) {
        Ok(place) if place > 0 => Ok(place),
        _ => Err(wrong("format specifies argument 0, but arguments are numbered from 1".into())),
    }
}

/// `[position$][-][width]`, and what is left behind it.
fn specifier(mut rest: &str) -> Result<(Specifier, &str)> {
    let mut found = Specifier::default();
    if let Some((number, after)) = digits(rest)? {
        match after.strip_prefix('$') {
            Some(after) => (found.place, rest) = (Some(place(number)?), after),
            None => {
                found.width = Width::Fixed(number);
                return Ok((found, after));
            }
        }
    }
    while let Some(after) = rest.strip_prefix('-') {
        (found.left, rest) = (true, after);
    }
    if let Some(after) = rest.strip_prefix('*') {
        (found.width, rest) = (Width::Argument(None), after);
        if let Some((number, after)) = digits(rest)? {
            let Some(after) = after.strip_prefix('$') else {
                return Err(wrong("width argument position must be ended by \"$\"".into()));
            };
            (found.width, rest) = (Width::Argument(Some(place(number)?)), after);
        }
    } else if let Some((number, after)) = digits(rest)? {
        (found.width, rest) = (Width::Fixed(number), after);
    }
    Ok((found, rest))
}

/// The most characters that a value is filled up to.
const WIDTH_MAX: u64 = 1 << 20;

fn format(arguments: &Arguments) -> Result<ArrayRef> {
    let templates = arguments.texts(0)?;
    let mut values = Values::of(arguments)?;
    let mut numbers = Vec::new();
    let mut texts = StringBuilder::new();
    let mut out = String::new();
    for row in 0..arguments.rows {
        let Some(mut rest) = text_at(&templates, row) else {
            texts.append_null();
            continue;
        };
        out.clear();
        let mut next = 1;
        while let Some((plain, after)) = rest.split_once('%') {
            out.push_str(plain);
            if let Some(after) = after.strip_prefix('%') {
                out.push('%');
                rest = after;
                continue;
            }
            let (found, after) = specifier(after)?;
            let Some(kind) = after.chars().next() else {
                return Err(wrong("unterminated format() type specifier".into()).hint("For a single \"%\" use \"%%\"."));
            };
            rest = after.get(kind.len_utf8()..).unwrap_or_default();
            let mut take = |place: Option<usize>| {
                let taken = place.unwrap_or(next);
                next = taken + 1;
                if taken < arguments.columns.len() { Ok(taken) } else { Err(too_few()) }
            };
            let (mut left, mut width) = (found.left, 0);
            match found.width {
                Width::None => {}
                Width::Fixed(fixed) => width = fixed,
                Width::Argument(place) => width = values.whole(take(place)?, row, &mut numbers)?,
            }
            if width < 0 {
                left = true;
            }
            let width = width.unsigned_abs();
            if width > WIDTH_MAX {
                return Err(Error::new(SqlState::ProgramLimitExceeded, "the width in a format is too large")
                    .hint(format!("It may be at most {WIDTH_MAX}.")));
            }
            let column = take(found.place)?;
            let value = values.text(column, row)?;
            let value = match (kind, value) {
                ('s', value) => value.unwrap_or_default().to_owned(),
                ('I', Some(value)) => quote_ident(value),
                ('I', None) => {
                    return Err(wrong("null values cannot be formatted as an SQL identifier".into()));
                }
                ('L', value) => value.map_or_else(|| "NULL".to_owned(), literal),
                (other, _) => {
                    return Err(wrong(format!("unrecognized format() type specifier \"{other}\""))
                        .hint("For a single \"%\" use \"%%\"."));
                }
            };
            let missing = width.saturating_sub(value.chars().count() as u64);
            let blanks = std::iter::repeat_n(' ', usize::try_from(missing).unwrap_or(0));
            if left {
                out.push_str(&value);
                out.extend(blanks);
            } else {
                out.extend(blanks);
                out.push_str(&value);
            }
        }
        out.push_str(rest);
        texts.append_value(&out);
    }
    Ok(Arc::new(texts.finish()))
}

fn too_few() -> Error {
    wrong("too few arguments for format()".into())
        .hint("Give a value for each % of the format; write %% for a percent sign.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TimeZone;

    fn formatted(template: &str, values: &[Option<&str>]) -> Result<String> {
        let mut columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(vec![template]))];
        columns.extend(values.iter().map(|value| Arc::new(StringArray::from(vec![*value])) as ArrayRef));
        let answer = format(&Arguments { columns, rows: 1, zone: TimeZone::utc() })?;
        let texts = arrow::array::AsArray::as_string::<i32>(&answer);
        Ok(texts.value(0).to_owned())
    }

    #[test]
    fn formats_are_those_of_postgresql() {
        for (template, values, wanted) in [
            ("Hello %s, %1$s", &[Some("World")][..], "Hello World, World"),
            ("%I = %L", &[Some("a b"), Some("O'Hara")], "\"a b\" = 'O''Hara'"),
            ("%s|%L|%%", &[None, None], "|NULL|%"),
            ("|%10s|%-5s|", &[Some("foo"), Some("x")], "|       foo|x    |"),
            ("|%*s|", &[Some("-4"), Some("ab")], "|ab  |"),
            ("%3$s %2$s %s", &[Some("a"), Some("b"), Some("c")], "c b c"),
        ] {
            assert_eq!(formatted(template, values).expect(template), wanted, "{template}");
        }
        for (template, values) in
            [("%s", &[][..]), ("%x", &[Some("a")]), ("%I", &[None]), ("100%", &[]), ("%0$s", &[None])]
        {
            assert_eq!(formatted(template, values).expect_err(template).code(), SqlState::InvalidParameterValue);
        }
    }
}
