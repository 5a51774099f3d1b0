//! `FROM t MATCH_RECOGNIZE (…) AS m`: the matches of a pattern in the ordered rows of each partition.
//!
//! What DEFINE and MEASURES read of a match (the last row of a variable, its first one, an aggregate of its rows) is told
//! apart from what they compute of it. The first becomes a part of the pattern, over columns that a projection prepares;
//! a condition is then an expression over such values, and so is a measure. The search itself is a window function
//! that gives the first row of each match these values. So a SELECT answers it as it stands, and the lowering of
//! views makes an operator of it that looks at rows once their event time is past.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, TimeUnit};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, ScalarValue};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::context::ExecutionProps;
use datafusion::functions::core::get_field;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, ExprSchemable, LogicalPlan, LogicalPlanBuilder, SortExpr, WindowUDF, lit,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use sqlparser::ast::{
    self, AfterMatchSkip, DuplicateTreatment, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    MatchRecognizePattern, MatchRecognizeSymbol, Measure, ObjectNamePart, OrderByExpr, RowsPerMatch, Spanned,
    SymbolDefinition, TableFactor, VisitMut, VisitorMut,
};
use sqlparser::tokenizer::Span;

use super::aggregates;
use super::casts::check_literals;
use super::errors::{from_datafusion, to_datafusion};
use super::meaning;
use super::patterns::{self, Written};
use super::reader::{duplicate_column, fold};
use super::scope_checks::is_aggregate;
use super::tokens::position;
use super::types::sql_name;
use super::view_checks::TIME_FUNCTIONS;
use crate::exec::plan::{Condition, Element, Navigation, Pattern, PatternFunction, Reads, Skip};
use crate::types::{Error, Result, SqlState};

const ORDER_HINT: &str = "Write ORDER BY ts with ascending event time first; other columns may follow.";
const MEASURE_HINT: &str = "Measures and conditions are made of columns as A.x, FIRST(A.x), LAST(A.x, 1), PREV(A.x) and aggregates of a variable.";

/// The column of the values of the match that begins with a row.
const MATCH: &str = "clink_match";

/// Plans the clause.
#[derive(Debug)]
pub(crate) struct MatchRecognize;

impl RelationPlanner for MatchRecognize {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> DataFusionResult<RelationPlanning> {
        let at = position(relation.span());
        let TableFactor::MatchRecognize {
            table,
            partition_by,
            order_by,
            measures,
            rows_per_match,
            after_match_skip,
            pattern,
            symbols,
            alias,
        } = relation
        else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let input = meaning::apply(context.plan(*table)?)?;
        let planning = Planning { context, input, variables: Vec::new(), time: None, needed: Vec::new() };
        let clause = Clause { partition_by, order_by, measures, rows_per_match, after_match_skip, pattern, symbols };
        let plan = planning.plan(clause).map_err(|error| to_datafusion(error.position_or(at)))?;
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(plan, alias))))
    }
}

/// The clause as it is written, but for its table.
struct Clause {
    partition_by: Vec<ast::Expr>,
    order_by: Vec<OrderByExpr>,
    measures: Vec<Measure>,
    rows_per_match: Option<RowsPerMatch>,
    after_match_skip: Option<AfterMatchSkip>,
    pattern: MatchRecognizePattern,
    symbols: Vec<SymbolDefinition>,
}

struct Planning<'a> {
    context: &'a mut dyn RelationPlannerContext,
    input: LogicalPlan,
    /// The pattern's variables by number.
    variables: Vec<String>,
    /// The first column of the order.
    time: Option<Expr>,
    /// What the pattern reads of the input: the partition, the order, then what was found in DEFINE and MEASURES.
    needed: Vec<Expr>,
}

/// A value that is read of a match, with its type.
#[derive(Clone, PartialEq)]
struct Value {
    navigation: Navigation,
    data_type: DataType,
}

fn refused(what: &str, hint: &str, span: Span) -> Error {
    Error::unsupported(format!("{what} is not supported in MATCH_RECOGNIZE")).hint(hint).position_or(position(span))
}

