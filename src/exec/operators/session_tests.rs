//! Sessions against a look at all rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, RecordBatch, TimestampMicrosecondArray};
use arrow::datatypes::{Field, Schema, SchemaRef};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{barrier, consolidated, open};
use super::version_tests::{Timed, chunks, schema};
use super::*;
use crate::exec::plan::{Closing, EventTime, SessionSpec};
use crate::state::MemoryBackend;

const GAP: i64 = 5;

fn out_schema() -> SchemaRef {
    let time = schema().field(1).data_type().clone();
    let bounds = ["start", "last"].map(|name| Arc::new(Field::new(name, time.clone(), true)));
    Arc::new(Schema::new(schema().fields().iter().cloned().chain(bounds).collect::<Vec<_>>()))
}

pub(super) fn sessions(last_only: Option<bool>) -> SessionWindow {
    let spec = SessionSpec { keys: vec![0], time: 1, gap: GAP };
    let time = EventTime { terms: Vec::new(), size: None, end: 0 };
    let closing = last_only.map(|last_only| Closing { column: 1, time, last_only, keep: 0 });
    SessionWindow::new(OperatorId::of("public.v", "root"), &schema(), out_schema(), &spec, true)
        .expect("takes the types")
        .closing(closing.as_ref())
}

/// First and last times of the sessions of a key.
fn bounds_of(rows: &BTreeMap<Timed, i64>, key: Option<i64>) -> BTreeSet<(i64, i64)> {
    let mut times: Vec<i64> = rows.keys().filter(|(k, ..)| *k == key).filter_map(|(_, at, _)| *at).collect();
    times.sort_unstable();
    let mut found: Vec<(i64, i64)> = Vec::new();
    for at in times {
        match found.last_mut() {
            Some((_, last)) if at - *last < GAP => *last = at,
            _ => found.push((at, at)),
        }
    }
    found.into_iter().collect()
}

/// What rows come out as, printed; those of sessions that `shows` wants.
fn model(rows: &BTreeMap<Timed, i64>, shows: impl Fn(i64) -> bool) -> BTreeMap<String, i64> {
    let mut shown = BTreeMap::new();
    for (row @ (key, at, _), count) in rows {
        let Some(at) = at else { continue };
        let (start, last) = bounds_of(rows, *key)
            .into_iter()
            .find(|(start, last)| start <= at && at <= last)
            .expect("each row is in a session");
        if !shows(last) {
            continue;
        }
        let mut columns = chunks(&[(*row, 1)]).remove(0).batch().columns().to_vec();
        for bound in [start, last] {
            columns.push(Arc::new(TimestampMicrosecondArray::from(vec![bound])) as ArrayRef);
        }
        let batch = RecordBatch::try_new(out_schema(), columns).expect("fits");
        let (line, _) = consolidated(&Chunk::inserts(&batch)).pop_first().expect("a row");
        shown.insert(line, *count);
    }
    shown
}

fn close(operator: &mut SessionWindow, context: &mut Context<'_>, time: u64, rows: &[(Timed, i64)]) -> Vec<Chunk> {
    // In pieces, as they come from several workers.
    for part in rows.chunks(2) {
        chunks(part).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
    }
    let mut out = Vec::new();
    while operator.close(Time::from_millis(time), &mut out, context).expect("closes") == Step::Again {}
    out
}

