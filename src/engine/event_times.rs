//! How far event time is: of tables, by their splits, and of the jobs that follow it.
//!
//! A table's watermark is the least of its live splits' and never goes back; one without live splits claims nothing new.
//! It changes with a tick, and so all jobs know the same at the same time. A job knows nothing of event time while it
//! fills, so that no row of its history is late: it is *opened* with a tick when it is whole. The timeline has both, so a
//! replay comes to the same.
//!
//! What is known of a view's columns follows from what its job knows of the columns that it reads, and goes on to the jobs
//! on the view with the same tick.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};

use crate::exec::event_time;
use crate::exec::plan::{EventTime, JobPlan, OPENED};
use crate::exec::relation::lock;
use crate::exec::source::SplitId;
use crate::exec::{Known, Mark};
use crate::types::{RelationId, Result, Time, Watermark};

/// The watermark of a table: which claim a row makes.
#[derive(Clone)]
pub struct TableWatermark {
    /// The column of event time.
    pub column: usize,
    /// The claim that a row makes: no row will come any more whose time is before this. Over the table's columns.
    pub expression: Arc<dyn PhysicalExpr>,
    /// Claims that are further ahead of the clock, in microseconds, do not count.
    pub ahead_max: i64,
    /// A split that gave nothing for so long, in milliseconds, holds nobody back.
    pub idle_timeout: Option<u64>,
    /// It is not read while it is further ahead, in microseconds, of another table that one of its jobs follows.
    pub drift_max: Option<i64>,
}

impl TableWatermark {
    /// The greatest claim that rows make, as of a time of the clock.
    pub(crate) fn of(&self, rows: &RecordBatch, now_millis: u64) -> Watermark {
        highest(&*self.expression, rows, self.bound(now_millis)).unwrap_or(Watermark::NONE)
    }

    /// The columns that its expression reads, in ascending order.
    pub(super) fn columns(&self) -> Vec<usize> {
        let mut columns: Vec<usize> = collect_columns(&self.expression).iter().map(Column::index).collect();
        columns.sort_unstable();
        columns
    }

    /// The same over some of the table's columns.
    ///
    /// # Errors
    /// None but a fault of the program.
    pub(super) fn over(&self, schema: &Schema) -> Result<TableWatermark> {
        let expression =
            reassign_expr_columns(Arc::clone(&self.expression), schema).map_err(super::errors::error_of)?;
        Ok(TableWatermark { expression, ..self.clone() })
    }

    /// The greatest claim that counts at a time of the clock.
    pub(crate) fn bound(&self, now_millis: u64) -> i64 {
        i64::try_from(now_millis).unwrap_or(i64::MAX).saturating_mul(1_000).saturating_add(self.ahead_max)
    }
}

/// The greatest claim of rows, among those that are not beyond a bound. Rows for which the expression fails or is NULL
/// make none.
pub(crate) fn highest(expression: &dyn PhysicalExpr, rows: &RecordBatch, bound: i64) -> Option<Watermark> {
    if rows.num_rows() == 0 {
        return None;
    }
    let evaluated = || -> Result<Option<Watermark>> {
        let value = expression.evaluate(rows).map_err(super::errors::error_of)?;
        let array = value.into_array(rows.num_rows()).map_err(super::errors::error_of)?;
        let claims = event_time::values(&array)?.iter().flatten();
        Ok(claims.filter(|claim| *claim <= bound).max().map(Watermark::from_micros))
    };
    match evaluated() {
        Ok(found) => found,
        Err(_) if rows.num_rows() == 1 => None,
        Err(_) => {
            let half = rows.num_rows() / 2;
            let halves = [rows.slice(0, half), rows.slice(half, rows.num_rows() - half)];
            halves.iter().filter_map(|half| highest(expression, half, bound)).max()
        }
    }
}

/// What happened to a split beside its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SplitEvent {
    /// It is there.
    Found(SplitId),
    /// It gave nothing for long, until it does again.
    Idle(SplitId),
    /// It has ended.
    Ended(SplitId),
}

/// A split's event time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SplitTime {
    watermark: Watermark,
    live: bool,
    since: Time,
}

/// A table's event time.
#[derive(Debug)]
struct TableTime {
    column: usize,
    drift_max: Option<i64>,
    watermark: Watermark,
    since: Time,
    splits: BTreeMap<SplitId, SplitTime>,
}