fn misused(message: String, hint: &str, span: Span) -> Error {
    Error::new(SqlState::SyntaxError, message).hint(hint).position_or(position(span))
}

/// The name by which expressions call a value of a match.
fn value_name(at: usize) -> String {
    format!("clink_value_{at}")
}

impl Planning<'_> {
    fn plan(mut self, clause: Clause) -> Result<LogicalPlan> {
        if matches!(clause.rows_per_match, Some(RowsPerMatch::AllRows(_))) {
            return Err(Error::unsupported("ALL ROWS PER MATCH is not supported")
                .hint("Write ONE ROW PER MATCH, and join its result with the rows."));
        }
        let MatchRecognizePattern::Symbol(MatchRecognizeSymbol::Named(text)) = &clause.pattern else {
            return Err(Error::internal("a pattern was not read"));
        };
        let Written { elements, within } = patterns::read(text)?;
        for element in &elements {
            if !self.variables.contains(&element.name) {
                self.variables.push(element.name.clone());
            }
        }
        let number = |variables: &[String], name: &str| variables.iter().position(|known| known == name);
        let elements: Vec<Element> = elements
            .into_iter()
            .filter_map(|element| {
                let variable = number(&self.variables, &element.name)?;
                Some(Element { variable, least: element.least, most: element.most, greedy: element.greedy })
            })
            .collect();
        let skip = self.skip(clause.after_match_skip.as_ref(), &elements)?;

        let mut keys = Vec::new();
        for key in clause.partition_by {
            let column = self.column(key, "PARTITION BY")?;
            if !self.needed.contains(&column) {
                self.needed.push(column.clone());
                keys.push(column);
            }
        }
        let order = self.order(clause.order_by)?;
        let fixed = self.needed.len();

        let mut conditions: Vec<Option<Condition>> = vec![None; self.variables.len()];
        for SymbolDefinition { symbol, definition } in clause.symbols {
            let Some(variable) = number(&self.variables, &fold(&symbol)) else {
                let message = format!("variable \"{symbol}\" of DEFINE is not in the pattern");
                return Err(misused(message, "Write it in PATTERN, or leave its definition out.", symbol.span));
            };
            if conditions[variable].is_some() {
                let message = format!("variable \"{symbol}\" is defined twice");
                return Err(misused(message, "Join the conditions with AND.", symbol.span));
            }
            conditions[variable] = Some(self.condition(definition)?);
        }
        let mut values: Vec<Value> = Vec::new();
        let mut measures = Vec::new();
        for Measure { mut expr, alias } in clause.measures {
            self.navigate(&mut expr, &mut values)?;
            measures.push((expr, fold(&alias)));
        }
        if values.is_empty() {
            // Something has to say that there is a match.
            values.push(self.last_time()?);
        }
        let (columns, places) = self.columns(fixed);
        self.finish(Parts { keys, order, elements, within, skip, conditions, values, measures, columns, places })
    }

    /// A column of the input.
    fn column(&mut self, written: ast::Expr, clause: &str) -> Result<Expr> {
        let span = written.span();
        let planned =
            self.context.sql_to_expr(written, self.input.schema()).map_err(|error| from_datafusion(&error))?;
        match planned {
            Expr::Column(_) => Ok(planned),
            _ => Err(refused(
                &format!("{clause} of an expression"),
                "Name a column; WITH q AS (SELECT …) computes one before.",
                span,
            )),
        }
    }

    fn order(&mut self, written: Vec<OrderByExpr>) -> Result<Vec<SortExpr>> {
        let mut order = Vec::new();
        for OrderByExpr { expr, options, .. } in written {
            let span = expr.span();
            let column = self.column(expr, "ORDER BY")?;
            let ascending = options.asc.unwrap_or(true);
            if order.is_empty() {
                let data_type = column.get_type(self.input.schema()).map_err(|error| from_datafusion(&error))?;
                if !matches!(data_type, DataType::Timestamp(TimeUnit::Microsecond, _)) {
                    let what = format!("ORDER BY first of type {}", sql_name(&data_type));
                    return Err(refused(&what, ORDER_HINT, span));
                }
                if !ascending {
                    return Err(refused("descending time", ORDER_HINT, span));
                }
            }
            let nulls_first = options.nulls_first.unwrap_or(!ascending);
            self.time.get_or_insert_with(|| column.clone());
            if !self.needed.contains(&column) {
                self.needed.push(column.clone());
            }
            order.push(SortExpr::new(column, ascending, nulls_first));
        }
        if order.is_empty() {
            return Err(Error::new(SqlState::SyntaxError, "MATCH_RECOGNIZE lacks ORDER BY").hint(ORDER_HINT));
        }
        Ok(order)
    }

    fn skip(&self, written: Option<&AfterMatchSkip>, elements: &[Element]) -> Result<Skip> {
        let (first, name) = match written {
            None | Some(AfterMatchSkip::PastLastRow) => return Ok(Skip::PastLast),
            Some(AfterMatchSkip::ToNextRow) => return Ok(Skip::ToNext),
            Some(AfterMatchSkip::ToFirst(name)) => (true, name),
            Some(AfterMatchSkip::ToLast(name)) => (false, name),
        };
        let Some(variable) = self.variables.iter().position(|known| *known == fold(name)) else {
            let message = format!("AFTER MATCH SKIP names \"{name}\", which is not in the pattern");
            return Err(misused(message, "Name a variable of PATTERN.", name.span));
        };
        let of_variable = |element: &&Element| element.variable == variable;
        if elements.iter().filter(of_variable).all(|element| element.least == 0) {
            let what = format!("AFTER MATCH SKIP to \"{name}\", of which a match may have no row,");
            return Err(refused(&what, "Name a variable that each match has.", name.span));
        }
        if first && elements.first().is_some_and(|element| element.variable == variable) {
            let what = format!("AFTER MATCH SKIP to \"{name}\", with which the match begins,");
            return Err(refused(&what, "Write AFTER MATCH SKIP TO NEXT ROW.", name.span));
        }
        Ok(if first { Skip::ToFirst(variable) } else { Skip::ToLast(variable) })
    }

    /// Takes out what an expression reads of the match; what is left computes with the values by their names.
    fn navigate(&mut self, expression: &mut ast::Expr, values: &mut Vec<Value>) -> Result<()> {
        match expression.visit(&mut Navigator { planning: self, values }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }

    fn condition(&mut self, mut definition: ast::Expr) -> Result<Condition> {
        let span = definition.span();
        let mut values = Vec::new();
        self.navigate(&mut definition, &mut values)?;
        let fields: Fields = fields_of(&values);
        let schema = DFSchema::from_unqualified_fields(fields.clone(), HashMap::new())
            .map_err(|error| from_datafusion(&error))?;
        let planned = self
            .context
            .sql_to_expr(definition, &schema)
            .and_then(|planned| meaning::expression_with_meaning(planned, &schema))
            .and_then(|planned| check_literals(&planned).map(|()| planned))
            .map_err(|error| from_datafusion(&error).position_or(position(span)))?;
        check_row(&planned, span)?;
        let predicate = self.predicate(planned, schema).map_err(|error| error.position_or(position(span)))?;
        let navigations = values.into_iter().map(|value| value.navigation).collect();
        Ok(Condition { navigations, schema: Arc::new(Schema::new(fields)), predicate })
    }

    fn predicate(&self, planned: Expr, schema: DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
        let schema = Arc::new(schema);
        let options = Arc::new(self.context.context_provider().options().clone());
        let simplify = SimplifyContext::builder().with_schema(Arc::clone(&schema)).with_config_options(options).build();
        let simplifier = ExprSimplifier::new(simplify);
        let planned = simplifier.coerce(planned, &schema).map_err(|error| from_datafusion(&error))?;
        let planned = match planned.get_type(schema.as_ref()).map_err(|error| from_datafusion(&error))? {
            DataType::Boolean => simplifier.simplify(planned).map_err(|error| from_datafusion(&error))?,
            DataType::Null => lit(ScalarValue::Boolean(None)),
            other => {
                let message = format!("argument of DEFINE must be type boolean, not type {}", sql_name(&other));
                return Err(Error::new(SqlState::DatatypeMismatch, message).hint("Compare the value: A.x > 1."));
            }
        };
        create_physical_expr(&planned, &schema, &ExecutionProps::new(), &PhysicalPlanningContext::default())
            .map_err(|error| from_datafusion(&error))
    }

    /// The number of a column that the pattern reads, and its type.
    fn need(&mut self, expression: Expr) -> Result<(usize, DataType)> {
        let schema = self.input.schema();
        let data_type = meaning::expression_with_meaning(expression.clone(), schema)
            .and_then(|meant| meant.get_type(schema))
            .map_err(|error| from_datafusion(&error))?;
        let place = self.needed.iter().position(|known| *known == expression).unwrap_or_else(|| {
            self.needed.push(expression);
            self.needed.len() - 1
        });
        Ok((place, data_type))
    }

    /// The time of a match's last row.
    fn last_time(&mut self) -> Result<Value> {
        let time = self.time.clone().ok_or_else(|| Error::internal("a match without an order"))?;
        let (column, data_type) = self.need(time)?;
        let reads = Reads::Last { before: 0, back: 0 };
        Ok(Value { navigation: Navigation { variable: None, column: Some(column), reads }, data_type })
    }

    /// What the pattern reads, in the order in which rows that are equal in ORDER BY follow: the partition, the order, other
    /// columns as the table has them, and what is computed. With it, where each is that was needed.
    fn columns(&self, fixed: usize) -> (Vec<Expr>, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.needed.len()).collect();
        let place = |needed: &usize| match &self.needed[*needed] {
            Expr::Column(column) => self.input.schema().maybe_index_of_column(column).unwrap_or(usize::MAX),
            _ => usize::MAX,
        };
        order[fixed..].sort_by_key(place);
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, needed)| places[*needed] = place);
        (order.iter().map(|needed| self.needed[*needed].clone()).collect(), places)
    }

    fn finish(self, parts: Parts) -> Result<LogicalPlan> {
        let failed = |error: datafusion::error::DataFusionError| from_datafusion(&error);
        let Parts { keys, order, elements, within, skip, mut conditions, mut values, measures, columns, places } =
            parts;
        let of_conditions = conditions.iter_mut().flatten().flat_map(|condition| &mut condition.navigations);
        for navigation in of_conditions.chain(values.iter_mut().map(|value| &mut value.navigation)) {
            navigation.column = navigation.column.and_then(|column| places.get(column).copied());
        }
        let fields = fields_of(&values);
        let mut types = Vec::with_capacity(columns.len());
        for column in &columns {
            let meant = meaning::expression_with_meaning(column.clone(), self.input.schema()).map_err(failed)?;
            types.push(meant.get_type(self.input.schema()).map_err(failed)?);
        }
        let place = |wanted: &Expr| columns.iter().position(|column| column == wanted);
        let time = order.first().and_then(|first| place(&first.expr));
        let pattern = Pattern {
            types,
            elements,
            conditions,
            time: time.ok_or_else(|| Error::internal("an order that is not read"))?,
            ordered_by: order.len(),
            within,
            skip,
            measures: values.into_iter().map(|value| value.navigation).collect(),
            fields: fields.clone(),
        };
        let names = names_of(&columns);
        let named = |wanted: &Expr| {
            let name = place(wanted).and_then(|place| names.get(place)).cloned().unwrap_or_default();
            Expr::Column(Column::new_unqualified(name))
        };
        let all: Vec<Expr> = names.iter().map(|name| Expr::Column(Column::new_unqualified(name.clone()))).collect();
        let partition: Vec<Expr> = keys.iter().map(named).collect();
        let mut sorted: Vec<SortExpr> =
            order.iter().map(|sort| SortExpr::new(named(&sort.expr), sort.asc, sort.nulls_first)).collect();
        for column in &all {
            if !partition.contains(column) && sorted.iter().all(|sort| sort.expr != *column) {
                // As a view keeps its rows.
                sorted.push(SortExpr::new(column.clone(), true, false));
            }
        }
        let function = WindowUDF::new_from_impl(PatternFunction::new(Arc::new(pattern)));
        let matched = function
            .call(all.clone())
            .partition_by(partition.clone())
            .order_by(sorted)
            .build()
            .map_err(failed)?
            .alias(MATCH);

        let time = order.first().map(|first| first.expr.clone().is_not_null()).unwrap_or_else(|| lit(true));
        let prepared = columns.iter().zip(&names).map(|(column, name)| column.clone().alias(name));
        let searched = LogicalPlanBuilder::from(self.input.clone())
            .filter(time)
            .and_then(|builder| builder.project(prepared))
            .and_then(|builder| builder.window(vec![matched]))
            .map_err(failed)?;
        let result = Expr::Column(Column::new_unqualified(MATCH));
        let read = fields
            .iter()
            .map(|field| get_field().call(vec![result.clone(), lit(field.name().as_str())]).alias(field.name()));
        let first = searched
            .filter(result.clone().is_not_null())
            .and_then(|builder| builder.project(partition.iter().cloned().chain(read)))
            .map_err(failed)?;

        let schema = Arc::clone(first.schema());
        let mut shown: Vec<Expr> = partition;
        let mut taken: Vec<String> = shown.iter().map(|key| key.schema_name().to_string()).collect();
        for (expression, name) in measures {
            let span = expression.span();
            let measure = self.context.sql_to_expr(expression, &schema).map_err(failed)?;
            check_row(&measure, span)?;
            if taken.contains(&name) {
                return Err(duplicate_column(&name).position_or(position(span)));
            }
            shown.push(measure.alias(&name));
            taken.push(name);
        }
        if shown.is_empty() {
            return Err(Error::new(SqlState::SyntaxError, "MATCH_RECOGNIZE has no columns")
                .hint("Write MEASURES FIRST(A.ts) AS first_ts, or PARTITION BY a column."));
        }
        first.project(shown).and_then(LogicalPlanBuilder::build).map_err(failed)
    }
}

