//! What a worker needs to know to run a relation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::marks::Known;
use crate::exec::aggregates::accumulator;
use crate::exec::arrangement::Layout;
use crate::exec::operators::{
    Hold, HopAggregate, LookupJoin, MatchRows, Rank, SessionWindow, TemporalFilter, TemporalJoin,
};
use crate::exec::plan::{JobPlan, OnError, OperatorSpec, PlanNode};
use crate::exec::relation::RelationShared;
use crate::exec::sink::JobOutput;
use crate::state::{RowCodec, StateBackend};
use crate::types::{OperatorId, RelationId, Result, Time};

/// The column behind those of a table in which rows that replace each other carry their places.
pub(crate) const PLACE_COLUMN: &str = "__place";

/// How a job gets the rows of a relation that it imports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ImportKind {
    /// From the ticks. With `catch_up`, what was given before the job started comes on a feed of
    /// the job's own.
    Feed { catch_up: bool },
    /// From the relation's arrangement on the same worker.
    Edge,
}

/// A relation to run.
pub(crate) struct JobSpec {
    pub(crate) plan: Arc<JobPlan>,
    pub(crate) shared: Arc<RelationShared>,
    /// The first time that the job sees.
    pub(crate) as_of: Time,
    pub(crate) imports: HashMap<RelationId, ImportKind>,
    pub(crate) output: JobOutput,
    /// The relation of rows for which an expression failed, when they are kept.
    pub(crate) errors: Option<Arc<RelationShared>>,
    /// The relation of changes that came too late, when there can be any.
    pub(crate) late: Option<Arc<RelationShared>>,
    /// What is known of event time when it starts.
    pub(crate) known: Known,
    /// Where its operators keep their state; `None`: nowhere but in themselves.
    pub(crate) state: Option<JobState>,
}

/// Where the operators of a job keep their state.
pub(crate) struct JobState {
    /// One for each worker, taken by it.
    pub(crate) backends: Vec<Mutex<Option<Box<dyn StateBackend>>>>,
    /// They hold all that was given to the job before its first time.
    pub(crate) restored: bool,
}

impl JobState {
    pub(crate) fn new(backends: Vec<Box<dyn StateBackend>>, restored: bool) -> JobState {
        JobState { backends: backends.into_iter().map(|backend| Mutex::new(Some(backend))).collect(), restored }
    }
}

