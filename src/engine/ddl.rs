//! CREATE and DROP.
//!
//! One statement at a time holds the lock from looking at the catalog to changing it. The order is:
//! plan, catalog log, coordinator. What changes anything runs on a task of its own that owns the
//! lock, so a client that goes away leaves no half of it. A crash between log and coordinator is
//! mended at open, which installs what the log has.

use std::sync::Arc;

use tokio::sync::OwnedMutexGuard;

use crate::catalog::{self, Catalog, Change, DEFAULT_SCHEMA, Object, RESERVED_SCHEMAS, near_miss};
use crate::sql::{self, CreateMaterializedView, CreateTable, CreateView, Drop as DropStatement, Name, ObjectKind};
use crate::types::{Error, RelationId, Result, SqlState};

use super::api::{Answer, Notice, Tag};
use super::database::Engine;
use super::define::{self, Defined};
use super::functions;
use super::interrupt::Interrupt;
use super::relations::default_schema;
use super::session::Session;

/// The right to change the catalog.
pub(super) type Turn = OwnedMutexGuard<()>;

/// `CREATE TABLE`.
pub(crate) async fn create_table(session: &Session, create: &CreateTable, interrupt: &Interrupt) -> Result<Answer> {
    let tag = Tag::Plain(if create.source { "CREATE SOURCE" } else { "CREATE TABLE" });
    let turn = turn(session, interrupt).await?;
    if let Some(notice) = check_new(&session.engine().catalog(), &create.name, create.if_not_exists)? {
        return Ok(Answer::Done { tag, notices: vec![notice] });
    }
    // A connector looks at its place outside, which may block.
    let create = &define::typed_columns(&session.definitions(), create)?;
    let (engine, relations, of) = (Arc::clone(session.engine()), session.definitions(), create.clone());
    let defined = interrupt
        .run(async move {
            let make = move || {
                let defined = define::table(&engine, &relations, &of)?;
                if let (Some(opened), catalog::Definition::Table(table)) = (&defined.source, &defined.definition) {
                    opened.source.check(&table.key)?;
                }
                Ok(defined)
            };
            tokio::task::spawn_blocking(make)
                .await
                .unwrap_or_else(|error| Err(Error::internal(format!("a task ended: {error}"))))
        })
        .await?;
    check_names_beside(&session.engine().catalog(), &create.name, &defined)?;
    let text = sql::show_create::table(create);
    let created = NewObject { name: &create.name, kind: catalog::ObjectKind::Table, text };
    let (_, notices) = install(session, created, defined, turn, interrupt).await?;
    Ok(Answer::Done { tag, notices })
}

/// `CREATE VIEW`.
pub(crate) async fn create_view(session: &Session, create: &CreateView, interrupt: &Interrupt) -> Result<Answer> {
    const TAG: Tag = Tag::Plain("CREATE VIEW");
    let turn = turn(session, interrupt).await?;
    if let Some(notice) = check_new(&session.engine().catalog(), &create.name, create.if_not_exists)? {
        return Ok(Answer::Done { tag: TAG, notices: vec![notice] });
    }
    let (relations, of) = (session.definitions(), create.clone());
    let defined = interrupt.run(async move { define::view(&relations, &of).await }).await?;
    let text = sql::show_create::view(create);
    let created = NewObject { name: &create.name, kind: catalog::ObjectKind::View, text };
    let (_, notices) = install(session, created, defined, turn, interrupt).await?;
    Ok(Answer::Done { tag: TAG, notices })
}

/// `CREATE MATERIALIZED VIEW`: answers when the history is in, unless in the background.
pub(crate) async fn create_materialized_view(
    session: &Session,
    create: &CreateMaterializedView,
    interrupt: &Interrupt,
) -> Result<Answer> {
    const TAG: Tag = Tag::Plain("CREATE MATERIALIZED VIEW");
    let turn = turn(session, interrupt).await?;
    if let Some(notice) = check_new(&session.engine().catalog(), &create.name, create.if_not_exists)? {
        return Ok(Answer::Done { tag: TAG, notices: vec![notice] });
    }
    let (relations, of) = (session.definitions(), create.clone());
    let defined = interrupt.run(async move { define::materialized_view(&relations, &of).await }).await?;
    check_names_beside(&session.engine().catalog(), &create.name, &defined)?;
    let text = sql::show_create::materialized_view(create);
    let created = NewObject { name: &create.name, kind: catalog::ObjectKind::MaterializedView, text };
    let (id, notices) = install(session, created, defined, turn, interrupt).await?;
    if !create.background {
        let mut removal = Removal { engine: Some(Arc::clone(session.engine())), id };
        let coordinator = session.engine().coordinator();
        if let Err(error) = interrupt.guard(coordinator.filled(id)).await {
            removal.now(interrupt).await?;
            return Err(error);
        }
        removal.engine = None;
    }
    Ok(Answer::Done { tag: TAG, notices })
}

