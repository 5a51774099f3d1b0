//! Bytes from a client, cut anywhere, to rows of texts.

use arrow::array::{ArrayBuilder as _, StringArray, StringBuilder};
use pgwire::api::Type;

use super::{binary, csv, text};
use crate::engine::{CopyFormat, CopyOptions};
use crate::types::{CHUNK_ROWS_MAX, Error, Result, SqlState};

/// Reads rows.
pub(crate) struct Decoder {
    pub(super) options: CopyOptions,
    pub(super) columns: Vec<ColumnIn>,
    table: String,
    /// Bytes that make no whole row yet.
    buffer: Vec<u8>,
    form: Form,
    /// The line that is read next, from 1.
    line: u64,
    ended: bool,
    builders: Vec<StringBuilder>,
    lines: Vec<u64>,
    row_bytes_max: usize,
}

/// A column that is read.
pub(super) struct ColumnIn {
    pub(super) name: String,
    pub(super) kind: Type,
    pub(super) force_null: bool,
    pub(super) force_not_null: bool,
}

enum Form {
    Text(text::Lines),
    Csv(csv::Records),
    Binary(binary::Tuples),
}

/// One value of a row.
pub(super) type Cell = Option<String>;

/// What is at the front of the bytes.
pub(super) enum Next {
    /// A row, of so many bytes and lines.
    Row { bytes: usize, lines: u64 },
    /// The mark of the end.
    End,
    /// Not enough bytes.
    More,
}

/// Rows, and the line that each came from.
pub(crate) type Rows = (Vec<StringArray>, Vec<u64>);

impl Decoder {
    /// For columns of a table by name and type.
    pub(crate) fn new<'a>(
        options: &CopyOptions,
        table: &str,
        columns: impl Iterator<Item = (&'a str, Type)>,
        row_bytes_max: usize,
    ) -> Decoder {
        let columns: Vec<ColumnIn> = columns
            .map(|(name, kind)| ColumnIn {
                name: name.to_owned(),
                kind,
                force_null: options.force_null.iter().any(|forced| forced == name),
                force_not_null: options.force_not_null.iter().any(|forced| forced == name),
            })
            .collect();
        let form = match options.format {
            CopyFormat::Text => Form::Text(text::Lines::default()),
            CopyFormat::Csv => Form::Csv(csv::Records::default()),
            CopyFormat::Binary => Form::Binary(binary::Tuples::default()),
        };
        Decoder {
            options: options.clone(),
            builders: columns.iter().map(|_| StringBuilder::new()).collect(),
            columns,
            table: table.to_owned(),
            buffer: Vec::new(),
            form,
            line: 1,
            ended: false,
            lines: Vec::new(),
            row_bytes_max,
        }
    }

    /// Takes bytes; false when a row is too long.
    ///
    /// # Errors
    /// 22P04 and others for rows that cannot be read, with their line in the detail.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<bool> {
        // What follows the mark of the end is passed over, as PostgreSQL does.
        if self.ended {
            return Ok(true);
        }
        self.buffer.extend_from_slice(bytes);
        self.read(false)?;
        Ok(self.buffer.len() <= self.row_bytes_max)
    }

    /// All bytes have come.
    ///
    /// # Errors
    /// As [`Self::feed`].
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.read(true)
    }

    /// Rows that have been read, when there are many, or all of them.
    pub(crate) fn take(&mut self, all: bool) -> Option<Rows> {
        let least = if all { 1 } else { CHUNK_ROWS_MAX };
        if self.lines.len() < least {
            return None;
        }
        let columns = self.builders.iter_mut().map(StringBuilder::finish).collect();
        Some((columns, std::mem::take(&mut self.lines)))
    }

    fn read(&mut self, last: bool) -> Result<()> {
        let mut from = 0;
        let mut cells = Vec::new();
        while !self.ended {
            let rest = self.buffer.get(from..).unwrap_or_default();
            let next = match &mut self.form {
                Form::Text(lines) => lines.next(rest, last),
                Form::Csv(records) => records.next(rest, last, &self.options),
                Form::Binary(tuples) => tuples.next(rest, last),
            };
            let next = next.map_err(|error| self.located(error))?;
            match next {
                Next::More => break,
                Next::End => self.ended = true,
                Next::Row { bytes, lines } => {
                    let row = rest.get(..bytes).unwrap_or_default();
                    cells.clear();
                    let header = self.options.header && self.line == 1 && !matches!(self.form, Form::Binary(_));
                    let parsed = match &self.form {
                        Form::Text(_) => text::cells(row, &self.options, &mut cells),
                        Form::Csv(_) => csv::cells(row, &self.options, &self.columns, header, &mut cells),
                        Form::Binary(tuples) => tuples.cells(row, &self.columns, &mut cells),
                    };
                    let taken =
                        parsed.and_then(|()| if header { self.check_header(&cells) } else { self.check(&cells) });
                    taken.map_err(|error| self.located(error))?;
                    // The signature of the binary form is a row without cells.
                    if !(header || cells.is_empty() && matches!(self.form, Form::Binary(_))) {
                        for (builder, cell) in self.builders.iter_mut().zip(&cells) {
                            builder.append_option(cell.as_deref());
                        }
                        self.lines.push(self.line);
                    }
                    self.line += lines;
                    from += bytes;
                }
            }
        }
        if self.ended {
            self.buffer.clear();
        } else {
            self.buffer.drain(..from);
        }
        debug_assert!(self.builders.iter().all(|builder| builder.len() == self.lines.len()));
        Ok(())
    }

    fn check(&self, cells: &[Cell]) -> Result<()> {
        if cells.is_empty() && matches!(self.form, Form::Binary(_)) {
            return Ok(());
        }
        if let Some(missing) = self.columns.get(cells.len()) {
            return Err(Error::new(SqlState::BadCopyFormat, format!("missing data for column \"{}\"", missing.name))
                .hint(format!("Each row has {} columns; COPY t (columns) names fewer.", self.columns.len())));
        }
        if cells.len() > self.columns.len() {
            return Err(Error::new(SqlState::BadCopyFormat, "extra data after last expected column")
                .hint(format!("Each row has {} columns. Is the delimiter right?", self.columns.len())));
        }
        Ok(())
    }

    fn check_header(&self, cells: &[Cell]) -> Result<()> {
        if !self.options.header_match {
            return Ok(());
        }
        let wrong = |message: String| {
            Err(Error::new(SqlState::BadCopyFormat, message)
                .hint("Name the columns in the order of the file: COPY t (columns) FROM ….".to_owned()))
        };
        if cells.len() != self.columns.len() {
            return wrong(format!(
                "wrong number of fields in header line: got {}, expected {}",
                cells.len(),
                self.columns.len()
            ));
        }
        for (index, (cell, column)) in cells.iter().zip(&self.columns).enumerate() {
            let found = cell.as_deref().unwrap_or_default();
            if found != column.name {
                return wrong(format!(
                    "column name mismatch in header line field {}: got \"{found}\", expected \"{}\"",
                    index + 1,
                    column.name
                ));
            }
        }
        Ok(())
    }

    fn located(&self, error: Error) -> Error {
        if error.detail_text().is_some() {
            return error;
        }
        error.detail(format!("COPY {}, line {}.", self.table, self.line))
    }
}

