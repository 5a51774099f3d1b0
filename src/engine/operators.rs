//! The operators inside of jobs, and their rows: over HTTP, and as relations of a SELECT by the name `"job/operator"`.
//!
//! All rows of one answer are of one time, which is not before anything that was answered so far.

use std::fmt;
use std::sync::Arc;

use arrow::array::{AsArray as _, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Catalog, Definition, Object, near_miss};
use crate::exec::operators::{part_columns, part_source, state_parts};
use crate::exec::plan::{JobPlan, OperatorSpec};
use crate::sql::{self, Name};
use crate::state::RowCodec;
use crate::types::{CHUNK_ROWS_MAX, Error, RelationId, Result, SqlState};

use super::api::{Column, Scan, ScanRequest};
use super::coordinator::{Inside, OperatorRead, ReadBound};
use super::database::Engine;
use super::interrupt::Interrupt;
use super::relations::{Relations, relation_info};
use super::scan::{column_indexes_of, key_values_of};
use super::scan_exec::with_schema;

/// An operator that keeps state.
#[derive(Clone, Debug, serde::Serialize)]
pub struct OperatorInfo {
    /// Its name in the job: its place in the plan.
    pub operator: String,
    /// `aggregate`, `join`, `rank` or `hold`.
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

/// A part of an operator's state that is to be read.
#[derive(Clone, Debug)]
pub(crate) struct FoundPart {
    pub(crate) inside: Inside,
    /// Its columns, as people see them.
    pub(crate) schema: SchemaRef,
    /// Those by which its rows are found.
    key: Vec<usize>,
}

fn kind(operator: &OperatorSpec) -> &'static str {
    match operator {
        OperatorSpec::Aggregate { .. } => "aggregate",
        OperatorSpec::Join(_) => "join",
        OperatorSpec::Rank(_) => "rank",
        OperatorSpec::Hold => "hold",
        _ => "",
    }
}

fn plan_of(object: &Object) -> Option<Arc<JobPlan>> {
    match &object.definition {
        Definition::MaterializedView(view) => Some(Arc::clone(&view.plan)),
        Definition::Sink(sink) => Some(Arc::clone(&sink.plan)),
        _ => None,
    }
}

fn names(schema: &Schema, columns: &[usize]) -> Vec<String> {
    columns.iter().filter_map(|at| schema.fields().get(*at)).map(|field| field.name().clone()).collect()
}

/// The name of a column that is computed and has none: that of its function, as PostgreSQL does it.
fn called(name: &str) -> String {
    let of_function = name.split_once('(').map(|(function, _)| function);
    let is_word = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    of_function.filter(is_word).unwrap_or(name).to_owned()
}

/// The columns of a part under names of which no two are the same, and those that its key is made of.
fn shown_part(plan: &JobPlan, node: usize, part: usize) -> Option<(SchemaRef, Vec<usize>)> {
    let (schema, key) = part_columns(plan, node, part)?;
    let mut fields: Vec<Field> = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let name = called(sql::shown_name(field.name()));
        let is_free = |name: &str| fields.iter().all(|before| before.name() != name);
        let mut free = name.clone();
        for number in 2.. {
            if is_free(&free) {
                break;
            }
            free = format!("{name}_{number}");
        }
        fields.push(field.as_ref().clone().with_name(free));
    }
    Some((Arc::new(Schema::new(fields)), key))
}

/// The operators of a plan that keep state.
fn operators_of(plan: &JobPlan) -> Vec<OperatorInfo> {
    let infos = plan.nodes.iter().enumerate().filter(|(_, node)| !state_parts(&node.operator).is_empty());
    let info = |(at, node): (usize, &crate::exec::plan::PlanNode)| {
        let part = |(number, name): (usize, &&'static str)| {
            let (schema, key) = shown_part(plan, at, number)?;
            let column =
                |field: &Arc<Field>| Column { name: field.name().clone(), data_type: sql::sql_name(field.data_type()) };
            let columns = schema.fields().iter().map(column).collect();
            Some(OperatorPart { part: name, columns, key: names(&schema, &key) })
        };
        let parts = state_parts(&node.operator).iter().enumerate().filter_map(part).collect();
        OperatorInfo { operator: node.path.clone(), kind: kind(&node.operator), parts }
    };
    infos.map(info).collect()
}

