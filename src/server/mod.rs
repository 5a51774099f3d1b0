//! The wires: PostgreSQL's protocol and HTTP.
//!
//! ```text
//! psql ── pgwire/ ─┐                 ┌─ text    values as PostgreSQL prints them
//!                  ├─ engine::api ───┤
//! curl ── http/ ───┘                 └─ errors  one door for errors
//! ```
//!
//! Deliberately absent: plans, and anything that decides what a statement means.

mod copy;
mod errors;
mod http;
mod listen;
mod pgwire;
mod text;

pub use listen::{BoundSockets, Listen, Server, ServerAddresses};
