use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use object_store::memory::InMemory;

use super::super::conformance::{self, InFolder, Subject};
use super::super::*;
use super::*;
use crate::env::Failpoints;
use crate::types::{CheckpointId, OperatorId};

const OPERATOR: OperatorId = OperatorId::from_u64(1);

fn options() -> RocksDbOptions {
    RocksDbOptions { write_buffer_bytes: 1 << 20, write_buffers_max: 2, ..RocksDbOptions::default() }
}

fn open(folder: &Path, store: &Arc<dyn PartStore>, life: u64, worker: usize) -> RocksDbBackend {
    let folder = folder.join(format!("work-{life}-w{worker}"));
    let shared = RocksDbShared::new(8 << 20);
    RocksDbBackend::open(&folder, Arc::clone(store), PartNames::of_worker(worker), life, options(), shared)
        .expect("opens")
}

fn local() -> Box<dyn Subject> {
    Box::new(InFolder::new(|folder: &Path, store: &Arc<dyn PartStore>, life, share: Share| -> Box<dyn StateBackend> {
        Box::new(open(folder, store, life, share.worker()))
    }))
}

fn under_changelog(options: ChangelogOptions) -> Box<dyn Subject> {
    Box::new(InFolder::new(
        move |folder: &Path, store: &Arc<dyn PartStore>, life, share: Share| -> Box<dyn StateBackend> {
            let work = folder.join(format!("work-{life}-w{}", share.worker()));
            let names = PartNames::of_worker(share.worker()).behind(&ChangelogBackend::base_prefix(life));
            let shared = RocksDbShared::new(8 << 20);
            let inner = RocksDbBackend::open(&work, Arc::clone(store), names, life, super::tests::options(), shared);
            let inner = Box::new(inner.expect("opens"));
            let store = Arc::clone(store);
            Box::new(ChangelogBackend::new(inner, store, share.worker(), life, options.clone()).expect("starts"))
        },
    ))
}

#[test]
fn rocksdb_conforms() {
    conformance::check(&*local());
    conformance::check_model(6, local);
}

#[test]
fn changelog_over_rocksdb_conforms() {
    let small = ChangelogOptions { materialization_threshold_bytes: 100, ..ChangelogOptions::default() };
    for options in [ChangelogOptions::default(), small] {
        conformance::check(&*under_changelog(options.clone()));
        conformance::check_model(3, || under_changelog(options.clone()));
    }
}

fn write(backend: &mut dyn StateBackend, keys: std::ops::Range<u32>, value: &[u8]) {
    let mut batch = WriteBatch::default();
    keys.for_each(|key| batch.put(value_key("v", &key.to_be_bytes()), value.to_vec()));
    backend.apply(OPERATOR, batch).expect("writes");
}

fn in_folder() -> (tempfile::TempDir, Arc<dyn PartStore>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = LocalStore::open(&folder.path().join("checkpoints"), false, Failpoints::default()).expect("opens");
    (folder, Arc::new(store))
}

#[test]
fn sorted_files_are_shared_by_checkpoints_and_survive_two_restarts() {
    let (folder, store) = in_folder();
    let mut backend = open(folder.path(), &store, 1, 0);
    write(&mut backend, 0..20_000, b"some value");
    let first = backend.snapshot(CheckpointId(1)).expect("persists");
    assert_eq!(backend.last_snapshot_statistics().shared_files, 0);
    write(&mut backend, 0..200, b"changed");
    let second = backend.snapshot(CheckpointId(2)).expect("persists");
    let statistics = backend.last_snapshot_statistics();
    assert!(statistics.shared_files > 0 && statistics.files > statistics.shared_files, "{statistics:?}");
    assert!(statistics.shared_bytes * 10 > statistics.bytes * 9, "{statistics:?}");
    drop(backend);

    // The first checkpoint is released: its files have links of their own, so the second is whole.
    released_parts([&first], [&second]).iter().for_each(|name| store.delete(name).expect("removes"));
    let mut latest = second;
    for life in 2..5 {
        let mut restarted = open(folder.path(), &store, life, 0);
        restarted.restore(std::slice::from_ref(&latest), Share::WHOLE).expect("restores");
        assert_eq!(
            restarted.get(OPERATOR, &value_key("v", &7_u32.to_be_bytes())).expect("reads"),
            Some(b"changed".to_vec())
        );
        assert_eq!(
            restarted.get(OPERATOR, &value_key("v", &19_999_u32.to_be_bytes())).expect("reads"),
            Some(b"some value".to_vec())
        );
        write(&mut restarted, 300..301, &life.to_le_bytes());
        latest = restarted.snapshot(CheckpointId(life + 1)).expect("persists");
        // Later ones may have been compacted.
        let shared = restarted.last_snapshot_statistics().shared_files;
        assert!(life > 2 || shared > 0, "what was restored is not written again");
    }
}

#[test]
fn a_checkpoint_folder_is_a_database_of_its_own() {
    let (folder, store) = in_folder();
    let mut backend = open(folder.path(), &store, 1, 0);
    let mut versions = StateVersions::default();
    let stamp = VersionStamp { state_type: "Sum".to_owned(), version: 2 };
    versions.set(OPERATOR, "v", stamp).expect("valid");
    backend.set_versions(versions);
    write(&mut backend, 0..500, b"x");
    backend.put(OperatorId::from_u64(0xAB), b"\xFFposition", &9_i64.to_le_bytes()).expect("writes");
    let live = export_backend(&backend).expect("exports");
    backend.snapshot(CheckpointId(5)).expect("persists");
    write(&mut backend, 0..500, b"later");
    // While the database is open, and with the path that a user sees.
    let offline = export_rocksdb_folder(&folder.path().join("checkpoints/cp-5/w0/db")).expect("opens");
    assert_eq!(offline, live);
    assert_eq!(rows(&offline, 0).expect("whole").1, 501);
}

