//! What a job runs, said without running it: a tree of operators from imports to one root.

use std::fmt;
use std::sync::{Arc, LazyLock};

use arrow::array::RecordBatch;
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::window::WindowExpr;

pub use super::patterns::{Condition, Element, Navigation, Pattern, PatternFunction, Reads, Skip};
use crate::types::{RelationId, Watermark};

/// A standing query, planned: its operators, inputs before their users, the root last.
#[derive(Clone, Debug)]
pub struct JobPlan {
    /// The operators; an operator's inputs stand before it and the root is the last.
    pub nodes: Vec<PlanNode>,
    /// Columns of the root that identify a row of the result; empty: the whole row does.
    pub key: Vec<usize>,
    /// True when the result only ever grows.
    pub append_only: bool,
    /// What becomes of a row for which an expression fails.
    pub on_error: OnError,
    /// Columns of the root whose event time is known to go on.
    pub event_times: Vec<(usize, EventTime)>,
    /// How long the past of the result is kept, over restarts too; 0: as short as it can be.
    pub retain_millis: u64,
}

/// Up to which value a column is over: the least of what is known of some columns that the job reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTime {
    /// What is known of each, and how much later this column is.
    pub terms: Vec<EventTerm>,
    /// The length of the windows that the column's values stand for, in microseconds; zero when they are of several, and
    /// `None` when the values are single times.
    pub size: Option<i64>,
    /// How much later than a value its window ends, in microseconds.
    pub end: i64,
}

/// A column of event time that a job reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventTerm {
    /// The relation.
    pub relation: RelationId,
    /// Its column.
    pub column: usize,
    /// Microseconds that are taken off.
    pub delay: i64,
}

impl EventTime {
    /// The watermark when those of the columns read are as told.
    pub fn watermark(&self, mut of: impl FnMut(RelationId, usize) -> Watermark) -> Watermark {
        let terms = self.terms.iter().map(|term| of(term.relation, term.column).after(term.delay));
        terms.min().unwrap_or(Watermark::NONE)
    }
}

/// A column of an operator's input by which it knows what is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closing {
    /// The column.
    pub column: usize,
    /// Its event time.
    pub time: EventTime,
    /// True: rows come out when they are over, and change no more. False: they come out at once, and what is over is
    /// forgotten.
    pub last_only: bool,
    /// Of a join's input: a row is needed until the other's event time is so much further than its own, in
    /// microseconds.
    pub keep: i64,
}

/// The columns of a job's relation of changes that came too late: the operator's path, the window they missed, up to
/// where event time was, how many times the row was inserted or (negative) retracted, and the operator's input row as
/// JSON.
pub fn late_rows_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let time = |name: &str| {
            Field::new(name, DataType::Timestamp(arrow::datatypes::TimeUnit::Microsecond, Some("UTC".into())), true)
        };
        Arc::new(Schema::new(vec![
            Field::new("operator", DataType::Utf8, false),
            time("window_start"),
            time("window_end"),
            time("watermark"),
            Field::new("diff", DataType::Int64, false),
            Field::new("row", DataType::Utf8, false),
        ]))
    });
    Arc::clone(&SCHEMA)
}

/// What becomes of a row for which an expression of a job fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// No expression can fail.
    Never,
    /// It goes to the job's errors relation, with its diff.
    Keep,
    /// The job fails.
    Fail,
}

/// The columns of a job's errors relation: the operator's path, the error's code and message, and the
/// operator's input row as JSON.
pub fn row_errors_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let text = |name: &str| Field::new(name, DataType::Utf8, false);
        Arc::new(Schema::new(vec![text("operator"), text("sqlstate"), text("error"), text("row")]))
    });
    Arc::clone(&SCHEMA)
}

impl JobPlan {
    /// The operator whose output is the result.
    ///
    /// # Panics
    /// When the plan is empty, which no planner makes.
    pub fn root(&self) -> &PlanNode {
        self.nodes.last().expect("a plan has a root")
    }

