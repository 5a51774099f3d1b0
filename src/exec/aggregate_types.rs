//! Which argument types an aggregate takes and what it results in.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};

use super::plan::AggregateFunction;
use crate::types::{Error, Result, SqlState};

impl AggregateFunction {
    /// The type of the result over arguments of type `argument` (ignored by `count`): PostgreSQL's,
    /// but for the scale of `avg` (fixed at 16) and for `stddev` and `variance`, which are doubles.
    ///
    /// # Errors
    /// 42883 when the function does not take that type.
    pub fn result_type(&self, argument: &DataType) -> Result<DataType> {
        use DataType::*;
        let refuse = || {
            Err(Error::new(SqlState::UndefinedFunction, format!("function {self}({argument}) does not exist"))
                .hint("No aggregate of this name takes that argument type. You might need to add a cast."))
        };
        Ok(match self {
            AggregateFunction::Count => Int64,
            AggregateFunction::Sum => match argument {
                Int16 | Int32 => Int64,
                Int64 => Decimal128(38, 0),
                Decimal128(_, scale) => Decimal128(38, *scale),
                Float32 | Float64 => Float64,
                _ => return refuse(),
            },
            AggregateFunction::Avg => match argument {
                Int16 | Int32 | Int64 | Decimal128(..) => Decimal128(38, 16),
                Float32 | Float64 => Float64,
                _ => return refuse(),
            },
            AggregateFunction::VarSamp
            | AggregateFunction::VarPop
            | AggregateFunction::StddevSamp
            | AggregateFunction::StddevPop => match argument {
                Int16 | Int32 | Int64 | Decimal128(..) | Float32 | Float64 => Float64,
                _ => return refuse(),
            },
            AggregateFunction::Min | AggregateFunction::Max => match argument {
                // Documents have no order.
                List(_) | Struct(_) | Map(..) | Boolean | LargeUtf8 => return refuse(),
                other => other.clone(),
            },
            AggregateFunction::BoolAnd | AggregateFunction::BoolOr => match argument {
                Boolean => Boolean,
                _ => return refuse(),
            },
            AggregateFunction::StringAgg { .. } => match argument {
                Utf8 => Utf8,
                _ => return refuse(),
            },
            AggregateFunction::ArrayAgg => List(Arc::new(Field::new_list_field(argument.clone(), true))),
        })
    }
}