/// A part of the state of an operator of a job.
///
/// # Errors
/// 42704 when there is no such operator or part; 42809 when the relation has no operators.
fn find_part(object: &Object, operator: &str, part: Option<&str>) -> Result<FoundPart> {
    let plan = plan_of(object).ok_or_else(|| no_operators(object))?;
    let node = plan.nodes.iter().position(|node| node.path == operator && !state_parts(&node.operator).is_empty());
    let Some(node) = node else {
        let known: Vec<String> = operators_of(&plan).into_iter().map(|found| found.operator).collect();
        let hint = match near_miss(operator, known.iter().map(String::as_str)) {
            _ if known.is_empty() => "None of its operators keeps state.".to_owned(),
            Some(near) => format!("Perhaps you meant \"{near}\"."),
            None => format!("Those with state are: {}.", known.join(", ")),
        };
        let message = format!("job \"{}\" has no operator \"{operator}\" with state", object.name);
        return Err(Error::new(SqlState::UndefinedObject, message).hint(hint));
    };
    let parts = plan.nodes.get(node).map(|node| state_parts(&node.operator)).unwrap_or_default();
    let number = match part {
        None => Some(0).filter(|_| parts.len() == 1),
        Some(part) => parts.iter().position(|known| *known == part),
    };
    let number = number.ok_or_else(|| {
        let message = match part {
            None => "the operator's state has parts, and one has to be named".to_owned(),
            Some(part) => format!("the operator's state has no part \"{part}\""),
        };
        Error::new(SqlState::UndefinedObject, message).hint(format!("Its parts are: {}.", parts.join(", ")))
    })?;
    let (schema, key) = shown_part(&plan, node, number).ok_or_else(|| Error::internal("a part is missing"))?;
    let inside = Inside { job: object.id, operator: operator.to_owned(), part: number };
    Ok(FoundPart { inside, schema, key })
}

fn no_operators(object: &Object) -> Error {
    Error::new(SqlState::WrongObjectType, format!("\"{}\" has no operators", object.name))
        .hint("Materialized views and sinks have: SHOW JOBS lists them.")
}

/// The job in a name such as `job/operator`, and what follows it; `None` when there is no such job, or it is no such name.
pub(crate) fn job_named<'a>(
    catalog: &'a Catalog,
    schema: Option<&str>,
    name: &'a str,
) -> Option<(&'a Arc<Object>, &'a str)> {
    let (job, operator) = name.split_once('/')?;
    Some((catalog.find(schema, job)?, operator))
}

/// The part that a relation of a SELECT names: `job/operator` or `job/operator:part`. `None` when it names none.
///
/// # Errors
/// As [`find_part`], when there is such a job.
pub(crate) fn named_part(catalog: &Catalog, schema: &str, name: &str) -> Result<Option<FoundPart>> {
    let Some((object, operator)) = job_named(catalog, Some(schema), name) else { return Ok(None) };
    let (operator, part) = match operator.split_once(':') {
        Some((operator, part)) => (operator, Some(part)),
        None => (operator, None),
    };
    find_part(object, operator, part).map(Some)
}

/// That part, as an input of a view.
///
/// # Errors
/// As [`find_part`], when there is such a job.
pub(crate) fn as_input(catalog: &Catalog, schema: &str, name: &str) -> Result<Option<sql::InsideInfo>> {
    let Some(FoundPart { inside, schema, key }) = named_part(catalog, schema, name)? else { return Ok(None) };
    let plan = catalog
        .get(inside.job)
        .and_then(|job| plan_of(job.as_ref()))
        .ok_or_else(|| Error::internal("a job went away"))?;
    let node = plan.nodes.iter().position(|node| node.path == inside.operator);
    let source = node.and_then(|node| part_source(&plan, node, inside.part));
    // Of an aggregate's groups there is one row each; rows of an input may be there more than once.
    let is_own = source.is_some() && source == node && !key.is_empty();
    let imports = plan.imports().into_iter().filter_map(|id| catalog.get(id)).filter_map(relation_info).collect();
    Ok(Some(sql::InsideInfo { source, schema, key: is_own.then_some(key), imports, plan }))
}

