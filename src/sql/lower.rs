//! An analysed logical plan to a [`JobPlan`].
//!
//! Each logical node becomes one operator or none, and constant parts of expressions are folded. Of DataFusion's
//! optimizer only the rules run that make joins of subqueries and bring conditions to their joins, and only on a
//! plan with joins or subqueries. An expression that fails while it is folded stays as it
//! is, so that the error belongs to the rows that reach it. Columns that no operator reads are
//! dropped at the imports ([`super::prune`]).

mod inside;
mod join;
mod lookup_join;
mod match_rows;
mod rank;
mod session_window;
mod temporal_filter;
mod temporal_join;
mod unnest;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::logical_plan::TableScanBuilder;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{
    Aggregate, Distinct, EmptyRelation, Expr, Filter, LogicalPlan, Projection, TableScan, Union, Values, Volatility,
    Window,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr, create_physical_expr};

use super::aggregates;
use super::arithmetic::is_checked;
use super::errors::from_datafusion;
use super::event_time::{self, Input};
use super::hop_panes;
use super::planner::{PlannedView, Resolver};
use super::prune::prune;
use super::state_ttl;
use super::statement::{Emit, Standing};
use super::view_checks::{SUBQUERY_HINT, TIME_FUNCTIONS, TIME_HINT, VOLATILE_HINT, refuse};
use crate::exec::plan::{AggregateCall, JobPlan, OnError, OperatorSpec, PlanNode};
use crate::types::{Error, Result};

/// Lowers the plan of a view whose columns are called `names`.
pub(crate) fn lower(
    state: &SessionState,
    plan: &LogicalPlan,
    names: Vec<String>,
    standing: Standing,
    resolver: &dyn Resolver,
) -> Result<PlannedView> {
    let mut lowering = Lowering {
        state,
        resolver,
        nodes: Vec::new(),
        notices: Vec::new(),
        row_limits: Vec::new(),
        inputs: HashMap::new(),
        expires: standing.ttl_millis.is_some(),
    };
    let plan = &join::with_joins(state, plan.clone())?;
    let root = lowering.node(plan, "root")?;
    let root = lowering.named_root(root, &names)?;
    let on_error = if lowering.nodes.iter().any(computes) { OnError::Keep } else { OnError::Never };
    let mut nodes = prune(lowering.nodes)?;
    let (event_times, closed) = event_time::close(&mut nodes, &lowering.inputs, standing.emit)?;
    hop_panes::share(&mut nodes)?;
    let (key, mut append_only) = (root.key.unwrap_or_default(), root.append_only || closed);
    if let Some(ttl_millis) = standing.ttl_millis {
        if standing.emit == Emit::OnWindowClose {
            return Err(refuse(
                "state_ttl beside EMIT ON WINDOW CLOSE",
                "Event time bounds the state of windows that close.",
            ));
        }
        nodes = state_ttl::expire(nodes, ttl_millis)?;
        append_only &= nodes.last().is_some_and(|root| root.append_only);
    }
    let plan = JobPlan { nodes, key, append_only, on_error, event_times, retain_millis: 0 };
    Ok(PlannedView { plan, notices: lowering.notices })
}

/// True when an operator evaluates what may fail for a row: a function or a cast.
fn computes(node: &PlanNode) -> bool {
    let fallible = |expression: &Arc<dyn PhysicalExpr>| {
        expression
            .exists(|inner| {
                Ok(inner.downcast_ref::<ScalarFunctionExpr>().is_some() || inner.downcast_ref::<CastExpr>().is_some())
            })
            .unwrap_or(true)
    };
    match &node.operator {
        OperatorSpec::Project { expressions } => expressions.iter().any(fallible),
        OperatorSpec::Filter { predicate, .. } => fallible(predicate),
        _ => false,
    }
}

/// True when an expression holds a query.
pub(crate) fn has_subquery(expression: &Expr) -> bool {
    found(expression, |inner| {
        matches!(inner, Expr::InSubquery(_) | Expr::Exists(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_))
    })
}

