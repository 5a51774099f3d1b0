//! `USING` and `NATURAL` joins, in words whose meaning the planner keeps.
//!
//! The column that both sides share is one column of the result: the left one's value, the right one's behind RIGHT
//! JOIN, and whichever there is behind FULL JOIN. The planner takes the column of whichever table comes first by name
//! instead, and gets lost in chains. So the condition becomes an `ON`, the column's name what it stands for, and `*`
//! the columns in their order: those that were joined by first.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use datafusion::common::TableReference;
use datafusion::execution::SessionState;
use sqlparser::ast::{
    BinaryOperator, ExcludeSelectItem, Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName, ObjectNamePart,
    OrderByKind, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor,
    TableWithJoins, Visit, VisitMut, Visitor, VisitorMut, WildcardAdditionalOptions,
};

use super::catalog_queries::call;
use super::names::output_name;
use super::planner::DEFAULT_SCHEMA;
use super::reader::{DATABASE, fold};

/// Rewrites such joins; those of tables whose columns are not known stay as they are.
pub(crate) async fn rewrite(state: &SessionState, query: &mut Query) {
    let mut seen = Seen::default();
    let _ = Visit::visit(&*query, &mut seen);
    if !seen.joins {
        return;
    }
    let mut columns = HashMap::new();
    for name in seen.relations {
        if let Some(found) = columns_of(state, &name).await {
            columns.insert(spelled(&name), found);
        }
    }
    for name in &seen.with {
        columns.remove(name);
    }
    let _ = VisitMut::visit(query, &mut Joins { columns });
}

/// What the query names.
#[derive(Default)]
struct Seen {
    /// There is a join of this kind.
    joins: bool,
    relations: Vec<ObjectName>,
    /// Names that WITH gives.
    with: HashSet<String>,
}

impl Visitor for Seen {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if let Some(with) = &query.with {
            self.with.extend(with.cte_tables.iter().map(|cte| fold(&cte.alias.name)));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        self.relations.push(relation.clone());
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let merges = |join: &Join| {
            matches!(constraint(&join.join_operator), Some(JoinConstraint::Using(_) | JoinConstraint::Natural))
        };
        fn any(from: &TableWithJoins, merges: &dyn Fn(&Join) -> bool) -> bool {
            let nested = |factor: &TableFactor| match factor {
                TableFactor::NestedJoin { table_with_joins, .. } => any(table_with_joins, merges),
                _ => false,
            };
            nested(&from.relation) || from.joins.iter().any(|join| merges(join) || nested(&join.relation))
        }
        self.joins |= select.from.iter().any(|from| any(from, &merges));
        ControlFlow::Continue(())
    }
}

fn spelled(name: &ObjectName) -> String {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
    parts.join(".")
}

async fn columns_of(state: &SessionState, name: &ObjectName) -> Option<Vec<String>> {
    let parts: Vec<String> = name.0.iter().map(|part| part.as_ident().map(fold)).collect::<Option<_>>()?;
    let table = match parts.as_slice() {
        [table] => TableReference::full(DATABASE, DEFAULT_SCHEMA, table.as_str()),
        [schema, table] => TableReference::full(DATABASE, schema.as_str(), table.as_str()),
        [database, schema, table] => TableReference::full(database.as_str(), schema.as_str(), table.as_str()),
        _ => return None,
    };
    let bare = table.table().to_owned();
    let provider = state.schema_for_ref(table).ok()?.table(&bare).await.ok()??;
    Some(provider.schema().fields().iter().map(|field| field.name().clone()).collect())
}

fn constraint(operator: &JoinOperator) -> Option<&JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::CrossJoin(constraint) => Some(constraint),
        _ => None,
    }
}

/// A table in FROM.
#[derive(Clone)]
struct Relation {
    /// What stands before its columns.
    qualifier: Vec<Ident>,
    columns: Option<Vec<String>>,
    /// Columns that are part of a merged one.
    merged: Vec<String>,
}

