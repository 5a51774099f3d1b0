//! INSERT.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, new_null_array};
use arrow::datatypes::{DataType, Field, Schema};
use sqlparser::ast::{self, Expr, OnInsert, Query, SelectItem, SetExpr, TableObject, UnaryOperator, Value};

use crate::catalog::{Catalog, Table, TableColumn};
use crate::engine::api::{Answer, Tag};
use crate::engine::database::{Engine, RowTables};
use crate::engine::interrupt::Interrupt;
use crate::engine::relations::ROWS_SCHEMA;
use crate::engine::session::Session;
use crate::sql::folded;
use crate::types::{Chunk, Error, Result, SqlState, TimeZone};

use super::assign::{coerce, coerce_literals, mismatch, table_rows, text_of, typed};
use super::conflict::{self, OnKey};
use super::evaluate::{Evaluator, named_item, position, rows_table, select};
use super::statement::{self, Changes, Target, answer, column_index, object_name, returned, turns, write};

/// The table of an INSERT.
///
/// # Errors
/// As [`statement::target`].
pub(crate) fn target(engine: &Engine, catalog: &Catalog, insert: &ast::Insert) -> Result<Target> {
    let TableObject::TableName(name) = &insert.table else {
        return Err(Error::unsupported("INSERT into something that is not a table is not supported")
            .hint("Name a table: INSERT INTO t ..."));
    };
    statement::target(engine, catalog, &object_name(name)?, "INSERT")
}

/// `INSERT`.
pub(crate) async fn insert(session: &mut Session, insert: &ast::Insert, interrupt: &Interrupt) -> Result<Answer> {
    let catalog = session.engine().catalog();
    let target = target(session.engine(), &catalog, insert)?;
    refuse_others(insert)?;
    let alias = insert.table_alias.as_ref().map(|alias| folded(&alias.alias));
    let into = named_columns(&target, insert)?;
    let on_key = on_key(&target, insert)?;

    // A key is looked up before it is written, and nobody may write it in between.
    let keyed = !target.table.key.is_empty();
    let turns = if keyed { turns(session, [&target], interrupt).await? } else { Vec::new() };
    let evaluator = statement::evaluator(session, &catalog, &target, interrupt);
    let proposed = proposed(&evaluator, &target, &into, !insert.columns.is_empty(), insert.source.as_deref()).await?;
    let outcome = if keyed {
        conflict::resolve(&evaluator, &target, alias.as_deref(), proposed, &on_key).await?
    } else {
        conflict::Outcome::all_new(proposed)
    };

    let result = outcome.result()?;
    let count = u64::try_from(result.num_rows()).unwrap_or(u64::MAX);
    let returned = returned(&evaluator, &target, alias.as_deref(), insert.returning.as_ref(), result).await?;
    let mut chunks = Chunk::inserts(&outcome.inserted);
    chunks.extend(outcome.changed.iter().flat_map(|(rows, diffs)| Chunk::changes(rows, diffs)));
    write(session, vec![Changes { target: &target, chunks }], turns, interrupt).await?;
    Ok(answer(Tag::Insert(count), returned))
}

/// Other systems' forms that the parser knows.
fn refuse_others(insert: &ast::Insert) -> Result<()> {
    let other = insert.or.is_some()
        || insert.ignore
        || insert.overwrite
        || insert.replace_into
        || insert.partitioned.is_some()
        || !insert.assignments.is_empty()
        || !insert.after_columns.is_empty()
        || insert.output.is_some()
        || insert.insert_alias.is_some()
        || insert.settings.is_some()
        || insert.format_clause.is_some();
    if other {
        return Err(Error::unsupported("this form of INSERT is not supported")
            .hint("Write INSERT INTO t (columns) VALUES (...) | SELECT ... [ON CONFLICT ...] [RETURNING ...]."));
    }
    Ok(())
}

