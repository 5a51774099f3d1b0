//! Counted rows as they were when a read began, while they change.
//!
//! Rows are gone through in the order of their places. A row that changes before it is reached leaves its count behind, once;
//! one that was reached before leaves nothing. So a read costs what changes ahead of it, and only until it is through.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::types::{Error, InspectionId, Result, SqlState};

/// What changes may leave behind for one read on one worker; a read that is slower has lost its time.
pub const PAST_BYTES_MAX: usize = 32 << 20;
/// Rows between two looks at the clock.
const ROWS_PER_LOOK: usize = 256;

/// The error of a read that was slower than what it reads.
pub fn past_lost() -> Error {
    Error::new(SqlState::SnapshotTooOld, "snapshot too old")
        .detail("More rows changed while the operator was read than are kept for a reader.")
        .hint("Read again, faster, or fewer rows: with a key or a filter.")
}

/// Encoded rows, one behind the other.
#[derive(Debug, Default)]
pub struct EncodedRows {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EncodedRows {
    /// Adds a row so many times.
    ///
    /// # Errors
    /// XX000 when the number is below zero.
    pub fn push(&mut self, row: &[u8], count: i64) -> Result<()> {
        let count = u64::try_from(count).map_err(|_| Error::internal("a kept row has a count below zero"))?;
        (0..count).for_each(|_| self.push_once(row));
        Ok(())
    }

    /// Adds a row.
    pub fn push_once(&mut self, row: &[u8]) {
        self.bytes.extend_from_slice(row);
        self.ends.push(self.bytes.len());
    }

    /// Bytes of all rows.
    pub fn byte_len(&self) -> usize {
        self.bytes.len() + size_of_val(self.ends.as_slice())
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The rows.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end])
    }
}

/// A row's place in the order of a read: a number, then the row.
type PlaceOf<Row> = (i64, Row);

/// Reads of counted rows.
#[derive(Debug, Default)]
pub struct Pasts(Vec<Past>);

#[derive(Debug)]
struct Past {
    id: InspectionId,
    /// The last place that was reached.
    reached: Option<PlaceOf<Box<[u8]>>>,
    /// Counts of rows ahead that changed since the read began, as they were.
    left: BTreeMap<PlaceOf<Box<[u8]>>, i64>,
    left_bytes: usize,
    /// More was left behind than is kept.
    lost: bool,
}

impl Pasts {
    /// A read begins: rows are as they are now.
    pub fn begin(&mut self, id: InspectionId) {
        self.0.push(Past { id, reached: None, left: BTreeMap::new(), left_bytes: 0, lost: false });
    }

    /// A read is over.
    pub fn end(&mut self, id: InspectionId) {
        self.0.retain(|past| past.id != id);
    }

    /// A row is about to change that is there so many times.
    pub fn note(&mut self, number: i64, row: &[u8], count: i64) {
        for past in &mut self.0 {
            past.note(number, row, count);
        }
    }

    /// The place from which a read goes on.
    ///
    /// # Errors
    /// 72000 when its rows are not known any more.
    pub fn reached(&self, id: InspectionId) -> Result<Option<PlaceOf<Box<[u8]>>>> {
        let past = self.0.iter().find(|past| past.id == id).filter(|past| !past.lost);
        past.map(|past| past.reached.clone()).ok_or_else(past_lost)
    }

    /// At most about so many of the next rows of a read, as they were, and whether more may follow. `live` gives the rows
    /// behind the place that was reached, with their present counts, in order.
    ///
    /// # Errors
    /// As [`Self::reached`].
    pub fn page<'a>(
        &mut self,
        id: InspectionId,
        live: impl Iterator<Item = (i64, &'a [u8], i64)>,
        rows_max: usize,
        deadline: Instant,
    ) -> Result<(EncodedRows, bool)> {
        let past = self.0.iter_mut().find(|past| past.id == id).filter(|past| !past.lost);
        past.ok_or_else(past_lost)?.page(live, rows_max, deadline)
    }
}

impl Past {
    fn note(&mut self, number: i64, row: &[u8], count: i64) {
        let behind = self.reached.as_ref().is_none_or(|(at, reached)| (number, row) > (*at, &**reached));
        if self.lost || !behind {
            return;
        }
        if let std::collections::btree_map::Entry::Vacant(entry) = self.left.entry((number, row.into())) {
            entry.insert(count);
            self.left_bytes += row.len() + size_of::<(PlaceOf<Box<[u8]>>, i64)>();
            if self.left_bytes > PAST_BYTES_MAX {
                self.lost = true;
                self.left.clear();
            }
        }
    }

