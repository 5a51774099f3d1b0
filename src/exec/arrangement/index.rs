//! Secondary indexes: which keys have rows with some values in certain columns.
//!
//! An index narrows a read to the keys that may have such rows, in the order of a walk over all; the read's predicate decides.
//! It is made out of the rows that are there, in slices, and kept with every change of a key that was reached. A key that lost a
//! value stays under it until no time can be read at which it had it. A time before the index was whole is read without it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch};

use super::rows::{Entry, Key, Rows};
use super::{Arrangement, Cursor, Layout, ROWS_PER_LOOK, Selection};
use crate::state::{Encoded, RowCodec};
use crate::types::{Error, KEY_GROUPS, KeyGroup, Result, Time};

/// Keys taken out in one go.
const KEYS_PER_STEP: usize = 8_192;

/// Only rows with one of some values in certain columns are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Narrow {
    pub(crate) columns: Vec<usize>,
    /// Encoded as keys of these columns.
    pub(crate) values: Vec<Vec<u8>>,
}

/// A key under a value.
type Place = (Key, KeyGroup, Key);

struct Index {
    columns: Vec<usize>,
    codec: RowCodec,
    /// How often each key came under the value and has not been taken out.
    keys: BTreeMap<Place, u32>,
    /// Keys that lost their value, and when.
    leaving: VecDeque<(Time, Place)>,
    stage: Stage,
}

enum Stage {
    /// Keys up to this one are in.
    Building(Option<(KeyGroup, Key)>),
    /// All are; times from this one on can be read by it.
    Ready(Time),
}

/// The indexes of a relation on one worker.
#[derive(Default)]
pub(super) struct Indexes(Vec<Index>);

/// A key that changed.
pub(super) struct Touched {
    pub(super) key: Key,
    pub(super) before: Option<Entry>,
    pub(super) after: Option<Entry>,
}

impl Index {
    fn has_reached(&self, group: KeyGroup, key: &Key) -> bool {
        match &self.stage {
            Stage::Ready(_) => true,
            Stage::Building(place) => {
                place.as_ref().is_some_and(|(last, until)| (group, key.as_slice()) <= (*last, until.as_slice()))
            }
        }
    }

    /// The values of rows.
    fn values(&self, layout: &Layout, rows: &[(&[u8], &Entry)]) -> Result<Encoded> {
        let outside = self.columns.iter().any(|column| layout.value_columns.contains(column));
        let all = layout.arrays(rows, outside)?;
        let columns: Option<Vec<ArrayRef>> = self.columns.iter().map(|column| all.get(*column)?.clone()).collect();
        let columns = columns.ok_or_else(|| Error::internal("an index of a column that is not there"))?;
        self.codec.encode(&columns, rows.len())
    }

    fn changed(&mut self, layout: &Layout, group: KeyGroup, time: Time, touched: &[Touched]) -> Result<()> {
        let kept: Vec<&Touched> = touched.iter().filter(|touched| self.has_reached(group, &touched.key)).collect();
        let before = self.values(layout, &rows_of(&kept, |touched| touched.before.as_ref()))?;
        let after = self.values(layout, &rows_of(&kept, |touched| touched.after.as_ref()))?;
        let (mut from, mut to) = (0, 0);
        for touched in kept {
            let old = touched.before.is_some().then(|| before.row(from));
            let new = touched.after.is_some().then(|| after.row(to));
            from += usize::from(old.is_some());
            to += usize::from(new.is_some());
            if old == new {
                continue;
            }
            let place = |value: &[u8]| (Key::from_slice(value), group, touched.key.clone());
            if let Some(value) = new {
                *self.keys.entry(place(value)).or_default() += 1;
            }
            if let Some(value) = old {
                self.leaving.push_back((time, place(value)));
            }
        }
        Ok(())
    }

    /// Takes out what lost its value at `since` or before.
    fn forget(&mut self, since: Time) {
        for _ in 0..KEYS_PER_STEP {
            let Some((_, place)) = self.leaving.pop_front_if(|(time, _)| *time <= since) else { return };
            if let Some(times) = self.keys.get_mut(&place) {
                *times -= 1;
                if *times == 0 {
                    self.keys.remove(&place);
                }
            }
        }
    }