/// True when an expression holds an aggregate or a window function.
pub(crate) fn has_aggregate(expression: &Expr) -> bool {
    found(expression, |inner| matches!(inner, Expr::AggregateFunction(_) | Expr::WindowFunction(_)))
}

fn found(expression: &Expr, wanted: impl Fn(&Expr) -> bool) -> bool {
    expression.exists(|inner| Ok(wanted(inner))).unwrap_or(true)
}

/// True when an expression can fail on a row.
fn can_fail(expression: &Expr) -> bool {
    found(expression, |inner| match inner {
        Expr::ScalarFunction(call) => is_checked(call.func.name()),
        Expr::Cast(_) => true,
        _ => false,
    })
}

/// What is known of a lowered part of the plan.
#[derive(Clone)]
struct Lowered {
    /// Its operator.
    index: usize,
    /// Columns that identify a row, when some are known to.
    key: Option<Vec<usize>>,
    append_only: bool,
    /// False when it reads a connector whose rows never end.
    bounded: bool,
}

struct Lowering<'a> {
    state: &'a SessionState,
    resolver: &'a dyn Resolver,
    nodes: Vec<PlanNode>,
    notices: Vec<String>,
    /// Window operators of which only so many first rows of each partition are asked for.
    row_limits: Vec<(*const Window, u64)>,
    /// What is known of event time in what it reads.
    inputs: HashMap<crate::types::RelationId, Input>,
    /// What does not change is forgotten.
    expires: bool,
}

