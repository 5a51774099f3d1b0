use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use object_store::memory::InMemory;

use super::super::conformance::{InFolder, Job, Model, Subject, operator};
use super::super::store::faults::FaultyStore;
use super::super::*;
use super::*;
use crate::env::Failpoints;

/// A backend of each family.
pub(in crate::state) fn families() -> Vec<(&'static str, Box<dyn Subject>)> {
    type Open = dyn Fn(&std::path::Path, &Arc<dyn PartStore>, u64, Share) -> Box<dyn StateBackend>;
    let open = |family: &'static str| -> Box<Open> {
        Box::new(move |folder, store, life, share| {
            let (store, names) = (Arc::clone(store), PartNames::of_worker(share.worker()));
            match family {
                "memory" => Box::new(MemoryBackend::new(store, names, true)),
                "changelog" => {
                    let inner = MemoryBackend::new(
                        Arc::clone(&store),
                        names.behind(&ChangelogBackend::base_prefix(life)),
                        true,
                    );
                    let options = ChangelogOptions { materialization_threshold_bytes: 300, ..Default::default() };
                    Box::new(
                        ChangelogBackend::new(Box::new(inner), store, share.worker(), life, options).expect("starts"),
                    )
                }
                "rocksdb" | "changelog+rocksdb" => {
                    let work = folder.join(format!("work-{life}-w{}", share.worker()));
                    let options = RocksDbOptions { write_buffer_bytes: 1 << 20, ..RocksDbOptions::default() };
                    let open = |names| {
                        let shared = RocksDbShared::new(8 << 20);
                        RocksDbBackend::open(&work, Arc::clone(&store), names, life, options, shared).expect("opens")
                    };
                    if family == "rocksdb" {
                        return Box::new(open(names));
                    }
                    let inner = Box::new(open(names.behind(&ChangelogBackend::base_prefix(life))));
                    let options = ChangelogOptions { materialization_threshold_bytes: 300, ..Default::default() };
                    Box::new(ChangelogBackend::new(inner, store, share.worker(), life, options).expect("starts"))
                }
                _ => {
                    let pool = Arc::new(LayerPool::new(Arc::clone(&store), names.clone()));
                    let options = RemoteOptions { hot_max_bytes: Some(0), io_threads: 1 };
                    Box::new(RemoteReadBackend::new(pool, store, names, options).expect("starts"))
                }
            }
        })
    };
    let subject = |family| -> (&'static str, Box<dyn Subject>) { (family, Box::new(InFolder::new(open(family)))) };
    FAMILIES.iter().map(|family| subject(family)).collect()
}

const FAMILIES: [&str; 5] = ["memory", "changelog", "remote", "rocksdb", "changelog+rocksdb"];

fn fill(job: &mut Job<'_>, keys: std::ops::Range<u32>, value: &[u8]) {
    for key in keys {
        job.write(operator(1), &value_key("v", &key.to_be_bytes()), Some(value));
    }
    job.write(operator(1), &union_key("offsets", b"p0").expect("valid"), Some(&8_i64.to_le_bytes()));
}

fn complete(job: &mut Job<'_>, store: &dyn PartStore, head: &mut SharedHead) -> Result<()> {
    let captures = job.capture();
    let workers = captures.into_iter().map(Capture::persist).collect::<Result<Vec<_>>>()?;
    let named = Manifest::new("g", CheckpointId(job.checkpoint), "x://", workers).write(store)?;
    let released = head.update(|head| head.complete("g", named, 2))?;
    release(store, &released, &head.head().checkpoints["g"]).map(drop)
}

fn restored(subject: &dyn Subject, named: &[HeadCheckpoint], depth: Depth) -> Result<(Model, usize)> {
    let store = subject.store();
    // The job that wrote them may still be there.
    static LIVES: AtomicU64 = AtomicU64::new(1000);
    let mut job = Job::start_after(subject, 2, LIVES.fetch_add(10, Ordering::Relaxed));
    let Some(chosen) = choose(&*store, named, depth)? else { return Ok((job.content(), 0)) };
    job.restart(2, &chosen.manifest.workers)?;
    Ok((job.try_content()?, chosen.refused.len()))
}

