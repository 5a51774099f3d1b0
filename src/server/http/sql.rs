//! `POST /api/v1/sql`: statements in, JSON lines or one Arrow stream out.

use std::time::Duration;

use arrow::datatypes::{DataType, SchemaRef};
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use datafusion::execution::SendableRecordBatchStream;
use futures::{StreamExt as _, stream};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::body::{RowPrinter, arrow_stream, next_batch};
use super::error::ApiError;
use super::parameters::Parameters;
use super::serve::Shared;
use crate::engine::{Answer, Parameter, Session, Tag};
use crate::server::errors;
use crate::types::{Error, Limit, Limits, Result, SqlState};

/// What a statement may take when its text does not say otherwise.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
const ARROW: &str = "application/vnd.apache.arrow.stream";

/// What the body says.
struct Wanted {
    sql: String,
    parameters: Vec<Value>,
}

/// How long the rest of a body that is too long is read.
const DISCARD_TIME: Duration = Duration::from_secs(5);

/// Runs the statements of the body in a session of their own; the last one's rows are the answer.
pub(super) async fn sql(
    State(shared): State<Shared>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> std::result::Result<Response, ApiError> {
    Parameters::parse(query.as_deref())?.finish("none")?;
    let body = read(&headers, body, shared.engine.limits()).await?;
    let wanted = wanted(&headers, &body)?;
    let arrow = headers.get_all(ACCEPT).iter().any(|accept| accept.to_str().is_ok_and(|accept| accept.contains(ARROW)));
    let mut session = shared.engine.session();
    session.set_at_start("statement_timeout", &STATEMENT_TIMEOUT.as_millis().to_string())?;
    // A client that goes away drops the request, and what runs with it.
    let cancel = CancellationToken::new();
    let guard = cancel.clone().drop_guard();
    let answer = run(&mut session, wanted, &cancel).await?;
    respond(answer, arrow, guard).await
}

/// The whole body, when it is not too long and comes fast enough.
async fn read(headers: &HeaderMap, body: Body, limits: &Limits) -> std::result::Result<Vec<u8>, ApiError> {
    let most = limits.size(Limit::HttpBodyBytes);
    let too_long = || {
        let message = format!("the body of a request may be at most {most} bytes long");
        let hint = "Send the statements one by one, and rows in several INSERT statements or with COPY.";
        ApiError::beyond(StatusCode::PAYLOAD_TOO_LARGE, &limits.exceeded(Limit::HttpBodyBytes, message).hint(hint))
    };
    let declared = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let (began, mut chunks, mut bytes) = (Instant::now(), body.into_data_stream(), Vec::new());
    if declared.is_some_and(|length| length > most as u64) {
        discard(&mut chunks, 2 * most).await;
        return Err(too_long());
    }
    loop {
        // 1,000 bytes a second, from the end of the time that any body has.
        let until = began + limits.time(Limit::HttpBodyTime) + Duration::from_millis(bytes.len() as u64);
        let chunk = match tokio::time::timeout_at(until, chunks.next()).await {
            Ok(None) => return Ok(bytes),
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => return Err(ApiError::malformed(format!("the body broke off: {error}"))),
            Err(_) => {
                let error = limits
                    .exceeded(Limit::HttpBodyTime, "the body of the request took too long")
                    .hint("Send the whole request at once.");
                return Err(ApiError::beyond(StatusCode::REQUEST_TIMEOUT, &error));
            }
        };
        if bytes.len() + chunk.len() > most {
            discard(&mut chunks, most).await;
            return Err(too_long());
        }
        bytes.extend_from_slice(&chunk);
    }
}

/// Takes in what a client still sends, within bounds: most look for an answer only when they have sent all.
async fn discard(chunks: &mut BodyDataStream, bytes_max: usize) {
    let mut left = bytes_max;
    let rest = async {
        while let Some(Ok(chunk)) = chunks.next().await
            && chunk.len() <= left
        {
            left -= chunk.len();
        }
    };
    // A slow one learns it by the end of the connection.
    let _ = tokio::time::timeout(DISCARD_TIME, rest).await;
}

fn wanted(headers: &HeaderMap, body: &[u8]) -> std::result::Result<Wanted, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        let message = format!("the body is not UTF-8: byte {} is wrong", error.valid_up_to() + 1);
        ApiError::from(Error::new(SqlState::CharacterNotInRepertoire, message).hint("Send the text in UTF-8."))
    })?;
    let is_json = headers.get(CONTENT_TYPE).is_some_and(|content| content.as_bytes().starts_with(b"application/json"));
    if !is_json {
        return Ok(Wanted { sql: text.to_owned(), parameters: Vec::new() });
    }
    let shape = "The body is {\"sql\": \"SELECT …\", \"params\": […]}; with another Content-Type it is the text of the statement.";
    let bad = |message: String| ApiError::malformed(message).hint(shape);
    let mut object: Map<String, Value> =
        serde_json::from_str(text).map_err(|error| bad(format!("the body is no JSON object: {error}")))?;
    let Some(Value::String(sql)) = object.remove("sql") else {
        return Err(bad("\"sql\" is missing or no string".to_owned()));
    };
    let parameters = match object.remove("params") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(values)) => values,
        Some(_) => return Err(bad("\"params\" is no array".to_owned())),
    };
    if let Some(name) = object.keys().next() {
        return Err(bad(format!("unknown member \"{name}\"")));
    }
    Ok(Wanted { sql, parameters })
}

