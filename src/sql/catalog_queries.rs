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

use super::parser::parse_expression;
use crate::types::Result;

/// The query in the form that the planner takes; `None` when it is not about the catalog.
pub(crate) fn rewritten(query: &Query) -> Option<Query> {
    if query.visit(&mut Mentions).is_continue() {
        return None;
    }
    if is_asyncpg_types(query) {
        return asyncpg_types(query);
    }
    if let Some(nothing) = no_publications(query) {
        return Some(nothing);
    }
    static RULES: LazyLock<PostgresCompatibilityParser> = LazyLock::new(PostgresCompatibilityParser::new);
    let mut query = query.clone();
    show_relations(&mut query);
    // Before the library's rules, which take subqueries for NULL.
    let _ = VisitMut::visit(&mut query, &mut Answered);
    let statement = Statement::Query(Box::new(query));
    let Statement::Query(mut query) = RULES.rewrite(statement) else { return None };
    let _ = VisitMut::visit(&mut query, &mut Vectors);
    let _ = VisitMut::visit(&mut query, &mut Types);
    let _ = VisitMut::visit(&mut query, &mut Subqueries);
    Some(*query)
}

/// The text of `'name'::regclass`.
fn named_regclass(expression: &Expr) -> Option<String> {
    let Expr::Cast { expr, data_type, .. } = expression else { return None };
    let regclass = catalog_type(data_type).is_some_and(|name| name == "regclass");
    constant_text(expr).filter(|text| regclass && text.parse::<u32>().is_err())
}

/// The text of `'name'::regproc::oid` and `'name(…)'::regprocedure::oid`.
fn named_function(expression: &Expr) -> Option<String> {
    let Expr::Cast { expr, data_type, .. } = expression else { return None };
    let Expr::Cast { expr: text, data_type: named, .. } = expr.as_ref() else { return None };
    let is_number = matches!(catalog_type(data_type)?.as_str(), "oid" | "int4");
    let is_function = matches!(catalog_type(named)?.as_str(), "regproc" | "regprocedure");
    constant_text(text).filter(|text| is_number && is_function && text.parse::<u32>().is_err())
}

/// Such a cast as a column of the result, where it shows the name.
fn show_relations(query: &mut Query) {
    let ast::SetExpr::Select(select) = query.body.as_mut() else { return };
    for item in &mut select.projection {
        let (expression, alias) = match item {
            ast::SelectItem::UnnamedExpr(expression) => (&*expression, ast::Ident::new("regclass")),
            ast::SelectItem::ExprWithAlias { expr, alias } => (&*expr, alias.clone()),
            _ => continue,
        };
        if let Expr::Cast { expr, data_type, .. } = expression
            && catalog_type(data_type).is_some_and(|name| name == "regclass")
            && is_text_constant(expr)
            && let Some(expr) = call("pg_regclass_name", vec![expr.as_ref().clone()])
        {
            *item = ast::SelectItem::ExprWithAlias { expr, alias };
        }
    }
}

/// Reads a setting, or sets it when there is a value; the flag says for this transaction alone.
pub(crate) type SetConfig<'a> = dyn FnMut(&str, Option<&str>, bool) -> Result<Option<String>> + 'a;

