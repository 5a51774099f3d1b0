//! The catalog as DataFusion sees it while one statement runs.
//!
//! All names of a statement resolve in one version of the catalog, and all its scans read through
//! one pin, so that the statement sees one time. Planning comes first and needs no pin; the pin is
//! put in when the plan has told which relations it reads.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider, Session, TableProvider};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, TableReference};
use datafusion::datasource::{TableType, source_as_provider};
use datafusion::error::DataFusionError;
use datafusion::execution::SessionState;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown, utils::conjunction};
use datafusion::physical_plan::ExecutionPlan;

use crate::catalog::{Catalog, DEFAULT_SCHEMA, Definition, Object, late_schema};
use crate::exec::plan::EventTime;
use crate::exec::relation::lock;
use crate::sql::{self, InsideInfo, RelationInfo};
use crate::types::{Error, RelationId, Result, SqlState, TimeZone};

use super::coordinator::{Inside, OperatorRead, Pin};
use super::database::Engine;
use super::operator_table::OperatorTable;
use super::pending::Pending;
use super::settings::Settings;
use super::{functions, lookup, operators, pg_catalog, scan_exec, sink_ddl, system_tables};

/// The catalog's name in DataFusion's terms: the one database.
pub(crate) const DATABASE: &str = "clink";

/// The schema of rows that a statement works on besides the catalog's relations.
pub(crate) const ROWS_SCHEMA: &str = "__statement";

/// How deep plain views may stand on each other.
const VIEW_DEPTH_MAX: usize = 32;

/// The names of a statement and the time at which they are read.
#[derive(Clone)]
pub(crate) struct Relations {
    engine: Arc<Engine>,
    catalog: Arc<Catalog>,
    base: Arc<SessionState>,
    pin: Arc<OnceLock<Arc<Pin>>>,
    /// Reads of operators that were begun and are not taken.
    reads: Arc<Mutex<Vec<OperatorRead>>>,
    rows: Arc<BTreeMap<String, Arc<dyn TableProvider>>>,
    pending: Arc<Pending>,
    zone: TimeZone,
    user: Arc<str>,
    /// The session's, where the statement reads them.
    settings: Option<Arc<Settings>>,
    depth: usize,
}

impl fmt::Debug for Relations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relations").field("depth", &self.depth).finish_non_exhaustive()
    }
}

impl Relations {
    /// The relations of a version of the catalog.
    pub(crate) fn new(engine: &Arc<Engine>, catalog: Arc<Catalog>) -> Relations {
        Relations {
            engine: Arc::clone(engine),
            catalog,
            base: engine.base_state(),
            pin: Arc::default(),
            reads: Arc::default(),
            rows: Arc::default(),
            pending: Arc::default(),
            zone: TimeZone::utc(),
            user: Arc::from(DATABASE),
            settings: None,
            depth: 0,
        }
    }

    /// The same with tables of rows, named in [`ROWS_SCHEMA`].
    pub(crate) fn with_rows(mut self, rows: BTreeMap<String, Arc<dyn TableProvider>>) -> Relations {
        self.rows = Arc::new(rows);
        self
    }

    /// The same with the changes of a transaction block on its tables.
    pub(crate) fn with_pending(mut self, pending: Arc<Pending>) -> Relations {
        self.pending = pending;
        self
    }

    /// The same in a session with a time zone.
    pub(crate) fn with_zone(mut self, zone: TimeZone) -> Relations {
        self.zone = zone;
        self
    }

    /// The same in a session with settings, where a statement reads them.
    pub(crate) fn with_settings(mut self, settings: &Settings) -> Relations {
        self.settings = Some(Arc::new(settings.clone()));
        self
    }

    /// The same in a session of a user.
    pub(crate) fn with_user(mut self, user: &Arc<str>) -> Relations {
        self.user = Arc::clone(user);
        self
    }

