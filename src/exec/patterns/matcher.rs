//! The search: from each row on, the first way to match that the pattern prefers.
//!
//! Conditions that look at nothing but a row, those before it, and the rows of its own variable just before it are
//! evaluated for all rows at once, ahead of the search; others row by row, as the search comes to them. Where all are of
//! the first kind, a place from which the search failed is not tried again, so it takes a step for each element and row.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, StructArray, TimestampMicrosecondArray,
    UInt32Array,
};
use arrow::compute::take;
use arrow::datatypes::DataType;
use hashbrown::HashSet;

use super::{Condition, Element, Navigation, Pattern, Reads, Skip};
use crate::exec::aggregates::{Changes, accumulator};
use crate::exec::event_time::values;
use crate::exec::plan::AggregateFunction;
use crate::exec::relation::from_datafusion;
use crate::state::{KeyIndex, Slot};
use crate::types::{Error, Result, SqlState};

/// The most evaluations of conditions that depend on the match, from one row on; one that reads all rows of a variable counts
/// for its rows too.
const EVALUATIONS_MAX: usize = 1_000_000;

/// So many rows that an aggregate reads cost about as much as an evaluation.
const ROWS_PER_EVALUATION: usize = 64;

/// The search over some partitions, which lie one behind the other in the columns.
pub(crate) struct Matcher<'a> {
    pattern: &'a Pattern,
    columns: &'a [ArrayRef],
    times: &'a TimestampMicrosecondArray,
    /// By variable, then by the number of its rows before: which rows are of it.
    plain: Vec<Option<Vec<BooleanArray>>>,
    /// No condition asks how the search got to its row.
    forgets: bool,
    /// By element: with more rows than so many it is in the same place.
    caps: Vec<usize>,
    seen: HashSet<Place>,
    choices: Vec<(Place, Move)>,
    /// Behind the last row of each element up to where the search is.
    ends: Vec<usize>,
    evaluations: usize,
}

/// Where a search is: so many rows of an element are taken, and which comes next.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    element: usize,
    taken: usize,
    row: usize,
}

#[derive(Clone, Copy)]
enum Move {
    /// The row is one more of the element.
    Take,
    /// The element has all its rows.
    Leave,
}

enum Found {
    Match,
    Nothing,
    /// It depends on rows to come.
    Open,
}

/// A match, or the part of one.
#[derive(Clone, Copy)]
struct Shape<'a> {
    /// The first row of the partition.
    first: usize,
    start: usize,
    /// Behind the last row of each element.
    ends: &'a [usize],
}

/// What was found.
#[derive(Default)]
pub(crate) struct Matches {
    /// The first row of the partition, and of the match.
    starts: Vec<(usize, usize)>,
    /// Of each match, behind the last row of each element.
    ends: Vec<usize>,
}

impl Matches {
    /// True when there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The first row of each.
    pub(crate) fn starts(&self) -> impl Iterator<Item = usize> {
        self.starts.iter().map(|(_, start)| *start)
    }

    fn shapes(&self) -> impl Iterator<Item = Shape<'_>> {
        let width = self.ends.len() / self.starts.len().max(1);
        let ends = self.ends.chunks(width.max(1));
        self.starts.iter().zip(ends).map(|((first, start), ends)| Shape { first: *first, start: *start, ends })
    }
}

impl<'a> Shape<'a> {
    /// The rows of a variable, or all, in runs.
    fn runs(
        self,
        elements: &'a [Element],
        variable: Option<usize>,
    ) -> impl DoubleEndedIterator<Item = Range<usize>> + 'a {
        let Shape { start, ends, .. } = self;
        let runs = ends.iter().enumerate().map(move |(at, end)| {
            let from = at.checked_sub(1).map_or(start, |before| ends[before]);
            (at, from..*end)
        });
        runs.filter(move |(at, _)| variable.is_none_or(|variable| elements[*at].variable == variable))
            .map(|(_, run)| run)
    }

    fn nth_first(self, elements: &'a [Element], variable: Option<usize>, mut nth: usize) -> Option<usize> {
        for run in self.runs(elements, variable) {
            if nth < run.len() {
                return Some(run.start + nth);
            }
            nth -= run.len();
        }
        None
    }

    fn nth_last(self, elements: &'a [Element], variable: Option<usize>, mut nth: usize) -> Option<usize> {
        for run in self.runs(elements, variable).rev() {
            if nth < run.len() {
                return Some(run.end - 1 - nth);
            }
            nth -= run.len();
        }
        None
    }
}