/// Puts the values of settings in the place of `current_setting('name')`, and does what
/// `set_config('name', 'value', local)` says.
///
/// # Errors
/// Those of the closures.
pub fn resolve_settings(query: &mut Query, setting: &mut SetConfig<'_>) -> Result<()> {
    struct Settings<'a, 'b>(&'a mut SetConfig<'b>);
    /// What `current_setting(s.name)` is over a row `s` of `pg_settings`.
    fn of_row(name: &Expr) -> Option<Expr> {
        let column = |other: &str| {
            let mut column = name.clone();
            let last = match &mut column {
                Expr::Identifier(ident) => ident,
                Expr::CompoundIdentifier(parts) => parts.last_mut()?,
                _ => return None,
            };
            let was = std::mem::replace(&mut last.value, other.to_owned());
            was.eq_ignore_ascii_case("name").then_some(column)
        };
        // Nothing has no unit.
        let mut shown =
            parse_expression("CASE WHEN setting_of = '0' THEN '0' ELSE concat(setting_of, unit_of) END").ok()?;
        let (setting, unit) = (column("setting")?, column("unit")?);
        let _ = ast::visit_expressions_mut(&mut shown, |inner| {
            match inner {
                Expr::Identifier(name) if name.value == "setting_of" => *inner = setting.clone(),
                Expr::Identifier(name) if name.value == "unit_of" => *inner = unit.clone(),
                _ => {}
            }
            ControlFlow::<()>::Continue(())
        });
        Some(shown)
    }
    impl VisitorMut for Settings<'_, '_> {
        type Break = crate::types::Error;
        fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<crate::types::Error> {
            let Expr::Function(function) = &*expression else { return ControlFlow::Continue(()) };
            let name = function.name.to_string().to_ascii_lowercase();
            let bare = name.strip_prefix("pg_catalog.").unwrap_or(&name);
            let sets = bare == "set_config";
            if !sets && bare != "current_setting" {
                return ControlFlow::Continue(());
            }
            let ast::FunctionArguments::List(list) = &function.args else { return ControlFlow::Continue(()) };
            let text = |at: usize| match list.args.get(at) {
                Some(ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))) => constant_text(argument),
                _ => None,
            };
            let Some(name) = text(0) else {
                if let Some(ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))) = list.args.first()
                    && let Some(value) = of_row(argument)
                {
                    *expression = value;
                    return ControlFlow::Continue(());
                }
                // A parameter without a value yet: the answer will be a text.
                if !sets && let Ok(null) = parse_expression("CAST(NULL AS text)") {
                    *expression = null;
                }
                return ControlFlow::Continue(());
            };
            let value = if sets { text(1) } else { None };
            let flag = text(if sets { 2 } else { 1 }).is_some_and(|flag| flag == "true");
            match (self.0)(&name, value.as_deref(), flag) {
                Err(error) => ControlFlow::Break(error),
                Ok(value) => {
                    let value = value.map_or(ast::Value::Null, ast::Value::SingleQuotedString);
                    *expression = Expr::Cast {
                        kind: ast::CastKind::Cast,
                        expr: Box::new(Expr::value(value)),
                        data_type: DataType::Text,
                        array: false,
                        format: None,
                    };
                    ControlFlow::Continue(())
                }
            }
        }
    }
    match VisitMut::visit(query, &mut Settings(setting)) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Text | DataType::Varchar(_) | DataType::CharacterVarying(_) | DataType::CharVarying(_)
    )
}

