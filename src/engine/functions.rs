//! Scalar functions of SQL: making, replacing and finding them.
//!
//! Each name has one function. What calls a function stands on it, as views stand on tables: it keeps the function's
//! expression, so a function that something stands on is not replaced.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::execution::{FunctionRegistry, SessionState};
use sqlparser::ast::{Expr, Function, ObjectName, ObjectNamePart, Spanned, Visit, Visitor};

use crate::catalog::{self, Catalog, Definition, FunctionDefinition, Object, near_miss};
use crate::sql::{self, CreateFunction, CreateTable, Drop as DropStatement, Name};
use crate::types::{Error, RelationId, Result, SqlState};

use super::api::{Answer, Notice, Tag};
use super::ddl::{self, NewObject};
use super::define::Defined;
use super::dml::assign;
use super::interrupt::Interrupt;
use super::relations::{Relations, default_schema};
use super::session::Session;

/// Functions that are no entries of a registry: the grammar knows them.
const GRAMMAR: &[&str] = &[
    "mod",
    "sign",
    "coalesce",
    "nullif",
    "greatest",
    "least",
    "grouping",
    "ceiling",
    "div",
    "every",
    "gen_random_uuid",
    "json_agg",
    "json_array_elements",
    "json_array_elements_text",
    "json_object_agg",
    "json_object_keys",
    "jsonb_agg",
    "jsonb_array_elements",
    "jsonb_array_elements_text",
    "jsonb_object_agg",
    "jsonb_object_keys",
    "regexp_substr",
    "statement_timestamp",
    "string_to_table",
    "to_json",
    "transaction_timestamp",
    "current_setting",
    "set_config",
    "generate_series",
    "unnest",
    "tumble",
    "tumble_start",
    "tumble_end",
    "hop",
    "hop_start",
    "hop_end",
    "session",
    "session_start",
    "session_end",
    "cumulate",
];

/// `CREATE [OR REPLACE] FUNCTION`.
pub(crate) async fn create(session: &Session, create: &CreateFunction, interrupt: &Interrupt) -> Result<Answer> {
    const TAG: Tag = Tag::Plain("CREATE FUNCTION");
    let turn = ddl::turn(session, interrupt).await?;
    let engine = Arc::clone(session.engine());
    let catalog = engine.catalog();
    ddl::check_schema(&catalog, &create.name)?;
    check_built_in(&engine.base_state(), &create.name)?;
    let before = catalog.find_function(create.name.schema.as_deref(), &create.name.name).map(Arc::clone);
    if let Some(before) = &before {
        check_replaced(&catalog, before, create)?;
    }
    let (relations, of) = (session.definitions(), create.clone());
    let defined = interrupt.run(async move { define(&relations, &of) }).await?;
    let text = sql::show_create::function(create);
    let Some(before) = before else {
        let created = NewObject { name: &create.name, kind: catalog::ObjectKind::Function, text };
        ddl::install(session, created, defined, turn, interrupt).await?;
        return Ok(Answer::Done { tag: TAG, notices: Vec::new() });
    };
    // An object's number is above those of what it stands on: so a start brings them back in order.
    if let Some(newer) = defined.depends_on.iter().filter(|id| **id > before.id).find_map(|id| catalog.get(*id)) {
        return Err(Error::unsupported(format!(
            "function {} cannot be replaced by one that calls {}, which is newer",
            before.name, newer.name
        ))
        .hint(format!("DROP FUNCTION {} first, then create it.", before.name))
        .position(create.name.position));
    }
    let object =
        Object { text, depends_on: defined.depends_on, definition: defined.definition, ..before.as_ref().clone() };
    interrupt
        .finish(async move {
            let _turn: ddl::Turn = turn;
            let store = Arc::clone(engine.catalog_store());
            ddl::blocking(move || store.alter(object)).await
        })
        .await?;
    Ok(Answer::Done { tag: TAG, notices: Vec::new() })
}

fn check_built_in(state: &SessionState, name: &Name) -> Result<()> {
    let called = sql::called_name(name.schema.as_deref(), &name.name);
    let built_in = GRAMMAR.contains(&called.as_str())
        || state.scalar_functions().contains_key(&called)
        || state.aggregate_functions().contains_key(&called)
        || state.window_functions().contains_key(&called);
    if !built_in {
        return Ok(());
    }
    Err(Error::new(SqlState::DuplicateFunction, format!("function \"{called}\" is built in"))
        .hint("Use another name, or put it into another schema.")
        .position(name.position))
}

