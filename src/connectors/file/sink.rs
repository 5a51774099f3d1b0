//! The connector `file` as a target.
//!
//! A single file is written under a hidden name and renamed to its own when the job has caught up;
//! from then on rows are appended. A folder gets hidden parts that are renamed as they are published,
//! `<job>-<generation>-<number>.<format>`; the first ones replace the parts of the job's earlier
//! generations. So when the job starts from its beginning, readers see the old rows until the new ones
//! are all there.
//!
//! A checkpoint has the length of the file, or the number of the next part. A start goes on from there: what was written
//! behind is cut off and comes again.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::options::{parse_delimiter, parse_null};
use crate::connectors::ConnectorColumn;
use crate::connectors::formats::csv::CsvOptions;
use crate::connectors::formats::write::LineFormat;
use crate::connectors::options::Options;
use crate::connectors::registry::schema_of;
use crate::exec::sink::{Sink, SinkInput, SinkPosition, SinkWriter};
use crate::types::text::JsonObjects;
use crate::types::{Chunk, Error, Result, SqlState, Time};

/// Lines that wait in memory before they are written.
const BUFFER_BYTES_MAX: usize = 4 << 20;
/// The column that says what happened to a row, with `changelog = 'true'`.
const OP: &str = "op";
/// Options that only reading uses; they are checked there.
const READ_OPTIONS: [&str; 9] = [
    "mode",
    "timestamp_unit",
    "rate_limit",
    "compression",
    "on_error",
    "errors_retention",
    "max_row_bytes",
    "split_bytes",
    "poll_interval",
];

#[derive(Clone)]
enum Format {
    Json,
    Csv(CsvOptions),
    Parquet,
}

/// A file or folder that takes rows.
pub(crate) struct FileSink {
    path: PathBuf,
    folder: bool,
    format: Format,
    changelog: bool,
    /// The rows as they are written, with [`OP`] in a changelog.
    schema: SchemaRef,
}

impl FileSink {
    /// # Errors
    /// 22023 and 0A000 for options; 58P01 when the folder that the path is in is not there.
    pub(crate) fn from_options(options: &mut Options<'_>, columns: &[ConnectorColumn]) -> Result<Arc<dyn Sink>> {
        let path = options.require("path", "out.ndjson")?;
        path.string("path")?;
        let format = options.require("format", "json")?;
        let changelog = options.boolean("changelog", false)?;
        let name = format.text.to_ascii_lowercase();
        let format = match name.as_str() {
            "json" => Format::Json,
            "csv" => {
                let header = options.boolean("header", true)?;
                let delimiter = options.take("delimiter").map(parse_delimiter).transpose()?.unwrap_or(b',');
                let null = options.take("null").map(|value| parse_null(value, delimiter)).transpose()?;
                Format::Csv(CsvOptions { header, delimiter, null: null.unwrap_or_default() })
            }
            "parquet" => Format::Parquet,
            _ => return Err(format.invalid("format", "Known formats: csv, json, parquet")),
        };
        for name in READ_OPTIONS {
            let _ = options.take(name);
        }
        options.finish()?;
        if path.text.contains(['*', '?', '[']) {
            return Err(Error::new(SqlState::UndefinedFile, "a pattern of names cannot be written")
                .hint("Name a file, or a folder with a slash at the end.")
                .position(path.position));
        }
        let folder = path.text.ends_with('/') || Path::new(&path.text).is_dir();
        let absolute = std::path::absolute(&path.text)?;
        if matches!(format, Format::Parquet) && !folder {
            return Err(Error::unsupported("a single Parquet file cannot be appended to")
                .hint("Name a folder, with a slash at the end: it gets a Parquet file for every second with rows.")
                .position(path.position));
        }
        let parent = absolute.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() {
            return Err(Error::new(SqlState::UndefinedFile, format!("folder \"{}\" does not exist", parent.display()))
                .hint("Make the folder first.")
                .position(path.position));
        }
        let mut schema = schema_of(columns);
        if changelog {
            if columns.iter().any(|column| column.name == OP) {
                return Err(Error::new(
                    SqlState::DuplicateColumn,
                    format!("a changelog has a column \"{OP}\" of its own"),
                )
                .hint("Give the table's column another name."));
            }
            let op = Arc::new(Field::new(OP, DataType::Utf8, false));
            schema = Arc::new(Schema::new([vec![op], schema.fields().to_vec()].concat()));
        }
        Ok(Arc::new(FileSink { path: absolute, folder, format, changelog, schema }))
    }
}