/// The text of a literal, cast or not.
fn constant_text(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Nested(inner) => constant_text(inner),
        Expr::Cast { expr, data_type, .. } if is_text(data_type) => constant_text(expr),
        Expr::Value(value) => match &value.value {
            ast::Value::SingleQuotedString(text) => Some(text.clone()),
            ast::Value::Boolean(truth) => Some(truth.to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// True when a text may call a function of [`resolve_settings`], or reads `pg_settings`.
pub fn reads_settings(query: &Query) -> bool {
    struct Found;
    impl Visitor for Found {
        type Break = ();
        fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
            let last = relation.0.last().and_then(|part| part.as_ident());
            match last.is_some_and(|name| name.value.eq_ignore_ascii_case("pg_settings")) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        }
        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            match expression {
                Expr::Function(function) if is_setting(&function.name) => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    fn is_setting(name: &ObjectName) -> bool {
        matches!(name.0.last(), Some(ObjectNamePart::Identifier(ident))
            if ident.value.eq_ignore_ascii_case("current_setting") || ident.value.eq_ignore_ascii_case("set_config"))
    }
    query.visit(&mut Found).is_break()
}

/// What asyncpg asks of types that it does not know, in one recursive query over many tables. Our
/// types are scalars and arrays of them, so no recursion is needed.
const ASYNCPG_TYPES: &str = "SELECT t.oid AS oid, 'pg_catalog' AS ns, t.typname AS name, 'b' AS kind, \
     CAST(NULL AS int) AS basetype, t.typelem AS elemtype, ',' AS elemdelim, CAST(NULL AS int) AS range_subtype, \
     CAST(NULL AS text[]) AS attrtypoids, CAST(NULL AS text[]) AS attrnames, 0 AS depth, \
     CAST(NULL AS text) AS basetype_name, e.typname AS elemtype_name, CAST(NULL AS text) AS range_subtype_name \
     FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON t.typelem = e.oid AND t.typelem <> 0 \
     WHERE array_has(CAST($1 AS int[]), t.oid)";

fn is_asyncpg_types(query: &Query) -> bool {
    let named = |with: &ast::With| with.cte_tables.iter().any(|cte| cte.alias.name.value == "typeinfo_tree");
    query.with.as_ref().is_some_and(named)
}

/// psql asks for the publications that a table is in, with a subquery that cannot be planned. There are none.
fn no_publications(query: &Query) -> Option<Query> {
    struct Asks;
    impl Visitor for Asks {
        type Break = ();
        fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
            let asks = names_catalog(relation) && relation.to_string().to_ascii_lowercase().ends_with("pg_publication");
            if asks { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    if query.visit(&mut Asks).is_continue() {
        return None;
    }
    // All branches of the UNION have as many columns.
    let mut body = query.body.as_ref();
    while let ast::SetExpr::SetOperation { left, .. } = body {
        body = left;
    }
    let ast::SetExpr::Select(select) = body else { return None };
    let columns: Vec<String> =
        (1..=select.projection.len()).map(|column| format!("CAST(NULL AS text) AS c{column}")).collect();
    super::parser::parse_query(&format!("SELECT {} WHERE false", columns.join(", "))).ok().map(|query| *query)
}

/// A pattern whose escape is another character, with a backslash instead.
fn with_backslashes(expression: &mut Expr) {
    let (Expr::Like { pattern, escape_char, .. } | Expr::ILike { pattern, escape_char, .. }) = expression else {
        return;
    };
    let Some(ast::ValueWithSpan { value: ast::Value::SingleQuotedString(escape), .. }) = escape_char else { return };
    if escape == "\\" {
        return;
    }
    let replaced = format!("replace(x, '{}', '\\')", escape.replace('\'', "''"));
    if let Ok(Expr::Function(mut call)) = parse_expression(&replaced)
        && let ast::FunctionArguments::List(list) = &mut call.args
        && let Some(first) = list.args.first_mut()
    {
        let inner = std::mem::replace(pattern.as_mut(), Expr::value(ast::Value::Null));
        *first = ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(inner));
        **pattern = Expr::Function(call);
        *escape_char = None;
    }
}

/// The short form, about the same types.
fn asyncpg_types(query: &Query) -> Option<Query> {
    /// Finds `…::oid[]`.
    struct Asked;
    impl Visitor for Asked {
        type Break = Expr;
        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<Expr> {
            match expression {
                Expr::Cast { expr, data_type, .. } if catalog_type(data_type).is_some_and(|name| name == "oid[]") => {
                    ControlFlow::Break(expr.as_ref().clone())
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    /// Puts it in the place of `$1`.
    struct Put(Expr);
    impl VisitorMut for Put {
        type Break = ();
        fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
            if matches!(expression, Expr::Value(value) if matches!(value.value, ast::Value::Placeholder(_))) {
                *expression = self.0.clone();
            }
            ControlFlow::Continue(())
        }
    }
    let ControlFlow::Break(asked) = query.visit(&mut Asked) else { return None };
    let mut short = super::parser::parse_query(ASYNCPG_TYPES).ok()?;
    let _ = VisitMut::visit(&mut *short, &mut Put(asked));
    Some(*short)
}

/// Tables of the catalog without rows.
const EMPTY: [&str; 9] = [
    "pg_depend",
    "pg_description",
    "pg_inherits",
    "pg_policy",
    "pg_rewrite",
    "pg_sequence",
    "pg_shdescription",
    "pg_statistic_ext",
    "pg_trigger",
];

/// Columns that the tables here do not have, or not as numbers, and what stands for them: what is joined by them has no
/// rows.
const MISSING: [(&str, &str); 3] =
    [("amproc", "CAST(NULL AS int)"), ("colliculocale", "CAST(NULL AS text)"), ("tableoid", "0")];

/// Puts answers in the place of subqueries whose answer is known.
struct Answered;

impl VisitorMut for Answered {
    type Break = ();

    fn pre_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Subquery(query) = expression
            && let ast::SetExpr::Select(select) = query.body.as_ref()
            && let Some(answer) = answered(select)
        {
            *expression = answer;
        }
        if let Some(name) = named_regclass(expression)
            && let Some(number) = call("pg_regclass", vec![Expr::value(ast::Value::SingleQuotedString(name))])
        {
            *expression = number;
        }
        if let Some(name) = named_function(expression)
            && let Some(number) = call("pg_regproc", vec![Expr::value(ast::Value::SingleQuotedString(name))])
        {
            *expression = number;
        }
        if let Expr::CompoundIdentifier(parts) = &*expression
            && let Some((_, value)) =
                MISSING.iter().find(|(name, _)| parts.last().is_some_and(|part| part.value == *name))
            && let Ok(value) = parse_expression(value)
        {
            *expression = value;
        }
        // Functions are named by texts in the tables.
        if let Expr::Cast { expr, data_type, .. } = expression
            && catalog_type(data_type).is_some_and(|name| name == "regproc")
            && let Some(name) = constant_text(expr)
        {
            let bare = name.strip_prefix("pg_catalog.").unwrap_or(&name).to_owned();
            *expression = Expr::value(ast::Value::SingleQuotedString(bare));
        }
        ControlFlow::Continue(())
    }
}

/// The name of a relation without schema.
fn bare_name(factor: &ast::TableFactor) -> Option<String> {
    match factor {
        ast::TableFactor::Table { name, .. } if names_catalog(name) => match name.0.last()? {
            ObjectNamePart::Identifier(ident) => Some(ident.value.to_ascii_lowercase()),
            ObjectNamePart::Function(_) => None,
        },
        _ => None,
    }
}

/// The last part of a column's name.
fn column_name(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Identifier(ident) => Some(ident.value.to_ascii_lowercase()),
        Expr::CompoundIdentifier(parts) => Some(parts.last()?.value.to_ascii_lowercase()),
        _ => None,
    }
}

/// What stands for a subquery of one value whose answer is known: NULL over a table without rows, a
/// function where it looks for a column's default.
fn answered(select: &ast::Select) -> Option<Expr> {
    let [ast::SelectItem::UnnamedExpr(value) | ast::SelectItem::ExprWithAlias { expr: value, .. }] =
        select.projection.as_slice()
    else {
        return None;
    };
    if has_aggregate(value) {
        return None;
    }
    let tables: Vec<String> = select.from.iter().filter_map(|from| bare_name(&from.relation)).collect();
    if tables.iter().any(|table| EMPTY.contains(&table.as_str())) {
        return parse_expression("CAST(NULL AS text)").ok();
    }
    if tables != ["pg_attrdef"] {
        return None;
    }
    /// The other side of `column = …` among conditions that all hold.
    fn equal_to(condition: &Expr, column: &str) -> Option<Expr> {
        let Expr::BinaryOp { left, op, right } = condition else { return None };
        match op {
            ast::BinaryOperator::And => equal_to(left, column).or_else(|| equal_to(right, column)),
            ast::BinaryOperator::Eq if column_name(left).as_deref() == Some(column) => Some(right.as_ref().clone()),
            ast::BinaryOperator::Eq if column_name(right).as_deref() == Some(column) => Some(left.as_ref().clone()),
            _ => None,
        }
    }
    let condition = select.selection.as_ref()?;
    call("pg_column_default", vec![equal_to(condition, "adrelid")?, equal_to(condition, "adnum")?])
}

/// A call of a function.
pub(crate) fn call(name: &str, arguments: Vec<Expr>) -> Option<Expr> {
    let places: Vec<&str> = arguments.iter().map(|_| "x").collect();
    let Ok(Expr::Function(mut function)) = parse_expression(&format!("{name}({})", places.join(", "))) else {
        return None;
    };
    if let ast::FunctionArguments::List(list) = &mut function.args {
        for (place, argument) in list.args.iter_mut().zip(arguments) {
            *place = ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument));
        }
    }
    Some(Expr::Function(function))
}

/// The only, or first, argument of a call of this function.
fn argument_of<'a>(expression: &'a Expr, wanted: &str) -> Option<&'a Expr> {
    let Expr::Function(function) = expression else { return None };
    let name = function.name.to_string().to_ascii_lowercase();
    if name.rsplit('.').next() != Some(wanted) {
        return None;
    }
    let ast::FunctionArguments::List(list) = &function.args else { return None };
    match list.args.first()? {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument)) => Some(argument),
        _ => None,
    }
}

