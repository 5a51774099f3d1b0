//! `changelog*`: a log of changes beside a working store, so that a checkpoint costs what changed.
//!
//! ```text
//! sequence number   0         1              2         3
//! changes             a       | b            | c       | d
//! checkpoint 1      [0 … 1)   |              |         |
//! base sampled                |              S = 2     |
//! checkpoint 2      [0 … 1)   [1 … … … … … … … … … 3)  |
//! checkpoint 3      base(2)                  [2 … … 3) [3 … 4)
//! ```
//!
//! A change carries the sequence number in force when it was made. A checkpoint closes the open range of changes,
//! advances the number and waits for the uploads of all segments that the base does not cover; segments that went up
//! before are used again. A *base* is a snapshot of the working store, cut at a sampled number `S` on the worker's thread
//! and written in the background, while checkpoints go on with the old one. When it is durable, segments below `S` are
//! forgotten; one that straddles `S` is used with a filter. Nothing is deleted here: a part goes when the last retained
//! checkpoint that names it goes.
//!
//! Changes of one key are folded only inside the open range and under the same sequence number: what a checkpoint or a
//! base has sampled is never touched.

mod backend;
mod log;
mod segment;

pub use backend::{ChangelogBackend, ChangelogOptions};
pub(super) use segment::{Change, encode, replay};

#[cfg(test)]
mod tests;
