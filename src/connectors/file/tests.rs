use std::collections::BTreeMap;
use std::io::Write as _;
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{
    DataType, Decimal128Type, Float64Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType,
};
use tempfile::NamedTempFile;

use crate::connectors::{ConnectorColumn, Connectors, OptionValue};
use crate::exec::source::{BadRow, Offset, Read, ReadRequest, Source, SplitId};
use crate::types::{Error, SqlState};

fn file(bytes: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("written");
    file
}

fn column(name: &str, data_type: DataType) -> ConnectorColumn {
    ConnectorColumn { name: name.to_owned(), data_type, nullable: true, length_max: None }
}

fn open(file: &NamedTempFile, options: &[(&str, &str)], columns: &[ConnectorColumn]) -> Result<Arc<dyn Source>, Error> {
    let path = file.path().to_str().expect("UTF-8");
    open_path(path, options, columns)
}

pub(super) fn open_path(
    path: &str,
    options: &[(&str, &str)],
    columns: &[ConnectorColumn],
) -> Result<Arc<dyn Source>, Error> {
    let values: BTreeMap<String, OptionValue> = [("connector", "file"), ("path", path)]
        .iter()
        .chain(options)
        .enumerate()
        .map(|(i, (k, v))| ((*k).to_owned(), OptionValue { text: (*v).to_owned(), position: i + 1, number: false }))
        .collect();
    Ok(Connectors::standard().open(&values, columns)?.source)
}

/// What a pass over a split gave.
struct Pass {
    rows: RecordBatch,
    bad: Vec<BadRow>,
    /// The offset behind each read.
    ends: Vec<u64>,
    error: Option<Error>,
}

fn request(split: &SplitId, from: u64, until: Option<u64>, columns: &[usize]) -> ReadRequest {
    ReadRequest {
        split: split.clone(),
        from: Offset(from),
        until: until.map(Offset),
        columns: columns.into(),
        offsets: false,
    }
}

/// The one split of a source of one file.
fn only_split(source: &Arc<dyn Source>) -> SplitId {
    let splits = source.splits(&[]).expect("splits");
    assert_eq!((splits.found.len(), splits.complete), (1, true));
    splits.found[0].id.clone()
}

