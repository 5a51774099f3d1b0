//! PostgreSQL's names of output columns.
//!
//! DataFusion calls an unnamed column by its expression's text and refuses two columns of one name.
//! Here each unnamed item of a SELECT gets PostgreSQL's name as its alias; where a name comes twice
//! the later one gets a mark and a number that no user can type, which [`shown_name`] takes off.

use std::collections::HashMap;
use std::ops::ControlFlow;

use sqlparser::ast::{
    self, AccessExpr, Expr, Ident, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, Subscript,
    VisitMut, VisitorMut,
};

use super::reader::fold;
use super::scope_checks::is_reserved;

/// What stands between a name and the number that keeps it apart.
const MARK: char = '\u{1}';

/// A result column's name as the user sees it.
pub fn shown_name(name: &str) -> &str {
    name.split_once(MARK).map_or(name, |(shown, _)| shown)
}

/// PostgreSQL's name for an expression without an alias.
pub(crate) fn output_name(expression: &Expr) -> String {
    named(expression).unwrap_or_else(|| "?column?".into())
}

/// The name that the expression suggests, if it suggests one (`FigureColname` in PostgreSQL).
fn named(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Identifier(identifier) => Some(fold(identifier)),
        Expr::CompoundIdentifier(parts) => parts.last().map(fold),
        Expr::CompoundFieldAccess { root, access_chain } => access_chain
            .iter()
            .rev()
            .find_map(|access| match access {
                AccessExpr::Dot(Expr::Identifier(identifier)) => Some(fold(identifier)),
                AccessExpr::Dot(_) | AccessExpr::Subscript(Subscript::Index { .. } | Subscript::Slice { .. }) => None,
            })
            .or_else(|| named(root)),
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => named(inner),
        Expr::Function(function) => function.name.0.last().and_then(|part| part.as_ident()).map(fold),
        Expr::Cast { expr, data_type, .. } => strong(expr).or_else(|| Some(type_name(data_type))),
        Expr::TypedString(typed) => Some(type_name(&typed.data_type)),
        Expr::Interval(_) => Some("interval".into()),
        Expr::Case { else_result, .. } => {
            else_result.as_ref().and_then(|result| strong(result)).or_else(|| Some("case".into()))
        }
        Expr::Array(_) => Some("array".into()),
        Expr::Exists { .. } => Some("exists".into()),
        Expr::Extract { .. } => Some("extract".into()),
        Expr::Substring { .. } => Some("substring".into()),
        Expr::Trim { trim_where, .. } => Some(
            match trim_where {
                Some(ast::TrimWhereField::Leading) => "ltrim",
                Some(ast::TrimWhereField::Trailing) => "rtrim",
                Some(ast::TrimWhereField::Both) | None => "btrim",
            }
            .into(),
        ),
        Expr::Position { .. } => Some("position".into()),
        Expr::Overlay { .. } => Some("overlay".into()),
        Expr::Ceil { .. } => Some("ceil".into()),
        Expr::Floor { .. } => Some("floor".into()),
        Expr::AtTimeZone { .. } => Some("timezone".into()),
        Expr::Tuple(_) => Some("row".into()),
        Expr::Subquery(query) => subquery_name(&query.body),
        Expr::Value(value) => match &value.value {
            ast::Value::Boolean(_) => Some("bool".into()),
            _ => None,
        },
        _ => None,
    }
}

/// Only names of columns and functions go through a cast or a CASE.
fn strong(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Function(_) => named(expression),
        Expr::Nested(inner) => strong(inner),
        Expr::Cast { expr, .. } => strong(expr),
        _ => None,
    }
}

fn subquery_name(body: &SetExpr) -> Option<String> {
    match body {
        SetExpr::Select(select) => match select.projection.first()? {
            SelectItem::UnnamedExpr(expression) => Some(output_name(expression)),
            SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
            _ => None,
        },
        SetExpr::Query(query) => subquery_name(&query.body),
        SetExpr::Values(_) => Some("column1".into()),
        SetExpr::SetOperation { left, .. } => subquery_name(left),
        _ => None,
    }
}

