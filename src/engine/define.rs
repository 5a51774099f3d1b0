//! From a parsed CREATE statement to what the catalog and the coordinator need: the same way when
//! the statement is given and when its text is read back.

use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::execution::SessionState;
use datafusion::sql::parser::Statement as PlannerStatement;
use datafusion::sql::resolve::resolve_table_references;
use sqlparser::ast;

use crate::catalog::{Definition, MaterializedView, Table, TableColumn, View, errors_name};
use crate::connectors::{ConnectorColumn, OnError, SourceTable};
use crate::exec::source::Source;
use crate::sql::{self, CreateMaterializedView, CreateTable, CreateView};
use crate::state::Registry;
use crate::types::{Error, RelationId, Result, SqlState};

use super::event_times::TableWatermark;

use super::computed::{ComputedSource, Filled};
use super::coordinator::{RelationKind, RelationSpec};
use super::database::Engine;
use super::dml::assign;
use super::relations::Relations;
use super::{functions, operators};

/// What a CREATE statement means.
pub(crate) struct Defined {
    /// For the catalog.
    pub(crate) definition: Definition,
    /// For the coordinator; `None` when nothing runs.
    pub(crate) kind: Option<RelationKind>,
    /// A connector's rows.
    pub(crate) source: Option<SourceTable>,
    /// The relations that the text names.
    pub(crate) depends_on: Vec<RelationId>,
    /// What the user should know.
    pub(crate) notices: Vec<String>,
}

impl Defined {
    /// True when it has an errors relation.
    pub(crate) fn keeps_errors(&self) -> bool {
        let by_row = match &self.kind {
            Some(RelationKind::View { plan, .. } | RelationKind::Sink { plan, .. }) => {
                plan.on_error == crate::exec::plan::OnError::Keep
            }
            _ => false,
        };
        by_row || self.source.as_ref().is_some_and(|source| source.on_error == OnError::Table)
    }

    /// True when it has a relation of late rows.
    pub(crate) fn keeps_late(&self) -> bool {
        match &self.kind {
            Some(RelationKind::View { plan, .. } | RelationKind::Sink { plan, .. }) => plan.closes(),
            _ => matches!(&self.definition, Definition::Table(table) if table.event_time.is_some()),
        }
    }

    /// What the coordinator runs for an object with these numbers and this name.
    pub(crate) fn specs(
        &self,
        id: RelationId,
        errors: Option<RelationId>,
        late: Option<RelationId>,
        qualified_name: &str,
    ) -> Vec<RelationSpec> {
        let Some(mut kind) = self.kind.clone() else { return Vec::new() };
        let mut specs = Vec::new();
        let mut of_table = None;
        match &mut kind {
            RelationKind::View { errors: of_job, late: late_of_job, .. }
            | RelationKind::Sink { errors: of_job, late: late_of_job, .. } => {
                (*of_job, *late_of_job) = (errors, late);
            }
            RelationKind::External { key, .. } => {
                of_table = errors.map(|errors| RelationSpec {
                    id: errors,
                    qualified_name: errors_name(qualified_name),
                    kind: RelationKind::Errors { of: id },
                });
                // A table that keeps rows reads at once, and then needs it.
                if !key.is_empty() {
                    specs.extend(of_table.take());
                }
            }
            _ => {}
        }
        specs.push(RelationSpec { id, qualified_name: qualified_name.to_owned(), kind });
        specs.extend(of_table);
        specs
    }
}

/// The statement with the types of computed columns that only their expressions tell.
///
/// # Errors
/// Those of planning the expressions; 0A000 for a computed column of a table without a connector.
pub(crate) fn typed_columns(relations: &Relations, create: &CreateTable) -> Result<CreateTable> {
    let mut typed = create.clone();
    if create.columns.iter().all(|column| column.computed.is_none()) {
        return Ok(typed);
    }
    if create.options.is_empty() {
        return Err(Error::unsupported("a generated column of a table without a connector is not supported")
            .hint("Compute it in a view: CREATE VIEW v AS SELECT *, … FROM t."));
    }
    let state = relations.state();
    let read = read_schema(create);
    for column in &mut typed.columns {
        let Some(computed) = column.computed.as_ref().filter(|_| column.data_type == DataType::Null) else { continue };
        let expression = sql::plan_computed(&state, computed, Arc::clone(&read))?;
        let data_type = expression.data_type(&read).map_err(crate::engine::error_of)?;
        // NULL and strings alone have no type of their own.
        column.data_type = if data_type == DataType::Null { DataType::Utf8 } else { data_type };
        column.sql_type = sql::sql_name(&column.data_type);
    }
    Ok(typed)
}