/// Truncate, flip, swap, remove, replace: for every file of a checkpoint. Fallen back or refused, never less.
#[test]
fn damage_to_any_file_is_found() {
    for (family, subject) in families() {
        let store = subject.store();
        let mut head = SharedHead::take(Arc::clone(&store), 1, 0).expect("takes");
        let mut job = Job::start(&*subject, 2);
        fill(&mut job, 0..40, b"old");
        complete(&mut job, &*store, &mut head).expect("completes");
        let old = job.content();
        fill(&mut job, 20..60, b"new");
        complete(&mut job, &*store, &mut head).expect("completes");
        let new = job.content();
        let named = head.head().checkpoints["g"].clone();
        assert_eq!(restored(&*subject, &named, Depth::Checksums).expect("whole"), (new.clone(), 0), "{family}");

        let manifest = Manifest::read(&*store, &named[0]).expect("whole");
        let mut parts: Vec<Part> = manifest.parts().into_iter().cloned().collect();
        parts.push(named[0].manifest.clone());
        let contents: Vec<bytes::Bytes> = parts.iter().map(|part| store.get(part).expect("whole")).collect();
        let mut cases = 0;
        for (at, (part, content)) in parts.iter().zip(&contents).enumerate() {
            let other = contents[(at + 1) % contents.len()].clone();
            let mut damages: Vec<Option<bytes::Bytes>> =
                vec![Some(other), Some([&content[..], b"x"].concat().into()), None];
            if let Some(last) = content.len().checked_sub(1) {
                let mut flipped = content.to_vec();
                flipped[last / 2] ^= 1;
                let cuts = [content.slice(..last), content.slice(..last / 2), bytes::Bytes::new(), flipped.into()];
                damages.extend(cuts.map(Some));
            }
            for damage in damages {
                match &damage {
                    Some(damage) if damage == content => continue,
                    Some(damage) => store.put(&part.name, damage.clone()).map(drop).expect("writes"),
                    None => store.delete(&part.name).expect("removes"),
                }
                cases += 1;
                match restored(&*subject, &named, Depth::Checksums) {
                    Ok((content, refused)) => {
                        assert_eq!(refused, 1, "{family}: {}", part.name);
                        assert!(content == old, "{family}: {} made another state", part.name);
                    }
                    // The older one needs the part too.
                    Err(error) => assert_eq!(error.code(), SqlState::DataCorrupted, "{family}: {error:?}"),
                }
                // A restore that trusts the listing never takes less for whole either.
                match restored(&*subject, &named[..1], Depth::Lengths) {
                    Ok((content, _)) => panic!("{family}: {} gave {} entries", part.name, content.len()),
                    Err(error) => assert_eq!(error.code(), SqlState::DataCorrupted, "{family}: {error:?}"),
                }
                store.put(&part.name, content.clone()).expect("writes");
            }
        }
        assert!(cases > 15, "{family}: {cases} cases");
        // A foreign file is not read, and is told of.
        store.put("cp-2/w0/foreign.arrow", bytes::Bytes::from_static(b"foreign")).expect("writes");
        assert_eq!(restored(&*subject, &named, Depth::Checksums).expect("whole"), (new, 0), "{family}");
        let manifests: Vec<_> =
            named.iter().map(|named| (named.clone(), Manifest::read(&*store, named).expect("whole"))).collect();
        let foreign = foreign_objects(&*store, &manifests).expect("lists");
        assert!(foreign.contains(&"cp-2/w0/foreign.arrow".to_owned()), "{family}: {foreign:?}");
    }
}

/// A crash at each step of writing, completing and releasing a checkpoint leaves the old or the new one, whole.
#[test]
fn a_crash_at_any_step_leaves_a_whole_checkpoint() {
    for point in ["part.write", "part.sync", "part.rename", "part.sync_folder", "part.written", "part.delete"] {
        for family in FAMILIES {
            // A database has many files, and syncs them.
            let step = if family.contains("rocksdb") { 3 } else { 1 };
            for passes in (0..60).step_by(step) {
                let failpoints = Failpoints::default();
                let folder = tempfile::tempdir().expect("a folder");
                let store: Arc<dyn PartStore> =
                    Arc::new(LocalStore::open(folder.path(), false, failpoints.clone()).expect("opens"));
                let (_, subject) = families().into_iter().find(|(name, _)| *name == family).expect("there");
                let subject = OnStore { subject, store: Arc::clone(&store) };
                let mut head = SharedHead::take(Arc::clone(&store), 1, 0).expect("takes");
                let mut job = Job::start(&subject, 1);
                let mut contents = vec![job.content()];
                for round in 0..3_u32 {
                    fill(&mut job, round..round + 4, &[round as u8]);
                    complete(&mut job, &*store, &mut head).expect("completes");
                    contents.push(job.content());
                }
                fill(&mut job, 90..94, b"crash");
                contents.push(job.content());
                failpoints.arm(point, passes);
                let crashed = complete(&mut job, &*store, &mut head);
                let has_crashed = crashed.is_err();
                drop((job, head));
                failpoints.disarm(point);
                // The next start.
                let head = SharedHead::take(Arc::clone(&store), 1, 0).expect("takes over");
                let named = head.head().checkpoints["g"].clone();
                let (content, refused) = restored(&subject, &named, Depth::Checksums).expect("whole");
                assert_eq!(refused, 0, "{family} at {point} after {passes}");
                assert!(contents[3..].contains(&content), "{family} at {point} after {passes}");
                let manifests: Vec<_> =
                    named.iter().map(|named| (named.clone(), Manifest::read(&*store, named).expect("whole"))).collect();
                let foreign = foreign_objects(&*store, &manifests).expect("lists");
                foreign.iter().for_each(|name| store.delete(name).expect("removes"));
                assert_eq!(restored(&subject, &named, Depth::Checksums).expect("whole"), (content, 0), "after a sweep");
                if !has_crashed {
                    break;
                }
            }
        }
    }
}

