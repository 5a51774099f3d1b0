//! Values as PostgreSQL prints them, and as JSON.

mod binary;
mod column;
mod datetime;
mod number;
mod rows;

pub(crate) use column::{Column, is_bare_numeric, write_json_string};
pub(crate) use rows::JsonObjects;
