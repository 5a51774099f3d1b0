//! `value op ANY (array)` and `value op ALL (array)`.
//!
//! The planner has them for few types and none for a text or a parameter in the place of the array, which takes its
//! type from the value. So they are functions here: over a known array `= ANY` becomes `IN`, which the engine knows how
//! to look up, and what is left is compared element by element. NULLs are PostgreSQL's: a NULL among the elements
//! leaves the answer open unless another element decides it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray as _, BooleanArray, UInt32Array};
use arrow::compute::kernels::cmp;
use arrow::compute::take;
use arrow::datatypes::{DataType, Field};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::expr::{InList, ScalarFunction};
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use sqlparser::ast::{self, BinaryOperator};

use super::arithmetic::{is_number, undefined_operator};
use super::casts::cast;
use super::catalog_queries::call;
use super::errors::to_datafusion;
use super::matched::category;
use super::meaning::{expression_with_meaning, integer_literal};
use super::types::{NUMERIC_DEFAULT, sql_name};
use crate::types::{Error, SqlState};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Comparison {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
}

/// The functions: name, comparison, true for ALL.
static FUNCTIONS: [(&str, Comparison, bool); 12] = [
    ("any_equal", Comparison::Eq, false),
    ("any_not_equal", Comparison::NotEq, false),
    ("any_less", Comparison::Lt, false),
    ("any_less_or_equal", Comparison::LtEq, false),
    ("any_greater", Comparison::Gt, false),
    ("any_greater_or_equal", Comparison::GtEq, false),
    ("all_equal", Comparison::Eq, true),
    ("all_not_equal", Comparison::NotEq, true),
    ("all_less", Comparison::Lt, true),
    ("all_less_or_equal", Comparison::LtEq, true),
    ("all_greater", Comparison::Gt, true),
    ("all_greater_or_equal", Comparison::GtEq, true),
];

impl Comparison {
    fn of(operator: &BinaryOperator) -> Option<Comparison> {
        Some(match operator {
            BinaryOperator::Eq => Comparison::Eq,
            BinaryOperator::NotEq => Comparison::NotEq,
            BinaryOperator::Lt => Comparison::Lt,
            BinaryOperator::LtEq => Comparison::LtEq,
            BinaryOperator::Gt => Comparison::Gt,
            BinaryOperator::GtEq => Comparison::GtEq,
            _ => return None,
        })
    }

    fn symbol(self) -> &'static str {
        match self {
            Comparison::Eq => "=",
            Comparison::NotEq => "<>",
            Comparison::Lt => "<",
            Comparison::LtEq => "<=",
            Comparison::Gt => ">",
            Comparison::GtEq => ">=",
        }
    }

    fn compute(self, left: &ArrayRef, right: &ArrayRef) -> DataFusionResult<BooleanArray> {
        Ok(match self {
            Comparison::Eq => cmp::eq(left, right),
            Comparison::NotEq => cmp::neq(left, right),
            Comparison::Lt => cmp::lt(left, right),
            Comparison::LtEq => cmp::lt_eq(left, right),
            Comparison::Gt => cmp::gt(left, right),
            Comparison::GtEq => cmp::gt_eq(left, right),
        }?)
    }
}

/// The call that stands for an expression of this kind; `None` for others, and for those over subqueries.
pub(crate) fn rewritten(expression: &ast::Expr) -> Option<ast::Expr> {
    let (left, operator, right, all) = match expression {
        ast::Expr::AnyOp { left, compare_op, right, .. } => (left, compare_op, right, false),
        ast::Expr::AllOp { left, compare_op, right } => (left, compare_op, right, true),
        _ => return None,
    };
    let mut bare = right.as_ref();
    while let ast::Expr::Nested(inner) = bare {
        bare = inner;
    }
    if matches!(bare, ast::Expr::Subquery(_)) {
        return None;
    }
    let comparison = Comparison::of(operator)?;
    let (name, ..) = FUNCTIONS.iter().find(|(_, of, every)| (*of, *every) == (comparison, all))?;
    call(name, vec![left.as_ref().clone(), bare.clone()])
}

