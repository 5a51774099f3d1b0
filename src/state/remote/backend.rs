//! The backend: changes, deltas and loaded values in memory over a [`RemotePool`].

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;
use futures::future::{BoxFuture, FutureExt, ready, try_join_all};
use hashbrown::HashMap;

use super::super::backend::{Capture, KeyRange, StateBackend, Values, VisitUntil, WriteBatch};
use super::super::memory::MemoryBackend;
use super::super::operator_file::{self, OperatorFile};
use super::super::operator_state::OperatorRows;
use super::super::overlay::{Changes, Merged};
use super::super::restore::other_kind;
use super::super::share::Share;
use super::super::snapshot::{Content, Layer, Snapshot, StateVersions};
use super::super::store::{PartNames, PartStore};
use super::pool::{Delta, RemotePool, layers_of};
use super::reads::ReadThreads;
use crate::types::{CheckpointId, Error, OperatorId, Result};

/// An operator's key.
type Place = (OperatorId, Vec<u8>);
/// A value, or that there is none.
type Known = Option<Vec<u8>>;
/// Keys that memory does not know, with their positions in a request.
type Missing = Vec<(usize, Vec<u8>)>;
/// What was read of them.
type Read = Vec<(usize, Vec<u8>, Known)>;

/// What an entry takes beside its bytes.
const ENTRY_BYTES: usize = 96;

/// Settings of a remote backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Bytes that the hot tier may hold; what is not committed stays in it whatever this says. `None`: no bound.
    pub hot_max_bytes: Option<usize>,
    /// Threads that read.
    pub io_threads: usize,
}

/// State in a [`RemotePool`] with a hot tier in front.
pub struct RemoteReadBackend {
    pool: Arc<dyn RemotePool>,
    store: Option<Arc<dyn PartStore>>,
    names: PartNames,
    options: RemoteOptions,
    threads: ReadThreads,
    /// Since the last capture.
    changes: Delta,
    changes_bytes: usize,
    tiers: Arc<Mutex<Tiers>>,
    loaded: RefCell<Loaded>,
    /// Operator state is small, stays in memory and is written apart.
    operator_state: MemoryBackend,
    operator_file: OperatorFile,
}

/// What the snapshot thread changes too.
#[derive(Default)]
struct Tiers {
    layers: Arc<Vec<Layer>>,
    /// Captured changes, oldest first: first those that the layers have, then those that they do not.
    deltas: Vec<CapturedDelta>,
}

#[derive(Clone)]
struct CapturedDelta {
    checkpoint: CheckpointId,
    changes: Arc<Delta>,
    bytes: usize,
    is_committed: bool,
}

/// Values that were read, the longest unused ones first to go. None of them is in a delta that is newer.
#[derive(Default)]
struct Loaded {
    entries: HashMap<Place, (Known, u64)>,
    by_use: BTreeMap<u64, Place>,
    uses: u64,
    bytes: usize,
}

impl Loaded {
    fn get(&mut self, place: &Place) -> Option<Known> {
        let (value, used) = self.entries.get_mut(place)?;
        self.uses += 1;
        self.by_use.remove(used);
        self.by_use.insert(self.uses, place.clone());
        *used = self.uses;
        Some(value.clone())
    }

    fn insert(&mut self, place: Place, value: Known) {
        self.remove(&place);
        self.uses += 1;
        self.bytes += entry_bytes(&place.1, value.as_deref());
        self.by_use.insert(self.uses, place.clone());
        self.entries.insert(place, (value, self.uses));
    }

    fn remove(&mut self, place: &Place) {
        if let Some((value, used)) = self.entries.remove(place) {
            self.by_use.remove(&used);
            self.bytes -= entry_bytes(&place.1, value.as_deref());
        }
    }

    fn evict(&mut self, bytes: usize) {
        while self.bytes > bytes
            && let Some((_, place)) = self.by_use.first_key_value()
        {
            let place = place.clone();
            self.remove(&place);
        }
    }
}

fn entry_bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    ENTRY_BYTES + key.len() + value.map_or(0, <[u8]>::len)
}

