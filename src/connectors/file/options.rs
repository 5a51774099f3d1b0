//! The options of the connector `file`.

use super::paths::Paths;
use crate::connectors::formats::csv::CsvOptions;
use crate::connectors::formats::values::TimestampUnit;
use crate::connectors::options::{OptionValue, Options};
use crate::types::{Error, Result};

/// How the records are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object a line.
    Json,
    /// CSV.
    Csv(CsvOptions),
    /// Parquet.
    Parquet,
}

/// How files are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// Told from each file's first bytes.
    Auto,
    /// Not at all.
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// What happens at the end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// It is the end.
    Once,
    /// More may come, there and in new files.
    Follow,
}

/// What `WITH (…)` says, checked.
#[derive(Clone, Debug)]
pub(crate) struct FileOptions {
    /// Which files.
    pub(crate) paths: Paths,
    /// How their records are written.
    pub(crate) format: Format,
    /// How they are packed.
    pub(crate) compression: Compression,
    /// Once, or again and again.
    pub(crate) mode: Mode,
    /// The unit of numbers in timestamp columns.
    pub(crate) timestamp_unit: Option<TimestampUnit>,
}

impl FileOptions {
    /// Takes and checks the options; looks at no file.
    pub(crate) fn parse(options: &Options<'_>) -> Result<FileOptions> {
        let path = options.require("path", "orders.ndjson")?;
        path.string("path")?;
        let format = options.require("format", "json")?;
        let mode = options.choice("mode", &[("once", Mode::Once), ("follow", Mode::Follow)])?.unwrap_or(Mode::Once);
        let format = match format.text.to_ascii_lowercase().as_str() {
            "csv" => {
                let header = options.boolean("header", true)?;
                let delimiter = match options.take("delimiter") {
                    Some(value) => parse_delimiter(value)?,
                    None => b',',
                };
                let null = match options.take("null") {
                    Some(value) => parse_null(value, delimiter)?,
                    None => String::new(),
                };
                Format::Csv(CsvOptions { header, delimiter, null })
            }
            "avro" | "orc" | "protobuf" | "arrow" => {
                return Err(Error::unsupported(format!("format \"{}\" is not supported yet", format.text))
                    .hint("Known formats: csv, json, parquet.")
                    .position(format.position));
            }
            _ => format
                .choose("format", &[("csv", Format::Json), ("json", Format::Json), ("parquet", Format::Parquet)])?,
        };
        // A Parquet file says both itself.
        let (compression, timestamp_unit) = if format == Format::Parquet {
            (Compression::None, None)
        } else {
            let known = [
                ("auto", Compression::Auto),
                ("none", Compression::None),
                ("gzip", Compression::Gzip),
                ("zstd", Compression::Zstd),
            ];
            let units = [
                ("s", TimestampUnit::Seconds),
                ("ms", TimestampUnit::Millis),
                ("us", TimestampUnit::Micros),
                ("ns", TimestampUnit::Nanos),
            ];
            let compression = options.choice("compression", &known)?.unwrap_or(Compression::Auto);
            (compression, options.choice("timestamp_unit", &units)?)
        };
        options.finish()?;
        Ok(FileOptions { paths: Paths::parse(path)?, format, compression, mode, timestamp_unit })
    }
}

pub(super) fn parse_delimiter(value: &OptionValue) -> Result<u8> {
    match value.text.as_bytes() {
        // `E'\t'` and the two characters `\t` both mean a tab.
        b"\\t" => Ok(b'\t'),
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r' | 0) => Ok(*byte),
        _ => Err(value.invalid("delimiter", "Use one ASCII character that is no quote and no line end")),
    }
}

pub(super) fn parse_null(value: &OptionValue, delimiter: u8) -> Result<String> {
    let fits = value.text.bytes().all(|b| b != delimiter && !matches!(b, b'"' | b'\n' | b'\r'));
    if fits {
        Ok(value.text.clone())
    } else {
        Err(value.invalid("null", "Use a text without delimiter, quote and line end"))
    }
}