/// The functions, to be registered.
pub(crate) fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    FUNCTIONS.iter().map(|(name, comparison, all)| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(Quantified { name, comparison: *comparison, all: *all, signature }))
    })
}

fn list_of(element: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(element, true)))
}

/// The type that an array without one has beside a value of this type.
fn array_type(value: &DataType) -> DataType {
    list_of(match value {
        // Not the column's own, which would round the elements.
        DataType::Decimal128(..) => DataType::Decimal128(NUMERIC_DEFAULT.0, NUMERIC_DEFAULT.1),
        DataType::Null => DataType::Utf8,
        other => other.clone(),
    })
}

fn is_unknown(expression: &Expr) -> bool {
    matches!(expression, Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Null, _))
}

/// A call with its meaning; other calls stay as they are.
pub(crate) fn with_meaning(mut function: ScalarFunction, schema: &DFSchema) -> DataFusionResult<Expr> {
    let Some((_, comparison, all)) = FUNCTIONS.iter().find(|(name, ..)| *name == function.func.name()) else {
        return Ok(Expr::ScalarFunction(function));
    };
    let Ok([mut left, mut right]) = <[Expr; 2]>::try_from(std::mem::take(&mut function.args)) else {
        return Err(to_datafusion(Error::internal("ANY and ALL have two operands")));
    };
    let mut value = left.get_type(schema)?;
    let mut array = right.get_type(schema)?;
    if is_unknown(&right) {
        let to = array_type(&value);
        right = cast(right, &array, &to);
        array = to;
    }
    let DataType::List(element) = &array else {
        let error = Error::new(SqlState::WrongObjectType, "op ANY/ALL (array) requires array on right side");
        return Err(to_datafusion(error.hint("Write = ANY (ARRAY[…]), = ANY ('{…}') or IN (…).")));
    };
    let element = element.data_type().clone();
    if is_unknown(&left) {
        left = cast(left, &value, &element);
        value = element.clone();
    }
    if category(&value) != category(&element) {
        let names = [sql_name(&value), sql_name(&element)];
        return Err(to_datafusion(undefined_operator(comparison.symbol(), &names)));
    }
    if matches!((comparison, all), (Comparison::Eq, false) | (Comparison::NotEq, true))
        && let Some(list) = elements(&right)?
    {
        if list.is_empty() {
            return Ok(Expr::Literal(ScalarValue::Boolean(Some(*all)), None));
        }
        return expression_with_meaning(Expr::InList(InList::new(Box::new(left), list, *all)), schema);
    }
    let float = |data_type: &DataType| matches!(data_type, DataType::Float32 | DataType::Float64);
    let common = if value == element {
        value.clone()
    } else if is_number(&value) && (float(&value) || float(&element)) {
        DataType::Float64
    } else {
        comparison_coercion(&value, &element).unwrap_or_else(|| value.clone())
    };
    if element != common {
        right = datafusion::logical_expr::cast(right, list_of(common.clone()));
    }
    function.args = vec![cast(left, &value, &common), right];
    Ok(Expr::ScalarFunction(function))
}

/// The elements of an array whose length is known.
fn elements(array: &Expr) -> DataFusionResult<Option<Vec<Expr>>> {
    match array {
        Expr::Literal(ScalarValue::List(list), _) if !list.is_null(0) => {
            let values = list.value(0);
            let element =
                |row| -> DataFusionResult<Expr> { Ok(Expr::Literal(ScalarValue::try_from_array(&values, row)?, None)) };
            (0..values.len()).map(element).collect::<DataFusionResult<_>>().map(Some)
        }
        Expr::ScalarFunction(call) if call.func.name() == "make_array" => Ok(Some(call.args.clone())),
        _ => Ok(None),
    }
}

