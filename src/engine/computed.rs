//! Computed columns of a table with a connector: a source over another, whose rows have more columns.
//!
//! A row for which an expression fails is a bad row, as if the connector could not read it, whoever reads which columns.
//! So all computed columns are worked out in every pass.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};

use crate::exec::source::{BadRow, Offset, Read, ReadRequest, Source, SourceReader, SplitId, Splits};
use crate::sql;
use crate::types::{Error, Result, SqlState};

/// How a column of the table is filled.
#[derive(Clone)]
pub(crate) enum Filled {
    /// By the connector: its place there.
    Read(usize),
    /// By an expression over the connector's columns.
    Computed(Arc<dyn PhysicalExpr>),
}

/// A source with computed columns.
pub(crate) struct ComputedSource {
    inner: Arc<dyn Source>,
    schema: SchemaRef,
    filled: Vec<Filled>,
    /// The connector's columns that the expressions read, in ascending order.
    needed: Vec<usize>,
}

impl ComputedSource {
    /// A source whose columns are filled as said; `schema` names them.
    pub(crate) fn new(inner: Arc<dyn Source>, schema: SchemaRef, filled: Vec<Filled>) -> ComputedSource {
        let mut needed: Vec<usize> = filled
            .iter()
            .filter_map(|filled| match filled {
                Filled::Read(_) => None,
                Filled::Computed(expression) => Some(collect_columns(expression)),
            })
            .flatten()
            .map(|column| column.index())
            .collect();
        needed.sort_unstable();
        needed.dedup();
        ComputedSource { inner, schema, filled, needed }
    }
}

impl Source for ComputedSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self, known: &[(SplitId, Offset)]) -> Result<Splits> {
        self.inner.splits(known)
    }

    fn open(&self, request: &ReadRequest) -> Result<Box<dyn SourceReader>> {
        let mut read = self.needed.clone();
        for index in request.columns.iter() {
            if let Some(Filled::Read(place)) = self.filled.get(*index)
                && !read.contains(place)
            {
                read.push(*place);
            }
        }
        let read_schema = self.inner.schema().project(&read)?;
        let mut columns = Vec::new();
        for (index, filled) in self.filled.iter().enumerate() {
            let wanted = request.columns.iter().position(|column| *column == index);
            let value = match filled {
                Filled::Read(place) => {
                    match read.iter().position(|other| other == place).filter(|_| wanted.is_some()) {
                        Some(place) => Value::Read(place),
                        None => continue,
                    }
                }
                Filled::Computed(expression) => Value::Computed(
                    reassign_expr_columns(Arc::clone(expression), &read_schema).map_err(super::errors::error_of)?,
                ),
            };
            columns.push(OutColumn { index, wanted, value });
        }
        let inner = self.inner.open(&ReadRequest { columns: read.into(), offsets: true, ..request.clone() })?;
        let schema = Arc::clone(&self.schema);
        Ok(Box::new(ComputedReader { inner, schema, columns, needed: self.needed.len(), offsets: request.offsets }))
    }

    fn ends(&self) -> bool {
        self.inner.ends()
    }

    fn check(&self, key: &[usize]) -> Result<()> {
        let read = |column: &usize| match self.filled.get(*column) {
            Some(Filled::Read(place)) => Some(*place),
            Some(Filled::Computed(_)) | None => None,
        };
        self.inner.check(&key.iter().filter_map(read).collect::<Vec<_>>())
    }
}

struct OutColumn {
    /// In the table.
    index: usize,
    /// In the rows given, if it was asked for.
    wanted: Option<usize>,
    value: Value,
}

enum Value {
    Read(usize),
    Computed(Arc<dyn PhysicalExpr>),
}

struct ComputedReader {
    inner: Box<dyn SourceReader>,
    schema: SchemaRef,
    columns: Vec<OutColumn>,
    /// How many of the columns read the expressions need: the first ones.
    needed: usize,
    offsets: bool,
}

