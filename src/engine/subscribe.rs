//! Subscriptions: a relation's rows at one time, then its changes, time by time.
//!
//! All changes of one time come together, and a token stands for "all changes up to a time". A subscription that goes on
//! from a token misses nothing and has nothing twice. It reads out of the history that serves reads, and only when its
//! reader wants more: what a slow reader costs is what the history keeps for it.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::exec::arrangement::{ChangePlace, Changes, RowChange, RowKind};
use crate::sql::{self, OptionValue, Subscribe};
use crate::types::{CHUNK_ROWS_MAX, Error, RelationId, Result, SqlState, Time};

use super::api::ChangesRequest;
use super::coordinator::{Following, PageRequest, Pin, ReadBound};
use super::database::Engine;
use super::interrupt::Interrupt;

/// How often a subscription without changes tells how far it is, at most.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Names of the columns before those of the relation: [`super::api::CHANGE_COLUMNS`] of them.
const TIME_COLUMN: &str = "clink_time";
const DIFF_COLUMN: &str = "clink_diff";
const KIND_COLUMN: &str = "clink_kind";
const TOKEN_COLUMN: &str = "clink_token";
/// What stands in the kind's column of a row that tells how far the subscription is.
const PROGRESS_KIND: &str = "progress";

/// What to follow, and from where.
#[derive(Clone, Debug)]
pub(crate) struct Subscribed {
    relation: RelationId,
    /// How the statement names it.
    name: String,
    rows: SchemaRef,
    /// With columns before those of the relation.
    schema: SchemaRef,
    snapshot: bool,
    progress: bool,
    as_of: Option<Time>,
    up_to: Option<Time>,
}

/// Rows that a subscription gives.
pub(crate) enum Next {
    /// Some.
    Rows(RecordBatch),
    /// None yet, and the caller's time is over.
    Later,
    /// None any more.
    End,
}

impl Subscribed {
    /// Looks a statement's names and tokens up.
    ///
    /// # Errors
    /// 42P01 and 42809 for the relation, 22023 for tokens, 42701 when a column has the name of one of ours.
    pub(crate) fn of(engine: &Engine, subscribe: &Subscribe) -> Result<Subscribed> {
        let object = engine.kept_object(&subscribe.name)?;
        let rows = object.row_schema().ok_or_else(|| Error::internal("a relation without columns"))?;
        let time = |given: &Option<OptionValue>| {
            let parse = |value: &OptionValue| {
                parse_token(&value.text, object.id).map_err(|error| error.position_or(Some(value.position)))
            };
            given.as_ref().map(parse).transpose()
        };
        let (as_of, up_to) = (time(&subscribe.as_of)?, time(&subscribe.up_to)?);
        if let (Some(from), Some(to)) = (as_of, up_to)
            && to < from
        {
            return Err(Error::new(SqlState::InvalidParameterValue, "UP TO is before AS OF")
                .hint("Give the later token behind UP TO.")
                .position_or(subscribe.up_to.as_ref().map(|token| token.position)));
        }
        let mut fields = vec![
            Field::new(TIME_COLUMN, DataType::Int64, false),
            Field::new(DIFF_COLUMN, DataType::Int64, false),
            Field::new(KIND_COLUMN, DataType::Utf8, false),
            Field::new(TOKEN_COLUMN, DataType::Utf8, true),
        ];
        for column in rows.fields() {
            if fields.iter().any(|field| field.name() == column.name()) {
                return Err(Error::new(
                    SqlState::DuplicateColumn,
                    format!(
                        "column \"{}\" of \"{}\" has the name of a column of SUBSCRIBE",
                        column.name(),
                        object.name
                    ),
                )
                .hint("Make a materialized view that names it otherwise.")
                .position(subscribe.name.position));
            }
            fields.push(column.as_ref().clone().with_nullable(true));
        }
        Ok(Subscribed {
            relation: object.id,
            name: subscribe.name.to_sql(),
            rows,
            schema: Arc::new(Schema::new(fields)),
            snapshot: subscribe.snapshot.unwrap_or(as_of.is_none()),
            progress: subscribe.progress,
            as_of,
            up_to,
        })
    }