    /// Columns and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.root().schema
    }

    /// The columns of event time that the job's operators and its result follow, each once.
    pub fn followed_times(&self) -> Vec<(RelationId, usize)> {
        let closing = self.nodes.iter().flat_map(|node| &node.closing).map(|closing| &closing.time);
        let times = closing.chain(self.event_times.iter().map(|(_, time)| time));
        let mut followed: Vec<(RelationId, usize)> =
            times.flat_map(|time| &time.terms).map(|term| (term.relation, term.column)).collect();
        followed.sort_unstable();
        followed.dedup();
        followed
    }

    /// True when an operator does other things from the time on at which all that the job reads is there; what it puts out
    /// then depends on the times of its input.
    pub fn awaits_whole(&self) -> bool {
        self.nodes.iter().any(|node| matches!(node.operator, OperatorSpec::LookupJoin(_)))
    }

    /// True when rows can come too late for an operator.
    pub fn closes(&self) -> bool {
        self.nodes.iter().any(|node| !node.closing.is_empty())
    }

    /// The relations that the job reads, in order of first use, each once.
    pub fn imports(&self) -> Vec<RelationId> {
        let mut relations = Vec::new();
        for node in &self.nodes {
            if let OperatorSpec::Import { relation, .. } = &node.operator
                && !relations.contains(relation)
            {
                relations.push(*relation);
            }
        }
        relations
    }
}

/// One operator and its place in the plan.
#[derive(Clone, Debug)]
pub struct PlanNode {
    /// The role-based path from the root that names the operator's state, such as `root/aggregate`.
    pub path: String,
    /// What it does.
    pub operator: OperatorSpec,
    /// Indexes into [`JobPlan::nodes`] of its inputs.
    pub inputs: Vec<usize>,
    /// Columns that it puts out.
    pub schema: SchemaRef,
    /// What it closes and forgets by event time, by input; empty when it does not.
    pub closing: Vec<Closing>,
    /// Its rows are only ever added.
    pub append_only: bool,
    /// How long it keeps a group to which nothing happens, in milliseconds of the clock; `None`: for ever.
    pub ttl_millis: Option<u64>,
}

/// The kinds of operators, with their parameters.
#[derive(Clone, Debug)]
pub enum OperatorSpec {
    /// The changes of a relation: a table, another view, or a connector's rows. No inputs.
    Import {
        /// The relation.
        relation: RelationId,
        /// Which of its columns, in order.
        columns: Vec<usize>,
    },
    /// Rows that are there from the start and never change. No inputs.
    Constant {
        /// The rows.
        rows: RecordBatch,
    },
    /// Computes columns. One input.
    Project {
        /// One expression a column, over the input's columns by index.
        expressions: Vec<Arc<dyn PhysicalExpr>>,
    },
    /// Keeps the rows for which the predicate is true. One input.
    Filter {
        /// A boolean expression over the input's columns.
        predicate: Arc<dyn PhysicalExpr>,
        /// The input's columns that are put out, at least one.
        columns: Vec<usize>,
    },
    /// The rows of all inputs, which share its schema up to names. One or more inputs.
    Union,
    /// Aggregates per group, kept current under retraction; with keys and no aggregates it is
    /// `SELECT DISTINCT`; without keys it is one row, always there. One input.
    ///
    /// Puts out the keys, then the aggregates.
    Aggregate {
        /// The input's columns that make the group.
        keys: Vec<usize>,
        /// The aggregates.
        aggregates: Vec<AggregateCall>,
    },
    /// Aggregates of windows that overlap, each put out once when it is over. One input, whose rows have their panes in the
    /// place of windows; always with a closing.
    ///
    /// Puts out the keys, then the aggregates.
    HopAggregate {
        /// The windows.
        hop: HopSpec,
        /// The aggregates, none of whose columns is of the windows.
        aggregates: Vec<AggregateCall>,
    },
    /// Of the rows of each key the one that came last. One input, whose last column has the rows' places in the order of
    /// their time; it is not put out. Only as the root: what it knows is the result.
    Latest,
    /// Joins two inputs, kept current under changes of both.
    ///
    /// Puts out the left input's columns, then, but for semi and anti joins, the right one's.
    Join(JoinSpec),
    /// Shows a part of each partition's rows in an order, or gives each row the values of window functions.
    /// One input.
    Rank(RankSpec),
    /// Puts rows into sessions of their key. One input.
    ///
    /// Puts out the input's columns, then the first and the last time of the row's session.
    SessionWindow(SessionSpec),
    /// Puts out a row for each element of a row's lists. One input.
    Unnest(UnnestSpec),
    /// Keeps rows back until their event time is over. One input; always with a closing.
    Hold,
    /// Passes rows, and retracts those of a key when nothing happened to it for so long. One input.
    Expire {
        /// The input's columns that make the key; none: all rows are of one.
        keys: Vec<usize>,
        /// So many milliseconds of the clock.
        ttl_millis: u64,
    },
    /// Shows rows while the clock is within all of their bounds. One input, of which the columns of the bounds, which
    /// stand last, do not come out.
    TemporalFilter(Vec<ClockBound>),
    /// Joins rows with the versions that are in force at their times. Two inputs, the second of which only ever grows.
    ///
    /// Puts out the left input's columns, then the right one's.
    TemporalJoin(TemporalJoinSpec),
    /// Joins each row once, with what the other input has at the time of the clock. Two inputs, the first of which only
    /// ever grows.
    ///
    /// Puts out the left input's columns, then the right one's.
    LookupJoin(LookupJoinSpec),
    /// Finds the matches of a pattern in rows that only ever grow, when their event time is over. One input; always with a
    /// closing.
    ///
    /// Puts out the first row of each match, then its measures as a structure.
    Match(MatchSpec),
}

