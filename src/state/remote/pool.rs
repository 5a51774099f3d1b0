//! The durable tier: layers of sorted segments.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::super::backend::{KeyRange, Values, VisitUntil};
use super::super::share::Share;
use super::super::snapshot::{Layer, Snapshot};
use super::super::store::{PartNames, PartStore};
use super::segment::{Entries, Index, SegmentWriter};
use crate::types::{CheckpointId, Error, KEY_GROUPS, OperatorId, Result};

/// Changes by operator and key; `None` erases.
pub type Delta = BTreeMap<OperatorId, BTreeMap<Vec<u8>, Option<Vec<u8>>>>;

/// A segment's size before the next is begun.
const SEGMENT_BYTES_MAX: usize = 64 << 20;
/// Runs of about the same size that are merged into one.
const RUNS_OF_A_SIZE: usize = 4;

/// Durable state of keyed entries, as of checkpoints. Shared by threads; a state of it is a list of layers, newest
/// first, that never changes.
pub trait RemotePool: Send + Sync {
    /// Writes changes over a base, durable on return: the base's state with the changes applied. An empty base is
    /// empty state.
    ///
    /// # Errors
    /// When an object cannot be written; the base stays good.
    fn commit(&self, checkpoint: CheckpointId, base: &[Layer], changes: &Delta) -> Result<Vec<Layer>>;

    /// Values as of a state, in the order of the keys.
    ///
    /// # Errors
    /// XX001 when an object is missing or damaged.
    fn read_many(&self, state: &[Layer], operator: OperatorId, keys: &[&[u8]]) -> Result<Values>;

    /// Visits a range of an operator as of a state, in order.
    ///
    /// # Errors
    /// As [`Self::read_many`]; the error of `visit`.
    fn scan(&self, state: &[Layer], operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()>;

    /// Operators with entries in a state.
    ///
    /// # Errors
    /// As [`Self::read_many`].
    fn operators(&self, state: &[Layer]) -> Result<BTreeSet<OperatorId>>;

    /// The state that a share has of some workers' snapshots, without reading it.
    fn prepare_restore(&self, parents: &[Vec<Layer>], share: Share) -> Vec<Layer> {
        let (ours, mut layers) = (share.groups(), Vec::new());
        for layer in parents.iter().flatten() {
            let first = ours.start.max(layer.groups.0);
            let groups = (first, ours.end.min(layer.groups.1).max(first));
            if groups.0 < groups.1 {
                layers.push(Layer { groups, ..layer.clone() });
            }
        }
        layers
    }

    /// Whether what it holds can be listed and written.
    fn is_durable(&self) -> bool {
        true
    }
}

/// Layers in a store of parts.
pub struct LayerPool {
    store: Arc<dyn PartStore>,
    names: PartNames,
    segment_bytes_max: usize,
    indexes: Mutex<HashMap<String, Arc<Index>>>,
}

impl LayerPool {
    /// A pool of a worker's segments.
    pub fn new(store: Arc<dyn PartStore>, names: PartNames) -> LayerPool {
        LayerPool { store, names, segment_bytes_max: SEGMENT_BYTES_MAX, indexes: Mutex::default() }
    }

    /// The same, with smaller segments.
    #[cfg(test)]
    pub(super) fn with_segments_of(mut self, bytes: usize) -> LayerPool {
        self.segment_bytes_max = bytes;
        self
    }

    fn index(&self, layer: &Layer) -> Result<Arc<Index>> {
        let known = self.indexes.lock().unwrap_or_else(PoisonError::into_inner).get(&layer.part.name).cloned();
        if let Some(index) = known {
            return Ok(index);
        }
        let index = Arc::new(Index::load(&*self.store, &layer.part, layer.index_bytes)?);
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.insert(layer.part.name.clone(), Arc::clone(&index));
        Ok(index)
    }

    /// Forgets the tails of segments that are in no state any more.
    fn keep_indexes(&self, layers: &[&[Layer]]) {
        let names: BTreeSet<&str> = layers.iter().copied().flatten().map(|layer| layer.part.name.as_str()).collect();
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.retain(|name, _| names.contains(name.as_str()));
    }