/// `CREATE SCHEMA`.
pub(crate) async fn create_schema(
    session: &Session,
    name: &Name,
    if_not_exists: bool,
    interrupt: &Interrupt,
) -> Result<Answer> {
    const TAG: Tag = Tag::Plain("CREATE SCHEMA");
    let turn = turn(session, interrupt).await?;
    let schema = &name.name;
    check_reserved(schema, name.position)?;
    if session.engine().catalog().has_schema(schema) {
        let message = format!("schema \"{schema}\" already exists");
        if if_not_exists {
            let notice = Notice { message: format!("{message}, skipping"), hint: None };
            return Ok(Answer::Done { tag: TAG, notices: vec![notice] });
        }
        return Err(Error::new(SqlState::DuplicateSchema, message)
            .hint("CREATE SCHEMA IF NOT EXISTS leaves it as it is.")
            .position(name.position));
    }
    let change = Change::CreateSchema { schema: schema.clone() };
    let engine = Arc::clone(session.engine());
    interrupt
        .finish(async move {
            let _turn: Turn = turn;
            log(&engine, change).await
        })
        .await?;
    Ok(Answer::Done { tag: TAG, notices: Vec::new() })
}

/// `DROP`.
pub(crate) async fn drop(session: &Session, drop: &DropStatement, interrupt: &Interrupt) -> Result<Answer> {
    let turn = turn(session, interrupt).await?;
    let catalog = session.engine().catalog();
    let mut notices = Vec::new();
    let (named, schemas) = match drop.kind {
        ObjectKind::Schema => find_schemas(&catalog, drop, &mut notices)?,
        ObjectKind::Table => (find_objects(&catalog, drop, catalog::ObjectKind::Table, &mut notices)?, Vec::new()),
        ObjectKind::Function => (functions::dropped(&catalog, drop, &mut notices)?, Vec::new()),
        ObjectKind::Sink => (find_objects(&catalog, drop, catalog::ObjectKind::Sink, &mut notices)?, Vec::new()),
        ObjectKind::View => (find_objects(&catalog, drop, catalog::ObjectKind::View, &mut notices)?, Vec::new()),
        ObjectKind::MaterializedView => {
            (find_objects(&catalog, drop, catalog::ObjectKind::MaterializedView, &mut notices)?, Vec::new())
        }
    };
    let mut ids: Vec<RelationId> = named.iter().flat_map(|object| with_errors(object)).collect();
    let mut dependents = catalog.dependents(&ids);
    if !schemas.is_empty() {
        // What is in a schema goes with it as what depends on it does.
        let members = catalog.objects().filter(|object| schemas.contains(&object.schema)).cloned();
        let members: Vec<Arc<Object>> = members.collect();
        let member_ids: Vec<RelationId> = members.iter().map(|object| object.id).collect();
        dependents = catalog.dependents(&member_ids);
        dependents.extend(members);
        dependents.sort_unstable_by_key(|object| object.id);
    }
    ids.extend(dependents.iter().flat_map(|object| with_errors(object)));
    // Whoever drops a table knows that its errors and late rows go with it.
    dependents.retain(|object| !matches!(object.kind, catalog::ObjectKind::Errors | catalog::ObjectKind::Late));
    if !dependents.is_empty() {
        if !drop.cascade {
            return Err(has_dependents(&catalog, drop, &named, &schemas, &dependents));
        }
        functions::check_tables(&dependents, &schemas)
            .map_err(|error| error.position_or(drop.names.first().map(|name| name.position)))?;
        notices.push(cascades_to(&dependents));
    }
    ids.sort_unstable();
    ids.dedup();
    let tag = Tag::Plain(match drop.kind {
        ObjectKind::Table if drop.source => "DROP SOURCE",
        ObjectKind::Table => "DROP TABLE",
        ObjectKind::View => "DROP VIEW",
        ObjectKind::MaterializedView => "DROP MATERIALIZED VIEW",
        ObjectKind::Sink => "DROP SINK",
        ObjectKind::Schema => "DROP SCHEMA",
        ObjectKind::Function => "DROP FUNCTION",
    });
    if !ids.is_empty() || !schemas.is_empty() {
        let engine = Arc::clone(session.engine());
        interrupt
            .finish(async move {
                let _turn: Turn = turn;
                remove(&engine, ids, schemas).await
            })
            .await?;
    }
    Ok(Answer::Done { tag, notices })
}

