use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::conformance::{self, InFolder, Subject};
use super::super::*;
use super::*;
use crate::env::Failpoints;
use crate::types::{CheckpointId, OperatorId, Result};

fn open(store: &Arc<dyn PartStore>, worker: usize, hot_max_bytes: Option<usize>) -> RemoteReadBackend {
    open_with(store, worker, hot_max_bytes, 64 << 20)
}

fn open_with(
    store: &Arc<dyn PartStore>,
    worker: usize,
    hot_max_bytes: Option<usize>,
    segment_bytes: usize,
) -> RemoteReadBackend {
    let names = PartNames::of_worker(worker);
    let pool = Arc::new(LayerPool::new(Arc::clone(store), names.clone()).with_segments_of(segment_bytes));
    let options = RemoteOptions { hot_max_bytes, io_threads: 2 };
    RemoteReadBackend::new(pool, Arc::clone(store), names, options).expect("starts")
}

fn subject(hot_max_bytes: Option<usize>) -> Box<dyn Subject> {
    Box::new(InFolder::new(move |_, store: &Arc<dyn PartStore>, _, share: Share| -> Box<dyn StateBackend> {
        Box::new(open(store, share.worker(), hot_max_bytes))
    }))
}

#[test]
fn remote_read_conforms() {
    for hot_max_bytes in [None, Some(0), Some(2000)] {
        conformance::check(&*subject(hot_max_bytes));
        conformance::check_model(32, || subject(hot_max_bytes));
    }
}

#[test]
fn runs_of_several_segments_conform() {
    let subject = || -> Box<dyn Subject> {
        Box::new(InFolder::new(|_, store: &Arc<dyn PartStore>, _, share: Share| -> Box<dyn StateBackend> {
            // An entry or two in each segment.
            Box::new(open_with(store, share.worker(), Some(0), 40))
        }))
    };
    conformance::check_model(32, subject);
    let (_folder, store) = local();
    let mut backend = open_with(&store, 0, Some(0), 20_000);
    write(&mut backend, 0..20_000, b"12345678");
    let first = backend.snapshot(CheckpointId(1)).expect("persists");
    let Content::Layers { layers, .. } = &first.content else { panic!("not layers") };
    let objects = layers.len();
    assert!(objects > 20, "one run in {objects} objects");
    // Small changes do not rewrite the run, however many objects it has.
    for round in 2..12 {
        write(&mut backend, 0..20, &[round; 8]);
        let snapshot = backend.snapshot(CheckpointId(u64::from(round))).expect("persists");
        let kept = snapshot.parts().iter().filter(|part| first.parts().contains(part)).count();
        assert!(kept >= objects, "{kept} of {objects} objects are kept in round {round}");
    }
    let mut count = 0;
    backend
        .export(&mut |_, _, _| {
            count += 1;
            Ok(())
        })
        .expect("reads");
    assert_eq!(count, 20_000);
}

fn local() -> (tempfile::TempDir, Arc<dyn PartStore>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = LocalStore::open(folder.path(), false, Failpoints::default()).expect("opens");
    (folder, Arc::new(store))
}

fn write(backend: &mut RemoteReadBackend, keys: std::ops::Range<u32>, value: &[u8]) {
    let mut batch = WriteBatch::default();
    keys.for_each(|key| batch.put(value_key("v", &key.to_be_bytes()), value.to_vec()));
    backend.apply(OperatorId::from_u64(1), batch).expect("writes");
}

#[test]
fn the_tier_stays_within_its_bytes_and_nothing_is_lost() {
    let (_folder, store) = local();
    let mut backend = open(&store, 0, Some(100_000));
    for round in 0..20_u32 {
        write(&mut backend, round * 500..(round + 1) * 500, &round.to_le_bytes());
        backend.snapshot(CheckpointId(u64::from(round) + 1)).expect("persists");
        let key = value_key("v", &(round * 500).to_be_bytes());
        backend.get(OperatorId::from_u64(1), &key).expect("reads");
        assert!(backend.hot_bytes() <= 100_000, "{} bytes in round {round}", backend.hot_bytes());
    }
    let keys: Vec<Vec<u8>> = (0..10_000_u32).map(|key| value_key("v", &key.to_be_bytes())).collect();
    for (chunk, keys) in keys.chunks(1000).enumerate() {
        let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let values = backend.get_many(OperatorId::from_u64(1), &slices).expect("reads");
        for (at, value) in values.iter().enumerate() {
            let round = (chunk * 1000 + at) as u32 / 500;
            assert_eq!(value.as_deref(), Some(&round.to_le_bytes()[..]));
        }
        assert!(backend.hot_bytes() <= 100_000);
    }
}

