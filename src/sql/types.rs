//! SQL types by name: how they are stored and how they are spelled.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, IntervalUnit, TimeUnit};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::planner::TypePlanner;
use sqlparser::ast::{self, ArrayElemTypeDef, CharacterLength, ExactNumberInfo, TimezoneInfo};
use sqlparser::dialect::PostgreSqlDialect;
use sqlparser::parser::Parser;

use super::errors::to_datafusion;
use crate::types::{Error, JSONB, Result, SqlState};

/// The time zone of every stored `timestamptz`.
pub(crate) const UTC: &str = "UTC";
/// Precision and scale of `numeric` without any.
pub(crate) const NUMERIC_DEFAULT: (u8, i8) = (38, 10);
/// Most digits of a `numeric`.
pub(crate) const NUMERIC_PRECISION_MAX: u64 = 38;

/// A type by name, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredType {
    /// How values are stored.
    pub(crate) data_type: DataType,
    /// The documented spelling.
    pub(crate) sql_type: String,
    /// The most characters, for `varchar(n)` and `char(n)`.
    pub(crate) length_max: Option<usize>,
}

impl StoredType {
    pub(crate) fn plain(data_type: DataType) -> StoredType {
        StoredType { sql_type: sql_name(&data_type), data_type, length_max: None }
    }

    /// `T[]`.
    pub(crate) fn array_of(element: StoredType) -> StoredType {
        StoredType {
            sql_type: format!("{}[]", element.sql_type),
            data_type: DataType::List(Arc::new(Field::new_list_field(element.data_type, true))),
            length_max: None,
        }
    }

    /// `map<k, v>`.
    pub(crate) fn map_of(key: StoredType, value: StoredType) -> StoredType {
        let entries = DataType::Struct(Fields::from(vec![
            Field::new("keys", key.data_type, false),
            Field::new("values", value.data_type, true),
        ]));
        StoredType {
            sql_type: format!("map<{}, {}>", key.sql_type, value.sql_type),
            data_type: DataType::Map(Arc::new(Field::new("entries", entries, false)), false),
            length_max: None,
        }
    }

    /// `struct<name type, …>`.
    pub(crate) fn struct_of(fields: Vec<(String, StoredType)>) -> StoredType {
        let spelled: Vec<String> =
            fields.iter().map(|(name, stored)| format!("{} {}", super::names::quoted(name), stored.sql_type)).collect();
        StoredType {
            sql_type: format!("struct<{}>", spelled.join(", ")),
            data_type: DataType::Struct(
                fields.into_iter().map(|(name, stored)| Field::new(name, stored.data_type, true)).collect(),
            ),
            length_max: None,
        }
    }
}

