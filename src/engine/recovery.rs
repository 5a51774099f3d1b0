//! Opening a database: each object's text is parsed and planned again, and all that runs is handed
//! to the coordinator, upstream first.
//!
//! A text may plan no more: a file is gone, or this version plans something differently. A view or
//! connector table is then kept in the catalog as broken: it is listed as `FAILED`, reading it or
//! creating something on it fails with the reason, and it can be dropped; what stands on it is
//! broken for that reason. Nothing durable hangs on it, so the rest of the database opens. An
//! ordinary table has rows in the timeline that nobody else has: if it cannot be brought back, the
//! database does not open.

use std::sync::Arc;

use crate::catalog::{Definition, ObjectKind, ObjectRecord};
use crate::sql::{self, StatementKind};
use crate::types::{Error, Result, SqlState};

use super::database::Engine;
use super::define::{self, Defined};
use super::functions;
use super::relations::Relations;
use super::sink_ddl;

/// Brings the objects of the catalog back.
///
/// # Errors
/// When an ordinary table cannot be brought back; those of the coordinator.
pub(crate) async fn recover(engine: &Arc<Engine>, records: Vec<ObjectRecord>) -> Result<()> {
    let mut specs = Vec::new();
    for record in records {
        let definition = match define(engine, &record).await {
            Ok(defined) => {
                let qualified_name = format!("{}.{}", record.schema, record.name);
                specs.extend(defined.specs(record.id, record.errors, record.late, &qualified_name));
                if let Some(source) = defined.source {
                    engine.set_source(record.id, source);
                }
                defined.definition
            }
            Err(error) if record.kind == ObjectKind::Table && !has_connector(&record) => {
                return Err(Error::new(
                    error.code(),
                    format!("table \"{}.{}\" cannot be brought back: {error}", record.schema, record.name),
                )
                .hint("Open the data directory with the version of clink that wrote it."));
            }
            Err(error) => {
                tracing::warn!(
                    schema = record.schema,
                    name = record.name,
                    %error,
                    "an object could not be brought back; reading it fails until it is dropped and created again"
                );
                Definition::Broken(error)
            }
        };
        engine.catalog_store().restore(record.into_object(definition));
    }
    engine.coordinator().recover(specs).await
}

fn has_connector(record: &ObjectRecord) -> bool {
    matches!(parse(record), Ok(StatementKind::CreateTable(create)) if !create.options.is_empty())
}

fn parse(record: &ObjectRecord) -> Result<StatementKind> {
    let mut statements = sql::parse(&record.text)?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => Ok(statement.kind),
        _ => Err(Error::new(SqlState::DataCorrupted, "its text in the catalog is not one statement")),
    }
}

async fn define(engine: &Arc<Engine>, record: &ObjectRecord) -> Result<Defined> {
    // The objects before this one are restored by now.
    let relations = Relations::new(engine, engine.catalog());
    match (parse(record)?, record.kind) {
        (StatementKind::CreateTable(create), ObjectKind::Table) => define::table(engine, &relations, &create),
        (StatementKind::CreateView(create), ObjectKind::View) => define::view(&relations, &create).await,
        (StatementKind::CreateMaterializedView(create), ObjectKind::MaterializedView) => {
            define::materialized_view(&relations, &create).await
        }
        (StatementKind::CreateFunction(create), ObjectKind::Function) => functions::define(&relations, &create),
        (StatementKind::CreateSink(create), ObjectKind::Sink) => sink_ddl::sink(engine, &relations, &create).await,
        _ => Err(Error::new(SqlState::DataCorrupted, "its text in the catalog is of another kind")),
    }
}
