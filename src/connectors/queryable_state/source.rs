//! The source: one split, named after the time of its first rows.

use std::sync::{Arc, Mutex, PoisonError};

use arrow::datatypes::SchemaRef;

use super::changes::{ChangesReader, first_time};
use super::client::{Batches, Fault, foreign};
use super::options::{Mode, StateOptions, Target};
use super::rows::{Wanted, places};
use super::snapshot::{Nothing, SnapshotReader};
use super::there::There;
use crate::connectors::options::Options;
use crate::connectors::registry::{ConnectorColumn, Opened, schema_of};
use crate::exec::source::{Offset, ReadRequest, Source, SourceReader, Split, SplitId, Splits};
use crate::types::{Error, Result, SqlState};

/// Streams that were begun and not read yet, at most.
const BEGUN_MAX: usize = 4;
/// Characters of what is read in the name of a split.
const NAME_CHARS_MAX: usize = 200;

/// Makes the source that the options describe; asks nobody, so that a start depends on no other server.
pub(crate) fn open(options: &Options<'_>, columns: &[ConnectorColumn]) -> Result<Opened> {
    let there = Arc::new(There { options: StateOptions::parse(options)? });
    let source = StateSource { there, columns: columns.into(), schema: schema_of(columns), begun: Mutex::default() };
    Ok(Opened { source: Arc::new(source), rate: None })
}

/// Rows of another server.
struct StateSource {
    there: Arc<There>,
    columns: Arc<[ConnectorColumn]>,
    schema: SchemaRef,
    /// Streams that stand at their start: they hold the time that their splits are named after.
    begun: Mutex<Vec<(SplitId, Batches)>>,
}

impl StateSource {
    fn begun(&self) -> std::sync::MutexGuard<'_, Vec<(SplitId, Batches)>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to read at the time that is now.
    fn begin(&self) -> Result<SplitId, Fault> {
        let (batches, time) = match self.there.options.mode {
            Mode::Snapshot => {
                let batches = self.there.scan(&[])?;
                let time = batches.time();
                (batches, time)
            }
            Mode::Changes => {
                let mut batches = self.there.changes(&[])?;
                let time = batches.look()?.1.and_then(first_time);
                (batches, time)
            }
        };
        let time = time.ok_or_else(|| foreign(&self.there.options.url, "It does not tell its time"))?;
        let what: String = self.there.options.target.to_string().chars().take(NAME_CHARS_MAX).collect();
        let split = SplitId::new(format!("{what}@{time}"));
        let mut begun = self.begun();
        if begun.len() >= BEGUN_MAX {
            begun.remove(0);
        }
        begun.push((split.clone(), batches));
        Ok(split)
    }

    fn take_begun(&self, split: &SplitId) -> Option<Batches> {
        let mut begun = self.begun();
        let at = begun.iter().position(|(of, _)| of == split)?;
        Some(begun.swap_remove(at).1)
    }

    /// The rows of a time that was read before.
    fn again(&self, time: u64) -> Result<Batches> {
        if matches!(self.there.options.target, Target::Operator { .. }) {
            let batches = self.there.scan(&[]).map_err(|fault| self.there.error(fault))?;
            if batches.time() != Some(time) {
                return Err(self.there.lost("What is inside of a job has no past: it is read once."));
            }
            return Ok(batches);
        }
        self.there.scan(&[("as_of", &time.to_string())]).map_err(|fault| self.there.error(fault))
    }

    /// Checks that the table's key is the one by which the changes come.
    fn check_key(&self, key: &[usize], there: &[String]) -> Result<()> {
        let mut here: Vec<&str> =
            key.iter().filter_map(|column| self.columns.get(*column)).map(|column| column.name.as_str()).collect();
        let mut other: Vec<&str> = there.iter().map(String::as_str).collect();
        here.sort_unstable();
        other.sort_unstable();
        if other.is_empty() {
            return Err(Error::unsupported(format!("{} has no key, so its changes cannot be followed", self.there))
                .hint("Follow a view with GROUP BY or DISTINCT, or read it with mode = 'snapshot'."));
        }
        if here != other {
            let declared = format!("PRIMARY KEY ({})", there.join(", "));
            return Err(if here.is_empty() {
                Error::new(SqlState::InvalidTableDefinition, "mode = 'changes' needs a PRIMARY KEY")
            } else {
                Error::new(SqlState::InvalidTableDefinition, format!("the key of {} is another one", self.there))
            }
            .hint(format!("Declare it so: {declared}.")));
        }
        Ok(())
    }
}

impl Source for StateSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self, known: &[(SplitId, Offset)]) -> Result<Splits> {
        let split = |id: SplitId| Split { id, start: Offset::default(), size: None };
        if !known.is_empty() {
            let found = known.iter().map(|(id, _)| split(id.clone())).collect();
            return Ok(Splits { found, complete: true });
        }
        match self.begin() {
            Ok(id) => Ok(Splits { found: vec![split(id)], complete: true }),
            // Who follows it waits for it; who reads it once has to know.
            Err(Fault::Away(_)) if self.there.options.mode == Mode::Changes => Ok(Splits::default()),
            Err(fault) => Err(self.there.error(fault)),
        }
    }

    fn open(&self, request: &ReadRequest) -> Result<Box<dyn SourceReader>> {
        let time = request.split.as_str().rsplit_once('@').and_then(|(_, time)| time.parse::<u64>().ok());
        let time = time.ok_or_else(|| Error::internal("a split without its time"))?;
        let wanted = Wanted {
            columns: Arc::clone(&self.columns),
            wanted: Arc::clone(&request.columns),
            schema: Arc::new(self.schema.project(&request.columns)?),
            offsets: request.offsets,
        };
        let (from, until) = (request.from.0, request.until.map(|until| until.0));
        let begun = if from == 0 && until.is_none() { self.take_begun(&request.split) } else { None };
        let there = Arc::clone(&self.there);
        if there.options.mode == Mode::Changes {
            return Ok(Box::new(ChangesReader::new(there, time, wanted, begun, (from, until))));
        }
        if from >= time || until.is_some_and(|until| until <= from) {
            return Ok(Box::new(Nothing));
        }
        let mut batches = match begun {
            Some(batches) => batches,
            None => self.again(time)?,
        };
        let (schema, _) = batches.look().map_err(|fault| there.error(fault))?;
        let rows = wanted.rows(&schema, &there)?;
        let most = until.filter(|until| *until < time).unwrap_or(u64::MAX).min(there.options.limit.unwrap_or(u64::MAX));
        Ok(Box::new(SnapshotReader::new(there, time, rows, batches, (from, most))?))
    }

    fn ends(&self) -> bool {
        self.there.options.mode == Mode::Snapshot
    }

    fn check(&self, key: &[usize]) -> Result<()> {
        let options = &self.there.options;
        let refused = |fault: Fault| {
            let position =
                if matches!(fault, Fault::Refused(_)) { options.target_position } else { options.url_position };
            self.there.error(fault).position(position)
        };
        let described = self.there.describe().map_err(refused)?;
        if let Some(described) = described.as_ref().filter(|_| options.mode == Mode::Changes) {
            self.check_key(key, &described.key)?;
        }
        let known = described.map(|described| described.columns).unwrap_or_default();
        let mut batches = self.there.scan(&[("limit", "1")]).map_err(refused)?;
        let (schema, _) = batches.look().map_err(refused)?;
        places(&schema, &self.columns, &known, &self.there).map(drop)
    }
}
