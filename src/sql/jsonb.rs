//! Operators and functions of `jsonb`, as PostgreSQL has them.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, LargeStringArray, ListArray, StringArray,
};
use arrow::compute::cast as arrow_cast;
use arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature, Volatility,
};
use sqlparser::ast::BinaryOperator;

use super::arithmetic::undefined_operator;
use super::casts::{cast, cast_array};
use super::errors::to_datafusion;
use super::types::sql_name;
use crate::types::text::Column;
use crate::types::{Error, JSONB, Result, SqlState, json};

/// What is done with documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Operation {
    Get,
    GetText,
    AtPath,
    AtPathText,
    Contains,
    Exists,
    ExistsAny,
    ExistsAll,
    Concat,
    Without,
    BuildObject,
    BuildArray,
    From,
    TypeOf,
    ArrayLength,
    StripNulls,
}

/// Names, for operators their symbols, and what they do.
const FUNCTIONS: [(&str, Operation); 10] = [
    ("jsonb_build_object", Operation::BuildObject),
    ("json_build_object", Operation::BuildObject),
    ("jsonb_build_array", Operation::BuildArray),
    ("json_build_array", Operation::BuildArray),
    ("to_jsonb", Operation::From),
    ("jsonb_typeof", Operation::TypeOf),
    ("jsonb_array_length", Operation::ArrayLength),
    ("jsonb_strip_nulls", Operation::StripNulls),
    ("jsonb_extract_path", Operation::AtPath),
    ("jsonb_extract_path_text", Operation::AtPathText),
];

/// Functions of DataFusion that do not look into the values that they are given.
const PASSING: [&str; 15] = [
    "array_append",
    "array_cat",
    "array_element",
    "array_length",
    "array_position",
    "array_prepend",
    "array_remove",
    "cardinality",
    "coalesce",
    "get_field",
    "make_array",
    "named_struct",
    "nullif",
    "struct",
    "unnest",
];

/// The functions, to be registered.
pub(crate) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    FUNCTIONS
        .into_iter()
        .map(|(name, operation)| Arc::new(ScalarUDF::new_from_impl(JsonFunction::new(name, operation))))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonFunction {
    name: &'static str,
    operation: Operation,
    signature: Signature,
}

impl JsonFunction {
    fn new(name: &'static str, operation: Operation) -> JsonFunction {
        let any = vec![TypeSignature::Nullary, TypeSignature::VariadicAny];
        JsonFunction { name, operation, signature: Signature::one_of(any, Volatility::Immutable) }
    }

    fn is_operator(&self) -> bool {
        !self.name.starts_with(|c: char| c.is_ascii_alphabetic())
    }

    fn fits(&self, types: &[DataType]) -> bool {
        use Operation::*;
        let document = |at: usize| matches!(types.get(at), Some(DataType::LargeUtf8 | DataType::Utf8 | DataType::Null));
        let text = |at: usize| matches!(types.get(at), Some(DataType::Utf8 | DataType::Null));
        let number = |at: usize| types.get(at).is_some_and(DataType::is_integer);
        let texts = |at: usize| matches!(types.get(at), Some(DataType::List(item)) if matches!(item.data_type(), DataType::Utf8 | DataType::Null));
        match self.operation {
            Get | GetText => types.len() == 2 && document(0) && (text(1) || number(1)),
            AtPath | AtPathText => {
                document(0) && (types.len() == 2 && texts(1) || (1..types.len()).all(text) && types.len() > 1)
            }
            Contains | Concat => types.len() == 2 && document(0) && document(1),
            Exists => types.len() == 2 && document(0) && text(1),
            ExistsAny | ExistsAll => types.len() == 2 && document(0) && texts(1),
            Without => types.len() == 2 && document(0) && (text(1) || number(1) || texts(1)),
            BuildObject => types.len().is_multiple_of(2),
            BuildArray => true,
            From => types.len() == 1,
            TypeOf | ArrayLength | StripNulls => types.len() == 1 && document(0),
        }
    }

    fn shown(&self, arguments: &[String]) -> String {
        if self.is_operator() {
            arguments.join(&format!(" {} ", self.name))
        } else {
            format!("{}({})", self.name, arguments.join(","))
        }
    }
}

