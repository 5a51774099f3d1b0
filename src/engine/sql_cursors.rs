//! Cursors of SQL: `DECLARE`, `FETCH`, `MOVE`, `CLOSE`.
//!
//! A cursor is an open query, or a subscription, that goes forward. It ends with its transaction block unless it was
//! declared `WITH HOLD`.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt as _;
use tokio::time::Instant;

use crate::sql::Fetch;
use crate::types::{Error, Limit, Limits, Result, SqlState, Time};

use super::api::{Answer, Tag};
use super::interrupt::Interrupt;
use super::subscribe::{FETCH_TIMEOUT, Next, Subscription};

/// The cursors of a session.
#[derive(Default)]
pub(crate) struct Cursors(HashMap<String, Cursor>);

struct Cursor {
    schema: SchemaRef,
    /// In a lock only so that a session may be shared between threads.
    rows: Option<Mutex<Rows>>,
    /// Rows that were read and not fetched.
    rest: Option<RecordBatch>,
    hold: bool,
    is_query: bool,
}

/// What a cursor reads.
enum Rows {
    Query(SendableRecordBatchStream),
    Subscription(Box<Subscription>),
}

/// How long a fetch waits for changes: until then, or until all is there that came to pass before a time.
#[derive(Clone, Copy)]
struct Patience {
    deadline: Instant,
    at_least: Time,
}

impl Cursors {
    /// Checks that a cursor of that name can be declared.
    ///
    /// # Errors
    /// 42P03, 54000.
    pub(crate) fn check_new(&self, name: &str, limits: &Limits) -> Result<()> {
        if self.0.contains_key(name) {
            return Err(Error::new(SqlState::DuplicateCursor, format!("cursor \"{name}\" already exists"))
                .hint(format!("CLOSE {name} first, or choose another name.")));
        }
        let most = limits.size(Limit::Cursors);
        if self.0.len() >= most {
            let message = format!("a session may have at most {most} cursors");
            return Err(limits.exceeded(Limit::Cursors, message).hint("CLOSE those that are done."));
        }
        Ok(())
    }

    /// Keeps an open query under a name.
    pub(crate) fn declare(&mut self, name: String, hold: bool, schema: SchemaRef, rows: SendableRecordBatchStream) {
        self.0.insert(
            name,
            Cursor { schema, rows: Some(Mutex::new(Rows::Query(rows))), rest: None, hold, is_query: true },
        );
    }

    /// Keeps a subscription under a name.
    pub(crate) fn declare_subscription(&mut self, name: String, hold: bool, subscription: Subscription) {
        let schema = SchemaRef::clone(subscription.schema());
        let rows = Some(Mutex::new(Rows::Subscription(Box::new(subscription))));
        self.0.insert(name, Cursor { schema, rows, rest: None, hold, is_query: false });
    }

    /// The columns of a cursor.
    ///
    /// # Errors
    /// 34000.
    pub(crate) fn schema(&self, name: &str) -> Result<SchemaRef> {
        self.0.get(name).map(|cursor| SchemaRef::clone(&cursor.schema)).ok_or_else(|| missing(name))
    }

    /// Closes a cursor; `None`: all.
    ///
    /// # Errors
    /// 34000.
    pub(crate) fn close(&mut self, name: Option<&str>) -> Result<()> {
        match name {
            None => self.0.clear(),
            Some(name) => {
                self.0.remove(name).ok_or_else(|| missing(name))?;
            }
        }
        Ok(())
    }

    /// The block has ended: only cursors WITH HOLD stay, and after a ROLLBACK those of before it.
    pub(crate) fn end_block(&mut self) {
        self.0.retain(|_, cursor| cursor.hold);
    }

    /// Gives the next rows, or goes past them.
    ///
    /// # Errors
    /// 34000; those of the query, which end the cursor; 22023 for a timeout where nothing is waited for. Of a
    /// subscription it gives what came to pass up to `now` at least.
    pub(crate) async fn fetch(&mut self, fetch: &Fetch, now: Time, interrupt: &Interrupt) -> Result<Answer> {
        let cursor = self.0.get_mut(&fetch.name).ok_or_else(|| missing(&fetch.name))?;
        let wanted = fetch.rows.map_or(usize::MAX, |rows| usize::try_from(rows).unwrap_or(usize::MAX));
        let waits = fetch.timeout.unwrap_or(FETCH_TIMEOUT);
        let patience = Patience { deadline: Instant::now() + waits, at_least: now };
        // The wait is no fault of the statement: its time limit begins behind it.
        let interrupt = if fetch.timeout.is_some() { &interrupt.untimed() } else { interrupt };
        if fetch.timeout.is_some() && cursor.is_query {
            return Err(Error::new(
                SqlState::InvalidParameterValue,
                format!("cursor \"{}\" is over a query: its rows are there", fetch.name),
            )
            .hint("Leave the timeout out: it is how long to wait for the changes of SUBSCRIBE."));
        }
        let rows = cursor.rows.take().map(|rows| rows.into_inner().unwrap_or_else(PoisonError::into_inner));
        let rest = cursor.rest.take();
        let (taken, rest, rows) = interrupt.run(take(rest, rows, wanted, fetch.is_move, patience)).await?;
        (cursor.rest, cursor.rows) = (rest, rows.map(Mutex::new));
        if fetch.is_move {
            return Ok(Answer::Done { tag: Tag::Move(taken.count), notices: Vec::new() });
        }
        let schema = SchemaRef::clone(&cursor.schema);
        let stream = futures::stream::iter(taken.batches.into_iter().map(Ok));
        let rows = Box::pin(RecordBatchStreamAdapter::new(SchemaRef::clone(&schema), stream));
        Ok(Answer::Rows { schema, rows, tag: Tag::Fetch, notices: Vec::new() })
    }
}

/// How long a fetch waits at a time for what has come to pass and is not shown yet.
const AGAIN: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Taken {
    batches: Vec<RecordBatch>,
    count: u64,
}

async fn take(
    mut rest: Option<RecordBatch>,
    mut rows: Option<Rows>,
    mut wanted: usize,
    drop_rows: bool,
    patience: Patience,
) -> Result<(Taken, Option<RecordBatch>, Option<Rows>)> {
    let mut taken = Taken::default();
    while wanted > 0 {
        let batch = match rest.take() {
            Some(batch) => batch,
            None => match rows.as_mut() {
                None => break,
                Some(Rows::Subscription(subscription)) => {
                    let soon = Instant::now() + AGAIN;
                    match subscription.next(Some(patience.deadline.max(soon))).await? {
                        Next::Rows(batch) => batch,
                        Next::Later if subscription.reached().is_some_and(|time| time >= patience.at_least) => break,
                        Next::Later => continue,
                        Next::End => {
                            rows = None;
                            break;
                        }
                    }
                }
                Some(Rows::Query(stream)) => match stream.next().await {
                    None => {
                        rows = None;
                        break;
                    }
                    Some(batch) => batch.map_err(crate::engine::error_of)?,
                },
            },
        };
        let now = batch.num_rows().min(wanted);
        if now < batch.num_rows() {
            rest = Some(batch.slice(now, batch.num_rows() - now));
        }
        wanted -= now;
        taken.count += now as u64;
        if !drop_rows && now > 0 {
            taken.batches.push(batch.slice(0, now));
        }
    }
    Ok((taken, rest, rows))
}

fn missing(name: &str) -> Error {
    Error::new(SqlState::InvalidCursorName, format!("cursor \"{name}\" does not exist"))
        .hint("DECLARE it first; a cursor without WITH HOLD ends with its transaction block.")
}