    /// The columns of its rows.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Begins. Waits until the relation can be read.
    ///
    /// # Errors
    /// 72000 when the changes since `AS OF` are not known any more; those of a read.
    pub(crate) async fn open(self, engine: &Engine, at_least: Time) -> Result<Subscription> {
        let coordinator = engine.coordinator();
        let fresh = |error: Error| self.or_fresh(error);
        let (following, pin) = match self.as_of {
            Some(time) if !self.snapshot => (coordinator.follow(self.relation, time).await.map_err(fresh)?, None),
            as_of => {
                let bound = as_of.map_or(ReadBound::Latest { at_least }, ReadBound::At);
                let pin = coordinator.pin(&[self.relation], bound).await.map_err(fresh)?;
                (coordinator.follow_pin(&pin, self.relation)?, self.snapshot.then_some(pin))
            }
        };
        if self.up_to.is_some_and(|time| time < following.after()) {
            return Err(Error::new(SqlState::InvalidParameterValue, "UP TO is before the time at which it begins")
                .hint("Leave UP TO out, or give a later token."));
        }
        if let Some(time) = self.up_to.filter(|time| following.is_unclear(*time)) {
            let error = Error::new(SqlState::SnapshotTooOld, "the subscription cannot end there")
                .detail(format!("A restart had only a part of the input at time {time}."));
            return Err(self.or_fresh(error));
        }
        let stage = match pin {
            Some(pin) => Stage::Snapshot { pin: Box::new(pin), worker: 0, place: None },
            None => Stage::Waiting,
        };
        let projection = (0..self.rows.fields().len()).collect();
        let told = Told { at: None, changed: true };
        Ok(Subscription { of: self, following, projection, stage, told })
    }

    /// The statement that begins anew, where going on is not possible.
    fn or_fresh(&self, error: Error) -> Error {
        match error.code() {
            SqlState::SnapshotTooOld => error.hint(format!(
                "SUBSCRIBE {} WITH (SNAPSHOT, PROGRESS) begins anew with the rows that are there. A view made WITH \
                 (retain_history = '1 hour') can be gone on with for that long.",
                self.name
            )),
            _ => error,
        }
    }

    /// Rows with the columns that stand before them.
    fn with_head(&self, rows: &RecordBatch, changes: &[RowChange]) -> Result<RecordBatch> {
        let time = |time: Time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(changes.iter().map(|change| time(change.time)))),
            Arc::new(Int64Array::from_iter_values(changes.iter().map(|change| change.diff))),
            Arc::new(StringArray::from_iter_values(changes.iter().map(|change| change.kind.name()))),
        ];
        columns.push(new_null_array(&DataType::Utf8, changes.len()));
        columns.extend(rows.columns().iter().cloned());
        Ok(RecordBatch::try_new(SchemaRef::clone(&self.schema), columns)?)
    }

    /// The row that tells that everything up to a time has been given.
    fn progress_row(&self, time: Time) -> Result<RecordBatch> {
        let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let mut columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values([millis])),
            Arc::new(Int64Array::from_iter_values([0])),
            Arc::new(StringArray::from_iter_values([PROGRESS_KIND])),
            Arc::new(StringArray::from_iter_values([token(self.relation, time)])),
        ];
        columns.extend(self.rows.fields().iter().map(|field| new_null_array(field.data_type(), 1)));
        Ok(RecordBatch::try_new(SchemaRef::clone(&self.schema), columns)?)
    }
}

/// A subscription that goes on.
pub(crate) struct Subscription {
    of: Subscribed,
    following: Following,
    projection: Vec<usize>,
    stage: Stage,
    told: Told,
}

/// What the reader was last told of how far the subscription is.
struct Told {
    /// When; `None`: not since rows were given, so it is told as soon as they are whole.
    at: Option<Instant>,
    /// The subscription got on since.
    changed: bool,
}