impl TableTime {
    /// The split that holds it back.
    fn slowest(&self) -> Option<(&SplitId, &SplitTime)> {
        self.splits.iter().filter(|(_, split)| split.live).min_by_key(|(_, split)| split.watermark)
    }
}

/// A job that follows event time.
#[derive(Debug)]
struct JobTime {
    follows: Vec<(RelationId, usize)>,
    exports: Vec<(usize, EventTime)>,
    /// Its operators are told when it is whole.
    awaits_whole: bool,
    /// It is whole: before, nothing is known to it.
    open: bool,
    /// Tables of which it reads what was read before: what it knows of them stays until it is level.
    behind: HashSet<RelationId>,
    known: Known,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct EventTimes {
    tables: BTreeMap<RelationId, TableTime>,
    jobs: BTreeMap<RelationId, JobTime>,
    /// What the jobs are to be told with the next tick.
    marks: Vec<Mark>,
    seen: Arc<Mutex<Vec<SeenTime>>>,
    /// [`Self::seen`] is not up to date.
    stale: bool,
}

/// What is known of a column of event time, for people to see.
#[derive(Clone, Debug)]
pub(crate) struct SeenTime {
    /// The table, or the job.
    pub(crate) relation: RelationId,
    /// The relation whose column it is: the table itself, or one that the job reads.
    pub(crate) of: RelationId,
    /// Its column there.
    pub(crate) column: usize,
    pub(crate) watermark: Watermark,
    /// Since when that is so.
    pub(crate) since: Option<Time>,
    /// The split that holds it back.
    pub(crate) split: Option<SplitId>,
    /// When that split said its own last.
    pub(crate) split_since: Option<Time>,
}

/// A table's event time at a cut.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct TableTimeCut {
    /// The table.
    pub(crate) table: RelationId,
    /// What is known of it.
    pub(crate) watermark: Watermark,
    /// What its splits say.
    pub(crate) splits: BTreeMap<String, Watermark>,
}

impl EventTimes {
    pub(super) fn new(seen: Arc<Mutex<Vec<SeenTime>>>) -> EventTimes {
        EventTimes { seen, ..EventTimes::default() }
    }

    /// A table with event time.
    pub(super) fn add_table(&mut self, table: RelationId, of: &TableWatermark, from: Option<&TableTimeCut>) {
        // One that is started again keeps what is known of it.
        if self.tables.contains_key(&table) {
            return;
        }
        let split = |(split, watermark): (&String, &Watermark)| {
            (SplitId::new(split.as_str()), SplitTime { watermark: *watermark, live: true, since: Time::ZERO })
        };
        let splits = from.iter().flat_map(|cut| &cut.splits).map(split).collect();
        let watermark = from.map_or(Watermark::NONE, |cut| cut.watermark);
        let (column, drift_max) = (of.column, of.drift_max);
        self.tables.insert(table, TableTime { column, drift_max, watermark, since: Time::ZERO, splits });
        self.stale = true;
    }

    /// A job; `known` is what it knew when its state was kept, for one that goes on. Gives what it knows.
    pub(super) fn add_job(
        &mut self,
        job: RelationId,
        plan: &JobPlan,
        known: Option<&Known>,
        behind: HashSet<RelationId>,
    ) -> Known {
        let follows = plan.followed_times();
        let awaits_whole = plan.awaits_whole();
        if follows.is_empty() && !awaits_whole {
            return Known::new();
        }
        let exports = plan.event_times.clone();
        let open = known.is_some();
        let known = known.cloned().unwrap_or_default();
        self.jobs.insert(job, JobTime { follows, exports, awaits_whole, open, behind, known: known.clone() });
        self.stale = true;
        known
    }

    pub(super) fn remove(&mut self, relation: RelationId) {
        self.tables.remove(&relation);
        self.remove_job(relation);
    }

    /// A job is no more; a table stays.
    pub(super) fn remove_job(&mut self, relation: RelationId) {
        self.jobs.remove(&relation);
        self.stale = true;
    }

    /// True for a job that is not opened yet.
    pub(super) fn is_closed(&self, job: RelationId) -> bool {
        self.jobs.get(&job).is_some_and(|job| !job.open)
    }

    /// The jobs that are not opened yet.
    pub(super) fn closed(&self) -> Vec<RelationId> {
        self.jobs.iter().filter(|(_, job)| !job.open).map(|(id, _)| *id).collect()
    }

