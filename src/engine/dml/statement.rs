//! What all DML statements share: the table, the turn of its writers, the write, the answer.

use std::sync::Arc;

use crate::catalog::{Catalog, Definition, Table};
use crate::engine::api::{Answer, Tag};
use crate::engine::coordinator::TableWrite;
use crate::engine::database::{Engine, RowTables, Writer};
use crate::engine::ddl::no_object;
use crate::engine::interrupt::Interrupt;
use crate::engine::session::Session;
use crate::engine::sink_ddl;
use crate::engine::turns::Turn;
use crate::sql::{self, Name, StatementKind, folded};
use crate::state::equal_floats;
use crate::types::{Chunk, Error, RelationId, Result, SqlState, Time};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use sqlparser::ast::{self, ObjectName, ObjectNamePart, SelectItem, TableFactor, TableWithJoins};

use super::evaluate::{Evaluator, position, quoted_text, rows_table, select};
use super::{change, insert};

/// Runs a DML statement.
///
/// # Errors
/// Those of its parts; nothing was written then, unless the error says that this is unknown.
pub(crate) async fn execute(session: &mut Session, kind: &StatementKind, interrupt: &Interrupt) -> Result<Answer> {
    match kind {
        StatementKind::Insert(insert) => match sink_ddl::insert(session, insert, interrupt).await? {
            Some(started) => Ok(started),
            None => insert::insert(session, insert, interrupt).await,
        },
        StatementKind::Update(update) => match update.as_ref() {
            ast::Statement::Update(update) => change::update(session, update, interrupt).await,
            _ => Err(Error::internal("an UPDATE of another kind")),
        },
        StatementKind::Delete(delete) => change::delete(session, delete, interrupt).await,
        StatementKind::Truncate(names) => change::truncate(session, names, interrupt).await,
        _ => Err(Error::internal("a statement that is no DML")),
    }
}

/// The columns of RETURNING; `None` without it.
///
/// # Errors
/// Those of planning it.
pub(crate) async fn describe(session: &Session, kind: &StatementKind) -> Result<Option<SchemaRef>> {
    let catalog = session.engine().catalog();
    let (target, alias, returning) = match kind {
        // It may be a standing one, into a table that is not written by DML.
        StatementKind::Insert(insert) if insert.returning.is_none() => return Ok(None),
        StatementKind::Insert(insert) => {
            let alias = insert.table_alias.as_ref().map(|alias| folded(&alias.alias));
            (insert::target(session.engine(), &catalog, insert)?, alias, &insert.returning)
        }
        StatementKind::Update(update) => match update.as_ref() {
            ast::Statement::Update(update) => {
                let (target, alias) = from_clause(session.engine(), &catalog, &update.table, "UPDATE")?;
                (target, alias, &update.returning)
            }
            _ => return Ok(None),
        },
        StatementKind::Delete(delete) => {
            let (target, alias) = from_clause(session.engine(), &catalog, change::deleted_from(delete)?, "DELETE")?;
            (target, alias, &delete.returning)
        }
        _ => return Ok(None),
    };
    let Some(items) = returning else {
        return Ok(None);
    };
    let (query, rows) = returning_query(&target, alias.as_deref(), items, None)?;
    let relations = session.relations_of(catalog).with_rows(rows);
    let plan = sql::plan_query(&relations.state(), &query).await?;
    Ok(Some(crate::engine::read::shown_schema(plan.schema().as_arrow())))
}

/// An ordinary table that a statement writes.
pub(crate) struct Target {
    pub(crate) id: RelationId,
    pub(crate) name: String,
    pub(crate) table: Table,
    pub(crate) writer: Arc<Writer>,
}

/// Finds the table that a statement writes.
///
/// # Errors
/// 42P01; 42809 for what is no ordinary table.
pub(crate) fn target(engine: &Engine, catalog: &Catalog, name: &Name, verb: &str) -> Result<Target> {
    let Some(object) = catalog.find(name.schema.as_deref(), &name.name) else {
        return Err(no_object(catalog, "relation", name));
    };
    let refused = |message: String, hint: &str| {
        Err(Error::new(SqlState::WrongObjectType, message).hint(hint).position(name.position))
    };
    match &object.definition {
        Definition::Table(table) => {
            if table.connector.is_some() {
                let change = match verb {
                    "UPDATE" => "update",
                    "DELETE" => "delete from",
                    "TRUNCATE" => "truncate",
                    _ => "insert into",
                };
                return refused(
                    format!("cannot {change} foreign table \"{}\"", name.name),
                    "Its rows are outside: change them where the connector reads them, or copy them into a table without a connector: INSERT INTO t SELECT ...",
                );
            }
            if table.append_only && !matches!(verb, "INSERT" | "COPY") {
                return refused(
                    format!("{verb} of append-only table \"{}\" is not possible", name.name),
                    "The table was created with APPEND ONLY; a table without it takes UPDATE and DELETE.",
                );
            }
            Ok(Target {
                id: object.id,
                name: object.name.clone(),
                table: table.clone(),
                writer: engine.writer(object.id),
            })
        }
        Definition::Broken(reason) => Err(crate::engine::relations::broken(object, reason)),
        Definition::Errors(_) => refused(
            format!("{verb} of errors table \"{}\" is not possible", name.name),
            "Its rows come from reading the source; the option errors_retention bounds them.",
        ),
        Definition::View(_)
        | Definition::MaterializedView(_)
        | Definition::Sink(_)
        | Definition::Function(_)
        | Definition::RowErrors(_)
        | Definition::LateRows(_)
        | Definition::Late(_) => refused(
            format!("cannot change {} \"{}\"", object.kind.name(), name.name),
            "Change the tables that it reads; the view follows.",
        ),
    }
}

