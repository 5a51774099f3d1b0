use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int64Type, UInt8Type, UInt64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::super::*;
use super::*;
use crate::env::Failpoints;
use crate::types::{CheckpointId, KeyGroup, OperatorId, SqlState};

const OPERATOR: OperatorId = OperatorId::from_u64(7);

fn stream(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut backend = MemoryBackend::default();
    for (key, value) in entries {
        backend.put(OPERATOR, key, value).expect("memory");
    }
    export_backend(&backend).expect("encodes")
}

#[test]
fn rows_queries_and_parquet_show_the_same_entries() {
    let int_key = value_key("agg", &5_i64.to_le_bytes());
    let text_key = value_key("agg", b"ada");
    let entries: Vec<(&[u8], &[u8])> =
        vec![(&int_key, b"text"), (&text_key, &[1, 2]), (b"\xFFposition", b"\x2A\0\0\0\0\0\0\0")];
    let stream = stream(&entries);
    let (shown, count) = rows(&stream, 2).expect("whole");
    assert_eq!((shown.len(), count), (2, 3));
    let batch = query_batch(&stream).expect("whole");
    let column = |name: &str| batch.column_by_name(name).expect("there").clone();
    let row_of =
        |text: &str| (0..3).find(|row| column("user_key").as_string::<i32>().value(*row) == text).expect("there");
    let ada = row_of("ada");
    assert_eq!(column("slot").as_string::<i32>().value(ada), "agg");
    assert_eq!(column("value").as_string::<i32>().value(ada), "0x0102");
    assert!(column("value_int").is_null(ada));
    assert_eq!(usize::from(column("key_group").as_primitive::<UInt8Type>().value(ada)), KeyGroup::of(b"ada").index());
    let five = row_of("0x0500000000000000");
    assert_eq!(column("key_int").as_primitive::<Int64Type>().value(five), 5);
    assert_eq!(column("value").as_string::<i32>().value(five), "text");
    let raw = row_of("position");
    assert_eq!(column("slot").as_string::<i32>().value(raw), "<raw>");
    assert_eq!(column("key_group").as_primitive::<UInt8Type>().value(raw), 255);
    assert_eq!(column("value_int").as_primitive::<Int64Type>().value(raw), 42);
    assert_eq!(column("op_id").as_primitive::<UInt64Type>().value(raw), 7);

    let mut parquet = Vec::new();
    assert_eq!(export_parquet(&stream, &mut parquet).expect("writes"), 3);
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(parquet)).expect("Parquet");
    let names: Vec<_> = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["op_id", "key_group", "slot", "user_key", "value_bytes"]);
    let batch = reader.build().expect("reads").next().expect("a batch").expect("whole");
    let keys: Vec<&[u8]> = batch.column(3).as_binary::<i32>().iter().flatten().collect();
    assert!(keys.contains(&&b"ada"[..]) && keys.contains(&&b"position"[..]));
}

#[test]
fn a_diff_tells_exactly_what_changed() {
    let before = stream(&[(b"\x01s|a", b"1"), (b"\x01s|b", b"1"), (b"\x02s|c", b"1")]);
    let after = stream(&[(b"\x01s|a", b"1"), (b"\x01s|b", b"2"), (b"\x03s|d", b"1")]);
    assert_eq!(diff(&before, &before).expect("whole"), []);
    let change = |key: &[u8], before: Option<&[u8]>, after: Option<&[u8]>| Difference {
        operator: OPERATOR,
        key: key.to_vec(),
        before: before.map(<[u8]>::to_vec),
        after: after.map(<[u8]>::to_vec),
    };
    let expected = [
        change(b"\x01s|b", Some(b"1"), Some(b"2")),
        change(b"\x02s|c", Some(b"1"), None),
        change(b"\x03s|d", None, Some(b"1")),
    ];
    assert_eq!(diff(&before, &after).expect("whole"), expected);
    assert!(diff(&before, &after[..20]).is_err());
}

