//! Files that grow, are renamed, replaced and cut; and Parquet files.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray};
use arrow::datatypes::{DataType, Int32Type, TimeUnit, TimestampMicrosecondType};
use parquet::arrow::ArrowWriter;

use super::tests::open_path;
use crate::connectors::ConnectorColumn;
use crate::exec::source::{Offset, Read, ReadRequest, Source, SourceReader, SplitId};
use crate::types::SqlState;

fn column(name: &str, data_type: DataType) -> ConnectorColumn {
    ConnectorColumn { name: name.to_owned(), data_type, nullable: true, length_max: None }
}

/// Reads a followed source as a feed does, and remembers how far it came.
struct Follower {
    source: Arc<dyn Source>,
    known: HashMap<SplitId, Offset>,
    readers: HashMap<SplitId, Box<dyn SourceReader>>,
    ended: Vec<SplitId>,
}

impl Follower {
    fn new(path: &Path) -> Follower {
        let options = [("format", "json"), ("mode", "follow")];
        let source = open_path(path.to_str().expect("UTF-8"), &options, &[column("id", DataType::Int32)]);
        let source = source.expect("opens");
        Follower { source, known: HashMap::new(), readers: HashMap::new(), ended: Vec::new() }
    }

    /// The same after a kill: offsets are remembered, nothing else.
    fn again(self, path: &Path) -> Follower {
        Follower { known: self.known, ..Follower::new(path) }
    }

    /// The numbers that are new.
    fn read(&mut self) -> Vec<i32> {
        let known: Vec<_> = self.known.iter().map(|(split, offset)| (split.clone(), *offset)).collect();
        let mut ids = Vec::new();
        for split in self.source.splits(&known).expect("splits").found {
            if self.ended.contains(&split.id) || self.readers.contains_key(&split.id) {
                continue;
            }
            let from = self.known.get(&split.id).copied().unwrap_or_default();
            let request =
                ReadRequest { split: split.id.clone(), from, until: None, columns: Arc::from([0]), offsets: false };
            self.readers.insert(split.id, self.source.open(&request).expect("opens"));
        }
        for (split, reader) in &mut self.readers {
            loop {
                match reader.read(2).expect("reads") {
                    Read::Rows { rows, bad, end, .. } => {
                        assert!(bad.is_empty(), "{bad:?}");
                        ids.extend(rows.column(0).as_primitive::<Int32Type>().values());
                        self.known.insert(split.clone(), end);
                    }
                    Read::Idle => break,
                    Read::End => {
                        self.ended.push(split.clone());
                        break;
                    }
                }
            }
        }
        self.readers.retain(|split, _| !self.ended.contains(split));
        ids.sort_unstable();
        ids
    }
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a file");
    file.write_all(text.as_bytes()).expect("writes");
}

fn line(id: i32) -> String {
    format!("{{\"id\":{id}}}\n")
}

#[test]
fn appended_lines_and_new_files_come_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let (pattern, first) = (directory.path().join("*.ndjson"), directory.path().join("a.ndjson"));
    let mut follower = Follower::new(&pattern);
    assert_eq!(follower.read(), [0; 0]);
    append(&first, &line(1));
    append(&first, "{\"id\":");
    assert_eq!(follower.read(), [1], "a line without its end may go on");
    append(&first, "2}\n");
    append(&directory.path().join("b.ndjson"), &line(3));
    assert_eq!(follower.read(), [2, 3]);
    let mut follower = follower.again(&pattern);
    append(&first, &line(4));
    assert_eq!(follower.read(), [4]);
}

#[test]
fn a_renamed_file_is_read_to_its_end_also_after_a_restart() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| -> PathBuf { directory.path().join(name) };
    append(&at("log"), &line(1));
    let mut follower = Follower::new(&at("log"));
    assert_eq!(follower.read(), [1]);
    append(&at("log"), &line(2));
    std::fs::rename(at("log"), at("log.1")).expect("renames");
    append(&at("log"), &line(3));
    // Its writer may still have it open.
    append(&at("log.1"), &line(4));
    let mut follower = follower.again(&at("log"));
    assert_eq!(follower.read(), [2, 3, 4]);
    append(&at("log.1"), &line(5));
    assert_eq!(follower.read(), [5]);
    assert_eq!(follower.read(), [0; 0]);
    // What was read can be read again, wherever it is now.
    let splits: Vec<_> = follower.known.iter().map(|(split, end)| (split.clone(), *end)).collect();
    let mut rows = 0;
    for (split, end) in splits {
        let request = ReadRequest { split, from: Offset(0), until: Some(end), columns: Arc::from([0]), offsets: false };
        let mut reader = follower.source.open(&request).expect("opens");
        while let Read::Rows { rows: batch, .. } = reader.read(100).expect("reads") {
            rows += batch.num_rows();
        }
    }
    assert_eq!(rows, 5);
}