/// Reads a split with some columns.
fn pass(source: &Arc<dyn Source>, request: &ReadRequest, rows_max: usize) -> Pass {
    let mut reader = source.open(request).expect("opens");
    let (mut batches, mut bad_rows, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let error = loop {
        match reader.read(rows_max) {
            Ok(Read::Rows { rows, bad, end, .. }) => {
                assert!(rows.num_rows() + bad.len() > 0 && rows.num_rows() <= rows_max);
                batches.push(rows);
                bad_rows.extend(bad);
                ends.push(end.0);
            }
            Ok(Read::End | Read::Idle) => break None,
            Err(error) => break Some(error),
        }
    };
    let schema = Arc::new(source.schema().project(&request.columns).expect("columns"));
    Pass { rows: concat_batches(&schema, &batches).expect("one schema"), bad: bad_rows, ends, error }
}

/// All columns of a source of one file from an offset on.
fn read(source: &Arc<dyn Source>, from: u64, until: Option<u64>, rows_max: usize) -> Pass {
    let all: Vec<usize> = (0..source.schema().fields().len()).collect();
    pass(source, &request(&only_split(source), from, until, &all), rows_max)
}

/// The good rows of a file that has no bad ones.
fn good(source: &Arc<dyn Source>) -> RecordBatch {
    let Pass { rows, bad, error, .. } = read(source, 0, None, 1000);
    assert_eq!((bad, error), (vec![], None));
    rows
}

fn ints(batch: &RecordBatch, index: usize) -> Vec<Option<i32>> {
    batch.column(index).as_primitive::<Int32Type>().iter().collect()
}

fn texts(batch: &RecordBatch, index: usize) -> Vec<Option<&str>> {
    batch.column(index).as_string::<i32>().iter().collect()
}

/// Every offset that a reader gave is a place to go on from and a place to stop at, whatever is read.
fn check_resume(source: &Arc<dyn Source>) {
    let all = read(source, 0, None, 1);
    assert_eq!(all.error, None);
    let whole = read(source, 0, None, 1000);
    assert_eq!((&whole.rows, &whole.bad), (&all.rows, &all.bad));
    for end in &all.ends {
        let (before, after) = (read(source, 0, Some(*end), 2), read(source, *end, None, 3));
        assert_eq!(before.ends.last(), Some(end));
        let joined = concat_batches(&source.schema(), [&before.rows, &after.rows]).expect("one schema");
        assert_eq!(joined, all.rows, "at {end}");
        assert_eq!([before.bad, after.bad].concat(), all.bad, "at {end}");
    }
    // Which rows are bad depends on no column that is asked for.
    let split = only_split(source);
    for column in 0..source.schema().fields().len() {
        let one = pass(source, &request(&split, 0, None, &[column]), 1000);
        assert_eq!(one.bad, whole.bad);
        assert_eq!(one.rows, whole.rows.project(&[column]).expect("a column"));
    }
    let none = pass(source, &request(&split, 0, None, &[]), 1000);
    assert_eq!((none.bad, none.rows.num_rows()), (whole.bad, whole.rows.num_rows()));
}

/// The faults of a pass: SQLSTATE, column, offset.
fn faults(pass: &Pass) -> Vec<(SqlState, Option<&str>, u64)> {
    pass.bad.iter().map(|bad| (bad.code, bad.column.as_deref(), bad.offset.0)).collect()
}

#[test]
fn ten_kinds_of_bad_json_cost_their_neighbours_nothing() {
    let columns =
        [column("id", DataType::Int32), column("n", DataType::Decimal128(38, 10)), column("t", DataType::Utf8)];
    let nested = format!("{{\"id\":1,\"t\":{}{}}}", "[".repeat(1000), "]".repeat(1000));
    let long = format!("{{\"id\":1,\"t\":\"{}\"}}", "x".repeat(17 << 20));
    let kinds: [(&[u8], SqlState, Option<&str>); 10] = [
        (b"{\"id\":77x,\"n\":2}", SqlState::BadCopyFormat, Some("id")),
        (b"{\"id\":\"5\"}", SqlState::InvalidText, Some("id")),
        (b"{\"id\":2147483648}", SqlState::NumericOutOfRange, Some("id")),
        (b"{\"id\":1,\"n\":1234567890123456789012345678901234567890}", SqlState::NumericOutOfRange, Some("n")),
        (b"{\"id\":3,\"t\":\"\xff\xfe\"}", SqlState::CharacterNotInRepertoire, None),
        (b"{\"id\":3,\"t\":\"\\ud800\"}", SqlState::CharacterNotInRepertoire, Some("t")),
        (nested.as_bytes(), SqlState::StatementTooComplex, None),
        (long.as_bytes(), SqlState::ProgramLimitExceeded, None),
        (b"[1,2]", SqlState::BadCopyFormat, None),
        (b"{\"id\":3,\"t\":\"a\\u0000b\"}", SqlState::CharacterNotInRepertoire, Some("t")),
    ];
    let (mut bytes, mut expected) = (Vec::new(), Vec::new());
    for (index, (bad, code, at)) in kinds.iter().enumerate() {
        expected.push((*code, *at, bytes.len() as u64));
        bytes.extend_from_slice(bad);
        bytes.extend_from_slice(format!("\n{{\"id\":{index},\"n\":0.5,\"t\":\"good\"}}\n").as_bytes());
    }
    let file = file(&bytes);
    let source = open(&file, &[("format", "json")], &columns).expect("opens");
    let pass = read(&source, 0, None, 1000);
    assert_eq!(faults(&pass), expected);
    assert_eq!(ints(&pass.rows, 0), (0..10).map(Some).collect::<Vec<_>>());
    assert_eq!(texts(&pass.rows, 2), vec![Some("good"); 10]);
    assert_eq!(pass.bad[0].raw, "{\"id\":77x,\"n\":2}");
    assert_eq!(pass.bad[4].raw, "{\"id\":3,\"t\":\"\u{fffd}\u{fffd}\"}");
    assert!(pass.bad[7].raw.len() <= 8 << 10 && pass.bad[7].raw.starts_with("{\"id\":1,\"t\":\"xx"));
    check_resume(&source);
}

#[test]
fn bad_csv_costs_its_neighbours_nothing() {
    let columns = [column("id", DataType::Int32), column("t", DataType::Utf8)];
    let kinds: [(&[u8], SqlState, Option<&str>); 8] = [
        (b"1,a,b", SqlState::BadCopyFormat, None),
        (b"1", SqlState::BadCopyFormat, Some("t")),
        (b"x,a", SqlState::InvalidText, Some("id")),
        (b"2147483648,a", SqlState::NumericOutOfRange, Some("id")),
        (b"1,\xff", SqlState::CharacterNotInRepertoire, Some("t")),
        (b"1,a\0b", SqlState::CharacterNotInRepertoire, Some("t")),
        (b"1,a\rb", SqlState::BadCopyFormat, None),
        // The quote is never closed: the next lines are read all the same.
        (b"1,\"open", SqlState::BadCopyFormat, None),
    ];
    let (mut bytes, mut expected) = (b"id,t\n".to_vec(), Vec::new());
    for (index, (bad, code, at)) in kinds.iter().enumerate() {
        expected.push((*code, *at, bytes.len() as u64));
        bytes.extend_from_slice(bad);
        bytes.extend_from_slice(format!("\n{index},good\n").as_bytes());
    }
    let file = file(&bytes);
    let source = open(&file, &[("format", "csv")], &columns).expect("opens");
    let pass = read(&source, 0, None, 1000);
    assert_eq!(faults(&pass), expected);
    assert_eq!(ints(&pass.rows, 0), (0..8).map(Some).collect::<Vec<_>>());
    check_resume(&source);
}

#[test]
fn large_files_of_lines_are_several_splits() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("large.ndjson");
    // Lines of 1000 bytes that straddle the borders of the splits.
    let mut bytes = Vec::new();
    for id in 0..150_000 {
        bytes.extend_from_slice(format!("{:<999}\n", format!("{{\"id\":{id}}}")).as_bytes());
    }
    std::fs::write(&path, &bytes).expect("writes");
    let source = open_path(path.to_str().expect("UTF-8"), &[("format", "json")], &[column("id", DataType::Int32)])
        .expect("opens");
    let splits = source.splits(&[]).expect("splits").found;
    let names: Vec<&str> = splits.iter().map(|split| split.id.as_str()).collect();
    assert_eq!(names, ["large.ndjson", "large.ndjson#1", "large.ndjson#2"]);
    let mut ids = Vec::new();
    for split in &splits {
        let first = pass(&source, &request(&split.id, 0, None, &[0]), 1000);
        assert_eq!((first.bad.len(), first.error), (0, None));
        // Every place is one to go on from, also in the middle of the file.
        let at = first.ends[first.ends.len() / 2];
        let (before, after) = (
            pass(&source, &request(&split.id, 0, Some(at), &[0]), 1000),
            pass(&source, &request(&split.id, at, None, &[0]), 1000),
        );
        assert_eq!(before.rows.num_rows() + after.rows.num_rows(), first.rows.num_rows());
        ids.extend(ints(&first.rows, 0));
    }
    assert_eq!(ids, (0..150_000).map(Some).collect::<Vec<_>>());
}

