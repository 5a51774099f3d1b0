//! Sinks and jobs: `CREATE SINK`, `INSERT INTO` a table with a connector, `PAUSE|RESUME|CANCEL|STOP JOB`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use sqlparser::ast;

use crate::catalog::{self, Definition, Object, SinkDefinition, Table};
use crate::connectors::ConnectorColumn;
use crate::exec::sink::{Sink, SinkInput};
use crate::sql::{self, CreateSink, CreateTable, JobAction, JobCommand, Name, StatementKind};
use crate::types::{Error, RelationId, Result, SqlState};

use super::api::{Answer, Notice, Tag};
use super::checkpoints::savepoint_folder;
use super::coordinator::{RelationKind, RelationState};
use super::database::Engine;
use super::ddl::{self, NewObject, no_object};
use super::define::{self, Defined, named_relations};
use super::dml::assign;
use super::interrupt::Interrupt;
use super::relations::Relations;
use super::session::Session;
use super::sinks::SinkTarget;
use super::table_sink::TableSink;

/// `CREATE SINK`.
///
/// # Errors
/// Those of its query; 42809 and 0A000 when the target cannot take the rows.
pub(crate) async fn create_sink(session: &Session, create: &CreateSink, interrupt: &Interrupt) -> Result<Answer> {
    const TAG: Tag = Tag::Plain("CREATE SINK");
    let turn = ddl::turn(session, interrupt).await?;
    if let Some(notice) = ddl::check_new(&session.engine().catalog(), &create.name, create.if_not_exists)? {
        return Ok(Answer::Done { tag: TAG, notices: vec![notice] });
    }
    let (engine, relations, of) = (Arc::clone(session.engine()), session.definitions(), create.clone());
    let defined = interrupt.run(async move { sink(&engine, &relations, &of).await }).await?;
    if let Some(RelationKind::Sink { target, .. }) = &defined.kind {
        target.sink.check_new().map_err(|error| error.position_or(Some(create.name.position)))?;
    }
    ddl::check_names_beside(&session.engine().catalog(), &create.name, &defined)?;
    let text = sql::show_create_sink(create);
    let created = NewObject { name: &create.name, kind: catalog::ObjectKind::Sink, text };
    let (_, notices) = ddl::install(session, created, defined, turn, interrupt).await?;
    Ok(Answer::Done { tag: TAG, notices })
}

/// What a CREATE SINK statement means.
///
/// # Errors
/// As [`create_sink`].
pub(crate) async fn sink(engine: &Arc<Engine>, relations: &Relations, create: &CreateSink) -> Result<Defined> {
    let state = relations.state();
    if let Some(from) = &create.from
        && relations.catalog().find(from.schema.as_deref(), &from.name).is_none()
    {
        return Err(no_object(relations.catalog(), "relation", from));
    }
    define::refuse_late_of_tables(relations, &create.query)?;
    let standing = sql::Standing::new(create.emit, create.state_ttl.as_ref())?;
    let mut depends_on = named_relations(relations, &create.query)?;
    let mut is_table = false;
    let (planned, sink, connector, table) = match &create.into {
        Some(into) => {
            let (object, table) = target_table(relations, into)?;
            is_table = table.connector.is_none();
            if is_table && feeds(relations.catalog(), object.id, &depends_on) {
                return Err(Error::unsupported(format!("sink \"{}\" would feed itself", create.name.name))
                    .detail(format!("What it writes into \"{}\" comes back to its query.", into.name))
                    .hint("Write into a table that the query does not read, neither by itself nor through sinks.")
                    .position(into.position));
            }
            let query = assigned_query(relations, create, into, table).await?;
            let planned = sql::plan_view(&state, &query, &[], standing, relations).await?;
            let of_table = sink_of(engine, &object, table);
            let (sink, connector) = of_table.map_err(|error| error.position_or(Some(into.position)))?;
            if !depends_on.contains(&object.id) {
                depends_on.push(object.id);
                depends_on.sort_unstable();
            }
            (planned, sink, connector, Some((object.id, required_columns(table))))
        }
        None => {
            let planned = sql::plan_view(&state, &create.query, &[], standing, relations).await?;
            let columns: Vec<ConnectorColumn> = planned
                .plan
                .schema()
                .fields()
                .iter()
                .map(|field| ConnectorColumn {
                    name: field.name().clone(),
                    data_type: field.data_type().clone(),
                    nullable: field.is_nullable(),
                    length_max: None,
                })
                .collect();
            let sink = engine.connectors().open_sink(&create.options, &columns)?;
            let connector = create.options.get("connector").map(|option| option.text.clone()).unwrap_or_default();
            (planned, sink, connector, None)
        }
    };
    let plan = Arc::new(planned.plan);
    if !plan.append_only && sink.accepts() == SinkInput::Appends {
        let refused = Error::unsupported(format!(
            "sink \"{}\" takes inserted rows alone, and the query changes rows that it gave before",
            create.name.name
        ));
        if is_table {
            return Err(refused
                .hint(
                    "Write into a table with a PRIMARY KEY and without APPEND ONLY, whose rows are replaced by key; or \
                     send rows that never change: EMIT ON WINDOW CLOSE behind a query of windows, or one without GROUP BY \
                     and DISTINCT over tables that only grow.",
                )
                .position(create.into.as_ref().unwrap_or(&create.name).position));
        }
        return Err(refused.hint(
            "Keep the result in a materialized view and read that; write the changes out with changelog = 'true'; or \
             send rows that never change: EMIT ON WINDOW CLOSE behind a query of windows, or one without GROUP BY and \
             DISTINCT over tables that only grow.",
        )
        .position(create.into.as_ref().unwrap_or(&create.name).position));
    }
    let (table, required) = table.unzip();
    let target = SinkTarget { sink, required: required.unwrap_or_default(), is_table };
    Ok(Defined {
        definition: Definition::Sink(SinkDefinition { plan: Arc::clone(&plan), connector, table }),
        kind: Some(RelationKind::Sink { plan, target, errors: None, late: None }),
        source: None,
        depends_on,
        notices: planned.notices,
    })
}

