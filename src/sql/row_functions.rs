//! Scalar functions of PostgreSQL that DataFusion lacks or answers otherwise, as tables of plain functions over columns.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};

use super::casts::cast_array_in;
use super::errors::to_datafusion;
use super::planner::documented;
use super::types::sql_name;
use super::zone::zone_of;
use super::{ages, buckets, encodings, intervals, json_aggregates, set_functions, time_texts, times_of_texts, written};
use crate::types::{Error, Result, SqlState, TimeZone};

/// A function of the rows' arguments.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// The type of the result for arguments of these types; `None` where there is no such function.
    pub(crate) returns: fn(&[DataType]) -> Option<DataType>,
    pub(crate) answer: fn(&Arguments) -> Result<ArrayRef>,
}

/// The arguments of a call, a column each.
pub(crate) struct Arguments {
    pub(crate) columns: Vec<ArrayRef>,
    pub(crate) rows: usize,
    /// The session's zone; UTC in views.
    pub(crate) zone: TimeZone,
}

/// All of them, by the file that has them.
static FUNCTIONS: [&[Function]; 9] = [
    ages::FUNCTIONS,
    buckets::FUNCTIONS,
    encodings::FUNCTIONS,
    intervals::FUNCTIONS,
    json_aggregates::FUNCTIONS,
    set_functions::FUNCTIONS,
    time_texts::FUNCTIONS,
    times_of_texts::FUNCTIONS,
    written::FUNCTIONS,
];

fn known() -> impl Iterator<Item = &'static Function> {
    FUNCTIONS.iter().copied().flatten()
}

/// True for the name of such a function, which can fail on a row.
pub(crate) fn is_checked(name: &str) -> bool {
    known().any(|function| function.name == name)
}

/// The functions, to be registered over DataFusion's.
pub(crate) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    known().map(|function| Arc::new(ScalarUDF::new_from_impl(RowFunction::new(function))))
}

/// A call of one of them by the program itself; `None` when there is none of the name.
pub(crate) fn call(name: &str, arguments: Vec<Expr>) -> Option<Expr> {
    let function = known().find(|function| function.name == name)?;
    Some(ScalarUDF::new_from_impl(RowFunction::new(function)).call(arguments))
}

impl Arguments {
    /// An argument's column.
    ///
    /// # Errors
    /// When it is not there: a fault of the program.
    pub(crate) fn column(&self, at: usize) -> Result<&ArrayRef> {
        self.columns.get(at).ok_or_else(|| Error::internal("an argument is missing"))
    }

    /// An argument cast to a type, in the session's zone.
    ///
    /// # Errors
    /// Those of the cast.
    pub(crate) fn cast(&self, at: usize, to: &DataType) -> Result<ArrayRef> {
        cast_array_in(self.column(at)?, to, &self.zone)
    }

    /// An argument as texts.
    ///
    /// # Errors
    /// As [`Self::cast`].
    pub(crate) fn texts(&self, at: usize) -> Result<StringArray> {
        Ok(self.cast(at, &DataType::Utf8)?.as_string::<i32>().clone())
    }

    /// An argument as whole numbers.
    ///
    /// # Errors
    /// As [`Self::cast`].
    pub(crate) fn integers(&self, at: usize) -> Result<Int64Array> {
        Ok(self.cast(at, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
    }
}

/// A row's text; `None` for NULL.
pub(crate) fn text_at(texts: &StringArray, row: usize) -> Option<&str> {
    texts.is_valid(row).then(|| texts.value(row))
}

/// True for a text and for what may be one.
pub(crate) fn is_text(data_type: Option<&DataType>) -> bool {
    matches!(data_type, Some(DataType::Utf8 | DataType::Utf8View | DataType::Null))
}

/// Further names that DataFusion has for its functions of these names: it finds them by all, so all have to be ours.
const ALIASES: &[(&str, &[&str])] =
    &[("array_to_string", &["list_to_string", "array_join", "list_join"]), ("to_char", &["date_format"])];

#[derive(Debug)]
struct RowFunction {
    function: &'static Function,
    aliases: Vec<String>,
    signature: Signature,
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl RowFunction {
    fn new(function: &'static Function) -> RowFunction {
        // Without arguments too, so that the error is ours.
        let any = vec![TypeSignature::Nullary, TypeSignature::VariadicAny];
        let aliases = ALIASES.iter().filter(|(name, _)| *name == function.name).flat_map(|(_, others)| *others);
        let aliases = aliases.map(|other| (*other).to_owned()).collect();
        RowFunction { function, aliases, signature: Signature::one_of(any, Volatility::Immutable) }
    }
}

// A name has one function.
impl PartialEq for RowFunction {
    fn eq(&self, other: &RowFunction) -> bool {
        self.function.name == other.function.name
    }
}

impl Eq for RowFunction {}

impl Hash for RowFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.name.hash(state);
    }
}

impl ScalarUDFImpl for RowFunction {
    fn name(&self) -> &str {
        self.function.name
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> DataFusionResult<DataType> {
        (self.function.returns)(types).ok_or_else(|| {
            let names: Vec<String> = types.iter().map(sql_name).collect();
            let message = format!("function {}({}) does not exist", self.function.name, names.join(", "));
            to_datafusion(
                Error::new(SqlState::UndefinedFunction, message).hint("You might need to add explicit type casts."),
            )
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let constant = args.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let column = |argument: &ColumnarValue| -> DataFusionResult<ArrayRef> {
            let column = argument.to_array(rows)?;
            Ok(match documented(column.data_type()) {
                Some(to) => cast(&column, &to)?,
                None => column,
            })
        };
        let columns = args.args.iter().map(column).collect::<DataFusionResult<Vec<_>>>()?;
        let arguments = Arguments { columns, rows, zone: zone_of(&args.config_options) };
        let answer = (self.function.answer)(&arguments).map_err(to_datafusion)?;
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&answer, 0)?));
        }
        Ok(ColumnarValue::Array(answer))
    }
}
