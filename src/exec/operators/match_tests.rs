//! Matches found as event time goes on, through the store alone, against a search over all rows at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampMicrosecondArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{barrier, consolidated, open};
use super::*;
use crate::exec::patterns::tests::pattern;
use crate::exec::patterns::{Matcher, Matches};
use crate::exec::plan::{Closing, EventTime, MatchSpec, Pattern, Skip, SortKey};
use crate::state::MemoryBackend;

/// A time, a number and a key.
type Row = (i64, i64, i64);

fn schema(measures: Option<&Pattern>) -> SchemaRef {
    let mut fields = vec![
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("x", DataType::Int64, true),
        Field::new("k", DataType::Int64, true),
    ];
    fields.extend(measures.map(|pattern| Field::new("m", DataType::Struct(pattern.fields.clone()), true)));
    Arc::new(Schema::new(fields))
}

fn columns(rows: &[Row]) -> Vec<ArrayRef> {
    vec![
        Arc::new(TimestampMicrosecondArray::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.2))),
    ]
}

fn chunks(rows: &[Row]) -> Vec<Chunk> {
    Chunk::inserts(&RecordBatch::try_new(schema(None), columns(rows)).expect("fits"))
}

fn operator(pattern: &Arc<Pattern>) -> MatchRows {
    let order = vec![SortKey { column: 0, options: Default::default() }];
    let spec = MatchSpec { keys: vec![2], order, pattern: Arc::clone(pattern) };
    let time = EventTime { terms: Vec::new(), size: None, end: 0 };
    let closing = Closing { column: 0, time, last_only: true, keep: 0 };
    let id = OperatorId::of("public.v", "root");
    MatchRows::new(id, &schema(None), schema(Some(pattern)), &spec, &closing, true).expect("takes the types")
}

/// What a search over all rows finds.
fn model(pattern: &Pattern, rows: &[Row]) -> BTreeMap<String, i64> {
    let mut found = BTreeMap::new();
    for key in 0..3 {
        let mut rows: Vec<Row> = rows.iter().filter(|row| row.2 == key).copied().collect();
        rows.sort_unstable();
        let (columns, partition) = (columns(&rows), 0..rows.len());
        let mut matcher = Matcher::new(pattern, &columns, std::slice::from_ref(&partition)).expect("the types fit");
        let mut matches = Matches::default();
        matcher.run(&partition, 0, None, &mut matches).expect("no condition fails");
        let starts = UInt32Array::from_iter_values(matches.starts().map(|row| row as u32));
        let mut shown: Vec<ArrayRef> =
            columns.iter().map(|column| take(column, &starts, None).expect("rows of it")).collect();
        shown.push(Arc::new(matcher.measures(&matches).expect("can be represented")));
        let batch = RecordBatch::try_new(schema(Some(pattern)), shown).expect("fits");
        for (row, count) in consolidated(&Chunk::inserts(&batch)) {
            *found.entry(row).or_insert(0) += count;
        }
    }
    found
}

fn random_pattern(random: &mut StdRng) -> Pattern {
    let kinds = [0; 3].map(|_: usize| random.random_range(0..6));
    let some = [(1, Some(1)), (1, None), (0, None), (0, Some(1)), (2, Some(3))];
    let mut quantifiers = [0; 3].map(|_: usize| {
        let (least, most) = some[random.random_range(0..some.len())];
        (least, most, random.random_bool(0.5))
    });
    quantifiers[0].0 = quantifiers[0].0.max(1);
    let mut pattern = pattern(kinds, quantifiers);
    pattern.within = random.random_bool(0.7).then(|| random.random_range(1..8));
    pattern.skip = [Skip::PastLast, Skip::ToNext, Skip::ToLast(0)][random.random_range(0..3)].clone();
    pattern
}

#[test]
fn matches_are_those_of_all_rows_through_the_store_alone() {
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let pattern = Arc::new(random_pattern(&mut random));
        let mut store = MemoryBackend::default();
        let mut operator = operator(&pattern);
        let (mut used, mut shown): (Vec<Row>, BTreeMap<String, i64>) = Default::default();
        let (mut before, mut now) = (Watermark::NONE, 0);
        for time in 1..40 {
            let rows: Vec<Row> = (0..random.random_range(0..5))
                .map(|_| (now + random.random_range(-1..6), random.random_range(0..4), random.random_range(0..3)))
                .collect();
            let on_time = rows.iter().filter(|row| !before.is_past(row.0));
            used.extend(on_time.copied());
            let late = rows.iter().filter(|row| before.is_past(row.0)).count();
            chunks(&rows).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
            now += random.random_range(0..3);
            let known = if time == 39 { Watermark::END } else { Watermark::from_micros(now) };
            let mut context = Context::new(&mut store, Instant::now())
                .with_event_time([before, Watermark::NONE], [known, Watermark::NONE]);
            let mut out = Vec::new();
            while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
            assert_eq!(context.late.iter().map(|(_, late)| late.rows()).sum::<usize>(), late, "seed {seed}");
            before = known;
            for (row, count) in consolidated(&out) {
                *shown.entry(row).or_insert(0) += count;
            }
            if time % 3 == 0 {
                barrier(&mut operator, &mut store);
                operator = self::operator(&pattern);
                open(&mut operator, &mut store);
            }
        }
        assert_eq!(shown, model(&pattern, &used), "seed {seed}: {pattern}");
        let kept = operator.state_size().keys;
        assert!(kept <= 3 * pattern.rows_back(), "seed {seed} keeps {kept} rows");
    }
}

#[test]
fn what_is_within_the_time_is_all_that_is_kept() {
    let mut pattern = pattern([0, 0, 5], [(1, Some(1), true), (0, None, true), (1, Some(1), true)]);
    pattern.within = Some(100);
    let pattern = Arc::new(pattern);
    let mut store = MemoryBackend::default();
    let mut operator = operator(&pattern);
    let mut before = Watermark::NONE;
    for step in 0..100 {
        let rows: Vec<Row> = (0..50).map(|row| (step * 50 + row, 0, row % 3)).collect();
        chunks(&rows).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
        let known = Watermark::from_micros(step * 50 + 49);
        let mut context = Context::new(&mut store, Instant::now()).with_event_time([before; 2], [known; 2]);
        while operator.close(Time::from_millis(step as u64 + 1), &mut Vec::new(), &mut context).expect("closes")
            == Step::Again
        {}
        before = known;
        assert!(operator.state_size().keys <= 101, "{:?}", operator.state_size());
    }
}