impl ComputedReader {
    /// The columns asked for, in their order.
    ///
    /// # Errors
    /// What an expression fails with; 23502 for a NULL where none may be.
    fn compute(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let mut out: Vec<(usize, usize, ArrayRef)> = Vec::with_capacity(self.columns.len());
        for OutColumn { index, wanted, value } in &self.columns {
            let field = self.schema.field(*index);
            let array = match value {
                Value::Read(place) => Arc::clone(rows.column(*place)),
                Value::Computed(expression) => {
                    let value = expression.evaluate(rows).map_err(super::errors::error_of)?;
                    let array = value.into_array(rows.num_rows()).map_err(super::errors::error_of)?;
                    if array.data_type() == field.data_type() {
                        array
                    } else {
                        sql::cast_array(&array, field.data_type())?
                    }
                }
            };
            if !field.is_nullable() && array.logical_null_count() > 0 {
                return Err(Error::new(SqlState::NotNullViolation, "null value violates not-null constraint"));
            }
            if let Some(place) = wanted {
                out.push((*place, *index, array));
            }
        }
        out.sort_by_key(|(place, _, _)| *place);
        let schema = Arc::new(self.schema.project(&out.iter().map(|(_, index, _)| *index).collect::<Vec<_>>())?);
        let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
        let arrays = out.into_iter().map(|(_, _, array)| array).collect();
        Ok(RecordBatch::try_new_with_options(schema, arrays, &options)?)
    }

    /// Marks the rows for which an expression fails, by halving.
    fn find_bad(&self, rows: &RecordBatch, from: usize, good: &mut [bool], faults: &mut Vec<(usize, Error)>) {
        let Err(error) = self.compute(rows) else { return };
        if rows.num_rows() <= 1 {
            if let Some(good) = good.get_mut(from) {
                *good = false;
            }
            faults.push((from, error));
            return;
        }
        let half = rows.num_rows() / 2;
        self.find_bad(&rows.slice(0, half), from, good, faults);
        self.find_bad(&rows.slice(half, rows.num_rows() - half), from + half, good, faults);
    }
}

impl SourceReader for ComputedReader {
    fn read(&mut self, rows_max: usize) -> Result<Read> {
        let (rows, mut diffs, mut offsets, mut bad, end) = match self.inner.read(rows_max)? {
            Read::Rows { rows, diffs, offsets, bad, end } => (rows, diffs, offsets, bad, end),
            other => return Ok(other),
        };
        let computed = match self.compute(&rows) {
            Ok(computed) => computed,
            Err(_) => {
                let mut good = vec![true; rows.num_rows()];
                let mut faults = Vec::new();
                self.find_bad(&rows, 0, &mut good, &mut faults);
                // What was never taken in is not taken away either.
                faults.retain(|(row, _)| diffs.as_ref().is_none_or(|diffs| diffs.value(*row) > 0));
                for (row, error) in faults {
                    let offset = offsets.get(row).copied().unwrap_or(end);
                    let raw = text_of(&rows, row, self.needed)?;
                    bad.push(BadRow::new(error.code(), raw.as_bytes(), error.message().to_owned(), None, offset));
                }
                bad.sort_by_key(|row| row.offset);
                let mut row = 0;
                offsets.retain(|_| {
                    row += 1;
                    good.get(row - 1).copied().unwrap_or(true)
                });
                let good = BooleanArray::from(good);
                if let Some(all) = &diffs {
                    diffs = Some(filter(all, &good)?.as_primitive::<Int64Type>().clone());
                }
                self.compute(&filter_record_batch(&rows, &good)?)?
            }
        };
        if !self.offsets {
            offsets.clear();
        }
        Ok(Read::Rows { rows: computed, diffs, offsets, bad, end })
    }
}

/// A row as text: its first columns, which every pass reads, so that it is the same in each.
fn text_of(rows: &RecordBatch, row: usize, columns: usize) -> Result<String> {
    let options = FormatOptions::default().with_null("null").with_display_error(true);
    let mut text = String::from("{");
    for (field, array) in rows.schema().fields().iter().zip(rows.columns()).take(columns) {
        let value = ArrayFormatter::try_new(array, &options)?;
        let comma = if text.len() > 1 { ", " } else { "" };
        text.push_str(&format!("{comma}{}: {}", field.name(), value.value(row)));
    }
    text.push('}');
    Ok(text)
}
