//! The search against one that tries every way to match.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Fields, Int64Type, Schema, TimeUnit};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, IsNullExpr, lit};
use proptest::prelude::*;

use super::*;

/// Column 0 is the time, column 1 a small number.
const VALUE: usize = 1;

fn last(variable: Option<usize>, before: usize, back: usize) -> Navigation {
    Navigation { variable, column: Some(VALUE), reads: Reads::Last { before, back } }
}

fn condition(
    navigations: Vec<Navigation>,
    predicate: impl Fn(Vec<Arc<dyn PhysicalExpr>>) -> Arc<dyn PhysicalExpr>,
) -> Condition {
    let fields: Fields = (0..navigations.len()).map(|at| Field::new(format!("v{at}"), DataType::Int64, true)).collect();
    let columns =
        (0..navigations.len()).map(|at| Arc::new(Column::new(&format!("v{at}"), at)) as Arc<dyn PhysicalExpr>);
    Condition { predicate: predicate(columns.collect()), navigations, schema: Arc::new(Schema::new(fields)) }
}

fn binary(left: Arc<dyn PhysicalExpr>, op: Operator, right: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
    Arc::new(BinaryExpr::new(left, op, right))
}

/// A condition, and the same for the slow search: of a row, the rows of the partition, the start, and the rows so far with
/// their variables, the row among them.
type Holds = fn(usize, &[i64], &[(usize, usize)], usize) -> bool;

fn of(so_far: &[(usize, usize)], variable: usize) -> Vec<usize> {
    so_far.iter().filter(|(of, _)| *of == variable).map(|(_, row)| *row).collect()
}

fn conditions(kind: usize, variable: usize) -> (Option<Condition>, Holds) {
    match kind {
        0 => (None, |_, _, _, _| true),
        // A.v > 1
        1 => (
            Some(condition(vec![last(Some(variable), 0, 0)], |v| binary(Arc::clone(&v[0]), Operator::Gt, lit(1_i64)))),
            |row, values, _, _| values[row] > 1,
        ),
        // v >= PREV(v)
        2 => (
            Some(condition(vec![last(None, 0, 0), last(None, 0, 1)], |v| {
                binary(Arc::clone(&v[0]), Operator::GtEq, Arc::clone(&v[1]))
            })),
            |row, values, _, _| row > 0 && values[row] >= values[row - 1],
        ),
        // LAST(A.v, 1) IS NULL OR A.v < LAST(A.v, 1)
        3 => (
            Some(condition(vec![last(Some(variable), 0, 0), last(Some(variable), 1, 0)], |v| {
                let none: Arc<dyn PhysicalExpr> = Arc::new(IsNullExpr::new(Arc::clone(&v[1])));
                binary(none, Operator::Or, binary(Arc::clone(&v[0]), Operator::Lt, Arc::clone(&v[1])))
            })),
            |row, values, so_far, variable| {
                let rows = of(so_far, variable);
                rows.len() < 2 || values[row] < values[rows[rows.len() - 2]]
            },
        ),
        // v <> FIRST(v)
        4 => (
            Some(condition(
                vec![last(None, 0, 0), Navigation { variable: None, column: Some(VALUE), reads: Reads::First(0) }],
                |v| binary(Arc::clone(&v[0]), Operator::NotEq, Arc::clone(&v[1])),
            )),
            |row, values, so_far, _| values[row] != values[so_far[0].1],
        ),
        // count(A.*) < 3
        _ => (
            Some(condition(
                vec![Navigation {
                    variable: Some(variable),
                    column: None,
                    reads: Reads::All { function: AggregateFunction::Count, distinct: false },
                }],
                |v| binary(Arc::clone(&v[0]), Operator::Lt, lit(3_i64)),
            )),
            |_, _, so_far, variable| of(so_far, variable).len() < 3,
        ),
    }
}

struct Slow<'a> {
    pattern: &'a Pattern,
    holds: &'a [Holds],
    times: &'a [i64],
    values: &'a [i64],
}

impl Slow<'_> {
    /// The first way to match in the pattern's order of preference, as the variable of each row.
    fn search(&self, element: usize, taken: usize, so_far: &mut Vec<(usize, usize)>, start: usize) -> bool {
        let Some(this) = self.pattern.elements.get(element) else { return true };
        let moves: [bool; 2] = [this.greedy, !this.greedy];
        for take in moves {
            if !take {
                if taken >= this.least && self.search(element + 1, 0, so_far, start) {
                    return true;
                }
                continue;
            }
            let row = start + so_far.len();
            let more = this.most.is_none_or(|most| taken < most) && row < self.values.len();
            if !more || self.pattern.within.is_some_and(|within| self.times[row] - self.times[start] >= within) {
                continue;
            }
            so_far.push((this.variable, row));
            if self.holds[this.variable](row, self.values, so_far, this.variable)
                && self.search(element, taken + 1, so_far, start)
            {
                return true;
            }
            so_far.pop();
        }
        false
    }

    fn matches(&self) -> Vec<(usize, usize, i64)> {
        let (mut start, mut found) = (0, Vec::new());
        while start < self.values.len() {
            let mut rows = Vec::new();
            if !self.search(0, 0, &mut rows, start) {
                start += 1;
                continue;
            }
            let sum = rows.iter().map(|(_, row)| self.values[*row]).sum();
            found.push((start, rows.len(), sum));
            let next = match self.pattern.skip {
                Skip::PastLast => start + rows.len(),
                Skip::ToNext => start,
                Skip::ToFirst(variable) => of(&rows, variable).first().copied().unwrap_or(start),
                Skip::ToLast(variable) => of(&rows, variable).last().copied().unwrap_or(start),
            };
            start = next.max(start + 1);
        }
        found
    }
}