/// The columns that a connector fills.
fn read_schema(create: &CreateTable) -> SchemaRef {
    let read = create.columns.iter().filter(|column| column.computed.is_none());
    let fields: Vec<Field> =
        read.map(|column| Field::new(&column.name, column.data_type.clone(), column.nullable)).collect();
    Arc::new(Schema::new(fields))
}

/// A source whose computed columns are filled.
fn with_computed(
    relations: &Relations,
    create: &CreateTable,
    table: &Table,
    source: Arc<dyn Source>,
) -> Result<Arc<dyn Source>> {
    if create.columns.iter().all(|column| column.computed.is_none()) {
        return Ok(source);
    }
    let (state, read) = (relations.state(), read_schema(create));
    let mut filled = Vec::with_capacity(create.columns.len());
    let mut place = 0;
    for (definition, column) in create.columns.iter().zip(&table.columns) {
        filled.push(match &definition.computed {
            None => {
                place += 1;
                Filled::Read(place - 1)
            }
            Some(computed) => {
                let expression = sql::plan_computed(&state, &assign::typed(computed, column)?, Arc::clone(&read))?;
                let from = expression.data_type(&read).map_err(crate::engine::error_of)?;
                if !assign::assignable(&from, &column.data_type) {
                    return Err(assign::mismatch(column, &from, "generation expression"));
                }
                Filled::Computed(expression)
            }
        });
    }
    Ok(Arc::new(ComputedSource::new(source, Arc::clone(&table.row_schema), filled)))
}

