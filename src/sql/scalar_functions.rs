//! Scalar functions of SQL: `CREATE FUNCTION f(a int, b text) RETURNS t LANGUAGE SQL AS 'SELECT …'`.
//!
//! A call is replaced by the function's expression, with the arguments in the place of the parameters, when a plan gets
//! its meaning ([`super::meaning`]). So a view, a SELECT and DML compute the same, and nothing of the function is left
//! when they run. The expression gets its own meaning at each call, since a parameter of type `numeric` takes numerics
//! of any precision and scale.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::{Case, ScalarFunction};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use sqlparser::ast::{self, visit_expressions_mut};

use super::casts::{cast, cast_array};
use super::errors::{from_datafusion, to_datafusion};
use super::locate::locate;
use super::lower;
use super::meaning::expression_with_meaning;
use super::parameters::parameter_index;
use super::planner::{DEFAULT_SCHEMA, raw_expression};
use super::reader::fold;
use super::statement::{CreateFunction, FunctionVolatility, Name};
use super::tokens::with_stack;
use super::types::{NUMERIC_DEFAULT, sql_name};
use super::view_checks::TIME_FUNCTIONS;
use crate::types::{Error, Result, SqlState};

/// The most parts that the expression of a call may have: calls within calls would grow without bound.
const PARTS_MAX: usize = 10_000;

/// A function, planned.
#[derive(Clone, Debug)]
pub struct PlannedFunction {
    /// What calls of it are planned with.
    pub function: Arc<ScalarUDF>,
    /// The type of its expression; `None` for a literal without a type of its own.
    pub body_type: Option<DataType>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Parameter {
    /// Its name, or its number as `$1`.
    name: String,
    data_type: DataType,
}

/// A function as its calls see it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct SqlFunction {
    /// As a call writes it: with the schema unless that is the default one.
    name: String,
    parameters: Vec<Parameter>,
    returns: DataType,
    /// Over columns that are called as the parameters.
    body: Expr,
    signature: Signature,
}

/// What a call of a function writes.
pub fn called_name(schema: Option<&str>, name: &str) -> String {
    match schema {
        Some(schema) if schema != DEFAULT_SCHEMA => format!("{schema}.{name}"),
        _ => name.to_owned(),
    }
}

/// Plans a function's expression.
///
/// # Errors
/// Those of planning it, with positions in the whole statement; 0A000 for what is not an expression of the parameters
/// alone; 42P13 when it is declared to be what it is not.
pub fn plan_function(state: &SessionState, create: &CreateFunction) -> Result<PlannedFunction> {
    with_stack(|| plan(state, create)).map_err(|error| match error.position_at() {
        Some(at) => error.position(at + create.body_offset),
        None => error.position(create.body_position),
    })
}

fn plan(state: &SessionState, create: &CreateFunction) -> Result<PlannedFunction> {
    let names: Vec<String> = create
        .parameters
        .iter()
        .enumerate()
        .map(|(at, parameter)| parameter.name.clone().unwrap_or_else(|| format!("${}", at + 1)))
        .collect();
    let mut written = create.body.clone();
    name_parameters(&mut written, &create.name, &names)?;
    let parameters: Vec<Parameter> = names
        .into_iter()
        .zip(&create.parameters)
        .map(|(name, parameter)| Parameter { name, data_type: parameter.data_type.clone() })
        .collect();
    let fields: Vec<Field> =
        parameters.iter().map(|parameter| Field::new(&parameter.name, parameter.data_type.clone(), true)).collect();
    let mut body = raw_expression(state, &written, &Arc::new(Schema::new(fields)))?;
    check(&body)?;
    let literal = matches!(body, Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Null, _));
    if let Expr::Literal(value @ ScalarValue::Utf8(Some(_)), _) = &body {
        // It is read once here, so that a wrong one is no function.
        let text = value.to_array().map_err(|error| from_datafusion(&error))?;
        cast_array(&text, &create.returns)?;
    }
    if create.strict {
        body = null_with_null(body, &parameters);
    }
    let function = SqlFunction {
        name: called_name(create.name.schema.as_deref(), &create.name.name),
        parameters,
        returns: create.returns.clone(),
        body,
        signature: Signature::one_of(vec![TypeSignature::Nullary, TypeSignature::VariadicAny], Volatility::Immutable),
    };
    let own: Vec<DataType> = function.parameters.iter().map(|parameter| parameter.data_type.clone()).collect();
    let (typed, found) = function.typed_body(&own).map_err(|error| locate(from_datafusion(&error), &written))?;
    check_volatility(&typed, create.volatility).map_err(|error| locate(error, &written))?;
    let body_type = (!literal).then_some(found);
    Ok(PlannedFunction { function: Arc::new(ScalarUDF::new_from_impl(function)), body_type })
}

