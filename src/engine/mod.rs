//! The coordinator and what stands on it: sessions, DDL, DML, reads and recovery.
//!
//! ```text
//! Session ── statement ──► ddl      catalog log, then the coordinator's relations
//!                          dml      read at a pin, then one write
//!                          read     plan → pin → DataFusion over pages of the pin
//!                          show     what the catalog and the coordinator know
//! ```
//!
//! Deliberately absent: wire formats.

mod aggregate_functions;
mod api;
mod bad_rows;
mod computed;
pub mod coordinator;
mod cursor;
mod database;
mod ddl;
mod define;
mod dml;
mod errors;
mod feeds;
mod installed;
mod interrupt;
mod lookup;
mod query_threads;
mod read;
mod recovery;
mod relations;
mod scan;
mod scan_exec;
mod sequencer;
mod session;
mod settings;
mod show;
mod sink_ddl;
mod sinks;
mod source_progress;
mod system_tables;
mod timeline;
mod yielding;

pub use crate::sql::{Statement, sql_name as type_name};
pub use api::{Answer, Column, EngineConfig, JobInfo, Notice, Scan, ScanRequest, Tag, ViewInfo};
pub use database::Engine;
pub use errors::error_of;
pub use session::Session;
