//! The operators inside of jobs, and what their state says as of the job's last capture.
//!
//! The state is read out of a checkpoint, so nothing of this touches a worker. Everything in one answer is of the checkpoint's
//! time.

use std::sync::Arc;

use arrow::array::{AsArray as _, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Definition, Object};
use crate::exec::operators::{part_columns, state_parts, stored_rows};
use crate::exec::plan::{JobPlan, OperatorSpec};
use crate::sql;
use crate::state::{MemoryBackend, Share, import};
use crate::types::{Error, RelationId, Result, SqlState};

use super::api::{Column, Scan, ScanRequest};
use super::database::Engine;
use super::interrupt::Interrupt;
use super::relations::Relations;
use super::scan::column_indexes_of;
use super::scan_exec::with_schema;

/// An operator that keeps state.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OperatorInfo {
    /// Its name in the job: its place in the plan.
    pub operator: String,
    /// `aggregate`, `join` or `rank`.
    pub kind: &'static str,
    /// The parts of its state.
    pub parts: Vec<OperatorPart>,
}

/// A part of an operator's state.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OperatorPart {
    /// Its name.
    pub part: &'static str,
    /// Columns of its rows.
    pub columns: Vec<Column>,
    /// Names of those by which it is found.
    pub key: Vec<String>,
}

fn kind(operator: &OperatorSpec) -> &'static str {
    match operator {
        OperatorSpec::Aggregate { .. } => "aggregate",
        OperatorSpec::Join(_) => "join",
        OperatorSpec::Rank(_) => "rank",
        _ => "",
    }
}

fn plan_of(object: &Object) -> Option<Arc<JobPlan>> {
    match &object.definition {
        Definition::MaterializedView(view) => Some(Arc::clone(&view.plan)),
        _ => None,
    }
}

fn names(schema: &SchemaRef, columns: &[usize]) -> Vec<String> {
    columns.iter().filter_map(|at| schema.fields().get(*at)).map(|field| shown(field.name())).collect()
}

fn shown(name: &str) -> String {
    sql::shown_name(name).to_owned()
}

impl Engine {
    /// The job with a number or a name (`v`, `schema.v`).
    fn job_of(&self, job: &str) -> Result<Arc<Object>> {
        let catalog = self.catalog();
        let by_number = job.parse().ok().and_then(|id| catalog.objects().find(|object| object.id == RelationId(id)));
        let found = match by_number {
            Some(object) => Arc::clone(object),
            None => self.kept_object(&self.name_of(job)).map_err(Error::without_position)?,
        };
        if plan_of(&found).is_none() {
            return Err(Error::new(SqlState::WrongObjectType, format!("\"{}\" has no operators", found.name))
                .hint("Materialized views have: GET /api/v1/views lists them."));
        }
        Ok(found)
    }

    /// The operators of a job that keep state.
    ///
    /// # Errors
    /// 42P01 when there is no such job.
    pub fn operators(&self, job: &str) -> Result<Vec<OperatorInfo>> {
        let object = self.job_of(job)?;
        let Some(plan) = plan_of(&object) else { return Ok(Vec::new()) };
        let infos = plan.nodes.iter().enumerate().filter(|(_, node)| !state_parts(&node.operator).is_empty());
        let info = |(at, node): (usize, &crate::exec::plan::PlanNode)| {
            let part = |(number, name): (usize, &&'static str)| {
                let (schema, key) = part_columns(&plan, at, number)?;
                let column = |field: &Arc<arrow::datatypes::Field>| Column {
                    name: shown(field.name()),
                    data_type: sql::sql_name(field.data_type()),
                };
                let columns = schema.fields().iter().map(column).collect();
                Some(OperatorPart { part: name, columns, key: names(&schema, &key) })
            };
            let parts = state_parts(&node.operator).iter().enumerate().filter_map(part).collect();
            OperatorInfo { operator: node.path.clone(), kind: kind(&node.operator), parts }
        };
        Ok(infos.map(info).collect())
    }

