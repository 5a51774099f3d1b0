//! Values as PostgreSQL prints them and reads them, and as JSON.

mod binary;
mod column;
mod datetime;
mod from_binary;
mod number;
mod pg_types;

pub(crate) use column::{Column, write_json_string};
pub(crate) use from_binary::text_of_binary;
pub(crate) use pg_types::{pg_type, stored_type};