/// Fills in the types of parameters that stand for one side, from the other.
pub(crate) fn infer(plan: &LogicalPlan, types: &mut [Option<DataType>]) -> DataFusionResult<()> {
    plan.apply_with_subqueries(|node| {
        let schema = merge_schema(&node.inputs());
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                if let Expr::ScalarFunction(call) = part
                    && FUNCTIONS.iter().any(|(name, ..)| *name == call.func.name())
                    && let [left, right] = call.args.as_slice()
                {
                    let found = match (left, right) {
                        (left, Expr::Placeholder(parameter)) => {
                            let value = match left {
                                Expr::Literal(value, _) => integer_literal(value).map(|value| value.data_type()),
                                _ => None,
                            };
                            let value = value.or_else(|| left.get_type(&schema).ok());
                            value.map(|value| (parameter, array_type(&value)))
                        }
                        (Expr::Placeholder(parameter), right) => match right.get_type(&schema) {
                            Ok(DataType::List(element)) => Some((parameter, element.data_type().clone())),
                            _ => None,
                        },
                        _ => None,
                    };
                    if let Some((parameter, data_type)) = found
                        && let Some(number) = parameter.id.strip_prefix('$').and_then(|id| id.parse::<usize>().ok())
                        && let Some(known) = types.get_mut(number.wrapping_sub(1))
                    {
                        known.get_or_insert(data_type);
                    }
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })
    .map(|_| ())
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Quantified {
    name: &'static str,
    comparison: Comparison,
    all: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Quantified {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    // They have been brought together when the plan got its meaning.
    fn coerce_types(&self, types: &[DataType]) -> DataFusionResult<Vec<DataType>> {
        Ok(types.to_vec())
    }

    fn return_type(&self, _types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let [left, right] = args.args.as_slice() else {
            return Err(to_datafusion(Error::internal("ANY and ALL have two operands")));
        };
        let constant = matches!((left, right), (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let answers = self.answers(&left.to_array(rows)?, &right.to_array(rows)?)?;
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&answers, 0)?));
        }
        Ok(ColumnarValue::Array(Arc::new(answers)))
    }
}

impl Quantified {
    fn answers(&self, left: &ArrayRef, right: &ArrayRef) -> DataFusionResult<BooleanArray> {
        let Some(lists) = right.as_list_opt::<i32>() else {
            return Ok(BooleanArray::new_null(left.len()));
        };
        // All elements of all rows are compared at once.
        let mut row_of = Vec::new();
        let mut ends = Vec::with_capacity(lists.len());
        let mut chosen = Vec::new();
        for (row, bounds) in lists.offsets().windows(2).enumerate() {
            if let [from, to] = bounds
                && !lists.is_null(row)
            {
                row_of.extend((*from..*to).map(|_| row as u32));
                chosen.extend((*from..*to).map(|element| element as u32));
            }
            ends.push(chosen.len());
        }
        let values = take(left, &UInt32Array::from(row_of), None)?;
        let elements = take(lists.values(), &UInt32Array::from(chosen), None)?;
        let compared = self.comparison.compute(&values, &elements)?;
        let mut from = 0;
        let answers = ends.iter().enumerate().map(|(row, end)| {
            let mut parts = from..*end;
            from = *end;
            if lists.is_null(row) {
                return None;
            }
            // One element decides; a NULL leaves it open.
            if parts.clone().any(|at| compared.is_valid(at) && compared.value(at) != self.all) {
                return Some(!self.all);
            }
            if parts.any(|at| compared.is_null(at)) { None } else { Some(self.all) }
        });
        Ok(answers.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int32Array, ListArray};
    use arrow::datatypes::Int32Type;

    #[test]
    fn a_null_leaves_open_what_no_element_decides() {
        let rows = [Some(vec![Some(1), Some(2)]), Some(vec![Some(2), None]), Some(vec![]), None];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows));
        let left: ArrayRef = Arc::new(Int32Array::from(vec![1; 4]));
        let answers = |comparison, all| {
            let signature = Signature::user_defined(Volatility::Immutable);
            let function = Quantified { name: "", comparison, all, signature };
            function.answers(&left, &lists).expect("answers").iter().collect::<Vec<_>>()
        };
        assert_eq!(answers(Comparison::Eq, false), [Some(true), None, Some(false), None]);
        assert_eq!(answers(Comparison::NotEq, true), [Some(false), None, Some(true), None]);
        assert_eq!(answers(Comparison::Gt, true), [Some(false), Some(false), Some(true), None]);
        assert_eq!(answers(Comparison::LtEq, true), [Some(true), None, Some(true), None]);
    }
}
