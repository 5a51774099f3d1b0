//! `CREATE INDEX` and `DROP INDEX`.
//!
//! An index is a part of its relation in the catalog, and goes with it. It is made while the relation is read without it, so the
//! statement answers at once.

use std::sync::Arc;

use super::api::{Answer, Notice, Tag};
use super::ddl::{self, blocking, no_object};
use super::interrupt::Interrupt;
use super::pg_catalog::key_index_of;
use super::relations::{broken, default_schema};
use super::session::Session;
use crate::catalog::{Catalog, Definition, Index, Object, near_miss};
use crate::sql::{CreateIndex, Name};
use crate::state::RowCodec;
use crate::types::{Error, Result, SqlState};

/// The most indexes of a relation.
pub(crate) const INDEXES_MAX: usize = 64;
/// The most characters of a name that is made.
const NAME_CHARS_MAX: usize = 60;

/// A relation, and the indexes that it has from now on.
type Changed = (Arc<Object>, Vec<Index>);

/// `CREATE INDEX`.
///
/// # Errors
/// 42P01, 42809, 42703, 42P07; 0A000 for a column that cannot be a key.
pub(crate) async fn create(session: &Session, create: &CreateIndex, interrupt: &Interrupt) -> Result<Answer> {
    let tag = Tag::Plain("CREATE INDEX");
    let turn = ddl::turn(session, interrupt).await?;
    let catalog = session.engine().catalog();
    let object = indexed(&catalog, &create.on)?;
    let columns = columns(&object, create)?;
    let name = match &create.name {
        None => free_name(&catalog, &object, &columns),
        Some(name) => {
            if name.schema.as_deref().is_some_and(|schema| schema != object.schema) {
                return Err(Error::new(SqlState::SyntaxError, "an index is in the schema of its relation")
                    .hint("Give its name alone.")
                    .position(name.position));
            }
            if is_taken(&catalog, &object.schema, &name.name) {
                let message = format!("relation \"{}\" already exists", name.name);
                if create.if_not_exists {
                    let notice = Notice { message: format!("{message}, skipping"), hint: None };
                    return Ok(Answer::Done { tag, notices: vec![notice] });
                }
                return Err(Error::new(SqlState::DuplicateTable, message)
                    .hint("Use another name, or leave it out.")
                    .position(name.position));
            }
            name.name.clone()
        }
    };
    if object.indexes.len() >= INDEXES_MAX {
        return Err(Error::new(
            SqlState::ProgramLimitExceeded,
            format!("\"{}\" has {INDEXES_MAX} indexes, which is the most", object.name),
        )
        .hint("Drop one: DROP INDEX …."));
    }
    let mut indexes = object.indexes.clone();
    indexes.push(Index { name, columns });
    change(session, turn, vec![(object, indexes)], interrupt).await?;
    Ok(Answer::Done { tag, notices: Vec::new() })
}

/// `DROP INDEX`.
///
/// # Errors
/// 42704 for what is no index; 2BP01 for that of a primary key.
pub(crate) async fn drop(session: &Session, names: &[Name], if_exists: bool, interrupt: &Interrupt) -> Result<Answer> {
    let turn = ddl::turn(session, interrupt).await?;
    let catalog = session.engine().catalog();
    let (mut changes, mut notices) = (Vec::<Changed>::new(), Vec::new());
    for name in names {
        let schema = default_schema(name.schema.as_deref());
        let mut objects = catalog.objects().filter(|object| object.schema == schema);
        let Some(object) = objects.find(|object| object.indexes.iter().any(|index| index.name == name.name)) else {
            let message = format!("index \"{}\" does not exist", name.name);
            if key_index_of(&catalog, schema, &name.name) {
                return Err(Error::new(
                    SqlState::DependentObjects,
                    format!("cannot drop index \"{}\": the primary key needs it", name.name),
                )
                .hint("Make the table anew without the key.")
                .position(name.position));
            }
            if if_exists {
                notices.push(Notice { message: format!("{message}, skipping"), hint: None });
                continue;
            }
            let all: Vec<&str> = index_names(&catalog, schema).collect();
            let hint = match near_miss(&name.name, all.iter().copied()) {
                Some(near) => format!("Perhaps you meant \"{near}\"."),
                None => "SELECT * FROM pg_catalog.pg_indexes lists them.".to_owned(),
            };
            return Err(Error::new(SqlState::UndefinedObject, message).hint(hint).position(name.position));
        };
        let at = match changes.iter().position(|(changed, _)| changed.id == object.id) {
            Some(at) => at,
            None => {
                changes.push((Arc::clone(object), object.indexes.clone()));
                changes.len() - 1
            }
        };
        if let Some((_, indexes)) = changes.get_mut(at) {
            indexes.retain(|index| index.name != name.name);
        }
    }
    change(session, turn, changes, interrupt).await?;
    Ok(Answer::Done { tag: Tag::Plain("DROP INDEX"), notices })
}

