//! `SHOW CREATE`: a statement in its documented form, that makes the same object when run again.

use super::event_clauses::{show_emit, show_watermark};
use super::names::quoted;
use super::statement::{
    ColumnDefinition, CreateFunction, CreateMaterializedView, CreateTable, CreateView, FunctionVolatility, Name,
};
use super::types::sql_name;

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// The text of `CREATE TABLE`.
pub fn table(table: &CreateTable) -> String {
    let mut parts: Vec<String> = table.columns.iter().map(column).collect();
    if !table.primary_key.is_empty() {
        let names: Vec<String> = table
            .primary_key
            .iter()
            .filter_map(|index| table.columns.get(*index))
            .map(|column| quoted(&column.name))
            .collect();
        parts.push(format!("PRIMARY KEY ({})", names.join(", ")));
    }
    parts.extend(table.watermark.as_ref().map(show_watermark));
    let mut text = format!("CREATE TABLE {} (", table.name.to_sql());
    if !parts.is_empty() {
        text.push_str(&format!("\n    {}\n", parts.join(",\n    ")));
    }
    text.push(')');
    if table.append_only {
        text.push_str(" APPEND ONLY");
    }
    if !table.options.is_empty() || !table.time_options.is_empty() {
        // The maps keep them in order of their keys.
        let options: Vec<String> = table
            .options
            .iter()
            .chain(&table.time_options)
            .map(|(key, value)| format!("{} = {}", literal(key), literal(&value.text)))
            .collect();
        text.push_str(&format!(" WITH (\n    {}\n)", options.join(",\n    ")));
    }
    text
}

/// The text of `CREATE INDEX`.
pub fn index(name: &str, relation: &Name, columns: &[String]) -> String {
    let columns: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
    format!("CREATE INDEX {} ON {} ({})", quoted(name), relation.to_sql(), columns.join(", "))
}

fn column(column: &ColumnDefinition) -> String {
    let mut text = format!("{} {}", quoted(&column.name), column.sql_type);
    if !column.nullable {
        text.push_str(" NOT NULL");
    }
    if let Some(computed) = &column.computed {
        text.push_str(&format!(" GENERATED ALWAYS AS ({computed})"));
    }
    if let Some(default) = &column.default {
        // In parentheses any expression may follow DEFAULT.
        text.push_str(&match default {
            sqlparser::ast::Expr::Value(_) | sqlparser::ast::Expr::Nested(_) => {
                format!(" DEFAULT {default}")
            }
            default => format!(" DEFAULT ({default})"),
        });
    }
    text
}

fn columns(columns: &[String]) -> String {
    if columns.is_empty() {
        return String::new();
    }
    let names: Vec<String> = columns.iter().map(|column| quoted(column)).collect();
    format!(" ({})", names.join(", "))
}

/// The text of `CREATE VIEW`.
pub fn view(view: &CreateView) -> String {
    format!("CREATE VIEW {}{} AS\n{}", view.name.to_sql(), columns(&view.columns), view.query_text)
}

/// The text of `CREATE MATERIALIZED VIEW`. How it was filled is no part of what it is.
pub fn materialized_view(view: &CreateMaterializedView) -> String {
    let mut options: Vec<String> = Vec::new();
    if view.fail_on_error {
        options.push("on_error = 'fail'".to_owned());
    }
    options.extend(view.retain_history.as_ref().map(|time| format!("retain_history = {}", literal(&time.text))));
    options.extend(view.state_backend.as_ref().map(|uri| format!("state_backend = {}", literal(&uri.text))));
    options.extend(view.state_ttl.as_ref().map(|time| format!("state_ttl = {}", literal(&time.text))));
    let options = if options.is_empty() { String::new() } else { format!(" WITH ({})", options.join(", ")) };
    format!(
        "CREATE MATERIALIZED VIEW {}{}{options} AS\n{}{}",
        view.name.to_sql(),
        columns(&view.columns),
        view.query_text,
        show_emit(view.emit)
    )
}

/// The text of `CREATE FUNCTION`.
pub fn function(function: &CreateFunction) -> String {
    let parameters = function.parameters.iter().map(|parameter| match &parameter.name {
        Some(name) => format!("{} {}", quoted(name), sql_name(&parameter.data_type)),
        None => sql_name(&parameter.data_type),
    });
    let parameters = parameters.collect::<Vec<_>>().join(", ");
    let mut text =
        format!("CREATE FUNCTION {}({parameters}) RETURNS {}", function.name.to_sql(), sql_name(&function.returns));
    text.push_str(match function.volatility {
        Some(FunctionVolatility::Immutable) => " IMMUTABLE",
        Some(FunctionVolatility::Stable) => " STABLE",
        None => "",
    });
    if function.strict {
        text.push_str(" STRICT");
    }
    format!("{text}\nRETURN {}", function.body)
}

#[cfg(test)]
mod tests {
    use crate::sql::{StatementKind, parse};

    fn shown(text: &str) -> String {
        let statements = parse(text).expect(text);
        match &statements.first().expect("a statement").kind {
            StatementKind::CreateTable(table) => super::table(table),
            StatementKind::CreateView(view) => super::view(view),
            StatementKind::CreateMaterializedView(view) => super::materialized_view(view),
            StatementKind::CreateFunction(function) => super::function(function),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_shown_means_the_same_again() {
        for text in [
            "create table T (A int primary key, \"Group\" string default 'it''s', c numeric(12,2) not null default 1 + 2, d int[])",
            "create table s.t (a timestamp(3), b timestamp_ltz(3), primary key (b, a)) append only",
            "CREATE TABLE k (\"table\" TEXT, \"order\" INT, m MAP<text, STRUCT<a int, b array<text>>>)",
            "create table g (a int, b int generated always as (a + 1) stored, \"C\" text not null generated always as (a::text)) with (connector = 'file')",
            "create table e () with (connector = 'file', properties.x.y = 5, 'Path' = 'it''s', on = true)",
            "create view V (Low, \"High\") as select 1, 2 -- the end",
            "create materialized view v with (background = true) as select \"table\" as \"select\" from k",
            "create materialized view v with (on_error = fail) as select 1 / a as x from t",
            "create materialized view v with (retain_history = '1 hour') as select a from t",
            "create function F(\"A\" int, b text[]) returns numeric(10,2) immutable strict language sql as 'select a + $1'",
            "create or replace function s.f() returns timestamptz return now()",
        ] {
            let once = shown(text);
            assert_eq!(shown(&once), once, "{text}");
        }
        assert_eq!(
            shown("create table T (A int primary key, b string) with (b = 1, a = 'x')"),
            "CREATE TABLE t (\n    a integer NOT NULL,\n    b text,\n    PRIMARY KEY (a)\n) WITH (\n    'a' = 'x',\n    'b' = '1'\n)"
        );
        assert_eq!(
            shown("create materialized view m(Low,\"High\") as  SELECT 1,2"),
            "CREATE MATERIALIZED VIEW m (low, \"High\") AS\nSELECT 1,2"
        );
    }
}