impl Sink for FileSink {
    fn accepts(&self) -> SinkInput {
        if self.changelog { SinkInput::Changes } else { SinkInput::Appends }
    }

    fn check_new(&self) -> Result<()> {
        if self.folder || !self.path.exists() {
            return Ok(());
        }
        Err(Error::new(SqlState::DuplicateObject, format!("file \"{}\" is there already", self.path.display())).hint(
            "Name a file that is not there, or a folder, with a slash at the end: a sink replaces no file of others.",
        ))
    }

    fn open(&self, job: &str, generation: u64) -> Result<Box<dyn SinkWriter>> {
        let target = if self.folder {
            fs::create_dir_all(&self.path)?;
            Target::Folder(self.parts(job, generation, 1))
        } else {
            Target::File { path: self.path.clone(), generation, published: false }
        };
        let mut writer = self.writer(target);
        // What cannot be written is known before the first row.
        writer.open()?;
        Ok(Box::new(writer))
    }

    fn resumes(&self) -> bool {
        true
    }

    fn resume(&self, job: &str, position: &SinkPosition) -> Result<Box<dyn SinkWriter>> {
        let Position { generation, end } = serde_json::from_str(&position.0)
            .map_err(|error| Error::new(SqlState::DataCorrupted, format!("a file sink's position: {error}")))?;
        if self.folder {
            let parts = self.parts(job, generation, end);
            parts.cut_back()?;
            return Ok(Box::new(self.writer(Target::Folder(parts))));
        }
        let mut writer = self.writer(Target::File { path: self.path.clone(), generation, published: true });
        let mut file =
            fs::OpenOptions::new().write(true).open(&self.path).map_err(|error| self.shorter(end, &error))?;
        let length = file.metadata()?.len();
        if length < end {
            return Err(self.shorter(end, &format!("it has {length}")));
        }
        file.set_len(end)?;
        file.sync_all()?;
        file.seek(SeekFrom::End(0))?;
        writer.open = Some(Open::Lines { file, hidden: self.path.clone(), buffer: Vec::new(), rows: true });
        Ok(Box::new(writer))
    }
}

/// Where a file sink is: in a file the number of its bytes, in a folder that of the next part.
#[derive(serde::Serialize, serde::Deserialize)]
struct Position {
    generation: u64,
    end: u64,
}

impl FileSink {
    fn parts(&self, job: &str, generation: u64, next: u64) -> Parts {
        let extension = match self.format {
            Format::Json => "json",
            Format::Csv(_) => "csv",
            Format::Parquet => "parquet",
        };
        let job = job.replace(|c: char| !c.is_ascii_alphanumeric() && c != '_', "_");
        Parts { folder: self.path.clone(), job, generation, extension, next }
    }

    fn writer(&self, target: Target) -> Writer {
        let lines = match &self.format {
            Format::Json => Some(LineFormat::Json(JsonObjects::new(&self.schema))),
            Format::Csv(options) => Some(LineFormat::Csv(options.clone())),
            Format::Parquet => None,
        };
        Writer { target, lines, changelog: self.changelog, schema: Arc::clone(&self.schema), open: None }
    }

    fn shorter(&self, end: u64, why: &dyn std::fmt::Display) -> Error {
        Error::new(
            SqlState::UndefinedFile,
            format!("file \"{}\" should have {end} bytes from before: {why}", self.path.display()),
        )
        .hint("Put the file back; or RESUME JOB, which writes it anew.")
    }
}

enum Target {
    File { path: PathBuf, generation: u64, published: bool },
    Folder(Parts),
}

struct Parts {
    folder: PathBuf,
    job: String,
    generation: u64,
    extension: &'static str,
    next: u64,
}

/// A file that is being written.
enum Open {
    Lines { file: File, hidden: PathBuf, buffer: Vec<u8>, rows: bool },
    Parquet { writer: Box<ArrowWriter<File>>, hidden: PathBuf, rows: bool },
}

struct Writer {
    target: Target,
    lines: Option<LineFormat>,
    changelog: bool,
    schema: SchemaRef,
    open: Option<Open>,
}

