//! UPDATE, DELETE, TRUNCATE: read rows, retract exactly those, write what they become.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use sqlparser::ast::{self, Assignment, AssignmentTarget, Expr, FromTable, SelectItem, TableWithJoins};

use crate::engine::api::{Answer, Tag};
use crate::engine::database::RowTables;
use crate::engine::interrupt::Interrupt;
use crate::engine::session::Session;
use crate::sql::Name;
use crate::types::{Chunk, Error, Result, SqlState};

use super::assign::{coerce, table_rows, typed};
use super::conflict::encoder_of_all;
use super::evaluate::{Evaluator, column_item, named_item, position, select, select_from};
use super::insert::{default_of, is_default};
use super::keys::{Keys, duplicate, existing, first_rows};
use super::statement::{self, Changes, Target, answer, column_index, evaluator, from_clause, returned, turns, write};

/// `UPDATE`.
pub(crate) async fn update(session: &mut Session, update: &ast::Update, interrupt: &Interrupt) -> Result<Answer> {
    let catalog = session.engine().catalog();
    let (target, alias) = from_clause(session.engine(), &catalog, &update.table, "UPDATE")?;
    if update.from.is_some() {
        return Err(Error::unsupported("UPDATE ... FROM is not supported yet")
            .hint("Use a subquery: SET x = (SELECT ...) WHERE k IN (SELECT ...)."));
    }
    if update.or.is_some() || !update.order_by.is_empty() || update.limit.is_some() || update.output.is_some() {
        return Err(Error::unsupported("this form of UPDATE is not supported")
            .hint("Write UPDATE t SET column = value [, ...] [WHERE ...] [RETURNING ...]."));
    }
    let assigned = assigned(&target, &update.assignments)?;

    let turns = turns(session, [&target], interrupt).await?;
    let evaluator = evaluator(session, &catalog, &target, interrupt);
    let mut items = all_columns(&target);
    items.extend(
        assigned.iter().enumerate().map(|(at, (_, expr))| named_item(expr.clone(), &format!("__clink_new_{at}"))),
    );
    let query = select_from(items, update.table.clone(), update.selection.clone())?;
    let read = evaluator.query(query, RowTables::new()).await?.concat()?;
    let old = stored_rows(&target, &read)?;
    let mut columns = old.columns().to_vec();
    for ((index, expr), values) in assigned.iter().zip(read.columns().iter().skip(target.table.columns.len())) {
        if let (Some(cell), Some(column)) = (columns.get_mut(*index), target.table.columns.get(*index)) {
            *cell = coerce(values, column, false).map_err(|error| error.position_or(position(expr)))?;
        }
    }
    let new = table_rows(&target.table, &target.name, columns)?;
    if assigned.iter().any(|(index, _)| target.table.key.contains(index)) {
        check_keys(&evaluator, &target, &old, &new).await?;
    }

    let count = u64::try_from(new.num_rows()).unwrap_or(u64::MAX);
    let (rows, diffs) = diffs(&encoder_of_all(&old)?, &old, &new)?;
    let returned = returned(&evaluator, &target, alias.as_deref(), update.returning.as_ref(), new).await?;
    let chunks = Chunk::changes(&rows, &diffs);
    write(session, vec![Changes { target: &target, chunks }], turns, interrupt).await?;
    Ok(answer(Tag::Update(count), returned))
}

/// The table that a DELETE names.
///
/// # Errors
/// 0A000 when it names several.
pub(crate) fn deleted_from(delete: &ast::Delete) -> Result<&TableWithJoins> {
    let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
    match (from.as_slice(), delete.tables.is_empty()) {
        ([table], true) => Ok(table),
        _ => {
            Err(Error::unsupported("DELETE from more than one table is not supported")
                .hint("Write one DELETE for each."))
        }
    }
}