/// What the clause was found to say.
struct Parts {
    keys: Vec<Expr>,
    order: Vec<SortExpr>,
    elements: Vec<Element>,
    within: Option<i64>,
    skip: Skip,
    conditions: Vec<Option<Condition>>,
    values: Vec<Value>,
    measures: Vec<(ast::Expr, String)>,
    columns: Vec<Expr>,
    /// Where among the columns each is that was needed.
    places: Vec<usize>,
}

fn fields_of(values: &[Value]) -> Fields {
    let fields = values.iter().enumerate();
    fields.map(|(at, value)| Field::new(value_name(at), value.data_type.clone(), true)).collect()
}

/// A name for each column: its own where it has one, and no two the same.
fn names_of(columns: &[Expr]) -> Vec<String> {
    let mut names: Vec<String> = Vec::with_capacity(columns.len());
    for (at, column) in columns.iter().enumerate() {
        let own = match column {
            Expr::Column(column) => column.name.clone(),
            _ => format!("computed_{at}"),
        };
        let name = if names.contains(&own) { format!("{own}_{at}") } else { own };
        names.push(name);
    }
    names
}

/// Refuses what depends on more than the match.
fn check_row(expression: &Expr, span: Span) -> Result<()> {
    let clock = expression
        .exists(|inner| Ok(matches!(inner, Expr::ScalarFunction(call) if TIME_FUNCTIONS.contains(&call.func.name()))));
    if expression.is_volatile() || clock.unwrap_or(true) {
        return Err(refused("a function of the clock or of chance", "Compare with a column of the rows.", span));
    }
    Ok(())
}

