//! Worker threads and what runs on them: timely dataflows built from a [`plan::JobPlan`].
//!
//! ```text
//! JobPlan ─ build ─▶ dataflow on every worker: imports → operators → arrangement
//!                          ▲ commands, in one order            │ peeks, uppers, follower edges
//! ```
//!
//! Operators are plain structs behind [`operators::Operator`]; only `dataflow/` names timely.
//! Deliberately absent: SQL text, connectors by name, wire formats.

mod aggregate_types;
pub mod aggregates;
pub(crate) mod arrangement;
pub(crate) mod consolidate;
mod dataflow;
pub(crate) mod event_time;
mod operator_counts;
pub mod operators;
mod patterns;
pub mod plan;
pub(crate) mod relation;
mod row_errors;
pub mod sink;
pub mod source;

pub(crate) use operator_counts::{OperatorCounts, OperatorNumbers};

pub(crate) use dataflow::{
    Ask, Barrier, Captured, Clock, Executor, ExecutorConfig, FeedId, FeedInput, Follow, ImportKind, Inspection,
    JobSpec, JobState, Known, Mark, PLACE_COLUMN, Peek, PeekAnswer, PeekRange, WorkerCommand,
};