/// The columns of a table as its connector sees them: those that are computed are no matter of it.
pub(crate) fn connector_columns(create: &CreateTable) -> Vec<ConnectorColumn> {
    let outside = create.columns.iter().filter(|column| column.computed.is_none());
    outside
        .map(|column| ConnectorColumn {
            name: column.name.clone(),
            data_type: column.data_type.clone(),
            nullable: column.nullable && !is_key(create, &column.name),
            length_max: column.length_max,
        })
        .collect()
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
        let mut table = Table::new(columns, create.primary_key.clone(), create.append_only, None);
        let watermark = watermark(&state, create, &mut table)?;
        let kind = RelationKind::Table { schema: Arc::clone(&table.row_schema), key: table.key.clone(), watermark };
        return Ok(Defined {
            definition: Definition::Table(table),
            kind: Some(kind),
            source: None,
            depends_on: functions::called_by_columns(relations.catalog(), create),
            notices: Vec::new(),
        });
    }

    let position = create.options.values().map(|option| option.position).min();
    if !create.primary_key.is_empty() && create.append_only {
        return Err(Error::unsupported("APPEND ONLY does not go with the PRIMARY KEY of a table with a connector")
            .hint("Leave one of them out: a later row with the same key replaces the earlier one.")
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
    let connector_columns = connector_columns(create);
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
    let mut table = Table::new(columns, create.primary_key.clone(), create.append_only, connector);
    let watermark = watermark(&state, create, &mut table)?;
    if !table.key.is_empty() {
        let names: Vec<&str> =
            table.key.iter().filter_map(|index| table.columns.get(*index)).map(|column| column.name.as_str()).collect();
        notices.push(format!(
            "the last row of each ({}) is kept, so the table grows with the number of keys",
            names.join(", ")
        ));
    }
    let source = source
        .map(|opened| {
            let source = with_computed(relations, create, &table, Arc::clone(&opened.source))?;
            Ok::<_, Error>(SourceTable { source, ..opened })
        })
        .transpose()?;
    let key = table.key.clone();
    Ok(Defined {
        definition: Definition::Table(table),
        kind: source.clone().map(|source| RelationKind::External { source, key, watermark }),
        source,
        depends_on: functions::called_by_columns(relations.catalog(), create),
        notices,
    })
}

/// A claim that is further ahead of the clock does not count, unless the table says otherwise.
const AHEAD_MAX: Duration = Duration::from_secs(86_400);

/// The event time of a table, which the table learns of too.
fn watermark(state: &SessionState, create: &CreateTable, table: &mut Table) -> Result<Option<TableWatermark>> {
    let Some(clause) = &create.watermark else { return Ok(None) };
    let index = table.columns.iter().position(|column| column.name == clause.column);
    let Some((index, column)) = index.and_then(|index| Some((index, table.columns.get(index)?))) else {
        return Err(Error::internal("WATERMARK FOR a column that is not there"));
    };
    if !matches!(column.data_type, DataType::Timestamp(TimeUnit::Microsecond, _)) {
        let (name, sql_type) = (&column.name, &column.sql_type);
        let error = Error::new(
            SqlState::DatatypeMismatch,
            format!("WATERMARK FOR column \"{name}\" of type {sql_type}, which is no timestamp"),
        );
        let hint = match column.data_type {
            DataType::Int16 | DataType::Int32 | DataType::Int64 => format!(
                "Compute one: ts timestamptz GENERATED ALWAYS AS (to_timestamp_millis({name})), WATERMARK FOR ts AS …."
            ),
            _ => "Use a column of type timestamptz or timestamp.".to_owned(),
        };
        return Err(error.hint(hint).position(clause.position));
    }
    let typed = assign::typed(&clause.expression, column)?;
    let expression = sql::plan_computed(state, &typed, Arc::clone(&table.row_schema))
        .map_err(|error| error.position_or(Some(clause.position)))?;
    let from = expression.data_type(&table.row_schema).map_err(crate::engine::error_of)?;
    if from != column.data_type {
        return Err(assign::mismatch(column, &from, "watermark").position_or(Some(clause.position)));
    }
    if let Some(drift) = create.time_options.get("max_drift").filter(|_| create.options.is_empty()) {
        let error = Error::new(SqlState::InvalidParameterValue, "option \"max_drift\" is about reading a source");
        return Err(error.hint("Leave it out of a table without a connector.").position(drift.position));
    }
    let option = |name: &str| create.time_options.get(name).map(|value| value.duration(name)).transpose();
    let micros = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    let lateness = option("allowed_lateness")?.map_or(0, micros);
    table.event_time = Some((index, lateness));
    Ok(Some(TableWatermark {
        column: index,
        expression,
        ahead_max: micros(option("watermark_max_ahead")?.unwrap_or(AHEAD_MAX)),
        idle_timeout: option("idle_timeout")?.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX)),
        drift_max: option("max_drift")?.map(micros),
    }))
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
    refuse_late_of_tables(relations, &create.query)?;
    let standing = sql::Standing::new(create.emit, create.state_ttl.as_ref())?;
    let mut planned = sql::plan_view(&relations.state(), &create.query, &create.columns, standing, relations).await?;
    if create.fail_on_error {
        planned.plan.on_error = crate::exec::plan::OnError::Fail;
    }
    if let Some(time) = &create.retain_history {
        let kept = time.duration("retain_history").map_err(|error| error.position_or(Some(time.position)))?;
        planned.plan.retain_millis = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
    }
    if let Some(uri) = &create.state_backend {
        Registry::default().parse(&uri.text).map_err(|error| error.position_or(Some(uri.position)))?;
    }
    let state_backend = create.state_backend.as_ref().map(|uri| uri.text.clone());
    let plan = Arc::new(planned.plan);
    Ok(Defined {
        definition: Definition::MaterializedView(MaterializedView { plan: Arc::clone(&plan) }),
        kind: Some(RelationKind::View { plan, errors: None, late: None, state_backend }),
        source: None,
        depends_on: named_relations(relations, &create.query)?,
        notices: planned.notices,
    })
}

/// A table's late rows are of the views that there are when they are read: nothing can follow them.
pub(crate) fn refuse_late_of_tables(relations: &Relations, query: &ast::Query) -> Result<()> {
    let named = named_relations(relations, query)?;
    let mut named = named.iter().filter_map(|id| relations.catalog().get(*id));
    match named.find(|object| matches!(object.definition, Definition::Late(_))) {
        None => Ok(()),
        Some(object) => Err(Error::unsupported(format!("\"{}\" in a standing query is not supported", object.name))
            .hint("Name the late rows of one view: <view>_late.")),
    }
}

/// The catalog's relations and functions that a query names, plain views included, each once.
pub(crate) fn named_relations(relations: &Relations, query: &ast::Query) -> Result<Vec<RelationId>> {
    // A table in a window's call is a table of the query.
    let mut plain = query.clone();
    sql::rewrite_windows(&mut plain)?;
    let statement = PlannerStatement::Statement(Box::new(ast::Statement::Query(Box::new(plain))));
    let (names, _) = resolve_table_references(&statement, true).map_err(crate::engine::error_of)?;
    let mut found: Vec<RelationId> = names
        .iter()
        .filter_map(|name| {
            let (catalog, schema) = (relations.catalog(), name.schema());
            let inside = || operators::job_named(catalog, schema, name.table()).map(|(job, _)| job);
            catalog.find(schema, name.table()).or_else(inside)
        })
        .map(|object| object.id)
        .collect();
    found.extend(functions::called(relations.catalog(), query));
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
