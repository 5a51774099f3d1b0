//! Faults that state backends of other engines have or had, each with a test that ours does not.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::conformance::{Job, operator};
use super::manifest::tests::families;
use super::*;
use crate::types::{CheckpointId, KEY_GROUPS, KeyGroup, OperatorId, SqlState};

fn persisted(captures: Vec<Capture>) -> Vec<Snapshot> {
    captures.into_iter().map(|capture| capture.persist().expect("persists")).collect()
}

fn checkpoint(job: &mut Job<'_>) -> Vec<Snapshot> {
    persisted(job.capture())
}

fn fill(job: &mut Job<'_>, keys: std::ops::Range<u32>, value: &[u8]) {
    keys.for_each(|key| job.write(operator(1), &value_key("v", &key.to_be_bytes()), Some(value)));
}

/// A record goes to the worker that keeps its state: both follow from the same encoded key, with any number of workers.
#[test]
fn routing_and_ownership_use_one_key() {
    for workers in [1, 2, 3, 7, 128] {
        for number in 0..2_000_u32 {
            let key = [b"user-", &number.to_be_bytes()[..]].concat();
            let routed = KeyGroup::of(&key).worker(workers);
            for stored in [value_key("agg", &key), map_key("min", &key, b"entry"), list_key("l", &key, 7)] {
                let owners = (0..workers).filter(|worker| Share::new(*worker, workers).expect("valid").keeps(&stored));
                assert_eq!(owners.collect::<Vec<_>>(), [routed], "{workers} workers, key {number}");
            }
        }
    }
}

/// The base of a changelog outlives the checkpoint that wrote it, as long as a later one stands on it; and two starts in a
/// row find what they need at the places where it was written.
#[test]
fn released_checkpoints_take_nothing_that_later_ones_need_and_paths_are_stable() {
    for (family, subject) in families() {
        let store = subject.store();
        let mut job = Job::start(&*subject, 2);
        fill(&mut job, 0..200, b"first");
        let mut before = checkpoint(&mut job);
        for round in 0..4_u32 {
            fill(&mut job, round * 10..round * 10 + 5, &round.to_be_bytes());
            let after = checkpoint(&mut job);
            // Only the newest is retained.
            for name in released_parts(&before, &after) {
                store.delete(&name).expect("removes");
            }
            let expected = job.content();
            job.restart(2, &after).unwrap_or_else(|error| panic!("{family}, start {round}: {error:?}"));
            assert_eq!(job.content(), expected, "{family}, start {round}");
            before = after;
        }
    }
}

/// What operator state was at the capture is in the checkpoint, though it changes before the slow part is done: an offset
/// of a later checkpoint never gets into an earlier one.
#[test]
fn offsets_belong_to_the_cut() {
    let offset = union_key("offsets", b"split").expect("valid");
    for (family, subject) in families() {
        let mut job = Job::start(&*subject, 1);
        job.write(operator(1), &offset, Some(&7_i64.to_le_bytes()));
        fill(&mut job, 0..10, b"x");
        let first = job.capture();
        job.write(operator(1), &offset, Some(&8_i64.to_le_bytes()));
        fill(&mut job, 10..20, b"y");
        let first = persisted(first);
        let second = checkpoint(&mut job);
        for (snapshots, expected, rows) in [(first, 7_i64, 11), (second, 8, 21)] {
            job.restart(1, &snapshots).expect("restores");
            let found = job.workers[0].get(operator(1), &offset).expect("reads");
            assert_eq!(found, Some(expected.to_le_bytes().to_vec()), "{family}");
            assert_eq!(job.content().len(), rows, "{family}");
        }
    }
}

/// Another life, and another number of workers, write under names of their own.
#[test]
fn no_two_topologies_share_a_name() {
    for (family, subject) in families() {
        let mut names: BTreeSet<String> = BTreeSet::new();
        let mut job = Job::start(&*subject, 1);
        for workers in [1, 3, 2] {
            fill(&mut job, 0..50, format!("{workers}").as_bytes());
            let snapshots = checkpoint(&mut job);
            let found: BTreeSet<(String, u32)> =
                snapshots.iter().flat_map(Snapshot::parts).map(|part| (part.name.clone(), part.crc32c)).collect();
            let by_name: BTreeSet<&String> = found.iter().map(|(name, _)| name).collect();
            assert_eq!(by_name.len(), found.len(), "{family}: one name, two contents");
            for part in snapshots.iter().flat_map(Snapshot::parts) {
                // Under its name lies what the manifest says, whoever wrote before.
                subject.store().get(part).unwrap_or_else(|error| panic!("{family}: {error:?}"));
            }
            names.extend(by_name.into_iter().cloned());
            job.restart(workers, &snapshots).expect("restores");
        }
        assert!(names.len() > 3, "{family}");
    }
}

