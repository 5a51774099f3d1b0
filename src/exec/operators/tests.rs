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
use crate::exec::plan::{AggregateCall, AggregateFunction, JoinKind, JoinSpec};
use crate::state::MemoryBackend;
use crate::types::OperatorId;

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

fn print(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("∅");
    let columns: Vec<ArrayFormatter<'_>> =
        batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).expect("printable")).collect();
    let line = |row| columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join(" ");
    (0..batch.num_rows()).map(line).collect()
}

/// The sum of changes per printed row.
fn consolidated(chunks: &[Chunk]) -> BTreeMap<String, i64> {
    let mut rows = BTreeMap::new();
    for chunk in chunks {
        for (row, line) in print(chunk.batch()).into_iter().enumerate() {
            *rows.entry(line).or_insert(0) += chunk.diff(row);
        }
    }
    rows.retain(|_, diff| *diff != 0);
    rows
}

fn soon() -> Instant {
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
fn history(seed: u64) -> Vec<Vec<(InputRow, i64)>> {
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
