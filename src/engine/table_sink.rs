//! A sink into an ordinary table: what the query gives is written as DML is.
//!
//! Each write is one record of the timeline log with two parts: the changes of the table, and beside them, under the
//! sink's own number, the changes of the query's result that they stand for. So whatever moment a crash picks, the log
//! says what of the result is in the table. A start computes the result anew and writes the difference: each row once.
//!
//! A table without a primary key takes rows that are only added. In one with a key the query's row for a key takes the
//! place of the row that is there, and goes when the query has none any more. Two rows for one key at one time are an
//! error of the job, as for an INSERT.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use smallvec::SmallVec;
use tokio_util::sync::CancellationToken;

use super::coordinator::{ReadBound, TableWrite};
use super::database::Engine;
use super::dml::assign::{coerce, table_rows};
use super::dml::keys::{Keys, duplicate, existing, first_rows};
use super::dml::statement::unsigned_zeros;
use super::interrupt::Interrupt;
use super::sequencer::stopping;
use crate::catalog::Table;
use crate::exec::consolidate::row_codec;
use crate::exec::sink::{Sink, SinkInput, SinkWriter};
use crate::state::RowCodec;
use crate::types::{Chunk, Error, RelationId, Result, SqlState, Time};

/// How long rows may wait for others to be written with.
const WRITE_INTERVAL: Duration = Duration::from_millis(20);
/// Rows of one write, which the table's readers see together.
const ROWS_PER_WRITE_MAX: usize = 262_144;

type Row = SmallVec<[u8; 48]>;

/// The way into one table.
pub(crate) struct TableSink {
    engine: Weak<Engine>,
    id: RelationId,
    name: String,
    table: Table,
    /// The sink's own number.
    job: OnceLock<RelationId>,
    written: Arc<tokio::sync::Mutex<Written>>,
}

/// What of a query's result is in the table.
#[derive(Default)]
struct Written {
    /// The writer that may write; an earlier one comes too late.
    generation: u64,
    rows: HashMap<Row, i64>,
    /// Rows by their primary key.
    keys: HashMap<Row, i64>,
}

impl TableSink {
    /// A sink into a table.
    pub(crate) fn new(engine: &Arc<Engine>, id: RelationId, name: &str, table: &Table) -> TableSink {
        TableSink {
            engine: Arc::downgrade(engine),
            id,
            name: name.to_owned(),
            table: table.clone(),
            job: OnceLock::new(),
            written: Arc::default(),
        }
    }
}

impl Sink for TableSink {
    fn accepts(&self) -> SinkInput {
        if self.table.key.is_empty() || self.table.append_only { SinkInput::Appends } else { SinkInput::Changes }
    }

    fn publish_interval(&self) -> Duration {
        WRITE_INTERVAL
    }

    fn recall(&self, job: RelationId, written: &[Chunk]) -> Result<()> {
        let _ = self.job.get_or_init(|| job);
        if written.is_empty() {
            return Ok(());
        }
        let codec = row_codec(&self.table.row_schema)?;
        // Nobody writes yet: this is the start.
        let mut state = self.written.try_lock().map_err(|_| Error::internal("a sink wrote before the start"))?;
        for chunk in written {
            let rows = codec.encode(chunk.batch().columns(), chunk.rows())?;
            for row in 0..chunk.rows() {
                add(&mut state.rows, rows.row(row), chunk.diff(row));
            }
        }
        Ok(())
    }

    fn open(&self, _: &str, generation: u64) -> Result<Box<dyn SinkWriter>> {
        let engine = self.engine.upgrade().ok_or_else(stopping)?;
        let job = *self.job.get().ok_or_else(|| Error::internal("a sink without its job"))?;
        let codec = row_codec(&self.table.row_schema)?;
        let threads = engine.query_threads().clone();
        // Waits for an earlier writer's last write, so that what it wrote is known.
        let mut written = threads.block_on(self.written.lock());
        written.generation = generation;
        // All of it is to go, as long as the query does not give it again.
        let pending = written.rows.iter().map(|(row, count)| (row.clone(), -count)).collect();
        written.keys = by_key(&self.table, &codec, &written.rows)?;
        drop(written);
        Ok(Box::new(TableWriter {
            engine: Weak::clone(&self.engine),
            id: self.id,
            job,
            name: self.name.clone(),
            table: self.table.clone(),
            codec,
            generation,
            pending,
            written: Arc::clone(&self.written),
        }))
    }
}

fn add(rows: &mut HashMap<Row, i64>, row: &[u8], diff: i64) {
    if let Some(count) = rows.get_mut(row) {
        *count += diff;
        if *count == 0 {
            rows.remove(row);
        }
    } else if diff != 0 {
        rows.insert(Row::from_slice(row), diff);
    }
}

