//! The options of the connector `file`.

use std::path::PathBuf;

use crate::connectors::formats::csv::CsvOptions;
use crate::connectors::formats::values::TimestampUnit;
use crate::connectors::options::{OptionValue, Options};
use crate::types::{Error, Result, SqlState};

/// How the records are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// One JSON object a line.
    Json,
    /// CSV.
    Csv(CsvOptions),
}

/// What `WITH (…)` says, checked.
#[derive(Clone, Debug)]
pub(crate) struct FileOptions {
    /// The file; absolute.
    pub(crate) path: PathBuf,
    /// How its records are written.
    pub(crate) format: Format,
    /// The unit of numbers in timestamp columns.
    pub(crate) timestamp_unit: Option<TimestampUnit>,
}

impl FileOptions {
    /// Takes and checks the options; the file has to be there.
    pub(crate) fn parse(options: &Options<'_>) -> Result<FileOptions> {
        let path = options.require("path", "orders.ndjson")?;
        let format = options.require("format", "json")?;
        // A follower never ends; refused before it is taken for an unknown option.
        let mode = options.take("mode");
        let timestamp_unit = options.take("timestamp_unit").map(parse_unit).transpose()?;
        let format = match format.text.to_ascii_lowercase().as_str() {
            "json" => Format::Json,
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
            "parquet" | "avro" | "orc" | "protobuf" | "arrow" => {
                return Err(Error::unsupported(format!("format \"{}\" is not supported yet", format.text))
                    .hint("Known formats: csv, json.")
                    .position(format.position));
            }
            _ => return Err(format.invalid("format", "Known formats: csv, json")),
        };
        if let Some(mode) = mode {
            match mode.text.to_ascii_lowercase().as_str() {
                "once" => {}
                "follow" => {
                    return Err(Error::unsupported("mode \"follow\" is not supported yet")
                        .hint("Leave the option out: the file is read once, to its end.")
                        .position(mode.position));
                }
                _ => return Err(mode.invalid("mode", "Use once")),
            }
        }
        options.refuse(&["compression", "glob", "quote", "escape"])?;
        options.finish()?;
        Ok(FileOptions { path: find_file(path)?, format, timestamp_unit })
    }
}

fn parse_unit(value: &OptionValue) -> Result<TimestampUnit> {
    match value.text.as_str() {
        "s" => Ok(TimestampUnit::Seconds),
        "ms" => Ok(TimestampUnit::Millis),
        "us" => Ok(TimestampUnit::Micros),
        "ns" => Ok(TimestampUnit::Nanos),
        _ => Err(value.invalid("timestamp_unit", "Use s, ms, us or ns")),
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

/// The path made absolute; it has to name a regular file.
fn find_file(value: &OptionValue) -> Result<PathBuf> {
    let text = value.text.as_str();
    let refuse = |what: &str| {
        Error::unsupported(format!("{what} is not supported yet: \"{text}\""))
            .hint("Name one uncompressed file.")
            .position(value.position)
    };
    if text.is_empty() || text.contains('\0') {
        return Err(value.invalid("path", "Name a file"));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        return Err(refuse(&format!("reading from {scheme}://")));
    }
    let path = std::env::current_dir()?.join(text);
    let metadata = match std::fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(_) if text.contains(['*', '?', '[']) => {
            return Err(refuse("reading several files by a pattern"));
        }
        Err(error) => {
            let code = match error.kind() {
                std::io::ErrorKind::NotFound => SqlState::UndefinedFile,
                _ => SqlState::IoError,
            };
            return Err(Error::new(code, format!("could not open file \"{}\": {}", path.display(), reason(&error)))
                .hint("Relative paths start at the server's working directory.")
                .position(value.position));
        }
    };
    if metadata.is_dir() {
        return Err(refuse("reading a folder"));
    }
    if !metadata.is_file() {
        return Err(value.invalid("path", "Name a regular file"));
    }
    let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    if let Some("gz" | "zst" | "bz2" | "xz" | "lz4" | "zip" | "snappy") = extension.as_deref() {
        return Err(refuse("reading a compressed file"));
    }
    Ok(path)
}

/// An I/O error in PostgreSQL's words where it has some.
pub(crate) fn reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
        _ => error.to_string(),
    }
}
