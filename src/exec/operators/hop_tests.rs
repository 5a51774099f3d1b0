//! Windows made of panes against windows made of rows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{barrier, open, print};
use super::version_tests::{Timed, chunks, schema};
use super::*;
use crate::exec::plan::{AggregateCall, AggregateFunction, Closing, EventTime, HopSpec};
use crate::state::MemoryBackend;

fn calls() -> Vec<AggregateCall> {
    let all = [
        (AggregateFunction::Count, None, false),
        (AggregateFunction::Sum, Some(2), false),
        (AggregateFunction::Max, Some(2), false),
        (AggregateFunction::Count, Some(2), true),
    ];
    let call = |(function, argument, distinct): (AggregateFunction, Option<usize>, bool)| {
        let data_type = argument.map_or(DataType::Null, |a| schema().field(a).data_type().clone());
        let output = Arc::new(Field::new(function.name(), function.result_type(&data_type).expect("takes it"), true));
        AggregateCall { function, argument, distinct, filter: None, output }
    };
    all.into_iter().map(call).collect()
}

fn out_schema() -> SchemaRef {
    let keys = [0, 1].map(|key| schema().field(key).clone());
    Arc::new(Schema::new(keys.into_iter().chain(calls().iter().map(|c| c.output.as_ref().clone())).collect::<Vec<_>>()))
}

fn hops(slide: i64, size: i64, offset: i64) -> (HopSpec, HopAggregate) {
    let spec = HopSpec { keys: vec![0, 1], starts: vec![None, Some(0), None], slide, size, offset };
    let time = EventTime { terms: Vec::new(), size: None, end: 0 };
    let closing = Closing { column: 1, time, last_only: true, keep: 0 };
    let id = OperatorId::of("public.v", "root");
    let operator = HopAggregate::new(id, &schema(), out_schema(), &spec, &calls(), &closing, true);
    (spec, operator.expect("takes the types"))
}

/// How often each number is in a window of a key.
type Windows = BTreeMap<(i64, Option<i64>), BTreeMap<i64, i64>>;

/// A window's row, printed.
fn line((start, key): (i64, Option<i64>), counts: &BTreeMap<i64, i64>) -> String {
    let sum: i64 = counts.iter().map(|(x, count)| x * count).sum();
    let most = counts.keys().next_back().copied();
    let numbers = [Some(counts.values().sum()), Some(sum), most, Some(counts.len() as i64)];
    let start: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![start]));
    let key: ArrayRef = Arc::new(Int64Array::from(vec![key]));
    let numbers = numbers.map(|number| Arc::new(Int64Array::from(vec![number])) as ArrayRef);
    let columns: Vec<(String, ArrayRef)> =
        [key, start].into_iter().chain(numbers).enumerate().map(|(at, column)| (at.to_string(), column)).collect();
    let columns = columns.into_iter().map(|(name, column)| (name, column, true));
    print(&RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one row")).remove(0)
}

#[test]
fn each_window_comes_once_from_its_panes() {
    for (seed, (slide, size, offset)) in
        (0..12).flat_map(|seed| [(seed, (1, 6, 0)), (seed, (4, 10, 3)), (seed, (3, 5, 0))])
    {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = MemoryBackend::default();
        let (spec, mut operator) = hops(slide, size, offset);
        let pane = spec.pane();
        let mut windows = Windows::new();
        let mut present: Vec<Timed> = Vec::new();
        let (mut before, mut now) = (Watermark::NONE, -20);
        for time in 1..60 {
            let known = if time == 59 { Watermark::END } else { Watermark::from_micros(now) };
            let mut changes: Vec<(Timed, i64)> = (0..random.random_range(0..4))
                .map(|_| {
                    let start = (now + random.random_range(-3..2 * size) - offset).div_euclid(pane) * pane + offset;
                    let key = random.random_bool(0.9).then(|| random.random_range(0..2));
                    ((key, Some(start), random.random_range(-2..3)), 1)
                })
                .collect();
            present.extend(changes.iter().map(|(row, _)| *row));
            while !present.is_empty() && random.random_bool(0.3) {
                changes.push((present.swap_remove(random.random_range(0..present.len())), -1));
            }
            if random.random_bool(0.5) {
                changes.reverse();
            }
            let mut expected_late = BTreeMap::new();
            for ((key, at, x), diff) in &changes {
                let at = at.expect("a pane");
                for start in (at - 3 * size..=at).filter(|s| (s - offset).rem_euclid(slide) == 0 && s + size > at) {
                    if before.is_past(start) {
                        *expected_late.entry((start, *key, *x)).or_insert(0) += diff;
                    } else {
                        *windows.entry((start, *key)).or_default().entry(*x).or_insert(0) += diff;
                    }
                }
            }
            expected_late.retain(|_, diff| *diff != 0);
            let mut expected = Vec::new();
            windows.retain(|window, counts| {
                counts.retain(|_, count| *count != 0);
                if known.is_past(window.0) && !counts.is_empty() {
                    expected.push(line(*window, counts));
                }
                !known.is_past(window.0) && !counts.is_empty()
            });
            let event_time = ([before, Watermark::NONE], [known, Watermark::NONE]);
            let mut context = Context::new(&mut store, Instant::now()).with_event_time(event_time.0, event_time.1);
            for part in changes.chunks(3).flat_map(chunks) {
                operator.push(0, part).expect("takes the type");
            }
            let mut out = Vec::new();
            while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
            let mut found: Vec<String> = out.iter().flat_map(|chunk| print(chunk.batch())).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "seed {seed}, {size} every {slide}, at {time}");
            let mut late = BTreeMap::new();
            for (_, chunk) in &context.late {
                for (row, text) in print(chunk.batch()).into_iter().enumerate() {
                    *late.entry(text).or_insert(0) += chunk.diff(row);
                }
            }
            late.retain(|_, diff| *diff != 0);
            let told = expected_late.into_iter().map(|((start, key, x), diff)| {
                (print(chunks(&[((key, Some(start), x), 1)])[0].batch()).remove(0), diff)
            });
            assert_eq!(late, told.collect(), "seed {seed}, {size} every {slide}, at {time}");
            before = known;
            now += random.random_range(0..3) * random.random_range(0..size);
            if time % 5 == 0 {
                barrier(&mut operator, &mut store);
                operator = hops(slide, size, offset).1;
                open(&mut operator, &mut store);
            }
        }
        assert_eq!(operator.state_size(), StateSize::default());
        barrier(&mut operator, &mut store);
        assert_eq!(store.entries(OperatorId::of("public.v", "root")), 0);
    }
}
