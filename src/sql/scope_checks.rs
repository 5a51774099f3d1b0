//! What a query's text alone tells to be wrong, with its place: names that stand twice or nowhere, aggregates and window
//! functions where there are none, words that are no names.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, Function, GroupByExpr, Ident, JoinConstraint, JoinOperator, LimitClause, ObjectName, Query, Select, Spanned,
    TableFactor, TableWithJoins, Value, ValueWithSpan, Visit, Visitor,
};

use super::reader::fold;
use super::tokens::position;
use crate::types::{Error, Result, SqlState};

/// Words that are names only in double quotes.
const RESERVED: &[&str] = &[
    "ALL",
    "ANALYSE",
    "ANALYZE",
    "AND",
    "ANY",
    "ARRAY",
    "AS",
    "ASC",
    "ASYMMETRIC",
    "BOTH",
    "CASE",
    "CAST",
    "CHECK",
    "COLLATE",
    "COLUMN",
    "CONSTRAINT",
    "CREATE",
    "CURRENT_CATALOG",
    "CURRENT_DATE",
    "CURRENT_ROLE",
    "CURRENT_TIME",
    "CURRENT_TIMESTAMP",
    "CURRENT_USER",
    "DEFAULT",
    "DEFERRABLE",
    "DESC",
    "DISTINCT",
    "DO",
    "ELSE",
    "END",
    "EXCEPT",
    "FALSE",
    "FETCH",
    "FOR",
    "FOREIGN",
    "FROM",
    "GRANT",
    "GROUP",
    "HAVING",
    "IN",
    "INITIALLY",
    "INTERSECT",
    "INTO",
    "LATERAL",
    "LEADING",
    "LIMIT",
    "LOCALTIME",
    "LOCALTIMESTAMP",
    "NOT",
    "NULL",
    "OFFSET",
    "ON",
    "ONLY",
    "OR",
    "ORDER",
    "PLACING",
    "PRIMARY",
    "REFERENCES",
    "RETURNING",
    "SELECT",
    "SESSION_USER",
    "SOME",
    "SYMMETRIC",
    "TABLE",
    "THEN",
    "TO",
    "TRAILING",
    "TRUE",
    "UNION",
    "UNIQUE",
    "USER",
    "USING",
    "VARIADIC",
    "WHEN",
    "WHERE",
    "WINDOW",
    "WITH",
];

/// True for a word, in upper case, that PostgreSQL takes as a name only in double quotes.
pub(crate) fn is_reserved(word: &str) -> bool {
    RESERVED.binary_search(&word).is_ok()
}

/// 42601 for such a word.
pub(crate) fn reserved(word: &str) -> Error {
    Error::new(SqlState::SyntaxError, format!("syntax error at or near \"{word}\""))
        .hint(format!("It is a reserved word: quote it as a name, \"{}\".", word.to_lowercase()))
}

const WINDOW_ONLY: &[&str] = &["row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead"];

const AGGREGATES: &[&str] = &[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "bool_and",
    "bool_or",
    "every",
    "string_agg",
    "array_agg",
    "json_agg",
    "json_object_agg",
    "jsonb_agg",
    "jsonb_object_agg",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "variance",
    "var_pop",
    "var_samp",
];

fn name_of(function: &Function) -> String {
    function.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default()
}

pub(crate) fn is_aggregate(function: &Function) -> bool {
    function.over.is_none() && AGGREGATES.contains(&name_of(function).as_str())
}

/// Looks for an aggregate or a window function, not in subqueries.
struct Calls {
    depth: usize,
    /// The outermost call is what is looked into.
    skip: bool,
}

struct Call {
    window: bool,
    at: Option<usize>,
}

