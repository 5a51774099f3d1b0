//! `remote-read://` and `disagg-local://`: state that lives in an object store, with a hot tier in memory.
//!
//! Writes gather in memory. A capture detaches them as a *delta*, in no time; `persist` packs the delta into a sorted
//! segment, puts that on top of the layers so far, and from time to time merges small layers into greater ones, so that
//! a checkpoint costs what changed. A snapshot is the list of its layers. Objects are written once and never changed.
//!
//! ```text
//! reads:  changes since the capture → deltas, newest first → loaded values → layers, newest first
//! ```
//!
//! A restore reads no keyed state at all: it takes over the list, narrowed to the share, and reads what is asked for.
//! What is not committed is never evicted; deltas that are, and loaded values, go when the tier exceeds its bytes.

mod backend;
mod pool;
mod reads;
mod segment;

pub use backend::{RemoteOptions, RemoteReadBackend};
pub use pool::{Delta, LayerPool, LoaderPool, RemotePool};

#[cfg(test)]
mod tests;
