//! Starting from a checkpoint: the newest that is whole, on any number of workers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow::ipc::reader::StreamReader;

use super::cut::plan_of;
use super::{BadRowsCut, Cut, GROUP, JobCut, Offsets, Start, StateStores, plan_mark, written};
use crate::engine::coordinator::{RelationKind, RelationSpec};
use crate::engine::event_times::{TableTimeCut, known_at};
use crate::engine::reading_order::ReadingOrder;
use crate::exec::Known;
use crate::exec::sink::SinkPosition;
use crate::exec::source::{Offset, SplitId};
use crate::state::{
    Depth, Head, HeadCheckpoint, Manifest, PartStore, Share, StateBackend, export_checkpoint, import, verify,
};
use crate::types::{CheckpointId, Chunk, Error, RelationId, Result, SqlState, Time};

/// What a database starts from.
pub(crate) struct Restored {
    /// What happened up to this time is in it.
    pub(crate) time: Time,
    /// The backends of each job, one for each worker, filled.
    pub(crate) jobs: HashMap<RelationId, Vec<Box<dyn StateBackend>>>,
    /// Up to where the splits of external tables were read.
    pub(crate) offsets: SourceOffsets,
    /// Jobs that have less of their sources.
    behind: HashMap<RelationId, SourceOffsets>,
    /// By external table.
    pub(crate) bad_rows: HashMap<RelationId, RestoredBadRows>,
    /// In which order the splits of external tables whose rows are kept were read.
    pub(crate) orders: HashMap<RelationId, ReadingOrder>,
    /// What sinks into tables have written there.
    pub(crate) written: HashMap<RelationId, Vec<Chunk>>,
    /// Where what sinks of restored jobs wrote ends.
    pub(crate) positions: HashMap<RelationId, SinkPosition>,
    /// How far the event time of tables is.
    pub(crate) event_times: HashMap<RelationId, TableTimeCut>,
    /// What each job knew of event time.
    pub(crate) known: HashMap<RelationId, Known>,
}

/// Up to where splits were read, by external table.
type SourceOffsets = HashMap<RelationId, BTreeMap<SplitId, Offset>>;

impl Restored {
    /// What a restored job has of its sources.
    pub(crate) fn offsets_of(&self, job: RelationId) -> &SourceOffsets {
        self.behind.get(&job).unwrap_or(&self.offsets)
    }

    /// True when a restored job has the state of the checkpoint's time, and not of an earlier one.
    pub(crate) fn is_level(&self, job: RelationId) -> bool {
        !self.behind.contains_key(&job)
    }
}

/// The rows of an external table that could not be read.
pub(crate) struct RestoredBadRows {
    pub(crate) cut: BadRowsCut,
    /// The rows that its errors relation has; `None` when that begins anew.
    pub(crate) rows: Option<Vec<Chunk>>,
}

/// Finds and restores the newest checkpoint that is whole.
///
/// # Errors
/// XX001 when HEAD names checkpoints and none is whole; what is wrong with a store.
pub(crate) fn restore(
    stores: &StateStores,
    head: &Head,
    relations: &[RelationSpec],
    workers: usize,
) -> Result<(Option<Restored>, Start)> {
    let mut start = Start::default();
    let mut restored = None;
    let mut first_reason = None;
    for named in head.checkpoints.get(GROUP).into_iter().flatten() {
        let cut = Manifest::read(&**stores.root(), named).and_then(|manifest| Cut::from_json(manifest.engine));
        let cut = match (cut, start.restored) {
            // Older ones are not looked into: they may be needed one day.
            (Ok(cut), Some(_)) => Ok(cut),
            (Ok(cut), None) => restore_cut(stores, named, &cut, relations, workers).map(|found| {
                restored = Some(found);
                start.restored = Some(named.checkpoint);
                cut
            }),
            (Err(error), _) => Err(error),
        };
        match cut {
            Ok(cut) => start.retained.push((named.clone(), cut)),
            Err(error) if error.code() == SqlState::DataCorrupted => {
                tracing::error!(checkpoint = %named.checkpoint, ?error, "a checkpoint is damaged and is passed over");
                first_reason.get_or_insert((named.checkpoint, error));
                start.refused.push(named.clone());
            }
            // A store that cannot be reached is no damage: an older checkpoint would not be the answer.
            Err(error) => return Err(error),
        }
    }
    match (&restored, first_reason) {
        (None, Some((checkpoint, error))) => {
            return Err(Error::new(
                SqlState::DataCorrupted,
                format!("no checkpoint is whole; of the newest, {checkpoint}: {}", error.message()),
            )
            .hint("Restore the checkpoint folder from a copy, or start from a savepoint with --restore-from."));
        }
        (Some(found), Some(_)) => {
            tracing::error!(checkpoint = %found.time, "starting from an older checkpoint");
        }
        (Some(found), None) => tracing::info!(checkpoint = %found.time, jobs = found.jobs.len(), "starting from"),
        (None, None) => {}
    }
    Ok((restored, start))
}