impl Relation {
    fn column(&self, name: &str) -> Expr {
        let mut parts = self.qualifier.clone();
        parts.push(Ident::with_quote('"', name));
        Expr::CompoundIdentifier(parts)
    }

    fn has(&self, name: &str) -> bool {
        self.columns.as_ref().is_some_and(|columns| columns.iter().any(|column| column == name))
    }
}

/// What a FROM item brings.
#[derive(Clone, Default)]
struct Scope {
    relations: Vec<Relation>,
    /// Merged columns and what they stand for, in the result's order.
    merged: Vec<(String, Expr)>,
}

impl Scope {
    /// What a column's name stands for; the column is merged from now on.
    fn take(&mut self, name: &str) -> Option<Expr> {
        if let Some(at) = self.merged.iter().position(|(merged, _)| merged == name) {
            return Some(self.merged.remove(at).1);
        }
        let relation = match self.relations.as_mut_slice() {
            [only] => only,
            relations => {
                let mut having = relations.iter_mut().filter(|relation| relation.has(name));
                let found = having.next()?;
                // Two have it: the planner says that it is ambiguous.
                if having.next().is_some() {
                    return None;
                }
                found
            }
        };
        relation.merged.push(name.to_owned());
        Some(relation.column(name))
    }

    /// The names of its columns, when all are known.
    fn names(&self) -> Option<Vec<String>> {
        let mut names: Vec<String> = self.merged.iter().map(|(name, _)| name.clone()).collect();
        for relation in &self.relations {
            let columns = relation.columns.as_ref()?;
            names.extend(columns.iter().filter(|column| !relation.merged.contains(column)).cloned());
        }
        Some(names)
    }
}

struct Joins {
    columns: HashMap<String, Vec<String>>,
}

impl VisitorMut for Joins {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let mut body = query.body.as_mut();
        while let SetExpr::Query(inner) = body {
            body = inner.body.as_mut();
        }
        let SetExpr::Select(select) = body else { return ControlFlow::Continue(()) };
        let Some(merged) = self.select(select) else { return ControlFlow::Continue(()) };
        // A name of the result comes first in ORDER BY.
        let shown: Vec<String> = select
            .projection
            .iter()
            .filter_map(|item| match item {
                SelectItem::UnnamedExpr(expression) => Some(output_name(expression)),
                SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
                _ => None,
            })
            .collect();
        let merged: Vec<_> = merged.into_iter().filter(|(name, _)| !shown.contains(name)).collect();
        if let Some(OrderByKind::Expressions(keys)) = query.order_by.as_mut().map(|order| &mut order.kind) {
            let _ = VisitMut::visit(keys, &mut Put { merged: &merged, depth: 0 });
        }
        ControlFlow::Continue(())
    }

    // The branches of a set operation, which were no query's body. A second look finds nothing left to do.
    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.select(select);
        ControlFlow::Continue(())
    }
}

