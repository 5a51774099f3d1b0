//! The error that reaches a user, the same through every door.

use std::fmt;

use super::limits::Limit;

/// `Result` with the user-facing [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! sql_states {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The five-character codes of PostgreSQL (appendix A of its manual) that clink answers with.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum SqlState { $($(#[$doc])* $name,)* }

        impl SqlState {
            /// The five characters.
            pub const fn code(self) -> &'static str {
                match self { $(SqlState::$name => $code,)* }
            }
        }
    };
}

sql_states! {
    /// Something is offered by PostgreSQL or by clink's dialect and not here.
    FeatureNotSupported = "0A000",
    /// Another server cannot be reached.
    CannotConnect = "08001",
    /// A wire message is not what the protocol allows.
    ProtocolViolation = "08P01",
    /// A value is too long for its column.
    StringTooLong = "22001",
    /// A number is out of its type's range.
    NumericOutOfRange = "22003",
    /// A text that does not fit its template of a date or time.
    InvalidDatetimeFormat = "22007",
    /// A date or time is out of range.
    DatetimeOverflow = "22008",
    /// Division by zero.
    DivisionByZero = "22012",
    /// A logarithm of zero or of a negative number.
    InvalidLogarithm = "2201E",
    /// A root or a power that is no real number.
    InvalidPower = "2201F",
    /// A bucket's bounds or count that are none.
    InvalidWidthBucket = "2201G",
    /// A text that is no regular expression.
    InvalidRegex = "2201B",
    /// A LIMIT below zero.
    InvalidLimit = "2201W",
    /// An OFFSET below zero.
    InvalidOffset = "2201X",
    /// Bytes that are no text of the encoding.
    CharacterNotInRepertoire = "22021",
    /// A parameter or setting has a value that is not allowed.
    InvalidParameterValue = "22023",
    /// Text that is no value of its type.
    InvalidText = "22P02",
    /// Bytes that are no binary value of their type.
    InvalidBinary = "22P03",
    /// Input rows that cannot be read.
    BadCopyFormat = "22P04",
    /// A null where none may be.
    NotNullViolation = "23502",
    /// A key that is there already.
    UniqueViolation = "23505",
    /// ON CONFLICT would touch a row twice.
    CardinalityViolation = "21000",
    /// No transaction is open, or one is in the way.
    ActiveTransaction = "25001",
    /// A transaction block that only reads.
    ReadOnlyTransaction = "25006",
    /// There is no transaction block.
    NoActiveTransaction = "25P01",
    /// The transaction block has failed; only its end is taken.
    InFailedTransaction = "25P02",
    /// A transaction block was left alone for too long.
    IdleInTransactionTimeout = "25P03",
    /// No such prepared statement.
    InvalidStatementName = "26000",
    /// No such savepoint.
    InvalidSavepoint = "3B001",
    /// No such cursor or portal.
    InvalidCursorName = "34000",
    /// Somebody else changed what the transaction block read.
    SerializationFailure = "40001",
    /// Two transaction blocks wait for each other.
    DeadlockDetected = "40P01",
    /// The cursor exists already.
    DuplicateCursor = "42P03",
    /// The prepared statement exists already.
    DuplicatePreparedStatement = "42P05",
    /// No such parameter.
    UndefinedParameter = "42P02",
    /// A parameter whose type nothing tells.
    IndeterminateDatatype = "42P18",
    /// The database does not exist.
    UndefinedDatabase = "3D000",
    /// The schema does not exist.
    UndefinedSchema = "3F000",
    /// The text is not SQL.
    SyntaxError = "42601",
    /// No such column.
    UndefinedColumn = "42703",
    /// A name that could mean several columns.
    AmbiguousColumn = "42702",
    /// No such table or view.
    UndefinedTable = "42P01",
    /// No such function for these arguments.
    UndefinedFunction = "42883",
    /// A name that several functions have.
    AmbiguousFunction = "42725",
    /// No such object of another kind.
    UndefinedObject = "42704",
    /// A name that the system keeps for itself.
    ReservedName = "42939",
    /// A column is named twice.
    DuplicateColumn = "42701",
    /// Something of that name is there already.
    DuplicateObject = "42710",
    /// Two tables in FROM have the same name.
    DuplicateAlias = "42712",
    /// The table or view exists already.
    DuplicateTable = "42P07",
    /// The function exists already.
    DuplicateFunction = "42723",
    /// A function that is not what it is declared to be.
    InvalidFunctionDefinition = "42P13",
    /// The schema exists already.
    DuplicateSchema = "42P06",
    /// The object is not of the kind the statement wants.
    WrongObjectType = "42809",
    /// Types that do not fit.
    DatatypeMismatch = "42804",
    /// There is no cast between the types.
    CannotCoerce = "42846",
    /// A column that must be grouped or aggregated.
    GroupingError = "42803",
    /// A window function where none may be.
    WindowingError = "42P20",
    /// A definition that contradicts itself.
    InvalidTableDefinition = "42P16",
    /// A column reference that is not allowed there.
    InvalidColumnReference = "42P10",
    /// Other objects stand on it.
    DependentObjects = "2BP01",
    /// A limit of the server is reached.
    ProgramLimitExceeded = "54000",
    /// A statement is nested too deeply or too long.
    StatementTooComplex = "54001",
    /// Too many connections.
    TooManyConnections = "53300",
    /// No memory is left for this.
    OutOfMemory = "53200",
    /// The disk is full.
    DiskFull = "53100",
    /// The object is not in the state the statement needs: a failed or blocked job.
    ObjectNotReady = "55000",
    /// The user cancelled the statement, or it ran into its time limit.
    QueryCanceled = "57014",
    /// The server is stopping.
    AdminShutdown = "57P01",
    /// Reading or writing a file failed.
    IoError = "58030",
    /// A file that is not there.
    UndefinedFile = "58P01",
    /// The time asked for is no longer kept.
    SnapshotTooOld = "72000",
    /// A fault of the program.
    InternalError = "XX000",
    /// Data on disk is not what was written.
    DataCorrupted = "XX001",
}

