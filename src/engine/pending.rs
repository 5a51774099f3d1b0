//! The changes of a transaction block before it commits, and tables as they will be with them.
//!
//! Filters and projections are linear: rows of a table plus its changes, filtered and projected, are
//! its filtered and projected rows plus its filtered and projected changes. So a scan for a
//! statement of the block reads the workers as ever and puts the block's own changes on top.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::StreamExt as _;

use crate::sql::to_datafusion;
use crate::types::{Chunk, RelationId, Result};

use super::dml::keys::Keys;
use super::scan_exec::with_schema;

/// The net changes of a block, by table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    tables: HashMap<RelationId, Net>,
}

/// What a block takes from a table and adds to it; no row is in both.
#[derive(Clone, Debug)]
pub(crate) struct Net {
    removed: RecordBatch,
    added: RecordBatch,
}

impl Pending {
    /// True when nothing was changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The changes of a table.
    pub(crate) fn of(&self, table: RelationId) -> Option<&Net> {
        self.tables.get(&table)
    }

    /// All tables that were changed.
    pub(crate) fn tables(&self) -> impl Iterator<Item = RelationId> + '_ {
        self.tables.keys().copied()
    }

    /// Adds changes of a table.
    ///
    /// # Errors
    /// When a column outgrows its offsets.
    pub(crate) fn add(&mut self, table: RelationId, schema: &SchemaRef, chunks: &[Chunk]) -> Result<()> {
        let (rows, diffs) = Chunk::concat(schema, chunks)?;
        let net = match self.tables.get(&table) {
            None => Net::of(&rows, diffs.values())?,
            Some(earlier) => {
                let mut all: Vec<i64> = vec![-1; earlier.removed.num_rows()];
                all.resize(all.len() + earlier.added.num_rows(), 1);
                all.extend_from_slice(diffs.values());
                Net::of(&concat_batches(schema, [&earlier.removed, &earlier.added, &rows])?, &all)?
            }
        };
        self.tables.insert(table, net);
        Ok(())
    }

    /// The bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        self.tables.values().map(|net| net.removed.get_array_memory_size() + net.added.get_array_memory_size()).sum()
    }
}

impl Net {
    /// Sums up the diffs of equal rows.
    fn of(rows: &RecordBatch, diffs: &[i64]) -> Result<Net> {
        if diffs.iter().all(|diff| *diff == 1) {
            return Ok(Net { removed: RecordBatch::new_empty(rows.schema()), added: rows.clone() });
        }
        let converter = converter(rows)?;
        let keys = converter.convert_columns(rows.columns())?;
        let mut sums: HashMap<&[u8], i64> = HashMap::with_capacity(diffs.len());
        for (key, diff) in keys.iter().zip(diffs) {
            *sums.entry(key.data()).or_default() += diff;
        }
        let (mut removed, mut added) = (Vec::new(), Vec::new());
        for (row, key) in keys.iter().enumerate() {
            if let Some(sum) = sums.remove(key.data()) {
                let of = if sum < 0 { &mut removed } else { &mut added };
                of.extend(std::iter::repeat_n(row as u64, usize::try_from(sum.unsigned_abs()).unwrap_or(0)));
            }
        }
        Ok(Net {
            removed: take_record_batch(rows, &UInt64Array::from(removed))?,
            added: take_record_batch(rows, &UInt64Array::from(added))?,
        })
    }

    /// The changes as the workers take them.
    pub(crate) fn chunks(&self) -> Vec<Chunk> {
        let mut chunks = Chunk::changes(&self.removed, &Int64Array::from_value(-1, self.removed.num_rows()));
        chunks.extend(Chunk::inserts(&self.added));
        chunks
    }

    /// Rows that were looked up by their keys, as they are with the changes.
    ///
    /// # Errors
    /// When a column outgrows its offsets.
    pub(crate) fn after_lookup(&self, found: &RecordBatch, wanted: &RecordBatch, key: &[usize]) -> Result<RecordBatch> {
        let kept = Subtract::new(&self.removed)?.rest(found)?;
        let encoder = Keys::new(&wanted.schema(), key)?;
        let (wanted_keys, added_keys) = (encoder.encode(wanted)?, encoder.encode(&self.added)?);
        let wanted_keys: std::collections::HashSet<_> = wanted_keys.iter().collect();
        let fits: BooleanArray = added_keys.iter().map(|key| Some(wanted_keys.contains(&key))).collect();
        Ok(concat_batches(&found.schema(), [&kept, &filter_record_batch(&self.added, &fits)?])?)
    }

