use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int64Type};

use super::*;

/// Applies rows of (slot, value, diff) to an accumulator with `slots` slots.
fn apply(accumulator: &mut dyn Accumulator, slots: usize, rows: &[(u32, i64)], values: ArrayRef) {
    accumulator.resize(slots);
    let index = KeyIndex::new(false);
    let (slot_column, diffs): (Vec<u32>, Vec<i64>) = rows.iter().copied().unzip();
    accumulator
        .update(&Changes { index: &index, slots: &slot_column, argument: Some(&values), diffs: &diffs })
        .expect("takes the type");
}

fn make(function: AggregateFunction, argument: &DataType, distinct: bool) -> Box<dyn Accumulator> {
    accumulator(&function, argument, distinct, "a", false).expect("takes the type")
}

#[test]
fn a_sum_of_bigint_is_wide_and_comes_back() {
    let mut sum = make(AggregateFunction::Sum, &DataType::Int64, false);
    apply(&mut *sum, 1, &[(0, 1), (0, 1)], Arc::new(Int64Array::from(vec![i64::MAX, 1])));
    let wide = sum.evaluate(&[0]).expect("fits");
    assert_eq!(wide.as_primitive::<Decimal128Type>().value(0), i128::from(i64::MAX) + 1);
    apply(&mut *sum, 1, &[(0, -1)], Arc::new(Int64Array::from(vec![1])));
    assert_eq!(sum.evaluate(&[0]).expect("fits").as_primitive::<Decimal128Type>().value(0), i128::from(i64::MAX));
}

#[test]
fn a_sum_of_integer_out_of_range_is_an_error_until_it_fits() {
    let mut sum = make(AggregateFunction::Sum, &DataType::Int32, false);
    apply(&mut *sum, 1, &[(0, i64::MAX / 2)], Arc::new(Int32Array::from(vec![4])));
    assert_eq!(sum.evaluate(&[0]).expect_err("too great").code(), SqlState::NumericOutOfRange);
    apply(&mut *sum, 1, &[(0, 3 - i64::MAX / 2)], Arc::new(Int32Array::from(vec![4])));
    assert_eq!(sum.evaluate(&[0]).expect("fits").as_primitive::<Int64Type>().value(0), 12);
}

#[test]
fn an_average_rounds_half_away_from_zero_at_sixteen_digits() {
    let mut mean = make(AggregateFunction::Avg, &DataType::Int32, false);
    apply(
        &mut *mean,
        2,
        &[(0, 1), (0, 1), (0, 1), (1, 3)],
        Arc::new(Int32Array::from(vec![Some(-1), Some(0), Some(-1), None])),
    );
    let means = mean.evaluate(&[0, 1]).expect("fits");
    // -2 / 3 = -0.66666666666666667
    assert_eq!(means.as_primitive::<Decimal128Type>().value(0), -6_666_666_666_666_667);
    assert!(means.is_null(1));
}

#[test]
fn a_numeric_sum_that_does_not_fit_is_an_error() {
    let mut sum = make(AggregateFunction::Sum, &DataType::Decimal128(38, 0), false);
    let most = 10_i128.pow(38) - 1;
    let values =
        || -> ArrayRef { Arc::new(Decimal128Array::from(vec![most]).with_precision_and_scale(38, 0).expect("fits")) };
    apply(&mut *sum, 1, &[(0, 2)], values());
    assert_eq!(sum.evaluate(&[0]).expect_err("too great").code(), SqlState::NumericOutOfRange);
    apply(&mut *sum, 1, &[(0, -1)], values());
    assert_eq!(sum.evaluate(&[0]).expect("fits").as_primitive::<Decimal128Type>().value(0), most);
}

#[test]
fn doubles_lose_nothing_when_great_ones_come_and_go() {
    let mut sum = make(AggregateFunction::Sum, &DataType::Float64, false);
    let values: ArrayRef = Arc::new(Float64Array::from(vec![0.1, 1e300, f64::INFINITY, f64::NAN, -1e300]));
    apply(&mut *sum, 1, &[(0, 1), (0, 1), (0, 1), (0, 1), (0, 0)], Arc::clone(&values));
    assert!(sum.evaluate(&[0]).expect("fits").as_primitive::<Float64Type>().value(0).is_nan());
    apply(&mut *sum, 1, &[(0, 0), (0, -1), (0, -1), (0, -1), (0, 0)], values);
    let left = sum.evaluate(&[0]).expect("fits").as_primitive::<Float64Type>().value(0);
    assert!((left - 0.1).abs() < 1e-9 * 0.1, "{left}");
}

/// A time's changes come in any order: a row may be taken back before it comes, and the count pass zero.
#[test]
fn a_count_that_passes_zero_within_a_time_loses_nothing() {
    for (function, expected) in [(AggregateFunction::Sum, 14.0), (AggregateFunction::VarPop, 4.0)] {
        let mut accumulator = make(function, &DataType::Float64, false);
        let values: ArrayRef = Arc::new(Float64Array::from(vec![5.0, 9.0, 9.0, 9.0]));
        apply(&mut *accumulator, 1, &[(0, 1), (0, 0), (0, 0), (0, 0)], Arc::clone(&values));
        assert!(!accumulator.evaluate(&[0]).expect("fits").is_null(0));
        apply(&mut *accumulator, 1, &[(0, 0), (0, -1), (0, 1), (0, 1)], values);
        let value = accumulator.evaluate(&[0]).expect("fits").as_primitive::<Float64Type>().value(0);
        assert_eq!(value, expected);
    }
}