#[test]
fn folders_patterns_and_packed_files() {
    use std::io::Write as _;
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("a.ndjson"), "{\"id\":1}\n").expect("writes");
    let mut packed =
        flate2::write::GzEncoder::new(std::fs::File::create(at("b.ndjson.gz")).expect("a file"), Default::default());
    packed.write_all(b"{\"id\":2}\n{\"id\":3}\n").expect("writes");
    packed.finish().expect("writes");
    std::fs::write(at("c.ndjson.zst"), zstd::encode_all(&b"{\"id\":4}"[..], 0).expect("packs")).expect("writes");
    std::fs::write(at(".hidden"), "no JSON").expect("writes");
    let columns = [column("id", DataType::Int32)];
    let ids = |path: &std::path::Path| -> Vec<i32> {
        let source = open_path(path.to_str().expect("UTF-8"), &[("format", "json")], &columns).expect("opens");
        let splits = source.splits(&[]).expect("splits").found;
        splits
            .iter()
            .flat_map(|split| {
                let whole = pass(&source, &request(&split.id, 0, None, &[0]), 1);
                assert_eq!((whole.bad.len(), whole.error), (0, None));
                for end in whole.ends {
                    let after = pass(&source, &request(&split.id, end, None, &[0]), 10);
                    let before = pass(&source, &request(&split.id, 0, Some(end), &[0]), 10);
                    assert_eq!(after.rows.num_rows() + before.rows.num_rows(), whole.rows.num_rows());
                }
                ints(&whole.rows, 0).into_iter().flatten().collect::<Vec<_>>()
            })
            .collect()
    };
    assert_eq!(ids(directory.path()), [1, 2, 3, 4]);
    assert_eq!(ids(&at("[ab].*")), [1, 2, 3]);
    assert_eq!(ids(&at("c.ndjson.zst")), [4]);
    let error =
        open_path(at("*.csv").to_str().expect("UTF-8"), &[("format", "json")], &columns).err().expect("none there");
    assert_eq!(error.code(), SqlState::UndefinedFile);
}