#[test]
fn layers_stay_few_and_a_checkpoint_costs_what_changed() {
    let (_folder, store) = local();
    let mut backend = open(&store, 0, None);
    write(&mut backend, 0..50_000, b"12345678");
    let first = backend.snapshot(CheckpointId(1)).expect("persists");
    let bytes = |snapshot: &Snapshot| snapshot.parts().iter().map(|part| part.bytes).sum::<u64>();
    let all = bytes(&first);
    let (mut written, mut before) = (0, first);
    for round in 2..42 {
        write(&mut backend, 0..500, &[round; 8]);
        let snapshot = backend.snapshot(CheckpointId(u64::from(round))).expect("persists");
        written +=
            snapshot.parts().iter().filter(|part| !before.parts().contains(part)).map(|part| part.bytes).sum::<u64>();
        let Content::Layers { layers, .. } = &snapshot.content else { panic!("not layers") };
        assert!(layers.len() < 10, "{} layers", layers.len());
        before = snapshot;
    }
    // 40 checkpoints of 1 % each, with the merges of small layers.
    assert!(written < 2 * all, "{written} bytes over {all}");
    assert_eq!(
        backend.get(OperatorId::from_u64(1), &value_key("v", &7_u32.to_be_bytes())).expect("reads"),
        Some(vec![41; 8])
    );
}

#[test]
fn a_restore_reads_only_what_is_asked_for() {
    let (_folder, store) = local();
    let mut backend = open(&store, 0, None);
    write(&mut backend, 0..20_000, b"v");
    let snapshot = backend.snapshot(CheckpointId(1)).expect("persists");
    drop(backend);
    // The segments are hidden: the restore does not miss them, a read does.
    let segment = snapshot.parts().into_iter().find(|part| part.name.ends_with(".segment")).expect("one").clone();
    let content = store.get(&segment).expect("whole");
    store.delete(&segment.name).expect("removes");
    let mut restored = open(&store, 0, None);
    restored.restore(std::slice::from_ref(&snapshot), Share::WHOLE).expect("reads no segment");
    let key = value_key("v", &5_u32.to_be_bytes());
    assert!(restored.get(OperatorId::from_u64(1), &key).is_err());
    store.put(&segment.name, content).expect("writes");
    assert_eq!(restored.get(OperatorId::from_u64(1), &key).expect("reads"), Some(b"v".to_vec()));
}

#[test]
fn a_flipped_bit_in_a_segment_is_found() {
    let (_folder, store) = local();
    let mut backend = open(&store, 0, None);
    write(&mut backend, 0..3000, b"value");
    let snapshot = backend.snapshot(CheckpointId(1)).expect("persists");
    let segment = snapshot.parts().into_iter().find(|part| part.name.ends_with(".segment")).expect("one").clone();
    let content = store.get(&segment).expect("whole");
    for at in (0..content.len()).step_by(content.len() / 50) {
        let mut flipped = content.to_vec();
        flipped[at] ^= 4;
        store.put(&segment.name, flipped.into()).expect("writes");
        let mut restored = open(&store, 0, None);
        restored.restore(std::slice::from_ref(&snapshot), Share::WHOLE).expect("reads no segment");
        let mut entries = 0;
        let read = restored.export(&mut |_, _, _| {
            entries += 1;
            Ok(())
        });
        let error = read.expect_err("damaged");
        assert_eq!(error.code(), crate::types::SqlState::DataCorrupted, "byte {at}");
    }
}

#[test]
fn a_loader_is_asked_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let load = move |_: OperatorId, keys: &[&[u8]]| -> Result<Values> {
        counter.fetch_add(keys.len(), Ordering::Relaxed);
        Ok(keys.iter().map(|key| (key.len() > 1).then(|| key.to_vec())).collect())
    };
    let options = RemoteOptions { hot_max_bytes: None, io_threads: 2 };
    let mut backend = RemoteReadBackend::over_loader(Arc::new(LoaderPool::new(load)), options).expect("starts");
    let operator = OperatorId::from_u64(1);
    for _ in 0..3 {
        assert_eq!(backend.get(operator, &[1, 2]).expect("loads"), Some(vec![1, 2]));
        assert_eq!(backend.get(operator, &[1]).expect("loads"), None, "absent is a value too");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    backend.put(operator, &[1], b"ours").expect("writes");
    assert_eq!(backend.get(operator, &[1]).expect("reads"), Some(b"ours".to_vec()));
    assert!(backend.capture(CheckpointId(1)).is_err());
}
