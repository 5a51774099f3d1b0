//! Bytes to records.

use std::ops::Range;

use super::input::{Input, shorter};
use crate::connectors::formats::ROW_BYTES_MAX;
use crate::connectors::formats::csv::record_end;
use crate::exec::source::RAW_BYTES_MAX;

const READ_BYTES: usize = 1 << 20;

/// What comes next.
pub(crate) enum Next {
    /// A record, line end included: its place in the buffer.
    Record(Range<usize>),
    /// A record that is too long: its first bytes.
    TooLong(Vec<u8>),
    /// No whole record is there.
    End,
}

/// Cuts the bytes of a file into records.
pub(crate) struct Records {
    input: Input,
    /// Read bytes; those before `start` are used up.
    buffer: Vec<u8>,
    start: usize,
    /// Offset in the file of `buffer[start]`.
    offset: u64,
    until: Option<u64>,
    /// Line ends inside quotes do not end a record.
    quoted: bool,
    /// What has no line end at the end of the file is a record.
    open_end: bool,
    /// The file has no more now, or `until` is reached.
    at_end: bool,
    /// Inside a record that is too long: its first bytes and how long it is so far.
    skipping: Option<(Vec<u8>, u64)>,
}

impl Records {
    /// Records from `offset` on, where `input` stands; with `until` the file is taken to end there.
    pub(crate) fn new(input: Input, offset: u64, until: Option<u64>, quoted: bool, open_end: bool) -> Records {
        Records {
            input,
            buffer: Vec::new(),
            start: 0,
            offset,
            until,
            quoted,
            open_end: open_end || until.is_some(),
            at_end: false,
            skipping: None,
        }
    }

    /// Offset in the file behind the last record given.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset in the file up to which bytes were read.
    pub(crate) fn read_up_to(&self) -> u64 {
        let skipped = self.skipping.as_ref().map_or(0, |(_, length)| *length);
        self.offset + skipped + self.buffer.len().saturating_sub(self.start) as u64
    }

    /// Where the bytes come from.
    pub(crate) fn input(&self) -> &Input {
        &self.input
    }

    /// The file may have grown.
    pub(crate) fn look_again(&mut self) {
        self.at_end = self.until.is_some_and(|until| self.read_up_to() >= until);
    }

    /// From now on what has no line end at the end of the file is a record.
    pub(crate) fn take_open_end(&mut self) {
        self.open_end = true;
    }

    /// The bytes of a record that was given last.
    pub(crate) fn bytes(&self, record: &Range<usize>) -> &[u8] {
        self.buffer.get(record.clone()).unwrap_or_default()
    }

    /// Takes back all but the first `length` bytes of the record that was given last.
    pub(crate) fn take_back(&mut self, record: &Range<usize>, length: usize) {
        self.offset -= (record.len() - length) as u64;
        self.start = record.start + length;
    }

    /// Skips a UTF-8 byte order mark, which may only stand at the start of the file.
    pub(crate) fn skip_byte_order_mark(&mut self) -> std::io::Result<()> {
        while self.buffer.len() < 3 && !self.at_end {
            self.fill()?;
        }
        if self.buffer.starts_with(b"\xef\xbb\xbf") {
            self.start = 3;
            self.offset += 3;
        }
        Ok(())
    }

    /// The next record.
    pub(crate) fn next(&mut self) -> std::io::Result<Next> {
        if self.skipping.is_some() {
            return self.skip();
        }
        let mut scanned = 0;
        loop {
            let data = self.buffer.get(self.start..).unwrap_or_default();
            let end = if self.quoted {
                record_end(data)
            } else {
                memchr::memchr(b'\n', data.get(scanned..).unwrap_or_default()).map(|at| scanned + at + 1)
            };
            let length = match end {
                Some(length) => length,
                None if data.len() > ROW_BYTES_MAX => data.len(),
                None if self.at_end && !self.open_end => return Ok(Next::End),
                None if self.at_end => data.len(),
                None => {
                    scanned = data.len();
                    self.fill()?;
                    continue;
                }
            };
            if length > ROW_BYTES_MAX {
                // A line is what is left out: quotes that are never closed may be the very fault.
                self.skipping = Some((Vec::new(), 0));
                return self.skip();
            }
            if length == 0 {
                return Ok(Next::End);
            }
            let range = self.start..self.start + length;
            self.start = range.end;
            self.offset += length as u64;
            return Ok(Next::Record(range));
        }
    }

    /// Leaves out bytes up to the end of the line.
    fn skip(&mut self) -> std::io::Result<Next> {
        loop {
            let data = self.buffer.get(self.start..).unwrap_or_default();
            let line = memchr::memchr(b'\n', data).map(|at| at + 1);
            let length = line.unwrap_or(data.len());
            if let Some((raw, skipped)) = &mut self.skipping {
                let wanted = RAW_BYTES_MAX.saturating_sub(raw.len()).min(length);
                raw.extend_from_slice(data.get(..wanted).unwrap_or_default());
                *skipped += length as u64;
            }
            self.start += length;
            if line.is_some() || (self.at_end && self.open_end) {
                let (raw, skipped) = self.skipping.take().unwrap_or_default();
                self.offset += skipped;
                return Ok(Next::TooLong(raw));
            }
            if self.at_end {
                return Ok(Next::End);
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> std::io::Result<()> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let have = self.read_up_to();
        let want = match self.until {
            Some(until) => (READ_BYTES as u64).min(until.saturating_sub(have)),
            None => READ_BYTES as u64,
        };
        self.buffer.reserve(READ_BYTES);
        let got = self.input.read(want, &mut self.buffer)? as u64;
        // Short of what was wanted: the end of the file.
        self.at_end = got < READ_BYTES as u64;
        match self.until {
            Some(until) if self.at_end && have + got < until => Err(shorter(have + got, until)),
            _ => Ok(()),
        }
    }
}