    fn page<'a>(
        &mut self,
        live: impl Iterator<Item = (i64, &'a [u8], i64)>,
        rows_max: usize,
        deadline: Instant,
    ) -> Result<(EncodedRows, bool)> {
        let mut rows = EncodedRows::default();
        let mut live = live.peekable();
        let mut last_live: Option<PlaceOf<&[u8]>> = None;
        for turn in 1.. {
            let of_live = live.peek().map(|(number, row, _)| (*number, *row));
            let of_left = self.left.first_key_value().map(|((number, row), _)| (*number, &**row));
            let left_is_next = match (of_live, of_left) {
                (None, None) => {
                    self.pass(last_live);
                    return Ok((rows, false));
                }
                (Some(live), Some(left)) => left <= live,
                (live, _) => live.is_none(),
            };
            if left_is_next {
                if of_left == of_live {
                    live.next();
                }
                if let Some(((number, row), count)) = self.left.pop_first() {
                    self.left_bytes -= row.len() + size_of::<(PlaceOf<Box<[u8]>>, i64)>();
                    rows.push(&row, count)?;
                    (self.reached, last_live) = (Some((number, row)), None);
                }
            } else if let Some((number, row, count)) = live.next() {
                rows.push(row, count)?;
                last_live = Some((number, row));
            }
            if rows.len() >= rows_max || (turn % ROWS_PER_LOOK == 0 && Instant::now() >= deadline) {
                break;
            }
        }
        self.pass(last_live);
        Ok((rows, true))
    }

    fn pass(&mut self, place: Option<PlaceOf<&[u8]>>) {
        if let Some((number, row)) = place {
            self.reached = Some((number, row.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What a read has found so far, by place.
    fn pages(pasts: &mut Pasts, now: &BTreeMap<(i64, Vec<u8>), i64>, rows_max: usize) -> (Vec<Vec<u8>>, bool) {
        let id = InspectionId(1);
        let reached = pasts.reached(id).expect("kept");
        let live = now.iter().filter(|((number, row), _)| {
            reached.as_ref().is_none_or(|(at, reached)| (*number, row.as_slice()) > (*at, &**reached))
        });
        let live = live.map(|((number, row), count)| (*number, row.as_slice(), *count));
        let never = Instant::now() + Duration::from_secs(60);
        let (rows, more) = pasts.page(id, live, rows_max, never).expect("kept");
        (rows.iter().map(<[u8]>::to_vec).collect(), more)
    }

    fn change(pasts: &mut Pasts, now: &mut BTreeMap<(i64, Vec<u8>), i64>, place: (i64, &[u8]), diff: i64) {
        let key = (place.0, place.1.to_vec());
        let before = now.get(&key).copied().unwrap_or(0);
        pasts.note(place.0, place.1, before);
        match before + diff {
            0 => now.remove(&key),
            after => now.insert(key, after),
        };
    }

    #[test]
    fn rows_are_those_of_the_beginning_whatever_changes() {
        let mut pasts = Pasts::default();
        let mut now = BTreeMap::new();
        for (place, count) in [((0, b"a"), 1), ((0, b"c"), 2), ((1, b"a"), 1), ((2, b"x"), 1)] {
            change(&mut pasts, &mut now, (place.0, place.1), count);
        }
        pasts.begin(InspectionId(1));
        // One goes, one comes between, one counts more, and one that went comes back.
        change(&mut pasts, &mut now, (0, b"a"), -1);
        change(&mut pasts, &mut now, (0, b"b"), 1);
        change(&mut pasts, &mut now, (0, b"c"), 3);
        let (first, more) = pages(&mut pasts, &now, 2);
        assert_eq!((first, more), (vec![b"a".to_vec(), b"c".to_vec(), b"c".to_vec()], true));
        // Behind the place nothing is kept; ahead it is.
        change(&mut pasts, &mut now, (0, b"a"), 1);
        change(&mut pasts, &mut now, (1, b"a"), -1);
        change(&mut pasts, &mut now, (1, b"a"), 1);
        change(&mut pasts, &mut now, (2, b"x"), -1);
        change(&mut pasts, &mut now, (3, b"y"), 1);
        let (rest, more) = pages(&mut pasts, &now, 100);
        assert_eq!((rest, more), (vec![b"a".to_vec(), b"x".to_vec()], false));
        assert!(pages(&mut pasts, &now, 100).0.is_empty());
        pasts.end(InspectionId(1));
        assert_eq!(pasts.reached(InspectionId(1)).expect_err("over").code(), SqlState::SnapshotTooOld);
    }

    #[test]
    fn a_read_that_is_too_slow_is_told_so() {
        let mut pasts = Pasts::default();
        pasts.begin(InspectionId(1));
        let wide = vec![0; 1 << 20];
        for number in 0..40 {
            pasts.note(number, &wide, 1);
        }
        assert_eq!(pasts.reached(InspectionId(1)).expect_err("lost").code(), SqlState::SnapshotTooOld);
        assert!(pasts.0[0].left.is_empty(), "what is of no use is not kept");
    }
}