#[test]
fn a_cut_file_is_read_from_its_start() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    append(&path, &(line(1) + &line(2)));
    let mut follower = Follower::new(&path);
    assert_eq!(follower.read(), [1, 2]);
    File::create(&path).expect("cuts it");
    assert_eq!(follower.read(), [0; 0]);
    // It begins as before.
    append(&path, &line(1));
    let mut read = follower.read();
    read.extend(follower.read());
    assert_eq!(read, [1]);
    append(&path, &line(3));
    let mut follower = follower.again(&path);
    assert_eq!(follower.read(), [3]);
    // Whoever comes now reads what is there.
    let fresh = follower.source.splits(&[]).expect("splits").found.remove(0).id;
    assert!(fresh.as_str().ends_with(".1"), "{fresh}");
    let former = follower.known.keys().find(|split| !split.as_str().ends_with(".1")).expect("the first").clone();
    let request =
        ReadRequest { split: former, from: Offset(0), until: Some(Offset(9)), columns: Arc::from([0]), offsets: false };
    assert_eq!(follower.source.open(&request).err().expect("gone").code(), SqlState::UndefinedFile);
}

#[test]
fn parquet_columns_are_cast_and_what_does_not_fit_is_bad() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("t.parquet");
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(1 << 40), None, Some(4)]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("b"), Some("c"), Some("too long")]));
    let times: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![1, 2, 3, 4]));
    let batch = RecordBatch::try_from_iter([("ID", ids), ("other", times.clone()), ("name", names), ("at", times)])
        .expect("a batch");
    let mut writer =
        ArrowWriter::try_new(File::create(&path).expect("a file"), batch.schema(), None).expect("a writer");
    writer.write(&batch).expect("writes");
    writer.close().expect("closes");
    let mut name = column("name", DataType::Utf8);
    name.length_max = Some(3);
    let columns = [
        column("at", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        column("id", DataType::Int32),
        name,
        column("absent", DataType::Utf8),
    ];
    let path = path.to_str().expect("UTF-8");
    let source = open_path(path, &[("format", "parquet")], &columns).expect("opens");
    let split = source.splits(&[]).expect("splits").found[0].id.clone();
    for (wanted, from) in [(vec![0, 1, 2, 3], 0), (vec![1, 0], 0), (vec![], 0), (vec![0], 2)] {
        let request = ReadRequest {
            split: split.clone(),
            from: Offset(from),
            until: None,
            columns: wanted.clone().into(),
            offsets: false,
        };
        let mut reader = source.open(&request).expect("opens");
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        while let Read::Rows { rows, bad: faulty, end, .. } = reader.read(3).expect("reads") {
            if let Some(at) = wanted.iter().position(|column| *column == 0) {
                good.extend_from_slice(rows.column(at).as_primitive::<TimestampMicrosecondType>().values());
            }
            bad.extend(faulty.into_iter().map(|bad| (bad.offset.0, bad.code, bad.column)));
            assert!(end.0 <= 4);
        }
        let expected = [
            (1, SqlState::NumericOutOfRange, Some("id".to_owned())),
            (3, SqlState::StringTooLong, Some("name".to_owned())),
        ];
        let expected: Vec<_> = expected.into_iter().filter(|(offset, _, _)| *offset >= from).collect();
        assert_eq!(bad, expected);
        if wanted.contains(&0) {
            assert_eq!(good, [1_000, 3_000][usize::from(from > 0)..]);
        }
    }
    let wrong = open_path(path, &[("format", "parquet")], &[column("name", DataType::Int32)]).err().expect("refused");
    assert_eq!(wrong.code(), SqlState::DatatypeMismatch);
}