/// The one table of a FROM clause, and its alias.
///
/// # Errors
/// 0A000 for anything else; as [`target`].
pub(crate) fn from_clause(
    engine: &Engine,
    catalog: &Catalog,
    from: &TableWithJoins,
    verb: &str,
) -> Result<(Target, Option<String>)> {
    match (&from.relation, from.joins.is_empty()) {
        (TableFactor::Table { name, alias, args: None, .. }, true) => {
            let name = object_name(name)?;
            let alias = alias.as_ref().map(|alias| folded(&alias.name));
            Ok((target(engine, catalog, &name, verb)?, alias))
        }
        _ => Err(Error::unsupported(format!("{verb} of more than one table is not supported"))
            .hint("Name one table; its WHERE may have subqueries over others.")
            .position_or(position(from))),
    }
}

/// A name of the statement.
///
/// # Errors
/// 0A000 for a name of more than two parts.
pub(crate) fn object_name(name: &ObjectName) -> Result<Name> {
    let parts: Vec<&ast::Ident> = name
        .0
        .iter()
        .filter_map(|part| match part {
            ObjectNamePart::Identifier(ident) => Some(ident),
            ObjectNamePart::Function(_) => None,
        })
        .collect();
    let at = position(name).unwrap_or(1);
    match parts.as_slice() {
        [name] => Ok(Name { schema: None, name: folded(name), position: at }),
        [schema, name] => Ok(Name { schema: Some(folded(schema)), name: folded(name), position: at }),
        [database, schema, name] if folded(database) == crate::engine::relations::DATABASE => {
            Ok(Name { schema: Some(folded(schema)), name: folded(name), position: at })
        }
        _ => Err(Error::unsupported(format!("cross-database references are not implemented: {name}"))
            .hint("Write schema.name.")
            .position(at)),
    }
}

/// Waits for the turns of tables. A transaction block keeps them itself, to its end.
///
/// # Errors
/// 40001, 40P01, 57014, 57P01.
pub(crate) async fn turns<'a>(
    session: &mut Session,
    targets: impl IntoIterator<Item = &'a Target>,
    interrupt: &Interrupt,
) -> Result<Vec<Turn>> {
    let turns = session.engine().turns().clone();
    let holder = session.block().map_or_else(|| turns.holder(), |block| block.holder());
    let mut taken = Vec::new();
    for target in targets {
        if session.block().is_some_and(|block| block.has_turn(target.id)) {
            continue;
        }
        let turn = turns.take(target.id, holder, interrupt).await?;
        match session.block_mut() {
            None => taken.push(turn),
            Some(block) => {
                block.check_unchanged(&target.name, &target.writer)?;
                block.keep_turn(turn);
            }
        }
    }
    Ok(taken)
}

/// What the queries of a statement share. Reads are not before the table's last write.
pub(crate) fn evaluator(
    session: &Session,
    catalog: &Arc<Catalog>,
    target: &Target,
    interrupt: &Interrupt,
) -> Evaluator {
    Evaluator {
        engine: Arc::clone(session.engine()),
        catalog: Arc::clone(catalog),
        interrupt: interrupt.clone(),
        at_least: at_least(session, target),
        pending: session.pending(),
        zone: session.time_zone(),
        user: Arc::clone(session.user()),
    }
}

/// The time that reads for a write take at least.
pub(crate) fn at_least(session: &Session, target: &Target) -> Time {
    session.last_seen().max(target.writer.last_write())
}

/// The changes of a statement to one table.
pub(crate) struct Changes<'a> {
    pub(crate) target: &'a Target,
    pub(crate) chunks: Vec<Chunk>,
}

/// The changes with zeros that have no sign: what is equal has to be one group and one key, also for
/// operators that compare bytes.
pub(crate) fn unsigned_zeros(chunk: &Chunk) -> Result<Chunk> {
    let columns = chunk.batch().columns().iter().map(equal_floats).collect();
    Ok(chunk.with_batch(RecordBatch::try_new(chunk.schema(), columns)?))
}

