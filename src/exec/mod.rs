//! Worker threads and what runs on them: timely dataflows built from a [`plan::JobPlan`].
//!
//! Deliberately absent: SQL text, connectors by name, wire formats.

mod aggregate_types;
pub mod plan;
pub mod source;
