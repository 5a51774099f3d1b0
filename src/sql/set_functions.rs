//! Functions that give a row for each element of a value: each is `unnest` of a function that gives a list.
//!
//! In a select list and in FROM, there beside the tables whose columns it takes, and so in views too.

use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::array::{ArrayBuilder, ArrayRef, AsArray as _, LargeStringBuilder, ListBuilder, StringBuilder};
use arrow::datatypes::{DataType, Field};
use sqlparser::ast::{
    Expr, Function as Call, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, ObjectNamePart, Query,
    TableAlias, TableAliasColumnDef, TableFactor, VisitMut, VisitorMut,
};

use super::catalog_queries::call;
use super::parser::parse_expression_of_program;
use super::reader::fold;
use super::row_functions::{Arguments, Function, is_text};
use crate::types::json::{self, Json};
use crate::types::{Error, JSONB, Result, SqlState};

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "jsonb_elements", returns: |types| of_document(types, JSONB), answer: elements },
    Function { name: "jsonb_element_texts", returns: |types| of_document(types, DataType::Utf8), answer: texts },
    Function { name: "jsonb_keys", returns: |types| of_document(types, DataType::Utf8), answer: keys },
];

/// The functions, what gives their list, and the name of their column in FROM; else it is called as the function.
const SETS: &[(&str, &str, Option<&str>)] = &[
    ("json_array_elements", "jsonb_elements", Some("value")),
    ("json_array_elements_text", "jsonb_element_texts", Some("value")),
    ("json_object_keys", "jsonb_keys", None),
    ("jsonb_array_elements", "jsonb_elements", Some("value")),
    ("jsonb_array_elements_text", "jsonb_element_texts", Some("value")),
    ("jsonb_object_keys", "jsonb_keys", None),
    ("string_to_table", "string_to_array", None),
];

fn known(name: &ObjectName) -> Option<&'static (&'static str, &'static str, Option<&'static str>)> {
    let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return None };
    let name = fold(name);
    SETS.iter().find(|(set, ..)| *set == name)
}

/// True for the name of such a function.
pub(crate) fn is_set(name: &ObjectName) -> bool {
    known(name).is_some()
}

/// What stands for a call in a select list; `None` for other functions.
pub(crate) fn rewritten(function: &Call) -> Option<Expr> {
    let (_, list, _) = known(&function.name)?;
    let FunctionArguments::List(arguments) = &function.args else { return None };
    let values = call(list, values(&arguments.args)?)?;
    call("unnest", vec![values])
}

fn values(arguments: &[FunctionArg]) -> Option<Vec<Expr>> {
    let value = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => Some(value.clone()),
        _ => None,
    };
    arguments.iter().map(value).collect()
}

/// Puts `unnest` into the place of all calls in FROM.
pub(crate) fn rewrite_from(query: &mut Query) {
    let _ = query.visit(&mut Sets);
}

struct Sets;

impl VisitorMut for Sets {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let (name, arguments, alias) = match factor {
            TableFactor::Table { name, args: Some(call), alias, .. } => (&*name, call.args.as_slice(), alias),
            TableFactor::Function { name, args, alias, .. } => (&*name, args.as_slice(), alias),
            _ => return ControlFlow::Continue(()),
        };
        if let Some(times) = series_of_times(name, arguments) {
            let mut alias = alias.take().unwrap_or_else(|| TableAlias {
                explicit: true,
                name: Ident::new("generate_series"),
                columns: Vec::new(),
                at: None,
            });
            if alias.columns.is_empty() {
                alias.columns.push(TableAliasColumnDef { name: alias.name.clone(), data_type: None });
            }
            *factor = unnested(alias, times);
            return ControlFlow::Continue(());
        }
        if let Some((set, list, column)) = known(name)
            && let Some(list) = values(arguments).and_then(|values| call(list, values))
        {
            let plain = |name: &str| Ident::new(name);
            let mut alias = alias.take().unwrap_or_else(|| TableAlias {
                explicit: true,
                name: plain(set),
                columns: Vec::new(),
                at: None,
            });
            if alias.columns.is_empty() {
                let name = column.map_or_else(|| alias.name.clone(), plain);
                alias.columns.push(TableAliasColumnDef { name, data_type: None });
            }
            *factor = unnested(alias, list);
        }
        ControlFlow::Continue(())
    }
}