/// True when a table is among what some relations read, by themselves or through sinks into tables.
fn feeds(catalog: &catalog::Catalog, table: RelationId, relations: &[RelationId]) -> bool {
    let mut open = relations.to_vec();
    let mut seen = Vec::new();
    while let Some(id) = open.pop() {
        if id == table {
            return true;
        }
        if seen.contains(&id) {
            continue;
        }
        seen.push(id);
        open.extend(catalog.get(id).into_iter().flat_map(|object| object.depends_on.iter().copied()));
        // A sink depends on its table and on what it reads.
        let into = catalog
            .objects()
            .filter(|object| matches!(&object.definition, Definition::Sink(sink) if sink.table == Some(id)));
        open.extend(into.flat_map(|object| object.depends_on.iter().copied()));
    }
    false
}

/// The table that a sink's rows go into.
fn target_table<'a>(relations: &'a Relations, into: &Name) -> Result<(Arc<Object>, &'a Table)> {
    let catalog = relations.catalog();
    let object =
        catalog.find(into.schema.as_deref(), &into.name).ok_or_else(|| no_object(catalog, "relation", into))?;
    match &object.definition {
        Definition::Table(table) => Ok((Arc::clone(object), table)),
        _ => Err(Error::new(
            SqlState::WrongObjectType,
            format!("\"{}\" is a {} and takes no rows", into.name, object.kind.name()),
        )
        .hint("Name a table.")
        .position(into.position)),
    }
}

fn required_columns(table: &Table) -> Vec<usize> {
    table.columns.iter().enumerate().filter(|(_, column)| !column.nullable).map(|(index, _)| index).collect()
}

/// A table's CREATE statement.
fn table_statement(object: &Object) -> Result<CreateTable> {
    match sql::parse(&object.text)?.pop().map(|statement| statement.kind) {
        Some(StatementKind::CreateTable(create)) => Ok(create),
        _ => Err(Error::internal(format!("the text of table {} is of another kind", object.name))),
    }
}

/// Makes a table readable whose place was not there when the table was created.
///
/// # Errors
/// 42809 when its connector only writes; 58P01 when the place is still not there.
pub(crate) async fn open_written(engine: &Arc<Engine>, relations: &Relations, object: &Object) -> Result<()> {
    let create = table_statement(object)?;
    if engine.connectors().is_write_only(&create.options) {
        return Err(Error::new(SqlState::WrongObjectType, format!("table \"{}\" can only be written", object.name))
            .hint("Read the relation that its sink writes out."));
    }
    let defined = define::table(engine, relations, &create).map_err(Error::without_position)?;
    let specs = defined.specs(object.id, object.errors, object.late, &object.qualified_name());
    let Some(source) = defined.source else {
        // Asked again for the reason.
        engine
            .connectors()
            .open(&create.options, &define::connector_columns(&create))
            .map_err(Error::without_position)?;
        return Err(Error::internal(format!("table {} has no source", object.name)));
    };
    engine.set_source(object.id, source);
    for spec in specs {
        engine.coordinator().install(spec).await?;
    }
    Ok(())
}