pub(super) async fn turn(session: &Session, interrupt: &Interrupt) -> Result<Turn> {
    let lock = Arc::clone(session.engine().ddl());
    interrupt.guard(async move { Ok(lock.lock_owned().await) }).await
}

/// Checks that a name is free; a notice when it is not and that is all right.
pub(super) fn check_new(catalog: &Catalog, name: &Name, if_not_exists: bool) -> Result<Option<Notice>> {
    let schema = check_schema(catalog, name)?;
    let Some(object) = catalog.find(Some(schema), &name.name) else {
        return Ok(None);
    };
    let message = format!("relation \"{}\" already exists", name.name);
    if if_not_exists {
        return Ok(Some(Notice { message: format!("{message}, skipping"), hint: None }));
    }
    let hint = match object.kind {
        catalog::ObjectKind::Late => "It has the rows that came too late; use another name.".to_owned(),
        catalog::ObjectKind::Errors => "It has the rows of a table that cannot be read; use another name.".to_owned(),
        kind => format!("It is a {}; DROP {} {} removes it.", kind.name(), kind.keyword(), object.name),
    };
    Err(Error::new(SqlState::DuplicateTable, message).hint(hint).position(name.position))
}

/// The schema that an object is made in.
///
/// # Errors
/// 3F000; 0A000 for one that users have nothing in.
pub(super) fn check_schema<'a>(catalog: &Catalog, name: &'a Name) -> Result<&'a str> {
    let schema = default_schema(name.schema.as_deref());
    check_reserved(schema, name.position)?;
    if !catalog.has_schema(schema) {
        return Err(no_schema(catalog, schema, name.position));
    }
    Ok(schema)
}

fn check_reserved(schema: &str, position: usize) -> Result<()> {
    if RESERVED_SCHEMAS.contains(&schema) || schema.starts_with("__") {
        return Err(Error::unsupported(format!("schema \"{schema}\" is reserved"))
            .hint("Use another schema, such as public.")
            .position(position));
    }
    Ok(())
}

fn no_schema(catalog: &Catalog, schema: &str, position: usize) -> Error {
    let hint = match near_miss(schema, catalog.schemas()) {
        Some(near) => format!("Perhaps you meant schema \"{near}\"."),
        None => format!("CREATE SCHEMA {schema} makes it."),
    };
    Error::new(SqlState::UndefinedSchema, format!("schema \"{schema}\" does not exist")).hint(hint).position(position)
}

/// The error of a name that no object has.
pub(crate) fn no_object(catalog: &Catalog, kind: &str, name: &Name) -> Error {
    let schema = default_schema(name.schema.as_deref());
    if !catalog.has_schema(schema) && !RESERVED_SCHEMAS.contains(&schema) {
        return no_schema(catalog, schema, name.position);
    }
    let hint = match near_miss(&name.name, catalog.names(schema)) {
        Some(near) => format!("Perhaps you meant \"{near}\"."),
        None if kind == "job" => "SHOW JOBS lists the jobs.".to_owned(),
        None if kind == "sink" => "SHOW SINKS lists the sinks.".to_owned(),
        None => "SHOW TABLES and SHOW VIEWS list what is there.".to_owned(),
    };
    let shown = match &name.schema {
        Some(schema) => format!("{schema}.{}", name.name),
        None => name.name.clone(),
    };
    Error::new(SqlState::UndefinedTable, format!("{kind} \"{shown}\" does not exist"))
        .hint(hint)
        .position(name.position)
}

/// An object that is made.
pub(super) struct NewObject<'a> {
    pub(super) name: &'a Name,
    pub(super) kind: catalog::ObjectKind,
    pub(super) text: String,
}