#[test]
fn sessions_follow_every_change_through_the_store_alone() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = MemoryBackend::default();
        let mut operator = sessions(None);
        let mut rows: BTreeMap<Timed, i64> = BTreeMap::new();
        let mut shown: BTreeMap<String, i64> = BTreeMap::new();
        // Times before 1970 too; in the end everything goes.
        for time in 1..40 {
            let mut changes = Vec::new();
            for _ in 0..random.random_range(0..6) {
                let row = (
                    random.random_bool(0.9).then(|| random.random_range(0..2)),
                    random.random_bool(0.95).then(|| random.random_range(-30..30)),
                    random.random_range(0..2),
                );
                changes.push((row, random.random_range(1..3)));
            }
            for (row, count) in &rows {
                if time == 39 {
                    changes.push((*row, -count));
                } else if random.random_bool(0.2) {
                    changes.push((*row, -random.random_range(1..=*count)));
                }
            }
            if time == 39 {
                changes.retain(|(_, diff)| *diff < 0);
            }
            for (row, diff) in &changes {
                *rows.entry(*row).or_insert(0) += diff;
            }
            rows.retain(|_, count| *count != 0);
            if random.random_bool(0.5) {
                changes.reverse();
            }
            let out = close(&mut operator, &mut Context::new(&mut store, Instant::now()), time, &changes);
            for (row, diff) in consolidated(&out) {
                *shown.entry(row).or_insert(0) += diff;
            }
            shown.retain(|_, count| *count != 0);
            assert_eq!(shown, model(&rows, |_| true), "seed {seed}, at {time}");
            if time % 3 == 0 {
                barrier(&mut operator, &mut store);
                operator = sessions(None);
                open(&mut operator, &mut store);
            }
        }
        assert!(shown.is_empty());
        assert_eq!(operator.state_size(), StateSize::default());
        assert_eq!(store.entries(OperatorId::of("public.v", "root")), 0);
    }
}

#[test]
fn sessions_close_once_and_tell_what_is_late() {
    for (seed, last_only) in (0..40).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = MemoryBackend::default();
        let mut operator = sessions(Some(last_only));
        let mut used: BTreeMap<Timed, i64> = BTreeMap::new();
        let mut shown: BTreeMap<String, i64> = BTreeMap::new();
        let (mut before, mut now, mut late, mut most) = (Watermark::NONE, 0, 0, 0);
        for time in 1..80 {
            let known = if time == 79 { Watermark::END } else { Watermark::from_micros(now) };
            let rows: Vec<(Timed, i64)> = (0..random.random_range(0..4))
                .map(|_| ((Some(random.random_range(0..2)), Some(now + random.random_range(-7..12)), 0), 1))
                .collect();
            let past = used.clone();
            let mut expected_late = 0;
            for (row, _) in &rows {
                let (key, at) = (row.0, row.1.expect("a time"));
                let of_key = bounds_of(&past, key);
                let in_open = of_key.iter().any(|(start, last)| !before.is_past(*last) && *start <= at && at <= *last);
                let joins_closed =
                    of_key.iter().any(|(start, last)| before.is_past(*last) && at > start - GAP && at < last + GAP);
                if !in_open && (before.is_past(at) || joins_closed) {
                    expected_late += 1;
                } else {
                    *used.entry(*row).or_insert(0) += 1;
                }
            }
            let event_time = ([before, Watermark::NONE], [known, Watermark::NONE]);
            let mut context = Context::new(&mut store, Instant::now()).with_event_time(event_time.0, event_time.1);
            let out = close(&mut operator, &mut context, time, &rows);
            assert_eq!(context.late.iter().map(|(_, late)| late.rows()).sum::<usize>(), expected_late, "seed {seed}");
            late += expected_late;
            if last_only {
                assert!(
                    out.iter().all(|chunk| (0..chunk.rows()).all(|row| chunk.diff(row) > 0)),
                    "nothing is taken back"
                );
            }
            for (row, diff) in consolidated(&out) {
                *shown.entry(row).or_insert(0) += diff;
            }
            shown.retain(|_, count| *count != 0);
            assert_eq!(shown, model(&used, |last| !last_only || known.is_past(last)), "seed {seed}, at {time}");
            before = known;
            most = most.max(operator.state_size().keys);
            now += random.random_range(0..4);
            if time % 7 == 0 {
                barrier(&mut operator, &mut store);
                operator = sessions(Some(last_only));
                open(&mut operator, &mut store);
            }
        }
        assert_eq!(operator.state_size(), StateSize::default(), "everything is over");
        assert!(most < 60 && late > 0, "kept {most} of {} rows, {late} were late", used.len());
    }
}