    /// A state for planning in which the statement's names resolve.
    pub(crate) fn state(&self) -> SessionState {
        let mut state = SessionStateBuilder::new_from_existing(self.base.as_ref().clone())
            .with_catalog_list(Arc::new(Database(self.clone())))
            .build();
        functions::register(&self.catalog, &mut state);
        if !self.zone.is_utc() || self.user.as_ref() != DATABASE {
            sql::set_zone(state.config_mut().options_mut(), &self.zone, &self.user);
        }
        let known = sql::KnownRelations(Arc::new(self.clone()));
        state.config_mut().set_extension(Arc::new(known));
        // The time that now() gives, for the whole statement: by the clock that views follow.
        if self.depth == 0 {
            state.mark_start_execution();
            let now = chrono::DateTime::from_timestamp_micros(self.engine.env().now_micros());
            state.execution_props_mut().query_execution_start_time = now;
        }
        state
    }

    /// The version of the catalog.
    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Sets the time that is read. The first one stays.
    pub(crate) fn set_pin(&self, pin: Arc<Pin>) {
        // A second pin would be of the same statement; the first one is as good.
        let _ = self.pin.set(pin);
    }

    /// The time that is read, when it is set.
    pub(crate) fn pin(&self) -> Option<&Arc<Pin>> {
        self.pin.get()
    }

    /// Sets the reads of operators that were begun for the statement.
    pub(crate) fn set_reads(&self, reads: Vec<OperatorRead>) {
        *lock(&self.reads) = reads;
    }

    /// One of those reads, of this part; each once.
    pub(crate) fn take_read(&self, inside: &Inside) -> Option<OperatorRead> {
        let mut reads = lock(&self.reads);
        let at = reads.iter().position(|read| read.inside() == inside)?;
        Some(reads.swap_remove(at))
    }

    /// Refuses to read what the transaction block's own changes are not in.
    ///
    /// # Errors
    /// 0A000 when there are some.
    pub(crate) fn refuse_own_changes(&self, what: &str) -> Result<(), DataFusionError> {
        if self.pending.is_empty() { Ok(()) } else { Err(sql::to_datafusion(own_changes(what))) }
    }

    fn relation(&self, object: &Arc<Object>) -> Option<Arc<dyn TableProvider>> {
        let schema = object.row_schema()?;
        // Rows that cannot be read are kept from the first job on the table on.
        let outside = (object.is_external() && object.key().is_empty())
            || (matches!(object.definition, Definition::Errors(_))
                && self.engine.coordinator().status(object.id).is_none());
        Some(Arc::new(Relation { object: Arc::clone(object), schema, relations: self.clone(), outside }))
    }

    async fn table(&self, schema: &str, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        if schema == ROWS_SCHEMA {
            return Ok(self.rows.get(name).map(Arc::clone));
        }
        if pg_catalog::has_schema(schema) {
            if (schema, name) == (pg_catalog::PG_CATALOG, "pg_settings") {
                let settings = self.settings.as_deref().cloned().unwrap_or_default();
                return pg_catalog::settings_table(&settings).map(Some);
            }
            return pg_catalog::table(&self.catalog, schema, name);
        }
        if schema == system_tables::SCHEMA {
            return system_tables::provider(&self.engine, name);
        }
        let Some(object) = self.catalog.find(Some(schema), name) else {
            let found = operators::named_part(&self.catalog, schema, name)?;
            return Ok(found.map(|found| Arc::new(OperatorTable::new(found, self.clone())) as Arc<dyn TableProvider>));
        };
        match &object.definition {
            Definition::Broken(error) => Err(broken(object, error)),
            Definition::Function(_) => Ok(None),
            Definition::Sink(_) => Err(Error::new(
                SqlState::WrongObjectType,
                format!("\"{}\" is a sink: its rows are outside", object.name),
            )
            .hint("Read the relation that it writes out.")),
            Definition::Table(_) if object.is_external() && !self.engine.has_source(object.id) => {
                sink_ddl::open_written(&self.engine, self, object).await?;
                Ok(self.relation(object))
            }
            Definition::Errors(of) => match self.catalog.get(*of).map(|of| (of, &of.definition)) {
                Some((of, Definition::Broken(error))) => Err(broken(of, error)),
                _ => Ok(self.relation(object)),
            },
            Definition::Table(_)
            | Definition::MaterializedView(_)
            | Definition::RowErrors(_)
            | Definition::LateRows(_) => Ok(self.relation(object)),
            Definition::Late(of) => {
                let query = sql::query(&self.late_query(*of))?;
                let plan = sql::plan_plain_view(&self.state(), &query, &[]).await?;
                let schema = Arc::new(plan.schema().as_arrow().clone());
                Ok(Some(Arc::new(PlainView { plan, schema })))
            }
            Definition::View(view) => {
                if self.depth >= VIEW_DEPTH_MAX {
                    return Err(Error::new(
                        SqlState::StatementTooComplex,
                        format!("views are nested more than {VIEW_DEPTH_MAX} deep at \"{}\"", object.name),
                    )
                    .hint("Make one of them a materialized view."));
                }
                let mut inner = self.clone();
                inner.depth += 1;
                // A definition means the same in every session.
                inner.zone = TimeZone::utc();
                let state = inner.state();
                let mut plan = sql::plan_plain_view(&state, &view.query, &view.column_names).await?;
                if !self.zone.is_utc() {
                    // Its constants become values here, before the session's zone can get at them.
                    plan = state.optimize(&plan).map_err(crate::engine::error_of)?;
                }
                let schema = Arc::new(plan.schema().as_arrow().clone());
                Ok(Some(Arc::new(PlainView { plan, schema })))
            }
        }
    }
}

