//! The connectors by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::file::FileSource;
use super::options::{OptionValue, Options};
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

/// The connectors that tables can name.
#[derive(Clone)]
pub struct Connectors {
    openers: BTreeMap<&'static str, Opener>,
}

impl Connectors {
    /// The connectors that come with clink.
    pub fn standard() -> Connectors {
        let mut openers: BTreeMap<&'static str, Opener> = BTreeMap::new();
        openers.insert("file", FileSource::from_options);
        Connectors { openers }
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

    fn unknown(&self, connector: &OptionValue) -> Error {
        const PLANNED: [&str; 5] = ["kafka", "print", "datagen", "http", "s3"];
        let name = &connector.text;
        let error = if PLANNED.contains(&name.as_str()) {
            Error::unsupported(format!("connector \"{name}\" is not supported yet"))
        } else {
            Error::new(SqlState::InvalidParameterValue, format!("connector \"{name}\" does not exist"))
        };
        error.hint(format!("Known connectors: {}.", self.names())).position(connector.position)
    }

    fn names(&self) -> String {
        self.openers.keys().copied().collect::<Vec<_>>().join(", ")
    }
}

impl Default for Connectors {
    fn default() -> Connectors {
        Connectors::standard()
    }
}
