//! Relational operators as plain structs, tested without threads.

mod aggregate;
mod combine;
mod expire;
mod filter;
mod groups_read;
mod hold;
mod hop_aggregate;
mod inspect;
mod join;
mod lifetimes;
mod lookup_join;
mod match_rows;
mod project;
mod rank;
mod rows;
mod session_window;
mod temporal_filter;
mod temporal_join;
mod unnest;

pub use aggregate::Aggregate;
pub(crate) use combine::Combine;
pub use expire::Expire;
pub(crate) use filter::filter;
pub use hold::Hold;
pub use hop_aggregate::HopAggregate;
pub use inspect::{Inspect, InspectedPage};
pub(crate) use inspect::{part_columns, part_source, state_parts};
pub use join::Join;
pub use lookup_join::LookupJoin;
pub use match_rows::MatchRows;
pub(crate) use project::project;
pub use rank::Rank;
pub use session_window::SessionWindow;
pub use temporal_filter::TemporalFilter;
pub use temporal_join::TemporalJoin;
pub(crate) use unnest::{steps, unnest};

use std::time::Instant;

use crate::state::{StateBackend, WriteBatch};
use crate::types::{Chunk, OperatorId, Result, Time, Watermark};

/// What an operator is given while it works.
pub struct Context<'a> {
    /// Where its tables are kept; not read or written outside of `open` and `barrier`.
    pub backend: &'a mut dyn StateBackend,
    /// When its slice of the worker's step ends.
    pub deadline: Instant,
    /// Something was written to the backend.
    pub wrote: bool,
    /// Event time of the closing column of each input at the time before the one that is closed: what is past is late.
    pub before: [Watermark; 2],
    /// The same at the time that is closed.
    pub now: [Watermark; 2],
    /// Changes that came too late, with the number of their input.
    pub late: Vec<(usize, Chunk)>,
}

impl<'a> Context<'a> {
    /// A slice of a step; nothing is written yet.
    pub fn new(backend: &'a mut dyn StateBackend, deadline: Instant) -> Context<'a> {
        Context {
            backend,
            deadline,
            wrote: false,
            before: [Watermark::NONE; 2],
            now: [Watermark::NONE; 2],
            late: Vec::new(),
        }
    }

    /// The same at an event time.
    pub fn with_event_time(self, before: [Watermark; 2], now: [Watermark; 2]) -> Context<'a> {
        Context { before, now, ..self }
    }

    /// Applies an operator's changes to the backend.
    ///
    /// # Errors
    /// When the backend cannot be written.
    pub fn write(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()> {
        if batch.entries.is_empty() {
            return Ok(());
        }
        self.wrote = true;
        self.backend.apply(operator, batch)
    }

    /// True when the slice is used up: hand back control soon.
    pub fn expired(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

/// What an operator keeps on one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateSize {
    /// Groups or rows.
    pub keys: usize,
    /// Bytes of these as they are stored; what the memory's own structures take is not in it.
    pub bytes: usize,
}

impl std::ops::Add for StateSize {
    type Output = StateSize;

    fn add(self, other: StateSize) -> StateSize {
        StateSize { keys: self.keys + other.keys, bytes: self.bytes + other.bytes }
    }
}

/// Whether a time, or a barrier, is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is.
    Done,
    /// There is more to do: call again.
    Again,
}

/// A stateful operator on one worker.
///
/// Its driver calls `open` once, then for each time with input `push` for every chunk of that time
/// followed by `close` until it is done, in the order of times, and `barrier` between two times. A time that it waits
/// for is closed like one with input.
/// Only `close` changes state; its output depends on the input up to its time and on nothing else.
/// After an error or a panic it is not called again.
pub trait Operator: Send {
    /// Takes in what the backend holds of it.
    ///
    /// # Errors
    /// XX001 when that is damaged.
    fn open(&mut self, cx: &mut Context<'_>) -> Result<()>;

    /// True when it has output without any input: it is then closed once at its first time.
    fn starts(&self) -> bool {
        false
    }

    /// True when it does something at times of its own: it is then asked for [`Self::wakes_at`].
    fn is_timed(&self) -> bool {
        false
    }

    /// The next time at which it is to be closed, with input or without: after the last one that was closed. Asked after
    /// `open` and `close`.
    fn wakes_at(&self) -> Option<Time> {
        None
    }

    /// Gathers a chunk of the next time to close; `input` counts the operator's inputs from zero.
    ///
    /// # Errors
    /// When the chunk is not of the planned types.
    fn push(&mut self, input: usize, chunk: Chunk) -> Result<()>;

    /// Acts on a finished time; `out` takes the changes of that time.
    ///
    /// # Errors
    /// When a result cannot be represented, or an invariant is broken.
    fn close(&mut self, time: Time, out: &mut Vec<Chunk>, cx: &mut Context<'_>) -> Result<Step>;

    /// Hands what changed since the last barrier to the backend; called again until it is done, with no other call
    /// between.
    ///
    /// # Errors
    /// When the backend cannot be written.
    fn barrier(&mut self, cx: &mut Context<'_>) -> Result<Step>;

    /// What it keeps now; cheap.
    fn state_size(&self) -> StateSize;

    /// Itself, when its rows can be read while it works.
    fn inspect(&mut self) -> Option<&mut dyn Inspect> {
        None
    }
}

#[cfg(test)]
mod clock_tests;
#[cfg(test)]
mod combine_tests;
#[cfg(test)]
mod expire_tests;
#[cfg(test)]
mod hop_tests;
#[cfg(test)]
mod inspect_tests;
#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod match_tests;
#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod version_tests;
