//! COPY: rows out of a query, rows into a table.
//!
//! What comes in is kept until the client says that it is all, and then written at one time like any
//! other statement. The wire gives columns of texts; here they become values of the table.

use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, RecordBatch, StringArray};
use arrow::compute::concat;
use sqlparser::ast;

use crate::sql::{self, Copy, CopyDirection, CopyOptions, CopySubject, StatementKind};
use crate::types::{Chunk, Error, Limit, Limits, Result, SqlState, TimeZone};

use super::api::{Answer, Tag};
use super::dml::assign::{coerce_literals, table_rows};
use super::dml::conflict::{self, OnKey};
use super::dml::insert::with_defaults;
use super::dml::statement::{self, Changes, Target, column_index, evaluator, turns, write};
use super::interrupt::Interrupt;
use super::session::Session;

/// Rows on their way into a table.
pub struct CopyIn {
    target: Target,
    /// Columns of the table, in the order in which the client gives them.
    into: Vec<usize>,
    options: CopyOptions,
    zone: TimeZone,
    parts: Vec<Vec<ArrayRef>>,
    rows: usize,
    bytes: usize,
    limits: Arc<Limits>,
}

impl CopyIn {
    /// How rows are written.
    pub fn options(&self) -> &CopyOptions {
        &self.options
    }

    /// What a client may take.
    pub fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    /// The name of the table.
    pub fn table(&self) -> &str {
        &self.target.name
    }

    /// Names and types of the columns, in the order in which they come.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &arrow::datatypes::DataType)> {
        self.into
            .iter()
            .filter_map(|index| self.target.table.columns.get(*index))
            .map(|column| (column.name.as_str(), &column.data_type))
    }

    /// Takes rows, a text for each value. `line` gives the line that a row came from.
    ///
    /// # Errors
    /// 22P02 and others for a text that is no value of its column, with line and column in the
    /// detail; 54000 when it is too much.
    pub fn push(&mut self, texts: &[StringArray], line: impl Fn(usize) -> u64) -> Result<()> {
        let rows = texts.first().map_or(0, |column| column.len());
        let mut part = Vec::with_capacity(texts.len());
        for (index, values) in self.into.iter().zip(texts) {
            let Some(column) = self.target.table.columns.get(*index) else { continue };
            let values: ArrayRef = Arc::new(values.clone());
            let coerced = coerce_literals(&values, column, &self.zone).map_err(|error| {
                // Which one it was is only looked for when one of them is bad.
                let bad =
                    (0..values.len()).find(|row| coerce_literals(&values.slice(*row, 1), column, &self.zone).is_err());
                let at = line(bad.unwrap_or(0));
                let context = format!("COPY {}, line {at}, column {}.", self.target.name, column.name);
                match error.detail_text() {
                    Some(detail) => error.clone().detail(format!("{context} {detail}")),
                    None => error.detail(context),
                }
            })?;
            if !column.nullable && coerced.null_count() > 0 {
                let bad = (0..coerced.len()).find(|row| coerced.is_null(*row)).unwrap_or(0);
                return Err(Error::new(
                    SqlState::NotNullViolation,
                    format!(
                        "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                        column.name, self.target.name
                    ),
                )
                .detail(format!("COPY {}, line {}.", self.target.name, line(bad)))
                .hint("Give a value, or another NULL option for what stands there."));
            }
            self.bytes += coerced.get_array_memory_size();
            part.push(coerced);
        }
        self.rows += rows;
        self.parts.push(part);
        let most = self.limits.size(Limit::CopyBytes);
        if self.bytes > most {
            let message = format!("the rows of one COPY may take at most {most} bytes");
            return Err(self.limits.exceeded(Limit::CopyBytes, message).hint("Copy in several parts."));
        }
        Ok(())
    }
}

