//! The wires: PostgreSQL's protocol and HTTP.
//!
//! ```text
//! psql ── pgwire/ ─┐
//!                  ├─ engine::api ─── errors  one door for errors
//! curl ── http/ ───┘
//! ```
//!
//! Deliberately absent: plans, and anything that decides what a statement means.

mod copy;
mod errors;
mod from_binary;
mod http;
mod listen;
mod metrics;
mod pg_types;
mod pgwire;
mod progress;

pub use listen::{BoundSockets, Listen, Server, ServerAddresses};
