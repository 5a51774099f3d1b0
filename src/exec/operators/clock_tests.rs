//! Rows that come and go with the clock, against what the conditions say at each of its times.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{barrier, consolidated, open};
use super::*;
use crate::exec::plan::ClockBound;
use crate::state::MemoryBackend;

/// A number, and two bounds in microseconds.
type Bounded = (i64, Option<i64>, Option<i64>);

fn input() -> SchemaRef {
    let time = |name: &str| Field::new(name, DataType::Timestamp(TimeUnit::Microsecond, None), true);
    Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true), time("a"), time("b")]))
}

fn shown_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]))
}

fn chunks(rows: &[(Bounded, i64)]) -> Vec<Chunk> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|((x, ..), _)| *x))),
        Arc::new(TimestampMicrosecondArray::from_iter(rows.iter().map(|((_, a, _), _)| *a))),
        Arc::new(TimestampMicrosecondArray::from_iter(rows.iter().map(|((.., b), _)| *b))),
    ];
    let batch = RecordBatch::try_new(input(), columns).expect("fits");
    Chunk::changes(&batch, &Int64Array::from_iter_values(rows.iter().map(|(_, diff)| *diff)))
}

/// `now() + moved` compared with a value, all in microseconds.
fn passes(bound: &ClockBound, now_millis: i64, value: Option<i64>) -> bool {
    let (clock, Some(value)) = (now_millis * 1_000 + bound.moved, value) else { return false };
    match (bound.lower, bound.inclusive) {
        (true, true) => clock >= value,
        (true, false) => clock > value,
        (false, true) => clock <= value,
        (false, false) => clock < value,
    }
}

fn model(rows: &BTreeMap<Bounded, i64>, bounds: &[ClockBound], now: i64) -> BTreeMap<String, i64> {
    let mut shown = BTreeMap::new();
    for ((x, a, b), count) in rows {
        let all = bounds.iter().all(|bound| passes(bound, now, if bound.column == 1 { *a } else { *b }));
        if all {
            *shown.entry(x.to_string()).or_insert(0) += count;
        }
    }
    shown.retain(|_, count| *count != 0);
    shown
}

#[test]
fn rows_come_and_go_at_their_times_through_the_store_alone() {
    for seed in 0..120 {
        let mut random = StdRng::seed_from_u64(seed);
        let bound = |random: &mut StdRng, column, lower| ClockBound {
            column,
            moved: random.random_range(-3_000..3_000),
            lower,
            inclusive: random.random_bool(0.5),
        };
        let bounds = match seed % 3 {
            0 => vec![bound(&mut random, 1, true), bound(&mut random, 2, false)],
            1 => vec![bound(&mut random, 2, false)],
            _ => vec![bound(&mut random, 1, true)],
        };
        let (id, mut store) = (OperatorId::of("public.v", "root"), MemoryBackend::default());
        let filter =
            || TemporalFilter::new(id, &input(), shown_schema(), bounds.clone(), true).expect("takes the types");
        let mut operator = filter();
        let mut rows: BTreeMap<Bounded, i64> = BTreeMap::new();
        let mut shown: BTreeMap<String, i64> = BTreeMap::new();
        for now in 1..60_i64 {
            let mut changes = Vec::new();
            let rows_now = if now < 40 { random.random_range(0..4) } else { 0 };
            for _ in 0..rows_now {
                let there: Vec<Bounded> = rows.iter().filter(|(_, count)| **count > 0).map(|(row, _)| *row).collect();
                let (row, diff) = if !there.is_empty() && random.random_bool(0.4) {
                    (there[random.random_range(0..there.len())], -1)
                } else {
                    let time = |random: &mut StdRng| {
                        let micros = (now + random.random_range(-4..9)) * 1_000;
                        random.random_bool(0.9).then(|| micros + [0, 0, 1, 999][random.random_range(0..4)])
                    };
                    ((random.random_range(0..3), time(&mut random), time(&mut random)), 1)
                };
                *rows.entry(row).or_insert(0) += diff;
                changes.push((row, diff));
            }
            let waits = operator.wakes_at().map(|time| time.as_millis() as i64);
            assert!(waits.is_none_or(|time| time >= now), "seed {seed}: nothing is forgotten");
            // Only then something can happen.
            if !changes.is_empty() || waits == Some(now) {
                let mut context = Context::new(&mut store, Instant::now());
                chunks(&changes).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
                let (mut out, time) = (Vec::new(), Time::from_millis(now as u64));
                while operator.close(time, &mut out, &mut context).expect("closes") == Step::Again {}
                for (row, diff) in consolidated(&out) {
                    *shown.entry(row).or_insert(0) += diff;
                }
                shown.retain(|_, count| *count != 0);
            }
            assert_eq!(shown, model(&rows, &bounds, now), "seed {seed}, at {now}, {bounds:?}");
            if now % 3 == 0 {
                barrier(&mut operator, &mut store);
                operator = filter();
                open(&mut operator, &mut store);
            }
        }
        assert_eq!((operator.state_size(), operator.wakes_at()), (StateSize::default(), None), "all is over");
        barrier(&mut operator, &mut store);
        assert_eq!(store.entries(id), 0);
    }
}

#[test]
fn what_came_and_went_between_two_times_is_never_seen() {
    let bound = |column, lower| ClockBound { column, moved: 0, lower, inclusive: lower };
    let (id, mut store) = (OperatorId::of("public.v", "root"), MemoryBackend::default());
    let bounds = vec![bound(1, true), bound(2, false)];
    let mut operator = TemporalFilter::new(id, &input(), shown_schema(), bounds, false).expect("takes the types");
    let mut close = |operator: &mut TemporalFilter, time| {
        let mut out = Vec::new();
        let mut context = Context::new(&mut store, Instant::now());
        while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
        consolidated(&out)
    };
    // From 5 to 7, from 5 for ever nearly, and never.
    let rows =
        [((1, Some(5_000), Some(7_000)), 1), ((2, Some(5_000), Some(i64::MAX)), 2), ((3, Some(9_000), Some(9_000)), 1)];
    chunks(&rows).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
    assert!(close(&mut operator, 1).is_empty());
    assert_eq!((operator.wakes_at(), operator.state_size().keys), (Some(Time::from_millis(5)), 2));
    assert_eq!(close(&mut operator, 8), BTreeMap::from([("2".to_owned(), 2)]));
    assert_eq!(operator.state_size().keys, 1);
    chunks(&[((2, Some(5_000), Some(i64::MAX)), -3)]).into_iter().for_each(|c| operator.push(0, c).expect("takes it"));
    assert_eq!(close(&mut operator, 9), BTreeMap::from([("2".to_owned(), -3)]), "as it was told");
}