/// The column of a job's own by which its operators learn that all that it reads is there.
pub(crate) const OPENED: usize = usize::MAX;

/// Partitions of rows in order, and the pattern that is looked for in them.
#[derive(Clone, Debug)]
pub struct MatchSpec {
    /// The input's columns that make the partition; none: all rows are one.
    pub keys: Vec<usize>,
    /// The order within a partition, by event time first; rows that are equal in it follow in order of all columns.
    pub order: Vec<SortKey>,
    /// The pattern, over the input's columns.
    pub pattern: Arc<Pattern>,
}

/// Rows and what they meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupJoinSpec {
    /// True: a row that meets nothing comes out with NULLs. False: it does not.
    pub keep_left: bool,
    /// The left input's columns that must equal `right_keys`, in order; of the same types.
    pub left_keys: Vec<usize>,
    /// The right input's.
    pub right_keys: Vec<usize>,
}

/// Rows and the versions that are in force at their times: of those with a row's key the last one up to its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemporalJoinSpec {
    /// True: a row without a version comes out with NULLs. False: it does not.
    pub keep_left: bool,
    /// The left input's columns that must equal `right_keys`, in order; of the same types.
    pub left_keys: Vec<usize>,
    /// The right input's.
    pub right_keys: Vec<usize>,
    /// The left input's column of time, a timestamp.
    pub left_time: usize,
    /// The right input's: from when on a version is in force.
    pub right_time: usize,
}

/// A column that the clock is compared with: `now() + moved > column` and the like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockBound {
    /// The input's column, a timestamp; a row with NULL there is never shown.
    pub column: usize,
    /// What is added to the clock, in microseconds.
    pub moved: i64,
    /// True: the row is shown from the bound on. False: up to it.
    pub lower: bool,
    /// It is shown at the bound itself too.
    pub inclusive: bool,
}

/// Windows of a size that follow each other by less, and so share panes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopSpec {
    /// The input's columns that make the group, those of windows among them.
    pub keys: Vec<usize>,
    /// Of each of the input's columns, how much later than the start of its window it is, in microseconds; `None` for
    /// those that are no time of a window.
    pub starts: Vec<Option<i64>>,
    /// How far starts are from each other, in microseconds.
    pub slide: i64,
    /// In microseconds, above the slide.
    pub size: i64,
    /// What starts are a multiple of the slide after, in microseconds since 1970.
    pub offset: i64,
}

impl HopSpec {
    /// The length of a pane: of a window's start and its end one begins at each.
    pub fn pane(&self) -> i64 {
        greatest_divisor(self.slide, self.size)
    }

    /// The keys that are no times of windows.
    pub fn plain_keys(&self) -> Vec<usize> {
        let is_plain = |key: &usize| self.starts.get(*key).copied().flatten().is_none();
        self.keys.iter().copied().filter(is_plain).collect()
    }
}

