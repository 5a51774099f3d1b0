//! Looking into an operator while it works: its rows as they were at one moment, page by page.
//!
//! A read begins between two times. It copies nothing then; what changes before the read gets there is put aside once, up to a
//! bound. So an operator that nobody looks into pays nothing, and one that is read pays for what changes ahead of the read.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use crate::exec::plan::{JobPlan, OperatorSpec};
use crate::state::{EncodedRows, RowCodec};
use crate::types::{InspectionId, Result};

/// Some rows of a read.
#[derive(Debug)]
pub struct InspectedPage {
    /// The rows; may be empty though more follow.
    pub rows: RecordBatch,
    /// Whether more may follow.
    pub more: bool,
}

/// An operator whose rows can be read.
///
/// `begin` and `find` are called between two times, `page` and `end` at any moment. Rows come in no order that means anything.
pub trait Inspect {
    /// A read of a part begins; it sees the rows as they are now.
    fn begin(&mut self, id: InspectionId, part: usize);

    /// The next rows of a read, at most about so many.
    ///
    /// # Errors
    /// 72000 when more has changed meanwhile than is kept for a reader; when a result cannot be represented.
    fn page(&mut self, id: InspectionId, rows_max: usize, deadline: Instant) -> Result<InspectedPage>;

    /// The rows of a part with some encoded keys, as they are now.
    ///
    /// # Errors
    /// When a result cannot be represented.
    fn find(&mut self, part: usize, keys: &[Vec<u8>]) -> Result<RecordBatch>;

    /// A read is over.
    fn end(&mut self, id: InspectionId);
}

/// The parts of an operator's state: the rows of an aggregate, those of each side of a join, those that a rank chooses from,
/// those that are held back.
///
/// Empty when the operator keeps none.
pub(crate) fn state_parts(operator: &OperatorSpec) -> &'static [&'static str] {
    match operator {
        OperatorSpec::Aggregate { .. } | OperatorSpec::Hold | OperatorSpec::Expire { .. } => &["rows"],
        OperatorSpec::Join(_) => &["left", "right"],
        OperatorSpec::Rank(_) => &["input"],
        OperatorSpec::Import { .. }
        | OperatorSpec::Constant { .. }
        | OperatorSpec::Project { .. }
        | OperatorSpec::Filter { .. }
        | OperatorSpec::Union
        | OperatorSpec::Unnest(_)
        | OperatorSpec::SessionWindow(_)
        | OperatorSpec::HopAggregate { .. }
        | OperatorSpec::TemporalFilter(_)
        | OperatorSpec::TemporalJoin(_)
        | OperatorSpec::LookupJoin(_)
        | OperatorSpec::Match(_)
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
        OperatorSpec::Hold => Some((Arc::clone(&node.schema), Vec::new())),
        OperatorSpec::Expire { keys, .. } => Some((Arc::clone(&node.schema), keys.clone())),
        _ => None,
    }
}

/// The operator whose rows a part of an operator's state is, when neither event time nor the clock ends what is kept of them.
pub(crate) fn part_source(plan: &JobPlan, node: usize, part: usize) -> Option<usize> {
    let user = plan.nodes.get(node)?;
    let source = match &user.operator {
        OperatorSpec::Aggregate { .. } => node,
        OperatorSpec::Join(_) => *user.inputs.get(part)?,
        OperatorSpec::Rank(_) => *user.inputs.first()?,
        _ => return None,
    };
    (user.closing.is_empty() && user.ttl_millis.is_none()).then_some(source)
}

/// Encoded rows as a batch: the schema's columns are the last that they are made of.
pub(super) fn decoded(rows: &EncodedRows, codec: &RowCodec, schema: &SchemaRef) -> Result<RecordBatch> {
    if rows.is_empty() {
        return Ok(RecordBatch::new_empty(Arc::clone(schema)));
    }
    let mut columns = codec.decode(rows.iter())?;
    let columns = columns.split_off(columns.len().saturating_sub(schema.fields().len()));
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)?)
}
