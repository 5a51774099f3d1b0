//! INSERT into a table with a primary key: what happens to keys that are there already.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, UInt64Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use sqlparser::ast::{Assignment, ConflictTarget, Expr, OnConflict, OnConflictAction};

use crate::engine::database::RowTables;
use crate::engine::relations::ROWS_SCHEMA;
use crate::sql::folded;
use crate::types::{Error, Result, SqlState};

use super::assign::{coerce, table_rows};
use super::change::{assigned, diffs};
use super::evaluate::{Evaluator, named_item, position, quoted_text, rows_table, select};
use super::keys::{Keys, duplicate, existing, first_rows};
use super::statement::{Target, object_name};

/// Pairs a row that is there with the row that was proposed.
const ROW: &str = "__clink_row";

/// What to do with a key that is there already.
pub(crate) enum OnKey<'a> {
    /// Fail with 23505.
    Fail,
    /// Leave the row that is there.
    Nothing,
    /// Change the row that is there.
    Update {
        /// What to set.
        assignments: &'a [Assignment],
        /// Which rows.
        selection: Option<&'a Expr>,
    },
}

/// What an INSERT does to its table.
pub(crate) struct Outcome {
    /// Rows that were not there.
    pub(crate) inserted: RecordBatch,
    /// Rows that were changed, as they are now.
    updated: Option<RecordBatch>,
    /// Rows with their diffs: what `updated` does.
    pub(crate) changed: Option<(RecordBatch, Int64Array)>,
}

impl Outcome {
    /// Nothing was there.
    pub(crate) fn all_new(rows: RecordBatch) -> Outcome {
        Outcome { inserted: rows, updated: None, changed: None }
    }

    /// The rows that the statement made: counted and returned.
    ///
    /// # Errors
    /// When a column outgrows its offsets.
    pub(crate) fn result(&self) -> Result<RecordBatch> {
        match &self.updated {
            None => Ok(self.inserted.clone()),
            Some(updated) => Ok(concat_batches(&self.inserted.schema(), [&self.inserted, updated])?),
        }
    }
}

/// Reads ON CONFLICT.
///
/// # Errors
/// 42P10 when the columns are not the primary key's; 42704 for an unknown constraint.
pub(crate) fn on_key<'a>(target: &Target, on: &'a OnConflict) -> Result<OnKey<'a>> {
    let key_names: Vec<&str> =
        target.table.key.iter().filter_map(|index| target.table.columns.get(*index)).map(|c| c.name.as_str()).collect();
    match &on.conflict_target {
        None => {
            if matches!(on.action, OnConflictAction::DoUpdate(_)) {
                return Err(Error::new(
                    SqlState::SyntaxError,
                    "ON CONFLICT DO UPDATE requires inference specification or constraint name",
                )
                .hint(format!("Write ON CONFLICT ({}) DO UPDATE ...", key_names.join(", "))));
            }
        }
        Some(ConflictTarget::Columns(columns)) => {
            let named: HashSet<String> = columns.iter().map(folded).collect();
            let fits = !key_names.is_empty()
                && named.len() == key_names.len()
                && key_names.iter().all(|name| named.contains(*name));
            if !fits {
                let hint = if key_names.is_empty() {
                    format!("Table \"{}\" has no primary key.", target.name)
                } else {
                    format!("The primary key is ({}).", key_names.join(", "))
                };
                return Err(Error::new(
                    SqlState::InvalidColumnReference,
                    "there is no unique or exclusion constraint matching the ON CONFLICT specification",
                )
                .hint(hint)
                .position_or(columns.first().and_then(|column| super::evaluate::place(column.span))));
            }
        }
        Some(ConflictTarget::OnConstraint(name)) => {
            let wanted = object_name(name)?;
            let primary = format!("{}_pkey", target.name);
            if key_names.is_empty() || wanted.name != primary {
                return Err(Error::new(
                    SqlState::UndefinedObject,
                    format!("constraint \"{}\" for table \"{}\" does not exist", wanted.name, target.name),
                )
                .hint(format!("The primary key's constraint is \"{primary}\", when there is one."))
                .position(wanted.position));
            }
        }
    }
    Ok(match &on.action {
        OnConflictAction::DoNothing => OnKey::Nothing,
        OnConflictAction::DoUpdate(update) => {
            OnKey::Update { assignments: &update.assignments, selection: update.selection.as_ref() }
        }
    })
}

