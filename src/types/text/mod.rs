//! Values as PostgreSQL prints them, and as JSON.

mod binary;
mod column;
mod datetime;
mod number;
mod rows;

pub use column::Column;
pub(crate) use column::{is_bare_numeric, write_json_string};
pub use rows::JsonObjects;
