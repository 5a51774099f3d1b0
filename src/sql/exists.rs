//! `EXISTS` and `IN (SELECT …)` among the values of a SELECT. DataFusion has them only where rows are picked, in WHERE,
//! HAVING and ON; elsewhere the one is said as the count of the subquery's rows, the other by an array of them.
//!
//! Where rows are picked, a LIMIT of an EXISTS is left out: it says nothing, and keeps DataFusion from planning it.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, GroupByExpr, LimitClause, Query, SelectItem, SetExpr, TableFactor, UnaryOperator, Value, VisitMut, VisitorMut,
};

use super::parser::{parse_expression_of_program, parse_query};
use crate::types::{Error, Result};

/// Says the EXISTS and IN of a query's select lists in other words.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn rewrite(query: &mut Query) -> Result<()> {
    match query.visit(&mut Queries) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// All queries of a statement.
struct Queries;

impl VisitorMut for Queries {
    type Break = Error;

    fn pre_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<Error> {
        if let Expr::Exists { subquery, .. } = expression
            && subquery.limit_clause.as_ref().is_some_and(is_some_rows)
        {
            (subquery.limit_clause, subquery.order_by) = (None, None);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        lists(&mut query.body)
    }
}

/// The select lists of a query's own SELECTs.
fn lists(body: &mut SetExpr) -> ControlFlow<Error> {
    match body {
        SetExpr::Select(select) => {
            for item in &mut select.projection {
                let (SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. }) = item else {
                    continue;
                };
                value.visit(&mut List { depth: 0 })?;
            }
            ControlFlow::Continue(())
        }
        SetExpr::SetOperation { left, right, .. } => {
            lists(left)?;
            lists(right)
        }
        // A query in parentheses is visited by itself.
        _ => ControlFlow::Continue(()),
    }
}

/// A value of a select list; what is in its subqueries is theirs.
struct List {
    depth: usize,
}

impl VisitorMut for List {
    type Break = Error;

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<Error> {
        if self.depth > 0 {
            return ControlFlow::Continue(());
        }
        let said = match expression {
            Expr::Exists { subquery, negated } => counted(subquery, *negated),
            Expr::InSubquery { expr, subquery, negated } => listed(expr, subquery, *negated),
            _ => return ControlFlow::Continue(()),
        };
        match said {
            Ok(said) => {
                *expression = said;
                ControlFlow::Continue(())
            }
            Err(error) => ControlFlow::Break(error),
        }
    }
}

/// True for a LIMIT of one row or more without an OFFSET.
fn is_some_rows(limit: &LimitClause) -> bool {
    let LimitClause::LimitOffset { limit: Some(Expr::Value(most)), offset: None, .. } = limit else { return false };
    matches!(&most.value, Value::Number(most, _) if most.parse().is_ok_and(|most: u64| most > 0))
}

/// `value IN (subquery)`: among no rows nothing is, not even NULL.
fn listed(value: &Expr, subquery: &Query, negated: bool) -> Result<Expr> {
    /// Puts the subquery and the value where they belong. From the inside out, so that neither is looked into.
    struct Put<'a>(&'a Expr, &'a Query);
    impl VisitorMut for Put<'_> {
        type Break = ();

        fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
            if let TableFactor::Derived { subquery, .. } = factor {
                **subquery = self.1.clone();
            }
            ControlFlow::Continue(())
        }

        fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
            if matches!(expression, Expr::Identifier(name) if name.value == "value_of_in") {
                *expression = self.0.clone();
            }
            ControlFlow::Continue(())
        }
    }
    let mut said = parse_expression_of_program(
        "CASE WHEN (SELECT count(*) FROM (SELECT 1) AS rows_there) = 0 THEN false \
         ELSE any_equal(value_of_in, (SELECT array_agg(c) FROM (SELECT 1) AS rows_there(c))) END",
    )?;
    let _ = said.visit(&mut Put(value, subquery));
    let said = Box::new(Expr::Nested(Box::new(said)));
    Ok(if negated { Expr::UnaryOp { op: UnaryOperator::Not, expr: said } } else { *said })
}

/// How many rows a subquery has, compared with none.
fn counted(subquery: &Query, negated: bool) -> Result<Expr> {
    let test = parse_expression_of_program(if negated { "count(*) = 0" } else { "count(*) > 0" })?;
    let plain = plain(subquery);
    let mut counting = match plain {
        // In the subquery itself, where the columns of the query around it are known.
        true => subquery.clone(),
        false => *parse_query("SELECT 1 FROM (SELECT 1) AS rows_there")?,
    };
    if let SetExpr::Select(select) = counting.body.as_mut() {
        // Not as text: a rewritten query has parts that the parser does not take.
        if !plain
            && let Some(TableFactor::Derived { subquery: rows, .. }) =
                select.from.first_mut().map(|from| &mut from.relation)
        {
            **rows = subquery.clone();
        }
        select.projection = vec![SelectItem::UnnamedExpr(test)];
    }
    counting.order_by = None;
    Ok(Expr::Subquery(Box::new(counting)))
}

/// True when a query has a row for each that its FROM and WHERE give.
fn plain(query: &Query) -> bool {
    let SetExpr::Select(select) = query.body.as_ref() else { return false };
    let grouped = !matches!(&select.group_by, GroupByExpr::Expressions(keys, _) if keys.is_empty());
    let values = select.projection.iter().all(|item| match item {
        SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => true,
        SelectItem::UnnamedExpr(value) | SelectItem::ExprWithAlias { expr: value, .. } => {
            matches!(value, Expr::Value(_) | Expr::Identifier(_) | Expr::CompoundIdentifier(_))
        }
        _ => false,
    });
    query.limit_clause.is_none()
        && query.fetch.is_none()
        && select.distinct.is_none()
        && select.having.is_none()
        && !grouped
        && values
}