/// The greatest number that divides two, which are above zero.
pub(crate) fn greatest_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Rows of a key that are each less than a gap behind another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionSpec {
    /// The input's columns that make the key; none: all rows are of one.
    pub keys: Vec<usize>,
    /// The input's column of time, a timestamp; a row with NULL there is in no session.
    pub time: usize,
    /// In microseconds, above zero.
    pub gap: i64,
}

/// Lists that are taken apart.
#[derive(Clone, Debug)]
pub struct UnnestSpec {
    /// The input's columns that are lists to be taken apart; a shorter one ends with NULLs.
    pub lists: Vec<usize>,
    /// Which of the input's columns come out, in order; of a list its elements.
    pub columns: Vec<usize>,
    /// True: NULL in the place of a list is a list of one NULL. False: it has no elements.
    pub keep_nulls: bool,
}

/// Partitions of rows in order, and what of them comes out.
#[derive(Clone, Debug)]
pub struct RankSpec {
    /// The input's columns that make the partition; none: all rows are one.
    pub keys: Vec<usize>,
    /// The order within a partition; rows that are equal in it follow in order of all columns.
    pub order: Vec<SortKey>,
    /// What comes out.
    pub show: Show,
}

/// A column to sort by.
#[derive(Clone, Copy, Debug)]
pub struct SortKey {
    /// The input's column.
    pub column: usize,
    /// Its direction and the place of NULLs.
    pub options: SortOptions,
}

/// What comes out of ordered partitions.
#[derive(Clone, Debug)]
pub enum Show {
    /// The first rows, with the input's columns.
    First {
        /// So many rows are passed over.
        skip: u64,
        /// So many come then; `None`: all that are left.
        limit: Option<u64>,
    },
    /// Rows with the input's columns, then one for each function.
    Window {
        /// So many of the first rows; `None`: all. Only where the functions do not see the others.
        limit: Option<u64>,
        /// The functions, over the input's columns; partition and order are those of the operator.
        functions: Vec<Arc<dyn WindowExpr>>,
    },
}

/// How the rows of two inputs come together.
#[derive(Clone, Debug)]
pub struct JoinSpec {
    /// Which rows come out.
    pub kind: JoinKind,
    /// The left input's columns that must equal `right_keys`, in order; of the same types.
    pub left_keys: Vec<usize>,
    /// The right input's.
    pub right_keys: Vec<usize>,
    /// True: NULL equals NULL among the keys, as in set operations. False: a row with a NULL has no partner.
    pub nulls_equal: bool,
    /// A boolean expression over the left input's columns followed by the right one's; partners are those pairs
    /// for which it is true.
    pub condition: Option<Arc<dyn PhysicalExpr>>,
}

/// Which rows a join puts out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// Pairs of partners.
    Inner,
    /// Pairs, and rows of the left without a partner, filled up with NULLs.
    Left,
    /// Pairs, and rows of the right without a partner.
    Right,
    /// Pairs, and rows of both sides without a partner.
    Full,
    /// Rows of the left that have a partner, each once.
    Semi,
    /// Rows of the left that have none.
    Anti,
}

impl JoinSpec {
    /// The columns of both inputs, which may all be NULL.
    pub fn pair_schema(&self, left: &SchemaRef, right: &SchemaRef) -> SchemaRef {
        pair_schema(left, right)
    }
}

/// The columns of two inputs, which may all be NULL.
pub(crate) fn pair_schema(left: &SchemaRef, right: &SchemaRef) -> SchemaRef {
    let fields = left.fields().iter().chain(right.fields());
    Arc::new(Schema::new(fields.map(|field| field.as_ref().clone().with_nullable(true)).collect::<Vec<_>>()))
}

