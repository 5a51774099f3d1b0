//! Rows as streamed bodies: JSON and Arrow IPC.

use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::ipc::writer::StreamWriter;
use axum::body::{Body, Bytes};
use datafusion::execution::SendableRecordBatchStream;
use futures::{Stream, StreamExt as _, stream};

use crate::engine::Scan;
use crate::server::errors;
use crate::types::text::{JsonObjects, write_json_string};
use crate::types::{Result, Time};

/// Prints rows as members of a JSON array.
pub(super) struct RowPrinter(JsonObjects);

impl RowPrinter {
    pub(super) fn new(schema: &arrow::datatypes::Schema) -> RowPrinter {
        RowPrinter(JsonObjects::new(schema))
    }

    /// Appends the rows, each behind a comma but for the very first.
    pub(super) fn print(&self, batch: &RecordBatch, first: &mut bool, out: &mut Vec<u8>) -> Result<()> {
        let columns = JsonObjects::columns(batch)?;
        for row in 0..batch.num_rows() {
            if !std::mem::take(first) {
                out.push(b',');
            }
            self.0.print(&columns, row, out);
        }
        Ok(())
    }

    /// Appends the rows, each on a line of its own.
    pub(super) fn print_lines(&self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<()> {
        let columns = JsonObjects::columns(batch)?;
        for row in 0..batch.num_rows() {
            self.0.print(&columns, row, out);
            out.push(b'\n');
        }
        Ok(())
    }
}

/// The next batch that has rows.
pub(super) async fn next_batch(rows: &mut SendableRecordBatchStream) -> Result<Option<RecordBatch>> {
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(errors::of_stream)?;
        if batch.num_rows() > 0 {
            return Ok(Some(batch));
        }
    }
    Ok(None)
}

struct JsonRows {
    printer: RowPrinter,
    rows: SendableRecordBatchStream,
    cursor: Arc<Mutex<Option<String>>>,
    first: bool,
    ended: bool,
}

impl JsonRows {
    async fn next(&mut self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        match next_batch(&mut self.rows).await? {
            Some(batch) => self.printer.print(&batch, &mut self.first, &mut out)?,
            None => {
                self.ended = true;
                out.extend_from_slice(b"],\"cursor\":");
                let cursor = self.cursor.lock().ok().and_then(|cursor| cursor.clone());
                match cursor {
                    Some(cursor) => write_json_string(&mut out, &cursor),
                    None => out.extend_from_slice(b"null"),
                }
                out.push(b'}');
            }
        }
        Ok(out)
    }
}

/// `{"time":T,"rows":[…],"cursor":…}`. What fails before the first row is an error of the request;
/// what fails later ends the object with the error's fields, so that the body stays JSON and the
/// reader sees that it is not whole.
pub(super) async fn json(scan: Scan) -> Result<Body> {
    let mut rows = JsonRows {
        printer: RowPrinter::new(&scan.schema),
        rows: scan.rows,
        cursor: scan.cursor,
        first: true,
        ended: false,
    };
    let mut start = format!("{{\"time\":{},\"rows\":[", scan.time).into_bytes();
    start.extend(rows.next().await?);
    let rest = stream::unfold(rows, |mut rows| async move {
        if rows.ended {
            return None;
        }
        let chunk = match rows.next().await {
            Ok(chunk) => chunk,
            Err(error) => {
                rows.ended = true;
                failed_tail(&error)
            }
        };
        Some((Ok(Bytes::from(chunk)), rows))
    });
    Ok(Body::from_stream(stream::iter([Ok::<_, std::io::Error>(Bytes::from(start))]).chain(rest)))
}

fn failed_tail(error: &crate::types::Error) -> Vec<u8> {
    let mut out = b"],\"cursor\":null,".to_vec();
    // The fields are an object of their own; without its brace it goes on with ours.
    let fields = serde_json::to_vec(&errors::fields(error)).unwrap_or_default();
    out.extend_from_slice(fields.strip_prefix(b"{").unwrap_or(b"\"error\":\"unknown\"}"));
    out
}

/// `{"time":T,"row":{…}}` for the only row; `None` when there is none.
pub(super) async fn json_row(
    time: Time,
    schema: &arrow::datatypes::Schema,
    mut rows: SendableRecordBatchStream,
) -> Result<Option<Vec<u8>>> {
    let Some(batch) = next_batch(&mut rows).await? else {
        return Ok(None);
    };
    let mut out = format!("{{\"time\":{time},\"row\":").into_bytes();
    RowPrinter::new(schema).print(&batch.slice(0, 1), &mut true, &mut out)?;
    out.push(b'}');
    Ok(Some(out))
}

struct ArrowRows<G> {
    writer: StreamWriter<Vec<u8>>,
    rows: SendableRecordBatchStream,
    ended: bool,
    _guard: G,
}

impl<G> ArrowRows<G> {
    async fn next(&mut self) -> Result<Vec<u8>> {
        match next_batch(&mut self.rows).await? {
            Some(batch) => self.writer.write(&batch)?,
            None => {
                self.ended = true;
                self.writer.finish()?;
            }
        }
        Ok(std::mem::take(self.writer.get_mut()))
    }
}