impl JobSpec {
    /// True when it goes on from state that was kept.
    pub(crate) fn restored(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.restored)
    }

    /// The plan of an ordinary table: its own feed.
    pub(crate) fn table_plan(id: RelationId, schema: SchemaRef, key: Vec<usize>) -> JobPlan {
        let columns = (0..schema.fields().len()).collect();
        let node = PlanNode {
            path: "root".to_owned(),
            operator: OperatorSpec::Import { relation: id, columns },
            inputs: Vec::new(),
            schema,
            closing: Vec::new(),
            append_only: false,
            ttl_millis: None,
        };
        let (event_times, retain_millis) = (Vec::new(), 0);
        JobPlan { nodes: vec![node], key, append_only: false, on_error: OnError::Never, event_times, retain_millis }
    }

    /// The plan of an external table with a primary key: its own feed, whose rows carry their places.
    pub(crate) fn latest_plan(id: RelationId, schema: SchemaRef, key: Vec<usize>) -> JobPlan {
        let mut fields = schema.fields().to_vec();
        fields.push(Arc::new(Field::new(PLACE_COLUMN, DataType::Int64, false)));
        let import = PlanNode {
            path: "root/input".to_owned(),
            operator: OperatorSpec::Import { relation: id, columns: (0..fields.len()).collect() },
            inputs: Vec::new(),
            schema: Arc::new(Schema::new(fields)),
            closing: Vec::new(),
            append_only: false,
            ttl_millis: None,
        };
        let latest = PlanNode {
            path: "root".to_owned(),
            operator: OperatorSpec::Latest,
            inputs: vec![0],
            schema,
            ..import.clone()
        };
        let (nodes, event_times, retain_millis) = (vec![import, latest], Vec::new(), 0);
        JobPlan { nodes, key, append_only: false, on_error: OnError::Never, event_times, retain_millis }
    }

    /// Tries what building the dataflow relies on.
    ///
    /// # Errors
    /// 0A000 or 42883 when a type cannot be kept, grouped or aggregated.
    pub(crate) fn check(plan: &JobPlan) -> Result<()> {
        Layout::new(Arc::clone(plan.schema()), &plan.key)?;
        for node in &plan.nodes {
            if let OperatorSpec::Rank(rank) = &node.operator {
                let input = &plan.nodes[node.inputs[0]].schema;
                Rank::new(OperatorId::of("", &node.path), input, Arc::clone(&node.schema), rank, false)?;
            }
            if let (OperatorSpec::HopAggregate { hop, aggregates }, Some(closing)) =
                (&node.operator, node.closing.first())
            {
                let (operator, input) = (OperatorId::of("", &node.path), &plan.nodes[node.inputs[0]].schema);
                let schema = Arc::clone(&node.schema);
                HopAggregate::new(operator, input, schema, hop, aggregates, closing, false)?;
            }
            if let OperatorSpec::SessionWindow(session) = &node.operator {
                let (operator, input) = (OperatorId::of("", &node.path), &plan.nodes[node.inputs[0]].schema);
                SessionWindow::new(operator, input, Arc::clone(&node.schema), session, false)?;
            }
            if let (OperatorSpec::Hold, Some(closing)) = (&node.operator, node.closing.first()) {
                Hold::new(OperatorId::of("", &node.path), Arc::clone(&node.schema), closing, false)?;
            }
            if let OperatorSpec::TemporalFilter(bounds) = &node.operator {
                let (operator, input) = (OperatorId::of("", &node.path), &plan.nodes[node.inputs[0]].schema);
                TemporalFilter::new(operator, input, Arc::clone(&node.schema), bounds.clone(), false)?;
            }
            if let (OperatorSpec::Match(matched), Some(closing)) = (&node.operator, node.closing.first()) {
                let (operator, input) = (OperatorId::of("", &node.path), &plan.nodes[node.inputs[0]].schema);
                MatchRows::new(operator, input, Arc::clone(&node.schema), matched, closing, false)?;
            }
            if let OperatorSpec::LookupJoin(join) = &node.operator {
                let schemas = [0, 1].map(|input: usize| &plan.nodes[node.inputs[input]].schema);
                LookupJoin::new(OperatorId::of("", &node.path), schemas, Arc::clone(&node.schema), join, false)?;
            }
            if let OperatorSpec::TemporalJoin(join) = &node.operator {
                let schemas = [0, 1].map(|input: usize| &plan.nodes[node.inputs[input]].schema);
                TemporalJoin::new(OperatorId::of("", &node.path), schemas, Arc::clone(&node.schema), join, false)?;
            }
            if let OperatorSpec::Join(join) = &node.operator {
                for (input, keys) in node.inputs.iter().zip([&join.left_keys, &join.right_keys]) {
                    let input = &plan.nodes[*input].schema;
                    RowCodec::for_keys(keys.iter().map(|key| input.field(*key).data_type()))?;
                    RowCodec::for_rows(input.fields().iter().map(|field| field.data_type()))?;
                }
            }
            if let OperatorSpec::Aggregate { keys, aggregates } = &node.operator {
                let input = &plan.nodes[node.inputs[0]].schema;
                RowCodec::for_keys(keys.iter().map(|key| input.field(*key).data_type()))?;
                for call in aggregates {
                    let argument =
                        call.argument.map_or(DataType::Null, |argument| input.field(argument).data_type().clone());
                    accumulator(&call.function, &argument, call.distinct, "a", false)?;
                }
            }
        }
        Ok(())
    }
}
