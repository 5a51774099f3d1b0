//! A relation's present rows on one worker, and how they were a moment ago.
//!
//! Rows are kept per key group, found by hash and walked in key order. A closed time is applied key group by key group, in
//! slices, and leaves an *undo batch*: what each changed key was before. A read at an older time takes
//! the present rows and undoes, for its own range, what came after. So readers wait for nobody and
//! nobody waits for them, also while a time is half applied: that time's undo batch is there first.
//!
//! How long undo batches are kept, [`history`] says; a reader beyond that is told that its snapshot is too old.
//!
//! Stored as value state `rows`: `[i64 count][encoded columns outside of the key]` by encoded key.

mod history;
mod index;
mod latest;
mod rows;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;

use self::history::History;
pub(crate) use self::history::{ChangePlace, Changes, Needs, RowChange, RowKind};
pub(crate) use self::index::Narrow;
use self::index::{Indexes, Touched};
use self::latest::Latest;
use self::rows::{Entry, Key, Rows, Value};
use super::operators::{Context, Operator, StateSize, Step};
use super::relation::from_datafusion;
use crate::state::{Encoded, RowCodec, WriteBatch, split_value_key, value_key};
use crate::types::{Chunk, Error, KEY_GROUPS, KeyGroup, OperatorId, Result, SqlState, Time, fnv1a};

/// Changes or rows between two looks at the clock.
const ROWS_PER_LOOK: usize = 1_024;

const SLOT_NAME: &str = "rows";

/// The changes of one time as they came, for those who follow.
#[derive(Debug)]
pub(crate) struct TimeChanges {
    pub(crate) time: Time,
    /// Chunks, each with its rows' encoded keys.
    pub(crate) chunks: Vec<(Chunk, Encoded)>,
}

/// A place in a relation: behind the row with this key. Ordered by key group, then key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cursor {
    pub(crate) group: KeyGroup,
    pub(crate) key: Vec<u8>,
}

impl Cursor {
    /// The bytes of [`Self::from_bytes`]: `[key group u8][key]`.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.group.index() as u8];
        bytes.extend_from_slice(&self.key);
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Cursor> {
        match bytes.split_first() {
            Some((group, key)) if usize::from(*group) < KEY_GROUPS => {
                Ok(Cursor { group: KeyGroup::new(usize::from(*group)), key: key.to_vec() })
            }
            _ => Err(Error::new(SqlState::InvalidParameterValue, "the cursor is not one that a scan gave")
                .hint("Use the cursor of an earlier answer as it is, or leave it out to start from the beginning.")),
        }
    }
}

/// What a read wants of each row.
#[derive(Clone)]
pub(crate) struct Selection {
    pub(crate) projection: Vec<usize>,
    pub(crate) predicate: Option<Arc<dyn PhysicalExpr>>,
}

/// A relation's rows on one worker.
pub(crate) struct Arrangement {
    operator: OperatorId,
    layout: Layout,
    groups: Vec<Rows>,
    history: History,
    indexes: Indexes,
    upper: Time,
    latest: Latest,
    staged: Staged,
    changed_rows: usize,
    /// The key group at which a barrier goes on.
    barrier_group: usize,
}

/// How rows are cut into key and value.
pub(crate) struct Layout {
    schema: SchemaRef,
    key_columns: Vec<usize>,
    value_columns: Vec<usize>,
    key_codec: RowCodec,
    value_codec: RowCodec,
    /// The key says which row it is; otherwise it is the whole row and a count says how many.
    unique: bool,
}

/// The changes of the time that closes next.
#[derive(Default)]
struct Staged {
    waiting: VecDeque<Chunk>,
    chunks: Vec<(Chunk, Encoded)>,
    values: Vec<Encoded>,
    /// By key group.
    buckets: Vec<Vec<Change>>,
    next_bucket: usize,
}

/// A change of one row.
#[derive(Clone, Copy)]
struct Change {
    /// Of the key: what is compared first.
    hash: u64,
    chunk: u32,
    row: u32,
    diff: i64,
}

