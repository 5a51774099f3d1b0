//! Queries to plans: the settings and functions that give SQL PostgreSQL's meaning, and the steps
//! from a parsed query to a logical plan or to a job.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, SchemaRef, TimeUnit};
use datafusion::common::config::Dialect;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, TableReference};
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, Projection};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::prelude::SessionConfig;
use datafusion::sql::parser::Statement as PlannedStatement;
use sqlparser::ast::{self, visit_expressions_mut};

use super::any_all;
use super::casts::{cast, check_literals};
use super::catalog_queries;
use super::errors::{from_datafusion, missing_table, undefined_table};
use super::exists;
use super::functions;
use super::grouping;
use super::json_aggregates;
use super::jsonb;
use super::locate::locate;
use super::lower;
use super::match_recognize::MatchRecognize;
use super::meaning;
use super::multiplicity;
use super::names::{name_columns, shown_name};
use super::null_aware;
use super::parser::parse_expression;
use super::push_down_filter;
use super::reader::{DATABASE, duplicate_column, fold};
use super::row_values;
use super::scalar_functions::called_name;
use super::series;
use super::set_functions;
use super::spellings;
use super::statement::Standing;
use super::temporal_join;
use super::tokens::with_stack;
use super::types::{SqlTypes, UTC, sql_name, stored};
use super::using;
use super::view_checks;
use super::windows;
use super::zoned;
use crate::exec::plan::{EventTime, JobPlan};
use crate::types::{Error, Limit, Limits, RelationId, Result, SqlState};

/// The schema of names without one.
pub const DEFAULT_SCHEMA: &str = "public";

/// What the planner asks about the relations that a view reads.
pub trait Resolver: Sync {
    /// The relation of that name, as the query spells it; `None` when there is none.
    fn relation(&self, table: &TableReference) -> Option<RelationInfo>;

    /// The rows inside of a job of that name; `None` when there are none.
    ///
    /// # Errors
    /// When there is such a job, and no such part of its operators' state.
    fn inside(&self, _table: &TableReference) -> Result<Option<InsideInfo>> {
        Ok(None)
    }
}

/// The relations that a statement may read, as an extension of its session's configuration.
pub struct KnownRelations(
    /// Gives each of them.
    pub Arc<dyn Resolver + Send + Sync>,
);

/// A relation as the planner of a view sees it.
#[derive(Clone, Debug)]
pub struct RelationInfo {
    /// Its catalog number.
    pub id: RelationId,
    /// Its columns.
    pub schema: SchemaRef,
    /// Columns that identify a row; empty when the whole row does.
    pub key: Vec<usize>,
    /// True when rows are only ever added.
    pub append_only: bool,
    /// False for a connector whose rows never end, so that state over it can grow for ever.
    pub bounded: bool,
    /// A row has one time of the clock, over restarts too: not so those of connectors, which are read again.
    pub keeps_times: bool,
    /// Its columns of event time, and what is known of them.
    pub event_times: Vec<(usize, EventTime)>,
}

/// A part of the state of an operator of a job, as the planner of a view sees it.
#[derive(Clone, Debug)]
pub struct InsideInfo {
    /// The job.
    pub plan: Arc<JobPlan>,
    /// The operator of the job whose rows they are; `None` when they end by event time or the clock.
    pub source: Option<usize>,
    /// The operator's columns, under the names by which queries know them.
    pub schema: SchemaRef,
    /// Columns that identify a row, when some are known to.
    pub key: Option<Vec<usize>>,
    /// What the job reads.
    pub imports: Vec<RelationInfo>,
}

/// A view, planned.
#[derive(Clone, Debug)]
pub struct PlannedView {
    /// What its job runs.
    pub plan: JobPlan,
    /// What the user should know.
    pub notices: Vec<String>,
}

