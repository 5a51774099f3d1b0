use super::super::conformance::{self, InFolder, Subject};
use super::super::*;
use super::*;
use crate::env::Failpoints;
use crate::types::{CheckpointId, OperatorId, SqlState};
use std::collections::BTreeSet;
use std::sync::Arc;

fn over_memory(store: &Arc<dyn PartStore>, life: u64, worker: usize, options: ChangelogOptions) -> ChangelogBackend {
    let names = PartNames::of_worker(worker).behind(&ChangelogBackend::base_prefix(life));
    let inner = Box::new(MemoryBackend::new(Arc::clone(store), names, true));
    ChangelogBackend::new(inner, Arc::clone(store), worker, life, options).expect("starts")
}

fn subject(options: ChangelogOptions) -> Box<dyn Subject> {
    Box::new(InFolder::new(move |_, store: &Arc<dyn PartStore>, life, share: Share| -> Box<dyn StateBackend> {
        Box::new(over_memory(store, life, share.worker(), options.clone()))
    }))
}

#[test]
fn changelog_over_memory_conforms() {
    let small = |materialization_threshold_bytes, upload_bytes, log_compaction| ChangelogOptions {
        materialization_threshold_bytes,
        upload_bytes,
        log_compaction,
    };
    for options in [ChangelogOptions::default(), small(1, 1, true), small(200, 100, false), small(1 << 30, 300, true)] {
        conformance::check(&*subject(options.clone()));
        conformance::check_model(32, || subject(options.clone()));
    }
}

/// The table of the seed: list.add(a) … CP3, with a base in the middle and a segment that straddles it.
#[test]
fn the_timeline_of_the_seed() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn PartStore> =
        Arc::new(LocalStore::open(folder.path(), true, Failpoints::default()).expect("opens"));
    let manual = ChangelogOptions { materialization_threshold_bytes: usize::MAX, ..ChangelogOptions::default() };
    let mut backend = over_memory(&store, 1, 0, manual.clone());
    let list = OperatorId::of("public.v", "root");
    let item = |name: &str| map_key("list", b"k", name.as_bytes());
    let add = |backend: &mut ChangelogBackend, name: &str| backend.put(list, &item(name), b"").expect("writes");
    let ranges = |snapshot: &Snapshot| match &snapshot.content {
        Content::Changelog { base, segments, .. } => {
            (base.len(), segments.iter().map(|s| (s.from, s.to)).collect::<Vec<_>>())
        }
        other => panic!("{other:?}"),
    };
    let segment = |snapshot: &Snapshot, index: usize| match &snapshot.content {
        Content::Changelog { segments, .. } => segments[index].part.clone(),
        other => panic!("{other:?}"),
    };

    // On startup, the state is empty: sqn = T0.
    assert_eq!(backend.log().sqn(), 0);
    add(&mut backend, "a");
    assert_eq!(backend.log().sqn(), 0, "a change does not advance the number");
    // CP1: persist after T0; sqn = T1; the future is of (T0:T1 = a).
    let first = backend.capture(CheckpointId(1)).expect("captures");
    assert_eq!(backend.log().sqn(), 1);
    add(&mut backend, "b");
    // A base is triggered: sqn = T2 is sampled; it will be (T0:T2 = a, b).
    backend.materialize().expect("starts");
    assert_eq!(backend.log().sqn(), 2);
    add(&mut backend, "c");
    // CP2: persist after T0; sqn = T3; the future of (T0:T1) is combined with a new one (T1:T3 = b, c).
    let second = backend.capture(CheckpointId(2)).expect("captures");
    assert_eq!(backend.log().sqn(), 3);
    let (first, second) = (first.persist().expect("persists"), second.persist().expect("persists"));
    assert_eq!(ranges(&first), (0, vec![(0, 1)]));
    assert_eq!(ranges(&second), (0, vec![(0, 1), (1, 3)]), "still on the old base");
    assert_eq!(segment(&second, 0), segment(&first, 0), "the same object");
    // JM finalizes CP1, then CP2: CP1 is subsumed but nothing is removed.
    assert_eq!(released_parts([&first], [&second]), BTreeSet::new());
    // The base completes: lastMaterialized = T2, truncate(before = T2) removes the reference to (T0:T1).
    backend.finish_base();
    assert_eq!(backend.log().segments(0).len(), 1, "the log forgot (T0:T1)");
    assert!(store.get(&segment(&first, 0)).is_ok(), "its object is still there");
    add(&mut backend, "d");
    // CP3: persist after T2; (T1:T3) is used with the range (T2:T3), combined with (T3:T4 = d): together (T2:T4).
    let third = backend.snapshot(CheckpointId(3)).expect("persists");
    assert_eq!(backend.log().sqn(), 4);
    assert_eq!(ranges(&third), (1, vec![(2, 3), (3, 4)]));
    assert_eq!(segment(&third, 0), segment(&second, 1), "the straddling segment");
    // JM finalizes CP3: CP2 is subsumed, (T0:T1 = a) is referenced no more and removed; (T1:T3) stays.
    let released = released_parts([&second], [&third]);
    assert_eq!(released, BTreeSet::from([segment(&first, 0).name]));
    released.iter().for_each(|name| store.delete(name).expect("removes"));

    // Recovery from CP3: base a, b; from (T1:T3) only c; then d. An erased b must not come back by the filter's fault.
    let mut restored = over_memory(&store, 2, 0, manual.clone());
    restored.restore(std::slice::from_ref(&third), Share::WHOLE).expect("restores");
    let mut items = Vec::new();
    restored
        .scan(list, &[], &mut |key, _| {
            items.push(split_map_key("list", key)?.expect("of the list").1.to_vec());
            Ok(())
        })
        .expect("scans");
    assert_eq!(items, [b"a", b"b", b"c", b"d"]);
    // CP1 cannot be restored any more, and says so.
    let mut late = over_memory(&store, 3, 0, manual);
    let refused = late.restore(&[first], Share::WHOLE).expect_err("its segment is gone");
    assert_eq!(refused.code(), SqlState::DataCorrupted);
}