impl Layout {
    /// # Errors
    /// 0A000 when a column cannot be kept.
    pub(crate) fn new(schema: SchemaRef, key: &[usize]) -> Result<Layout> {
        let all: Vec<usize> = (0..schema.fields().len()).collect();
        let unique = !key.is_empty();
        let key_columns = if unique { key.to_vec() } else { all.clone() };
        let value_columns: Vec<usize> = all.into_iter().filter(|column| !key_columns.contains(column)).collect();
        let types = |columns: &[usize]| -> Vec<_> {
            columns.iter().map(|column| schema.field(*column).data_type().clone()).collect()
        };
        let (key_types, value_types) = (types(&key_columns), types(&value_columns));
        let key_codec = if unique { RowCodec::for_keys(&key_types)? } else { RowCodec::for_rows(&key_types)? };
        Ok(Layout {
            value_codec: RowCodec::for_rows(&value_types)?,
            schema,
            key_columns,
            value_columns,
            key_codec,
            unique,
        })
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// True when the key says which row it is; otherwise the whole row is the key.
    pub(crate) fn is_unique(&self) -> bool {
        self.unique
    }

    /// The columns that make the key: those of the unique key, or all.
    pub(crate) fn key_columns(&self) -> &[usize] {
        &self.key_columns
    }

    /// The encoded keys of rows with all columns.
    pub(crate) fn encode_keys(&self, batch: &RecordBatch) -> Result<Encoded> {
        self.key_codec.encode(&columns(batch, &self.key_columns), batch.num_rows())
    }

    /// The encoded keys of rows that have the key columns alone, in key order.
    pub(crate) fn encode_bare_keys(&self, keys: &RecordBatch) -> Result<Encoded> {
        self.key_codec.encode(keys.columns(), keys.num_rows())
    }

    /// What a store holds for the one key of some equal rows; `None` when there are none.
    pub(crate) fn stored_value(&self, rows: &RecordBatch) -> Result<Option<Vec<u8>>> {
        let values = self.value_codec.encode(&columns(rows, &self.value_columns), rows.num_rows())?;
        Ok((rows.num_rows() > 0).then(|| [&(rows.num_rows() as i64).to_le_bytes(), values.row(0)].concat()))
    }

    /// The columns of rows; those outside of the key only when they are wanted.
    fn arrays(&self, rows: &[(&[u8], &Entry)], values: bool) -> Result<Vec<Option<ArrayRef>>> {
        let mut all: Vec<Option<ArrayRef>> = vec![None; self.schema.fields().len()];
        let keys = self.key_codec.decode(rows.iter().map(|(key, _)| *key))?;
        for (column, array) in self.key_columns.iter().zip(keys) {
            all[*column] = Some(array);
        }
        if values {
            let values = self.value_codec.decode(rows.iter().map(|(_, entry)| &*entry.value))?;
            for (column, array) in self.value_columns.iter().zip(values) {
                all[*column] = Some(array);
            }
        }
        Ok(all)
    }

    fn project(&self, all: &[Option<ArrayRef>], projection: &[usize], rows: usize) -> Result<RecordBatch> {
        let columns: Option<Vec<ArrayRef>> = projection.iter().map(|c| all[*c].clone()).collect();
        let columns = columns.ok_or_else(|| Error::internal("a column of the relation is missing"))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(Arc::new(self.schema.project(projection)?), columns, &options)?)
    }

    /// Rows as a batch, each once, projected.
    fn decode_each(&self, rows: &[(&[u8], &Entry)], projection: &[usize]) -> Result<RecordBatch> {
        let values = projection.iter().any(|c| self.value_columns.contains(c));
        self.project(&self.arrays(rows, values)?, projection, rows.len())
    }

