//! The tier itself.

use super::super::backend::{StateBackend, Values, WriteBatch};
use super::super::key_encoding::Encoded;
use super::super::key_index::{KeyIndex, Slot};
use super::super::layout::{slot_prefix, split_value_key, value_key};
use super::super::share::Share;
use super::lru::Lru;
use crate::types::{Error, KeyGroup, OperatorId, Result};

/// Bytes of an entry beside its key and value.
const ENTRY_BYTES: usize = 80;
/// Entries that cannot go now and are passed over when some must.
const SKIPPED_MAX: usize = 256;

/// Decoded values in columns by slot.
pub trait Cells {
    /// Makes room for slots below `slots`.
    fn resize(&mut self, slots: usize);

    /// Appends the bytes of a slot's value.
    fn encode(&self, slot: Slot, into: &mut Vec<u8>);

    /// Sets a slot's value, which is clear, to that of bytes.
    ///
    /// # Errors
    /// XX001 when they are no value.
    fn decode(&mut self, slot: Slot, bytes: &[u8]) -> Result<()>;

    /// Sets a slot back to the value of a key that was never seen.
    fn clear(&mut self, slot: Slot);

    /// Bytes that a slot's value takes in memory, with its entries.
    fn bytes(&self, slot: Slot) -> usize;

    /// What the stored keys of a key's map entries start with, one for each map that belongs to the value: they are read
    /// with it. None for values without entries.
    fn entry_prefixes(&self, _key: &[u8]) -> Vec<Vec<u8>> {
        Vec::new()
    }