/// How many rows of each key there are.
fn by_key(table: &Table, codec: &RowCodec, rows: &HashMap<Row, i64>) -> Result<HashMap<Row, i64>> {
    let mut keys = HashMap::new();
    if table.key.is_empty() || rows.is_empty() {
        return Ok(keys);
    }
    let (encoded, counts): (Vec<&Row>, Vec<&i64>) = rows.iter().unzip();
    let batch = decoded(table, codec, &encoded)?;
    let found = Keys::new(&table.row_schema, &table.key)?.encode(&batch)?;
    for (key, count) in found.iter().zip(counts) {
        add(&mut keys, key.data(), *count);
    }
    Ok(keys)
}

fn decoded(table: &Table, codec: &RowCodec, rows: &[&Row]) -> Result<RecordBatch> {
    Ok(RecordBatch::try_new(Arc::clone(&table.row_schema), codec.decode(rows.iter().map(|row| row.as_slice()))?)?)
}

struct TableWriter {
    engine: Weak<Engine>,
    id: RelationId,
    job: RelationId,
    name: String,
    table: Table,
    codec: RowCodec,
    generation: u64,
    /// Changes of the result that are not in the table.
    pending: HashMap<Row, i64>,
    written: Arc<tokio::sync::Mutex<Written>>,
}

impl SinkWriter for TableWriter {
    fn write(&mut self, _: Time, changes: &[Chunk]) -> Result<()> {
        for chunk in changes {
            let columns = self.table.columns.iter().zip(chunk.batch().columns());
            let columns = columns.map(|(column, values)| coerce(values, column, false)).collect::<Result<Vec<_>>>()?;
            let rows = table_rows(&self.table, &self.name, columns)?;
            let rows = unsigned_zeros(&chunk.with_batch(rows))?;
            let encoded = self.codec.encode(rows.batch().columns(), rows.rows())?;
            for row in 0..rows.rows() {
                add(&mut self.pending, encoded.row(row), rows.diff(row));
            }
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let engine = self.engine.upgrade().ok_or_else(stopping)?;
        let threads = engine.query_threads().clone();
        let mut changes: Vec<(Row, i64)> = self.pending.drain().collect();
        // A key's rows stand together, so that no write has one without the other.
        changes.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        threads.block_on(self.apply(&engine, &changes))
    }
}

impl TableWriter {
    async fn apply(&self, engine: &Arc<Engine>, changes: &[(Row, i64)]) -> Result<()> {
        let written = Arc::clone(&self.written);
        let mut written = written.lock().await;
        if written.generation != self.generation {
            return Ok(());
        }
        for part in self.parts(changes)? {
            self.write_part(engine, &part, &mut written).await?;
        }
        Ok(())
    }

    /// The changes in parts of a bearable size, no key in two of them.
    fn parts(&self, changes: &[(Row, i64)]) -> Result<Vec<Part>> {
        let rows: Vec<&Row> = changes.iter().map(|(row, _)| row).collect();
        let batch = decoded(&self.table, &self.codec, &rows)?;
        let diffs: Vec<i64> = changes.iter().map(|(_, diff)| *diff).collect();
        let mut keys = None;
        let mut order: Vec<u32> = (0..batch.num_rows() as u32).collect();
        if !self.table.key.is_empty() {
            let encoded = Keys::new(&self.table.row_schema, &self.table.key)?.encode(&batch)?;
            order.sort_by(|a, b| encoded.row(*a as usize).cmp(&encoded.row(*b as usize)));
            keys = Some(encoded);
        }
        let same = |a: &u32, b: &u32| keys.as_ref().is_some_and(|keys| keys.row(*a as usize) == keys.row(*b as usize));
        let mut parts: Vec<Vec<u32>> = vec![Vec::new()];
        for of_key in order.chunk_by(same) {
            if parts.last().is_none_or(|part| part.len() >= ROWS_PER_WRITE_MAX) {
                parts.push(Vec::new());
            }
            parts.last_mut().into_iter().for_each(|part| part.extend_from_slice(of_key));
        }
        let part = |picked: Vec<u32>| -> Result<Part> {
            let diffs = Int64Array::from_iter_values(picked.iter().map(|row| diffs[*row as usize]));
            Ok(Part { rows: take_record_batch(&batch, &UInt32Array::from(picked))?, diffs })
        };
        parts.into_iter().filter(|part| !part.is_empty()).map(part).collect()
    }

