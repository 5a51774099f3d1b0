//! CSV by PostgreSQL's rules for `COPY … (FORMAT csv)`.
//!
//! A field may be quoted, also in parts; a doubled quote inside is one quote; delimiters and line
//! ends inside quotes belong to the value. An unquoted field that equals the null text is NULL, a
//! quoted one never is. Lines end with LF or CRLF; the last one may lack its end.

use memchr::{memchr, memchr2};

use super::json::FieldNames;
use super::{Columns, RowError};
use crate::connectors::ConnectorColumn;
use crate::types::{Error, Result, SqlState};

const QUOTE: u8 = b'"';

/// How a CSV file is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CsvOptions {
    /// The first record has the columns' names.
    pub(crate) header: bool,
    /// What stands between two fields: an ASCII character.
    pub(crate) delimiter: u8,
    /// The unquoted text that is NULL.
    pub(crate) null: String,
}

/// Which field of a record fills each column, and how many fields a record has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldMap {
    fields: Vec<usize>,
    width: usize,
}

impl FieldMap {
    /// Fields in the order of the columns.
    pub(crate) fn by_position(columns: usize) -> FieldMap {
        FieldMap { fields: (0..columns).collect(), width: columns }
    }

    /// Fields by the names in the header.
    ///
    /// # Errors
    /// 42703 for a column that the header does not name; 42702 when several fields match one
    /// column and none exactly.
    pub(crate) fn by_name(header: &[String], columns: &[ConnectorColumn]) -> Result<FieldMap> {
        let names = FieldNames::new(columns);
        let mut found: Vec<Option<(usize, bool)>> = vec![None; columns.len()];
        for (field, name) in header.iter().enumerate() {
            let (exact, matching) = names.resolve(name);
            for column in matching {
                let Some(slot) = found.get_mut(column) else {
                    continue;
                };
                match slot {
                    Some((_, true)) if !exact => {}
                    Some((_, before)) if *before == exact => {
                        return Err(Error::new(
                            SqlState::AmbiguousColumn,
                            format!("the CSV header has several fields for column \"{name}\""),
                        ));
                    }
                    _ => *slot = Some((field, exact)),
                }
            }
        }
        let fields = columns
            .iter()
            .zip(found)
            .map(|(column, field)| match field {
                Some((field, _)) => Ok(field),
                None => Err(Error::new(
                    SqlState::UndefinedColumn,
                    format!("column \"{}\" is not in the header of the CSV file", column.name),
                )
                .detail(format!("The header has: {}.", header.join(", ")))
                .hint("Name the column as the header does, or set header = false to match by position.")),
            })
            .collect::<Result<_>>()?;
        Ok(FieldMap { fields, width: header.len() })
    }
}

/// The length of the record at the start of `data`, its line end included; `None` when more bytes
/// are needed to tell.
pub(crate) fn record_end(data: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let rest = data.get(at..)?;
        let found = at + memchr2(QUOTE, b'\n', rest)?;
        if data.get(found) == Some(&b'\n') {
            return Some(found + 1);
        }
        // A doubled quote leaves the quotes and enters them again at once.
        at = found + 1 + memchr(QUOTE, data.get(found + 1..)?)? + 1;
    }
}

/// A field of a record.
#[derive(Clone, Copy)]
struct FieldSpan {
    start: usize,
    end: usize,
    /// The text stands in the scratch buffer, not in the record.
    unquoted: bool,
    /// Some part was quoted.
    quoted: bool,
}

/// Cuts records into fields.
#[derive(Default)]
pub(crate) struct Splitter {
    spans: Vec<FieldSpan>,
    scratch: Vec<u8>,
}

impl Splitter {
    /// Finds the fields of a record without its line end.
    fn split(&mut self, record: &[u8], delimiter: u8) -> Result<(), RowError> {
        self.spans.clear();
        self.scratch.clear();
        let mut start = 0;
        loop {
            let rest = record.get(start..).unwrap_or_default();
            let end = match memchr2(delimiter, QUOTE, rest) {
                None => record.len(),
                Some(at) if rest.get(at) == Some(&delimiter) => start + at,
                Some(_) => {
                    let end = self.unquote(record, start, delimiter)?;
                    match end {
                        Some(end) => {
                            start = end + 1;
                            continue;
                        }
                        None => return Ok(()),
                    }
                }
            };
            let field = record.get(start..end).unwrap_or_default();
            check_carriage_return(field)?;
            self.spans.push(FieldSpan { start, end, unquoted: false, quoted: false });
            if end == record.len() {
                return Ok(());
            }
            start = end + 1;
        }
    }

