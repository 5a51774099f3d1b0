//! One client's state, and where its statements go.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use tokio_util::sync::CancellationToken;

use crate::sql::{self, Statement, StatementKind};
use crate::types::{Error, Result, Time};

use super::api::{Answer, Notice, Tag};
use super::coordinator::ReadBound;
use super::database::Engine;
use super::interrupt::Interrupt;
use super::relations::Relations;
use super::settings::{ReadMode, Settings};
use super::{ddl, dml, read, show, sink_ddl};

/// One client's state: settings and the times it has seen.
pub struct Session {
    engine: Arc<Engine>,
    settings: Settings,
    /// The latest time that this session wrote or read at.
    last_seen: Time,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>) -> Session {
        // A client may come back over another connection: what it was told of stays visible.
        let last_seen = engine.last_write();
        Session { engine, settings: Settings::default(), last_seen }
    }

    /// Splits and parses a text of statements. An error carries its position in the whole text.
    ///
    /// # Errors
    /// 42601 for what is not SQL, 0A000 for what is refused by name.
    pub fn parse(&self, sql: &str) -> Result<Vec<Statement>> {
        sql::parse(sql)
    }

    /// Runs one statement. When `cancel` fires, it ends within a second with 57014, wherever it is.
    /// Rows of the answer are read under the same token.
    ///
    /// # Errors
    /// Those of the statement; positions count in the whole text that was parsed.
    pub async fn execute(&mut self, statement: &Statement, cancel: &CancellationToken) -> Result<Answer> {
        let timeout = self.settings.statement_timeout();
        let interrupt =
            Interrupt::new(cancel.clone(), self.engine.closed().clone(), timeout, self.engine.query_threads());
        let mut answer =
            self.dispatch(statement, &interrupt).await.map_err(|error| in_whole_text(error, statement.offset))?;
        if !self.settings.shows_notices() {
            answer.notices_mut().clear();
        }
        Ok(answer)
    }

    /// The columns of the rows that a statement would answer with; `None` when it gives no rows.
    /// Runs nothing.
    ///
    /// # Errors
    /// Those of planning the statement.
    pub async fn describe(&self, statement: &Statement) -> Result<Option<SchemaRef>> {
        let described = match &statement.kind {
            StatementKind::Query(query) => {
                let relations = self.relations();
                sql::plan_query(&relations.state(), query)
                    .await
                    .map(|plan| Some(crate::engine::read::shown_schema(plan.schema().as_arrow())))
            }
            StatementKind::Insert(_) | StatementKind::Update(_) | StatementKind::Delete(_) => {
                dml::describe(self, statement).await
            }
            StatementKind::Explain(_) => Ok(Some(show::explain_schema())),
            StatementKind::Show(what) => show::schema(self, what).map(Some),
            StatementKind::Describe(_) => Ok(Some(show::describe_schema())),
            StatementKind::CreateTable(_)
            | StatementKind::CreateView(_)
            | StatementKind::CreateMaterializedView(_)
            | StatementKind::CreateSink(_)
            | StatementKind::CreateSchema { .. }
            | StatementKind::Job(_)
            | StatementKind::Drop(_)
            | StatementKind::Truncate(_)
            | StatementKind::Set(_)
            | StatementKind::Flush => Ok(None),
        };
        described.map_err(|error| in_whole_text(error, statement.offset))
    }

    async fn dispatch(&mut self, statement: &Statement, interrupt: &Interrupt) -> Result<Answer> {
        match &statement.kind {
            StatementKind::Query(query) => self.query(query, interrupt).await,
            StatementKind::CreateTable(create) => ddl::create_table(self, create, interrupt).await,
            StatementKind::CreateView(create) => ddl::create_view(self, create, interrupt).await,
            StatementKind::CreateMaterializedView(create) => {
                ddl::create_materialized_view(self, create, interrupt).await
            }
            StatementKind::CreateSink(create) => sink_ddl::create_sink(self, create, interrupt).await,
            StatementKind::Job(command) => sink_ddl::job(self, command, interrupt).await,
            StatementKind::CreateSchema { name, if_not_exists } => {
                ddl::create_schema(self, name, *if_not_exists, interrupt).await
            }
            StatementKind::Drop(drop) => ddl::drop(self, drop, interrupt).await,
            StatementKind::Insert(_)
            | StatementKind::Update(_)
            | StatementKind::Delete(_)
            | StatementKind::Truncate(_) => dml::execute(self, statement, interrupt).await,
            StatementKind::Explain(explain) => show::explain(self, explain, interrupt).await,
            StatementKind::Show(what) => show::show(self, what),
            StatementKind::Describe(describe) => show::describe(self, describe),
            StatementKind::Set(set) => {
                let notice = self
                    .settings
                    .set(&set.name, set.value.as_deref())
                    .map_err(|error| error.position_or(Some(set.position)))?;
                let tag = if set.value.is_some() { "SET" } else { "RESET" };
                Ok(Answer::Done { tag: Tag::Plain(tag), notices: notice.into_iter().collect() })
            }
            StatementKind::Flush => {
                let coordinator = self.engine.coordinator().clone();
                let time = interrupt.run(async move { coordinator.flush().await }).await?;
                self.saw(time);
                Ok(Answer::Done { tag: Tag::Plain("FLUSH"), notices: Vec::new() })
            }
        }
    }

    async fn query(&mut self, query: &sqlparser::ast::Query, interrupt: &Interrupt) -> Result<Answer> {
        let opened = read::open(Arc::clone(&self.engine), self.relations(), Box::new(query.clone()), self.read_bound());
        let opened = interrupt.run(opened).await?;
        if let Some(pin) = &opened.pin {
            self.saw(pin.time());
        }
        let rows = interrupt.stream(opened.rows);
        Ok(Answer::Rows { schema: opened.schema, rows, tag: Tag::Select, notices: Vec::new() })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The relations as they are now.
    pub(crate) fn relations(&self) -> Relations {
        Relations::new(&self.engine, self.engine.catalog())
    }

    /// Remembers a time, so that later reads are not before it.
    pub(crate) fn saw(&mut self, time: Time) {
        self.last_seen = self.last_seen.max(time);
    }

    /// The latest time that this session wrote or read at.
    pub(crate) fn last_seen(&self) -> Time {
        self.last_seen
    }

    /// The time that a read takes by the session's settings.
    pub(crate) fn read_bound(&self) -> ReadBound {
        match self.settings.read_mode() {
            ReadMode::Session => ReadBound::Latest { at_least: self.last_seen },
            ReadMode::Strict => ReadBound::Strict,
            ReadMode::Available => ReadBound::Available,
        }
    }
}

/// Moves an error's position from the statement to the text that it came in.
fn in_whole_text(error: Error, offset: usize) -> Error {
    match error.position_at() {
        Some(position) => error.position(position + offset),
        None => error,
    }
}

impl Answer {
    fn notices_mut(&mut self) -> &mut Vec<Notice> {
        match self {
            Answer::Done { notices, .. } | Answer::Rows { notices, .. } => notices,
        }
    }
}
