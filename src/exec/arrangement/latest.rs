//! Rows that replace each other by key: of a key's rows the one that came last is kept. One with a negative diff leaves its
//! key without a row.
//!
//! A time's rows come with their place in the order of that time in a column behind their own. From them and the
//! present rows follow the time's changes: the old row of each key that has a new one is retracted.

use std::collections::VecDeque;
use std::collections::hash_map::{Entry as Slot, HashMap};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::{concat_batches, filter_record_batch, interleave_record_batch};
use arrow::datatypes::Int64Type;

use super::rows::{Entry, Key};
use super::{Arrangement, Selection, columns};
use crate::state::Encoded;
use crate::types::{CHUNK_ROWS_MAX, Chunk, Error, KeyGroup, Result};

/// The rows of the time that closes next, on their way to become changes.
#[derive(Default)]
pub(super) struct Latest {
    waiting: VecDeque<Chunk>,
    chunks: Vec<(Chunk, Encoded)>,
    /// The last row of each key: its place, its chunk, its row there.
    last: HashMap<Key, (i64, u32, u32)>,
    /// The last rows in order of their places, once all are known.
    todo: Option<VecDeque<(i64, u32, u32)>>,
}

impl Latest {
    pub(super) fn push(&mut self, chunk: Chunk) {
        self.waiting.push_back(chunk);
    }
}

