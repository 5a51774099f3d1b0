//! JSON lines: one object a line.
//!
//! A line is checked by serde_json and cut into the raw texts of its fields; those of columns are
//! then turned into values. Numbers are taken from their digits.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::values::ValueError;
use super::{Columns, RowError};
use crate::connectors::ConnectorColumn;
use crate::types::{SqlState, fnv1a};

/// Nesting beyond this makes a bad row.
const DEPTH_MAX: usize = 128;

/// A JSON value as a column takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JsonValue<'a> {
    /// `null`.
    Null,
    /// `true` or `false`.
    Boolean(bool),
    /// A number's own text.
    Number(&'a str),
    /// A string, without quotes and escapes.
    String(&'a str),
    /// An object's or array's own text.
    Nested(&'a str),
}

/// Which columns a field fills: the exact name first, else the columns that it matches but for
/// case.
#[derive(Clone, Debug)]
pub(crate) struct FieldNames {
    exact: HashMap<String, usize>,
    folded: HashMap<String, Vec<usize>>,
}

impl FieldNames {
    pub(crate) fn new(columns: &[ConnectorColumn]) -> FieldNames {
        let mut folded: HashMap<String, Vec<usize>> = HashMap::new();
        for (index, column) in columns.iter().enumerate() {
            folded.entry(column.name.to_lowercase()).or_default().push(index);
        }
        let exact = columns.iter().enumerate().map(|(index, column)| (column.name.clone(), index)).collect();
        FieldNames { exact, folded }
    }

    /// The columns that a field fills, and whether by its exact name.
    pub(crate) fn resolve(&self, field: &str) -> (bool, Vec<usize>) {
        match self.exact.get(field) {
            Some(column) => (true, vec![*column]),
            None => (false, self.folded.get(&field.to_lowercase()).cloned().unwrap_or_default()),
        }
    }
}

/// The columns of one field name, as found before.
struct Known {
    name: String,
    exact: bool,
    columns: Vec<usize>,
    hash: u64,
}

/// What a row gives for a column: where its raw value stands in the line. An empty range is no
/// value, since no JSON value is empty.
#[derive(Clone, Copy, Default)]
struct Slot {
    start: usize,
    end: usize,
    exact: bool,
    /// Hash of the field's spelling, for a match that is not exact.
    spelling: u64,
    ambiguous: bool,
}

/// Reads JSON lines.
pub(crate) struct JsonDecoder {
    names: FieldNames,
    column_names: Vec<String>,
    /// By place in the object: records of one writer list their fields in one order.
    expected: Vec<Known>,
    slots: Vec<Slot>,
    scratch: String,
}

impl JsonDecoder {
    pub(crate) fn new(columns: &[ConnectorColumn]) -> JsonDecoder {
        JsonDecoder {
            names: FieldNames::new(columns),
            column_names: columns.iter().map(|column| column.name.clone()).collect(),
            expected: Vec::new(),
            slots: Vec::new(),
            scratch: String::new(),
        }
    }

    /// Appends the row of a line; false when the line is blank.
    pub(crate) fn decode(&mut self, line: &[u8], columns: &mut Columns) -> Result<bool, RowError> {
        let text = std::str::from_utf8(line).map_err(|error| RowError {
            code: SqlState::CharacterNotInRepertoire,
            ..RowError::record(format!(
                "invalid byte sequence for encoding \"UTF8\" at byte {} of the row",
                error.valid_up_to()
            ))
        })?;
        if text.trim_ascii().is_empty() {
            return Ok(false);
        }
        check_depth(line)?;
        self.slots.clear();
        self.slots.resize(self.column_names.len(), Slot::default());
        let mut current = None;
        let row = Row {
            names: &self.names,
            expected: &mut self.expected,
            line: text,
            slots: &mut self.slots,
            current: &mut current,
        };
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let parsed = deserializer.deserialize_map(row).and_then(|()| {
            current = None;
            deserializer.end()
        });
        if let Err(error) = parsed {
            return Err(RowError {
                code: SqlState::BadCopyFormat,
                column: current.and_then(|index: usize| self.column_names.get(index).cloned()),
                reason: format!("invalid JSON: {error}"),
            });
        }
        let (slots, scratch) = (&self.slots, &mut self.scratch);
        columns.append_row(|index, column| {
            let slot = slots.get(index).copied().unwrap_or_default();
            if slot.ambiguous {
                return Err(ValueError::new(
                    SqlState::BadCopyFormat,
                    "several fields of the row match the column but for case and none exactly",
                ));
            }
            match text.get(slot.start..slot.end) {
                None | Some("") => column.append_null(),
                Some(raw) => column.append_json(value_of(raw, scratch)?),
            }
        })?;
        Ok(true)
    }
}

/// The kind of a raw value is told by its first byte; serde_json has checked the rest.
fn value_of<'a>(raw: &'a str, scratch: &'a mut String) -> Result<JsonValue<'a>, ValueError> {
    Ok(match raw.as_bytes().first() {
        Some(b'n') => JsonValue::Null,
        Some(b't') => JsonValue::Boolean(true),
        Some(b'f') => JsonValue::Boolean(false),
        Some(b'{' | b'[') => JsonValue::Nested(raw),
        Some(b'"') => {
            let inner = raw.get(1..raw.len() - 1).unwrap_or_default();
            if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
                JsonValue::String(inner)
            } else {
                unescape(inner, scratch)?;
                JsonValue::String(scratch)
            }
        }
        _ => JsonValue::Number(raw),
    })
}

/// Takes the escapes out of a string's inside.
fn unescape(inner: &str, out: &mut String) -> Result<(), ValueError> {
    out.clear();
    let bad = |what: &str| ValueError::new(SqlState::CharacterNotInRepertoire, format!("invalid JSON string: {what}"));
    let mut rest = inner;
    while let Some(at) = memchr::memchr(b'\\', rest.as_bytes()) {
        let (plain, escaped) = rest.split_at(at);
        out.push_str(plain);
        let mut characters = escaped.chars();
        characters.next();
        match characters.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('b') => out.push('\u{8}'),
            Some('f') => out.push('\u{c}'),
            Some(same @ ('"' | '\\' | '/')) => out.push(same),
            Some('u') => {
                let high = hex4(&mut characters).ok_or_else(|| bad("bad \\u escape"))?;
                let code = if (0xD800..0xDC00).contains(&high) {
                    let low = match (characters.next(), characters.next()) {
                        (Some('\\'), Some('u')) => hex4(&mut characters),
                        _ => None,
                    };
                    match low {
                        Some(low) if (0xDC00..0xE000).contains(&low) => {
                            0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
                        }
                        _ => return Err(bad("unpaired surrogate")),
                    }
                } else {
                    high
                };
                if code == 0 {
                    return Err(bad("\\u0000 cannot be kept in text"));
                }
                out.push(char::from_u32(code).ok_or_else(|| bad("unpaired surrogate"))?);
            }
            _ => return Err(bad("bad escape")),
        }
        rest = characters.as_str();
    }
    out.push_str(rest);
    Ok(())
}