impl Engine {
    /// The job with a number or a name (`v`, `schema.v`).
    fn job_of(&self, job: &str) -> Result<Arc<Object>> {
        let catalog = self.catalog();
        let by_number = job.parse().ok().and_then(|id| catalog.objects().find(|object| object.id == RelationId(id)));
        if let Some(object) = by_number {
            return Ok(Arc::clone(object));
        }
        let name: Name = self.name_of(job);
        match catalog.find(name.schema.as_deref(), &name.name) {
            Some(object) if matches!(object.definition, Definition::Sink(_)) => Ok(Arc::clone(object)),
            _ => self.kept_object(&name).map_err(Error::without_position),
        }
    }

    /// The operators of a job that keep state.
    ///
    /// # Errors
    /// 42P01 when there is no such job; 42809 when the relation has no operators.
    pub fn operators(&self, job: &str) -> Result<Vec<OperatorInfo>> {
        let object = self.job_of(job)?;
        plan_of(&object).map(|plan| operators_of(&plan)).ok_or_else(|| no_operators(&object))
    }

    /// The rows of an operator's state, as they are now. Of the request, `columns`, `filter`, `key`, `order` and `limit` count.
    ///
    /// # Errors
    /// 42P01 and 42704 for job, operator and part; 42703 for columns; those of the filter; those of
    /// [`super::coordinator::Coordinator::pin`].
    pub async fn operator_rows(
        self: &Arc<Self>,
        job: &str,
        operator: &str,
        part: Option<&str>,
        request: ScanRequest,
    ) -> Result<Scan> {
        let object = self.job_of(job)?;
        let FoundPart { inside, schema, key } = find_part(&object, operator, part)?;
        let columns = match &request.columns {
            None => (0..schema.fields().len()).collect(),
            Some(wanted) => column_indexes_of(operator, &schema, wanted)?,
        };
        // Some columns of a key choose as a filter does; all of them find.
        let given = request.key.as_deref().unwrap_or_default();
        let whole_key = request.order.is_none() && !key.is_empty() && given.len() == key.len();
        let key_values = whole_key.then(|| key_values_of(operator, &schema, &key, given)).transpose()?;
        let filters = if whole_key { &[][..] } else { given };
        let predicate = predicate_text(request.filter.as_deref(), filters, &names(&schema, &key))?;
        let relations = Relations::new(self, self.catalog());
        let plan_one = |text: &String| sql::plan_predicate(&relations.state(), text, Arc::clone(&schema));
        let filter = predicate.clone();
        let predicate = predicate.as_ref().map(plan_one).transpose()?;

        let interrupt = Interrupt::new(CancellationToken::new(), self.closed().clone(), None, self.query_threads());
        let coordinator = self.coordinator();
        let row_schema: SchemaRef = Arc::new(schema.project(&columns)?);
        if let Some(order) = &request.order {
            column_indexes_of(operator, &schema, &order.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())?;
            let part = part.map(|part| format!(":{part}")).unwrap_or_default();
            let name = format!("{}/{operator}{part}", object.name);
            let request = ScanRequest { filter, limit: request.limit, ..ScanRequest::default() };
            let bound = ReadBound::Latest { at_least: self.last_write() };
            return self.ordered((&object.schema, &name), &row_schema, order, &request, bound, &interrupt).await;
        }
        let selection = Selection { schema: Arc::clone(&schema), predicate, columns };
        let limit = request.limit.unwrap_or(usize::MAX);
        let (time, rows) = match key_values {
            Some(values) => {
                let types = values.schema();
                let codec = RowCodec::for_keys(types.fields().iter().map(|field| field.data_type()))?;
                let key = codec.encode(values.columns(), 1)?.row(0).to_vec();
                let (time, rows) = interrupt.guard(coordinator.find_inside(&inside, key)).await?;
                let rows = selection.of(&rows)?;
                let rows = rows.slice(0, limit.min(rows.num_rows()));
                let stream = RecordBatchStreamAdapter::new(Arc::clone(&row_schema), futures::stream::iter([Ok(rows)]));
                (time, Box::pin(stream) as SendableRecordBatchStream)
            }
            None => {
                let (time, reads) = interrupt.guard(coordinator.inspect(std::slice::from_ref(&inside))).await?;
                let read = reads.into_iter().next().ok_or_else(|| Error::internal("a read has not begun"))?;
                let pages = Pages { read, worker: 0, limit };
                let stream = futures::stream::try_unfold((pages, selection), |(mut pages, selection)| async move {
                    let rows = pages.next(&selection).await.map_err(sql::to_datafusion)?;
                    Ok(rows.map(|rows| (rows, (pages, selection))))
                });
                let stream = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&row_schema), stream));
                (time, interrupt.stream(stream))
            }
        };
        Ok(Scan { time, schema: row_schema, rows, cursor: Arc::default() })
    }
}

