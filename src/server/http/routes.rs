//! The routes.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::body;
use super::error::ApiError;
use super::parameters::Parameters;
use super::serve::Shared;
use crate::engine::{JobInfo, Scan, ScanRequest, ViewInfo};
use crate::types::{Error, SqlState, Time};

const X_CLINK_TIME: HeaderName = HeaderName::from_static("x-clink-time");
const X_CLINK_CURSOR: HeaderName = HeaderName::from_static("x-clink-cursor");
/// Rows of a JSON scan that names no limit.
const LIMIT_DEFAULT: usize = 1000;
/// How long a read may take to its first rows.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) type ViewPath = Result<Path<String>, PathRejection>;

pub(super) fn name_of(path: ViewPath) -> Result<String, ApiError> {
    match path {
        Ok(Path(name)) => Ok(name),
        Err(rejection) => Err(ApiError::malformed(rejection.body_text())),
    }
}

/// Ends a read that takes too long with 57014.
pub(super) async fn in_time<T>(read: impl Future<Output = Result<T, Error>>) -> Result<T, ApiError> {
    match tokio::time::timeout(READ_TIMEOUT, read).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Error::new(SqlState::QueryCanceled, "canceling statement due to statement timeout").into()),
    }
}

/// Refuses parameters where none are taken.
fn no_parameters(query: Option<&str>) -> Result<(), ApiError> {
    Parameters::parse(query)?.finish("none")
}

pub(super) async fn health(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Result<Json<Value>, ApiError> {
    no_parameters(query.as_deref())?;
    let uptime = shared.env.now_millis().saturating_sub(shared.started_millis) / 1000;
    Ok(Json(json!({
        "role": "coordinator",
        "ok": true,
        "uptime_s": uptime,
        "version": env!("CARGO_PKG_VERSION"),
    })))
}

pub(super) async fn jobs(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Result<Json<Value>, ApiError> {
    no_parameters(query.as_deref())?;
    let jobs: Vec<Value> = shared.engine.jobs().iter().map(describe_job).collect();
    Ok(Json(json!({ "jobs": jobs })))
}

fn describe_job(job: &JobInfo) -> Value {
    json!({
        "id": job.id.0,
        "name": job.name,
        "kind": job.kind,
        "status": job.status,
        "error": job.error.as_ref().map(Error::message),
        "since": rfc3339(job.since_millis),
        "rows_in": job.rows_in,
        "rows_out": job.rows_out,
        "lag_ms": job.lag_millis,
    })
}

fn rfc3339(millis: u64) -> Option<String> {
    let millis = i64::try_from(millis).ok()?;
    let at = chrono::DateTime::from_timestamp_millis(millis)?;
    Some(at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
}

pub(super) async fn views(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Result<Json<Value>, ApiError> {
    no_parameters(query.as_deref())?;
    let views: Vec<Value> = shared.engine.views().iter().map(describe_view).collect();
    Ok(Json(json!({ "views": views })))
}

fn describe_view(view: &ViewInfo) -> Value {
    json!({
        "id": view.id.0,
        "name": view.name,
        "schema": view.schema,
        "columns": view.columns,
        "key": view.key,
    })
}

/// The view of a name: `v` in the schema `public`, else `schema.v`.
fn find_view<'a>(views: &'a [ViewInfo], name: &str) -> Option<&'a ViewInfo> {
    let qualified = |view: &&ViewInfo| {
        name.strip_prefix(view.schema.as_str()).and_then(|rest| rest.strip_prefix('.')) == Some(view.name.as_str())
    };
    views.iter().find(|view| view.schema == "public" && view.name == name).or_else(|| views.iter().find(qualified))
}

/// With a key: its row. Without: what the view is.
pub(super) async fn view(
    State(shared): State<Shared>,
    path: ViewPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let name = name_of(path)?;
    let parameters = Parameters::parse(query.as_deref())?;
    if parameters.is_empty() {
        let views = shared.engine.views();
        let view = match find_view(&views, &name) {
            Some(view) => view.clone(),
            // Tables are read by the same routes.
            None => shared.engine.kept_info(&name)?,
        };
        return Ok(Json(describe_view(&view)).into_response());
    }
    let request = parameters.key()?;
    let (time, row) = in_time(async {
        let scan = shared.engine.scan(&name, request).await?;
        Ok((scan.time, body::json_row(scan.time, &scan.schema, scan.rows).await?))
    })
    .await
    .map_err(malformed_key)?;
    let mut response = match row {
        Some(row) => ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], row).into_response(),
        None => ApiError::no_row().into_response(),
    };
    set_time(&mut response, time);
    Ok(response)
}

