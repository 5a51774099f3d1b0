//! The timeline: sequence numbers, the open range and the segments.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use super::super::deferred::Deferred;
use super::super::snapshot::StateVersions;
use super::super::store::{Part, PartStore};
use super::segment::{Change, encode};
use crate::types::OperatorId;

/// A closed range of changes, on its way to the store or there.
#[derive(Clone)]
pub(super) struct Segment {
    pub(super) range: Range<u64>,
    pub(super) upload: Arc<Deferred<Part>>,
}

/// The log of one backend in one life.
pub(super) struct Log {
    store: Arc<dyn PartStore>,
    /// What the names of segments begin with; unique to the worker and its life.
    prefix: String,
    sqn: u64,
    open_from: u64,
    open: Vec<Change>,
    /// Where the last change of a key under the present number is; only kept when changes are folded.
    latest: HashMap<(OperatorId, Vec<u8>), usize>,
    folds: bool,
    open_bytes: usize,
    segments: Vec<Segment>,
}

impl Log {
    pub(super) fn new(store: Arc<dyn PartStore>, prefix: String, folds: bool) -> Log {
        Log {
            store,
            prefix,
            sqn: 0,
            open_from: 0,
            open: Vec::new(),
            latest: HashMap::new(),
            folds,
            open_bytes: 0,
            segments: Vec::new(),
        }
    }

    /// The number that changes get now.
    #[cfg(test)]
    pub(super) fn sqn(&self) -> u64 {
        self.sqn
    }

    /// Bytes of changes that are in no segment yet.
    pub(super) fn open_bytes(&self) -> usize {
        self.open_bytes
    }

    pub(super) fn append(&mut self, operator: OperatorId, key: &[u8], value: Option<&[u8]>) {
        let value = value.map(<[u8]>::to_vec);
        if self.folds {
            let length = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
            match self.latest.entry((operator, key.to_vec())) {
                hashbrown::hash_map::Entry::Occupied(place) => {
                    let change = &mut self.open[*place.get()];
                    self.open_bytes = self.open_bytes + length(&value) - length(&change.value);
                    change.value = value;
                    return;
                }
                hashbrown::hash_map::Entry::Vacant(place) => {
                    place.insert(self.open.len());
                }
            }
        }
        self.open_bytes += key.len() + value.as_ref().map_or(0, Vec::len) + size_of::<Change>();
        self.open.push(Change { sqn: self.sqn, operator, key: key.to_vec(), value });
    }

    fn advance(&mut self) -> u64 {
        self.sqn += 1;
        self.latest.clear();
        self.sqn
    }

    /// Samples the number for a base: it covers all changes made before. The open range stays open.
    pub(super) fn sample(&mut self) -> u64 {
        self.advance()
    }

    /// Closes the open range, when there is a change in it. The segment's upload is not begun.
    pub(super) fn close(&mut self) -> Option<Segment> {
        let to = self.advance();
        let range = self.open_from..to;
        self.open_from = to;
        self.open_bytes = 0;
        let changes = std::mem::take(&mut self.open);
        if changes.is_empty() {
            return None;
        }
        let (store, name) = (Arc::clone(&self.store), format!("{}{}-{}.log", self.prefix, range.start, range.end));
        let upload = Deferred::new(move || store.put(&name, encode(&changes, &StateVersions::default())?.into()));
        let segment = Segment { range, upload };
        self.segments.push(segment.clone());
        Some(segment)
    }

    /// The segments that have changes at or after `after`, with the part of their range that counts.
    pub(super) fn segments(&self, after: u64) -> Vec<Segment> {
        let counted = |segment: &Segment| Segment {
            range: segment.range.start.max(after)..segment.range.end,
            upload: Arc::clone(&segment.upload),
        };
        self.segments.iter().filter(|segment| segment.range.end > after).map(counted).collect()
    }

    /// Forgets segments that lie below a durable base. Their parts stay.
    pub(super) fn truncate(&mut self, before: u64) {
        self.segments.retain(|segment| segment.range.end > before);
    }

    /// Parts that are there.
    pub(super) fn parts(&self) -> impl Iterator<Item = Part> {
        self.segments.iter().filter_map(|segment| segment.upload.outcome()?.ok())
    }
}
