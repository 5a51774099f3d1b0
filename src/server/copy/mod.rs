//! The forms in which COPY writes and reads rows: text, CSV, binary.
//!
//! Reading gives a text for each value, which the engine makes a value of its column; so all three
//! forms, like INSERT, take the same spellings and give the same errors.

mod binary;
mod csv;
mod decoder;
mod encoder;
mod text;

pub(crate) use decoder::Decoder;
pub(crate) use encoder::Encoder;