/// What went wrong, in PostgreSQL's terms: a code, a message, and where possible a detail, a hint
/// with the way out, and a position in the statement's text.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    fields: Box<Fields>,
}

#[derive(Clone, PartialEq, Eq)]
struct Fields {
    code: SqlState,
    message: String,
    detail: Option<String>,
    hint: Option<String>,
    position: Option<usize>,
    limit: Option<Limit>,
}

impl Error {
    /// An error with a code and a message in PostgreSQL's style: lower case, no full stop.
    pub fn new(code: SqlState, message: impl Into<String>) -> Error {
        let message = message.into();
        Error { fields: Box::new(Fields { code, message, detail: None, hint: None, position: None, limit: None }) }
    }

    /// A fault of the program: something that only a bug can bring about.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(SqlState::InternalError, message)
    }

    /// A feature that is refused by name.
    pub fn unsupported(message: impl Into<String>) -> Error {
        Error::new(SqlState::FeatureNotSupported, message)
    }

    /// Adds facts that do not fit the message: sentences.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Error {
        self.fields.detail = Some(detail.into());
        self
    }

    /// Adds the next step for the user: a sentence, where possible with the statement to type.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.fields.hint = Some(hint.into());
        self
    }

    /// Adds where in the statement's text the fault lies: characters, counted from 1.
    #[must_use]
    pub fn position(mut self, position: usize) -> Error {
        self.fields.position = Some(position);
        self
    }

    /// Says which limit gave the error.
    #[must_use]
    pub(super) fn limit(mut self, limit: Limit) -> Error {
        self.fields.limit = Some(limit);
        self
    }

    /// Takes the position away: it is one in another text.
    #[must_use]
    pub fn without_position(mut self) -> Error {
        self.fields.position = None;
        self
    }

    /// Adds a position only when the error has none.
    #[must_use]
    pub fn position_or(mut self, position: Option<usize>) -> Error {
        self.fields.position = self.fields.position.or(position);
        self
    }

    /// The code.
    pub fn code(&self) -> SqlState {
        self.fields.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.fields.message
    }

    /// The detail.
    pub fn detail_text(&self) -> Option<&str> {
        self.fields.detail.as_deref()
    }

    /// The hint.
    pub fn hint_text(&self) -> Option<&str> {
        self.fields.hint.as_deref()
    }

    /// The position, counted in characters from 1.
    pub fn position_at(&self) -> Option<usize> {
        self.fields.position
    }

    /// The limit that gave the error.
    pub fn limit_hit(&self) -> Option<Limit> {
        self.fields.limit
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fields.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.fields.code.code(), self.fields.message)?;
        if let Some(detail) = &self.fields.detail {
            write!(f, " ({detail})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<arrow::error::ArrowError> for Error {
    fn from(error: arrow::error::ArrowError) -> Error {
        use arrow::error::ArrowError;
        match error {
            ArrowError::DivideByZero => Error::new(SqlState::DivisionByZero, "division by zero"),
            ArrowError::ArithmeticOverflow(_) => Error::new(SqlState::NumericOutOfRange, "value out of range"),
            // Sums of times and intervals beyond what a timestamp holds.
            ArrowError::ComputeError(text) if text == "Timestamp out of range" => {
                Error::new(SqlState::DatetimeOverflow, "timestamp out of range")
            }
            ArrowError::CastError(text) | ArrowError::ParseError(text) => Error::new(SqlState::InvalidText, text),
            ArrowError::ExternalError(source) => match source.downcast::<Error>() {
                Ok(error) => *error,
                Err(source) => Error::internal(source.to_string()),
            },
            other => Error::internal(other.to_string()),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => SqlState::UndefinedFile,
            std::io::ErrorKind::StorageFull => SqlState::DiskFull,
            _ => SqlState::IoError,
        };
        Error::new(code, error.to_string())
    }
}