    /// Rows as a batch: filtered, each as often as it is there, projected.
    fn decode(&self, rows: &[(&[u8], &Entry)], selection: &Selection) -> Result<RecordBatch> {
        let values =
            selection.predicate.is_some() || selection.projection.iter().any(|c| self.value_columns.contains(c));
        let all = self.arrays(rows, values)?;
        let mut picks = None;
        if rows.iter().any(|(_, entry)| entry.count != 1) {
            let repeated = rows.iter().enumerate().flat_map(|(row, (_, entry))| {
                std::iter::repeat_n(row as u32, usize::try_from(entry.count).unwrap_or(0))
            });
            picks = Some(UInt32Array::from_iter_values(repeated));
        }
        let mut batch = if selection.predicate.is_some() {
            let every: Vec<usize> = (0..all.len()).collect();
            self.project(&all, &every, rows.len())?
        } else {
            self.project(&all, &selection.projection, rows.len())?
        };
        if let Some(picks) = &picks {
            batch = take_record_batch(&batch, picks)?;
        }
        if let Some(predicate) = &selection.predicate {
            let mask = predicate
                .evaluate(&batch)
                .and_then(|value| value.into_array(batch.num_rows()))
                .map_err(from_datafusion)?;
            let mask = arrow::array::AsArray::as_boolean_opt(&mask)
                .ok_or_else(|| Error::internal("a predicate is not boolean"))?;
            batch = filter_record_batch(&batch, mask)?.project(&selection.projection)?;
        }
        Ok(batch)
    }
}

fn columns(batch: &RecordBatch, wanted: &[usize]) -> Vec<ArrayRef> {
    wanted.iter().map(|column| Arc::clone(batch.column(*column))).collect()
}