impl<'a> Matcher<'a> {
    /// A search in columns of the pattern's types.
    ///
    /// # Errors
    /// When the columns are of other types.
    pub(crate) fn new(
        pattern: &'a Pattern,
        columns: &'a [ArrayRef],
        partitions: &[Range<usize>],
    ) -> Result<Matcher<'a>> {
        let time = columns.get(pattern.time).ok_or_else(|| Error::internal("a pattern without a column of time"))?;
        let mut plain = Vec::with_capacity(pattern.conditions.len());
        for (variable, condition) in pattern.conditions.iter().enumerate() {
            plain.push(match (condition, pattern.variants(variable)) {
                // A row for which it fails may never be asked about.
                (Some(condition), Some(variants)) => (0..variants)
                    .map(|taken| ahead(condition, taken, columns, partitions))
                    .collect::<Result<Vec<_>>>()
                    .ok(),
                _ => None,
            });
        }
        let forgets =
            pattern.conditions.iter().zip(&plain).all(|(condition, plain)| condition.is_none() || plain.is_some());
        let cap = |element: &Element| {
            let variants = plain[element.variable].as_ref().map_or(1, Vec::len);
            element.least.max(element.most.unwrap_or(0)).max(variants - 1)
        };
        Ok(Matcher {
            caps: pattern.elements.iter().map(cap).collect(),
            pattern,
            columns,
            times: values(time)?,
            plain,
            forgets,
            seen: HashSet::new(),
            choices: Vec::new(),
            ends: vec![0; pattern.elements.len()],
            evaluations: 0,
        })
    }

    /// Finds the matches of a partition that begin at a row or behind it. Rows up to the time `known` are all there; `None`:
    /// no more come. Gives the row at which the search goes on when more are known.
    ///
    /// # Errors
    /// When a condition fails, or the search takes too long.
    pub(crate) fn run(
        &mut self,
        partition: &Range<usize>,
        first: usize,
        known: Option<i64>,
        matches: &mut Matches,
    ) -> Result<usize> {
        self.seen.clear();
        let mut start = first;
        while start < partition.end {
            match self.find(partition, start, known)? {
                Found::Open => return Ok(start),
                Found::Nothing => start += 1,
                Found::Match => {
                    self.seen.clear();
                    matches.starts.push((partition.start, start));
                    matches.ends.extend_from_slice(&self.ends);
                    start = self.behind(start).max(start + 1);
                }
            }
        }
        Ok(start)
    }

    fn behind(&self, start: usize) -> usize {
        let (shape, elements) = (Shape { first: start, start, ends: &self.ends }, &self.pattern.elements);
        match self.pattern.skip {
            Skip::PastLast => self.ends.last().copied(),
            Skip::ToNext => None,
            Skip::ToFirst(variable) => shape.nth_first(elements, Some(variable), 0),
            Skip::ToLast(variable) => shape.nth_last(elements, Some(variable), 0),
        }
        .unwrap_or(start)
    }

    fn find(&mut self, partition: &Range<usize>, start: usize, known: Option<i64>) -> Result<Found> {
        self.choices.clear();
        self.evaluations = 0;
        // A place that is too late for one start may not be for a later one.
        if self.pattern.within.is_some() {
            self.seen.clear();
        }
        self.enter(Place { element: 0, taken: 0, row: start });
        while let Some((place, choice)) = self.choices.pop() {
            let next = match choice {
                Move::Leave => {
                    self.ends[place.element] = place.row;
                    Place { element: place.element + 1, taken: 0, ..place }
                }
                Move::Take if place.row >= partition.end => {
                    if self.may_come(start, known) {
                        return Ok(Found::Open);
                    }
                    continue;
                }
                Move::Take => {
                    if !self.is_within(start, place.row) || !self.holds(partition.start, start, place)? {
                        continue;
                    }
                    Place { taken: place.taken + 1, row: place.row + 1, ..place }
                }
            };
            if next.element == self.pattern.elements.len() {
                return Ok(Found::Match);
            }
            self.enter(next);
        }
        Ok(Found::Nothing)
    }

    fn enter(&mut self, place: Place) {
        let Element { least, most, greedy, .. } = self.pattern.elements[place.element];
        let same = Place { taken: place.taken.min(self.caps[place.element]), ..place };
        if self.forgets && !self.seen.insert(same) {
            return;
        }
        let leave = (place.taken >= least).then_some(Move::Leave);
        let take = most.is_none_or(|most| place.taken < most).then_some(Move::Take);
        // What is wanted first is looked at first.
        let (later, sooner) = if greedy { (leave, take) } else { (take, leave) };
        self.choices.extend(later.into_iter().chain(sooner).map(|choice| (place, choice)));
    }

    fn is_within(&self, start: usize, row: usize) -> bool {
        let since = || self.times.value(row).checked_sub(self.times.value(start));
        self.pattern.within.is_none_or(|within| since().is_some_and(|since| since < within))
    }

    /// True when a row that is not there yet may belong to the match.
    fn may_come(&self, start: usize, known: Option<i64>) -> bool {
        let Some(known) = known else { return false };
        let since = known.saturating_add(1).saturating_sub(self.times.value(start));
        self.pattern.within.is_none_or(|within| since < within)
    }

    fn holds(&mut self, first: usize, start: usize, place: Place) -> Result<bool> {
        let variable = self.pattern.elements[place.element].variable;
        let Some(condition) = &self.pattern.conditions[variable] else { return Ok(true) };
        if let Some(values) = &self.plain[variable] {
            let values = &values[place.taken.min(values.len() - 1)];
            return Ok(values.is_valid(place.row) && values.value(place.row));
        }
        let reads_all = condition.navigations.iter().any(|navigation| matches!(navigation.reads, Reads::All { .. }));
        self.evaluations += 1 + if reads_all { (place.row - start) / ROWS_PER_EVALUATION } else { 0 };
        if self.evaluations > EVALUATIONS_MAX {
            let message = format!("a match of MATCH_RECOGNIZE takes more than {EVALUATIONS_MAX} steps to look for");
            return Err(Error::new(SqlState::ProgramLimitExceeded, message)
                .hint("Bound it with WITHIN INTERVAL behind the pattern, or let DEFINE look at fewer variables."));
        }
        self.ends[place.element] = place.row + 1;
        let shape = Shape { first, start, ends: &self.ends[..=place.element] };
        let columns = condition.navigations.iter().map(|navigation| self.read(navigation, &[shape]));
        let values = evaluate(condition, columns.collect::<Result<_>>()?, 1)?;
        Ok(values.is_valid(0) && values.value(0))
    }

    /// A value of each of some matches.
    fn read(&self, navigation: &Navigation, shapes: &[Shape<'_>]) -> Result<ArrayRef> {
        let (elements, variable) = (&self.pattern.elements, navigation.variable);
        let row_of = |shape: &Shape<'_>| match navigation.reads {
            Reads::First(after) => shape.nth_first(elements, variable, after),
            Reads::Last { before, back } => {
                let row = shape.nth_last(elements, variable, before)?;
                row.checked_sub(back).filter(|row| *row >= shape.first)
            }
            Reads::All { .. } => None,
        };
        if let Reads::All { function, distinct } = &navigation.reads {
            return self.aggregate(navigation, function, *distinct, shapes);
        }
        let rows: UInt32Array = shapes.iter().map(|shape| row_of(shape).map(|row| row as u32)).collect();
        let column = navigation.column.and_then(|column| self.columns.get(column));
        Ok(take(column.ok_or_else(|| Error::internal("a pattern reads a column that is not there"))?, &rows, None)?)
    }

    fn aggregate(
        &self,
        navigation: &Navigation,
        function: &AggregateFunction,
        distinct: bool,
        shapes: &[Shape<'_>],
    ) -> Result<ArrayRef> {
        let (mut rows, mut slots) = (Vec::new(), Vec::new());
        for (slot, shape) in shapes.iter().enumerate() {
            let of_variable = shape.runs(&self.pattern.elements, navigation.variable).flatten();
            rows.extend(of_variable.map(|row| row as u32));
            slots.resize(rows.len(), slot as Slot);
        }
        let column = navigation.column.and_then(|column| self.columns.get(column));
        let diffs = vec![1; rows.len()];
        let argument = column.map(|column| take(column, &UInt32Array::from(rows), None)).transpose()?;
        let data_type = argument.as_ref().map_or(DataType::Null, |argument| argument.data_type().clone());
        let mut accumulator = accumulator(function, &data_type, distinct, "matched", false)?;
        accumulator.resize(shapes.len());
        let index = KeyIndex::new(false);
        accumulator.update(&Changes { index: &index, slots: &slots, argument: argument.as_ref(), diffs: &diffs })?;
        let slots: Vec<Slot> = (0..shapes.len()).map(|slot| slot as Slot).collect();
        accumulator.evaluate(&slots)
    }

    /// What comes out of matches that were found.
    ///
    /// # Errors
    /// When a result cannot be represented.
    pub(crate) fn measures(&self, matches: &Matches) -> Result<StructArray> {
        let shapes: Vec<Shape<'_>> = matches.shapes().collect();
        let measures = self.pattern.measures.iter().map(|measure| self.read(measure, &shapes));
        let measures = measures.collect::<Result<_>>()?;
        Ok(StructArray::try_new_with_length(self.pattern.fields.clone(), measures, None, shapes.len())?)
    }
}