impl Relations {
    /// What gives the late rows of all that stands on a table.
    fn late_query(&self, table: RelationId) -> String {
        let schema = late_schema();
        let names: Vec<&str> = schema.fields().iter().skip(1).map(|field| field.name().as_str()).collect();
        let columns = names.iter().map(|name| sql::quoted_name(name)).collect::<Vec<_>>().join(", ");
        let jobs = self.catalog.dependents(&[table]);
        let branches = jobs.iter().filter_map(|job| job.late_object().map(|late| (job, late))).map(|(job, late)| {
            format!(
                "SELECT '{}' AS view, {columns} FROM {}.{}",
                job.name.replace('\'', "''"),
                sql::quoted_name(&late.schema),
                sql::quoted_name(&late.name)
            )
        });
        let branches: Vec<String> = branches.collect();
        if branches.is_empty() {
            let nothing = schema.fields().iter().map(|field| {
                format!("CAST(NULL AS {}) AS {}", sql::sql_name(field.data_type()), sql::quoted_name(field.name()))
            });
            return format!("SELECT {} WHERE false", nothing.collect::<Vec<_>>().join(", "));
        }
        branches.join(" UNION ALL ")
    }
}

impl sql::Resolver for Relations {
    fn relation(&self, table: &TableReference) -> Option<RelationInfo> {
        relation_info(self.catalog.find(table.schema(), table.table())?)
    }

    fn inside(&self, table: &TableReference) -> Result<Option<InsideInfo>> {
        operators::as_input(&self.catalog, table.schema().unwrap_or(DEFAULT_SCHEMA), table.table())
    }
}

/// A relation as the planner of a view sees it; `None` when it has no rows.
pub(crate) fn relation_info(object: &Arc<Object>) -> Option<RelationInfo> {
    Some(RelationInfo {
        id: object.id,
        schema: object.row_schema()?,
        key: object.key().to_vec(),
        append_only: object.append_only(),
        event_times: event_times(object),
        keeps_times: matches!(object.definition, Definition::Table(_)) && !object.is_external(),
        // Tables and views are what they are, and a file has an end.
        bounded: true,
    })
}

/// The columns of event time of a relation, and what is known of them.
fn event_times(object: &Object) -> Vec<(usize, EventTime)> {
    match &object.definition {
        Definition::Table(table) => {
            let of = |(column, lateness)| (column, EventTime::of(object.id, column, lateness));
            table.event_time.map(of).into_iter().collect()
        }
        Definition::MaterializedView(view) => {
            let of = |(column, time): &(usize, EventTime)| {
                let EventTime { size, end, .. } = *time;
                (*column, EventTime { size, end, ..EventTime::of(object.id, *column, 0) })
            };
            view.plan.event_times.iter().map(of).collect()
        }
        _ => Vec::new(),
    }
}