/// The stored form of a type that sqlparser has read.
///
/// # Errors
/// 0A000 for types that are not offered, 42704 for names that are no types, 22023 for bad modifiers.
pub(crate) fn stored(data_type: &ast::DataType) -> Result<StoredType> {
    use ast::DataType as Sql;
    let plain = |data_type| Ok(StoredType::plain(data_type));
    match data_type {
        Sql::SmallInt(None) | Sql::Int2(None) => plain(DataType::Int16),
        Sql::Int(None) | Sql::Integer(None) | Sql::Int4(None) => plain(DataType::Int32),
        Sql::BigInt(None) | Sql::Int8(None) => plain(DataType::Int64),
        Sql::Real | Sql::Float4 => plain(DataType::Float32),
        Sql::DoublePrecision | Sql::Float8 | Sql::Double(ExactNumberInfo::None) => plain(DataType::Float64),
        Sql::Float(ExactNumberInfo::None) => plain(DataType::Float64),
        Sql::Float(ExactNumberInfo::Precision(bits)) => match bits {
            1..=24 => plain(DataType::Float32),
            25..=53 => plain(DataType::Float64),
            _ => Err(Error::new(SqlState::InvalidParameterValue, "precision for type float must be from 1 to 53 bits")
                .hint("Write real or double precision.")),
        },
        Sql::Numeric(info) | Sql::Decimal(info) | Sql::Dec(info) => numeric(info),
        Sql::Bool | Sql::Boolean => plain(DataType::Boolean),
        Sql::Text | Sql::String(None) => plain(DataType::Utf8),
        Sql::Varchar(length) | Sql::CharacterVarying(length) | Sql::CharVarying(length) => {
            characters("character varying", length.as_ref(), None)
        }
        Sql::Char(length) | Sql::Character(length) => characters("character", length.as_ref(), Some(1)),
        Sql::Bytea | Sql::Bytes(None) => plain(DataType::Binary),
        Sql::Date => plain(DataType::Date32),
        Sql::Time(precision, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone) => {
            micros(*precision, DataType::Time64(TimeUnit::Microsecond))
        }
        Sql::Timestamp(precision, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone)
        | Sql::TimestampNtz(precision) => micros(*precision, DataType::Timestamp(TimeUnit::Microsecond, None)),
        Sql::Timestamp(precision, TimezoneInfo::Tz | TimezoneInfo::WithTimeZone) => micros(*precision, timestamptz()),
        Sql::Uuid => plain(DataType::FixedSizeBinary(16)),
        Sql::JSONB => plain(JSONB),
        Sql::Interval { fields: None, precision: None } => plain(DataType::Interval(IntervalUnit::MonthDayNano)),
        Sql::Array(ArrayElemTypeDef::SquareBracket(element, None))
        | Sql::Array(ArrayElemTypeDef::AngleBracket(element)) => Ok(StoredType::array_of(stored(element)?)),
        Sql::Custom(name, modifiers) => custom(&name.to_string(), modifiers),
        other => Err(refuse(&other.to_string())),
    }
}

fn custom(name: &str, modifiers: &[String]) -> Result<StoredType> {
    // The full names of PostgreSQL's own types, as drivers write them.
    if let Some(own) = name.replace('"', "").strip_prefix("pg_catalog.")
        && modifiers.is_empty()
        && let Ok(data_type) =
            Parser::new(&PostgreSqlDialect {}).try_with_sql(own).and_then(|mut parser| parser.parse_data_type())
        && !matches!(data_type, ast::DataType::Custom(..))
    {
        return stored(&data_type);
    }
    match (name.to_ascii_lowercase().as_str(), modifiers) {
        ("string", []) => Ok(StoredType::plain(DataType::Utf8)),
        ("bytes", []) => Ok(StoredType::plain(DataType::Binary)),
        ("timestamp_ltz" | "timestamptz", []) => Ok(StoredType::plain(timestamptz())),
        ("timestamp_ltz" | "timestamptz", [precision]) => micros(precision.parse().ok(), timestamptz()),
        ("serial" | "bigserial" | "smallserial" | "serial4" | "serial8" | "serial2", _) => {
            Err(Error::unsupported(format!("type {name} is not supported"))
                .hint("Use bigint and give the value in INSERT: clink has no sequences."))
        }
        (
            "json" | "xml" | "money" | "inet" | "cidr" | "macaddr" | "oid" | "name" | "regclass" | "timetz" | "hstore"
            | "vector" | "variant" | "bpchar",
            _,
        ) => Err(refuse(name)),
        _ => Err(Error::new(SqlState::UndefinedObject, format!("type \"{name}\" does not exist")).hint(TYPES)),
    }
}

const TYPES: &str = "The types are smallint, int, bigint, real, double precision, numeric(p,s), text, varchar(n), \
                     boolean, bytea, date, time, timestamp, timestamptz, interval, uuid, jsonb and arrays of them.";

fn refuse(name: &str) -> Error {
    let name = name.to_ascii_lowercase();
    let hint = if name == "json" || name == "variant" { "Write jsonb, or text to keep the spelling." } else { TYPES };
    Error::unsupported(format!("type {name} is not supported")).hint(hint)
}

