//! Reads of operators that go on while times close, and in the middle of that: each must find what was there when it began.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{InputRow, aggregate, chunk, consolidated, history, input, join, open, print, soon};
use super::*;
use crate::exec::plan::{JoinKind, RankSpec, Show, SortKey};
use crate::state::MemoryBackend;
use crate::types::InspectionId;

/// Rows in print, and how often each is there.
type Counted = BTreeMap<String, i64>;

struct Read {
    id: InspectionId,
    part: usize,
    expected: Counted,
    found: Counted,
    more: bool,
}

impl Read {
    fn page(&mut self, operator: &mut dyn Operator, rows_max: usize) {
        if self.more {
            let inspect = operator.inspect().expect("its rows can be read");
            let page = inspect.page(self.id, rows_max, soon()).expect("kept");
            print(&page.rows).into_iter().for_each(|row| *self.found.entry(row).or_insert(0) += 1);
            self.more = page.more;
        }
    }
}

fn add(rows: &mut Counted, changes: Counted) {
    for (row, diff) in changes {
        *rows.entry(row).or_insert(0) += diff;
    }
    rows.retain(|_, count| *count != 0);
}

/// Runs histories of one input, or of two that are alike. `keeps` says what the parts of the operator have of what came in and
/// of what went out.
fn check(make: &dyn Fn() -> Box<dyn Operator>, inputs: usize, keeps: &dyn Fn(&Counted, &Counted) -> Vec<Counted>) {
    for seed in 0..12 {
        let mut random = StdRng::seed_from_u64(seed);
        let (mut operator, mut store) = (make(), MemoryBackend::default());
        open(&mut *operator, &mut store);
        let (mut came, mut went) = (Counted::new(), Counted::new());
        let mut reads: Vec<Read> = Vec::new();
        let begin = |operator: &mut dyn Operator, reads: &mut Vec<Read>, came: &Counted, went: &Counted| {
            for (part, expected) in keeps(came, went).into_iter().enumerate() {
                let id = InspectionId(reads.len() as u64);
                operator.inspect().expect("its rows can be read").begin(id, part);
                reads.push(Read { id, part, expected, found: Counted::new(), more: true });
            }
        };
        for (time, rows) in history(seed).iter().enumerate() {
            if random.random_bool(0.4) {
                begin(&mut *operator, &mut reads, &came, &went);
            }
            for input in 0..inputs {
                chunk(rows).into_iter().for_each(|chunk| operator.push(input, chunk).expect("takes the type"));
            }
            // A deadline that has passed: every call is one slice, with pages between.
            let mut out = Vec::new();
            let mut context = Context::new(&mut store, std::time::Instant::now());
            while operator.close(Time::from_millis(time as u64), &mut out, &mut context).expect("closes") == Step::Again
            {
                for read in &mut reads {
                    if random.random_bool(0.3) {
                        read.page(&mut *operator, random.random_range(1..4));
                    }
                }
            }
            add(
                &mut came,
                chunk(rows).iter().fold(Counted::new(), |mut sum, chunk| {
                    add(&mut sum, consolidated(std::slice::from_ref(chunk)));
                    sum
                }),
            );
            add(&mut went, consolidated(&out));
        }
        for mut read in reads {
            while read.more {
                read.page(&mut *operator, 2);
            }
            assert_eq!(read.found, read.expected, "seed {seed}, read {:?} of part {}", read.id, read.part);
            let inspect = operator.inspect().expect("its rows can be read");
            inspect.end(read.id);
            assert_eq!(
                inspect.page(read.id, 1, soon()).expect_err("over").code(),
                crate::types::SqlState::SnapshotTooOld
            );
        }
    }
}

#[test]
fn groups_are_read_as_they_were() {
    for keys in [vec![0], vec![0, 1], vec![]] {
        check(&|| Box::new(aggregate(&keys, true)), 1, &|_, went| vec![went.clone()]);
    }
}

#[test]
fn the_rows_that_a_rank_chooses_from_are_read_as_they_were() {
    let order = vec![SortKey { column: 1, options: Default::default() }];
    let spec = RankSpec { keys: vec![0], order, show: Show::First { skip: 0, limit: Some(1) } };
    let rank =
        || Rank::new(OperatorId::of("public.v", "root"), &input(), input(), &spec, true).expect("takes the types");
    check(&|| Box::new(rank()), 1, &|came, _| vec![came.clone()]);
}

#[test]
fn both_sides_of_a_join_are_read_as_they_were() {
    // A row whose key is NULL has no partner and is not kept.
    let keyed =
        |came: &Counted| came.iter().filter(|(row, _)| !row.starts_with('∅')).map(|(r, n)| (r.clone(), *n)).collect();
    for condition in [false, true] {
        check(&|| Box::new(join(JoinKind::Full, condition, true)), 2, &|came, _| vec![keyed(came), keyed(came)]);
    }
}

#[test]
fn rows_are_found_by_key() {
    let key = |text: &str| {
        let codec = crate::state::RowCodec::for_keys([&arrow::datatypes::DataType::Utf8]).expect("a key");
        let column: arrow::array::ArrayRef = std::sync::Arc::new(arrow::array::StringArray::from(vec![text]));
        codec.encode(&[column], 1).expect("encodes").row(0).to_vec()
    };
    let rows: Vec<(InputRow, i64)> =
        [(1, 5), (1, 6), (2, 7)].map(|(k, x)| ((Some(k), Some(x), None, None), 1)).to_vec();
    let find = |mut operator: Box<dyn Operator>, input: usize, part: usize, text: &str| {
        let mut store = MemoryBackend::default();
        open(&mut *operator, &mut store);
        chunk(&rows).into_iter().for_each(|chunk| operator.push(input, chunk).expect("takes the type"));
        let mut out = Vec::new();
        let mut context = Context::new(&mut store, soon());
        while operator.close(Time::from_millis(1), &mut out, &mut context).expect("closes") == Step::Again {}
        operator.inspect().expect("its rows can be read").find(part, &[key(text)]).expect("finds").num_rows()
    };
    assert_eq!(find(Box::new(aggregate(&[0], true)), 0, 0, "k1"), 1);
    assert_eq!(find(Box::new(aggregate(&[0], true)), 0, 0, "k9"), 0);
    assert_eq!(find(Box::new(join(JoinKind::Inner, false, true)), 1, 1, "k1"), 2);
    assert_eq!(find(Box::new(join(JoinKind::Inner, false, true)), 1, 0, "k1"), 0);
}