    async fn write_part(&self, engine: &Arc<Engine>, part: &Part, written: &mut Written) -> Result<()> {
        let own = Chunk::changes(&part.rows, &part.diffs);
        let mut turn = None;
        let interrupt = Interrupt::new(CancellationToken::new(), engine.closed().clone(), None, engine.query_threads());
        let changes = if self.table.key.is_empty() {
            if let Some(row) = part.diffs.values().iter().position(|diff| *diff < 0) {
                return Err(self.gone(part, row));
            }
            own.clone()
        } else {
            self.count_keys(part, &mut written.keys)?;
            let turns = engine.turns();
            turn = Some(turns.take(self.id, turns.holder(), &interrupt).await?);
            interrupt.guard(self.replacing(engine, part)).await?
        };
        let writes = [TableWrite { table: self.id, changes }, TableWrite { table: self.job, changes: own }];
        let writes = writes.into_iter().filter(|write| !write.changes.is_empty()).collect();
        let time = engine.coordinator().write(writes).await?;
        engine.writer(self.id).wrote(time);
        drop(turn);
        let encoded = self.codec.encode(part.rows.columns(), part.rows.num_rows())?;
        for (row, diff) in part.diffs.values().iter().enumerate() {
            add(&mut written.rows, encoded.row(row), *diff);
        }
        Ok(())
    }

    fn gone(&self, part: &Part, row: usize) -> Error {
        let row = super::dml::assign::shown(part.rows.columns(), row);
        Error::new(
            SqlState::ObjectNotReady,
            format!("a row that was added to \"{}\" is not in the query any more", self.name),
        )
        .detail(format!("The row is ({row})."))
        .hint("What the query reads has lost rows. DROP SINK, and create it again into an empty table.")
    }

    /// Counts the rows of each key.
    ///
    /// # Errors
    /// 23505 when a key has two.
    fn count_keys(&self, part: &Part, keys: &mut HashMap<Row, i64>) -> Result<()> {
        let encoded = Keys::new(&self.table.row_schema, &self.table.key)?.encode(&part.rows)?;
        for (row, diff) in part.diffs.values().iter().enumerate() {
            add(keys, encoded.row(row).data(), *diff);
        }
        match (0..encoded.num_rows()).find(|row| keys.get(encoded.row(*row).data()).is_some_and(|count| *count > 1)) {
            Some(row) => Err(duplicate(&self.name, &part.rows, &self.table.key, row)
                .hint("The query gives several rows for one key: GROUP BY the key, or keep one with min() or max().")),
            None => Ok(()),
        }
    }

    /// The changes that put the query's rows in the place of those that have their keys.
    async fn replacing(&self, engine: &Arc<Engine>, part: &Part) -> Result<Vec<Chunk>> {
        let bound = ReadBound::Latest { at_least: engine.writer(self.id).last_write() };
        let pin = engine.coordinator().pin(&[self.id], bound).await?;
        let key = &self.table.key;
        let there = existing(&pin, self.id, &part.rows, key).await?;
        let encoder = Keys::new(&self.table.row_schema, key)?;
        let all: Vec<usize> = (0..self.table.columns.len()).collect();
        let whole = Keys::new(&self.table.row_schema, &all)?;
        let inserted: Vec<u32> =
            (0..part.rows.num_rows() as u32).filter(|row| part.diffs.value(*row as usize) > 0).collect();
        let new = take_record_batch(&part.rows, &UInt32Array::from(inserted))?;
        // A key may be named twice, by the row that goes and the row that comes.
        let there_keys = encoder.encode(&there)?;
        let mut first: Vec<usize> = first_rows(&there_keys).into_values().collect();
        first.sort_unstable();
        let there = take_record_batch(&there, &UInt32Array::from_iter_values(first.iter().map(|row| *row as u32)))?;
        if self.table.append_only && there.num_rows() > 0 {
            return Err(duplicate(&self.name, &there, key, 0)
                .hint("The table is append-only; make one without APPEND ONLY to replace rows."));
        }
        let (old_rows, new_rows) = (whole.encode_exactly(&there)?, whole.encode_exactly(&new)?);
        let new_set = first_rows(&new_rows);
        let old_set = first_rows(&old_rows);
        let goes = (0..there.num_rows()).filter(|row| !new_set.contains_key(&old_rows.row(*row)));
        let comes = (0..new.num_rows()).filter(|row| !old_set.contains_key(&new_rows.row(*row)));
        let old = take_record_batch(&there, &UInt32Array::from_iter_values(goes.map(|row| row as u32)))?;
        let new = take_record_batch(&new, &UInt32Array::from_iter_values(comes.map(|row| row as u32)))?;
        let diffs = std::iter::repeat_n(-1, old.num_rows()).chain(std::iter::repeat_n(1, new.num_rows()));
        Ok(Chunk::changes(&concat_batches(&self.table.row_schema, [&old, &new])?, &Int64Array::from_iter_values(diffs)))
    }
}

/// Changes that are written together.
struct Part {
    rows: RecordBatch,
    diffs: Int64Array,
}
