//! Aggregates that need the arguments in order of value: `min`, `max`, `string_agg`, `array_agg`.

use std::sync::Arc;

use arrow::array::UInt32Array;
use arrow::array::{ArrayRef, AsArray, ListArray, StringBuilder, new_null_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{interleave, take as take_rows};
use arrow::datatypes::{DataType, Field};

use super::{Accumulator, Changes, take};
use crate::exec::operators::StateSize;
use crate::exec::plan::AggregateFunction;
use crate::state::{KeyIndex, Multiset, RowCodec, Slot, StateBackend, WriteBatch};
use crate::types::{Error, OperatorId, Result, SqlState};

/// The counted arguments of each group.
#[derive(Debug)]
pub(super) struct Ordered {
    form: Form,
    argument: DataType,
    codec: RowCodec,
    values: Multiset,
}

#[derive(Debug)]
enum Form {
    Min,
    Max,
    Text { delimiter: String, distinct: bool },
    List { distinct: bool },
}

impl Ordered {
    pub(super) fn extreme(
        function: &AggregateFunction,
        argument: &DataType,
        slot_name: &str,
        track: bool,
    ) -> Result<Ordered> {
        let form = if *function == AggregateFunction::Min { Form::Min } else { Form::Max };
        Ordered::new(form, argument, slot_name, track)
    }

    pub(super) fn collecting(
        function: &AggregateFunction,
        argument: &DataType,
        distinct: bool,
        slot_name: &str,
        track: bool,
    ) -> Result<Ordered> {
        let form = match function {
            AggregateFunction::StringAgg { delimiter } => Form::Text { delimiter: delimiter.clone(), distinct },
            _ => Form::List { distinct },
        };
        Ordered::new(form, argument, slot_name, track)
    }

    fn new(form: Form, argument: &DataType, slot_name: &str, track: bool) -> Result<Ordered> {
        let codec = RowCodec::for_keys([argument])?;
        let values = Multiset::new(slot_name.to_owned(), track);
        Ok(Ordered { form, argument: argument.clone(), codec, values })
    }

    fn extremes(&self, slots: &[Slot], max: bool) -> Result<ArrayRef> {
        // The encoded extremes of the groups that have one, and for each group which.
        let mut extremes = Vec::new();
        let mut rows = Vec::with_capacity(slots.len());
        for slot in slots {
            let mut entries = self.values.entries(*slot).map(|(value, _)| value);
            match if max { entries.next_back() } else { entries.next() } {
                Some(value) => {
                    rows.push(Some(extremes.len() as u32));
                    extremes.push(value);
                }
                None => rows.push(None),
            }
        }
        if extremes.is_empty() {
            return Ok(new_null_array(&self.argument, slots.len()));
        }
        let column = self.codec.decode(extremes)?.remove(0);
        Ok(take_rows(&column, &UInt32Array::from(rows), None)?)
    }

    fn texts(&self, slots: &[Slot], delimiter: &str, distinct: bool) -> Result<ArrayRef> {
        let mut builder = StringBuilder::new();
        let mut joined = String::new();
        for slot in slots {
            let entries: Vec<(&[u8], i64)> = self.values.entries(*slot).collect();
            if entries.is_empty() {
                builder.append_null();
                continue;
            }
            let column = self.codec.decode(entries.iter().map(|(value, _)| *value))?.remove(0);
            let texts = column.as_string::<i32>();
            joined.clear();
            let mut separator = "";
            for (row, (_, count)) in entries.iter().enumerate() {
                for _ in 0..repeats(*count, distinct) {
                    joined.push_str(separator);
                    joined.push_str(texts.value(row));
                    separator = delimiter;
                }
            }
            builder.append_value(&joined);
        }
        Ok(Arc::new(builder.finish()))
    }

    fn lists(&self, slots: &[Slot], distinct: bool) -> Result<ArrayRef> {
        let mut encoded = Vec::new();
        let mut rows = Vec::new();
        let mut lengths = Vec::with_capacity(slots.len());
        for slot in slots {
            let start = rows.len();
            for (value, count) in self.values.entries(*slot) {
                rows.extend(std::iter::repeat_n((0, encoded.len()), repeats(count, distinct)));
                encoded.push(value);
            }
            lengths.push(rows.len() - start);
        }
        let items = if encoded.is_empty() {
            new_null_array(&self.argument, 0)
        } else {
            let column = self.codec.decode(encoded)?.remove(0);
            interleave(&[&column], &rows)?
        };
        let nulls = NullBuffer::from_iter(lengths.iter().map(|length| *length > 0));
        let field = Arc::new(Field::new_list_field(self.argument.clone(), true));
        Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), items, Some(nulls))?))
    }
}