/// The columns that the statement gives values for, in its order.
///
/// # Errors
/// 42703, 42701.
pub(crate) fn named_columns(target: &Target, insert: &ast::Insert) -> Result<Vec<usize>> {
    if insert.columns.is_empty() {
        return Ok((0..target.table.columns.len()).collect());
    }
    let mut columns = Vec::with_capacity(insert.columns.len());
    for name in &insert.columns {
        let index = column_index(target, name)?;
        if columns.contains(&index) {
            return Err(Error::new(SqlState::DuplicateColumn, format!("column \"{name}\" specified more than once"))
                .hint("Name it once.")
                .position_or(position(name)));
        }
        columns.push(index);
    }
    Ok(columns)
}

fn on_key<'a>(target: &Target, insert: &'a ast::Insert) -> Result<OnKey<'a>> {
    match &insert.on {
        None => Ok(OnKey::Fail),
        Some(OnInsert::OnConflict(on)) => conflict::on_key(target, on),
        Some(_) => Err(Error::unsupported("ON DUPLICATE KEY UPDATE is not supported")
            .hint("Write ON CONFLICT (key) DO UPDATE SET column = excluded.column.")),
    }
}

/// All rows that the statement proposes, as rows of the table.
async fn proposed(
    evaluator: &Evaluator,
    target: &Target,
    into: &[usize],
    columns_named: bool,
    source: Option<&Query>,
) -> Result<RecordBatch> {
    let table = &target.table;
    let given = into.iter().filter_map(|index| table.columns.get(*index)).collect::<Vec<_>>();
    let (values, rows) = match source {
        // DEFAULT VALUES.
        None => (Vec::new(), 1),
        Some(query) => match literal_values(query, &given, &evaluator.zone)? {
            Some(values) => values,
            None => queried_values(evaluator, query, &given).await?,
        },
    };
    if values.len() > given.len() {
        return Err(too_many(source, given.len()));
    }
    if columns_named && source.is_some() && values.len() < given.len() {
        return Err(Error::new(SqlState::SyntaxError, "INSERT has more target columns than expressions")
            .hint(format!("Give {} values for each row.", given.len())));
    }
    let mut columns: Vec<Option<ArrayRef>> = vec![None; table.columns.len()];
    for (index, array) in into.iter().zip(values) {
        if let Some(column) = columns.get_mut(*index) {
            *column = Some(array);
        }
    }
    let columns = with_defaults(evaluator, table, columns, rows).await?;
    table_rows(table, &target.name, columns)
}

/// The error for values without a column, at the first of them.
fn too_many(source: Option<&Query>, most: usize) -> Error {
    let first = source.and_then(|query| match query.body.as_ref() {
        SetExpr::Values(values) => values.rows.first()?.content.get(most).and_then(position),
        SetExpr::Select(select) => select.projection.get(most).and_then(position),
        _ => None,
    });
    Error::new(SqlState::SyntaxError, "INSERT has more expressions than target columns")
        .hint(format!("Give {most} values for each row."))
        .position_or(first)
}

/// Fills the columns that the statement does not give: with their default, else NULL.
///
/// # Errors
/// Those of the defaults.
pub(crate) async fn with_defaults(
    evaluator: &Evaluator,
    table: &Table,
    columns: Vec<Option<ArrayRef>>,
    rows: usize,
) -> Result<Vec<ArrayRef>> {
    let mut items = Vec::new();
    let mut defaulted = Vec::new();
    for (index, (column, given)) in table.columns.iter().zip(&columns).enumerate() {
        if let (None, Some(default)) = (given, &column.default) {
            items.push(named_item(typed(default, column)?, &format!("default {index}")));
            defaulted.push(index);
        }
    }
    let mut defaults: Vec<ArrayRef> = Vec::new();
    if !items.is_empty() {
        // A query over as many rows, so that a volatile default has a value for each.
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row as i64)));
        let schema = Arc::new(Schema::new(vec![Field::new("row", DataType::Int64, false)]));
        let batch = RecordBatch::try_new(schema, vec![numbers])?;
        let query = select(items, &format!("{ROWS_SCHEMA}.proposed"), None)?;
        let collected = evaluator.query(query, RowTables::from([("proposed".to_owned(), rows_table(batch)?)])).await?;
        defaults = collected.concat()?.columns().to_vec();
    }
    let mut defaults = defaulted.into_iter().zip(defaults).collect::<std::collections::HashMap<_, _>>();
    let mut filled = Vec::with_capacity(columns.len());
    for (index, (column, given)) in table.columns.iter().zip(columns).enumerate() {
        filled.push(match (given, defaults.remove(&index)) {
            (Some(given), _) => given,
            (None, Some(default)) => coerce(&default, column, false)?,
            (None, None) => new_null_array(&column.data_type, rows),
        });
    }
    Ok(filled)
}

