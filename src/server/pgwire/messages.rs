//! Messages of the protocol made from the engine's words.

use arrow::datatypes::{DataType, Field, Schema};
use pgwire::api::Type;
use pgwire::api::results::{FieldFormat, FieldInfo};
use pgwire::error::{ErrorInfo, PgWireError};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{FieldDescription, RowDescription};
use pgwire::messages::response::{CommandComplete, NoticeResponse};

use crate::engine::{Notice, Tag};
use crate::server::errors;
use crate::types::Error;
use crate::types::text::is_bare_numeric;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// The statement failed.
    Error,
    /// The connection ends.
    Fatal,
}

/// All fields of an error.
pub(super) fn error_info(error: &Error, severity: Severity) -> ErrorInfo {
    let severity = match severity {
        Severity::Error => "ERROR",
        Severity::Fatal => "FATAL",
    };
    let fields = errors::fields(error);
    let mut info = ErrorInfo::new(severity.to_owned(), fields.sqlstate.to_owned(), fields.error);
    info.severity_nonlocalized = Some(severity.to_owned());
    info.detail = fields.detail;
    info.hint = fields.hint;
    info.position = fields.position.map(|position| position.to_string());
    info
}

/// An error of a statement.
pub(super) fn pg_error(error: &Error) -> PgWireError {
    PgWireError::UserError(Box::new(error_info(error, Severity::Error)))
}

/// A notice.
pub(super) fn notice(notice: &Notice) -> PgWireBackendMessage {
    let clean = |text: &str| text.replace('\0', "\u{fffd}");
    let mut info = ErrorInfo::new("NOTICE".to_owned(), "00000".to_owned(), clean(&notice.message));
    info.severity_nonlocalized = Some("NOTICE".to_owned());
    info.hint = notice.hint.as_deref().map(clean);
    PgWireBackendMessage::NoticeResponse(NoticeResponse::from(info))
}

/// The message that ends a statement; `rows` were sent.
pub(super) fn command_complete(tag: &Tag, rows: u64) -> PgWireBackendMessage {
    PgWireBackendMessage::CommandComplete(CommandComplete::new(tag_text(tag, rows)))
}

/// A tag as the wire spells it.
pub(super) fn tag_text(tag: &Tag, rows: u64) -> String {
    match tag {
        Tag::Plain(name) | Tag::Show(name) => (*name).to_owned(),
        Tag::Insert(count) => format!("INSERT 0 {count}"),
        Tag::Update(count) => format!("UPDATE {count}"),
        Tag::Delete(count) => format!("DELETE {count}"),
        Tag::Select => format!("SELECT {rows}"),
    }
}

/// The message before rows, all in text format.
pub(super) fn row_description(schema: &Schema) -> PgWireBackendMessage {
    let fields =
        schema.fields().iter().map(|field| FieldDescription::from(&describe(field, FieldFormat::Text))).collect();
    PgWireBackendMessage::RowDescription(RowDescription::new(fields))
}

/// What a client is told of a column.
pub(super) fn describe(field: &Field, format: FieldFormat) -> FieldInfo {
    let data_type = field.data_type();
    let name = field.name().replace('\0', "\u{fffd}");
    let kind = pg_type(data_type);
    let size = size(&kind);
    FieldInfo::new(name, None, None, kind, format).with_type_size(size).with_type_modifier(modifier(data_type))
}