fn unnested(alias: TableAlias, list: Expr) -> TableFactor {
    TableFactor::UNNEST {
        alias: Some(alias),
        array_exprs: vec![list],
        with_offset: false,
        with_offset_alias: None,
        with_ordinality: false,
    }
}

/// The list of a `generate_series` of times, whose step is an interval.
fn series_of_times(name: &ObjectName, arguments: &[FunctionArg]) -> Option<Expr> {
    let [ObjectNamePart::Identifier(name)] = name.0.as_slice() else { return None };
    if fold(name) != "generate_series" {
        return None;
    }
    let values = values(arguments)?;
    let [first, _, step] = values.as_slice() else { return None };
    let of_type = |value: &Expr| match value {
        Expr::Cast { data_type, .. } => Some(data_type.to_string().to_lowercase()),
        Expr::TypedString(typed) => Some(typed.data_type.to_string().to_lowercase()),
        Expr::Interval(_) => Some("interval".to_owned()),
        _ => None,
    };
    if !of_type(step)?.starts_with("interval") {
        return None;
    }
    // Dates are midnights in the session's zone, as in PostgreSQL.
    let kind = of_type(first)?;
    let plain = kind.starts_with("timestamp") && !kind.contains("with time zone") && !kind.starts_with("timestamptz");
    let to = if plain || kind.contains("without") { "timestamp" } else { "timestamptz" };
    // As an expression the user may not call it.
    let mut list = parse_expression_of_program(&format!("CAST(generate_series(x) AS {to}[])")).ok()?;
    if let Expr::Cast { expr, .. } = &mut list
        && let Expr::Function(series) = expr.as_mut()
        && let FunctionArguments::List(places) = &mut series.args
    {
        places.args = arguments.to_vec();
    }
    Some(list)
}

fn of_document(types: &[DataType], element: DataType) -> Option<DataType> {
    let document = matches!(types, [of] if *of == JSONB || is_text(Some(of)));
    document.then(|| DataType::List(Arc::new(Field::new_list_field(element, true))))
}

fn no_elements(message: &str) -> Error {
    Error::new(SqlState::InvalidParameterValue, message).hint("Ask jsonb_typeof() first.")
}

/// A list of the elements of each row's array.
fn lists_of<B: ArrayBuilder>(
    arguments: &Arguments,
    elements: B,
    add: fn(&mut B, &str) -> Result<()>,
) -> Result<ArrayRef> {
    let documents = arguments.cast(0, &JSONB)?;
    let mut lists = ListBuilder::new(elements);
    for document in documents.as_string::<i64>() {
        if let Some(document) = document {
            match json::look(document)? {
                Json::Array(elements) => elements.into_iter().try_for_each(|element| add(lists.values(), element))?,
                Json::Object(_) => return Err(no_elements("cannot extract elements from an object")),
                _ => return Err(no_elements("cannot extract elements from a scalar")),
            }
        }
        lists.append(document.is_some());
    }
    Ok(Arc::new(lists.finish()))
}

fn elements(arguments: &Arguments) -> Result<ArrayRef> {
    lists_of(arguments, LargeStringBuilder::new(), |elements, element| {
        elements.append_value(element);
        Ok(())
    })
}

fn texts(arguments: &Arguments) -> Result<ArrayRef> {
    lists_of(arguments, StringBuilder::new(), |texts, element| {
        texts.append_option(json::as_text(element)?);
        Ok(())
    })
}

fn keys(arguments: &Arguments) -> Result<ArrayRef> {
    let documents = arguments.cast(0, &JSONB)?;
    let mut lists = ListBuilder::new(StringBuilder::new());
    for document in documents.as_string::<i64>() {
        if let Some(document) = document {
            match json::look(document)? {
                Json::Object(members) => members.iter().for_each(|(name, _)| lists.values().append_value(name)),
                Json::Array(_) => return Err(no_elements("cannot call jsonb_object_keys on an array")),
                _ => return Err(no_elements("cannot call jsonb_object_keys on a scalar")),
            }
        }
        lists.append(document.is_some());
    }
    Ok(Arc::new(lists.finish()))
}