    /// Takes the quotes out of the field at `start`; gives the place of the delimiter behind it.
    fn unquote(&mut self, record: &[u8], start: usize, delimiter: u8) -> Result<Option<usize>, RowError> {
        let from = self.scratch.len();
        let mut at = start;
        let mut end = None;
        loop {
            let rest = record.get(at..).unwrap_or_default();
            let plain = memchr2(delimiter, QUOTE, rest).unwrap_or(rest.len());
            let part = rest.get(..plain).unwrap_or_default();
            check_carriage_return(part)?;
            self.scratch.extend_from_slice(part);
            at += plain;
            match record.get(at) {
                None => break,
                Some(byte) if *byte == delimiter => {
                    end = Some(at);
                    break;
                }
                Some(_) => {
                    at += 1;
                    // Inside quotes until a quote that is not doubled.
                    loop {
                        let rest = record.get(at..).unwrap_or_default();
                        let Some(length) = memchr(QUOTE, rest) else {
                            return Err(RowError::record("unterminated CSV quoted field"));
                        };
                        self.scratch.extend_from_slice(rest.get(..length).unwrap_or_default());
                        at += length + 1;
                        if record.get(at) != Some(&QUOTE) {
                            break;
                        }
                        self.scratch.push(QUOTE);
                        at += 1;
                    }
                }
            }
        }
        self.spans.push(FieldSpan { start: from, end: self.scratch.len(), unquoted: true, quoted: true });
        Ok(end)
    }

    fn text<'a>(&'a self, record: &'a [u8], span: FieldSpan) -> Result<&'a str, RowError> {
        let bytes =
            if span.unquoted { self.scratch.get(span.start..span.end) } else { record.get(span.start..span.end) };
        std::str::from_utf8(bytes.unwrap_or_default()).map_err(|_| RowError {
            code: SqlState::CharacterNotInRepertoire,
            ..RowError::record("invalid byte sequence for encoding \"UTF8\"")
        })
    }

    /// The fields of a header.
    pub(crate) fn header(&mut self, record: &[u8], delimiter: u8) -> Result<Vec<String>, RowError> {
        let record = without_line_end(record);
        self.split(record, delimiter)?;
        self.spans.iter().map(|span| self.text(record, *span).map(str::to_owned)).collect()
    }
}

fn check_carriage_return(unquoted: &[u8]) -> Result<(), RowError> {
    if memchr(b'\r', unquoted).is_some() {
        return Err(RowError::record("unquoted carriage return found in data"));
    }
    Ok(())
}

/// A record without LF or CRLF at its end.
pub(crate) fn without_line_end(record: &[u8]) -> &[u8] {
    let record = record.strip_suffix(b"\n").unwrap_or(record);
    record.strip_suffix(b"\r").unwrap_or(record)
}

/// Reads CSV records.
pub(crate) struct CsvDecoder {
    options: CsvOptions,
    map: FieldMap,
    splitter: Splitter,
    column_names: Vec<String>,
}

impl CsvDecoder {
    pub(crate) fn new(options: CsvOptions, map: FieldMap, columns: &[ConnectorColumn]) -> CsvDecoder {
        let column_names = columns.iter().map(|column| column.name.clone()).collect();
        CsvDecoder { options, map, splitter: Splitter::default(), column_names }
    }

    /// Appends the row of a record.
    pub(crate) fn decode(&mut self, record: &[u8], columns: &mut Columns) -> Result<bool, RowError> {
        let record = without_line_end(record);
        self.splitter.split(record, self.options.delimiter)?;
        let found = self.splitter.spans.len();
        if found < self.map.width {
            let missing = self.map.fields.iter().position(|field| *field >= found);
            return Err(RowError {
                column: missing.and_then(|index| self.column_names.get(index).cloned()),
                ..RowError::record(format!("missing data: the row has {found} fields instead of {}", self.map.width))
            });
        }
        if found > self.map.width {
            return Err(RowError::record(format!(
                "extra data after last expected column: the row has {found} fields instead of {}",
                self.map.width
            )));
        }
        let (splitter, map, null) = (&self.splitter, &self.map, self.options.null.as_str());
        columns.append_row(|index, column| {
            let span = map.fields.get(index).and_then(|field| splitter.spans.get(*field));
            let Some(span) = span else {
                return column.append_null();
            };
            let text = splitter
                .text(record, *span)
                .map_err(|error| super::values::ValueError::new(error.code, error.reason))?;
            if !span.quoted && text == null { column.append_null() } else { column.append_text(text) }
        })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(record: &str) -> Vec<String> {
        Splitter::default().header(record.as_bytes(), b',').expect("a record")
    }

    #[test]
    fn quotes_as_postgresql_reads_them() {
        assert_eq!(fields("1,\"A, Jr.\",\"l1\nl2\",100.5\n"), ["1", "A, Jr.", "l1\nl2", "100.5"]);
        assert_eq!(fields("2,\"say \"\"hi\"\"\",,2500\r\n"), ["2", "say \"hi\"", "", "2500"]);
        assert_eq!(fields("ab\"c,d\"e,\"\""), ["abc,de", ""]);
        assert_eq!(fields("a,"), ["a", ""]);
        assert_eq!(fields("\"a\","), ["a", ""]);
        assert_eq!(fields(""), [""]);
    }

    #[test]
    fn records_end_outside_of_quotes() {
        assert_eq!(record_end(b"a,\"x\ny\",b\nnext"), Some(10));
        assert_eq!(record_end(b"a,\"x\"\"\n\"\nnext"), Some(9));
        assert_eq!(record_end(b"a,b"), None);
        assert_eq!(record_end(b"a,\"b\n"), None);
    }

    #[test]
    fn broken_records() {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.header(b"a,\"b", b',').expect_err("open quote").reason, "unterminated CSV quoted field");
        assert_eq!(
            splitter.header(b"a\rb,c", b',').expect_err("lone CR").reason,
            "unquoted carriage return found in data"
        );
    }
}