impl Lowering<'_> {
    fn push(&mut self, path: &str, operator: OperatorSpec, inputs: Vec<usize>, schema: SchemaRef) -> usize {
        let path = path.to_owned();
        let (closing, append_only, ttl_millis) = (Vec::new(), false, None);
        self.nodes.push(PlanNode { path, operator, inputs, schema, closing, append_only, ttl_millis });
        self.nodes.len() - 1
    }

    /// A filter that puts out all columns of its input.
    fn push_filter(&mut self, path: &str, predicate: Arc<dyn PhysicalExpr>, input: usize) -> usize {
        let schema = self.schema_of(input);
        let operator = OperatorSpec::Filter { predicate, columns: (0..schema.fields().len()).collect() };
        self.push(path, operator, vec![input], schema)
    }

    fn schema_of(&self, index: usize) -> SchemaRef {
        self.nodes.get(index).map_or_else(|| Arc::new(Schema::empty()), |node| Arc::clone(&node.schema))
    }

    fn node(&mut self, plan: &LogicalPlan, path: &str) -> Result<Lowered> {
        match plan {
            LogicalPlan::TableScan(scan) => self.import(scan, path),
            LogicalPlan::Projection(projection) => self.projection(projection, path),
            LogicalPlan::Filter(filter) => self.filter(filter, path),
            LogicalPlan::SubqueryAlias(alias) => self.node(&alias.input, path),
            // Rows of a view have no order; with a limit the order would choose them.
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => self.node(&sort.input, path),
            LogicalPlan::Union(union) => self.union(union, path),
            LogicalPlan::Distinct(Distinct::All(input)) => self.distinct(input, path),
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate, path),
            LogicalPlan::Values(values) => self.values(values, path),
            LogicalPlan::EmptyRelation(empty) => self.empty(empty, path),
            LogicalPlan::Distinct(Distinct::On(distinct)) => self.distinct_on(distinct, path),
            LogicalPlan::Sort(sort) => self.sorted_limit(sort, path),
            LogicalPlan::Limit(limit) => self.limit(limit, path),
            LogicalPlan::Join(join) => self.join(join, path),
            LogicalPlan::Window(window) => self.window(window, path),
            LogicalPlan::Subquery(_) => Err(refuse("a subquery", SUBQUERY_HINT)),
            LogicalPlan::Unnest(unnest) => self.unnest(unnest, path),
            LogicalPlan::RecursiveQuery(_) => {
                Err(refuse("WITH RECURSIVE", "Recurse in a SELECT over materialized views."))
            }
            other => Err(refuse(&format!("this part of the plan ({})", other.display()), "Send it as a SELECT.")),
        }
    }

    /// Gives the root the user's column names, by a projection of its own unless it is one.
    fn named_root(&mut self, mut root: Lowered, names: &[String]) -> Result<Lowered> {
        let schema = self.schema_of(root.index);
        let fields: Vec<FieldRef> = schema
            .fields()
            .iter()
            .zip(names)
            .map(|(field, name)| Arc::new(field.as_ref().clone().with_name(name)))
            .collect();
        let named = Arc::new(Schema::new(fields));
        if let Some(node) = self.nodes.get_mut(root.index)
            && matches!(node.operator, OperatorSpec::Project { .. })
        {
            node.schema = named;
            return Ok(root);
        }
        if named == schema {
            return Ok(root);
        }
        // The projection takes the root's place, so all below moves down one step.
        for node in &mut self.nodes {
            node.path = node.path.replacen("root", "root/input", 1);
        }
        for notice in &mut self.notices {
            *notice = notice.replacen("root", "root/input", 1);
        }
        let expressions = columns(&schema, 0..schema.fields().len());
        root.index = self.push("root", OperatorSpec::Project { expressions }, vec![root.index], named);
        Ok(root)
    }

    fn import(&mut self, scan: &TableScan, path: &str) -> Result<Lowered> {
        if scan.fetch.is_some() {
            return Err(Error::internal("a scan with a limit of its own"));
        }
        if !scan.filters.is_empty() {
            return self.filtered_import(scan, path);
        }
        let Some(info) = self.resolver.relation(&scan.table_name) else {
            let inside = self.resolver.inside(&scan.table_name)?;
            let missing = || Error::internal(format!("relation {} was planned and is not there", scan.table_name));
            return self.inside(scan, &inside.ok_or_else(missing)?, path);
        };
        self.inputs.insert(info.id, Input::from(&info));
        let wanted: Vec<usize> = scan.projection.clone().unwrap_or_else(|| (0..info.schema.fields().len()).collect());
        let mut fields = Vec::with_capacity(wanted.len());
        for column in &wanted {
            let Some(field) = info.schema.fields().get(*column) else {
                return Err(Error::internal(format!("relation {} has no column {column}", scan.table_name)));
            };
            fields.push(field.as_ref().clone().with_nullable(true));
        }
        let key: Option<Vec<usize>> = info
            .key
            .iter()
            .map(|key| wanted.iter().position(|column| column == key))
            .collect::<Option<Vec<usize>>>()
            .filter(|key| !key.is_empty());
        let operator = OperatorSpec::Import { relation: info.id, columns: wanted };
        let index = self.push(path, operator, vec![], Arc::new(Schema::new(fields)));
        Ok(Lowered { index, key, append_only: info.append_only, bounded: info.bounded })
    }

    /// A scan that was given conditions: a filter over it, and then the columns that were asked for.
    fn filtered_import(&mut self, scan: &TableScan, path: &str) -> Result<Lowered> {
        let whole = TableScanBuilder::new(scan.table_name.clone(), Arc::clone(&scan.source))
            .build()
            .map_err(|error| from_datafusion(&error))?;
        let wanted = scan.projection.clone().unwrap_or_else(|| (0..whole.projected_schema.fields().len()).collect());
        let predicate = conjunction(scan.filters.iter().cloned())
            .ok_or_else(|| Error::internal("a scan's conditions went away"))?;
        let filter = Filter::try_new(predicate, Arc::new(LogicalPlan::TableScan(whole)))
            .map_err(|error| from_datafusion(&error))?;
        let schema = Arc::clone(filter.input.schema());
        let columns = wanted.iter().map(|column| Expr::Column(schema.qualified_field(*column).into())).collect();
        let projection = Projection::try_new(columns, Arc::new(LogicalPlan::Filter(filter)))
            .map_err(|error| from_datafusion(&error))?;
        self.projection(&projection, path)
    }

    fn projection(&mut self, projection: &Projection, path: &str) -> Result<Lowered> {
        let width = projection.input.schema().fields().len();
        let plain: Option<Vec<usize>> =
            projection.expr.iter().map(|expression| column_of(expression, projection.input.schema())).collect();
        // All columns in their order: nothing to do but names, which only the root needs.
        if plain.as_ref().is_some_and(|plain| plain.len() == width && plain.iter().enumerate().all(|(at, c)| at == *c))
        {
            return self.node(&projection.input, path);
        }
        let mut lowered = self.node(&projection.input, &format!("{path}/input"))?;
        let expressions = self.expressions(&projection.expr, projection.input.schema())?;
        let positions: Vec<Option<usize>> =
            projection.expr.iter().map(|expression| column_of(expression, projection.input.schema())).collect();
        lowered.key = lowered.key.and_then(|key| {
            key.iter().map(|column| positions.iter().position(|position| *position == Some(*column))).collect()
        });
        let schema = nullable_schema(&projection.schema);
        lowered.index = self.push(path, OperatorSpec::Project { expressions }, vec![lowered.index], schema);
        Ok(lowered)
    }

    fn filter(&mut self, filter: &Filter, path: &str) -> Result<Lowered> {
        self.row_limits.extend(rank::row_limit(filter).map(|(window, rows)| (std::ptr::from_ref(window), rows)));
        let (of_clock, parts) = temporal_filter::divide(&filter.predicate)?;
        if !of_clock.is_empty() {
            return self.temporal_filter(filter, &of_clock, parts, path);
        }
        // Where a later condition can fail, an earlier one may be there to keep rows from it: then
        // each is a filter of its own, and the later one sees only what the earlier let through.
        let steps: Vec<Expr> =
            if parts.iter().skip(1).any(can_fail) { parts } else { conjunction(parts).into_iter().collect() };
        let inputs: Vec<String> =
            (0..=steps.len()).rev().map(|depth| format!("{path}{}", "/input".repeat(depth))).collect();
        let mut paths = inputs.into_iter();
        let mut lowered = self.node(&filter.input, &paths.next().unwrap_or_else(|| path.to_owned()))?;
        for (step, path) in steps.iter().zip(paths) {
            let predicate = self.expression(step, filter.input.schema())?;
            lowered.index = self.push_filter(&path, predicate, lowered.index);
        }
        Ok(lowered)
    }

    fn union(&mut self, union: &Union, path: &str) -> Result<Lowered> {
        let schema = nullable_schema(&union.schema);
        let mut inputs = Vec::new();
        let (mut append_only, mut bounded) = (true, true);
        for (at, input) in union.inputs.iter().enumerate() {
            let branch = format!("{path}/union.{}", at + 1);
            let lowered = self.node(input, &branch)?;
            append_only &= lowered.append_only;
            bounded &= lowered.bounded;
            let types = self.schema_of(lowered.index);
            let same =
                types.fields().iter().zip(schema.fields()).all(|(left, right)| left.data_type() == right.data_type());
            if !same {
                return Err(Error::internal("branches of a union with different types"));
            }
            inputs.push(lowered.index);
        }
        let index = self.push(path, OperatorSpec::Union, inputs, schema);
        Ok(Lowered { index, key: None, append_only, bounded })
    }

    fn distinct(&mut self, input: &LogicalPlan, path: &str) -> Result<Lowered> {
        let lowered = self.node(input, &format!("{path}/input"))?;
        let schema = self.schema_of(lowered.index);
        let keys: Vec<usize> = (0..schema.fields().len()).collect();
        self.note_state("DISTINCT", path, &lowered);
        let operator = OperatorSpec::Aggregate { keys: keys.clone(), aggregates: vec![] };
        let index = self.push(path, operator, vec![lowered.index], schema);
        Ok(Lowered { index, key: Some(keys), append_only: false, bounded: lowered.bounded })
    }

    fn note_state(&mut self, clause: &str, path: &str, input: &Lowered) {
        if !input.bounded && !self.expires {
            self.notices.push(format!(
                "{clause} over a source that never ends keeps state for every group, which can grow for ever (operator {path}); \
                 WITH (state_ttl = '1 day') would bound it"
            ));
        }
    }

    fn aggregate(&mut self, aggregate: &Aggregate, path: &str) -> Result<Lowered> {
        let calls = aggregate.aggr_expr.iter().map(aggregates::call).collect::<Result<Vec<aggregates::Call>>>()?;
        // What the operator needs of its input, each expression once: keys, arguments, filters.
        let mut needed: Vec<Expr> = Vec::new();
        let mut need = |expression: &Expr| {
            let expression = expression.clone().unalias();
            needed.iter().position(|other| *other == expression).unwrap_or_else(|| {
                needed.push(expression);
                needed.len() - 1
            })
        };
        let keys: Vec<usize> = aggregate.group_expr.iter().map(&mut need).collect();
        let arguments: Vec<(Option<usize>, Option<usize>)> = calls
            .iter()
            .map(|call| (call.argument.as_ref().map(&mut need), call.filter.as_ref().map(&mut need)))
            .collect();
        let input_schema = aggregate.input.schema();
        let plain: Option<Vec<usize>> = needed.iter().map(|expression| column_of(expression, input_schema)).collect();

        // The operator, its results brought to the planned types, and its prepared input are three
        // steps of which the first is always there.
        let planned = nullable_schema(&aggregate.schema);
        let width = keys.len();
        let needed_types: Vec<DataType> = needed
            .iter()
            .map(|expression| {
                datafusion::logical_expr::ExprSchemable::get_type(expression, input_schema.as_ref())
                    .map_err(|error| from_datafusion(&error))
            })
            .collect::<Result<_>>()?;
        let mut outputs = Vec::with_capacity(calls.len());
        for (at, (call, (argument, _))) in calls.iter().zip(&arguments).enumerate() {
            let argument_type = argument.and_then(|column| needed_types.get(column)).unwrap_or(&DataType::Null);
            let data_type = call.function.result_type(argument_type)?;
            let name = planned.fields().get(width + at).map_or("", |field| field.name());
            outputs.push(Arc::new(Field::new(name, data_type, true)));
        }
        let cast_needed = outputs
            .iter()
            .zip(planned.fields().iter().skip(width))
            .any(|(output, planned)| output.data_type() != planned.data_type());
        let aggregate_path = if cast_needed { format!("{path}/input") } else { path.to_owned() };
        let prepared_path = format!("{aggregate_path}/input");

        let (mut lowered, place): (Lowered, Vec<usize>) = match plain {
            Some(place) => (self.node(&aggregate.input, &prepared_path)?, place),
            None => {
                let mut lowered = self.node(&aggregate.input, &format!("{prepared_path}/input"))?;
                let expressions = self.expressions(&needed, input_schema)?;
                let fields: Vec<Field> = needed
                    .iter()
                    .zip(&needed_types)
                    .map(|(expression, data_type)| {
                        Field::new(expression.schema_name().to_string(), data_type.clone(), true)
                    })
                    .collect();
                let schema = Arc::new(Schema::new(fields));
                lowered.index =
                    self.push(&prepared_path, OperatorSpec::Project { expressions }, vec![lowered.index], schema);
                (lowered, (0..needed.len()).collect())
            }
        };
        let at = |column: usize| {
            place.get(column).copied().ok_or_else(|| Error::internal("an aggregate over a column that is not there"))
        };
        let key_columns = keys.iter().map(|key| at(*key)).collect::<Result<Vec<usize>>>()?;
        let mut operators = Vec::with_capacity(calls.len());
        for ((call, (argument, filter)), output) in calls.into_iter().zip(&arguments).zip(&outputs) {
            operators.push(AggregateCall {
                function: call.function,
                argument: argument.map(at).transpose()?,
                distinct: call.distinct,
                filter: filter.map(at).transpose()?,
                output: Arc::clone(output),
            });
        }
        if !keys.is_empty() {
            self.note_state("GROUP BY", &aggregate_path, &lowered);
        }
        let mut fields: Vec<FieldRef> = planned.fields().iter().take(width).cloned().collect();
        fields.extend(outputs);
        let schema = Arc::new(Schema::new(fields));
        let operator = OperatorSpec::Aggregate { keys: key_columns, aggregates: operators };
        lowered.index = self.push(&aggregate_path, operator, vec![lowered.index], Arc::clone(&schema));
        if cast_needed {
            let expressions = columns(&schema, 0..schema.fields().len())
                .into_iter()
                .zip(schema.fields().iter().zip(planned.fields()))
                .map(|(column, (from, to))| -> Arc<dyn PhysicalExpr> {
                    if from.data_type() == to.data_type() {
                        column
                    } else {
                        Arc::new(CastExpr::new(column, to.data_type().clone(), None))
                    }
                })
                .collect();
            lowered.index = self.push(path, OperatorSpec::Project { expressions }, vec![lowered.index], planned);
        }
        lowered.key = (width > 0).then(|| (0..width).collect());
        lowered.append_only = false;
        Ok(lowered)
    }

    fn values(&mut self, values: &Values, path: &str) -> Result<Lowered> {
        let schema = nullable_schema(&values.schema);
        let (unit, _) = unit_row()?;
        let mut columns: Vec<Vec<ArrayRef>> = vec![Vec::new(); schema.fields().len()];
        for row in &values.values {
            for (expression, column) in row.iter().zip(&mut columns) {
                let expression = self.expression(expression, &DFSchema::empty())?;
                let value = expression.evaluate(&unit).and_then(|value| value.into_array(1));
                column.push(value.map_err(|error| from_datafusion(&error))?);
            }
        }
        let mut arrays = Vec::with_capacity(columns.len());
        for (column, field) in columns.iter().zip(schema.fields()) {
            let parts: Vec<&dyn arrow::array::Array> = column.iter().map(AsRef::as_ref).collect();
            let array = concat(&parts)?;
            arrays.push(super::casts::cast_array(&array, field.data_type())?);
        }
        let rows = RecordBatch::try_new(Arc::clone(&schema), arrays)?;
        let index = self.push(path, OperatorSpec::Constant { rows }, vec![], schema);
        Ok(Lowered { index, key: None, append_only: true, bounded: true })
    }

    fn empty(&mut self, empty: &EmptyRelation, path: &str) -> Result<Lowered> {
        let (rows, schema) = if empty.produce_one_row {
            unit_row()?
        } else {
            let schema = nullable_schema(&empty.schema);
            (RecordBatch::new_empty(Arc::clone(&schema)), schema)
        };
        let index = self.push(path, OperatorSpec::Constant { rows }, vec![], schema);
        Ok(Lowered { index, key: None, append_only: true, bounded: true })
    }

    fn expressions(&self, expressions: &[Expr], schema: &DFSchema) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
        expressions.iter().map(|expression| self.expression(expression, schema)).collect()
    }

    /// Plans an expression over the columns of a lowered input.
    fn expression(&self, expression: &Expr, schema: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
        check_expression(expression)?;
        let schema = Arc::new(nullable(schema)?);
        let context = SimplifyContext::builder()
            .with_schema(Arc::clone(&schema))
            .with_config_options(Arc::clone(self.state.config_options()))
            .build();
        let planned =
            ExprSimplifier::new(context).simplify(expression.clone().unalias_nested().data).and_then(|expression| {
                create_physical_expr(
                    &expression,
                    &schema,
                    self.state.execution_props(),
                    &PhysicalPlanningContext::default(),
                )
            });
        planned.map_err(|error| from_datafusion(&error))
    }
}