fn repeats(count: i64, distinct: bool) -> usize {
    if distinct { usize::from(count > 0) } else { usize::try_from(count).unwrap_or(0) }
}

impl Accumulator for Ordered {
    fn resize(&mut self, slots: usize) {
        self.values.resize(slots);
    }

    fn update(&mut self, changes: &Changes<'_>) -> Result<()> {
        let values = changes.values()?;
        let encoded = self.codec.encode(std::slice::from_ref(values), values.len())?;
        let counted = &mut self.values;
        let mut add = |row: usize, slot: usize, diff: i64| {
            counted.add(changes.index, slot as Slot, encoded.row(row), diff);
        };
        match self.form {
            // A list has its NULLs too.
            Form::List { .. } => {
                for (row, (slot, diff)) in changes.slots.iter().zip(changes.diffs).enumerate() {
                    if *diff != 0 {
                        add(row, *slot as usize, *diff);
                    }
                }
            }
            Form::Min | Form::Max | Form::Text { .. } => changes.for_each_value(values, add),
        }
        Ok(())
    }

    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef> {
        match &self.form {
            Form::Min => self.extremes(slots, false),
            Form::Max => self.extremes(slots, true),
            Form::Text { delimiter, distinct } => self.texts(slots, delimiter, *distinct),
            Form::List { distinct } => self.lists(slots, *distinct),
        }
    }

    fn clear(&mut self, index: &KeyIndex, slot: Slot) {
        self.values.remove_all(index, slot);
    }

    fn encode(&self, _: Slot, _: &mut Vec<u8>) {}

    fn decode(&mut self, _: Slot, _: &mut &[u8]) -> Result<()> {
        Ok(())
    }

    fn export(&self, slot: Slot, out: &mut Vec<u8>) {
        export_entries(&self.values, slot, out);
    }

    fn import(&mut self, index: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        for (value, count) in import_entries(input)? {
            self.values.add(index, slot, value, count);
        }
        Ok(())
    }

    fn take_back(&mut self, index: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        for (value, count) in import_entries(input)? {
            self.values.add(index, slot, value, -count);
        }
        Ok(())
    }

    fn entries(&self) -> StateSize {
        StateSize { keys: self.values.total_len(), bytes: self.values.total_bytes() }
    }

    fn flush(&mut self, index: &KeyIndex, batch: &mut WriteBatch) {
        self.values.flush(index, batch);
    }

    fn load(&mut self, index: &KeyIndex, operator: OperatorId, backend: &dyn StateBackend) -> Result<()> {
        self.values.load(index, operator, backend)
    }
}

/// Appends a slot's entries: `[u32 number]`, then `[u32 length][value][i64 count]` each.
pub(super) fn export_entries(values: &Multiset, slot: Slot, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let mut number = 0_u32;
    for (value, count) in values.entries(slot) {
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(value);
        out.extend_from_slice(&count.to_le_bytes());
        number += 1;
    }
    out[start..start + 4].copy_from_slice(&number.to_le_bytes());
}

/// The entries at the start of `input`, which moves behind them.
pub(super) fn import_entries<'a>(input: &mut &'a [u8]) -> Result<Vec<(&'a [u8], i64)>> {
    let number = u32::from_le_bytes(take(input)?);
    let mut entries = Vec::new();
    for _ in 0..number {
        let length = u32::from_le_bytes(take(input)?) as usize;
        if input.len() < length {
            return Err(Error::new(SqlState::DataCorrupted, "an aggregate's stored state is cut short"));
        }
        let (value, rest) = input.split_at(length);
        *input = rest;
        entries.push((value, i64::from_le_bytes(take(input)?)));
    }
    Ok(entries)
}