/// Which rows of a part are wanted, and what of them.
struct Selection {
    schema: SchemaRef,
    predicate: Option<Arc<dyn PhysicalExpr>>,
    columns: Vec<usize>,
}

impl Selection {
    fn of(&self, rows: &RecordBatch) -> Result<RecordBatch> {
        let mut rows = with_schema(rows, &self.schema).map_err(super::error_of)?;
        if let Some(predicate) = &self.predicate {
            let mask = predicate.evaluate(&rows).and_then(|mask| mask.into_array(rows.num_rows()));
            let mask = mask.map_err(super::error_of)?;
            let mask = mask.as_boolean_opt().ok_or_else(|| Error::internal("a predicate is not boolean"))?;
            rows = filter_record_batch(&rows, mask)?;
        }
        Ok(rows.project(&self.columns)?)
    }
}

/// The rows of a read, those of one worker behind those of another, up to a limit.
struct Pages {
    read: OperatorRead,
    worker: usize,
    limit: usize,
}

impl Pages {
    async fn next(&mut self, selection: &Selection) -> Result<Option<RecordBatch>> {
        while self.limit > 0 && self.worker < self.read.workers() {
            let page = self.read.page(self.worker, CHUNK_ROWS_MAX).await?;
            self.worker += usize::from(!page.more);
            let rows = selection.of(&page.rows)?;
            if rows.num_rows() > 0 {
                let rows = rows.slice(0, self.limit.min(rows.num_rows()));
                self.limit -= rows.num_rows();
                return Ok(Some(rows));
            }
        }
        Ok(None)
    }
}

/// The rows that a worker has of a read, for a query.
pub(crate) fn worker_rows(
    read: Arc<OperatorRead>,
    worker: usize,
    schema: SchemaRef,
    columns: Vec<usize>,
) -> SendableRecordBatchStream {
    let given = Arc::clone(&schema);
    let state = (read, true);
    let pages = futures::stream::try_unfold(state, move |(read, more)| {
        let (schema, columns) = (Arc::clone(&schema), columns.clone());
        async move {
            if !more {
                return Ok(None);
            }
            let page = read.page(worker, CHUNK_ROWS_MAX).await.map_err(sql::to_datafusion)?;
            let rows = page.rows.project(&columns)?;
            Ok(Some((with_schema(&rows, &schema)?, (read, page.more))))
        }
    });
    Box::pin(RecordBatchStreamAdapter::new(given, pages))
}

impl fmt::Debug for OperatorRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorRead").field("inside", self.inside()).finish_non_exhaustive()
    }
}

/// The filter and some columns of a key as one predicate.
fn predicate_text(filter: Option<&str>, given: &[super::api::GivenKey], key: &[String]) -> Result<Option<String>> {
    let mut terms: Vec<String> = filter.iter().map(|filter| format!("({filter}\n)")).collect();
    for (name, value) in given {
        let name = match (name, key) {
            (Some(name), _) if key.contains(name) => name,
            (None, [only]) => only,
            _ => {
                let hint = match key {
                    [] => "It has no key: use a filter.".to_owned(),
                    key => format!("Its key is ({}).", key.join(", ")),
                };
                return Err(
                    Error::new(SqlState::InvalidParameterValue, "the key is not that of the operator").hint(hint)
                );
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