/// A key that is no value of its column's type is a malformed request.
fn malformed_key(mut error: ApiError) -> ApiError {
    let malformed = [SqlState::InvalidText, SqlState::NumericOutOfRange, SqlState::UndefinedColumn];
    if malformed.iter().any(|code| code.code() == error.fields.sqlstate) {
        error.status = axum::http::StatusCode::BAD_REQUEST;
    }
    error
}

pub(super) async fn scan(
    State(shared): State<Shared>,
    path: ViewPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let name = name_of(path)?;
    let mut request = Parameters::parse(query.as_deref())?.scan()?;
    request.limit.get_or_insert(LIMIT_DEFAULT);
    let (time, body) = in_time(async {
        let scan = shared.engine.scan(&name, request).await?;
        Ok((scan.time, body::json(scan).await?))
    })
    .await?;
    let mut response = ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response();
    set_time(&mut response, time);
    Ok(response)
}

pub(super) async fn scan_arrow(
    State(shared): State<Shared>,
    path: ViewPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let name = name_of(path)?;
    let request = Parameters::parse(query.as_deref())?.scan()?;
    // A header goes before the rows, so the end of a limited scan has to be known first.
    let limited = request.limit.is_some();
    let request = ScanRequest { cursor_first: limited, ..request };
    let (time, cursor, body) = in_time(async {
        let scan = shared.engine.scan(&name, request).await?;
        let cursor = if limited { scan.cursor.lock().ok().and_then(|cursor| cursor.clone()) } else { None };
        Ok((scan.time, cursor, body::arrow(scan).await?))
    })
    .await?;
    let content_type = HeaderValue::from_static("application/vnd.apache.arrow.stream");
    let mut response = ([(CONTENT_TYPE, content_type)], body).into_response();
    set_time(&mut response, time);
    if let Some(cursor) = cursor {
        let value = HeaderValue::from_str(&cursor)
            .map_err(|_| ApiError::from(Error::internal("a cursor does not fit a header")))?;
        response.headers_mut().insert(X_CLINK_CURSOR, value);
    }
    Ok(response)
}

/// The operators of a job that keep state.
pub(super) async fn operators(
    State(shared): State<Shared>,
    path: ViewPath,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    no_parameters(query.as_deref())?;
    let operators = shared.engine.operators(&name_of(path)?)?;
    Ok(Json(json!({ "operators": operators })))
}

type OperatorPath = Result<Path<(String, String)>, PathRejection>;

async fn operator_scan(shared: &Shared, path: OperatorPath, query: Option<&str>) -> Result<Scan, ApiError> {
    let (job, operator) = match path {
        Ok(Path(names)) => names,
        Err(rejection) => return Err(ApiError::malformed(rejection.body_text())),
    };
    let (part, request) = Parameters::parse(query)?.operator()?;
    let by_key = request.key.is_some();
    let rows = in_time(shared.engine.operator_rows(&job, &operator, part.as_deref(), request)).await;
    rows.map_err(|error| if by_key { malformed_key(error) } else { error })
}

/// Rows of an operator's state.
pub(super) async fn operator(
    State(shared): State<Shared>,
    path: OperatorPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let scan = operator_scan(&shared, path, query.as_deref()).await?;
    let (time, body) = (scan.time, body::json(scan).await?);
    let mut response = ([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response();
    set_time(&mut response, time);
    Ok(response)
}

/// The same as Arrow.
pub(super) async fn operator_arrow(
    State(shared): State<Shared>,
    path: OperatorPath,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let scan = operator_scan(&shared, path, query.as_deref()).await?;
    let (time, body) = (scan.time, body::arrow(scan).await?);
    let content_type = HeaderValue::from_static("application/vnd.apache.arrow.stream");
    let mut response = ([(CONTENT_TYPE, content_type)], body).into_response();
    set_time(&mut response, time);
    Ok(response)
}

pub(super) fn set_time(response: &mut Response, time: Time) {
    response.headers_mut().insert(X_CLINK_TIME, HeaderValue::from(time.as_millis()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RelationId;

    #[test]
    fn views_are_found_by_either_name() {
        let view = |id, schema: &str, name: &str| ViewInfo {
            id: RelationId(id),
            name: name.to_owned(),
            schema: schema.to_owned(),
            columns: Vec::new(),
            key: Vec::new(),
        };
        let views = [view(1, "public", "v"), view(2, "s", "v"), view(3, "public", "s.v")];
        let found = |name| find_view(&views, name).map(|view| view.id.0);
        assert_eq!(found("v"), Some(1));
        assert_eq!(found("public.v"), Some(1));
        assert_eq!(found("s.v"), Some(3));
        assert_eq!(found("public.s.v"), Some(3));
        assert_eq!(found("w"), None);
    }

    #[test]
    fn times_are_rfc3339() {
        assert_eq!(rfc3339(1_357_016_400_500).as_deref(), Some("2013-01-01T05:00:00.500Z"));
    }
}
