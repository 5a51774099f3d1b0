//! What the operators of a job did and what they keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use super::operators::StateSize;
use crate::types::Chunk;

/// One operator of a job, over all workers, since the job was built.
#[derive(Debug, Default)]
pub(crate) struct OperatorCounts {
    /// The operator's path in the plan; `rows` and `errors` name what a job keeps of its results.
    pub(crate) path: String,
    /// What it does: `filter`, `aggregate`, …
    pub(crate) name: String,
    rows_in: AtomicU64,
    rows_out: AtomicU64,
    bytes_out: AtomicU64,
    busy_micros: AtomicU64,
    state_keys: AtomicI64,
    state_bytes: AtomicI64,
}

/// The numbers of [`OperatorCounts`] at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperatorNumbers {
    /// Changed rows taken in.
    pub(crate) rows_in: u64,
    /// Changed rows put out.
    pub(crate) rows_out: u64,
    /// Bytes of the batches put out.
    pub(crate) bytes_out: u64,
    /// Time spent working, in microseconds.
    pub(crate) busy_micros: u64,
    /// What is kept.
    pub(crate) state: StateSize,
}

impl OperatorCounts {
    pub(crate) fn new(path: &str, name: &str) -> OperatorCounts {
        OperatorCounts { path: path.to_owned(), name: name.to_owned(), ..OperatorCounts::default() }
    }

    /// A chunk was taken in.
    pub(crate) fn count_in(&self, rows: usize) {
        self.rows_in.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// A chunk is put out.
    pub(crate) fn count_out(&self, chunk: &Chunk) {
        self.rows_out.fetch_add(chunk.rows() as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(chunk.bytes() as u64, Ordering::Relaxed);
    }

    /// The operator worked from `since` to now.
    pub(crate) fn worked(&self, since: Instant) {
        let micros = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.busy_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The numbers now.
    pub(crate) fn numbers(&self) -> OperatorNumbers {
        let kept = |value: &AtomicI64| usize::try_from(value.load(Ordering::Relaxed)).unwrap_or(0);
        OperatorNumbers {
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            busy_micros: self.busy_micros.load(Ordering::Relaxed),
            state: StateSize { keys: kept(&self.state_keys), bytes: kept(&self.state_bytes) },
        }
    }
}

/// What one worker keeps of an operator's state, as last told.
#[derive(Debug)]
pub(crate) struct StateShare {
    counts: Arc<OperatorCounts>,
    told: StateSize,
}

impl StateShare {
    pub(crate) fn new(counts: Arc<OperatorCounts>) -> StateShare {
        StateShare { counts, told: StateSize::default() }
    }

    /// The worker keeps so much now.
    pub(crate) fn tell(&mut self, now: StateSize) {
        let grown = |now: usize, before: usize| now as i64 - before as i64;
        self.counts.state_keys.fetch_add(grown(now.keys, self.told.keys), Ordering::Relaxed);
        self.counts.state_bytes.fetch_add(grown(now.bytes, self.told.bytes), Ordering::Relaxed);
        self.told = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_workers_add_up() {
        let counts = Arc::new(OperatorCounts::new("root", "aggregate"));
        let mut shares = [StateShare::new(Arc::clone(&counts)), StateShare::new(Arc::clone(&counts))];
        shares[0].tell(StateSize { keys: 3, bytes: 30 });
        shares[1].tell(StateSize { keys: 4, bytes: 10 });
        shares[0].tell(StateSize { keys: 1, bytes: 8 });
        assert_eq!(counts.numbers().state, StateSize { keys: 5, bytes: 18 });
    }
}