/// One Arrow IPC stream, its schema first. What fails after the first batch cuts the connection:
/// the stream then lacks its end.
pub(super) async fn arrow(scan: Scan) -> Result<Body> {
    arrow_stream(&scan.schema, scan.rows, ()).await
}

/// The same of any rows; the guard is dropped when the reader is through or gone.
pub(super) async fn arrow_stream<G: Send + 'static>(
    schema: &arrow::datatypes::Schema,
    rows: SendableRecordBatchStream,
    guard: G,
) -> Result<Body> {
    let writer = StreamWriter::try_new(Vec::new(), schema)?;
    let mut rows = ArrowRows { writer, rows, ended: false, _guard: guard };
    // The schema stands in the writer already and comes out with the first batch.
    let start = rows.next().await?;
    Ok(Body::from_stream(stream::iter([Ok::<_, std::io::Error>(Bytes::from(start))]).chain(rest_of(rows))))
}

fn rest_of<G: Send + 'static>(rows: ArrowRows<G>) -> impl Stream<Item = std::io::Result<Bytes>> + Send {
    stream::try_unfold(rows, |mut rows| async move {
        if rows.ended {
            return Ok(None);
        }
        match rows.next().await {
            Ok(chunk) => Ok(Some((Bytes::from(chunk), rows))),
            Err(error) => {
                tracing::warn!(%error, "an Arrow stream is cut");
                Err(std::io::Error::other(error))
            }
        }
    })
}

/// The same of rows that come now and then: the schema goes out at once.
pub(super) fn arrow_live(schema: &arrow::datatypes::Schema, rows: SendableRecordBatchStream) -> Result<Body> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema)?;
    let start = std::mem::take(writer.get_mut());
    let rows = ArrowRows { writer, rows, ended: false, _guard: () };
    Ok(Body::from_stream(stream::iter([Ok::<_, std::io::Error>(Bytes::from(start))]).chain(rest_of(rows))))
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
    use arrow::ipc::reader::StreamReader;
    use datafusion::error::DataFusionError;
    use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

    use super::*;
    use crate::types::{Error, SqlState};

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, true), Field::new("t\"x", DataType::Utf8, true)]))
    }

    fn batch() -> RecordBatch {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a\n", "😀"]));
        RecordBatch::try_new(schema(), vec![ids, texts]).expect("a batch")
    }

    fn scan(items: Vec<std::result::Result<RecordBatch, DataFusionError>>, cursor: Option<&str>) -> Scan {
        Scan {
            time: Time::from_millis(7),
            schema: schema(),
            rows: Box::pin(RecordBatchStreamAdapter::new(schema(), stream::iter(items))),
            cursor: Arc::new(Mutex::new(cursor.map(str::to_owned))),
        }
    }

    fn fault() -> DataFusionError {
        DataFusionError::External(Box::new(Error::new(SqlState::DivisionByZero, "division by zero")))
    }

    async fn read(body: Body) -> Vec<u8> {
        axum::body::to_bytes(body, usize::MAX).await.expect("whole").to_vec()
    }

    async fn read_json(scan: Scan) -> serde_json::Value {
        serde_json::from_slice(&read(json(scan).await.expect("starts")).await).expect("strict JSON")
    }

    #[tokio::test]
    async fn every_json_body_is_json() {
        assert_eq!(read_json(scan(vec![], None)).await, serde_json::json!({"time": 7, "rows": [], "cursor": null}));
        let rows = serde_json::json!([
            {"id": 1, "t\"x": "a\n"}, {"id": null, "t\"x": "😀"},
            {"id": 1, "t\"x": "a\n"}, {"id": null, "t\"x": "😀"},
        ]);
        let whole = read_json(scan(vec![Ok(batch()), Ok(batch())], Some("c1"))).await;
        assert_eq!(whole, serde_json::json!({"time": 7, "rows": rows, "cursor": "c1"}));
        let broken = read_json(scan(vec![Ok(batch()), Err(fault())], None)).await;
        assert_eq!(broken.get("sqlstate"), Some(&serde_json::json!("22012")));
        assert_eq!(broken.get("error"), Some(&serde_json::json!("division by zero")));
        let early = json(scan(vec![Err(fault())], None)).await.expect_err("before the first row");
        assert_eq!(early.code(), SqlState::DivisionByZero);
    }

    #[tokio::test]
    async fn arrow_streams_have_their_schema_also_without_rows() {
        for (items, count) in [(vec![], 0), (vec![Ok(batch()), Ok(batch())], 4)] {
            let bytes = read(arrow(scan(items, None)).await.expect("starts")).await;
            let reader = StreamReader::try_new(bytes.as_slice(), None).expect("a stream");
            assert_eq!(reader.schema(), schema());
            assert_eq!(reader.map(|batch| batch.expect("a batch").num_rows()).sum::<usize>(), count);
        }
        let broken = arrow(scan(vec![Ok(batch()), Err(fault())], None)).await.expect("starts");
        assert!(axum::body::to_bytes(broken, usize::MAX).await.is_err());
    }
}
