//! Every stateful operator against a store that knows nothing but `StateBackend`: at each time a new
//! instance is opened from the store, and must say what one says that was never closed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;
use crate::exec::arrangement::{Arrangement, Cursor, Layout, Needs, Selection};
use crate::exec::plan::{AggregateCall, AggregateFunction, Closing, EventTime, JoinKind, JoinSpec};
use crate::state::MemoryBackend;
use crate::types::{InspectionId, OperatorId};

pub(super) fn input() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Utf8, true),
        Field::new("x", DataType::Int64, true),
        Field::new("d", DataType::Float64, true),
        Field::new("f", DataType::Boolean, true),
    ]))
}

pub(super) type InputRow = (Option<u8>, Option<i64>, Option<i64>, Option<bool>);

pub(super) fn chunk(rows: &[(InputRow, i64)]) -> Vec<Chunk> {
    let texts = StringArray::from_iter(rows.iter().map(|((k, ..), _)| k.map(|k| format!("k{k}"))));
    let numbers = Int64Array::from_iter(rows.iter().map(|((_, x, ..), _)| *x));
    let doubles = Float64Array::from_iter(rows.iter().map(|((_, _, d, _), _)| d.map(|d| d as f64 * 0.25)));
    let booleans = BooleanArray::from_iter(rows.iter().map(|((.., f), _)| *f));
    let columns: Vec<ArrayRef> = vec![Arc::new(texts), Arc::new(numbers), Arc::new(doubles), Arc::new(booleans)];
    let batch = RecordBatch::try_new(input(), columns).expect("fits");
    Chunk::changes(&batch, &Int64Array::from_iter_values(rows.iter().map(|(_, diff)| *diff)))
}

fn calls() -> Vec<AggregateCall> {
    let all = [
        (AggregateFunction::Count, None, false, None),
        (AggregateFunction::Count, Some(1), true, None),
        (AggregateFunction::Sum, Some(1), false, Some(3)),
        (AggregateFunction::Sum, Some(2), true, None),
        (AggregateFunction::Avg, Some(1), false, None),
        (AggregateFunction::Min, Some(1), false, None),
        (AggregateFunction::Max, Some(2), false, Some(3)),
        (AggregateFunction::BoolAnd, Some(3), false, None),
        (AggregateFunction::StddevSamp, Some(1), false, None),
        (AggregateFunction::ArrayAgg, Some(1), true, None),
    ];
    all.into_iter()
        .map(|(function, argument, distinct, filter)| {
            let data_type = argument.map_or(DataType::Null, |a: usize| input().field(a).data_type().clone());
            let output =
                Arc::new(Field::new(function.name(), function.result_type(&data_type).expect("takes it"), true));
            AggregateCall { function, argument, distinct, filter, output }
        })
        .collect()
}

pub(super) fn aggregate(keys: &[usize], track: bool) -> Aggregate {
    let calls = calls();
    let mut fields: Vec<Field> = keys.iter().map(|key| input().field(*key).clone()).collect();
    fields.extend(calls.iter().map(|call| call.output.as_ref().clone()));
    let schema = Arc::new(Schema::new(fields));
    let operator = OperatorId::of("public.v", "root");
    Aggregate::new(operator, &input(), schema, keys.to_vec(), calls, true, track).expect("takes the types")
}

pub(super) fn print(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("∅");
    let columns: Vec<ArrayFormatter<'_>> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).expect("printable")).collect();
    let line = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(" ");
    (0..batch.num_rows()).map(line).collect()
}

/// The sum of changes per printed row.
pub(super) fn consolidated(chunks: &[Chunk]) -> BTreeMap<String, i64> {
    let mut rows = BTreeMap::new();
    for chunk in chunks {
        for (row, line) in print(chunk.batch()).into_iter().enumerate() {
            *rows.entry(line).or_insert(0) += chunk.diff(row);
        }
    }
    rows.retain(|_, diff| *diff != 0);
    rows
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}

pub(super) fn close(
    operator: &mut dyn Operator,
    backend: &mut MemoryBackend,
    time: u64,
    rows: &[(InputRow, i64)],
) -> Vec<Chunk> {
    // A deadline that has passed: every call is one slice.
    let mut context = Context::new(backend, Instant::now());
    chunk(rows).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
    let mut out = Vec::new();
    while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
    out
}

pub(super) fn open(operator: &mut dyn Operator, backend: &mut MemoryBackend) {
    operator.open(&mut Context::new(backend, soon())).expect("opens");
}

pub(super) fn barrier(operator: &mut dyn Operator, backend: &mut MemoryBackend) {
    // In slices too.
    while operator.barrier(&mut Context::new(backend, Instant::now())).expect("stores") == Step::Again {}
}