impl Joins {
    /// Rewrites the joins of a SELECT and gives its merged columns; `None` when it stays as it is.
    fn select(&self, select: &mut Select) -> Option<Vec<(String, Expr)>> {
        let mut from = select.from.clone();
        let scopes: Vec<Scope> = from.iter_mut().map(|item| self.joined(item)).collect::<Option<_>>()?;
        let merged: Vec<(String, Expr)> = scopes.iter().flat_map(|scope| scope.merged.clone()).collect();
        let names: HashSet<&String> = merged.iter().map(|(name, _)| name).collect();
        if merged.is_empty() || names.len() < merged.len() {
            return None;
        }
        // A name that another item of FROM has too is left to the planner, which says that it is ambiguous.
        let elsewhere = |name: &String| {
            let others = scopes.iter().filter(|scope| !scope.merged.iter().any(|(merged, _)| merged == name));
            others.filter_map(Scope::names).any(|names| names.contains(name))
        };
        let merged: Vec<(String, Expr)> = merged.iter().filter(|(name, _)| !elsewhere(name)).cloned().collect();
        let names: HashSet<&String> = merged.iter().map(|(name, _)| name).collect();
        select.from = from;
        let mut projection = Vec::with_capacity(select.projection.len());
        for item in std::mem::take(&mut select.projection) {
            match item {
                SelectItem::Wildcard(options) if options.opt_exclude.is_none() && options.opt_except.is_none() => {
                    projection.extend(scopes.iter().flat_map(wildcard));
                }
                // What it stands for has another name, or none.
                SelectItem::UnnamedExpr(Expr::Identifier(name)) if names.contains(&fold(&name)) => {
                    let alias = Ident::with_quote('"', fold(&name));
                    let expression = Expr::Identifier(name);
                    let plain = |(merged, to): &(String, Expr)| {
                        *merged == alias.value && matches!(to, Expr::CompoundIdentifier(_))
                    };
                    projection.push(if merged.iter().any(plain) {
                        SelectItem::UnnamedExpr(expression)
                    } else {
                        SelectItem::ExprWithAlias { expr: expression, alias }
                    });
                }
                other => projection.push(other),
            }
        }
        select.projection = projection;
        let mut put = Put { merged: &merged, depth: 0 };
        let _ = VisitMut::visit(&mut select.projection, &mut put);
        let _ = VisitMut::visit(&mut select.selection, &mut put);
        let _ = VisitMut::visit(&mut select.group_by, &mut put);
        let _ = VisitMut::visit(&mut select.having, &mut put);
        let _ = VisitMut::visit(&mut select.qualify, &mut put);
        let _ = VisitMut::visit(&mut select.distinct, &mut put);
        let _ = VisitMut::visit(&mut select.named_window, &mut put);
        Some(merged)
    }

    fn factor(&self, factor: &mut TableFactor) -> Option<Scope> {
        let renamed = |alias: &TableAlias| -> Vec<String> { alias.columns.iter().map(|c| fold(&c.name)).collect() };
        let (qualifier, mut columns, mut renamed) = match factor {
            TableFactor::Table { name, alias, args: None, .. } => {
                let columns = self.columns.get(&spelled(name)).cloned();
                match alias {
                    Some(alias) => (vec![alias.name.clone()], columns, renamed(alias)),
                    None => {
                        let parts: Option<Vec<Ident>> = name.0.iter().map(|part| part.as_ident().cloned()).collect();
                        (parts?, columns, Vec::new())
                    }
                }
            }
            TableFactor::Derived { alias: Some(alias), subquery, lateral: false, .. } => {
                (vec![alias.name.clone()], projected(subquery), renamed(alias))
            }
            TableFactor::NestedJoin { table_with_joins, alias: None } => return self.joined(table_with_joins),
            _ => return None,
        };
        if !renamed.is_empty() {
            renamed.extend(columns?.into_iter().skip(renamed.len()));
            columns = Some(renamed);
        }
        Some(Scope { relations: vec![Relation { qualifier, columns, merged: Vec::new() }], merged: Vec::new() })
    }

    fn joined(&self, from: &mut TableWithJoins) -> Option<Scope> {
        let mut left = self.factor(&mut from.relation)?;
        for join in &mut from.joins {
            left = self.join(left, join)?;
        }
        Some(left)
    }