/// The sink of a table, and its connector's name.
fn sink_of(engine: &Arc<Engine>, object: &Object, table: &Table) -> Result<(Arc<dyn Sink>, String)> {
    if table.connector.is_none() {
        return Ok((Arc::new(TableSink::new(engine, object.id, &object.name, table)), "table".to_owned()));
    }
    let create = table_statement(object)?;
    let columns = define::connector_columns(&create);
    if columns.len() < create.columns.len() {
        return Err(Error::unsupported(format!(
            "table \"{}\" has generated columns and cannot be written",
            object.name
        ))
        .hint("Name a table without them, and compute such columns in the query."));
    }
    // Positions in the table's text mean nothing in this statement.
    let sink = engine.connectors().open_sink(&create.options, &columns).map_err(Error::without_position)?;
    Ok((sink, create.options.get("connector").map(|option| option.text.clone()).unwrap_or_default()))
}

/// The sink's query with its columns assigned to those of the table.
async fn assigned_query(
    relations: &Relations,
    create: &CreateSink,
    into: &Name,
    table: &Table,
) -> Result<Box<ast::Query>> {
    let plan = sql::plan_query(&relations.state(), &create.query).await?;
    let given = plan.schema().fields();
    if given.len() != table.columns.len() {
        return Err(Error::new(
            SqlState::SyntaxError,
            format!("the query has {} columns, but table \"{}\" has {}", given.len(), into.name, table.columns.len()),
        )
        .hint("Select one column for each of the table's, in their order.")
        .position(into.position));
    }
    for (column, field) in table.columns.iter().zip(given.iter()) {
        if *field.data_type() != DataType::Null && !assign::assignable(field.data_type(), &column.data_type) {
            return Err(assign::mismatch(column, field.data_type(), "expression"));
        }
    }
    let columns: Vec<(String, String)> = table
        .columns
        .iter()
        .map(|column| {
            // The length is checked where the row is written, not cut off here.
            let sql_type = if column.length_max.is_some() { "text".to_owned() } else { column.sql_type.clone() };
            (column.name.clone(), sql_type)
        })
        .collect();
    sql::assigned(&create.query, &columns)
}

/// `INSERT INTO` a table with a connector: a standing job without a name of its own. `None` when the
/// target is another one.
///
/// # Errors
/// As [`create_sink`]; 0A000 for clauses that need to read the target.
pub(crate) async fn insert(session: &Session, insert: &ast::Insert, interrupt: &Interrupt) -> Result<Option<Answer>> {
    let ast::TableObject::TableName(name) = &insert.table else { return Ok(None) };
    let into = sql::object_name(name)?;
    let catalog = session.engine().catalog();
    let Some(object) = catalog.find(into.schema.as_deref(), &into.name) else { return Ok(None) };
    let Definition::Table(table) = &object.definition else { return Ok(None) };
    if table.connector.is_none() {
        return Ok(None);
    }
    if session.block().is_some() {
        return Err(Error::unsupported("starting a job in a transaction block is not supported")
            .hint("COMMIT first: INSERT into a table with a connector starts a job.")
            .position(into.position));
    }
    let refused = |what: &str| {
        Error::unsupported(format!("{what} of an INSERT into a table with a connector is not supported"))
            .hint("Write INSERT INTO t SELECT …: it starts a job that writes whatever the query gives.")
            .position(into.position)
    };
    if insert.on.is_some() {
        return Err(refused("ON CONFLICT"));
    }
    if insert.returning.is_some() {
        return Err(refused("RETURNING"));
    }
    let Some(source) = &insert.source else { return Err(refused("DEFAULT VALUES")) };
    // Printed anew, since the query's own text may begin before what its tokens say.
    let written = source.to_string();
    if sql::query(&written).ok().as_ref() != Some(source) {
        return Err(refused("this form"));
    }
    let query_text = match insert.columns.as_slice() {
        [] => written,
        listed => listed_query(table, listed, &written)?,
    };
    let id = session.engine().catalog_store().next_id();
    let name = Name { schema: into.schema.clone(), name: format!("insert_into_{}_{id}", into.name), position: 1 };
    let create = CreateSink {
        name: name.clone(),
        if_not_exists: false,
        into: Some(into),
        from: None,
        options: Default::default(),
        state_ttl: None,
        query: sql::query(&query_text)?,
        query_text,
        emit: sql::Emit::Changes,
    };
    let Answer::Done { mut notices, .. } = create_sink(session, &create, interrupt).await? else {
        return Err(Error::internal("CREATE SINK gave rows"));
    };
    notices.push(Notice {
        message: format!("job \"{}\" ({id}) writes what the query gives from now on", name.name),
        hint: Some(format!("CANCEL JOB {} ends it.", name.name)),
    });
    Ok(Some(Answer::Done { tag: Tag::Insert(0), notices }))
}