/// The settings that the meaning of SQL here rests on. The engine adds its own.
pub fn session_config() -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_information_schema(false)
        .with_default_catalog_and_schema(DATABASE, DEFAULT_SCHEMA)
        .with_create_default_catalog_and_schema(false);
    let options = config.options_mut();
    options.sql_parser.dialect = Dialect::PostgreSQL;
    options.sql_parser.parse_float_as_decimal = true;
    options.sql_parser.enable_ident_normalization = true;
    options.sql_parser.map_string_types_to_utf8view = false;
    options.sql_parser.collect_spans = true;
    // DataFusion's logical and physical plans differ on whether `IS TRUE` and the like can be NULL.
    options.execution.skip_physical_aggregate_schema_check = true;
    options.execution.time_zone = Some(UTC.into());
    config
}

/// Adds the types and functions that the meaning of SQL here rests on; wants default features in
/// the builder already.
pub fn configure(builder: SessionStateBuilder) -> SessionStateBuilder {
    let mut builder = builder.with_type_planner(Arc::new(SqlTypes));
    // This rule splits an aggregate in two and takes the sum of a sum for a sum, which has another
    // type here: a sum of bigint is numeric.
    let mut optimizer = builder.optimizer().take().unwrap_or_default();
    optimizer.rules.retain(|rule| rule.name() != "single_distinct_aggregation_to_group_by");
    push_down_filter::replace(&mut optimizer.rules);
    *builder.optimizer() = Some(optimizer);
    builder.scalar_functions().get_or_insert_default().extend(functions::all());
    builder.expr_planners().get_or_insert_default().insert(0, Arc::new(meaning::ArithmeticPlanner));
    builder.relation_planners().get_or_insert_default().push(Arc::new(MatchRecognize));
    builder
}

/// Plans a query that answers once: analysed, and with only the documented types in its result.
/// Result columns that share a name have a mark in it, which [`shown_name`] takes off.
///
/// # Errors
/// Those of class 42, 0A000; with position and hint.
pub async fn plan_query(state: &SessionState, query: &ast::Query) -> Result<LogicalPlan> {
    let plan = logical_plan(state, query, false).await?;
    analysed(state, plan).map_err(|error| locate(error, query))
}

/// Plans a standing query as `standing` says. `columns` are the names that the user gave to its columns; empty: the
/// query's own.
///
/// # Errors
/// Those of [`plan_query`], and 0A000 for what cannot be kept current.
pub async fn plan_view(
    state: &SessionState,
    query: &ast::Query,
    columns: &[String],
    standing: Standing,
    resolver: &dyn Resolver,
) -> Result<PlannedView> {
    let query = with_stack(|| {
        view_checks::check(query)?;
        let mut query = query.clone();
        null_aware::rewrite(&mut query).map(|()| query)
    })?;
    let query = &query;
    let plan = logical_plan(state, query, true).await?;
    let plan = analysed(state, plan).map_err(|error| locate(error, query))?;
    let names = view_columns(&plan, columns).map_err(|error| locate(error, query))?;
    with_stack(|| lower::lower(state, &plan, names, standing, resolver)).map_err(|error| locate(error, query))
}

/// Checks what the columns of a plain view are called and gives their names.
///
/// # Errors
/// 42701 when two share a name, 42P16 when more names are given than there are columns.
pub fn view_columns(plan: &LogicalPlan, columns: &[String]) -> Result<Vec<String>> {
    let fields = plan.schema().fields();
    if columns.len() > fields.len() {
        return Err(Error::new(SqlState::SyntaxError, "CREATE VIEW specifies more column names than columns")
            .hint(format!("The query has {} columns.", fields.len())));
    }
    let mut names: Vec<String> = columns.to_vec();
    names.extend(fields.iter().skip(columns.len()).map(|field| shown_name(field.name()).to_owned()));
    for (at, name) in names.iter().enumerate() {
        if names.iter().take(at).any(|earlier| earlier == name) {
            return Err(duplicate_column(name));
        }
    }
    Ok(names)
}

