//! Where operators keep what they know.
//!
//! A [`StateBackend`] stores bytes per (operator, key). Operators do not use it row by row: they hold
//! decoded *tables* ([`KeyIndex`], [`Multiset`]) that remember what changed, and hand the changed
//! entries over at a barrier. With `memory://` the decoded tables are the state.
//!
//! Keys are laid out so that a scan by key group is a range scan:
//!
//! ```text
//! value state    [key group u8][slot '|'][key bytes]
//! map entry      [key group u8][slot "#map" '|'][u32 LE length of key][key bytes][entry bytes]
//! ```
//!
//! The key group is taken over the key bytes alone (FNV-1a modulo 128), which are the typed,
//! order-preserving encoding of [`RowCodec`]. Deliberately absent: operators, SQL.

mod backend;
mod head;
mod key_encoding;
mod key_index;
mod layout;
mod multiset;

pub use backend::{MemoryBackend, StateBackend, Visit, WriteBatch};
pub use head::{Head, HeadFile};
pub use key_encoding::{Encoded, RowCodec, equal_floats};
pub use key_index::{KeyIndex, Slot};
pub use layout::{map_key, map_prefix, split_map_key, split_value_key, value_key};
pub use multiset::Multiset;
