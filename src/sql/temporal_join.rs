//! `JOIN versions FOR SYSTEM_TIME AS OF o.ts AS r ON …`: each row meets the version that is in force at its time.
//!
//! A version is a row of a relation that only grows, in force from its column of event time on until the next one with
//! the keys of the join. In words that the planner knows: each version is given the time of the one behind it, by
//! `lead`, and the join asks whether the row's time lies between. So a SELECT answers it, and a view has the same rows;
//! the lowering of views knows the form and keeps no more versions than it needs.
//!
//! `FOR SYSTEM_TIME AS OF PROCTIME()` means the rows as they are when a row comes: in a SELECT an ordinary join, in a view
//! one that is not taken back.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray};
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchemaRef, TableReference};
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::SessionState;
use datafusion::functions_window::lead_lag::lead_udwf;
use datafusion::logical_expr::utils::{
    conjunction, find_valid_equijoin_key_pair, split_conjunction, split_conjunction_owned,
};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprFunctionExt, Extension, Join, LogicalPlan, Operator, Projection,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, SortExpr, UserDefinedLogicalNodeCore, Volatility, Window,
};
use sqlparser::ast::{
    self, BinaryOperator, FunctionArg, FunctionArgExpr, Ident, JoinConstraint, JoinOperator, ObjectName,
    ObjectNamePart, Query, Select, Spanned, TableFactor, TableWithJoins, Visit, VisitMut, Visitor, VisitorMut,
};
use sqlparser::tokenizer::{Token, TokenWithSpan, Whitespace};

use super::errors::to_datafusion;
use super::names::quoted;
use super::parser::parse_expression_of_program;
use super::planner::KnownRelations;
use super::reader::fold;
use super::tokens::{is_space, position, word};
use super::types::UTC;
use crate::types::{Error, Result};

/// Stands for `t FOR SYSTEM_TIME AS OF time` in FROM, as `clink_versions(t, time)`.
pub(crate) const VERSIONS: &str = "clink_versions";
/// `(from, at)` in a join's condition, until the plan is there: the version is the one in force.
const VERSION_AT: &str = "clink_version_at";
/// `(column)` in a join's condition, until the plan is there: the rows are those that there are.
const OF_THE_MOMENT: &str = "clink_of_the_moment";
/// `(from, at, until)`: the time `at` is in the span.
const IN_FORCE: &str = "clink_in_force";
const FORM: &str = "Write FROM o [LEFT] JOIN versions FOR SYSTEM_TIME AS OF o.ts AS r ON o.k = r.k.";