/// The query of `INSERT INTO t (columns) query` with a column for each of the table's.
fn listed_query(table: &Table, listed: &[ast::ObjectName], written: &str) -> Result<String> {
    let mut places = Vec::new();
    for column in listed {
        let name = sql::object_name(column)?;
        if !table.columns.iter().any(|column| column.name == name.name) {
            return Err(Error::new(SqlState::UndefinedColumn, format!("column \"{}\" does not exist", name.name))
                .hint(format!(
                    "The table has {}.",
                    table.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>().join(", ")
                ))
                .position(name.position));
        }
        places.push(name.name);
    }
    let items: Vec<String> = table
        .columns
        .iter()
        .map(|column| match places.iter().position(|name| *name == column.name) {
            Some(index) => format!("c{index}"),
            None => "NULL".to_owned(),
        })
        .collect();
    let names: Vec<String> = (0..places.len()).map(|index| format!("c{index}")).collect();
    Ok(format!("SELECT {} FROM ({written}) AS q({})", items.join(", "), names.join(", ")))
}

/// `PAUSE|RESUME|CANCEL JOB`.
///
/// # Errors
/// 42P01 when there is no such relation, 42809 when no job keeps it, 55000 when it is in another state.
pub(crate) async fn job(session: &Session, command: &JobCommand, interrupt: &Interrupt) -> Result<Answer> {
    let turn = ddl::turn(session, interrupt).await?;
    let catalog = session.engine().catalog();
    let name = &command.name;
    let object =
        catalog.find(name.schema.as_deref(), &name.name).cloned().ok_or_else(|| no_object(&catalog, "job", name))?;
    let sink = object.kind == catalog::ObjectKind::Sink;
    let keeps_source = object.is_external() && !object.key().is_empty();
    if !sink && !keeps_source && object.kind != catalog::ObjectKind::MaterializedView {
        return Err(Error::new(
            SqlState::WrongObjectType,
            format!("no job keeps {} \"{}\"", object.kind.name(), name.name),
        )
        .hint(
            "SHOW JOBS lists the jobs: materialized views, sinks, and tables with a connector and a primary key have one.",
        )
        .position(name.position));
    }
    let engine = Arc::clone(session.engine());
    let state = engine.coordinator().status(object.id).map(|status| status.state);
    match command.action {
        JobAction::Pause => {
            engine.coordinator().pause(object.id)?;
            Ok(Answer::Done { tag: Tag::Plain("PAUSE JOB"), notices: Vec::new() })
        }
        JobAction::Resume => {
            match state {
                Some(RelationState::Failed(_) | RelationState::Paused) => {}
                Some(RelationState::Blocked(on, _)) => {
                    let on = catalog.get(on).map_or_else(|| on.to_string(), |object| object.qualified_name());
                    return Err(Error::new(
                        SqlState::ObjectNotReady,
                        format!("job \"{}\" waits for {on}, which has stopped", name.name),
                    )
                    .hint(format!("RESUME JOB {on} starts both."))
                    .position(name.position));
                }
                _ => {
                    let notice = Notice { message: format!("job \"{}\" runs already", name.name), hint: None };
                    return Ok(Answer::Done { tag: Tag::Plain("RESUME JOB"), notices: vec![notice] });
                }
            }
            interrupt
                .finish(async move {
                    let _turn = turn;
                    engine.coordinator().resume(&[object.id]).await
                })
                .await?;
            Ok(Answer::Done { tag: Tag::Plain("RESUME JOB"), notices: Vec::new() })
        }
        JobAction::Stop => {
            let folder = command
                .savepoint
                .as_ref()
                .map(|uri| savepoint_folder(&uri.text).map_err(|error| error.position_or(Some(uri.position))));
            let folder = folder.transpose()?;
            interrupt
                .finish(async move {
                    let _turn = turn;
                    if let Some(folder) = folder {
                        engine.savepoint(folder).await?;
                    }
                    engine.coordinator().pause(object.id)
                })
                .await?;
            Ok(Answer::Done { tag: Tag::Plain("STOP JOB"), notices: Vec::new() })
        }
        JobAction::Cancel if sink => {
            interrupt
                .finish(async move {
                    let _turn = turn;
                    ddl::remove(&engine, vec![object.id], Vec::new()).await
                })
                .await?;
            Ok(Answer::Done { tag: Tag::Plain("CANCEL JOB"), notices: Vec::new() })
        }
        JobAction::Cancel => {
            let kind = object.kind;
            Err(Error::new(SqlState::WrongObjectType, format!("job \"{}\" keeps a {}", name.name, kind.name()))
                .hint(format!("DROP {} {1} ends it; PAUSE JOB {1} stops it for a while.", kind.keyword(), name.name))
                .position(name.position))
        }
    }
}
