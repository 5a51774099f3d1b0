//! What sinks into tables have written, in checkpoints.
//!
//! The timeline log has each write of a sink, under the sink's own number. A checkpoint, behind which the log is cut, has
//! the same changes: each one those since the checkpoint before, as an object of its own. When these are more than the
//! oldest object has, all are summed up into one. So a checkpoint writes in proportion to what was written since.

use std::collections::HashMap;

use super::cut::{SinkCut, SinkPart};
use crate::engine::timeline::{decode_chunks, encode_chunks};
use crate::exec::consolidate::{consolidate, row_codec};
use crate::state::PartStore;
use crate::types::{CheckpointId, Chunk, RelationId, Result};

/// Fewer changes are not summed up while they wait.
const WAITING_ROWS_MIN: usize = 65_536;

/// Changes of one sink that no checkpoint has yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsaved {
    chunks: Vec<Chunk>,
    rows: usize,
    /// Rows that were left when they were summed up last.
    summed: usize,
}

impl Unsaved {
    /// The sink wrote some more.
    pub(crate) fn add(&mut self, chunks: &[Chunk]) {
        self.rows += chunks.iter().map(Chunk::rows).sum::<usize>();
        self.chunks.extend_from_slice(chunks);
        // Without checkpoints they stay as few as the rows that the sink has in its table.
        if self.rows > WAITING_ROWS_MIN.max(2 * self.summed)
            && let Ok(chunks) = summed_up(&self.chunks)
        {
            self.rows = chunks.iter().map(Chunk::rows).sum();
            (self.chunks, self.summed) = (chunks, self.rows);
        }
    }

    pub(crate) fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }
}

/// What checkpoint `checkpoint` says of the sinks: what the one before it said, and the changes since.
///
/// # Errors
/// When an object cannot be read or written.
pub(super) fn write(
    store: &dyn PartStore,
    checkpoint: CheckpointId,
    before: &[SinkCut],
    unsaved: &HashMap<RelationId, Unsaved>,
) -> Result<Vec<SinkCut>> {
    let mut sinks = Vec::with_capacity(unsaved.len());
    for (sink, unsaved) in unsaved {
        let mut parts = before.iter().find(|cut| cut.sink == *sink).map(|cut| cut.parts.clone()).unwrap_or_default();
        let changes = parts.iter().skip(1).map(|part| part.rows).sum::<usize>() + unsaved.rows;
        let mut chunks = unsaved.chunks.clone();
        if parts.first().is_some_and(|first| first.rows < changes) {
            chunks = summed_up(&[read(store, &parts)?, chunks].concat())?;
            parts.clear();
        }
        let rows = chunks.iter().map(Chunk::rows).sum();
        if rows > 0 {
            let name = format!("cp-{checkpoint}/sink-{sink}.arrow");
            parts.push(SinkPart { rows, part: store.put(&name, encode_chunks(&chunks)?.into())? });
        }
        sinks.push(SinkCut { sink: *sink, parts });
    }
    sinks.sort_by_key(|cut| cut.sink);
    Ok(sinks)
}

/// The changes in some objects.
///
/// # Errors
/// XX001 when one is missing or damaged.
pub(super) fn read(store: &dyn PartStore, parts: &[SinkPart]) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::new();
    for part in parts {
        chunks.extend(decode_chunks(&store.get(&part.part)?)?);
    }
    Ok(chunks)
}

fn summed_up(chunks: &[Chunk]) -> Result<Vec<Chunk>> {
    let Some(first) = chunks.first() else { return Ok(Vec::new()) };
    let schema = first.schema();
    consolidate(&row_codec(&schema)?, &schema, chunks)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::env::Failpoints;
    use crate::state::LocalStore;

    fn unsaved(sink: RelationId, rows: &[(i64, i64)]) -> HashMap<RelationId, Unsaved> {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.iter().map(|(row, _)| *row)));
        let batch = RecordBatch::try_from_iter([("a", column)]).expect("a batch");
        let diffs = Int64Array::from_iter_values(rows.iter().map(|(_, diff)| *diff));
        let mut unsaved = Unsaved::default();
        unsaved.add(&Chunk::changes(&batch, &diffs));
        HashMap::from([(sink, unsaved)])
    }

    #[test]
    fn each_checkpoint_has_all_and_writes_what_is_new() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = LocalStore::open(folder.path(), false, Failpoints::default()).expect("opens");
        let sink = RelationId(7);
        let mut cut = Vec::new();
        let mut seen = Vec::new();
        for (id, rows) in
            [&[(1, 1), (2, 1), (3, 1)][..], &[(1, -1)], &[], &[(4, 1), (3, -1)], &[(5, 1)]].into_iter().enumerate()
        {
            cut = write(&store, CheckpointId(id as u64), &cut, &unsaved(sink, rows)).expect("written");
            let mut sums = std::collections::BTreeMap::new();
            for chunk in read(&store, &cut[0].parts).expect("whole") {
                let column = chunk.column(0).as_primitive::<Int64Type>();
                (0..chunk.rows()).for_each(|row| *sums.entry(column.value(row)).or_insert(0) += chunk.diff(row));
            }
            sums.retain(|_, count| *count != 0);
            seen.push((sums.into_keys().collect::<Vec<_>>(), cut[0].parts.len()));
        }
        // Three changes are not more than the first three rows; the fourth sums all up.
        let expected = [(vec![1, 2, 3], 1), (vec![2, 3], 2), (vec![2, 3], 2), (vec![2, 4], 3), (vec![2, 4, 5], 1)];
        assert_eq!(seen, expected);
    }

    #[test]
    fn what_waits_is_summed_up() {
        let sink = RelationId(1);
        let mut all = Unsaved::default();
        for _ in 0..40 {
            let rows: Vec<(i64, i64)> = (0..2_000).flat_map(|row| [(row, 1), (row, -1)]).collect();
            all.add(unsaved(sink, &rows)[&sink].chunks());
        }
        assert!(all.rows <= WAITING_ROWS_MIN + 4_000, "{}", all.rows);
    }
}
