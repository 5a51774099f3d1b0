//! The coordinator and what stands on it: sessions, DDL, DML, reads and recovery.
//!
//! ```text
//! Session ── statement ──► ddl      catalog log, then the coordinator's relations
//!                          dml      read at a pin, then one write
//!                          transaction  a block's changes and its one time
//!                          prepared, sql_cursors, copy  what a session keeps between messages
//!                          read     plan → pin → DataFusion over pages of the pin
//!                          show     what the catalog and the coordinator know
//! ```
//!
//! Deliberately absent: wire formats.

mod aggregate_functions;
mod alarm;
mod alter;
mod api;
mod bad_rows;
mod checkpoints;
mod computed;
pub mod coordinator;
mod copy;
mod cursor;
mod database;
mod ddl;
mod define;
mod dml;
mod errors;
mod event_times;
mod explain;
mod feeds;
mod functions;
mod index_ddl;
mod installed;
mod interrupt;
mod lookup;
mod operator_table;
mod operators;
mod pending;
mod pg_catalog;
mod point_read;
mod prepared;
mod query_threads;
mod queryable;
mod read;
mod reading_order;
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
mod sql_cursors;
mod subscribe;
mod system_tables;
mod table_sink;
mod timeline;
mod transaction;
mod turns;
mod yielding;

pub use crate::sql::{CopyFormat, CopyOptions, Parameter, Statement, StatementKind, sql_name as type_name};
pub use api::{
    Answer, CHANGE_COLUMNS, ChangesRequest, Column, EngineConfig, GivenKey, JobInfo, Notice, Scan, ScanRequest, Tag,
    ViewInfo,
};
pub use checkpoints::{CheckpointConfig, offline, savepoint_folder};
pub use copy::CopyIn;
pub use database::Engine;
pub use errors::error_of;
pub use operators::{OperatorInfo, OperatorPart};
pub use prepared::Prepared;
pub use queryable::{BYTE_SLOT, Queryable, ROW_SLOT};
pub use session::Session;
pub use transaction::TransactionStatus;
