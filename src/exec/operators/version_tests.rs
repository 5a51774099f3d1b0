//! Rows and the versions in force at their times, or there when they come, against a look at all for each row.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{barrier, consolidated, open};
use super::*;
use crate::exec::plan::{Closing, EventTime, LookupJoinSpec, TemporalJoinSpec, pair_schema};
use crate::state::MemoryBackend;

/// A key, a time and a number.
pub(super) type Timed = (Option<i64>, Option<i64>, i64);

pub(super) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("x", DataType::Int64, true),
    ]))
}

pub(super) fn chunks(rows: &[(Timed, i64)]) -> Vec<Chunk> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(rows.iter().map(|((k, ..), _)| *k))),
        Arc::new(TimestampMicrosecondArray::from_iter(rows.iter().map(|((_, at, _), _)| *at))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|((.., x), _)| *x))),
    ];
    let batch = RecordBatch::try_new(schema(), columns).expect("fits");
    Chunk::changes(&batch, &Int64Array::from_iter_values(rows.iter().map(|(_, diff)| *diff)))
}

fn join(keep_left: bool, closes: bool) -> TemporalJoin {
    let spec = TemporalJoinSpec { keep_left, left_keys: vec![0], right_keys: vec![0], left_time: 1, right_time: 1 };
    let time = EventTime { terms: Vec::new(), size: None, end: 0 };
    let closing = vec![Closing { column: 1, time, last_only: false, keep: 0 }; 2];
    TemporalJoin::new(
        OperatorId::of("public.v", "root"),
        [&schema(), &schema()],
        pair_schema(&schema(), &schema()),
        &spec,
        true,
    )
    .expect("takes the types")
    .closing(if closes { &closing } else { &[] })
}

/// What all rows and all versions give together.
fn model(rows: &[(Timed, i64)], versions: &[Timed], keep_left: bool) -> BTreeMap<(Timed, Option<Timed>), i64> {
    let mut joined = BTreeMap::new();
    for (row, diff) in rows {
        let (k, at, _) = *row;
        let found = versions.iter().filter(|(of, from, _)| k.is_some() && *of == k && at.is_some() && *from <= at);
        let version = found.filter(|(_, from, _)| from.is_some()).max_by_key(|(_, from, x)| (*from, *x)).copied();
        if version.is_some() || keep_left {
            *joined.entry((*row, version)).or_insert(0) += diff;
        }
    }
    joined.retain(|_, count| *count != 0);
    joined
}

/// What came out, printed as the model is.
fn printed(joined: &BTreeMap<(Timed, Option<Timed>), i64>) -> BTreeMap<String, i64> {
    let nothing = (None, None, 0);
    let lines = joined.iter().map(|((row, version), count)| {
        let left = chunks(&[(*row, 1)]).remove(0);
        let right = chunks(&[(version.unwrap_or(nothing), 1)]).remove(0);
        let mut columns = left.batch().columns().to_vec();
        columns.extend(right.batch().columns().iter().cloned());
        if version.is_none() {
            columns[5] = Arc::new(Int64Array::from(vec![None::<i64>]));
        }
        let batch = RecordBatch::try_new(pair_schema(&schema(), &schema()), columns).expect("fits");
        (consolidated(&Chunk::inserts(&batch)).pop_first().expect("a row").0, *count)
    });
    lines.collect()
}

#[test]
fn each_row_has_the_version_of_its_time_through_the_store_alone() {
    for (seed, keep_left) in (0..60).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = MemoryBackend::default();
        let mut operator = join(keep_left, false);
        let (mut rows, mut versions): (Vec<(Timed, i64)>, Vec<Timed>) = Default::default();
        let mut shown: BTreeMap<String, i64> = BTreeMap::new();
        for time in 1..25 {
            let mut new_rows = Vec::new();
            for _ in 0..random.random_range(0..5) {
                let row = (
                    random.random_bool(0.9).then(|| random.random_range(0..3)),
                    random.random_bool(0.9).then(|| random.random_range(0..12)),
                    random.random_range(0..2),
                );
                new_rows.push((row, 1));
            }
            if !rows.is_empty() && random.random_bool(0.4) {
                let (row, _) = rows[random.random_range(0..rows.len())];
                let left: i64 = rows.iter().filter(|(other, _)| *other == row).map(|(_, diff)| diff).sum();
                new_rows.extend((left > 0).then_some((row, -1)));
            }
            let new_versions: Vec<(Timed, i64)> = (0..random.random_range(0..3))
                .map(|_| {
                    let at = random.random_bool(0.9).then(|| random.random_range(0..12));
                    ((random.random_bool(0.9).then(|| random.random_range(0..3)), at, random.random_range(0..3)), 1)
                })
                .collect();
            rows.extend(new_rows.iter().copied());
            versions.extend(new_versions.iter().map(|(version, _)| *version));
            let mut context = Context::new(&mut store, Instant::now());
            chunks(&new_rows).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
            chunks(&new_versions).into_iter().for_each(|chunk| operator.push(1, chunk).expect("takes the type"));
            let mut out = Vec::new();
            while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
            for (row, diff) in consolidated(&out) {
                *shown.entry(row).or_insert(0) += diff;
            }
            shown.retain(|_, count| *count != 0);
            assert_eq!(shown, printed(&model(&rows, &versions, keep_left)), "seed {seed}, at {time}");
            if time % 3 == 0 {
                barrier(&mut operator, &mut store);
                operator = join(keep_left, false);
                open(&mut operator, &mut store);
            }
        }
    }
}

