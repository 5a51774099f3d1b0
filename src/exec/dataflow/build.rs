//! From a plan to a dataflow on one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use timely::dataflow::Scope;
use timely::dataflow::operators::Concatenate;

use super::deliver::deliver;
use super::driver::{Follows, JobContext, Packets, arrange, drive, transform, transform_two};
use super::exchange::Route;
use super::imports::{EdgeQueue, FeedId, FeedQueue, Local, edge, feed};
use super::job::{ImportKind, JobSpec};
use super::marks::Marks;
use crate::exec::arrangement::{Arrangement, Layout};
use crate::exec::operator_counts::OperatorCounts;
use crate::exec::operators::{
    Aggregate, Combine, Expire, Hold, HopAggregate, Join, LookupJoin, MatchRows, Rank, SessionWindow, TemporalFilter,
    TemporalJoin, filter, project, steps, unnest,
};
use crate::exec::plan::{
    Closing, EventTerm, EventTime, JoinKind, OPENED, OnError, OperatorSpec, PlanNode, late_rows_schema,
    row_errors_schema,
};
use crate::exec::relation::RelationShared;
use crate::exec::row_errors::divide;
use crate::exec::sink::JobOutput;
use crate::types::{Chunk, OperatorId, RelationId, Result};

/// What a built dataflow leaves with its worker.
pub(super) struct Built {
    /// The kept result; `None` when it leaves through a sink.
    pub(super) local: Option<Rc<RefCell<Local>>>,
    /// The kept rows for which an expression failed.
    pub(super) errors: Option<Rc<RefCell<Local>>>,
    /// The kept changes that came too late.
    pub(super) late: Option<Rc<RefCell<Local>>>,
    /// What its operators follow of event time.
    pub(super) marks: Vec<Rc<RefCell<Marks>>>,
    pub(super) feeds: Vec<(FeedId, Rc<RefCell<FeedQueue>>)>,
    pub(super) edges: Vec<Rc<RefCell<EdgeQueue>>>,
}

/// Rows of a stream and by which of its columns they are spread over the workers, if they are.
struct Spread<'scope> {
    stream: Packets<'scope>,
    by: Option<Vec<usize>>,
}

