//! Filters that name rows by key: `k = 1`, `k IN (1, 2)`, and combinations over all key columns; or by an index's columns.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{Field, Schema};
use datafusion::common::ScalarValue;
use datafusion::error::DataFusionError;
use datafusion::logical_expr::{BinaryExpr, Expr, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions;
use datafusion::physical_expr::utils::split_conjunction;

use crate::exec::arrangement::Narrow;
use crate::sql::to_datafusion;
use crate::state::RowCodec;

/// The most keys that are looked up one by one; beyond, a scan is cheaper.
const KEYS_MAX: usize = 1_024;

/// The keys that rows must have to pass all filters, when the filters say so: the relation's key
/// columns, in key order. The filters still decide; this only narrows what is looked at.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn keys(schema: &Schema, key: &[usize], filters: &[Expr]) -> Result<Option<RecordBatch>, DataFusionError> {
    if key.is_empty() {
        return Ok(None);
    }
    let conjuncts: Vec<&Expr> = filters.iter().flat_map(datafusion::logical_expr::utils::split_conjunction).collect();
    let mut fields: Vec<Field> = Vec::with_capacity(key.len());
    let mut values: Vec<Vec<ScalarValue>> = Vec::with_capacity(key.len());
    for index in key {
        let field = schema.field(*index);
        let Some(of_column) = conjuncts.iter().find_map(|filter| candidates(filter, field)) else {
            return Ok(None);
        };
        fields.push(field.clone());
        values.push(distinct(of_column));
    }
    let total = values.iter().try_fold(1_usize, |total, of_column| total.checked_mul(of_column.len()));
    let Some(total) = total.filter(|total| *total <= KEYS_MAX) else {
        return Ok(None);
    };

    // The cross product: the last column changes fastest.
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(key.len());
    let mut repeat = total;
    for (field, of_column) in fields.iter().zip(&values) {
        if of_column.is_empty() {
            columns.push(arrow::array::new_empty_array(field.data_type()));
            continue;
        }
        repeat /= of_column.len();
        let each = repeat.max(1);
        let cells = (0..total).filter_map(|row| of_column.get((row / each) % of_column.len()).cloned());
        let column = if total == 0 {
            arrow::array::new_empty_array(field.data_type())
        } else {
            ScalarValue::iter_to_array(cells)?
        };
        columns.push(column);
    }
    if total == 0 {
        columns = fields.iter().map(|field| arrow::array::new_empty_array(field.data_type())).collect();
    }
    Ok(Some(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?))
}

/// The values of an index's columns that rows must have to pass all filters, when the filters say so of one of the indexes:
/// that with the most columns.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn narrow(
    schema: &Schema,
    indexes: &[Vec<usize>],
    filters: &[Expr],
) -> Result<Option<Arc<Narrow>>, DataFusionError> {
    let mut best: Option<(&Vec<usize>, RecordBatch)> = None;
    for columns in indexes {
        if best.as_ref().is_some_and(|(best, _)| best.len() >= columns.len()) {
            continue;
        }
        if let Some(values) = keys(schema, columns, filters)? {
            best = Some((columns, values));
        }
    }
    let Some((columns, values)) = best else { return Ok(None) };
    let types = columns.iter().map(|column| schema.field(*column).data_type());
    let codec = RowCodec::for_keys(types).map_err(to_datafusion)?;
    let encoded = codec.encode(values.columns(), values.num_rows()).map_err(to_datafusion)?;
    let mut values: Vec<Vec<u8>> = (0..encoded.len()).map(|row| encoded.row(row).to_vec()).collect();
    values.sort_unstable();
    values.dedup();
    Ok(Some(Arc::new(Narrow { columns: columns.clone(), values })))
}

