//! Rows of a view for which an expression fails: they go to a relation of their own, with their diff.

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringBuilder};
use arrow::compute::{filter, filter_record_batch};
use arrow::datatypes::Int64Type;

use super::plan::row_errors_schema;
use crate::types::text::JsonObjects;
use crate::types::{Chunk, Error, Result};

/// Rows that failed in one operator, ready to go out.
struct Failed {
    rows: Vec<usize>,
    errors: Vec<Error>,
}

/// Runs a piece of an operator over a chunk. Where it fails for some rows, those are found by halving and
/// come back as changes of the errors relation; the others pass as if they had been alone.
///
/// # Errors
/// What is no fault of a row's values.
pub(crate) fn divide(
    operator: &str,
    chunk: &Chunk,
    mut apply: impl FnMut(&Chunk) -> Result<Option<Chunk>>,
) -> Result<(Option<Chunk>, Option<Chunk>)> {
    let error = match apply(chunk) {
        Ok(passed) => return Ok((passed, None)),
        Err(error) => error,
    };
    if !is_of_a_row(&error) {
        return Err(error);
    }
    let mut failed = Failed { rows: Vec::new(), errors: Vec::new() };
    find(chunk, 0, error, &mut apply, &mut failed)?;
    let mut good = vec![true; chunk.rows()];
    failed.rows.iter().for_each(|row| good[*row] = false);
    let passed = match pick(chunk, &BooleanArray::from(good))? {
        Some(good) => apply(&good)?,
        None => None,
    };
    Ok((passed, Some(changes(operator, chunk, &failed)?)))
}

/// Class 22 of SQLSTATE, data exceptions, is about values; all else is about the statement or the program.
fn is_of_a_row(error: &Error) -> bool {
    error.code().code().starts_with("22")
}

/// Finds the failing rows of a chunk that failed with `error`, the first of which is row `start` of the whole.
fn find(
    chunk: &Chunk,
    start: usize,
    error: Error,
    apply: &mut impl FnMut(&Chunk) -> Result<Option<Chunk>>,
    failed: &mut Failed,
) -> Result<()> {
    if !is_of_a_row(&error) {
        return Err(error);
    }
    if chunk.rows() == 1 {
        failed.rows.push(start);
        failed.errors.push(error);
        return Ok(());
    }
    let middle = chunk.rows() / 2;
    for (from, rows) in [(0, middle), (middle, chunk.rows() - middle)] {
        let half = chunk.slice(from, rows);
        if let Err(error) = apply(&half) {
            find(&half, start + from, error, apply, failed)?;
        }
    }
    Ok(())
}

fn pick(chunk: &Chunk, wanted: &BooleanArray) -> Result<Option<Chunk>> {
    let rows = filter_record_batch(chunk.batch(), wanted)?;
    let parts = match chunk.diffs() {
        None => Chunk::inserts(&rows),
        Some(diffs) => {
            let diffs = filter(diffs, wanted)?;
            Chunk::changes(&rows, arrow::array::AsArray::as_primitive::<Int64Type>(&diffs))
        }
    };
    Ok(parts.into_iter().next())
}

fn changes(operator: &str, chunk: &Chunk, failed: &Failed) -> Result<Chunk> {
    let objects = JsonObjects::new(&chunk.schema());
    let columns = JsonObjects::columns(chunk.batch())?;
    let mut texts: [StringBuilder; 4] = Default::default();
    let mut diffs = Vec::with_capacity(failed.rows.len());
    let mut row_text = Vec::new();
    for (row, error) in failed.rows.iter().zip(&failed.errors) {
        row_text.clear();
        objects.print(&columns, *row, &mut row_text);
        let [operators, codes, errors, rows] = &mut texts;
        operators.append_value(operator);
        codes.append_value(error.code().code());
        errors.append_value(error.message());
        rows.append_value(String::from_utf8_lossy(&row_text));
        diffs.push(chunk.diff(*row));
    }
    let columns: Vec<ArrayRef> =
        texts.into_iter().map(|mut text| std::sync::Arc::new(text.finish()) as ArrayRef).collect();
    let batch = RecordBatch::try_new(row_errors_schema(), columns)?;
    // No more than the chunk had rows, and at least one.
    Chunk::changes(&batch, &Int64Array::from(diffs))
        .into_iter()
        .next()
        .ok_or_else(|| Error::internal("rows failed, and there are none"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::AsArray;

    use super::*;
    use crate::types::SqlState;

    #[test]
    fn failing_rows_go_out_with_their_diff_and_the_others_pass() {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
        let batch = RecordBatch::try_from_iter([("a", column)]).expect("a batch");
        let diffs = Int64Array::from_iter_values((0..1_000).map(|row| if row % 2 == 0 { 1 } else { -2 }));
        let chunk = Chunk::changes(&batch, &diffs).remove(0);
        let mut calls = 0;
        let (passed, failed) = divide("root/project", &chunk, |chunk| {
            calls += 1;
            let values = chunk.column(0).as_primitive::<Int64Type>();
            match values.values().iter().any(|value| [3, 4, 999].contains(value)) {
                true => Err(Error::new(SqlState::DivisionByZero, "division by zero")),
                false => Ok(Some(chunk.clone())),
            }
        })
        .expect("divided");
        let passed = passed.expect("rows pass");
        assert_eq!(passed.rows(), 997);
        assert!(calls < 80, "{calls} calls for three rows");
        let failed = failed.expect("rows fail");
        let rows: Vec<_> = failed.column(3).as_string::<i32>().iter().flatten().collect();
        assert_eq!(rows, ["{\"a\":3}", "{\"a\":4}", "{\"a\":999}"]);
        assert_eq!((0..3).map(|row| failed.diff(row)).collect::<Vec<_>>(), [-2, 1, -2]);
        assert_eq!(failed.column(1).as_string::<i32>().value(0), "22012");
    }

    #[test]
    fn what_is_no_fault_of_a_row_stops_the_job() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let chunk = Chunk::inserts(&RecordBatch::try_from_iter([("a", column)]).expect("a batch")).remove(0);
        let error = divide("o", &chunk, |_| Err(Error::internal("a fault"))).expect_err("stops");
        assert_eq!(error.code(), SqlState::InternalError);
    }
}