/// Writes changes at one new time, holding the turns until it is done.
///
/// # Errors
/// Those of the coordinator; 57014 when the statement is cancelled and the write takes long.
pub(crate) async fn write(
    session: &mut Session,
    changes: Vec<Changes<'_>>,
    turns: Vec<Turn>,
    interrupt: &Interrupt,
) -> Result<()> {
    let (mut writes, mut writers) = (Vec::new(), Vec::new());
    for change in changes {
        if !change.chunks.is_empty() {
            writers.push(Arc::clone(&change.target.writer));
            let chunks = change.chunks.iter().map(unsigned_zeros).collect::<Result<_>>()?;
            writes.push(TableWrite { table: change.target.id, changes: chunks });
        }
    }
    if writes.is_empty() {
        return Ok(());
    }
    let limits = Arc::clone(session.limits());
    match session.block_mut() {
        Some(block) => block.keep(writes, writers, &limits),
        None => apply(session, writes, writers, turns, interrupt).await,
    }
}

/// Applies changes at one new time, holding the turns until it is done.
///
/// # Errors
/// As [`write`].
pub(crate) async fn apply(
    session: &mut Session,
    writes: Vec<TableWrite>,
    writers: Vec<Arc<Writer>>,
    turns: Vec<Turn>,
    interrupt: &Interrupt,
) -> Result<()> {
    if writes.is_empty() {
        return Ok(());
    }
    let catalog = session.engine().catalog();
    if writes.iter().any(|write| catalog.get(write.table).is_none()) {
        let message = "could not serialize access due to a concurrent DROP TABLE";
        return Err(Error::new(SqlState::SerializationFailure, message)
            .detail("A table that was changed is not there any more.")
            .hint("Run the block again; nothing of it was applied."));
    }
    let coordinator = session.engine().coordinator().clone();
    let time = interrupt
        .finish(async move {
            let _turns = turns;
            let time = coordinator.write(writes).await?;
            for writer in writers {
                writer.wrote(time);
            }
            Ok(time)
        })
        .await?;
    session.saw(time);
    Ok(())
}

/// The rows of RETURNING over `rows`, computed before anything is written, so that an error in it
/// leaves nothing.
pub(crate) struct Returned {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

/// Computes RETURNING.
///
/// # Errors
/// Those of the query.
pub(crate) async fn returned(
    evaluator: &Evaluator,
    target: &Target,
    alias: Option<&str>,
    items: Option<&Vec<SelectItem>>,
    rows: RecordBatch,
) -> Result<Option<Returned>> {
    let Some(items) = items else { return Ok(None) };
    let (query, tables) = returning_query(target, alias, items, Some(rows))?;
    let collected = evaluator.query(query, tables).await?;
    Ok(Some(Returned { schema: collected.schema, batches: collected.batches }))
}

fn returning_query(
    target: &Target,
    alias: Option<&str>,
    items: &[SelectItem],
    rows: Option<RecordBatch>,
) -> Result<(ast::Query, RowTables)> {
    let rows = rows.unwrap_or_else(|| RecordBatch::new_empty(Arc::clone(&target.table.row_schema)));
    let from =
        format!("{}.returned AS {}", crate::engine::relations::ROWS_SCHEMA, quoted_text(alias.unwrap_or(&target.name)));
    let tables = RowTables::from([("returned".to_owned(), rows_table(rows)?)]);
    Ok((select(items.to_vec(), &from, None)?, tables))
}

/// The answer of a statement.
pub(crate) fn answer(tag: Tag, returned: Option<Returned>) -> Answer {
    match returned {
        None => Answer::Done { tag, notices: Vec::new() },
        Some(Returned { schema, batches }) => {
            let stream = futures::stream::iter(batches.into_iter().map(Ok));
            let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), stream));
            Answer::Rows { schema, rows, tag, notices: Vec::new() }
        }
    }
}

/// A column of the table by name.
///
/// # Errors
/// 42703.
pub(crate) fn column_index(target: &Target, name: &ObjectName) -> Result<usize> {
    let wanted = object_name(name)?;
    target.table.columns.iter().position(|column| column.name == wanted.name).ok_or_else(|| {
        let names = target.table.columns.iter().map(|column| column.name.as_str());
        let hint = match crate::catalog::near_miss(&wanted.name, names.clone()) {
            Some(near) => format!("Perhaps you meant \"{near}\"."),
            None => format!("Its columns are {}.", names.collect::<Vec<_>>().join(", ")),
        };
        Error::new(
            SqlState::UndefinedColumn,
            format!("column \"{}\" of relation \"{}\" does not exist", wanted.name, target.name),
        )
        .hint(hint)
        .position(wanted.position)
    })
}