/// Operator state of several workers is merged by its type: the entries of a union are all there, the greater offset wins.
#[test]
fn operator_state_is_merged_by_type() {
    for (family, subject) in families() {
        let mut job = Job::start(&*subject, 2);
        let union = |entry: &[u8]| union_key("offsets", entry).expect("valid");
        for (worker, entries) in [(0, [("a", 5_i64), ("both", 3)]), (1, [("b", 6), ("both", 9)])] {
            for (entry, offset) in entries {
                let value = offset.to_le_bytes();
                job.workers[worker].put(operator(1), &union(entry.as_bytes()), &value).expect("writes");
            }
        }
        let snapshots = checkpoint(&mut job);
        job.restart(3, &snapshots).expect("restores");
        for backend in &job.workers {
            for (entry, offset) in [("a", 5_i64), ("b", 6), ("both", 9)] {
                let found = backend.get(operator(1), &union(entry.as_bytes())).expect("reads");
                assert_eq!(found, Some(offset.to_le_bytes().to_vec()), "{family}: {entry}");
            }
        }
    }
}

/// A checkpoint writes what changed: a base lies in an object of its own and is named again, not written again.
#[test]
fn a_small_change_makes_a_small_checkpoint() {
    // What no compression makes small.
    let noise = |key: u32, round: u32| -> Vec<u8> {
        let mut state = (u64::from(key) << 32) | u64::from(2 * round + 1);
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..60).map(|_| next()).collect()
    };
    for (family, subject) in families() {
        let mut job = Job::start(&*subject, 1);
        let write = |job: &mut Job<'_>, keys: std::ops::Range<u32>, round| {
            keys.for_each(|key| job.write(operator(1), &value_key("v", &key.to_be_bytes()), Some(&noise(key, round))));
        };
        let content = |snapshots: &[Snapshot]| -> BTreeSet<(u64, u32)> {
            snapshots.iter().flat_map(Snapshot::parts).map(|part| (part.bytes, part.crc32c)).collect()
        };
        let bytes = |parts: &BTreeSet<(u64, u32)>| parts.iter().map(|(bytes, _)| bytes).sum::<u64>();
        write(&mut job, 0..20_000, 0);
        let mut before = content(&checkpoint(&mut job));
        // One of them may write, or be the first to name, a base.
        let mut shares = Vec::new();
        for round in 1..5 {
            write(&mut job, round * 200..(round + 1) * 200, round);
            let all = content(&checkpoint(&mut job));
            shares.push((bytes(&(&all - &before)), bytes(&all)));
            before = &before | &all;
        }
        let small = shares.iter().filter(|(new, all)| new * 10 < *all).count();
        assert!(small >= 2, "{family}: of each checkpoint the new bytes and all: {shares:?}");
    }
}

/// Adding to a collection writes one entry, however large it is, and one key's entries are read without the others.
#[test]
fn collections_are_entries_of_their_own() {
    let mut backend = MemoryBackend::default();
    let list = ListState::new(operator(1), "l", TextCodec, BytesCodec).expect("valid");
    for key in ["a", "b"] {
        let mut next = 0;
        for item in 0..500_u32 {
            next = list.add(&mut backend, &key.to_owned(), next, &[item.to_be_bytes().to_vec()]).expect("memory");
        }
    }
    assert_eq!(backend.entries(operator(1)), 1_000, "an entry each");
    let mut read = 0;
    let visit: &mut Visit<'_> = &mut |_, _| {
        read += 1;
        Ok(())
    };
    backend.scan(operator(1), &list_prefix_of("l", &TextCodec.to_bytes(&"a".to_owned())), visit).expect("memory");
    assert_eq!(read, 500, "and nobody else's are read");
}