/// The internal name of a type, which is what PostgreSQL names a cast's column by.
fn type_name(data_type: &ast::DataType) -> String {
    use arrow::datatypes::DataType;
    let Ok(stored) = super::types::stored(data_type) else {
        return data_type.to_string().to_lowercase();
    };
    match stored.data_type {
        DataType::Int16 => "int2",
        DataType::Int32 => "int4",
        DataType::Int64 => "int8",
        DataType::Float32 => "float4",
        DataType::Float64 => "float8",
        DataType::Boolean => "bool",
        DataType::Decimal128(..) => "numeric",
        DataType::Utf8 if stored.sql_type.starts_with("character varying") => "varchar",
        DataType::Utf8 if stored.sql_type.starts_with("character") => "bpchar",
        _ => {
            return stored.sql_type.split(['(', '[']).next().unwrap_or("?column?").to_owned();
        }
    }
    .to_owned()
}

/// Gives every unnamed item of every SELECT in a query its name.
pub(crate) fn name_columns(query: &mut Query) {
    let _ = query.visit(&mut NameColumns);
}

/// The wildcards of a SELECT: what they bring comes under its own name, so that the same column
/// beside them needs another.
struct Wildcards {
    all: bool,
    tables: Vec<String>,
    /// True when every column comes from the one table.
    single: bool,
}

impl Wildcards {
    fn of(select: &Select) -> Wildcards {
        let mut found = Wildcards { all: false, tables: Vec::new(), single: false };
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(_) => found.all = true,
                // Those with columns left out are ours, which know what they bring.
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(table), options)
                    if options.opt_exclude.is_none() =>
                {
                    found.tables.extend(table.0.last().and_then(|part| part.as_ident()).map(fold));
                }
                _ => {}
            }
        }
        found.single = matches!(select.from.as_slice(), [only] if only.joins.is_empty());
        found
    }

    /// True when a wildcard surely brings the column.
    fn cover(&self, column: &Expr) -> bool {
        let table = match column {
            Expr::CompoundIdentifier(parts) => parts.iter().rev().nth(1).map(fold),
            _ => None,
        };
        self.all
            || match table {
                Some(table) => self.tables.contains(&table),
                None => self.single && !self.tables.is_empty(),
            }
    }
}

struct NameColumns;

