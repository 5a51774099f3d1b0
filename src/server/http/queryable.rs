//! The routes `/api/v1/queryable_state…` and `/api/v1/state/export/…`, as clients of other servers of this interface know them.
//!
//! Here one server is coordinator and worker in one: its workers are the subtasks. A scan, also over all subtasks, is of one
//! time; a subtask that cannot answer is an error and no gap.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::body::next_batch;
use super::error::ApiError;
use super::key_text::{key_column, key_texts, key_values};
use super::parameters::Parameters;
use super::routes::{in_time, set_time};
use super::serve::Shared;
use crate::engine::{BYTE_SLOT, Queryable, ROW_SLOT, ScanRequest};
use crate::types::text::{JsonObjects, write_json_string};
use crate::types::{Error, RelationId, SqlState, Time};

const X_CLINK_TRUNCATED: HeaderName = HeaderName::from_static("x-clink-truncated");
const ARROW: HeaderValue = HeaderValue::from_static("application/vnd.apache.arrow.stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Entries of a scan that names no limit, and the most of any.
const LIMIT_DEFAULT: usize = 1_000;
const LIMIT_MAX: usize = 100_000;
const KEY_COLUMN: &str = "__key";

type Answer<T> = Result<T, ApiError>;
type Parts<T> = Result<Path<T>, PathRejection>;

fn parts<T>(path: Parts<T>) -> Answer<T> {
    path.map(|Path(parts)| parts).map_err(|rejection| ApiError::malformed(rejection.body_text()))
}

fn number<T: std::str::FromStr>(what: &str, text: &str) -> Answer<T> {
    text.parse().map_err(|_| ApiError::malformed(format!("malformed {what}: \"{text}\"")).hint("Use a whole number."))
}

fn job_id(text: &str) -> Answer<RelationId> {
    Ok(RelationId(number("job_id", text)?))
}

fn no_slot() -> ApiError {
    ApiError::not_found("slot not registered").hint("GET /api/v1/queryable_state lists them.")
}

fn no_key() -> ApiError {
    ApiError::not_found("key not found")
}

/// The operator that a request names; for one subtask of it, that there is such a one.
fn operator(shared: &Shared, job: Option<RelationId>, role: &str, subtask: Option<usize>) -> Answer<Queryable> {
    let found = match shared.engine.queryable(job, role) {
        Ok(found) => found.ok_or_else(no_slot)?,
        Err(error) => return Err(ApiError::conflict(&error)),
    };
    match subtask {
        Some(subtask) if subtask >= shared.engine.workers() => Err(no_slot()),
        _ => Ok(found),
    }
}

/// `GET /api/v1/queryable_state`.
pub(super) async fn slots(State(shared): State<Shared>, RawQuery(query): RawQuery) -> Answer<Json<Value>> {
    Parameters::parse(query.as_deref())?.finish("none")?;
    let (mut slots, mut json_slots) = (Vec::new(), Vec::new());
    for found in shared.engine.queryables() {
        for subtask in 0..shared.engine.workers() {
            slots.push(format!("{}:{subtask}:{BYTE_SLOT}", found.role));
            json_slots.push(format!("{}:{subtask}:{ROW_SLOT}", found.role));
        }
    }
    Ok(Json(json!({ "slots": slots, "json_slots": json_slots })))
}

/// `GET …/{role:subtask:slot}?key=hex`.
pub(super) async fn byte_slot(
    State(shared): State<Shared>,
    path: Parts<String>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let name = parts(path)?;
    let mut names = name.rsplitn(3, ':');
    let (Some(slot), Some(subtask), Some(role)) = (names.next(), names.next(), names.next()) else {
        return Err(no_slot());
    };
    let subtask: usize = subtask.parse().map_err(|_| no_slot())?;
    bytes(&shared, role, subtask, slot, query.as_deref()).await
}

/// `GET …/op/{role}/subtask/{n}/slot/{slot}?key=hex`.
pub(super) async fn subtask_slot(
    State(shared): State<Shared>,
    path: Parts<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let (role, subtask, slot) = parts(path)?;
    bytes(&shared, &role, number("subtask", &subtask)?, &slot, query.as_deref()).await
}

async fn bytes(shared: &Shared, role: &str, subtask: usize, slot: &str, query: Option<&str>) -> Answer<Response> {
    let mut parameters = Parameters::parse(query)?;
    let key = hex(&parameters.required("key")?)?;
    let missing_is_404 = parameters.switch("treat_missing_as_404")?.unwrap_or(true);
    parameters.finish("key, treat_missing_as_404")?;
    let found = operator(shared, None, role, Some(subtask))?;
    if slot != BYTE_SLOT {
        return Err(no_slot());
    }
    let value = if shared.engine.worker_of_key(&key) == subtask {
        in_time(shared.engine.stored_value(found.job, key)).await?
    } else {
        None
    };
    match value {
        Some(value) => Ok(Json(json!({ "value_hex": to_hex(&value) })).into_response()),
        None if missing_is_404 => Err(no_key()),
        None => Ok(Json(json!({ "value_hex": null })).into_response()),
    }
}

fn hex(text: &str) -> Answer<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(pair).collect();
    bytes.ok_or_else(|| ApiError::malformed("malformed hex in \"key\"").hint("Use two hex digits for each byte."))
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `GET …/op/{role}/subtask/{n}/json/{slot}?key=…`.
pub(super) async fn subtask_row(
    State(shared): State<Shared>,
    path: Parts<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let (role, subtask, slot) = parts(path)?;
    let subtask = number("subtask", &subtask)?;
    row(&shared, &operator(&shared, None, &role, Some(subtask))?, Some(subtask), &slot, query.as_deref()).await
}

/// `GET …/job/{job}/op/{role}/json/{slot}?key=…`.
pub(super) async fn job_row(
    State(shared): State<Shared>,
    path: Parts<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let (job, role, slot) = parts(path)?;
    row(&shared, &operator(&shared, Some(job_id(&job)?), &role, None)?, None, &slot, query.as_deref()).await
}

async fn row(
    shared: &Shared,
    found: &Queryable,
    subtask: Option<usize>,
    slot: &str,
    query: Option<&str>,
) -> Answer<Response> {
    let mut parameters = Parameters::parse(query)?;
    let key = parameters.required("key")?;
    parameters.finish("key")?;
    if slot != ROW_SLOT {
        return Err(no_slot());
    }
    let values = key_values(&key);
    if !found.is_keyed || values.len() != found.key_names.len() {
        return Err(no_key());
    }
    let key_of_row = found.key_names.iter().cloned().map(Some).zip(values).collect();
    let request = ScanRequest { key: Some(key_of_row), worker: subtask, ..ScanRequest::default() };
    let read = in_time(async {
        let mut scan = shared.engine.scan(&found.role, request).await?;
        Ok((scan.time, Arc::clone(&scan.schema), next_batch(&mut scan.rows).await?))
    });
    let (time, schema, rows) = match read.await {
        Ok(read) => read,
        // No row has a key that is no value of its column.
        Err(error) if error.is_bad_value() => return Err(no_key()),
        Err(error) => return Err(error),
    };
    let rows = rows.ok_or_else(no_key)?;
    let mut out = b"{\"key\":".to_vec();
    write_json_string(&mut out, &key);
    out.extend_from_slice(b",\"value\":");
    JsonObjects::new(&schema).print(&JsonObjects::columns(&rows)?, 0, &mut out);
    out.push(b'}');
    let mut response = ([(CONTENT_TYPE, JSON)], out).into_response();
    set_time(&mut response, time);
    Ok(response)
}

/// `GET …/op/{role}/subtask/{n}/json/{slot}/scan`.
pub(super) async fn subtask_scan(
    State(shared): State<Shared>,
    path: Parts<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let (found, scanned) = scan_of_subtask(&shared, parts(path)?, query.as_deref()).await?;
    entries(&found, &scanned)
}

/// `GET …/op/{role}/subtask/{n}/json/{slot}/scan.arrow`.
pub(super) async fn subtask_scan_arrow(
    State(shared): State<Shared>,
    path: Parts<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let (found, scanned) = scan_of_subtask(&shared, parts(path)?, query.as_deref()).await?;
    stream(&found, &scanned)
}

/// `GET …/job/{job}/op/{role}/json/{slot}/scan`.
pub(super) async fn job_scan(
    State(shared): State<Shared>,
    path: Parts<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let (found, scanned) = scan_of_job(&shared, parts(path)?, query.as_deref()).await?;
    entries(&found, &scanned)
}

/// `GET …/job/{job}/op/{role}/json/{slot}/scan.arrow`.
pub(super) async fn job_scan_arrow(
    State(shared): State<Shared>,
    path: Parts<(String, String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    let (found, scanned) = scan_of_job(&shared, parts(path)?, query.as_deref()).await?;
    stream(&found, &scanned)
}

async fn scan_of_subtask(
    shared: &Shared,
    (role, subtask, slot): (String, String, String),
    query: Option<&str>,
) -> Answer<(Queryable, Scanned)> {
    let subtask = Some(number("subtask", &subtask)?);
    let found = operator(shared, None, &role, subtask)?;
    let scanned = scanned(shared, &found, subtask, &slot, query).await?;
    Ok((found, scanned))
}

async fn scan_of_job(
    shared: &Shared,
    (job, role, slot): (String, String, String),
    query: Option<&str>,
) -> Answer<(Queryable, Scanned)> {
    let found = operator(shared, Some(job_id(&job)?), &role, None)?;
    let scanned = scanned(shared, &found, None, &slot, query).await?;
    Ok((found, scanned))
}

/// What a scan has found.
struct Scanned {
    time: Time,
    rows: RecordBatch,
    truncated: bool,
}

async fn scanned(
    shared: &Shared,
    found: &Queryable,
    subtask: Option<usize>,
    slot: &str,
    query: Option<&str>,
) -> Answer<Scanned> {
    let mut parameters = Parameters::parse(query)?;
    let limit = parameters.number("limit")?.unwrap_or(LIMIT_DEFAULT).min(LIMIT_MAX);
    parameters.finish("limit")?;
    if slot != ROW_SLOT {
        return Err(no_slot());
    }
    // One more than wanted tells whether there are more.
    let request = ScanRequest { limit: Some(limit + 1), worker: subtask, ..ScanRequest::default() };
    in_time(async {
        let mut scan = shared.engine.scan(&found.role, request).await?;
        let mut batches = Vec::new();
        while let Some(batch) = next_batch(&mut scan.rows).await? {
            batches.push(batch);
        }
        let rows = concat_batches(&scan.schema, &batches)?;
        let truncated = rows.num_rows() > limit;
        Ok(Scanned { time: scan.time, rows: rows.slice(0, limit.min(rows.num_rows())), truncated })
    })
    .await
}

fn entries(found: &Queryable, scanned: &Scanned) -> Answer<Response> {
    let printer = JsonObjects::new(&scanned.rows.schema());
    let columns = JsonObjects::columns(&scanned.rows)?;
    let mut out = b"{\"entries\":[".to_vec();
    for (row, key) in key_texts(&scanned.rows, &found.key)?.iter().enumerate() {
        out.extend_from_slice(if row == 0 { b"{\"key\":" } else { b",{\"key\":" });
        write_json_string(&mut out, key);
        out.extend_from_slice(b",\"value\":");
        printer.print(&columns, row, &mut out);
        out.push(b'}');
    }
    out.extend_from_slice(format!("],\"truncated\":{}}}", scanned.truncated).as_bytes());
    let mut response = ([(CONTENT_TYPE, JSON)], out).into_response();
    set_time(&mut response, scanned.time);
    Ok(response)
}

fn stream(found: &Queryable, scanned: &Scanned) -> Answer<Response> {
    let mut fields = vec![Arc::new(Field::new(KEY_COLUMN, DataType::Utf8, false))];
    fields.extend(scanned.rows.schema().fields().iter().cloned());
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let mut columns: Vec<ArrayRef> = vec![Arc::new(key_column(&scanned.rows, &found.key)?)];
    columns.extend(scanned.rows.columns().iter().cloned());
    let rows = RecordBatch::try_new(Arc::clone(&schema), columns).map_err(Error::from)?;
    let mut writer = StreamWriter::try_new(Vec::new(), &schema).map_err(Error::from)?;
    writer.write(&rows).map_err(Error::from)?;
    let body = writer.into_inner().map_err(Error::from)?;
    let truncated = HeaderValue::from_static(if scanned.truncated { "true" } else { "false" });
    let mut response = ([(CONTENT_TYPE, ARROW), (X_CLINK_TRUNCATED, truncated)], body).into_response();
    set_time(&mut response, scanned.time);
    Ok(response)
}

/// `GET …/job/{job}/workers`: this server, when it runs the job.
pub(super) async fn workers(
    State(shared): State<Shared>,
    path: Parts<String>,
    RawQuery(query): RawQuery,
) -> Answer<Json<Value>> {
    Parameters::parse(query.as_deref())?.finish("none")?;
    let job = job_id(&parts(path)?)?;
    let runs = shared.engine.queryables().iter().any(|found| found.job == job);
    let here = json!({ "host": shared.address.ip().to_string(), "port": shared.address.port() });
    Ok(Json(json!({ "workers": if runs { vec![here] } else { Vec::new() } })))
}

/// `GET …/job/{job}/op/{role}/route?key=hex`.
pub(super) async fn route(
    State(shared): State<Shared>,
    path: Parts<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer<Json<Value>> {
    let (job, role) = parts(path)?;
    let mut parameters = Parameters::parse(query.as_deref())?;
    let key = hex(&parameters.required("key")?)?;
    parameters.finish("key")?;
    let nobody = |_| ApiError::not_found("no subtask covers key").hint("GET /api/v1/jobs lists the jobs.");
    operator(&shared, Some(job_id(&job)?), &role, None).map_err(nobody)?;
    Ok(Json(json!({
        "host": shared.address.ip().to_string(),
        "port": shared.address.port(),
        "subtask_idx": shared.engine.worker_of_key(&key),
        "topology_version": shared.engine.topology_version(),
    })))
}

/// `GET …/job/{job}/topology_version`.
pub(super) async fn topology_version(
    State(shared): State<Shared>,
    path: Parts<String>,
    RawQuery(query): RawQuery,
) -> Answer<Json<Value>> {
    Parameters::parse(query.as_deref())?.finish("none")?;
    let job = job_id(&parts(path)?)?;
    let runs = shared.engine.queryables().iter().any(|found| found.job == job);
    Ok(Json(json!({ "version": if runs { shared.engine.topology_version() } else { 0 } })))
}

/// `GET /api/v1/state/export/job/{job}`.
pub(super) async fn export(
    State(shared): State<Shared>,
    path: Parts<String>,
    RawQuery(query): RawQuery,
) -> Answer<Response> {
    Parameters::parse(query.as_deref())?.finish("none")?;
    let job = job_id(&parts(path)?)?;
    let stream = in_time(shared.engine.export_state(job)).await?;
    let skipped = (HeaderName::from_static("x-clink-skipped-subtasks"), HeaderValue::from_static("0"));
    Ok(([(CONTENT_TYPE, ARROW), skipped], stream).into_response())
}

impl ApiError {
    /// The error of a value that its column cannot have.
    fn is_bad_value(&self) -> bool {
        [SqlState::InvalidText, SqlState::NumericOutOfRange, SqlState::DatetimeOverflow, SqlState::StringTooLong]
            .iter()
            .any(|code| code.code() == self.fields.sqlstate)
    }
}