/// The columns of `VALUES` when all its cells are literals: built a column at a time, without
/// planning each cell. `None`: it takes a query.
fn literal_values(query: &Query, given: &[&TableColumn], zone: &TimeZone) -> Result<Option<(Vec<ArrayRef>, usize)>> {
    let plain =
        query.with.is_none() && query.order_by.is_none() && query.limit_clause.is_none() && query.fetch.is_none();
    let SetExpr::Values(values) = query.body.as_ref() else {
        return Ok(None);
    };
    let Some(width) = values.rows.first().map(|row| row.content.len()) else {
        return Ok(None);
    };
    let same_width = values.rows.iter().all(|row| row.content.len() == width);
    if !plain || !same_width || width > given.len() {
        return Ok(None);
    }
    let mut columns = Vec::with_capacity(width);
    for (index, column) in given.iter().take(width).enumerate() {
        let mut texts: Vec<Option<std::borrow::Cow<'_, str>>> = Vec::with_capacity(values.rows.len());
        for row in &values.rows {
            let Some(cell) = row.content.get(index) else {
                return Ok(None);
            };
            match literal(cell, column)? {
                Some(text) => texts.push(text),
                None => return Ok(None),
            }
        }
        let array: ArrayRef = Arc::new(StringArray::from_iter(texts.iter().map(Option::as_deref)));
        let coerced = coerce_literals(&array, column, zone).map_err(|error| {
            // Which cell it was is only looked for when one of them is bad.
            let bad = (0..array.len()).find(|row| coerce_literals(&array.slice(*row, 1), column, zone).is_err());
            let cell = bad.and_then(|row| values.rows.get(row)).and_then(|row| row.content.get(index));
            error.position_or(cell.and_then(position))
        })?;
        columns.push(coerced);
    }
    Ok(Some((columns, values.rows.len())))
}