impl VisitorMut for NameColumns {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut texts: Vec<String> = Vec::new();
        let mut wildcard = false;
        let wildcards = Wildcards::of(select);
        for item in &mut select.projection {
            match item {
                SelectItem::UnnamedExpr(expression) => {
                    let name = output_name(expression);
                    let plain = matches!(expression, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
                    let count = seen.entry(name.clone()).or_insert(0);
                    *count += 1;
                    // Columns of two tables may share a name: they stay apart by their tables.
                    let text = expression.to_string();
                    let again = match expression {
                        Expr::CompoundIdentifier(_) => {
                            texts.contains(&text) || wildcard && *count > 1 || wildcards.cover(expression)
                        }
                        Expr::Identifier(_) => *count > 1 || wildcard || wildcards.cover(expression),
                        _ => *count > 1,
                    };
                    texts.push(text);
                    if plain && !again {
                        continue;
                    }
                    let alias = if again { format!("{name}{MARK}{}", texts.len()) } else { name };
                    let inner = std::mem::replace(expression, Expr::value(ast::Value::Null));
                    *item = SelectItem::ExprWithAlias { expr: inner, alias: Ident::with_quote('"', alias) };
                }
                SelectItem::ExprWithAlias { alias, .. } => {
                    let name = fold(alias);
                    let count = seen.entry(name.clone()).or_insert(0);
                    *count += 1;
                    texts.push(name.clone());
                    if *count > 1 {
                        *alias = Ident::with_quote('"', format!("{name}{MARK}{}", texts.len()));
                    }
                }
                SelectItem::QualifiedWildcard(..) | SelectItem::Wildcard(_) | SelectItem::ExprWithAliases { .. } => {
                    wildcard = true;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// A name as SQL text: quoted unless it would be read back the same without.
pub fn quoted(name: &str) -> String {
    let plain = name.chars().next().is_some_and(|first| first.is_ascii_lowercase() || first == '_')
        && name
            .chars()
            .all(|character| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_')
        && !sqlparser::keywords::ALL_KEYWORDS.contains(&name.to_ascii_uppercase().as_str());
    if plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Words beside the reserved ones that PostgreSQL shows in quotes where they are names: those of types and of functions
/// with a grammar of their own.
const WORDS_IN_QUOTES: &[&str] = &[
    "authorization",
    "between",
    "bigint",
    "binary",
    "bit",
    "boolean",
    "char",
    "character",
    "coalesce",
    "collation",
    "concurrently",
    "cross",
    "current_schema",
    "dec",
    "decimal",
    "exists",
    "extract",
    "float",
    "freeze",
    "full",
    "greatest",
    "grouping",
    "ilike",
    "inner",
    "inout",
    "int",
    "integer",
    "interval",
    "is",
    "isnull",
    "join",
    "least",
    "left",
    "like",
    "national",
    "natural",
    "nchar",
    "none",
    "normalize",
    "notnull",
    "nullif",
    "numeric",
    "out",
    "outer",
    "overlaps",
    "overlay",
    "position",
    "precision",
    "real",
    "right",
    "row",
    "setof",
    "similar",
    "smallint",
    "substring",
    "tablesample",
    "time",
    "timestamp",
    "treat",
    "trim",
    "values",
    "varchar",
    "verbose",
];

/// A name as PostgreSQL's `quote_ident` gives it: in quotes only where it would be read otherwise.
pub fn quote_ident(name: &str) -> String {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let bare = name.chars().next().is_some_and(|first| word(first) && !first.is_ascii_digit())
        && name.chars().all(word)
        && !is_reserved(&name.to_ascii_uppercase())
        && WORDS_IN_QUOTES.binary_search(&name).is_err();
    if bare { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::parser::parse_expression;

    #[test]
    fn unnamed_columns_are_called_as_in_postgresql() {
        for (text, name) in [
            ("a", "a"),
            ("T.\"B\"", "B"),
            ("count(*)", "count"),
            ("coalesce(a, 1)", "coalesce"),
            ("a + 1", "?column?"),
            ("'x'", "?column?"),
            ("5", "?column?"),
            ("a::text", "a"),
            ("(1 + 2)::bigint", "int8"),
            ("'5'::varchar", "varchar"),
            ("DATE '2024-01-01'", "date"),
            ("CASE WHEN a THEN 1 ELSE 2 END", "case"),
            ("CASE WHEN a THEN 1 ELSE b END", "b"),
            ("ARRAY[1, 2]", "array"),
            ("EXISTS (SELECT 1)", "exists"),
            ("(SELECT max(x) FROM t)", "max"),
            ("extract(year FROM ts)", "extract"),
            ("(a)", "a"),
            ("true", "bool"),
            ("-a", "?column?"),
        ] {
            let expression = parse_expression(text).expect(text);
            assert_eq!(output_name(&expression), name, "{text}");
        }
    }

    #[test]
    fn names_are_quoted_where_they_must_be() {
        assert_eq!(quoted("total_2"), "total_2");
        assert_eq!(quoted("Total"), "\"Total\"");
        assert_eq!(quoted("group"), "\"group\"");
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
        assert_eq!(shown_name("count\u{1}2"), "count");
        assert!(WORDS_IN_QUOTES.is_sorted());
        for (name, wanted) in
            [("name", "name"), ("user", "\"user\""), ("left", "\"left\""), ("a b", "\"a b\""), ("1a", "\"1a\"")]
        {
            assert_eq!(quote_ident(name), wanted);
        }
    }
}
