//! The rows of an external table that could not be read, as changes of its errors relation.
//!
//! The newest are kept, up to a number; the oldest are retracted. Rows themselves are on no disk but where the source
//! has them: the timeline log says which bindings have bad rows, and those are read again after a start. Their order is
//! that of (time, split, offset), so the same rows are kept as before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};

use super::checkpoints::{BadBindingCut, BadRowsCut};
use super::feeds::Part;
use crate::catalog::errors_schema;
use crate::exec::source::{BadRow, Offset, SplitId};
use crate::types::{Chunk, RelationId, Result, Time};

/// A binding with bad rows.
#[derive(Clone, Debug)]
struct BadBinding {
    time: Time,
    split: SplitId,
    start: Offset,
    end: Offset,
    rows: usize,
}

/// What is kept of one table's bad rows.
pub(super) struct BadRows {
    /// The errors relation.
    pub(super) relation: RelationId,
    retention: usize,
    /// The bindings of the rows that are kept, oldest first.
    history: VecDeque<BadBinding>,
    /// Rows of all bindings in the history.
    rows: usize,
    /// Rows of the oldest one that are not kept any more.
    expired: usize,
    /// The rows that are in the relation, oldest first.
    kept: VecDeque<Chunk>,
    kept_rows: usize,
    /// While the rows of former times are read again.
    recovery: Option<Recovery>,
}

struct Recovery {
    history: Vec<BadBinding>,
    expired: usize,
    found: Vec<(SplitId, BadRow)>,
    /// The rows of earlier times, which are in the relation.
    before: VecDeque<Chunk>,
}

impl BadRows {
    pub(super) fn new(relation: RelationId, retention: usize) -> BadRows {
        BadRows {
            relation,
            retention,
            history: VecDeque::new(),
            rows: 0,
            expired: 0,
            kept: VecDeque::new(),
            kept_rows: 0,
            recovery: None,
        }
    }

    /// A binding with bad rows was made, now or before the start.
    pub(super) fn bind(&mut self, time: Time, split: &SplitId, start: Offset, end: Offset, rows: usize) {
        self.history.push_back(BadBinding { time, split: split.clone(), start, end, rows });
        self.rows += rows;
        while let Some(first) = self.history.front() {
            let over = (self.rows - self.expired).saturating_sub(self.retention);
            let left = first.rows - self.expired;
            if over < left {
                self.expired += over;
                break;
            }
            self.rows -= first.rows;
            self.expired = 0;
            self.history.pop_front();
        }
    }

    /// The places where the rows of former times are read again; none when there are no such rows.
    pub(super) fn begin_recovery(&mut self) -> Vec<Part> {
        let parts = ranges(&self.history);
        if !parts.is_empty() {
            let history = self.history.iter().cloned().collect();
            self.recovery =
                Some(Recovery { history, expired: self.expired, found: Vec::new(), before: VecDeque::new() });
        }
        parts
    }

    /// Likewise, of times behind `time`; `rows` are those of earlier ones, which the relation has.
    pub(super) fn begin_recovery_after(&mut self, time: Time, rows: Vec<Chunk>) -> Vec<Part> {
        let before: VecDeque<Chunk> = rows.into();
        let history: Vec<BadBinding> = self.history.iter().filter(|binding| binding.time > time).cloned().collect();
        let parts = ranges(&history);
        if parts.is_empty() {
            self.kept_rows = before.iter().map(Chunk::rows).sum();
            self.kept = before;
        } else {
            self.recovery = Some(Recovery { history, expired: 0, found: Vec::new(), before });
        }
        parts
    }

    /// What was bound so far, for a checkpoint, and the rows that are in the relation, while they are known.
    pub(super) fn cut(&self, table: RelationId) -> (BadRowsCut, Option<Vec<Chunk>>) {
        let bindings = self.history.iter().map(|binding| BadBindingCut {
            time_millis: binding.time.as_millis(),
            split: binding.split.as_str().to_owned(),
            start: binding.start,
            end: binding.end,
            rows: binding.rows,
        });
        let cut = BadRowsCut { table, bindings: bindings.collect(), expired: self.expired, rows: None };
        (cut, self.recovery.is_none().then(|| self.kept.iter().cloned().collect()))
    }

