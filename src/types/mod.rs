//! Plain values that every layer shares: identities, time, chunks and the user-facing error.

mod chunk;
mod error;
mod ids;
pub mod text;
mod time;

pub use chunk::{CHUNK_ROWS_MAX, Chunk};
pub use error::{Error, Result, SqlState};
pub use ids::{CheckpointId, KEY_GROUPS, KeyGroup, OperatorId, RelationId, fnv1a};
pub use time::Time;
