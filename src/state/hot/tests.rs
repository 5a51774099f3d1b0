use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::super::*;
use super::*;
use crate::types::OperatorId;

const OPERATOR: OperatorId = OperatorId::from_u64(1);

/// Sums by slot.
#[derive(Debug, Default)]
struct Sums(Vec<i64>);

impl Cells for Sums {
    fn resize(&mut self, slots: usize) {
        self.0.resize(slots, 0);
    }
    fn encode(&self, slot: Slot, into: &mut Vec<u8>) {
        into.extend(self.0[slot as usize].to_le_bytes());
    }
    fn decode(&mut self, slot: Slot, bytes: &[u8]) -> crate::types::Result<()> {
        self.0[slot as usize] = I64Codec.decode(bytes)?;
        Ok(())
    }
    fn clear(&mut self, slot: Slot) {
        self.0[slot as usize] = 0;
    }
    fn bytes(&self, _: Slot) -> usize {
        8
    }
}

fn stored(backend: &MemoryBackend) -> BTreeMap<Vec<u8>, i64> {
    let mut entries = BTreeMap::new();
    backend
        .scan(OPERATOR, &[], &mut |key, value| {
            let key = split_value_key("s", key).expect("of the slot").to_vec();
            entries.insert(key, I64Codec.decode(value)?);
            Ok(())
        })
        .expect("memory");
    entries
}