/// For which rows a condition holds when so many rows of its variable stand before them in the match.
fn ahead(
    condition: &Condition,
    taken: usize,
    columns: &[ArrayRef],
    partitions: &[Range<usize>],
) -> Result<BooleanArray> {
    let rows = partitions.last().map_or(0, |partition| partition.end);
    let read = |navigation: &Navigation| -> Result<ArrayRef> {
        let column = navigation.column.and_then(|column| columns.get(column));
        let column = column.ok_or_else(|| Error::internal("a pattern reads a column that is not there"))?;
        let Reads::Last { before, back } = navigation.reads else {
            return Err(Error::internal("a condition depends on more than its row"));
        };
        let reach = before + back;
        if reach == 0 {
            return Ok(Arc::clone(column));
        }
        let reached = partitions.iter().flat_map(|partition| {
            let first = partition.start;
            partition.clone().map(move |row| (before <= taken && row - first >= reach).then(|| (row - reach) as u32))
        });
        Ok(take(column, &UInt32Array::from_iter(reached), None)?)
    };
    evaluate(condition, condition.navigations.iter().map(read).collect::<Result<_>>()?, rows)
}

fn evaluate(condition: &Condition, columns: Vec<ArrayRef>, rows: usize) -> Result<BooleanArray> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(Arc::clone(&condition.schema), columns, &options)?;
    let value = condition.predicate.evaluate(&batch).and_then(|value| value.into_array(rows));
    let value = value.map_err(from_datafusion)?;
    value.as_boolean_opt().cloned().ok_or_else(|| Error::internal("a condition of DEFINE is not boolean"))
}
