//! HTTP: SQL, what runs, and reads of views, as JSON and Arrow.
//!
//! Answers are streamed: the next batch is read when the client took the one before, so a slow
//! client holds up its own read and nothing else, and a client that goes away ends it.

mod body;
mod changes;
mod connections;
mod error;
mod key_text;
mod openapi;
mod parameters;
mod queryable;
mod routes;
mod serve;
mod sql;

pub(crate) use serve::serve;
