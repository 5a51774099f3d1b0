//! A file as a source. Offsets are bytes: the end of a record, its line end included.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::options::{FileOptions, Format, reason};
use super::reader::{Decoder, FileReader, RecordBuffer};
use crate::connectors::formats::Columns;
use crate::connectors::formats::csv::{CsvDecoder, FieldMap, Splitter};
use crate::connectors::formats::json::JsonDecoder;
use crate::connectors::formats::values::TimestampUnit;
use crate::connectors::options::Options;
use crate::connectors::registry::{ConnectorColumn, schema_of};
use crate::exec::source::{Offset, Source, SourceReader};
use crate::types::{Error, Result, SqlState};

/// The rows of one regular file.
pub(crate) struct FileSource {
    path: PathBuf,
    columns: Vec<ConnectorColumn>,
    schema: SchemaRef,
    format: Format,
    /// For CSV: which field fills each column.
    map: FieldMap,
    /// Where the first record of rows starts: behind the header and the byte order mark.
    first: u64,
    timestamp_unit: Option<TimestampUnit>,
}

impl FileSource {
    /// The source that the options describe. Reads the header of a CSV file.
    ///
    /// # Errors
    /// See [`crate::connectors::Connectors::open`]; 42703 when a CSV header lacks a column.
    pub(crate) fn from_options(options: &mut Options<'_>, columns: &[ConnectorColumn]) -> Result<Arc<dyn Source>> {
        let FileOptions { path, format, timestamp_unit } = FileOptions::parse(options)?;
        let schema = schema_of(columns);
        // Refuses types that no format fills, before any job reads.
        Columns::new(&schema, columns, timestamp_unit)?;
        let mut map = FieldMap::by_position(columns.len());
        let mut buffer = RecordBuffer::new(open(&path)?, 0, None, matches!(format, Format::Csv(_)));
        let named = |error: Error| {
            let mut named = Error::new(error.code(), format!("file \"{}\": {}", path.display(), error.message()));
            if let Some(detail) = error.detail_text() {
                named = named.detail(detail);
            }
            if let Some(hint) = error.hint_text() {
                named = named.hint(hint);
            }
            named
        };
        buffer.skip_byte_order_mark().map_err(|error| named(error.into()))?;
        if let Format::Csv(csv) = &format
            && csv.header
        {
            let header = match buffer.next().map_err(named)? {
                Some(record) => Splitter::default()
                    .header(buffer.bytes(&record), csv.delimiter)
                    .map_err(|error| named(Error::new(error.code, format!("header: {}", error.reason))))?,
                None => Vec::new(),
            };
            map = FieldMap::by_name(&header, columns).map_err(named)?;
        }
        let first = buffer.offset();
        Ok(Arc::new(FileSource { path, columns: columns.to_vec(), schema, format, map, first, timestamp_unit }))
    }
}

fn open(path: &std::path::Path) -> Result<File> {
    File::open(path).map_err(|error| {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => SqlState::UndefinedFile,
            _ => SqlState::IoError,
        };
        Error::new(code, format!("could not open file \"{}\": {}", path.display(), reason(&error)))
    })
}

impl Source for FileSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn open(&self, from: Offset, until: Option<Offset>) -> Result<Box<dyn SourceReader>> {
        let file = open(&self.path)?;
        let length = file.metadata()?.len();
        let needed = until.unwrap_or(from).max(from).0;
        if length < needed {
            return Err(Error::new(
                SqlState::IoError,
                format!("file \"{}\" has {length} bytes, but {needed} were read before", self.path.display()),
            )
            .hint("The file must not be cut or replaced while a table stands on it."));
        }
        let start = from.0.max(self.first);
        let decoder = match &self.format {
            Format::Json => Decoder::Json(JsonDecoder::new(&self.columns)),
            Format::Csv(csv) => Decoder::Csv(CsvDecoder::new(csv.clone(), self.map.clone(), &self.columns)),
        };
        let columns = Columns::new(&self.schema, &self.columns, self.timestamp_unit)?;
        let quoted = matches!(self.format, Format::Csv(_));
        let buffer = RecordBuffer::new(file, start, until.map(|offset| offset.0), quoted);
        Ok(Box::new(FileReader::new(self.path.clone(), buffer, decoder, columns)?))
    }

    fn size(&self) -> Option<Offset> {
        std::fs::metadata(&self.path).ok().map(|metadata| Offset(metadata.len()))
    }
}