enum Stage {
    /// The rows at the pinned time.
    Snapshot {
        pin: Box<Pin>,
        worker: usize,
        place: Option<Vec<u8>>,
    },
    /// Up to the reached time all has been given, but for the word of it.
    Level,
    /// All has been given, and more has to come to pass.
    Waiting,
    /// The changes up to a time.
    Changes {
        upto: Time,
        parts: Vec<Part>,
    },
    Ended,
}

/// The changes of one worker.
#[derive(Default)]
struct Part {
    page: Option<Changes>,
    /// Rows of the page that were given.
    given: usize,
    /// Where the next page begins.
    place: Option<ChangePlace>,
    ended: bool,
}

impl Part {
    fn left(&self) -> &[RowChange] {
        self.page.as_ref().and_then(|page| page.changes.get(self.given..)).unwrap_or_default()
    }
}

impl Subscription {
    /// The columns of its rows.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.of.schema
    }

    /// All up to this time has been given.
    pub(crate) fn reached(&self) -> Option<Time> {
        matches!(self.stage, Stage::Waiting | Stage::Ended).then(|| self.following.after())
    }

    /// The next rows. Waits for changes until `deadline`, if there is one.
    ///
    /// # Errors
    /// 72000 when the reader was too slow; 42P01 and 55000 when the relation is gone or has failed.
    pub(crate) async fn next(&mut self, deadline: Option<Instant>) -> Result<Next> {
        loop {
            match &mut self.stage {
                Stage::Snapshot { pin, worker, place } => {
                    let request = PageRequest {
                        relation: self.of.relation,
                        projection: self.projection.clone(),
                        predicate: None,
                        rows_max: CHUNK_ROWS_MAX,
                        narrow: None,
                    };
                    let page = pin.page(&request, *worker, place.clone()).await;
                    let page = page.map_err(|error| self.of.or_fresh(error))?;
                    let time = pin.time();
                    match page.next {
                        Some(next) => *place = Some(next),
                        None if *worker + 1 < self.following.workers() => (*worker, *place) = (*worker + 1, None),
                        None => self.stage = Stage::Level,
                    }
                    if page.rows.num_rows() > 0 {
                        self.told.at = None;
                        let change = RowChange { time, diff: 1, kind: RowKind::Insert };
                        let rows = self.of.with_head(&page.rows, &vec![change; page.rows.num_rows()])?;
                        return Ok(Next::Rows(rows));
                    }
                }
                Stage::Level => {
                    let time = self.following.after();
                    let ended = self.of.up_to.is_some_and(|end| end <= time);
                    self.stage = if ended { Stage::Ended } else { Stage::Waiting };
                    self.told.changed = true;
                    let due = self.told.at.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL);
                    if self.of.progress && (ended || due) {
                        return self.tell(time);
                    }
                }
                Stage::Waiting => {
                    if self.of.up_to.is_some_and(|end| end <= self.following.after()) {
                        self.stage = Stage::Ended;
                        continue;
                    }
                    let owed = self.told.at.filter(|_| self.of.progress && self.told.changed);
                    let owed = owed.map(|at| at + PROGRESS_INTERVAL);
                    let closed = self.following.closed();
                    let closed = match deadline.into_iter().chain(owed).min() {
                        None => closed.await,
                        Some(until) => match tokio::time::timeout_at(until, closed).await {
                            Ok(closed) => closed,
                            Err(_) if owed == Some(until) => return self.tell(self.following.after()),
                            Err(_) => return Ok(Next::Later),
                        },
                    };
                    let closed = closed.map_err(|error| self.of.or_fresh(error))?;
                    let upto = self.of.up_to.map_or(closed, |end| end.min(closed));
                    let parts = (0..self.following.workers()).map(|_| Part::default()).collect();
                    self.stage = Stage::Changes { upto, parts };
                }
                Stage::Changes { upto, parts } => {
                    let upto = *upto;
                    for (worker, part) in parts.iter_mut().enumerate() {
                        while part.left().is_empty() && !part.ended {
                            let (following, projection) = (&self.following, &self.projection);
                            let page = following.changes(worker, upto, part.place, CHUNK_ROWS_MAX, projection).await;
                            let page = page.map_err(|error| self.of.or_fresh(error))?;
                            (part.place, part.ended, part.given) = (page.next, page.next.is_none(), 0);
                            part.page = Some(page);
                        }
                    }
                    match earliest(parts) {
                        Some((part, count)) => {
                            let rows = part.page.as_ref().map(|page| page.rows.slice(part.given, count));
                            let rows = rows.ok_or_else(|| Error::internal("a page of changes is missing"))?;
                            let changes = part.left().get(..count).unwrap_or_default();
                            let rows = self.of.with_head(&rows, changes)?;
                            part.given += count;
                            self.told.at = None;
                            return Ok(Next::Rows(rows));
                        }
                        None => {
                            self.following.reached(upto);
                            self.stage = Stage::Level;
                        }
                    }
                }
                Stage::Ended => return Ok(Next::End),
            }
        }
    }

    fn tell(&mut self, time: Time) -> Result<Next> {
        self.told = Told { at: Some(Instant::now()), changed: false };
        Ok(Next::Rows(self.of.progress_row(time)?))
    }

    /// Its rows, as they come to pass.
    pub(crate) fn into_stream(self) -> SendableRecordBatchStream {
        let schema = SchemaRef::clone(&self.of.schema);
        let rows = futures::stream::try_unfold(self, |mut subscription| async move {
            match subscription.next(None).await.map_err(sql::to_datafusion)? {
                Next::Rows(rows) => Ok(Some((rows, subscription))),
                Next::End | Next::Later => Ok(None),
            }
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }
}

/// The worker that has the earliest changes, and how many of its rows come before those of all others.
fn earliest(parts: &mut [Part]) -> Option<(&mut Part, usize)> {
    let heads = parts.iter().enumerate().filter_map(|(at, part)| Some((part.left().first()?.time, at)));
    let (_, first) = heads.min()?;
    let others = parts.iter().enumerate().filter(|(at, _)| *at != first);
    // A time may go on in the other's next page, so its rows come first where they are level.
    let other = others.filter_map(|(_, part)| part.left().first()).map(|change| change.time).min();
    let part = parts.get_mut(first)?;
    let time = part.left().first()?.time;
    let before = |change: &&RowChange| other.is_none_or(|other| change.time < other) || change.time == time;
    let count = part.left().iter().take_while(before).count();
    Some((part, count))
}

impl Engine {
    /// Opens a subscription.
    ///
    /// # Errors
    /// Those of [`Subscribed::of`] and [`Subscribed::open`].
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        subscribe: &Subscribe,
        at_least: Time,
        interrupt: &Interrupt,
    ) -> Result<Subscription> {
        let subscribed = Subscribed::of(self, subscribe)?;
        let engine = Arc::clone(self);
        interrupt.run(async move { subscribed.open(&engine, at_least).await }).await
    }

    /// Changes of a view or table (`name` or `schema.name`, as stored: not folded), as they come to pass; gives their
    /// columns too.
    ///
    /// # Errors
    /// As for `SUBSCRIBE`.
    pub async fn changes(
        self: &Arc<Self>,
        name: &str,
        request: ChangesRequest,
    ) -> Result<(SchemaRef, SendableRecordBatchStream)> {
        let value = |text: Option<String>| text.map(|text| OptionValue { text, position: 1, number: false });
        let subscribe = Subscribe {
            name: self.name_of(name),
            snapshot: request.snapshot,
            progress: request.progress,
            as_of: value(request.as_of),
            up_to: value(request.up_to),
        };
        let interrupt = Interrupt::new(CancellationToken::new(), self.closed().clone(), None, self.query_threads());
        let subscription = self.subscribe(&subscribe, self.last_write(), &interrupt).await;
        // The texts are no statement's: places in them say nothing.
        let subscription = subscription.map_err(Error::without_position)?;
        Ok((SchemaRef::clone(subscription.schema()), interrupt.stream(subscription.into_stream())))
    }
}