/// Builds a job's operators; the same on every worker.
pub(super) fn build<'scope>(
    scope: Scope<'scope, u64>,
    spec: &JobSpec,
    job: &JobContext,
    locals: &HashMap<RelationId, Rc<RefCell<Local>>>,
) -> Built {
    let mut feeds = Vec::new();
    let mut edges = Vec::new();
    let mut streams: Vec<Option<Spread<'scope>>> = Vec::new();
    let mut errors: Vec<Packets<'scope>> = Vec::new();
    let mut late: Vec<Packets<'scope>> = Vec::new();
    let mut marks: Vec<Rc<RefCell<Marks>>> = Vec::new();
    let plan = &spec.plan;
    for node in &plan.nodes {
        let mut inputs: Vec<Spread<'scope>> = node
            .inputs
            .iter()
            .map(|input| streams[*input].take().expect("an operator's output is used once"))
            .collect();
        let counts = job.shared.operator(&node.path, node.operator.name());
        let follows = follows(spec, node);
        let sides = follows.iter().flat_map(|follows| &follows.sides);
        marks.extend(sides.map(|(_, marks)| Rc::clone(marks)));
        let spread = match &node.operator {
            OperatorSpec::Import { relation, columns } => match spec.imports[relation] {
                ImportKind::Feed { catch_up } => {
                    let queue = Rc::new(RefCell::new(FeedQueue::new(spec.as_of, catch_up)));
                    feeds.push((FeedId::Table(*relation), Rc::clone(&queue)));
                    if catch_up {
                        feeds.push((FeedId::CatchUp(spec.shared.id, *relation), Rc::clone(&queue)));
                    } else {
                        spec.shared.feed_filled(spec.as_of);
                        job.request_tick();
                    }
                    Spread { stream: feed(scope, &queue, columns.clone(), counts, job), by: None }
                }
                ImportKind::Edge => {
                    let upstream = &locals[relation];
                    let queue = Rc::new(RefCell::new(EdgeQueue::default()));
                    edges.push(Rc::clone(&queue));
                    let by = {
                        let upstream = upstream.borrow();
                        let layout = upstream.arrangement.layout();
                        let place = |key: &usize| columns.iter().position(|column| column == key);
                        // Whole rows are encoded exactly, keys as SQL compares them: they may be of other groups.
                        layout
                            .is_unique()
                            .then(|| layout.key_columns().iter().map(place).collect::<Option<Vec<_>>>())
                            .flatten()
                    };
                    let stream = edge(scope, upstream, &queue, columns.clone(), spec, counts, job);
                    Spread { stream, by }
                }
            },
            OperatorSpec::Constant { rows } => {
                // One worker puts them in, once.
                let here = job.worker == 0 && !spec.restored();
                let rows = if here { Chunk::inserts(rows) } else { Vec::new() };
                let queue = Rc::new(RefCell::new(FeedQueue::constant(rows, spec.as_of)));
                feeds.push((FeedId::Clock, Rc::clone(&queue)));
                let columns = (0..node.schema.fields().len()).collect();
                Spread { stream: feed(scope, &queue, columns, counts, job), by: None }
            }
            OperatorSpec::Project { expressions } => {
                let input = inputs.remove(0);
                let by = input.by.and_then(|by| projected(&by, expressions));
                let (expressions, schema) = (expressions.clone(), Arc::clone(&node.schema));
                let apply = move |chunk: &Chunk| project(&expressions, &schema, chunk).map(Some);
                let stream = by_row(spec, input.stream, counts, job, &mut errors, apply);
                Spread { stream, by }
            }
            OperatorSpec::Filter { predicate, columns } => {
                let input = inputs.remove(0);
                let place = |by: &usize| columns.iter().position(|column| column == by);
                let by = input.by.and_then(|by| by.iter().map(place).collect());
                let (predicate, columns) = (Arc::clone(predicate), columns.clone());
                let apply = move |chunk: &Chunk| filter(&*predicate, &columns, chunk);
                let stream = by_row(spec, input.stream, counts, job, &mut errors, apply);
                Spread { stream, by }
            }
            OperatorSpec::Union => {
                // Batches carry their schema; after a union all have the union's.
                let schema = &node.schema;
                let streams: Vec<Packets<'scope>> = inputs
                    .into_iter()
                    .map(|input| {
                        let schema = Arc::clone(schema);
                        transform(input.stream, Arc::clone(&counts), job, move |chunk| {
                            Ok(Some(chunk.with_batch(chunk.batch().clone().with_schema(Arc::clone(&schema))?)))
                        })
                    })
                    .collect();
                Spread { stream: scope.concatenate(streams), by: None }
            }
            OperatorSpec::Aggregate { keys, aggregates } => {
                let input = inputs.remove(0);
                let input_schema = &plan.nodes[node.inputs[0]].schema;
                let operator = Aggregate::new(
                    OperatorId::of(&spec.shared.name, &node.path),
                    input_schema,
                    Arc::clone(&node.schema),
                    keys.clone(),
                    aggregates.clone(),
                    Route::one_worker(job.peers) == job.worker,
                    spec.state.is_some(),
                )
                .and_then(|operator| match node.closing.first() {
                    Some(closing) => operator.closing(closing),
                    None => Ok(operator),
                })
                .expect("the job was checked");
                let operator = match node.ttl_millis {
                    Some(ttl_millis) => operator.living(ttl_millis),
                    None => operator,
                };
                let route = if input.by.as_ref() == Some(keys) && !keys.is_empty() {
                    Route::Local
                } else {
                    Route::by_keys(input_schema, keys)
                };
                // Late rows are told one by one, and where rows are on their worker nothing is to be saved.
                let combines = job.peers > 1 && node.closing.is_empty() && !matches!(route, Route::Local);
                let combine =
                    combines.then(|| Combine::new(input_schema, keys, aggregates).expect("the job was checked"));
                let rows = match combine.flatten() {
                    Some(mut combine) => {
                        let counts = job.shared.operator(&format!("{}/combine", node.path), "Combine");
                        transform(input.stream, counts, job, move |chunk| combine.apply(chunk).map(Some))
                    }
                    None => input.stream,
                };
                let inputs = vec![(rows, route)];
                let (stream, too_late) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                late.extend(too_late);
                Spread { stream, by: Some((0..keys.len()).collect()) }
            }
            OperatorSpec::HopAggregate { hop, aggregates } => {
                let input = inputs.remove(0);
                let input_schema = &plan.nodes[node.inputs[0]].schema;
                let (operator, schema) = (OperatorId::of(&spec.shared.name, &node.path), Arc::clone(&node.schema));
                let (track, keys) = (spec.state.is_some(), hop.plain_keys());
                let closing = node.closing.first().expect("windows close by event time");
                let operator = HopAggregate::new(operator, input_schema, schema, hop, aggregates, closing, track)
                    .expect("the job was checked");
                let there = input.by.as_ref() == Some(&keys) && !keys.is_empty();
                let route = if there { Route::Local } else { Route::by_keys(input_schema, &keys) };
                let inputs = vec![(input.stream, route)];
                let (stream, too_late) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                late.extend(too_late);
                let place = |key: &usize| hop.keys.iter().position(|column| column == key);
                let by: Option<Vec<usize>> = keys.iter().map(place).collect();
                Spread { stream, by: by.filter(|by| !by.is_empty()) }
            }
            OperatorSpec::Unnest(unnesting) => {
                let (cut, apply) = (unnesting.clone(), unnesting.clone());
                let schema = Arc::clone(&node.schema);
                // Cut up first: the rows that a chunk becomes have no bound.
                let steps_of = job.shared.operator(&format!("{}/cut", node.path), "Cut");
                let parts = transform(inputs.remove(0).stream, steps_of, job, move |chunk| steps(&cut, &chunk));
                let stream = transform(parts, counts, job, move |chunk| unnest(&apply, &schema, &chunk));
                Spread { stream, by: None }
            }
            OperatorSpec::Rank(rank) => {
                let input = inputs.remove(0);
                let input_schema = &plan.nodes[node.inputs[0]].schema;
                let operator = OperatorId::of(&spec.shared.name, &node.path);
                let operator = Rank::new(operator, input_schema, Arc::clone(&node.schema), rank, spec.state.is_some())
                    .expect("the job was checked");
                let there = input.by.as_ref() == Some(&rank.keys) && !rank.keys.is_empty();
                let route = if there { Route::Local } else { Route::by_keys(input_schema, &rank.keys) };
                let inputs = vec![(input.stream, route)];
                let (stream, _) = drive(inputs, counts, Box::new(operator), None, spec.as_of, job);
                Spread { stream, by: Some(rank.keys.clone()).filter(|keys| !keys.is_empty()) }
            }
            OperatorSpec::SessionWindow(session) => {
                let input = inputs.remove(0);
                let input_schema = &plan.nodes[node.inputs[0]].schema;
                let (operator, schema) = (OperatorId::of(&spec.shared.name, &node.path), Arc::clone(&node.schema));
                let operator = SessionWindow::new(operator, input_schema, schema, session, spec.state.is_some())
                    .expect("the job was checked")
                    .closing(node.closing.first());
                let there = input.by.as_ref() == Some(&session.keys) && !session.keys.is_empty();
                let route = if there { Route::Local } else { Route::by_keys(input_schema, &session.keys) };
                let inputs = vec![(input.stream, route)];
                let (stream, too_late) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                late.extend(too_late);
                Spread { stream, by: Some(session.keys.clone()).filter(|keys| !keys.is_empty()) }
            }
            OperatorSpec::Join(join) => {
                let schemas = [0, 1].map(|input: usize| &plan.nodes[node.inputs[input]].schema);
                let operator = OperatorId::of(&spec.shared.name, &node.path);
                let operator = Join::new(operator, schemas, Arc::clone(&node.schema), join, spec.state.is_some())
                    .expect("the job was checked")
                    .closing(&node.closing);
                let inputs = by_join_keys(inputs, [&join.left_keys, &join.right_keys], schemas);
                let by = match join.kind {
                    JoinKind::Full => None,
                    JoinKind::Right => {
                        Some(join.right_keys.iter().map(|key| schemas[0].fields().len() + key).collect())
                    }
                    _ => Some(join.left_keys.clone()),
                };
                let (stream, too_late) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                late.extend(too_late);
                Spread { stream, by: by.filter(|by: &Vec<usize>| !by.is_empty()) }
            }
            OperatorSpec::LookupJoin(join) => {
                let schemas = [0, 1].map(|input: usize| &plan.nodes[node.inputs[input]].schema);
                let (operator, schema) = (OperatorId::of(&spec.shared.name, &node.path), Arc::clone(&node.schema));
                let operator = LookupJoin::new(operator, schemas, schema, join, spec.state.is_some())
                    .expect("the job was checked");
                let inputs = by_join_keys(inputs, [&join.left_keys, &join.right_keys], schemas);
                // No row is late for it.
                let (stream, _) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                Spread { stream, by: Some(join.left_keys.clone()).filter(|by| !by.is_empty()) }
            }
            OperatorSpec::TemporalJoin(join) => {
                let schemas = [0, 1].map(|input: usize| &plan.nodes[node.inputs[input]].schema);
                let (operator, schema) = (OperatorId::of(&spec.shared.name, &node.path), Arc::clone(&node.schema));
                let operator = TemporalJoin::new(operator, schemas, schema, join, spec.state.is_some())
                    .expect("the job was checked")
                    .closing(&node.closing);
                let inputs = by_join_keys(inputs, [&join.left_keys, &join.right_keys], schemas);
                let (stream, too_late) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                late.extend(too_late);
                Spread { stream, by: Some(join.left_keys.clone()).filter(|by| !by.is_empty()) }
            }
            OperatorSpec::Hold => {
                let input = inputs.remove(0);
                let operator = OperatorId::of(&spec.shared.name, &node.path);
                let closing = node.closing.first().expect("rows are held back by event time");
                let operator = Hold::new(operator, Arc::clone(&node.schema), closing, spec.state.is_some())
                    .expect("the job was checked");
                let inputs = vec![(input.stream, Route::by_rows(&node.schema))];
                let (stream, too_late) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                late.extend(too_late);
                Spread { stream, by: None }
            }
            OperatorSpec::Match(spec_of) => {
                let input = inputs.remove(0);
                let input_schema = &plan.nodes[node.inputs[0]].schema;
                let (operator, schema) = (OperatorId::of(&spec.shared.name, &node.path), Arc::clone(&node.schema));
                let closing = node.closing.first().expect("rows are matched by event time");
                let operator = MatchRows::new(operator, input_schema, schema, spec_of, closing, spec.state.is_some())
                    .expect("the job was checked");
                let there = input.by.as_ref() == Some(&spec_of.keys) && !spec_of.keys.is_empty();
                let route = if there { Route::Local } else { Route::by_keys(input_schema, &spec_of.keys) };
                let inputs = vec![(input.stream, route)];
                let (stream, too_late) = drive(inputs, counts, Box::new(operator), follows, spec.as_of, job);
                late.extend(too_late);
                Spread { stream, by: Some(spec_of.keys.clone()).filter(|keys| !keys.is_empty()) }
            }
            OperatorSpec::Expire { keys, ttl_millis } => {
                let input = inputs.remove(0);
                let operator = OperatorId::of(&spec.shared.name, &node.path);
                let (schema, track) = (Arc::clone(&node.schema), spec.state.is_some());
                let operator =
                    Expire::new(operator, schema, keys.clone(), *ttl_millis, track).expect("the job was checked");
                let there = input.by.as_ref() == Some(keys) && !keys.is_empty();
                let route = if there { Route::Local } else { Route::by_keys(&node.schema, keys) };
                let (stream, _) = drive(vec![(input.stream, route)], counts, Box::new(operator), None, spec.as_of, job);
                Spread { stream, by: Some(keys.clone()).filter(|keys| !keys.is_empty()) }
            }
            OperatorSpec::TemporalFilter(bounds) => {
                let input = inputs.remove(0);
                let input_schema = &plan.nodes[node.inputs[0]].schema;
                let (operator, schema) = (OperatorId::of(&spec.shared.name, &node.path), Arc::clone(&node.schema));
                let track = spec.state.is_some();
                let operator = TemporalFilter::new(operator, input_schema, schema, bounds.clone(), track)
                    .expect("the job was checked");
                let inputs = vec![(input.stream, Route::by_rows(input_schema))];
                let (stream, _) = drive(inputs, counts, Box::new(operator), None, spec.as_of, job);
                Spread { stream, by: None }
            }
            // The arrangement of its rows does it.
            OperatorSpec::Latest => inputs.remove(0),
        };
        streams.push(Some(spread));
    }
    let root = streams.pop().flatten().expect("a plan has a root");
    let schema = plan.schema();
    if let JobOutput::Sink(queue) = &spec.output {
        deliver(root.stream, Route::to_one(schema), queue, job);
        let errors = keep_errors(scope, spec, errors, job);
        return Built { local: None, errors, late: keep_late(scope, spec, late, job), marks, feeds, edges };
    }
    let layout = Layout::new(Arc::clone(schema), &plan.key).expect("the job was checked");
    let route = if plan.key.is_empty() {
        Route::by_rows(schema)
    } else if root.by.as_ref() == Some(&plan.key) {
        Route::Local
    } else {
        Route::by_keys(schema, &plan.key)
    };
    let operator = OperatorId::of(&spec.shared.name, "rows");
    let local = Rc::new(RefCell::new(Local {
        arrangement: Arrangement::new(operator, layout, spec.as_of, spec.state.is_some())
            .retaining(spec.shared.retain_millis()),
        shared: Arc::clone(&spec.shared),
        followers: Vec::new(),
        arranger: None,
    }));
    let latest = matches!(plan.root().operator, OperatorSpec::Latest);
    arrange(root.stream, route, "rows", latest, &local, job);
    let errors = keep_errors(scope, spec, errors, job);
    Built { local: Some(local), errors, late: keep_late(scope, spec, late, job), marks, feeds, edges }
}