fn lock(tiers: &Mutex<Tiers>) -> MutexGuard<'_, Tiers> {
    tiers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RemoteReadBackend {
    /// A backend over a pool; snapshots' other parts go to `store`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(
        pool: Arc<dyn RemotePool>,
        store: Arc<dyn PartStore>,
        names: PartNames,
        options: RemoteOptions,
    ) -> Result<RemoteReadBackend> {
        RemoteReadBackend::build(pool, Some(store), names, options)
    }

    /// A cache over a pool that keeps no checkpoints, see [`super::LoaderPool`].
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn over_loader(pool: Arc<dyn RemotePool>, options: RemoteOptions) -> Result<RemoteReadBackend> {
        RemoteReadBackend::build(pool, None, PartNames::of_worker(0), options)
    }

    fn build(
        pool: Arc<dyn RemotePool>,
        store: Option<Arc<dyn PartStore>>,
        names: PartNames,
        options: RemoteOptions,
    ) -> Result<RemoteReadBackend> {
        Ok(RemoteReadBackend {
            pool,
            store,
            names,
            threads: ReadThreads::start(options.io_threads)?,
            options,
            changes: Delta::new(),
            changes_bytes: 0,
            tiers: Arc::default(),
            loaded: RefCell::default(),
            operator_state: MemoryBackend::default(),
            operator_file: OperatorFile::default(),
        })
    }

    /// Bytes that the hot tier holds.
    pub fn hot_bytes(&self) -> usize {
        let deltas: usize = lock(&self.tiers).deltas.iter().map(|delta| delta.bytes).sum();
        self.changes_bytes + deltas + self.loaded.borrow().bytes
    }

    /// Lets go what the pool has, until the tier fits.
    fn evict(&self) {
        let Some(budget) = self.options.hot_max_bytes else { return };
        let mut tiers = lock(&self.tiers);
        let mut loaded = self.loaded.borrow_mut();
        let mut bytes = self.changes_bytes + tiers.deltas.iter().map(|delta| delta.bytes).sum::<usize>();
        while bytes + loaded.bytes > budget && tiers.deltas.first().is_some_and(|delta| delta.is_committed) {
            bytes -= tiers.deltas.remove(0).bytes;
        }
        loaded.evict(budget.saturating_sub(bytes));
    }

    /// A key's value as far as memory knows it.
    fn hot(&self, tiers: &Tiers, operator: OperatorId, key: &[u8]) -> Option<Known> {
        let changed = |delta: &Delta| delta.get(&operator).and_then(|changes| changes.get(key)).cloned();
        changed(&self.changes).or_else(|| tiers.deltas.iter().rev().find_map(|delta| changed(&delta.changes)))
    }

    /// Reads what is not in memory: the places of the missing keys with their values, in several reads at once.
    fn load(
        &self,
        layers: &Arc<Vec<Layer>>,
        operator: OperatorId,
        missing: Missing,
        deadline: u64,
    ) -> BoxFuture<'static, Result<Read>> {
        let mut missing = missing;
        // Neighbours share blocks.
        missing.sort_by(|a, b| a.1.cmp(&b.1));
        let slice = missing.len().div_ceil(self.threads.len()).max(1);
        let mut reads = Vec::new();
        while !missing.is_empty() {
            let rest = missing.split_off(slice.min(missing.len()));
            let keys = std::mem::replace(&mut missing, rest);
            let (answer, read) = oneshot::channel();
            let (pool, layers) = (Arc::clone(&self.pool), Arc::clone(layers));
            self.threads.run(deadline, move || {
                let slices: Vec<&[u8]> = keys.iter().map(|(_, key)| key.as_slice()).collect();
                let values = pool.read_many(&layers, operator, &slices);
                // Whoever asked may have gone.
                let _ = answer.send(values.map(|values| {
                    keys.into_iter().zip(values).map(|((at, key), value)| (at, key, value)).collect::<Vec<_>>()
                }));
            });
            reads.push(async move {
                read.await.unwrap_or_else(|_| Err(Error::internal("a read of state ended without an answer")))
            });
        }
        try_join_all(reads).map(|read| Ok(read?.into_iter().flatten().collect())).boxed()
    }

    /// The values that memory knows, and the keys that it does not.
    fn split(&self, operator: OperatorId, keys: &[&[u8]]) -> (Values, Missing, Arc<Vec<Layer>>) {
        let tiers = lock(&self.tiers);
        let mut loaded = self.loaded.borrow_mut();
        let (mut values, mut missing) = (vec![None; keys.len()], Vec::new());
        for (at, key) in keys.iter().enumerate() {
            if Share::is_operator_state(key) {
                // Memory does not fail.
                values[at] = self.operator_state.get(operator, key).unwrap_or_default();
                continue;
            }
            match self.hot(&tiers, operator, key).or_else(|| loaded.get(&(operator, key.to_vec()))) {
                Some(value) => values[at] = value,
                None => missing.push((at, key.to_vec())),
            }
        }
        (values, missing, Arc::clone(&tiers.layers))
    }
}