/// Removes what a crash left in the checkpoint folder and in buckets, and working files of backends. What damaged checkpoints
/// name stays, to be looked at.
///
/// # Errors
/// When something cannot be read or removed.
pub(crate) fn sweep(stores: &StateStores, start: &Start) -> Result<()> {
    for job in start.retained.iter().flat_map(|(_, cut)| &cut.jobs) {
        stores.remove_stale(job.relation, &stores.uri(Some(&job.state_uri))?)?;
    }
    if !start.refused.is_empty() {
        return Ok(());
    }
    let mut needed: BTreeSet<String> = BTreeSet::new();
    for (named, cut) in &start.retained {
        needed.insert(named.manifest.name.clone());
        for job in &cut.jobs {
            let parts = job.workers.iter().flat_map(|snapshot| snapshot.parts());
            needed.extend(parts.map(|part| format!("jobs/{}/{}", job.relation, part.name)));
        }
        needed.extend(cut.root_parts().map(|part| part.name.clone()));
    }
    let mut removed = remove_others(&**stores.root(), &needed, is_ours)?;
    // A place may have several names, so what any job needs stays in all of them.
    let jobs = start.retained.iter().flat_map(|(_, cut)| &cut.jobs);
    let needed: BTreeSet<String> = jobs
        .flat_map(|job| job.workers.iter().map(move |snapshot| (job.relation, snapshot)))
        .flat_map(|(relation, snapshot)| {
            snapshot.parts().into_iter().map(move |part| format!("{relation}/{}", part.name))
        })
        .collect();
    for root in stores.shared_roots() {
        removed += remove_others(&*root, &needed, |name| is_ours(&format!("jobs/{name}")))?;
    }
    if removed > 0 {
        tracing::info!(files = removed, "removed what an unfinished checkpoint left");
    }
    Ok(())
}

