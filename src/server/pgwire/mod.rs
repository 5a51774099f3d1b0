//! PostgreSQL's protocol 3, the server's half: startup, simple and extended query, cancel.
//!
//! Each connection is one task with one engine session. A statement runs under a token that a
//! cancel request, a client that went away, or the server's stop fires. Rows are sent while the
//! statement runs, flushed whenever the next batch is not there yet, so a slow answer trickles and
//! a cancel reaches it.

mod connection;
mod copy;
mod dialogue;
mod extended;
mod frames;
mod listener;
mod messages;
mod parameters;
mod rows;
mod startup;
mod watched;

pub(crate) use listener::{Door, House, serve};