impl ScalarUDFImpl for JsonFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn display_name(&self, args: &[Expr]) -> DataFusionResult<String> {
        Ok(self.shown(&args.iter().map(ToString::to_string).collect::<Vec<_>>()))
    }

    fn schema_name(&self, args: &[Expr]) -> DataFusionResult<String> {
        Ok(self.shown(&args.iter().map(|argument| argument.schema_name().to_string()).collect::<Vec<_>>()))
    }

    fn return_type(&self, types: &[DataType]) -> DataFusionResult<DataType> {
        use Operation::*;
        if !self.fits(types) {
            let names: Vec<String> = types.iter().map(sql_name).collect();
            let error = if self.is_operator() {
                undefined_operator(self.name, &names)
            } else if self.operation == BuildObject {
                Error::new(SqlState::InvalidParameterValue, "argument list must have even number of elements")
                    .hint("The arguments are names and values in turn.")
            } else {
                let message = format!("function {}({}) does not exist", self.name, names.join(", "));
                Error::new(SqlState::UndefinedFunction, message).hint("You might need to add explicit type casts.")
            };
            return Err(to_datafusion(error));
        }
        Ok(match self.operation {
            Get | AtPath | Concat | Without | BuildObject | BuildArray | From | StripNulls => JSONB,
            GetText | AtPathText | TypeOf => DataType::Utf8,
            Contains | Exists | ExistsAny | ExistsAll => DataType::Boolean,
            ArrayLength => DataType::Int32,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let constant = args.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let arrays = args.args.iter().map(|argument| argument.to_array(rows)).collect::<DataFusionResult<Vec<_>>>()?;
        let result = self.answer(&arrays, rows).map_err(to_datafusion)?;
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&result, 0)?));
        }
        Ok(ColumnarValue::Array(result))
    }
}

/// Documents of an argument; a text becomes one.
fn documents(argument: Option<&ArrayRef>) -> Result<LargeStringArray> {
    let argument = argument.ok_or_else(|| Error::internal("a document is missing"))?;
    let documents = cast_array(argument, &JSONB)?;
    Ok(documents.as_string::<i64>().clone())
}

/// How an argument names parts.
enum Steps {
    Names(StringArray),
    Indexes(Int64Array),
    Paths(ListArray),
}

impl Steps {
    fn new(argument: Option<&ArrayRef>) -> Result<Steps> {
        let argument = argument.ok_or_else(|| Error::internal("a name is missing"))?;
        Ok(match argument.data_type() {
            data_type if data_type.is_integer() => {
                Steps::Indexes(arrow_cast(argument, &DataType::Int64)?.as_primitive::<Int64Type>().clone())
            }
            DataType::List(_) => Steps::Paths(arrow_cast(argument, &texts_type())?.as_list::<i32>().clone()),
            _ => Steps::Names(arrow_cast(argument, &DataType::Utf8)?.as_string::<i32>().clone()),
        })
    }
}

fn texts_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)))
}

/// The texts of a row's array; `None` when it is NULL.
fn texts_of(lists: &ListArray, row: usize) -> Option<StringArray> {
    lists.is_valid(row).then(|| lists.value(row).as_string::<i32>().clone())
}

fn valid(documents: &LargeStringArray, row: usize) -> Option<&str> {
    documents.is_valid(row).then(|| documents.value(row))
}