fn timestamptz() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into()))
}

fn micros(precision: Option<u64>, data_type: DataType) -> Result<StoredType> {
    match precision {
        None | Some(0..=6) => Ok(StoredType::plain(data_type)),
        Some(digits) => Err(Error::unsupported(format!("{}({digits}) is not supported", sql_name(&data_type)))
            .hint("Times are kept in microseconds: give a precision of at most 6 or none.")),
    }
}

fn numeric(info: &ExactNumberInfo) -> Result<StoredType> {
    let (precision, scale) = match info {
        ExactNumberInfo::None => {
            let (precision, scale) = NUMERIC_DEFAULT;
            return Ok(StoredType::plain(DataType::Decimal128(precision, scale)));
        }
        ExactNumberInfo::Precision(precision) => (*precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (*precision, *scale),
    };
    if precision == 0 || scale < 0 || scale.unsigned_abs() > precision {
        return Err(Error::new(
            SqlState::InvalidParameterValue,
            format!("numeric({precision},{scale}) is no type: the scale must be between 0 and the precision"),
        )
        .hint("Write numeric(p,s) with p from 1 to 38 and s from 0 to p."));
    }
    if precision > NUMERIC_PRECISION_MAX {
        return Err(Error::unsupported(format!("numeric precision {precision} is not supported"))
            .hint("The largest precision is 38: write numeric(38,s)."));
    }
    // Both are at most 38 here.
    let data_type = DataType::Decimal128(precision as u8, scale as i8);
    Ok(StoredType { sql_type: format!("numeric({precision},{scale})"), data_type, length_max: None })
}

fn characters(name: &str, length: Option<&CharacterLength>, bare: Option<u64>) -> Result<StoredType> {
    let length = match length {
        None => bare,
        Some(CharacterLength::IntegerLength { length, .. }) => Some(*length),
        Some(CharacterLength::Max) => return Err(refuse(&format!("{name}(max)"))),
    };
    let Some(length) = length else {
        return Ok(StoredType { sql_type: name.to_owned(), data_type: DataType::Utf8, length_max: None });
    };
    if length == 0 || length > 10_485_760 {
        return Err(Error::new(
            SqlState::InvalidParameterValue,
            format!("length for type {name} must be from 1 to 10485760"),
        )
        .hint("Use text for texts of any length."));
    }
    Ok(StoredType {
        sql_type: format!("{name}({length})"),
        data_type: DataType::Utf8,
        length_max: usize::try_from(length).ok(),
    })
}

/// PostgreSQL's name of a stored type.
pub fn sql_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => "smallint".into(),
        DataType::UInt16 | DataType::Int32 => "integer".into(),
        DataType::UInt32 | DataType::UInt64 | DataType::Int64 => "bigint".into(),
        DataType::Float16 | DataType::Float32 => "real".into(),
        DataType::Float64 => "double precision".into(),
        DataType::Decimal128(precision, scale) if (*precision, *scale) == NUMERIC_DEFAULT => "numeric".into(),
        DataType::Decimal128(precision, scale) => format!("numeric({precision},{scale})"),
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal256(..) => "numeric".into(),
        DataType::Utf8 | DataType::Utf8View => "text".into(),
        DataType::LargeUtf8 => "jsonb".into(),
        DataType::Boolean => "boolean".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytea".into(),
        DataType::FixedSizeBinary(16) => "uuid".into(),
        DataType::FixedSizeBinary(_) => "bytea".into(),
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Time32(_) | DataType::Time64(_) => "time".into(),
        DataType::Timestamp(_, None) => "timestamp".into(),
        DataType::Timestamp(_, Some(_)) => "timestamptz".into(),
        DataType::Interval(_) | DataType::Duration(_) => "interval".into(),
        DataType::Null => "unknown".into(),
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            format!("{}[]", sql_name(field.data_type()))
        }
        DataType::Struct(fields) => {
            let fields: Vec<String> = fields
                .iter()
                .map(|field| format!("{} {}", super::names::quoted(field.name()), sql_name(field.data_type())))
                .collect();
            format!("struct<{}>", fields.join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => {
                let parts: Vec<String> = fields.iter().map(|field| sql_name(field.data_type())).collect();
                format!("map<{}>", parts.join(", "))
            }
            _ => "map".into(),
        },
        DataType::Dictionary(_, value) => sql_name(value),
        other => other.to_string().to_ascii_lowercase(),
    }
}