/// A JSON value as the text of a parameter of a type.
///
/// # Errors
/// 22021 for a text with a zero byte.
fn parameter(value: &Value, data_type: &DataType) -> Result<Option<String>> {
    match (value, data_type) {
        (Value::Null, _) => Ok(None),
        (Value::String(text), _) if text.contains('\0') => {
            let message = "invalid byte sequence for encoding \"UTF8\": 0x00";
            Err(Error::new(SqlState::CharacterNotInRepertoire, message).hint("A text cannot have a zero byte."))
        }
        (Value::String(text), _) => Ok(Some(text.clone())),
        (Value::Array(values), DataType::List(element)) => {
            let elements = values
                .iter()
                .map(|value| {
                    Ok(match parameter(value, element.data_type())? {
                        None => "NULL".to_owned(),
                        Some(text) if matches!(value, Value::Array(_)) => text,
                        Some(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
                    })
                })
                .collect::<Result<Vec<String>>>()?;
            Ok(Some(format!("{{{}}}", elements.join(","))))
        }
        (other, _) => Ok(Some(other.to_string())),
    }
}

async fn run(session: &mut Session, wanted: Wanted, cancel: &CancellationToken) -> Result<Answer> {
    let statements = session.parse(&wanted.sql)?;
    let Some((last, before)) = statements.split_last() else {
        return Err(Error::new(SqlState::SyntaxError, "the body has no statement").hint("Send SQL, such as SELECT 1."));
    };
    if !wanted.parameters.is_empty() && !before.is_empty() {
        return Err(Error::unsupported("parameters of more than one statement are not supported")
            .hint("Send the statements one by one."));
    }
    for statement in before {
        let answer = session.execute(statement, cancel).await?;
        drain(answer).await?;
    }
    if wanted.parameters.is_empty() {
        return session.execute(last, cancel).await;
    }
    let prepared = session.prepare(last.clone(), &[]).await?;
    if prepared.parameter_types().len() != wanted.parameters.len() {
        return Err(Error::new(
            SqlState::ProtocolViolation,
            format!(
                "the statement has {} parameters and \"params\" has {} values",
                prepared.parameter_types().len(),
                wanted.parameters.len()
            ),
        )
        .hint("Give one value for each of $1, $2 and so on."));
    }
    let types: Vec<DataType> = prepared.parameter_types().to_vec();
    let values = wanted.parameters.into_iter().zip(types);
    let values = values.map(|(value, data_type)| Ok(Parameter { text: parameter(&value, &data_type)?, data_type }));
    let values: Vec<Parameter> = values.collect::<Result<_>>()?;
    session.execute_prepared(&prepared, &values, cancel).await
}

/// Runs a statement whose rows nobody wants to its end.
async fn drain(answer: Answer) -> Result<()> {
    if let Answer::Rows { mut rows, .. } = answer {
        while next_batch(&mut rows).await?.is_some() {}
    }
    Ok(())
}

async fn respond(answer: Answer, arrow: bool, guard: DropGuard) -> std::result::Result<Response, ApiError> {
    let (schema, rows) = match answer {
        Answer::Rows { schema, rows, .. } => (schema, rows),
        Answer::Done { tag, notices } => {
            let notices: Vec<&str> = notices.iter().map(|notice| notice.message.as_str()).collect();
            let (name, rows) = words(&tag);
            return Ok(axum::Json(json!({ "tag": name, "rows": rows, "notices": notices })).into_response());
        }
        Answer::CopyOut { .. } | Answer::CopyIn(_) => {
            return Err(Error::unsupported("COPY over HTTP is not supported")
                .hint("Send SELECT for rows out, INSERT for rows in; COPY works over PostgreSQL's protocol.")
                .into());
        }
    };
    let (content_type, body) = if arrow {
        (ARROW, arrow_stream(&schema, rows, guard).await?)
    } else {
        ("application/x-ndjson", json_lines(schema, rows, guard).await?)
    };
    Ok(([(CONTENT_TYPE, HeaderValue::from_static(content_type))], body).into_response())
}

fn words(tag: &Tag) -> (&'static str, Option<u64>) {
    match tag {
        Tag::Plain(name) | Tag::Show(name) => (name, None),
        Tag::Insert(rows) => ("INSERT", Some(*rows)),
        Tag::Update(rows) => ("UPDATE", Some(*rows)),
        Tag::Delete(rows) => ("DELETE", Some(*rows)),
        Tag::Move(rows) => ("MOVE", Some(*rows)),
        Tag::CopyIn(rows) => ("COPY", Some(*rows)),
        Tag::Select => ("SELECT", None),
        Tag::Fetch => ("FETCH", None),
    }
}

struct Lines {
    printer: RowPrinter,
    rows: SendableRecordBatchStream,
    ended: bool,
    _guard: DropGuard,
}

impl Lines {
    async fn next(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        match next_batch(&mut self.rows).await? {
            Some(batch) => self.printer.print_lines(&batch, &mut out)?,
            None => self.ended = true,
        }
        Ok(out)
    }
}

/// One object a line. What fails before the first row is an error of the request; what fails later
/// is a last line with the error's fields.
async fn json_lines(schema: SchemaRef, rows: SendableRecordBatchStream, guard: DropGuard) -> Result<Body> {
    let mut lines = Lines { printer: RowPrinter::new(&schema), rows, ended: false, _guard: guard };
    let start = lines.next().await?;
    let rest = stream::unfold(lines, |mut lines| async move {
        if lines.ended {
            return None;
        }
        let chunk = lines.next().await.unwrap_or_else(|error| {
            lines.ended = true;
            let mut line = serde_json::to_vec(&errors::fields(&error)).unwrap_or_default();
            line.push(b'\n');
            line
        });
        Some((Ok(Bytes::from(chunk)), lines))
    });
    let start = stream::iter([Ok::<_, std::io::Error>(Bytes::from(start))]);
    Ok(Body::from_stream(futures::StreamExt::chain(start, rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_text_or_an_object() {
        let mut headers = HeaderMap::new();
        let text = wanted(&headers, b"SELECT 1").expect("text");
        assert_eq!((text.sql.as_str(), text.parameters.len()), ("SELECT 1", 0));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
        let object = wanted(&headers, br#"{"sql": "SELECT $1", "params": [1.50, "a", null, true]}"#).expect("object");
        let texts: Vec<_> =
            object.parameters.iter().map(|value| parameter(value, &DataType::Utf8).expect("a text")).collect();
        assert_eq!(texts, [Some("1.5".into()), Some("a".into()), None, Some("true".into())]);
        let list = DataType::List(std::sync::Arc::new(arrow::datatypes::Field::new_list_field(DataType::Utf8, true)));
        let array = parameter(&json!(["a", "b \"c\"", null]), &list).expect("an array");
        assert_eq!(array.as_deref(), Some("{\"a\",\"b \\\"c\\\"\",NULL}"));
        assert!(parameter(&json!("a\u{0}"), &DataType::Utf8).is_err());
        for bad in [&b"[]"[..], b"{}", br#"{"sql": 1}"#, br#"{"sql": "", "x": 1}"#, br#"{"sql": "", "params": 1}"#] {
            assert!(wanted(&headers, bad).is_err());
        }
    }
}
