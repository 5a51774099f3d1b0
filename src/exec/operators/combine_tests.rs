//! An aggregate over sums of groups against one over their rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::tests::{InputRow, barrier, chunk, consolidated, input, open};
use super::*;
use crate::exec::plan::{AggregateCall, AggregateFunction};
use crate::state::MemoryBackend;
use crate::types::OperatorId;

fn calls() -> Vec<AggregateCall> {
    let all = [
        (AggregateFunction::Count, None, None),
        (AggregateFunction::Count, Some(1), Some(3)),
        (AggregateFunction::Sum, Some(1), None),
        (AggregateFunction::Avg, Some(1), Some(3)),
        (AggregateFunction::Sum, Some(2), None),
        (AggregateFunction::BoolOr, Some(3), None),
        (AggregateFunction::StddevPop, Some(1), None),
    ];
    let call = |(function, argument, filter): (AggregateFunction, Option<usize>, Option<usize>)| {
        let data_type = argument.map_or(DataType::Null, |a| input().field(a).data_type().clone());
        let output = Arc::new(Field::new(function.name(), function.result_type(&data_type).expect("takes it"), true));
        AggregateCall { function, argument, distinct: false, filter, output }
    };
    all.into_iter().map(call).collect()
}

fn aggregate(keys: &[usize]) -> Aggregate {
    let fields = keys.iter().map(|key| input().field(*key).clone());
    let fields: Vec<Field> = fields.chain(calls().iter().map(|call| call.output.as_ref().clone())).collect();
    let (operator, schema) = (OperatorId::of("public.v", "root"), Arc::new(Schema::new(fields)));
    Aggregate::new(operator, &input(), schema, keys.to_vec(), calls(), true, true).expect("takes the types")
}

fn row(random: &mut StdRng) -> InputRow {
    (
        random.random_bool(0.9).then(|| random.random_range(0..3)),
        random.random_bool(0.9).then(|| random.random_range(-3..6)),
        random.random_bool(0.9).then(|| random.random_range(-9..9)),
        random.random_bool(0.9).then(|| random.random_bool(0.5)),
    )
}

#[test]
fn sums_of_groups_are_the_rows_of_them() {
    for (seed, keys) in (0..20).flat_map(|seed| [(seed, vec![0]), (seed, vec![])]) {
        let mut random = StdRng::seed_from_u64(seed);
        let mut stores = [MemoryBackend::default(), MemoryBackend::default()];
        let mut operators = [aggregate(&keys), aggregate(&keys)];
        operators.iter_mut().zip(&mut stores).for_each(|(operator, store)| open(operator, store));
        let mut combine = Combine::new(&input(), &keys, &calls()).expect("takes the types").expect("is worth it");
        let mut present: Vec<InputRow> = Vec::new();
        for time in 1..12 {
            let mut changes: Vec<(InputRow, i64)> =
                (0..random.random_range(0..200)).map(|_| (row(&mut random), 1)).collect();
            let gone = if time == 11 { present.len() } else { random.random_range(0..=present.len()) };
            changes.extend(present.drain(..gone).map(|row| (row, -1)));
            present.extend(changes.iter().filter(|(_, diff)| *diff > 0).map(|(row, _)| *row));
            // A retraction may come before its row, and on another worker.
            changes.reverse();
            let (mut sent, mut rows) = (0, 0);
            for part in changes.chunks(150).flat_map(chunk) {
                rows += part.rows();
                operators[0].push(0, part.clone()).expect("takes the type");
                let sums = combine.apply(part).expect("takes the type");
                sent += sums.rows();
                operators[1].push(0, sums).expect("takes the type");
            }
            assert!(rows < 150 || sent < rows, "{sent} of {rows} rows were sent");
            let [expected, found]: [BTreeMap<String, i64>; 2] = std::array::from_fn(|at| {
                let mut out = Vec::new();
                let mut context = Context::new(&mut stores[at], std::time::Instant::now());
                let time = Time::from_millis(time);
                while operators[at].close(time, &mut out, &mut context).expect("closes") == Step::Again {}
                barrier(&mut operators[at], &mut stores[at]);
                consolidated(&out)
            });
            assert_eq!(found, expected, "seed {seed}, at {time}, keys {keys:?}");
        }
    }
}

#[test]
fn rows_of_many_groups_and_what_keeps_its_arguments_pass_as_they_are() {
    let rows: Vec<(InputRow, i64)> = (0..200).map(|x| ((None, Some(x), None, None), 1)).collect();
    let mut combine = Combine::new(&input(), &[1], &calls()).expect("takes the types").expect("is worth it");
    let (width, part) = (input().fields().len(), chunk(&rows).remove(0));
    for _ in 0..3 {
        let passed = combine.apply(part.clone()).expect("takes the type");
        assert_eq!((passed.rows(), passed.batch().num_columns()), (200, width));
    }
    let mut most = calls();
    most[2].function = AggregateFunction::Max;
    assert!(Combine::new(&input(), &[0], &most).expect("takes the types").is_none());
    most[2].function = AggregateFunction::Sum;
    most[2].distinct = true;
    assert!(Combine::new(&input(), &[0], &most).expect("takes the types").is_none());
}
