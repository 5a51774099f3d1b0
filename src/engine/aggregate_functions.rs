//! The aggregates of views as functions of a SELECT: the same accumulators behind DataFusion's traits,
//! so that both give the same answers and PostgreSQL's types.
//!
//! A group's partial state is one binary value, see [`Accumulator::export`]. With `ORDER BY` inside,
//! `string_agg` and `array_agg` are DataFusion's own, which take the order asked for; views refuse it.

use std::mem::size_of;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, BinaryBuilder, BooleanArray};
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{DataFusionError, Result, ScalarValue};
use datafusion::functions_aggregate::array_agg::array_agg_udaf;
use datafusion::functions_aggregate::string_agg::string_agg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator as DataFusionAccumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, Signature,
    Volatility,
};
use datafusion::physical_expr::expressions::Literal;

use crate::exec::aggregates::{Accumulator, Changes, accumulator};
use crate::exec::plan::AggregateFunction;
use crate::state::{KeyIndex, Slot};
use crate::types::{self, Error};

/// The functions to register over DataFusion's of the same names.
pub(crate) fn functions() -> Vec<Arc<AggregateUDF>> {
    let plain = [
        (AggregateFunction::Sum, "sum", vec![]),
        (AggregateFunction::Avg, "avg", vec!["mean"]),
        (AggregateFunction::VarSamp, "var", vec!["var_samp", "var_sample", "variance"]),
        (AggregateFunction::VarPop, "var_pop", vec!["var_population"]),
        (AggregateFunction::StddevSamp, "stddev", vec!["stddev_samp"]),
        (AggregateFunction::StddevPop, "stddev_pop", vec![]),
        (AggregateFunction::StringAgg { delimiter: String::new() }, "string_agg", vec![]),
        (AggregateFunction::ArrayAgg, "array_agg", vec![]),
    ];
    plain
        .into_iter()
        .map(|(function, name, aliases)| {
            Arc::new(AggregateUDF::from(Aggregate {
                function,
                name,
                aliases: aliases.into_iter().map(str::to_owned).collect(),
                signature: Signature::user_defined(Volatility::Immutable),
            }))
        })
        .collect()
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Aggregate {
    function: AggregateFunction,
    name: &'static str,
    aliases: Vec<String>,
    signature: Signature,
}

impl Aggregate {
    /// DataFusion's function for a call with `ORDER BY` inside.
    fn ordered(&self) -> Option<Arc<AggregateUDF>> {
        match self.function {
            AggregateFunction::StringAgg { .. } => Some(string_agg_udaf()),
            AggregateFunction::ArrayAgg => Some(array_agg_udaf()),
            _ => None,
        }
    }

    fn adapter(&self, args: &AccumulatorArgs<'_>) -> Result<Adapter> {
        let function = match &self.function {
            AggregateFunction::StringAgg { .. } => AggregateFunction::StringAgg { delimiter: delimiter(args)? },
            other => other.clone(),
        };
        let argument = args.expr_fields.first().ok_or_else(|| external(missing()))?.data_type().clone();
        Adapter::new(function, argument, args.is_distinct).map_err(external)
    }
}

fn missing() -> Error {
    Error::internal("an aggregate lacks its argument")
}

fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn delimiter(args: &AccumulatorArgs<'_>) -> Result<String> {
    let literal = args.exprs.get(1).and_then(|expression| expression.downcast_ref::<Literal>());
    match literal.map(Literal::value) {
        Some(ScalarValue::Utf8(text)) => Ok(text.clone().unwrap_or_default()),
        _ => Err(external(
            Error::unsupported("string_agg takes a literal as its delimiter").hint("Write string_agg(column, ', ')."),
        )),
    }
}

impl AggregateUDFImpl for Aggregate {
    fn name(&self) -> &str {
        self.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let argument = arguments.first().ok_or_else(|| external(missing()))?;
        self.function.result_type(argument).map_err(external)
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let wanted = if matches!(self.function, AggregateFunction::StringAgg { .. }) { 2 } else { 1 };
        if arguments.len() != wanted {
            return Err(external(
                Error::new(
                    types::SqlState::UndefinedFunction,
                    format!("function {} of {} arguments does not exist", self.name, arguments.len()),
                )
                .hint(format!("It takes {wanted}.")),
            ));
        }
        let coerced: Vec<DataType> = arguments
            .iter()
            .map(|argument| match argument {
                DataType::Utf8View => DataType::Utf8,
                DataType::Null if wanted == 2 => DataType::Utf8,
                DataType::Null if self.function != AggregateFunction::ArrayAgg => DataType::Float64,
                DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 | DataType::Int8 => {
                    DataType::Int64
                }
                other => other.clone(),
            })
            .collect();
        self.return_type(&coerced)?;
        Ok(coerced)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if !args.ordering_fields.is_empty()
            && let Some(ordered) = self.ordered()
        {
            return ordered.state_fields(args);
        }
        Ok(vec![Arc::new(Field::new(format!("{}[state]", args.name), DataType::Binary, true))])
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        match self.ordered() {
            Some(_) => AggregateOrderSensitivity::HardRequirement,
            None => AggregateOrderSensitivity::Insensitive,
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn DataFusionAccumulator>> {
        if !args.order_bys.is_empty()
            && let Some(ordered) = self.ordered()
        {
            let result = args.return_field.data_type().clone();
            return Ok(Box::new(Typed { inner: ordered.accumulator(args)?, result }));
        }
        let mut adapter = self.adapter(&args)?;
        adapter.grow(1);
        Ok(Box::new(adapter))
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        args.order_bys.is_empty()
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(Box::new(self.adapter(&args)?))
    }
}

/// One of DataFusion's accumulators with our result type.
#[derive(Debug)]
struct Typed {
    inner: Box<dyn DataFusionAccumulator>,
    result: DataType,
}

impl DataFusionAccumulator for Typed {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        self.inner.evaluate()?.cast_to(&self.result)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }
}

/// One of our accumulators as one of DataFusion's.
#[derive(Debug)]
struct Adapter {
    function: AggregateFunction,
    argument: DataType,
    distinct: bool,
    inner: Box<dyn Accumulator>,
    index: KeyIndex,
    groups: usize,
}

impl Adapter {
    fn new(function: AggregateFunction, argument: DataType, distinct: bool) -> types::Result<Adapter> {
        let inner = accumulator(&function, &argument, distinct, "a", false)?;
        Ok(Adapter { function, argument, distinct, inner, index: KeyIndex::new(false), groups: 0 })
    }

    fn grow(&mut self, groups: usize) {
        self.groups = self.groups.max(groups);
        self.inner.resize(self.groups);
    }

    fn update(&mut self, values: &[ArrayRef], slots: &[Slot], diffs: &[i64]) -> Result<()> {
        let changes = Changes { index: &self.index, slots, argument: values.first(), diffs };
        self.inner.update(&changes).map_err(external)
    }

    fn export(&self, slots: impl Iterator<Item = Slot>) -> BinaryArray {
        let mut builder = BinaryBuilder::new();
        let mut bytes = Vec::new();
        for slot in slots {
            bytes.clear();
            self.inner.export(slot, &mut bytes);
            builder.append_value(&bytes);
        }
        builder.finish()
    }

    fn import(&mut self, slot: Slot, mut bytes: &[u8]) -> Result<()> {
        self.inner.import(&self.index, slot, &mut bytes).map_err(external)
    }

    /// Forgets the first `emitted` groups; the others move to the front.
    fn forget(&mut self, emitted: usize) -> Result<()> {
        let mut rest = Adapter::new(self.function.clone(), self.argument.clone(), self.distinct).map_err(external)?;
        rest.grow(self.groups - emitted);
        let kept = self.export((emitted..self.groups).map(|slot| slot as Slot));
        for (slot, bytes) in kept.iter().flatten().enumerate() {
            rest.import(slot as Slot, bytes)?;
        }
        *self = rest;
        Ok(())
    }

    fn emitted(&self, emit_to: EmitTo) -> usize {
        match emit_to {
            EmitTo::All => self.groups,
            EmitTo::First(groups) => groups.min(self.groups),
        }
    }
}

fn slots_of(groups: &[usize]) -> Vec<Slot> {
    groups.iter().map(|group| *group as Slot).collect()
}

fn diffs_of(filter: Option<&BooleanArray>, rows: usize) -> Vec<i64> {
    match filter {
        None => vec![1; rows],
        Some(filter) => filter.iter().map(|pass| i64::from(pass == Some(true))).collect(),
    }
}

fn states(values: &[ArrayRef]) -> Result<&BinaryArray> {
    values
        .first()
        .and_then(|column| column.as_binary_opt::<i32>())
        .ok_or_else(|| external(Error::internal("an aggregate's partial state is not binary")))
}

impl GroupsAccumulator for Adapter {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.grow(total_num_groups);
        self.update(values, &slots_of(group_indices), &diffs_of(opt_filter, group_indices.len()))
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let emitted = self.emitted(emit_to);
        let slots: Vec<Slot> = (0..emitted).map(|slot| slot as Slot).collect();
        let result = self.inner.evaluate(&slots).map_err(external)?;
        self.forget(emitted)?;
        Ok(result)
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let emitted = self.emitted(emit_to);
        let state: ArrayRef = Arc::new(self.export((0..emitted).map(|slot| slot as Slot)));
        self.forget(emitted)?;
        Ok(vec![state])
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.grow(total_num_groups);
        for (bytes, group) in states(values)?.iter().zip(group_indices) {
            if let Some(bytes) = bytes {
                self.import(*group as Slot, bytes)?;
            }
        }
        Ok(())
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let rows = values.first().map_or(0, |column| column.len());
        let mut each = Adapter::new(self.function.clone(), self.argument.clone(), self.distinct).map_err(external)?;
        each.grow(rows);
        let slots: Vec<Slot> = (0..rows).map(|row| row as Slot).collect();
        each.update(values, &slots, &diffs_of(opt_filter, rows))?;
        Ok(vec![Arc::new(each.export(slots.into_iter()))])
    }

    fn size(&self) -> usize {
        // A floor: what grows with the input is not counted.
        size_of::<Adapter>() + self.groups * 32
    }
}

impl DataFusionAccumulator for Adapter {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |column| column.len());
        self.update(values, &vec![0; rows], &vec![1; rows])
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let rows = values.first().map_or(0, |column| column.len());
        self.update(values, &vec![0; rows], &vec![-1; rows])
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let result = self.inner.evaluate(&[0]).map_err(external)?;
        ScalarValue::try_from_array(&result, 0)
    }

    fn size(&self) -> usize {
        GroupsAccumulator::size(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let mut bytes = Vec::new();
        self.inner.export(0, &mut bytes);
        Ok(vec![ScalarValue::Binary(Some(bytes))])
    }

    fn merge_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for bytes in states(values)?.iter().flatten() {
            self.import(0, bytes)?;
        }
        Ok(())
    }
}
