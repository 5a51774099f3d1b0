//! The objects of the database: what they are, what stands on what, and the durable log of DDL.
//!
//! A [`Catalog`] is one immutable version; readers hold it behind an `Arc` for as long as a
//! statement runs. The [`CatalogStore`] is the one writer: it appends a change to the log, syncs,
//! and only then shows the next version. A crash between the two shows the change after restart,
//! though nobody was told of it; a crash before leaves nothing.
//!
//! Deliberately absent: SQL planning and execution. The log keeps each object's canonical SQL text;
//! the engine plans it again at open.

mod log;
mod objects;
mod store;
mod version;

pub use log::{CatalogLog, Change, ObjectRecord};
pub use objects::{
    Definition, FunctionDefinition, MaterializedView, Object, ObjectKind, SinkDefinition, Table, TableColumn, View,
    errors_name, errors_schema, late_name, late_schema,
};
pub use store::CatalogStore;
pub use version::{Catalog, DEFAULT_SCHEMA, RESERVED_SCHEMAS, near_miss};