/// `COPY`.
///
/// # Errors
/// Those of the query; 42P01, 42703, 42809.
pub(crate) async fn copy(session: &mut Session, copy: &Copy, interrupt: &Interrupt) -> Result<Answer> {
    match (copy.direction, &copy.subject) {
        (CopyDirection::Out, subject) => {
            let answer = match subject {
                CopySubject::Query(query) => session.query(query, interrupt).await?,
                CopySubject::Table { name, columns } => {
                    session.query(&*sql::table_query(name, columns.as_ref())?, interrupt).await?
                }
                CopySubject::Subscribe(subscribe) => session.subscribe(subscribe, interrupt).await?,
            };
            match answer {
                Answer::Rows { schema, rows, .. } => {
                    check_names(copy.options.force_quote.iter().flatten(), |name| {
                        schema.field_with_name(name).is_ok()
                    })?;
                    Ok(Answer::CopyOut { schema, rows, options: copy.options.clone() })
                }
                _ => Err(Error::internal("a query without rows")),
            }
        }
        (CopyDirection::In, CopySubject::Table { name, columns }) => {
            let catalog = session.engine().catalog();
            let target = statement::target(session.engine(), &catalog, name, "COPY")?;
            let into = match columns {
                None => (0..target.table.columns.len()).collect(),
                Some(columns) => columns
                    .iter()
                    .map(|(column, at)| {
                        let name = ast::ObjectName::from(ast::Ident::with_quote('"', column.clone()));
                        column_index(&target, &name).map_err(|error| error.position(*at))
                    })
                    .collect::<Result<Vec<_>>>()?,
            };
            let named = |name: &str| {
                into.iter().any(|index| target.table.columns.get(*index).is_some_and(|column| column.name == name))
            };
            check_names(copy.options.force_null.iter().chain(&copy.options.force_not_null), named)?;
            let options = copy.options.clone();
            Ok(Answer::CopyIn(Box::new(CopyIn {
                target,
                into,
                options,
                zone: session.time_zone(),
                parts: Vec::new(),
                rows: 0,
                bytes: 0,
                limits: Arc::clone(session.limits()),
            })))
        }
        (CopyDirection::In, CopySubject::Query(_) | CopySubject::Subscribe(_)) => {
            Err(Error::internal("COPY of a query FROM"))
        }
    }
}

fn check_names<'a>(names: impl IntoIterator<Item = &'a String>, known: impl Fn(&str) -> bool) -> Result<()> {
    for name in names {
        if !known(name) {
            return Err(Error::new(SqlState::UndefinedColumn, format!("column \"{name}\" is not copied"))
                .hint("Name columns that COPY writes or reads."));
        }
    }
    Ok(())
}

/// Writes the rows that have come.
///
/// # Errors
/// 23505 and others of INSERT.
pub(crate) async fn finish(session: &mut Session, copy: CopyIn, interrupt: &Interrupt) -> Result<Answer> {
    let CopyIn { target, into, parts, rows, .. } = copy;
    let catalog = session.engine().catalog();
    let count = u64::try_from(rows).unwrap_or(u64::MAX);
    if rows == 0 {
        return Ok(Answer::Done { tag: Tag::CopyIn(0), notices: Vec::new() });
    }
    let keyed = !target.table.key.is_empty();
    let turns = if keyed { turns(session, [&target], interrupt).await? } else { Vec::new() };
    let evaluator = evaluator(session, &catalog, &target, interrupt);
    let mut columns: Vec<Option<ArrayRef>> = vec![None; target.table.columns.len()];
    for (at, index) in into.iter().enumerate() {
        let arrays: Vec<&dyn arrow::array::Array> =
            parts.iter().filter_map(|part| part.get(at)).map(|array| array.as_ref()).collect();
        if let Some(column) = columns.get_mut(*index) {
            *column = Some(concat(&arrays)?);
        }
    }
    drop(parts);
    let columns = with_defaults(&evaluator, &target.table, columns, rows).await?;
    let proposed: RecordBatch = table_rows(&target.table, &target.name, columns)?;
    let outcome = if keyed {
        conflict::resolve(&evaluator, &target, None, proposed, &OnKey::Fail).await?
    } else {
        conflict::Outcome::all_new(proposed)
    };
    let chunks = Chunk::inserts(&outcome.inserted);
    write(session, vec![Changes { target: &target, chunks }], turns, interrupt).await?;
    Ok(Answer::Done { tag: Tag::CopyIn(count), notices: Vec::new() })
}

/// True for statements that bring rows in.
pub(crate) fn writes(kind: &StatementKind) -> bool {
    matches!(kind, StatementKind::Copy(copy) if copy.direction == CopyDirection::In)
}