/// What a predicate says of single columns: `a = 1`, as filters.
pub(crate) fn equalities(predicate: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Vec<Expr> {
    let equality = |part: &Arc<dyn PhysicalExpr>| {
        let binary = part.downcast_ref::<expressions::BinaryExpr>().filter(|binary| *binary.op() == Operator::Eq)?;
        let sides = [(binary.left(), binary.right()), (binary.right(), binary.left())];
        sides.into_iter().find_map(|(column, value)| {
            let column = column.downcast_ref::<expressions::Column>()?;
            let value = value.downcast_ref::<expressions::Literal>()?.value().clone();
            let field = schema.fields().get(column.index())?;
            let column = Expr::Column(datafusion::common::Column::new_unqualified(field.name()));
            Some(column.eq(Expr::Literal(value, None)))
        })
    };
    split_conjunction(predicate).into_iter().filter_map(equality).collect()
}

/// The only values that let a row pass `filter`, when it is of such a form. NULL never does.
fn candidates(filter: &Expr, field: &Field) -> Option<Vec<ScalarValue>> {
    match filter {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Eq, right }) => match (left.as_ref(), right.as_ref()) {
            (Expr::Column(column), Expr::Literal(value, _)) | (Expr::Literal(value, _), Expr::Column(column))
                if column.name == *field.name() =>
            {
                exact(value, field).map(|value| value.into_iter().collect())
            }
            _ => None,
        },
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::Or, right }) => {
            let mut values = candidates(left, field)?;
            values.extend(candidates(right, field)?);
            Some(values)
        }
        Expr::InList(list) if !list.negated => match list.expr.as_ref() {
            Expr::Column(column) if column.name == *field.name() => {
                let mut values = Vec::with_capacity(list.list.len());
                for item in &list.list {
                    let Expr::Literal(value, _) = item else {
                        return None;
                    };
                    values.extend(exact(value, field)?);
                }
                Some(values)
            }
            _ => None,
        },
        _ => None,
    }
}

/// The value when it has the column's own type; inside `None` for NULL.
fn exact(value: &ScalarValue, field: &Field) -> Option<Option<ScalarValue>> {
    if value.is_null() {
        return Some(None);
    }
    // Equal floats may have different bytes, and the filter's equality is not the key's.
    let usable = !field.data_type().is_floating() && value.data_type() == *field.data_type();
    usable.then(|| Some(value.clone()))
}

fn distinct(values: Vec<ScalarValue>) -> Vec<ScalarValue> {
    let mut seen = std::collections::HashSet::new();
    values.into_iter().filter(|value| seen.insert(value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Int32Type, Int64Type};
    use datafusion::logical_expr::{col, lit};

    fn schema() -> Schema {
        Schema::new(vec![
            Field::new("a", DataType::Int64, false),
            Field::new("b", DataType::Int32, false),
            Field::new("c", DataType::Utf8, true),
        ])
    }

    #[test]
    fn all_key_columns_make_the_cross_product() {
        let filters = [
            col("a").in_list(vec![lit(1_i64), lit(2_i64), lit(1_i64)], false),
            col("b").eq(lit(7_i32)).or(lit(8_i32).eq(col("b"))),
        ];
        let keys = keys(&schema(), &[0, 1], &filters).unwrap().unwrap();
        assert_eq!(keys.column(0).as_primitive::<Int64Type>().values(), &[1, 1, 2, 2]);
        assert_eq!(keys.column(1).as_primitive::<Int32Type>().values(), &[7, 8, 7, 8]);
    }

    #[test]
    fn what_does_not_name_the_key_is_a_scan() {
        let schema = schema();
        assert!(keys(&schema, &[0, 1], &[col("a").eq(lit(1_i64))]).unwrap().is_none());
        assert!(keys(&schema, &[0], &[col("a").gt(lit(1_i64))]).unwrap().is_none());
        assert!(keys(&schema, &[0], &[col("a").eq(lit(1_i64)).or(col("c").eq(lit("x")))]).unwrap().is_none());
        assert!(keys(&schema, &[0], &[col("a").in_list(vec![lit(1_i64)], true)]).unwrap().is_none());
        assert!(keys(&schema, &[0], &[col("a").eq(lit("1"))]).unwrap().is_none(), "another type");
    }

    #[test]
    fn null_names_no_row() {
        let none = keys(&schema(), &[0], &[col("a").eq(lit(ScalarValue::Int64(None)))]).unwrap().unwrap();
        assert_eq!(none.num_rows(), 0);
    }
}
