//! Queries over `pg_catalog`, as clients write them: in a dialect of their own, with operators and
//! names that other queries here do without.
//!
//! A query that names no table, function or type of the catalog is left alone. The others go through
//! datafusion-pg-catalog's rewriting rules and a few of our own.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use datafusion_pg_catalog::sql::PostgresCompatibilityParser;
use sqlparser::ast::{
    self, DataType, Expr, Function, ObjectName, ObjectNamePart, Query, Statement, Visit, VisitMut, Visitor, VisitorMut,
};

/// The query in the form that the planner takes; `None` when it is not about the catalog.
pub(crate) fn rewritten(query: &Query) -> Option<Query> {
    if query.visit(&mut Mentions).is_continue() {
        return None;
    }
    static RULES: LazyLock<PostgresCompatibilityParser> = LazyLock::new(PostgresCompatibilityParser::new);
    let statement = Statement::Query(Box::new(query.clone()));
    let Statement::Query(mut query) = RULES.rewrite(statement) else { return None };
    let _ = VisitMut::visit(&mut query, &mut Types);
    Some(*query)
}

fn names_catalog(name: &ObjectName) -> bool {
    let part = |at: usize| match name.0.get(at) {
        Some(ObjectNamePart::Identifier(ident)) => ident.value.to_ascii_lowercase(),
        _ => String::new(),
    };
    match name.0.len() {
        1 => part(0).starts_with("pg_"),
        2 => part(0) == "pg_catalog",
        3 => part(1) == "pg_catalog",
        _ => false,
    }
}

/// The types that only the catalog has.
fn catalog_type(data_type: &DataType) -> Option<String> {
    let name = data_type.to_string().to_ascii_lowercase();
    let bare = name.strip_prefix("pg_catalog.").unwrap_or(&name).replace('"', "");
    let own = name.starts_with("pg_catalog.")
        || bare.starts_with("reg")
        || matches!(
            bare.trim_end_matches("[]"),
            "oid" | "name" | "char" | "oidvector" | "int2vector" | "xid" | "aclitem"
        );
    own.then_some(bare)
}

/// Stops at the first word of the catalog.
struct Mentions;

impl Visitor for Mentions {
    type Break = ();

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let information = matches!(
            relation.0.first(),
            Some(ObjectNamePart::Identifier(ident)) if ident.value.eq_ignore_ascii_case("information_schema")
        );
        if information || names_catalog(relation) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        let found = match expression {
            Expr::Function(Function { name, .. }) => names_catalog(name),
            Expr::Cast { data_type, .. } => {
                catalog_type(data_type).is_some_and(|name| name != "char" || data_type.to_string().contains('"'))
            }
            Expr::BinaryOp { op: ast::BinaryOperator::PGCustomBinaryOperator(_), .. } => true,
            _ => false,
        };
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Gives casts to the catalog's types the types that its tables have.
struct Types;

impl VisitorMut for Types {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { data_type, .. } = expression
            && let Some(name) = catalog_type(data_type)
        {
            *data_type = match name.as_str() {
                "oid" | "xid" | "int4" => DataType::Int(None),
                "int2" => DataType::SmallInt(None),
                "int8" => DataType::BigInt(None),
                "bool" => DataType::Boolean,
                _ => DataType::Text,
            };
        }
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::parser::parse_query;

    #[test]
    fn only_queries_of_the_catalog_are_rewritten() {
        for text in ["SELECT a::char(3) FROM t", "SELECT pg FROM pgt WHERE name = 'pg_class'"] {
            assert_eq!(rewritten(&parse_query(text).expect(text)), None, "{text}");
        }
        for text in [
            "SELECT relname FROM pg_class",
            "SELECT * FROM information_schema.tables",
            "SELECT pg_catalog.format_type(a, 1) FROM t",
            "SELECT 't'::regclass",
        ] {
            assert!(rewritten(&parse_query(text).expect(text)).is_some(), "{text}");
        }
    }
}
