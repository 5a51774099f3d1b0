//! The connector `queryable_state`: rows of a view, table or operator of another clink server, over HTTP.
//!
//! ```text
//! options  what to read        client  a request and its answer    rows     batches → rows of the table
//! source   the one split       there   what is asked for           snapshot, changes  the readers
//! export   the whole state of a job, for tools
//! ```
//!
//! The one split is named after the time at which it was first read, and can be read again as long as the other server keeps
//! its past from there. Its offsets are numbers of rows while the rows of that time are read, and from then on times of the
//! other server: up to there all changes are in. A time is far greater than the number of rows of any relation.
//!
//! Changes are given by whole times of the other server, so a time here never shows a part of one there. A server that is not
//! there is asked again and again; one that has lost its past fails the table.

mod changes;
mod client;
mod export;
mod options;
mod rows;
mod snapshot;
mod source;
mod there;

pub(crate) use export::export_job;
pub(crate) use source::open;

#[cfg(test)]
mod tests;
