//! Kept rows under the names of the queryable-state routes: jobs by number, operators by role, slots.
//!
//! A view's result is the operator with the view's name. Its rows are the slot `agg`, as they stand at one time; the slot `rows`
//! has the same as bytes, as a state backend holds them.

use std::sync::Arc;

use crate::catalog::{Definition, Object};
use crate::exec::plan::OperatorSpec;
use crate::types::{Error, KeyGroup, RelationId, Result, SqlState};

use super::coordinator::ReadBound;
use super::database::Engine;

/// The slot of rows.
pub const ROW_SLOT: &str = "agg";
/// The slot of rows as bytes.
pub const BYTE_SLOT: &str = "rows";
/// The role that every operator of the original has.
const ANY_ROLE: &str = "__clink_subtask";

/// An operator whose state can be asked for.
#[derive(Clone, Debug)]
pub struct Queryable {
    /// The job.
    pub job: RelationId,
    /// Its name among all: `v`, or `schema.v` outside of `public`.
    pub role: String,
    /// Columns that identify a row; all when no key is known.
    pub key: Vec<usize>,
    /// Names of those columns.
    pub key_names: Vec<String>,
    /// The key says which row it is.
    pub is_keyed: bool,
    /// Operators with state inside of the job.
    stateful: Vec<String>,
}

impl Queryable {
    fn of(engine: &Engine, object: &Object) -> Option<Queryable> {
        engine.coordinator().status(object.id)?;
        let stateful = match &object.definition {
            Definition::MaterializedView(view) => view
                .plan
                .nodes
                .iter()
                .filter(|node| {
                    matches!(
                        node.operator,
                        OperatorSpec::Aggregate { .. } | OperatorSpec::Join(_) | OperatorSpec::Rank(_)
                    )
                })
                .map(|node| node.path.clone())
                .collect(),
            Definition::Table(table) if table.connector.is_none() || !table.key.is_empty() => Vec::new(),
            _ => return None,
        };
        let schema = object.row_schema()?;
        let is_keyed = !object.key().is_empty();
        let key = if is_keyed { object.key().to_vec() } else { (0..schema.fields().len()).collect() };
        let name_of = |at: &usize| schema.fields().get(*at).map(|field| field.name().clone());
        let key_names = key.iter().filter_map(name_of).collect();
        let role = if object.schema == "public" { object.name.clone() } else { object.qualified_name() };
        Some(Queryable { job: object.id, role, key, key_names, is_keyed, stateful })
    }
}

impl Engine {
    /// Everything whose rows can be asked for, in order of their numbers.
    pub fn queryables(&self) -> Vec<Queryable> {
        let catalog = self.catalog();
        let mut found: Vec<Queryable> = catalog.objects().filter_map(|object| Queryable::of(self, object)).collect();
        found.sort_by_key(|found| found.job);
        found
    }

    /// The operator with a role, of a job when one is given; `None` when there is none.
    ///
    /// # Errors
    /// 22023 when the role that all operators have could mean several.
    pub fn queryable(&self, job: Option<RelationId>, role: &str) -> Result<Option<Queryable>> {
        let mut of_job: Vec<Queryable> =
            self.queryables().into_iter().filter(|found| job.is_none_or(|job| job == found.job)).collect();
        if let Some(at) = of_job.iter().position(|found| found.role == role) {
            return Ok(Some(of_job.swap_remove(at)));
        }
        if role != ANY_ROLE {
            return Ok(None);
        }
        let mut of_job: Vec<Queryable> = of_job.into_iter().filter(|found| !found.stateful.is_empty()).collect();
        let several = of_job.len() > 1 || of_job.iter().any(|found| found.stateful.len() > 1);
        if several {
            let names: Vec<String> = of_job.iter().map(|found| found.role.clone()).collect();
            let inside: Vec<&str> = of_job.iter().flat_map(|found| &found.stateful).map(String::as_str).collect();
            return Err(Error::new(
                SqlState::InvalidParameterValue,
                format!("several operators could be meant by {ANY_ROLE}: {}", inside.join(", ")),
            )
            .hint(format!("Name the one: {}.", names.join(", "))));
        }
        Ok(of_job.pop())
    }

    /// The bytes that a state backend holds for an encoded key of a relation: `[i64 LE count][encoded other columns]`.
    ///
    /// # Errors
    /// 55000 when the relation has failed.
    pub async fn stored_value(self: &Arc<Self>, relation: RelationId, key: Vec<u8>) -> Result<Option<Vec<u8>>> {
        let bound = ReadBound::Latest { at_least: self.last_write() };
        let pin = self.coordinator().pin(&[relation], bound).await?;
        pin.stored_value(relation, key).await
    }

    /// The worker that owns an encoded key.
    pub fn worker_of_key(&self, key: &[u8]) -> usize {
        KeyGroup::of(key).worker(self.coordinator().workers())
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.coordinator().workers()
    }

    /// A number that grows whenever keys may have moved to other workers.
    pub fn topology_version(&self) -> u64 {
        self.coordinator().topology_version()
    }

    /// The state of a job as one canonical Arrow stream, of one time: a checkpoint is taken for it.
    ///
    /// # Errors
    /// 42704 when there is no such job or it keeps no state; 55000 when nothing is checkpointed here.
    pub async fn export_state(self: &Arc<Self>, job: RelationId) -> Result<Vec<u8>> {
        let none = || Error::new(SqlState::UndefinedObject, "no such job");
        let name = self.catalog().objects().find(|object| object.id == job).map(|object| object.qualified_name());
        let name = name.ok_or_else(none)?;
        self.coordinator().captured_state(&name).await
    }
}
