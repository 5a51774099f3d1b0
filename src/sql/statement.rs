//! Parsed statements.

use std::collections::BTreeMap;
use std::time::Duration;

use arrow::datatypes::DataType;
use sqlparser::ast;

use super::names::quoted;

pub use crate::connectors::OptionValue;
use crate::types::{Error, Result, SqlState};

/// One parsed statement and the text it came from.
#[derive(Clone, Debug)]
pub struct Statement {
    /// The statement's own text, without the semicolon and surrounding space.
    pub text: String,
    /// Characters before it in the text that was parsed: what to add to positions.
    pub offset: usize,
    /// What it says.
    pub kind: StatementKind,
}

impl Statement {
    /// True when it answers with the rows of a query.
    pub fn is_query(&self) -> bool {
        matches!(self.kind, StatementKind::Query(_))
    }

    /// The materialized view that it makes, as SQL names it.
    pub fn created_view(&self) -> Option<String> {
        match &self.kind {
            StatementKind::CreateMaterializedView(view) => Some(view.name.to_sql()),
            _ => None,
        }
    }
}

impl Name {
    /// As a statement writes it.
    pub fn to_sql(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(&self.name)),
            None => quoted(&self.name),
        }
    }
}

/// The name of an object, folded to lower case unless quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The schema, when given.
    pub schema: Option<String>,
    /// The object.
    pub name: String,
    /// Where it stands in the statement's text: characters from 1.
    pub position: usize,
}

/// The kinds of objects that statements name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A table, with or without a connector.
    Table,
    /// A plain view: text that is put in where its name stands.
    View,
    /// A materialized view.
    MaterializedView,
    /// A standing query whose rows leave.
    Sink,
    /// A schema.
    Schema,
    /// A scalar function of SQL.
    Function,
}

/// What a statement says.
#[derive(Clone, Debug)]
pub enum StatementKind {
    /// `CREATE TABLE`.
    CreateTable(CreateTable),
    /// `CREATE VIEW`.
    CreateView(CreateView),
    /// `CREATE MATERIALIZED VIEW`.
    CreateMaterializedView(CreateMaterializedView),
    /// `CREATE SINK`.
    CreateSink(CreateSink),
    /// `CREATE FUNCTION`.
    CreateFunction(Box<CreateFunction>),
    /// `CREATE SCHEMA`.
    CreateSchema {
        /// The schema.
        name: Name,
        /// Say nothing when it is there already.
        if_not_exists: bool,
    },
    /// `DROP`.
    Drop(Drop),
    /// `SELECT`, `VALUES`, `TABLE`, `WITH`.
    Query(Box<ast::Query>),
    /// `INSERT`, with `ON CONFLICT` and `RETURNING`.
    Insert(Box<ast::Insert>),
    /// `UPDATE`.
    Update(Box<ast::Statement>),
    /// `DELETE`.
    Delete(Box<ast::Delete>),
    /// `TRUNCATE`.
    Truncate(Vec<Name>),
    /// `EXPLAIN`.
    Explain(Box<Explain>),
    /// `SHOW`.
    Show(Show),
    /// `DESCRIBE`.
    Describe(Describe),
    /// `SET`, `RESET`.
    Set(SetVariable),
    /// `ALTER SYSTEM`, `ALTER MATERIALIZED VIEW`, `CREATE INDEX`, `DROP INDEX`.
    Alter(Alter),
    /// `PAUSE|RESUME|CANCEL|STOP JOB`.
    Job(JobCommand),
    /// `FLUSH`, `WAIT`.
    Flush,
    /// `CHECKPOINT`.
    Checkpoint,
    /// `CREATE SAVEPOINT 'uri'`.
    CreateSavepoint(OptionValue),
    /// `BEGIN`, `COMMIT`, `ROLLBACK`, `SET TRANSACTION`.
    Transaction(Transaction),
    /// `PREPARE`, `EXECUTE`, `DEALLOCATE`.
    Prepared(PreparedStatement),
    /// `DECLARE`, `FETCH`, `MOVE`, `CLOSE`.
    Cursor(CursorStatement),
    /// `COPY`.
    Copy(Box<Copy>),
    /// `SUBSCRIBE`.
    Subscribe(Subscribe),
    /// `DISCARD`.
    Discard(Discard),
}

