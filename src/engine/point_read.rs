//! The rows of one key without planning: `SELECT columns FROM relation WHERE key = value AND …`.
//!
//! Planning such a query takes many times as long as finding its row. What is not of this form, or needs more than a look at
//! its words to be understood, is planned as every query is, errors included.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use sqlparser::ast::{self, BinaryOperator, Expr, SelectItem, SetExpr, TableFactor, Value};

use crate::catalog::{Catalog, Definition, Object};
use crate::sql;
use crate::types::{CHUNK_ROWS_MAX, Result};

use super::api::GivenKey;
use super::coordinator::{PageRequest, Pin, ReadBound};
use super::database::Engine;
use super::read::after_sources;
use super::scan::key_values_of;
use super::scan_exec::with_schema;

/// A query for the row of one key.
pub(crate) struct PointRead {
    object: Arc<Object>,
    /// The columns that are asked for, and what they are called.
    columns: Vec<(usize, String)>,
    /// A value for each column of the key.
    key: Vec<GivenKey>,
}

impl PointRead {
    /// The query as one for the row of a key, when it is nothing else.
    pub(crate) fn of(query: &ast::Query, catalog: &Catalog) -> Option<PointRead> {
        let SetExpr::Select(select) = query.body.as_ref() else { return None };
        let ([from], Some(selection)) = (select.from.as_slice(), &select.selection) else { return None };
        let TableFactor::Table { name, .. } = &from.relation else { return None };
        let mut equalities = Vec::new();
        if !from.joins.is_empty() || !collect_equalities(selection, &mut equalities) {
            return None;
        }
        let name = sql::object_name(name).ok()?;
        let object = catalog.find(name.schema.as_deref(), &name.name)?;
        let is_kept = match &object.definition {
            Definition::Table(_) => !object.is_external(),
            Definition::MaterializedView(_) => true,
            _ => false,
        };
        let (schema, key) = (object.row_schema()?, object.key());
        if !is_kept || key.is_empty() || key.len() != equalities.len() {
            return None;
        }
        let mut given = Vec::with_capacity(key.len());
        for field in key.iter().map(|column| schema.field(*column)) {
            let (_, value) = equalities.iter().find(|(column, _)| sql::folded(column) == *field.name())?;
            given.push((Some(field.name().clone()), Some(text_of(value, field.data_type())?)));
        }
        let columns = columns_of(&select.projection, &schema)?;
        is_plain(query, select, selection).then(|| PointRead { object: Arc::clone(object), columns, key: given })
    }

    /// Finds the row; `None` when a value is none of its column, which planning words.
    ///
    /// # Errors
    /// Those of [`super::coordinator::Coordinator::pin`].
    pub(crate) async fn find(self, engine: Arc<Engine>, bound: ReadBound) -> Result<Option<Found>> {
        let Some(schema) = self.object.row_schema() else { return Ok(None) };
        let Ok(keys) = key_values_of(&self.object.name, &schema, self.object.key(), &self.key) else { return Ok(None) };
        let reads = [self.object.id];
        let bound = after_sources(&engine, &reads, bound).await?;
        let pin = engine.coordinator().pin(&reads, bound).await?;
        let projection: Vec<usize> = self.columns.iter().map(|(column, _)| *column).collect();
        let named = |(column, name): &(usize, String)| schema.field(*column).clone().with_name(name);
        let shown: SchemaRef = Arc::new(Schema::new(self.columns.iter().map(named).collect::<Vec<Field>>()));
        let page = PageRequest {
            relation: self.object.id,
            projection,
            predicate: None,
            rows_max: CHUNK_ROWS_MAX,
            narrow: None,
        };
        let rows = pin.lookup(&page, &keys, None).await?;
        let rows = with_schema(&rows, &shown).map_err(super::error_of)?;
        let rows = futures::stream::iter([Ok(rows)]);
        let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&shown), rows));
        Ok(Some(Found { pin, schema: shown, rows }))
    }
}

/// The row of a key, if there is one.
pub(crate) struct Found {
    /// The time at which it was read.
    pub(crate) pin: Pin,
    pub(crate) schema: SchemaRef,
    pub(crate) rows: SendableRecordBatchStream,
}

