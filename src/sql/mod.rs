//! From SQL text to statements and job plans. Runs nothing.
//!
//! ```text
//! text → parse → Statement → (engine) → plan_query  → LogicalPlan, for one answer
//!                                     → plan_view   → JobPlan, for a standing query
//! ```

mod statement;

pub use statement::{
    ColumnDefinition, CreateMaterializedView, CreateTable, CreateView, Describe, Drop, Explain, Name, ObjectKind,
    OptionValue, SetVariable, Show, Statement, StatementKind,
};