    /// As a checkpoint has it; without rows.
    pub(super) fn from_cut(relation: RelationId, retention: usize, cut: &BadRowsCut) -> BadRows {
        let history: VecDeque<BadBinding> = cut
            .bindings
            .iter()
            .map(|binding| BadBinding {
                time: Time::from_millis(binding.time_millis),
                split: SplitId::new(binding.split.as_str()),
                start: binding.start,
                end: binding.end,
                rows: binding.rows,
            })
            .collect();
        let rows = history.iter().map(|binding| binding.rows).sum();
        BadRows { history, rows, expired: cut.expired, ..BadRows::new(relation, retention) }
    }

    /// Rows of former times were read again.
    pub(super) fn found(&mut self, split: &SplitId, rows: Vec<BadRow>) {
        if let Some(recovery) = &mut self.recovery {
            recovery.found.extend(rows.into_iter().map(|row| (split.clone(), row)));
        }
    }

    /// All rows of former times are there: what enters the relation.
    pub(super) fn end_recovery(&mut self) -> Result<Vec<Chunk>> {
        let Some(Recovery { history, expired, found, before }) = self.recovery.take() else { return Ok(Vec::new()) };
        let mut bindings: BTreeMap<(&SplitId, Offset), (Offset, Time)> = BTreeMap::new();
        for binding in &history {
            bindings.insert((&binding.split, binding.start), (binding.end, binding.time));
        }
        let mut rows: Vec<(Time, SplitId, BadRow)> = found
            .into_iter()
            .filter_map(|(split, row)| {
                let (_, (end, time)) =
                    bindings.range(..=(&split, row.offset)).next_back().filter(|((of, _), _)| **of == split)?;
                (row.offset < *end).then_some((*time, split.clone(), row))
            })
            .collect();
        rows.sort_by(|a, b| (a.0, &a.1, a.2.offset).cmp(&(b.0, &b.1, b.2.offset)));
        rows.drain(..expired.min(rows.len()));
        let mut entering = Vec::new();
        if !rows.is_empty() {
            entering = Chunk::inserts(&batch(rows.iter().map(|(time, split, row)| (Some(*time), split, row)))?);
        }
        for chunk in entering.iter().rev().chain(before.iter().rev()) {
            self.kept_rows += chunk.rows();
            self.kept.push_front(chunk.clone());
        }
        self.expire(&mut entering)?;
        Ok(entering)
    }

    /// The rows of former times cannot be read again: the relation has failed, and new ones are only kept in bounds.
    pub(super) fn abandon_recovery(&mut self) {
        self.recovery = None;
    }

    /// Bad rows of a time, in order: what enters and leaves the relation.
    pub(super) fn add(&mut self, time: Time, rows: &[(SplitId, BadRow)]) -> Result<Vec<Chunk>> {
        let mut changes = Chunk::inserts(&batch(rows.iter().map(|(split, row)| (Some(time), split, row)))?);
        for chunk in &changes {
            self.kept_rows += chunk.rows();
            self.kept.push_back(chunk.clone());
        }
        // Before the former rows are there, nobody knows which are the oldest.
        if self.recovery.is_none() {
            self.expire(&mut changes)?;
        }
        Ok(changes)
    }

    fn expire(&mut self, changes: &mut Vec<Chunk>) -> Result<()> {
        while self.kept_rows > self.retention {
            let Some(first) = self.kept.pop_front() else { break };
            let over = (self.kept_rows - self.retention).min(first.rows());
            let leaving = first.batch().slice(0, over);
            changes.extend(Chunk::changes(&leaving, &Int64Array::from_value(-1, over)));
            self.kept_rows -= over;
            let staying = Chunk::inserts(&first.batch().slice(over, first.rows() - over));
            staying.into_iter().for_each(|chunk| self.kept.push_front(chunk));
        }
        Ok(())
    }
}