#[test]
fn writes_after_a_capture_are_held_until_the_links_are_made() {
    let (folder, store) = in_folder();
    let mut backend = open(folder.path(), &store, 1, 0);
    write(&mut backend, 0..100, b"before");
    let capture = backend.capture(CheckpointId(1)).expect("captures");
    write(&mut backend, 50..150, b"after");
    backend.erase(OPERATOR, &value_key("v", &3_u32.to_be_bytes())).expect("erases");
    assert_eq!(rows(&export_backend(&backend).expect("exports"), 0).expect("whole").1, 149);
    let snapshot = capture.persist().expect("persists");
    write(&mut backend, 150..151, b"after");
    assert_eq!(rows(&export_backend(&backend).expect("exports"), 0).expect("whole").1, 150);
    let mut restored = open(folder.path(), &store, 2, 0);
    restored.restore(&[snapshot], Share::WHOLE).expect("restores");
    let (entries, count) = rows(&export_backend(&restored).expect("exports"), 1000).expect("whole");
    assert_eq!(count, 100);
    assert!(entries.iter().all(|entry| entry.value == b"before"));
}

#[test]
fn an_object_store_takes_each_sorted_file_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
    let store: Arc<dyn PartStore> =
        Arc::new(ObjectPartStore::new(Arc::new(InMemory::new()), "job", "memory".to_owned(), runtime.handle().clone()));
    let mut backend = open(folder.path(), &store, 1, 0);
    write(&mut backend, 0..20_000, b"some value");
    let first = backend.snapshot(CheckpointId(1)).expect("persists");
    write(&mut backend, 0..10, b"changed");
    let second = backend.snapshot(CheckpointId(2)).expect("persists");
    let sorted = |snapshot: &Snapshot| -> BTreeSet<Part> {
        snapshot.parts().into_iter().filter(|part| part.name.ends_with(".sst")).cloned().collect()
    };
    assert!(sorted(&second).is_superset(&sorted(&first)), "the same objects");
    drop(backend);
    // An empty machine: nothing but the store.
    let elsewhere = tempfile::tempdir().expect("a folder");
    for workers in [1, 3] {
        let mut count = 0;
        for worker in 0..workers {
            let mut restored = open(elsewhere.path(), &store, 10 + workers as u64, worker);
            restored
                .restore(std::slice::from_ref(&second), Share::new(worker, workers).expect("valid"))
                .expect("restores");
            count += rows(&export_backend(&restored).expect("exports"), 0).expect("whole").1;
        }
        assert_eq!(count, 20_000);
    }
}

#[test]
fn compaction_drops_what_was_reported_as_expired_also_after_a_restart() {
    let (folder, store) = in_folder();
    let mut backend = open(folder.path(), &store, 1, 0);
    let key = |slot: &str, name: &[u8]| value_key(slot, name);
    for slot in ["a", "b", "plain"] {
        backend.put(OPERATOR, &key(slot, b"early"), &encode_expiring(10, b"v")).expect("writes");
        backend.put(OPERATOR, &key(slot, b"late"), &encode_expiring(99, b"v")).expect("writes");
    }
    let snapshot = backend.snapshot(CheckpointId(1)).expect("persists");
    drop(backend);
    let mut restarted = open(folder.path(), &store, 2, 0);
    restarted.restore(&[snapshot], Share::WHOLE).expect("restores");
    restarted.compact();
    assert_eq!(rows(&export_backend(&restarted).expect("exports"), 0).expect("whole").1, 6, "nothing was reported yet");
    // Two slots, each with its horizon; the later call does not replace the earlier.
    restarted.set_expired(OPERATOR, "a", 50);
    restarted.set_expired(OPERATOR, "b", 10);
    restarted.set_expired(OPERATOR, "b", 5);
    restarted.put(OPERATOR, &key("plain", b"x"), &encode_expiring(99, b"v")).expect("writes");
    restarted.compact();
    let slots: Vec<(String, String)> = rows(&export_backend(&restarted).expect("exports"), 100)
        .expect("whole")
        .0
        .into_iter()
        .map(|row| (row.slot.clone(), row.key_text()))
        .collect();
    let has = |slot: &str, name: &str| slots.contains(&(slot.to_owned(), name.to_owned()));
    assert!(!has("a", "early") && has("a", "late") && !has("b", "early") && has("b", "late") && has("plain", "early"));
}

#[test]
fn the_schemes_of_rocksdb_are_read_strictly() {
    let registry = Registry::default();
    let refused = registry.parse("rocksdb:///x?block_cache=1").expect_err("unknown");
    assert!(refused.hint_text().expect("a hint").contains("block_cache_bytes"));
    for text in ["rocksdb:///x?compression=snappy", "rocksdb:///x?bloom_bits=many", "rocksdb://bucket/x"] {
        assert!(registry.parse(text).is_err(), "{text}");
    }
    for text in [
        "rocksdb:///x?compression=zstd&bloom_bits=0&write_buffer_bytes=8MiB",
        "changelog+rocksdb:///x?upload_bytes=1MiB&block_cache_bytes=64MiB",
        "s3+rocksdb://b/p?region=eu-west-1",
        "changelog+s3+rocksdb://b/p?anonymous=true",
    ] {
        registry.parse(text).expect(text);
    }
}
