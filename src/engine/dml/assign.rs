//! What a value becomes when it is stored in a column.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;
use sqlparser::ast::{self, CastKind, Expr, Value};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use crate::catalog::{Table, TableColumn};
use crate::sql;
use crate::types::{Error, Result, SqlState, TimeZone};

/// An expression with the column's type put on it when it has none of its own: a string or NULL.
///
/// # Errors
/// 0A000 for a column of a type without such literals.
pub(crate) fn typed(expr: &Expr, column: &TableColumn) -> Result<Expr> {
    // A number for a column of doubles is one: in rows with others it would take their numeric type,
    // which has neither its range nor its smallest values.
    let double = matches!(column.data_type, DataType::Float32 | DataType::Float64);
    let untyped = match expr {
        Expr::Value(value) => is_string(&value.value) || matches!(value.value, Value::Null),
        _ => false,
    } || double && is_number(expr);
    if untyped { cast(expr.clone(), column) } else { Ok(expr.clone()) }
}

/// True for a number, with or without a sign.
fn is_number(expr: &Expr) -> bool {
    match expr {
        Expr::Value(value) => matches!(value.value, Value::Number(..)),
        Expr::UnaryOp { op: ast::UnaryOperator::Minus | ast::UnaryOperator::Plus, expr } => is_number(expr),
        _ => false,
    }
}

/// True for a string in any of its spellings.
pub(crate) fn is_string(value: &Value) -> bool {
    text_of(value).is_some()
}

/// The text of a string literal.
pub(crate) fn text_of(value: &Value) -> Option<&str> {
    match value {
        Value::SingleQuotedString(text) | Value::EscapedStringLiteral(text) | Value::UnicodeStringLiteral(text) => {
            Some(text)
        }
        Value::DollarQuotedString(quoted) => Some(&quoted.value),
        _ => None,
    }
}

fn cast(expr: Expr, column: &TableColumn) -> Result<Expr> {
    let data_type = match column.data_type {
        // A cast to varchar(n) would cut what an assignment refuses.
        DataType::Utf8 => ast::DataType::Text,
        _ => Parser::new(&PostgreSqlDialect {})
            .try_with_sql(&column.sql_type)
            .and_then(|mut parser| parser.parse_data_type())
            .map_err(|_| {
                Error::unsupported(format!("values of type {} cannot be written as literals yet", column.sql_type))
                    .hint("Insert them from a query.")
            })?,
    };
    Ok(Expr::Cast { kind: CastKind::Cast, expr: Box::new(expr), data_type, array: false, format: None })
}

/// True when PostgreSQL casts values of `from` by itself when they are assigned to a column of `to`.
pub(crate) fn assignable(from: &DataType, to: &DataType) -> bool {
    use DataType::{Boolean, Date32, FixedSizeBinary, Interval, Null, Time64, Timestamp, Utf8};
    let number = |t: &DataType| t.is_integer() || t.is_floating() || t.is_decimal();
    if from == to || matches!(from, Null) {
        return true;
    }
    match (from, to) {
        (from, to) if number(from) && number(to) => true,
        // Every type's text form may be stored as text.
        (from, Utf8) => {
            number(from)
                || matches!(from, Boolean | Date32 | Time64(_) | Timestamp(_, _) | Interval(_) | FixedSizeBinary(16))
                || from.is_string()
        }
        (Date32, Timestamp(_, _)) | (Timestamp(_, _), Date32 | Time64(_) | Timestamp(_, _)) => true,
        (DataType::Utf8View, _) => assignable(&Utf8, to),
        (DataType::LargeBinary | DataType::BinaryView, DataType::Binary) => true,
        (DataType::List(from), DataType::List(to)) => assignable(from.data_type(), to.data_type()),
        _ => false,
    }
}

/// The error of a value whose type is not cast by itself.
pub(crate) fn mismatch(column: &TableColumn, from: &DataType, what: &str) -> Error {
    Error::new(
        SqlState::DatatypeMismatch,
        format!(
            "column \"{}\" is of type {} but {what} is of type {}",
            column.name,
            sql::sql_name(&column.data_type),
            sql::sql_name(from)
        ),
    )
    .hint("You will need to rewrite or cast the expression.")
}

/// Casts values to what the column stores and checks their length. Text that was a literal without
/// a type of its own may become any type: `literal`.
///
/// # Errors
/// 42804, 22001, 22003, 22P02 and others of the cast.
pub(crate) fn coerce(values: &ArrayRef, column: &TableColumn, literal: bool) -> Result<ArrayRef> {
    let from = values.data_type();
    if from == &column.data_type {
        return fit_length(values, column);
    }
    if matches!(from, DataType::Null) {
        return Ok(arrow::array::new_null_array(&column.data_type, values.len()));
    }
    if !literal && !assignable(from, &column.data_type) {
        return Err(mismatch(column, from, "expression"));
    }
    let cast = sql::cast_array(values, &column.data_type).map_err(|error| overflow(error, column))?;
    fit_length(&cast, column)
}

/// The same for literals, whose times are in a zone when they name none.
///
/// # Errors
/// As [`coerce`].
pub(crate) fn coerce_literals(values: &ArrayRef, column: &TableColumn, zone: &TimeZone) -> Result<ArrayRef> {
    if zone.is_utc() || !matches!(column.data_type, DataType::Timestamp(_, Some(_))) {
        return coerce(values, column, true);
    }
    sql::cast_array_in(values, &column.data_type, zone)
}