    /// Takes in the next keys; true when none are left.
    fn build(&mut self, layout: &Layout, groups: &[Rows]) -> Result<bool> {
        let Stage::Building(place) = &self.stage else { return Ok(true) };
        let first = place.as_ref().map_or(0, |(group, _)| group.index());
        let mut found: Vec<(&[u8], &Entry)> = Vec::new();
        'walk: for group in (first..KEY_GROUPS).map(KeyGroup::new) {
            let after = place.as_ref().filter(|(last, _)| *last == group).map(|(_, key)| key.as_slice());
            for row in groups[group.index()].behind(after) {
                if found.len() >= ROWS_PER_LOOK {
                    break 'walk;
                }
                found.push(row);
            }
        }
        let Some((last, _)) = found.last() else { return Ok(true) };
        let reached = (KeyGroup::of(last), Key::from_slice(last));
        let values = self.values(layout, &found)?;
        for (row, (key, _)) in found.iter().enumerate() {
            let place = (Key::from_slice(values.row(row)), KeyGroup::of(key), Key::from_slice(key));
            *self.keys.entry(place).or_default() += 1;
        }
        self.stage = Stage::Building(Some(reached));
        Ok(false)
    }

    /// Keys under some values, behind a place, at most so many; in order, each once.
    fn candidates(&self, values: &[Vec<u8>], start: Option<&Cursor>, most: usize) -> Vec<(KeyGroup, &[u8])> {
        let mut found = Vec::new();
        for value in values {
            let value = Key::from_slice(value);
            let from = match start {
                Some(cursor) => Bound::Excluded((value.clone(), cursor.group, Key::from_slice(&cursor.key))),
                None => Bound::Included((value.clone(), KeyGroup::new(0), Key::new())),
            };
            let under = self.keys.range((from, Bound::Unbounded)).take_while(|((of, _, _), _)| *of == value);
            found.extend(under.take(most).map(|((_, group, key), _)| (*group, key.as_slice())));
        }
        found.sort_unstable();
        found.dedup();
        found.truncate(most);
        found
    }
}

/// The rows of keys, where they are there.
fn rows_of<'a>(touched: &[&'a Touched], of: fn(&Touched) -> Option<&Entry>) -> Vec<(&'a [u8], &'a Entry)> {
    touched.iter().copied().filter_map(|touched| Some((touched.key.as_slice(), of(touched)?))).collect()
}

impl Indexes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys of a group changed at a time.
    pub(super) fn changed(&mut self, layout: &Layout, group: KeyGroup, time: Time, touched: &[Touched]) -> Result<()> {
        if touched.is_empty() {
            return Ok(());
        }
        self.0.iter_mut().try_for_each(|index| index.changed(layout, group, time, touched))
    }

    pub(super) fn forget(&mut self, since: Time) {
        self.0.iter_mut().for_each(|index| index.forget(since));
    }
}

impl Arrangement {
    /// Keeps indexes of these columns, and no others.
    ///
    /// # Errors
    /// 0A000 when a column cannot be a key.
    pub(crate) fn set_indexes(&mut self, wanted: &[Vec<usize>]) -> Result<()> {
        self.indexes.0.retain(|index| wanted.contains(&index.columns));
        for columns in wanted {
            if self.indexes.0.iter().any(|index| index.columns == *columns) {
                continue;
            }
            let schema = &self.layout.schema;
            let types: Option<Vec<_>> =
                columns.iter().map(|column| Some(schema.fields().get(*column)?.data_type().clone())).collect();
            let types = types.ok_or_else(|| Error::internal("an index of a column that is not there"))?;
            self.indexes.0.push(Index {
                columns: columns.clone(),
                codec: RowCodec::for_keys(&types)?,
                keys: BTreeMap::new(),
                leaving: VecDeque::new(),
                stage: Stage::Building(None),
            });
        }
        Ok(())
    }

    /// True while an index is not whole.
    pub(crate) fn is_indexing(&self) -> bool {
        self.indexes.0.iter().any(|index| matches!(index.stage, Stage::Building(_)))
    }

