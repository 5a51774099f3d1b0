//! In which order the rows of a source's splits became part of the database, and reading them in that order again.
//!
//! It matters where rows replace each other by key: then the last one counts, of whatever split it is. Checkpoints and the
//! timeline log behind them have the order, so a start comes to the same rows as before.

use std::collections::{BTreeMap, HashMap};

use arrow::array::{Int64Array, RecordBatch};

use crate::exec::source::{Offset, Read, SourceReader, SplitId};
use crate::types::{Error, Result, SqlState};

/// Which split was read up to where, in order; one that was read twice in a row is there once.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadingOrder {
    steps: Vec<(SplitId, Offset)>,
    /// Where reading begins, of splits that are not read from their start.
    from: BTreeMap<SplitId, Offset>,
}

/// A reading order as a manifest holds it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct OrderCut {
    splits: Vec<String>,
    /// The place of a split among them, and up to where it was read.
    steps: Vec<(usize, Offset)>,
}

impl ReadingOrder {
    /// A split was read up to an offset next.
    pub(super) fn bind(&mut self, split: &SplitId, end: Offset) {
        match self.steps.last_mut() {
            Some((last, until)) if last == split => *until = end,
            _ => self.steps.push((split.clone(), end)),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.steps.iter().all(|(_, end)| *end == Offset::default())
    }

    /// What is left of it for one who has what was read up to some offsets.
    pub(super) fn behind(&self, read: &BTreeMap<SplitId, Offset>) -> ReadingOrder {
        let is_new = |(split, end): &&(SplitId, Offset)| read.get(split).is_none_or(|read| read < end);
        ReadingOrder { steps: self.steps.iter().filter(is_new).cloned().collect(), from: read.clone() }
    }

    /// As a manifest holds it.
    pub(super) fn cut(&self) -> OrderCut {
        let mut cut = OrderCut::default();
        let mut places: HashMap<&SplitId, usize> = HashMap::new();
        for (split, end) in &self.steps {
            let place = *places.entry(split).or_insert_with(|| {
                cut.splits.push(split.as_str().to_owned());
                cut.splits.len() - 1
            });
            cut.steps.push((place, *end));
        }
        cut
    }

    /// From a manifest.
    ///
    /// # Errors
    /// XX001 when a step is of no split.
    pub(super) fn from_cut(cut: &OrderCut) -> Result<ReadingOrder> {
        let splits: Vec<SplitId> = cut.splits.iter().map(|split| SplitId::new(split.as_str())).collect();
        let step = |(place, end): &(usize, Offset)| Some((splits.get(*place)?.clone(), *end));
        let steps: Option<Vec<_>> = cut.steps.iter().map(step).collect();
        let damaged = || Error::new(SqlState::DataCorrupted, "a reading order names a split that is not there");
        Ok(ReadingOrder { steps: steps.ok_or_else(damaged)?, from: BTreeMap::new() })
    }

    /// Reads all of it in order. `open` begins a split between two offsets, with the places of rows; `give` takes rows
    /// and their diffs and tells whether more are wanted; `wait` lets a split that has nothing for now be asked again,
    /// and tells likewise.
    ///
    /// # Errors
    /// Those of opening and reading.
    pub(super) fn read(
        &self,
        rows_max: usize,
        mut open: impl FnMut(&SplitId, Offset, Offset) -> Result<Box<dyn SourceReader>>,
        mut give: impl FnMut(&SplitId, Offset, RecordBatch, Option<Int64Array>) -> bool,
        mut wait: impl FnMut() -> bool,
    ) -> Result<()> {
        let ends: HashMap<&SplitId, (usize, Offset)> =
            self.steps.iter().enumerate().map(|(step, (split, end))| (split, (step, *end))).collect();
        let mut splits: HashMap<&SplitId, OpenSplit> = HashMap::new();
        for (step, (split, until)) in self.steps.iter().enumerate() {
            let (last, end) = ends[split];
            let reading = match splits.entry(split) {
                std::collections::hash_map::Entry::Occupied(reading) => reading.into_mut(),
                std::collections::hash_map::Entry::Vacant(place) => {
                    let from = self.from.get(split).copied().unwrap_or_default();
                    place.insert(OpenSplit { reader: open(split, from, end)?, rest: None })
                }
            };
            loop {
                match reading.next(*until, rows_max)? {
                    Next::Rows(Piece { rows, diffs, end, .. }) => {
                        if rows.num_rows() > 0 && !give(split, end, rows, diffs) {
                            return Ok(());
                        }
                    }
                    Next::Later if wait() => {}
                    Next::Later => return Ok(()),
                    Next::Over => break,
                }
            }
            if step == last {
                splits.remove(split);
            }
        }
        Ok(())
    }
}

/// A split that is read in steps.
struct OpenSplit {
    reader: Box<dyn SourceReader>,
    /// Rows of a later step.
    rest: Option<Piece>,
}

/// Rows, where each starts, and where they end.
struct Piece {
    rows: RecordBatch,
    diffs: Option<Int64Array>,
    offsets: Vec<Offset>,
    end: Offset,
}

enum Next {
    Rows(Piece),
    /// None for now.
    Later,
    /// None of this step any more.
    Over,
}

impl OpenSplit {
    /// The next rows that start before `until`.
    fn next(&mut self, until: Offset, rows_max: usize) -> Result<Next> {
        let piece = match self.rest.take() {
            Some(rest) => rest,
            None => match self.reader.read(rows_max)? {
                Read::Rows { rows, diffs, offsets, end, .. } => Piece { rows, diffs, offsets, end },
                Read::Idle => return Ok(Next::Later),
                Read::End => return Ok(Next::Over),
            },
        };
        if piece.end <= until {
            return Ok(Next::Rows(piece));
        }
        let before = piece.offsets.partition_point(|offset| *offset < until);
        let behind = piece.rows.num_rows() - before;
        let diffs = |from, count| piece.diffs.as_ref().map(|diffs| diffs.slice(from, count));
        self.rest = Some(Piece {
            rows: piece.rows.slice(before, behind),
            diffs: diffs(before, behind),
            offsets: piece.offsets[before..].to_vec(),
            end: piece.end,
        });
        let now = Piece { rows: piece.rows.slice(0, before), diffs: diffs(0, before), offsets: Vec::new(), end: until };
        Ok(if before > 0 { Next::Rows(now) } else { Next::Over })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, Int64Array};
    use arrow::datatypes::Int64Type;

