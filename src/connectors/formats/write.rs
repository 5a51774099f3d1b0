//! Rows as lines of JSON and CSV: what [`super::json`] and [`super::csv`] read back as it was.

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;

use super::csv::CsvOptions;
use crate::types::Result;
use crate::types::text::{Column, JsonObjects};

/// Prints rows as lines.
pub(crate) enum LineFormat {
    /// One object a line.
    Json(JsonObjects),
    /// PostgreSQL's CSV.
    Csv(CsvOptions),
}

impl LineFormat {
    /// What stands before the first row.
    pub(crate) fn header(&self, schema: &Schema, out: &mut Vec<u8>) {
        if let LineFormat::Csv(options) = self
            && options.header
        {
            for (index, field) in schema.fields().iter().enumerate() {
                if index > 0 {
                    out.push(options.delimiter);
                }
                let start = out.len();
                out.extend_from_slice(field.name().as_bytes());
                quote(options, start, out);
            }
            out.push(b'\n');
        }
    }

    /// Appends the rows of a batch, each as often as `times` says.
    ///
    /// # Errors
    /// 0A000 for a type that has no text form.
    pub(crate) fn print(&self, batch: &RecordBatch, times: impl Fn(usize) -> u64, out: &mut Vec<u8>) -> Result<()> {
        let columns = JsonObjects::columns(batch)?;
        for row in 0..batch.num_rows() {
            for _ in 0..times(row) {
                match self {
                    LineFormat::Json(objects) => objects.print(&columns, row, out),
                    LineFormat::Csv(options) => print_csv(options, &columns, row, out),
                }
                out.push(b'\n');
            }
        }
        Ok(())
    }
}

fn print_csv(options: &CsvOptions, columns: &[Column], row: usize, out: &mut Vec<u8>) {
    for (index, column) in columns.iter().enumerate() {
        if index > 0 {
            out.push(options.delimiter);
        }
        if column.is_null(row) {
            out.extend_from_slice(options.null.as_bytes());
        } else {
            let start = out.len();
            column.write_text(row, out);
            quote(options, start, out);
        }
    }
}

/// Quotes the field from `start` on when it would be read as something else without.
fn quote(options: &CsvOptions, start: usize, out: &mut Vec<u8>) {
    let field = &out[start..];
    let plain = field != options.null.as_bytes()
        && !field.iter().any(|byte| *byte == options.delimiter || matches!(byte, b'"' | b'\n' | b'\r'));
    if plain {
        return;
    }
    let field = out.split_off(start);
    out.push(b'"');
    for byte in field {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    #[test]
    fn csv_is_quoted_where_it_must_be() {
        let texts: ArrayRef =
            Arc::new(StringArray::from(vec![Some("a"), Some(""), None, Some("x,y"), Some("say \"hi\"\n")]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-3), Some(4), Some(5)]));
        let batch = RecordBatch::try_from_iter([("t", texts), ("a,b", numbers)]).expect("a batch");
        let format = LineFormat::Csv(CsvOptions { header: true, delimiter: b',', null: String::new() });
        let mut out = Vec::new();
        format.header(&batch.schema(), &mut out);
        format.print(&batch, |row| if row == 0 { 2 } else { 1 }, &mut out).expect("printed");
        assert_eq!(
            String::from_utf8(out).expect("text"),
            "t,\"a,b\"\na,1\na,1\n\"\",\n,-3\n\"x,y\",4\n\"say \"\"hi\"\"\n\",5\n"
        );
    }
}