fn columns(rows: &[(i64, i64)]) -> Vec<ArrayRef> {
    vec![
        Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|(time, _)| *time))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|(_, value)| *value))),
    ]
}

/// A pattern of three variables with the conditions of those kinds.
pub(crate) fn pattern(kinds: [usize; 3], quantifiers: [(usize, Option<usize>, bool); 3]) -> Pattern {
    let elements = quantifiers.into_iter().enumerate();
    let all = |function, column| Navigation { variable: None, column, reads: Reads::All { function, distinct: false } };
    Pattern {
        types: vec![DataType::Timestamp(TimeUnit::Microsecond, None), DataType::Int64],
        elements: elements.map(|(variable, (least, most, greedy))| Element { variable, least, most, greedy }).collect(),
        conditions: (0..3).map(|variable| conditions(kinds[variable], variable).0).collect(),
        time: 0,
        ordered_by: 1,
        within: None,
        skip: Skip::PastLast,
        measures: vec![all(AggregateFunction::Count, None), all(AggregateFunction::Max, Some(VALUE)), last(None, 0, 0)],
        fields: ["rows", "greatest", "last"].map(|name| Field::new(name, DataType::Int64, true)).into_iter().collect(),
    }
}

/// Starts, numbers of rows, and last values.
fn found(pattern: &Pattern, rows: &[(i64, i64)]) -> Vec<(usize, usize)> {
    let (columns, partition) = (columns(rows), 0..rows.len());
    let mut matcher = Matcher::new(pattern, &columns, std::slice::from_ref(&partition)).expect("the types fit");
    let mut matches = Matches::default();
    matcher.run(&partition, 0, None, &mut matches).expect("no condition fails");
    let measures = matcher.measures(&matches).expect("can be represented");
    let counts = measures.column(0).as_primitive::<Int64Type>();
    let (greatest, last) =
        (measures.column(1).as_primitive::<Int64Type>(), measures.column(2).as_primitive::<Int64Type>());
    for (nth, start) in matches.starts().enumerate() {
        let all = &rows[start..start + counts.value(nth) as usize];
        assert_eq!(Some(greatest.value(nth)), all.iter().map(|(_, value)| *value).max());
        assert_eq!(Some(last.value(nth)), all.last().map(|(_, value)| *value));
    }
    matches.starts().zip(counts.values()).map(|(start, count)| (start, *count as usize)).collect()
}

fn quantifiers() -> impl Strategy<Value = (usize, Option<usize>, bool)> {
    (
        prop_oneof![Just((1, Some(1))), Just((1, None)), Just((0, None)), Just((0, Some(1))), Just((2, Some(3)))],
        any::<bool>(),
    )
        .prop_map(|((least, most), greedy)| (least, most, greedy))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_search_finds_what_trying_all_finds(
        rows in prop::collection::vec((0_i64..3, 0_i64..4), 0..12),
        kinds in [0_usize..6, 0_usize..6, 0_usize..6],
        quantifiers in [quantifiers(), quantifiers(), quantifiers()],
        skip in 0_usize..4,
        within in prop::option::of(1_i64..8),
    ) {
        let mut pattern = pattern(kinds, quantifiers);
        pattern.within = within;
        pattern.skip = [Skip::PastLast, Skip::ToNext, Skip::ToFirst(1), Skip::ToLast(1)][skip].clone();
        prop_assume!(pattern.elements.iter().any(|element| element.least > 0));
        let mut time = 0;
        let rows: Vec<(i64, i64)> = rows.into_iter().map(|(step, value)| { time += step; (time, value) }).collect();
        let holds: Vec<Holds> = (0..3).map(|variable| conditions(kinds[variable], variable).1).collect();
        let (times, values): (Vec<i64>, Vec<i64>) = rows.iter().copied().unzip();
        let slow = Slow { pattern: &pattern, holds: &holds, times: &times, values: &values };
        let expected: Vec<(usize, usize)> = slow.matches().into_iter().map(|(start, count, _)| (start, count)).collect();
        prop_assert_eq!(found(&pattern, &rows), expected);
    }
}

#[test]
fn a_search_that_fails_is_not_repeated() {
    // A+ B with a B that never comes: from each row to the end would be 20 billion steps.
    let mut pattern = pattern([0, 0, 1], [(1, None, true), (0, None, true), (1, Some(1), true)]);
    let rows: Vec<(i64, i64)> = (0..200_000).map(|time| (time, 0)).collect();
    assert!(found(&pattern, &rows).is_empty());
    pattern.skip = Skip::ToNext;
    assert!(found(&pattern, &rows).is_empty());
}