/// What was as great as doubles get leaves nothing behind when all is taken back.
#[test]
fn an_emptied_group_of_doubles_begins_anew() {
    let mut sum = make(AggregateFunction::Sum, &DataType::Float64, false);
    let values: ArrayRef = Arc::new(Float64Array::from(vec![1e300, 0.1, 0.7]));
    apply(&mut *sum, 1, &[(0, 1), (0, 1), (0, 0)], Arc::clone(&values));
    assert!(!sum.evaluate(&[0]).expect("fits").is_null(0));
    apply(&mut *sum, 1, &[(0, -1), (0, -1), (0, 0)], Arc::clone(&values));
    assert!(sum.evaluate(&[0]).expect("fits").is_null(0));
    apply(&mut *sum, 1, &[(0, 0), (0, 0), (0, 1)], values);
    assert_eq!(sum.evaluate(&[0]).expect("fits").as_primitive::<Float64Type>().value(0), 0.7);
}

#[test]
fn variance_keeps_its_digits_far_from_zero() {
    let mut variance = make(AggregateFunction::VarSamp, &DataType::Float64, false);
    let values: ArrayRef = Arc::new(Float64Array::from(vec![1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0, 5.0]));
    apply(&mut *variance, 1, &[(0, 1), (0, 1), (0, 1), (0, 1), (0, 1)], Arc::clone(&values));
    apply(&mut *variance, 1, &[(0, 0), (0, 0), (0, 0), (0, 0), (0, -1)], values);
    let value = variance.evaluate(&[0]).expect("fits").as_primitive::<Float64Type>().value(0);
    assert!((value - 30.0).abs() < 1e-9, "{value}");
}

#[test]
fn extremes_come_back_when_the_greatest_goes() {
    let mut max = make(AggregateFunction::Max, &DataType::Int64, false);
    apply(
        &mut *max,
        2,
        &[(0, 1), (0, 1), (0, 2), (1, 1)],
        Arc::new(Int64Array::from(vec![Some(4), None, Some(9), None])),
    );
    let value = |max: &mut dyn Accumulator| {
        let column = max.evaluate(&[0, 1]).expect("decodes");
        assert!(column.is_null(1));
        (!column.is_null(0)).then(|| column.as_primitive::<Int64Type>().value(0))
    };
    assert_eq!(value(&mut *max), Some(9));
    apply(&mut *max, 2, &[(0, -1)], Arc::new(Int64Array::from(vec![9])));
    assert_eq!(value(&mut *max), Some(9));
    apply(&mut *max, 2, &[(0, -1)], Arc::new(Int64Array::from(vec![9])));
    assert_eq!(value(&mut *max), Some(4));
    apply(&mut *max, 2, &[(0, -1)], Arc::new(Int64Array::from(vec![4])));
    assert_eq!(value(&mut *max), None);
}

#[test]
fn distinct_counts_each_argument_once_while_it_is_there() {
    let mut count = make(AggregateFunction::Count, &DataType::Utf8, true);
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), Some("a"), Some("b"), None]));
    apply(&mut *count, 1, &[(0, 1), (0, 1), (0, 1), (0, 1)], Arc::clone(&values));
    assert_eq!(count.evaluate(&[0]).expect("counts").as_primitive::<Int64Type>().value(0), 2);
    apply(&mut *count, 1, &[(0, -1), (0, 0), (0, -1), (0, 0)], values);
    assert_eq!(count.evaluate(&[0]).expect("counts").as_primitive::<Int64Type>().value(0), 1);
}

#[test]
fn texts_and_lists_are_in_order_of_value() {
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some(""), Some("a")]));
    let rows = [(0, 1), (0, 1), (0, 2), (0, 1)];
    let mut text = make(AggregateFunction::StringAgg { delimiter: "-".to_owned() }, &DataType::Utf8, false);
    apply(&mut *text, 2, &rows, Arc::clone(&values));
    let joined = text.evaluate(&[0, 1]).expect("decodes");
    assert_eq!(joined.as_string::<i32>().value(0), "--a-b");
    assert!(joined.is_null(1));
    let mut list = make(AggregateFunction::ArrayAgg, &DataType::Utf8, true);
    apply(&mut *list, 2, &rows, values);
    let lists = list.evaluate(&[0, 1]).expect("decodes");
    let items = lists.as_list::<i32>().value(0);
    let items: Vec<Option<&str>> = items.as_string::<i32>().iter().collect();
    assert_eq!(items, vec![Some(""), Some("a"), Some("b"), None]);
    assert!(lists.is_null(1));
}

#[test]
fn exported_parts_add_up() {
    for (function, distinct) in [
        (AggregateFunction::Count, false),
        (AggregateFunction::Count, true),
        (AggregateFunction::Sum, false),
        (AggregateFunction::Sum, true),
        (AggregateFunction::Avg, false),
        (AggregateFunction::Min, false),
        (AggregateFunction::Max, true),
        (AggregateFunction::StddevPop, false),
        (AggregateFunction::ArrayAgg, false),
        (AggregateFunction::ArrayAgg, true),
    ] {
        let values: ArrayRef = Arc::new(Int64Array::from(vec![3, 4, 4, 9]));
        let mut parts = make(function.clone(), &DataType::Int64, distinct);
        apply(&mut *parts, 3, &[(0, 1), (0, 1), (1, 1), (1, 1)], Arc::clone(&values));
        let index = KeyIndex::new(false);
        for slot in [0, 1] {
            let mut bytes = Vec::new();
            parts.export(slot, &mut bytes);
            let mut input = &bytes[..];
            parts.import(&index, 2, &mut input).expect("whole");
            assert!(input.is_empty());
        }
        let mut whole = make(function.clone(), &DataType::Int64, distinct);
        apply(&mut *whole, 1, &[(0, 1), (0, 1), (0, 1), (0, 1)], values);
        assert_eq!(&parts.evaluate(&[2]).expect("adds up"), &whole.evaluate(&[0]).expect("adds up"), "{function}");
    }
}