/// A family's backend on another store.
struct OnStore {
    subject: Box<dyn Subject>,
    store: Arc<dyn PartStore>,
}

impl Subject for OnStore {
    fn open(&self, life: u64, share: Share) -> Box<dyn StateBackend> {
        self.subject.open_on(&self.store, life, share)
    }

    fn open_on(&self, store: &Arc<dyn PartStore>, life: u64, share: Share) -> Box<dyn StateBackend> {
        self.subject.open_on(store, life, share)
    }

    fn store(&self) -> Arc<dyn PartStore> {
        Arc::clone(&self.store)
    }
}

#[test]
fn retained_checkpoints_need_nothing_that_was_released() {
    for (family, subject) in families() {
        let store = subject.store();
        let mut head = SharedHead::take(Arc::clone(&store), 1, 0).expect("takes");
        let mut job = Job::start(&*subject, 2);
        for round in 0..12_u32 {
            fill(&mut job, round * 3..round * 3 + 20, &round.to_le_bytes());
            complete(&mut job, &*store, &mut head).expect("completes");
            if round == 6 {
                let chosen =
                    choose(&*store, &head.head().checkpoints["g"], Depth::Lengths).expect("whole").expect("named");
                job.restart(3, &chosen.manifest.workers).expect("restores");
            }
        }
        let named = head.head().checkpoints["g"].clone();
        assert_eq!(named.len(), 2);
        for named in &named {
            let manifest = Manifest::read(&*store, named).expect("whole");
            verify(&*store, &manifest, Depth::Checksums).expect(family);
        }
        // And what is left beside them is little: nothing but what workers hold or wrote ahead.
        let manifests: Vec<_> =
            named.iter().map(|named| (named.clone(), Manifest::read(&*store, named).expect("whole"))).collect();
        let held: Vec<String> = job.workers.iter().flat_map(|worker| worker.held_parts()).collect();
        let foreign = foreign_objects(&*store, &manifests).expect("lists");
        let lost: Vec<_> = foreign.iter().filter(|name| !held.contains(name)).collect();
        // A base that was under way at the restart is a database of each worker.
        assert!(lost.len() <= 24, "{family}: {lost:?}");
    }
}

#[test]
fn a_superseded_coordinator_cannot_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
    let memory = ObjectPartStore::new(Arc::new(InMemory::new()), "p", "memory".to_owned(), runtime.handle().clone());
    let local = LocalStore::open(folder.path(), false, Failpoints::default()).expect("opens");
    for store in [Arc::new(memory) as Arc<dyn PartStore>, Arc::new(local)] {
        let mut first = SharedHead::take(Arc::clone(&store), 1, 0).expect("takes");
        assert_eq!(first.head().incarnation, 1);
        first.update(|head| head.clock_bound_millis = 5).expect("writes");
        let mut second = SharedHead::take(Arc::clone(&store), 1, 0).expect("takes over");
        assert_eq!((second.head().incarnation, second.head().clock_bound_millis), (2, 5));
        let refused = first.update(|head| head.clock_bound_millis = 9).expect_err("superseded");
        assert_eq!(refused.code(), SqlState::AdminShutdown);
        second.update(|head| head.clock_bound_millis = 7).expect("writes");
        assert_eq!(SharedHead::take(store, 1, 0).expect("takes").head().clock_bound_millis, 7);
    }
}

#[test]
fn a_lost_answer_of_a_swap_is_settled_by_reading_back() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("starts");
    let lost = Arc::new(FaultyStore::new(0));
    lost.lose_next_answer();
    let store: Arc<dyn PartStore> =
        Arc::new(ObjectPartStore::new(Arc::clone(&lost) as _, "p", "test".to_owned(), runtime.handle().clone()));
    let mut head = SharedHead::take(Arc::clone(&store), 1, 0).expect("takes, once");
    assert_eq!(head.head().incarnation, 1);
    lost.lose_next_answer();
    head.update(|head| head.clock_bound_millis = 3).expect("was written");
    head.update(|head| head.clock_bound_millis = 4).expect("goes on from there");
    // A write whose answer is lost is written again.
    lost.lose_next_answer();
    let part = store.put("x", bytes::Bytes::from_static(b"x")).expect("writes");
    assert_eq!(store.get(&part).expect("whole"), "x");
}