/// A numeric that does not fit its column is out of range, whatever noticed it.
fn overflow(error: Error, column: &TableColumn) -> Error {
    let DataType::Decimal128(precision, scale) = column.data_type else {
        return error;
    };
    if !error.message().contains("too large to store") && !error.message().contains("too small to store") {
        return error;
    }
    let digits = i16::from(precision) - i16::from(scale);
    Error::new(SqlState::NumericOutOfRange, "numeric field overflow").detail(format!(
        "A field with precision {precision}, scale {scale} must round to an absolute value less than 10^{digits}."
    ))
}

/// Checks `varchar(n)`: spaces beyond n are cut, other characters are an error.
fn fit_length(values: &ArrayRef, column: &TableColumn) -> Result<ArrayRef> {
    let (Some(most), Some(texts)) = (column.length_max, values.as_string_opt::<i32>()) else {
        return Ok(Arc::clone(values));
    };
    // A text has at least as many bytes as characters, so most columns end here.
    let too_long = |text: &str| text.len() > most && text.chars().count() > most;
    if !texts.iter().flatten().any(too_long) {
        return Ok(Arc::clone(values));
    }
    let mut fitted = Vec::with_capacity(texts.len());
    for text in texts {
        fitted.push(match text {
            Some(text) if too_long(text) => {
                let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
                let (kept, rest) = text.split_at(end);
                if rest.chars().any(|c| c != ' ') {
                    return Err(Error::new(
                        SqlState::StringTooLong,
                        format!("value too long for type {}", column.sql_type),
                    )
                    .detail(format!("Column \"{}\" takes at most {most} characters.", column.name)));
                }
                Some(kept)
            }
            other => other,
        });
    }
    Ok(Arc::new(StringArray::from(fitted)))
}

/// Rows of a table, with NOT NULL checked. `relation` is the table's name.
///
/// # Errors
/// 23502.
pub(crate) fn table_rows(table: &Table, relation: &str, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    for (column, values) in table.columns.iter().zip(&columns) {
        if column.nullable || values.null_count() == 0 {
            continue;
        }
        let row = (0..values.len()).find(|row| values.is_null(*row)).unwrap_or(0);
        return Err(Error::new(
            SqlState::NotNullViolation,
            format!("null value in column \"{}\" of relation \"{relation}\" violates not-null constraint", column.name),
        )
        .detail(format!("Failing row contains ({}).", shown(&columns, row))));
    }
    Ok(RecordBatch::try_new(Arc::clone(&table.row_schema), columns)?)
}

/// Values of one row, as details show them.
pub(crate) fn shown(columns: &[ArrayRef], row: usize) -> String {
    let values: Vec<String> = columns
        .iter()
        .map(|column| {
            if column.is_null(row) {
                return "null".to_owned();
            }
            array_value_to_string(column, row).unwrap_or_else(|_| "?".to_owned())
        })
        .collect();
    values.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::TimeUnit;

    fn varchar(length: usize) -> TableColumn {
        TableColumn {
            name: "c".into(),
            data_type: DataType::Utf8,
            sql_type: format!("character varying({length})"),
            length_max: Some(length),
            nullable: true,
            default: None,
        }
    }

    #[test]
    fn assignment_casts_are_postgresqls() {
        let timestamp = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert!(assignable(&DataType::Int64, &DataType::Int32));
        assert!(assignable(&DataType::Float64, &DataType::Decimal128(10, 2)));
        assert!(assignable(&DataType::Int32, &DataType::Utf8));
        assert!(assignable(&DataType::Date32, &timestamp));
        assert!(assignable(&timestamp, &DataType::Date32));
        assert!(!assignable(&DataType::Utf8, &DataType::Int32));
        assert!(!assignable(&DataType::Int32, &DataType::Boolean));
        assert!(!assignable(&DataType::Boolean, &DataType::Int32));
        assert!(!assignable(&DataType::Int64, &timestamp));
    }

    #[test]
    fn numbers_for_doubles_are_doubles() {
        let column = TableColumn { data_type: DataType::Float64, sql_type: "double precision".into(), ..varchar(1) };
        let number = |text: &str| Expr::value(Value::Number(text.into(), false));
        let cast = typed(&number("1e-20"), &column).unwrap();
        assert_eq!(cast.to_string(), "CAST(1e-20 AS DOUBLE PRECISION)");
        let minus = Expr::UnaryOp { op: ast::UnaryOperator::Minus, expr: Box::new(number("5")) };
        assert!(matches!(typed(&minus, &column).unwrap(), Expr::Cast { .. }));
        assert_eq!(typed(&number("5"), &varchar(3)).unwrap(), number("5"));
    }

    #[test]
    fn only_spaces_are_cut() {
        let values: ArrayRef = Arc::new(StringArray::from(vec![Some("äöü  "), None, Some("ab")]));
        let fitted = fit_length(&values, &varchar(3)).unwrap();
        assert_eq!(fitted.as_string::<i32>().value(0), "äöü");
        let values: ArrayRef = Arc::new(StringArray::from(vec!["abcd"]));
        let error = fit_length(&values, &varchar(3)).unwrap_err();
        assert_eq!(error.code(), SqlState::StringTooLong);
        assert_eq!(error.message(), "value too long for type character varying(3)");
    }
}
