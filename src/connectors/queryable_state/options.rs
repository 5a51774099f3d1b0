//! The options of the connector `queryable_state`.

use std::fmt;

use url::Url;

use crate::connectors::options::{OptionValue, Options};
use crate::types::{CHUNK_ROWS_MAX, Error, Result, SqlState};

/// The role that every operator of the original has.
pub(super) const ANY_ROLE: &str = "__clink_subtask";
/// The slot of rows.
pub(super) const ROW_SLOT: &str = "agg";

/// Which rows of the other server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Those of a view or table.
    View(String),
    /// Those that an operator holds inside of a job, as of the job's last capture.
    Operator { job: String, operator: String, part: Option<String> },
    /// Those of a job by its number.
    Slot { job: u64, role: String },
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::View(view) => write!(f, "{view}"),
            Target::Operator { job, operator, part: None } => write!(f, "{job}/{operator}"),
            Target::Operator { job, operator, part: Some(part) } => write!(f, "{job}/{operator}/{part}"),
            Target::Slot { job, role } => write!(f, "{job}/{role}/{ROW_SLOT}"),
        }
    }
}

/// How long it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Until all rows of one time are in.
    Snapshot,
    /// For ever.
    Changes,
}

/// What `WITH (…)` says, checked.
#[derive(Clone, Debug)]
pub(super) struct StateOptions {
    /// The other server.
    pub(super) url: Url,
    pub(super) target: Target,
    pub(super) mode: Mode,
    /// The most rows of a snapshot.
    pub(super) limit: Option<u64>,
    /// The most rows of a read.
    pub(super) batch_size: usize,
    /// Where the statement names the server, and what is read there.
    pub(super) url_position: usize,
    pub(super) target_position: usize,
}

impl StateOptions {
    /// Takes and checks the options; asks nobody.
    pub(super) fn parse(options: &Options<'_>) -> Result<StateOptions> {
        let (url, url_position) = url(options)?;
        let (target, target_position) = target(options)?;
        let known = [("snapshot", Mode::Snapshot), ("changes", Mode::Changes)];
        let mode = options.choice("mode", &known)?.unwrap_or(Mode::Snapshot);
        let limit = options.integer("limit", 1..=u64::MAX)?;
        let batch_size = options.integer("batch_size", 1..=CHUNK_ROWS_MAX as u64)?;
        // What the original asks for; rows come as Arrow, with their fields matched by name as those of JSON are.
        options.choice("format", &[("json", ())])?;
        options.finish()?;
        if mode == Mode::Changes {
            for name in ["limit", "batch_size"] {
                if let Some(value) = options.take(name) {
                    return Err(value.invalid(name, "Leave it out: it goes with mode = 'snapshot'"));
                }
            }
            if matches!(target, Target::Operator { .. }) {
                return Err(Error::unsupported("the changes inside of a job cannot be followed")
                    .hint("Follow a view: view = '…'. Or read with mode = 'snapshot'.")
                    .position(target_position));
            }
        }
        let batch_size = batch_size.and_then(|rows| usize::try_from(rows).ok()).unwrap_or(CHUNK_ROWS_MAX);
        Ok(StateOptions { url, target, mode, limit, batch_size, url_position, target_position })
    }
}

fn url(options: &Options<'_>) -> Result<(Url, usize)> {
    const WANTED: &str = "Use the address of the other server's HTTP, such as 'http://127.0.0.1:8081'";
    let host = options.take("coordinator_host");
    let port = options.integer("coordinator_port", 1..=65_535)?;
    let given = options.take("coordinator_port").or(host);
    match (options.take("url"), given) {
        (Some(_), Some(other)) => {
            let name = if port.is_some() { "coordinator_port" } else { "coordinator_host" };
            Err(other.invalid(name, "Leave it out: \"url\" names the server"))
        }
        (Some(value), None) => {
            let url = Url::parse(value.text.trim()).map_err(|_| value.invalid("url", WANTED))?;
            if url.scheme() == "https" {
                return Err(Error::unsupported("https is not supported by connector \"queryable_state\"")
                    .hint(format!("{WANTED}."))
                    .position(value.position));
            }
            let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
            let named = url.username().is_empty() && url.password().is_none();
            if url.scheme() != "http" || !url.has_host() || !plain || !named {
                return Err(value.invalid("url", WANTED));
            }
            Ok((url, value.position))
        }
        (None, Some(value)) => {
            let Some(port) = port else {
                return Err(value.invalid("coordinator_host", "Add coordinator_port, or give \"url\" instead of both"));
            };
            let host = host.map_or("127.0.0.1", |host| host.text.trim());
            let url =
                Url::parse(&format!("http://{host}:{port}")).map_err(|_| value.invalid("coordinator_host", WANTED))?;
            Ok((url, value.position))
        }
        (None, None) => {
            options.require("url", "http://127.0.0.1:8081").and_then(|value| Err(value.invalid("url", WANTED)))
        }
    }
}

fn target(options: &Options<'_>) -> Result<(Target, usize)> {
    let view = options.take("view");
    let (job, job_id) = (options.take("job"), options.take("job_id"));
    let (operator, role) = (options.take("operator"), options.take("role"));
    let (slot, part) = (options.take("slot"), options.take("part"));
    let leave_out =
        |name: &str, value: &OptionValue, because: &str| Err(value.invalid(name, &format!("Leave it out: {because}")));
    let inside =
        [("job", job), ("job_id", job_id), ("operator", operator), ("role", role), ("slot", slot), ("part", part)];
    if let Some(view) = view {
        if let Some((name, value)) = inside.iter().find_map(|(name, value)| Some((*name, (*value)?))) {
            return leave_out(name, value, "\"view\" says what is read");
        }
        return Ok((Target::View(view.string("view")?.to_owned()), view.position));
    }
    if let (Some(_), Some(other)) = (job, job_id) {
        return leave_out("job_id", other, "\"job\" says it");
    }
    if let (Some(_), Some(other)) = (operator, role) {
        return leave_out("role", other, "\"operator\" says it");
    }
    let Some(named) = job.or(job_id) else {
        return Err(Error::new(SqlState::InvalidParameterValue, "option \"view\" is missing").hint(
            "Add it, such as view = 'totals'; or job = 'totals', operator = 'root' for what is inside of a job.",
        ));
    };
    // A slot, a role and a job's number are the original's way.
    let by_slot = slot.is_some() || role.is_some() || job_id.is_some() || operator.is_none();
    if !by_slot && let Some(operator) = operator {
        let part = part.map(|part| part.text.clone());
        let target = Target::Operator { job: named.text.clone(), operator: operator.text.clone(), part };
        return Ok((target, named.position));
    }
    if let Some(part) = part {
        return leave_out("part", part, "it goes with \"job\" and \"operator\" alone");
    }
    if let Some(slot) = slot.filter(|slot| slot.text != ROW_SLOT) {
        if slot.text == "rows" {
            return Err(Error::unsupported("slots of bytes cannot be read as rows")
                .hint(format!("Use slot = '{ROW_SLOT}', which has the same as rows."))
                .position(slot.position));
        }
        return Err(slot.invalid("slot", &format!("Use '{ROW_SLOT}'")));
    }
    let number = named.text.trim().parse().map_err(|_| {
        let name = if job.is_some() { "job" } else { "job_id" };
        named.invalid(name, "Use the job's number, as GET /api/v1/jobs gives it, or view = '…'")
    })?;
    let role = operator.or(role).map_or(ANY_ROLE, |role| role.text.as_str());
    Ok((Target::Slot { job: number, role: role.to_owned() }, named.position))
}
