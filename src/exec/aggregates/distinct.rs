//! `agg(DISTINCT x)`: counts how often each argument is there, and passes on its first and its last.

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;

use super::ordered::{export_entries, import_entries};
use super::{Accumulator, Changes};
use crate::exec::operators::StateSize;
use crate::state::{KeyIndex, Multiset, RowCodec, Slot, StateBackend, WriteBatch};
use crate::types::{OperatorId, Result};

/// An aggregate of the distinct arguments.
#[derive(Debug)]
pub(super) struct Distinct {
    inner: Box<dyn Accumulator>,
    codec: RowCodec,
    seen: Multiset,
}

impl Distinct {
    pub(super) fn new(
        inner: Box<dyn Accumulator>,
        argument: &DataType,
        slot_name: &str,
        track: bool,
    ) -> Result<Distinct> {
        let codec = RowCodec::for_keys([argument])?;
        Ok(Distinct { inner, codec, seen: Multiset::new(slot_name.to_owned(), track) })
    }

    /// Adds arguments, each so often as it is there, times a number.
    fn add_entries(&mut self, index: &KeyIndex, slot: Slot, entries: &[(&[u8], i64)], times: i64) -> Result<()> {
        let column = self.codec.decode(entries.iter().map(|(value, _)| *value))?;
        let diffs: Vec<i64> = entries.iter().map(|(_, count)| times * count).collect();
        let slots = vec![slot; diffs.len()];
        self.update(&Changes { index, slots: &slots, argument: column.first(), diffs: &diffs })
    }
}

impl Accumulator for Distinct {
    fn resize(&mut self, slots: usize) {
        self.inner.resize(slots);
        self.seen.resize(slots);
    }

    fn update(&mut self, changes: &Changes<'_>) -> Result<()> {
        let values = changes.values()?;
        let encoded = self.codec.encode(std::slice::from_ref(values), values.len())?;
        let mut diffs = vec![0; values.len()];
        let seen = &mut self.seen;
        changes.for_each_value(values, |row, slot, diff| {
            let (before, after) = seen.add(changes.index, slot as Slot, encoded.row(row), diff);
            diffs[row] = i64::from(after > 0) - i64::from(before > 0);
        });
        self.inner.update(&Changes { diffs: &diffs, ..*changes })
    }

    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef> {
        self.inner.evaluate(slots)
    }

    fn clear(&mut self, index: &KeyIndex, slot: Slot) {
        self.inner.clear(index, slot);
        self.seen.remove_all(index, slot);
    }

    fn encode(&self, slot: Slot, out: &mut Vec<u8>) {
        self.inner.encode(slot, out);
    }

    fn decode(&mut self, slot: Slot, input: &mut &[u8]) -> Result<()> {
        self.inner.decode(slot, input)
    }

    // The parts of one group may share arguments, so only the arguments are exported.
    fn export(&self, slot: Slot, out: &mut Vec<u8>) {
        export_entries(&self.seen, slot, out);
    }

    fn import(&mut self, index: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        self.add_entries(index, slot, &import_entries(input)?, 1)
    }

    fn take_back(&mut self, index: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        self.add_entries(index, slot, &import_entries(input)?, -1)
    }

    fn entries(&self) -> StateSize {
        StateSize { keys: self.seen.total_len(), bytes: self.seen.total_bytes() }
    }

    fn flush(&mut self, index: &KeyIndex, batch: &mut WriteBatch) {
        self.seen.flush(index, batch);
    }

    fn load(&mut self, index: &KeyIndex, operator: OperatorId, backend: &dyn StateBackend) -> Result<()> {
        self.seen.load(index, operator, backend)
    }
}
