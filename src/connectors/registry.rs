//! The connectors by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::blackhole::Blackhole;
use super::file::{FileSink, FileSource};
use super::options::{OptionValue, Options};
use super::print::Print;
use crate::exec::sink::Sink;
use crate::exec::source::Source;
use crate::types::{Error, Result, SqlState};

/// A column of a table with a connector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectorColumn {
    /// Its name, which is matched with the names of fields.
    pub name: String,
    /// How its values are stored.
    pub data_type: DataType,
    /// False: a row with NULL here is a bad row.
    pub nullable: bool,
    /// For `varchar(n)` and `char(n)`: the most characters.
    pub length_max: Option<usize>,
}

/// The schema of the rows of a source with these columns.
pub(crate) fn schema_of(columns: &[ConnectorColumn]) -> SchemaRef {
    let fields: Vec<Field> =
        columns.iter().map(|column| Field::new(&column.name, column.data_type.clone(), column.nullable)).collect();
    Arc::new(Schema::new(fields))
}

/// What becomes of rows that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// They are counted and kept as rows of a table of their own.
    Table,
    /// They are counted.
    Skip,
    /// The first one fails what reads the source.
    Fail,
}

/// A source as a table uses it.
#[derive(Clone)]
pub struct SourceTable {
    /// The connector's name.
    pub connector: String,
    /// The rows.
    pub source: Arc<dyn Source>,
    /// What becomes of those that cannot be read.
    pub on_error: OnError,
    /// How many of them are kept; the oldest go first.
    pub errors_retention: usize,
    /// Rows a second that are read at most, all splits together.
    pub rate_limit: Option<u64>,
}

/// Rows that cannot be read and are kept when nothing else is said.
const ERRORS_RETENTION: u64 = 100_000;
/// The most that can be said.
const ERRORS_RETENTION_MAX: u64 = 100_000_000;
/// The most rows a second that a limit may name.
const RATE_MAX: u64 = 1_000_000_000;

/// What an opener made of its options.
pub(crate) struct Opened {
    /// The rows.
    pub(crate) source: Arc<dyn Source>,
    /// Rows a second that the source itself asks for.
    pub(crate) rate: Option<u64>,
}

/// Makes a source from its options. It takes the options it knows and refuses what is left over.
type Opener = fn(&Options<'_>, &[ConnectorColumn]) -> Result<Opened>;

/// Makes a sink from its options, likewise.
type SinkOpener = fn(&mut Options<'_>, &[ConnectorColumn]) -> Result<Arc<dyn Sink>>;

/// The connectors that tables can name.
#[derive(Clone)]
pub struct Connectors {
    openers: BTreeMap<&'static str, Opener>,
    sinks: BTreeMap<&'static str, SinkOpener>,
}

impl Connectors {
    /// The connectors that come with clink.
    pub fn standard() -> Connectors {
        let mut openers: BTreeMap<&'static str, Opener> = BTreeMap::new();
        openers.insert("file", |options, columns| {
            let rate = options.integer("rate_limit", 1..=RATE_MAX)?;
            Ok(Opened { source: FileSource::from_options(options, columns)?, rate })
        });
        openers.insert("datagen", super::datagen::open);
        openers.insert("nexmark", super::nexmark::open);
        openers.insert("queryable_state", super::queryable_state::open);
        let mut sinks: BTreeMap<&'static str, SinkOpener> = BTreeMap::new();
        sinks.insert("blackhole", Blackhole::from_options);
        sinks.insert("file", FileSink::from_options);
        sinks.insert("print", Print::from_options);
        Connectors { openers, sinks }
    }

    /// Makes the source that `options` describe, checking each of them; the option `connector`
    /// names the kind.
    ///
    /// # Errors
    /// 22023 with the option's position for an unknown or malformed one, 0A000 for what is known
    /// and not built, 58P01 when a file is not there.
    pub fn open(&self, options: &BTreeMap<String, OptionValue>, columns: &[ConnectorColumn]) -> Result<SourceTable> {
        let options = Options::new(options);
        let Some(connector) = options.take("connector") else {
            return Err(Error::new(SqlState::InvalidParameterValue, "option \"connector\" is missing")
                .hint(format!("Add it, such as connector = 'file'. Known: {}.", self.names())));
        };
        let Some(open) = self.openers.get(connector.text.as_str()) else {
            return Err(self.unknown(connector));
        };
        let known = [("table", OnError::Table), ("skip", OnError::Skip), ("fail", OnError::Fail)];
        let on_error = options.choice("on_error", &known)?.unwrap_or(OnError::Table);
        let retention = options.integer("errors_retention", 1..=ERRORS_RETENTION_MAX)?;
        if let Some(value) = options.take("errors_retention").filter(|_| on_error != OnError::Table) {
            return Err(value.invalid("errors_retention", "Leave it out: it goes with on_error = 'table'"));
        }
        let Opened { source, rate } = open(&options, columns)?;
        Ok(SourceTable {
            connector: connector.text.clone(),
            source,
            on_error,
            errors_retention: usize::try_from(retention.unwrap_or(ERRORS_RETENTION)).unwrap_or(usize::MAX),
            rate_limit: rate,
        })
    }

    /// Makes the sink that `options` describe, likewise.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_sink(
        &self,
        options: &BTreeMap<String, OptionValue>,
        columns: &[ConnectorColumn],
    ) -> Result<Arc<dyn Sink>> {
        let mut options = Options::new(options);
        let Some(connector) = options.take("connector") else {
            return Err(Error::new(SqlState::InvalidParameterValue, "option \"connector\" is missing")
                .hint("Add it, such as connector = 'file'."));
        };
        match self.sinks.get(connector.text.as_str()) {
            Some(open) => open(&mut options, columns),
            None if self.openers.contains_key(connector.text.as_str()) => Err(Error::new(
                SqlState::WrongObjectType,
                format!("connector \"{}\" cannot be written", connector.text),
            )
            .hint(format!("Connectors that can: {}.", self.sinks.keys().copied().collect::<Vec<_>>().join(", ")))
            .position(connector.position)),
            None => Err(self.unknown(connector)),
        }
    }

    /// True when a table with this connector can be written and not read.
    pub fn is_write_only(&self, options: &BTreeMap<String, OptionValue>) -> bool {
        let name = options.get("connector").map(|value| value.text.as_str()).unwrap_or_default();
        self.sinks.contains_key(name) && (!self.openers.contains_key(name) || options.contains_key("changelog"))
    }

    fn unknown(&self, connector: &OptionValue) -> Error {
        const PLANNED: [&str; 4] = ["kafka", "http", "s3", "postgres"];
        let name = &connector.text;
        let error = if PLANNED.contains(&name.as_str()) {
            Error::unsupported(format!("connector \"{name}\" is not supported yet"))
        } else {
            Error::new(SqlState::InvalidParameterValue, format!("connector \"{name}\" does not exist"))
        };
        let known: Vec<&str> = self.openers.keys().copied().collect();
        let near = super::options::near_miss(name, &known).map(|near| format!("Did you mean \"{near}\"? "));
        error
            .hint(format!("{}Known connectors: {}.", near.unwrap_or_default(), self.names()))
            .position(connector.position)
    }

    fn names(&self) -> String {
        {
            let names: std::collections::BTreeSet<&str> =
                self.openers.keys().chain(self.sinks.keys()).copied().collect();
            names.into_iter().collect::<Vec<_>>().join(", ")
        }
    }
}

impl Default for Connectors {
    fn default() -> Connectors {
        Connectors::standard()
    }
}
