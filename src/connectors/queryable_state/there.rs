//! The other server, and what is read of it.

use std::fmt;

use serde_json::Value;
use url::Url;

use super::client::{Batches, Fault, address, foreign, get_json, lost, name_of};
use super::options::{ROW_SLOT, StateOptions, Target};
use crate::types::Error;

/// A relation or an operator's rows on another server.
pub(super) struct There {
    pub(super) options: StateOptions,
}

impl fmt::Display for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" on {}", self.options.target, name_of(&self.options.url))
    }
}

/// What the other server says of a relation.
pub(super) struct Described {
    /// Names and SQL types.
    pub(super) columns: Vec<(String, String)>,
    /// Names of the columns that identify a row; none when nothing does.
    pub(super) key: Vec<String>,
}

impl There {
    /// A fault as the user sees it.
    pub(super) fn error(&self, fault: Fault) -> Error {
        fault.into_error(&self.to_string(), &name_of(&self.options.url))
    }

    /// The error of a past that is no more.
    pub(super) fn lost(&self, detail: &str) -> Error {
        lost(&self.to_string(), detail.to_owned())
    }

    fn url(&self, path: &[&str], parameters: &[(&str, &str)]) -> Url {
        address(&self.options.url, path, parameters)
    }

    /// The name of the view or table whose rows are read; `None` inside of a job.
    fn relation(&self) -> Result<Option<String>, Fault> {
        let (job, role) = match &self.options.target {
            Target::View(view) => return Ok(Some(view.clone())),
            Target::Operator { .. } => return Ok(None),
            Target::Slot { job, role } => (*job, role),
        };
        let number = job.to_string();
        // It answers when the job has such an operator, and only one.
        let path = ["api", "v1", "queryable_state", "job", &number, "op", role, "json", ROW_SLOT, "scan"];
        get_json(&self.url(&path, &[("limit", "0")]))?;
        let url = self.url(&["api", "v1", "jobs"], &[]);
        let jobs = get_json(&url)?;
        let mut jobs = jobs.get("jobs").and_then(Value::as_array).into_iter().flatten();
        let found = jobs.find(|found| found.get("id").and_then(Value::as_u64) == Some(job));
        let name = found.and_then(|found| found.get("name")).and_then(Value::as_str);
        let name = name.ok_or_else(|| foreign(&url, "It does not name the job"))?;
        Ok(Some(name.strip_prefix("public.").unwrap_or(name).to_owned()))
    }

    /// Its columns and key; `None` inside of a job.
    pub(super) fn describe(&self) -> Result<Option<Described>, Fault> {
        let Some(relation) = self.relation()? else { return Ok(None) };
        let described = get_json(&self.url(&["api", "v1", "views", &relation], &[]))?;
        let list = |name: &str| described.get(name).and_then(Value::as_array).into_iter().flatten();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let column = |column: &Value| Some((text(column.get("name")?)?, text(column.get("type")?)?));
        Ok(Some(Described {
            columns: list("columns").filter_map(column).collect(),
            key: list("key").filter_map(text).collect(),
        }))
    }

    /// Its rows at one time.
    pub(super) fn scan(&self, parameters: &[(&str, &str)]) -> Result<Batches, Fault> {
        let Target::Operator { job, operator, part } = &self.options.target else {
            let relation = self.relation()?.unwrap_or_default();
            return Batches::get(&self.url(&["api", "v1", "views", &relation, "scan.arrow"], parameters));
        };
        let mut all = parameters.to_vec();
        all.extend(part.as_deref().map(|part| ("part", part)));
        Batches::get(&self.url(&["api", "v1", "jobs", job, "operators", operator, "scan.arrow"], &all))
    }

    /// Its rows and then its changes.
    pub(super) fn changes(&self, parameters: &[(&str, &str)]) -> Result<Batches, Fault> {
        let relation = self.relation()?.unwrap_or_default();
        Batches::get(&self.url(&["api", "v1", "views", &relation, "changes"], parameters))
    }
}
