//! Sums up a chunk's rows per group on the worker that has them, before they go to the one that owns the group: what is sent,
//! and what that worker does, is then a row for each group and not one for each row. So an aggregate without GROUP BY, or over a
//! key that most rows have, uses all workers.
//!
//! Keeps nothing between chunks. A chunk whose rows are of many groups passes as it is, and after some of that kind only one
//! in a few is looked at.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::aggregate::{accumulators, update};
use crate::exec::aggregates::Accumulator;
use crate::exec::plan::AggregateCall;
use crate::state::{KeyIndex, RowCodec, Slot};
use crate::types::{Chunk, Error, Result};

/// Fewer rows are not worth it.
const ROWS_MIN: usize = 64;
/// So many chunks pass unseen behind one that was of too many groups.
const UNSEEN: usize = 15;

/// The first half of an aggregate, on one worker.
#[derive(Debug)]
pub(crate) struct Combine {
    keys: Vec<usize>,
    codec: RowCodec,
    calls: Vec<AggregateCall>,
    accumulators: Vec<Box<dyn Accumulator>>,
    /// The input's columns, then the state of a group.
    schema: SchemaRef,
    unseen: usize,
    state: Vec<u8>,
}

impl Combine {
    /// `None` for an aggregate whose state grows with its rows, which this would only do twice.
    ///
    /// # Errors
    /// 42883 or 0A000 when a type cannot be aggregated or grouped.
    pub(crate) fn new(input: &SchemaRef, keys: &[usize], calls: &[AggregateCall]) -> Result<Option<Combine>> {
        if calls.is_empty() || calls.iter().any(AggregateCall::keeps_values) {
            return Ok(None);
        }
        let rows = input.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let fields: Vec<Field> = rows.chain([Field::new("state", DataType::Binary, false)]).collect();
        Ok(Some(Combine {
            keys: keys.to_vec(),
            codec: RowCodec::for_keys(keys.iter().map(|key| input.field(*key).data_type()))?,
            accumulators: accumulators(input, calls, false)?,
            calls: calls.to_vec(),
            schema: Arc::new(Schema::new(fields)),
            unseen: 0,
            state: Vec::new(),
        }))
    }

    /// The chunk, or the sums of its groups.
    ///
    /// # Errors
    /// When the chunk is not of the planned types.
    pub(crate) fn apply(&mut self, chunk: Chunk) -> Result<Chunk> {
        if chunk.rows() < ROWS_MIN || self.unseen > 0 {
            self.unseen = self.unseen.saturating_sub(1);
            return Ok(chunk);
        }
        let keys: Vec<ArrayRef> = self.keys.iter().map(|key| Arc::clone(chunk.column(*key))).collect();
        let encoded = self.codec.encode(&keys, chunk.rows())?;
        let mut index = KeyIndex::new(false);
        let (mut slots, mut first): (Vec<Slot>, Vec<u32>) = Default::default();
        for row in 0..chunk.rows() {
            let (slot, new) = index.insert(encoded.row(row));
            if new {
                first.push(row as u32);
                if 4 * first.len() > chunk.rows() {
                    self.unseen = UNSEEN;
                    return Ok(chunk);
                }
            }
            slots.push(slot);
        }
        let diffs: Vec<i64> = (0..chunk.rows()).map(|row| chunk.diff(row)).collect();
        let mut rows = vec![0_i64; first.len()];
        slots.iter().zip(&diffs).for_each(|(slot, diff)| rows[*slot as usize] += diff);
        for accumulator in &mut self.accumulators {
            accumulator.resize(first.len());
        }
        update(&self.calls, &mut self.accumulators, &index, &slots, &chunk, &diffs)?;
        let mut states = BinaryBuilder::new();
        for (slot, rows) in rows.iter().enumerate() {
            self.state.clear();
            self.state.extend_from_slice(&rows.to_le_bytes());
            for accumulator in &mut self.accumulators {
                accumulator.export(slot as Slot, &mut self.state);
                accumulator.clear(&index, slot as Slot);
            }
            states.append_value(&self.state);
        }
        let picks = UInt32Array::from(first);
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for (at, column) in chunk.batch().columns().iter().enumerate() {
            columns.push(match self.keys.contains(&at) {
                true => take(column, &picks, None)?,
                false => new_null_array(column.data_type(), picks.len()),
            });
        }
        columns.push(Arc::new(states.finish()));
        let sums = RecordBatch::try_new(Arc::clone(&self.schema), columns)?;
        Chunk::inserts(&sums).into_iter().next().ok_or_else(|| Error::internal("a chunk without groups"))
    }
}

/// The states of a chunk of sums; `None` for rows. `width` columns are those of the rows.
pub(super) fn states(chunk: &Chunk, width: usize) -> Option<&BinaryArray> {
    chunk.batch().columns().get(width)?.as_binary_opt()
}