/// Renames a plan's columns, and gives them PostgreSQL's names where the query gave none: the plan
/// of a plain view.
///
/// # Errors
/// Those of [`plan_query`] and [`view_columns`].
pub async fn plan_plain_view(state: &SessionState, query: &ast::Query, columns: &[String]) -> Result<LogicalPlan> {
    temporal_join::check_plain_view(query)?;
    let plan = plan_query(state, query).await?;
    let names = view_columns(&plan, columns).map_err(|error| locate(error, query))?;
    let expressions: Vec<Expr> =
        plan.schema().columns().into_iter().zip(names).map(|(column, name)| Expr::Column(column).alias(name)).collect();
    let projection = Projection::try_new(expressions, Arc::new(plan)).map_err(|error| from_datafusion(&error))?;
    Ok(LogicalPlan::Projection(projection))
}

/// Fills in the types of a query's parameters that have none, from what stands beside them.
///
/// # Errors
/// Those of [`plan_query`], but not for parameters whose types stay unknown.
pub(crate) async fn infer_parameters(
    state: &SessionState,
    query: &ast::Query,
    types: &mut [Option<DataType>],
) -> Result<()> {
    let (statement, _) = prepared(state, query).await?;
    // Where a type is needed to plan at all, the parameters are texts; the query is planned again
    // then, and its errors are seen.
    let Ok(plan) = state.statement_to_plan(statement).await else { return Ok(()) };
    any_all::infer(&plan, types).map_err(|error| from_datafusion(&error))?;
    for (name, data_type) in plan.get_parameter_types().map_err(|error| from_datafusion(&error))? {
        let index = name.strip_prefix('$').and_then(|number| number.parse::<usize>().ok());
        if let (Some(index), Some(data_type)) = (index, data_type)
            && let Some(known) = types.get_mut(index.wrapping_sub(1))
            && data_type != DataType::Null
        {
            known.get_or_insert_with(|| documented(&data_type).unwrap_or(data_type));
        }
    }
    Ok(())
}

/// A query in the form that DataFusion's planner takes, and whether it has joins with versions.
async fn prepared(state: &SessionState, query: &ast::Query) -> Result<(PlannedStatement, bool)> {
    let mut prepared = with_stack(|| catalog_queries::rewritten(query).unwrap_or_else(|| query.clone()));
    let versions = with_stack(|| temporal_join::rewrite(state, &mut prepared))?;
    using::rewrite(state, &mut prepared).await;
    with_stack(|| prepare(&mut prepared))?;
    Ok((PlannedStatement::Statement(Box::new(ast::Statement::Query(Box::new(prepared)))), versions))
}

async fn logical_plan(state: &SessionState, query: &ast::Query, in_view: bool) -> Result<LogicalPlan> {
    let (statement, versions) = prepared(state, query).await?;
    let plan = match state.statement_to_plan(statement).await {
        Ok(plan) => plan,
        Err(error) => {
            let ours = match missing_table(&error) {
                Some(name) => {
                    let names = table_names(state);
                    undefined_table(&name, names.iter().map(String::as_str))
                }
                None => from_datafusion(&error),
            };
            return Err(locate(ours, query));
        }
    };
    let plan = match versions {
        true => with_stack(|| temporal_join::with_spans(plan, in_view))
            .map_err(|error| locate(from_datafusion(&error), query))?,
        false => plan,
    };
    with_stack(|| check_subqueries(state, &plan)).map_err(|error| locate(error, query))?;
    with_stack(|| null_aware::check(&plan)).map_err(|error| locate(error, query))?;
    let plan = with_stack(|| meaning::apply(plan).and_then(|plan| multiplicity::counted(query, plan)))
        .map_err(|error| locate(from_datafusion(&error), query))?;
    let checked = plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expression| check_literals(expression).map(|()| TreeNodeRecursion::Continue))
    });
    match checked {
        Ok(_) => Ok(plan),
        Err(error) => Err(locate(from_datafusion(&error), query)),
    }
}

