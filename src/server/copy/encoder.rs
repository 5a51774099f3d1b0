//! Rows to bytes.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;

use super::{binary, csv, text};
use crate::engine::{CopyFormat, CopyOptions};
use crate::types::text::Column;
use crate::types::{Result, TimeZone};

/// Writes rows.
pub(crate) struct Encoder {
    options: CopyOptions,
    /// Columns that are quoted always.
    forced: Vec<bool>,
    zone: TimeZone,
    scratch: Vec<u8>,
}

impl Encoder {
    /// Times are shown in a zone.
    pub(crate) fn new(options: &CopyOptions, schema: &Schema, zone: TimeZone) -> Encoder {
        let forced = schema.fields().iter().map(|field| match &options.force_quote {
            None => false,
            Some(names) => names.is_empty() || names.contains(field.name()),
        });
        Encoder { forced: forced.collect(), zone, options: options.clone(), scratch: Vec::new() }
    }

    /// The options of the COPY.
    pub(crate) fn options(&self) -> &CopyOptions {
        &self.options
    }

    /// What comes before the rows.
    pub(crate) fn start(&mut self, schema: &Schema, out: &mut Vec<u8>) {
        if self.options.format == CopyFormat::Binary {
            out.extend_from_slice(binary::SIGNATURE);
            out.extend_from_slice(&[0; 8]);
        } else if self.options.header {
            let count = schema.fields().len();
            for (index, field) in schema.fields().iter().enumerate() {
                if index > 0 {
                    out.push(self.options.delimiter());
                }
                self.write_value(field.name().as_bytes(), false, count == 1, out);
            }
            out.push(b'\n');
        }
    }

    /// One row of a batch.
    ///
    /// # Errors
    /// For a value that cannot be written in binary form.
    pub(crate) fn row(&mut self, columns: &[Column], row: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.options.format == CopyFormat::Binary {
            // A result has fewer columns than `i16::MAX`.
            out.extend_from_slice(&i16::try_from(columns.len()).unwrap_or(i16::MAX).to_be_bytes());
            for column in columns {
                column.write_sized(row, out)?;
            }
            return Ok(());
        }
        for (index, column) in columns.iter().enumerate() {
            if index > 0 {
                out.push(self.options.delimiter());
            }
            if column.is_null(row) {
                out.extend_from_slice(self.options.null().as_bytes());
                continue;
            }
            let mut value = std::mem::take(&mut self.scratch);
            value.clear();
            column.write_text(row, &mut value);
            let force = self.forced.get(index).copied().unwrap_or(false);
            self.write_value(&value, force, columns.len() == 1, out);
            self.scratch = value;
        }
        out.push(b'\n');
        Ok(())
    }

    /// What comes behind the rows.
    pub(crate) fn end(&self, out: &mut Vec<u8>) {
        if self.options.format == CopyFormat::Binary {
            out.extend_from_slice(&binary::TRAILER);
        }
    }

    /// Columns ready to be written.
    ///
    /// # Errors
    /// 0A000 for a type without text form.
    pub(crate) fn columns(&self, batch: &RecordBatch) -> Result<Vec<Column>> {
        batch.columns().iter().map(|column| Column::in_zone(column, &self.zone)).collect()
    }

    fn write_value(&self, value: &[u8], force: bool, alone: bool, out: &mut Vec<u8>) {
        match self.options.format {
            CopyFormat::Csv => csv::write(value, &self.options, force, alone, out),
            _ => text::write(value, self.options.delimiter(), out),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, StringArray};

    use super::*;

    fn encoded(options: &CopyOptions) -> String {
        let column: ArrayRef = Arc::new(StringArray::from(vec![Some("a\tb\\"), None, Some(""), Some("x,\"y\"")]));
        let batch = RecordBatch::try_from_iter([("a", Arc::clone(&column)), ("b", column)]).expect("a batch");
        let mut encoder = Encoder::new(options, &batch.schema(), TimeZone::utc());
        let mut out = Vec::new();
        encoder.start(&batch.schema(), &mut out);
        let columns = encoder.columns(&batch).expect("text");
        for row in 0..batch.num_rows() {
            encoder.row(&columns, row, &mut out).expect("fits");
        }
        encoder.end(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn rows_as_postgresql_writes_them() {
        let text = CopyOptions { header: true, ..CopyOptions::default() };
        assert_eq!(encoded(&text), "a\tb\na\\tb\\\\\ta\\tb\\\\\n\\N\t\\N\n\t\nx,\"y\"\tx,\"y\"\n");
        let csv = CopyOptions { format: CopyFormat::Csv, ..CopyOptions::default() };
        assert_eq!(encoded(&csv), "a\tb\\,a\tb\\\n,\n\"\",\"\"\n\"x,\"\"y\"\"\",\"x,\"\"y\"\"\"\n");
        let forced = CopyOptions { force_quote: Some(vec!["b".into()]), null: Some("-".into()), ..csv };
        assert!(encoded(&forced).starts_with("a\tb\\,\"a\tb\\\"\n-,-\n,\"\"\n"));
    }
}
