//! Pages that were just answered. What a relation is at a time does not change, so readers who ask the same at the same time
//! share one walk through the rows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

use super::worker::{Peek, PeekAnswer, PeekRange};
use crate::exec::arrangement::Cursor;

/// Pages that are kept, so many, each of so many bytes at most and for so long.
const PAGES_MAX: usize = 8;
const PAGE_BYTES_MAX: usize = 1 << 20;
const KEPT_FOR: Duration = Duration::from_millis(100);

/// Pages that were answered instead of being made again.
const READS_SHARED: &str = "clink_reads_shared_total";

struct Kept {
    peek: Arc<Peek>,
    rows: RecordBatch,
    next: Option<Cursor>,
    at: Instant,
}

/// The pages that a worker answered last.
#[derive(Default)]
pub(super) struct SharedReads(VecDeque<Kept>);

impl SharedReads {
    /// The answer that an equal read got.
    pub(super) fn find(&self, peek: &Peek) -> Option<PeekAnswer> {
        let kept = self.0.iter().find(|kept| is_same(&kept.peek, peek))?;
        metrics::counter!(READS_SHARED).increment(1);
        Some(PeekAnswer { rows: kept.rows.clone(), next: kept.next.clone() })
    }

    /// A read was answered.
    pub(super) fn keep(&mut self, peek: &Arc<Peek>, answer: &PeekAnswer) {
        if !matches!(peek.range, PeekRange::Page { .. }) || answer.rows.get_array_memory_size() > PAGE_BYTES_MAX {
            return;
        }
        if self.0.len() >= PAGES_MAX {
            self.0.pop_front();
        }
        let (peek, rows, next) = (Arc::clone(peek), answer.rows.clone(), answer.next.clone());
        self.0.push_back(Kept { peek, rows, next, at: Instant::now() });
    }

    /// Forgets what is kept long enough.
    pub(super) fn expire(&mut self) {
        while self.0.front().is_some_and(|kept| kept.at.elapsed() > KEPT_FOR) {
            self.0.pop_front();
        }
    }

    /// Relations come or go: a number may mean another's rows.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

fn is_same(one: &Peek, other: &Peek) -> bool {
    let ranges = match (&one.range, &other.range) {
        (
            PeekRange::Page { start, rows_max, narrow },
            PeekRange::Page { start: other_start, rows_max: other_max, narrow: other_narrow },
        ) => start == other_start && rows_max == other_max && narrow == other_narrow,
        _ => false,
    };
    one.relation == other.relation
        && one.time == other.time
        && ranges
        && one.selection.projection == other.selection.projection
        && one.selection.predicate == other.selection.predicate
}
