//! How far the splits of an external table were read, and what was in them: for people to see.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::exec::relation::lock;
use crate::exec::source::{Offset, Split, SplitId, fault_name};
use crate::types::Time;

use super::feeds::Bound;

/// Rows that became part of the database, by source.
const ROWS: &str = "clink_source_rows_total";
/// Rows that could not be read, by source and reason.
const BAD_ROWS: &str = "clink_source_bad_rows_total";

/// The progress of one external table; shared by those who read it and those who look.
#[derive(Debug, Default)]
pub(crate) struct SourceProgress {
    name: String,
    seen: Mutex<Seen>,
}

/// What was seen of a source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Good rows since the start of the server.
    pub(crate) rows: u64,
    /// Bad rows since the start of the server, by reason.
    pub(crate) bad: BTreeMap<&'static str, u64>,
    /// Its splits.
    pub(crate) splits: BTreeMap<SplitId, SplitProgress>,
}

/// The progress of one split.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SplitProgress {
    /// Up to where it was read.
    pub(crate) offset: Offset,
    /// Where it starts.
    pub(crate) start: Offset,
    /// Where it ends as far as known.
    pub(crate) size: Option<Offset>,
    /// When it was read last.
    pub(crate) time: Option<Time>,
}

impl SplitProgress {
    /// How much was read, in the unit of offsets.
    pub(crate) fn read(&self) -> u64 {
        self.offset.0.saturating_sub(self.start.0)
    }

    /// What is left to read, when that is known.
    pub(crate) fn lag(&self) -> Option<u64> {
        self.size.map(|size| size.0.saturating_sub(self.offset.0))
    }
}

impl SourceProgress {
    pub(crate) fn new(name: String) -> SourceProgress {
        SourceProgress { name, seen: Mutex::default() }
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }

    /// Splits were looked for.
    pub(super) fn found(&self, splits: &[Split]) {
        let mut seen = lock(&self.seen);
        for split in splits {
            let progress = seen.splits.entry(split.id.clone()).or_default();
            progress.size = split.size;
            progress.start = split.start;
            progress.offset = progress.offset.max(split.start);
        }
    }

    /// A split was read up to an offset before the server was started.
    pub(super) fn recovered(&self, split: &SplitId, offset: Offset, time: Time) {
        let mut seen = lock(&self.seen);
        let progress = seen.splits.entry(split.clone()).or_default();
        (progress.offset, progress.time) = (offset, Some(time));
    }

    /// Rows of a split became part of the database.
    pub(super) fn bound(&self, bound: &Bound, time: Time) {
        let mut seen = lock(&self.seen);
        seen.rows += bound.rows as u64;
        metrics::counter!(ROWS, "source" => self.name.clone()).increment(bound.rows as u64);
        for row in &bound.bad {
            let reason = fault_name(row.code);
            *seen.bad.entry(reason).or_default() += 1;
            metrics::counter!(BAD_ROWS, "source" => self.name.clone(), "reason" => reason).increment(1);
        }
        let progress = seen.splits.entry(bound.split.clone()).or_default();
        progress.offset = bound.end;
        progress.time = Some(time);
        progress.size = progress.size.map(|size| size.max(bound.end));
    }
}