/// Sorts the proposed rows into new ones and changes of rows that are there.
///
/// # Errors
/// 23505, 21000, and those of the assignments.
pub(crate) async fn resolve(
    evaluator: &Evaluator,
    target: &Target,
    alias: Option<&str>,
    proposed: RecordBatch,
    on_key: &OnKey<'_>,
) -> Result<Outcome> {
    let key = &target.table.key;
    let encoder = Keys::new(&proposed.schema(), key)?;
    let proposed_keys = encoder.encode(&proposed)?;
    let there = {
        let coordinator = evaluator.engine.coordinator();
        let lookup = async {
            let pin = coordinator.pin(&[target.id], evaluator.bound()).await?;
            let there = existing(&pin, target.id, &proposed, key).await?;
            evaluator.with_pending(target.id, there, &proposed, key)
        };
        evaluator.interrupt.guard(lookup).await?
    };
    let there_keys = encoder.encode(&there)?;
    let there_rows = first_rows(&there_keys);
    let first = first_rows(&proposed_keys);

    let mut fresh = Vec::new();
    let mut pairs: Vec<(u64, u64)> = Vec::new();
    for (row, row_key) in proposed_keys.iter().enumerate() {
        let again = first.get(&row_key).is_some_and(|first| *first != row);
        match (on_key, there_rows.get(&row_key)) {
            (OnKey::Fail, there) if again || there.is_some() => {
                return Err(duplicate(&target.name, &proposed, key, row)
                    .hint("ON CONFLICT DO NOTHING leaves the row that is there; DO UPDATE changes it."));
            }
            (OnKey::Update { .. }, _) if again => {
                return Err(Error::new(
                    SqlState::CardinalityViolation,
                    "ON CONFLICT DO UPDATE command cannot affect row a second time",
                )
                .hint("Ensure that no rows proposed for insertion within the same command have duplicate constrained values."));
            }
            (OnKey::Update { .. }, Some(there)) => pairs.push((*there as u64, row as u64)),
            (OnKey::Nothing, there) if again || there.is_some() => {}
            _ => fresh.push(row as u64),
        }
    }
    let inserted = take_record_batch(&proposed, &UInt64Array::from(fresh))?;
    let OnKey::Update { assignments, selection } = on_key else {
        return Ok(Outcome::all_new(inserted));
    };
    let old = take_record_batch(&there, &UInt64Array::from_iter_values(pairs.iter().map(|(there, _)| *there)))?;
    let excluded = take_record_batch(&proposed, &UInt64Array::from_iter_values(pairs.iter().map(|(_, row)| *row)))?;
    // Also without a pair: the assignments are checked all the same.
    let (old, new) = updated(evaluator, target, alias, old, excluded, assignments, *selection).await?;
    let old_keys = encoder.encode(&old)?;
    let new_keys = encoder.encode(&new)?;
    if old_keys.iter().zip(new_keys.iter()).any(|(old, new)| old != new) {
        return Err(Error::unsupported("ON CONFLICT DO UPDATE of the primary key is not supported")
            .hint("Delete the row and insert another."));
    }
    let changed = diffs(&encoder_of_all(&old)?, &old, &new)?;
    Ok(Outcome { inserted, updated: Some(new), changed: Some(changed) })
}

/// An encoder that takes the whole row as its key.
pub(crate) fn encoder_of_all(rows: &RecordBatch) -> Result<Keys> {
    let all: Vec<usize> = (0..rows.num_columns()).collect();
    Keys::new(&rows.schema(), &all)
}

/// Applies DO UPDATE to pairs of rows; gives those that the WHERE lets through, before and after.
async fn updated(
    evaluator: &Evaluator,
    target: &Target,
    alias: Option<&str>,
    old: RecordBatch,
    excluded: RecordBatch,
    assignments: &[Assignment],
    selection: Option<&Expr>,
) -> Result<(RecordBatch, RecordBatch)> {
    let name = quoted_text(alias.unwrap_or(&target.name));
    let row = quoted_text(ROW);
    let assigned = assigned(target, assignments)?;
    let mut items = vec![named_item(
        Expr::CompoundIdentifier(vec![
            super::evaluate::quoted(alias.unwrap_or(&target.name)),
            super::evaluate::quoted(ROW),
        ]),
        ROW,
    )];
    items.extend(
        assigned.iter().enumerate().map(|(at, (_, expr))| named_item(expr.clone(), &format!("__clink_new_{at}"))),
    );
    let from = format!(
        "{ROWS_SCHEMA}.target AS {name} JOIN {ROWS_SCHEMA}.excluded AS excluded ON {name}.{row} = excluded.{row}"
    );
    let tables = RowTables::from([
        ("target".to_owned(), rows_table(numbered(&old)?)?),
        ("excluded".to_owned(), rows_table(numbered(&excluded)?)?),
    ]);
    let result = evaluator.query(select(items, &from, selection.cloned())?, tables).await?.concat()?;
    let rows: Vec<u64> = result
        .columns()
        .first()
        .and_then(|rows| rows.as_primitive_opt::<Int64Type>())
        .map(|rows| rows.values().iter().map(|row| row.unsigned_abs()).collect())
        .ok_or_else(|| Error::internal("a query without its row numbers"))?;
    let old = take_record_batch(&old, &UInt64Array::from(rows))?;
    let mut columns = old.columns().to_vec();
    for ((index, expr), values) in assigned.iter().zip(result.columns().iter().skip(1)) {
        if let (Some(cell), Some(column)) = (columns.get_mut(*index), target.table.columns.get(*index)) {
            *cell = coerce(values, column, false).map_err(|error| error.position_or(position(expr)))?;
        }
    }
    let new = table_rows(&target.table, &target.name, columns)?;
    Ok((old, new))
}

/// Rows with their number in another column.
fn numbered(rows: &RecordBatch) -> Result<RecordBatch> {
    let mut fields: Vec<Arc<Field>> = rows.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(ROW, DataType::Int64, false)));
    let mut columns = rows.columns().to_vec();
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows.num_rows()).map(|row| row as i64)));
    columns.push(numbers);
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}
