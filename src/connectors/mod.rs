//! The ends where rows enter and leave, each behind the traits of [`crate::exec::source`].
//!
//! ```text
//! WITH (…) → Options → Connectors::open → SourceTable { Arc<dyn Source>, … }
//!                                          ├ file/     reads bytes and cuts them into records
//!                                          │   formats/  record → columns
//!                                          ├ queryable_state/  rows of another clink server
//!                                          └ datagen, nexmark: rows made up by number
//! ```
//!
//! Deliberately absent: SQL, the wires, and any list of connectors that is not a value.

mod blackhole;
mod datagen;
pub(crate) mod file;
pub(crate) mod formats;
mod generated;
mod nexmark;
pub mod options;
mod print;
mod queryable_state;
mod registry;

pub use options::OptionValue;
pub(crate) use queryable_state::export_job;
pub use registry::{ConnectorColumn, Connectors, OnError, SourceTable};