/// Every tenth request fails, half of them after they were done: the same states, one writer.
#[test]
fn a_faulty_object_store_changes_nothing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("starts");
    for (family, subject) in families() {
        let faulty = Arc::new(FaultyStore::new(10));
        let store: Arc<dyn PartStore> =
            Arc::new(ObjectPartStore::new(Arc::clone(&faulty) as _, "p", "test".to_owned(), runtime.handle().clone()));
        let subject = OnStore { subject, store: Arc::clone(&store) };
        let mut head = take_until_clear(&store);
        let mut job = Job::start(&subject, 2);
        for round in 0..8_u32 {
            fill(&mut job, round * 5..round * 5 + 20, &round.to_le_bytes());
            // A swap whose fate is not clear makes the coordinator take HEAD again.
            while complete(&mut job, &*store, &mut head).is_err() {
                head = take_until_clear(&store);
            }
            let named = head.head().checkpoints["g"].clone();
            let (content, refused) = restored(&subject, &named, Depth::Checksums).expect("whole");
            assert_eq!((content, refused), (job.content(), 0), "{family} in round {round}");
        }
        assert!(faulty.faults() > 10, "{family}: {} faults", faulty.faults());
    }
}

fn take_until_clear(store: &Arc<dyn PartStore>) -> SharedHead {
    (0..20).find_map(|_| SharedHead::take(Arc::clone(store), 1, 0).ok()).expect("one in ten fails")
}

/// Refuses to write a name again with other content, and notes every name.
#[derive(Debug)]
struct WrittenOnce {
    store: Arc<dyn PartStore>,
    written: Mutex<BTreeMap<String, (u64, u32)>>,
}

impl WrittenOnce {
    fn note(&self, part: Part) -> Part {
        let content = (part.bytes, part.crc32c);
        let before = self.written.lock().expect("no panic").insert(part.name.clone(), content);
        assert!(before.is_none_or(|before| before == content), "{} was written twice", part.name);
        part
    }
}

impl PartStore for WrittenOnce {
    fn put(&self, name: &str, content: bytes::Bytes) -> Result<Part> {
        self.store.put(name, content).map(|part| self.note(part))
    }
    fn put_file(&self, name: &str, file: &std::path::Path, crc32c: Option<u32>) -> Result<Part> {
        self.store.put_file(name, file, crc32c).map(|part| self.note(part))
    }
    fn get(&self, part: &Part) -> Result<bytes::Bytes> {
        self.store.get(part)
    }
    fn get_range(&self, part: &Part, range: std::ops::Range<u64>) -> Result<bytes::Bytes> {
        self.store.get_range(part, range)
    }
    fn fetch(&self, part: &Part, file: &std::path::Path) -> Result<()> {
        self.store.fetch(part, file)
    }
    fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.store.list(prefix)
    }
    fn delete(&self, name: &str) -> Result<()> {
        self.store.delete(name)
    }
    fn read(&self, name: &str) -> Result<Option<Version>> {
        self.store.read(name)
    }
    fn swap(&self, name: &str, expected: Option<&Version>, content: bytes::Bytes) -> Result<Swap> {
        self.store.swap(name, expected, content)
    }
    fn is_local(&self) -> bool {
        self.store.is_local()
    }
    fn location(&self) -> String {
        self.store.location()
    }
}

/// Over restarts with other numbers of workers, from the newest checkpoint and from older ones.
#[test]
fn no_name_is_written_twice() {
    for (family, subject) in families() {
        let store = Arc::new(WrittenOnce { store: subject.store(), written: Mutex::default() });
        let subject = OnStore { subject, store: Arc::clone(&store) as Arc<dyn PartStore> };
        let mut job = Job::start(&subject, 2);
        let mut snapshots = Vec::new();
        for (round, workers) in [3, 1, 2, 2, 4, 3].into_iter().enumerate() {
            let round = round as u32;
            fill(&mut job, round * 4..round * 4 + 12, &round.to_le_bytes());
            job.workers.iter_mut().for_each(|worker| worker.materialize().expect("starts"));
            snapshots.push(job.snapshot());
            fill(&mut job, round * 4..round * 4 + 3, b"once more");
            snapshots.push(job.snapshot());
            let from = &snapshots[snapshots.len() - 1 - (round as usize % 2)];
            job.restart(workers, from).expect("restores");
        }
        assert!(store.written.lock().expect("no panic").len() > 12, "{family}");
    }
}