    /// A scan of the table with the changes: `base` gives `columns` of the rows that `predicate` lets
    /// through, without limit. `schema` is that of the answer, which has no columns when only a
    /// number of rows is wanted; `base` has one then.
    ///
    /// # Errors
    /// What the predicate fails with.
    pub(crate) fn over(
        &self,
        base: Arc<dyn ExecutionPlan>,
        columns: &[usize],
        predicate: Option<&Arc<dyn PhysicalExpr>>,
        schema: SchemaRef,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let selected = |rows: &RecordBatch| -> Result<RecordBatch, DataFusionError> {
            let rows = match predicate {
                None => rows.clone(),
                Some(predicate) => {
                    let holds = predicate.evaluate(rows)?.into_array(rows.num_rows())?;
                    let holds = datafusion::common::cast::as_boolean_array(&holds)?;
                    filter_record_batch(rows, holds)?
                }
            };
            Ok(rows.project(columns)?)
        };
        let part = Overlaid {
            base: Arc::new(CoalescePartitionsExec::new(base)),
            removed: selected(&self.removed)?,
            added: selected(&self.added)?,
            schema: Arc::clone(&schema),
        };
        Ok(Arc::new(StreamingTableExec::try_new(schema, vec![Arc::new(part)], None, [], false, None)?))
    }
}

fn converter(rows: &RecordBatch) -> Result<RowConverter> {
    let fields = rows.columns().iter().map(|column| SortField::new(column.data_type().clone())).collect();
    Ok(RowConverter::new(fields)?)
}

/// Takes rows away, each as often as it is there.
struct Subtract {
    converter: RowConverter,
    left: HashMap<OwnedRow, usize>,
}

impl Subtract {
    fn new(rows: &RecordBatch) -> Result<Subtract> {
        let converter = converter(rows)?;
        let mut left = HashMap::with_capacity(rows.num_rows());
        if rows.num_rows() > 0 {
            for row in &converter.convert_columns(rows.columns())? {
                *left.entry(row.owned()).or_default() += 1;
            }
        }
        Ok(Subtract { converter, left })
    }

    fn rest(&mut self, rows: &RecordBatch) -> Result<RecordBatch> {
        if self.left.is_empty() || rows.num_rows() == 0 {
            return Ok(rows.clone());
        }
        let columns: Vec<ArrayRef> = rows.columns().to_vec();
        let keys = self.converter.convert_columns(&columns)?;
        let mut keep = Vec::with_capacity(rows.num_rows());
        for key in &keys {
            let key = key.owned();
            let taken = match self.left.get_mut(&key) {
                None => false,
                Some(1) => self.left.remove(&key).is_some(),
                Some(count) => {
                    *count -= 1;
                    true
                }
            };
            keep.push(!taken);
        }
        Ok(filter_record_batch(rows, &BooleanArray::from(keep))?)
    }
}

/// Rows of a scan with a block's changes.
struct Overlaid {
    base: Arc<dyn ExecutionPlan>,
    removed: RecordBatch,
    added: RecordBatch,
    schema: SchemaRef,
}

impl fmt::Debug for Overlaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overlaid").finish_non_exhaustive()
    }
}

impl PartitionStream for Overlaid {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let schema = Arc::clone(&self.schema);
        let rows = self.base.execute(0, context).and_then(|base| {
            let mut subtract = Subtract::new(&self.removed).map_err(to_datafusion)?;
            let rest = base.map(move |rows| subtract.rest(&rows?).map_err(to_datafusion));
            Ok(rest.chain(futures::stream::iter([Ok(self.added.clone())])))
        });
        let shown = Arc::clone(&schema);
        let rows = futures::stream::iter([rows]).flat_map(|rows| match rows {
            Ok(rows) => rows.boxed(),
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        });
        let rows = rows.map(move |rows| with_schema(&rows?, &shown));
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    use super::*;

    fn rows(values: &[i64]) -> RecordBatch {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values.to_vec()))]).unwrap()
    }

    fn values(rows: &RecordBatch) -> Vec<i64> {
        rows.column(0).as_primitive::<Int64Type>().values().to_vec()
    }

    #[test]
    fn changes_of_equal_rows_sum_up() {
        let mut pending = Pending::default();
        let (table, schema) = (RelationId(1), rows(&[]).schema());
        pending.add(table, &schema, &Chunk::inserts(&rows(&[1, 2, 2]))).unwrap();
        let update = Chunk::changes(&rows(&[2, 5, 9]), &Int64Array::from(vec![-1, 1, -1]));
        pending.add(table, &schema, &update).unwrap();
        let net = pending.of(table).unwrap();
        assert_eq!((values(&net.added), values(&net.removed)), (vec![1, 2, 5], vec![9]));
        let found = net.after_lookup(&rows(&[9]), &rows(&[9, 5]), &[0]).unwrap();
        assert_eq!(values(&found), [5]);
    }

    #[test]
    fn rows_are_taken_away_as_often_as_they_are_there() {
        let mut subtract = Subtract::new(&rows(&[3, 3, 4])).unwrap();
        assert_eq!(values(&subtract.rest(&rows(&[3, 1, 4])).unwrap()), [1]);
        assert_eq!(values(&subtract.rest(&rows(&[3, 3, 4])).unwrap()), [3, 4]);
    }
}