/// `CREATE TABLE`.
#[derive(Clone, Debug)]
pub struct CreateTable {
    /// The table.
    pub name: Name,
    /// Say nothing when it is there already.
    pub if_not_exists: bool,
    /// Its columns.
    pub columns: Vec<ColumnDefinition>,
    /// Indexes of the primary key's columns; empty when it has none.
    pub primary_key: Vec<usize>,
    /// Refuse UPDATE and DELETE.
    pub append_only: bool,
    /// Written as `CREATE SOURCE`.
    pub source: bool,
    /// The `WITH` options, keys folded to lower case, values as typed without quotes; empty for an
    /// ordinary table.
    pub options: BTreeMap<String, OptionValue>,
    /// Its event time.
    pub watermark: Option<WatermarkClause>,
    /// The `WITH` options that are about event time.
    pub time_options: BTreeMap<String, OptionValue>,
}

/// `WATERMARK FOR column AS expression`.
#[derive(Clone, Debug)]
pub struct WatermarkClause {
    /// The column's name.
    pub column: String,
    /// What each row claims: no row will come any more whose time is before this.
    pub expression: Box<ast::Expr>,
    /// Where the column stands.
    pub position: usize,
}

/// When a standing query gives its rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Emit {
    /// At once, and again when they change.
    #[default]
    Changes,
    /// Once, when they can change no more.
    OnWindowClose,
}

/// What a statement says of how its query stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// When it gives its rows.
    pub emit: Emit,
    /// How long it keeps what has not changed, in milliseconds; `None`: for ever.
    pub ttl_millis: Option<u64>,
}

impl Standing {
    /// From the option `state_ttl`, if it is given.
    ///
    /// # Errors
    /// 22023 when it is no span of time, or none at all.
    pub(crate) fn new(emit: Emit, state_ttl: Option<&OptionValue>) -> Result<Standing> {
        let ttl_millis = state_ttl
            .map(|value| {
                let ttl = value.duration("state_ttl").map_err(|error| error.position_or(Some(value.position)))?;
                let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
                if millis == 0 {
                    let error = Error::new(SqlState::InvalidParameterValue, "state_ttl must be at least 1 ms");
                    return Err(error.hint("Write state_ttl = '1 day'.").position(value.position));
                }
                Ok(millis)
            })
            .transpose()?;
        Ok(Standing { emit, ttl_millis })
    }
}

/// A column of `CREATE TABLE`.
#[derive(Clone, Debug)]
pub struct ColumnDefinition {
    /// Its name.
    pub name: String,
    /// How its values are stored.
    pub data_type: DataType,
    /// The SQL type in its documented spelling, such as `character varying(10)`.
    pub sql_type: String,
    /// For `varchar(n)` and `char(n)`: the most characters.
    pub length_max: Option<usize>,
    /// False for `NOT NULL` and primary keys.
    pub nullable: bool,
    /// The `DEFAULT` expression.
    pub default: Option<ast::Expr>,
    /// What a computed column is computed by.
    pub computed: Option<ast::Expr>,
}

/// `CREATE VIEW`.
#[derive(Clone, Debug)]
pub struct CreateView {
    /// The view.
    pub name: Name,
    /// Say nothing when it is there already.
    pub if_not_exists: bool,
    /// Column names, when given.
    pub columns: Vec<String>,
    /// The query.
    pub query: Box<ast::Query>,
    /// The query as the user wrote it.
    pub query_text: String,
}

