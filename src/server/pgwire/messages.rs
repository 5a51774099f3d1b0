//! Messages of the protocol made from the engine's words.

use arrow::datatypes::{Field, Schema};
use pgwire::api::results::{FieldFormat, FieldInfo};
use pgwire::error::{ErrorInfo, PgWireError};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::data::{FieldDescription, RowDescription};
use pgwire::messages::response::{CommandComplete, NoticeResponse};

use crate::engine::{Notice, Tag};
use crate::server::errors;
use crate::server::pg_types::pg_type;
use crate::types::{Error, type_length, type_modifier};

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
        Tag::Fetch => format!("FETCH {rows}"),
        Tag::Move(count) => format!("MOVE {count}"),
        Tag::CopyIn(count) => format!("COPY {count}"),
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
    let size = type_length(kind.oid());
    FieldInfo::new(name, None, None, kind, format).with_type_size(size).with_type_modifier(type_modifier(data_type))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::DataType;

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
            let found = (kind.oid(), type_length(kind.oid()), type_modifier(&data_type));
            assert_eq!(found, (oid, length, typmod), "{data_type}");
        }
    }

    #[test]
    fn tags_count_what_they_should() {
        assert_eq!(tag_text(&Tag::Select, 3), "SELECT 3");
        assert_eq!(tag_text(&Tag::Insert(2), 3), "INSERT 0 2");
        assert_eq!(tag_text(&Tag::Show("SHOW"), 3), "SHOW");
    }
}