impl JsonFunction {
    fn answer(&self, arguments: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        use Operation::*;
        match self.operation {
            Get | GetText => {
                let (documents, steps) = (documents(arguments.first())?, Steps::new(arguments.get(1))?);
                self.parts(rows, |row| {
                    let Some(document) = valid(&documents, row) else { return Ok(None) };
                    match &steps {
                        Steps::Names(names) if names.is_valid(row) => json::member(document, names.value(row)),
                        Steps::Indexes(indexes) if indexes.is_valid(row) => json::element(document, indexes.value(row)),
                        _ => Ok(None),
                    }
                })
            }
            AtPath | AtPathText => {
                let documents = documents(arguments.first())?;
                if let [_, path] = arguments
                    && let Steps::Paths(paths) = Steps::new(Some(path))?
                {
                    return self.parts(rows, |row| {
                        let (Some(document), Some(path)) = (valid(&documents, row), texts_of(&paths, row)) else {
                            return Ok(None);
                        };
                        // A step that is NULL leads nowhere.
                        if path.null_count() > 0 { Ok(None) } else { json::at_path(document, path.iter().flatten()) }
                    });
                }
                let steps = arguments
                    .iter()
                    .skip(1)
                    .map(|step| Ok(arrow_cast(step, &DataType::Utf8)?.as_string::<i32>().clone()))
                    .collect::<Result<Vec<StringArray>>>()?;
                self.parts(rows, |row| {
                    let Some(document) = valid(&documents, row) else { return Ok(None) };
                    if steps.iter().any(|step| step.is_null(row)) {
                        return Ok(None);
                    }
                    json::at_path(document, steps.iter().map(|step| step.value(row)))
                })
            }
            Contains => {
                let (whole, part) = (documents(arguments.first())?, documents(arguments.get(1))?);
                truths(rows, |row| match (valid(&whole, row), valid(&part, row)) {
                    (Some(whole), Some(part)) => json::contains(whole, part).map(Some),
                    _ => Ok(None),
                })
            }
            Exists | ExistsAny | ExistsAll => {
                let (documents, steps) = (documents(arguments.first())?, Steps::new(arguments.get(1))?);
                truths(rows, |row| {
                    let Some(document) = valid(&documents, row) else { return Ok(None) };
                    match &steps {
                        Steps::Names(names) if names.is_valid(row) => {
                            json::exists(document, names.value(row)).map(Some)
                        }
                        Steps::Paths(lists) => {
                            let Some(names) = texts_of(lists, row) else { return Ok(None) };
                            let all = self.operation == ExistsAll;
                            for name in names.iter().flatten() {
                                if json::exists(document, name)? != all {
                                    return Ok(Some(!all));
                                }
                            }
                            Ok(Some(all))
                        }
                        _ => Ok(None),
                    }
                })
            }
            Concat => {
                let (left, right) = (documents(arguments.first())?, documents(arguments.get(1))?);
                made(rows, |row| match (valid(&left, row), valid(&right, row)) {
                    (Some(left), Some(right)) => json::concat(left, right).map(Some),
                    _ => Ok(None),
                })
            }
            Without => {
                let (documents, steps) = (documents(arguments.first())?, Steps::new(arguments.get(1))?);
                made(rows, |row| {
                    let Some(document) = valid(&documents, row) else { return Ok(None) };
                    match &steps {
                        Steps::Names(names) if names.is_valid(row) => {
                            json::without(document, names.value(row)).map(Some)
                        }
                        Steps::Indexes(indexes) if indexes.is_valid(row) => {
                            json::without_element(document, indexes.value(row)).map(Some)
                        }
                        Steps::Paths(lists) => {
                            let Some(names) = texts_of(lists, row) else { return Ok(None) };
                            let mut rest = document.to_owned();
                            for name in names.iter().flatten() {
                                rest = json::without(&rest, name)?;
                            }
                            Ok(Some(rest))
                        }
                        _ => Ok(None),
                    }
                })
            }
            BuildObject => {
                let values = arguments.iter().map(Column::new).collect::<Result<Vec<Column>>>()?;
                made(rows, |row| {
                    let members = values
                        .chunks_exact(2)
                        .enumerate()
                        .filter_map(|(at, pair)| Some((at, pair.first()?, pair.get(1)?)))
                        .map(|(at, name, value)| {
                            if name.is_null(row) {
                                let message = format!("argument {}: key must not be null", 2 * at + 1);
                                return Err(Error::new(SqlState::InvalidParameterValue, message)
                                    .hint("Leave the member out, or give it a name with coalesce()."));
                            }
                            let mut bytes = Vec::new();
                            name.write_text(row, &mut bytes);
                            let name = String::from_utf8_lossy(&bytes).into_owned();
                            Ok((Cow::Owned(name), Cow::Owned(document_of(value, row)?)))
                        })
                        .collect::<Result<Vec<_>>>()?;
                    json::object(members).map(Some)
                })
            }
            BuildArray => {
                let values = arguments.iter().map(Column::new).collect::<Result<Vec<Column>>>()?;
                made(rows, |row| {
                    let elements = values.iter().map(|value| document_of(value, row).map(Cow::Owned));
                    Ok(Some(json::array(elements.collect::<Result<Vec<_>>>()?)))
                })
            }
            From => {
                let values = arguments.iter().map(Column::new).collect::<Result<Vec<Column>>>()?;
                made(rows, |row| match values.first() {
                    Some(value) if !value.is_null(row) => document_of(value, row).map(Some),
                    _ => Ok(None),
                })
            }
            TypeOf => {
                let documents = documents(arguments.first())?;
                Ok(Arc::new(documents.iter().map(|document| document.map(json::type_of)).collect::<StringArray>()))
            }
            ArrayLength => {
                let documents = documents(arguments.first())?;
                let lengths = documents.iter().map(|document| document.map(length).transpose());
                Ok(Arc::new(lengths.collect::<Result<Int32Array>>()?))
            }
            StripNulls => {
                let documents = documents(arguments.first())?;
                made(rows, |row| valid(&documents, row).map(json::without_nulls).transpose())
            }
        }
    }

