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
use crate::exec::source::{Offset, Read, Source};
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
    let values: BTreeMap<String, OptionValue> = [("connector", "file"), ("path", path)]
        .iter()
        .chain(options)
        .enumerate()
        .map(|(i, (k, v))| ((*k).to_owned(), OptionValue { text: (*v).to_owned(), position: i + 1 }))
        .collect();
    Connectors::standard().open(&values, columns)
}

/// All rows from an offset, the offsets behind each read, and the error that ended it.
fn read(
    source: &Arc<dyn Source>,
    from: u64,
    until: Option<u64>,
    rows_max: usize,
) -> (RecordBatch, Vec<u64>, Option<Error>) {
    let mut reader = source.open(Offset(from), until.map(Offset)).expect("opens");
    let mut batches = Vec::new();
    let mut ends = Vec::new();
    let error = loop {
        match reader.read(rows_max) {
            Ok(Read::Rows { rows, end }) => {
                assert!(rows.num_rows() > 0 && rows.num_rows() <= rows_max);
                batches.push(rows);
                ends.push(end.0);
            }
            Ok(Read::End) => break None,
            Err(error) => break Some(error),
        }
    };
    (concat_batches(&source.schema(), &batches).expect("one schema"), ends, error)
}

fn ints(batch: &RecordBatch, index: usize) -> Vec<Option<i32>> {
    batch.column(index).as_primitive::<Int32Type>().iter().collect()
}

fn texts(batch: &RecordBatch, index: usize) -> Vec<Option<&str>> {
    batch.column(index).as_string::<i32>().iter().collect()
}

/// Every offset that a reader gave is a place to go on from and a place to stop at.
fn check_resume(source: &Arc<dyn Source>) {
    let (all, ends, error) = read(source, 0, None, 1);
    assert_eq!(error, None);
    assert_eq!(ends.len(), all.num_rows());
    assert_eq!(read(source, 0, None, 1000).0, all);
    for (index, end) in ends.iter().enumerate() {
        let rows = index + 1;
        assert_eq!(read(source, *end, None, 3).0, all.slice(rows, all.num_rows() - rows), "from {end}");
        let (before, before_ends, _) = read(source, 0, Some(*end), 2);
        assert_eq!(before, all.slice(0, rows), "until {end}");
        assert_eq!(before_ends.last(), Some(end));
    }
}

#[test]
fn a_broken_record_names_its_offset_and_column_after_the_rows_before_it() {
    let columns = [column("seq", DataType::Int32), column("w", DataType::Int32)];
    let cases: [(&[u8], &str); 3] = [
        (b"{\"seq\":77x,\"w\":2}", "row at byte 16, column \"seq\": invalid JSON"),
        (b"{\"seq\":007,\"w\":4}", "row at byte 16, column \"seq\": invalid JSON"),
        (b"{\"seq\":3,\"w\":\"\xff\xfe\"}", "row at byte 16: invalid byte sequence for UTF-8"),
    ];
    for (bad, expected) in cases {
        let mut bytes = b"{\"seq\":1,\"w\":1}\n".to_vec();
        bytes.extend_from_slice(bad);
        bytes.extend_from_slice(b"\n{\"seq\":2,\"w\":3}\n");
        let file = file(&bytes);
        let source = open(&file, &[("format", "json")], &columns).expect("opens");
        let mut reader = source.open(Offset(0), None).expect("opens");
        let Ok(Read::Rows { rows, end }) = reader.read(100) else { panic!("the row before comes first") };
        assert_eq!((ints(&rows, 0), ints(&rows, 1), end), (vec![Some(1)], vec![Some(1)], Offset(16)));
        for _ in 0..2 {
            let error = reader.read(100).expect_err("the bad row");
            assert_eq!(error.code(), SqlState::BadCopyFormat);
            assert!(error.message().contains(expected), "{error}");
        }
        // Good records behind it stand on their own.
        let next = 16 + bad.len() as u64 + 1;
        assert_eq!(ints(&read(&source, next, None, 10).0, 0), [Some(2)]);
    }
}

#[test]
fn field_names_match_exactly_then_but_for_case() {
    let columns = [column("id", DataType::Int32), column("deviceId", DataType::Utf8), column("Q x", DataType::Int32)];
    let lines = b"{\"ID\":1,\"deviceId\":\"a\",\"Q x\":5}\n{\"id\":2,\"deviceid\":\"b\"}\n{\"ID\":8,\"id\":3,\"id\":4,\"Id\":9}\n";
    let file = file(lines);
    let source = open(&file, &[("format", "json")], &columns).expect("opens");
    let (rows, _, error) = read(&source, 0, None, 10);
    assert_eq!(error, None);
    assert_eq!(ints(&rows, 0), [Some(1), Some(2), Some(4)]);
    assert_eq!(texts(&rows, 1), [Some("a"), Some("b"), None]);
    assert_eq!(ints(&rows, 2), [Some(5), None, None]);
    check_resume(&source);
}

