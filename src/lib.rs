//! clink: a SQL-first streaming database in one binary.
//!
//! The layers, from the bottom up (an arrow never points up; `tests/layering.rs` holds this):
//!
//! ```text
//! server  →  engine  →  sql, connectors, catalog, exec, state  →  types, env
//! ```

pub mod catalog;
pub mod connectors;
pub mod engine;
pub mod env;
pub mod exec;
pub mod server;
pub mod sql;
pub mod state;
pub mod types;