    fn join(&self, mut left: Scope, join: &mut Join) -> Option<Scope> {
        let mut right = self.factor(&mut join.relation)?;
        let names: Vec<String> = match constraint(&join.join_operator)? {
            JoinConstraint::Using(names) => {
                names.iter().map(|name| name.0.last()?.as_ident().map(fold)).collect::<Option<_>>()?
            }
            JoinConstraint::Natural => {
                let (ours, theirs) = (left.names()?, right.names()?);
                ours.into_iter().filter(|name| theirs.contains(name)).collect()
            }
            JoinConstraint::On(_) | JoinConstraint::None => Vec::new(),
        };
        // The planner says which column is missing.
        let missing = |scope: &Scope| {
            let known = scope.names();
            known.is_some_and(|known| names.iter().any(|name| !known.contains(name)))
        };
        if missing(&left) || missing(&right) {
            return None;
        }
        let mut merged = Vec::new();
        let mut condition: Option<Expr> = None;
        for name in names {
            let (ours, theirs) = (left.take(&name)?, right.take(&name)?);
            let both = binary(ours.clone(), BinaryOperator::Eq, theirs.clone());
            condition = Some(match condition {
                None => both,
                Some(others) => binary(others, BinaryOperator::And, both),
            });
            let value = match &join.join_operator {
                JoinOperator::Right(_) | JoinOperator::RightOuter(_) => theirs,
                JoinOperator::FullOuter(_) => call("coalesce", vec![ours, theirs])?,
                _ => ours,
            };
            merged.push((name, value));
        }
        // Behind the new ones come those that were merged before.
        merged.append(&mut left.merged);
        merged.append(&mut right.merged);
        let mut relations = left.relations;
        relations.append(&mut right.relations);
        let scope = Scope { relations, merged };
        let natural = matches!(constraint(&join.join_operator), Some(JoinConstraint::Natural));
        match (&mut join.join_operator, condition) {
            (operator, None) if natural => *operator = JoinOperator::CrossJoin(JoinConstraint::None),
            (
                JoinOperator::Join(constraint)
                | JoinOperator::Inner(constraint)
                | JoinOperator::Left(constraint)
                | JoinOperator::LeftOuter(constraint)
                | JoinOperator::Right(constraint)
                | JoinOperator::RightOuter(constraint)
                | JoinOperator::FullOuter(constraint),
                condition,
            ) => match condition {
                Some(condition) => *constraint = JoinConstraint::On(condition),
                None => {
                    let _ = VisitMut::visit(constraint, &mut Put { merged: &scope.merged, depth: 0 });
                }
            },
            _ => {}
        }
        Some(scope)
    }
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }
}

/// The columns that `*` brings of a FROM item.
fn wildcard(scope: &Scope) -> Vec<SelectItem> {
    let mut items: Vec<SelectItem> = scope
        .merged
        .iter()
        .map(|(name, value)| match value {
            Expr::CompoundIdentifier(_) => SelectItem::UnnamedExpr(value.clone()),
            _ => SelectItem::ExprWithAlias { expr: value.clone(), alias: Ident::with_quote('"', name.as_str()) },
        })
        .collect();
    for relation in &scope.relations {
        let name = ObjectName(relation.qualifier.iter().cloned().map(ObjectNamePart::Identifier).collect());
        let hidden = |column: &String| ObjectName(vec![ObjectNamePart::Identifier(Ident::with_quote('"', column))]);
        let excluded: Vec<ObjectName> = relation.merged.iter().map(hidden).collect();
        let opt_exclude = (!excluded.is_empty()).then_some(ExcludeSelectItem::Multiple(excluded));
        items.push(SelectItem::QualifiedWildcard(
            SelectItemQualifiedWildcardKind::ObjectName(name),
            WildcardAdditionalOptions { opt_exclude, ..WildcardAdditionalOptions::default() },
        ));
    }
    items
}

/// The names of a query's columns, when its text gives them all.
fn projected(query: &Query) -> Option<Vec<String>> {
    let mut body = query.body.as_ref();
    while let SetExpr::SetOperation { left, .. } = body {
        body = left;
    }
    match body {
        SetExpr::Query(inner) => projected(inner),
        SetExpr::Select(select) => select
            .projection
            .iter()
            .map(|item| match item {
                SelectItem::UnnamedExpr(expression) => Some(output_name(expression)),
                SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
                _ => None,
            })
            .collect(),
        _ => None,
    }
}

/// Puts what they stand for in the place of merged columns' names; not in subqueries, which have names of their own.
struct Put<'a> {
    merged: &'a [(String, Expr)],
    depth: usize,
}

impl VisitorMut for Put<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Identifier(name) = &*expression
            && let Some((_, value)) = self.merged.iter().find(|(merged, _)| *merged == fold(name))
        {
            *expression = value.clone();
        }
        ControlFlow::Continue(())
    }
}