/// The inputs of a join, each spread by its keys.
fn by_join_keys<'scope>(
    inputs: Vec<Spread<'scope>>,
    keys: [&Vec<usize>; 2],
    schemas: [&SchemaRef; 2],
) -> Vec<(Packets<'scope>, Route)> {
    let routed = inputs.into_iter().zip(keys).zip(schemas);
    routed
        .map(|((input, keys), schema)| {
            let there = input.by.as_ref() == Some(keys) && !keys.is_empty();
            (input.stream, if there { Route::Local } else { Route::by_keys(schema, keys) })
        })
        .collect()
}

/// What an operator follows of event time.
fn follows(spec: &JobSpec, node: &PlanNode) -> Option<Follows> {
    let side = |closing: &Closing| (closing.clone(), Rc::new(RefCell::new(Marks::new(&closing.time, &spec.known))));
    if let OperatorSpec::LookupJoin(_) = &node.operator {
        // Nothing but whether the job is whole.
        let terms = vec![EventTerm { relation: spec.shared.id, column: OPENED, delay: 0 }];
        let time = EventTime { terms, size: None, end: 0 };
        let sides = vec![side(&Closing { column: 0, time, last_only: false, keep: 0 })];
        return Some(Follows { path: node.path.clone(), sides });
    }
    let sides: Vec<_> = node.closing.iter().map(side).collect();
    (!sides.is_empty()).then(|| Follows { path: node.path.clone(), sides })
}