/// The error of reading an object whose text could not be planned at open.
pub(crate) fn broken(object: &Object, reason: &Error) -> Error {
    let kind = object.kind;
    Error::new(
        SqlState::ObjectNotReady,
        format!("{} \"{}\" could not be brought back: {reason}", kind.name(), object.name),
    )
    .hint(format!(
        "SHOW CREATE {} {} gives its text; DROP it and create it again.",
        kind.keyword(),
        object.qualified_name()
    ))
}

/// The relations with kept rows that a plan reads, subqueries included, each once.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn kept_relations(plan: &LogicalPlan) -> Result<Vec<RelationId>> {
    let mut found = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(relation) = provider.downcast_ref::<Relation>()
            && !relation.outside
            && !found.contains(&relation.object.id)
        {
            found.push(relation.object.id);
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(crate::engine::error_of)?;
    Ok(found)
}

/// How scans of a plan find their rows, where not by a walk over all: a line for each.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn found_by(plan: &LogicalPlan) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Ok(provider) = source_as_provider(&scan.source)
            && let Some(Relation { object, schema, outside: false, .. }) = provider.downcast_ref::<Relation>()
        {
            let (name, columns) = (object.qualified_name(), object.index_columns());
            if lookup::keys(schema, object.key(), &scan.filters)?.is_some() {
                lines.push(format!("{name}: found by key"));
            } else if let Some(narrow) = lookup::narrow(schema, &columns, &scan.filters)? {
                let index = object.indexes.iter().zip(&columns).find(|(_, columns)| **columns == narrow.columns);
                lines.extend(index.map(|(index, _)| format!("{name}: found by index {}", index.name)));
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .map_err(crate::engine::error_of)?;
    Ok(lines)
}

/// `clink`, the only catalog.
#[derive(Debug)]
struct Database(Relations);

impl CatalogProviderList for Database {
    fn register_catalog(&self, _: String, _: Arc<dyn CatalogProvider>) -> Option<Arc<dyn CatalogProvider>> {
        None
    }

    fn catalog_names(&self) -> Vec<String> {
        vec![DATABASE.to_owned()]
    }

    fn catalog(&self, name: &str) -> Option<Arc<dyn CatalogProvider>> {
        (name == DATABASE).then(|| Arc::new(Schemas(self.0.clone())) as Arc<dyn CatalogProvider>)
    }
}

/// The schemas of the database.
#[derive(Debug)]
struct Schemas(Relations);

impl CatalogProvider for Schemas {
    fn schema_names(&self) -> Vec<String> {
        self.0.catalog.schemas().map(str::to_owned).collect()
    }

    fn schema(&self, name: &str) -> Option<Arc<dyn SchemaProvider>> {
        let there = name == ROWS_SCHEMA
            || self.0.catalog.has_schema(name)
            || pg_catalog::has_schema(name)
            || name == system_tables::SCHEMA;
        there.then(|| Arc::new(Names { relations: self.0.clone(), schema: name.to_owned() }) as Arc<dyn SchemaProvider>)
    }
}

/// The names of one schema.
#[derive(Debug)]
struct Names {
    relations: Relations,
    schema: String,
}

#[async_trait]
impl SchemaProvider for Names {
    fn table_names(&self) -> Vec<String> {
        if self.schema == system_tables::SCHEMA {
            return system_tables::names().map(str::to_owned).collect();
        }
        self.relations.catalog.names(&self.schema).map(str::to_owned).collect()
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>, DataFusionError> {
        self.relations.table(&self.schema, name).await.map_err(sql::to_datafusion)
    }

    fn table_exist(&self, name: &str) -> bool {
        self.relations.catalog.find(Some(&self.schema), name).is_some()
            || (self.schema == ROWS_SCHEMA && self.relations.rows.contains_key(name))
            || (self.schema == system_tables::SCHEMA && system_tables::find(name).is_some())
            || operators::job_named(&self.relations.catalog, Some(&self.schema), name).is_some()
    }
}

/// A plain view: DataFusion puts its plan where the name stands.
struct PlainView {
    plan: LogicalPlan,
    schema: SchemaRef,
}

impl fmt::Debug for PlainView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainView").finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for PlainView {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    fn get_logical_plan(&self) -> Option<Cow<'_, LogicalPlan>> {
        Some(Cow::Borrowed(&self.plan))
    }

    async fn scan(
        &self,
        _: &dyn Session,
        _: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        Err(sql::to_datafusion(Error::internal("a plain view was scanned instead of put in")))
    }
}

