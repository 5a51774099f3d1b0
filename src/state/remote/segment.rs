//! A sorted segment: one object with many entries.
//!
//! ```text
//! blocks   entries in order of (operator, key), cut at about 32 KiB:
//!          u64 operator, u32 key length, key, u32 value length (0xFFFFFFFF: erased), value
//! tail     u32 number of blocks, then each: u64 operator and u32 length, key of its first entry,
//!          u64 offset, u32 length, u32 CRC-32C
//!          u32 length, bits of a Bloom filter over (operator, key)
//!          u32 CRC-32C of the tail so far
//! ```
//!
//! Integers are little endian. The length of the tail stands in the snapshot.

use std::ops::Range;

use bytes::Bytes;

use super::super::store::{Part, PartStore};
use crate::types::{OperatorId, Result, fnv1a};

const BLOCK_BYTES: usize = 32 << 10;
const ERASED: u32 = u32::MAX;
const BLOOM_BITS_PER_KEY: usize = 10;
const BLOOM_PROBES: u64 = 6;

/// An entry's place.
pub(super) type Place = (OperatorId, Vec<u8>);

/// A block as the tail describes it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) first: Place,
    pub(super) range: Range<u64>,
    crc32c: u32,
}

/// Builds a segment in memory.
#[derive(Default)]
pub(super) struct SegmentWriter {
    bytes: Vec<u8>,
    blocks: Vec<Block>,
    block_from: usize,
    hashes: Vec<u64>,
    first: Option<Place>,
}

impl SegmentWriter {
    /// Adds an entry, which is greater than the one before; without value it erases.
    pub(super) fn push(&mut self, operator: OperatorId, key: &[u8], value: Option<&[u8]>) {
        self.first.get_or_insert_with(|| (operator, key.to_vec()));
        self.bytes.extend(operator.as_u64().to_le_bytes());
        // Keys and values of 4 GiB do not fit a row.
        self.bytes.extend((key.len() as u32).to_le_bytes());
        self.bytes.extend(key);
        self.bytes.extend(value.map_or(ERASED, |value| value.len() as u32).to_le_bytes());
        self.bytes.extend(value.unwrap_or_default());
        self.hashes.push(hash(operator, key));
        if self.bytes.len() - self.block_from >= BLOCK_BYTES {
            self.end_block();
        }
    }

