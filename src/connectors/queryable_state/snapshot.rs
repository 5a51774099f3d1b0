//! The rows of one time.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;

use super::client::{Batches, Next};
use super::rows::Rows;
use super::there::There;
use crate::exec::source::{Offset, Read, SourceReader};
use crate::types::{Error, Result, SqlState};

/// How long the other server may leave its reader without rows.
const ROWS_WITHIN: Duration = Duration::from_secs(60);

/// Reads rows until all of one time are in.
pub(super) struct SnapshotReader {
    there: Arc<There>,
    time: u64,
    rows: Rows,
    batches: Batches,
    /// Rows of the stream that were given before.
    skip: u64,
    /// The next rows; none: the stream has ended.
    ahead: Option<RecordBatch>,
    /// Rows of that time that were given, also before.
    given: u64,
    /// No more than that.
    most: u64,
}

impl SnapshotReader {
    /// Goes on behind `given` rows of a stream that begins with the first of them, up to `most`.
    pub(super) fn new(
        there: Arc<There>,
        time: u64,
        rows: Rows,
        batches: Batches,
        (given, most): (u64, u64),
    ) -> Result<SnapshotReader> {
        let mut reader = SnapshotReader { there, time, rows, batches, skip: given, ahead: None, given, most };
        reader.look_ahead()?;
        Ok(reader)
    }

    fn look_ahead(&mut self) -> Result<()> {
        self.ahead = None;
        while self.ahead.is_none() {
            let batch = match self.batches.next(ROWS_WITHIN).map_err(|fault| self.there.error(fault))? {
                Next::Rows(batch) => batch,
                Next::End => return Ok(()),
                Next::Later => {
                    return Err(Error::new(SqlState::CannotConnect, format!("{} gives no more rows", self.there))
                        .hint("See what its server says, then RESUME JOB; SHOW JOBS has the job's name."));
                }
            };
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(batch.num_rows());
            self.skip -= skipped as u64;
            self.ahead = Some(batch.slice(skipped, batch.num_rows() - skipped)).filter(|rest| rest.num_rows() > 0);
        }
        Ok(())
    }
}

impl SourceReader for SnapshotReader {
    fn read(&mut self, rows_max: usize) -> Result<Read> {
        let left = usize::try_from(self.most.saturating_sub(self.given)).unwrap_or(usize::MAX);
        let Some(batch) = self.ahead.take().filter(|_| left > 0) else { return Ok(Read::End) };
        let count = batch.num_rows().min(rows_max).min(self.there.options.batch_size).min(left);
        let start = self.given;
        let given = self.rows.of(&batch.slice(0, count), None, |row| Offset(start + row as u64))?;
        self.given += count as u64;
        if count < batch.num_rows() {
            self.ahead = Some(batch.slice(count, batch.num_rows() - count));
        } else {
            self.look_ahead()?;
        }
        // That all are in is known with the last of them.
        let all = self.ahead.is_none() || self.there.options.limit.is_some_and(|limit| limit <= self.given);
        let end = Offset(if all { self.time } else { self.given });
        Ok(Read::Rows { rows: given.rows, diffs: given.diffs, offsets: given.offsets, bad: given.bad, end })
    }
}

/// Nothing is left to read.
pub(super) struct Nothing;

impl SourceReader for Nothing {
    fn read(&mut self, _: usize) -> Result<Read> {
        Ok(Read::End)
    }
}