/// The analysis of a subquery in an expression takes twice as long as that of the query around it: DataFusion's type coercion
/// goes through it by itself and as a part of the whole.
///
/// # Errors
/// 54001 when they are nested too deeply.
fn check_subqueries(state: &SessionState, plan: &LogicalPlan) -> Result<()> {
    let limits = state.config().get_extension::<Limits>().unwrap_or_default();
    let most = limits.size(Limit::SqlSubqueries);
    let levels = subquery_levels(plan).map_err(|error| from_datafusion(&error))?;
    if levels <= most {
        return Ok(());
    }
    let message = format!("subqueries in expressions are nested {levels} deep: the limit is {most} levels");
    Err(limits
        .exceeded(Limit::SqlSubqueries, message)
        .hint("Join with the subquery in FROM, or make a materialized view of it."))
}

fn subquery_levels(plan: &LogicalPlan) -> datafusion::error::Result<usize> {
    let mut levels = 0;
    plan.apply(|node| {
        node.apply_subqueries(|subquery| {
            levels = levels.max(1 + subquery_levels(subquery)?);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(levels)
}

fn table_names(state: &SessionState) -> Vec<String> {
    let catalogs = state.catalog_list();
    catalogs
        .catalog(DATABASE)
        .and_then(|catalog| catalog.schema(DEFAULT_SCHEMA))
        .map(|schema| schema.table_names())
        .unwrap_or_default()
}

/// Brings a query into the form that DataFusion's planner takes.
fn prepare(query: &mut ast::Query) -> Result<()> {
    row_values::rewrite(query)?;
    windows::rewrite(query)?;
    set_functions::rewrite_from(query);
    series::name_columns(query)?;
    name_columns(query);
    exists::rewrite(query)?;
    if let ControlFlow::Break(error) = visit_expressions_mut(query, |expression| match prepare_expression(expression) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }) {
        return Err(error);
    }
    let mut fetches = Fetches;
    match ast::VisitMut::visit(query, &mut fetches) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Numbers with an exponent: numeric while they have at most 38 digits, else double precision.
fn plain_number(text: &str) -> Option<ast::Expr> {
    let (mantissa, exponent) = text.split_once(['e', 'E'])?;
    let exponent: i64 = exponent.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{whole}{fraction}");
    // Where the point goes among the digits.
    let point = i64::try_from(whole.len()).ok()? + exponent;
    let count = i64::try_from(digits.len()).ok()?;
    if point > 38 || count - point > 38 || point.max(count) - point.min(0) > 38 {
        return parse_expression(&format!("'{text}'::double precision")).ok();
    }
    let plain = if point <= 0 {
        format!("0.{}{digits}", "0".repeat(usize::try_from(-point).ok()?))
    } else if point >= count {
        // With a point it stays a numeric.
        format!("{digits}{}.0", "0".repeat(usize::try_from(point - count).ok()?))
    } else {
        let (before, after) = digits.split_at(usize::try_from(point).ok()?);
        format!("{before}.{after}")
    };
    Some(ast::Expr::value(ast::Value::Number(plain, false)))
}

/// `mod(a, b)` is `a % b`; `date_trunc` in a zone is a function of its own.
fn remainder(call: &mut ast::Function) -> Option<ast::Expr> {
    let [ast::ObjectNamePart::Identifier(name)] = call.name.0.as_mut_slice() else {
        return None;
    };
    let ast::FunctionArguments::List(arguments) = &mut call.args else {
        return None;
    };
    match (name.value.to_lowercase().as_str(), arguments.args.as_mut_slice()) {
        ("date_trunc", [_, _, _]) => {
            name.value = zoned::TRUNCATION.into();
            None
        }
        (
            "mod",
            [
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(left)),
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(right)),
            ],
        ) => {
            let operand = |expression: &mut ast::Expr| {
                let inner = std::mem::replace(expression, ast::Expr::value(ast::Value::Null));
                Box::new(ast::Expr::Nested(Box::new(inner)))
            };
            Some(ast::Expr::Nested(Box::new(ast::Expr::BinaryOp {
                left: operand(left),
                op: ast::BinaryOperator::Modulo,
                right: operand(right),
            })))
        }
        _ => None,
    }
}

/// The planner knows a function by one name: `schema.f` is one, but for the default schema.
fn name_in_one_part(name: &mut ast::ObjectName) {
    if let [ast::ObjectNamePart::Identifier(schema), ast::ObjectNamePart::Identifier(function)] = name.0.as_slice() {
        let called = called_name(Some(&fold(schema)), &fold(function));
        let one = ast::Ident { value: called, quote_style: Some('"'), span: function.span };
        name.0 = vec![ast::ObjectNamePart::Identifier(one)];
    }
}

/// `varchar(n)` in a cast cuts the text off after n characters.
fn prepare_expression(expression: &mut ast::Expr) -> Result<()> {
    if let ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::Number(text, _), .. }) = &*expression
        && let Some(plain) = plain_number(text)
    {
        *expression = plain;
        return Ok(());
    }
    if let Some(call) = any_all::rewritten(expression) {
        *expression = call;
        return Ok(());
    }
    if let ast::Expr::Function(call) = &mut *expression {
        name_in_one_part(&mut call.name);
    }
    if let ast::Expr::Function(call) = &*expression
        && let Some(other) = json_aggregates::rewritten(call).or_else(|| set_functions::rewritten(call))
    {
        *expression = other;
        return Ok(());
    }
    if let Some(other) = spellings::rewritten(expression)? {
        *expression = other;
        return Ok(());
    }
    if let ast::Expr::Function(call) = &mut *expression
        && let Some(remainder) = remainder(call)
    {
        *expression = remainder;
        return Ok(());
    }
    let ast::Expr::Cast { data_type, .. } = &*expression else {
        return Ok(());
    };
    let stored = stored(data_type).map_err(|error| {
        let at = ast::Spanned::span(&*expression);
        error.position_or(super::tokens::position(at))
    })?;
    let Some(length) = stored.length_max else {
        return Ok(());
    };
    let mut cut = parse_expression(&format!("left('', {length})"))?;
    let ast::Expr::Cast { data_type, .. } = expression else {
        return Ok(());
    };
    *data_type = ast::DataType::Text;
    if let ast::Expr::Function(call) = &mut cut
        && let ast::FunctionArguments::List(arguments) = &mut call.args
        && let Some(first) = arguments.args.first_mut()
    {
        let inner = std::mem::replace(expression, ast::Expr::value(ast::Value::Null));
        *first = ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(inner));
        *expression = cut;
    }
    Ok(())
}

