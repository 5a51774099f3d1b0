//! The canonical snapshot: one Arrow IPC stream with a row for each entry.
//!
//! ```text
//! schema     op_id uint64, key_bytes binary, value_bytes binary; none is nullable
//! metadata   clink.format_version = "1"; clink.state_versions = packed stamps, when there are any
//! rows       in order of (op_id, key_bytes), each key once, in any number of batches
//! ```
//!
//! Readers take any order and any number of batches, also none, ignore other metadata and take an absent version as 1.
//! The end-of-stream mark must be there: a stream that was cut at a batch's border is refused.

use std::collections::HashMap;
use std::io::{Cursor, Write};
use std::sync::Arc;

use arrow::array::{Array, AsArray, BinaryBuilder, RecordBatch, UInt64Builder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;

use super::super::backend::VisitEntry;
use super::versions::StateVersions;
use crate::types::{Error, OperatorId, Result, SqlState};

/// The version that is written, and the newest that is read.
pub const FORMAT_VERSION: u32 = 1;

pub(super) const VERSION_KEY: &str = "clink.format_version";
pub(super) const STAMPS_KEY: &str = "clink.state_versions";

const BATCH_ROWS_MAX: usize = 8192;
const BATCH_BYTES_MAX: usize = 4 << 20;
/// Continuation mark and length zero; old writers end with the length alone.
const END_OF_STREAM: [u8; 8] = [0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0];

pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::new(SqlState::DataCorrupted, format!("the state snapshot is damaged: {what}"))
        .hint("Restore another checkpoint, or a copy of this one.")
}

pub(super) fn unreadable(error: ArrowError) -> Error {
    damaged(error)
}

fn schema(versions: &StateVersions) -> SchemaRef {
    let fields = vec![
        Field::new("op_id", DataType::UInt64, false),
        Field::new("key_bytes", DataType::Binary, false),
        Field::new("value_bytes", DataType::Binary, false),
    ];
    Arc::new(Schema::new_with_metadata(fields, metadata(versions)))
}

/// The metadata of a stream with some stamps.
pub(in crate::state) fn metadata(versions: &StateVersions) -> HashMap<String, String> {
    let mut metadata = HashMap::from([(VERSION_KEY.to_owned(), FORMAT_VERSION.to_string())]);
    if !versions.is_empty() {
        metadata.insert(STAMPS_KEY.to_owned(), versions.pack());
    }
    metadata
}

/// Writes entries in order of (operator, key).
pub struct SnapshotWriter<W: Write> {
    stream: StreamWriter<W>,
    schema: SchemaRef,
    operators: UInt64Builder,
    keys: BinaryBuilder,
    values: BinaryBuilder,
    rows: usize,
    bytes: usize,
    last: Option<(OperatorId, Vec<u8>)>,
}

impl<W: Write> SnapshotWriter<W> {
    /// Begins a stream with these stamps.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn new(out: W, versions: &StateVersions) -> Result<SnapshotWriter<W>> {
        let schema = schema(versions);
        let stream = StreamWriter::try_new(out, &schema)?;
        Ok(SnapshotWriter {
            stream,
            schema,
            operators: UInt64Builder::new(),
            keys: BinaryBuilder::new(),
            values: BinaryBuilder::new(),
            rows: 0,
            bytes: 0,
            last: None,
        })
    }

    /// Adds an entry, which is greater than the one before.
    ///
    /// # Errors
    /// XX000 when it is not; else when `out` cannot be written.
    pub fn push(&mut self, operator: OperatorId, key: &[u8], value: &[u8]) -> Result<()> {
        match &mut self.last {
            Some((last_operator, last_key)) => {
                if (*last_operator, last_key.as_slice()) >= (operator, key) {
                    return Err(Error::internal("entries of a snapshot are not in order"));
                }
                *last_operator = operator;
                last_key.clear();
                last_key.extend_from_slice(key);
            }
            None => self.last = Some((operator, key.to_vec())),
        }
        self.operators.append_value(operator.as_u64());
        self.keys.append_value(key);
        self.values.append_value(value);
        self.rows += 1;
        self.bytes += key.len() + value.len();
        if self.rows >= BATCH_ROWS_MAX || self.bytes >= BATCH_BYTES_MAX { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let columns: Vec<arrow::array::ArrayRef> =
            vec![Arc::new(self.operators.finish()), Arc::new(self.keys.finish()), Arc::new(self.values.finish())];
        self.stream.write(&RecordBatch::try_new(Arc::clone(&self.schema), columns)?)?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    /// Ends the stream. Without an entry it has one empty batch.
    ///
    /// # Errors
    /// When `out` cannot be written.
    pub fn finish(mut self) -> Result<W> {
        if self.rows > 0 || self.last.is_none() {
            self.flush()?;
        }
        Ok(self.stream.into_inner()?)
    }
}

/// Reads a canonical stream.
pub struct SnapshotReader<'a> {
    stream: StreamReader<Cursor<&'a [u8]>>,
    versions: StateVersions,
}