impl Writer {
    fn open(&mut self) -> Result<&mut Open> {
        if self.open.is_none() {
            let hidden = match &self.target {
                Target::File { path, generation, .. } => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    path.with_file_name(format!(".{name}.{generation}.tmp"))
                }
                Target::Folder(parts) => parts.folder.join(format!(".{}.tmp", parts.name())),
            };
            let file = File::create(&hidden)?;
            self.open = Some(match &self.lines {
                Some(lines) => {
                    let mut buffer = Vec::new();
                    lines.header(&self.schema, &mut buffer);
                    Open::Lines { file, hidden, buffer, rows: false }
                }
                None => {
                    let level = ZstdLevel::try_new(3).map_err(parquet_error)?;
                    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(level)).build();
                    let writer = ArrowWriter::try_new(file, Arc::clone(&self.schema), Some(properties))
                        .map_err(parquet_error)?;
                    Open::Parquet { writer: Box::new(writer), hidden, rows: false }
                }
            });
        }
        self.open.as_mut().ok_or_else(|| Error::internal("a file is not open"))
    }

    /// The rows of a chunk as they are written, with how often each.
    fn rows(&self, chunk: &Chunk) -> Result<RecordBatch> {
        if !self.changelog {
            let rows = chunk.inserted_rows()?;
            return Ok(rows.with_schema(Arc::clone(&self.schema))?);
        }
        let op: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..chunk.rows()).map(|row| match chunk.diff(row) > 0 {
                true => "+I",
                false => "-D",
            })));
        let columns = [vec![op], chunk.batch().columns().to_vec()].concat();
        Ok(RecordBatch::try_new(Arc::clone(&self.schema), columns)?)
    }
}

impl SinkWriter for Writer {
    fn position(&mut self) -> Result<SinkPosition> {
        self.publish()?;
        let position = match (&self.target, &self.open) {
            (Target::Folder(parts), _) => Position { generation: parts.generation, end: parts.next },
            (Target::File { generation, .. }, Some(Open::Lines { file, .. })) => {
                Position { generation: *generation, end: file.metadata()?.len() }
            }
            (Target::File { .. }, _) => return Err(Error::internal("a file sink has no file")),
        };
        let text = serde_json::to_string(&position).map_err(|error| Error::internal(error.to_string()))?;
        Ok(SinkPosition(text))
    }

    fn write(&mut self, _: Time, changes: &[Chunk]) -> Result<()> {
        for chunk in changes {
            let batch = self.rows(chunk)?;
            let changelog = self.changelog;
            let times = |row: usize| if changelog { chunk.diff(row).unsigned_abs() } else { 1 };
            self.open()?;
            match (&mut self.open, &self.lines) {
                (Some(Open::Lines { file, buffer, rows, .. }), Some(lines)) => {
                    lines.print(&batch, times, buffer)?;
                    *rows = true;
                    if buffer.len() >= BUFFER_BYTES_MAX {
                        file.write_all(buffer)?;
                        buffer.clear();
                    }
                }
                (Some(Open::Parquet { writer, rows, .. }), _) => {
                    for row in 0..batch.num_rows() {
                        // A changed row that is there more than once is rare; it is written as often.
                        for _ in 1..times(row) {
                            writer.write(&batch.slice(row, 1)).map_err(parquet_error)?;
                        }
                    }
                    writer.write(&batch).map_err(parquet_error)?;
                    *rows = true;
                }
                _ => return Err(Error::internal("a file is open in another format")),
            }
        }
        Ok(())
    }

    fn publish(&mut self) -> Result<()> {
        match &mut self.target {
            Target::File { path, published, .. } => {
                let Some(Open::Lines { file, hidden, buffer, .. }) = &mut self.open else { return Ok(()) };
                file.write_all(buffer)?;
                buffer.clear();
                file.sync_data()?;
                if !*published {
                    fs::rename(hidden, &*path)?;
                    sync_folder(path.parent())?;
                    *published = true;
                }
            }
            Target::Folder(parts) => {
                let (hidden, rows) = match self.open.take() {
                    Some(Open::Lines { mut file, hidden, buffer, rows }) => {
                        file.write_all(&buffer)?;
                        file.sync_data()?;
                        (hidden, rows)
                    }
                    Some(Open::Parquet { writer, hidden, rows }) => {
                        writer.into_inner().map_err(parquet_error)?.sync_data()?;
                        (hidden, rows)
                    }
                    None => return parts.remove_earlier(),
                };
                if rows {
                    fs::rename(&hidden, parts.folder.join(parts.name()))?;
                    parts.next += 1;
                } else {
                    fs::remove_file(&hidden)?;
                }
                parts.remove_earlier()?;
                sync_folder(Some(&parts.folder))?;
            }
        }
        Ok(())
    }
}