/// A field's bytes as text.
///
/// # Errors
/// 22021.
pub(super) fn text_of(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or_else(|| {
        Error::new(SqlState::CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\"")
            .hint("Text is UTF-8 without zero bytes.")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All rows, fed in pieces of some size: `|` between cells, `~` for NULL.
    fn decoded(options: &CopyOptions, kinds: &[Type], input: &[u8], piece: usize) -> Result<Vec<String>> {
        let names = ["a", "b", "c"];
        let mut decoder = Decoder::new(options, "t", names.into_iter().zip(kinds.iter().cloned()), 1 << 20);
        for bytes in input.chunks(piece) {
            decoder.feed(bytes)?;
        }
        decoder.finish()?;
        let Some((columns, lines)) = decoder.take(true) else { return Ok(Vec::new()) };
        Ok((0..lines.len())
            .map(|row| {
                let cells: Vec<&str> =
                    columns.iter().map(|column| if column.is_null(row) { "~" } else { column.value(row) }).collect();
                format!("{}: {}", lines[row], cells.join("|"))
            })
            .collect())
    }

    use arrow::array::Array as _;

    fn check(options: &CopyOptions, kinds: &[Type], input: &[u8], wanted: &[&str]) {
        for piece in [1, 3, input.len().max(1)] {
            assert_eq!(decoded(options, kinds, input, piece).expect("rows"), wanted, "in pieces of {piece}");
        }
    }

    #[test]
    fn text_rows() {
        let two = [Type::TEXT, Type::TEXT];
        let options = CopyOptions::default();
        check(&options, &two, b"1\t\\N\n\\\\N\ta\\tb\\x41\\101\r\n\tx", &["1: 1|~", "2: \\N|a\tbAA", "3: |x"]);
        check(&options, &two, b"a\\\nb\tc\n\\.\nrubbish", &["1: a\nb|c"]);
        let error = decoded(&options, &two, b"1\t2\n3\n", 100).expect_err("a column is missing");
        assert_eq!((error.code(), error.detail_text()), (SqlState::BadCopyFormat, Some("COPY t, line 2.")));
        assert!(decoded(&options, &two, b"1\t2\t3\n", 2).is_err());
        assert!(decoded(&options, &two, b"\xff\t1\n", 2).is_err());
    }

    #[test]
    fn csv_rows() {
        let two = [Type::TEXT, Type::TEXT];
        let mut options = CopyOptions { format: CopyFormat::Csv, header: true, ..CopyOptions::default() };
        let input = b"a,b\n1,\n\"x \"\"y\"\"\n,\",\"\"\r\nq\"u,v\"z,~\n";
        check(&options, &two, input, &["2: 1|~", "3: x \"y\"\n,|", "5: qu,vz|~"]);
        options.header_match = true;
        assert!(decoded(&options, &two, b"a,x\n", 2).is_err());
        options.header = false;
        options.null = Some("nil".into());
        options.force_null = vec!["a".into()];
        check(&options, &two, b"\"nil\",\"nil\"\nnil,", &["1: ~|nil", "2: ~|"]);
        let error = decoded(&options, &two, b"1,\"2\n", 100).expect_err("open quote");
        assert_eq!(error.message(), "unterminated CSV quoted field");
    }

    #[test]
    fn binary_rows() {
        let kinds = [Type::INT4, Type::TEXT];
        let options = CopyOptions { format: CopyFormat::Binary, ..CopyOptions::default() };
        let mut input = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0".to_vec();
        input.extend_from_slice(b"\0\x02\0\0\0\x04\0\0\0\x07\0\0\0\x01x\0\x02\xff\xff\xff\xff\0\0\0\0\xff\xff");
        check(&options, &kinds, &input, &["2: 7|x", "3: ~|"]);
        assert!(decoded(&options, &kinds, b"PGCOPX\n\xff\r\n\0\0\0\0\0\0\0\0\0", 5).is_err());
        assert!(decoded(&options, &kinds, input.get(..30).expect("long"), 100).is_err(), "cut off");
    }
}