    /// Parts of documents, as documents or as texts.
    fn parts<'a>(&self, rows: usize, part: impl Fn(usize) -> Result<Option<&'a str>>) -> Result<ArrayRef> {
        let found = (0..rows).map(part);
        if matches!(self.operation, Operation::Get | Operation::AtPath) {
            return Ok(Arc::new(found.collect::<Result<LargeStringArray>>()?));
        }
        let texts = found.map(|part| match part? {
            Some(part) => json::as_text(part),
            None => Ok(None),
        });
        Ok(Arc::new(texts.collect::<Result<StringArray>>()?))
    }
}

fn length(document: &str) -> Result<i32> {
    let wrong = |kind: &str| {
        Error::new(SqlState::InvalidParameterValue, format!("cannot get array length of {kind}"))
            .hint("Ask jsonb_typeof() first.")
    };
    match json::look(document)? {
        json::Json::Array(elements) => Ok(i32::try_from(elements.len()).unwrap_or(i32::MAX)),
        json::Json::Object(_) => Err(wrong("a non-array")),
        _ => Err(wrong("a scalar")),
    }
}

/// A value of any type as a document.
fn document_of(value: &Column, row: usize) -> Result<String> {
    let mut bytes = Vec::new();
    value.write_json(row, &mut bytes, true);
    json::canonical(&String::from_utf8_lossy(&bytes))
}

fn made(rows: usize, document: impl Fn(usize) -> Result<Option<String>>) -> Result<ArrayRef> {
    Ok(Arc::new((0..rows).map(document).collect::<Result<LargeStringArray>>()?))
}

fn truths(rows: usize, truth: impl Fn(usize) -> Result<Option<bool>>) -> Result<ArrayRef> {
    Ok(Arc::new((0..rows).map(truth).collect::<Result<BooleanArray>>()?))
}

/// What an operator between two operands is planned as, when one of them is a document.
pub(crate) fn operator(
    operator: &BinaryOperator,
    left: &Expr,
    right: &Expr,
    schema: &DFSchema,
) -> DataFusionResult<Option<Expr>> {
    let types = (left.get_type(schema), right.get_type(schema));
    let is_document = |of: &DataFusionResult<DataType>| matches!(of, Ok(JSONB));
    let (on_left, on_right) = (is_document(&types.0), is_document(&types.1));
    let (symbol, operation) = match operator {
        BinaryOperator::Arrow => ("->", Operation::Get),
        BinaryOperator::LongArrow => ("->>", Operation::GetText),
        BinaryOperator::HashArrow => ("#>", Operation::AtPath),
        BinaryOperator::HashLongArrow => ("#>>", Operation::AtPathText),
        BinaryOperator::AtArrow if on_left || on_right => ("@>", Operation::Contains),
        BinaryOperator::ArrowAt if on_left || on_right => ("<@", Operation::Contains),
        BinaryOperator::Question => ("?", Operation::Exists),
        BinaryOperator::QuestionPipe => ("?|", Operation::ExistsAny),
        BinaryOperator::QuestionAnd => ("?&", Operation::ExistsAll),
        BinaryOperator::StringConcat if on_left && (on_right || is_open(right)) || on_right && is_open(left) => {
            ("||", Operation::Concat)
        }
        BinaryOperator::Minus if on_left => ("-", Operation::Without),
        _ => return Ok(None),
    };
    let both = matches!(operation, Operation::Contains | Operation::Concat);
    if !(on_left || both && on_right) {
        let names: Vec<String> =
            [types.0, types.1].into_iter().map(|found| found.as_ref().map_or("unknown".into(), sql_name)).collect();
        return Err(to_datafusion(undefined_operator(symbol, &names)));
    }
    let wanted = match operation {
        Operation::Contains | Operation::Concat => JSONB,
        Operation::AtPath | Operation::AtPathText | Operation::ExistsAny | Operation::ExistsAll => texts_type(),
        _ => DataType::Utf8,
    };
    let (left, right) = (typed(left.clone(), &wanted), typed(right.clone(), &wanted));
    let function = ScalarUDF::new_from_impl(JsonFunction::new(if symbol == "<@" { "@>" } else { symbol }, operation));
    Ok(Some(function.call(if symbol == "<@" { vec![right, left] } else { vec![left, right] })))
}