    /// Writes a stream of entries as the segments of a run.
    fn write(
        &self,
        run: &str,
        fill: impl FnOnce(&mut dyn FnMut(OperatorId, &[u8], Option<&[u8]>) -> Result<()>) -> Result<()>,
    ) -> Result<Vec<Layer>> {
        let (mut layers, mut writer) = (Vec::new(), SegmentWriter::default());
        let mut put = |writer: SegmentWriter| -> Result<()> {
            let entries = writer.entries() as u64;
            if entries > 0 {
                let (bytes, index_bytes) = writer.finish();
                let name = format!("{run}-{}.segment", layers.len());
                let part = self.store.put(&name, bytes.into())?;
                layers.push(Layer { part, groups: (0, KEY_GROUPS), run: run.to_owned(), entries, index_bytes });
            }
            Ok(())
        };
        fill(&mut |operator, key, value| {
            writer.push(operator, key, value);
            if writer.bytes() >= self.segment_bytes_max { put(std::mem::take(&mut writer)) } else { Ok(()) }
        })?;
        put(writer)?;
        Ok(layers)
    }

    /// How many of the newest layers are to be merged: those of the runs that together are not much smaller than the
    /// next.
    fn mergeable(layers: &[Layer]) -> usize {
        let (mut count, mut runs, mut bytes) = (0, 0, 0);
        for run in layers.chunk_by(|a, b| a.run == b.run) {
            let run_bytes: u64 = run.iter().map(|layer| layer.part.bytes).sum();
            if runs > 0 && run_bytes > 2 * bytes {
                break;
            }
            bytes += run_bytes;
            count += run.len();
            runs += 1;
        }
        if runs >= RUNS_OF_A_SIZE { count } else { 0 }
    }
}

impl RemotePool for LayerPool {
    fn commit(&self, checkpoint: CheckpointId, base: &[Layer], changes: &Delta) -> Result<Vec<Layer>> {
        // A checkpoint writes its changes, and at most one run that is merged.
        let (changes_run, merged_run) = (self.names.part(checkpoint, "changes"), self.names.part(checkpoint, "merged"));
        let mut layers = self.write(&changes_run, |push| {
            for (operator, changes) in changes {
                for (key, value) in changes {
                    push(*operator, key, value.as_deref())?;
                }
            }
            Ok(())
        })?;
        layers.extend_from_slice(base);
        let count = Self::mergeable(&layers);
        if count > 0 {
            let is_all = count == layers.len();
            let merged = self.write(&merged_run, |push| {
                let mut cursors = Cursors::new(self, &layers[..count], None)?;
                while let Some((operator, key, value)) = cursors.next()? {
                    // Over nothing, there is nothing to erase.
                    if value.is_some() || !is_all {
                        push(operator, &key, value.as_deref())?;
                    }
                }
                Ok(())
            })?;
            layers.splice(..count, merged);
        }
        self.keep_indexes(&[&layers, base]);
        Ok(layers)
    }

    fn read_many(&self, state: &[Layer], operator: OperatorId, keys: &[&[u8]]) -> Result<Values> {
        let mut values: Values = vec![None; keys.len()];
        // The keys still looked for, in order.
        let mut wanted: Vec<usize> = (0..keys.len()).collect();
        wanted.sort_by_key(|wanted| keys[*wanted]);
        for layer in state {
            if wanted.is_empty() {
                break;
            }
            let mut index = None;
            let mut block: Option<(usize, Bytes)> = None;
            let mut found = BTreeSet::new();
            for at in &wanted {
                let key = keys[*at];
                let in_groups =
                    key.first().is_some_and(|g| (layer.groups.0..layer.groups.1).contains(&usize::from(*g)));
                if !in_groups {
                    continue;
                }
                let index = match &index {
                    Some(index) => index,
                    None => index.insert(self.index(layer)?),
                };
                let Some(number) = index.block_of(operator, key).filter(|_| index.may_contain(operator, key)) else {
                    continue;
                };
                if block.as_ref().is_none_or(|(loaded, _)| *loaded != number) {
                    block = Some((number, index.read(&*self.store, number)?));
                }
                let Some((_, bytes)) = &block else { continue };
                let mut entries = Entries::new(bytes);
                let entry = entries.by_ref().find(|(owner, candidate, _)| (*owner, *candidate) >= (operator, key));
                match entry {
                    Some((owner, candidate, value)) if (owner, candidate) == (operator, key) => {
                        values[*at] = value.map(<[u8]>::to_vec);
                        found.insert(*at);
                    }
                    None if !entries.is_finished() => return Err(index.damaged()),
                    _ => {}
                }
            }
            wanted.retain(|at| !found.contains(at));
        }
        Ok(values)
    }

