//! One client's state, and where its statements go.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, SchemaRef};
use tokio_util::sync::CancellationToken;

use crate::catalog::Catalog;
use crate::sql::{
    self, CursorStatement, CursorSubject, Discard, Parameter, PreparedStatement, SetVariable, Statement, StatementKind,
    Subscribe, Transaction,
};
use crate::types::{Error, Limit, Limits, Result, SqlState, Time, TimeZone};

use super::api::{Answer, Notice, Tag};
use super::checkpoints::savepoint_folder;
use super::coordinator::ReadBound;
use super::copy::{self, CopyIn};
use super::database::Engine;
use super::interrupt::Interrupt;
use super::pending::Pending;
use super::point_read::PointRead;
use super::prepared::{self, Prepared};
use super::read::Opened;
use super::relations::{Relations, own_changes};
use super::settings::{ReadMode, Settings};
use super::sql_cursors::Cursors;
use super::subscribe::Subscribed;
use super::transaction::{Block, TransactionStatus};
use super::{alter, ddl, dml, explain, functions, read, show, sink_ddl};

/// One client's state: settings, what it prepared, its transaction block, and the times it has seen.
pub struct Session {
    engine: Arc<Engine>,
    settings: Settings,
    /// Who is connected.
    user: Arc<str>,
    /// The latest time that this session wrote or read at.
    last_seen: Time,
    block: Option<Block>,
    prepared: HashMap<String, Arc<Prepared>>,
    cursors: Cursors,
}

impl Session {
    pub(crate) fn new(engine: Arc<Engine>) -> Session {
        // A client may come back over another connection: what it was told of stays visible.
        let last_seen = engine.last_write();
        Session {
            engine,
            settings: Settings::default(),
            user: Arc::from(super::relations::DATABASE),
            last_seen,
            block: None,
            prepared: HashMap::new(),
            cursors: Cursors::default(),
        }
    }

    /// Splits and parses a text of statements. An error carries its position in the whole text.
    ///
    /// # Errors
    /// 42601 for what is not SQL, 0A000 for what is refused by name.
    pub fn parse(&self, sql: &str) -> Result<Vec<Statement>> {
        sql::parse_within(sql, self.engine.limits())
    }

    /// What clients may take.
    pub fn limits(&self) -> &Arc<Limits> {
        self.engine.limits()
    }

    /// Runs one statement. When `cancel` fires, it ends within a second with 57014, wherever it is.
    /// Rows of the answer are read under the same token; when they end with an error, call
    /// [`Self::fail_block`].
    ///
    /// # Errors
    /// Those of the statement; positions count in the whole text that was parsed.
    pub async fn execute(&mut self, statement: &Statement, cancel: &CancellationToken) -> Result<Answer> {
        let refused = sql::refuse_parameters(&statement.kind, &statement.text);
        let answer = match refused {
            Ok(()) => self.run(&statement.kind, cancel).await,
            Err(error) => Err(error),
        };
        self.settle(answer, statement.offset)
    }

    /// Runs a prepared statement with values, like [`Self::execute`].
    ///
    /// # Errors
    /// 08P01 for a wrong number of values; those of the statement.
    pub async fn execute_prepared(
        &mut self,
        prepared: &Prepared,
        parameters: &[Parameter],
        cancel: &CancellationToken,
    ) -> Result<Answer> {
        let answer = match prepared.bind(&self.engine, parameters) {
            Ok(kind) => self.run(&kind, cancel).await,
            Err(error) => Err(error),
        };
        self.settle(answer, prepared.statement().offset)
    }

    /// Writes rows that the client has sent for a COPY.
    ///
    /// # Errors
    /// 23505 and others of INSERT.
    pub async fn finish_copy(&mut self, copy: CopyIn, cancel: &CancellationToken) -> Result<Answer> {
        let interrupt = self.interrupt(cancel);
        let answer = copy::finish(self, copy, &interrupt).await;
        self.settle(answer, 0)
    }

    fn settle(&mut self, answer: Result<Answer>, offset: usize) -> Result<Answer> {
        match answer {
            Ok(mut answer) => {
                if !self.settings.shows_notices() {
                    answer.clear_notices();
                }
                Ok(answer)
            }
            Err(error) => {
                self.fail_block();
                Err(in_whole_text(error, offset))
            }
        }
    }