impl Arrangement {
    /// Stages the changes that the waiting rows make, in slices; false while there is more to do.
    ///
    /// # Errors
    /// When a column outgrows its offsets.
    pub(super) fn settle(&mut self, deadline: Instant) -> Result<bool> {
        while let Some(chunk) = self.latest.waiting.pop_front() {
            self.note(chunk)?;
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
        let mut todo = match self.latest.todo.take() {
            Some(todo) => todo,
            None => {
                let mut last: Vec<_> = self.latest.last.drain().map(|(_, last)| last).collect();
                last.sort_unstable();
                last.into()
            }
        };
        while !todo.is_empty() {
            let part: Vec<_> = todo.drain(..todo.len().min(CHUNK_ROWS_MAX)).collect();
            let changes = self.replacing(&part)?;
            changes.into_iter().for_each(|chunk| self.stage(chunk));
            if !todo.is_empty() && Instant::now() >= deadline {
                self.latest.todo = Some(todo);
                return Ok(false);
            }
        }
        self.latest.chunks.clear();
        Ok(true)
    }

    fn note(&mut self, chunk: Chunk) -> Result<()> {
        let keys = self.layout.encode_keys(chunk.batch())?;
        let places = chunk.batch().columns().last().and_then(|column| column.as_primitive_opt::<Int64Type>());
        let places = places.ok_or_else(|| Error::internal("rows without their places"))?;
        let number = self.latest.chunks.len() as u32;
        for (row, place) in places.values().iter().enumerate() {
            let found = (*place, number, row as u32);
            match self.latest.last.entry(Key::from_slice(keys.row(row))) {
                Slot::Occupied(mut last) if last.get().0 < *place => *last.get_mut() = found,
                Slot::Occupied(_) => {}
                Slot::Vacant(last) => {
                    last.insert(found);
                }
            }
        }
        self.latest.chunks.push((chunk, keys));
        Ok(())
    }

    /// The changes that put some rows in the place of those that have their keys.
    fn replacing(&self, rows: &[(i64, u32, u32)]) -> Result<Vec<Chunk>> {
        let chunks = &self.latest.chunks;
        let width = self.layout.schema.fields().len();
        let picks: Vec<(usize, usize)> = rows.iter().map(|(_, chunk, row)| (*chunk as usize, *row as usize)).collect();
        let batches: Vec<&RecordBatch> = chunks.iter().map(|(chunk, _)| chunk.batch()).collect();
        let new = interleave_record_batch(&batches, &picks)?;
        let new = RecordBatch::try_new(Arc::clone(&self.layout.schema), new.columns()[..width].to_vec())?;
        let values = self.layout.value_codec.encode(&columns(&new, &self.layout.value_columns), new.num_rows())?;
        let mut replaced: Vec<(&[u8], &Entry)> = Vec::new();
        let mut comes = vec![true; rows.len()];
        for (at, (chunk, row)) in picks.iter().enumerate() {
            let (chunk, keys) = &chunks[*chunk];
            let (key, gone) = (keys.row(*row), chunk.diff(*row) < 0);
            let entry = self.groups[KeyGroup::of(key).index()].get(key);
            let same = !gone && entry.is_some_and(|entry| entry.value.as_slice() == values.row(at));
            comes[at] = !gone && !same;
            replaced.extend(entry.filter(|_| !same).map(|entry| (key, entry)));
        }
        let all = Selection { projection: (0..width).collect(), predicate: None };
        let old = self.layout.decode(&replaced, &all)?;
        let new = filter_record_batch(&new, &BooleanArray::from(comes))?;
        let diffs = Int64Array::from_iter_values(
            std::iter::repeat_n(-1, old.num_rows()).chain(std::iter::repeat_n(1, new.num_rows())),
        );
        Ok(Chunk::changes(&concat_batches(&self.layout.schema, [&old, &new])?, &diffs))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use arrow::array::{Array, ArrayRef, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::exec::arrangement::Layout;
    use crate::types::{OperatorId, Time};

    fn rows(rows: &[(i64, Option<&str>, i64)]) -> Chunk {
        let schema = Schema::new(vec![
            Field::new("k", DataType::Int64, false),
            Field::new("v", DataType::Utf8, true),
            Field::new("place", DataType::Int64, false),
        ]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(rows.iter().map(|row| row.1).collect::<StringArray>()),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
        ];
        let batch = RecordBatch::try_new(Arc::new(schema), columns).expect("fits");
        Chunk::inserts(&batch).pop().expect("rows")
    }

    fn changes(arrangement: &mut Arrangement, time: u64, chunks: Vec<Chunk>) -> Vec<(i64, Option<String>, i64)> {
        chunks.into_iter().for_each(|chunk| arrangement.stage_latest(chunk));
        let time = Time::from_millis(time);
        let deadline = Instant::now() + Duration::from_secs(60);
        let closed = arrangement.close_time(time, deadline).expect("closes").expect("in time");
        let mut seen = Vec::new();
        for (chunk, _) in &closed.chunks {
            let (keys, values) = (chunk.column(0).as_primitive::<Int64Type>(), chunk.column(1).as_string::<i32>());
            for row in 0..chunk.rows() {
                let value = values.is_valid(row).then(|| values.value(row).to_owned());
                seen.push((keys.value(row), value, chunk.diff(row)));
            }
        }
        seen.sort();
        seen
    }

    #[test]
    fn the_last_row_of_a_key_stays() {
        let schema = Schema::new(vec![Field::new("k", DataType::Int64, false), Field::new("v", DataType::Utf8, true)]);
        let layout = Layout::new(Arc::new(schema), &[0]).expect("a layout");
        let mut kept = Arrangement::new(OperatorId::of("t", "rows"), layout, Time::from_millis(1), false);
        let text = |text: &str| Some(text.to_owned());
        // Whatever chunk comes first: the greatest place counts.
        let seen =
            changes(&mut kept, 1, vec![rows(&[(1, Some("c"), 7), (2, Some("x"), 8)]), rows(&[(1, Some("a"), 3)])]);
        assert_eq!(seen, [(1, text("c"), 1), (2, text("x"), 1)]);
        // A row that stays the same is no change; places count within a time alone.
        let seen = changes(&mut kept, 2, vec![rows(&[(2, Some("x"), 0), (1, None, 1)])]);
        assert_eq!(seen, [(1, None, 1), (1, text("c"), -1)]);
        let seen = changes(&mut kept, 3, vec![rows(&[(2, Some("y"), 0), (2, Some("x"), 1)])]);
        assert_eq!(seen, []);
        // What is taken away last is gone; what is taken away and put back is not; what is not there can be taken away.
        let taken = |given: &[(i64, Option<&str>, i64, i64)]| {
            let of: Vec<_> = given.iter().map(|(key, value, place, _)| (*key, *value, *place)).collect();
            let diffs = Int64Array::from_iter_values(given.iter().map(|row| row.3));
            Chunk::changes(rows(&of).batch(), &diffs).pop().expect("rows")
        };
        let chunk = taken(&[(1, None, 0, -1), (2, Some("x"), 1, -1), (2, Some("z"), 2, 1), (3, Some("n"), 3, -1)]);
        let seen = changes(&mut kept, 4, vec![chunk]);
        assert_eq!(seen, [(1, None, -1), (2, text("x"), -1), (2, text("z"), 1)]);
    }
}