/// One row with one column that nothing reads: what a SELECT without FROM reads.
fn unit_row() -> Result<(RecordBatch, SchemaRef)> {
    let schema = Arc::new(Schema::new(vec![Field::new("unit", DataType::Boolean, true)]));
    let rows = RecordBatch::try_new_with_options(
        Arc::clone(&schema),
        vec![Arc::new(BooleanArray::from(vec![true])) as ArrayRef],
        &RecordBatchOptions::new(),
    )?;
    Ok((rows, schema))
}

/// Refuses what depends on more than the row.
fn check_expression(expression: &Expr) -> Result<()> {
    if has_subquery(expression) {
        return Err(refuse("a subquery in an expression", SUBQUERY_HINT));
    }
    let mut refused = None;
    let walked = expression.exists(|inner| {
        if let Expr::ScalarFunction(call) = inner {
            let name = call.func.name();
            if TIME_FUNCTIONS.contains(&name) {
                refused = Some(refuse(&format!("function {name}()"), TIME_HINT));
            } else if call.func.signature().volatility == Volatility::Volatile {
                refused = Some(refuse(&format!("function {name}()"), VOLATILE_HINT));
            }
        }
        Ok(refused.is_some())
    });
    walked.map_err(|error| from_datafusion(&error))?;
    refused.map_or(Ok(()), Err)
}

