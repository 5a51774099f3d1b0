//! What the engine keeps in a checkpoint's manifest beside the state of workers.

use std::collections::{BTreeMap, BTreeSet};

use crate::engine::coordinator::{RelationKind, RelationSpec};
use crate::engine::event_times::TableTimeCut;
use crate::engine::reading_order::OrderCut;
use crate::exec::JobSpec;
use crate::exec::plan::{AggregateCall, JobPlan, MatchSpec, OperatorSpec, RankSpec, Show};
use crate::exec::sink::SinkPosition;
use crate::exec::source::Offset;
use crate::state::{Part, Snapshot};
use crate::types::{Error, RelationId, Result, Watermark, fnv1a};

/// Up to where splits were read, by external table and split.
pub(crate) type Offsets = BTreeMap<RelationId, BTreeMap<String, Offset>>;

/// A cut of the whole database, as a manifest holds it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Cut {
    /// The jobs whose state is in it.
    pub(crate) jobs: Vec<JobCut>,
    /// Up to where the splits of external tables were read.
    pub(crate) offsets: Offsets,
    /// Of external tables, the rows that could not be read.
    pub(crate) bad_rows: Vec<BadRowsCut>,
    /// In which order the splits of external tables whose rows are kept were read.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) orders: BTreeMap<RelationId, OrderCut>,
    /// What sinks into tables have written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sinks: Vec<SinkCut>,
    /// How far the event time of tables is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) event_times: Vec<TableTimeCut>,
}

/// A job's state.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct JobCut {
    /// The relation.
    pub(crate) relation: RelationId,
    /// Its name then.
    pub(crate) name: String,
    /// [`plan_mark`] of what filled it.
    pub(crate) plan: String,
    /// The backend whose store holds the parts.
    pub(crate) state_uri: String,
    /// Each worker's part, in order of workers.
    pub(crate) workers: Vec<Snapshot>,
    /// What it has of its sources, when that is less than the cut has: it was not captured with the others, and its state
    /// is that of an earlier checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) behind: Option<Offsets>,
    /// Where what its sink wrote ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) position: Option<SinkPosition>,
    /// What it knows of event time, by relation and column.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) known: Vec<(RelationId, usize, Watermark)>,
}

/// The rows of one external table that could not be read.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct BadRowsCut {
    /// The table.
    pub(crate) table: RelationId,
    /// The bindings of the rows that are kept, oldest first.
    pub(crate) bindings: Vec<BadBindingCut>,
    /// Rows of the oldest one that are not kept any more.
    pub(crate) expired: usize,
    /// The rows in order, as an Arrow IPC stream in the checkpoint folder; absent when nobody keeps them.
    pub(crate) rows: Option<Part>,
}

/// The rows of its query that a sink has written into its table.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct SinkCut {
    /// The sink.
    pub(crate) sink: RelationId,
    /// Objects in the checkpoint folder with changes, which come to those rows together.
    pub(crate) parts: Vec<SinkPart>,
}

/// Some changes of what a sink has written.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct SinkPart {
    pub(crate) rows: usize,
    pub(crate) part: Part,
}

/// A binding with bad rows.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct BadBindingCut {
    pub(crate) time_millis: u64,
    pub(crate) split: String,
    pub(crate) start: Offset,
    pub(crate) end: Offset,
    pub(crate) rows: usize,
}

impl Cut {
    /// Reads what a manifest holds.
    ///
    /// # Errors
    /// When it is not a cut.
    pub(crate) fn from_json(json: serde_json::Value) -> Result<Cut> {
        serde_json::from_value(json).map_err(|error| {
            Error::new(crate::types::SqlState::DataCorrupted, format!("a manifest is not one of a database: {error}"))
                .hint("Restore an older checkpoint, or a copy of this one.")
        })
    }

    /// As a manifest holds it.
    ///
    /// # Errors
    /// None but a fault of the program.
    pub(crate) fn to_json(&self) -> Result<serde_json::Value> {
        serde_json::to_value(self).map_err(|error| Error::internal(error.to_string()))
    }

    /// Every part, each once, with the relation in whose store it is, or whose bad rows it holds.
    pub(crate) fn parts(&self) -> BTreeSet<(RelationId, &Part)> {
        let jobs = self.jobs.iter().flat_map(|job| {
            let parts = job.workers.iter().flat_map(Snapshot::parts);
            parts.map(|part| (job.relation, part))
        });
        let bad_rows = self.bad_rows.iter().filter_map(|bad| Some((bad.table, bad.rows.as_ref()?)));
        let sinks = self.sinks.iter().flat_map(|sink| sink.parts.iter().map(|part| (sink.sink, &part.part)));
        jobs.chain(bad_rows).chain(sinks).collect()
    }

