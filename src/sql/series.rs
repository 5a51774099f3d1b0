//! `generate_series` and `unnest` in FROM have one column, named as PostgreSQL names it: after the alias, or else after
//! the function.

use std::ops::ControlFlow;

use sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, Spanned,
    TableAlias, TableAliasColumnDef, TableFactor, Value, VisitMut, VisitorMut,
};

use super::reader::fold;
use super::tokens::position;
use crate::types::{Error, Result, SqlState};

/// Names the column of each call in a query.
///
/// # Errors
/// 22023 for a series whose step is a literal zero.
pub(crate) fn name_columns(query: &mut Query) -> Result<()> {
    match query.visit(&mut Series) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

struct Series;

impl VisitorMut for Series {
    type Break = Error;

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        let at = position(factor.span());
        let (function, alias) = match factor {
            TableFactor::Table { name, args: Some(call), alias, .. } => match series(name, &call.args) {
                Some(function) => (function, alias),
                None => return ControlFlow::Continue(()),
            },
            TableFactor::TableFunction { expr: Expr::Function(call), alias } => {
                let FunctionArguments::List(list) = &call.args else { return ControlFlow::Continue(()) };
                match series(&call.name, &list.args) {
                    Some(function) => (function, alias),
                    None => return ControlFlow::Continue(()),
                }
            }
            TableFactor::UNNEST { alias, array_exprs, with_offset: false, .. } if array_exprs.len() == 1 => {
                (Ok(Ident::new("unnest")), alias)
            }
            _ => return ControlFlow::Continue(()),
        };
        let function = match function {
            Ok(function) => function,
            Err(error) => return ControlFlow::Break(error.position_or(at)),
        };
        let alias =
            alias.get_or_insert_with(|| TableAlias { explicit: true, name: function, columns: Vec::new(), at: None });
        if alias.columns.is_empty() {
            alias.columns.push(TableAliasColumnDef { name: alias.name.clone(), data_type: None });
        }
        ControlFlow::Continue(())
    }
}

/// The name of a call of `generate_series`, or what is wrong with its step.
fn series(name: &ObjectName, arguments: &[FunctionArg]) -> Option<Result<Ident>> {
    let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return None };
    if fold(name) != "generate_series" {
        return None;
    }
    let step = match arguments.get(2) {
        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(step)))) => Some(&step.value),
        _ => None,
    };
    if matches!(step, Some(Value::Number(number, _)) if number.parse() == Ok(0.0_f64)) {
        return Some(Err(Error::new(SqlState::InvalidParameterValue, "step size cannot equal zero")
            .hint("Give a step above or below zero, or leave it out for 1.")));
    }
    Some(Ok(Ident::new("generate_series")))
}