/// `DELETE`.
pub(crate) async fn delete(session: &mut Session, delete: &ast::Delete, interrupt: &Interrupt) -> Result<Answer> {
    let catalog = session.engine().catalog();
    let from = deleted_from(delete)?;
    let (target, alias) = from_clause(session.engine(), &catalog, from, "DELETE")?;
    if delete.using.is_some() {
        return Err(Error::unsupported("DELETE ... USING is not supported yet")
            .hint("Use a subquery: WHERE k IN (SELECT ...)."));
    }
    if !delete.order_by.is_empty() || delete.limit.is_some() || delete.output.is_some() {
        return Err(Error::unsupported("this form of DELETE is not supported")
            .hint("Write DELETE FROM t [WHERE ...] [RETURNING ...]."));
    }
    let turns = turns(session, [&target], interrupt).await?;
    let evaluator = evaluator(session, &catalog, &target, interrupt);
    let query = select_from(all_columns(&target), from.clone(), delete.selection.clone())?;
    let read = evaluator.query(query, RowTables::new()).await?.concat()?;
    let old = stored_rows(&target, &read)?;
    let count = u64::try_from(old.num_rows()).unwrap_or(u64::MAX);
    let chunks = retractions(&old);
    let returned = returned(&evaluator, &target, alias.as_deref(), delete.returning.as_ref(), old).await?;
    write(session, vec![Changes { target: &target, chunks }], turns, interrupt).await?;
    Ok(answer(Tag::Delete(count), returned))
}

/// `TRUNCATE`: all tables at one time.
pub(crate) async fn truncate(session: &mut Session, names: &[Name], interrupt: &Interrupt) -> Result<Answer> {
    let catalog = session.engine().catalog();
    let mut targets: Vec<Target> = Vec::with_capacity(names.len());
    for name in names {
        let target = statement::target(session.engine(), &catalog, name, "TRUNCATE")?;
        if !targets.iter().any(|other| other.id == target.id) {
            targets.push(target);
        }
    }
    // In one order for all statements, so that two of them never wait for each other.
    targets.sort_unstable_by_key(|target| target.id);
    let turns = turns(session, &targets, interrupt).await?;
    let mut changes = Vec::with_capacity(targets.len());
    for target in &targets {
        let evaluator = evaluator(session, &catalog, target, interrupt);
        let schema = catalog.get(target.id).map_or("", |object| object.schema.as_str());
        let from = format!("{}.{}", super::evaluate::quoted_text(schema), super::evaluate::quoted_text(&target.name));
        let read = evaluator.query(select(all_columns(target), &from, None)?, RowTables::new()).await?.concat()?;
        changes.push(Changes { target, chunks: retractions(&stored_rows(target, &read)?) });
    }
    write(session, changes, turns, interrupt).await?;
    Ok(Answer::Done { tag: Tag::Plain("TRUNCATE TABLE"), notices: Vec::new() })
}

fn all_columns(target: &Target) -> Vec<SelectItem> {
    target.table.columns.iter().map(|column| column_item(&column.name)).collect()
}

/// The first columns of a query as rows of the table, exactly as they are stored.
fn stored_rows(target: &Target, read: &RecordBatch) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = read.columns().iter().take(target.table.columns.len()).cloned().collect();
    Ok(RecordBatch::try_new(Arc::clone(&target.table.row_schema), columns)?)
}

fn retractions(rows: &RecordBatch) -> Vec<Chunk> {
    Chunk::changes(rows, &Int64Array::from_value(-1, rows.num_rows()))
}