fn hex4(characters: &mut std::str::Chars<'_>) -> Option<u32> {
    let mut code = 0;
    for _ in 0..4 {
        code = code << 4 | characters.next()?.to_digit(16)?;
    }
    Some(code)
}

/// Refuses deep nesting, which would cost whoever reads the text later their stack.
fn check_depth(line: &[u8]) -> Result<(), RowError> {
    // Hardly any line has so many brackets at all, and counting is quick.
    let brackets = line.iter().filter(|b| matches!(**b, b'{' | b'[')).count();
    if brackets <= DEPTH_MAX {
        return Ok(());
    }
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Err(RowError {
                        code: SqlState::StatementTooComplex,
                        ..RowError::record(format!("the row is nested deeper than {DEPTH_MAX} levels"))
                    });
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Visits the object of a line.
struct Row<'r> {
    names: &'r FieldNames,
    expected: &'r mut Vec<Known>,
    line: &'r str,
    slots: &'r mut [Slot],
    /// The column whose value is being read, to name it when the JSON breaks there.
    current: &'r mut Option<usize>,
}

impl<'a> Visitor<'a> for Row<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<M: MapAccess<'a>>(self, mut map: M) -> Result<(), M::Error> {
        let mut place = 0;
        while let Some(()) = map.next_key_seed(Key { names: self.names, expected: self.expected, place })? {
            let Some(known) = self.expected.get(place) else {
                continue;
            };
            place += 1;
            *self.current = known.columns.first().copied();
            if self.current.is_none() {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let raw: &'a RawValue = map.next_value()?;
            // The raw value is a part of the line, so the difference of their places is its offset.
            let start = (raw.get().as_ptr() as usize).wrapping_sub(self.line.as_ptr() as usize);
            let end = start.saturating_add(raw.get().len());
            for column in &known.columns {
                let Some(slot) = self.slots.get_mut(*column) else {
                    continue;
                };
                let exact = known.exact;
                if exact || !slot.exact {
                    let taken = !exact && slot.end > 0;
                    let ambiguous = taken && (slot.ambiguous || slot.spelling != known.hash);
                    *slot = Slot { start, end, exact, spelling: known.hash, ambiguous };
                }
            }
        }
        Ok(())
    }
}

/// Finds the columns of a key and keeps them at the key's place.
struct Key<'r> {
    names: &'r FieldNames,
    expected: &'r mut Vec<Known>,
    place: usize,
}

impl<'a> DeserializeSeed<'a> for Key<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'a>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<(), E> {
        if self.expected.get(self.place).is_some_and(|known| known.name == name) {
            return Ok(());
        }
        let (exact, columns) = self.names.resolve(name);
        let known = Known { name: name.to_owned(), exact, columns, hash: fnv1a(name.as_bytes()) };
        match self.expected.get_mut(self.place) {
            Some(place) => *place = known,
            None => self.expected.push(known),
        }
        Ok(())
    }
}
