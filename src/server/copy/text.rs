//! The text form: tabs between columns, backslashes before what is special.

use super::decoder::{Cell, Next, text_of};
use crate::engine::CopyOptions;
use crate::types::Result;

/// Finds lines; remembers how far a line that is not whole was looked at.
#[derive(Default)]
pub(super) struct Lines {
    looked: usize,
}

impl Lines {
    pub(super) fn next(&mut self, bytes: &[u8], last: bool) -> Result<Next> {
        let mut at = self.looked;
        let mut lines = 1;
        while let Some(found) = memchr::memchr(b'\n', bytes.get(at..).unwrap_or_default()) {
            let end = at + found;
            let line = bytes.get(..end).unwrap_or_default();
            let slashes = line.iter().rev().take_while(|byte| **byte == b'\\').count();
            if slashes % 2 == 1 {
                // An escaped end of line belongs to the value.
                at = end + 1;
                lines += 1;
                continue;
            }
            self.looked = 0;
            if is_end(line) {
                return Ok(Next::End);
            }
            return Ok(Next::Row { bytes: end + 1, lines });
        }
        if last && !bytes.is_empty() {
            self.looked = 0;
            return Ok(if is_end(bytes) { Next::End } else { Next::Row { bytes: bytes.len(), lines } });
        }
        // From the start of an escaped line, so that `lines` is right next time.
        self.looked = if lines == 1 { bytes.len() } else { 0 };
        Ok(Next::More)
    }
}

fn is_end(line: &[u8]) -> bool {
    matches!(line, b"\\." | b"\\.\r")
}

/// The cells of a line, its end included.
pub(super) fn cells(line: &[u8], options: &CopyOptions, cells: &mut Vec<Cell>) -> Result<()> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let (delimiter, null) = (options.delimiter(), options.null().as_bytes());
    let mut start = 0;
    let mut at = 0;
    loop {
        match line.get(at) {
            Some(b'\\') => at += 2,
            Some(byte) if *byte != delimiter => at += 1,
            ended => {
                let end = at.min(line.len());
                let raw = line.get(start..end).unwrap_or_default();
                cells.push(if raw == null { None } else { Some(text_of(unescaped(raw))?) });
                if ended.is_none() {
                    return Ok(());
                }
                at += 1;
                start = at;
            }
        }
    }
}

fn unescaped(raw: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(raw.len());
    let mut bytes = raw.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let Some(escaped) = bytes.next() else {
            out.push(b'\\');
            break;
        };
        match escaped {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'v' => out.push(11),
            b'0'..=b'7' => {
                let mut value = u32::from(escaped - b'0');
                for _ in 0..2 {
                    let Some(digit) = bytes.next_if(|byte| matches!(byte, b'0'..=b'7')) else { break };
                    value = value * 8 + u32::from(digit - b'0');
                }
                // PostgreSQL keeps the low byte too.
                out.push((value & 0xff) as u8);
            }
            b'x' => {
                let mut value = None;
                for _ in 0..2 {
                    let Some(digit) = bytes.next_if(u8::is_ascii_hexdigit) else { break };
                    let digit = char::from(digit).to_digit(16).unwrap_or(0);
                    value = Some(value.unwrap_or(0) * 16 + digit);
                }
                out.push(value.map_or(b'x', |value: u32| (value & 0xff) as u8));
            }
            other => out.push(other),
        }
    }
    out
}

/// Writes a value.
pub(super) fn write(value: &[u8], delimiter: u8, out: &mut Vec<u8>) {
    for byte in value {
        let escaped = match byte {
            8 => b'b',
            12 => b'f',
            b'\n' => b'n',
            b'\r' => b'r',
            b'\t' => b't',
            11 => b'v',
            b'\\' => b'\\',
            byte if *byte == delimiter => delimiter,
            byte => {
                out.push(*byte);
                continue;
            }
        };
        out.push(b'\\');
        out.push(escaped);
    }
}