/// Writes `t FOR SYSTEM_TIME AS OF time` as the parser takes it. What is of another form stays, and is refused.
pub(crate) fn plain_versions(tokens: Vec<TokenWithSpan>) -> Vec<TokenWithSpan> {
    let solid: Vec<usize> = (0..tokens.len()).filter(|at| !is_space(&tokens[*at].token)).collect();
    let token = |nth: usize| solid.get(nth).map(|at| &tokens[*at]);
    let is = |nth: usize, wanted: &str| token(nth).and_then(word).is_some_and(|word| word == wanted);
    let is_name = |nth: usize| matches!(token(nth).map(|token| &token.token), Some(Token::Word(_)));
    let is_token = |nth: usize, wanted: Token| token(nth).is_some_and(|token| token.token == wanted);
    let mut edits: Vec<(usize, Vec<Token>)> = Vec::new();
    for nth in 1..solid.len() {
        let clause =
            ["FOR", "SYSTEM_TIME", "AS", "OF"].into_iter().enumerate().all(|(by, wanted)| is(nth + by, wanted));
        if !clause || !is_name(nth - 1) || !is_name(nth + 4) {
            continue;
        }
        let mut first = nth - 1;
        while first >= 2 && is_token(first - 1, Token::Period) && is_name(first - 2) {
            first -= 2;
        }
        let mut last = nth + 4;
        while is_token(last + 1, Token::Period) && is_name(last + 2) {
            last += 2;
        }
        let called = is_token(last + 1, Token::LParen) && is_token(last + 2, Token::RParen);
        let latest = last == nth + 4
            && (called && (is(last, "PROCTIME") || is(last, "NOW")) || !called && is(last, "CURRENT_TIMESTAMP"));
        if called && !latest {
            continue;
        }
        let after = if called { last + 3 } else { last + 1 };
        // Without an alias of its own it goes by its name.
        let mut end = vec![Token::RParen];
        if is(after, "ON") {
            end.extend([Token::make_word("AS", None), tokens[solid[nth - 1]].token.clone()]);
        }
        let name = vec![Token::make_word(VERSIONS, None), Token::LParen, tokens[solid[first]].token.clone()];
        edits.push((solid[first], name));
        if latest {
            edits.push((solid[nth], end));
            edits.extend((nth + 1..after).map(|gone| (solid[gone], Vec::new())));
        } else {
            edits.push((solid[nth], vec![Token::Comma]));
            edits.extend((nth + 1..nth + 4).map(|gone| (solid[gone], Vec::new())));
            end.insert(0, tokens[solid[last]].token.clone());
            edits.push((solid[last], end));
        }
    }
    if edits.is_empty() {
        return tokens;
    }
    let mut edits = edits.into_iter().peekable();
    let mut out = Vec::with_capacity(tokens.len() + 8);
    for (at, token) in tokens.into_iter().enumerate() {
        match edits.next_if(|(edited, _)| *edited == at) {
            Some((_, written)) => {
                let spaced = written.into_iter().flat_map(|new| [Token::Whitespace(Whitespace::Space), new]);
                out.extend(spaced.map(|new| TokenWithSpan { token: new, span: token.span }));
            }
            None => out.push(token),
        }
    }
    out
}

/// A call that stands for versions in FROM.
struct Call {
    table: Vec<Ident>,
    /// None: the rows as they are.
    time: Option<ast::Expr>,
}

impl Call {
    fn of(factor: &TableFactor) -> Option<Call> {
        let TableFactor::Table { name, args: Some(call), .. } = factor else { return None };
        let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return None };
        if fold(name) != VERSIONS {
            return None;
        }
        let mut arguments = call.args.iter().filter_map(|argument| match argument {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expression)) => Some(expression),
            _ => None,
        });
        let table = match arguments.next()? {
            ast::Expr::Identifier(name) => vec![name.clone()],
            ast::Expr::CompoundIdentifier(parts) => parts.clone(),
            _ => return None,
        };
        Some(Call { table, time: arguments.next().cloned() })
    }
}

/// # Errors
/// 0A000 when a plain view asks for rows of the moment: which that is, its readers say.
pub(crate) fn check_plain_view(query: &Query) -> Result<()> {
    match visit_table_factors(query) {
        None => Ok(()),
        Some(at) => Err(Error::unsupported("FOR SYSTEM_TIME AS OF PROCTIME() in a plain view is not supported")
            .hint("Write it in the query that reads the view, or make a materialized view.")
            .position_or(at)),
    }
}

