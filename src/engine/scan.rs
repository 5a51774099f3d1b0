//! Scans for HTTP: rows of one relation in key order, with cursors.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use tokio_util::sync::CancellationToken;

use crate::catalog::{Definition, Object, TableColumn, near_miss};
use crate::sql::{self, Name};
use crate::types::{CHUNK_ROWS_MAX, Error, Result, SqlState};

use super::api::{GivenKey, Scan, ScanRequest, ViewInfo};
use super::coordinator::{PageRequest, Pin, ReadBound};
use super::cursor::{Cursor, Place};
use super::database::Engine;
use super::ddl::no_object;
use super::dml::assign::coerce;
use super::interrupt::Interrupt;
use super::lookup;
use super::read;
use super::relations::{Relations, broken};

impl Engine {
    /// Reads rows of a view or table (`name` or `schema.name`, as stored: not folded) in key order.
    /// The time is not before the last write that was answered, unless one is asked for.
    ///
    /// # Errors
    /// 42P01 and 42809 for the relation, 42703 for columns, 22023 for cursor and key, those of the
    /// filter, and those of [`super::coordinator::Coordinator::pin`].
    pub async fn scan(self: &Arc<Self>, name: &str, request: ScanRequest) -> Result<Scan> {
        let object = self.scanned(name)?;
        let Some(schema) = object.row_schema() else {
            return Err(Error::internal("a relation without columns"));
        };
        let columns = match &request.columns {
            None => (0..schema.fields().len()).collect(),
            Some(names) => column_indexes(&object, &schema, names)?,
        };
        let relations = Relations::new(self, self.catalog());
        let predicate = match &request.filter {
            None => None,
            Some(filter) => Some(sql::plan_predicate(&relations.state(), filter, Arc::clone(&schema))?),
        };
        let keys = match &request.key {
            None => None,
            Some(key) => Some(self.key_rows(&object, &schema, key)?),
        };
        let workers = self.coordinator().workers();
        let cursor = match &request.cursor {
            None => Cursor { relation: object.id, skip: 0, place: start_of(request.worker.unwrap_or(0), workers) },
            Some(text) => Cursor::decode(text, object.id, workers)?,
        };

        let bound = match request.as_of {
            Some(time) => ReadBound::At(time),
            None => ReadBound::Latest { at_least: self.last_write() },
        };
        let interrupt = Interrupt::new(CancellationToken::new(), self.closed().clone(), None, self.query_threads());
        if let Some(order) = &request.order {
            column_indexes(&object, &schema, &order.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>())?;
            let from = (object.schema.as_str(), object.name.as_str());
            return self.ordered(from, &schema.project(&columns)?, order, &request, bound, &interrupt).await;
        }
        let pin = Arc::new(interrupt.guard(self.coordinator().pin(&[object.id], bound)).await?);
        let time = pin.time();
        let row_schema: SchemaRef = Arc::new(schema.project(&columns)?);
        let narrow = match predicate.as_ref().filter(|_| !object.indexes.is_empty()) {
            Some(predicate) => {
                let equal = lookup::equalities(predicate, &schema);
                lookup::narrow(&schema, &object.index_columns(), &equal).map_err(super::error_of)?
            }
            None => None,
        };
        let rows_max = CHUNK_ROWS_MAX;
        let page = PageRequest { relation: object.id, projection: columns, predicate, rows_max, narrow };
        let next = Arc::new(Mutex::new(None));

        if let Some(keys) = keys {
            let rows = interrupt.guard(pin.lookup(&page, &keys, request.worker)).await?;
            let rows = super::scan_exec::with_schema(&rows, &row_schema).map_err(super::error_of)?;
            let stream = futures::stream::iter([Ok(rows)]);
            let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&row_schema), stream));
            return Ok(Scan { time, schema: row_schema, rows, cursor: next });
        }

        let end = request.worker.map_or(workers, |worker| worker + 1);
        let pages = Pages { pin, page, end, remaining: request.limit, at: Some(cursor) };
        if request.cursor_first {
            let mut ahead = pages.clone();
            let end = async {
                while ahead.next().await?.is_some() {}
                Ok(ahead.at)
            };
            let end = interrupt.guard(end).await?;
            set(&next, end.as_ref());
        }
        let end = Arc::clone(&next);
        let schema = Arc::clone(&row_schema);
        let stream = futures::stream::try_unfold(pages, move |mut pages| {
            let (end, schema) = (Arc::clone(&end), Arc::clone(&schema));
            async move {
                match pages.next().await.map_err(sql::to_datafusion)? {
                    Some(rows) => Ok(Some((super::scan_exec::with_schema(&rows, &schema)?, pages))),
                    None => {
                        set(&end, pages.at.as_ref());
                        Ok(None)
                    }
                }
            }
        });
        let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&row_schema), stream));
        Ok(Scan { time, schema: row_schema, rows: interrupt.stream(rows), cursor: next })
    }

    /// Rows of a relation, by schema and name, in an order of the reader's: a query.
    pub(super) async fn ordered(
        self: &Arc<Self>,
        (schema, name): (&str, &str),
        columns: &Schema,
        order: &[(String, bool)],
        request: &ScanRequest,
        bound: ReadBound,
        interrupt: &Interrupt,
    ) -> Result<Scan> {
        let quoted = sql::quoted_name;
        let wanted: Vec<String> = columns.fields().iter().map(|field| quoted(field.name())).collect();
        let order: Vec<String> =
            order.iter().map(|(name, desc)| quoted(name) + if *desc { " DESC" } else { "" }).collect();
        // The filter was read as an expression before; a comment at its end goes no further.
        let filter = request.filter.as_ref().map(|filter| format!(" WHERE ({filter}\n)")).unwrap_or_default();
        let limit = request.limit.map(|limit| format!(" LIMIT {limit}")).unwrap_or_default();
        let text = format!(
            "SELECT {} FROM {}.{}{filter} ORDER BY {}{limit}",
            wanted.join(", "),
            quoted(schema),
            quoted(name),
            order.join(", ")
        );
        let query = sql::parse_query(&text)?;
        let opened = interrupt.run(read::open(Arc::clone(self), Relations::new(self, self.catalog()), query, bound));
        let opened = opened.await?;
        let time = opened.pin.as_ref().map(|pin| pin.time()).unwrap_or_else(|| self.coordinator().last_time());
        let schema = Arc::clone(&opened.schema);
        Ok(Scan { time, schema, rows: interrupt.stream(opened.rows), cursor: Arc::default() })
    }

    fn scanned(&self, name: &str) -> Result<Arc<Object>> {
        self.kept_object(&self.name_of(name)).map_err(Error::without_position)
    }

    /// What a relation is whose rows are kept (`name` or `schema.name`, as stored: not folded).
    ///
    /// # Errors
    /// 42P01, 42809.
    pub fn kept_info(&self, name: &str) -> Result<ViewInfo> {
        let object = self.scanned(name)?;
        let columns = super::database::columns(&object);
        let key = object.key().iter().filter_map(|index| columns.get(*index)).map(|c| c.name.clone()).collect();
        Ok(ViewInfo { id: object.id, name: object.name.clone(), schema: object.schema.clone(), columns, key })
    }

    /// The name that a text such as `schema.name` means; a relation that is called so comes first.
    pub(super) fn name_of(&self, text: &str) -> Name {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) if self.catalog().find(None, text).is_none() => (Some(schema.to_owned()), name),
            _ => (None, text),
        };
        Name { schema, name: name.to_owned(), position: 1 }
    }

    /// A relation whose rows are kept.
    ///
    /// # Errors
    /// 42P01, 42809.
    pub(super) fn kept_object(&self, name: &Name) -> Result<Arc<Object>> {
        let catalog = self.catalog();
        let short = &name.name;
        let Some(object) = catalog.find(name.schema.as_deref(), short) else {
            return Err(no_object(&catalog, "relation", name));
        };
        let object = match &object.definition {
            Definition::Broken(reason) => Err(broken(object, reason)),
            Definition::View(_) => {
                Err(Error::new(SqlState::WrongObjectType, format!("\"{short}\" is a plain view, which keeps no rows"))
                    .hint("SELECT from it, or make it a materialized view."))
            }
            Definition::Function(_) => Err(Error::internal("a function has the name of a relation")),
            Definition::Sink(_) => {
                Err(Error::new(SqlState::WrongObjectType, format!("\"{short}\" is a sink: its rows are outside"))
                    .hint("Read the relation that it writes out."))
            }
            Definition::Table(table) if table.connector.is_some() && table.key.is_empty() => Err(Error::new(
                SqlState::WrongObjectType,
                format!("\"{short}\" is a table with a connector, which keeps no rows"),
            )
            .hint("SELECT from it, make a materialized view of it, or give it a PRIMARY KEY: then it keeps them.")),
            Definition::Errors(_) if self.coordinator().status(object.id).is_none() => Err(Error::new(
                SqlState::WrongObjectType,
                format!("\"{short}\" is kept from the first view on its table on"),
            )
            .hint("SELECT from it, or make a materialized view of its table.")),
            Definition::Table(_)
            | Definition::MaterializedView(_)
            | Definition::Errors(_)
            | Definition::RowErrors(_)
            | Definition::LateRows(_) => Ok(Arc::clone(object)),
            Definition::Late(_) => Err(Error::new(
                SqlState::WrongObjectType,
                format!("\"{short}\" is put together from the late rows of views"),
            )
            .hint("SELECT from it, or read the late rows of one view: <view>_late.")),
        };
        object.map_err(|error| error.position_or(Some(name.position)))
    }

    /// The key that a request names, in the relation's key columns and types.
    fn key_rows(&self, object: &Object, schema: &Schema, given: &[GivenKey]) -> Result<RecordBatch> {
        if object.key().is_empty() {
            let message = format!("\"{}\" has no key: only the whole row identifies a row", object.name);
            return Err(Error::new(SqlState::InvalidParameterValue, message).hint("Use scan with a filter."));
        }
        key_values_of(&object.name, schema, object.key(), given)
    }
}