#[test]
fn a_checkpoint_of_any_backend_becomes_the_same_stream() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn PartStore> =
        Arc::new(LocalStore::open(&folder.path().join("store"), false, Failpoints::default()).expect("opens"));
    let backends = |name: &str, worker: usize| -> Box<dyn StateBackend> {
        let names = PartNames::of_worker(worker).behind(&format!("{name}/"));
        let store = Arc::clone(&store);
        match name {
            "memory" => Box::new(MemoryBackend::new(store, names, false)),
            "changelog" => {
                let inner = Box::new(MemoryBackend::new(Arc::clone(&store), names.behind("base/"), true));
                Box::new(ChangelogBackend::new(inner, store, worker, 1, ChangelogOptions::default()).expect("starts"))
            }
            _ => {
                let pool = Arc::new(LayerPool::new(Arc::clone(&store), names.clone()));
                let options = RemoteOptions { hot_max_bytes: None, io_threads: 1 };
                Box::new(RemoteReadBackend::new(pool, store, names, options).expect("starts"))
            }
        }
    };
    let mut streams = Vec::new();
    for name in ["memory", "changelog", "remote"] {
        let mut snapshots = Vec::new();
        for worker in 0..2 {
            let mut backend = backends(name, worker);
            let share = Share::new(worker, 2).expect("valid");
            for key in (0..200_u32).map(|key| value_key("v", &key.to_be_bytes())).filter(|key| share.keeps(key)) {
                backend.put(OPERATOR, &key, b"x").expect("writes");
            }
            backend.put(OPERATOR, b"\xFFb|", b"everywhere").expect("writes");
            backend.materialize().expect("starts");
            snapshots.push(backend.snapshot(CheckpointId(1)).expect("persists"));
        }
        let stream = export_checkpoint(&store, &snapshots, folder.path()).expect("reads");
        assert_eq!(rows(&stream, 0).expect("whole").1, 201, "{name}");
        streams.push(stream);
    }
    assert!(streams.windows(2).all(|pair| pair[0] == pair[1]));
}

/// A directory as the contract describes it, byte by byte.
#[test]
fn a_checkpoint_directory_of_the_original_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = (stream(&[(b"\x01agg|a", b"1")]), stream(&[(b"\x50agg|b", b"2"), (b"\xFFoffset", b"3")]));
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("below")).expect("makes");
        std::fs::write(path, bytes).expect("writes");
    };
    let sidecar = |bytes: &[u8]| {
        format!(
            "clink_checkpoint_meta=1\ncheckpoint_id=12\npayload_bytes={}\npayload_crc32c={}\nlater=field\n",
            bytes.len(),
            crc32c::crc32c(bytes)
        )
    };
    for (subtask, bytes) in [(0, &first), (1, &second)] {
        write(&format!("v3/{subtask}/checkpoint-12.snap"), bytes);
        write(&format!("v3/{subtask}/checkpoint-12.snap.meta"), sidecar(bytes).as_bytes());
    }
    write("_jobs/job-1/COMPLETED-11", b"job=job-1\ncheckpoint=11\ngeneration=2\nsubtasks=0\n");
    write("_jobs/job-1/COMPLETED-12", b"job=job-1\ncheckpoint=12\ngeneration=3\nsubtasks=0,1\n");
    let found = find_original(folder.path(), None, None).expect("there");
    assert_eq!((found.id, found.generation, &found.subtasks[..]), (12, 3, &[0, 1][..]));
    let streams = found.read(folder.path(), None).expect("whole");
    let slices: Vec<&[u8]> = streams.iter().map(Vec::as_slice).collect();
    let mut backend = MemoryBackend::default();
    import(&mut backend, &slices, Share::new(1, 2).expect("valid")).expect("whole");
    assert_eq!(backend.get(OPERATOR, b"\x50agg|b").expect("memory"), Some(b"2".to_vec()));
    assert_eq!(backend.get(OPERATOR, b"\x01agg|a").expect("memory"), None, "of the other worker");
    assert_eq!(get_operator_state(&backend, OPERATOR, b"offset").expect("memory"), Some(b"3".to_vec()));

    // Checkpoint 11 names a participant that is not there; a changed byte is not what the sidecar says.
    let missing = find_original(folder.path(), Some("job-1"), Some(11)).expect("there").read(folder.path(), None);
    assert_eq!(missing.expect_err("missing").code(), SqlState::DataCorrupted);
    let mut flipped = second.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    write("v3/1/checkpoint-12.snap", &flipped);
    assert_eq!(found.read(folder.path(), None).expect_err("changed").code(), SqlState::DataCorrupted);
    write("v3/1/checkpoint-12.snap", &second[..second.len() - 1]);
    assert_eq!(found.read(folder.path(), None).expect_err("cut").code(), SqlState::DataCorrupted);
    assert_eq!(find_original(folder.path(), None, Some(99)).expect_err("none").code(), SqlState::UndefinedFile);
}
