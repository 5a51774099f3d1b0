//! From a parsed CREATE statement to what the catalog and the coordinator need: the same way when
//! the statement is given and when its text is read back.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::sql::parser::Statement as PlannerStatement;
use datafusion::sql::resolve::resolve_table_references;
use sqlparser::ast;

use crate::catalog::{Definition, MaterializedView, Table, TableColumn, View};
use crate::connectors::ConnectorColumn;
use crate::exec::source::Source;
use crate::sql::{self, CreateMaterializedView, CreateTable, CreateView};
use crate::types::{Error, RelationId, Result, SqlState};

use super::coordinator::RelationKind;
use super::database::Engine;
use super::dml::assign;
use super::relations::Relations;

/// What a CREATE statement means.
pub(crate) struct Defined {
    /// For the catalog.
    pub(crate) definition: Definition,
    /// For the coordinator; `None` when nothing runs.
    pub(crate) kind: Option<RelationKind>,
    /// A connector's rows.
    pub(crate) source: Option<Arc<dyn Source>>,
    /// The relations that the text names.
    pub(crate) depends_on: Vec<RelationId>,
    /// What the user should know.
    pub(crate) notices: Vec<String>,
}

/// A table.
///
/// # Errors
/// Those of the connector's options; 42804 and others for DEFAULT expressions.
pub(crate) fn table(engine: &Engine, relations: &Relations, create: &CreateTable) -> Result<Defined> {
    let state = relations.state();
    let columns: Vec<TableColumn> = create
        .columns
        .iter()
        .map(|column| TableColumn {
            name: column.name.clone(),
            data_type: column.data_type.clone(),
            sql_type: column.sql_type.clone(),
            length_max: column.length_max,
            nullable: column.nullable && !is_key(create, &column.name),
            default: column.default.clone(),
        })
        .collect();
    for column in &columns {
        if let Some(default) = &column.default {
            let expression = sql::plan_expression(&state, &assign::typed(default, column)?, Arc::new(Schema::empty()))?;
            let from = expression.data_type(&Schema::empty()).map_err(crate::engine::error_of)?;
            if !assign::assignable(&from, &column.data_type) {
                return Err(assign::mismatch(column, &from, "default expression"));
            }
        }
    }
    if create.options.is_empty() {
        let table = Table::new(columns, create.primary_key.clone(), create.append_only, None);
        let kind = RelationKind::Table { schema: Arc::clone(&table.row_schema), key: table.key.clone() };
        return Ok(Defined {
            definition: Definition::Table(table),
            kind: Some(kind),
            source: None,
            depends_on: Vec::new(),
            notices: Vec::new(),
        });
    }

    let position = create.options.values().map(|option| option.position).min();
    if !create.primary_key.is_empty() {
        return Err(Error::unsupported("PRIMARY KEY on a table with a connector is not supported yet")
            .hint("Leave it out, and keep the latest row of each key with an aggregate in a materialized view.")
            .position_or(position));
    }
    if let Some(column) = columns.iter().find(|column| column.default.is_some()) {
        return Err(Error::unsupported(format!(
            "DEFAULT of column \"{}\" on a table with a connector is not supported",
            column.name
        ))
        .hint("Use coalesce() in a view over the table.")
        .position_or(position));
    }
    let connector_columns: Vec<ConnectorColumn> = columns
        .iter()
        .map(|column| ConnectorColumn {
            name: column.name.clone(),
            data_type: column.data_type.clone(),
            nullable: column.nullable,
            length_max: column.length_max,
        })
        .collect();
    let mut notices = Vec::new();
    let source = if engine.connectors().is_write_only(&create.options) {
        engine.connectors().open_sink(&create.options, &connector_columns)?;
        None
    } else {
        match engine.connectors().open(&create.options, &connector_columns) {
            Ok(source) => Some(source),
            // What is not there yet can be written.
            Err(missing) if missing.code() == SqlState::UndefinedFile => {
                engine.connectors().open_sink(&create.options, &connector_columns).map_err(|_| missing.clone())?;
                notices.push(format!("{}; the table can be written by a sink, not read", missing.message()));
                None
            }
            Err(error) => return Err(error),
        }
    };
    let connector = create.options.get("connector").map(|option| option.text.clone());
    let table = Table::new(columns, Vec::new(), create.append_only, connector);
    Ok(Defined {
        definition: Definition::Table(table),
        kind: source.clone().map(|source| RelationKind::External { source }),
        source,
        depends_on: Vec::new(),
        notices,
    })
}

fn is_key(create: &CreateTable, name: &str) -> bool {
    create.primary_key.iter().filter_map(|index| create.columns.get(*index)).any(|column| column.name == name)
}

/// A plain view.
///
/// # Errors
/// Those of planning its query; 42701 when two columns have one name.
pub(crate) async fn view(relations: &Relations, create: &CreateView) -> Result<Defined> {
    let plan = sql::plan_plain_view(&relations.state(), &create.query, &create.columns).await?;
    let row_schema = Arc::new(plan.schema().as_arrow().clone());
    let view = View { query: create.query.clone(), column_names: create.columns.clone(), row_schema };
    Ok(Defined {
        definition: Definition::View(view),
        kind: None,
        source: None,
        depends_on: named_relations(relations, &create.query)?,
        notices: Vec::new(),
    })
}

/// A materialized view.
///
/// # Errors
/// Those of planning its query.
pub(crate) async fn materialized_view(relations: &Relations, create: &CreateMaterializedView) -> Result<Defined> {
    let planned = sql::plan_view(&relations.state(), &create.query, &create.columns, relations).await?;
    let plan = Arc::new(planned.plan);
    Ok(Defined {
        definition: Definition::MaterializedView(MaterializedView { plan: Arc::clone(&plan) }),
        kind: Some(RelationKind::View { plan }),
        source: None,
        depends_on: named_relations(relations, &create.query)?,
        notices: planned.notices,
    })
}

/// The catalog's relations that a query names, plain views included, each once.
pub(crate) fn named_relations(relations: &Relations, query: &ast::Query) -> Result<Vec<RelationId>> {
    let statement = PlannerStatement::Statement(Box::new(ast::Statement::Query(Box::new(query.clone()))));
    let (names, _) = resolve_table_references(&statement, true).map_err(crate::engine::error_of)?;
    let mut found: Vec<RelationId> = names
        .iter()
        .filter_map(|name| relations.catalog().find(name.schema(), name.table()))
        .map(|object| object.id)
        .collect();
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
