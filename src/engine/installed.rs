//! What runs: the relations that are installed, what stands on what, and how far each is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use arrow::datatypes::SchemaRef;

use super::checkpoints::MemberJob;
use super::coordinator::{RelationKind, RelationSpec, RelationState, RelationStatus};
use super::sinks::RunningSink;
use super::source_progress::SourceProgress;
use crate::catalog::{errors_name, late_name};
use crate::connectors::SourceTable;
use crate::exec::arrangement::Layout;
use crate::exec::plan::{JobPlan, OperatorSpec, late_rows_schema, row_errors_schema};
use crate::exec::relation::{Halt, Progress, RelationShared, lock};
use crate::exec::sink::SinkMark;
use crate::exec::{ImportKind, OperatorCounts};
use crate::types::{Error, RelationId, Result, SqlState, Time};

/// A relation that is installed.
pub(super) struct Installed {
    spec: RelationSpec,
    shared: Arc<RelationShared>,
    /// How its rows are kept; `None` for external tables and sinks, which keep none.
    layout: Option<Arc<Layout>>,
    sink: Option<RunningSink>,
    imports: Vec<RelationId>,
    since_millis: u64,
    /// Of an external table.
    progress: Option<Arc<SourceProgress>>,
}

impl Installed {
    /// An external table.
    pub(super) fn external(spec: RelationSpec, as_of: Time) -> Installed {
        let shared = RelationShared::new(spec.id, spec.qualified_name.clone(), 0, 0, 0, as_of);
        let progress = Some(Arc::new(SourceProgress::new(spec.qualified_name.clone())));
        Installed {
            spec,
            shared: Arc::new(shared),
            layout: None,
            sink: None,
            imports: Vec::new(),
            since_millis: as_of.as_millis(),
            progress,
        }
    }

    /// A relation that a job fills: its rows are kept, unless it is a sink's.
    pub(super) fn job(
        spec: RelationSpec,
        plan: &JobPlan,
        imports: &HashMap<RelationId, ImportKind>,
        workers: usize,
        as_of: Time,
    ) -> Result<Installed> {
        let (mut edges, mut feeds) = (0, 0);
        for node in &plan.nodes {
            if let OperatorSpec::Import { relation, .. } = &node.operator {
                match imports.get(relation) {
                    Some(ImportKind::Edge) => edges += 1,
                    Some(ImportKind::Feed { .. }) => feeds += 1,
                    None => return Err(Error::internal(format!("the plan imports {relation}, which is not there"))),
                }
            }
        }
        let shared = RelationShared::new(spec.id, spec.qualified_name.clone(), workers, edges, feeds, as_of)
            .retaining(plan.retain_millis);
        let layout = match &spec.kind {
            RelationKind::Sink { .. } => None,
            _ => Some(Arc::new(Layout::new(Arc::clone(plan.schema()), &plan.key)?)),
        };
        let imports = plan.imports().into_iter().filter(|id| *id != spec.id).collect();
        Ok(Installed {
            spec,
            shared: Arc::new(shared),
            layout,
            sink: None,
            imports,
            since_millis: as_of.as_millis(),
            progress: None,
        })
    }

    /// The job keeps rows of a source: how far that was read is to be seen.
    pub(super) fn with_progress(mut self) -> Installed {
        self.progress = Some(Arc::new(SourceProgress::new(self.spec.qualified_name.clone())));
        self
    }

    /// The errors relation of a job, which stops with it.
    pub(super) fn row_errors(&self, id: RelationId, as_of: Time) -> Result<Installed> {
        let name = errors_name(&self.spec.qualified_name);
        self.beside(id, name, RelationKind::RowErrors, row_errors_schema(), as_of)
    }

    /// The relation of a job's late changes, which stops with it.
    pub(super) fn late_rows(&self, id: RelationId, as_of: Time) -> Result<Installed> {
        let name = late_name(&self.spec.qualified_name);
        self.beside(id, name, RelationKind::LateRows, late_rows_schema(), as_of)
    }