/// Checks that a function may give way to another one.
fn check_replaced(catalog: &Catalog, before: &Arc<Object>, create: &CreateFunction) -> Result<()> {
    let at = create.name.position;
    let name = &create.name.name;
    if !create.or_replace {
        return Err(Error::new(SqlState::DuplicateFunction, format!("function \"{name}\" already exists"))
            .hint("A name has one function. Write CREATE OR REPLACE FUNCTION, or DROP it first.")
            .position(at));
    }
    if let Definition::Function(function) = &before.definition {
        let parameters: Vec<&DataType> = create.parameters.iter().map(|parameter| &parameter.data_type).collect();
        if function.parameters.iter().map(|(_, data_type)| data_type).ne(parameters) {
            return Err(Error::unsupported(format!("several functions of the name \"{name}\" are not supported"))
                .hint(format!("DROP FUNCTION {name} first, or use another name."))
                .position(at));
        }
        if function.returns != create.returns {
            return Err(Error::new(
                SqlState::InvalidFunctionDefinition,
                "cannot change return type of existing function",
            )
            .hint(format!("DROP FUNCTION {name} first."))
            .position(at));
        }
    }
    let dependents = catalog.dependents(&[before.id]);
    if dependents.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = dependents
        .iter()
        .map(|object| format!("{} {} depends on function {name}", object.kind.name(), object.name))
        .collect();
    Err(Error::new(
        SqlState::DependentObjects,
        format!("cannot replace function {name} because other objects depend on it"),
    )
    .detail(lines.join("\n"))
    .hint("They keep the function's expression: DROP FUNCTION … CASCADE, and create all of them again.")
    .position(at))
}

/// What a CREATE FUNCTION statement means.
///
/// # Errors
/// Those of planning its expression; 42P13 when that is of another type than is declared; 0A000 when it calls itself.
pub(crate) fn define(relations: &Relations, create: &CreateFunction) -> Result<Defined> {
    let own = sql::called_name(create.name.schema.as_deref(), &create.name.name);
    let calls = Calls::of(&create.body);
    if let Some((_, at)) = calls.0.iter().find(|(name, _)| *name == own) {
        let error = Error::unsupported(format!("function {own} calls itself, which is not supported"))
            .hint("Recurse in a SELECT: WITH RECURSIVE.");
        return Err(error.position(at.map_or(create.body_position, |at| at + create.body_offset)));
    }
    let planned = sql::plan_function(&relations.state(), create)?;
    if let Some(found) = planned.body_type.filter(|found| !assign::assignable(found, &create.returns)) {
        let returns = sql::sql_name(&create.returns);
        let message = format!("return type mismatch in function declared to return {returns}");
        return Err(Error::new(SqlState::InvalidFunctionDefinition, message)
            .detail(format!("Actual return type is {}.", sql::sql_name(&found)))
            .hint("Cast the expression, or declare the function to return its type.")
            .position(create.body_position));
    }
    let parameters = create.parameters.iter().map(|parameter| (parameter.name.clone(), parameter.data_type.clone()));
    let definition = FunctionDefinition {
        parameters: parameters.collect(),
        returns: create.returns.clone(),
        function: planned.function,
    };
    Ok(Defined {
        definition: Definition::Function(definition),
        kind: None,
        source: None,
        depends_on: calls.in_catalog(relations.catalog()),
        notices: Vec::new(),
    })
}

/// Lets a statement call the functions of a version of the catalog.
pub(super) fn register(catalog: &Catalog, state: &mut SessionState) {
    for object in catalog.functions() {
        if let Definition::Function(function) = &object.definition {
            // A session's own state takes every function.
            let _ = state.register_udf(Arc::clone(&function.function));
        }
    }
}

/// The functions that a part of a statement calls, with their places.
#[derive(Default)]
struct Calls(BTreeSet<(String, Option<usize>)>);

impl Calls {
    fn of(part: &impl Visit) -> Calls {
        let mut calls = Calls::default();
        let _ = part.visit(&mut calls);
        calls
    }

    fn add(&mut self, name: &ObjectName) {
        let parts: Vec<String> = name.0.iter().filter_map(ObjectNamePart::as_ident).map(sql::folded).collect();
        let called = match parts.as_slice() {
            [name] => sql::called_name(None, name),
            [.., schema, name] => sql::called_name(Some(schema), name),
            [] => return,
        };
        let start = name.span().start;
        self.0.insert((called, usize::try_from(start.column).ok().filter(|at| *at > 0)));
    }