    fn scan(&self, state: &[Layer], operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let mut cursors = Cursors::new(self, state, Some((operator, range)))?;
        while let Some((owner, key, value)) = cursors.next()? {
            if owner != operator || range.to.as_deref().is_some_and(|to| key.as_slice() >= to) {
                break;
            }
            if let Some(value) = value
                && visit(&key, &value)?.is_break()
            {
                break;
            }
        }
        Ok(())
    }

    fn operators(&self, state: &[Layer]) -> Result<BTreeSet<OperatorId>> {
        let mut operators = BTreeSet::new();
        for layer in state {
            let index = self.index(layer)?;
            let blocks = index.blocks();
            for (number, block) in blocks.iter().enumerate() {
                operators.insert(block.first.0);
                // Between two blocks of different operators there can be others.
                if blocks.get(number + 1).is_none_or(|next| next.first.0 != block.first.0) {
                    operators.extend(Entries::new(&index.read(&*self.store, number)?).map(|(operator, ..)| operator));
                }
            }
        }
        Ok(operators)
    }
}

/// An entry of a layer, or of all: its place and its value unless it erases.
type Entry = (OperatorId, Vec<u8>, Option<Vec<u8>>);

/// Reads a layer from a place on.
struct Cursor {
    index: Arc<Index>,
    groups: (usize, usize),
    next_block: usize,
    block: std::vec::IntoIter<Entry>,
    /// Entries before it are passed over.
    from: Option<(OperatorId, Vec<u8>)>,
}

impl Cursor {
    fn next(&mut self, store: &dyn PartStore) -> Result<Option<Entry>> {
        loop {
            for entry in self.block.by_ref() {
                let is_before = self.from.as_ref().is_some_and(|(o, key)| (entry.0, &entry.1) < (*o, key));
                if !is_before
                    && entry.1.first().is_some_and(|g| (self.groups.0..self.groups.1).contains(&usize::from(*g)))
                {
                    return Ok(Some(entry));
                }
            }
            if self.next_block >= self.index.blocks().len() {
                return Ok(None);
            }
            let bytes = self.index.read(store, self.next_block)?;
            self.next_block += 1;
            let mut entries = Entries::new(&bytes);
            let owned =
                |(operator, key, value): (_, &[u8], Option<&[u8]>)| (operator, key.to_vec(), value.map(<[u8]>::to_vec));
            self.block = entries.by_ref().map(owned).collect::<Vec<_>>().into_iter();
            if !entries.is_finished() {
                return Err(self.index.damaged());
            }
        }
    }
}

/// The next entry of a layer: its place, the layer's age, its value.
type Head = (OperatorId, Vec<u8>, usize, Option<Vec<u8>>);

/// Several layers as one, each key once, from its newest layer.
struct Cursors<'a> {
    pool: &'a LayerPool,
    cursors: Vec<Cursor>,
    /// The next entry of each layer: by place, then by age of the layer.
    heads: BinaryHeap<Reverse<Head>>,
}

