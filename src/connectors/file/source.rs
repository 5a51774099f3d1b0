//! Files as a source. Offsets are bytes, of a packed file those unpacked: the end of a record, its line end included.
//! Of a Parquet file they are rows.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;

use super::input::{Input, shorter};
use super::lines::{Decoder, LinesReader, Watched, named};
use super::options::{FileOptions, Format, Mode};
use super::parquet::ParquetFile;
use super::paths::open_error;
use super::records::{Next, Records};
use super::splits::{self, FollowedFiles};
use crate::connectors::formats::Columns;
use crate::connectors::formats::csv::{CsvDecoder, CsvOptions, FieldMap, Splitter};
use crate::connectors::formats::json::JsonDecoder;
use crate::connectors::options::Options;
use crate::connectors::registry::{ConnectorColumn, schema_of};
use crate::exec::source::{Offset, ReadRequest, Source, SourceReader, SplitId, Splits};
use crate::types::{Error, Result, SqlState};

/// The rows of some files.
pub(crate) struct FileSource {
    options: FileOptions,
    columns: Vec<ConnectorColumn>,
    schema: SchemaRef,
    followed: Arc<FollowedFiles>,
}

impl FileSource {
    /// The source that the options describe. Looks at the first file there is.
    ///
    /// # Errors
    /// See [`crate::connectors::Connectors::open`]; 42703 when a CSV header or a Parquet file lacks a column.
    pub(crate) fn from_options(options: &Options<'_>, columns: &[ConnectorColumn]) -> Result<Arc<dyn Source>> {
        let options = FileOptions::parse(options)?;
        let schema = schema_of(columns);
        // Refuses types that no format fills, before any job reads.
        Columns::new(&schema, columns, options.timestamp_unit, &[])?;
        let source = FileSource { options, columns: columns.to_vec(), schema, followed: Arc::default() };
        let found = match source.options.paths.find() {
            Err(_) if source.options.mode == Mode::Follow => Vec::new(),
            other => other?,
        };
        match found.first() {
            Some(path) => source.look_at(path)?,
            None if source.options.mode == Mode::Once && source.options.paths.several() => {
                return Err(source.options.paths.nothing());
            }
            None => {}
        }
        Ok(Arc::new(source))
    }

    /// Checks that a file has the columns.
    fn look_at(&self, path: &Path) -> Result<()> {
        match &self.options.format {
            Format::Json => open(path).map(drop),
            Format::Csv(csv) => {
                let empty = open(path)?.metadata()?.len() == 0;
                // A file that is followed may be there before its header.
                if empty && self.options.mode == Mode::Follow {
                    return Ok(());
                }
                self.first_record(path, Some(csv)).map(drop)
            }
            Format::Parquet => ParquetFile::open(path, &self.columns).map(drop),
        }
    }

    /// Where the first record of rows starts, behind byte order mark and header; for CSV which field fills each column.
    fn first_record(&self, path: &Path, csv: Option<&CsvOptions>) -> Result<(u64, FieldMap)> {
        let mut map = FieldMap::by_position(self.columns.len());
        let input = Input::open(open(path)?, self.options.compression, 0).map_err(|error| named(path, error))?;
        let mut records = Records::new(input, 0, None, csv.is_some(), true);
        records.skip_byte_order_mark().map_err(|error| named(path, error))?;
        if let Some(csv) = csv
            && csv.header
        {
            let header = match records.next().map_err(|error| named(path, error))? {
                Next::Record(record) => Splitter::default()
                    .header(records.bytes(&record), csv.delimiter)
                    .map_err(|error| in_file(path, Error::new(error.code, format!("header: {}", error.reason))))?,
                Next::End | Next::TooLong(_) => Vec::new(),
            };
            map = FieldMap::by_name(&header, &self.columns).map_err(|error| in_file(path, error))?;
        }
        Ok((records.offset(), map))
    }

    fn lines(&self, request: &ReadRequest, place: splits::Place) -> Result<Box<dyn SourceReader>> {
        let path = place.path;
        let csv = match &self.options.format {
            Format::Csv(csv) => Some(csv),
            Format::Json | Format::Parquet => None,
        };
        let from = request.from.0.max(place.range.start);
        let (first, map) =
            if from == 0 || csv.is_some() { self.first_record(&path, csv)? } else { (0, FieldMap::by_position(0)) };
        let decoder = match csv {
            Some(csv) => Decoder::Csv(CsvDecoder::new(csv.clone(), map, &self.columns)),
            None => Decoder::Json(JsonDecoder::new(&self.columns)),
        };
        let columns = Columns::new(&self.schema, &self.columns, self.options.timestamp_unit, &request.columns)?;
        let file = open(&path)?;
        let length = file.metadata()?.len();
        // Into the middle of a file by the line that is under way there, which belongs to the split before.
        let inside = place.range.start > 0 && request.from.0 <= place.range.start;
        let start = if inside { place.range.start - 1 } else { from.max(first) };
        let input = Input::open(file, self.options.compression, start).map_err(|error| named(&path, error))?;
        let needed = request.until.unwrap_or(request.from).max(request.from).0;
        if !input.is_packed() && length < needed {
            let code = match self.options.mode {
                Mode::Once => SqlState::IoError,
                Mode::Follow => SqlState::UndefinedFile,
            };
            return Err(in_file(&path, Error::new(code, shorter(length, needed).to_string()))
                .hint("A file must not be cut or replaced while a table stands on it."));
        }
        // A packed file is there as a whole.
        let followed = self.options.mode == Mode::Follow && !input.is_packed() && request.until.is_none();
        let until = request.until.map(|until| until.0);
        let mut records = Records::new(input, start, until, csv.is_some(), !followed);
        if inside {
            records.next().map_err(|error| named(&path, error))?;
        }
        let watched = followed.then(|| Watched {
            files: Arc::clone(&self.followed),
            key: place.key,
            split: request.split.clone(),
        });
        // The last part of a file that is packed, or grew, has no end of its own.
        let range_end = if records.input().is_packed() { u64::MAX } else { place.range.end };
        let offsets = request.offsets;
        Ok(Box::new(LinesReader::new(path, records, range_end, decoder, columns, offsets, watched)))
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| open_error(path, &error))
}

/// An error that names its file.
pub(crate) fn in_file(path: &Path, error: Error) -> Error {
    let mut named = Error::new(error.code(), format!("file \"{}\": {}", path.display(), error.message()));
    if let Some(detail) = error.detail_text() {
        named = named.detail(detail);
    }
    if let Some(hint) = error.hint_text() {
        named = named.hint(hint);
    }
    named
}

impl Source for FileSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self, known: &[(SplitId, Offset)]) -> Result<Splits> {
        splits::find(&self.options, &self.followed, known)
    }

    fn open(&self, request: &ReadRequest) -> Result<Box<dyn SourceReader>> {
        let place = splits::locate(&self.options, &self.followed, &request.split)?;
        match self.options.format {
            Format::Parquet => {
                let file = ParquetFile::open(&place.path, &self.columns)?;
                Ok(Box::new(file.read(request)?))
            }
            Format::Json | Format::Csv(_) => self.lines(request, place),
        }
    }

    fn ends(&self) -> bool {
        true
    }
}