impl OperatorSpec {
    /// The kind's name, as EXPLAIN prints it.
    pub fn name(&self) -> &'static str {
        match self {
            OperatorSpec::Import { .. } => "Import",
            OperatorSpec::Constant { .. } => "Constant",
            OperatorSpec::Project { .. } => "Project",
            OperatorSpec::Filter { .. } => "Filter",
            OperatorSpec::Union => "Union",
            OperatorSpec::Aggregate { aggregates, keys } if aggregates.is_empty() && !keys.is_empty() => "Distinct",
            OperatorSpec::Aggregate { .. } => "Aggregate",
            OperatorSpec::Join(join) => join.kind.name(),
            OperatorSpec::Unnest(_) => "Unnest",
            OperatorSpec::Rank(RankSpec { show: Show::First { .. }, .. }) => "First",
            OperatorSpec::Rank(RankSpec { show: Show::Window { .. }, .. }) => "Window",
            OperatorSpec::SessionWindow(_) => "SessionWindow",
            OperatorSpec::HopAggregate { .. } => "HopAggregate",
            OperatorSpec::Latest => "Latest",
            OperatorSpec::Hold => "Hold",
            OperatorSpec::Expire { .. } => "Expire",
            OperatorSpec::TemporalFilter(_) => "TemporalFilter",
            OperatorSpec::TemporalJoin(_) => "TemporalJoin",
            OperatorSpec::LookupJoin(_) => "LookupJoin",
            OperatorSpec::Match(_) => "Match",
        }
    }
}

impl JoinKind {
    /// Its name, as EXPLAIN prints it.
    pub fn name(self) -> &'static str {
        match self {
            JoinKind::Inner => "InnerJoin",
            JoinKind::Left => "LeftJoin",
            JoinKind::Right => "RightJoin",
            JoinKind::Full => "FullJoin",
            JoinKind::Semi => "SemiJoin",
            JoinKind::Anti => "AntiJoin",
        }
    }
}

/// An aggregate function applied to columns of the aggregate operator's input.
#[derive(Clone, Debug)]
pub struct AggregateCall {
    /// The function.
    pub function: AggregateFunction,
    /// Its argument's column; `None` only for `count(*)`.
    pub argument: Option<usize>,
    /// True: each distinct argument counts once.
    pub distinct: bool,
    /// A boolean column: only rows where it is true count.
    pub filter: Option<usize>,
    /// Name, type and nullability of the result, see [`AggregateFunction::result_type`].
    pub output: FieldRef,
}

impl AggregateCall {
    /// True for an aggregate that remembers its arguments one by one.
    pub fn keeps_values(&self) -> bool {
        match self.function {
            AggregateFunction::Min
            | AggregateFunction::Max
            | AggregateFunction::StringAgg { .. }
            | AggregateFunction::ArrayAgg => true,
            AggregateFunction::BoolAnd | AggregateFunction::BoolOr => false,
            AggregateFunction::Count
            | AggregateFunction::Sum
            | AggregateFunction::Avg
            | AggregateFunction::VarSamp
            | AggregateFunction::VarPop
            | AggregateFunction::StddevSamp
            | AggregateFunction::StddevPop => self.distinct,
        }
    }
}

/// The aggregates that are kept current under retraction.
///
/// NULL arguments are skipped by all but `count(*)` and `array_agg`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AggregateFunction {
    /// Number of rows, or of arguments that are not NULL.
    Count,
    /// Sum.
    Sum,
    /// Mean.
    Avg,
    /// Smallest argument.
    Min,
    /// Greatest argument.
    Max,
    /// True when all are true.
    BoolAnd,
    /// True when one is true.
    BoolOr,
    /// Sample variance; NULL below two arguments.
    VarSamp,
    /// Population variance.
    VarPop,
    /// Square root of the sample variance.
    StddevSamp,
    /// Square root of the population variance.
    StddevPop,
    /// The texts joined, in order of value.
    StringAgg {
        /// What stands between two texts.
        delimiter: String,
    },
    /// The arguments as a list in order of value, NULLs last.
    ArrayAgg,
}

impl AggregateFunction {
    /// Its SQL name.
    pub fn name(&self) -> &'static str {
        match self {
            AggregateFunction::Count => "count",
            AggregateFunction::Sum => "sum",
            AggregateFunction::Avg => "avg",
            AggregateFunction::Min => "min",
            AggregateFunction::Max => "max",
            AggregateFunction::BoolAnd => "bool_and",
            AggregateFunction::BoolOr => "bool_or",
            AggregateFunction::VarSamp => "var_samp",
            AggregateFunction::VarPop => "var_pop",
            AggregateFunction::StddevSamp => "stddev_samp",
            AggregateFunction::StddevPop => "stddev_pop",
            AggregateFunction::StringAgg { .. } => "string_agg",
            AggregateFunction::ArrayAgg => "array_agg",
        }
    }
}

impl fmt::Display for AggregateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