/// `CREATE MATERIALIZED VIEW`.
#[derive(Clone, Debug)]
pub struct CreateMaterializedView {
    /// The view.
    pub name: Name,
    /// Say nothing when it is there already.
    pub if_not_exists: bool,
    /// Column names, when given.
    pub columns: Vec<String>,
    /// Answer at once, before the history is in.
    pub background: bool,
    /// A row for which an expression fails stops the job, instead of going to its errors relation.
    pub fail_on_error: bool,
    /// The URI of the backend of its state, when given.
    pub state_backend: Option<OptionValue>,
    /// How long its past is kept, when given.
    pub retain_history: Option<OptionValue>,
    /// How long it keeps what has not changed, when given.
    pub state_ttl: Option<OptionValue>,
    /// The query.
    pub query: Box<ast::Query>,
    /// The query as the user wrote it.
    pub query_text: String,
    /// When its rows come.
    pub emit: Emit,
}

/// `CREATE SINK`.
#[derive(Clone, Debug)]
pub struct CreateSink {
    /// The sink.
    pub name: Name,
    /// Say nothing when it is there already.
    pub if_not_exists: bool,
    /// The table that its rows go into; else the options say where.
    pub into: Option<Name>,
    /// The relation whose rows go out whole, when the statement names one in place of a query.
    pub from: Option<Name>,
    /// The `WITH` options of its connector; empty with a target table.
    pub options: BTreeMap<String, OptionValue>,
    /// How long it keeps what has not changed, when given.
    pub state_ttl: Option<OptionValue>,
    /// The query.
    pub query: Box<ast::Query>,
    /// The query as the user wrote it.
    pub query_text: String,
    /// When its rows go out.
    pub emit: Emit,
}

/// `CREATE FUNCTION`: a scalar function whose body is one expression.
#[derive(Clone, Debug)]
pub struct CreateFunction {
    /// The function.
    pub name: Name,
    /// Take the place of the one of this name, if there is one.
    pub or_replace: bool,
    /// Its parameters, in order.
    pub parameters: Vec<FunctionParameter>,
    /// The type of its result.
    pub returns: DataType,
    /// What is said of its result, if anything is.
    pub volatility: Option<FunctionVolatility>,
    /// The result is NULL when an argument is.
    pub strict: bool,
    /// The expression.
    pub body: ast::Expr,
    /// What to add to positions in the expression: it may have been read from a text of its own.
    pub body_offset: usize,
    /// Where the body begins.
    pub body_position: usize,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionParameter {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// Its type.
    pub data_type: DataType,
}

/// What a function says of its results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionVolatility {
    /// Equal arguments always give the same.
    Immutable,
    /// They do within one statement.
    Stable,
}

/// What is done to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobAction {
    /// It takes no more input.
    Pause,
    /// It starts again.
    Resume,
    /// It ends and is forgotten.
    Cancel,
    /// It takes no more input, once a savepoint is written when one is asked for.
    Stop,
}

/// `PAUSE|RESUME|CANCEL|STOP JOB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobCommand {
    /// What is done.
    pub action: JobAction,
    /// The view or sink that the job keeps.
    pub name: Name,
    /// Where a savepoint goes before: `STOP JOB … WITH SAVEPOINT 'uri'`.
    pub savepoint: Option<OptionValue>,
}

/// What changes something that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Alter {
    /// `ALTER SYSTEM SET workers = n`.
    Workers(OptionValue),
    /// `ALTER MATERIALIZED VIEW v SET (state_backend = 'uri')`.
    StateBackend {
        /// The view.
        name: Name,
        /// The URI.
        uri: OptionValue,
    },
    /// `CREATE INDEX`.
    CreateIndex(CreateIndex),
    /// `DROP INDEX`.
    DropIndex {
        /// The indexes.
        names: Vec<Name>,
        /// Say nothing when one is not there.
        if_exists: bool,
    },
}

/// `CREATE INDEX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateIndex {
    /// Its name; made of the columns when it is left out.
    pub name: Option<Name>,
    /// Say nothing when it is there already.
    pub if_not_exists: bool,
    /// The table or materialized view.
    pub on: Name,
    /// The columns and where they stand.
    pub columns: Vec<(String, usize)>,
}