/// Runs a stateless operator whose expressions may fail for some rows.
fn by_row<'scope>(
    spec: &JobSpec,
    stream: Packets<'scope>,
    counts: Arc<OperatorCounts>,
    job: &JobContext,
    errors: &mut Vec<Packets<'scope>>,
    mut apply: impl FnMut(&Chunk) -> Result<Option<Chunk>> + 'static,
) -> Packets<'scope> {
    if spec.errors.is_none() || spec.plan.on_error != OnError::Keep {
        return transform(stream, counts, job, move |chunk| apply(&chunk));
    }
    let path = counts.path.clone();
    let (passed, failed) = transform_two(stream, counts, job, move |chunk| divide(&path, &chunk, &mut apply));
    errors.push(failed);
    passed
}

/// Keeps the rows for which an expression failed, when the job does.
fn keep_errors<'scope>(
    scope: Scope<'scope, u64>,
    spec: &JobSpec,
    errors: Vec<Packets<'scope>>,
    job: &JobContext,
) -> Option<Rc<RefCell<Local>>> {
    Some(keep_beside(scope, spec, spec.errors.as_ref()?, "errors", row_errors_schema(), errors, job))
}

/// Keeps the changes that came too late, when there can be any.
fn keep_late<'scope>(
    scope: Scope<'scope, u64>,
    spec: &JobSpec,
    late: Vec<Packets<'scope>>,
    job: &JobContext,
) -> Option<Rc<RefCell<Local>>> {
    Some(keep_beside(scope, spec, spec.late.as_ref()?, "late", late_rows_schema(), late, job))
}