/// Writes `$1` and `f.a` as the names of columns, and refuses subqueries.
fn name_parameters(expression: &mut ast::Expr, function: &Name, names: &[String]) -> Result<()> {
    let named = visit_expressions_mut(expression, |inner| {
        if matches!(inner, ast::Expr::Subquery(_) | ast::Expr::Exists { .. } | ast::Expr::InSubquery { .. }) {
            let at = super::tokens::position(ast::Spanned::span(inner));
            let error = Error::unsupported("a subquery in a function of SQL is not supported")
                .hint("Give its value to the function as an argument: f((SELECT max(x) FROM t)).");
            return ControlFlow::Break(error.position_or(at));
        }
        match parameter_index(inner) {
            Ok(None) => {}
            Ok(Some(index)) => match names.get(index) {
                Some(name) => *inner = ast::Expr::Identifier(ast::Ident::with_quote('"', name)),
                None => {
                    let at = super::tokens::position(ast::Spanned::span(inner));
                    let message = format!("there is no parameter ${}", index + 1);
                    let hint = format!("The function has {} parameters.", names.len());
                    let error = Error::new(SqlState::UndefinedParameter, message).hint(hint);
                    return ControlFlow::Break(error.position_or(at));
                }
            },
            Err(error) => return ControlFlow::Break(error),
        }
        if let ast::Expr::CompoundIdentifier(parts) = &*inner
            && let [of, parameter] = parts.as_slice()
            && fold(of) == function.name
        {
            *inner = ast::Expr::Identifier(parameter.clone());
        }
        ControlFlow::Continue(())
    });
    match named {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Refuses what is computed over more than one row.
fn check(body: &Expr) -> Result<()> {
    if lower::has_aggregate(body) {
        let message = "aggregates and window functions are not allowed in a function of SQL";
        return Err(Error::new(SqlState::GroupingError, message)
            .hint("Give the value to the function as an argument: f(sum(x))."));
    }
    Ok(())
}

/// Refuses a function whose calls do not always give the same, and one that is less constant than it says.
fn check_volatility(body: &Expr, volatility: Option<FunctionVolatility>) -> Result<()> {
    let mut refused = None;
    let walked = body.apply(|inner| {
        if let Expr::ScalarFunction(call) = inner {
            let name = call.func.name();
            if call.func.signature().volatility == Volatility::Volatile {
                refused = Some(
                    Error::unsupported(format!("function {name}() in a function of SQL is not supported"))
                        .hint("A call could compute it more than once; give its value to the function as an argument."),
                );
            } else if volatility == Some(FunctionVolatility::Immutable) && TIME_FUNCTIONS.contains(&name) {
                refused = Some(
                    Error::new(
                        SqlState::InvalidFunctionDefinition,
                        format!("function {name}() is not immutable, but the function that calls it is declared to be"),
                    )
                    .hint("Declare it STABLE, or give the time to the function as an argument."),
                );
            }
        }
        Ok(if refused.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    walked.map_err(|error| from_datafusion(&error))?;
    refused.map_or(Ok(()), Err)
}

/// The body of a strict function: NULL when an argument is.
fn null_with_null(body: Expr, parameters: &[Parameter]) -> Expr {
    let tests = parameters.iter().map(|parameter| column(&parameter.name).is_not_null());
    match tests.reduce(Expr::and) {
        None => body,
        Some(given) => {
            Expr::Case(Case { expr: None, when_then_expr: vec![(Box::new(given), Box::new(body))], else_expr: None })
        }
    }
}

fn column(name: &str) -> Expr {
    Expr::Column(datafusion::common::Column::new_unqualified(name))
}

impl SqlFunction {
    /// The expression over parameters of these types, with its meaning, and its type.
    fn typed_body(&self, types: &[DataType]) -> DataFusionResult<(Expr, DataType)> {
        let fields: Vec<Field> = self
            .parameters
            .iter()
            .zip(types)
            .map(|(parameter, data_type)| Field::new(&parameter.name, data_type.clone(), true))
            .collect();
        let schema = Arc::new(DFSchema::try_from(Schema::new(fields))?);
        let meant = expression_with_meaning(self.body.clone(), &schema)?;
        if parts(&meant) > PARTS_MAX {
            return Err(to_datafusion(self.too_large()));
        }
        let context = SimplifyContext::builder().with_schema(Arc::clone(&schema)).build();
        let typed = ExprSimplifier::new(context).coerce(meant, &schema)?;
        let data_type = typed.get_type(schema.as_ref())?;
        Ok((typed, data_type))
    }

    fn too_large(&self) -> Error {
        Error::new(SqlState::StatementTooComplex, format!("the call of function {} becomes too large", self.name))
            .detail(format!("Calls are replaced by their expressions, which may have {PARTS_MAX} parts together."))
            .hint("Compute the argument in a subquery, and call the function around it.")
    }

    /// The types that arguments of these types have within the function.
    fn taken(&self, arguments: &[DataType]) -> Vec<DataType> {
        let taken =
            self.parameters.iter().zip(arguments).map(|(parameter, argument)| match (&parameter.data_type, argument) {
                (wanted, DataType::Decimal128(..)) if is_any_numeric(wanted) => argument.clone(),
                (wanted, _) => wanted.clone(),
            });
        taken.collect()
    }

    /// The type of a call whose expression is of a type.
    fn result_type(&self, body: &DataType) -> DataType {
        match body {
            DataType::Decimal128(..) if is_any_numeric(&self.returns) => body.clone(),
            _ => self.returns.clone(),
        }
    }

    fn check_arguments(&self, call: &ScalarFunction, types: &[DataType]) -> Result<()> {
        let fits = call.args.len() == self.parameters.len()
            && self.parameters.iter().zip(types).zip(&call.args).all(|((parameter, from), argument)| {
                let unknown = matches!(argument, Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Null, _));
                unknown || *from == DataType::Null || is_implicit(from, &parameter.data_type)
            });
        if fits {
            return Ok(());
        }
        let shown: Vec<String> = types.iter().map(sql_name).collect();
        let own: Vec<String> = self.parameters.iter().map(|parameter| sql_name(&parameter.data_type)).collect();
        let call = format!("{}({})", self.name, shown.join(", "));
        Err(Error::new(SqlState::UndefinedFunction, format!("function {call} does not exist")).hint(format!(
            "There is {}({}). You might need to add explicit type casts.",
            self.name,
            own.join(", ")
        )))
    }
}

/// `numeric` without a precision takes and gives numerics of any.
fn is_any_numeric(data_type: &DataType) -> bool {
    *data_type == DataType::Decimal128(NUMERIC_DEFAULT.0, NUMERIC_DEFAULT.1)
}

/// True when PostgreSQL casts an argument by itself.
fn is_implicit(from: &DataType, to: &DataType) -> bool {
    use DataType::{Date32, Decimal128, Float32, Float64, Int16, Int32, Int64, Timestamp, Utf8};
    let rank = |data_type: &DataType| match data_type {
        Int16 => Some(1),
        Int32 => Some(2),
        Int64 => Some(3),
        Decimal128(..) => Some(4),
        Float32 => Some(5),
        Float64 => Some(6),
        _ => None,
    };
    if from == to || (from.is_string() && *to == Utf8) {
        return true;
    }
    match (rank(from), rank(to)) {
        (Some(from), Some(to)) => from <= to,
        _ => matches!((from, to), (Date32, Timestamp(..)) | (Timestamp(_, None), Timestamp(_, Some(_)))),
    }
}

fn parts(expression: &Expr) -> usize {
    let mut count = 0;
    // The walk itself cannot fail.
    let _ = expression.apply(|_| {
        count += 1;
        Ok(TreeNodeRecursion::Continue)
    });
    count
}

/// What a call means; `None` for one of another function. Its arguments have their meaning.
///
/// # Errors
/// 42883 for arguments that do not fit; 0A000 for one that would be computed more than once and differ; 54001.
pub(crate) fn inlined(call: &ScalarFunction, schema: &DFSchema) -> DataFusionResult<Option<Expr>> {
    let Some(function) = call.func.inner().downcast_ref::<SqlFunction>() else { return Ok(None) };
    let types = call.args.iter().map(|argument| argument.get_type(schema)).collect::<DataFusionResult<Vec<_>>>()?;
    function.check_arguments(call, &types).map_err(to_datafusion)?;
    let taken = function.taken(&types);
    let (body, body_type) = function.typed_body(&taken)?;
    let returns = function.result_type(&body_type);

    let mut uses = vec![0_usize; call.args.len()];
    let place = |name: &str| function.parameters.iter().position(|parameter| parameter.name == name);
    body.apply(|inner| {
        if let Expr::Column(column) = inner
            && let Some(used) = place(&column.name).and_then(|at| uses.get_mut(at))
        {
            *used += 1;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    if let Some(at) = call.args.iter().zip(&uses).position(|(argument, uses)| *uses > 1 && argument.is_volatile()) {
        let error = Error::unsupported(format!(
            "argument {} of {} would be computed {} times and differ",
            at + 1,
            function.name,
            uses.get(at).copied().unwrap_or_default()
        ))
        .hint("Compute it in a subquery, and call the function around it.");
        return Err(to_datafusion(error));
    }
    let size = call.args.iter().zip(&uses).map(|(argument, uses)| parts(argument).saturating_mul(*uses));
    if size.fold(parts(&body), usize::saturating_add) > PARTS_MAX {
        return Err(to_datafusion(function.too_large()));
    }
    let arguments: Vec<Expr> = call
        .args
        .iter()
        .zip(types.iter().zip(&taken))
        .map(|(argument, (from, to))| converted(argument.clone(), from, to))
        .collect();
    let put_in = body.transform_up(|inner| {
        Ok(match &inner {
            Expr::Column(column) => match place(&column.name).and_then(|at| arguments.get(at)) {
                Some(argument) => Transformed::yes(argument.clone()),
                None => Transformed::no(inner),
            },
            _ => Transformed::no(inner),
        })
    })?;
    Ok(Some(converted(put_in.data, &body_type, &returns)))
}

/// The types that a function of SQL takes; none for others.
pub(crate) fn taken_types(state: &SessionState, name: &ast::ObjectName) -> Vec<DataType> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
    let called = match parts.as_slice() {
        [schema, name] => called_name(Some(schema), name),
        [name] => called_name(None, name),
        _ => return Vec::new(),
    };
    let function = state.scalar_functions().get(&called).and_then(|call| call.inner().downcast_ref::<SqlFunction>());
    function.map_or_else(Vec::new, |function| {
        function.parameters.iter().map(|parameter| parameter.data_type.clone()).collect()
    })
}

fn converted(value: Expr, from: &DataType, to: &DataType) -> Expr {
    if from == to { value } else { cast(value, from, to) }
}

impl ScalarUDFImpl for SqlFunction {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> DataFusionResult<DataType> {
        // Wrong arguments are refused when the call is replaced.
        if !is_any_numeric(&self.returns) || arguments.len() != self.parameters.len() {
            return Ok(self.returns.clone());
        }
        let (_, body) = self.typed_body(&self.taken(arguments))?;
        Ok(self.result_type(&body))
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        Err(to_datafusion(Error::internal(format!("a call of function {} was not replaced", self.name))))
    }
}