    /// The parts that lie in the checkpoint folder itself, and in no job's store.
    pub(crate) fn root_parts(&self) -> impl Iterator<Item = &Part> {
        let sinks = self.sinks.iter().flat_map(|sink| sink.parts.iter().map(|part| &part.part));
        self.bad_rows.iter().filter_map(|bad| bad.rows.as_ref()).chain(sinks)
    }
}

/// The plan of a relation whose state is kept; `None` for others.
pub(crate) fn plan_of(relation: &RelationSpec) -> Option<JobPlan> {
    match &relation.kind {
        RelationKind::Table { schema, key, .. } => {
            Some(JobSpec::table_plan(relation.id, std::sync::Arc::clone(schema), key.clone()))
        }
        RelationKind::Errors { .. } => {
            Some(JobSpec::table_plan(relation.id, crate::catalog::errors_schema(), Vec::new()))
        }
        RelationKind::View { plan, .. } => Some(plan.as_ref().clone()),
        RelationKind::External { source, key, .. } if !key.is_empty() => {
            Some(JobSpec::latest_plan(relation.id, source.source.schema(), key.clone()))
        }
        RelationKind::Sink { plan, target, .. } if target.sink.resumes() => Some(plan.as_ref().clone()),
        RelationKind::External { .. }
        | RelationKind::RowErrors
        | RelationKind::LateRows
        | RelationKind::Sink { .. } => None,
    }
}

fn calls(aggregates: &[AggregateCall]) -> String {
    let calls = aggregates
        .iter()
        .map(|call| format!("{:?} {:?} {} {:?}", call.function, call.argument, call.distinct, call.filter));
    calls.collect::<Vec<_>>().join(", ")
}

/// A mark that two plans share only when the state of one serves the other.
pub(crate) fn plan_mark(relation: &RelationSpec) -> Option<String> {
    use std::fmt::Write as _;

    let plan = plan_of(relation)?;
    // The name is part of the operators' ids.
    let mut text = format!("{} {:?} {:?}", relation.qualified_name, plan.key, plan.on_error);
    for node in &plan.nodes {
        let fields = node.schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
        let fields = fields.collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\n{} {} {:?} ({fields})", node.path, node.operator.name(), node.inputs);
        for closing in &node.closing {
            let _ = write!(text, " {closing:?}");
        }
        let _ = match &node.operator {
            OperatorSpec::Import { relation, columns } => write!(text, " {relation} {columns:?}"),
            OperatorSpec::Constant { rows } => write!(text, " {rows:?}"),
            OperatorSpec::Project { expressions } => {
                write!(text, " {:?}", expressions.iter().map(ToString::to_string).collect::<Vec<_>>())
            }
            OperatorSpec::Filter { predicate, columns } => write!(text, " {predicate} {columns:?}"),
            OperatorSpec::Union | OperatorSpec::Latest | OperatorSpec::Hold => Ok(()),
            OperatorSpec::Expire { keys, .. } => write!(text, " {keys:?}"),
            OperatorSpec::LookupJoin(join) => write!(text, " {join:?}"),
            OperatorSpec::Match(MatchSpec { keys, order, pattern }) => write!(text, " {keys:?} {order:?} {pattern}"),
            OperatorSpec::TemporalJoin(join) => write!(text, " {join:?}"),
            OperatorSpec::TemporalFilter(bounds) => write!(text, " {bounds:?}"),
            OperatorSpec::Join(join) => {
                let condition = join.condition.as_ref().map(ToString::to_string);
                write!(text, " {:?} {:?} {} {condition:?}", join.left_keys, join.right_keys, join.nulls_equal)
            }
            OperatorSpec::Rank(RankSpec { keys, order, show }) => {
                let shown = match show {
                    Show::First { skip, limit } => format!("{skip} {limit:?}"),
                    Show::Window { limit, functions } => {
                        let names: Vec<&str> = functions.iter().map(|function| function.name()).collect();
                        format!("{limit:?} {names:?}")
                    }
                };
                write!(text, " {keys:?} {order:?} {shown}")
            }
            OperatorSpec::Unnest(unnest) => write!(text, " {unnest:?}"),
            OperatorSpec::SessionWindow(session) => write!(text, " {session:?}"),
            OperatorSpec::Aggregate { keys, aggregates } => write!(text, " {keys:?} {}", calls(aggregates)),
            OperatorSpec::HopAggregate { hop, aggregates } => write!(text, " {hop:?} {}", calls(aggregates)),
        };
    }
    Some(format!("{:016x}", fnv1a(text.as_bytes())))
}
