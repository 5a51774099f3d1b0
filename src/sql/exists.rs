//! `EXISTS` among the values of a SELECT. DataFusion has it only where rows are picked, in WHERE, HAVING and ON; elsewhere
//! it is said as the count of the subquery's rows.

use std::ops::ControlFlow;

use sqlparser::ast::{Expr, GroupByExpr, Query, SelectItem, SetExpr, TableFactor, VisitMut, VisitorMut};

use super::parser::{parse_expression_of_program, parse_query};
use crate::types::{Error, Result};

/// Says the EXISTS of a query's select lists in other words.
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
        if let Expr::Exists { subquery, negated } = expression {
            match counted(subquery, *negated) {
                Ok(counted) => *expression = counted,
                Err(error) => return ControlFlow::Break(error),
            }
        }
        ControlFlow::Continue(())
    }
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