/// Removes the objects of ours that are not needed, and counts them.
fn remove_others(store: &dyn PartStore, needed: &BTreeSet<String>, is_ours: impl Fn(&str) -> bool) -> Result<usize> {
    let mut removed = 0;
    for object in store.list("")? {
        if is_ours(&object.name) && !needed.contains(&object.name) {
            store.delete(&object.name)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Whether a name in the checkpoint folder is one that checkpoints give: nothing else is ever removed.
pub(super) fn is_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut folders = name.split('/');
    match (folders.next(), folders.next(), folders.next()) {
        (Some("manifests"), Some(file), None) => file.starts_with(GROUP),
        (Some("jobs"), Some(job), Some(kind)) => {
            is_number(job) && (kind.starts_with("cp-") || matches!(kind, "log" | "base" | "sst"))
        }
        (Some(checkpoint), Some(_), None) => checkpoint.strip_prefix("cp-").is_some_and(is_number),
        (Some("scratch"), ..) => true,
        _ => false,
    }
}

fn restore_cut(
    stores: &StateStores,
    named: &HeadCheckpoint,
    cut: &Cut,
    relations: &[RelationSpec],
    workers: usize,
) -> Result<Restored> {
    let kept = kept_jobs(cut, relations)?;
    for (_, job) in &kept {
        let store = stores.store(job.relation, &stores.uri(Some(&job.state_uri))?)?;
        let parts = Manifest::new(GROUP, named.checkpoint, &job.state_uri, job.workers.clone());
        verify(&*store, &parts, Depth::Checksums)
            .map_err(|error| error.detail(format!("It is part of the state of {}.", job.name)))?;
    }
    let (mut jobs, mut behind, mut positions) = (HashMap::new(), HashMap::new(), HashMap::new());
    let known = kept.iter().map(|(_, job)| (job.relation, known_at(&job.known))).collect();
    let event_times = cut.event_times.iter().map(|time| (time.table, time.clone())).collect();
    for (spec, job) in kept {
        positions.extend(job.position.clone().map(|position| (job.relation, position)));
        behind.extend(job.behind.as_ref().map(|offsets| (job.relation, source_offsets(offsets))));
        jobs.insert(job.relation, restore_job(stores, spec, job, named.checkpoint, workers)?);
    }
    let mut bad_rows = HashMap::new();
    for bad in &cut.bad_rows {
        let errors = relations.iter().find(|spec| matches!(spec.kind, RelationKind::Errors { of } if of == bad.table));
        let is_kept = errors.is_some_and(|errors| jobs.contains_key(&errors.id));
        let rows = match (&bad.rows, is_kept) {
            (_, false) => None,
            (None, true) => {
                return Err(Error::new(
                    SqlState::DataCorrupted,
                    format!("checkpoint {} lacks rows of an errors relation", named.checkpoint),
                ));
            }
            (Some(part), true) => {
                let bytes = stores.root().get(part)?;
                let mut rows = Vec::new();
                for batch in StreamReader::try_new(&bytes[..], None)? {
                    rows.extend(Chunk::inserts(&batch?));
                }
                Some(rows)
            }
        };
        bad_rows.insert(bad.table, RestoredBadRows { cut: bad.clone(), rows });
    }
    let orders = cut.orders.iter().map(|(table, order)| Ok((*table, ReadingOrder::from_cut(order)?)));
    let orders = orders.collect::<Result<_>>()?;
    let is_sink =
        |id: RelationId| relations.iter().any(|spec| spec.id == id && matches!(spec.kind, RelationKind::Sink { .. }));
    let sinks = cut.sinks.iter().filter(|cut| is_sink(cut.sink));
    let written = sinks.map(|cut| Ok((cut.sink, written::read(&**stores.root(), &cut.parts)?)));
    let written = written.collect::<Result<_>>()?;
    let offsets = source_offsets(&cut.offsets);
    Ok(Restored {
        time: Time::from_millis(named.checkpoint.0),
        jobs,
        offsets,
        behind,
        bad_rows,
        orders,
        written,
        positions,
        event_times,
        known,
    })
}

fn source_offsets(offsets: &Offsets) -> SourceOffsets {
    let table = |(table, splits): (&RelationId, &BTreeMap<String, Offset>)| {
        let splits = splits.iter().map(|(split, offset)| (SplitId::new(split.as_str()), *offset));
        (*table, splits.collect())
    };
    offsets.iter().map(table).collect()
}

/// The jobs that go on from their state: those that are as they were, and stand on such alone.
fn kept_jobs<'a>(cut: &'a Cut, relations: &'a [RelationSpec]) -> Result<Vec<(&'a RelationSpec, &'a JobCut)>> {
    let mut kept: Vec<(&RelationSpec, &JobCut)> = Vec::new();
    let mut known: HashSet<RelationId> = HashSet::new();
    let mut owners: HashMap<RelationId, RelationId> = HashMap::new();
    let external: HashSet<RelationId> = relations
        .iter()
        .filter(|spec| matches!(&spec.kind, RelationKind::External { key, .. } if key.is_empty()))
        .map(|spec| spec.id)
        .collect();
    let mut specs: Vec<&RelationSpec> = relations.iter().collect();
    specs.sort_by_key(|spec| spec.id);
    for spec in specs {
        if let RelationKind::View { errors, late, .. } | RelationKind::Sink { errors, late, .. } = &spec.kind {
            owners.extend(errors.iter().chain(late).map(|beside| (*beside, spec.id)));
        }
        let Some(plan) = plan_of(spec) else { continue };
        let Some(job) = cut.jobs.iter().find(|job| job.relation == spec.id) else { continue };
        if matches!(spec.kind, RelationKind::Sink { .. }) && job.position.is_none() {
            continue;
        }
        if plan_mark(spec).as_ref() != Some(&job.plan) {
            if matches!(spec.kind, RelationKind::Table { .. }) {
                return Err(Error::new(
                    SqlState::DataCorrupted,
                    format!("the checkpoint has other columns of table {} than the catalog", spec.qualified_name),
                )
                .hint("Start the version of clink that wrote it."));
            }
            tracing::warn!(job = spec.qualified_name, "its plan is not that of the checkpoint: it begins anew");
            continue;
        }
        let stands = |import: &RelationId| {
            *import == spec.id || external.contains(import) || known.contains(owners.get(import).unwrap_or(import))
        };
        if plan.imports().iter().all(stands) {
            known.insert(spec.id);
            kept.push((spec, job));
        }
    }
    Ok(kept)
}

/// A job's backends with their shares of its state. Another backend than the one that wrote it takes it in canonical form.
fn restore_job(
    stores: &StateStores,
    spec: &RelationSpec,
    job: &JobCut,
    checkpoint: CheckpointId,
    workers: usize,
) -> Result<Vec<Box<dyn StateBackend>>> {
    let uri = stores.uri(spec.state_backend())?;
    let mut backends = stores.build(job.relation, &uri, workers)?;
    let stream = if uri.to_string() == job.state_uri {
        None
    } else {
        tracing::info!(job = job.name, from = job.state_uri, to = %uri, "its state moves to another backend");
        let store = stores.store(job.relation, &stores.uri(Some(&job.state_uri))?)?;
        Some(export_checkpoint(&store, &job.workers, &stores.scratch())?)
    };
    let stream = stream.as_deref();
    let results: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = backends
            .iter_mut()
            .enumerate()
            .map(|(worker, backend)| {
                scope.spawn(move || {
                    let share = Share::new(worker, workers)?;
                    match stream {
                        Some(stream) => import(&mut **backend, &[stream], share),
                        None => backend.restore(&job.workers, share),
                    }
                })
            })
            .collect();
        let panicked = |_| Err(Error::internal("restoring panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    for result in results {
        result
            .map_err(|error| error.detail(format!("It is of the state of {} in checkpoint {checkpoint}.", job.name)))?;
    }
    Ok(backends)
}

/// The backends of a job that begins anew.
///
/// # Errors
/// When their place cannot be made or reached.
pub(crate) fn fresh(
    stores: &Arc<StateStores>,
    spec: &RelationSpec,
    workers: usize,
) -> Result<Vec<Box<dyn StateBackend>>> {
    stores.build(spec.id, &stores.uri(spec.state_backend())?, workers)
}