    /// The functions of the catalog among them, each once.
    fn in_catalog(&self, catalog: &Catalog) -> Vec<RelationId> {
        let called = |object: &Object| sql::called_name(Some(&object.schema), &object.name);
        let named = |object: &&Arc<Object>| self.0.iter().any(|(name, _)| *name == called(object));
        catalog.functions().filter(named).map(|object| object.id).collect()
    }
}

impl Visitor for Calls {
    type Break = ();

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<()> {
        if let Expr::Function(Function { name, .. }) = expression {
            self.add(name);
        }
        ControlFlow::Continue(())
    }
}

/// The functions of the catalog that a query or an expression calls, each once.
pub(super) fn called(catalog: &Catalog, part: &impl Visit) -> Vec<RelationId> {
    Calls::of(part).in_catalog(catalog)
}

/// The functions that the columns of a table call.
pub(super) fn called_by_columns(catalog: &Catalog, create: &CreateTable) -> Vec<RelationId> {
    let expressions = create.columns.iter().flat_map(|column| column.default.iter().chain(&column.computed));
    let mut found: Vec<RelationId> = expressions.flat_map(|expression| called(catalog, expression)).collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// The function of a name.
///
/// # Errors
/// 42883.
pub(super) fn find(catalog: &Catalog, name: &Name) -> Result<Arc<Object>> {
    catalog.find_function(name.schema.as_deref(), &name.name).map(Arc::clone).ok_or_else(|| undefined(catalog, name))
}

fn undefined(catalog: &Catalog, name: &Name) -> Error {
    let schema = default_schema(name.schema.as_deref());
    let there = catalog.functions().filter(|object| object.schema == schema).map(|object| object.name.as_str());
    let hint = match near_miss(&name.name, there) {
        Some(near) => format!("Perhaps you meant \"{near}\"."),
        None => "SHOW FUNCTIONS lists those that were made here.".to_owned(),
    };
    Error::new(SqlState::UndefinedFunction, format!("could not find a function named \"{}\"", name.name))
        .hint(hint)
        .position(name.position)
}

/// The functions that a DROP names.
///
/// # Errors
/// 42883.
pub(super) fn dropped(catalog: &Catalog, drop: &DropStatement, notices: &mut Vec<Notice>) -> Result<Vec<Arc<Object>>> {
    let mut found: Vec<Arc<Object>> = Vec::new();
    for (name, arguments) in drop.names.iter().zip(&drop.arguments) {
        let object = catalog.find_function(name.schema.as_deref(), &name.name).filter(|object| {
            match (&object.definition, arguments) {
                (Definition::Function(function), Some(types)) => {
                    function.parameters.iter().map(|(_, data_type)| data_type).eq(types)
                }
                _ => true,
            }
        });
        match object {
            Some(object) if !found.iter().any(|other| other.id == object.id) => found.push(Arc::clone(object)),
            Some(_) => {}
            None if drop.if_exists => {
                notices.push(Notice { message: format!("function {} does not exist, skipping", name.name), hint: None })
            }
            None => return Err(undefined(catalog, name)),
        }
    }
    Ok(found)
}

/// Refuses to drop a table with its rows because a column's expression calls a function.
///
/// # Errors
/// 2BP01.
pub(super) fn check_tables(dependents: &[Arc<Object>], schemas: &[String]) -> Result<()> {
    // A table stands on nothing but functions; with its schema it goes for another reason.
    let mut tables = dependents.iter().filter(|object| object.kind == catalog::ObjectKind::Table);
    match tables.find(|table| !schemas.contains(&table.schema)) {
        None => Ok(()),
        Some(table) => Err(Error::new(
            SqlState::DependentObjects,
            format!("cannot drop a function that a column of table {} is computed by", table.name),
        )
        .hint(format!("DROP TABLE {} first: CASCADE does not drop rows for a column's expression.", table.name))),
    }
}

/// The parameters of a function as SQL writes them.
pub(crate) fn parameters_text(function: &FunctionDefinition) -> String {
    let written = function.parameters.iter().map(|(name, data_type)| match name {
        Some(name) => format!("{} {}", sql::quoted_name(name), sql::sql_name(data_type)),
        None => sql::sql_name(data_type),
    });
    written.collect::<Vec<_>>().join(", ")
}