impl<'a> SnapshotReader<'a> {
    /// Opens a stream that lies in memory.
    ///
    /// # Errors
    /// XX001 when it is no snapshot, was cut, or is of a newer format.
    pub fn new(bytes: &'a [u8]) -> Result<SnapshotReader<'a>> {
        check_end(bytes)?;
        let stream = StreamReader::try_new(Cursor::new(bytes), None).map_err(unreadable)?;
        let schema = stream.schema();
        let expected =
            [("op_id", DataType::UInt64), ("key_bytes", DataType::Binary), ("value_bytes", DataType::Binary)];
        check_fields(&schema, &expected)?;
        Ok(SnapshotReader { stream, versions: read_metadata(&schema)? })
    }

    /// The stamps.
    pub fn versions(&self) -> &StateVersions {
        &self.versions
    }

    /// Visits all entries, in the order in which they were written.
    ///
    /// # Errors
    /// XX001 when the stream is damaged; the error of `visit`.
    pub fn visit(self, visit: &mut VisitEntry<'_>) -> Result<()> {
        for batch in self.stream {
            let batch = batch.map_err(unreadable)?;
            check_nulls(&batch)?;
            let operators = batch.column(0).as_primitive::<UInt64Type>();
            let (keys, values) = (batch.column(1).as_binary::<i32>(), batch.column(2).as_binary::<i32>());
            for row in 0..batch.num_rows() {
                visit(OperatorId::from_u64(operators.value(row)), keys.value(row), values.value(row))?;
            }
        }
        Ok(())
    }
}

pub(super) fn check_end(bytes: &[u8]) -> Result<()> {
    // A stream in the old framing has no continuation marks at all.
    let old = !bytes.starts_with(&END_OF_STREAM[..4]) && bytes.ends_with(&END_OF_STREAM[4..]);
    if bytes.ends_with(&END_OF_STREAM) || old { Ok(()) } else { Err(damaged("its end is missing")) }
}

pub(super) fn check_fields(schema: &Schema, expected: &[(&str, DataType)]) -> Result<()> {
    let same = schema.fields().len() == expected.len()
        && schema
            .fields()
            .iter()
            .zip(expected)
            .all(|(field, (name, data_type))| field.name() == name && field.data_type() == data_type);
    if same {
        Ok(())
    } else {
        Err(damaged(format!(
            "its columns are {}",
            schema.fields().iter().map(|f| f.to_string()).collect::<Vec<_>>().join(", ")
        )))
    }
}

pub(super) fn check_nulls(batch: &RecordBatch) -> Result<()> {
    match batch.columns().iter().any(|column| column.null_count() > 0) {
        true => Err(damaged("it has nulls")),
        false => Ok(()),
    }
}

pub(in crate::state) fn read_metadata(schema: &Schema) -> Result<StateVersions> {
    if let Some(version) = schema.metadata().get(VERSION_KEY) {
        let digits = (1..=9).contains(&version.len()) && version.bytes().all(|byte| byte.is_ascii_digit());
        match version.parse::<u32>().ok().filter(|version| digits && *version > 0) {
            None => return Err(damaged(format!("its format version is {version:?}"))),
            Some(version) if version > FORMAT_VERSION => {
                return Err(Error::new(
                    SqlState::DataCorrupted,
                    format!(
                        "the state snapshot has format version {version}, this program reads up to {FORMAT_VERSION}"
                    ),
                )
                .hint("Read it with the newer program that wrote it."));
            }
            Some(_) => {}
        }
    }
    schema
        .metadata()
        .get(STAMPS_KEY)
        .map_or_else(|| Ok(StateVersions::default()), |packed| StateVersions::unpack(packed))
}

/// One sorted stream of the entries of several, whose keys differ; stamps are united.
///
/// # Errors
/// XX001 when an input is damaged, stamps contradict each other or a key comes twice with different values.
pub fn merge(inputs: &[&[u8]]) -> Result<Vec<u8>> {
    let mut versions = StateVersions::default();
    let mut entries = std::collections::BTreeMap::new();
    for input in inputs {
        let reader = SnapshotReader::new(input)?;
        versions.merge(reader.versions())?;
        reader.visit(&mut |operator, key, value| match entries.insert((operator, key.to_vec()), value.to_vec()) {
            Some(other) if other != value => {
                Err(damaged(format!("operator {operator} has a key twice, with different values")))
            }
            _ => Ok(()),
        })?;
    }
    let mut writer = SnapshotWriter::new(Vec::new(), &versions)?;
    for ((operator, key), value) in &entries {
        writer.push(*operator, key, value)?;
    }
    writer.finish()
}

#[cfg(test)]
mod tests {
    use super::super::versions::VersionStamp;
    use super::*;
    use arrow::array::{BinaryArray, UInt64Array};