/// `DROP`.
#[derive(Clone, Debug)]
pub struct Drop {
    /// What kind of objects.
    pub kind: ObjectKind,
    /// Written as `DROP SOURCE`: the tables have to have connectors.
    pub source: bool,
    /// Which.
    pub names: Vec<Name>,
    /// For functions: the types of the arguments of each, where they are written.
    pub arguments: Vec<Option<Vec<DataType>>>,
    /// Say nothing when one is not there.
    pub if_exists: bool,
    /// Drop what stands on them too.
    pub cascade: bool,
}

/// `EXPLAIN`.
#[derive(Clone, Debug)]
pub enum Explain {
    /// The plan of a statement that answers once.
    Query(Box<ast::Query>),
    /// The same, after it ran: with what its parts did.
    Analyze(Box<ast::Query>),
    /// The plan of a standing query.
    View(CreateMaterializedView),
    /// The plan of a view or sink that is there.
    Job {
        /// Its name.
        name: Name,
        /// With what its operators did and keep.
        analyze: bool,
    },
}

/// `SHOW`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Show {
    /// `SHOW TABLES`.
    Tables,
    /// `SHOW VIEWS`.
    Views,
    /// `SHOW MATERIALIZED VIEWS`.
    MaterializedViews,
    /// `SHOW SINKS`.
    Sinks,
    /// `SHOW JOBS`.
    Jobs,
    /// `SHOW SOURCES`.
    Sources,
    /// `SHOW CHECKPOINTS`.
    Checkpoints,
    /// `SHOW WATERMARKS`.
    Watermarks,
    /// `SHOW FUNCTIONS`.
    Functions,
    /// `SHOW CREATE TABLE|VIEW|MATERIALIZED VIEW|SINK|FUNCTION`.
    Create(ObjectKind, Name),
    /// A setting by name, lower case; `all` for all of them.
    Variable(String),
}

/// `DESCRIBE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Describe {
    /// The table or view.
    pub name: Name,
}

/// `SET` and `RESET`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetVariable {
    /// The setting, lower case, dotted when it is.
    pub name: String,
    /// The value without quotes; `None` for `DEFAULT` and `RESET`.
    pub value: Option<String>,
    /// Where the name stands: characters from 1.
    pub position: usize,
    /// `SET LOCAL`: only until the transaction block ends.
    pub local: bool,
}

/// Statements about transaction blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transaction {
    /// `BEGIN`, `START TRANSACTION`.
    Begin(TransactionModes),
    /// `COMMIT`, `END`.
    Commit {
        /// Begin another block at once.
        chain: bool,
    },
    /// `ROLLBACK`, `ABORT`.
    Rollback {
        /// Begin another block at once.
        chain: bool,
    },
    /// `SAVEPOINT`.
    Savepoint(String),
    /// `RELEASE SAVEPOINT`.
    Release(String),
    /// `ROLLBACK TO SAVEPOINT`.
    RollbackTo(String),
    /// `SET TRANSACTION`.
    Set(TransactionModes),
    /// `SET SESSION CHARACTERISTICS AS TRANSACTION`.
    SetDefault(TransactionModes),
}

/// What a block may do. Every isolation level that is taken means the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionModes {
    /// `READ ONLY` or `READ WRITE`, when said.
    pub read_only: Option<bool>,
}

/// Statements about prepared statements.
#[derive(Clone, Debug)]
pub enum PreparedStatement {
    /// `PREPARE`.
    Prepare {
        /// Its name.
        name: String,
        /// The types of its first parameters.
        types: Vec<DataType>,
        /// What it runs.
        statement: Box<StatementKind>,
    },
    /// `EXECUTE`.
    Execute {
        /// Its name.
        name: String,
        /// The parameters' values.
        arguments: Vec<ast::Expr>,
    },
    /// `DEALLOCATE`; `None` for all.
    Deallocate(Option<String>),
}

