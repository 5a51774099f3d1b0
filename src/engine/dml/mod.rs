//! INSERT, UPDATE, DELETE, TRUNCATE.
//!
//! Every statement is: evaluate with DataFusion at one time → check → one write at one new time.
//!
//! ```text
//! statement   which table, who may write it, the turn of writers, the write, the answer
//! insert      the rows proposed: VALUES of literals without planning, all else as a query
//! conflict    primary keys that are there already
//! change      UPDATE, DELETE, TRUNCATE: retract exactly what was read
//! assign      PostgreSQL's assignment casts and column constraints
//! evaluate    queries over the table, and over rows that are not in any table
//! keys        rows by key
//! ```
//!
//! A statement that reads the table in order to write it holds the table's turn until its write is
//! done; the turn moves into the task that writes, so it is kept also when nobody waits any more.
//! Plain inserts into a table without primary key take no turn, so that their writes share a commit.

pub(crate) mod assign;
pub(crate) mod change;
pub(crate) mod conflict;
pub(crate) mod evaluate;
pub(crate) mod insert;
pub(crate) mod keys;
pub(crate) mod statement;

pub(crate) use statement::{apply, describe, execute};