#[test]
fn versions_that_no_row_asks_for_are_forgotten() {
    for (seed, keep_left) in (0..60).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = MemoryBackend::default();
        let mut operator = join(keep_left, true);
        let (mut used_rows, mut used_versions): (Vec<(Timed, i64)>, Vec<Timed>) = Default::default();
        let mut shown: BTreeMap<String, i64> = BTreeMap::new();
        let (mut before, mut now, mut most) = ([Watermark::NONE; 2], [0_i64; 2], 0);
        for time in 1..80 {
            let mut context = Context::new(&mut store, Instant::now());
            let mut late = 0;
            for side in 0..2 {
                let rows: Vec<(Timed, i64)> = (0..random.random_range(0..4))
                    .map(|_| {
                        let at = now[side] + random.random_range(-2..6);
                        ((Some(random.random_range(0..3)), Some(at), random.random_range(0..3)), 1)
                    })
                    .collect();
                for (row, _) in &rows {
                    match side {
                        _ if before[side].is_past(row.1.expect("a time")) => late += 1,
                        0 => used_rows.push((*row, 1)),
                        _ => used_versions.push(*row),
                    }
                }
                chunks(&rows).into_iter().for_each(|chunk| operator.push(side, chunk).expect("takes the type"));
                now[side] += random.random_range(0..3);
            }
            let known = if time == 79 { [Watermark::END; 2] } else { now.map(Watermark::from_micros) };
            context = context.with_event_time(before, known);
            let mut out = Vec::new();
            while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
            assert_eq!(context.late.iter().map(|(_, late)| late.rows()).sum::<usize>(), late, "seed {seed}");
            before = known;
            for (row, diff) in consolidated(&out) {
                *shown.entry(row).or_insert(0) += diff;
            }
            shown.retain(|_, count| *count != 0);
            assert_eq!(shown, printed(&model(&used_rows, &used_versions, keep_left)), "seed {seed}, at {time}");
            most = most.max(operator.state_size().keys);
            if time % 7 == 0 {
                barrier(&mut operator, &mut store);
                operator = join(keep_left, true);
                open(&mut operator, &mut store);
            }
        }
        assert!(operator.state_size().keys <= 3, "a version of each key is left");
        assert!(most < 120, "kept {most} of {} rows", used_rows.len() + used_versions.len());
    }
}

#[test]
fn a_row_meets_what_is_there_when_it_comes_and_keeps_it() {
    for (seed, keep_left) in (0..60).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = MemoryBackend::default();
        let spec = LookupJoinSpec { keep_left, left_keys: vec![0], right_keys: vec![0] };
        let id = OperatorId::of("public.v", "root");
        let pairs = pair_schema(&schema(), &schema());
        let lookup =
            || LookupJoin::new(id, [&schema(), &schema()], Arc::clone(&pairs), &spec, true).expect("takes the types");
        let mut operator = lookup();
        let (mut waiting, mut right): (Vec<Timed>, Vec<Timed>) = Default::default();
        let mut expected: BTreeMap<(Timed, Option<Timed>), i64> = BTreeMap::new();
        let mut shown: BTreeMap<String, i64> = BTreeMap::new();
        for time in 1..25 {
            let row = |random: &mut StdRng| -> Timed {
                let key = random.random_bool(0.9).then(|| random.random_range(0..4));
                (key, random.random_bool(0.9).then(|| random.random_range(0..3)), random.random_range(0..2))
            };
            let rows: Vec<Timed> = (0..random.random_range(0..4)).map(|_| row(&mut random)).collect();
            let mut changes: Vec<(Timed, i64)> = Vec::new();
            for _ in 0..random.random_range(0..4) {
                if !right.is_empty() && random.random_bool(0.4) {
                    changes.push((right.swap_remove(random.random_range(0..right.len())), -1));
                } else {
                    right.push(row(&mut random));
                    changes.extend(right.last().map(|row| (*row, 1)));
                }
            }
            waiting.extend(rows.iter().copied());
            let whole = time >= 6;
            if whole {
                for row in waiting.drain(..) {
                    let partners: Vec<Timed> =
                        right.iter().filter(|other| row.0.is_some() && other.0 == row.0).copied().collect();
                    let alone = partners.is_empty() && keep_left;
                    for partner in partners.into_iter().map(Some).chain(alone.then_some(None)) {
                        *expected.entry((row, partner)).or_insert(0) += 1;
                    }
                }
            }
            let now = if whole { Watermark::END } else { Watermark::NONE };
            let mut context = Context::new(&mut store, Instant::now()).with_event_time([now; 2], [now; 2]);
            let rows: Vec<(Timed, i64)> = rows.into_iter().map(|row| (row, 1)).collect();
            chunks(&rows).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
            chunks(&changes).into_iter().for_each(|chunk| operator.push(1, chunk).expect("takes the type"));
            let mut out = Vec::new();
            while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
            for (row, diff) in consolidated(&out) {
                *shown.entry(row).or_insert(0) += diff;
            }
            assert_eq!(shown, printed(&expected), "seed {seed}, at {time}");
            if time % 3 == 0 {
                barrier(&mut operator, &mut store);
                operator = lookup();
                open(&mut operator, &mut store);
            }
        }
    }
}