/// The numbers of an `int2vector`, which is a text here, or of an array.
fn numbers(expression: &Expr) -> Option<Expr> {
    const VECTORS: [&str; 4] = ["indclass", "indcollation", "indkey", "indoption"];
    match column_name(expression) {
        Some(name) if VECTORS.contains(&name.as_str()) => call("pg_vector_numbers", vec![expression.clone()]),
        _ => Some(expression.clone()),
    }
}

/// Vectors of column numbers as arrays, and PostgreSQL's functions that number their elements.
struct Vectors;

impl Vectors {
    fn rewritten(expression: &Expr) -> Option<Expr> {
        if let Some(array) = argument_of(expression, "unnest") {
            return call("unnest", vec![numbers(array)?]);
        }
        if let Some(array) = argument_of(expression, "generate_subscripts") {
            let array = numbers(array)?;
            // The places of a vector are counted from 0.
            let vector = argument_of(&array, "pg_vector_numbers").is_some();
            let (first, last) = if vector { ("0", "cardinality(x) - 1") } else { ("1", "cardinality(x)") };
            return series(first, last, array);
        }
        // The schemas that names without one are looked for in: `public`, behind PostgreSQL's own.
        if let Some(array) = argument_of(expression, "array_upper")
            && let Some(implicit) = argument_of(array, "current_schemas")
        {
            return parse_expression(if implicit.to_string().eq_ignore_ascii_case("true") { "2" } else { "1" }).ok();
        }
        if let Some(array) = argument_of(expression, "_pg_expandarray") {
            return call("unnest", vec![numbers(array)?]);
        }
        match expression {
            Expr::AnyOp { left, compare_op: ast::BinaryOperator::Eq, right, .. } => {
                let right = match right.as_ref() {
                    Expr::Nested(inner) => inner.as_ref(),
                    other => other,
                };
                let array = numbers(right)?;
                argument_of(&array, "pg_vector_numbers")?;
                let element = Expr::Cast {
                    kind: ast::CastKind::Cast,
                    expr: left.clone(),
                    data_type: DataType::SmallInt(None),
                    array: false,
                    format: None,
                };
                call("array_has", vec![array, element])
            }
            Expr::CompoundFieldAccess { root, access_chain } => {
                let [ast::AccessExpr::Dot(Expr::Identifier(field))] = access_chain.as_slice() else { return None };
                let root = match root.as_ref() {
                    Expr::Nested(inner) => inner.as_ref(),
                    other => other,
                };
                match (field.value.to_ascii_lowercase().as_str(), argument_of(root, "_pg_expandarray")) {
                    ("n", Some(array)) => series("1", "cardinality(x)", numbers(array)?),
                    ("x", Some(array)) => call("unnest", vec![numbers(array)?]),
                    // The whole of it stands for its element.
                    ("x", None) if matches!(root, Expr::CompoundIdentifier(_)) => Some(root.clone()),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Numbers from one to another, in which `x` is an array.
fn series(first: &str, last: &str, array: Expr) -> Option<Expr> {
    struct Put(Expr);
    impl VisitorMut for Put {
        type Break = ();
        fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
            if matches!(expression, Expr::Identifier(ident) if ident.value == "x") {
                *expression = self.0.clone();
            }
            ControlFlow::Continue(())
        }
    }
    let tokens = super::parser::parse_query(&format!("SELECT unnest(range({first}, {last} + 1))")).ok()?;
    let ast::SetExpr::Select(mut select) = *tokens.body else { return None };
    let Some(ast::SelectItem::UnnamedExpr(mut expression)) = select.projection.pop() else { return None };
    let _ = VisitMut::visit(&mut expression, &mut Put(array));
    Some(expression)
}

impl VisitorMut for Vectors {
    type Break = ();

    // From the outside in: what stands in an access is no call by itself.
    fn pre_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Some(rewritten) = Vectors::rewritten(expression)
            && rewritten != *expression
        {
            *expression = rewritten;
        }
        ControlFlow::Continue(())
    }
}

/// Subqueries in the forms that the planner takes.
struct Subqueries;

impl VisitorMut for Subqueries {
    type Break = ();

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        if let ast::SetExpr::Select(select) = query.body.as_mut() {
            for item in &mut select.projection {
                if let ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. } = item {
                    let _ = VisitMut::visit(expr, &mut Counted);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        with_backslashes(expression);
        // There are no privileges to tell of.
        if argument_of(expression, "array_to_string")
            .and_then(column_name)
            .is_some_and(|column| column.ends_with("acl"))
            && let Ok(null) = parse_expression("CAST(NULL AS text)")
        {
            *expression = null;
        }
        match expression {
            // ARRAY(SELECT …) tells of memberships and options, of which there are none.
            Expr::Function(function)
                if matches!(function.args, ast::FunctionArguments::Subquery(_))
                    && function.name.to_string().eq_ignore_ascii_case("array") =>
            {
                if let Ok(empty) = parse_expression("CAST('{}' AS text[])") {
                    *expression = empty;
                }
            }
            // One row at most, for which the planner wants an aggregate.
            Expr::Subquery(query) => {
                if let ast::SetExpr::Select(select) = query.body.as_mut()
                    && matches!(&select.group_by, ast::GroupByExpr::Expressions(keys, _) if keys.is_empty())
                    && let [ast::SelectItem::UnnamedExpr(expr) | ast::SelectItem::ExprWithAlias { expr, .. }] =
                        select.projection.as_mut_slice()
                    && !has_aggregate(expr)
                    && !select.from.is_empty()
                    && let Ok(Expr::Function(mut first)) = parse_expression("first_value(x)")
                {
                    if let ast::FunctionArguments::List(list) = &mut first.args
                        && let Some(argument) = list.args.first_mut()
                    {
                        let inner = std::mem::replace(expr, Expr::value(ast::Value::Null));
                        *argument = ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(inner));
                    }
                    *expr = Expr::Function(first);
                    query.order_by = None;
                    query.limit_clause = None;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn has_aggregate(expression: &Expr) -> bool {
    const AGGREGATES: [&str; 8] = ["count", "array_agg", "string_agg", "max", "min", "sum", "bool_or", "bool_and"];
    struct Found;
    impl Visitor for Found {
        type Break = ();
        fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
            let name = match expression {
                Expr::Function(function) => function.name.to_string().to_ascii_lowercase(),
                _ => return ControlFlow::Continue(()),
            };
            let bare = name.strip_prefix("pg_catalog.").unwrap_or(&name);
            if AGGREGATES.contains(&bare) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    expression.visit(&mut Found).is_break()
}

/// EXISTS among the result's columns, as a count.
struct Counted;

impl VisitorMut for Counted {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Exists { subquery, negated } = expression
            && let ast::SetExpr::Select(select) = subquery.body.as_mut()
            && let Ok(count) = parse_expression(if *negated { "count(*) = 0" } else { "count(*) > 0" })
        {
            select.projection = vec![ast::SelectItem::UnnamedExpr(count)];
            *expression = Expr::Subquery(subquery.clone());
        }
        ControlFlow::Continue(())
    }
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

/// True for `oid[]`.
pub(crate) fn is_oid_array(data_type: &DataType) -> bool {
    catalog_type(data_type).is_some_and(|name| name == "oid[]")
}

/// The type that columns of one of the catalog's types have here; `None` for other types.
pub(crate) fn stored_type(data_type: &DataType) -> Option<DataType> {
    let name = catalog_type(data_type)?;
    // char(n) is no type of the catalog, "char" is.
    if name == "char" && !data_type.to_string().contains('"') {
        return None;
    }
    let array = name.ends_with("[]");
    let item = match name.trim_end_matches("[]") {
        "oid" | "xid" | "int4" => DataType::Int(None),
        "int2" => DataType::SmallInt(None),
        "int8" => DataType::BigInt(None),
        "bool" => DataType::Boolean,
        _ => DataType::Text,
    };
    Some(if array { DataType::Array(ast::ArrayElemTypeDef::SquareBracket(Box::new(item), None)) } else { item })
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
            Expr::Cast { data_type, .. } => stored_type(data_type).is_some(),
            Expr::BinaryOp { op: ast::BinaryOperator::PGCustomBinaryOperator(_), .. } => true,
            _ => false,
        };
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// True for literals and parameters that are texts.
fn is_text_constant(expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_text_constant(inner),
        Expr::Cast { expr, data_type, .. } => is_text(data_type) && is_text_constant(expr),
        Expr::Value(value) => {
            matches!(&value.value, ast::Value::SingleQuotedString(text) if text.parse::<u32>().is_err())
                // A parameter that has no value yet is NULL.
                || matches!(value.value, ast::Value::Placeholder(_) | ast::Value::Null)
        }
        _ => false,
    }
}

/// Gives casts to the catalog's types the types that its tables have.
struct Types;

impl VisitorMut for Types {
    type Break = ();

    fn post_visit_expr(&mut self, expression: &mut Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr, data_type, .. } = expression
            && let Some(stored) = stored_type(data_type)
        {
            // The number of the relation that a text names.
            if catalog_type(data_type).is_some_and(|name| name == "regclass")
                && is_text_constant(expr)
                && let Some(number) = call("to_regclass", vec![expr.as_ref().clone()])
            {
                *expression = number;
                return ControlFlow::Continue(());
            }
            *data_type = stored;
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