/// Random inserts, and retractions of rows that are there; all gone at the end.
pub(super) fn history(seed: u64) -> Vec<Vec<(InputRow, i64)>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut present: Vec<InputRow> = Vec::new();
    let mut times: Vec<Vec<(InputRow, i64)>> = (0..30)
        .map(|_| {
            let mut changes = Vec::new();
            for _ in 0..random.random_range(1..12) {
                if !present.is_empty() && random.random_bool(0.45) {
                    changes.push((present.swap_remove(random.random_range(0..present.len())), -1));
                } else {
                    let row = (
                        random.random_bool(0.9).then(|| random.random_range(0..4)),
                        random.random_bool(0.9).then(|| random.random_range(-3..6)),
                        random.random_bool(0.9).then(|| random.random_range(-9..9)),
                        random.random_bool(0.9).then(|| random.random_bool(0.5)),
                    );
                    present.push(row);
                    changes.push((row, 1));
                }
            }
            // Within one time the order of arrival does not matter.
            if random.random_bool(0.5) {
                changes.reverse();
            }
            changes
        })
        .collect();
    times.push(present.into_iter().map(|row| (row, -1)).collect());
    times
}

#[test]
fn aggregates_live_on_through_the_store_alone() {
    for (seed, keys) in (0..6).flat_map(|seed| [(seed, vec![0]), (seed, vec![])]) {
        let (mut store, mut unused) = (MemoryBackend::default(), MemoryBackend::default());
        let mut hot = aggregate(&keys, false);
        open(&mut hot, &mut unused);
        let mut shown: BTreeMap<String, i64> = BTreeMap::new();
        let times = history(seed);
        for (time, rows) in times.iter().enumerate() {
            let mut cold = aggregate(&keys, true);
            open(&mut cold, &mut store);
            let expected = close(&mut hot, &mut unused, time as u64, rows);
            let found = close(&mut cold, &mut store, time as u64, rows);
            assert_eq!(consolidated(&found), consolidated(&expected), "seed {seed}, time {time}, keys {keys:?}");
            barrier(&mut cold, &mut store);
            for (row, diff) in consolidated(&found) {
                *shown.entry(row).or_insert(0) += diff;
            }
            shown.retain(|_, diff| *diff != 0);
            assert!(shown.values().all(|diff| *diff == 1), "one row a group: {shown:?}");
        }
        // Everything was taken back: no group is left, but the global one, and no state.
        let left = usize::from(keys.is_empty());
        assert_eq!(shown.len(), left);
        assert_eq!(store.entries(OperatorId::of("public.v", "root")), left);
    }
}

#[test]
fn a_retraction_of_nothing_is_an_error() {
    let mut store = MemoryBackend::default();
    let mut operator = aggregate(&[0], false);
    open(&mut operator, &mut store);
    chunk(&[((Some(1), Some(1), None, None), -1)]).into_iter().for_each(|c| operator.push(0, c).expect("takes it"));
    let mut context = Context::new(&mut store, soon());
    assert!(operator.close(Time::from_millis(1), &mut Vec::new(), &mut context).is_err());
}

pub(super) fn arrangement(key: &[usize], track: bool) -> Arrangement {
    let layout = Layout::new(input(), key).expect("can be kept");
    Arrangement::new(OperatorId::of("public.v", "rows"), layout, Time::ZERO, track)
}

/// All rows at a time, read in pages of one key.
fn read(arrangement: &Arrangement, time: Time) -> Vec<String> {
    let selection = Selection { projection: vec![0, 1, 2, 3], predicate: None };
    let (mut rows, mut start): (Vec<String>, Option<Cursor>) = (Vec::new(), None);
    loop {
        let (batch, next) = arrangement.page(time, start.as_ref(), 1, soon(), &selection).expect("readable");
        rows.extend(print(&batch));
        match next {
            Some(next) => start = Some(next),
            None => break,
        }
    }
    rows.sort_unstable();
    rows
}

