//! What is forgotten when nothing happened to it, against a plain model, and through the store.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{InputRow, aggregate, barrier, close, consolidated, history, input, open};
use super::*;
use crate::state::MemoryBackend;

/// Milliseconds between two times, and how long a key lives.
const STEP: u64 = 10;
const TTL: u64 = 35;

fn expire(keys: &[usize], track: bool) -> Expire {
    Expire::new(OperatorId::of("public.v", "root/expire"), input(), keys.to_vec(), TTL, track).expect("takes the types")
}

/// The rows that are kept, and when each key changed last.
#[derive(Default)]
struct Model {
    rows: BTreeMap<InputRow, i64>,
    last: BTreeMap<Option<u8>, u64>,
}

impl Model {
    /// By the first column.
    fn close(&mut self, time: u64, changes: &[(InputRow, i64)]) {
        let mut sums: BTreeMap<InputRow, i64> = BTreeMap::new();
        changes.iter().for_each(|(row, diff)| *sums.entry(*row).or_insert(0) += diff);
        for (row, diff) in sums {
            let count = self.rows.entry(row).or_insert(0);
            let diff = diff.max(-*count);
            *count += diff;
            if diff != 0 {
                self.last.insert(row.0, time);
            }
        }
        let last = &self.last;
        self.rows.retain(|row, count| *count != 0 && last.get(&row.0).is_some_and(|last| last + TTL > time));
    }
}

#[test]
fn rows_go_when_nothing_happened_to_their_key() {
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = MemoryBackend::default();
        let (mut model, mut shown) = (Model::default(), BTreeMap::new());
        let mut time = STEP;
        for mut changes in history(seed) {
            // Pauses, in which a key's time comes.
            time += STEP * random.random_range(1..4);
            changes.truncate(random.random_range(0..4));
            let mut operator = expire(&[0], true);
            open(&mut operator, &mut store);
            for (row, diff) in consolidated(&close(&mut operator, &mut store, time, &changes)) {
                *shown.entry(row).or_insert(0) += diff;
            }
            shown.retain(|_, diff| *diff != 0);
            model.close(time, &changes);
            let expected: Vec<(InputRow, i64)> = model.rows.iter().map(|(row, count)| (*row, *count)).collect();
            assert_eq!(shown, consolidated(&super::tests::chunk(&expected)), "seed {seed}, at {time}");
            let keys: BTreeSet<Option<u8>> = model.rows.keys().map(|row| row.0).collect();
            let next = keys.iter().map(|key| model.last[key] + TTL).min();
            let wakes = operator.wakes_at().map(Time::as_millis);
            assert!(
                next.is_none_or(|next| wakes.is_some_and(|wakes| time < wakes && wakes <= next)),
                "{wakes:?} {next:?}"
            );
            barrier(&mut operator, &mut store);
            let entries = store.entries(OperatorId::of("public.v", "root/expire"));
            assert_eq!(entries, keys.len() + model.rows.len(), "seed {seed}, at {time}");
        }
        let mut operator = expire(&[0], true);
        open(&mut operator, &mut store);
        for (row, diff) in consolidated(&close(&mut operator, &mut store, time + TTL, &[])) {
            *shown.entry(row).or_insert(0) += diff;
        }
        assert!(shown.values().all(|diff| *diff == 0), "all is over");
        barrier(&mut operator, &mut store);
        assert_eq!(store.entries(OperatorId::of("public.v", "root/expire")), 0);
        assert_eq!(operator.wakes_at(), None);
    }
}

#[test]
fn a_retraction_of_what_went_changes_nothing() {
    let row = |x| (Some(1), Some(x), None, None);
    let mut store = MemoryBackend::default();
    let mut operator = expire(&[0], false);
    open(&mut operator, &mut store);
    let mut at = |time, changes: &[(InputRow, i64)]| {
        let out = consolidated(&close(&mut operator, &mut store, time, changes));
        out.into_values().collect::<Vec<i64>>()
    };
    assert_eq!(at(0, &[(row(1), 1)]), [1]);
    assert_eq!(at(TTL - 1, &[]), Vec::<i64>::new());
    assert_eq!(at(TTL, &[]), [-1]);
    assert_eq!(at(TTL + 1, &[(row(2), 1), (row(1), -1)]), [1]);
    assert_eq!(at(TTL + 2, &[(row(1), -1)]), Vec::<i64>::new());
    // In one time the order of arrival does not matter.
    assert_eq!(at(TTL + 3, &[(row(3), -1), (row(3), 1), (row(2), -1)]), [-1]);
    assert_eq!(at(9 * TTL, &[]), Vec::<i64>::new());
}

/// An aggregate over rows that are only added forgets as one does whose rows expire.
#[test]
fn groups_go_as_their_rows_would() {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut store, mut unused) = (MemoryBackend::default(), MemoryBackend::default());
        let (mut rows, mut above) = (expire(&[0], false), aggregate(&[0], false));
        open(&mut rows, &mut unused);
        open(&mut above, &mut unused);
        let mut time = STEP;
        for changes in history(seed) {
            time += STEP * random.random_range(1..4);
            let added: Vec<(InputRow, i64)> = changes.into_iter().filter(|(_, diff)| *diff > 0).take(3).collect();
            let mut expected = Vec::new();
            for chunk in close(&mut rows, &mut unused, time, &added) {
                above.push(0, chunk).expect("takes the type");
            }
            let mut context = Context::new(&mut unused, std::time::Instant::now());
            while above.close(Time::from_millis(time), &mut expected, &mut context).expect("closes") == Step::Again {}
            let mut living = aggregate(&[0], true).living(TTL);
            open(&mut living, &mut store);
            let found = close(&mut living, &mut store, time, &added);
            assert_eq!(consolidated(&found), consolidated(&expected), "seed {seed}, at {time}");
            assert_eq!(living.groups(), above.groups());
            barrier(&mut living, &mut store);
        }
        let mut living = aggregate(&[0], true).living(TTL);
        open(&mut living, &mut store);
        close(&mut living, &mut store, time + TTL, &[]);
        barrier(&mut living, &mut store);
        assert_eq!(store.entries(OperatorId::of("public.v", "root")), 0, "maps of aggregates go too");
    }
}
