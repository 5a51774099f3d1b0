//! The values that Bind brings.

use arrow::datatypes::DataType;
use pgwire::api::Type;
use pgwire::api::portal::Format;
use pgwire::messages::extendedquery::Bind;

use crate::engine::Parameter;
use crate::server::from_binary::text_of_binary;
use crate::server::pg_types::stored_type;
use crate::types::{Error, Result, SqlState};

/// The types that Parse declares: as the client knows them, and as they are stored. 0 and `unknown`
/// leave the type to the statement.
///
/// # Errors
/// 42704 for a number that no type has, 0A000 for types that are not offered.
pub(super) fn declared(oids: &[u32]) -> Result<Vec<Option<(Type, DataType)>>> {
    oids.iter()
        .map(|oid| {
            if *oid == 0 {
                return Ok(None);
            }
            let Some(kind) = Type::from_oid(*oid) else {
                return Err(Error::new(SqlState::UndefinedObject, format!("type with OID {oid} does not exist"))
                    .hint("Leave the type out; the statement tells it."));
            };
            if matches!(kind, Type::UNKNOWN | Type::VOID) {
                return Ok(None);
            }
            match stored_type(&kind) {
                Some(stored) => Ok(Some((kind, stored))),
                None => Err(Error::unsupported(format!("parameters of type {} are not supported", kind.name()))
                    .hint("Give the value as text, and cast it in the statement.")),
            }
        })
        .collect()
}

/// Format codes of a Bind message.
pub(super) fn formats(codes: &[i16]) -> Format {
    match codes {
        [] => Format::UnifiedText,
        [one] => Format::from(*one),
        many => Format::Individual(many.to_vec()),
    }
}

/// The values of a Bind message that has one for each of the types.
///
/// # Errors
/// 08P01 for formats that do not fit; 22P03, 22021 for bytes that are no value.
pub(super) fn values(message: &Bind, types: &[Type], stored: &[DataType]) -> Result<Vec<Parameter>> {
    let codes = &message.parameter_format_codes;
    if codes.len() > 1 && codes.len() != message.parameters.len() {
        return Err(Error::new(
            SqlState::ProtocolViolation,
            format!("bind message has {} parameter formats but {} parameters", codes.len(), message.parameters.len()),
        )
        .hint("Send no format, one for all, or one for each parameter."));
    }
    let mut values = Vec::with_capacity(types.len());
    for (index, ((bytes, kind), data_type)) in message.parameters.iter().zip(types).zip(stored).enumerate() {
        let code = if codes.len() == 1 { codes.first() } else { codes.get(index) };
        let text = match (bytes, code.copied().unwrap_or(0)) {
            (None, _) => None,
            (Some(bytes), 0) => Some(String::from_utf8(bytes.to_vec()).map_err(|_| encoding(index))?),
            (Some(bytes), 1) => Some(text_of_binary(kind, bytes).map_err(|error| {
                let detail = format!("Parameter ${}.", index + 1);
                error.detail(detail)
            })?),
            (Some(_), other) => {
                return Err(Error::new(SqlState::ProtocolViolation, format!("unsupported format code: {other}"))
                    .hint("0 is text and 1 is binary."));
            }
        };
        if text.as_ref().is_some_and(|text| text.contains('\0')) {
            return Err(encoding(index));
        }
        values.push(Parameter { text, data_type: data_type.clone() });
    }
    Ok(values)
}

fn encoding(index: usize) -> Error {
    Error::new(SqlState::CharacterNotInRepertoire, "invalid byte sequence for encoding \"UTF8\"")
        .detail(format!("Parameter ${}.", index + 1))
        .hint("Text is UTF-8 without zero bytes; send other bytes as bytea.")
}