    /// Goes on with indexes that are not whole.
    ///
    /// # Errors
    /// None but a fault of the program.
    pub(crate) fn build_indexes(&mut self, deadline: Instant) -> Result<()> {
        // What has left a value before it was reached is not under it: those times are read without the index.
        let from = self.upper.previous().unwrap_or(Time::ZERO).max(self.history.newest());
        for index in &mut self.indexes.0 {
            while matches!(index.stage, Stage::Building(_)) {
                if index.build(&self.layout, &self.groups)? {
                    index.stage = Stage::Ready(from);
                }
                if Instant::now() >= deadline {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// As [`Self::page`], of rows that an index finds; `None` when there is no such index for that time.
    ///
    /// # Errors
    /// As for [`Self::page`].
    pub(crate) fn narrowed(
        &self,
        time: Time,
        start: Option<&Cursor>,
        rows_max: usize,
        narrow: &Narrow,
        selection: &Selection,
    ) -> Result<Option<(RecordBatch, Option<Cursor>)>> {
        self.check_readable(time)?;
        let usable = |index: &&Index| {
            index.columns == narrow.columns && matches!(index.stage, Stage::Ready(from) if from <= time)
        };
        let Some(index) = self.indexes.0.iter().find(usable) else { return Ok(None) };
        let most = rows_max.clamp(1, ROWS_PER_LOOK);
        let mut keys = index.candidates(&narrow.values, start, most + 1);
        let more = keys.len() > most;
        keys.truncate(most);
        let mut found: Vec<(&[u8], &Entry)> = Vec::with_capacity(keys.len());
        for (group, key) in &keys {
            let entry = match self.history.undone(time, *group, key) {
                Some(before) => before,
                None => self.groups[group.index()].get(key),
            };
            found.extend(entry.map(|entry| (*key, entry)));
        }
        let last = keys.last().filter(|_| more);
        let next = last.map(|(group, key)| Cursor { group: *group, key: key.to_vec() });
        Ok(Some((self.layout.decode(&found, selection)?, next)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use arrow::array::{Array, AsArray, Int64Array};
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use proptest::prelude::*;

    use super::*;
    use crate::exec::arrangement::history::Needs;
    use crate::types::{Chunk, OperatorId};

    fn schema() -> Arc<Schema> {
        Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, false), Field::new("v", DataType::Int64, true)]))
    }

    fn kept() -> Arrangement {
        let layout = Layout::new(schema(), &[0]).expect("a layout");
        Arrangement::new(OperatorId::of("t", "rows"), layout, Time::from_millis(1), false)
    }

    fn at(time: u64) -> Time {
        Time::from_millis(time)
    }

    fn never() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Key, value, diff.
    type Change = (i64, Option<i64>, i64);

    fn apply(arrangement: &mut Arrangement, time: u64, changes: &[Change]) {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(changes.iter().map(|change| change.0))),
            Arc::new(changes.iter().map(|change| change.1).collect::<Int64Array>()),
        ];
        let rows = RecordBatch::try_new(schema(), columns).expect("fits");
        let diffs = Int64Array::from_iter_values(changes.iter().map(|change| change.2));
        Chunk::changes(&rows, &diffs).into_iter().for_each(|chunk| arrangement.stage(chunk));
        arrangement.close_time(at(time), never()).expect("consistent").expect("in time");
    }

    fn all() -> Selection {
        Selection { projection: vec![0, 1], predicate: None }
    }

    fn pairs(rows: &RecordBatch, wanted: i64) -> Vec<(i64, i64)> {
        let column = |at: usize| rows.column(at).as_primitive::<Int64Type>();
        let (keys, values) = (column(0), column(1));
        let there = (0..rows.num_rows()).filter(|row| values.is_valid(*row) && values.value(*row) == wanted);
        there.map(|row| (keys.value(row), values.value(row))).collect()
    }

    /// The rows with a value at a time, by the index in pages of two; `None` when it cannot be read by it.
    fn found(arrangement: &Arrangement, time: u64, value: i64) -> Option<Vec<(i64, i64)>> {
        let codec = RowCodec::for_keys(&[DataType::Int64]).expect("a key");
        let encoded = codec.encode(&[Arc::new(Int64Array::from(vec![value]))], 1).expect("a value");
        let narrow = Narrow { columns: vec![1], values: vec![encoded.row(0).to_vec()] };
        let (mut rows, mut start) = (Vec::new(), None);
        loop {
            let page = arrangement.narrowed(at(time), start.as_ref(), 2, &narrow, &all()).expect("readable")?;
            rows.extend(pairs(&page.0, value));
            start = page.1;
            if start.is_none() {
                return Some(rows);
            }
        }
    }

    fn walked(arrangement: &Arrangement, time: u64, value: i64) -> Vec<(i64, i64)> {
        let (rows, next) = arrangement.page(at(time), None, usize::MAX, never(), &all()).expect("readable");
        assert!(next.is_none());
        pairs(&rows, value)
    }

    #[test]
    fn a_key_is_found_by_what_it_has_and_by_what_it_had() {
        let mut kept = kept();
        apply(&mut kept, 1, &[(1, Some(7), 1), (2, Some(8), 1), (3, None, 1), (4, Some(7), 1)]);
        kept.set_indexes(&[vec![1]]).expect("a key");
        assert_eq!(found(&kept, 1, 7), None, "it is not made yet");
        kept.build_indexes(never()).expect("made");
        assert!(!kept.is_indexing());
        assert_eq!(found(&kept, 1, 7).map(|rows| rows.len()), Some(2));
        apply(&mut kept, 2, &[(1, Some(7), -1), (1, Some(8), 1), (4, Some(7), -1)]);
        assert_eq!(found(&kept, 2, 7), Some(vec![]));
        assert_eq!(found(&kept, 2, 8).map(|rows| rows.len()), Some(2));
        assert_eq!(found(&kept, 1, 7).map(|rows| rows.len()), Some(2), "as it was");
        // What nobody can read any more is forgotten.
        apply(&mut kept, 60_000, &[(9, None, 1)]);
        kept.forget(Needs::default());
        assert_eq!(kept.indexes.0[0].keys.len(), 4, "1, 2, 3 and 9");
        assert!(kept.indexes.0[0].leaving.is_empty());
        kept.set_indexes(&[]).expect("none");
        assert_eq!(found(&kept, 60_000, 8), None);
    }

    proptest! {
        /// What an index finds is what a walk finds, at every time, when changes come while it is made.
        #[test]
        fn an_index_finds_what_a_walk_finds(
            times in prop::collection::vec(prop::collection::vec((0_i64..12, prop::option::of(0_i64..4)), 0..8), 1..12),
            made in 0_usize..12,
        ) {
            let mut kept = kept();
            let mut model: BTreeMap<i64, Option<i64>> = BTreeMap::new();
            for (number, writes) in times.iter().enumerate() {
                let mut net: BTreeMap<i64, Option<Option<i64>>> = BTreeMap::new();
                for (key, value) in writes {
                    // A NULL takes the key away.
                    net.insert(*key, value.map(Some));
                }
                let mut changes: Vec<Change> = Vec::new();
                for (key, after) in net {
                    changes.extend(model.remove(&key).map(|before| (key, before, -1)));
                    if let Some(value) = after {
                        changes.push((key, value, 1));
                        model.insert(key, value);
                    }
                }
                let time = number as u64 + 1;
                apply(&mut kept, time, &changes);
                if number == made {
                    kept.set_indexes(&[vec![1]]).expect("a key");
                    // A deadline that is over lets it take one step.
                    kept.build_indexes(Instant::now()).expect("made");
                } else if number > made {
                    kept.build_indexes(never()).expect("made");
                }
                for read in 1..=time {
                    for value in 0..4 {
                        if let Some(rows) = found(&kept, read, value) {
                            prop_assert_eq!(&rows, &walked(&kept, read, value));
                        }
                    }
                }
                prop_assert!(number <= made || found(&kept, time, 0).is_some(), "it is whole by now");
            }
        }
    }
}