/// Finds what an expression reads of the match.
struct Navigator<'p, 'c> {
    planning: &'p mut Planning<'c>,
    values: &'p mut Vec<Value>,
}

impl VisitorMut for Navigator<'_, '_> {
    type Break = Error;

    fn pre_visit_expr(&mut self, expression: &mut ast::Expr) -> ControlFlow<Error> {
        match self.value(expression) {
            Ok(None) => ControlFlow::Continue(()),
            Ok(Some(value)) => {
                let at = self.values.iter().position(|known| *known == value).unwrap_or_else(|| {
                    self.values.push(value);
                    self.values.len() - 1
                });
                let span = expression.span();
                *expression = ast::Expr::Identifier(Ident { value: value_name(at), quote_style: Some('"'), span });
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

impl Navigator<'_, '_> {
    fn value(&mut self, expression: &ast::Expr) -> Result<Option<Value>> {
        let last = Reads::Last { before: 0, back: 0 };
        match expression {
            ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_) => {
                self.read(expression.clone(), last).map(Some)
            }
            ast::Expr::Subquery(_) | ast::Expr::InSubquery { .. } | ast::Expr::Exists { .. } => {
                Err(refused("a subquery", MEASURE_HINT, expression.span()))
            }
            ast::Expr::Function(call) => self.called(call),
            _ => Ok(None),
        }
    }

    /// A value of the rows of one variable.
    fn read(&mut self, mut argument: ast::Expr, reads: Reads) -> Result<Value> {
        let variable = self.variable(&mut argument)?;
        let planning = &mut *self.planning;
        let planned =
            planning.context.sql_to_expr(argument, planning.input.schema()).map_err(|error| from_datafusion(&error))?;
        let (column, data_type) = planning.need(planned)?;
        Ok(Value { navigation: Navigation { variable, column: Some(column), reads }, data_type })
    }

    fn called(&mut self, call: &Function) -> Result<Option<Value>> {
        let span = call.name.span();
        if call.over.is_some() {
            return Err(refused("a window function", MEASURE_HINT, span));
        }
        let [ObjectNamePart::Identifier(name)] = call.name.0.as_slice() else { return Ok(None) };
        let name = fold(name);
        let shown = name.to_uppercase();
        match name.as_str() {
            "first" | "last" | "prev" => {}
            "next" | "classifier" | "match_number" | "match_proctime" | "final" | "running" => {
                return Err(refused(&format!("{shown}()"), MEASURE_HINT, span));
            }
            "match_rowtime" => return self.planning.last_time().map(Some),
            _ if is_aggregate(call) => return self.aggregate(call).map(Some),
            _ => return Ok(None),
        }
        let form = || {
            let message = format!("{shown} takes a value of one variable and a number of rows");
            misused(message, "Write FIRST(A.x), LAST(A.x, 1) or PREV(A.x, 1).", span)
        };
        let FunctionArguments::List(list) = &call.args else { return Err(form()) };
        let mut arguments = Vec::new();
        for argument in &list.args {
            let FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) = argument else { return Err(form()) };
            arguments.push(argument);
        }
        let plain = list.duplicate_treatment.is_none() && list.clauses.is_empty() && call.filter.is_none();
        let (value, rows) = match arguments.as_slice() {
            [value] if plain => (*value, None),
            [value, ast::Expr::Value(number)] if plain => match &number.value {
                ast::Value::Number(digits, _) => (*value, Some(digits.parse::<u32>().map_err(|_| form())? as usize)),
                _ => return Err(form()),
            },
            _ => return Err(form()),
        };
        let reads = match name.as_str() {
            "first" => Reads::First(rows.unwrap_or(0)),
            "last" => Reads::Last { before: rows.unwrap_or(0), back: 0 },
            _ => Reads::Last { before: 0, back: rows.unwrap_or(1) },
        };
        self.read(value.clone(), reads).map(Some)
    }

    fn aggregate(&mut self, call: &Function) -> Result<Value> {
        let span = call.name.span();
        if call.filter.is_some() || !call.within_group.is_empty() {
            return Err(refused("FILTER or WITHIN GROUP of an aggregate", "Put the condition into a CASE.", span));
        }
        let mut call = call.clone();
        let mut variable = None;
        if let FunctionArguments::List(list) = &mut call.args {
            if let Some(DuplicateTreatment::All) = list.duplicate_treatment {
                list.duplicate_treatment = None;
            }
            for argument in &mut list.args {
                let of_argument = match argument {
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)) => self.variable(argument)?,
                    FunctionArg::Unnamed(wild) => match wild {
                        FunctionArgExpr::QualifiedWildcard(name) => {
                            let found = name.0.first().and_then(|part| part.as_ident()).cloned();
                            let found = found.filter(|_| name.0.len() == 1);
                            let found = found.ok_or_else(|| refused("this wildcard", "Write count(A.*).", span))?;
                            *wild = FunctionArgExpr::Wildcard;
                            Some(self.number(&found)?)
                        }
                        _ => None,
                    },
                    _ => return Err(refused("a named argument", MEASURE_HINT, span)),
                };
                variable = variable.or(of_argument);
            }
        }
        let planning = &mut *self.planning;
        let planned = planning
            .context
            .sql_to_expr(ast::Expr::Function(call), planning.input.schema())
            .map_err(|error| from_datafusion(&error))?;
        let planned = aggregates::call(&planned).map_err(|error| error.position_or(position(span)))?;
        let (column, argument) = match planned.argument {
            Some(argument) => planning.need(argument).map(|(column, data_type)| (Some(column), data_type))?,
            None => (None, DataType::Null),
        };
        let data_type = planned.function.result_type(&argument).map_err(|error| error.position_or(position(span)))?;
        let reads = Reads::All { function: planned.function, distinct: planned.distinct };
        Ok(Value { navigation: Navigation { variable, column, reads }, data_type })
    }