    /// Takes in a stored entry of a slot, whose entries are clear before the first.
    ///
    /// # Errors
    /// XX001 when it is no entry.
    fn load_entry(&mut self, _slot: Slot, _stored: &[u8], _value: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Hands over the entries of a slot that changed since they were last handed over. Whoever changes an entry touches
    /// the slot before.
    fn write_entries(&mut self, _slot: Slot, _key: &[u8], _batch: &mut WriteBatch) {}
}

/// What stays in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residence {
    /// Everything: a key that is not there is absent, and nothing is read after the start.
    All,
    /// Clean values go when the tier takes more than these bytes.
    Budget(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Knowledge {
    /// Asked for, or about to be.
    Pending,
    Absent,
    Present,
}

/// Changes belong to a generation; zero is that of what the backend has.
type Generation = u32;

#[derive(Clone, Copy, Debug)]
struct Entry {
    knowledge: Knowledge,
    is_pinned: bool,
    generation: Generation,
    bytes: usize,
}

const NEW_ENTRY: Entry = Entry { knowledge: Knowledge::Pending, is_pinned: false, generation: 0, bytes: 0 };

/// Decoded values of one value table of an operator, in front of its backend.
#[derive(Debug)]
pub struct HotTier<C> {
    operator: OperatorId,
    slot_name: String,
    residence: Residence,
    index: KeyIndex,
    cells: C,
    entries: Vec<Entry>,
    lru: Lru,
    bytes: usize,
    pinned: Vec<Slot>,
    wanted: Vec<Slot>,
    /// The generation of changes now; the frozen one is one less.
    live: Generation,
    dirty: Vec<Slot>,
    frozen: Vec<Slot>,
    /// Frozen values that were changed again before they were written.
    saved: WriteBatch,
    awaits_capture: bool,
    scratch: Vec<Slot>,
}

impl<C: Cells> HotTier<C> {
    /// An empty tier of a slot, whose name [`check_slot`](super::super::check_slot) accepts.
    pub fn new(operator: OperatorId, slot_name: &str, residence: Residence, cells: C) -> HotTier<C> {
        HotTier {
            operator,
            slot_name: slot_name.to_owned(),
            residence,
            index: KeyIndex::new(false),
            cells,
            entries: Vec::new(),
            lru: Lru::default(),
            bytes: 0,
            pinned: Vec::new(),
            wanted: Vec::new(),
            live: 1,
            dirty: Vec::new(),
            frozen: Vec::new(),
            saved: WriteBatch::default(),
            awaits_capture: false,
            scratch: Vec::new(),
        }
    }

    /// Takes in everything that a backend holds of the slot: for [`Residence::All`], at the start.
    ///
    /// # Errors
    /// When the store cannot be read or a value is damaged.
    pub fn load_all(&mut self, backend: &dyn StateBackend, share: Share) -> Result<()> {
        for group in share.groups() {
            let slot_name = self.slot_name.clone();
            backend.scan(self.operator, &slot_prefix(&slot_name, KeyGroup::new(group)), &mut |stored, value| {
                let Some(key) = split_value_key(&slot_name, stored) else { return Ok(()) };
                let slot = self.locate(key);
                self.cells.clear(slot);
                self.cells.decode(slot, value)?;
                self.entries[slot as usize].knowledge = Knowledge::Present;
                Ok(())
            })?;
        }
        for slot in 0..self.index.slots() as Slot {
            self.load_entries(backend, slot)?;
            self.account(slot);
        }
        Ok(())
    }

    /// Reads the map entries of a key whose value was read.
    fn load_entries(&mut self, backend: &dyn StateBackend, slot: Slot) -> Result<()> {
        let cells = &mut self.cells;
        for prefix in cells.entry_prefixes(self.index.key(slot)) {
            backend.scan(self.operator, &prefix, &mut |stored, value| cells.load_entry(slot, stored, value))?;
        }
        Ok(())
    }

    /// The slot of a key, made when absent.
    fn locate(&mut self, key: &[u8]) -> Slot {
        let (slot, is_new) = self.index.insert(key);
        if is_new {
            let slots = self.index.slots();
            self.entries.resize(slots, NEW_ENTRY);
            self.cells.resize(slots);
            self.lru.resize(slots);
            self.cells.clear(slot);
            let knowledge = if self.residence == Residence::All { Knowledge::Absent } else { Knowledge::Pending };
            self.entries[slot as usize] = Entry { knowledge, ..NEW_ENTRY };
            if knowledge == Knowledge::Pending {
                self.wanted.push(slot);
            }
            self.account(slot);
        }
        slot
    }

    /// The slots of a batch of keys, in order, pinned until the time ends.
    pub fn want(&mut self, keys: &Encoded, slots: &mut Vec<Slot>) {
        slots.clear();
        slots.extend((0..keys.len()).map(|row| self.want_key(keys.row(row))));
    }

    /// The slot of one key, pinned until the time ends.
    pub fn want_key(&mut self, key: &[u8]) -> Slot {
        let slot = self.locate(key);
        let entry = &mut self.entries[slot as usize];
        if !entry.is_pinned {
            entry.is_pinned = true;
            self.pinned.push(slot);
            self.lru.touch(slot);
        }
        slot
    }

    /// Hands out the wanted keys whose values are not known, in the order of the store: their slots, and their stored
    /// keys to ask the backend for. The values come back through [`Self::arrive`]. Values with map entries are read by
    /// [`Self::load`] alone.
    pub fn request(&mut self) -> (Vec<Slot>, Vec<Vec<u8>>) {
        let mut wanted: Vec<(Vec<u8>, Slot)> = std::mem::take(&mut self.wanted)
            .into_iter()
            .filter(|slot| self.entries[*slot as usize].knowledge == Knowledge::Pending)
            .map(|slot| (value_key(&self.slot_name, self.index.key(slot)), slot))
            .collect();
        wanted.sort_unstable();
        wanted.into_iter().map(|(key, slot)| (slot, key)).unzip()
    }

    /// Takes in values that were requested; of keys written meanwhile the write stays.
    ///
    /// # Errors
    /// XX001 when a value is damaged.
    pub fn arrive(&mut self, slots: &[Slot], values: Values) -> Result<()> {
        for (slot, value) in slots.iter().zip(values) {
            if self.entries[*slot as usize].knowledge != Knowledge::Pending {
                continue;
            }
            if let Some(bytes) = &value {
                self.cells.decode(*slot, bytes)?;
            }
            let entry = &mut self.entries[*slot as usize];
            entry.knowledge = if value.is_some() { Knowledge::Present } else { Knowledge::Absent };
            self.account(*slot);
        }
        Ok(())
    }

    /// Reads the wanted values that are not known, in one read.
    ///
    /// # Errors
    /// When the store cannot be read or a value is damaged.
    pub fn load(&mut self, backend: &dyn StateBackend) -> Result<()> {
        let (slots, keys) = self.request();
        if slots.is_empty() {
            return Ok(());
        }
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let values = backend.get_many(self.operator, &keys)?;
        for (slot, value) in slots.iter().zip(&values) {
            if value.is_some() && !self.is_known(*slot) {
                self.load_entries(backend, *slot)?;
            }
        }
        self.arrive(&slots, values)
    }

    /// Whether a slot's value is known.
    pub fn is_known(&self, slot: Slot) -> bool {
        self.entries[slot as usize].knowledge != Knowledge::Pending
    }

    /// Whether a slot's key has a value; one that is not known has none yet.
    pub fn is_present(&self, slot: Slot) -> bool {
        self.entries[slot as usize].knowledge == Knowledge::Present
    }

    /// The key of a slot in use.
    pub fn key(&self, slot: Slot) -> &[u8] {
        self.index.key(slot)
    }

    /// The columns, to read.
    pub fn cells(&self) -> &C {
        &self.cells
    }

    /// The columns, to change the values of slots that were touched.
    pub fn cells_mut(&mut self) -> &mut C {
        &mut self.cells
    }

    /// The keys, and the columns to change.
    pub fn split(&mut self) -> (&KeyIndex, &mut C) {
        (&self.index, &mut self.cells)
    }

    /// Call before a slot's value is changed. It has a value from now on: that of a clear cell, if it had none.
    pub fn touch(&mut self, slot: Slot) {
        self.begin_change(slot);
        self.entries[slot as usize].knowledge = Knowledge::Present;
    }

    /// The slot's key has no value from now on.
    pub fn erase(&mut self, slot: Slot) {
        self.begin_change(slot);
        self.cells.clear(slot);
        self.entries[slot as usize].knowledge = Knowledge::Absent;
    }

    fn begin_change(&mut self, slot: Slot) {
        let generation = self.entries[slot as usize].generation;
        if generation == self.live {
            return;
        }
        if generation != 0 {
            // Frozen, and not written yet.
            let entry = self.encoded(slot);
            self.saved.entries.push(entry);
            self.cells.write_entries(slot, self.index.key(slot), &mut self.saved);
        }
        self.entries[slot as usize].generation = self.live;
        self.dirty.push(slot);
    }

    fn encoded(&self, slot: Slot) -> (Vec<u8>, Option<Vec<u8>>) {
        let value = (self.entries[slot as usize].knowledge == Knowledge::Present).then(|| {
            let mut value = Vec::new();
            self.cells.encode(slot, &mut value);
            value
        });
        (value_key(&self.slot_name, self.index.key(slot)), value)
    }

    /// Unpins what the time wanted, and lets go what is too much.
    pub fn end_time(&mut self) {
        let mut pinned = std::mem::replace(&mut self.pinned, std::mem::take(&mut self.scratch));
        for slot in pinned.drain(..) {
            self.entries[slot as usize].is_pinned = false;
            self.account(slot);
            self.drop_if_useless(slot);
        }
        self.scratch = pinned;
        self.evict();
    }

    /// Where everything is in memory, an absent key need not be remembered.
    fn drop_if_useless(&mut self, slot: Slot) {
        let entry = self.entries[slot as usize];
        let is_useless = entry.knowledge == Knowledge::Absent && entry.generation == 0 && !entry.is_pinned;
        if self.residence == Residence::All && is_useless {
            self.forget(slot);
        }
    }

    fn account(&mut self, slot: Slot) {
        let bytes = ENTRY_BYTES + self.index.key(slot).len() + self.cells.bytes(slot);
        let entry = &mut self.entries[slot as usize];
        self.bytes = self.bytes - entry.bytes + bytes;
        entry.bytes = bytes;
    }

    fn forget(&mut self, slot: Slot) {
        self.bytes -= self.entries[slot as usize].bytes;
        self.entries[slot as usize] = NEW_ENTRY;
        self.cells.clear(slot);
        self.lru.remove(slot);
        self.index.remove(slot);
    }

    fn evict(&mut self) {
        let Residence::Budget(budget) = self.residence else { return };
        let (mut next, mut skipped) = (self.lru.oldest(), 0);
        while let Some(slot) = next.filter(|_| self.bytes > budget && skipped < SKIPPED_MAX) {
            next = self.lru.after(slot);
            let entry = self.entries[slot as usize];
            if entry.generation == 0 && !entry.is_pinned && entry.knowledge != Knowledge::Pending {
                self.forget(slot);
            } else {
                skipped += 1;
            }
        }
    }

    /// Ends the generation of changes: what changed until now is what the next capture holds. Takes no time.
    ///
    /// # Errors
    /// XX000 when the last one is not drained or its capture not told of.
    pub fn freeze(&mut self) -> Result<()> {
        if self.awaits_capture || !self.frozen.is_empty() {
            return Err(Error::internal("a barrier came before the last one's changes were written"));
        }
        self.frozen = std::mem::take(&mut self.dirty);
        self.live = self.live.checked_add(1).ok_or_else(|| Error::internal("too many barriers"))?;
        self.awaits_capture = true;
        Ok(())
    }

    /// Writes up to `max` frozen values to the backend; tells whether all are written.
    ///
    /// # Errors
    /// When the store cannot be written; the operator is then of no use.
    pub fn drain(&mut self, backend: &mut dyn StateBackend, max: usize) -> Result<bool> {
        let frozen = self.live - 1;
        let mut batch = std::mem::take(&mut self.saved);
        let from = self.frozen.len().saturating_sub(max);
        let slots: Vec<Slot> = self.frozen.drain(from..).collect();
        self.write(backend, &mut batch, slots, frozen)?;
        Ok(self.frozen.is_empty() && self.saved.entries.is_empty())
    }

    /// The backend was captured, after all was drained.
    pub fn captured(&mut self) {
        debug_assert!(self.frozen.is_empty(), "captured before all was drained");
        self.awaits_capture = false;
    }

    /// Writes up to `max` changed values before a barrier asks for it; nothing between a barrier and its capture.
    /// Tells whether none is left.
    ///
    /// # Errors
    /// When the store cannot be written; the operator is then of no use.
    pub fn write_early(&mut self, backend: &mut dyn StateBackend, max: usize) -> Result<bool> {
        if self.awaits_capture {
            return Ok(false);
        }
        let from = self.dirty.len().saturating_sub(max);
        let slots: Vec<Slot> = self.dirty.drain(from..).collect();
        let live = self.live;
        self.write(backend, &mut WriteBatch::default(), slots, live)?;
        Ok(self.dirty.is_empty())
    }

    fn write(
        &mut self,
        backend: &mut dyn StateBackend,
        batch: &mut WriteBatch,
        slots: Vec<Slot>,
        generation: Generation,
    ) -> Result<()> {
        let mut written = Vec::with_capacity(slots.len());
        for slot in slots {
            // One that was changed again is in another list.
            if self.entries[slot as usize].generation == generation {
                batch.entries.push(self.encoded(slot));
                self.cells.write_entries(slot, self.index.key(slot), batch);
                self.entries[slot as usize].generation = 0;
                written.push(slot);
            }
        }
        // A key occurs once: it was saved or is written here.
        batch.entries.sort_unstable();
        backend.apply(self.operator, std::mem::take(batch))?;
        written.into_iter().for_each(|slot| self.drop_if_useless(slot));
        self.evict();
        Ok(())
    }

    /// Changed values that no barrier has frozen.
    pub fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Frozen values that are not written yet, or were when they were frozen.
    pub fn frozen(&self) -> usize {
        self.frozen.len()
    }

    /// Keys in memory, absent ones included.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// True when there is no key in memory.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Bytes that the tier takes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the tier another budget; it is held from the next end of a time on.
    pub fn set_budget(&mut self, bytes: usize) {
        if let Residence::Budget(budget) = &mut self.residence {
            *budget = bytes;
        }
    }
}
