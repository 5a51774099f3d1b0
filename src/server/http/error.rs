//! Errors as JSON with a status.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::server::errors::{self, ErrorFields};
use crate::types::{Error, SqlState};

/// An error on its way out.
#[derive(Debug)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) fields: ErrorFields,
}

impl ApiError {
    fn new(status: StatusCode, sqlstate: &'static str, message: String) -> ApiError {
        ApiError { status, fields: ErrorFields { error: message, sqlstate, detail: None, hint: None, position: None } }
    }

    /// The request is not what the route takes: 400.
    pub(super) fn malformed(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, SqlState::InvalidParameterValue.code(), message.into())
    }

    /// There is no such thing: 404.
    pub(super) fn not_found(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, SqlState::UndefinedObject.code(), message.into())
    }

    /// The view has no such row: 404 with SQL's `no_data`.
    pub(super) fn no_row() -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, "02000", "no row has this key".to_owned())
    }

    /// The request could mean several things: 409.
    pub(super) fn conflict(error: &Error) -> ApiError {
        ApiError { status: StatusCode::CONFLICT, fields: errors::fields(error) }
    }

    /// The body goes beyond a limit.
    pub(super) fn beyond(status: StatusCode, error: &Error) -> ApiError {
        ApiError { status, fields: errors::fields(error) }
    }

    /// The route is not for this method: 405.
    pub(super) fn wrong_method(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, SqlState::FeatureNotSupported.code(), message.into())
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.fields.hint = Some(hint.into());
        self
    }
}

fn status_of(code: SqlState) -> StatusCode {
    match code {
        SqlState::UndefinedTable
        | SqlState::UndefinedSchema
        | SqlState::UndefinedObject
        | SqlState::UndefinedDatabase => StatusCode::NOT_FOUND,
        SqlState::ProtocolViolation | SqlState::InvalidParameterValue => StatusCode::BAD_REQUEST,
        SqlState::ObjectNotReady | SqlState::SnapshotTooOld => StatusCode::CONFLICT,
        SqlState::TooManyConnections
        | SqlState::OutOfMemory
        | SqlState::DiskFull
        | SqlState::QueryCanceled
        | SqlState::AdminShutdown => StatusCode::SERVICE_UNAVAILABLE,
        SqlState::InternalError | SqlState::DataCorrupted | SqlState::IoError => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        ApiError { status: status_of(error.code()), fields: errors::fields(&error) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.fields)).into_response()
    }
}