#[test]
fn every_kept_time_reads_as_it_was_also_while_the_next_is_half_applied() {
    for seed in 0..2 {
        let mut unused = MemoryBackend::default();
        let mut hot = arrangement(&[], false);
        let mut model: BTreeMap<String, i64> = BTreeMap::new();
        let mut pasts: Vec<(Time, Vec<String>)> = Vec::new();
        for (time, rows) in history(seed).iter().enumerate() {
            let time = Time::from_millis(time as u64 + 1);
            chunk(rows).into_iter().for_each(|c| hot.push(0, c).expect("takes it"));
            loop {
                let mut context = Context::new(&mut unused, Instant::now());
                let step = hot.close(time, &mut Vec::new(), &mut context).expect("closes");
                for (past, expected) in &pasts {
                    assert_eq!(&read(&hot, *past), expected, "seed {seed}, at {past} while closing {time}");
                }
                if step == Step::Done {
                    break;
                }
            }
            for (row, diff) in consolidated(&chunk(rows)) {
                *model.entry(row).or_insert(0) += diff;
            }
            let rows = model.iter().flat_map(|(row, n)| std::iter::repeat_n(row.clone(), *n as usize)).collect();
            pasts.push((time, rows));
            let (_, newest) = pasts.last().expect("just pushed");
            assert_eq!(&read(&hot, time), newest);
        }
        // A hold keeps its past and no more.
        let held = Time::from_millis(12);
        hot.advance(Time::from_millis(5_000));
        hot.forget(Needs { held: Some(held), followed: None });
        assert_eq!(read(&hot, held), pasts[11].1);
        let selection = Selection { projection: vec![0], predicate: None };
        let error = hot.page(Time::from_millis(3), None, 10, soon(), &selection).expect_err("given up");
        assert_eq!(error.code().code(), "72000");
    }
}

/// What changed between two times, read one entry at a time; each time's changes in one piece.
fn changed(arrangement: &Arrangement, after: u64, upto: u64) -> BTreeMap<String, i64> {
    let times = (Time::from_millis(after), Time::from_millis(upto));
    let (mut sums, mut place, mut last) = (BTreeMap::new(), None, times.0);
    loop {
        let page = arrangement.changes(times, place, 1, soon(), &[0, 1, 2, 3]).expect("kept");
        for (row, change) in print(&page.rows).into_iter().zip(&page.changes) {
            assert!(change.time >= last && change.time > times.0 && change.time <= times.1);
            assert_ne!(change.diff, 0);
            last = change.time;
            *sums.entry(row).or_insert(0) += change.diff;
        }
        place = page.next;
        if place.is_none() {
            break;
        }
    }
    sums.retain(|_, diff| *diff != 0);
    sums
}

#[test]
fn the_changes_between_any_two_times_add_up_also_through_the_store() {
    for (seed, retained) in [(3, false), (4, true)] {
        let mut store = MemoryBackend::default();
        let fresh = || arrangement(&[], retained).retaining(if retained { 60_000 } else { 0 });
        let mut kept = fresh();
        let mut past: Vec<BTreeMap<String, i64>> = vec![BTreeMap::new()];
        for (time, rows) in history(seed).iter().enumerate() {
            if retained {
                kept = fresh();
                open(&mut kept, &mut store);
            }
            close(&mut kept, &mut store, time as u64 + 1, rows);
            let mut now = past.last().expect("the first").clone();
            for (row, diff) in consolidated(&chunk(rows)) {
                *now.entry(row).or_insert(0) += diff;
            }
            past.push(now);
            if retained {
                barrier(&mut kept, &mut store);
            }
            for (after, before) in past.iter().enumerate().step_by(3) {
                let mut expected = past.last().expect("the first").clone();
                before.iter().for_each(|(row, count)| *expected.entry(row.clone()).or_insert(0) -= count);
                expected.retain(|_, diff| *diff != 0);
                assert_eq!(changed(&kept, after as u64, time as u64 + 1), expected, "after {after} up to {time} + 1");
            }
        }
        // What is given up leaves the store too.
        kept.advance(Time::from_millis(100_000));
        kept.forget(Needs::default());
        barrier(&mut kept, &mut store);
        let present = past.last().expect("the first").values().filter(|count| **count != 0).count();
        let since = usize::from(retained);
        assert_eq!(store.entries(OperatorId::of("public.v", "rows")), if retained { present + since } else { 0 });
        let error = kept.changes((Time::ZERO, Time::from_millis(5)), None, 9, soon(), &[0]).expect_err("given up");
        assert_eq!(error.code().code(), "72000");
    }
}

#[test]
fn an_update_of_a_unique_key_is_a_pair() {
    let mut store = MemoryBackend::default();
    let mut keyed = arrangement(&[0], false);
    close(&mut keyed, &mut store, 1, &[((Some(1), Some(1), None, None), 1), ((Some(2), Some(7), None, None), 1)]);
    close(&mut keyed, &mut store, 2, &[((Some(1), Some(2), None, None), 1), ((Some(1), Some(1), None, None), -1)]);
    close(&mut keyed, &mut store, 3, &[((Some(1), Some(2), None, None), -1)]);
    let all = (Time::from_millis(1), Time::from_millis(3));
    let page = keyed.changes(all, None, 100, soon(), &[1]).expect("kept");
    let kinds: Vec<_> = page.changes.iter().map(|c| (c.time.as_millis(), c.kind.name(), c.diff)).collect();
    assert_eq!(kinds, [(2, "update_before", -1), (2, "update_after", 1), (3, "delete", -1)]);
    assert_eq!(print(&page.rows), ["1", "2", "2"]);
}