/// Writes an object to the catalog and starts it.
pub(super) async fn install(
    session: &Session,
    new: NewObject<'_>,
    defined: Defined,
    turn: Turn,
    interrupt: &Interrupt,
) -> Result<(RelationId, Vec<Notice>)> {
    let engine = Arc::clone(session.engine());
    let id = engine.catalog_store().next_id();
    let mut next = id.0;
    let mut beside = |kept: bool| {
        kept.then(|| {
            next += 1;
            RelationId(next)
        })
    };
    let (errors, late) = (beside(defined.keeps_errors()), beside(defined.keeps_late()));
    let schema = default_schema(new.name.schema.as_deref()).to_owned();
    let specs = defined.specs(id, errors, late, &format!("{schema}.{}", new.name.name));
    let object = Object {
        id,
        schema,
        name: new.name.name.clone(),
        kind: new.kind,
        depends_on: defined.depends_on,
        text: new.text,
        errors,
        indexes: Vec::new(),
        late,
        definition: defined.definition,
    };
    let source = defined.source;
    interrupt
        .finish(async move {
            let _turn: Turn = turn;
            if let Some(source) = source {
                engine.set_source(id, source);
            }
            let store = Arc::clone(engine.catalog_store());
            blocking(move || store.create(object)).await?;
            for spec in specs {
                if let Err(error) = engine.coordinator().install(spec).await {
                    // It never ran, so it must not come back at the next start either.
                    let ids = std::iter::once(id).chain(errors).chain(late).collect();
                    log(&engine, Change::Drop { ids, schemas: Vec::new() }).await?;
                    engine.forget(&[id]);
                    return Err(error);
                }
            }
            Ok(())
        })
        .await?;
    let notices = defined.notices.into_iter().map(|message| Notice { message, hint: None }).collect();
    Ok((id, notices))
}

/// Removes objects from the catalog and stops them. The caller holds the lock.
pub(super) async fn remove(engine: &Engine, ids: Vec<RelationId>, schemas: Vec<String>) -> Result<()> {
    let running: Vec<RelationId> =
        ids.iter().copied().filter(|id| engine.coordinator().status(*id).is_some()).collect();
    log(engine, Change::Drop { ids: ids.clone(), schemas }).await?;
    if !running.is_empty() {
        engine.coordinator().uninstall(&running).await?;
    }
    engine.forget(&ids);
    Ok(())
}

async fn log(engine: &Engine, change: Change) -> Result<()> {
    let store = Arc::clone(engine.catalog_store());
    blocking(move || store.change(&change)).await
}

pub(super) async fn blocking(work: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(Error::internal(format!("writing the catalog ended: {error}"))))
}

/// Takes back a CREATE whose statement did not get to its end, also when it is just dropped.
struct Removal {
    engine: Option<Arc<Engine>>,
    id: RelationId,
}

impl Removal {
    async fn now(&mut self, interrupt: &Interrupt) -> Result<()> {
        match self.engine.take() {
            Some(engine) => interrupt.finish(take_back(engine, self.id)).await,
            None => Ok(()),
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(take_back(engine, self.id));
        }
    }
}

async fn take_back(engine: Arc<Engine>, id: RelationId) -> Result<()> {
    let _turn = Arc::clone(engine.ddl()).lock_owned().await;
    let catalog = engine.catalog();
    // Somebody else may have dropped it, or made something that stands on it: then it stays.
    let Some(object) = catalog.get(id) else { return Ok(()) };
    let ids: Vec<RelationId> = with_errors(object).collect();
    if !catalog.dependents(&ids).is_empty() {
        return Ok(());
    }
    remove(&engine, ids, Vec::new()).await
}

fn find_objects(
    catalog: &Catalog,
    drop: &DropStatement,
    kind: catalog::ObjectKind,
    notices: &mut Vec<Notice>,
) -> Result<Vec<Arc<Object>>> {
    let mut found: Vec<Arc<Object>> = Vec::new();
    for name in &drop.names {
        match catalog.find(name.schema.as_deref(), &name.name) {
            Some(object) if matches!(object.kind, catalog::ObjectKind::Errors | catalog::ObjectKind::Late) => {
                return Err(Error::new(
                    SqlState::DependentObjects,
                    format!("cannot drop \"{}\" because its table requires it", object.name),
                )
                .hint("It goes with its table.")
                .position(name.position));
            }
            Some(object) if object.kind != kind => {
                return Err(wrong_kind(object, kind, name.position));
            }
            Some(object) if drop.source && !object.is_external() && !is_broken(object) => {
                return Err(Error::new(SqlState::WrongObjectType, format!("\"{}\" is not a source", object.name))
                    .hint("Use DROP TABLE to remove a table without a connector.")
                    .position(name.position));
            }
            Some(object) => {
                if !found.iter().any(|other| other.id == object.id) {
                    found.push(Arc::clone(object));
                }
            }
            None if drop.if_exists => notices.push(Notice {
                message: format!("{} \"{}\" does not exist, skipping", kind.name(), name.name),
                hint: None,
            }),
            None => return Err(no_object(catalog, kind.name(), name)),
        }
    }
    Ok(found)
}

fn is_broken(object: &Object) -> bool {
    matches!(object.definition, catalog::Definition::Broken(_))
}

