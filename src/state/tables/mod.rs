//! Typed state over bytes: what an operator keeps for a key, in the layout that every backend stores.
//!
//! | table | keys | an addition costs |
//! | --- | --- | --- |
//! | [`ValueState`], [`ReducingState`], [`AggregatingState`] | one for each user key | one write |
//! | [`MapState`], [`ListState`] | one for each entry | one write, however many there are |
//! | [`BroadcastState`] | one, on every worker | one write |
//!
//! They read and write a [`StateBackend`](super::StateBackend) at once and hold nothing. An operator on the path of every
//! row keeps decoded columns instead and uses the [hot tier](super::HotTier), which stores the same bytes.

mod codec;
mod collections;
mod migration;
mod ttl;
mod value;

pub use codec::{BytesCodec, Codec, I64Codec, PairCodec, TextCodec, U32Codec, U64Codec, VecCodec};
pub use collections::{ListState, MapState};
pub use migration::{Migrations, migrate};
pub use ttl::{ExpiringValue, Refresh, TtlConfig, decode_expiring, encode_expiring, expiry_key, expiry_prefix};
pub use value::{AggregatingState, Aggregation, BroadcastState, ReducingState, ValueState};

#[cfg(test)]
mod tests;