impl StateBackend for RemoteReadBackend {
    fn get(&self, operator: OperatorId, key: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(self.get_many(operator, &[key])?.pop().flatten())
    }

    fn get_many(&self, operator: OperatorId, keys: &[&[u8]]) -> Result<Values> {
        let (mut values, missing, layers) = self.split(operator, keys);
        if missing.is_empty() {
            return Ok(values);
        }
        let read = if missing.len() == 1 {
            let key = missing[0].1.as_slice();
            let value = self.pool.read_many(&layers, operator, &[key])?.pop().flatten();
            vec![(missing[0].0, key.to_vec(), value)]
        } else {
            futures::executor::block_on(self.load(&layers, operator, missing, 0))?
        };
        for (at, key, value) in read {
            values[at].clone_from(&value);
            self.loaded.borrow_mut().insert((operator, key), value);
        }
        self.evict();
        Ok(values)
    }

    fn supports_async_get(&self) -> bool {
        true
    }

    fn get_many_async(
        &self,
        operator: OperatorId,
        keys: Vec<Vec<u8>>,
        deadline: u64,
    ) -> BoxFuture<'static, Result<Values>> {
        let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let (mut values, missing, layers) = self.split(operator, &slices);
        if missing.is_empty() {
            return ready(Ok(values)).boxed();
        }
        // Not kept here: a write may overtake the answer, and who asks keeps it decoded.
        let read = self.load(&layers, operator, missing, deadline);
        read.map(|read| {
            read?.into_iter().for_each(|(at, _, value)| values[at] = value);
            Ok(values)
        })
        .boxed()
    }

    fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> Result<()> {
        let mut rows = WriteBatch::default();
        let changes = self.changes.entry(operator).or_default();
        let loaded = self.loaded.get_mut();
        for (key, value) in batch.entries {
            if Share::is_operator_state(&key) {
                rows.entries.push((key, value));
                continue;
            }
            let place = (operator, key);
            loaded.remove(&place);
            let key = place.1;
            self.changes_bytes += entry_bytes(&key, value.as_deref());
            let key_bytes = key.len();
            if let Some(before) = changes.insert(key, value) {
                self.changes_bytes -= ENTRY_BYTES + key_bytes + before.map_or(0, |before| before.len());
            }
        }
        if !rows.entries.is_empty() {
            self.operator_file.touch();
            self.operator_state.apply(operator, rows)?;
        }
        self.evict();
        Ok(())
    }

    fn scan_range(&self, operator: OperatorId, range: &KeyRange, visit: &mut VisitUntil<'_>) -> Result<()> {
        // One view of both: what is committed meanwhile is then in the deltas of this view.
        let (layers, pending) = {
            let tiers = lock(&self.tiers);
            let pending: Vec<_> = tiers.deltas.iter().filter(|delta| !delta.is_committed).cloned().collect();
            (Arc::clone(&tiers.layers), pending)
        };
        let mut newer = Changes::new();
        let deltas = pending.iter().map(|delta| &*delta.changes).chain([&self.changes]);
        for changes in deltas.filter_map(|delta| delta.get(&operator)) {
            newer.extend(
                changes.iter().filter(|(key, _)| range.contains(key)).map(|(key, value)| (key.clone(), value.clone())),
            );
        }
        // Operator state: an empty key before, the others behind all keyed entries; all in memory.
        self.operator_state.scan_range(operator, range, &mut |key, value| {
            newer.insert(key.to_vec(), Some(value.to_vec()));
            Ok(super::pool::GO_ON)
        })?;
        let mut merged = Merged::new(Some(&newer), range, visit);
        let mut ended = false;
        if !layers.is_empty() || !self.pool.is_durable() {
            self.pool.scan(&layers, operator, range, &mut |key, value| {
                let flow = merged.older(key, value)?;
                ended = flow.is_break();
                Ok(flow)
            })?;
        }
        if ended { Ok(()) } else { merged.finish() }
    }

    fn operators(&self) -> Result<Vec<OperatorId>> {
        let (layers, deltas) = {
            let tiers = lock(&self.tiers);
            (Arc::clone(&tiers.layers), tiers.deltas.clone())
        };
        let mut operators: BTreeSet<OperatorId> = self.pool.operators(&layers)?;
        operators.extend(deltas.iter().flat_map(|delta| delta.changes.keys().copied()));
        operators.extend(self.changes.keys().copied());
        operators.extend(self.operator_state.operators()?);
        Ok(operators.into_iter().collect())
    }

    fn capture(&mut self, checkpoint: CheckpointId) -> Result<Capture> {
        let store = self.store.clone().filter(|_| self.pool.is_durable());
        let store = store.ok_or_else(|| Error::unsupported("state that is only looked up has no checkpoints"))?;
        let name = self.names.part(checkpoint, "operators.arrow");
        let operator_state = self.operator_file.capture(&self.operator_state, &store, name)?;
        let delta = CapturedDelta {
            checkpoint,
            changes: Arc::new(std::mem::take(&mut self.changes)),
            bytes: std::mem::take(&mut self.changes_bytes),
            is_committed: false,
        };
        lock(&self.tiers).deltas.push(delta);
        let (pool, tiers) = (Arc::clone(&self.pool), Arc::clone(&self.tiers));
        Ok(Capture::new(checkpoint, move || {
            let operator_state = operator_state.force()?;
            // With what was captured for checkpoints that were abandoned before.
            let (base, mut pending) = {
                let tiers = lock(&tiers);
                let pending = tiers.deltas.iter().filter(|delta| !delta.is_committed && delta.checkpoint <= checkpoint);
                (Arc::clone(&tiers.layers), pending.cloned().collect::<Vec<_>>())
            };
            let changes = match pending.len() {
                1 => pending.remove(0).changes,
                _ => Arc::new(united(&pending)),
            };
            let layers = Arc::new(pool.commit(checkpoint, &base, &changes)?);
            let mut tiers = lock(&tiers);
            tiers.layers = Arc::clone(&layers);
            for delta in &mut tiers.deltas {
                delta.is_committed |= delta.checkpoint <= checkpoint;
            }
            drop(tiers);
            let layers = layers.as_ref().clone();
            Ok(Snapshot::new(checkpoint, Content::Layers { layers, operator_state }))
        }))
    }

    fn restore(&mut self, from: &[Snapshot], share: Share) -> Result<()> {
        let store = self.store.clone().ok_or_else(|| Error::internal("no store to restore from"))?;
        let (mut parents, mut operator_rows) = (Vec::new(), OperatorRows::new(share));
        let mut versions = StateVersions::default();
        for snapshot in from {
            let (layers, operator_state) = layers_of(snapshot).ok_or_else(|| other_kind(snapshot, "layers"))?;
            if snapshot.groups.is_none() {
                operator_file::read(&*store, operator_state, &mut operator_rows, &mut versions)?;
            }
            parents.push(layers);
        }
        lock(&self.tiers).layers = Arc::new(self.pool.prepare_restore(&parents, share));
        for (operator, batch) in operator_rows.finish()? {
            self.operator_state.apply(operator, batch)?;
        }
        self.set_versions(versions);
        Ok(())
    }

    fn versions(&self) -> &StateVersions {
        self.operator_state.versions()
    }

    fn set_versions(&mut self, versions: StateVersions) {
        self.operator_file.touch();
        self.operator_state.set_versions(versions);
    }

    fn held_parts(&self) -> Vec<String> {
        let mut held: Vec<String> = lock(&self.tiers).layers.iter().map(|layer| layer.part.name.clone()).collect();
        held.extend(self.operator_file.part().map(|part| part.name));
        held
    }
}

/// Deltas as one, later ones over earlier ones.
fn united(deltas: &[CapturedDelta]) -> Delta {
    let mut united = Delta::new();
    for (operator, changes) in deltas.iter().flat_map(|delta| delta.changes.iter()) {
        let place = united.entry(*operator).or_default();
        place.extend(changes.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    united
}
