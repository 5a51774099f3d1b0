//! `GET /api/v1/views/{view}/changes`: a subscription as JSON lines, Server-Sent Events or one Arrow stream.
//!
//! The form is that of the `Accept` header. A progress row carries the token to go on from; as an event, that is its id,
//! so a browser that lost the connection goes on by itself.

use std::time::Duration;

use arrow::array::{AsArray as _, RecordBatch};
use arrow::datatypes::{Int64Type, Schema};
use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use datafusion::execution::SendableRecordBatchStream;
use futures::stream;

use super::body::{arrow_live, next_batch};
use super::error::ApiError;
use super::parameters::Parameters;
use super::routes::{ViewPath, in_time, name_of};
use super::serve::Shared;
use crate::engine::{CHANGE_COLUMNS, ChangesRequest};
use crate::server::errors;
use crate::types::text::{JsonObjects, write_json_string};
use crate::types::{Error, Result};

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// After so long without a change an event stream says that it is there: whoever is gone is noticed by that.
const STILL_THERE: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Lines,
    Events,
    Arrow,
}

impl Form {
    fn wanted(headers: &HeaderMap) -> Form {
        let accepts = |what: &str| {
            headers.get_all(ACCEPT).iter().any(|accept| accept.to_str().is_ok_and(|accept| accept.contains(what)))
        };
        if accepts("text/event-stream") {
            Form::Events
        } else if accepts("application/vnd.apache.arrow.stream") {
            Form::Arrow
        } else {
            Form::Lines
        }
    }

    fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Form::Lines => "application/x-ndjson",
            Form::Events => "text/event-stream",
            Form::Arrow => "application/vnd.apache.arrow.stream",
        })
    }
}

/// The changes of a view or table, as they come to pass.
pub(super) async fn changes(
    State(shared): State<Shared>,
    path: ViewPath,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> std::result::Result<Response, ApiError> {
    let name = name_of(path)?;
    let form = Form::wanted(&headers);
    let mut request: ChangesRequest = Parameters::parse(query.as_deref())?.changes()?;
    if let Some(id) = headers.get(LAST_EVENT_ID).filter(|_| form == Form::Events) {
        // What the client saw last is later than what its address says.
        request.as_of = Some(id.to_str().map_err(|_| ApiError::malformed("Last-Event-ID is no token"))?.to_owned());
        request.snapshot = None;
    }
    let (schema, rows) = in_time(shared.engine.changes(&name, request)).await?;
    let body = match form {
        Form::Arrow => arrow_live(&schema, rows)?,
        Form::Lines | Form::Events => text(form, &schema, rows),
    };
    let no_store = (CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(([(CONTENT_TYPE, form.content_type()), no_store], body).into_response())
}

struct Texts {
    form: Form,
    printer: JsonObjects,
    rows: SendableRecordBatchStream,
    ended: bool,
}

fn text(form: Form, schema: &Schema, rows: SendableRecordBatchStream) -> Body {
    // The first columns are those of the change; the row has the others.
    let own = CHANGE_COLUMNS.min(schema.fields().len());
    let printer = JsonObjects::new(&Schema::new(schema.fields().iter().skip(own).cloned().collect::<Vec<_>>()));
    let texts = Texts { form, printer, rows, ended: false };
    Body::from_stream(stream::unfold(texts, |mut texts| async move {
        if texts.ended {
            return None;
        }
        let chunk = texts.next().await.unwrap_or_else(|error| texts.failed(&error));
        Some((Ok::<_, std::io::Error>(Bytes::from(chunk)), texts))
    }))
}

impl Texts {
    async fn next(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let next = next_batch(&mut self.rows);
        let next = match self.form {
            Form::Events => match tokio::time::timeout(STILL_THERE, next).await {
                Ok(next) => next?,
                Err(_) => return Ok(b": still there\n\n".to_vec()),
            },
            Form::Lines | Form::Arrow => next.await?,
        };
        match next {
            Some(batch) => self.print(&batch, &mut out)?,
            None => self.ended = true,
        }
        Ok(out)
    }

    fn print(&self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<()> {
        let missing = || Error::internal("a column of a change is missing");
        let column = |at: usize| batch.columns().get(at).ok_or_else(missing);
        let times = column(0)?.as_primitive_opt::<Int64Type>().ok_or_else(missing)?;
        let diffs = column(1)?.as_primitive_opt::<Int64Type>().ok_or_else(missing)?;
        let kinds = column(2)?.as_string_opt::<i32>().ok_or_else(missing)?;
        let tokens = column(3)?.as_string_opt::<i32>().ok_or_else(missing)?;
        let columns =
            JsonObjects::columns(&batch.project(&(CHANGE_COLUMNS..batch.num_columns()).collect::<Vec<_>>())?)?;
        for row in 0..batch.num_rows() {
            let token = arrow::array::Array::is_valid(tokens, row).then(|| tokens.value(row));
            if self.form == Form::Events {
                if let Some(token) = token {
                    out.extend_from_slice(format!("id: {token}\nevent: progress\n").as_bytes());
                } else {
                    out.extend_from_slice(b"event: change\n");
                }
                out.extend_from_slice(b"data: ");
            }
            out.extend_from_slice(format!("{{\"time\":{},", times.value(row)).as_bytes());
            match token {
                Some(token) => {
                    out.extend_from_slice(b"\"kind\":\"progress\",\"token\":");
                    write_json_string(out, token);
                }
                None => {
                    let (diff, kind) = (diffs.value(row), kinds.value(row));
                    out.extend_from_slice(format!("\"diff\":{diff},\"kind\":\"{kind}\",\"row\":").as_bytes());
                    self.printer.print(&columns, row, out);
                }
            }
            out.extend_from_slice(if self.form == Form::Events { b"}\n\n" } else { b"}\n" });
        }
        Ok(())
    }

    /// The error as a last line or event: its fields are those of any other error.
    fn failed(&mut self, error: &Error) -> Vec<u8> {
        self.ended = true;
        let fields = serde_json::to_vec(&errors::fields(error)).unwrap_or_default();
        let (before, after): (&[u8], &[u8]) = match self.form {
            Form::Events => (b"event: error\ndata: ", b"\n\n"),
            Form::Lines | Form::Arrow => (b"", b"\n"),
        };
        [before, &fields, after].concat()
    }
}