#[derive(Clone, Debug)]
enum Step {
    /// One time: keys and what is added to each; zero erases. Values arrive at once, or after the writes.
    Time(Vec<(u8, i64)>),
    /// Keys that are set without waiting for their values.
    Overwrite(Vec<(u8, i64)>),
    Freeze,
    Drain(usize),
    WriteEarly(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let changes = || proptest::collection::vec((0..24_u8, -2..3_i64), 1..6);
    prop_oneof![
        6 => changes().prop_map(Step::Time),
        2 => changes().prop_map(Step::Overwrite),
        2 => Just(Step::Freeze),
        4 => (0..8_usize).prop_map(Step::Drain),
        2 => (0..8_usize).prop_map(Step::WriteEarly),
    ]
}

/// The backend equals a map as of each barrier, and reads equal the map of now, whatever is in memory.
#[test]
fn two_generations_equal_a_map() {
    for residence in [Residence::All, Residence::Budget(0), Residence::Budget(700), Residence::Budget(usize::MAX)] {
        let mut runner = TestRunner::new(Config { cases: 256, failure_persistence: None, ..Config::default() });
        runner
            .run(&proptest::collection::vec(step(), 1..80), |steps| {
                run(residence, &steps);
                Ok(())
            })
            .expect("the tier is a map");
    }
}

fn run(residence: Residence, steps: &[Step]) {
    let mut backend = MemoryBackend::default();
    let mut tier = HotTier::new(OPERATOR, "s", residence, Sums::default());
    let mut now: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    let mut at_barrier = None;
    for step in steps {
        match step {
            Step::Time(changes) => {
                let slots: Vec<Slot> = changes.iter().map(|(key, _)| tier.want_key(&[*key])).collect();
                tier.load(&backend).expect("reads");
                for (slot, (key, add)) in slots.iter().zip(changes) {
                    let before = tier.is_present(*slot).then(|| tier.cells().0[*slot as usize]);
                    assert_eq!(before, now.get(&vec![*key]).copied(), "key {key}");
                    if *add == 0 {
                        tier.erase(*slot);
                        now.remove(&vec![*key]);
                    } else {
                        tier.touch(*slot);
                        tier.cells_mut().0[*slot as usize] += add;
                        *now.entry(vec![*key]).or_default() += add;
                    }
                }
                tier.end_time();
            }
            Step::Overwrite(changes) => {
                let slots: Vec<Slot> = changes.iter().map(|(key, _)| tier.want_key(&[*key])).collect();
                let (asked, keys) = tier.request();
                let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
                let values = backend.get_many(OPERATOR, &keys).expect("reads");
                for (slot, (key, value)) in slots.iter().zip(changes) {
                    tier.touch(*slot);
                    tier.cells_mut().0[*slot as usize] = *value;
                    now.insert(vec![*key], *value);
                }
                // The answer comes late and loses.
                tier.arrive(&asked, values).expect("decodes");
                tier.end_time();
            }
            Step::Freeze => {
                if at_barrier.is_none() {
                    tier.freeze().expect("drained before");
                    at_barrier = Some(now.clone());
                } else {
                    assert!(tier.freeze().is_err(), "a third generation");
                }
            }
            Step::Drain(max) => {
                if let Some(expected) = &at_barrier
                    && tier.drain(&mut backend, *max).expect("writes")
                {
                    assert_eq!(stored(&backend), *expected, "as of the barrier");
                    tier.captured();
                    at_barrier = None;
                }
            }
            Step::WriteEarly(max) => {
                let is_all = tier.write_early(&mut backend, *max).expect("writes");
                if is_all {
                    assert_eq!(stored(&backend), now);
                }
            }
        }
        if residence == Residence::Budget(0) {
            assert!(tier.len() <= tier.dirty() + tier.frozen() + 24);
        }
    }
    // What a restart would find after one more barrier.
    while at_barrier.is_some() {
        if tier.drain(&mut backend, 3).expect("writes") {
            tier.captured();
            at_barrier = None;
        }
    }
    tier.freeze().expect("drained");
    while !tier.drain(&mut backend, 5).expect("writes") {}
    tier.captured();
    assert_eq!(stored(&backend), now);
    let mut restarted = HotTier::new(OPERATOR, "s", Residence::All, Sums::default());
    restarted.load_all(&backend, Share::WHOLE).expect("reads");
    assert_eq!(restarted.len(), now.len());
}

#[test]
fn the_tier_holds_its_budget_and_reads_in_one_batch() {
    struct Counting(MemoryBackend, std::cell::Cell<usize>);
    impl StateBackend for Counting {
        fn get(&self, _: OperatorId, _: &[u8]) -> crate::types::Result<Option<Vec<u8>>> {
            panic!("one key at a time")
        }
        fn get_many(&self, operator: OperatorId, keys: &[&[u8]]) -> crate::types::Result<Values> {
            self.1.set(self.1.get() + 1);
            self.0.get_many(operator, keys)
        }
        fn apply(&mut self, operator: OperatorId, batch: WriteBatch) -> crate::types::Result<()> {
            self.0.apply(operator, batch)
        }
        fn scan_range(&self, o: OperatorId, r: &KeyRange, v: &mut VisitUntil<'_>) -> crate::types::Result<()> {
            self.0.scan_range(o, r, v)
        }
        fn operators(&self) -> crate::types::Result<Vec<OperatorId>> {
            self.0.operators()
        }
        fn capture(&mut self, checkpoint: crate::types::CheckpointId) -> crate::types::Result<Capture> {
            self.0.capture(checkpoint)
        }
        fn restore(&mut self, from: &[Snapshot], share: Share) -> crate::types::Result<()> {
            self.0.restore(from, share)
        }
        fn versions(&self) -> &StateVersions {
            self.0.versions()
        }
        fn set_versions(&mut self, versions: StateVersions) {
            self.0.set_versions(versions);
        }
    }
    let budget = 100_000;
    let mut backend = Counting(MemoryBackend::default(), Default::default());
    let mut tier = HotTier::new(OPERATOR, "s", Residence::Budget(budget), Sums::default());
    // Five times as many keys as fit, twice round.
    for round in 0..2 {
        for keys in (0..5000_u32).collect::<Vec<_>>().chunks(500) {
            let reads = backend.1.get();
            let slots: Vec<Slot> = keys.iter().map(|key| tier.want_key(&key.to_be_bytes())).collect();
            tier.load(&backend).expect("reads");
            assert_eq!(backend.1.get(), reads + 1, "one read for 500 misses");
            for slot in slots {
                assert_eq!(tier.cells().0[slot as usize], round);
                tier.touch(slot);
                tier.cells_mut().0[slot as usize] += 1;
            }
            while !tier.write_early(&mut backend, 100).expect("writes") {}
            tier.end_time();
            assert!(tier.bytes() <= budget, "{} bytes", tier.bytes());
        }
    }
    // What is in memory and clean is not read again; that a key is absent is known too.
    let (known, absent) = (tier.want_key(&4999_u32.to_be_bytes()), tier.want_key(b"never"));
    tier.load(&backend).expect("reads");
    assert!(tier.is_present(known) && !tier.is_present(absent) && tier.is_known(absent));
    tier.end_time();
    let reads = backend.1.get();
    tier.want_key(b"never");
    tier.load(&backend).expect("reads");
    assert_eq!(backend.1.get(), reads);
}

/// Rows and counted values by key: a group with a `min`.
struct Groups {
    rows: Vec<i64>,
    values: Multiset,
}

impl Cells for Groups {
    fn resize(&mut self, slots: usize) {
        self.rows.resize(slots, 0);
        self.values.resize(slots);
    }
    fn encode(&self, slot: Slot, into: &mut Vec<u8>) {
        into.extend(self.rows[slot as usize].to_le_bytes());
    }
    fn decode(&mut self, slot: Slot, bytes: &[u8]) -> crate::types::Result<()> {
        self.rows[slot as usize] = I64Codec.decode(bytes)?;
        Ok(())
    }
    fn clear(&mut self, slot: Slot) {
        self.rows[slot as usize] = 0;
        self.values.clear(slot);
    }
    fn bytes(&self, slot: Slot) -> usize {
        8 + self.values.bytes(slot)
    }
    fn entry_prefixes(&self, key: &[u8]) -> Vec<Vec<u8>> {
        vec![self.values.entry_prefix(key)]
    }
    fn load_entry(&mut self, slot: Slot, stored: &[u8], value: &[u8]) -> crate::types::Result<()> {
        self.values.load_entry(slot, stored, value)
    }
    fn write_entries(&mut self, slot: Slot, key: &[u8], batch: &mut WriteBatch) {
        self.values.flush_key(slot, key, batch);
    }
}

/// Rows of each key as a map of counted values; what the tier and the backend say must be the same.
type Bags = BTreeMap<u8, BTreeMap<u8, i64>>;

#[test]
fn entries_live_and_go_with_their_key() {
    for residence in [Residence::All, Residence::Budget(0), Residence::Budget(900)] {
        let mut runner = TestRunner::new(Config { cases: 128, failure_persistence: None, ..Config::default() });
        let change = (0..8_u8, 0..6_u8, any::<bool>());
        let steps = proptest::collection::vec((proptest::collection::vec(change, 1..5), 0..5_usize), 1..60);
        runner
            .run(&steps, |steps| {
                run_bags(residence, &steps);
                Ok(())
            })
            .expect("the tier is a bag");
    }
}

/// A key, a value, and whether it is inserted.
type BagChange = (u8, u8, bool);

/// Each step is a time's changes, and how many values are drained after it.
fn run_bags(residence: Residence, steps: &[(Vec<BagChange>, usize)]) {
    let mut backend = MemoryBackend::default();
    let cells = || Groups { rows: Vec::new(), values: Multiset::new("m".to_owned(), true) };
    let mut tier = HotTier::new(OPERATOR, "s", residence, cells());
    let (mut now, mut at_barrier): (Bags, Option<Bags>) = (Bags::new(), None);
    let load = |backend: &MemoryBackend| {
        let mut tier = HotTier::new(OPERATOR, "s", Residence::All, cells());
        tier.load_all(backend, Share::WHOLE).expect("reads");
        let mut bags = Bags::new();
        for key in 0..8_u8 {
            let slot = tier.want_key(&[key]);
            if tier.is_present(slot) {
                bags.insert(key, tier.cells().values.entries(slot).map(|(value, count)| (value[0], count)).collect());
            }
        }
        bags
    };
    for (changes, drained) in steps {
        let slots: Vec<Slot> = changes.iter().map(|(key, ..)| tier.want_key(&[*key])).collect();
        tier.load(&backend).expect("reads");
        for (slot, (key, value, inserts)) in slots.iter().zip(changes) {
            let bag = now.entry(*key).or_default();
            let shown: BTreeMap<u8, i64> =
                tier.cells().values.entries(*slot).map(|(value, count)| (value[0], count)).collect();
            assert_eq!(shown, *bag, "key {key}");
            let diff = if *inserts || !bag.contains_key(value) { 1 } else { -1 };
            tier.touch(*slot);
            let (index, cells) = tier.split();
            cells.values.add(index, *slot, &[*value], diff);
            cells.rows[*slot as usize] += diff;
            *bag.entry(*value).or_default() += diff;
            bag.retain(|_, count| *count != 0);
            if bag.is_empty() {
                now.remove(key);
                tier.erase(*slot);
            }
        }
        tier.end_time();
        match &at_barrier {
            None => {
                tier.freeze().expect("drained");
                at_barrier = Some(now.clone());
            }
            Some(expected) => {
                if tier.drain(&mut backend, *drained).expect("writes") {
                    assert_eq!(load(&backend), *expected);
                    tier.captured();
                    at_barrier = None;
                }
            }
        }
    }
}
