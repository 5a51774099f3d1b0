//! The SQL names of stored types.

use arrow::datatypes::{DataType, TimeUnit};

/// A stored type in its documented spelling, such as `bigint` or `timestamp with time zone`.
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "boolean".into(),
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => "smallint".into(),
        DataType::Int32 | DataType::UInt16 => "integer".into(),
        DataType::Int64 | DataType::UInt32 => "bigint".into(),
        DataType::UInt64 => "numeric(20,0)".into(),
        DataType::Float16 | DataType::Float32 => "real".into(),
        DataType::Float64 => "double precision".into(),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            format!("numeric({precision},{scale})")
        }
        // A bare numeric is stored so.
        DataType::Decimal128(38, 10) => "numeric".into(),
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            format!("numeric({precision},{scale})")
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => "text".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "bytea".into(),
        DataType::FixedSizeBinary(16) => "uuid".into(),
        DataType::FixedSizeBinary(_) => "bytea".into(),
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Time32(_) | DataType::Time64(_) => "time without time zone".into(),
        DataType::Timestamp(
            TimeUnit::Second | TimeUnit::Millisecond | TimeUnit::Microsecond | TimeUnit::Nanosecond,
            None,
        ) => "timestamp without time zone".into(),
        DataType::Timestamp(_, Some(_)) => "timestamp with time zone".into(),
        DataType::Interval(_) | DataType::Duration(_) => "interval".into(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => format!("{}[]", type_name(item.data_type())),
        DataType::Struct(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|field| format!("{} {}", field.name(), type_name(field.data_type()))).collect();
            format!("struct<{}>", fields.join(", "))
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                format!("map<{}, {}>", type_name(pair[0].data_type()), type_name(pair[1].data_type()))
            }
            _ => "map".into(),
        },
        DataType::Dictionary(_, value) => type_name(value),
        DataType::RunEndEncoded(_, value) => type_name(value.data_type()),
        DataType::Union(_, _) => "union".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_postgresqls() {
        assert_eq!(type_name(&DataType::Decimal128(12, 2)), "numeric(12,2)");
        assert_eq!(type_name(&DataType::Decimal128(38, 10)), "numeric");
        assert_eq!(
            type_name(&DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
            "timestamp with time zone"
        );
        assert_eq!(type_name(&DataType::new_list(DataType::Int64, true)), "bigint[]");
    }
}