/// The PostgreSQL type of which a column's text is a value.
fn pg_type(data_type: &DataType) -> Type {
    match data_type {
        DataType::Boolean => Type::BOOL,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => Type::INT2,
        DataType::Int32 | DataType::UInt16 => Type::INT4,
        DataType::Int64 | DataType::UInt32 => Type::INT8,
        DataType::Float16 | DataType::Float32 => Type::FLOAT4,
        DataType::Float64 => Type::FLOAT8,
        DataType::UInt64
        | DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => Type::NUMERIC,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => Type::BYTEA,
        DataType::FixedSizeBinary(16) => Type::UUID,
        DataType::FixedSizeBinary(_) => Type::BYTEA,
        DataType::Date32 | DataType::Date64 => Type::DATE,
        DataType::Time32(_) | DataType::Time64(_) => Type::TIME,
        DataType::Timestamp(_, None) => Type::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => Type::TIMESTAMPTZ,
        DataType::Interval(_) | DataType::Duration(_) => Type::INTERVAL,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            array_of(item.data_type())
        }
        DataType::Struct(_) => Type::RECORD,
        DataType::Map(..) => Type::JSONB,
        DataType::Dictionary(_, value) => pg_type(value),
        _ => Type::TEXT,
    }
}

fn array_of(item: &DataType) -> Type {
    // An array of arrays has the type of its innermost items, as in PostgreSQL.
    if let DataType::List(inner) | DataType::LargeList(inner) | DataType::FixedSizeList(inner, _) = item {
        return array_of(inner.data_type());
    }
    match pg_type(item) {
        Type::BOOL => Type::BOOL_ARRAY,
        Type::INT2 => Type::INT2_ARRAY,
        Type::INT4 => Type::INT4_ARRAY,
        Type::INT8 => Type::INT8_ARRAY,
        Type::FLOAT4 => Type::FLOAT4_ARRAY,
        Type::FLOAT8 => Type::FLOAT8_ARRAY,
        Type::NUMERIC => Type::NUMERIC_ARRAY,
        Type::BYTEA => Type::BYTEA_ARRAY,
        Type::UUID => Type::UUID_ARRAY,
        Type::DATE => Type::DATE_ARRAY,
        Type::TIME => Type::TIME_ARRAY,
        Type::TIMESTAMP => Type::TIMESTAMP_ARRAY,
        Type::TIMESTAMPTZ => Type::TIMESTAMPTZ_ARRAY,
        Type::INTERVAL => Type::INTERVAL_ARRAY,
        Type::RECORD => Type::RECORD_ARRAY,
        Type::JSONB => Type::JSONB_ARRAY,
        _ => Type::TEXT_ARRAY,
    }
}

/// `pg_type.typlen`.
fn size(kind: &Type) -> i16 {
    match *kind {
        Type::BOOL => 1,
        Type::INT2 => 2,
        Type::INT4 | Type::FLOAT4 | Type::DATE => 4,
        Type::INT8 | Type::FLOAT8 | Type::TIME | Type::TIMESTAMP | Type::TIMESTAMPTZ => 8,
        Type::UUID | Type::INTERVAL => 16,
        _ => -1,
    }
}

/// `pg_attribute.atttypmod`: precision and scale of a declared numeric, else none.
fn modifier(data_type: &DataType) -> i32 {
    match data_type {
        DataType::Decimal128(precision, scale) if !is_bare_numeric(*precision, *scale) && *scale >= 0 => {
            ((i32::from(*precision) << 16) | i32::from(*scale)) + 4
        }
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn types_have_postgresql_numbers() {
        let cases = [
            (DataType::Int64, 20, 8, -1),
            (DataType::Utf8, 25, -1, -1),
            (DataType::Decimal128(10, 2), 1700, -1, 655_366),
            (DataType::Decimal128(38, 10), 1700, -1, -1),
            (DataType::List(Arc::new(Field::new("item", DataType::Int32, true))), 1007, -1, -1),
        ];
        for (data_type, oid, length, typmod) in cases {
            let kind = pg_type(&data_type);
            assert_eq!((kind.oid(), size(&kind), modifier(&data_type)), (oid, length, typmod), "{data_type}");
        }
    }

    #[test]
    fn tags_count_what_they_should() {
        assert_eq!(tag_text(&Tag::Select, 3), "SELECT 3");
        assert_eq!(tag_text(&Tag::Insert(2), 3), "INSERT 0 2");
        assert_eq!(tag_text(&Tag::Show("SHOW"), 3), "SHOW");
    }
}