#[test]
fn field_names_match_exactly_then_but_for_case() {
    let columns = [column("id", DataType::Int32), column("deviceId", DataType::Utf8), column("Q x", DataType::Int32)];
    let lines = b"{\"ID\":1,\"deviceId\":\"a\",\"Q x\":5}\n{\"id\":2,\"deviceid\":\"b\"}\n{\"ID\":8,\"id\":3,\"id\":4,\"Id\":9}\n";
    let file = file(lines);
    let source = open(&file, &[("format", "json")], &columns).expect("opens");
    let rows = good(&source);
    assert_eq!(ints(&rows, 0), [Some(1), Some(2), Some(4)]);
    assert_eq!(texts(&rows, 1), [Some("a"), Some("b"), None]);
    assert_eq!(ints(&rows, 2), [Some(5), None, None]);
    check_resume(&source);
}

#[test]
fn two_fields_that_match_but_for_case_are_not_guessed_between() {
    let file = file(b"{\"ID\":1,\"Id\":2}\n");
    let source = open(&file, &[("format", "json")], &[column("id", DataType::Int32)]).expect("opens");
    assert!(read(&source, 0, None, 10).bad[0].error.contains("several fields"));
}

#[test]
fn csv_by_postgresql_rules() {
    let columns = [
        column("id", DataType::Int32),
        column("name", DataType::Utf8),
        column("note", DataType::Utf8),
        column("amt", DataType::Float64),
    ];
    let comma = "id,name,note,amt\n1,\"A, Jr.\",\"l1\nl2\",100.5\n2,\"say \"\"hi\"\"\",,2500\r\n3,\"\",\"\\N\",-0";
    let tab =
        "id\tname\tnote\tamt\n1\t\"A, Jr.\"\t\"l1\nl2\"\t100.5\n2\t\"say \"\"hi\"\"\"\t\t2500\r\n3\t\"\"\t\"\\N\"\t-0";
    for (text, options) in [(comma, vec![("format", "csv")]), (tab, vec![("format", "csv"), ("delimiter", "\t")])] {
        let file = file(text.as_bytes());
        let source = open(&file, &options, &columns).expect("opens");
        let rows = good(&source);
        assert_eq!(ints(&rows, 0), [Some(1), Some(2), Some(3)]);
        assert_eq!(texts(&rows, 1), [Some("A, Jr."), Some("say \"hi\""), Some("")]);
        assert_eq!(texts(&rows, 2), [Some("l1\nl2"), None, Some("\\N")]);
        let amounts: Vec<f64> = rows.column(3).as_primitive::<Float64Type>().values().to_vec();
        assert_eq!(amounts, [100.5, 2500.0, -0.0]);
        check_resume(&source);
    }
}

#[test]
fn csv_columns_by_name_or_position() {
    let columns = [column("b", DataType::Int32), column("a", DataType::Int32)];
    let named = file(b"\xef\xbb\xbfA,x,b\n1,9,2\n");
    let rows = good(&open(&named, &[("format", "csv")], &columns).expect("opens"));
    assert_eq!((ints(&rows, 0), ints(&rows, 1)), (vec![Some(2)], vec![Some(1)]));

    let bare = file(b"1,2\n");
    let source = open(&bare, &[("format", "csv"), ("header", "false")], &columns).expect("opens");
    let rows = good(&source);
    assert_eq!((ints(&rows, 0), ints(&rows, 1)), (vec![Some(1)], vec![Some(2)]));
    check_resume(&source);

    let error = open(&bare, &[("format", "csv")], &columns).err().expect("no such column");
    assert_eq!(error.code(), SqlState::UndefinedColumn);
    assert!(error.message().contains("column \"b\" is not in the header"), "{error}");
}

#[test]
fn words_for_null() {
    let columns = [column("a", DataType::Int32), column("b", DataType::Int32)];
    let words = file(b"a,b\nNA,2\n");
    let pass = read(&open(&words, &[("format", "csv")], &columns).expect("opens"), 0, None, 10);
    assert_eq!(pass.bad[0].error, "invalid input syntax for type integer: \"NA\"");
    let source = open(&words, &[("format", "csv"), ("null", "NA")], &columns).expect("opens");
    assert_eq!(ints(&good(&source), 0), [None]);
}