/// Statements about cursors.
#[derive(Clone, Debug)]
pub enum CursorStatement {
    /// `DECLARE`.
    Declare {
        /// Its name.
        name: String,
        /// It outlives its transaction block.
        hold: bool,
        /// What it reads.
        of: CursorSubject,
    },
    /// `FETCH`, `MOVE`.
    Fetch(Fetch),
    /// `CLOSE`; `None` for all.
    Close(Option<String>),
}

/// What a cursor reads.
#[derive(Clone, Debug)]
pub enum CursorSubject {
    /// The rows of a query.
    Query(Box<ast::Query>),
    /// The changes of a relation.
    Subscribe(Subscribe),
}

/// `SUBSCRIBE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    /// The relation.
    pub name: Name,
    /// Begin with the rows that are there; when not said: unless `AS OF` says where to begin.
    pub snapshot: Option<bool>,
    /// Rows that tell how far it is.
    pub progress: bool,
    /// The token to go on from.
    pub as_of: Option<OptionValue>,
    /// The token at which it ends.
    pub up_to: Option<OptionValue>,
}

/// `FETCH` and `MOVE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// The cursor.
    pub name: String,
    /// How many rows; `None` for all.
    pub rows: Option<u64>,
    /// Only go past them.
    pub is_move: bool,
    /// How long to wait for changes that a subscription does not have yet.
    pub timeout: Option<Duration>,
}

/// `DISCARD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Everything that the session holds.
    All,
    /// Plans of prepared statements.
    Plans,
    /// What there is none of: sequences, temporary tables.
    Nothing,
    /// `UNLISTEN`: nobody can listen, so nothing is left.
    Listens,
}

/// `COPY`.
#[derive(Clone, Debug)]
pub struct Copy {
    /// What is copied.
    pub subject: CopySubject,
    /// To or from the client.
    pub direction: CopyDirection,
    /// How rows are written.
    pub options: CopyOptions,
}

/// What COPY copies.
#[derive(Clone, Debug)]
pub enum CopySubject {
    /// A table or view, and its columns when given, with their places.
    Table {
        /// The table.
        name: Name,
        /// Its columns.
        columns: Option<Vec<(String, usize)>>,
    },
    /// The rows of a query.
    Query(Box<ast::Query>),
    /// The changes of a relation.
    Subscribe(Subscribe),
}

/// The direction of COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// `FROM STDIN`.
    In,
    /// `TO STDOUT`.
    Out,
}

/// The format of COPY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyFormat {
    /// Tabs and backslashes.
    #[default]
    Text,
    /// Commas and quotes.
    Csv,
    /// PostgreSQL's binary format.
    Binary,
}

/// The options of COPY.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyOptions {
    /// The format.
    pub format: CopyFormat,
    /// Between columns, when given.
    pub delimiter: Option<u8>,
    /// For NULL, when given.
    pub null: Option<String>,
    /// The first line names the columns.
    pub header: bool,
    /// ... and the names are checked.
    pub header_match: bool,
    /// CSV's quote, when given.
    pub quote: Option<u8>,
    /// CSV's escape within quotes, when given.
    pub escape: Option<u8>,
    /// Columns that are always quoted; empty inside: all.
    pub force_quote: Option<Vec<String>>,
    /// Columns in which a quoted null is NULL too.
    pub force_null: Vec<String>,
    /// Columns in which nothing is NULL.
    pub force_not_null: Vec<String>,
}

impl CopyOptions {
    /// The byte between columns.
    pub fn delimiter(&self) -> u8 {
        self.delimiter.unwrap_or(if self.format == CopyFormat::Csv { b',' } else { b'\t' })
    }

    /// What stands for NULL.
    pub fn null(&self) -> &str {
        self.null.as_deref().unwrap_or(if self.format == CopyFormat::Csv { "" } else { "\\N" })
    }

    /// CSV's quote.
    pub fn quote(&self) -> u8 {
        self.quote.unwrap_or(b'"')
    }

    /// CSV's escape within quotes.
    pub fn escape(&self) -> u8 {
        self.escape.unwrap_or_else(|| self.quote())
    }
}