/// An object's number and those of its errors and its late rows.
fn with_errors(object: &Object) -> impl Iterator<Item = RelationId> + use<> {
    std::iter::once(object.id).chain(object.beside())
}

/// Checks that the names of the relations beside a new one are free.
pub(super) fn check_names_beside(catalog: &Catalog, table: &Name, defined: &Defined) -> Result<()> {
    if defined.keeps_late() {
        let name = catalog::late_name(&table.name);
        if catalog.find(table.schema.as_deref(), &name).is_some() {
            return Err(Error::new(SqlState::DuplicateTable, format!("relation \"{name}\" already exists"))
                .detail("The rows that come too late would have that name.")
                .hint("Drop it, or use another name.")
                .position(table.position));
        }
    }
    if !defined.keeps_errors() {
        return Ok(());
    }
    let name = catalog::errors_name(&table.name);
    if catalog.find(table.schema.as_deref(), &name).is_none() {
        return Ok(());
    }
    Err(Error::new(SqlState::DuplicateTable, format!("relation \"{name}\" already exists"))
        .detail("The rows of the table that cannot be read would have that name.")
        .hint("Drop it, use another name for the table, or say on_error = 'skip' or on_error = 'fail'.")
        .position(table.position))
}

fn wrong_kind(object: &Object, wanted: catalog::ObjectKind, position: usize) -> Error {
    let article = |kind: catalog::ObjectKind| format!("a {}", kind.name());
    // What a sink reads is not to go in its place.
    let hint = match wanted {
        catalog::ObjectKind::Sink => "SHOW SINKS lists the sinks.".to_owned(),
        _ => format!("Use DROP {} to remove {}.", object.kind.keyword(), article(object.kind)),
    };
    Error::new(SqlState::WrongObjectType, format!("\"{}\" is not {}", object.name, article(wanted)))
        .hint(hint)
        .position(position)
}

fn find_schemas(
    catalog: &Catalog,
    drop: &DropStatement,
    notices: &mut Vec<Notice>,
) -> Result<(Vec<Arc<Object>>, Vec<String>)> {
    let mut schemas = Vec::new();
    for name in &drop.names {
        let schema = &name.name;
        if schema == DEFAULT_SCHEMA || RESERVED_SCHEMAS.contains(&schema.as_str()) {
            return Err(Error::new(
                SqlState::DependentObjects,
                format!("cannot drop schema {schema} because it is required by the database system"),
            )
            .hint("Drop the objects in it instead.")
            .position(name.position));
        }
        if catalog.has_schema(schema) {
            if !schemas.contains(schema) {
                schemas.push(schema.clone());
            }
        } else if drop.if_exists {
            notices.push(Notice { message: format!("schema \"{schema}\" does not exist, skipping"), hint: None });
        } else {
            return Err(no_schema(catalog, schema, name.position));
        }
    }
    Ok((Vec::new(), schemas))
}

fn has_dependents(
    catalog: &Catalog,
    drop: &DropStatement,
    named: &[Arc<Object>],
    schemas: &[String],
    dependents: &[Arc<Object>],
) -> Error {
    let what = match (named, schemas) {
        ([object], []) => format!("{} {}", object.kind.name(), object.name),
        ([], [schema]) => format!("schema {schema}"),
        _ => "desired object(s)".to_owned(),
    };
    let lines: Vec<String> = dependents
        .iter()
        .map(|object| {
            // What it stands on that goes as well.
            let on = object.depends_on.iter().filter_map(|id| catalog.get(*id)).find(|on| {
                named
                    .iter()
                    .chain(dependents)
                    .any(|going| going.id == on.id || going.beside().any(|beside| beside == on.id))
            });
            let on = match on {
                Some(on) => format!("{} {}", on.kind.name(), on.name),
                None => format!("schema {}", object.schema),
            };
            format!("{} {} depends on {on}", object.kind.name(), object.name)
        })
        .collect();
    Error::new(SqlState::DependentObjects, format!("cannot drop {what} because other objects depend on it"))
        .detail(lines.join("\n"))
        .hint("Use DROP ... CASCADE to drop the dependent objects too.")
        .position_or(drop.names.first().map(|name| name.position))
}

fn cascades_to(dependents: &[Arc<Object>]) -> Notice {
    let names: Vec<String> =
        dependents.iter().map(|object| format!("{} {}", object.kind.name(), object.name)).collect();
    let message = match names.as_slice() {
        [only] => format!("drop cascades to {only}"),
        _ => format!("drop cascades to {} other objects: {}", names.len(), names.join(", ")),
    };
    Notice { message, hint: None }
}