/// The sides of `a = 1 AND b = 'x'`; false for any other condition.
fn collect_equalities<'a>(condition: &'a Expr, found: &mut Vec<(&'a ast::Ident, &'a Expr)>) -> bool {
    match condition {
        Expr::Nested(inner) => collect_equalities(inner, found),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            collect_equalities(left, found) && collect_equalities(right, found)
        }
        Expr::BinaryOp { left, op: BinaryOperator::Eq, right } => match (left.as_ref(), right.as_ref()) {
            (Expr::Identifier(column), value) | (value, Expr::Identifier(column)) => {
                found.push((column, value));
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// The text of a value that is compared with a column of that type as such, without a conversion of the column.
fn text_of(value: &Expr, column: &DataType) -> Option<String> {
    match value {
        Expr::Nested(inner) => text_of(inner, column),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) if is_exact(column) => Some(text.clone()),
            Value::Number(digits, false) if column.is_integer() => is_integer(digits).then(|| digits.clone()),
            _ => None,
        },
        // A parameter's value.
        Expr::Cast { kind: ast::CastKind::Cast | ast::CastKind::DoubleColon, expr, data_type, .. } => {
            let Expr::Value(value) = expr.as_ref() else { return None };
            let Value::SingleQuotedString(text) = &value.value else { return None };
            let fits = match data_type {
                ast::DataType::SmallInt(_) => column.is_integer() && text.parse::<i16>().is_ok(),
                ast::DataType::Int(_) | ast::DataType::Integer(_) => column.is_integer() && text.parse::<i32>().is_ok(),
                ast::DataType::BigInt(_) => column.is_integer() && text.parse::<i64>().is_ok(),
                ast::DataType::Text => matches!(column, DataType::Utf8),
                _ => false,
            };
            fits.then(|| text.clone())
        }
        _ => None,
    }
}

/// Types whose values are equal when their bytes are.
fn is_exact(column: &DataType) -> bool {
    column.is_integer() || matches!(column, DataType::Utf8)
}

fn is_integer(digits: &str) -> bool {
    digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn columns_of(items: &[SelectItem], schema: &Schema) -> Option<Vec<(usize, String)>> {
    let mut columns = Vec::with_capacity(items.len());
    for item in items {
        let (column, name) = match item {
            SelectItem::Wildcard(_) if item.to_string() == "*" => {
                columns.extend(schema.fields().iter().enumerate().map(|(at, field)| (at, field.name().clone())));
                continue;
            }
            SelectItem::UnnamedExpr(Expr::Identifier(column)) => (column, column),
            SelectItem::ExprWithAlias { expr: Expr::Identifier(column), alias } => (column, alias),
            _ => return None,
        };
        columns.push((schema.index_of(&sql::folded(column)).ok()?, sql::folded(name)));
    }
    Some(columns)
}

/// True when the query has these parts and no others.
fn is_plain(query: &ast::Query, select: &ast::Select, selection: &Expr) -> bool {
    let Some(TableFactor::Table { name, .. }) = select.from.first().map(|from| &from.relation) else { return false };
    let items: Vec<String> = select.projection.iter().map(ToString::to_string).collect();
    query.to_string() == format!("SELECT {} FROM {name} WHERE {selection}", items.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(text: &str) -> (Box<ast::Query>, bool) {
        let query = sql::parse_query(text).unwrap();
        let SetExpr::Select(select) = query.body.as_ref() else { panic!("not a SELECT") };
        let plain = is_plain(&query, select, select.selection.as_ref().unwrap());
        (query.clone(), plain)
    }

    #[test]
    fn a_query_with_more_than_columns_relation_and_condition_is_not_plain() {
        for plain in ["SELECT a, b AS c FROM v WHERE k = 1", "SELECT * FROM s.v WHERE k = 'x' AND (\"J\" = $1::bigint)"]
        {
            assert!(select(plain).1, "{plain}");
        }
        for more in [
            "SELECT DISTINCT a FROM v WHERE k = 1",
            "SELECT a FROM v AS w WHERE k = 1",
            "SELECT a FROM v WHERE k = 1 LIMIT 0",
            "SELECT a FROM v WHERE k = 1 OFFSET 1",
            "SELECT a FROM v WHERE k = 1 ORDER BY a",
            "SELECT a FROM v WHERE k = 1 GROUP BY a",
            "SELECT a FROM v WHERE k = 1 HAVING true",
            "SELECT a FROM v, w WHERE k = 1",
            "WITH w AS (SELECT 1) SELECT a FROM v WHERE k = 1",
            "SELECT a FROM v TABLESAMPLE SYSTEM (1) WHERE k = 1",
            "SELECT a FROM v WHERE k = 1 FOR UPDATE",
        ] {
            assert!(!select(more).1, "{more}");
        }
    }

    #[test]
    fn values_are_taken_where_the_column_need_not_be_converted() {
        let condition = |text: &str| {
            let (query, _) = select(&format!("SELECT a FROM v WHERE {text}"));
            let SetExpr::Select(select) = *query.body else { panic!("not a SELECT") };
            select.selection.unwrap()
        };
        let value = |text: &str, column: &DataType| {
            let equality = condition(&format!("k = {text}"));
            let mut found = Vec::new();
            assert!(collect_equalities(&equality, &mut found));
            text_of(found[0].1, column)
        };
        assert_eq!(value("17", &DataType::Int64).as_deref(), Some("17"));
        assert_eq!(value("'17'", &DataType::Int32).as_deref(), Some("17"));
        assert_eq!(value("'17'::smallint", &DataType::Int64).as_deref(), Some("17"));
        assert_eq!(value("'x'::text", &DataType::Utf8).as_deref(), Some("x"));
        assert_eq!(value("1.5", &DataType::Int64), None);
        assert_eq!(value("17", &DataType::Utf8), None, "text is not compared with numbers");
        assert_eq!(value("99999::smallint", &DataType::Int64), None);
        assert_eq!(value("'99999'::smallint", &DataType::Int64), None, "out of range");
        assert_eq!(value("'1'", &DataType::Float64), None, "0 and -0 are equal, and not the same");
        assert_eq!(value("'1'::bigint", &DataType::Utf8), None);
        for other in ["k = 1 OR k = 2", "k > 1", "NOT k = 1"] {
            assert!(!collect_equalities(&condition(other), &mut Vec::new()), "{other}");
        }
    }
}