/// Where rows of the moment are asked for.
fn visit_table_factors(query: &Query) -> Option<Option<usize>> {
    struct Latest;
    impl Visitor for Latest {
        type Break = Option<usize>;

        fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<Option<usize>> {
            match takes_latest(factor) {
                Some(true) => ControlFlow::Break(position(factor.span())),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    match Visit::visit(query, &mut Latest) {
        ControlFlow::Break(at) => Some(at),
        ControlFlow::Continue(()) => None,
    }
}

/// True for a table in FROM that stands for versions; `Some(true)` for their rows as they are.
pub(crate) fn takes_latest(factor: &TableFactor) -> Option<bool> {
    Call::of(factor).map(|call| call.time.is_none())
}

/// Puts a condition of the join in the place of each of them. True when there is one.
///
/// # Errors
/// 0A000 for what has no versions, and for other places; with positions.
pub(crate) fn rewrite(state: &SessionState, query: &mut Query) -> Result<bool> {
    let known = state.config().get_extension::<KnownRelations>();
    let mut joins = Joins { known, found: false, with: Vec::new() };
    match VisitMut::visit(query, &mut joins) {
        ControlFlow::Continue(()) => Ok(joins.found),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Joins {
    known: Option<Arc<KnownRelations>>,
    found: bool,
    /// Names that WITH gives.
    with: Vec<String>,
}

impl VisitorMut for Joins {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        if let Some(with) = &query.with {
            self.with.extend(with.cte_tables.iter().map(|cte| fold(&cte.alias.name)));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        match select.from.iter_mut().try_for_each(|from| self.joins(from)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        match Call::of(factor) {
            None => ControlFlow::Continue(()),
            Some(_) => ControlFlow::Break(misplaced().position_or(position(factor.span()))),
        }
    }
}

fn misplaced() -> Error {
    Error::unsupported("FOR SYSTEM_TIME AS OF is not supported here").hint(FORM)
}

impl Joins {
    fn joins(&mut self, from: &mut TableWithJoins) -> Result<()> {
        if let TableFactor::NestedJoin { table_with_joins, .. } = &mut from.relation {
            self.joins(table_with_joins)?;
        }
        for join in &mut from.joins {
            if let TableFactor::NestedJoin { table_with_joins, .. } = &mut join.relation {
                self.joins(table_with_joins)?;
            }
            let Some(call) = Call::of(&join.relation) else { continue };
            let at = position(join.relation.span());
            let on = match &mut join.join_operator {
                JoinOperator::Join(JoinConstraint::On(on))
                | JoinOperator::Inner(JoinConstraint::On(on))
                | JoinOperator::Left(JoinConstraint::On(on))
                | JoinOperator::LeftOuter(JoinConstraint::On(on)) => on,
                _ => return Err(misplaced().position_or(at)),
            };
            let condition = self.condition(&call, &join.relation).map_err(|error| error.position_or(at))?;
            if let TableFactor::Table { name, args, .. } = &mut join.relation {
                *name = ObjectName::from(call.table);
                *args = None;
            }
            if let Some(condition) = condition {
                self.found = true;
                let before = std::mem::replace(on, ast::Expr::value(ast::Value::Null));
                *on = ast::Expr::BinaryOp {
                    left: Box::new(ast::Expr::Nested(Box::new(before))),
                    op: BinaryOperator::And,
                    right: Box::new(condition),
                };
            }
        }
        Ok(())
    }

    /// What the join asks of the version; none for the rows as they are, and where the planner finds no such table.
    fn condition(&self, call: &Call, factor: &TableFactor) -> Result<Option<ast::Expr>> {
        let names: Vec<String> = call.table.iter().map(fold).collect();
        let reference = match names.as_slice() {
            [table] if self.with.contains(table) => {
                let message = format!("\"{table}\" of WITH has no versions");
                return Err(Error::unsupported(message).hint("Name a table that has a WATERMARK."));
            }
            [table] => TableReference::bare(table.as_str()),
            [.., schema, table] => TableReference::partial(schema.as_str(), table.as_str()),
            [] => return Ok(None),
        };
        let Some(info) = self.known.as_ref().and_then(|known| known.0.relation(&reference)) else { return Ok(None) };
        let TableFactor::Table { alias, .. } = factor else { return Ok(None) };
        let qualifier = match alias {
            Some(alias) => alias.name.to_string(),
            None => call.table.last().map(ToString::to_string).unwrap_or_default(),
        };
        let named = |column: usize| {
            let renamed =
                alias.as_ref().and_then(|alias| alias.columns.get(column)).map(|column| column.name.to_string());
            renamed.unwrap_or_else(|| quoted(info.schema.field(column).name()))
        };
        let Some(time) = &call.time else {
            return parse_expression_of_program(&format!("{OF_THE_MOMENT}({qualifier}.{})", named(0))).map(Some);
        };
        let of_times = info.event_times.iter().find(|(_, time)| time.size.is_none());
        let Some((column, _)) = of_times else {
            let message = format!("relation \"{}\" has no versions: it has no column of event time", reference.table());
            return Err(Error::unsupported(message)
                .hint("Each row is a version from its time on: CREATE TABLE t (k …, ts timestamptz, WATERMARK FOR ts AS ts) APPEND ONLY."));
        };
        if !info.append_only {
            let message = format!("relation \"{}\" has no versions: its rows are replaced", reference.table());
            return Err(Error::unsupported(message)
                .hint("Keep each version as a row, with the time from which on it is in force: CREATE TABLE t (k …, ts timestamptz, WATERMARK FOR ts AS ts) APPEND ONLY."));
        }
        parse_expression_of_program(&format!("{VERSION_AT}({qualifier}.{}, {time})", named(*column))).map(Some)
    }
}

/// Gives versions the time of the next one, and the joins on them a condition that can be answered. In a view, what a row
/// meets at its time is told by a node of its own.
pub(crate) fn with_spans(plan: LogicalPlan, in_view: bool) -> DataFusionResult<LogicalPlan> {
    let changed = plan.transform_up_with_subqueries(|node| match node {
        LogicalPlan::Join(join) if join.filter.as_ref().is_some_and(|filter| asks(filter, VERSION_AT)) => {
            spanned(join).map(Transformed::yes)
        }
        LogicalPlan::Join(join) if join.filter.as_ref().is_some_and(|filter| asks(filter, OF_THE_MOMENT)) => {
            met(join, in_view).map(Transformed::yes)
        }
        other => Ok(Transformed::no(other)),
    });
    changed.map(|changed| changed.data)
}

fn call<'a>(expression: &'a Expr, name: &str) -> Option<&'a [Expr]> {
    match expression {
        Expr::ScalarFunction(call) if call.func.name() == name => Some(&call.args),
        _ => None,
    }
}

fn asks(filter: &Expr, name: &str) -> bool {
    split_conjunction(filter).iter().any(|part| call(part, name).is_some())
}

/// The rows that there are at the time of those that meet them. No condition goes through it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Hash)]
struct OfTheMoment {
    input: LogicalPlan,
}

impl UserDefinedLogicalNodeCore for OfTheMoment {
    fn name(&self) -> &str {
        "OfTheMoment"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        self.input.schema()
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OfTheMoment")
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, inputs: Vec<LogicalPlan>) -> DataFusionResult<Self> {
        let input = inputs.into_iter().next().ok_or_else(|| to_datafusion(Error::internal("a node lost its input")))?;
        Ok(OfTheMoment { input })
    }
}

/// The plan of the rows that there are at the time of those that meet them.
pub(crate) fn of_the_moment(plan: &LogicalPlan) -> Option<&LogicalPlan> {
    match plan {
        LogicalPlan::Extension(node) => node.node.as_any().downcast_ref::<OfTheMoment>().map(|node| &node.input),
        _ => None,
    }
}

fn met(join: Join, in_view: bool) -> DataFusionResult<LogicalPlan> {
    let conditions = join.filter.clone().map(split_conjunction_owned).unwrap_or_default();
    let filter = conjunction(conditions.into_iter().filter(|part| call(part, OF_THE_MOMENT).is_none()));
    let Join { left, mut right, on, join_type, join_constraint, null_equality, null_aware, .. } = join;
    if in_view {
        let node = OfTheMoment { input: right.as_ref().clone() };
        right = Arc::new(LogicalPlan::Extension(Extension { node: Arc::new(node) }));
    }
    let join = Join::try_new(left, right, on, filter, join_type, join_constraint, null_equality, null_aware)?;
    Ok(LogicalPlan::Join(join))
}

fn spanned(join: Join) -> DataFusionResult<LogicalPlan> {
    let conditions = join.filter.clone().map(split_conjunction_owned).unwrap_or_default();
    let mut keys: Vec<Expr> = join.on.iter().map(|(_, right)| right.clone()).collect();
    let (mut others, mut times) = (Vec::new(), None);
    for condition in conditions {
        if let Some([from, at]) = call(&condition, VERSION_AT) {
            times = Some((from.clone(), at.clone()));
            continue;
        }
        if let Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) = &condition
            && let Some((_, key)) = find_valid_equijoin_key_pair(left, right, join.left.schema(), join.right.schema())?
        {
            keys.push(key);
        }
        others.push(condition);
    }
    let Some((from, at)) = times.filter(|_| !keys.is_empty()) else {
        return Err(to_datafusion(
            Error::unsupported("FOR SYSTEM_TIME AS OF without an equality of keys is not supported").hint(FORM),
        ));
    };
    // Of versions with one time the last in order of all columns counts.
    let columns = join.right.schema().columns().into_iter().map(Expr::Column);
    let order = std::iter::once(from.clone()).chain(columns).map(|column| SortExpr::new(column, true, false)).collect();
    let next = lead_udwf().call(vec![from.clone()]).partition_by(keys).order_by(order).build()?;
    let until = Expr::Column(Column::new_unqualified(next.schema_name().to_string()));
    let versions = LogicalPlan::Window(Window::try_new(vec![next], Arc::clone(&join.right))?);
    others.push(in_force().call(vec![from, at, until]));
    let shown = join.schema.columns().into_iter().map(Expr::Column).collect();
    let Join { left, on, join_type, join_constraint, null_equality, null_aware, .. } = join;
    let filter = conjunction(others);
    let join =
        Join::try_new(left, Arc::new(versions), on, filter, join_type, join_constraint, null_equality, null_aware)?;
    Ok(LogicalPlan::Projection(Projection::try_new(shown, Arc::new(LogicalPlan::Join(join)))?))
}

/// The times of a condition that a version is in force: from when on, at which time, until when.
pub(crate) fn span(condition: &Expr) -> Option<(&Expr, &Expr, &Expr)> {
    match call(condition, IN_FORCE)? {
        [from, at, until] => Some((from, at, until)),
        _ => None,
    }
}

/// The functions, to be registered.
pub(crate) fn functions() -> [Arc<ScalarUDF>; 2] {
    [(VERSION_AT, 2), (OF_THE_MOMENT, 1)].map(|(name, arguments)| {
        let signature = Signature::any(arguments, Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(InForce { name, signature }))
    })
}

fn in_force() -> ScalarUDF {
    ScalarUDF::new_from_impl(InForce { name: IN_FORCE, signature: Signature::user_defined(Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct InForce {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for InForce {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        if types.iter().any(|data_type| !matches!(data_type, DataType::Timestamp(..))) {
            return Err(to_datafusion(
                Error::unsupported("FOR SYSTEM_TIME AS OF something else than a timestamp is not supported").hint(FORM),
            ));
        }
        let zone =
            types.iter().any(|data_type| matches!(data_type, DataType::Timestamp(_, Some(_)))).then(|| UTC.into());
        Ok(vec![DataType::Timestamp(TimeUnit::Microsecond, zone); types.len()])
    }

    fn return_type(&self, _types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let rows = args.number_rows;
        let [from, at, until] = args.args.as_slice() else {
            return Err(to_datafusion(Error::unsupported("this function is not supported here").hint(FORM)));
        };
        let (from, at, until) = (from.to_array(rows)?, at.to_array(rows)?, until.to_array(rows)?);
        let [from, at, until] = [&from, &at, &until].map(|times| times.as_primitive::<TimestampMicrosecondType>());
        let holds = (0..rows).map(|row| {
            let known = from.is_valid(row) && at.is_valid(row) && from.value(row) <= at.value(row);
            Some(known && (until.is_null(row) || at.value(row) < until.value(row)))
        });
        Ok(ColumnarValue::Array(Arc::new(BooleanArray::from_iter(holds))))
    }
}
