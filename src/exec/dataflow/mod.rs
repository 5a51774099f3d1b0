//! The wall around timely: the only code that names it.
//!
//! A worker thread steps its dataflows and takes commands between steps. Every worker gets the same
//! commands in the same order, so all build the same dataflows. Times reach a dataflow with a *tick*: all
//! inputs advance behind it, and what follows is timely's progress tracking.
//!
//! ```text
//! Tick ─▶ feed ─┐                       ┌─▶ reads (pages, lookups)
//!               ├─▶ operators ─▶ arrangement
//! arrangement ─▶ edge (hydration, then changes) ─▶ operators of the next view
//! ```
//!
//! Building a dataflow does no I/O and cannot fail: what can fail was tried before, by
//! [`JobSpec::check`].

mod barrier;
mod build;
mod clock;
mod container;
mod deliver;
mod driver;
mod exchange;
mod executor;
mod imports;
mod inspect;
mod job;
mod marks;
mod shared_reads;
mod slices;
mod worker;

pub(crate) use barrier::{Barrier, Captured};
pub(crate) use clock::Clock;
pub(crate) use executor::{Executor, ExecutorConfig};
pub(crate) use imports::{FeedId, FeedInput};
pub(crate) use inspect::{Ask, Inspection};
pub(crate) use job::{ImportKind, JobSpec, JobState, PLACE_COLUMN};
pub(crate) use marks::{Known, Mark};
pub(crate) use worker::{Follow, Peek, PeekAnswer, PeekRange, WorkerCommand};