#[test]
fn one_who_follows_costs_so_much_and_no_more() {
    let mut store = MemoryBackend::default();
    let mut kept = arrangement(&[], false);
    let followed = Needs { held: None, followed: Some(Time::from_millis(1)) };
    let mut last = 0;
    for time in 1..1_000_i64 {
        let row = |at: i64| ((Some(1), Some(time * 2_000 + at), None, None), 1);
        last = time as u64 * 10;
        close(&mut kept, &mut store, last, &(0..2_000).map(row).collect::<Vec<_>>());
        kept.forget(followed);
        if kept.since() > Time::from_millis(1) {
            break;
        }
    }
    assert!(last > 1_100 && last < 9_990, "{last}: kept for longer than without, and not for ever");
    let times = (Time::from_millis(1), Time::from_millis(last));
    let error = kept.changes(times, None, 9, soon(), &[0]).expect_err("given up");
    assert_eq!(error.code().code(), "72000");
}

#[test]
fn arrangements_live_on_through_the_store_alone() {
    let mut store = MemoryBackend::default();
    let mut unused = MemoryBackend::default();
    let mut hot = arrangement(&[], false);
    for (time, rows) in history(9).iter().enumerate() {
        let time = time as u64 + 1;
        let mut cold = arrangement(&[], true);
        open(&mut cold, &mut store);
        close(&mut hot, &mut unused, time, rows);
        close(&mut cold, &mut store, time, rows);
        assert_eq!(read(&cold, Time::from_millis(time)), read(&hot, Time::from_millis(time)), "time {time}");
        barrier(&mut cold, &mut store);
    }
    assert_eq!(store.entries(OperatorId::of("public.v", "rows")), 0);
}

#[test]
fn a_unique_key_with_two_rows_is_an_error() {
    let mut store = MemoryBackend::default();
    let mut keyed = arrangement(&[0], false);
    close(&mut keyed, &mut store, 1, &[((Some(1), Some(1), None, None), 1)]);
    close(&mut keyed, &mut store, 2, &[((Some(1), Some(2), None, None), 1), ((Some(1), Some(1), None, None), -1)]);
    assert_eq!(read(&keyed, Time::from_millis(2)), vec!["k1 2 ∅ ∅"]);
    keyed.push(0, chunk(&[((Some(1), Some(3), None, None), 1)]).remove(0)).expect("takes it");
    let mut context = Context::new(&mut store, soon());
    assert!(keyed.close(Time::from_millis(3), &mut Vec::new(), &mut context).is_err());
}

/// What a join of all rows gives, by two loops; the condition is that x of the left is below x of the right.
fn joined(
    left: &BTreeMap<InputRow, i64>,
    right: &BTreeMap<InputRow, i64>,
    kind: JoinKind,
    condition: bool,
) -> BTreeMap<String, i64> {
    let text = |row: &InputRow| print(chunk(&[(*row, 1)])[0].batch()).remove(0);
    let empty = "∅ ∅ ∅ ∅";
    let partners = |l: &InputRow, r: &InputRow| {
        let below = matches!((l.1, r.1), (Some(left), Some(right)) if left < right);
        l.0.is_some() && l.0 == r.0 && (below || !condition)
    };
    let mut rows = BTreeMap::new();
    let mut add = |row: String, count: i64| *rows.entry(row).or_insert(0) += count;
    let pairs = !matches!(kind, JoinKind::Semi | JoinKind::Anti);
    for (l, l_count) in left {
        let found: i64 = right.iter().filter(|(r, _)| partners(l, r)).map(|(_, count)| count).sum();
        for (r, r_count) in right.iter().filter(|(r, _)| pairs && partners(l, r)) {
            add(format!("{} {}", text(l), text(r)), l_count * r_count);
        }
        match kind {
            JoinKind::Left | JoinKind::Full if found == 0 => add(format!("{} {empty}", text(l)), *l_count),
            JoinKind::Semi if found > 0 => add(text(l), *l_count),
            JoinKind::Anti if found == 0 => add(text(l), *l_count),
            _ => {}
        }
    }
    for (r, count) in right {
        let alone = !left.keys().any(|l| partners(l, r));
        if alone && matches!(kind, JoinKind::Right | JoinKind::Full) {
            add(format!("{empty} {}", text(r)), *count);
        }
    }
    rows
}