/// The places where the rows of bindings are read again.
fn ranges<'a>(history: impl IntoIterator<Item = &'a BadBinding>) -> Vec<Part> {
    let mut ranges: BTreeMap<&SplitId, (Offset, Offset)> = BTreeMap::new();
    for binding in history {
        let range = ranges.entry(&binding.split).or_insert((binding.start, binding.end));
        *range = (range.0.min(binding.start), range.1.max(binding.end));
    }
    let part = |(split, (from, until)): (&SplitId, _)| Part { split: split.clone(), from, until: Some(until) };
    ranges.into_iter().map(part).collect()
}

/// Bad rows in the schema of an errors relation.
///
/// # Errors
/// None but a fault of the program.
pub(super) fn batch<'a>(rows: impl Iterator<Item = (Option<Time>, &'a SplitId, &'a BadRow)>) -> Result<RecordBatch> {
    let rows: Vec<_> = rows.collect();
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let micros = |time: Time| number(time.as_millis()).saturating_mul(1_000);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(_, _, row)| &row.raw))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(_, _, row)| &row.error))),
        Arc::new(rows.iter().map(|(_, _, row)| row.column.as_deref()).collect::<StringArray>()),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|(_, split, _)| split.as_str()))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, _, row)| number(row.offset.0)))),
        Arc::new(
            rows.iter()
                .map(|(time, _, _)| time.map(micros))
                .collect::<TimestampMicrosecondArray>()
                .with_timezone("UTC"),
        ),
    ];
    Ok(RecordBatch::try_new(errors_schema(), columns)?)
}

#[cfg(test)]
mod tests {
    use arrow::array::AsArray;
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::types::SqlState;

    fn row(offset: u64) -> BadRow {
        BadRow::new(SqlState::InvalidText, b"x", "bad".into(), None, Offset(offset))
    }

    /// The offsets that changes leave in the relation.
    fn offsets(changes: &[Chunk], mut before: Vec<i64>) -> Vec<i64> {
        for chunk in changes {
            let offsets = chunk.column(4).as_primitive::<Int64Type>();
            for index in 0..chunk.rows() {
                if chunk.diff(index) > 0 {
                    before.push(offsets.value(index));
                } else {
                    let at = before.iter().position(|offset| *offset == offsets.value(index)).expect("it is there");
                    before.remove(at);
                }
            }
        }
        before
    }

    #[test]
    fn the_newest_are_kept_and_come_back_as_they_were() {
        let split = SplitId::new("s");
        let mut bad = BadRows::new(RelationId(2), 3);
        let (mut there, mut start) = (Vec::new(), Offset(0));
        for time in 1..=3 {
            let rows: Vec<_> = (0..2).map(|i| (split.clone(), row(time * 10 + i))).collect();
            let end = Offset(time * 10 + 5);
            bad.bind(Time::from_millis(time), &split, start, end, rows.len());
            start = end;
            there = offsets(&bad.add(Time::from_millis(time), &rows).expect("rows"), there);
        }
        assert_eq!(there, [21, 30, 31]);

        // After a restart the bindings are known, and what they cover is read again.
        let mut again = BadRows::new(RelationId(2), 3);
        for (time, start, end) in [(1, 0, 15), (2, 15, 25), (3, 25, 35)] {
            again.bind(Time::from_millis(time), &split, Offset(start), Offset(end), 2);
        }
        let parts = again.begin_recovery();
        assert_eq!((parts.len(), parts[0].from, parts[0].until), (1, Offset(15), Some(Offset(35))));
        // New ones come before the former are there.
        again.bind(Time::from_millis(4), &split, Offset(35), Offset(45), 1);
        let mut there = offsets(&again.add(Time::from_millis(4), &[(split.clone(), row(40))]).expect("rows"), vec![]);
        again.found(&split, vec![row(20), row(21)]);
        again.found(&split, vec![row(30), row(31)]);
        let changes = again.end_recovery().expect("rows");
        there = offsets(&changes, there);
        there.sort_unstable();
        assert_eq!(there, [30, 31, 40]);
    }
}