    fn interrupt(&self, cancel: &CancellationToken) -> Interrupt {
        let timeout = self.settings.statement_timeout();
        Interrupt::new(cancel.clone(), self.engine.closed().clone(), timeout, self.engine.query_threads())
    }

    async fn run(&mut self, kind: &StatementKind, cancel: &CancellationToken) -> Result<Answer> {
        let interrupt = self.interrupt(cancel);
        if self.status() == TransactionStatus::Failed && !ends_failure(kind) {
            return Err(failed_block());
        }
        self.check_in_block(kind)?;
        self.dispatch(kind, &interrupt).await
    }

    /// Prepares a statement. `declared` are the parameters' types as far as the client gives them.
    ///
    /// # Errors
    /// Those of planning the statement; 25P02 in a block that failed.
    pub async fn prepare(&mut self, statement: Statement, declared: &[Option<DataType>]) -> Result<Prepared> {
        let offset = statement.offset;
        let prepared = if self.status() == TransactionStatus::Failed && !ends_failure(&statement.kind) {
            Err(failed_block())
        } else {
            prepared::prepare(self, statement, declared).await
        };
        prepared.map_err(|error| {
            self.fail_block();
            in_whole_text(error, offset)
        })
    }

    /// Keeps a prepared statement under a name.
    ///
    /// # Errors
    /// 42P05, 54000.
    pub fn keep_prepared(&mut self, name: &str, prepared: Arc<Prepared>) -> Result<()> {
        self.check_prepared_name(name)?;
        self.prepared.insert(name.to_owned(), prepared);
        Ok(())
    }

    fn check_prepared_name(&self, name: &str) -> Result<()> {
        if self.prepared.contains_key(name) {
            return Err(Error::new(
                SqlState::DuplicatePreparedStatement,
                format!("prepared statement \"{name}\" already exists"),
            )
            .hint(format!("DEALLOCATE {name} first, or choose another name.")));
        }
        let most = self.limits().size(Limit::PreparedStatements);
        if self.prepared.len() >= most {
            let message = format!("a session may have at most {most} prepared statements");
            return Err(self
                .limits()
                .exceeded(Limit::PreparedStatements, message)
                .hint("DEALLOCATE those that are done."));
        }
        Ok(())
    }

    /// A prepared statement by name.
    ///
    /// # Errors
    /// 26000.
    pub fn prepared(&self, name: &str) -> Result<Arc<Prepared>> {
        self.prepared.get(name).cloned().ok_or_else(|| {
            Error::new(SqlState::InvalidStatementName, format!("prepared statement \"{name}\" does not exist"))
                .hint("PREPARE it first; prepared statements belong to one session.")
        })
    }

    /// The columns of a cursor of SQL.
    ///
    /// # Errors
    /// 34000.
    pub fn cursor_schema(&self, name: &str) -> Result<SchemaRef> {
        self.cursors.schema(name)
    }

    /// Drops a prepared statement if it is there.
    pub fn forget_prepared(&mut self, name: &str) {
        self.prepared.remove(name);
    }

    /// Where the session stands.
    pub fn status(&self) -> TransactionStatus {
        match &self.block {
            None => TransactionStatus::Idle,
            Some(block) if block.failed => TransactionStatus::Failed,
            Some(_) => TransactionStatus::InBlock,
        }
    }

    /// Something went wrong: an open block takes nothing more but its end.
    pub fn fail_block(&mut self) {
        if let Some(block) = &mut self.block {
            block.fail();
        }
    }

    /// The zone in which times are shown and read.
    pub fn time_zone(&self) -> TimeZone {
        self.settings.time_zone()
    }

    /// How long a transaction block may be left alone.
    pub fn idle_in_transaction_timeout(&self) -> Option<std::time::Duration> {
        self.settings.idle_in_transaction_timeout()
    }