/// Tells DataFusion's planner what the types in casts and typed literals are.
#[derive(Debug)]
pub(crate) struct SqlTypes;

impl TypePlanner for SqlTypes {
    fn plan_type_field(&self, sql_type: &ast::DataType) -> DataFusionResult<Option<FieldRef>> {
        let stored = stored(sql_type).map_err(to_datafusion)?;
        Ok(Some(Arc::new(Field::new("", stored.data_type, true))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::dialect::ClinkDialect;

    fn named(text: &str) -> Result<StoredType> {
        let mut parser = Parser::new(&ClinkDialect).try_with_sql(text).expect("tokens");
        stored(&parser.parse_data_type().expect("a type"))
    }

    #[test]
    fn names_and_aliases_mean_one_stored_type() {
        for (text, sql_type, data_type) in [
            ("STRING", "text", DataType::Utf8),
            ("BYTES", "bytea", DataType::Binary),
            ("DOUBLE", "double precision", DataType::Float64),
            ("FLOAT", "double precision", DataType::Float64),
            ("real", "real", DataType::Float32),
            ("int2", "smallint", DataType::Int16),
            ("TIMESTAMP(3)", "timestamp", DataType::Timestamp(TimeUnit::Microsecond, None)),
            ("TIMESTAMP_LTZ(3)", "timestamptz", timestamptz()),
            ("timestamp with time zone", "timestamptz", timestamptz()),
            ("time", "time", DataType::Time64(TimeUnit::Microsecond)),
            ("numeric", "numeric", DataType::Decimal128(38, 10)),
            ("decimal(12,2)", "numeric(12,2)", DataType::Decimal128(12, 2)),
            ("numeric(5)", "numeric(5,0)", DataType::Decimal128(5, 0)),
            ("character varying(10)", "character varying(10)", DataType::Utf8),
            ("varchar", "character varying", DataType::Utf8),
            ("char", "character(1)", DataType::Utf8),
            ("uuid", "uuid", DataType::FixedSizeBinary(16)),
            ("JSONB", "jsonb", JSONB),
            ("\"pg_catalog\".\"int4\"", "integer", DataType::Int32),
        ] {
            let stored = named(text).expect(text);
            assert_eq!((stored.sql_type.as_str(), &stored.data_type), (sql_type, &data_type), "{text}");
        }
        assert_eq!(named("int[]").expect("an array").sql_type, "integer[]");
        assert_eq!(named("varchar(7)").expect("a varchar").length_max, Some(7));
    }

    #[test]
    fn what_is_not_offered_is_refused_by_name() {
        for (text, code) in [
            ("json[]", SqlState::FeatureNotSupported),
            ("json", SqlState::FeatureNotSupported),
            ("serial", SqlState::FeatureNotSupported),
            ("nosuch", SqlState::UndefinedObject),
            ("numeric(50,2)", SqlState::FeatureNotSupported),
            ("numeric(5,9)", SqlState::InvalidParameterValue),
            ("timestamp(9)", SqlState::FeatureNotSupported),
            ("varchar(0)", SqlState::InvalidParameterValue),
        ] {
            let error = named(text).expect_err(text);
            assert_eq!(error.code(), code, "{text}: {error:?}");
            assert!(error.hint_text().is_some_and(|hint| !hint.is_empty()), "{text}");
        }
    }
}
