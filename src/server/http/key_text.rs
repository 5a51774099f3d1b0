//! Keys of rows in the text form of the queryable-state routes.
//!
//! A key is the JSON literals of its columns with the byte 0x1F between them; NULL is nothing. A text may also be written as it
//! is, when it does not begin with a quote.

use arrow::array::{RecordBatch, StringArray};

use crate::types::Result;
use crate::types::text::Column;

const SEPARATOR: char = '\u{1f}';

/// The key of each row.
pub(super) fn key_texts(rows: &RecordBatch, key: &[usize]) -> Result<Vec<String>> {
    let columns = key.iter().filter_map(|at| rows.columns().get(*at)).map(Column::new).collect::<Result<Vec<_>>>()?;
    let mut texts = Vec::with_capacity(rows.num_rows());
    for row in 0..rows.num_rows() {
        let mut text = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            if at > 0 {
                text.push(SEPARATOR as u8);
            }
            if !column.is_null(row) {
                column.write_json(row, &mut text, false);
            }
        }
        // JSON of values is UTF-8.
        texts.push(String::from_utf8_lossy(&text).into_owned());
    }
    Ok(texts)
}

/// The same as a column.
pub(super) fn key_column(rows: &RecordBatch, key: &[usize]) -> Result<StringArray> {
    Ok(StringArray::from(key_texts(rows, key)?))
}

/// The values of a key's columns as texts; `None` stands for NULL.
pub(super) fn key_values(text: &str) -> Vec<Option<String>> {
    text.split(SEPARATOR)
        .map(|part| match part {
            "" => None,
            quoted if quoted.starts_with('"') => {
                Some(serde_json::from_str(quoted).unwrap_or_else(|_| quoted.to_owned()))
            }
            plain => Some(plain.to_owned()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    #[test]
    fn keys_are_their_literals_and_come_back() {
        let schema = Schema::new(vec![
            Field::new("a", DataType::Utf8, true),
            Field::new("b", DataType::Int64, true),
            Field::new("c", DataType::Float64, true),
            Field::new("d", DataType::Boolean, true),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from(vec![Some("x\"y"), None])),
            Arc::new(Int64Array::from(vec![Some(9_007_199_254_740_993), Some(-1)])),
            Arc::new(Float64Array::from(vec![5.0, 0.1])),
            Arc::new(BooleanArray::from(vec![true, false])),
        ];
        let rows = RecordBatch::try_new(Arc::new(schema), columns).expect("fits");
        let texts = key_texts(&rows, &[0, 1, 2, 3]).expect("printable");
        assert_eq!(texts, ["\"x\\\"y\"\u{1f}9007199254740993\u{1f}5\u{1f}true", "\u{1f}-1\u{1f}0.1\u{1f}false"]);
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(key_values(&texts[0]), [text("x\"y"), text("9007199254740993"), text("5"), text("true")]);
        assert_eq!(key_values(&texts[1]), [None, text("-1"), text("0.1"), text("false")]);
        assert_eq!(key_values("bare words"), [text("bare words")]);
        assert_eq!(key_values("\"\""), [text("")]);
    }
}