/// A table or a materialized view.
#[derive(Debug)]
struct Relation {
    object: Arc<Object>,
    schema: SchemaRef,
    relations: Relations,
    /// No worker keeps the rows: they are read where they are.
    outside: bool,
}

#[async_trait]
impl TableProvider for Relation {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// The workers apply filters over kept rows; a connector's rows are filtered above the scan.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>, DataFusionError> {
        filters
            .iter()
            .map(|filter| {
                let above = self.outside || filter.is_volatile() || has_subquery(filter)?;
                Ok(if above { TableProviderFilterPushDown::Unsupported } else { TableProviderFilterPushDown::Exact })
            })
            .collect()
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let columns = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        if self.outside {
            let (table, errors) = match self.object.definition {
                Definition::Errors(of) => (of, true),
                _ => (self.object.id, false),
            };
            let source = self.relations.engine.source(table).map_err(sql::to_datafusion)?;
            return scan_exec::external(source, errors, columns, limit);
        }
        let Some(pin) = self.relations.pin() else {
            return Err(sql::to_datafusion(Error::internal("a relation is scanned before its time is chosen")));
        };
        let pending = self.relations.pending.of(self.object.id);
        if pending.is_none()
            && !self.relations.pending.is_empty()
            && matches!(self.object.definition, Definition::MaterializedView(_))
        {
            return Err(sql::to_datafusion(own_changes(&format!("materialized view \"{}\"", self.object.name))));
        }
        let predicate = match conjunction(filters.iter().cloned()) {
            Some(filter) => {
                let schema = DFSchema::try_from(Arc::clone(&self.schema))?;
                Some(state.create_physical_expr(filter, &schema)?)
            }
            None => None,
        };
        let keys = lookup::keys(&self.schema, self.object.key(), filters)?;
        let narrow = match keys {
            None => lookup::narrow(&self.schema, &self.object.index_columns(), filters)?,
            Some(_) => None,
        };
        let base_columns = if pending.is_some() && columns.is_empty() { vec![0] } else { columns.clone() };
        let base = scan_exec::kept(scan_exec::Kept {
            pin: Arc::clone(pin),
            workers: self.relations.engine.coordinator().workers(),
            relation: self.object.id,
            schema: Arc::clone(&self.schema),
            columns: base_columns.clone(),
            predicate: predicate.clone(),
            keys,
            narrow,
            limit: if pending.is_some() { None } else { limit },
        })?;
        match pending {
            None => Ok(base),
            Some(net) => net.over(base, &base_columns, predicate.as_ref(), Arc::new(self.schema.project(&columns)?)),
        }
    }
}

/// The error of reading what the transaction block's own changes are not in yet.
pub(crate) fn own_changes(what: &str) -> Error {
    Error::unsupported(format!("{what} cannot be read after a change in the same transaction block"))
        .hint("COMMIT first: the block's changes are applied then, all at one time. Or read before changing; RETURNING gives the rows that a statement changed.")
}

fn has_subquery(filter: &Expr) -> Result<bool, DataFusionError> {
    filter.exists(|node| {
        Ok(matches!(
            node,
            Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(_, _)
        ))
    })
}

/// The schema that a name is looked for in.
pub(crate) fn default_schema(schema: Option<&str>) -> &str {
    schema.unwrap_or(DEFAULT_SCHEMA)
}