/// How long `FETCH` waits when it does not say.
pub(crate) const FETCH_TIMEOUT: Duration = Duration::ZERO;

const TOKEN_FORMAT: u8 = 1;

/// That everything up to a time has been given, as text: base64url without padding of `[format u8 = 1][CRC-32 of what
/// follows u32 LE][relation u64 LE][time u64 LE]`.
fn token(relation: RelationId, time: Time) -> String {
    let mut body = Vec::with_capacity(21);
    body.extend_from_slice(&relation.0.to_le_bytes());
    body.extend_from_slice(&time.as_millis().to_le_bytes());
    let mut bytes = vec![TOKEN_FORMAT];
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The time that a token stands for; a plain time, as other answers give it, is one too.
fn parse_token(text: &str, relation: RelationId) -> Result<Time> {
    let invalid = |reason: &str| {
        Error::new(SqlState::InvalidParameterValue, format!("invalid token: {reason}"))
            .hint("Give the token of a progress row as it is, or a time that an answer gave.")
    };
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().map(Time::from_millis).map_err(|_| invalid("it is no time"));
    }
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| invalid("it is not base64url"))?;
    let parse = || {
        let (format, rest) = bytes.split_first()?;
        let (checksum, body) = rest.split_first_chunk::<4>()?;
        let (of, rest) = body.split_first_chunk::<8>()?;
        let time = <[u8; 8]>::try_from(rest).ok()?;
        let whole = *format == TOKEN_FORMAT && u32::from_le_bytes(*checksum) == crc32fast::hash(body);
        whole.then(|| (RelationId(u64::from_le_bytes(*of)), Time::from_millis(u64::from_le_bytes(time))))
    };
    let (of, time) = parse().ok_or_else(|| invalid("it is damaged"))?;
    if of != relation {
        return Err(invalid("it is of another view or table"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_were() {
        let time = Time::from_millis(1_700_000_000_123);
        let text = token(RelationId(7), time);
        assert_eq!(parse_token(&text, RelationId(7)).expect("whole"), time);
        assert_eq!(parse_token("1700000000123", RelationId(7)).expect("a time"), time);
        for wrong in ["", "x", "!", &text[1..], &text.replace(&text[8..10], "__")] {
            let error = parse_token(wrong, RelationId(7)).expect_err(wrong);
            assert_eq!(error.code(), SqlState::InvalidParameterValue);
        }
        assert!(parse_token(&text, RelationId(8)).is_err());
    }

    #[test]
    fn the_changes_of_workers_come_in_order_of_time() {
        let schema = Arc::new(Schema::new(vec![Field::new("worker", DataType::Int64, false)]));
        let page = |worker: i64, times: &[u64]| {
            let rows: ArrayRef = Arc::new(Int64Array::from(vec![worker; times.len()]));
            let change = |time: &u64| RowChange { time: Time::from_millis(*time), diff: 1, kind: RowKind::Insert };
            let rows = RecordBatch::try_new(Arc::clone(&schema), vec![rows]).expect("fits");
            let page = Changes { rows, changes: times.iter().map(change).collect(), next: None };
            Part { page: Some(page), given: 0, place: None, ended: true }
        };
        let mut parts = [page(0, &[1, 1, 4, 9]), page(1, &[1, 2, 3, 9]), page(2, &[])];
        let mut seen = Vec::new();
        while let Some((part, count)) = earliest(&mut parts) {
            assert!(count > 0);
            seen.extend(part.left()[..count].iter().map(|change| change.time.as_millis()));
            part.given += count;
        }
        assert_eq!(seen, [1, 1, 1, 2, 3, 4, 9, 9]);
    }
}
