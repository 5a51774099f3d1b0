//! What an operator's stored state says, as rows: to look into a job without touching its workers.

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;
use std::sync::Arc;

use super::{Aggregate, Context, Operator as _};
use crate::exec::plan::{JobPlan, OperatorSpec};
use crate::state::{RowCodec, StateBackend, split_map_key};
use crate::types::{CHUNK_ROWS_MAX, Error, OperatorId, Result, SqlState};

/// The parts of an operator's state: the rows of an aggregate, those of each side of a join, those that a rank chooses from.
///
/// Empty when the operator keeps none.
pub(crate) fn state_parts(operator: &OperatorSpec) -> &'static [&'static str] {
    match operator {
        OperatorSpec::Aggregate { .. } => &["rows"],
        OperatorSpec::Join(_) => &["left", "right"],
        OperatorSpec::Rank(_) => &["input"],
        OperatorSpec::Import { .. }
        | OperatorSpec::Constant { .. }
        | OperatorSpec::Project { .. }
        | OperatorSpec::Filter { .. }
        | OperatorSpec::Union
        | OperatorSpec::Unnest(_)
        | OperatorSpec::Hold
        | OperatorSpec::TemporalFilter(_)
        | OperatorSpec::TemporalJoin(_)
        | OperatorSpec::LookupJoin(_)
        | OperatorSpec::Latest => &[],
    }
}

/// The columns of a part of an operator's state, and those of them that its key is made of.
pub(crate) fn part_columns(plan: &JobPlan, node: usize, part: usize) -> Option<(SchemaRef, Vec<usize>)> {
    let node = plan.nodes.get(node)?;
    let input = |at: usize| Some(Arc::clone(&plan.nodes.get(*node.inputs.get(at)?)?.schema));
    match &node.operator {
        OperatorSpec::Aggregate { keys, .. } => Some((Arc::clone(&node.schema), (0..keys.len()).collect())),
        OperatorSpec::Join(join) => {
            Some((input(part)?, if part == 0 { join.left_keys.clone() } else { join.right_keys.clone() }))
        }
        OperatorSpec::Rank(rank) => Some((input(0)?, rank.keys.clone())),
        _ => None,
    }
}

/// The rows of a part of an operator's state, as a backend holds it. `job` is the name of which the operator's id is made.
///
/// # Errors
/// XX001 when the state is damaged.
pub(crate) fn stored_rows(
    job: &str,
    plan: &JobPlan,
    node: usize,
    part: usize,
    backend: &mut dyn StateBackend,
) -> Result<Vec<RecordBatch>> {
    let gone = || Error::internal("an operator of a plan is missing");
    let (schema, _) = part_columns(plan, node, part).ok_or_else(gone)?;
    let node = plan.nodes.get(node).ok_or_else(gone)?;
    let operator = OperatorId::of(job, &node.path);
    match &node.operator {
        OperatorSpec::Aggregate { keys, aggregates } => {
            let input = node.inputs.first().and_then(|input| plan.nodes.get(*input)).ok_or_else(gone)?;
            let calls = aggregates.clone();
            let mut aggregate = Aggregate::new(operator, &input.schema, schema, keys.clone(), calls, true, false)?;
            // Nobody waits for a slice of this.
            let never = std::time::Instant::now() + std::time::Duration::from_secs(3_600);
            aggregate.open(&mut Context::new(backend, never))?;
            aggregate.present_rows()
        }
        OperatorSpec::Join(_) => {
            let codec = RowCodec::for_rows(schema.fields().iter().map(|field| field.data_type()))?;
            entries(backend, operator, if part == 0 { "l" } else { "r" }, &codec, &schema)
        }
        OperatorSpec::Rank(rank) => {
            let order = rank.order.iter().map(|key| (schema.field(key.column).data_type(), key.options));
            let codec = RowCodec::for_ordered_rows(order, schema.fields().iter().map(|field| field.data_type()))?;
            entries(backend, operator, super::rank::SLOT_NAME, &codec, &schema)
        }
        _ => Err(gone()),
    }
}

/// Rows that stand, each with a count, in the map state of a slot. The schema's columns are the last that they are made of.
fn entries(
    backend: &dyn StateBackend,
    operator: OperatorId,
    slot: &str,
    codec: &RowCodec,
    schema: &SchemaRef,
) -> Result<Vec<RecordBatch>> {
    let damaged = || Error::new(SqlState::DataCorrupted, format!("a stored entry of {slot} is damaged"));
    let mut rows: Vec<Vec<u8>> = Vec::new();
    backend.scan(operator, &[], &mut |stored, count| {
        let Some((_, row)) = split_map_key(slot, stored)? else { return Ok(()) };
        let count = i64::from_le_bytes(count.try_into().map_err(|_| damaged())?);
        rows.extend(std::iter::repeat_n(row.to_vec(), usize::try_from(count).map_err(|_| damaged())?));
        Ok(())
    })?;
    let mut batches = Vec::new();
    for rows in rows.chunks(CHUNK_ROWS_MAX) {
        let mut columns: Vec<ArrayRef> = codec.decode(rows.iter().map(Vec::as_slice))?;
        let columns = columns.split_off(columns.len().saturating_sub(schema.fields().len()));
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        batches.push(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?);
    }
    Ok(batches)
}
