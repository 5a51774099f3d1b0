//! Decoded state in front of a backend, inside one operator.
//!
//! Keys have dense slots ([`KeyIndex`](super::KeyIndex)) and values are columns by slot ([`Cells`]), so that work on a batch of
//! rows touches no bytes. The tier knows which values changed, writes them at a barrier, and forgets clean ones under a
//! budget.
//!
//! **One time.** `want` the keys of the time's changes; `load` what is missing in one batched read, or `request` it and
//! hand it in with `arrive`, while the time stays open; `touch` or `erase` a slot before its value is changed; `end_time`
//! when the time has closed. From `want` to `end_time` an entry is pinned. A write to a key whose value has not arrived
//! wins over the value. That a key is absent is known too and not asked for again.
//!
//! **A barrier.** `freeze` ends the generation of changes in no time. `drain` then writes it to the backend in slices;
//! whoever changes a frozen value first has its old bytes saved. When `drain` says that all is written, the backend is
//! captured, and `captured` told. There are two generations at most: the next `freeze` needs the last one drained.
//! Between, `write_early` may relieve the tier of dirty values, so that a barrier finds few; not between `freeze` and
//! `captured`, or the capture would hold changes of later times.
//!
//! **Entries.** A value can have map entries, such as the counted values of a `min`. They are stored under keys of their own,
//! read when their key's value is, written when it is, and evicted with it.
//!
//! Nothing reads the backend round the tier: what it holds of a key may be older.

mod lru;
mod tier;

pub use tier::{Cells, HotTier, Residence};

#[cfg(test)]
mod tests;