impl Visitor for Calls {
    type Break = Call;

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<Call> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<Call> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Call> {
        if std::mem::take(&mut self.skip) || self.depth > 0 {
            return ControlFlow::Continue(());
        }
        match expression {
            Expr::Function(function) if function.over.is_some() || is_aggregate(function) => {
                ControlFlow::Break(Call { window: function.over.is_some(), at: position(function.name.span()) })
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

fn call_in<T: Visit>(part: &T) -> Option<Call> {
    match part.visit(&mut Calls { depth: 0, skip: false }) {
        ControlFlow::Break(call) => Some(call),
        ControlFlow::Continue(()) => None,
    }
}

/// Refuses both kinds of calls in a clause.
fn without_calls<T: Visit>(clause: &str, part: &T) -> ControlFlow<Error> {
    match call_in(part) {
        Some(Call { window: true, at }) => windowless(clause, at),
        Some(Call { window: false, at }) => {
            let message = format!("aggregate functions are not allowed in {clause}");
            let error = Error::new(SqlState::GroupingError, message).hint("Aggregate in a subquery, or use HAVING.");
            ControlFlow::Break(error.position_or(at))
        }
        None => ControlFlow::Continue(()),
    }
}

fn windowless(clause: &str, at: Option<usize>) -> ControlFlow<Error> {
    let message = format!("window functions are not allowed in {clause}");
    let hint = "Compute it in a subquery and filter around that: SELECT * FROM (SELECT …, rank() OVER (…) AS r …) q WHERE r = 1.";
    ControlFlow::Break(Error::new(SqlState::WindowingError, message).hint(hint).position_or(at))
}

/// A table in FROM by the name that stands before its columns.
#[derive(PartialEq, Eq)]
struct Named {
    schema: Option<String>,
    name: String,
}

fn named(factor: &TableFactor) -> Option<(Named, Option<usize>)> {
    let of_alias = |alias: &Ident| (Named { schema: None, name: fold(alias) }, position(alias.span));
    match factor {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            Some(of_alias(&alias.name))
        }
        TableFactor::Table { name, args: None, .. } => {
            let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident()).map(fold).collect();
            let (table, rest) = parts.split_last()?;
            let schema = Some(rest.last().map_or("public", String::as_str).to_owned());
            Some((Named { schema, name: table.clone() }, position(name.span())))
        }
        _ => None,
    }
}

fn tables(from: &TableWithJoins, found: &mut Vec<Named>) -> ControlFlow<Error> {
    for factor in std::iter::once(&from.relation).chain(from.joins.iter().map(|join| &join.relation)) {
        if let TableFactor::NestedJoin { table_with_joins, alias: None } = factor {
            tables(table_with_joins, found)?;
            continue;
        }
        let Some((table, at)) = named(factor) else { continue };
        if found.contains(&table) {
            let message = format!("table name \"{}\" specified more than once", table.name);
            let error =
                Error::new(SqlState::DuplicateAlias, message).hint("Give one of them an alias: FROM t JOIN t AS u.");
            return ControlFlow::Break(error.position_or(at));
        }
        found.push(table);
    }
    ControlFlow::Continue(())
}

/// All tables of a statement.
#[derive(Default)]
struct Tables(Vec<Named>);

impl Visitor for Tables {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        self.0.extend(named(factor).map(|(table, _)| table));
        ControlFlow::Continue(())
    }
}

struct Checks {
    tables: Vec<Named>,
}

impl Visitor for Checks {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
        let Some(LimitClause::LimitOffset { limit, offset, .. }) = &query.limit_clause else {
            return ControlFlow::Continue(());
        };
        let counts = [("LIMIT", limit.as_ref()), ("OFFSET", offset.as_ref().map(|offset| &offset.value))];
        for (clause, count) in counts {
            match count {
                Some(Expr::Value(ValueWithSpan { value: Value::SingleQuotedString(text), span }))
                    if text.trim().parse::<i64>().is_err() =>
                {
                    let message = format!("invalid input syntax for type bigint: \"{text}\"");
                    let error = Error::new(SqlState::InvalidText, message).hint(format!("Write {clause} 10."));
                    return ControlFlow::Break(error.position_or(position(*span)));
                }
                Some(Expr::Identifier(name)) if mentions(query, &fold(name)) => {
                    let message = format!("argument of {clause} must not contain variables");
                    let error = Error::new(SqlState::InvalidColumnReference, message);
                    let error = error.hint(format!("Write a number: {clause} 10."));
                    return ControlFlow::Break(error.position_or(position(name.span)));
                }
                _ => {}
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<Error> {
        let mut found = Vec::new();
        for from in &select.from {
            tables(from, &mut found)?;
            for join in &from.joins {
                if let JoinOperator::Join(JoinConstraint::On(on))
                | JoinOperator::Inner(JoinConstraint::On(on))
                | JoinOperator::Left(JoinConstraint::On(on))
                | JoinOperator::LeftOuter(JoinConstraint::On(on))
                | JoinOperator::Right(JoinConstraint::On(on))
                | JoinOperator::RightOuter(JoinConstraint::On(on))
                | JoinOperator::FullOuter(JoinConstraint::On(on)) = &join.join_operator
                {
                    without_calls("JOIN conditions", on)?;
                }
            }
        }
        if let Some(condition) = &select.selection {
            without_calls("WHERE", condition)?;
        }
        if let GroupByExpr::Expressions(keys, _) = &select.group_by {
            without_calls("GROUP BY", keys)?;
        }
        if let Some(Call { window: true, at }) = select.having.as_ref().and_then(call_in) {
            return windowless("HAVING", at);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<Error> {
        let at = position(relation.span());
        if relation.0.len() > 3 {
            let message = format!("improper qualified name (too many dotted names): {relation}");
            let error = Error::new(SqlState::SyntaxError, message).hint("Write schema.name.");
            return ControlFlow::Break(error.position_or(at));
        }
        match relation.0.first().and_then(|part| part.as_ident()) {
            Some(name) if name.quote_style.is_none() && is_reserved(&name.value.to_uppercase()) => {
                ControlFlow::Break(reserved(&name.value).position_or(at))
            }
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Error> {
        match expression {
            Expr::Function(function) => check_function(function, expression),
            Expr::CompoundIdentifier(parts) => self.check_schema(parts),
            _ => ControlFlow::Continue(()),
        }
    }
}

impl Checks {
    /// `schema.table.column` of a table that is not there; a field of a structure looks alike.
    fn check_schema(&self, parts: &[Ident]) -> ControlFlow<Error> {
        let [schema, table, _] = parts else { return ControlFlow::Continue(()) };
        let (schema, table) = (fold(schema), fold(table));
        let fits =
            |known: &Named| known.name == schema || known.name == table && known.schema.as_ref() == Some(&schema);
        let system = matches!(schema.as_str(), "pg_catalog" | "information_schema");
        // Another table's name would be told of elsewhere.
        let there = self.tables.iter().any(|known| known.name == table);
        if system || !there || self.tables.iter().any(fits) {
            return ControlFlow::Continue(());
        }
        let message = format!("invalid reference to FROM-clause entry for table \"{table}\"");
        let error = Error::new(SqlState::UndefinedTable, message)
            .hint("Write the alias or the table's name alone before the column.");
        ControlFlow::Break(error.position_or(parts.first().and_then(|part| position(part.span))))
    }
}

fn check_function(function: &Function, expression: &Expr) -> ControlFlow<Error> {
    let name = name_of(function);
    if function.over.is_none() && function.within_group.is_empty() && WINDOW_ONLY.contains(&name.as_str()) {
        let message = format!("window function {name} requires an OVER clause");
        let error = Error::new(SqlState::WrongObjectType, message).hint(format!("Write {name}(…) OVER (ORDER BY …)."));
        return ControlFlow::Break(error.position_or(position(function.name.span())));
    }
    if !is_aggregate(function) {
        return ControlFlow::Continue(());
    }
    match expression.visit(&mut Calls { depth: 0, skip: true }) {
        ControlFlow::Continue(()) => ControlFlow::Continue(()),
        ControlFlow::Break(Call { window, at }) => {
            let message = if window {
                "aggregate function calls cannot contain window function calls"
            } else {
                "aggregate function calls cannot be nested"
            };
            let error = Error::new(SqlState::GroupingError, message).hint(
                "Compute the inner one in a subquery: SELECT sum(x) FROM (SELECT sum(y) AS x FROM t GROUP BY z) q.",
            );
            ControlFlow::Break(error.position_or(at))
        }
    }
}

/// True when the body of a query has a column of that name.
fn mentions(query: &Query, name: &str) -> bool {
    struct Names<'a>(&'a str);
    impl Visitor for Names<'_> {
        type Break = ();
        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            match expression {
                Expr::Identifier(found) if fold(found) == self.0 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    query.body.visit(&mut Names(name)).is_break()
}

/// Checks a query or a statement with queries in it.
///
/// # Errors
/// Of class 42, with position and hint.
pub(crate) fn check<T: Visit>(statement: &T) -> Result<()> {
    let mut tables = Tables::default();
    let _ = statement.visit(&mut tables);
    match statement.visit(&mut Checks { tables: tables.0 }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_words_can_be_looked_up() {
        assert!(RESERVED.is_sorted());
        assert!(is_reserved("USER") && !is_reserved("NAME"));
    }
}