    /// A job is whole: from now on it knows what there is to be known.
    pub(super) fn open(&mut self, job: RelationId) {
        let Some(time) = self.jobs.get_mut(&job) else { return };
        time.open = true;
        if time.awaits_whole {
            let (relation, column, watermark) = (job, OPENED, Watermark::END);
            time.known.insert((relation, column), watermark);
            self.marks.push(Mark { job, relation, column, watermark });
        }
        for (relation, column) in time.follows.clone() {
            self.look(job, relation, column);
        }
        self.stale = true;
    }

    /// A job is level with a table.
    pub(super) fn level(&mut self, job: RelationId, table: RelationId) {
        let Some(time) = self.jobs.get_mut(&job) else { return };
        if time.behind.remove(&table) {
            for (relation, column) in time.follows.clone() {
                self.look(job, relation, column);
            }
        }
    }

    /// A split's rows make a claim.
    pub(super) fn read(&mut self, table: RelationId, split: &SplitId, claim: Watermark, time: Time) -> Watermark {
        let Some(table) = self.tables.get_mut(&table) else { return Watermark::NONE };
        let new = SplitTime { watermark: Watermark::NONE, live: true, since: time };
        let split = table.splits.entry(split.clone()).or_insert(new);
        split.live = true;
        if claim > split.watermark {
            (split.watermark, split.since) = (claim, time);
        }
        self.stale = true;
        split.watermark
    }

    /// Something happened to a split.
    pub(super) fn happened(&mut self, table: RelationId, event: &SplitEvent, time: Time) {
        let Some(table) = self.tables.get_mut(&table) else { return };
        let new = SplitTime { watermark: Watermark::NONE, live: true, since: time };
        match event {
            SplitEvent::Found(split) => {
                table.splits.entry(split.clone()).or_insert(new);
            }
            SplitEvent::Idle(split) | SplitEvent::Ended(split) => {
                table.splits.entry(split.clone()).or_insert(new).live = false;
            }
        }
        self.stale = true;
    }

    /// What a table's splits say together, when that is more than is known.
    pub(super) fn combined(&self, table: RelationId) -> Option<Watermark> {
        let table = self.tables.get(&table)?;
        let (_, slowest) = table.slowest()?;
        (slowest.watermark > table.watermark).then_some(slowest.watermark)
    }

    /// True when a table has event time.
    pub(super) fn has(&self, table: RelationId) -> bool {
        self.tables.contains_key(&table)
    }

    /// True when a table is to wait for another that one of its jobs follows: it is further ahead than it may be.
    pub(super) fn is_ahead(&self, table: RelationId) -> bool {
        let Some(own) = self.tables.get(&table) else { return false };
        let Some(drift_max) = own.drift_max else { return false };
        let may_wait_for = own.watermark.after(drift_max);
        let others =
            self.jobs.keys().map(|job| self.tables_below(*job)).filter(|tables| tables.contains(&table)).flatten();
        // One that is idle, has ended or is not read in splits holds nobody back.
        let slowest = others.filter(|other| *other != table).filter_map(|other| self.tables.get(&other)?.slowest());
        slowest.map(|(_, split)| split.watermark).any(|watermark| watermark < may_wait_for)
    }

    /// The tables that a job follows, also through views.
    fn tables_below(&self, job: RelationId) -> HashSet<RelationId> {
        let (mut tables, mut jobs) = (HashSet::new(), vec![job]);
        while let Some(job) = jobs.pop() {
            let follows = self.jobs.get(&job).into_iter().flat_map(|job| &job.follows);
            for (relation, _) in follows {
                if self.tables.contains_key(relation) {
                    tables.insert(*relation);
                } else {
                    jobs.push(*relation);
                }
            }
        }
        tables
    }

    /// What is known of a table.
    pub(super) fn of(&self, table: RelationId) -> Watermark {
        self.tables.get(&table).map_or(Watermark::NONE, |table| table.watermark)
    }

    /// More is known of a table.
    pub(super) fn set(&mut self, table: RelationId, watermark: Watermark, time: Time) {
        let Some(known) = self.tables.get_mut(&table).filter(|table| table.watermark < watermark) else { return };
        (known.watermark, known.since) = (watermark, time);
        let column = known.column;
        self.tell(table, column);
        self.stale = true;
    }