    use super::*;

    /// A row of ten bytes each, read three at a time.
    struct Tens(VecDeque<i64>, u64);

    impl SourceReader for Tens {
        fn read(&mut self, _: usize) -> Result<Read> {
            let rows: Vec<i64> = self.0.drain(..self.0.len().min(3)).collect();
            if rows.is_empty() {
                return Ok(Read::End);
            }
            let offsets = (0..rows.len() as u64).map(|row| Offset(self.1 + row * 10)).collect();
            self.1 += rows.len() as u64 * 10;
            let column: ArrayRef = Arc::new(Int64Array::from(rows));
            let rows = RecordBatch::try_from_iter([("a", column)]).expect("a batch");
            Ok(Read::Rows { rows, diffs: None, offsets, bad: Vec::new(), end: Offset(self.1) })
        }
    }

    #[test]
    fn rows_come_in_the_order_of_the_log() {
        let (a, b) = (SplitId::new("a"), SplitId::new("b"));
        let mut order = ReadingOrder::default();
        assert!(order.is_empty());
        for (split, end) in [(&a, 10), (&a, 20), (&b, 40), (&a, 50), (&b, 50)] {
            order.bind(split, Offset(end));
        }
        assert_eq!(order.steps.len(), 4, "a split twice in a row is one step");
        let open = |split: &SplitId, from: Offset, end: Offset| -> Result<Box<dyn SourceReader>> {
            let first = if split.as_str() == "a" { 0 } else { 100 };
            Ok(Box::new(Tens((first + from.0 as i64 / 10..first + end.0 as i64 / 10).collect(), from.0)))
        };
        let read = |order: &ReadingOrder| {
            let mut seen = Vec::new();
            let give = |_: &SplitId, _, rows: RecordBatch, _| {
                seen.extend(rows.column(0).as_primitive::<Int64Type>().values().iter().copied());
                true
            };
            order.read(8, open, give, || false).expect("read");
            seen
        };
        assert_eq!(read(&order), [0, 1, 100, 101, 102, 103, 2, 3, 4, 104]);
        let order = ReadingOrder::from_cut(&order.cut()).expect("whole");
        let up_to = |a: u64, b: u64| BTreeMap::from([(SplitId::new("a"), Offset(a)), (SplitId::new("b"), Offset(b))]);
        assert_eq!(read(&order.behind(&up_to(30, 40))), [3, 4, 104]);
        assert!(order.behind(&up_to(50, 50)).is_empty());
        let foreign = OrderCut { splits: Vec::new(), steps: vec![(0, Offset(1))] };
        assert_eq!(ReadingOrder::from_cut(&foreign).expect_err("damaged").code(), SqlState::DataCorrupted);
    }
}
