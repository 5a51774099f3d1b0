//! PostgreSQL's binary form: a signature, tuples of values behind their lengths, a mark of the end.

use super::decoder::{Cell, ColumnIn, Next};
use crate::server::from_binary::text_of_binary;
use crate::types::{Error, Result, SqlState};

/// What the form begins with.
pub(super) const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";
/// What it ends with.
pub(super) const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();

/// Finds tuples.
#[derive(Default)]
pub(super) struct Tuples {
    begun: bool,
}

fn bad(message: &str) -> Error {
    Error::new(SqlState::BadCopyFormat, message).hint("Write the file with COPY … TO STDOUT (FORMAT binary).")
}

fn number(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at + 4)?.try_into().ok().map(i32::from_be_bytes)
}

impl Tuples {
    pub(super) fn next(&mut self, bytes: &[u8], last: bool) -> Result<Next> {
        let next = if self.begun { tuple(bytes)? } else { self.header(bytes)? };
        if matches!(next, Next::More) && last {
            return Err(bad("unexpected EOF in COPY data"));
        }
        Ok(next)
    }

    /// The signature counts as the first row, without cells.
    fn header(&mut self, bytes: &[u8]) -> Result<Next> {
        let seen = bytes.len().min(SIGNATURE.len());
        if bytes.get(..seen) != SIGNATURE.get(..seen) {
            return Err(bad("COPY file signature not recognized"));
        }
        let at = SIGNATURE.len();
        let (Some(flags), Some(extension)) = (number(bytes, at), number(bytes, at + 4)) else { return Ok(Next::More) };
        // The upper half are flags that a reader has to know.
        if flags >> 16 != 0 {
            return Err(bad("unrecognized critical flags in COPY file header"));
        }
        let Ok(extension) = usize::try_from(extension) else { return Err(bad("invalid COPY file header")) };
        if bytes.len() < at + 8 + extension {
            return Ok(Next::More);
        }
        self.begun = true;
        Ok(Next::Row { bytes: at + 8 + extension, lines: 1 })
    }

    /// The cells of a tuple.
    pub(super) fn cells(&self, tuple: &[u8], columns: &[ColumnIn], cells: &mut Vec<Cell>) -> Result<()> {
        if tuple.starts_with(SIGNATURE) {
            return Ok(());
        }
        let count = tuple.get(..2).and_then(|bytes| bytes.try_into().ok()).map_or(0, i16::from_be_bytes);
        if usize::try_from(count) != Ok(columns.len()) {
            return Err(bad(&format!("row field count is {count}, expected {}", columns.len())));
        }
        let mut at = 2;
        for column in columns {
            let Some(length) = number(tuple, at) else { return Err(bad("unexpected EOF in COPY data")) };
            at += 4;
            let Ok(length) = usize::try_from(length) else {
                cells.push(None);
                continue;
            };
            let value = tuple.get(at..at + length).unwrap_or_default();
            cells.push(Some(text_of_binary(&column.kind, value)?));
            at += length;
        }
        Ok(())
    }
}

fn tuple(bytes: &[u8]) -> Result<Next> {
    let Some(count) = bytes.get(..2).and_then(|bytes| bytes.try_into().ok()).map(i16::from_be_bytes) else {
        return Ok(Next::More);
    };
    if count == -1 {
        return Ok(Next::End);
    }
    let mut at = 2;
    for _ in 0..count {
        let Some(length) = number(bytes, at) else { return Ok(Next::More) };
        at += 4;
        match usize::try_from(length) {
            Ok(length) => at += length,
            Err(_) if length == -1 => {}
            Err(_) => return Err(bad("invalid field size")),
        }
        if at > bytes.len() {
            return Ok(Next::More);
        }
    }
    Ok(Next::Row { bytes: at, lines: 1 })
}