    fn beside(
        &self,
        id: RelationId,
        name: String,
        kind: RelationKind,
        schema: SchemaRef,
        as_of: Time,
    ) -> Result<Installed> {
        let shared = self.shared.beside(id, name.clone(), as_of);
        Ok(Installed {
            spec: RelationSpec { id, qualified_name: name, kind },
            shared: Arc::new(shared),
            layout: Some(Arc::new(Layout::new(schema, &[])?)),
            sink: None,
            imports: vec![self.spec.id],
            since_millis: self.since_millis,
            progress: None,
        })
    }

    pub(super) fn shared(&self) -> &Arc<RelationShared> {
        &self.shared
    }

    /// A job fills it.
    fn runs(&self) -> bool {
        !matches!(self.spec.kind, RelationKind::External { .. }) || self.layout.is_some()
    }

    /// Its rows leave, and its writer can go on from where it was.
    fn resumes(&self) -> bool {
        matches!(&self.spec.kind, RelationKind::Sink { target, .. } if target.sink.resumes())
    }

    /// The job's rows leave through this sink.
    pub(super) fn set_sink(&mut self, sink: RunningSink) {
        self.sink = Some(sink);
    }
}

/// True when a job, or one that it stands on, has a feed that is not level, or stopped.
fn waits_for_feed(installed: &BTreeMap<RelationId, Installed>, id: RelationId) -> bool {
    installed.get(&id).is_some_and(|relation| {
        relation.shared.halted()
            // That of an ordinary table is level as soon as the workers have it.
            || (relation.shared.pending().1 > 0 && !matches!(relation.spec.kind, RelationKind::Table { .. }))
            || relation.imports.iter().any(|import| waits_for_feed(installed, *import))
    })
}

/// True for a relation that runs with the job of another.
fn is_beside(spec: &RelationSpec) -> bool {
    matches!(spec.kind, RelationKind::RowErrors | RelationKind::LateRows)
}

/// All of them. Sections under its lock are short and never wait.
pub(super) struct Relations {
    installed: Mutex<BTreeMap<RelationId, Installed>>,
    progress: Arc<Progress>,
    /// No read goes back before this time: the first after a restart.
    floor: Mutex<Time>,
    /// All jobs are being started again.
    restarting: AtomicBool,
}

