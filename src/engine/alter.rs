//! `ALTER SYSTEM SET workers`, `ALTER MATERIALIZED VIEW … SET (state_backend = …)`, and what else changes something that is there.

use std::sync::Arc;

use super::api::{Answer, Tag};
use super::ddl::{self, no_object};
use super::index_ddl;
use super::interrupt::Interrupt;
use super::session::Session;
use crate::catalog::{ObjectKind, ObjectRecord};
use crate::sql::{self, Alter, Name, OptionValue, StatementKind};
use crate::state::Registry;
use crate::types::{Error, KEY_GROUPS, Result, SqlState};

/// Runs an ALTER.
///
/// # Errors
/// 22023 for a value that is none; 42P01 and 42809 for what is no materialized view; those of a checkpoint.
pub(crate) async fn alter(session: &Session, alter: &Alter, interrupt: &Interrupt) -> Result<Answer> {
    match alter {
        Alter::Workers(value) => set_workers(session, value, interrupt).await,
        Alter::StateBackend { name, uri } => set_state_backend(session, name, uri, interrupt).await,
        Alter::CreateIndex(create) => index_ddl::create(session, create, interrupt).await,
        Alter::DropIndex { names, if_exists } => index_ddl::drop(session, names, *if_exists, interrupt).await,
    }
}

async fn set_workers(session: &Session, value: &OptionValue, interrupt: &Interrupt) -> Result<Answer> {
    let workers = value.text.parse().ok().filter(|workers| (1..=KEY_GROUPS).contains(workers)).ok_or_else(|| {
        Error::new(SqlState::InvalidParameterValue, format!("workers cannot be {:?}", value.text))
            .hint(format!("Give a number from 1 to {KEY_GROUPS}."))
            .position(value.position)
    })?;
    let turn = ddl::turn(session, interrupt).await?;
    let engine = Arc::clone(session.engine());
    interrupt
        .finish(async move {
            let _turn = turn;
            engine.coordinator().set_workers(workers).await
        })
        .await?;
    Ok(Answer::Done { tag: Tag::Plain("ALTER SYSTEM"), notices: Vec::new() })
}

async fn set_state_backend(session: &Session, name: &Name, uri: &OptionValue, interrupt: &Interrupt) -> Result<Answer> {
    Registry::default().parse(&uri.text).map_err(|error| error.position_or(Some(uri.position)))?;
    let turn = ddl::turn(session, interrupt).await?;
    let catalog = session.engine().catalog();
    let object = catalog
        .find(name.schema.as_deref(), &name.name)
        .cloned()
        .ok_or_else(|| no_object(&catalog, "materialized view", name))?;
    if object.kind != ObjectKind::MaterializedView {
        return Err(Error::new(
            SqlState::WrongObjectType,
            format!("\"{}\" is a {} and no materialized view", name.name, object.kind.name()),
        )
        .hint("Tables have the server's backend: start it with another --state-backend.")
        .position(name.position));
    }
    let text = with_state_backend(&object.text, uri)?;
    let altered = ObjectRecord { text, ..ObjectRecord::of(&object) }.into_object(object.definition.clone());
    let (engine, id, uri) = (Arc::clone(session.engine()), object.id, uri.text.clone());
    interrupt
        .finish(async move {
            let _turn = turn;
            // The text says where the state is to be; a start that finds it elsewhere moves it too.
            engine.coordinator().checkpoint().await?;
            engine.catalog_store().alter(altered)?;
            engine.coordinator().move_state(id, uri).await
        })
        .await?;
    Ok(Answer::Done { tag: Tag::Plain("ALTER MATERIALIZED VIEW"), notices: Vec::new() })
}

/// A view's text with another state backend.
fn with_state_backend(text: &str, uri: &OptionValue) -> Result<String> {
    match sql::parse(text)?.pop().map(|statement| statement.kind) {
        Some(StatementKind::CreateMaterializedView(mut create)) => {
            create.state_backend = Some(uri.clone());
            Ok(sql::show_create::materialized_view(&create))
        }
        _ => Err(Error::new(SqlState::DataCorrupted, "the view's text in the catalog is of another kind")),
    }
}