impl Arrangement {
    /// An empty one whose first time is `as_of`. With `track`, what changes is remembered for barriers.
    pub(crate) fn new(operator: OperatorId, layout: Layout, as_of: Time, track: bool) -> Arrangement {
        Arrangement {
            operator,
            layout,
            groups: (0..KEY_GROUPS).map(|_| Rows::new(track)).collect(),
            history: History::default(),
            indexes: Indexes::default(),
            upper: as_of,
            latest: Latest::default(),
            staged: Staged::default(),
            changed_rows: 0,
            barrier_group: 0,
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Every time below is applied.
    pub(crate) fn upper(&self) -> Time {
        self.upper
    }

    /// The oldest time that can be read.
    pub(crate) fn since(&self) -> Time {
        self.history.since()
    }

    /// No change below `upper` will come.
    pub(crate) fn advance(&mut self, upper: Time) {
        self.upper = self.upper.max(upper);
    }

    /// Takes in the changes of the next time, in slices; `None` while there is more to do.
    ///
    /// # Errors
    /// XX000 when a row is retracted that is not there, or a unique key would have two rows.
    fn apply(&mut self, time: Time, deadline: Instant) -> Result<Option<Rc<TimeChanges>>> {
        if !self.settle(deadline)? || !self.encode_staged(deadline)? {
            return Ok(None);
        }
        self.history.begin(time);
        while let Some(bucket) = self.staged.buckets.get_mut(self.staged.next_bucket) {
            let changes = std::mem::take(bucket);
            let group = KeyGroup::new(self.staged.next_bucket);
            self.staged.next_bucket += 1;
            if changes.is_empty() {
                continue;
            }
            self.apply_group(group, time, changes)?;
            if Instant::now() >= deadline {
                return Ok(None);
            }
        }
        let staged = std::mem::take(&mut self.staged);
        Ok(Some(Rc::new(TimeChanges { time, chunks: staged.chunks })))
    }

    fn encode_staged(&mut self, deadline: Instant) -> Result<bool> {
        let staged = &mut self.staged;
        staged.buckets.resize_with(KEY_GROUPS, Vec::new);
        while let Some(chunk) = staged.waiting.pop_front() {
            let keys = self.layout.encode_keys(chunk.batch())?;
            let values = columns(chunk.batch(), &self.layout.value_columns);
            let position = staged.chunks.len() as u32;
            for row in 0..chunk.rows() {
                let hash = fnv1a(keys.row(row));
                let change = Change { hash, chunk: position, row: row as u32, diff: chunk.diff(row) };
                staged.buckets[KeyGroup::of_hash(hash).index()].push(change);
            }
            staged.values.push(self.layout.value_codec.encode(&values, chunk.rows())?);
            staged.chunks.push((chunk, keys));
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn apply_group(&mut self, group: KeyGroup, time: Time, mut changes: Vec<Change>) -> Result<()> {
        let (chunks, values) = (&self.staged.chunks, &self.staged.values);
        let key = |change: &Change| chunks[change.chunk as usize].1.row(change.row as usize);
        let value = |change: &Change| values[change.chunk as usize].row(change.row as usize);
        // Changes of a key stand together; in which order the keys come does not matter.
        changes.sort_unstable_by(|a, b| {
            a.hash.cmp(&b.hash).then_with(|| key(a).cmp(key(b))).then_with(|| value(a).cmp(value(b)))
        });
        let rows = &mut self.groups[group.index()];
        let indexed = !self.indexes.is_empty();
        let keeps_after = self.history.keeps_after() || indexed;
        let mut touched = Vec::new();
        let mut start = 0;
        while start < changes.len() {
            let (hash, changed) = (changes[start].hash, key(&changes[start]));
            let same = |change: &&Change| change.hash == hash && key(change) == changed;
            let end = start + changes[start..].iter().take_while(same).count();
            let unique = self.layout.unique;
            let mut kept = None;
            let before = rows.update(changed, |before| {
                let mut after = before.cloned();
                // Retractions first: a unique key is free before its next row comes.
                for retract in [true, false] {
                    let mut from = start;
                    while from < end {
                        let row = value(&changes[from]);
                        let to = from + changes[from..end].iter().take_while(|change| value(change) == row).count();
                        let diff: i64 = changes[from..to].iter().map(|change| change.diff).sum();
                        if diff != 0 && (diff < 0) == retract {
                            after = add(after, row, diff, unique)?;
                        }
                        from = to;
                    }
                }
                if keeps_after {
                    kept.clone_from(&after);
                }
                Ok::<_, Error>(after)
            })?;
            if let Some(before) = before {
                if indexed {
                    touched.push(Touched {
                        key: Key::from_slice(changed),
                        before: before.clone(),
                        after: kept.clone(),
                    });
                }
                self.history.note(group, changed, before, kept);
                self.changed_rows += 1;
            }
            start = end;
        }
        self.indexes.changed(&self.layout, group, time, &touched)
    }

    /// Number of keys changed since the last call.
    pub(crate) fn take_changed(&mut self) -> usize {
        std::mem::take(&mut self.changed_rows)
    }

    /// Rows behind `start` as they were at `time`, at most `rows_max` keys, and where the next page
    /// starts.
    ///
    /// # Errors
    /// 72000 when that time is no longer kept; what the predicate fails with.
    pub(crate) fn page(
        &self,
        time: Time,
        start: Option<&Cursor>,
        rows_max: usize,
        deadline: Instant,
        selection: &Selection,
    ) -> Result<(RecordBatch, Option<Cursor>)> {
        self.check_readable(time)?;
        let mut found: Vec<(&[u8], &Entry)> = Vec::new();
        let first = start.map_or(0, |cursor| cursor.group.index());
        for group in (first..KEY_GROUPS).map(KeyGroup::new) {
            let after = start.filter(|cursor| cursor.group == group).map(|cursor| cursor.key.as_slice());
            for (key, entry) in self.rows_at(time, group, after) {
                let full = found.len() >= rows_max
                    || (found.len() % ROWS_PER_LOOK == ROWS_PER_LOOK - 1 && Instant::now() >= deadline);
                if full && let Some((last, _)) = found.last() {
                    // The last key may be of an earlier group than the one being gone through.
                    let next = Cursor { group: KeyGroup::of(last), key: last.to_vec() };
                    return Ok((self.layout.decode(&found, selection)?, Some(next)));
                }
                found.push((key, entry));
            }
        }
        Ok((self.layout.decode(&found, selection)?, None))
    }

    /// The rows with some keys as they were at `time`.
    ///
    /// # Errors
    /// As for [`Self::page`].
    pub(crate) fn lookup(&self, time: Time, keys: &[Vec<u8>], selection: &Selection) -> Result<RecordBatch> {
        self.check_readable(time)?;
        let mut found: Vec<(&[u8], &Entry)> = Vec::with_capacity(keys.len());
        for key in keys {
            let group = KeyGroup::of(key);
            let entry = match self.history.undone(time, group, key) {
                Some(before) => before,
                None => self.groups[group.index()].get(key),
            };
            if let Some(entry) = entry {
                found.push((key, entry));
            }
        }
        self.layout.decode(&found, selection)
    }
}

/// A key's entry with `diff` more of a row.
fn add(entry: Option<Entry>, row: &[u8], diff: i64, unique: bool) -> Result<Option<Entry>> {
    let broken = |what: &str| Err(Error::internal(format!("{what}: the input of this relation is not consistent")));
    match entry {
        None if diff < 0 => broken("a row is retracted that is not there"),
        None if unique && diff > 1 => broken("a unique key has several rows"),
        None => Ok(Some(Entry { value: Value::from_slice(row), count: diff })),
        Some(entry) if entry.value.as_slice() != row => {
            broken(if diff < 0 { "a row is retracted that is not there" } else { "a unique key has several rows" })
        }
        Some(entry) => match entry.count + diff {
            count if count < 0 => broken("a row is retracted that is not there"),
            0 => Ok(None),
            count if unique && count > 1 => broken("a unique key has several rows"),
            count => Ok(Some(Entry { count, ..entry })),
        },
    }
}

impl Arrangement {
    /// Stages a chunk of the next time.
    pub(crate) fn stage(&mut self, chunk: Chunk) {
        self.staged.waiting.push_back(chunk);
    }

    /// Stages rows of the next time that take the place of those with their keys. Behind their columns they carry
    /// their place among the rows of that time.
    pub(crate) fn stage_latest(&mut self, rows: Chunk) {
        self.latest.push(rows);
    }

    /// [`Operator::close`], giving the time's changes to followers.
    pub(crate) fn close_time(&mut self, time: Time, deadline: Instant) -> Result<Option<Rc<TimeChanges>>> {
        let changes = self.apply(time, deadline)?;
        if changes.is_some() {
            self.advance(time.next());
        }
        Ok(changes)
    }
}

// As an operator it has no output: reads and followers take from it.
impl Operator for Arrangement {
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()> {
        let damaged = || Error::new(SqlState::DataCorrupted, "a stored row is damaged");
        let groups = &mut self.groups;
        cx.backend.scan(self.operator, &[], &mut |key, value| {
            let Some(key) = split_value_key(SLOT_NAME, key) else { return Ok(()) };
            let (count, value) = value.split_first_chunk::<8>().ok_or_else(damaged)?;
            let entry = Entry { value: Value::from_slice(value), count: i64::from_le_bytes(*count) };
            groups[KeyGroup::of(key).index()].insert(key, entry);
            Ok(())
        })?;
        self.open_history(cx)
    }

    fn push(&mut self, _: usize, chunk: Chunk) -> Result<()> {
        self.stage(chunk);
        Ok(())
    }

    fn close(&mut self, time: Time, _: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step> {
        Ok(if self.close_time(time, cx.deadline)?.is_some() { Step::Done } else { Step::Again })
    }

    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step> {
        while let Some(rows) = self.groups.get_mut(self.barrier_group) {
            let mut batch = WriteBatch::default();
            rows.take_changed(|key, entry| {
                let stored = value_key(SLOT_NAME, key);
                match entry {
                    Some(entry) => {
                        let mut value = entry.count.to_le_bytes().to_vec();
                        value.extend_from_slice(&entry.value);
                        batch.put(stored, value);
                    }
                    None => batch.erase(stored),
                }
            });
            self.barrier_group += 1;
            cx.write(self.operator, batch)?;
            if cx.expired() && self.barrier_group < self.groups.len() {
                return Ok(Step::Again);
            }
        }
        if self.store_history(cx)? == Step::Again {
            return Ok(Step::Again);
        }
        self.barrier_group = 0;
        Ok(Step::Done)
    }

    fn state_size(&self) -> StateSize {
        let size = |rows: &Rows| StateSize { keys: rows.len(), bytes: rows.bytes() };
        self.groups.iter().map(size).fold(StateSize::default(), |sum, size| sum + size)
    }
}
