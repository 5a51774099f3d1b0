//! `MATCH_RECOGNIZE`, which a plan has as a window function of its own.

use std::sync::Arc;

use arrow::compute::SortOptions;
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Expr, Window, WindowFunctionDefinition};

use super::{Lowered, Lowering, column_of, nullable_schema};
use crate::exec::plan::{MatchSpec, OperatorSpec, Pattern, PatternFunction, SortKey};
use crate::types::{Error, Result};

/// The pattern that a window function looks for.
pub(super) fn pattern(call: &WindowFunction) -> Option<Arc<Pattern>> {
    let WindowFunctionDefinition::WindowUDF(function) = &call.fun else { return None };
    function.inner().downcast_ref::<PatternFunction>().map(|function| Arc::clone(function.pattern()))
}

impl Lowering<'_> {
    pub(super) fn matches(
        &mut self,
        window: &Window,
        call: &WindowFunction,
        pattern: Arc<Pattern>,
        path: &str,
    ) -> Result<Lowered> {
        let input = window.input.schema();
        let column = |expression: &Expr| {
            column_of(expression, input).ok_or_else(|| Error::internal("a pattern over something else than columns"))
        };
        let read = call.params.args.iter().map(column).collect::<Result<Vec<usize>>>()?;
        if !read.iter().copied().eq(0..input.fields().len()) {
            return Err(Error::internal("a pattern over other columns than those of its input"));
        }
        let keys = call.params.partition_by.iter().map(column).collect::<Result<_>>()?;
        // Those behind break ties, which the order of all columns does here.
        let order = call.params.order_by.iter().take(pattern.ordered_by).map(|sort| {
            let options = SortOptions { descending: !sort.asc, nulls_first: sort.nulls_first };
            Ok(SortKey { column: column(&sort.expr)?, options })
        });
        let order = order.collect::<Result<_>>()?;
        let mut lowered = self.node(&window.input, &format!("{path}/input"))?;
        if !lowered.bounded && pattern.within.is_none() {
            self.notices.push(format!(
                "a match over a source that never ends can stay open for ever, and keeps its rows, which each new one of the \
                 partition looks through again (operator {path}); WITHIN INTERVAL '1 hour' behind the pattern would bound them"
            ));
        }
        let spec = MatchSpec { keys, order, pattern };
        let schema = nullable_schema(&window.schema);
        lowered.index = self.push(path, OperatorSpec::Match(spec), vec![lowered.index], schema);
        lowered.key = None;
        Ok(lowered)
    }
}