    fn number(&self, name: &Ident) -> Result<usize> {
        self.planning.variables.iter().position(|known| *known == fold(name)).ok_or_else(|| {
            let message = format!("missing variable \"{name}\" in the pattern");
            Error::new(SqlState::UndefinedTable, message)
                .hint("Before a column stands a variable of PATTERN: A.x.")
                .position_or(position(name.span))
        })
    }

    /// Takes the variables off the columns of an expression: they must all be of one, or none.
    fn variable(&self, expression: &mut ast::Expr) -> Result<Option<usize>> {
        let span = expression.span();
        let mut strip = Strip { navigator: self, found: Vec::new() };
        if let ControlFlow::Break(error) = expression.visit(&mut strip) {
            return Err(error);
        }
        let mut found = strip.found;
        found.dedup();
        match found.as_slice() {
            [] => Ok(None),
            [one] => Ok(*one),
            _ => Err(refused(
                "columns of several variables in one FIRST, LAST, PREV or aggregate",
                "Take a value of each, and compute with these.",
                span,
            )),
        }
    }
}

/// Takes variables off the columns.
struct Strip<'n, 'p, 'c> {
    navigator: &'n Navigator<'p, 'c>,
    found: Vec<Option<usize>>,
}

impl VisitorMut for Strip<'_, '_, '_> {
    type Break = Error;

    fn pre_visit_expr(&mut self, expression: &mut ast::Expr) -> ControlFlow<Error> {
        let span = expression.span();
        match expression {
            ast::Expr::Identifier(_) => self.found.push(None),
            ast::Expr::CompoundIdentifier(parts) => {
                let [variable, column] = parts.as_slice() else {
                    return ControlFlow::Break(refused("a name of three parts", MEASURE_HINT, span));
                };
                match self.navigator.number(variable) {
                    Ok(number) => self.found.push(Some(number)),
                    Err(error) => return ControlFlow::Break(error),
                }
                *expression = ast::Expr::Identifier(column.clone());
            }
            ast::Expr::Subquery(_) | ast::Expr::InSubquery { .. } | ast::Expr::Exists { .. } => {
                return ControlFlow::Break(refused("a subquery", MEASURE_HINT, span));
            }
            ast::Expr::Function(call) => {
                let name = call.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
                if is_aggregate(call) || matches!(name.as_str(), "first" | "last" | "prev" | "next") {
                    return ControlFlow::Break(refused(
                        "one of FIRST, LAST, PREV and aggregates in another",
                        MEASURE_HINT,
                        span,
                    ));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
