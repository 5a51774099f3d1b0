//! The one door through which errors leave: the same fields on both wires.

use crate::types::{Error, SqlState};

/// An error's fields, ready to be sent.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct ErrorFields {
    /// The message.
    pub(crate) error: String,
    /// The five characters.
    pub(crate) sqlstate: &'static str,
    /// The detail.
    pub(crate) detail: Option<String>,
    /// The hint.
    pub(crate) hint: Option<String>,
    /// Characters from 1.
    pub(crate) position: Option<usize>,
}

/// The fields of an error. Faults of the program are logged here, since nobody else sees them.
pub(crate) fn fields(error: &Error) -> ErrorFields {
    if error.code() == SqlState::InternalError {
        tracing::error!(error = %error, detail = error.detail_text(), "internal error sent to a client");
    }
    super::metrics::error(error.code());
    if let Some(limit) = error.limit_hit() {
        super::metrics::limit_hit(limit);
    }
    // A zero byte would end a field of the wire early.
    let clean = |text: &str| {
        if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text.to_owned() }
    };
    ErrorFields {
        error: clean(error.message()),
        sqlstate: error.code().code(),
        detail: error.detail_text().map(clean),
        hint: error.hint_text().map(clean),
        position: error.position_at(),
    }
}

/// The user-facing error within an error of a row stream.
pub(crate) fn of_stream(error: datafusion::error::DataFusionError) -> Error {
    crate::engine::error_of(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_fields_through_a_stream() {
        let error = Error::new(SqlState::DivisionByZero, "division by zero").hint("Mind the zero.").position(8);
        let wrapped = datafusion::error::DataFusionError::External(Box::new(error.clone())).context("while reading");
        assert_eq!(of_stream(wrapped), error);
        let sent = fields(&error);
        assert_eq!((sent.sqlstate, sent.position, sent.hint.as_deref()), ("22012", Some(8), Some("Mind the zero.")));
    }
}
