//! Batches of the other server as rows of the table: its columns by name, of exactly its types.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int64Array, RecordBatch, RecordBatchOptions};
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::{DataType, Int64Type, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::there::There;
use crate::connectors::options::near_miss;
use crate::connectors::registry::ConnectorColumn;
use crate::exec::source::{BadRow, Offset};
use crate::types::{Error, Result, SqlState};

/// What is known of the columns there: names and SQL types.
pub(super) type KnownColumns = [(String, String)];

/// Where each column of the table is among those of the other server.
///
/// # Errors
/// 42703 and 42804 when one is not there, or of another type.
pub(super) fn places(
    there: &Schema,
    columns: &[ConnectorColumn],
    known: &KnownColumns,
    from: &There,
) -> Result<Vec<usize>> {
    let type_of = |name: &str, data_type: &DataType| {
        let named = known.iter().find(|(known, _)| known == name);
        named.map_or_else(|| data_type.to_string(), |(_, sql_type)| sql_type.clone())
    };
    let from = from.to_string();
    let place = |column: &ConnectorColumn| {
        let Some((place, field)) = there.column_with_name(&column.name) else {
            let names: Vec<&str> = there.fields().iter().map(|field| field.name().as_str()).collect();
            let all = there
                .fields()
                .iter()
                .map(|field| format!("{} {}", field.name(), type_of(field.name(), field.data_type())));
            let near = near_miss(&column.name, &names).map(|near| format!("Perhaps you meant \"{near}\". "));
            let all = all.collect::<Vec<_>>().join(", ");
            return Err(Error::new(SqlState::UndefinedColumn, format!("{from} has no column \"{}\"", column.name))
                .hint(format!("{}Its columns are {all}.", near.unwrap_or_default())));
        };
        if *field.data_type() != column.data_type {
            let sql_type = type_of(field.name(), field.data_type());
            return Err(Error::new(
                SqlState::DatatypeMismatch,
                format!("column \"{}\" of {from} is of type {sql_type}", column.name),
            )
            .hint(format!("Declare it so: {} {sql_type}. A view over the table can cast it.", column.name)));
        }
        Ok(place)
    };
    columns.iter().map(place).collect()
}

/// What is wanted of a table's rows.
#[derive(Clone)]
pub(super) struct Wanted {
    /// All columns of the table.
    pub(super) columns: Arc<[ConnectorColumn]>,
    /// Which of them are wanted.
    pub(super) wanted: Arc<[usize]>,
    /// Those.
    pub(super) schema: SchemaRef,
    /// Where each row starts is wanted too.
    pub(super) offsets: bool,
}

impl Wanted {
    /// How batches with these columns become rows.
    ///
    /// # Errors
    /// Those of [`places`].
    pub(super) fn rows(&self, there: &Schema, from: &There) -> Result<Rows> {
        Ok(Rows { places: places(there, &self.columns, &[], from)?, of: self.clone() })
    }
}

/// Makes rows of batches.
pub(super) struct Rows {
    of: Wanted,
    /// Where each column of the table is in a batch.
    places: Vec<usize>,
}

/// Rows of the table.
pub(super) struct Given {
    pub(super) rows: RecordBatch,
    pub(super) diffs: Option<Int64Array>,
    pub(super) offsets: Vec<Offset>,
    pub(super) bad: Vec<BadRow>,
}

impl Rows {
    /// The rows of a batch; `offset` is where each starts.
    pub(super) fn of(
        &self,
        batch: &RecordBatch,
        diffs: Option<&Int64Array>,
        offset: impl Fn(usize) -> Offset,
    ) -> Result<Given> {
        let faults = self.faults(batch);
        let wanted: Option<Vec<usize>> =
            self.of.wanted.iter().map(|column| self.places.get(*column).copied()).collect();
        let wanted = wanted.ok_or_else(|| Error::internal("a column that the table does not have"))?;
        let mut rows = batch.project(&wanted)?;
        let mut diffs = diffs.cloned();
        let mut offsets: Vec<Offset> = Vec::new();
        if self.of.offsets {
            offsets.extend((0..batch.num_rows()).map(&offset));
        }
        let mut bad = Vec::new();
        if !faults.is_empty() {
            let mut good = vec![true; batch.num_rows()];
            for (row, column, code) in faults {
                good[row] = false;
                // What was never taken in is not taken away either.
                if diffs.as_ref().is_none_or(|diffs| diffs.value(row) > 0) {
                    bad.push(self.bad_row(batch, row, column, code, offset(row))?);
                }
            }
            let mut all = good.iter();
            offsets.retain(|_| all.next().copied().unwrap_or(true));
            let good = BooleanArray::from(good);
            rows = filter_record_batch(&rows, &good)?;
            if let Some(all) = &diffs {
                diffs = Some(filter(all, &good)?.as_primitive::<Int64Type>().clone());
            }
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        let rows = RecordBatch::try_new_with_options(Arc::clone(&self.of.schema), rows.columns().to_vec(), &options)?;
        Ok(Given { rows, diffs, offsets, bad })
    }

    /// Rows that the table does not take: each once, with the first column at fault.
    fn faults(&self, batch: &RecordBatch) -> Vec<(usize, usize, SqlState)> {
        let mut faults = Vec::new();
        for (at, (column, place)) in self.of.columns.iter().zip(&self.places).enumerate() {
            let values = batch.column(*place);
            if !column.nullable && values.null_count() > 0 {
                let null = (0..values.len()).filter(|row| values.is_null(*row));
                faults.extend(null.map(|row| (row, at, SqlState::NotNullViolation)));
            }
            if let (Some(most), Some(texts)) = (column.length_max, values.as_string_opt::<i32>()) {
                let long =
                    texts.iter().enumerate().filter(|(_, text)| text.is_some_and(|text| text.chars().count() > most));
                faults.extend(long.map(|(row, _)| (row, at, SqlState::StringTooLong)));
            }
        }
        faults.sort_by_key(|(row, column, _)| (*row, *column));
        faults.dedup_by_key(|(row, _, _)| *row);
        faults
    }

    fn bad_row(
        &self,
        batch: &RecordBatch,
        row: usize,
        column: usize,
        code: SqlState,
        offset: Offset,
    ) -> Result<BadRow> {
        let options = FormatOptions::default().with_null("null").with_display_error(true);
        let mut raw = String::from("{");
        for (column, place) in self.of.columns.iter().zip(&self.places) {
            let value = ArrayFormatter::try_new(batch.column(*place), &options)?;
            let comma = if raw.len() > 1 { ", " } else { "" };
            raw.push_str(&format!("{comma}{}: {}", column.name, value.value(row)));
        }
        raw.push('}');
        let error = match code {
            SqlState::StringTooLong => "value too long for its type".to_owned(),
            _ => "null value violates not-null constraint".to_owned(),
        };
        let name = self.of.columns.get(column).map(|column| column.name.clone());
        Ok(BadRow::new(code, raw.as_bytes(), error, name, offset))
    }
}