/// The columns that a statement sets and to what, each once.
///
/// # Errors
/// 42703, 42601 when one is set twice.
pub(crate) fn assigned(target: &Target, assignments: &[Assignment]) -> Result<Vec<(usize, Expr)>> {
    let mut assigned: Vec<(usize, Expr)> = Vec::with_capacity(assignments.len());
    let mut set = |name: &ast::ObjectName, value: &Expr| -> Result<()> {
        let index = column_index(target, name)?;
        if assigned.iter().any(|(other, _)| *other == index) {
            return Err(Error::new(SqlState::SyntaxError, format!("multiple assignments to same column \"{name}\""))
                .hint("Set it once.")
                .position_or(position(name)));
        }
        let Some(column) = target.table.columns.get(index) else {
            return Ok(());
        };
        let value = if is_default(value) { default_of(column) } else { value.clone() };
        assigned.push((index, typed(&value, column)?));
        Ok(())
    };
    for assignment in assignments {
        match (&assignment.target, &assignment.value) {
            (AssignmentTarget::ColumnName(name), value) => set(name, value)?,
            (AssignmentTarget::Tuple(names), Expr::Tuple(values)) if names.len() == values.len() => {
                for (name, value) in names.iter().zip(values) {
                    set(name, value)?;
                }
            }
            (AssignmentTarget::Tuple(names), _) => {
                return Err(Error::unsupported("SET (columns) = (subquery) is not supported yet")
                    .hint("Set each column by itself: SET a = ..., b = ...")
                    .position_or(names.first().and_then(position)));
            }
        }
    }
    Ok(assigned)
}

/// Rows with diffs that turn `old` into `new`, row by row; rows that stay the same are left out.
///
/// # Errors
/// When a column outgrows its offsets.
pub(crate) fn diffs(whole_rows: &Keys, old: &RecordBatch, new: &RecordBatch) -> Result<(RecordBatch, Int64Array)> {
    let (before, after) = (whole_rows.encode_exactly(old)?, whole_rows.encode_exactly(new)?);
    let changed: UInt64Array = before
        .iter()
        .zip(after.iter())
        .enumerate()
        .filter(|(_, (before, after))| before != after)
        .map(|(row, _)| Some(row as u64))
        .collect();
    let rows = concat_batches(&old.schema(), [&take_record_batch(old, &changed)?, &take_record_batch(new, &changed)?])?;
    let count = changed.len();
    let diffs = Int64Array::from_iter_values((0..2 * count).map(|row| if row < count { -1 } else { 1 }));
    Ok((rows, diffs))
}

/// Checks that no updated key is one of another row.
async fn check_keys(evaluator: &Evaluator, target: &Target, old: &RecordBatch, new: &RecordBatch) -> Result<()> {
    let key = &target.table.key;
    let encoder = Keys::new(&new.schema(), key)?;
    let (old_keys, new_keys) = (encoder.encode(old)?, encoder.encode(new)?);
    let first = first_rows(&new_keys);
    if let Some((row, _)) =
        new_keys.iter().enumerate().find(|(row, key)| first.get(key).is_some_and(|first| first != row))
    {
        return Err(duplicate(&target.name, new, key, row));
    }
    let leaving: HashSet<_> = old_keys.iter().collect();
    let coordinator = evaluator.engine.coordinator();
    let lookup = async {
        let pin = coordinator.pin(&[target.id], evaluator.bound()).await?;
        let there = existing(&pin, target.id, new, key).await?;
        evaluator.with_pending(target.id, there, new, key)
    };
    let there = evaluator.interrupt.guard(lookup).await?;
    let there_keys = encoder.encode(&there)?;
    match there_keys.iter().enumerate().find(|(_, key)| !leaving.contains(key)) {
        Some((row, _)) => Err(duplicate(&target.name, &there, key, row)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};

    #[test]
    fn only_rows_that_change_are_written() {
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]));
        let batch = |values: Vec<i64>| {
            RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from(values)) as ArrayRef]).unwrap()
        };
        let (old, new) = (batch(vec![1, 2, 2]), batch(vec![1, 3, 3]));
        let (rows, diffs) = diffs(&encoder_of_all(&old).unwrap(), &old, &new).unwrap();
        assert_eq!(rows.column(0).as_primitive::<Int64Type>().values(), &[2, 2, 3, 3]);
        assert_eq!(diffs.values(), &[-1, -1, 1, 1]);
    }
}