    fn end_block(&mut self) {
        if let Some(first) = self.first.take() {
            let content = &self.bytes[self.block_from..];
            let range = self.block_from as u64..self.bytes.len() as u64;
            self.blocks.push(Block { first, range, crc32c: crc32c::crc32c(content) });
            self.block_from = self.bytes.len();
        }
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Entries so far.
    pub(super) fn entries(&self) -> usize {
        self.hashes.len()
    }

    /// The object and the length of its tail.
    pub(super) fn finish(mut self) -> (Vec<u8>, u32) {
        self.end_block();
        let mut tail = Vec::new();
        tail.extend((self.blocks.len() as u32).to_le_bytes());
        for Block { first: (operator, key), range, crc32c } in &self.blocks {
            tail.extend(operator.as_u64().to_le_bytes());
            tail.extend((key.len() as u32).to_le_bytes());
            tail.extend(key);
            tail.extend(range.start.to_le_bytes());
            tail.extend(((range.end - range.start) as u32).to_le_bytes());
            tail.extend(crc32c.to_le_bytes());
        }
        let bloom = bloom(&self.hashes);
        tail.extend((bloom.len() as u32).to_le_bytes());
        tail.extend(bloom);
        tail.extend(crc32c::crc32c(&tail).to_le_bytes());
        let length = tail.len() as u32;
        self.bytes.extend(tail);
        (self.bytes, length)
    }
}

fn hash(operator: OperatorId, key: &[u8]) -> u64 {
    // Spread the operator's id over the key's hash.
    let mixed = fnv1a(key) ^ operator.as_u64().wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ (mixed >> 29)
}

fn bits(hash: u64, length: usize) -> impl Iterator<Item = usize> {
    let step = hash.rotate_left(32) | 1;
    (0..BLOOM_PROBES).map(move |probe| (hash.wrapping_add(step.wrapping_mul(probe)) % (length as u64 * 8)) as usize)
}

fn bloom(hashes: &[u64]) -> Vec<u8> {
    let mut bloom = vec![0_u8; (hashes.len() * BLOOM_BITS_PER_KEY).div_ceil(8).max(8)];
    let length = bloom.len();
    for bit in hashes.iter().flat_map(|hash| bits(*hash, length)) {
        bloom[bit / 8] |= 1 << (bit % 8);
    }
    bloom
}

/// A segment's tail in memory.
#[derive(Debug)]
pub(super) struct Index {
    part: Part,
    blocks: Vec<Block>,
    bloom: Vec<u8>,
}

impl Index {
    /// Reads the tail of a stored segment.
    pub(super) fn load(store: &dyn PartStore, part: &Part, tail_bytes: u32) -> Result<Index> {
        let tail_from = part.bytes.checked_sub(u64::from(tail_bytes));
        let tail_from = tail_from.ok_or_else(|| part.damaged("it is shorter than its tail"))?;
        let tail = store.get_range(part, tail_from..part.bytes)?;
        let damaged = || part.damaged("its tail is wrong");
        let (content, crc32c) = tail.split_last_chunk::<4>().ok_or_else(damaged)?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*crc32c) {
            return Err(damaged());
        }
        let mut reader = Reader(content);
        let mut blocks = Vec::new();
        for _ in 0..reader.u32().ok_or_else(damaged)? {
            let operator = OperatorId::from_u64(reader.u64().ok_or_else(damaged)?);
            let key = reader.bytes().ok_or_else(damaged)?.to_vec();
            let offset = reader.u64().ok_or_else(damaged)?;
            let length = reader.u32().ok_or_else(damaged)?;
            let crc32c = reader.u32().ok_or_else(damaged)?;
            let range = offset..offset.saturating_add(u64::from(length));
            blocks.push(Block { first: (operator, key), range, crc32c });
        }
        let bloom = reader.bytes().ok_or_else(damaged)?.to_vec();
        if bloom.is_empty() {
            return Err(damaged());
        }
        Ok(Index { part: part.clone(), blocks, bloom })
    }

    /// Whether an entry can be there.
    pub(super) fn may_contain(&self, operator: OperatorId, key: &[u8]) -> bool {
        bits(hash(operator, key), self.bloom.len()).all(|bit| self.bloom[bit / 8] & (1 << (bit % 8)) != 0)
    }

    /// The block in which an entry lies, if it lies in any.
    pub(super) fn block_of(&self, operator: OperatorId, key: &[u8]) -> Option<usize> {
        let behind = self.blocks.partition_point(|block| (block.first.0, block.first.1.as_slice()) <= (operator, key));
        behind.checked_sub(1)
    }

    /// The first block that can have an entry at or behind a place.
    pub(super) fn block_from(&self, operator: OperatorId, key: &[u8]) -> usize {
        self.block_of(operator, key).unwrap_or(0)
    }

    /// Operators of which a block begins with an entry: with those behind, all that can be in it.
    pub(super) fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// A block's entries, checked.
    pub(super) fn read(&self, store: &dyn PartStore, block: usize) -> Result<Bytes> {
        let Block { range, crc32c, .. } = &self.blocks[block];
        let bytes = store.get_range(&self.part, range.clone())?;
        if crc32c::crc32c(&bytes) == *crc32c {
            Ok(bytes)
        } else {
            Err(self.part.damaged("a block's checksum is wrong"))
        }
    }

    /// The error for a block that cannot be taken apart.
    pub(super) fn damaged(&self) -> crate::types::Error {
        self.part.damaged("a block is no list of entries")
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }
}

/// The entries of a block, in order; ends early at bytes that are none, and then has not reached the end.
pub(super) struct Entries<'a>(Reader<'a>);

impl<'a> Entries<'a> {
    pub(super) fn new(block: &'a [u8]) -> Entries<'a> {
        Entries(Reader(block))
    }

    /// True when the whole block was read.
    pub(super) fn is_finished(&self) -> bool {
        self.0.0.is_empty()
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = (OperatorId, &'a [u8], Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished() {
            return None;
        }
        let operator = OperatorId::from_u64(self.0.u64()?);
        let key = self.0.bytes()?;
        let value = match self.0.u32()? {
            ERASED => None,
            length => Some(self.0.take(length as usize)?),
        };
        Some((operator, key, value))
    }
}
