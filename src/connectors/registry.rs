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

/// Makes a source from its options. It takes the options it knows; what is left over is refused.
type Opener = fn(&mut Options<'_>, &[ConnectorColumn]) -> Result<Arc<dyn Source>>;

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
        openers.insert("file", FileSource::from_options);
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
    /// and not built, 58P01 when the file is not there.
    pub fn open(
        &self,
        options: &BTreeMap<String, OptionValue>,
        columns: &[ConnectorColumn],
    ) -> Result<Arc<dyn Source>> {
        let mut options = Options::new(options);
        let Some(connector) = options.take("connector") else {
            return Err(Error::new(SqlState::InvalidParameterValue, "option \"connector\" is missing")
                .hint(format!("Add it, such as connector = 'file'. Known: {}.", self.names())));
        };
        match self.openers.get(connector.text.as_str()) {
            Some(open) => open(&mut options, columns),
            None => Err(self.unknown(connector)),
        }
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
        const PLANNED: [&str; 4] = ["kafka", "datagen", "http", "s3"];
        let name = &connector.text;
        let error = if PLANNED.contains(&name.as_str()) {
            Error::unsupported(format!("connector \"{name}\" is not supported yet"))
        } else {
            Error::new(SqlState::InvalidParameterValue, format!("connector \"{name}\" does not exist"))
        };
        error.hint(format!("Known connectors: {}.", self.names())).position(connector.position)
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
