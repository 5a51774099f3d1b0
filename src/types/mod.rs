//! Plain values that every layer shares: identities, time, chunks and the user-facing error.

mod chunk;
mod error;
mod ids;
pub mod json;
mod limits;
pub mod text;
mod time;
mod time_zone;
mod type_oid;
mod watermark;

pub use chunk::{CHUNK_ROWS_MAX, Chunk};
pub use error::{Error, Result, SqlState};
pub use ids::{CheckpointId, InspectionId, KEY_GROUPS, KeyGroup, OperatorId, RelationId, fnv1a};
pub use json::JSONB;
pub use limits::{Limit, Limits, Unit};
pub use time::Time;
pub use time_zone::TimeZone;
pub use type_oid::{is_bare_numeric, type_length, type_modifier, type_oid};
pub use watermark::Watermark;