/// Merged streams keep the stamps of all inputs and tell when these contradict each other; batches may be many.
#[test]
fn stamps_of_all_inputs_survive_a_merge() {
    let stream = |operator: u64, version: u32, rows: std::ops::Range<u32>| {
        let mut versions = StateVersions::default();
        let stamp = VersionStamp { state_type: "Sum".to_owned(), version };
        versions.set(OperatorId::from_u64(operator), "s", stamp).expect("valid");
        let mut writer = SnapshotWriter::new(Vec::new(), &versions).expect("begins");
        for row in rows {
            writer.push(OperatorId::from_u64(operator), &row.to_be_bytes(), b"v").expect("in order");
        }
        writer.finish().expect("ends")
    };
    // More rows than a batch has.
    let (one, two) = (stream(1, 2, 0..10_000), stream(2, 5, 0..10_000));
    let merged = merge(&[&one, &two]).expect("agree");
    let reader = SnapshotReader::new(&merged).expect("whole");
    let versions = reader.versions().clone();
    assert_eq!([1, 2].map(|id| versions.version(OperatorId::from_u64(id), "s")), [2, 5]);
    let mut rows = 0;
    reader
        .visit(&mut |_, _, _| {
            rows += 1;
            Ok(())
        })
        .expect("whole");
    assert_eq!(rows, 20_000);
    assert!(merge(&[&stream(1, 2, 0..1), &stream(1, 3, 5..6)]).is_err(), "two versions of one slot");
}

/// An operator's number follows from a published hash (FNV-1a, 64 bits) of its place: other programs compute it too.
#[test]
fn operator_numbers_are_the_same_in_every_build() {
    let hash = |text: &str| {
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    assert_eq!(OperatorId::of("public.v", "root").as_u64(), hash("view/public.v/root"));
    assert_eq!(KeyGroup::of(b"ada").index() as u64, hash("ada") % KEY_GROUPS as u64);
}

/// Reads see what a batch wrote without forcing it to disk; state may be larger than what stays in memory.
#[test]
fn reads_do_not_flush_and_the_tier_keeps_its_bound() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn PartStore> =
        Arc::new(LocalStore::open(folder.path(), false, Default::default()).expect("opens"));
    let (names, options) = (PartNames::of_worker(0), RocksDbOptions::default());
    let work = folder.path().join("work");
    let mut rocks =
        RocksDbBackend::open(&work, Arc::clone(&store), names.clone(), 1, options, RocksDbShared::new(8 << 20))
            .expect("opens");
    for number in 0..2_000_u32 {
        let key = value_key("v", &(number % 100).to_be_bytes());
        let read = rocks.get(operator(1), &key).expect("reads");
        let sum = read.map_or(0, |value| u32::from_le_bytes(value.try_into().expect("four bytes"))) + 1;
        rocks.put(operator(1), &key, &sum.to_le_bytes()).expect("writes");
    }
    let sorted = std::fs::read_dir(work.join("db")).expect("there").flatten();
    let sorted = sorted.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "sst"));
    assert_eq!(sorted.count(), 0, "2,000 reads between writes made no file");
    assert_eq!(rocks.get(operator(1), &value_key("v", &7_u32.to_be_bytes())).expect("reads"), Some(vec![20, 0, 0, 0]));

    let pool = Arc::new(LayerPool::new(Arc::clone(&store), names.clone()));
    let options = RemoteOptions { hot_max_bytes: Some(64 << 10), io_threads: 1 };
    let mut remote = RemoteReadBackend::new(pool, store, names, options).expect("starts");
    for round in 0..20_u32 {
        for number in 0..500 {
            let key = value_key("v", &(round * 500 + number).to_be_bytes());
            remote.put(operator(1), &key, &[round as u8; 100]).expect("writes");
        }
        remote.snapshot(CheckpointId(u64::from(round) + 1)).expect("persists");
    }
    assert_eq!(
        remote.get(operator(1), &value_key("v", &3_u32.to_be_bytes())).expect("reads"),
        Some(vec![0; 100]),
        "a megabyte of state behind 64 KiB"
    );
}

/// Parameters are read strictly, and a server keeps older checkpoints to fall back to.
#[test]
fn malformed_parameters_are_errors() {
    let registry = Registry::default();
    for uri in [
        "rocksdb:///x?block_cache_bytes=lots",
        "rocksdb:///x?bloom_bits=-1",
        "changelog://?upload_bytes=1e6",
        "disagg-local://?io_threads=none",
        "remote-read://b/p?anonymous=maybe",
        "memory://?x=1",
    ] {
        let refused = registry.parse(uri).expect_err(uri);
        assert_eq!(refused.code(), SqlState::InvalidParameterValue, "{uri}");
    }
}