/// Keeps rows of a job that are not its result.
fn keep_beside<'scope>(
    scope: Scope<'scope, u64>,
    spec: &JobSpec,
    shared: &Arc<RelationShared>,
    name: &str,
    schema: SchemaRef,
    rows: Vec<Packets<'scope>>,
    job: &JobContext,
) -> Rc<RefCell<Local>> {
    let layout = Layout::new(Arc::clone(&schema), &[]).expect("its columns can be kept");
    let operator = OperatorId::of(&spec.shared.name, name);
    let local = Rc::new(RefCell::new(Local {
        arrangement: Arrangement::new(operator, layout, spec.as_of, spec.state.is_some()),
        shared: Arc::clone(shared),
        followers: Vec::new(),
        arranger: None,
    }));
    let job = job.of(shared);
    arrange(scope.concatenate(rows), Route::by_rows(&schema), name, false, &local, &job);
    local
}

/// Where columns are after a projection; `None` when one is gone.
fn projected(by: &[usize], expressions: &[Arc<dyn PhysicalExpr>]) -> Option<Vec<usize>> {
    by.iter()
        .map(|column| {
            expressions.iter().position(|expression| {
                expression.downcast_ref::<Column>().is_some_and(|found| found.index() == *column)
            })
        })
        .collect()
}