    /// The jobs on a relation look what is known of its column.
    fn tell(&mut self, relation: RelationId, column: usize) {
        let jobs: Vec<RelationId> =
            self.jobs.iter().filter(|(_, job)| job.follows.contains(&(relation, column))).map(|(id, _)| *id).collect();
        jobs.into_iter().for_each(|job| self.look(job, relation, column));
    }

    /// A job looks what is known of a column.
    fn look(&mut self, job: RelationId, relation: RelationId, column: usize) {
        let watermark = self.known(relation, column);
        let Some(time) = self.jobs.get_mut(&job).filter(|job| job.open && !job.behind.contains(&relation)) else {
            return;
        };
        let known = time.known.entry((relation, column)).or_insert(Watermark::NONE);
        if *known >= watermark {
            return;
        }
        *known = watermark;
        self.marks.push(Mark { job, relation, column, watermark });
        let exported: Vec<usize> = time.exports.iter().map(|(column, _)| *column).collect();
        exported.into_iter().for_each(|column| self.tell(job, column));
    }

    /// What is known of a relation's column.
    fn known(&self, relation: RelationId, column: usize) -> Watermark {
        if let Some(table) = self.tables.get(&relation) {
            // A watermark says what will not come before it; a column's what will not come up to it.
            return if table.column == column { table.watermark.after(1) } else { Watermark::NONE };
        }
        let Some(job) = self.jobs.get(&relation) else { return Watermark::NONE };
        let export = job.exports.iter().find(|(exported, _)| *exported == column);
        export.map_or(Watermark::NONE, |(_, time)| {
            time.watermark(|relation, column| job.known.get(&(relation, column)).copied().unwrap_or(Watermark::NONE))
        })
    }

    /// What the jobs are to be told.
    pub(super) fn take_marks(&mut self) -> Arc<[Mark]> {
        std::mem::take(&mut self.marks).into()
    }

    /// All tables, for a checkpoint.
    pub(super) fn cut(&self) -> Vec<TableTimeCut> {
        let table = |(table, time): (&RelationId, &TableTime)| TableTimeCut {
            table: *table,
            watermark: time.watermark,
            splits: time.splits.iter().map(|(split, time)| (split.as_str().to_owned(), time.watermark)).collect(),
        };
        self.tables.iter().map(table).collect()
    }

    /// What a job knows, for a checkpoint.
    pub(super) fn known_to(&self, job: RelationId) -> Vec<(RelationId, usize, Watermark)> {
        let known = self.jobs.get(&job).map(|job| &job.known);
        let mut known: Vec<_> = known.into_iter().flatten().map(|((r, c), w)| (*r, *c, *w)).collect();
        known.sort_unstable();
        known
    }

    /// Lets people see what changed.
    pub(super) fn show(&mut self) {
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let mut seen = Vec::new();
        for (id, table) in &self.tables {
            let slowest = table.slowest().filter(|_| table.watermark != Watermark::END);
            seen.push(SeenTime {
                relation: *id,
                of: *id,
                column: table.column,
                watermark: table.watermark,
                since: Some(table.since).filter(|since| *since != Time::ZERO),
                split: slowest.map(|(split, _)| split.clone()),
                split_since: slowest.map(|(_, split)| split.since).filter(|since| *since != Time::ZERO),
            });
        }
        for (id, job) in &self.jobs {
            for (relation, column) in &job.follows {
                let watermark = job.known.get(&(*relation, *column)).copied().unwrap_or(Watermark::NONE);
                let table = self.tables.get(relation);
                // As people write it: what will not come before it.
                let watermark = if table.is_some() { watermark.after(-1) } else { watermark };
                let slowest = table.and_then(TableTime::slowest).filter(|_| watermark != Watermark::END);
                seen.push(SeenTime {
                    relation: *id,
                    of: *relation,
                    column: *column,
                    watermark,
                    since: table.map(|table| table.since).filter(|since| *since != Time::ZERO),
                    split: slowest.map(|(split, _)| split.clone()),
                    split_since: slowest.map(|(_, split)| split.since).filter(|since| *since != Time::ZERO),
                });
            }
        }
        *lock(&self.seen) = seen;
    }
}

/// What a job knew at a cut.
pub(crate) fn known_at(cut: &[(RelationId, usize, Watermark)]) -> Known {
    cut.iter().map(|(relation, column, watermark)| ((*relation, *column), *watermark)).collect::<HashMap<_, _>>()
}
