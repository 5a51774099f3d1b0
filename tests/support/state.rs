//! The state backend that a long run asks for.

use std::path::Path;

/// The URI in `CLINK_TEST_STATE`, in which `{dir}` stands for a folder that belongs to the data directory.
pub(crate) fn state_backend(data_dir: &Path) -> Option<String> {
    let uri = std::env::var("CLINK_TEST_STATE").ok().filter(|uri| !uri.is_empty())?;
    Some(uri.replace("{dir}", &data_dir.join("state").display().to_string()))
}
