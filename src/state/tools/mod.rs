//! State as data, without a running job: list it, compare it, export it.
//!
//! Everything works on canonical streams. A checkpoint of any backend, and one of the C++ engine, becomes such a stream
//! first.

mod checkpoint;
mod diff;
mod original;
mod projection;

pub use checkpoint::{export_backend, export_checkpoint};
pub use diff::{Difference, diff};
pub use original::{OriginalCheckpoint, find_original};
pub use projection::{StateRow, export_parquet, query_batch, rows};

#[cfg(test)]
mod tests;