    type Row = (u64, Vec<u8>, Vec<u8>);

    fn read(bytes: &[u8]) -> Result<Vec<Row>> {
        let mut entries = Vec::new();
        SnapshotReader::new(bytes)?.visit(&mut |operator, key, value| {
            entries.push((operator.as_u64(), key.to_vec(), value.to_vec()));
            Ok(())
        })?;
        Ok(entries)
    }

    #[test]
    fn many_batches_come_back_in_order() {
        let mut versions = StateVersions::default();
        let stamp = VersionStamp { state_type: "Sum".to_owned(), version: 2 };
        versions.set(OperatorId::from_u64(1), "agg", stamp).expect("valid");
        let mut writer = SnapshotWriter::new(Vec::new(), &versions).expect("memory");
        for row in 0..20_000_u32 {
            writer.push(OperatorId::from_u64(1), &row.to_be_bytes(), &row.to_le_bytes()).expect("in order");
        }
        assert!(writer.push(OperatorId::from_u64(1), &[0], &[]).is_err(), "out of order");
        writer.push(OperatorId::from_u64(2), &[], &[]).expect("in order");
        let bytes = writer.finish().expect("memory");
        assert_eq!(SnapshotReader::new(&bytes).expect("whole").versions(), &versions);
        let entries = read(&bytes).expect("whole");
        assert_eq!(entries.len(), 20_001);
        assert_eq!(entries[19_999], (1, 19_999_u32.to_be_bytes().to_vec(), 19_999_u32.to_le_bytes().to_vec()));
        assert_eq!(entries[20_000], (2, vec![], vec![]));
    }

    #[test]
    fn an_empty_state_is_a_valid_stream_and_a_cut_one_is_not() {
        let empty =
            SnapshotWriter::new(Vec::new(), &StateVersions::default()).expect("memory").finish().expect("memory");
        assert_eq!(read(&empty).expect("whole"), vec![]);
        let mut writer = SnapshotWriter::new(Vec::new(), &StateVersions::default()).expect("memory");
        for row in 0..9000_u32 {
            writer.push(OperatorId::from_u64(1), &row.to_be_bytes(), b"v").expect("in order");
        }
        let bytes = writer.finish().expect("memory");
        for cut in (0..bytes.len()).step_by(977).chain(bytes.len() - 8..bytes.len()) {
            assert_eq!(read(&bytes[..cut]).expect_err("cut").code(), SqlState::DataCorrupted, "cut at {cut}");
        }
    }

    /// A stream as the C++ engine writes it: no order, several batches, no or other metadata.
    fn foreign(metadata: &[(&str, &str)], names: [&str; 3]) -> Vec<u8> {
        let fields = vec![
            Field::new(names[0], DataType::UInt64, false),
            Field::new(names[1], DataType::Binary, false),
            Field::new(names[2], DataType::Binary, false),
        ];
        let metadata = metadata.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        let mut stream = StreamWriter::try_new(Vec::new(), &schema).expect("memory");
        for (operator, key) in [(9, b"\x05agg|k"), (1, b"\x7fagg|k"), (1, b"\x01agg|k")] {
            let columns: Vec<arrow::array::ArrayRef> = vec![
                Arc::new(UInt64Array::from(vec![operator])),
                Arc::new(BinaryArray::from(vec![&key[..]])),
                Arc::new(BinaryArray::from(vec![&b"v"[..]])),
            ];
            stream.write(&RecordBatch::try_new(Arc::clone(&schema), columns).expect("fits")).expect("memory");
        }
        stream.into_inner().expect("memory")
    }

    #[test]
    fn reads_streams_of_others_by_the_rules_of_the_format() {
        let names = ["op_id", "key_bytes", "value_bytes"];
        let plain = foreign(&[("who", "knows")], names);
        assert_eq!(read(&plain).expect("whole").len(), 3);
        let merged = merge(&[&plain, &foreign(&[("clink.format_version", "1")], names)]).expect("the same entries");
        let keys: Vec<_> =
            read(&merged).expect("whole").into_iter().map(|(operator, key, _)| (operator, key[0])).collect();
        assert_eq!(keys, [(1, 1), (1, 127), (9, 5)]);
        for version in ["0", "2", "x", "", "1234567890", "-1"] {
            let stream = foreign(&[("clink.format_version", version)], names);
            assert_eq!(read(&stream).expect_err(version).code(), SqlState::DataCorrupted);
        }
        assert!(read(&foreign(&[], ["op", "key_bytes", "value_bytes"])).is_err());
        let stamped = foreign(&[("clink.state_versions", "9|Sum|2|agg")], names);
        assert_eq!(SnapshotReader::new(&stamped).expect("whole").versions().version(OperatorId::from_u64(9), "agg"), 2);
    }
}