impl<'a> Cursors<'a> {
    /// All entries, or those of a range of an operator and what follows.
    fn new(pool: &'a LayerPool, layers: &[Layer], range: Option<(OperatorId, &KeyRange)>) -> Result<Cursors<'a>> {
        let mut cursors = Cursors { pool, cursors: Vec::new(), heads: BinaryHeap::new() };
        let indexes = layers.iter().map(|layer| pool.index(layer)).collect::<Result<Vec<_>>>()?;
        let first =
            |at: usize| indexes.get(at)?.blocks().first().map(|block| (block.first.0, block.first.1.as_slice()));
        for (at, layer) in layers.iter().enumerate() {
            if let Some((operator, range)) = range {
                let is_behind = range.to.as_deref().is_some_and(|to| first(at) >= Some((operator, to)));
                // The next object of the run begins at or before the range: nothing of it is in this one.
                let continues =
                    layers.get(at + 1).is_some_and(|next| next.run == layer.run && next.groups == layer.groups);
                let is_before = continues && first(at + 1) <= Some((operator, &range.from));
                if is_behind || is_before {
                    continue;
                }
            }
            let index = Arc::clone(&indexes[at]);
            let next_block = range.map_or(0, |(operator, range)| index.block_from(operator, &range.from));
            let from = range.map(|(operator, range)| (operator, range.from.clone()));
            let age = cursors.cursors.len();
            cursors.cursors.push(Cursor {
                index,
                groups: layer.groups,
                next_block,
                block: Vec::new().into_iter(),
                from,
            });
            cursors.advance(age)?;
        }
        Ok(cursors)
    }

    fn advance(&mut self, age: usize) -> Result<()> {
        if let Some((operator, key, value)) = self.cursors[age].next(&*self.pool.store)? {
            self.heads.push(Reverse((operator, key, age, value)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Entry>> {
        let Some(Reverse((operator, key, age, value))) = self.heads.pop() else { return Ok(None) };
        self.advance(age)?;
        while let Some(Reverse((owner, same, older, _))) = self.heads.peek() {
            if (*owner, same) != (operator, &key) {
                break;
            }
            let older = *older;
            self.heads.pop();
            self.advance(older)?;
        }
        Ok(Some((operator, key, value)))
    }
}

/// Reads of a source that keeps no checkpoints: a cache in front of something else.
pub struct LoaderPool<F> {
    load: F,
}

impl<F: Fn(OperatorId, &[&[u8]]) -> Result<Values> + Send + Sync> LoaderPool<F> {
    /// A pool that asks `load` for the values of keys, in their order.
    pub fn new(load: F) -> LoaderPool<F> {
        LoaderPool { load }
    }
}

impl<F: Fn(OperatorId, &[&[u8]]) -> Result<Values> + Send + Sync> RemotePool for LoaderPool<F> {
    fn commit(&self, _: CheckpointId, _: &[Layer], _: &Delta) -> Result<Vec<Layer>> {
        Err(Error::unsupported("state that is only looked up has no checkpoints"))
    }

    fn read_many(&self, _: &[Layer], operator: OperatorId, keys: &[&[u8]]) -> Result<Values> {
        (self.load)(operator, keys)
    }

    fn scan(&self, _: &[Layer], _: OperatorId, _: &KeyRange, _: &mut VisitUntil<'_>) -> Result<()> {
        Err(Error::unsupported("state that is only looked up cannot be listed"))
    }

    fn operators(&self, _: &[Layer]) -> Result<BTreeSet<OperatorId>> {
        Err(Error::unsupported("state that is only looked up cannot be listed"))
    }

    fn is_durable(&self) -> bool {
        false
    }
}

/// The layers of a snapshot that is made of such.
pub(super) fn layers_of(snapshot: &Snapshot) -> Option<(Vec<Layer>, &super::super::store::Part)> {
    match &snapshot.content {
        super::super::snapshot::Content::Layers { layers, operator_state } => {
            let groups = snapshot.groups.unwrap_or((0, KEY_GROUPS));
            let narrowed = layers.iter().map(|layer| {
                let first = groups.0.max(layer.groups.0);
                Layer { groups: (first, groups.1.min(layer.groups.1).max(first)), ..layer.clone() }
            });
            Some((narrowed.collect(), operator_state))
        }
        _ => None,
    }
}

/// A visitor that never stops.
pub(super) const GO_ON: ControlFlow<()> = ControlFlow::Continue(());