/// One row with the values of some key columns of a relation, in their order and types.
///
/// # Errors
/// 22023 when they are not those of the key; those of a text that is no value of its column.
pub(super) fn key_values_of(relation: &str, schema: &Schema, key: &[usize], given: &[GivenKey]) -> Result<RecordBatch> {
    let invalid = |message: String, hint: String| Error::new(SqlState::InvalidParameterValue, message).hint(hint);
    let fields: Vec<&Field> = key.iter().map(|index| schema.field(*index)).collect();
    let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    for (name, _) in given {
        match name {
            Some(name) if !names.contains(&name.as_str()) => {
                return Err(invalid(
                    format!("\"{name}\" is not a key column of \"{}\"", relation),
                    format!("Its key is ({}).", names.join(", ")),
                ));
            }
            None if fields.len() > 1 => {
                return Err(invalid(
                    format!("the key of \"{}\" has {} columns", relation, fields.len()),
                    format!("Name each: {}.", names.join(", ")),
                ));
            }
            _ => {}
        }
    }
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(fields.len());
    for field in &fields {
        let mut values =
            given.iter().filter(|(name, _)| name.as_deref().is_none_or(|name| name == field.name().as_str()));
        let (Some((_, value)), None) = (values.next(), values.next()) else {
            return Err(invalid(
                format!("key column \"{}\" needs one value", field.name()),
                format!("Give one value for each of: {}.", names.join(", ")),
            ));
        };
        let column = TableColumn {
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            sql_type: sql::sql_name(field.data_type()),
            length_max: None,
            nullable: true,
            default: None,
        };
        let text: ArrayRef = Arc::new(StringArray::from(vec![value.as_deref()]));
        columns.push(coerce(&text, &column, true)?);
    }
    let fields: Vec<Field> = fields.into_iter().cloned().collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

fn column_indexes(object: &Object, schema: &Schema, names: &[String]) -> Result<Vec<usize>> {
    column_indexes_of(&object.name, schema, names)
}

/// Where columns are among those of a relation.
///
/// # Errors
/// 42703 with the near miss.
pub(super) fn column_indexes_of(relation: &str, schema: &Schema, names: &[String]) -> Result<Vec<usize>> {
    if names.is_empty() {
        return Err(Error::new(SqlState::InvalidParameterValue, "no columns are asked for")
            .hint("Leave the list out for all columns."));
    }
    let known = || schema.fields().iter().map(|field| field.name().as_str());
    names
        .iter()
        .map(|name| {
            schema.index_of(name).map_err(|_| {
                let hint = match near_miss(name, known()) {
                    Some(near) => format!("Perhaps you meant \"{near}\"."),
                    None => format!("Its columns are {}.", known().collect::<Vec<_>>().join(", ")),
                };
                Error::new(
                    SqlState::UndefinedColumn,
                    format!("column \"{name}\" of relation \"{relation}\" does not exist"),
                )
                .hint(hint)
            })
        })
        .collect()
}

fn start_of(worker: usize, workers: usize) -> Place {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Place::Start { worker: number(worker), workers: number(workers) }
}

fn set(next: &Mutex<Option<String>>, at: Option<&Cursor>) {
    *next.lock().unwrap_or_else(PoisonError::into_inner) = at.map(Cursor::encode);
}

/// Pages of all workers, one after the other, up to a limit.
#[derive(Clone)]
struct Pages {
    pin: Arc<Pin>,
    page: PageRequest,
    /// One behind the last worker whose rows are wanted.
    end: usize,
    /// Rows that may still be given.
    remaining: Option<usize>,
    /// The next place; `None` when nothing follows.
    at: Option<Cursor>,
}

impl Pages {
    /// The next rows; `None` at the end or at the limit. Then `at` is where a later scan goes on.
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.remaining == Some(0) {
            return Ok(None);
        }
        while let Some(cursor) = self.at.clone() {
            let (worker, start) = match &cursor.place {
                Place::Start { worker, .. } => (*worker as usize, None),
                Place::After(bytes) => (self.pin.worker_of(bytes)?, Some(bytes.clone())),
            };
            let skip = usize::try_from(cursor.skip).unwrap_or(usize::MAX);
            let mut rows_max = match self.remaining {
                // A filter lets fewer rows through than are looked at.
                Some(remaining) if self.page.predicate.is_none() => {
                    remaining.saturating_add(skip).clamp(1, CHUNK_ROWS_MAX)
                }
                _ => CHUNK_ROWS_MAX,
            };
            let (page, given) = loop {
                let request = PageRequest { rows_max, ..self.page.clone() };
                let page = self.pin.page(&request, worker, start.clone()).await?;
                let given = page.rows.num_rows().saturating_sub(skip);
                // A page that goes beyond the limit has no cursor in its middle: take a smaller one.
                if self.remaining.is_some_and(|remaining| given > remaining) && rows_max > 1 {
                    rows_max /= 2;
                    continue;
                }
                break (page, given);
            };
            let take = self.remaining.map_or(given, |remaining| remaining.min(given));
            let rows = page.rows.slice(skip.min(page.rows.num_rows()), take);
            self.at = if take < given {
                // One row that is there more often than the limit lets through.
                Some(Cursor { skip: cursor.skip.saturating_add(take as u64), ..cursor })
            } else {
                let place = match page.next {
                    Some(next) => Some(Place::After(next)),
                    None if worker + 1 < self.end => Some(start_of(worker + 1, self.end)),
                    None => None,
                };
                place.map(|place| Cursor { relation: cursor.relation, skip: 0, place })
            };
            if let Some(remaining) = &mut self.remaining {
                *remaining -= take;
            }
            if rows.num_rows() > 0 {
                return Ok(Some(rows));
            }
        }
        Ok(None)
    }
}