#[test]
fn changes_below_a_base_are_not_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn PartStore> =
        Arc::new(LocalStore::open(folder.path(), false, Failpoints::default()).expect("opens"));
    let manual = ChangelogOptions { materialization_threshold_bytes: usize::MAX, ..ChangelogOptions::default() };
    let (operator, key) = (OperatorId::from_u64(1), value_key("v", b"k"));
    let mut backend = over_memory(&store, 1, 0, manual.clone());
    backend.put(operator, &key, b"1").expect("writes");
    backend.materialize().expect("starts");
    // The same key again, in the same open range: it must not be folded into the sampled change.
    backend.put(operator, &key, b"2").expect("writes");
    let before = backend.snapshot(CheckpointId(1)).expect("persists");
    backend.finish_base();
    let after = backend.snapshot(CheckpointId(2)).expect("persists");
    let Content::Changelog { base, .. } = &after.content else { panic!("not a changelog") };
    let mut at_base = MemoryBackend::new(Arc::clone(&store), PartNames::of_worker(0), false);
    at_base.restore(base, Share::WHOLE).expect("restores");
    assert_eq!(at_base.get(operator, &key).expect("reads"), Some(b"1".to_vec()), "the base is as of its number");
    for snapshot in [before, after] {
        let mut restored = over_memory(&store, 9, 0, manual.clone());
        restored.restore(&[snapshot], Share::WHOLE).expect("restores");
        assert_eq!(restored.get(operator, &key).expect("reads"), Some(b"2".to_vec()));
    }
}

#[test]
fn a_failed_upload_is_tried_again_by_the_next_checkpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let failpoints = Failpoints::default();
    let store: Arc<dyn PartStore> =
        Arc::new(LocalStore::open(folder.path(), false, failpoints.clone()).expect("opens"));
    let mut backend = over_memory(&store, 1, 0, ChangelogOptions::default());
    let operator = OperatorId::from_u64(1);
    backend.put(operator, &value_key("v", b"a"), b"1").expect("writes");
    failpoints.arm("part.rename", 0);
    // Whoever meets the failure: the background thread, which leaves it to persist, or persist itself.
    let _ = backend.snapshot(CheckpointId(1));
    backend.put(operator, &value_key("v", b"b"), b"2").expect("writes");
    let snapshot = backend.snapshot(CheckpointId(2)).expect("persists");
    let mut restored = over_memory(&store, 2, 0, ChangelogOptions::default());
    restored.restore(&[snapshot], Share::WHOLE).expect("restores");
    assert_eq!(restored.get(operator, &value_key("v", b"a")).expect("reads"), Some(b"1".to_vec()));
    assert_eq!(restored.get(operator, &value_key("v", b"b")).expect("reads"), Some(b"2".to_vec()));
}

#[test]
fn a_checkpoint_costs_what_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn PartStore> =
        Arc::new(LocalStore::open(folder.path(), false, Failpoints::default()).expect("opens"));
    let options = ChangelogOptions { materialization_threshold_bytes: 1 << 20, ..ChangelogOptions::default() };
    let mut backend = over_memory(&store, 1, 0, options);
    let operator = OperatorId::from_u64(1);
    let write = |backend: &mut ChangelogBackend, keys: std::ops::Range<u32>| {
        let mut batch = WriteBatch::default();
        keys.for_each(|key| batch.put(value_key("v", &key.to_be_bytes()), key.to_le_bytes().to_vec()));
        backend.apply(operator, batch).expect("writes");
    };
    write(&mut backend, 0..100_000);
    let first = backend.snapshot(CheckpointId(1)).expect("persists");
    backend.finish_base();
    write(&mut backend, 0..1000);
    let second = backend.snapshot(CheckpointId(2)).expect("persists");
    let bytes = |parts: &[&Part]| parts.iter().map(|part| part.bytes).sum::<u64>();
    let old: BTreeSet<&Part> = first.parts().into_iter().collect();
    let new: Vec<&Part> =
        second.parts().into_iter().filter(|part| part.name.starts_with("log/") && !old.contains(part)).collect();
    // More than the threshold, and far less than the base: no new base.
    for round in 3..6 {
        write(&mut backend, 0..40_000);
        let snapshot = backend.snapshot(CheckpointId(round)).expect("persists");
        backend.finish_base();
        let bases: BTreeSet<String> = snapshot
            .parts()
            .iter()
            .filter(|part| part.name.starts_with("base/"))
            .map(|part| part.name.clone())
            .collect();
        assert_eq!(bases.len(), 1);
    }
    let listed = store.list("base/").expect("lists").len();
    assert!(listed <= 2, "{listed} bases for 220 % of changes");
    assert!(bytes(&new) * 50 < bytes(&first.parts()), "{} of {}", bytes(&new), bytes(&first.parts()));
}