pub(super) fn join(kind: JoinKind, condition: bool, track: bool) -> Join {
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::PhysicalExpr;
    use datafusion::physical_expr::expressions::{BinaryExpr, Column};
    let column = |at: usize| Arc::new(Column::new("x", at)) as Arc<dyn PhysicalExpr>;
    let below: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(column(1), Operator::Lt, column(5)));
    let spec = JoinSpec {
        kind,
        left_keys: vec![0],
        right_keys: vec![0],
        nulls_equal: false,
        condition: condition.then_some(below),
    };
    let schema = match kind {
        JoinKind::Semi | JoinKind::Anti => input(),
        _ => spec.pair_schema(&input(), &input()),
    };
    Join::new(OperatorId::of("public.v", "root"), [&input(), &input()], schema, &spec, track).expect("takes the types")
}

#[test]
fn joins_equal_two_loops_and_live_on_through_the_store_alone() {
    let kinds = [JoinKind::Inner, JoinKind::Left, JoinKind::Right, JoinKind::Full, JoinKind::Semi, JoinKind::Anti];
    for (seed, kind) in kinds.into_iter().enumerate() {
        for condition in [false, true] {
            let mut store = MemoryBackend::default();
            let mut shown: BTreeMap<String, i64> = BTreeMap::new();
            let mut present: [BTreeMap<InputRow, i64>; 2] = Default::default();
            let (left, right) = (history(seed as u64), history(100 + seed as u64));
            for (time, sides) in left.iter().zip(&right).enumerate() {
                let mut operator = join(kind, condition, true);
                open(&mut operator, &mut store);
                // Chunks of both sides come in turns.
                let sides = [sides.0, sides.1];
                for at in 0..sides[0].len().max(sides[1].len()) {
                    for (side, changes) in sides.into_iter().enumerate() {
                        if let Some((row, diff)) = changes.get(at) {
                            *present[side].entry(*row).or_insert(0) += diff;
                            chunk(&[(*row, *diff)]).into_iter().for_each(|c| operator.push(side, c).expect("takes it"));
                        }
                    }
                }
                let mut out = Vec::new();
                let mut context = Context::new(&mut store, Instant::now());
                while operator.close(Time::from_millis(time as u64), &mut out, &mut context).expect("closes")
                    == Step::Again
                {}
                operator.barrier(&mut Context::new(&mut store, soon())).expect("stores");
                for (row, diff) in consolidated(&out) {
                    *shown.entry(row).or_insert(0) += diff;
                }
                shown.retain(|_, diff| *diff != 0);
                present.iter_mut().for_each(|rows| rows.retain(|_, count| *count != 0));
                let expected = joined(&present[0], &present[1], kind, condition);
                assert_eq!(shown, expected, "{kind:?}, condition {condition}, time {time}");
            }
            assert_eq!(store.entries(OperatorId::of("public.v", "root")), 0, "{kind:?}, condition {condition}");
        }
    }
}

mod event_time {
    //! What operators close by event time, against what a plain reading of the meaning says.

    use arrow::array::TimestampMicrosecondArray;
    use arrow::datatypes::{IntervalMonthDayNano, TimeUnit};
    use datafusion::common::ScalarValue;
    use datafusion::logical_expr::Operator as Op;
    use datafusion::physical_expr::PhysicalExpr;
    use datafusion::physical_expr::expressions::{BinaryExpr, Column, Literal};

    use super::*;
    use crate::types::Watermark;

    fn rows_schema() -> SchemaRef {
        let time = DataType::Timestamp(TimeUnit::Microsecond, None);
        Arc::new(Schema::new(vec![Field::new("w", time, true), Field::new("x", DataType::Int64, true)]))
    }

    type Timed = ((Option<i64>, i64), i64);

    fn timed(rows: &[Timed]) -> Vec<Chunk> {
        let times = TimestampMicrosecondArray::from_iter(rows.iter().map(|((w, _), _)| *w));
        let numbers = Int64Array::from_iter_values(rows.iter().map(|((_, x), _)| *x));
        let columns: Vec<ArrayRef> = vec![Arc::new(times), Arc::new(numbers)];
        let batch = RecordBatch::try_new(rows_schema(), columns).expect("fits");
        Chunk::changes(&batch, &Int64Array::from_iter_values(rows.iter().map(|(_, diff)| *diff)))
    }

    fn closing(last_only: bool) -> Closing {
        Closing { column: 0, time: EventTime { terms: Vec::new(), size: None, end: 0 }, last_only, keep: 0 }
    }

    fn counts(last_only: bool) -> Aggregate {
        let output = Arc::new(Field::new("sum", DataType::Decimal128(38, 0), true));
        let call = AggregateCall {
            function: AggregateFunction::Sum,
            argument: Some(1),
            distinct: false,
            filter: None,
            output: Arc::clone(&output),
        };
        let schema = Arc::new(Schema::new(vec![Arc::new(rows_schema().field(0).clone()), output]));
        Aggregate::new(OperatorId::of("v", "root"), &rows_schema(), schema, vec![0], vec![call], true, true)
            .and_then(|operator| operator.closing(&closing(last_only)))
            .expect("takes the types")
    }

