//! The CSV form, by PostgreSQL's rules.

use super::decoder::{Cell, ColumnIn, Next, text_of};
use crate::engine::CopyOptions;
use crate::types::{Error, Result, SqlState};

/// Finds records; remembers how far one that is not whole was looked at.
#[derive(Default)]
pub(super) struct Records {
    looked: usize,
    quoted: bool,
    lines: u64,
}

impl Records {
    pub(super) fn next(&mut self, bytes: &[u8], last: bool, options: &CopyOptions) -> Result<Next> {
        let (quote, escape) = (options.quote(), options.escape());
        let mut at = self.looked;
        while let Some(byte) = bytes.get(at).copied() {
            if self.quoted && byte == escape && escape != quote {
                if at + 1 == bytes.len() && !last {
                    break;
                }
                at += if bytes.get(at + 1).is_some_and(|next| *next == quote || *next == escape) { 2 } else { 1 };
                continue;
            }
            at += 1;
            if byte == quote {
                self.quoted = !self.quoted;
            } else if byte == b'\n' {
                self.lines += 1;
                if !self.quoted {
                    return Ok(self.record(bytes, at));
                }
            }
        }
        self.looked = at;
        if !last || bytes.is_empty() {
            return Ok(Next::More);
        }
        if self.quoted {
            return Err(Error::new(SqlState::BadCopyFormat, "unterminated CSV quoted field")
                .hint("A quote inside of a quoted field is written twice."));
        }
        self.lines += 1;
        Ok(self.record(bytes, bytes.len()))
    }

    fn record(&mut self, bytes: &[u8], end: usize) -> Next {
        let lines = std::mem::take(&mut self.lines);
        self.looked = 0;
        let record = bytes.get(..end).unwrap_or_default();
        if matches!(record, b"\\.\n" | b"\\.\r\n" | b"\\.") { Next::End } else { Next::Row { bytes: end, lines } }
    }
}

/// The cells of a record, its end included.
pub(super) fn cells(
    record: &[u8],
    options: &CopyOptions,
    columns: &[ColumnIn],
    header: bool,
    cells: &mut Vec<Cell>,
) -> Result<()> {
    let (quote, escape, delimiter) = (options.quote(), options.escape(), options.delimiter());
    let record = record.strip_suffix(b"\n").unwrap_or(record);
    let record = record.strip_suffix(b"\r").unwrap_or(record);
    let null = options.null().as_bytes();
    let mut at = 0;
    loop {
        let mut value = Vec::new();
        let (mut inside, mut saw_quote) = (false, false);
        let more = loop {
            let Some(byte) = record.get(at).copied() else { break false };
            at += 1;
            if inside {
                let next = record.get(at).copied();
                if byte == escape && next.is_some_and(|next| next == quote || next == escape) {
                    value.extend(next);
                    at += 1;
                } else if byte == quote {
                    inside = false;
                } else {
                    value.push(byte);
                }
            } else if byte == quote {
                (inside, saw_quote) = (true, true);
            } else if byte == delimiter {
                break true;
            } else {
                value.push(byte);
            }
        };
        let column = columns.get(cells.len());
        let is_null = !header
            && value == null
            && match column {
                Some(column) if saw_quote => column.force_null,
                Some(column) => !column.force_not_null,
                None => !saw_quote,
            };
        cells.push(if is_null { None } else { Some(text_of(value)?) });
        if !more {
            return Ok(());
        }
    }
}

/// Writes a value.
pub(super) fn write(value: &[u8], options: &CopyOptions, force: bool, alone: bool, out: &mut Vec<u8>) {
    let (quote, escape, delimiter) = (options.quote(), options.escape(), options.delimiter());
    let needed = force
        || value == options.null().as_bytes()
        || alone && value == b"\\."
        || value.iter().any(|byte| *byte == delimiter || *byte == quote || matches!(byte, b'\n' | b'\r'));
    if !needed {
        out.extend_from_slice(value);
        return;
    }
    out.push(quote);
    for byte in value {
        if *byte == quote || *byte == escape {
            out.push(escape);
        }
        out.push(*byte);
    }
    out.push(quote);
}
