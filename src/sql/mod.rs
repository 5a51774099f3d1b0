//! From SQL text to statements and job plans. Runs nothing.
//!
//! ```text
//! text → parse → Statement → (engine) → plan_query  → LogicalPlan, for one answer
//!                                     → plan_view   → JobPlan, for a standing query
//! ```
//!
//! The grammar is sqlparser's PostgreSQL dialect; statements that are our own are read word by word
//! ([`parser`], [`create`]) and what is known elsewhere and not offered here is refused by name
//! ([`refusals`], [`query_checks`], [`view_checks`]). A query is planned by DataFusion; before its
//! types are coerced the plan is given PostgreSQL's meaning ([`meaning`]), for SELECT and view alike.

mod ages;
mod aggregates;
mod alter;
mod any_all;
mod arithmetic;
mod bounded_functions;
mod buckets;
mod cast_text;
mod casts;
mod catalog_queries;
mod create;
mod create_function;
mod create_sink;
mod dialect;
mod encodings;
mod errors;
mod event_clauses;
mod event_time;
mod exists;
mod explain;
mod form_checks;
mod functions;
mod grouping;
mod hop_panes;
mod index;
mod intervals;
mod json_aggregates;
mod jsonb;
mod locate;
mod lower;
mod match_recognize;
mod matched;
mod math;
mod meaning;
mod multiplicity;
mod names;
mod null_aware;
mod number_texts;
mod parameters;
mod parser;
mod patterns;
mod planner;
mod prune;
mod push_down_filter;
mod query_checks;
mod reader;
mod refusals;
mod row_functions;
mod row_values;
mod scalar_functions;
mod scope_checks;
mod series;
mod session_statements;
mod set_functions;
pub mod show_create;
mod spellings;
mod state_ttl;
mod statement;
mod subscribe;
mod temporal_join;
mod time_templates;
mod time_texts;
mod times_of_texts;
mod timestamps;
mod tokens;
mod types;
mod using;
mod view_checks;
mod window_functions;
mod windows;
mod wording;
mod written;
mod zone;
mod zoned;

#[cfg(test)]
mod parser_tests;
#[cfg(test)]
mod planner_tests;

pub use casts::{cast, cast_array, cast_array_in};
pub use catalog_queries::{reads_settings, resolve_settings};
pub use create_sink::{assigned, query, show_create as show_create_sink};
pub use errors::{from_datafusion, to_datafusion};
pub use explain::{ImportedRelation, explain_job};
pub use names::{quote_ident, quoted as quoted_name, shown_name};
pub use parameters::{
    Parameter, bind, bound_literal, cast_expression, parameter_index, parameter_places, parameter_types,
    refuse_parameters, type_by_name, with_types,
};
pub(crate) use parser::parse_query;
pub use parser::{parse, parse_within};
pub use planner::{
    DEFAULT_SCHEMA, InsideInfo, KnownRelations, PlannedView, RelationInfo, Resolver, configure, plan_computed,
    plan_expression, plan_plain_view, plan_predicate, plan_query, plan_view, session_config, view_columns,
};
pub(crate) use reader::{fold as folded, object_name};
pub use scalar_functions::{PlannedFunction, called_name, plan_function};
pub(crate) use session_statements::table_query;
pub use statement::{
    Alter, ColumnDefinition, Copy, CopyDirection, CopyFormat, CopyOptions, CopySubject, CreateFunction, CreateIndex,
    CreateMaterializedView, CreateSink, CreateTable, CreateView, CursorStatement, CursorSubject, Describe, Discard,
    Drop, Emit, Explain, Fetch, FunctionParameter, FunctionVolatility, JobAction, JobCommand, Name, ObjectKind,
    OptionValue, PreparedStatement, SetVariable, Show, Standing, Statement, StatementKind, Subscribe, Transaction,
    TransactionModes, WatermarkClause,
};
pub use types::sql_name;
pub(crate) use windows::rewrite as rewrite_windows;
pub use zone::{SessionZone, set_zone};
