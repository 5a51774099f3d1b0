//! PostgreSQL's types by number, and how values are stored that have them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use pgwire::api::Type;

use crate::types::{JSONB, type_oid};

/// The PostgreSQL type of which a column's text is a value.
pub(crate) fn pg_type(data_type: &DataType) -> Type {
    Type::from_oid(type_oid(data_type)).unwrap_or(Type::TEXT)
}

/// How values of a PostgreSQL type are stored; `None` for types that are not offered.
pub(crate) fn stored_type(kind: &Type) -> Option<DataType> {
    if let Some(item) = element_type(kind) {
        return Some(DataType::List(Arc::new(Field::new_list_field(stored_type(&item)?, true))));
    }
    Some(match *kind {
        Type::BOOL => DataType::Boolean,
        Type::INT2 => DataType::Int16,
        Type::INT4 => DataType::Int32,
        Type::INT8 | Type::OID => DataType::Int64,
        Type::FLOAT4 => DataType::Float32,
        Type::FLOAT8 => DataType::Float64,
        Type::NUMERIC => DataType::Decimal128(38, 10),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::NAME | Type::CHAR | Type::JSON => DataType::Utf8,
        Type::JSONB => JSONB,
        Type::BYTEA => DataType::Binary,
        Type::UUID => DataType::FixedSizeBinary(16),
        Type::DATE => DataType::Date32,
        Type::TIME => DataType::Time64(TimeUnit::Microsecond),
        Type::TIMESTAMP => DataType::Timestamp(TimeUnit::Microsecond, None),
        Type::TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Type::INTERVAL => DataType::Interval(IntervalUnit::MonthDayNano),
        _ => return None,
    })
}

/// The type of an array's elements.
pub(crate) fn element_type(array: &Type) -> Option<Type> {
    Some(match *array {
        Type::BOOL_ARRAY => Type::BOOL,
        Type::INT2_ARRAY => Type::INT2,
        Type::INT4_ARRAY => Type::INT4,
        Type::INT8_ARRAY => Type::INT8,
        Type::OID_ARRAY => Type::OID,
        Type::FLOAT4_ARRAY => Type::FLOAT4,
        Type::FLOAT8_ARRAY => Type::FLOAT8,
        Type::NUMERIC_ARRAY => Type::NUMERIC,
        Type::TEXT_ARRAY => Type::TEXT,
        Type::VARCHAR_ARRAY => Type::VARCHAR,
        Type::BPCHAR_ARRAY => Type::BPCHAR,
        Type::NAME_ARRAY => Type::NAME,
        Type::JSONB_ARRAY => Type::JSONB,
        Type::JSON_ARRAY => Type::JSON,
        Type::BYTEA_ARRAY => Type::BYTEA,
        Type::UUID_ARRAY => Type::UUID,
        Type::DATE_ARRAY => Type::DATE,
        Type::TIME_ARRAY => Type::TIME,
        Type::TIMESTAMP_ARRAY => Type::TIMESTAMP,
        Type::TIMESTAMPTZ_ARRAY => Type::TIMESTAMPTZ,
        Type::INTERVAL_ARRAY => Type::INTERVAL,
        _ => return None,
    })
}
