//! The search as a window function, which a SELECT calls.

use std::hash::{Hash, Hasher};
use std::slice;
use std::sync::Arc;

use arrow::array::{ArrayRef, UInt32Array, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::DataFusionError;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::function::{PartitionEvaluatorArgs, WindowUDFFieldArgs};
use datafusion::logical_expr::{PartitionEvaluator, Signature, Volatility, WindowUDFImpl};

use super::{Matcher, Matches, Pattern};
use crate::types::Error;

/// Gives the first row of each match its measures as a structure, and other rows NULL. Its arguments are the columns that
/// the pattern reads.
#[derive(Debug)]
pub struct PatternFunction {
    pattern: Arc<Pattern>,
    text: String,
    signature: Signature,
}

impl PatternFunction {
    /// The function that looks for a pattern.
    pub fn new(pattern: Arc<Pattern>) -> PatternFunction {
        let signature = Signature::user_defined(Volatility::Immutable);
        PatternFunction { text: pattern.to_string(), pattern, signature }
    }

    /// What it looks for.
    pub fn pattern(&self) -> &Arc<Pattern> {
        &self.pattern
    }
}

impl PartialEq for PatternFunction {
    fn eq(&self, other: &PatternFunction) -> bool {
        self.text == other.text
    }
}

impl Eq for PatternFunction {}

impl Hash for PatternFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl WindowUDFImpl for PatternFunction {
    fn name(&self) -> &str {
        "clink_match"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, _: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        Ok(self.pattern.types.clone())
    }

    fn field(&self, args: WindowUDFFieldArgs<'_>) -> DataFusionResult<FieldRef> {
        Ok(Arc::new(Field::new(args.name(), DataType::Struct(self.pattern.fields.clone()), true)))
    }

    fn partition_evaluator(&self, _: PartitionEvaluatorArgs<'_>) -> DataFusionResult<Box<dyn PartitionEvaluator>> {
        Ok(Box::new(Partition { pattern: Arc::clone(&self.pattern) }))
    }
}

#[derive(Debug)]
struct Partition {
    pattern: Arc<Pattern>,
}

impl PartitionEvaluator for Partition {
    fn evaluate_all(&mut self, values: &[ArrayRef], num_rows: usize) -> DataFusionResult<ArrayRef> {
        matched(&self.pattern, values, num_rows).map_err(|error| DataFusionError::External(Box::new(error)))
    }
}

fn matched(pattern: &Pattern, values: &[ArrayRef], rows: usize) -> Result<ArrayRef, Error> {
    let partition = 0..rows;
    let mut matcher = Matcher::new(pattern, values, slice::from_ref(&partition))?;
    let mut matches = Matches::default();
    matcher.run(&partition, 0, None, &mut matches)?;
    if matches.is_empty() {
        return Ok(new_null_array(&DataType::Struct(pattern.fields.clone()), rows));
    }
    let measures: ArrayRef = Arc::new(matcher.measures(&matches)?);
    let mut starts = matches.starts().zip(0_u32..).peekable();
    let places: UInt32Array =
        partition.map(|row| starts.next_if(|(start, _)| *start == row).map(|(_, place)| place)).collect();
    Ok(take(&measures, &places, None)?)
}
