//! What differs between two states.

use std::collections::BTreeMap;

use super::super::snapshot::SnapshotReader;
use crate::types::{OperatorId, Result};

/// An entry that is not the same in both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The operator.
    pub operator: OperatorId,
    /// The stored key.
    pub key: Vec<u8>,
    /// The value in the first, unless it is only in the second.
    pub before: Option<Vec<u8>>,
    /// The value in the second, unless it is only in the first.
    pub after: Option<Vec<u8>>,
}

type Entries = BTreeMap<(OperatorId, Vec<u8>), Vec<u8>>;

fn entries(stream: &[u8]) -> Result<Entries> {
    let mut entries = Entries::new();
    SnapshotReader::new(stream)?.visit(&mut |operator, key, value| {
        entries.insert((operator, key.to_vec()), value.to_vec());
        Ok(())
    })?;
    Ok(entries)
}

/// The entries of two canonical streams that differ, in order of (operator, key).
///
/// # Errors
/// XX001 when a stream is damaged.
pub fn diff(before: &[u8], after: &[u8]) -> Result<Vec<Difference>> {
    let (mut before, after) = (entries(before)?, entries(after)?);
    let mut differences = Vec::new();
    for ((operator, key), after) in after {
        let place = (operator, key);
        let old = before.remove(&place);
        if old.as_ref() != Some(&after) {
            differences.push(Difference { operator, key: place.1, before: old, after: Some(after) });
        }
    }
    let gone = before.into_iter();
    differences.extend(gone.map(|((operator, key), old)| Difference { operator, key, before: Some(old), after: None }));
    differences.sort_by(|a, b| (a.operator, &a.key).cmp(&(b.operator, &b.key)));
    Ok(differences)
}
