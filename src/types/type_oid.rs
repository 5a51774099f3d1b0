//! PostgreSQL's numbers of types.

use arrow::datatypes::DataType;

/// `text`, which stands for every type that has no number of its own.
const TEXT: u32 = 25;

/// The number of the PostgreSQL type of which a stored value's text is a value.
pub fn type_oid(data_type: &DataType) -> u32 {
    match data_type {
        DataType::Boolean => 16,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => 17,
        DataType::FixedSizeBinary(16) => 2950,
        DataType::FixedSizeBinary(_) => 17,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => 21,
        DataType::Int32 | DataType::UInt16 => 23,
        DataType::Int64 | DataType::UInt32 => 20,
        DataType::Float16 | DataType::Float32 => 700,
        DataType::Float64 => 701,
        DataType::UInt64
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => 1700,
        DataType::Date32 | DataType::Date64 => 1082,
        DataType::Time32(_) | DataType::Time64(_) => 1083,
        DataType::Timestamp(_, None) => 1114,
        DataType::Timestamp(_, Some(_)) => 1184,
        DataType::Interval(_) | DataType::Duration(_) => 1186,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            array_oid(item.data_type())
        }
        DataType::Struct(_) => 2249,
        DataType::Map(..) | DataType::LargeUtf8 => 3802,
        DataType::Dictionary(_, value) => type_oid(value),
        _ => TEXT,
    }
}

fn array_oid(item: &DataType) -> u32 {
    // An array of arrays has the type of its innermost items, as in PostgreSQL.
    if let DataType::List(inner) | DataType::LargeList(inner) | DataType::FixedSizeList(inner, _) = item {
        return array_oid(inner.data_type());
    }
    // Only the catalog has these.
    if *item == DataType::UInt32 {
        return 1028;
    }
    match type_oid(item) {
        16 => 1000,
        17 => 1001,
        20 => 1016,
        21 => 1005,
        23 => 1007,
        700 => 1021,
        701 => 1022,
        1082 => 1182,
        1083 => 1183,
        1114 => 1115,
        1184 => 1185,
        1186 => 1187,
        1700 => 1231,
        2249 => 2287,
        2950 => 2951,
        3802 => 3807,
        _ => 1009,
    }
}

/// `pg_type.typlen`.
pub fn type_length(oid: u32) -> i16 {
    match oid {
        16 => 1,
        21 => 2,
        23 | 700 | 1082 => 4,
        20 | 701 | 1083 | 1114 | 1184 => 8,
        1186 | 2950 => 16,
        _ => -1,
    }
}

/// True for the types that stand for numeric without a declared scale: their trailing zeros are not
/// printed.
pub fn is_bare_numeric(precision: u8, scale: i8) -> bool {
    precision == 38 && (scale == 10 || scale == 16)
}

/// `pg_attribute.atttypmod`: precision and scale of a declared numeric, else -1.
pub fn type_modifier(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal128(precision, scale) if !is_bare_numeric(*precision, *scale) && *scale >= 0 => {
            ((i32::from(*precision) << 16) | i32::from(*scale)) + 4
        }
        _ => -1,
    }
}