/// The column's place in the input when the expression is nothing but a column.
fn column_of(expression: &Expr, schema: &DFSchema) -> Option<usize> {
    match expression {
        Expr::Alias(alias) => column_of(&alias.expr, schema),
        Expr::Column(column) => schema.maybe_index_of_column(column),
        _ => None,
    }
}

fn columns(schema: &Schema, which: impl Iterator<Item = usize>) -> Vec<Arc<dyn PhysicalExpr>> {
    which
        .filter_map(|at| schema.fields().get(at).map(|field| (at, field)))
        .map(|(at, field)| Arc::new(Column::new(field.name(), at)) as Arc<dyn PhysicalExpr>)
        .collect()
}

/// An expression whose columns from `from` on have moved up by some.
fn shifted(expression: &Arc<dyn PhysicalExpr>, from: usize, by: usize) -> Result<Arc<dyn PhysicalExpr>> {
    let moved = Arc::clone(expression).transform(|inner| {
        Ok(match inner.downcast_ref::<Column>() {
            Some(column) if column.index() >= from => {
                Transformed::yes(Arc::new(Column::new(column.name(), column.index() + by)) as Arc<dyn PhysicalExpr>)
            }
            _ => Transformed::no(inner),
        })
    });
    moved.map(|moved| moved.data).map_err(|error| from_datafusion(&error))
}

/// Every column may be NULL: an operator's batches always match what its input promised.
fn nullable_schema(schema: &DFSchema) -> SchemaRef {
    let fields: Vec<Field> =
        schema.fields().iter().map(|field| Field::new(field.name(), field.data_type().clone(), true)).collect();
    Arc::new(Schema::new(fields))
}

fn nullable(schema: &DFSchema) -> Result<DFSchema> {
    let fields = schema
        .iter()
        .map(|(qualifier, field)| {
            (qualifier.cloned(), Arc::new(Field::new(field.name(), field.data_type().clone(), true)))
        })
        .collect();
    DFSchema::new_with_metadata(fields, HashMap::new()).map_err(|error| from_datafusion(&error))
}

/// The value of a text literal.
pub(crate) fn text_literal(expression: &Expr) -> Option<&str> {
    match expression {
        Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), _) => Some(text),
        Expr::Literal(ScalarValue::LargeUtf8(Some(text)), _) => Some(text),
        Expr::Cast(inner) => text_literal(&inner.expr),
        _ => None,
    }
}
