//! Aggregate functions that are kept current under retraction.
//!
//! An [`Accumulator`] holds the state of one aggregate for many groups as columns indexed by slot, and
//! works a batch at a time. The same accumulators answer a SELECT, so both agree. A diff of `-n`
//! takes back what `+n` gave; when everything is taken back, the state is that of an empty group.

mod bools;
mod count;
mod distinct;
mod double_double;
mod exact_sum;
mod float_sum;
mod ordered;
mod variance;

use std::fmt;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

use super::operators::StateSize;
use super::plan::AggregateFunction;
use crate::state::{KeyIndex, Slot, StateBackend, WriteBatch};
use crate::types::{Error, OperatorId, Result, SqlState};

/// A batch of changes to groups.
#[derive(Clone, Copy)]
pub struct Changes<'a> {
    /// The keys behind the slots; only looked at for slots that remember what changed.
    pub index: &'a KeyIndex,
    /// The group of each row.
    pub slots: &'a [Slot],
    /// The argument of each row; `None` for `count(*)`.
    pub argument: Option<&'a ArrayRef>,
    /// How often each row comes (or goes); zero: not at all, such as a row that FILTER leaves out.
    pub diffs: &'a [i64],
}

impl<'a> Changes<'a> {
    /// The argument's column.
    ///
    /// # Errors
    /// XX000 when there is none: only `count` does without.
    pub(super) fn values(&self) -> Result<&'a ArrayRef> {
        self.argument.ok_or_else(|| Error::internal("an aggregate lacks its argument"))
    }

    /// Calls `each` with (row, slot, diff) for the rows whose argument is not NULL and that count.
    pub(super) fn for_each_value(&self, values: &dyn Array, mut each: impl FnMut(usize, usize, i64)) {
        let nulls = values.nulls();
        for (row, (slot, diff)) in self.slots.iter().zip(self.diffs).enumerate() {
            if *diff != 0 && nulls.is_none_or(|nulls| nulls.is_valid(row)) {
                each(row, *slot as usize, *diff);
            }
        }
    }
}

/// The state of one aggregate for many groups.
///
/// Slots are made with [`Self::resize`] and start empty. State that is of bounded size per group is
/// *encoded* into the group's value; what grows with the input is kept as map entries that
/// [`Self::flush`] hands over one by one.
pub trait Accumulator: Send + Sync + fmt::Debug {
    /// Makes room for slots below `slots`; new ones are empty.
    fn resize(&mut self, slots: usize);

    /// Applies a batch of changes.
    ///
    /// # Errors
    /// When the argument has not the planned type.
    fn update(&mut self, changes: &Changes<'_>) -> Result<()>;

    /// The aggregate of each of some groups.
    ///
    /// # Errors
    /// 22003 when a result is out of its type's range.
    fn evaluate(&mut self, slots: &[Slot]) -> Result<ArrayRef>;

    /// Empties a slot, whose key is still in the index.
    fn clear(&mut self, index: &KeyIndex, slot: Slot);

    /// Appends the bounded part of a slot's state.
    fn encode(&self, slot: Slot, out: &mut Vec<u8>);

    /// Adds an encoded bounded part to a slot's state and moves `input` behind it.
    ///
    /// # Errors
    /// XX001 when the bytes are cut short.
    fn decode(&mut self, slot: Slot, input: &mut &[u8]) -> Result<()>;

    /// Appends the whole state of a slot, map entries included.
    fn export(&self, slot: Slot, out: &mut Vec<u8>) {
        self.encode(slot, out);
    }

    /// Adds an exported state to a slot's and moves `input` behind it.
    ///
    /// # Errors
    /// XX001 when the bytes are cut short.
    fn import(&mut self, index: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()> {
        let _ = index;
        self.decode(slot, input)
    }

    /// Takes an exported state off a slot's and moves `input` behind it.
    ///
    /// # Errors
    /// XX001 when the bytes are cut short.
    fn take_back(&mut self, index: &KeyIndex, slot: Slot, input: &mut &[u8]) -> Result<()>;

    /// Hands over the map entries that changed since the last call.
    fn flush(&mut self, index: &KeyIndex, batch: &mut WriteBatch) {
        let _ = (index, batch);
    }

    /// The map entries that it keeps, over all slots.
    fn entries(&self) -> StateSize {
        StateSize::default()
    }

    /// Takes in the stored map entries of the keys of `index`.
    ///
    /// # Errors
    /// XX001 when an entry is damaged.
    fn load(&mut self, index: &KeyIndex, operator: OperatorId, backend: &dyn StateBackend) -> Result<()> {
        let _ = (index, operator, backend);
        Ok(())
    }
}

/// The accumulator of a function over an argument type (ignored for `count(*)`).
///
/// `slot_name` names its map entries; with `track` it remembers which changed.
///
/// # Errors
/// 42883 when the function does not take that type.
pub fn accumulator(
    function: &AggregateFunction,
    argument: &DataType,
    distinct: bool,
    slot_name: &str,
    track: bool,
) -> Result<Box<dyn Accumulator>> {
    let result = function.result_type(argument)?;
    // Whether a value comes once or more often makes no difference to these.
    let idempotent = matches!(
        function,
        AggregateFunction::Min | AggregateFunction::Max | AggregateFunction::BoolAnd | AggregateFunction::BoolOr
    );
    if distinct && !idempotent {
        let inner = accumulator(function, argument, false, slot_name, track)?;
        return Ok(match function {
            AggregateFunction::StringAgg { .. } | AggregateFunction::ArrayAgg => {
                Box::new(ordered::Ordered::collecting(function, argument, true, slot_name, track)?)
            }
            _ => Box::new(distinct::Distinct::new(inner, argument, slot_name, track)?),
        });
    }
    Ok(match function {
        AggregateFunction::Count => Box::new(count::Count::default()),
        AggregateFunction::Sum | AggregateFunction::Avg => match argument {
            DataType::Float32 | DataType::Float64 => {
                Box::new(float_sum::FloatSum::new(*function == AggregateFunction::Avg))
            }
            _ => exact_sum::exact_sum(argument, &result, *function == AggregateFunction::Avg)?,
        },
        AggregateFunction::VarSamp
        | AggregateFunction::VarPop
        | AggregateFunction::StddevSamp
        | AggregateFunction::StddevPop => Box::new(variance::Variance::new(function.clone())),
        AggregateFunction::BoolAnd | AggregateFunction::BoolOr => {
            Box::new(bools::Bools::new(*function == AggregateFunction::BoolAnd))
        }
        AggregateFunction::Min | AggregateFunction::Max => {
            Box::new(ordered::Ordered::extreme(function, argument, slot_name, track)?)
        }
        AggregateFunction::StringAgg { .. } | AggregateFunction::ArrayAgg => {
            Box::new(ordered::Ordered::collecting(function, argument, false, slot_name, track)?)
        }
    })
}

/// Cuts a fixed number of bytes off encoded state.
fn take<const N: usize>(input: &mut &[u8]) -> Result<[u8; N]> {
    let (bytes, rest) = input
        .split_first_chunk::<N>()
        .ok_or_else(|| Error::new(SqlState::DataCorrupted, "an aggregate's stored state is cut short"))?;
    *input = rest;
    Ok(*bytes)
}

#[cfg(test)]
mod tests;