/// A literal's text as input of the column's type, inside `None` for NULL; `None` when the cell
/// takes more than that.
#[expect(
    clippy::option_option,
    reason = "the outer one says whether the cell is such a literal, the inner one is NULL"
)]
fn literal<'a>(cell: &'a Expr, column: &'a TableColumn) -> Result<Option<Option<std::borrow::Cow<'a, str>>>> {
    use std::borrow::Cow;
    let number = |text: &str| -> Result<bool> {
        let whole = text.bytes().all(|byte| byte.is_ascii_digit());
        // PostgreSQL shows the number when it becomes text; only these look the same.
        let shown = whole && (text == "0" || !text.starts_with('0'));
        let decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match &column.data_type {
            to if to.is_integer() => Ok(whole),
            to if to.is_decimal() || to.is_floating() => Ok(decimal),
            DataType::Utf8 => Ok(shown),
            _ => {
                let from = if whole { DataType::Int32 } else { DataType::Decimal128(38, 10) };
                Err(mismatch(column, &from, "expression").position_or(position(cell)))
            }
        }
    };
    match cell {
        Expr::Value(value) => match &value.value {
            Value::Null => Ok(Some(None)),
            Value::Number(text, _) => Ok(number(text)?.then_some(Some(Cow::Borrowed(text.as_str())))),
            Value::Boolean(truth) => match column.data_type {
                DataType::Boolean | DataType::Utf8 => {
                    Ok(Some(Some(Cow::Borrowed(if *truth { "true" } else { "false" }))))
                }
                _ => Err(mismatch(column, &DataType::Boolean, "expression").position_or(position(cell))),
            },
            other => Ok(text_of(other).map(|text| Some(Cow::Borrowed(text)))),
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match expr.as_ref() {
            Expr::Value(value) => match &value.value {
                Value::Number(text, _) if text != "0" && number(text)? => {
                    Ok(Some(Some(Cow::Owned(format!("-{text}")))))
                }
                _ => Ok(None),
            },
            _ => Ok(None),
        },
        _ if is_default(cell) => match &column.default {
            None => Ok(Some(None)),
            Some(default) if is_default(default) => Ok(None),
            Some(default) => literal(default, column),
        },
        _ => Ok(None),
    }
}

/// The word DEFAULT in the place of a value.
pub(crate) fn is_default(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(ident) if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

/// The default of a column as an expression.
pub(crate) fn default_of(column: &TableColumn) -> Expr {
    column.default.clone().unwrap_or_else(|| Expr::Value(Value::Null.into()))
}

/// The columns of any query, cast to the columns of the table.
async fn queried_values(
    evaluator: &Evaluator,
    query: &Query,
    given: &[&TableColumn],
) -> Result<(Vec<ArrayRef>, usize)> {
    let mut typed = query.clone();
    type_literals(&mut typed, given)?;
    let collected = evaluator.query(typed, RowTables::new()).await?;
    let rows = collected.concat()?;
    if rows.num_columns() > given.len() {
        return Err(too_many(Some(query), given.len()));
    }
    let mut columns = Vec::with_capacity(rows.num_columns());
    for (values, column) in rows.columns().iter().zip(given) {
        columns.push(coerce(values, column, false)?);
    }
    Ok((columns, rows.num_rows()))
}

/// Gives literals without a type of their own the type of the column that they go to, and puts
/// defaults in: in VALUES, and in the items of a SELECT up to its first `*`.
fn type_literals(query: &mut Query, given: &[&TableColumn]) -> Result<()> {
    match query.body.as_mut() {
        SetExpr::Values(values) => {
            let width = values.rows.first().map_or(0, |row| row.content.len());
            for row in &mut values.rows {
                if row.content.len() != width {
                    let at = row.content.last().and_then(position);
                    return Err(Error::new(SqlState::SyntaxError, "VALUES lists must all be the same length")
                        .hint(format!("The first list has {width} values."))
                        .position_or(at));
                }
                for (cell, column) in row.content.iter_mut().zip(given) {
                    let value = if is_default(cell) { default_of(column) } else { cell.clone() };
                    *cell = typed(&value, column)?;
                }
            }
        }
        SetExpr::Select(select) => {
            for (item, column) in select.projection.iter_mut().zip(given) {
                match item {
                    SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                        *expr = typed(expr, column)?
                    }
                    // How many columns it stands for is not known here.
                    _ => break,
                }
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlparser::dialect::PostgreSqlDialect;
    use sqlparser::parser::Parser;

    fn column(data_type: DataType) -> TableColumn {
        TableColumn {
            name: "c".into(),
            sql_type: "text".into(),
            data_type,
            length_max: None,
            nullable: true,
            default: None,
        }
    }

    fn cell(sql: &str, data_type: DataType) -> Result<Option<Option<String>>> {
        let expr = Parser::new(&PostgreSqlDialect {}).try_with_sql(sql).unwrap().parse_expr().unwrap();
        let column = column(data_type);
        literal(&expr, &column).map(|found| found.map(|text| text.map(|text| text.into_owned())))
    }

    #[test]
    fn literals_are_taken_as_text_only_where_that_means_the_same() {
        let text = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(cell("12", DataType::Int32).unwrap(), text("12"));
        assert_eq!(cell("-12", DataType::Int32).unwrap(), text("-12"));
        assert_eq!(cell("2.5", DataType::Int32).unwrap(), None, "is rounded by a query");
        assert_eq!(cell("2.5", DataType::Decimal128(12, 2)).unwrap(), text("2.5"));
        assert_eq!(cell("007", DataType::Utf8).unwrap(), None, "becomes 7");
        assert_eq!(cell("'007'", DataType::Utf8).unwrap(), text("007"));
        assert_eq!(cell("NULL", DataType::Int32).unwrap(), Some(None));
        assert_eq!(cell("1 + 1", DataType::Int32).unwrap(), None);
        assert_eq!(cell("true", DataType::Int32).unwrap_err().code(), SqlState::DatatypeMismatch);
        assert_eq!(cell("1", DataType::Boolean).unwrap_err().code(), SqlState::DatatypeMismatch);
    }
}