impl Parts {
    /// Takes back what was written behind the next part, and files of other writers of this job.
    fn cut_back(&self) -> Result<()> {
        let is_kept = |name: &str| {
            let rest = name.strip_prefix(self.job.as_str()).and_then(|rest| rest.strip_prefix('-'));
            let (generation, rest) = rest.and_then(|rest| rest.split_once('-'))?;
            let number = rest.split('.').next()?.parse::<u64>().ok()?;
            Some(generation.parse::<u64>().ok()? == self.generation && number < self.next)
        };
        let mut kept = 0;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let hidden = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
            match (hidden, is_kept(hidden.unwrap_or(name))) {
                (None, Some(true)) => kept += 1,
                (_, Some(_)) => fs::remove_file(entry.path())?,
                (_, None) => {}
            }
        }
        if kept + 1 < self.next {
            return Err(Error::new(
                SqlState::UndefinedFile,
                format!(
                    "folder \"{}\" should have {} parts from before, it has {kept}",
                    self.folder.display(),
                    self.next - 1
                ),
            )
            .hint("Put the files back; or RESUME JOB, which writes them anew."));
        }
        sync_folder(Some(&self.folder))
    }

    fn name(&self) -> String {
        format!("{}-{:013}-{:06}.{}", self.job, self.generation, self.next, self.extension)
    }

    /// Removes what earlier writers of this job left.
    fn remove_earlier(&self) -> Result<()> {
        let earlier = |name: &str| {
            let name = name.strip_prefix('.').unwrap_or(name);
            let generation = name.strip_prefix(self.job.as_str()).and_then(|rest| rest.strip_prefix('-'));
            let generation = generation.and_then(|rest| rest.split_once('-')).and_then(|(g, _)| g.parse::<u64>().ok());
            generation.is_some_and(|generation| generation < self.generation)
        };
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(earlier) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

fn sync_folder(folder: Option<&Path>) -> Result<()> {
    match folder {
        Some(folder) => Ok(File::open(folder)?.sync_all()?),
        None => Ok(()),
    }
}

fn parquet_error(error: parquet::errors::ParquetError) -> Error {
    Error::new(SqlState::IoError, format!("a Parquet file cannot be written: {error}"))
        .hint("Write the rows as json, or cast the columns that Parquet cannot hold.")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow::array::Int64Array;

    use super::*;
    use crate::connectors::OptionValue;

    fn sink(path: &Path, more: &[(&str, &str)]) -> Result<Arc<dyn Sink>> {
        let path = path.to_str().expect("a path").to_owned();
        let mut values: BTreeMap<String, OptionValue> = more
            .iter()
            .map(|(k, v)| ((*k).into(), OptionValue { text: (*v).into(), position: 1, number: false }))
            .collect();
        values.insert("path".into(), OptionValue { text: path, position: 1, number: false });
        let columns =
            [ConnectorColumn { name: "a".into(), data_type: DataType::Int64, nullable: true, length_max: None }];
        FileSink::from_options(&mut Options::new(&values), &columns)
    }

    fn chunks(values: &[i64], diffs: &[i64]) -> Vec<Chunk> {
        let column: ArrayRef = Arc::new(Int64Array::from(values.to_vec()));
        let batch = RecordBatch::try_from_iter_with_nullable([("a", column, true)]).expect("a batch");
        Chunk::changes(&batch, &Int64Array::from(diffs.to_vec()))
    }

    #[test]
    fn a_file_shows_nothing_before_it_is_published_and_grows_after() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("out.ndjson");
        fs::write(&path, "old\n").expect("written");
        let sink = sink(&path, &[("format", "json")]).expect("a sink");
        assert_eq!(sink.check_new().expect_err("it is another's").code(), SqlState::DuplicateObject);
        let mut writer = sink.open("j", 1).expect("open");
        writer.write(Time::from_millis(1), &chunks(&[1, 2], &[1, 2])).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), "old\n");
        writer.publish().expect("published");
        let first = "{\"a\":1}\n{\"a\":2}\n{\"a\":2}\n";
        assert_eq!(fs::read_to_string(&path).expect("there"), first);
        writer.write(Time::from_millis(2), &chunks(&[3], &[1])).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("there"), first);
        writer.publish().expect("published");
        assert_eq!(fs::read_to_string(&path).expect("there"), format!("{first}{{\"a\":3}}\n"));
    }

    #[test]
    fn a_new_generation_replaces_its_own_parts_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let other = dir.path().join("jj-0000000000001-000001.csv");
        fs::write(&other, "a\n9\n").expect("written");
        let of = |generation: u64, value: i64| {
            let sink = sink(dir.path(), &[("format", "csv"), ("changelog", "true")]).expect("a sink");
            let mut writer = sink.open("j", generation).expect("open");
            writer.write(Time::from_millis(1), &chunks(&[value], &[-1])).expect("written");
            writer
        };
        of(1, 1).publish().expect("published");
        let mut second = of(2, 2);
        let seen = || {
            let mut names: Vec<String> = fs::read_dir(dir.path())
                .expect("a folder")
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
                .filter(|name| !name.starts_with('.'))
                .collect();
            names.sort();
            names
        };
        assert_eq!(seen(), ["j-0000000000001-000001.csv", "jj-0000000000001-000001.csv"]);
        second.publish().expect("published");
        assert_eq!(seen(), ["j-0000000000002-000001.csv", "jj-0000000000001-000001.csv"]);
        let text = fs::read_to_string(dir.path().join("j-0000000000002-000001.csv")).expect("there");
        assert_eq!(text, "op,a\n-D,2\n");
        second.publish().expect("nothing new is no part");
        assert_eq!(seen().len(), 2);
    }

    #[test]
    fn a_writer_goes_on_from_a_position() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("out.csv");
        let into_file = sink(&path, &[("format", "csv")]).expect("a sink");
        let mut writer = into_file.open("j", 1).expect("open");
        let write = |writer: &mut Box<dyn SinkWriter>, value: i64| {
            writer.write(Time::from_millis(1), &chunks(&[value], &[1])).expect("written");
        };
        write(&mut writer, 1);
        let position = writer.position().expect("a position");
        write(&mut writer, 2);
        writer.publish().expect("published");
        assert_eq!(fs::read_to_string(&path).expect("there"), "a\n1\n2\n");
        let mut writer = into_file.resume("j", &position).expect("goes on");
        assert_eq!(fs::read_to_string(&path).expect("there"), "a\n1\n", "cut back");
        write(&mut writer, 3);
        writer.position().expect("a position");
        assert_eq!(fs::read_to_string(&path).expect("there"), "a\n1\n3\n");
        fs::write(&path, "a").expect("written");
        let error = into_file.resume("j", &position).map(drop).expect_err("it is shorter");
        assert_eq!(error.code(), SqlState::UndefinedFile);

        let folder = dir.path().join("parts");
        fs::create_dir(&folder).expect("made");
        fs::write(folder.join("other-1.json"), "").expect("written");
        let into_folder = sink(&folder, &[("format", "json")]).expect("a sink");
        let seen = || {
            let mut seen: Vec<String> = fs::read_dir(&folder)
                .expect("a folder")
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
                .filter(|name| !name.starts_with('.'))
                .collect();
            seen.sort();
            seen
        };
        let mut writer = into_folder.open("j", 7).expect("open");
        write(&mut writer, 1);
        let position = writer.position().expect("a position");
        write(&mut writer, 2);
        writer.publish().expect("published");
        write(&mut writer, 3);
        assert_eq!(seen(), ["j-0000000000007-000001.json", "j-0000000000007-000002.json", "other-1.json"]);
        let mut writer = into_folder.resume("j", &position).expect("goes on");
        assert_eq!(seen(), ["j-0000000000007-000001.json", "other-1.json"]);
        write(&mut writer, 4);
        writer.publish().expect("published");
        assert_eq!(fs::read_to_string(folder.join("j-0000000000007-000002.json")).expect("there"), "{\"a\":4}\n");
        fs::remove_file(folder.join("j-0000000000007-000001.json")).expect("removed");
        assert!(into_folder.resume("j", &position).is_err(), "a part is missing");
    }

    #[test]
    fn a_single_parquet_file_is_refused_with_the_way_out() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = sink(&dir.path().join("x.parquet"), &[("format", "parquet")]).map(drop).expect_err("refused");
        assert_eq!(error.code(), SqlState::FeatureNotSupported);
        assert!(error.hint_text().is_some_and(|hint| hint.contains("folder")));
    }
}
