//! EXPLAIN: the plan of a query or of a job, and with ANALYZE what each part of it did.
//!
//! A query runs for that, and its rows are counted and thrown away. A job runs anyway: what its operators did since it was
//! built, on all workers together, stands beside them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::StringArray;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use futures::TryStreamExt;

use crate::catalog::{Catalog, Definition};
use crate::exec::OperatorNumbers;
use crate::sql::{self, Explain, ImportedRelation, Name};
use crate::types::{Error, RelationId, Result, SqlState};

use super::api::Answer;
use super::interrupt::Interrupt;
use super::read::Opened;
use super::session::Session;
use super::{relations, show, yielding};

/// The columns of an EXPLAIN's answer.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("QUERY PLAN", DataType::Utf8, true)]))
}

fn answer(lines: Vec<String>) -> Result<Answer> {
    show::rows(schema(), vec![Arc::new(StringArray::from_iter_values(lines))], "EXPLAIN")
}

/// `EXPLAIN` of what need not run, or runs already.
///
/// # Errors
/// Those of planning; 42P01 and 42809 for a job.
pub(crate) async fn explain(session: &Session, explain: &Explain, interrupt: &Interrupt) -> Result<Answer> {
    let relations = match explain {
        Explain::Job { name, analyze } => return job(session, name, *analyze),
        Explain::Query(_) | Explain::Analyze(_) => session.relations(),
        Explain::View(_) => session.definitions(),
    };
    let explain = explain.clone();
    let lines = interrupt
        .run(async move {
            let state = relations.state();
            match explain {
                Explain::Query(query) | Explain::Analyze(query) => {
                    let plan = sql::plan_query(&state, &query).await?;
                    let plan = state.optimize(&plan).map_err(crate::engine::error_of)?;
                    let mut lines: Vec<String> = plan.display_indent().to_string().lines().map(str::to_owned).collect();
                    lines.extend(super::relations::found_by(&plan)?);
                    Ok(lines)
                }
                Explain::View(view) => {
                    let standing = sql::Standing::new(view.emit, view.state_ttl.as_ref())?;
                    let planned = sql::plan_view(&state, &view.query, &view.columns, standing, &relations).await?;
                    Ok(sql::explain_job(&planned.plan, &imported(relations.catalog()), true, &|_| None))
                }
                Explain::Job { .. } => Err(Error::internal("a job is not planned to be explained")),
            }
        })
        .await?;
    answer(lines)
}

/// What EXPLAIN says of the relations that there are.
fn imported(catalog: &Catalog) -> HashMap<RelationId, ImportedRelation> {
    let described = catalog.objects().map(|object| {
        let schema = object.row_schema();
        let column = |at: &usize| schema.as_ref()?.fields().get(*at).map(|field| field.name().clone());
        let of = ImportedRelation {
            name: object.qualified_name(),
            key: object.key().iter().filter_map(column).collect(),
            append_only: object.append_only(),
        };
        (object.id, of)
    });
    described.collect()
}

/// The plan of a job that is there.
fn job(session: &Session, name: &Name, analyze: bool) -> Result<Answer> {
    let object = show::find(session, name)?;
    let (plan, kept) = match &object.definition {
        Definition::MaterializedView(view) => (&view.plan, true),
        Definition::Sink(sink) => (&sink.plan, false),
        Definition::Broken(error) => return Err(relations::broken(&object, error)),
        _ => {
            return Err(Error::new(
                SqlState::WrongObjectType,
                format!("\"{}\" is a {} and has no plan of its own", object.name, object.kind.name()),
            )
            .hint(format!(
                "EXPLAIN takes materialized views and sinks; EXPLAIN SELECT * FROM {} reads it.",
                object.name
            ))
            .position(name.position));
        }
    };
    let counts = if analyze { session.engine().coordinator().operators(object.id) } else { Vec::new() };
    let note = |path: &str| counts.iter().find(|counts| counts.path == path).map(|counts| did(&counts.numbers()));
    answer(sql::explain_job(plan, &imported(&session.engine().catalog()), kept, &note))
}

/// What an operator did and keeps.
fn did(numbers: &OperatorNumbers) -> String {
    let time = millis(Duration::from_micros(numbers.busy_micros));
    let (rows_in, rows_out, bytes) = (numbers.rows_in, numbers.rows_out, numbers.bytes_out);
    let state = match numbers.state.keys {
        0 => String::new(),
        keys => format!(" keys={keys} state_bytes={}", numbers.state.bytes),
    };
    format!("in={rows_in} out={rows_out} bytes={bytes}{state} time={time}")
}

fn millis(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1_000.0)
}

/// `EXPLAIN ANALYZE` of a query: runs it to its end.
///
/// # Errors
/// Those of running it.
pub(crate) async fn analyze(opened: Opened, interrupt: &Interrupt) -> Result<Answer> {
    let Opened { mut rows, plan, .. } = opened;
    let started = Instant::now();
    let count = interrupt
        .run(async move {
            let mut count = 0;
            while let Some(batch) = rows.try_next().await.map_err(crate::engine::error_of)? {
                count += batch.num_rows();
            }
            Ok(count)
        })
        .await?;
    let elapsed = started.elapsed();
    let mut lines = Vec::new();
    part(&plan, 0, &mut lines);
    lines.push(format!("Execution: {count} rows, {}", millis(elapsed)));
    answer(lines)
}

/// A line for each part of a plan that ran, inputs indented below.
fn part(plan: &Arc<dyn ExecutionPlan>, depth: usize, lines: &mut Vec<String>) {
    let inputs = plan.children();
    let (shown, passed) = match inputs.as_slice() {
        // It only gives others their turn, and knows what came through.
        [inner] if plan.name() == yielding::NAME => (*inner, plan.metrics()),
        _ => (plan, None),
    };
    let own = shown.metrics();
    let of = |wanted: fn(&datafusion::physical_plan::metrics::MetricsSet) -> Option<usize>| {
        own.as_ref().and_then(wanted).or_else(|| passed.as_ref().and_then(wanted))
    };
    let rows = of(|metrics| metrics.output_rows()).map(|rows| format!("rows={rows}"));
    let time = of(|metrics| metrics.elapsed_compute())
        .map(|nanos| format!("time={}", millis(Duration::from_nanos(nanos as u64))));
    let did: Vec<String> = rows.into_iter().chain(time).collect();
    let text = displayable(shown.as_ref()).one_line().to_string();
    let did = if did.is_empty() { String::new() } else { format!(" ({})", did.join(" ")) };
    lines.push(format!("{}{}{did}", "  ".repeat(depth), text.trim_end()));
    for input in shown.children() {
        part(input, depth + 1, lines);
    }
}