/// Makes other indexes of relations durable, then lets the workers keep them.
async fn change(session: &Session, turn: ddl::Turn, changes: Vec<Changed>, interrupt: &Interrupt) -> Result<()> {
    let engine = Arc::clone(session.engine());
    interrupt
        .finish(async move {
            let _turn = turn;
            for (object, indexes) in changes {
                let altered = Object { indexes, ..object.as_ref().clone() };
                let (id, columns) = (altered.id, altered.index_columns());
                let store = Arc::clone(engine.catalog_store());
                blocking(move || store.alter(altered)).await?;
                engine.coordinator().set_indexes(id, columns).await?;
            }
            Ok(())
        })
        .await
}

/// A relation whose rows are kept.
fn indexed(catalog: &Catalog, name: &Name) -> Result<Arc<Object>> {
    let object = catalog.find(name.schema.as_deref(), &name.name);
    let object = object.ok_or_else(|| no_object(catalog, "relation", name))?;
    let hint = match &object.definition {
        Definition::MaterializedView(_) => return Ok(Arc::clone(object)),
        Definition::Table(table) if table.connector.is_none() || !table.key.is_empty() => {
            return Ok(Arc::clone(object));
        }
        Definition::Broken(reason) => return Err(broken(object, reason).position(name.position)),
        Definition::Table(_) => "Give it a PRIMARY KEY: then it keeps its rows. Or make a materialized view of it.",
        Definition::View(_) => "Make it a materialized view.",
        Definition::Sink(_)
        | Definition::Function(_)
        | Definition::Errors(_)
        | Definition::RowErrors(_)
        | Definition::LateRows(_)
        | Definition::Late(_) => "Make an index on a table or a materialized view.",
    };
    Err(Error::new(SqlState::WrongObjectType, format!("\"{}\" keeps no rows that an index could find", name.name))
        .hint(hint)
        .position(name.position))
}

fn columns(object: &Object, create: &CreateIndex) -> Result<Vec<String>> {
    let schema = object.row_schema().ok_or_else(|| Error::internal("a relation without columns"))?;
    for (name, position) in &create.columns {
        let Some((_, field)) = schema.column_with_name(name) else {
            let known = schema.fields().iter().map(|field| field.name().as_str());
            let hint = match near_miss(name, known.clone()) {
                Some(near) => format!("Perhaps you meant \"{near}\"."),
                None => format!("Its columns are {}.", known.collect::<Vec<_>>().join(", ")),
            };
            return Err(Error::new(SqlState::UndefinedColumn, format!("column \"{name}\" does not exist"))
                .hint(hint)
                .position(*position));
        };
        RowCodec::for_keys([field.data_type()]).map_err(|error| error.position_or(Some(*position)))?;
    }
    Ok(create.columns.iter().map(|(name, _)| name.clone()).collect())
}

fn index_names<'a>(catalog: &'a Catalog, schema: &'a str) -> impl Iterator<Item = &'a str> {
    let objects = catalog.objects().filter(move |object| object.schema == schema);
    objects.flat_map(|object| object.indexes.iter().map(|index| index.name.as_str()))
}

fn is_taken(catalog: &Catalog, schema: &str, name: &str) -> bool {
    catalog.find(Some(schema), name).is_some()
        || index_names(catalog, schema).any(|other| other == name)
        || key_index_of(catalog, schema, name)
}

/// `relation_column_idx`, with a number where that is taken: as PostgreSQL names them.
fn free_name(catalog: &Catalog, object: &Object, columns: &[String]) -> String {
    let stem: String = format!("{}_{}", object.name, columns.join("_")).chars().take(NAME_CHARS_MAX).collect();
    let mut names = std::iter::once(format!("{stem}_idx")).chain((1_u32..).map(|number| format!("{stem}_idx{number}")));
    names.find(|name| !is_taken(catalog, &object.schema, name)).unwrap_or(stem)
}