#[test]
fn json_values_by_the_table() {
    let columns = [
        column("i", DataType::Int64),
        column("n", DataType::Decimal128(38, 10)),
        column("t", DataType::Utf8),
        column("ts", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        column("by", DataType::Binary),
        column("bo", DataType::Boolean),
    ];
    let file = file(concat!(
        r#"{"i":1e3,"n":12345678901234567890.1234567891,"t":{"a":[1, 2]},"ts":"2013-01-01T05:00:00Z","by":"aGk=","bo":true,"zz":[[]]}"#,
        "\n \n",
        r#"{"i":9007199254740993,"n":0.1,"t":"a\u00e9\"\ud83d\ude00","ts":"2013-01-01 05:00:00+00","by":"\\x6869","bo":null}"#,
    ).as_bytes());
    let source = open(&file, &[("format", "json")], &columns).expect("opens");
    let rows = good(&source);
    assert_eq!(rows.column(0).as_primitive::<Int64Type>().values().to_vec(), [1000, 9_007_199_254_740_993]);
    assert_eq!(
        rows.column(1).as_primitive::<Decimal128Type>().values().to_vec(),
        [123_456_789_012_345_678_901_234_567_891, 1_000_000_000]
    );
    assert_eq!(texts(&rows, 2), [Some("{\"a\":[1, 2]}"), Some("aé\"😀")]);
    let base = 1_357_016_400_000_000;
    assert_eq!(rows.column(3).as_primitive::<TimestampMicrosecondType>().values().to_vec(), [base, base]);
    assert_eq!(rows.column(4).as_binary::<i32>().iter().collect::<Vec<_>>(), [Some(&b"hi"[..]), Some(&b"hi"[..])]);
    assert_eq!(rows.column(5).as_boolean().iter().collect::<Vec<_>>(), [Some(true), None]);
    check_resume(&source);
}

#[test]
fn json_values_that_do_not_fit() {
    let cases: [(&str, DataType, SqlState); 6] = [
        (r#"{"c":"5"}"#, DataType::Int32, SqlState::InvalidText),
        (r#"{"c":1.5}"#, DataType::Int32, SqlState::InvalidText),
        (r#"{"c":2147483648}"#, DataType::Int32, SqlState::NumericOutOfRange),
        (r#"{"c":1357016400}"#, DataType::Timestamp(TimeUnit::Microsecond, None), SqlState::InvalidText),
        (r#"{"c":"true"}"#, DataType::Boolean, SqlState::InvalidText),
        (r#"{"c":1} x"#, DataType::Int32, SqlState::BadCopyFormat),
    ];
    for (line, data_type, code) in cases {
        let file = file(line.as_bytes());
        let source = open(&file, &[("format", "json")], &[column("c", data_type)]).expect("opens");
        assert_eq!(faults(&read(&source, 0, None, 10))[0].0, code, "{line}");
    }
    let mut required = column("c", DataType::Int32);
    required.nullable = false;
    let file = file(b"{}\n");
    let source = open(&file, &[("format", "json")], &[required]).expect("opens");
    assert_eq!(faults(&read(&source, 0, None, 10)), [(SqlState::NotNullViolation, Some("c"), 0)]);
}

#[test]
fn options_are_refused_by_name() {
    let file = file(b"{}\n");
    let columns = [column("c", DataType::Int32)];
    let refused = |options: &[(&str, &str)]| open(&file, options, &columns).err().expect("refused");
    assert_eq!(refused(&[("format", "avro")]).code(), SqlState::FeatureNotSupported);
    assert_eq!(refused(&[("format", "jsn")]).hint_text(), Some("Did you mean \"json\"? Use csv, json or parquet."));
    let mode = refused(&[("format", "json"), ("mode", "folow")]);
    assert_eq!(mode.hint_text(), Some("Did you mean \"follow\"? Use once or follow."));
    let rate = refused(&[("format", "json"), ("rate_limit", "fast")]);
    assert_eq!(rate.hint_text(), Some("Use a whole number from 1 to 1000000000."));
    let retention = refused(&[("format", "json"), ("on_error", "skip"), ("errors_retention", "5")]);
    assert!(retention.hint_text().is_some_and(|hint| hint.contains("on_error = 'table'")));
    let unknown = refused(&[("format", "json"), ("delimiter", ",")]);
    assert_eq!(unknown.code(), SqlState::InvalidParameterValue);
    assert_eq!(unknown.position_at(), Some(4));
    assert_eq!(refused(&[("format", "csv"), ("delimiter", "ab")]).code(), SqlState::InvalidParameterValue);
    assert_eq!(refused(&[("format", "csv"), ("header", "maybe")]).code(), SqlState::InvalidParameterValue);
    let list = [column("c", DataType::Date64)];
    assert_eq!(open(&file, &[("format", "json")], &list).err().expect("type").code(), SqlState::FeatureNotSupported);
}