    fn hold() -> Hold {
        Hold::new(OperatorId::of("v", "root"), rows_schema(), &closing(true), true).expect("takes the types")
    }

    /// Closes a time at which event time is `now`; gives what came out and what was late, by row.
    fn step(
        operator: &mut dyn Operator,
        store: &mut MemoryBackend,
        rows: &[Timed],
        (before, now): (Watermark, Watermark),
    ) -> (BTreeMap<String, i64>, BTreeMap<String, i64>) {
        let mut context = Context::new(store, Instant::now()).with_event_time([before; 2], [now; 2]);
        timed(rows).into_iter().for_each(|chunk| operator.push(0, chunk).expect("takes the type"));
        let mut out = Vec::new();
        let time = Time::from_millis(1);
        while operator.close(time, &mut out, &mut context).expect("closes") == Step::Again {}
        let late: Vec<Chunk> = context.late.into_iter().map(|(_, late)| late).collect();
        (consolidated(&out), consolidated(&late))
    }

    /// Random changes of windows around a watermark that goes on, with its values; retractions of rows that are there.
    fn windows(seed: u64) -> Vec<(Vec<Timed>, Watermark)> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut there: Vec<(Option<i64>, i64)> = Vec::new();
        let mut now = 0_i64;
        let mut times = Vec::new();
        for _ in 0..40 {
            let mut rows = Vec::new();
            for _ in 0..random.random_range(0..8) {
                if !there.is_empty() && random.random_bool(0.3) {
                    rows.push((there.swap_remove(random.random_range(0..there.len())), -1));
                } else {
                    let window = random.random_bool(0.95).then(|| now + random.random_range(-3..6));
                    let row = (window, random.random_range(0..4));
                    there.push(row);
                    rows.push((row, 1));
                }
            }
            now += random.random_range(0..3);
            times.push((rows, Watermark::from_micros(now)));
        }
        times.push((Vec::new(), Watermark::END));
        times
    }

    /// By window: a row is late when its window was over before; a window's row comes when it is over.
    #[test]
    fn each_window_comes_once_and_what_is_late_is_told() {
        for seed in 0..60 {
            let (mut store, mut held_store) = (MemoryBackend::default(), MemoryBackend::default());
            let (mut aggregate, mut held) = (counts(true), hold());
            let mut open: BTreeMap<i64, Vec<Timed>> = BTreeMap::new();
            let mut before = Watermark::NONE;
            let mut largest = 0;
            for (rows, now) in windows(seed) {
                let (mut late, mut closed) = (BTreeMap::new(), (BTreeMap::new(), BTreeMap::new()));
                for row in &rows {
                    let window = row.0.0.unwrap_or(i64::MAX);
                    if row.0.0.is_some() && before.is_past(window) {
                        let line = print(timed(&[*row])[0].batch()).remove(0);
                        *late.entry(line).or_insert(0) += row.1;
                    } else {
                        open.entry(window).or_default().push(*row);
                    }
                }
                late.retain(|_, diff| *diff != 0);
                while let Some(entry) = open.first_entry().filter(|entry| now.is_past(*entry.key())) {
                    let rows = entry.remove();
                    let window = rows[0].0.0;
                    let count: i64 = rows.iter().map(|(_, diff)| diff).sum();
                    let sum: i64 = rows.iter().map(|((_, x), diff)| x * diff).sum();
                    if count > 0 {
                        let w = print(timed(&[((window, 0), 1)])[0].batch()).remove(0);
                        let w = w.rsplit_once(' ').expect("two columns").0.to_owned();
                        closed.0.insert(format!("{w} {sum}"), 1);
                    }
                    for (line, diff) in consolidated(&timed(&rows)) {
                        *closed.1.entry(line).or_insert(0) += diff;
                    }
                }
                let got = step(&mut aggregate, &mut store, &rows, (before, now));
                assert_eq!(got, (closed.0, late.clone()), "seed {seed}, at {now}");
                let got = step(&mut held, &mut held_store, &rows, (before, now));
                assert_eq!(got, (closed.1, late), "held, seed {seed}, at {now}");
                largest = largest.max(aggregate.groups());
                before = now;
                // Through the store now and then.
                if rows.len() % 3 == 0 {
                    barrier(&mut aggregate, &mut store);
                    barrier(&mut held, &mut held_store);
                    (aggregate, held) = (counts(true), hold());
                    super::open(&mut aggregate, &mut store);
                    super::open(&mut held, &mut held_store);
                }
            }
            assert_eq!(aggregate.groups(), 0, "all is over at the end");
            assert!(largest < 40, "groups that are over are forgotten");
        }
    }

    #[test]
    fn windows_that_are_over_leave_nothing_in_the_store() {
        let open_one = || {
            let calls: Vec<AggregateCall> = [(AggregateFunction::Max, false), (AggregateFunction::Count, true)]
                .map(|(function, distinct)| {
                    let output = Arc::new(Field::new(function.name(), DataType::Int64, true));
                    AggregateCall { function, argument: Some(1), distinct, filter: None, output }
                })
                .into();
            let outputs = calls.iter().map(|call| Arc::clone(&call.output));
            let fields: Vec<_> = std::iter::once(Arc::new(rows_schema().field(0).clone())).chain(outputs).collect();
            let schema = Arc::new(Schema::new(fields));
            Aggregate::new(OperatorId::of("v", "root"), &rows_schema(), schema, vec![0], calls, true, true)
                .and_then(|operator| operator.closing(&closing(false)))
                .expect("takes the types")
        };
        let mut store = MemoryBackend::default();
        let mut aggregate = open_one();
        let at = Watermark::from_micros;
        let rows = [((Some(1), 5), 1), ((Some(1), 6), 1), ((Some(9), 7), 1)];
        step(&mut aggregate, &mut store, &rows, (Watermark::NONE, at(0)));
        barrier(&mut aggregate, &mut store);
        step(&mut aggregate, &mut store, &[], (at(0), at(5)));
        barrier(&mut aggregate, &mut store);
        let mut again = open_one();
        super::open(&mut again, &mut store);
        assert_eq!(again.groups(), 1);
        step(&mut again, &mut store, &[], (at(5), Watermark::END));
        barrier(&mut again, &mut store);
        let mut left = 0;
        let count = &mut |_: &[u8], _: &[u8]| {
            left += 1;
            Ok(())
        };
        store.scan(OperatorId::of("v", "root"), &[], count).expect("is in memory");
        assert_eq!(left, 0);
    }

    #[test]
    fn rows_that_are_held_back_are_read_as_they_were() {
        for seed in 0..20 {
            let (mut operator, mut store) = (hold(), MemoryBackend::default());
            let mut kept: BTreeMap<String, i64> = BTreeMap::new();
            let mut reads: Vec<(BTreeMap<String, i64>, BTreeMap<String, i64>)> = Vec::new();
            let mut before = Watermark::NONE;
            let page = |operator: &mut Hold, id: usize, found: &mut BTreeMap<String, i64>| {
                let page = operator.page(InspectionId(id as u64), 1, soon()).expect("kept");
                print(&page.rows).into_iter().for_each(|row| *found.entry(row).or_insert(0) += 1);
                page.more
            };
            for (rows, now) in windows(seed) {
                operator.begin(InspectionId(reads.len() as u64), 0);
                reads.push((kept.clone(), BTreeMap::new()));
                let (out, late) = step(&mut operator, &mut store, &rows, (before, now));
                before = now;
                let gone = out.into_iter().chain(late).map(|(row, diff)| (row, -diff));
                for (row, diff) in consolidated(&timed(&rows)).into_iter().chain(gone) {
                    *kept.entry(row).or_insert(0) += diff;
                }
                kept.retain(|_, count| *count != 0);
                for (id, (_, found)) in reads.iter_mut().enumerate() {
                    page(&mut operator, id, found);
                }
            }
            for (id, (expected, mut found)) in reads.into_iter().enumerate() {
                while page(&mut operator, id, &mut found) {}
                assert_eq!(found, expected, "seed {seed}, read {id}");
            }
        }
    }

    /// `r.w BETWEEN l.w AND l.w + 3` microseconds, over the columns of both sides.
    fn within_three() -> Arc<dyn PhysicalExpr> {
        let column = |index: usize| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new("w", index)) };
        let span = ScalarValue::IntervalMonthDayNano(Some(IntervalMonthDayNano::new(0, 0, 3_000)));
        let end = Arc::new(BinaryExpr::new(column(0), Op::Plus, Arc::new(Literal::new(span))));
        let from = Arc::new(BinaryExpr::new(column(2), Op::GtEq, column(0)));
        let to = Arc::new(BinaryExpr::new(column(2), Op::LtEq, end));
        Arc::new(BinaryExpr::new(from, Op::And, to))
    }

    /// A join within a span gives what the rows that were not late give together, and at the end keeps none of them.
    #[test]
    fn a_join_forgets_what_finds_no_partner_any_more() {
        for (seed, kind) in (0..40).flat_map(|seed| [(seed, JoinKind::Inner), (seed, JoinKind::Left)]) {
            let spec = JoinSpec {
                kind,
                left_keys: vec![1],
                right_keys: vec![1],
                nulls_equal: false,
                condition: Some(within_three()),
            };
            let input = rows_schema();
            let schema = spec.pair_schema(&input, &input);
            let join = || {
                let side = |keep| Closing { keep, ..closing(false) };
                Join::new(OperatorId::of("v", "root"), [&input, &input], Arc::clone(&schema), &spec, true)
                    .expect("takes the types")
                    .closing(&[side(3), side(0)])
            };
            let (mut operator, mut store) = (join(), MemoryBackend::default());
            let mut random = StdRng::seed_from_u64(seed);
            let mut used: [Vec<(i64, i64)>; 2] = Default::default();
            let (mut before, mut now) = ([Watermark::NONE; 2], [0_i64; 2]);
            let (mut out, mut most) = (Vec::new(), 0);
            for time in 0..60 {
                let mut late = 0;
                let mut context = Context::new(&mut store, Instant::now());
                for side in 0..2 {
                    let rows: Vec<Timed> = (0..random.random_range(0..4))
                        .map(|_| ((Some(now[side] + random.random_range(-2..5)), random.random_range(0..3)), 1))
                        .collect();
                    for ((w, x), _) in &rows {
                        let w = w.expect("a time");
                        if before[side].is_past(w) {
                            late += 1;
                        } else {
                            used[side].push((w, *x));
                        }
                    }
                    timed(&rows).into_iter().for_each(|chunk| operator.push(side, chunk).expect("takes the type"));
                    now[side] += random.random_range(0..3);
                }
                let known = if time == 59 { [Watermark::END; 2] } else { now.map(Watermark::from_micros) };
                context = context.with_event_time(before, known);
                while operator.close(Time::from_millis(time), &mut out, &mut context).expect("closes") == Step::Again {}
                assert_eq!(context.late.iter().map(|(_, late)| late.rows()).sum::<usize>(), late, "seed {seed}");
                before = known;
                most = most.max(operator.kept_rows());
                if time % 7 == 0 {
                    barrier(&mut operator, &mut store);
                    operator = join();
                    super::open(&mut operator, &mut store);
                }
            }
            let mut expected: BTreeMap<(i64, i64, Option<i64>), i64> = BTreeMap::new();
            for (w, x) in &used[0] {
                let partners = used[1].iter().filter(|(other, y)| y == x && (*w..=w + 3).contains(other));
                let partners: Vec<Option<i64>> = partners.map(|(other, _)| Some(*other)).collect();
                let alone = partners.is_empty() && kind == JoinKind::Left;
                for partner in partners.into_iter().chain(alone.then_some(None)) {
                    *expected.entry((*w, *x, partner)).or_insert(0) += 1;
                }
            }
            let mut got: BTreeMap<(i64, i64, Option<i64>), i64> = BTreeMap::new();
            for chunk in &out {
                let time = |column: usize, row: usize| {
                    let times = crate::exec::event_time::values(chunk.column(column)).expect("times");
                    arrow::array::Array::is_valid(times, row).then(|| times.value(row))
                };
                let numbers = arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(chunk.column(1));
                for row in 0..chunk.rows() {
                    let key = (time(0, row).expect("a left row"), numbers.value(row), time(2, row));
                    *got.entry(key).or_insert(0) += chunk.diff(row);
                }
            }
            got.retain(|_, diff| *diff != 0);
            assert_eq!(got, expected, "seed {seed}, {kind:?}");
            assert_eq!(operator.kept_rows(), 0, "seed {seed}");
            assert!(most < 60, "kept {most} rows of {}", used[0].len() + used[1].len());
        }
    }

    /// While a window is open its row follows the changes; when it is over the row stays and its state goes.
    #[test]
    fn an_updating_group_stays_when_it_is_forgotten() {
        let mut store = MemoryBackend::default();
        let mut aggregate = counts(false);
        let at = Watermark::from_micros;
        let (out, _) = step(&mut aggregate, &mut store, &[((Some(5), 2), 1)], (Watermark::NONE, at(4)));
        assert_eq!(out.values().copied().collect::<Vec<_>>(), [1]);
        let (out, late) = step(&mut aggregate, &mut store, &[((Some(5), 3), 1)], (at(4), at(5)));
        assert_eq!(out.values().copied().collect::<Vec<_>>(), [-1, 1]);
        assert!(late.is_empty());
        assert_eq!(aggregate.groups(), 0);
        let (out, late) = step(&mut aggregate, &mut store, &[((Some(5), 4), 1), ((Some(6), 1), 1)], (at(5), at(5)));
        assert_eq!((out.len(), late.len()), (1, 1));
        barrier(&mut aggregate, &mut store);
        let mut again = counts(false);
        super::open(&mut again, &mut store);
        assert_eq!(again.groups(), 1);
    }
}
