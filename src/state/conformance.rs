//! What every backend must do, held against a map.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::env::Failpoints;
use crate::types::{CheckpointId, KeyGroup, OperatorId, Result, SqlState};

/// Makes backends that share their checkpoint store: one for each worker of a life.
pub(super) trait Subject {
    /// A fresh backend of a worker in a life of the job.
    fn open(&self, life: u64, share: Share) -> Box<dyn StateBackend>;
    /// The same, with its checkpoints in another store.
    fn open_on(&self, store: &Arc<dyn PartStore>, life: u64, share: Share) -> Box<dyn StateBackend>;
    /// The store of its checkpoints.
    fn store(&self) -> Arc<dyn PartStore>;
}

pub(super) type Model = BTreeMap<(OperatorId, Vec<u8>), Vec<u8>>;

/// The workers of one life of a job.
pub(super) struct Job<'a> {
    subject: &'a dyn Subject,
    life: u64,
    pub(super) checkpoint: u64,
    pub(super) workers: Vec<Box<dyn StateBackend>>,
}

impl<'a> Job<'a> {
    pub(super) fn start(subject: &'a dyn Subject, workers: usize) -> Job<'a> {
        Job::start_after(subject, workers, 0)
    }

    /// As if there had been so many lives before, whose working folders may be in use.
    pub(super) fn start_after(subject: &'a dyn Subject, workers: usize, lives: u64) -> Job<'a> {
        let mut job = Job { subject, life: lives, checkpoint: 0, workers: Vec::new() };
        job.begin(workers);
        job
    }

    fn begin(&mut self, workers: usize) {
        self.life += 1;
        self.workers.clear();
        for worker in 0..workers {
            self.workers.push(self.subject.open(self.life, Share::new(worker, workers).expect("valid")));
        }
    }

    pub(super) fn restart(&mut self, workers: usize, from: &[Snapshot]) -> Result<()> {
        self.begin(workers);
        if from.is_empty() {
            return Ok(());
        }
        // Through text, as the manifest holds them.
        let text = serde_json::to_string(from).expect("JSON");
        let from: Vec<Snapshot> = serde_json::from_str(&text).expect("JSON");
        for (worker, backend) in self.workers.iter_mut().enumerate() {
            backend.restore(&from, Share::new(worker, workers).expect("valid"))?;
        }
        Ok(())
    }

    /// The worker of a key; operator state is kept by the first.
    fn worker(&mut self, key: &[u8]) -> &mut Box<dyn StateBackend> {
        let workers = self.workers.len();
        let worker = if Share::is_operator_state(key) { 0 } else { KeyGroup::new(usize::from(key[0])).worker(workers) };
        &mut self.workers[worker]
    }

    pub(super) fn write(&mut self, operator: OperatorId, key: &[u8], value: Option<&[u8]>) {
        let batch = WriteBatch { entries: vec![(key.to_vec(), value.map(<[u8]>::to_vec))] };
        self.worker(key).apply(operator, batch).expect("writes");
    }

    pub(super) fn capture(&mut self) -> Vec<Capture> {
        self.checkpoint += 1;
        let checkpoint = CheckpointId(self.checkpoint);
        self.workers.iter_mut().map(|worker| worker.capture(checkpoint).expect("captures")).collect()
    }

    pub(super) fn snapshot(&mut self) -> Vec<Snapshot> {
        self.capture().into_iter().map(|capture| capture.persist().expect("persists")).collect()
    }

    /// Everything that the workers hold, operator state of the first alone.
    pub(super) fn content(&self) -> Model {
        self.try_content().expect("exports")
    }

    pub(super) fn try_content(&self) -> Result<Model> {
        let mut content = Model::new();
        for (worker, backend) in self.workers.iter().enumerate() {
            let mut last = None;
            backend.export(&mut |operator, key, value| {
                let place = (operator, key.to_vec());
                assert!(last.as_ref() < Some(&place), "in order");
                last = Some(place.clone());
                if worker == 0 || !Share::is_operator_state(key) {
                    assert!(content.insert(place, value.to_vec()).is_none(), "a key of two workers");
                }
                Ok(())
            })?;
        }
        Ok(content)
    }
}

pub(super) fn operator(number: u64) -> OperatorId {
    OperatorId::from_u64(number)
}

fn scanned(backend: &dyn StateBackend, number: u64, range: &KeyRange) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    backend
        .scan_range(operator(number), range, &mut |key, _| {
            keys.push(key.to_vec());
            Ok(ControlFlow::Continue(()))
        })
        .expect("scans");
    keys
}

/// The whole suite.
pub(super) fn check(subject: &dyn Subject) {
    entries_behave_like_a_map(subject);
    many_are_read_at_once(subject);
    a_capture_is_a_cut(subject);
    an_abandoned_capture_loses_nothing(subject);
    state_moves_with_the_workers(subject);
    a_missing_part_is_refused(subject);
    stamps_are_kept(subject);
}

fn entries_behave_like_a_map(subject: &dyn Subject) {
    let mut job = Job::start(subject, 1);
    let backend = job.workers[0].as_mut();
    assert_eq!(backend.get(operator(1), &[1]).expect("reads"), None);
    let mut batch = WriteBatch::default();
    for key in [&[3, 1][..], &[3], &[3, 255], &[3, 255, 255], &[4], &[127, 9], &[255, 1], &[255, 255], &[]] {
        batch.put(key.to_vec(), key.to_vec());
    }
    batch.put(vec![5], vec![1]);
    batch.erase(vec![5]);
    batch.erase(vec![6]);
    batch.put(vec![7], vec![]);
    batch.put(vec![7], vec![7; 3]);
    backend.apply(operator(1), batch).expect("writes");
    backend.put(operator(2), &[3], b"other").expect("writes");
    assert_eq!(backend.get(operator(1), &[3]).expect("reads"), Some(vec![3]));
    assert_eq!(backend.get(operator(1), &[]).expect("reads"), Some(vec![]));
    assert_eq!(backend.get(operator(1), &[5]).expect("reads"), None);
    assert_eq!(backend.get(operator(1), &[7]).expect("reads"), Some(vec![7; 3]));
    assert_eq!(backend.get(operator(2), &[3]).expect("reads"), Some(b"other".to_vec()));
    assert_eq!(backend.operators().expect("reads"), [operator(1), operator(2)]);
    backend.put(operator(1), &[7], b"").expect("writes");
    assert_eq!(backend.get(operator(1), &[7]).expect("reads"), Some(vec![]));

    let range = |from: &[u8], to: Option<&[u8]>| KeyRange { from: from.to_vec(), to: to.map(<[u8]>::to_vec) };
    let all: Vec<Vec<u8>> = vec![
        vec![],
        vec![3],
        vec![3, 1],
        vec![3, 255],
        vec![3, 255, 255],
        vec![4],
        vec![7],
        vec![127, 9],
        vec![255, 1],
        vec![255, 255],
    ];
    assert_eq!(scanned(backend, 1, &KeyRange::all()), all);
    assert_eq!(scanned(backend, 1, &KeyRange::of_prefix(&[3])), all[1..5]);
    assert_eq!(scanned(backend, 1, &KeyRange::of_prefix(&[3, 255])), all[3..5]);
    assert_eq!(scanned(backend, 1, &KeyRange::of_prefix(&[255])), all[8..]);
    assert_eq!(scanned(backend, 1, &range(&[3, 1], Some(&[4]))), all[2..5]);
    assert_eq!(scanned(backend, 1, &range(&[3, 2], Some(&[127]))), all[3..7]);
    assert_eq!(scanned(backend, 1, &range(&[5], Some(&[4]))), Vec::<Vec<u8>>::new());
    assert_eq!(scanned(backend, 3, &KeyRange::all()), Vec::<Vec<u8>>::new());
    let mut first = Vec::new();
    backend
        .scan_range(operator(1), &range(&[3], None), &mut |key, _| {
            first.push(key.to_vec());
            Ok(if first.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
        .expect("scans");
    assert_eq!(first, all[1..3]);
    let stopped = backend.scan(operator(1), &[], &mut |_, _| Err(crate::types::Error::internal("stop")));
    assert_eq!(stopped.expect_err("the visitor's").message(), "stop");
    backend.erase(operator(1), &[3, 255]).expect("erases");
    assert_eq!(scanned(backend, 1, &KeyRange::of_prefix(&[3])).len(), 3);
}

fn many_are_read_at_once(subject: &dyn Subject) {
    let mut job = Job::start(subject, 1);
    for key in 0..100_u8 {
        job.write(operator(1), &[key % 128, key], Some(&[key]));
    }
    let snapshot = job.snapshot();
    job.restart(1, &snapshot).expect("restores");
    let backend = &job.workers[0];
    let keys: Vec<Vec<u8>> = (0..120_u8).rev().map(|key| vec![key, key]).collect();
    let expected: Vec<Option<Vec<u8>>> = (0..120_u8).rev().map(|key| (key < 100).then(|| vec![key])).collect();
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    assert_eq!(backend.get_many(operator(1), &slices).expect("reads"), expected);
    let values = futures::executor::block_on(backend.get_many_async(operator(1), keys, 7));
    assert_eq!(values.expect("reads"), expected);
    let value = futures::executor::block_on(backend.get_async(operator(1), vec![9, 9], 7));
    assert_eq!(value.expect("reads"), Some(vec![9]));
}

fn a_capture_is_a_cut(subject: &dyn Subject) {
    let mut job = Job::start(subject, 2);
    job.write(operator(1), b"\x01s|a", Some(b"1"));
    job.write(operator(1), b"\x70s|b", Some(b"1"));
    job.write(operator(1), b"\x70s|c", Some(b"1"));
    let before = job.content();
    let captures = job.capture();
    job.write(operator(1), b"\x01s|a", Some(b"2"));
    job.write(operator(1), b"\x70s|b", None);
    job.write(operator(1), b"\x02s|d", Some(b"2"));
    job.write(operator(3), b"\x02s|d", Some(b"2"));
    let after = job.content();
    let first: Vec<Snapshot> = captures.into_iter().map(|capture| capture.persist().expect("persists")).collect();
    assert_eq!(job.content(), after, "persisting changes nothing");
    let second = job.snapshot();
    job.restart(2, &first).expect("restores");
    assert_eq!(job.content(), before);
    // Twice in a row, with changes between.
    job.restart(2, &second).expect("restores");
    assert_eq!(job.content(), after);
    job.write(operator(1), b"\x70s|b", Some(b"3"));
    let changed = job.content();
    let third = job.snapshot();
    job.restart(2, &third).expect("restores");
    assert_eq!(job.content(), changed);
    let fourth = job.snapshot();
    job.restart(2, &fourth).expect("restores");
    assert_eq!(job.content(), changed);
}

fn an_abandoned_capture_loses_nothing(subject: &dyn Subject) {
    let mut job = Job::start(subject, 1);
    job.write(operator(1), b"\x01s|a", Some(b"1"));
    job.write(operator(1), b"\x01s|b", Some(b"1"));
    let _ = job.snapshot();
    job.write(operator(1), b"\x01s|a", Some(b"2"));
    job.write(operator(1), b"\x01s|b", None);
    job.write(operator(1), b"\x01s|c", Some(b"2"));
    drop(job.capture());
    job.write(operator(1), b"\x01s|c", Some(b"3"));
    let expected = job.content();
    let snapshot = job.snapshot();
    job.restart(1, &snapshot).expect("restores");
    assert_eq!(job.content(), expected);
    assert_eq!(expected.len(), 2);
}

fn state_moves_with_the_workers(subject: &dyn Subject) {
    let mut job = Job::start(subject, 1);
    let mut expected = Model::new();
    let union = |entry: u32| union_key("offsets", &entry.to_be_bytes()).expect("valid");
    for key in 0..500_u32 {
        let stored = value_key("agg", &key.to_be_bytes());
        job.write(operator(1), &stored, Some(&key.to_le_bytes()));
        expected.insert((operator(1), stored), key.to_le_bytes().to_vec());
        let stored = map_key("m", &(key % 7).to_be_bytes(), &key.to_be_bytes());
        job.write(operator(2), &stored, Some(b""));
        expected.insert((operator(2), stored), vec![]);
    }
    for (key, value) in [(union(0), 5_i64.to_le_bytes()), (broadcast_key("b").expect("valid"), 1_i64.to_le_bytes())] {
        job.write(operator(3), &key, Some(&value));
        expected.insert((operator(3), key), value.to_vec());
    }
    let mut changed = 0_u32;
    for workers in [4, 3, 1, 2] {
        let snapshot = job.snapshot();
        job.restart(workers, &snapshot).expect("restores");
        assert_eq!(job.content(), expected, "with {workers} workers");
        for worker in 0..workers {
            let share = Share::new(worker, workers).expect("valid");
            job.workers[worker]
                .export(&mut |_, key, _| {
                    assert!(Share::is_operator_state(key) || share.keeps(key), "a key of another worker");
                    Ok(())
                })
                .expect("exports");
            let offsets = job.workers[worker].get(operator(3), &union(0)).expect("reads");
            assert_eq!(offsets, Some(5_i64.to_le_bytes().to_vec()), "each worker has the union");
        }
        // Go on: some keys change, some go, some come.
        for _ in 0..50 {
            changed += 1;
            let stored = value_key("agg", &changed.to_be_bytes());
            job.write(operator(1), &stored, Some(b"changed"));
            expected.insert((operator(1), stored), b"changed".to_vec());
            let stored = value_key("agg", &(changed + 200).to_be_bytes());
            job.write(operator(1), &stored, None);
            expected.remove(&(operator(1), stored));
            let stored = value_key("agg", &(changed + 1000).to_be_bytes());
            job.write(operator(1), &stored, Some(b"new"));
            expected.insert((operator(1), stored), b"new".to_vec());
        }
        assert_eq!(job.content(), expected, "after changes with {workers} workers");
    }
}

fn a_missing_part_is_refused(subject: &dyn Subject) {
    let mut job = Job::start(subject, 2);
    for key in 0..200_u32 {
        job.write(operator(1), &value_key("agg", &key.to_be_bytes()), Some(&key.to_le_bytes()));
    }
    let snapshot = job.snapshot();
    let (store, mut saved) = (subject.store(), Vec::new());
    let parts: Vec<Part> = snapshot.iter().flat_map(Snapshot::parts).cloned().collect();
    for part in &parts {
        saved.push(store.get(part).expect("whole"));
        store.delete(&part.name).expect("removes");
    }
    let refused = job.restart(2, &snapshot).and_then(|()| {
        // A lazy restore may find out when it reads.
        job.workers.iter().try_for_each(|worker| worker.export(&mut |_, _, _| Ok(())))
    });
    assert_eq!(refused.expect_err("parts are missing").code(), SqlState::DataCorrupted);
    for (part, content) in parts.iter().zip(saved) {
        store.put(&part.name, content).expect("writes");
    }
    job.restart(2, &snapshot).expect("restores");
    assert_eq!(job.content().len(), 200);
}

fn stamps_are_kept(subject: &dyn Subject) {
    let mut job = Job::start(subject, 2);
    let mut versions = StateVersions::default();
    let stamp = VersionStamp { state_type: "Sum".to_owned(), version: 3 };
    versions.set(operator(1), "agg", stamp).expect("valid");
    job.workers.iter_mut().for_each(|worker| worker.set_versions(versions.clone()));
    job.write(operator(1), &value_key("agg", b"k"), Some(b"v"));
    let snapshot = job.snapshot();
    job.restart(3, &snapshot).expect("restores");
    assert!(job.workers.iter().all(|worker| *worker.versions() == versions));
    let again = job.snapshot();
    job.restart(1, &again).expect("restores");
    assert_eq!(*job.workers[0].versions(), versions);
}

#[derive(Clone, Debug)]
enum Step {
    Write { operator: u64, key: Vec<u8>, value: Option<Vec<u8>> },
    Scan { operator: u64, from: Vec<u8>, to: Vec<u8> },
    Capture,
    Persist,
    Abandon,
    Restart { workers: usize },
    Materialize,
}

fn step() -> impl Strategy<Value = Step> {
    // Few keys, so that they meet; some are prefixes of others.
    let key = || {
        (0..6_u8, proptest::collection::vec(prop_oneof![Just(0_u8), Just(255), Just(7)], 0..3)).prop_map(
            |(group, rest)| {
                let group = [0, 1, 31, 32, 100, 127][usize::from(group)];
                [&[group][..], &rest].concat()
            },
        )
    };
    let value = proptest::option::weighted(0.7, proptest::collection::vec(any::<u8>(), 0..4));
    prop_oneof![
        12 => (1..3_u64, key(), value).prop_map(|(operator, key, value)| Step::Write { operator, key, value }),
        3 => (1..3_u64, key(), key()).prop_map(|(operator, from, to)| Step::Scan { operator, from, to }),
        2 => Just(Step::Capture),
        2 => Just(Step::Persist),
        1 => Just(Step::Abandon),
        1 => (1..5_usize).prop_map(|workers| Step::Restart { workers }),
        1 => Just(Step::Materialize),
    ]
}

/// Random histories against a map, with `cases` of them.
pub(super) fn check_model(cases: u32, subject: impl Fn() -> Box<dyn Subject>) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let histories = proptest::collection::vec(step(), 1..60);
    runner
        .run(&histories, |steps| {
            let subject = subject();
            run_history(&*subject, &steps);
            Ok(())
        })
        .expect("the backend is a map");
}

fn run_history(subject: &dyn Subject, steps: &[Step]) {
    let mut job = Job::start(subject, 2);
    let mut model = Model::new();
    let mut captured: Option<(Vec<Capture>, Model)> = None;
    let mut persisted: (Vec<Snapshot>, Model) = Default::default();
    for step in steps {
        match step {
            Step::Write { operator: number, key, value } => {
                job.write(operator(*number), key, value.as_deref());
                let place = (operator(*number), key.clone());
                match value {
                    Some(value) => model.insert(place, value.clone()),
                    None => model.remove(&place),
                };
                assert_eq!(job.worker(key).get(operator(*number), key).expect("reads"), *value);
            }
            Step::Scan { operator: number, from, to } => {
                let range = KeyRange { from: from.clone(), to: Some(to.clone()) };
                let mut found = Vec::new();
                for worker in &job.workers {
                    found.extend(scanned(&**worker, *number, &range));
                }
                let expected: Vec<Vec<u8>> = model
                    .keys()
                    .filter(|(owner, key)| *owner == operator(*number) && range.contains(key))
                    .map(|(_, key)| key.clone())
                    .collect();
                assert_eq!(found, expected);
            }
            Step::Capture => {
                if captured.is_none() {
                    captured = Some((job.capture(), model.clone()));
                }
            }
            Step::Persist => {
                if let Some((captures, content)) = captured.take() {
                    let parts = captures.into_iter().map(|capture| capture.persist().expect("persists")).collect();
                    persisted = (parts, content);
                }
            }
            Step::Abandon => captured = None,
            Step::Restart { workers } => {
                captured = None;
                job.restart(*workers, &persisted.0).expect("restores");
                model = persisted.1.clone();
                assert_eq!(job.content(), model, "restored with {workers} workers");
            }
            Step::Materialize => {
                job.workers.iter_mut().for_each(|worker| worker.materialize().expect("starts"));
            }
        }
    }
    assert_eq!(job.content(), model);
}

/// Subjects that keep their checkpoints in a folder.
pub(super) struct InFolder<F> {
    folder: tempfile::TempDir,
    store: Arc<dyn PartStore>,
    open: F,
}

impl<F: Fn(&std::path::Path, &Arc<dyn PartStore>, u64, Share) -> Box<dyn StateBackend>> InFolder<F> {
    pub(super) fn new(open: F) -> InFolder<F> {
        let folder = tempfile::tempdir().expect("a folder");
        let store = LocalStore::open(&folder.path().join("checkpoints"), false, Failpoints::default()).expect("opens");
        InFolder { folder, store: Arc::new(store), open }
    }
}

impl<F: Fn(&std::path::Path, &Arc<dyn PartStore>, u64, Share) -> Box<dyn StateBackend>> Subject for InFolder<F> {
    fn open(&self, life: u64, share: Share) -> Box<dyn StateBackend> {
        self.open_on(&self.store, life, share)
    }

    fn open_on(&self, store: &Arc<dyn PartStore>, life: u64, share: Share) -> Box<dyn StateBackend> {
        (self.open)(self.folder.path(), store, life, share)
    }

    fn store(&self) -> Arc<dyn PartStore> {
        Arc::clone(&self.store)
    }
}

fn in_memory(sharded: bool) -> Box<dyn Subject> {
    Box::new(InFolder::new(move |_, store, _, share| {
        Box::new(MemoryBackend::new(Arc::clone(store), PartNames::of_worker(share.worker()), sharded))
    }))
}

#[test]
fn memory_conforms() {
    check(&*in_memory(false));
    check_model(64, || in_memory(false));
}

#[test]
fn sharded_memory_conforms() {
    check(&*in_memory(true));
    check_model(64, || in_memory(true));
}

#[test]
fn sharded_snapshots_equal_those_of_memory_byte_for_byte() {
    let subjects = (in_memory(false), in_memory(true));
    let (mut plain, mut sharded) = (Job::start(&*subjects.0, 1).workers, Job::start(&*subjects.1, 1).workers);
    let mut random: u32 = 1;
    for _ in 0..10_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let key = value_key("agg", &(random >> 20).to_be_bytes());
        let value = (!random.is_multiple_of(3)).then(|| random.to_le_bytes().to_vec());
        for backend in [&mut plain[0], &mut sharded[0]] {
            let batch = WriteBatch { entries: vec![(key.clone(), value.clone())] };
            backend.apply(operator(u64::from(random % 2)), batch).expect("memory");
        }
    }
    let bytes = |backend: &mut Box<dyn StateBackend>, checkpoint: u64| {
        let snapshot = backend.snapshot(CheckpointId(checkpoint)).expect("writes");
        snapshot.parts().iter().map(|part| (part.bytes, part.crc32c)).collect::<Vec<_>>()
    };
    assert_eq!(bytes(&mut plain[0], 1), bytes(&mut sharded[0], 1));
    for backend in [&mut plain[0], &mut sharded[0]] {
        backend.put(operator(1), &value_key("agg", b"new"), b"value").expect("memory");
        backend.erase(operator(0), &value_key("agg", &[0; 4])).expect("memory");
    }
    let after = bytes(&mut plain[0], 2);
    assert_eq!(after.len(), 2, "what was written, and what changed since");
    assert_eq!(after, bytes(&mut sharded[0], 2));
}