/// `FETCH FIRST n ROWS ONLY` is LIMIT by another name; a number in quotes is one. A HAVING without groups makes one of all
/// rows, which the planner sees by an aggregate.
struct Fetches;

impl ast::VisitorMut for Fetches {
    type Break = Error;

    fn post_visit_select(&mut self, select: &mut ast::Select) -> ControlFlow<Error> {
        let grouped = !matches!(&select.group_by, ast::GroupByExpr::Expressions(keys, _) if keys.is_empty());
        if let Some(having) = select.having.take() {
            select.having = Some(if grouped { having } else { with_count(having) });
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<Error> {
        if let Some(ast::LimitClause::LimitOffset { limit, offset, .. }) = &mut query.limit_clause {
            for count in limit.iter_mut().chain(offset.iter_mut().map(|offset| &mut offset.value)) {
                if let ast::Expr::Value(value) = count
                    && let ast::Value::SingleQuotedString(text) = &value.value
                {
                    value.value = ast::Value::Number(text.trim().to_owned(), false);
                }
            }
        }
        let Some(fetch) = query.fetch.take() else {
            return ControlFlow::Continue(());
        };
        let quantity = fetch.quantity.unwrap_or_else(|| ast::Expr::value(ast::Value::Number("1".into(), false)));
        match &mut query.limit_clause {
            None => {
                query.limit_clause =
                    Some(ast::LimitClause::LimitOffset { limit: Some(quantity), offset: None, limit_by: vec![] });
            }
            Some(ast::LimitClause::LimitOffset { limit: limit @ None, .. }) => *limit = Some(quantity),
            Some(_) => {
                return ControlFlow::Break(
                    Error::new(SqlState::SyntaxError, "multiple LIMIT clauses not allowed").hint("Write one LIMIT."),
                );
            }
        }
        ControlFlow::Continue(())
    }
}

/// `condition AND count(*) >= 0`.
fn with_count(condition: ast::Expr) -> ast::Expr {
    match parse_expression("count(*) >= 0") {
        Ok(count) => ast::Expr::BinaryOp {
            left: Box::new(ast::Expr::Nested(Box::new(condition))),
            op: ast::BinaryOperator::And,
            right: Box::new(count),
        },
        Err(_) => condition,
    }
}

fn analysed(state: &SessionState, plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = state
        .analyzer()
        .execute_and_check(plan, state.config_options(), |_, _| {})
        .map_err(|error| from_datafusion(&error))?;
    let plan = jsonb::checked_documents(plan).and_then(grouping::expanded).map_err(|error| from_datafusion(&error))?;
    documented_types(plan)
}

/// The documented type that stands for one that only functions of DataFusion give.
pub(crate) fn documented(data_type: &DataType) -> Option<DataType> {
    use DataType::*;
    Some(match data_type {
        Int8 | UInt8 => Int16,
        UInt16 => Int32,
        UInt32 | UInt64 => Int64,
        Float16 => Float32,
        Null | Utf8View => Utf8,
        LargeBinary | BinaryView => Binary,
        Timestamp(unit, zone) => {
            let zone = zone.as_ref().map(|_| Arc::from(UTC));
            let micros = Timestamp(TimeUnit::Microsecond, zone);
            if *unit == TimeUnit::Microsecond && micros == *data_type {
                return None;
            }
            micros
        }
        Date64 => Date32,
        Time32(_) | Time64(TimeUnit::Nanosecond) => Time64(TimeUnit::Microsecond),
        Duration(_) | Interval(IntervalUnit::YearMonth | IntervalUnit::DayTime) => Interval(IntervalUnit::MonthDayNano),
        Decimal32(precision, scale) | Decimal64(precision, scale) => Decimal128(*precision, *scale),
        Decimal256(_, scale) => Decimal128(38, (*scale).min(38)),
        Dictionary(_, value) => documented(value).unwrap_or_else(|| value.as_ref().clone()),
        LargeList(field) | FixedSizeList(field, _) | ListView(field) | LargeListView(field) => {
            let element = documented(field.data_type()).unwrap_or_else(|| field.data_type().clone());
            List(Arc::new(Field::new_list_field(element, true)))
        }
        List(field) => List(Arc::new(Field::new_list_field(documented(field.data_type())?, true))),
        _ => return None,
    })
}

/// Casts result columns to documented types.
fn documented_types(plan: LogicalPlan) -> Result<LogicalPlan> {
    let schema = Arc::clone(plan.schema());
    if schema.fields().iter().all(|field| documented(field.data_type()).is_none()) {
        return Ok(plan);
    }
    let expressions: Vec<Expr> = schema
        .iter()
        .map(|(qualifier, field)| {
            let column = Expr::from((qualifier, field));
            match documented(field.data_type()) {
                Some(to) => cast(column, field.data_type(), &to).alias_qualified(qualifier.cloned(), field.name()),
                None => column,
            }
        })
        .collect();
    let projection = Projection::try_new(expressions, Arc::new(plan)).map_err(|error| from_datafusion(&error))?;
    Ok(LogicalPlan::Projection(projection))
}

/// Plans a predicate over the columns of a relation.
///
/// # Errors
/// Those of class 42, 42804 when it is not boolean.
pub fn plan_predicate(state: &SessionState, text: &str, schema: SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let expression = parse_expression(text)?;
    let planned = expression_over(state, &expression, &schema)?;
    let df_schema = df_schema(&schema)?;
    let data_type = planned.get_type(&df_schema).map_err(|error| from_datafusion(&error))?;
    if !matches!(data_type, DataType::Boolean | DataType::Null) {
        return Err(Error::new(
            SqlState::DatatypeMismatch,
            format!("a filter must be of type boolean, not type {}", sql_name(&data_type)),
        )
        .hint("Compare the value, such as amount > 100.")
        .position(1));
    }
    physical(state, planned, &df_schema).map_err(|error| locate(error, &expression))
}

/// Plans an expression over the columns of a schema, as written for DEFAULT.
///
/// # Errors
/// Those of class 42.
pub fn plan_expression(state: &SessionState, expr: &ast::Expr, schema: SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let planned = expression_over(state, expr, &schema)?;
    physical(state, planned, &df_schema(&schema)?).map_err(|error| locate(error, expr))
}

/// Plans the expression of a computed column over the columns of a schema.
///
/// # Errors
/// Those of class 42; 0A000 for an expression whose value is not that of the row alone.
pub fn plan_computed(state: &SessionState, expr: &ast::Expr, schema: SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let refuse = |what: &str| {
        Error::unsupported(format!("{what} in a computed column is not supported"))
            .hint("Compute from the row's columns alone: rows can be read again, and must be the same then.")
    };
    let clock = ast::visit_expressions(expr, |inner| {
        if let ast::Expr::Function(function) = inner {
            let name = function.name.to_string().to_lowercase();
            if view_checks::TIME_FUNCTIONS.contains(&name.as_str()) {
                return ControlFlow::Break(name);
            }
        }
        ControlFlow::Continue(())
    });
    if let ControlFlow::Break(name) = clock {
        return Err(refuse(&format!("{name}()")));
    }
    let planned = expression_over(state, expr, &schema)?;
    if planned.is_volatile() {
        return Err(refuse("a volatile function"));
    }
    physical(state, planned, &df_schema(&schema)?).map_err(|error| locate(error, expr))
}

fn df_schema(schema: &SchemaRef) -> Result<DFSchema> {
    DFSchema::try_from(Arc::clone(schema)).map_err(|error| from_datafusion(&error))
}

/// An expression over the columns of a schema as DataFusion plans it, without its meaning.
///
/// # Errors
/// Those of class 42.
pub(crate) fn raw_expression(state: &SessionState, expression: &ast::Expr, schema: &SchemaRef) -> Result<Expr> {
    let mut prepared = expression.clone();
    if let ControlFlow::Break(error) =
        visit_expressions_mut(&mut prepared, |expression| match prepare_expression(expression) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        })
    {
        return Err(error);
    }
    let prepared = ast::ExprWithAlias { expr: prepared, alias: None };
    state
        .create_logical_expr_from_sql_expr(prepared, &df_schema(schema)?)
        .map_err(|error| locate(from_datafusion(&error), expression))
}

fn expression_over(state: &SessionState, expression: &ast::Expr, schema: &SchemaRef) -> Result<Expr> {
    let planned = raw_expression(state, expression, schema)?;
    let planned = meaning::expression_with_meaning(planned, &df_schema(schema)?)
        .map_err(|error| locate(from_datafusion(&error), expression))?;
    check_literals(&planned).map_err(|error| locate(from_datafusion(&error), expression))?;
    if lower::has_subquery(&planned) || lower::has_aggregate(&planned) {
        return Err(Error::unsupported("subqueries and aggregates are not supported here")
            .hint("Send a SELECT with the condition in WHERE instead."));
    }
    Ok(planned)
}

fn physical(state: &SessionState, expression: Expr, schema: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
    state.create_physical_expr(expression, schema).map_err(|error| from_datafusion(&error))
}