impl Relations {
    pub(super) fn new(progress: Arc<Progress>) -> Relations {
        Relations {
            installed: Mutex::default(),
            progress,
            floor: Mutex::new(Time::ZERO),
            restarting: AtomicBool::new(false),
        }
    }

    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }

    pub(super) fn floor(&self) -> Time {
        *lock(&self.floor)
    }

    pub(super) fn set_floor(&self, time: Time) {
        *lock(&self.floor) = time;
    }

    /// Whether all jobs are being started again: none is to be seen meanwhile.
    pub(super) fn set_restarting(&self, restarting: bool) {
        self.restarting.store(restarting, Ordering::Release);
        self.progress.signal();
    }

    /// All of them, upstream first: what is not of a job comes before the jobs.
    pub(super) fn specs(&self) -> Vec<RelationSpec> {
        let installed = lock(&self.installed);
        let all = installed.values().map(|relation| &relation.spec);
        all.filter(|spec| !matches!(spec.kind, RelationKind::RowErrors)).cloned().collect()
    }

    /// The jobs that somebody stopped.
    pub(super) fn paused(&self) -> Vec<RelationId> {
        let installed = lock(&self.installed);
        let is_paused = |relation: &&Installed| matches!(relation.shared.halt(), Some(Halt::Paused));
        installed.values().filter(is_paused).map(|relation| relation.spec.id).collect()
    }

    /// The error for a relation that is not to be seen.
    pub(super) fn missing(&self) -> Error {
        if self.restarting.load(Ordering::Acquire) { restarted() } else { gone() }
    }

    pub(super) fn insert(&self, relation: Installed) {
        lock(&self.installed).insert(relation.spec.id, relation);
    }

    /// Takes a relation out; its sink writes no more.
    pub(super) fn remove(&self, id: RelationId) -> Option<RelationSpec> {
        let relation = lock(&self.installed).remove(&id)?;
        if let Some(sink) = relation.sink {
            sink.queue.close();
        }
        Some(relation.spec)
    }

    /// Likewise, when a writer that can go on has ended: another is about to begin in its place.
    pub(super) fn end(&self, id: RelationId) {
        let relation = lock(&self.installed).remove(&id);
        let resumes = relation.as_ref().is_some_and(Installed::resumes);
        if let Some(sink) = relation.and_then(|relation| relation.sink) {
            // One that begins anew comes after the former by itself, and may wait for the caller.
            if resumes { sink.end() } else { sink.queue.close() }
        }
    }

    /// Lets the writers of some jobs tell where they are at a time.
    pub(super) fn mark_sinks(&self, jobs: &[RelationId], mark: impl Fn(RelationId) -> SinkMark) {
        let installed = lock(&self.installed);
        for (id, relation) in jobs.iter().filter_map(|id| Some((id, installed.get(id)?))) {
            if let Some(sink) = &relation.sink {
                sink.queue.mark(mark(*id));
            }
        }
    }

    /// All sinks that run, or those of them into tables, show every time up to `time`.
    pub(super) fn sinks_show(&self, time: Time, tables_only: bool) -> bool {
        let installed = lock(&self.installed);
        installed
            .values()
            .filter(|relation| failure(&installed, relation.spec.id).is_none())
            .filter_map(|relation| relation.sink.as_ref())
            .all(|sink| sink.published() > time || (tables_only && !sink.is_table))
    }

    /// How many sinks into tables run.
    pub(super) fn table_sinks(&self) -> usize {
        let installed = lock(&self.installed);
        installed.values().filter(|relation| relation.sink.as_ref().is_some_and(|sink| sink.is_table)).count()
    }

    /// Stops a job until it is resumed.
    ///
    /// # Errors
    /// 42P01 when it is not installed.
    pub(super) fn pause(&self, id: RelationId) -> Result<()> {
        lock(&self.installed).get(&id).ok_or_else(|| self.missing())?.shared.pause();
        self.progress.signal();
        Ok(())
    }

    /// Shared state and layout of a relation whose rows are kept.
    ///
    /// # Errors
    /// 42P01 when it is not installed; 42809 when it keeps no rows.
    pub(super) fn kept(&self, id: RelationId) -> Result<(Arc<RelationShared>, Arc<Layout>)> {
        let installed = lock(&self.installed);
        let relation = installed.get(&id).ok_or_else(|| self.missing())?;
        let layout = relation.layout.as_ref().ok_or_else(|| {
            Error::new(SqlState::WrongObjectType, format!("{} keeps no rows", relation.spec.qualified_name))
                .hint("Make a materialized view over it and read that.")
        })?;
        Ok((Arc::clone(&relation.shared), Arc::clone(layout)))
    }

    /// The source of an external table; `None` for other relations.
    ///
    /// # Errors
    /// 42P01 when it is not installed.
    pub(super) fn source(&self, id: RelationId) -> Result<Option<SourceTable>> {
        match &lock(&self.installed).get(&id).ok_or_else(|| self.missing())?.spec.kind {
            RelationKind::External { source, .. } => Ok(Some(source.clone())),
            RelationKind::Table { .. }
            | RelationKind::View { .. }
            | RelationKind::Sink { .. }
            | RelationKind::RowErrors
            | RelationKind::LateRows
            | RelationKind::Errors { .. } => Ok(None),
        }
    }

    /// True for an external table whose rows are kept.
    pub(super) fn keeps_source(&self, id: RelationId) -> bool {
        let installed = lock(&self.installed);
        installed.get(&id).is_some_and(|relation| relation.progress.is_some() && relation.layout.is_some())
    }

    /// True when all that a job reads is in.
    pub(super) fn inputs_whole(&self, id: RelationId) -> bool {
        lock(&self.installed).get(&id).is_some_and(|relation| relation.shared.inputs_whole())
    }

    /// A job knows of event time from a time on.
    pub(super) fn opened(&self, id: RelationId, time: Time) {
        if let Some(relation) = lock(&self.installed).get(&id) {
            relation.shared.opened(time);
        }
    }

    /// True when a job is whole but for its opening, or waits for a source.
    pub(super) fn waits_for_no_edge(&self, id: RelationId) -> bool {
        let installed = lock(&self.installed);
        installed.get(&id).is_none_or(|relation| relation.shared.inputs_whole()) || waits_for_feed(&installed, id)
    }

    /// How far an external table was read; `None` for other relations.
    pub(super) fn progress_of(&self, id: RelationId) -> Option<Arc<SourceProgress>> {
        lock(&self.installed).get(&id).and_then(|relation| relation.progress.clone())
    }

    /// How far the slowest of some jobs is; failed ones hold nobody back.
    pub(super) fn least_upper(&self, ids: &[RelationId]) -> Time {
        let installed = lock(&self.installed);
        let uppers = ids.iter().filter_map(|id| installed.get(id)).filter(|r| !r.shared.halted());
        uppers.map(|relation| relation.shared.upper()).min().unwrap_or(Time::MAX)
    }

    /// How far the slowest of some jobs and of all that stands on them is. Stopped ones hold nobody back, nor do
    /// dependents that fill: they wait for these jobs.
    pub(super) fn least_upper_above(&self, ids: &[RelationId]) -> Time {
        let installed = lock(&self.installed);
        let mut above = ids.to_vec();
        let mut least = Time::MAX;
        let Some(first) = ids.iter().min() else { return least };
        // Dependents have greater numbers, so one pass finds them all.
        for (id, relation) in installed.range(*first..) {
            if !above.contains(id) {
                if !relation.imports.iter().any(|import| above.contains(import)) {
                    continue;
                }
                above.push(*id);
            }
            let waits = !ids.contains(id) && relation.shared.whole_from().is_none();
            if !waits && failure(&installed, *id).is_none() {
                least = least.min(relation.shared.upper());
            }
        }
        least
    }

    /// True when all of some jobs failed or were paused.
    pub(super) fn all_halted(&self, ids: &[RelationId]) -> bool {
        let installed = lock(&self.installed);
        ids.iter().all(|id| installed.get(id).is_none_or(|relation| relation.shared.halted()))
    }

    /// Some jobs, what stands on them, and, of the sources that they read, those that failed, with the
    /// other jobs that failed by them.
    pub(super) fn to_resume(&self, ids: &[RelationId]) -> Vec<RelationId> {
        let installed = lock(&self.installed);
        let is_external = |id: &RelationId| installed.get(id).is_some_and(|r| !r.runs());
        let is_halted = |id: &RelationId| installed.get(id).is_some_and(|r| r.shared.halted());
        let mut found = ids.to_vec();
        for id in ids {
            let imports = installed.get(id).map(|relation| relation.imports.as_slice()).unwrap_or_default();
            found.extend(imports.iter().filter(|import| is_external(import) && is_halted(import)));
        }
        for (id, relation) in installed.iter() {
            let stands_on = |of: &RelationId| found.contains(of) && (!is_external(of) || is_halted(id));
            if relation.imports.iter().any(stands_on) {
                found.push(*id);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The jobs that can be captured at a time: those whose rows are kept, or whose sink goes on, and that are whole. In
    /// order of their numbers.
    ///
    /// # Errors
    /// 55000 when an ordinary table is not among them.
    pub(super) fn to_capture(&self, time: Time) -> Result<Vec<(RelationSpec, MemberJob)>> {
        let installed = lock(&self.installed);
        let mut found = Vec::new();
        for (id, relation) in installed.iter() {
            let keeps = relation.layout.is_some() || relation.resumes();
            if !keeps || is_beside(&relation.spec) {
                continue;
            }
            let is_table = matches!(relation.spec.kind, RelationKind::Table { .. });
            // The workers may not have built a table's job yet; they have when the barrier reaches them.
            let is_whole = is_table || relation.shared.whole_from().is_some_and(|from| from <= time);
            if !is_whole || failure(&installed, *id).is_some() {
                if is_table {
                    return Err(Error::new(
                        SqlState::ObjectNotReady,
                        format!("table {} has failed, so there is no checkpoint", relation.spec.qualified_name),
                    )
                    .hint("The server's log has the reason. A restart brings its rows back from the timeline."));
                }
                continue;
            }
            // The errors of a job are kept by it.
            let job = |import: &RelationId| match installed.get(import) {
                Some(other) if is_beside(&other.spec) => other.imports.first().copied(),
                Some(other) if !other.runs() => None,
                _ => Some(*import),
            };
            let follows = relation.imports.iter().filter_map(job).collect();
            let (shared, is_sink) = (Arc::clone(&relation.shared), relation.layout.is_none());
            let member = MemberJob { shared, follows, is_table, is_sink };
            found.push((relation.spec.clone(), member));
        }
        Ok(found)
    }

    /// The jobs that read nothing but sources, with those.
    pub(super) fn on_sources_alone(&self) -> HashMap<RelationId, Vec<RelationId>> {
        let installed = lock(&self.installed);
        let is_source = |id: &RelationId| installed.get(id).is_some_and(|relation| !relation.runs());
        let sources = |(id, relation): (&RelationId, &Installed)| match &relation.spec.kind {
            RelationKind::View { .. } | RelationKind::Sink { .. }
                if !relation.imports.is_empty() && relation.imports.iter().all(is_source) =>
            {
                Some((*id, relation.imports.clone()))
            }
            RelationKind::External { key, .. } if !key.is_empty() => Some((*id, vec![*id])),
            _ => None,
        };
        installed.iter().filter_map(sources).collect()
    }

    /// True when the job that a relation is of was neither stopped nor replaced.
    pub(super) fn still_runs(&self, shared: &Arc<RelationShared>) -> bool {
        self.is_there(shared) && failure(&lock(&self.installed), shared.id).is_none()
    }

    /// True when the relation is installed and its job is the same.
    pub(super) fn is_there(&self, shared: &Arc<RelationShared>) -> bool {
        lock(&self.installed).get(&shared.id).is_some_and(|relation| Arc::ptr_eq(&relation.shared, shared))
    }

    /// How far the slowest of all relations with rows is.
    pub(super) fn least_upper_of_all(&self) -> Time {
        self.least_upper(&self.all_kept())
    }

    /// All relations whose rows are kept.
    pub(super) fn all_kept(&self) -> Vec<RelationId> {
        lock(&self.installed).iter().filter(|(_, r)| r.layout.is_some()).map(|(id, _)| *id).collect()
    }

    /// A relation and all that stands on it.
    pub(super) fn with_dependents(&self, id: RelationId) -> Vec<RelationId> {
        let installed = lock(&self.installed);
        let mut found = vec![id];
        // Dependents have greater numbers, so one pass finds them all.
        for (candidate, relation) in installed.range(id..) {
            if relation.imports.iter().any(|import| found.contains(import)) {
                found.push(*candidate);
            }
        }
        found
    }

    /// An external table cannot be read: it and the jobs that read it fail.
    pub(super) fn fail_external(&self, table: RelationId, jobs: &[RelationId], error: &Error) {
        let installed = lock(&self.installed);
        for relation in std::iter::once(&table).chain(jobs).filter_map(|id| installed.get(id)) {
            if relation.shared.fail(error.clone()) {
                tracing::warn!(job = %relation.shared.name, error = ?error, "a source cannot be read");
            }
        }
        self.progress.signal();
    }

    /// Jobs fail for a reason outside of the workers.
    pub(super) fn fail_jobs(&self, jobs: &[RelationId], error: &Error) {
        let installed = lock(&self.installed);
        for relation in jobs.iter().filter_map(|id| installed.get(id)) {
            if relation.shared.fail(error.clone()) {
                tracing::warn!(job = %relation.shared.name, error = ?error, "job failed");
            }
        }
        self.progress.signal();
    }

    /// Why a relation cannot be read: its own failure, or that of what it stands on.
    pub(super) fn trouble(&self, id: RelationId) -> Option<Error> {
        let installed = lock(&self.installed);
        let (at, halt) = failure(&installed, id)?;
        let name =
            |id: RelationId| installed.get(&id).map_or_else(|| id.to_string(), |r| r.spec.qualified_name.clone());
        let what = match &halt {
            Halt::Failed(_) => "has failed",
            Halt::Paused => "is paused",
        };
        let message = if at == id {
            format!("{} {what}", name(id))
        } else {
            format!("{} is blocked: {} {what}", name(id), name(at))
        };
        let error = Error::new(SqlState::ObjectNotReady, message).hint(format!(
            "RESUME JOB {} starts it again; SET clink.read = 'available' reads the last answer that is known.",
            name(at)
        ));
        Some(match halt {
            Halt::Failed(reason) => error.detail(format!("{} ({})", reason.message(), reason.code().code())),
            Halt::Paused => error,
        })
    }

    /// What the operators of a relation's job did; none when it has no job of its own.
    pub(super) fn operators(&self, id: RelationId) -> Vec<Arc<OperatorCounts>> {
        lock(&self.installed).get(&id).map(|relation| relation.shared.operators()).unwrap_or_default()
    }

    /// Where a relation stands.
    pub(super) fn status(&self, id: RelationId) -> Option<RelationStatus> {
        let installed = lock(&self.installed);
        let relation = installed.get(&id)?;
        let state = match failure(&installed, id) {
            Some((at, Halt::Failed(error))) if at == id => RelationState::Failed(error),
            Some((at, Halt::Paused)) if at == id => RelationState::Paused,
            Some((at, Halt::Failed(error))) => RelationState::Blocked(at, Some(error)),
            Some((at, Halt::Paused)) => RelationState::Blocked(at, None),
            None if relation.runs() && !is_whole(relation) => RelationState::Filling,
            None => RelationState::Running,
        };
        let (rows_in, rows_out) = relation.shared.counts();
        Some(RelationStatus {
            state,
            since_millis: relation.since_millis,
            rows_in,
            rows_out,
            upper: relation.shared.upper(),
        })
    }
}

fn is_whole(relation: &Installed) -> bool {
    relation.shared.whole_from().is_some_and(|from| from < relation.shared.upper())
}

/// The first that stopped among a relation and all that it stands on.
fn failure(installed: &BTreeMap<RelationId, Installed>, id: RelationId) -> Option<(RelationId, Halt)> {
    let mut seen = HashSet::new();
    let mut open = vec![id];
    while let Some(id) = open.pop() {
        let Some(relation) = installed.get(&id).filter(|_| seen.insert(id)) else { continue };
        if let Some(halt) = relation.shared.halt() {
            return Some((id, halt));
        }
        open.extend(&relation.imports);
    }
    None
}

/// What a reader gets whose workers are others now.
pub(super) fn restarted() -> Error {
    Error::new(SqlState::SerializationFailure, "the jobs were started again meanwhile").hint("Run the statement again.")
}

/// What a reader gets whose relation was dropped.
pub(super) fn gone() -> Error {
    Error::new(SqlState::UndefinedTable, "the relation does not exist any more")
        .hint("SHOW TABLES and SHOW VIEWS list what there is.")
}