    /// The value of a setting that clients are told of.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.settings.show(name).ok().map(|(_, value)| value)
    }

    /// Says who is connected: what `current_user` gives.
    pub fn set_user(&mut self, user: &str) {
        self.user = Arc::from(user);
    }

    /// Sets what the client asked for when it connected; `RESET` brings it back.
    ///
    /// # Errors
    /// 42704, 22023, 0A000.
    pub fn set_at_start(&mut self, name: &str, value: &str) -> Result<()> {
        self.settings.set_at_start(name, value)
    }

    /// The columns of the rows that a statement would answer with; `None` when it gives no rows.
    /// Runs nothing.
    ///
    /// # Errors
    /// Those of planning the statement.
    pub async fn describe(&self, statement: &Statement) -> Result<Option<SchemaRef>> {
        self.describe_kind(&statement.kind).await.map_err(|error| in_whole_text(error, statement.offset))
    }

    pub(crate) async fn describe_kind(&self, kind: &StatementKind) -> Result<Option<SchemaRef>> {
        match kind {
            StatementKind::Query(query) => {
                let mut relations = self.relations();
                let mut query = query.clone();
                if sql::reads_settings(&query) {
                    // Describing sets nothing.
                    let settings = &self.settings;
                    relations = relations.with_settings(settings);
                    sql::resolve_settings(&mut query, &mut |name, value, missing_ok| match value {
                        Some(value) => Ok(Some(value.to_owned())),
                        None => current_setting(settings, name, missing_ok),
                    })?;
                }
                sql::plan_query(&relations.state(), &query)
                    .await
                    .map(|plan| Some(crate::engine::read::shown_schema(plan.schema().as_arrow())))
            }
            StatementKind::Insert(_) | StatementKind::Update(_) | StatementKind::Delete(_) => {
                dml::describe(self, kind).await
            }
            StatementKind::Subscribe(subscribe) => {
                Ok(Some(SchemaRef::clone(Subscribed::of(&self.engine, subscribe)?.schema())))
            }
            StatementKind::Explain(_) => Ok(Some(explain::schema())),
            StatementKind::Show(what) => show::schema(self, what).map(Some),
            StatementKind::Describe(_) => Ok(Some(show::describe_schema())),
            StatementKind::Prepared(PreparedStatement::Execute { name, .. }) => {
                Ok(self.prepared(name)?.schema().map(Arc::clone))
            }
            StatementKind::Cursor(CursorStatement::Fetch(fetch)) if !fetch.is_move => {
                self.cursors.schema(&fetch.name).map(Some)
            }
            StatementKind::CreateTable(_)
            | StatementKind::CreateView(_)
            | StatementKind::CreateMaterializedView(_)
            | StatementKind::CreateSink(_)
            | StatementKind::CreateFunction(_)
            | StatementKind::CreateSchema { .. }
            | StatementKind::Alter(_)
            | StatementKind::Job(_)
            | StatementKind::Drop(_)
            | StatementKind::Truncate(_)
            | StatementKind::Set(_)
            | StatementKind::Transaction(_)
            | StatementKind::Prepared(_)
            | StatementKind::Cursor(_)
            | StatementKind::Copy(_)
            | StatementKind::Discard(_)
            | StatementKind::Flush
            | StatementKind::Checkpoint
            | StatementKind::CreateSavepoint(_) => Ok(None),
        }
    }

    /// Refuses what the open block does not take.
    fn check_in_block(&mut self, kind: &StatementKind) -> Result<()> {
        let Some(block) = &mut self.block else { return Ok(()) };
        let verb = match kind {
            StatementKind::Transaction(_)
            | StatementKind::Set(_)
            | StatementKind::Show(_)
            | StatementKind::Prepared(PreparedStatement::Prepare { .. } | PreparedStatement::Deallocate(_)) => {
                return Ok(());
            }
            StatementKind::Discard(Discard::All) => {
                return Err(Error::new(
                    SqlState::ActiveTransaction,
                    "DISCARD ALL cannot run inside a transaction block",
                )
                .hint("COMMIT or ROLLBACK first."));
            }
            StatementKind::Insert(_) => Some("INSERT"),
            StatementKind::Update(_) => Some("UPDATE"),
            StatementKind::Delete(_) => Some("DELETE"),
            StatementKind::Truncate(_) => Some("TRUNCATE TABLE"),
            kind if copy::writes(kind) => Some("COPY FROM"),
            kind => ddl_tag(kind),
        };
        if block.ddl.is_some() {
            return Err(Error::unsupported("a transaction block takes nothing else after a statement of DDL")
                .hint("COMMIT first. Outside of a block each statement is by itself; drivers call that autocommit."));
        }
        block.used = true;
        if let Some(verb) = verb
            && block.read_only
        {
            return Err(Error::new(
                SqlState::ReadOnlyTransaction,
                format!("cannot execute {verb} in a read-only transaction"),
            )
            .hint("BEGIN READ WRITE, or SET default_transaction_read_only = off."));
        }
        if ddl_tag(kind).is_some() && block.wrote() {
            return Err(Error::unsupported("DDL after other changes in one transaction block is not supported")
                .hint("COMMIT first. Outside of a block each statement is by itself; drivers call that autocommit."));
        }
        Ok(())
    }

    async fn dispatch(&mut self, kind: &StatementKind, interrupt: &Interrupt) -> Result<Answer> {
        if let (Some(tag), Some(block)) = (ddl_tag(kind), &mut self.block) {
            block.ddl = Some(kind.clone());
            return Ok(Answer::Done { tag: Tag::Plain(tag), notices: Vec::new() });
        }
        match kind {
            StatementKind::Query(query) => self.query(query, interrupt).await,
            StatementKind::CreateTable(_)
            | StatementKind::CreateView(_)
            | StatementKind::CreateMaterializedView(_)
            | StatementKind::CreateSink(_)
            | StatementKind::CreateFunction(_)
            | StatementKind::CreateSchema { .. }
            | StatementKind::Alter(_)
            | StatementKind::Job(_)
            | StatementKind::Drop(_) => self.define(kind, interrupt).await,
            StatementKind::Insert(_)
            | StatementKind::Update(_)
            | StatementKind::Delete(_)
            | StatementKind::Truncate(_) => dml::execute(self, kind, interrupt).await,
            StatementKind::Explain(what) => match what.as_ref() {
                sql::Explain::Analyze(query) => {
                    let opened = self.open(query, interrupt).await?;
                    explain::analyze(opened, interrupt).await
                }
                what => explain::explain(self, what, interrupt).await,
            },
            StatementKind::Show(what) => show::show(self, what),
            StatementKind::Describe(describe) => show::describe(self, describe),
            StatementKind::Set(set) => self.set(set),
            StatementKind::Transaction(transaction) => self.transaction(transaction, interrupt).await,
            StatementKind::Prepared(statement) => self.prepared_statement(statement, interrupt).await,
            StatementKind::Cursor(statement) => self.cursor(statement, interrupt).await,
            StatementKind::Copy(copy) => copy::copy(self, copy, interrupt).await,
            StatementKind::Subscribe(subscribe) => self.subscribe(subscribe, interrupt).await,
            StatementKind::Discard(what) => {
                match what {
                    Discard::All => {
                        self.settings = self.settings.at_start();
                        self.prepared.clear();
                        self.cursors.close(None)?;
                    }
                    // A plan is made when a statement runs, and there are no sequences.
                    Discard::Plans | Discard::Nothing | Discard::Listens => {}
                }
                let tag = match what {
                    Discard::All => "DISCARD ALL",
                    Discard::Plans => "DISCARD PLANS",
                    Discard::Nothing => "DISCARD",
                    Discard::Listens => "UNLISTEN",
                };
                Ok(done(tag))
            }
            StatementKind::Flush => {
                let coordinator = self.engine.coordinator().clone();
                let time = interrupt.run(async move { coordinator.flush().await }).await?;
                self.saw(time);
                Ok(done("FLUSH"))
            }
            StatementKind::CreateSavepoint(uri) => {
                let folder = savepoint_folder(&uri.text).map_err(|error| error.position_or(Some(uri.position)))?;
                // What is created meanwhile would be in the catalog and not in the state.
                let turn = ddl::turn(self, interrupt).await?;
                let engine = Arc::clone(&self.engine);
                interrupt
                    .finish(async move {
                        let _turn = turn;
                        engine.savepoint(folder).await
                    })
                    .await?;
                Ok(done("CREATE SAVEPOINT"))
            }
            StatementKind::Checkpoint => {
                let coordinator = self.engine.coordinator().clone();
                interrupt.run(async move { coordinator.checkpoint().await }).await?;
                Ok(done("CHECKPOINT"))
            }
        }
    }

    async fn define(&mut self, kind: &StatementKind, interrupt: &Interrupt) -> Result<Answer> {
        match kind {
            StatementKind::CreateTable(create) => ddl::create_table(self, create, interrupt).await,
            StatementKind::CreateView(create) => ddl::create_view(self, create, interrupt).await,
            StatementKind::CreateMaterializedView(create) => {
                ddl::create_materialized_view(self, create, interrupt).await
            }
            StatementKind::CreateFunction(create) => functions::create(self, create, interrupt).await,
            StatementKind::CreateSink(create) => sink_ddl::create_sink(self, create, interrupt).await,
            StatementKind::Alter(alter) => alter::alter(self, alter, interrupt).await,
            StatementKind::Job(command) => sink_ddl::job(self, command, interrupt).await,
            StatementKind::CreateSchema { name, if_not_exists } => {
                ddl::create_schema(self, name, *if_not_exists, interrupt).await
            }
            StatementKind::Drop(drop) => ddl::drop(self, drop, interrupt).await,
            _ => Err(Error::internal("a statement that defines nothing")),
        }
    }

    fn set(&mut self, set: &SetVariable) -> Result<Answer> {
        let before = self.settings.show(&set.name).ok().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let notice = self
            .settings
            .set(&set.name, set.value.as_deref())
            .map_err(|error| error.position_or(Some(set.position)))?;
        let mut notices: Vec<Notice> = notice.into_iter().collect();
        if set.local {
            match (&mut self.block, before) {
                (Some(block), Some(before)) => block.locals.push(before),
                (None, Some((name, value))) => {
                    self.settings.restore(&name, value);
                    notices.push(warning("SET LOCAL can only be used in transaction blocks"));
                }
                (_, None) => {}
            }
        }
        let tag = if set.value.is_some() || set.local { "SET" } else { "RESET" };
        Ok(Answer::Done { tag: Tag::Plain(tag), notices })
    }

    async fn transaction(&mut self, transaction: &Transaction, interrupt: &Interrupt) -> Result<Answer> {
        match transaction.clone() {
            Transaction::Begin(modes) => {
                if let Some(block) = &mut self.block {
                    if let Some(read_only) = modes.read_only {
                        block.read_only = read_only;
                    }
                    let notice = warning("there is already a transaction in progress");
                    return Ok(Answer::Done { tag: Tag::Plain("BEGIN"), notices: vec![notice] });
                }
                self.begin(modes);
                Ok(done("BEGIN"))
            }
            Transaction::Savepoint(name) => {
                let (settings, limits) = (self.settings.clone(), Arc::clone(self.limits()));
                self.open_block("SAVEPOINT")?.save(name, settings, &limits)?;
                Ok(done("SAVEPOINT"))
            }
            Transaction::Release(name) => {
                self.open_block("RELEASE SAVEPOINT")?.release(&name)?;
                Ok(done("RELEASE"))
            }
            Transaction::RollbackTo(name) => {
                self.settings = self.open_block("ROLLBACK TO SAVEPOINT")?.back_to(&name)?;
                Ok(done("ROLLBACK"))
            }
            Transaction::Set(modes) => {
                let Some(block) = &mut self.block else {
                    let notice = warning("SET TRANSACTION can only be used in transaction blocks");
                    return Ok(Answer::Done { tag: Tag::Plain("SET"), notices: vec![notice] });
                };
                if let Some(read_only) = modes.read_only {
                    if block.read_only && !read_only && block.used {
                        return Err(Error::new(
                            SqlState::ActiveTransaction,
                            "transaction read-write mode must be set before any query",
                        )
                        .hint("BEGIN READ WRITE."));
                    }
                    block.read_only = read_only;
                }
                Ok(done("SET"))
            }
            Transaction::SetDefault(modes) => {
                if let Some(read_only) = modes.read_only {
                    self.settings.set("default_transaction_read_only", Some(if read_only { "on" } else { "off" }))?;
                }
                Ok(done("SET"))
            }
            Transaction::Commit { chain } => {
                let read_only = self.block.as_ref().map(|block| block.read_only);
                let answer = self.commit(interrupt).await;
                if chain && answer.is_ok() && read_only.is_some() {
                    self.begin(sql::TransactionModes { read_only });
                }
                answer
            }
            Transaction::Rollback { chain } => {
                let Some(block) = self.block.take() else {
                    let notice = warning("there is no transaction in progress");
                    return Ok(Answer::Done { tag: Tag::Plain("ROLLBACK"), notices: vec![notice] });
                };
                let read_only = Some(block.read_only);
                self.roll_back(block);
                if chain {
                    self.begin(sql::TransactionModes { read_only });
                }
                Ok(done("ROLLBACK"))
            }
        }
    }

    /// The block, failed or not.
    fn open_block(&mut self, verb: &str) -> Result<&mut Block> {
        self.block.as_mut().ok_or_else(|| {
            Error::new(SqlState::NoActiveTransaction, format!("{verb} can only be used in transaction blocks"))
                .hint("BEGIN first.")
        })
    }

    fn begin(&mut self, modes: sql::TransactionModes) {
        let read_only = self.settings.is_on("default_transaction_read_only");
        let holder = self.engine.turns().holder();
        self.block = Some(Block::new(self.settings.clone(), modes, read_only, holder));
    }

    fn roll_back(&mut self, block: Block) {
        self.settings = block.settings;
        self.cursors.end_block();
    }

    async fn commit(&mut self, interrupt: &Interrupt) -> Result<Answer> {
        let Some(mut block) = self.block.take() else {
            let notice = warning("there is no transaction in progress");
            return Ok(Answer::Done { tag: Tag::Plain("COMMIT"), notices: vec![notice] });
        };
        if block.failed {
            self.roll_back(block);
            return Ok(done("ROLLBACK"));
        }
        self.cursors.end_block();
        let before = block.settings.clone();
        for (name, value) in std::mem::take(&mut block.locals).into_iter().rev() {
            self.settings.restore(&name, value);
        }
        let result = match block.ddl.take() {
            Some(kind) => {
                let answer = self.define(&kind, interrupt).await;
                answer.map(|mut answer| answer.notices_mut().map(std::mem::take).unwrap_or_default())
            }
            None => {
                let (writes, writers, turns) = block.into_writes();
                dml::apply(self, writes, writers, turns, interrupt).await.map(|()| Vec::new())
            }
        };
        match result {
            Ok(notices) => Ok(Answer::Done { tag: Tag::Plain("COMMIT"), notices }),
            Err(error) => {
                self.settings = before;
                Err(error.without_position())
            }
        }
    }

    async fn prepared_statement(&mut self, statement: &PreparedStatement, interrupt: &Interrupt) -> Result<Answer> {
        match statement {
            PreparedStatement::Prepare { name, types, statement } => {
                self.check_prepared_name(name)?;
                let statement = Statement { text: String::new(), offset: 0, kind: statement.as_ref().clone() };
                let declared: Vec<Option<DataType>> = types.iter().cloned().map(Some).collect();
                let prepared = prepared::prepare(self, statement, &declared).await?;
                self.prepared.insert(name.clone(), Arc::new(prepared));
                Ok(done("PREPARE"))
            }
            PreparedStatement::Execute { name, arguments } => {
                let kind = self.prepared(name)?.bind_expressions(name, arguments)?;
                self.check_in_block(&kind)?;
                // The positions of the prepared text mean nothing in this one.
                let answer = match &kind {
                    StatementKind::Query(query) => self.query(query, interrupt).await,
                    StatementKind::Insert(_) | StatementKind::Update(_) | StatementKind::Delete(_) => {
                        dml::execute(self, &kind, interrupt).await
                    }
                    _ => Err(Error::unsupported("EXECUTE of this statement is not supported")
                        .hint("Run it through the protocol that prepared it, or send its text.")),
                };
                answer.map_err(Error::without_position)
            }
            PreparedStatement::Deallocate(None) => {
                self.prepared.clear();
                Ok(done("DEALLOCATE ALL"))
            }
            PreparedStatement::Deallocate(Some(name)) => {
                self.prepared(name)?;
                self.prepared.remove(name);
                Ok(done("DEALLOCATE"))
            }
        }
    }

    async fn cursor(&mut self, statement: &CursorStatement, interrupt: &Interrupt) -> Result<Answer> {
        match statement {
            CursorStatement::Declare { name, hold, of } => {
                if self.block.is_none() && !hold {
                    return Err(Error::new(
                        SqlState::NoActiveTransaction,
                        "DECLARE CURSOR can only be used in transaction blocks",
                    )
                    .hint("BEGIN first, or write WITH HOLD."));
                }
                self.cursors.check_new(name, self.engine.limits())?;
                match of {
                    CursorSubject::Query(query) => {
                        let opened = self.open(query, interrupt).await?;
                        self.cursors.declare(name.clone(), *hold, opened.schema, opened.rows);
                    }
                    CursorSubject::Subscribe(subscribe) => {
                        let subscription = self.engine.subscribe(subscribe, self.seen(), interrupt).await?;
                        self.cursors.declare_subscription(name.clone(), *hold, subscription);
                    }
                }
                Ok(done("DECLARE CURSOR"))
            }
            CursorStatement::Fetch(fetch) => {
                let now = self.engine.coordinator().last_time();
                self.cursors.fetch(fetch, now, interrupt).await
            }
            CursorStatement::Close(name) => {
                self.cursors.close(name.as_deref())?;
                Ok(done(if name.is_some() { "CLOSE CURSOR" } else { "CLOSE CURSOR ALL" }))
            }
        }
    }

    /// Opens a query at the time that the session's settings and its block give.
    async fn open(&mut self, query: &sqlparser::ast::Query, interrupt: &Interrupt) -> Result<Opened> {
        let wrote = self.block.as_ref().is_some_and(Block::wrote);
        let bound = self.read_bound();
        let mut query = Box::new(query.clone());
        let reads_settings = sql::reads_settings(&query);
        if reads_settings {
            sql::resolve_settings(&mut query, &mut |name, value, flag| match value {
                None => current_setting(&self.settings, name, flag),
                Some(value) => {
                    let set =
                        SetVariable { name: name.to_owned(), value: Some(value.to_owned()), position: 1, local: flag };
                    self.set(&set).map_err(Error::without_position)?;
                    Ok(Some(value.to_owned()))
                }
            })?;
        }
        let (engine, mut relations) = (Arc::clone(&self.engine), self.relations());
        if reads_settings {
            relations = relations.with_settings(&self.settings);
        }
        let opened = interrupt.run(read::open(engine, relations, query, bound)).await?;
        if let Some(pin) = &opened.pin {
            if wrote {
                return Err(own_changes("tables and views"));
            }
            self.read_at(pin.time());
        }
        Ok(opened)
    }

    /// A query read at a time, and what the block reads later is of the same.
    fn read_at(&mut self, time: Time) {
        self.saw(time);
        if let Some(block) = &mut self.block {
            let relations = self.engine.catalog().objects().map(|object| object.id).collect::<Vec<_>>();
            block.keep_time(self.engine.coordinator(), time, relations.into_iter());
        }
    }

    pub(crate) async fn query(&mut self, query: &sqlparser::ast::Query, interrupt: &Interrupt) -> Result<Answer> {
        let wrote = self.block.as_ref().is_some_and(Block::wrote);
        if let Some(point) = PointRead::of(query, &self.engine.catalog()).filter(|_| !wrote) {
            let bound = self.read_bound();
            if let Some(found) = interrupt.run(point.find(Arc::clone(&self.engine), bound)).await? {
                // The pin lives until the block has its own.
                self.read_at(found.pin.time());
                let rows = interrupt.stream(found.rows);
                return Ok(Answer::Rows { schema: found.schema, rows, tag: Tag::Select, notices: Vec::new() });
            }
        }
        let opened = self.open(query, interrupt).await?;
        let rows = interrupt.stream(opened.rows);
        Ok(Answer::Rows { schema: opened.schema, rows, tag: Tag::Select, notices: Vec::new() })
    }

    /// A subscription begins with all that was answered before, to whomever.
    fn seen(&self) -> Time {
        self.last_seen.max(self.engine.last_write())
    }

    /// `SUBSCRIBE`: it has no time limit, and sees what is committed.
    pub(crate) async fn subscribe(&mut self, subscribe: &Subscribe, interrupt: &Interrupt) -> Result<Answer> {
        let interrupt = interrupt.untimed();
        let subscription = self.engine.subscribe(subscribe, self.seen(), &interrupt).await?;
        let rows = interrupt.stream(subscription.into_stream());
        Ok(Answer::Rows { schema: rows.schema(), rows, tag: Tag::Plain("SUBSCRIBE"), notices: Vec::new() })
    }

    /// Who is connected.
    pub(crate) fn user(&self) -> &Arc<str> {
        &self.user
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The open block, unless it failed.
    pub(crate) fn block(&self) -> Option<&Block> {
        self.block.as_ref().filter(|block| !block.failed)
    }

    /// The open block, unless it failed.
    pub(crate) fn block_mut(&mut self) -> Option<&mut Block> {
        self.block.as_mut().filter(|block| !block.failed)
    }

    /// What the open block changed.
    pub(crate) fn pending(&self) -> Arc<Pending> {
        self.block().map(|block| Arc::clone(&block.pending)).unwrap_or_default()
    }

    /// The relations as they are now.
    pub(crate) fn relations(&self) -> Relations {
        self.relations_of(self.engine.catalog())
    }

    /// The relations as definitions see them: the same in every session.
    pub(crate) fn definitions(&self) -> Relations {
        self.relations().with_zone(TimeZone::utc()).with_user(&Arc::from(super::relations::DATABASE))
    }

    /// The relations of a version of the catalog.
    pub(crate) fn relations_of(&self, catalog: Arc<Catalog>) -> Relations {
        Relations::new(&self.engine, catalog).with_zone(self.time_zone()).with_user(&self.user)
    }

    /// Remembers a time, so that later reads are not before it.
    pub(crate) fn saw(&mut self, time: Time) {
        self.last_seen = self.last_seen.max(time);
    }

    /// The latest time that this session wrote or read at.
    pub(crate) fn last_seen(&self) -> Time {
        self.last_seen
    }

    /// The time that a read takes: that of the block, or by the session's settings.
    fn read_bound(&self) -> ReadBound {
        if let Some(bound) = self.block.as_ref().and_then(Block::read_bound) {
            return bound;
        }
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

fn current_setting(settings: &Settings, name: &str, missing_ok: bool) -> Result<Option<String>> {
    match settings.shown(name) {
        Ok((_, value)) => Ok(Some(value)),
        Err(_) if missing_ok => Ok(None),
        Err(error) => Err(error),
    }
}

/// True for what a failed block takes.
fn ends_failure(kind: &StatementKind) -> bool {
    matches!(
        kind,
        StatementKind::Transaction(
            Transaction::Commit { .. } | Transaction::Rollback { .. } | Transaction::RollbackTo(_)
        )
    )
}

fn failed_block() -> Error {
    Error::new(
        SqlState::InFailedTransaction,
        "current transaction is aborted, commands ignored until end of transaction block",
    )
    .hint("ROLLBACK, then run the block again.")
}

fn warning(message: &str) -> Notice {
    Notice { message: message.to_owned(), hint: None }
}

fn done(tag: &'static str) -> Answer {
    Answer::Done { tag: Tag::Plain(tag), notices: Vec::new() }
}

/// The tag of a statement of DDL; `None` for others.
fn ddl_tag(kind: &StatementKind) -> Option<&'static str> {
    Some(match kind {
        StatementKind::CreateTable(_) => "CREATE TABLE",
        StatementKind::CreateView(_) => "CREATE VIEW",
        StatementKind::CreateMaterializedView(_) => "CREATE MATERIALIZED VIEW",
        StatementKind::CreateSchema { .. } => "CREATE SCHEMA",
        StatementKind::CreateSink(_) => "CREATE SINK",
        StatementKind::CreateFunction(_) => "CREATE FUNCTION",
        StatementKind::Job(command) => match command.action {
            sql::JobAction::Pause => "PAUSE JOB",
            sql::JobAction::Resume => "RESUME JOB",
            sql::JobAction::Cancel => "CANCEL JOB",
            sql::JobAction::Stop => "STOP JOB",
        },
        StatementKind::Alter(sql::Alter::Workers(_)) => "ALTER SYSTEM",
        StatementKind::Alter(sql::Alter::StateBackend { .. }) => "ALTER MATERIALIZED VIEW",
        StatementKind::Alter(sql::Alter::CreateIndex(_)) => "CREATE INDEX",
        StatementKind::Alter(sql::Alter::DropIndex { .. }) => "DROP INDEX",
        StatementKind::Drop(drop) => match drop.kind {
            sql::ObjectKind::Table => "DROP TABLE",
            sql::ObjectKind::View => "DROP VIEW",
            sql::ObjectKind::MaterializedView => "DROP MATERIALIZED VIEW",
            sql::ObjectKind::Schema => "DROP SCHEMA",
            sql::ObjectKind::Function => "DROP FUNCTION",
            sql::ObjectKind::Sink => "DROP SINK",
        },
        _ => return None,
    })
}

impl Answer {
    fn notices_mut(&mut self) -> Option<&mut Vec<Notice>> {
        match self {
            Answer::Done { notices, .. } | Answer::Rows { notices, .. } => Some(notices),
            Answer::CopyOut { .. } | Answer::CopyIn(_) => None,
        }
    }

    fn clear_notices(&mut self) {
        if let Some(notices) = self.notices_mut() {
            notices.clear();
        }
    }
}