    /// The rows of an operator's state, as of the job's last capture; with `fresh` of a capture that has all that was answered
    /// so far. Of the request, `columns`, `filter`, `key` and `limit` count.
    ///
    /// # Errors
    /// 42P01 and 42704 for job, operator and part; 42703 for columns; those of the filter; 55000 when nothing was captured
    /// yet.
    pub async fn operator_rows(
        self: &Arc<Self>,
        job: &str,
        operator: &str,
        part: Option<&str>,
        fresh: bool,
        request: ScanRequest,
    ) -> Result<Scan> {
        let object = self.job_of(job)?;
        let plan = plan_of(&object).ok_or_else(|| Error::internal("a job without a plan"))?;
        let known = || self.operators(job).unwrap_or_default();
        let node = plan.nodes.iter().position(|node| node.path == operator && !state_parts(&node.operator).is_empty());
        let node = node.ok_or_else(|| {
            let names: Vec<String> = known().into_iter().map(|found| found.operator).collect();
            Error::new(SqlState::UndefinedObject, format!("job \"{}\" has no operator \"{operator}\"", object.name))
                .hint(format!("Those with state are: {}.", names.join(", ")))
        })?;
        let parts = plan.nodes.get(node).map(|node| state_parts(&node.operator)).unwrap_or_default();
        let number = match part {
            None => Some(0).filter(|_| parts.len() == 1),
            Some(part) => parts.iter().position(|known| *known == part),
        };
        let number = number.ok_or_else(|| {
            Error::new(SqlState::UndefinedObject, "the operator's state has parts, and one has to be named")
                .hint(format!("Add part=…: {}.", parts.join(", ")))
        })?;
        let (schema, key) = part_columns(&plan, node, number).ok_or_else(|| Error::internal("a part is missing"))?;
        let shown_schema = super::read::shown_schema(&schema);
        let columns = match &request.columns {
            None => (0..schema.fields().len()).collect(),
            Some(wanted) => column_indexes_of(operator, &shown_schema, wanted)?,
        };
        let key = names(&schema, &key);
        let predicate = predicate_text(&request, &key)?;
        let relations = Relations::new(self, self.catalog());
        let plan_one = |text: &String| sql::plan_predicate(&relations.state(), text, Arc::clone(&shown_schema));
        let predicate = predicate.as_ref().map(plan_one).transpose()?;

        let name = object.qualified_name();
        let (time, stream) = self.coordinator().captured_state(&name, fresh).await?;
        let limit = request.limit.unwrap_or(usize::MAX);
        let out = Arc::new(shown_schema.project(&columns)?);
        let row_schema = Arc::clone(&out);
        let read = move || {
            let mut backend = MemoryBackend::default();
            import(&mut backend, &[stream.as_slice()], Share::new(0, 1)?)?;
            let mut left = limit;
            let mut found = Vec::new();
            for rows in stored_rows(&name, &plan, node, number, &mut backend)? {
                let mut rows = with_schema(&rows, &shown_schema).map_err(super::error_of)?;
                if let Some(predicate) = &predicate {
                    let mask = predicate.evaluate(&rows).and_then(|mask| mask.into_array(rows.num_rows()));
                    let mask = mask.map_err(super::error_of)?;
                    let mask = mask.as_boolean_opt().ok_or_else(|| Error::internal("a predicate is not boolean"))?;
                    rows = filter_record_batch(&rows, mask)?;
                }
                let rows = rows.project(&columns)?.slice(0, left.min(rows.num_rows()));
                left -= rows.num_rows();
                found.push(rows);
            }
            Ok::<Vec<RecordBatch>, Error>(found)
        };
        let read = tokio::task::spawn_blocking(read).await;
        let rows = read.map_err(|error| Error::internal(format!("a read ended: {error}")))??;
        let interrupt = Interrupt::new(CancellationToken::new(), self.closed().clone(), None, self.query_threads());
        let stream = futures::stream::iter(rows.into_iter().map(Ok));
        let rows = interrupt.stream(Box::pin(RecordBatchStreamAdapter::new(row_schema, stream)));
        Ok(Scan { time, schema: out, rows, cursor: Arc::default() })
    }
}

/// The filter and the key of a request as one predicate.
fn predicate_text(request: &ScanRequest, key: &[String]) -> Result<Option<String>> {
    let mut terms: Vec<String> = request.filter.iter().map(|filter| format!("({filter}\n)")).collect();
    for (name, value) in request.key.iter().flatten() {
        let name = match (name, key) {
            (Some(name), _) if key.contains(name) => name,
            (None, [only]) => only,
            _ => {
                return Err(Error::new(SqlState::InvalidParameterValue, "the key is not that of the operator")
                    .hint(format!("Its key is ({}).", key.join(", "))));
            }
        };
        let name = sql::quoted_name(name);
        terms.push(match value {
            Some(value) => format!("{name} = '{}'", value.replace('\'', "''")),
            None => format!("{name} IS NULL"),
        });
    }
    Ok((!terms.is_empty()).then(|| terms.join(" AND ")))
}