/// True for literals and parameters whose type is not known.
fn is_open(operand: &Expr) -> bool {
    match operand {
        Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Null, _) => true,
        Expr::Placeholder(parameter) => parameter.field.is_none(),
        _ => false,
    }
}

/// A literal or parameter of an unknown type as one of this type.
fn typed(operand: Expr, wanted: &DataType) -> Expr {
    match operand {
        Expr::Literal(ScalarValue::Utf8(_), _) => cast(operand, &DataType::Utf8, wanted),
        Expr::Placeholder(mut parameter) if parameter.field.is_none() => {
            parameter.field = Some(Arc::new(Field::new("", wanted.clone(), true)));
            Expr::Placeholder(parameter)
        }
        other => other,
    }
}

/// Operands of a comparison: beside a document a literal is one too, and nothing else is compared with it.
pub(crate) fn compared(operands: Vec<Expr>, operator: Operator, schema: &DFSchema) -> DataFusionResult<Vec<Expr>> {
    let types: Vec<Option<DataType>> = operands.iter().map(|operand| operand.get_type(schema).ok()).collect();
    if !types.contains(&Some(JSONB)) {
        return Ok(operands);
    }
    let ordered = matches!(operator, Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq);
    if ordered {
        let error = Error::unsupported(format!("jsonb {operator} jsonb is not supported"))
            .hint("Compare values taken out of the documents, such as (j ->> 'a')::int < 5.");
        return Err(to_datafusion(error));
    }
    for (operand, found) in operands.iter().zip(&types) {
        if !is_open(operand)
            && let Some(found) = found
            && *found != JSONB
            && *found != DataType::Null
        {
            return Err(to_datafusion(undefined_operator(&operator.to_string(), &["jsonb".into(), sql_name(found)])));
        }
    }
    Ok(operands.into_iter().map(|operand| typed(operand, &JSONB)).collect())
}

/// Refuses documents as arguments of functions on texts.
pub(crate) fn check_call(name: &str, arguments: &[Expr], schema: &DFSchema) -> DataFusionResult<()> {
    let ours = name == super::casts::NAME
        || FUNCTIONS.iter().any(|(function, _)| *function == name)
        // They say which types they take.
        || super::row_functions::is_checked(name)
        || !name.starts_with(|c: char| c.is_ascii_alphabetic());
    if ours || PASSING.contains(&name) {
        return Ok(());
    }
    let types: Vec<DataType> = arguments.iter().filter_map(|argument| argument.get_type(schema).ok()).collect();
    if !types.contains(&JSONB) {
        return Ok(());
    }
    let names: Vec<String> = types.iter().map(sql_name).collect();
    let message = format!("function {name}({}) does not exist", names.join(", "));
    Err(to_datafusion(
        Error::new(SqlState::UndefinedFunction, message).hint("Take a text out of the document with ->>, or cast it."),
    ))
}

/// Texts that DataFusion brings to the type of documents, such as literals in a CASE, become documents.
pub(crate) fn checked_documents(plan: LogicalPlan) -> DataFusionResult<LogicalPlan> {
    let to_document = |expression: &Expr| matches!(expression, Expr::Cast(cast) if *cast.field.data_type() == JSONB);
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| {
            found = found || expression.exists(|inner| Ok(to_document(inner)))?;
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    if !found {
        return Ok(plan);
    }
    let checked = |node: LogicalPlan| {
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expression| {
            let name = names.save(&expression);
            let changed = expression.transform_up(|inner| match inner {
                Expr::Cast(inner) if *inner.field.data_type() == JSONB => {
                    let from = inner.expr.get_type(&schema)?;
                    Ok(Transformed::yes(cast(*inner.expr, &from, &JSONB)))
                }
                other => Ok(Transformed::no(other)),
            })?;
            Ok(Transformed::yes(name.restore(changed.data)))
        })
    };
    Ok(plan.transform_up_with_subqueries(checked)?.data)
}
