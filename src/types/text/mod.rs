//! Values as PostgreSQL prints them, and as JSON.

mod binary;
mod column;
mod datetime;
mod number;
pub(crate) mod parse;
mod rows;

pub use column::Column;
pub(crate) use column::write_json_string;
pub(crate) use datetime::{write_date, write_interval, write_time, write_timestamp};
pub(crate) use number::{write_double, write_real};
pub use rows::JsonObjects;
