//! The state of a running job on another server, whole.

use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::client::{address, foreign, get_json, get_whole, name_of};
use crate::types::{Error, Result, SqlState};

/// A checkpoint is taken before the answer begins.
const EXPORT_WITHIN: Duration = Duration::from_secs(120);

/// The name and the state of a running job, as one canonical stream. `server` is the address of its HTTP, `job` the job's number
/// or name.
///
/// # Errors
/// 22023 for an address that is none; 08001 when there is no answer, 58030 for one of somebody else; 42704 when there is
/// no such job, or it keeps no state.
pub(crate) fn export_job(server: &str, job: &str) -> Result<(String, Vec<u8>)> {
    let url = server_url(server)?;
    let server = name_of(&url);
    let fault = |fault: super::client::Fault| fault.into_error(&format!("\"{job}\" on {server}"), &server);
    let jobs = address(&url, &["api", "v1", "jobs"], &[]);
    let answer = get_json(&jobs).map_err(fault)?;
    let Some(listed) = answer.get("jobs").and_then(Value::as_array) else {
        return Err(fault(foreign(&jobs, "It names no jobs")));
    };
    let known: Vec<(u64, &str)> =
        listed.iter().filter_map(|job| Some((job.get("id")?.as_u64()?, job.get("name")?.as_str()?))).collect();
    let bare = |name: &str| name.rsplit_once('.').map(|(_, bare)| bare.to_owned());
    let found = known
        .iter()
        .find(|(id, _)| job.parse::<u64>() == Ok(*id))
        .or_else(|| known.iter().find(|(_, name)| *name == job))
        .or_else(|| known.iter().find(|(_, name)| bare(name).as_deref() == Some(job)));
    let Some((id, name)) = found else {
        let names: Vec<&str> = known.iter().map(|(_, name)| *name).collect();
        let hint =
            if names.is_empty() { "There is none.".to_owned() } else { format!("It has: {}.", names.join(", ")) };
        return Err(Error::new(SqlState::UndefinedObject, format!("{server} has no job \"{job}\"")).hint(hint));
    };
    let export = address(&url, &["api", "v1", "state", "export", "job", &id.to_string()], &[]);
    let stream = get_whole(&export, "application/vnd.apache.arrow.stream", EXPORT_WITHIN).map_err(fault)?;
    Ok(((*name).to_owned(), stream))
}

/// An address such as `http://127.0.0.1:8081`; the scheme may be left out.
fn server_url(text: &str) -> Result<Url> {
    let wrong = || {
        Error::new(SqlState::InvalidParameterValue, format!("\"{text}\" is no address of a server's HTTP"))
            .hint("Use one such as http://127.0.0.1:8081.")
    };
    let text = text.trim();
    let url = if text.contains("://") { Url::parse(text) } else { Url::parse(&format!("http://{text}")) };
    let url = url.map_err(|_| wrong())?;
    if url.scheme() == "https" {
        return Err(Error::unsupported("https is not supported").hint("Use http://HOST:PORT."));
    }
    let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none() && url.username().is_empty();
    if url.scheme() == "http" && url.has_host() && plain { Ok(url) } else { Err(wrong()) }
}
