//! Patterns over the ordered rows of a partition: what `MATCH_RECOGNIZE` looks for, and the search for it.
//!
//! The search is one for a SELECT and for a view, so both give the same matches: a SELECT has the function of
//! [`PatternFunction`] look through whole partitions, a view's operator through the rows whose event time is past.

mod function;
mod matcher;
#[cfg(test)]
pub(crate) mod tests;

pub use function::PatternFunction;
pub(crate) use matcher::{Matcher, Matches};

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Fields, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;

use super::plan::AggregateFunction;

/// A pattern, over columns by their numbers.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The types of the columns that it reads.
    pub types: Vec<DataType>,
    /// The variables in order, each with how often.
    pub elements: Vec<Element>,
    /// By variable: which rows are of it; `None`: all.
    pub conditions: Vec<Option<Condition>>,
    /// The column of time.
    pub time: usize,
    /// How many columns the rows are ordered by, before those that break ties.
    pub ordered_by: usize,
    /// The last row of a match comes less than so many microseconds after the first.
    pub within: Option<i64>,
    /// Where the search goes on.
    pub skip: Skip,
    /// What comes out of a match.
    pub measures: Vec<Navigation>,
    /// Names and types of these.
    pub fields: Fields,
}

/// A variable of a pattern, and how often it is there.
#[derive(Clone, Debug)]
pub struct Element {
    /// Its number.
    pub variable: usize,
    /// At least so many rows.
    pub least: usize,
    /// At most so many; `None`: any number.
    pub most: Option<usize>,
    /// True: as many as possible. False: as few.
    pub greedy: bool,
}

/// When a row is of a variable.
#[derive(Clone, Debug)]
pub struct Condition {
    /// What it reads.
    pub navigations: Vec<Navigation>,
    /// The same as columns of the predicate.
    pub schema: SchemaRef,
    /// A boolean expression over them.
    pub predicate: Arc<dyn PhysicalExpr>,
}

/// A value of the rows of a match.
#[derive(Clone, Debug, PartialEq)]
pub struct Navigation {
    /// The variable whose rows it looks at; `None`: all rows of the match.
    pub variable: Option<usize>,
    /// The column; `None` only for `count(*)`.
    pub column: Option<usize>,
    /// Which of the rows.
    pub reads: Reads,
}

/// Which rows a value is of.
#[derive(Clone, Debug, PartialEq)]
pub enum Reads {
    /// So many rows of the variable after its first one.
    First(usize),
    /// The row that is so many rows of the partition before the one that is so many rows of the variable before its last
    /// one.
    Last {
        /// Rows of the variable.
        before: usize,
        /// Rows of the partition.
        back: usize,
    },
    /// All of them.
    All {
        /// What is made of them.
        function: AggregateFunction,
        /// True: each distinct value counts once.
        distinct: bool,
    },
}

/// Where the search goes on after a match; always behind its first row.
#[derive(Clone, Debug, PartialEq)]
pub enum Skip {
    /// Behind its last row.
    PastLast,
    /// At its second row.
    ToNext,
    /// At the first row of a variable.
    ToFirst(usize),
    /// At the last row of a variable.
    ToLast(usize),
}

/// The most ways in which a condition is evaluated ahead of the search.
const VARIANTS_MAX: usize = 8;

impl Pattern {
    /// So many rows before a match are read by it.
    pub fn rows_back(&self) -> usize {
        let of_conditions = self.conditions.iter().flatten().flat_map(|condition| &condition.navigations);
        let back = |navigation: &Navigation| match navigation.reads {
            Reads::Last { back, .. } => back,
            _ => 0,
        };
        of_conditions.chain(&self.measures).map(back).max().unwrap_or(0)
    }

    /// In how many ways a variable's condition comes out for a row, by how many rows of the variable stand before it in
    /// the match; `None` when more of the match takes part.
    fn variants(&self, variable: usize) -> Option<usize> {
        let condition = self.conditions.get(variable)?.as_ref()?;
        let once = self.elements.iter().filter(|element| element.variable == variable).count() == 1;
        let mut variants = 1;
        for navigation in &condition.navigations {
            match (navigation.variable, &navigation.reads) {
                (None, Reads::Last { before: 0, .. }) => {}
                (Some(of), Reads::Last { before, .. }) if of == variable && (once || *before == 0) => {
                    variants = variants.max(before + 1);
                }
                _ => return None,
            }
        }
        (variants <= VARIANTS_MAX).then_some(variants)
    }
}

/// All of it as a text: two patterns with one text are the same.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} by {} of {} within {:?} {:?}",
            self.elements, self.time, self.ordered_by, self.within, self.skip
        )?;
        for condition in &self.conditions {
            match condition {
                Some(condition) => write!(f, "; {} of {:?}", condition.predicate, condition.navigations)?,
                None => f.write_str("; all")?,
            }
        }
        write!(f, "; {:?} of {:?}", self.measures, self.types)
    }
}