#[test]
fn two_fields_that_match_but_for_case_are_not_guessed_between() {
    let file = file(b"{\"ID\":1,\"Id\":2}\n");
    let source = open(&file, &[("format", "json")], &[column("id", DataType::Int32)]).expect("opens");
    let (_, _, error) = read(&source, 0, None, 10);
    assert!(error.expect("ambiguous").message().contains("several fields"));
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
        let (rows, _, error) = read(&source, 0, None, 10);
        assert_eq!(error, None);
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
    let (rows, _, _) = read(&open(&named, &[("format", "csv")], &columns).expect("opens"), 0, None, 10);
    assert_eq!((ints(&rows, 0), ints(&rows, 1)), (vec![Some(2)], vec![Some(1)]));

    let bare = file(b"1,2\n");
    let source = open(&bare, &[("format", "csv"), ("header", "false")], &columns).expect("opens");
    let (rows, _, _) = read(&source, 0, None, 10);
    assert_eq!((ints(&rows, 0), ints(&rows, 1)), (vec![Some(1)], vec![Some(2)]));
    check_resume(&source);

    let error = open(&bare, &[("format", "csv")], &columns).err().expect("no such column");
    assert_eq!(error.code(), SqlState::UndefinedColumn);
    assert!(error.message().contains("column \"b\" is not in the header"), "{error}");
}

#[test]
fn ragged_rows_and_words_for_null() {
    let columns = [column("a", DataType::Int32), column("b", DataType::Int32)];
    let ragged = file(b"a,b\n1,2\n3\n");
    let (rows, _, error) = read(&open(&ragged, &[("format", "csv")], &columns).expect("opens"), 0, None, 10);
    assert_eq!(rows.num_rows(), 1);
    let error = error.expect("ragged");
    assert_eq!(error.code(), SqlState::BadCopyFormat);
    assert!(error.message().contains("row at byte 8, column \"b\": missing data"), "{error}");

    let words = file(b"a,b\nNA,2\n");
    let (_, _, error) = read(&open(&words, &[("format", "csv")], &columns).expect("opens"), 0, None, 10);
    let error = error.expect("a word");
    assert_eq!(error.code(), SqlState::InvalidText);
    assert!(error.message().contains("column \"a\": invalid input syntax for type integer: \"NA\""), "{error}");
    let source = open(&words, &[("format", "csv"), ("null", "NA")], &columns).expect("opens");
    assert_eq!(ints(&read(&source, 0, None, 10).0, 0), [None]);
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
    let (rows, _, error) = read(&source, 0, None, 10);
    assert_eq!(error, None);
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
        let (_, _, error) = read(&source, 0, None, 10);
        assert_eq!(error.expect(line).code(), code, "{line}");
    }
    let mut required = column("c", DataType::Int32);
    required.nullable = false;
    let file = file(b"{}\n");
    let source = open(&file, &[("format", "json")], &[required]).expect("opens");
    assert_eq!(read(&source, 0, None, 10).2.expect("null").code(), SqlState::NotNullViolation);
}

#[test]
fn deep_nesting_is_a_bad_row() {
    let line = format!("{{\"c\":{}{}}}\n", "[".repeat(100_000), "]".repeat(100_000));
    let file = file(line.as_bytes());
    let source = open(&file, &[("format", "json")], &[column("c", DataType::Utf8)]).expect("opens");
    assert!(read(&source, 0, None, 10).2.expect("deep").message().contains("nested deeper than 128"));
}

#[test]
fn options_are_refused_by_name() {
    let file = file(b"{}\n");
    let columns = [column("c", DataType::Int32)];
    let refused = |options: &[(&str, &str)]| open(&file, options, &columns).err().expect("refused");
    assert_eq!(refused(&[("format", "parquet")]).code(), SqlState::FeatureNotSupported);
    assert_eq!(refused(&[("format", "json"), ("mode", "follow")]).code(), SqlState::FeatureNotSupported);
    let unknown = refused(&[("format", "json"), ("delimiter", ",")]);
    assert_eq!(unknown.code(), SqlState::InvalidParameterValue);
    assert_eq!(unknown.position_at(), Some(4));
    assert_eq!(refused(&[("format", "csv"), ("delimiter", "ab")]).code(), SqlState::InvalidParameterValue);
    assert_eq!(refused(&[("format", "csv"), ("header", "maybe")]).code(), SqlState::InvalidParameterValue);
    let list = [column("c", DataType::Date64)];
    assert_eq!(open(&file, &[("format", "json")], &list).err().expect("type").code(), SqlState::FeatureNotSupported);
}
