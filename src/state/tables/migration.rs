//! From one version of a slot's values to another, at a restore.

use std::collections::{BTreeMap, VecDeque};

use super::super::backend::{StateBackend, WriteBatch};
use super::super::layout::slot_prefix;
use super::super::snapshot::VersionStamp;
use super::ttl::{decode_expiring, encode_expiring};
use crate::types::{Error, KEY_GROUPS, KeyGroup, OperatorId, Result, SqlState};

type StepFunction = dyn Fn(&[u8]) -> Result<Vec<u8>> + Send + Sync;

const BATCH_BYTES_MAX: usize = 4 << 20;

/// Registered steps between versions, by type.
#[derive(Default)]
pub struct Migrations {
    steps: BTreeMap<(String, u32), BTreeMap<u32, Box<StepFunction>>>,
}

impl Migrations {
    /// Registers how a value of one version becomes one of another.
    pub fn register(
        &mut self,
        state_type: &str,
        from: u32,
        to: u32,
        step: impl Fn(&[u8]) -> Result<Vec<u8>> + Send + Sync + 'static,
    ) {
        self.steps.entry((state_type.to_owned(), from)).or_default().insert(to, Box::new(step));
    }

    /// The fewest steps from one version to another.
    fn path(&self, state_type: &str, from: u32, to: u32) -> Option<Vec<&StepFunction>> {
        let mut found: BTreeMap<u32, Vec<&StepFunction>> = BTreeMap::from([(from, Vec::new())]);
        let mut queue = VecDeque::from([from]);
        while let Some(version) = queue.pop_front() {
            if version == to {
                return found.remove(&to);
            }
            for (next, step) in self.steps.get(&(state_type.to_owned(), version)).into_iter().flatten() {
                if !found.contains_key(next) {
                    let mut path = found[&version].clone();
                    path.push(&**step);
                    found.insert(*next, path);
                    queue.push_back(*next);
                }
            }
        }
        None
    }
}

/// Brings the values of a slot to a version, after a restore and before anything reads them, and stamps the slot.
/// `expires` tells that they begin with a deadline, which stays. Gives how many were changed.
///
/// # Errors
/// 55000 when the stored type or version is another and no steps lead to the wanted one; the error of a step.
pub fn migrate(
    backend: &mut dyn StateBackend,
    migrations: &Migrations,
    operator: OperatorId,
    slot: &str,
    wanted: &VersionStamp,
    expires: bool,
) -> Result<usize> {
    let refused = |why: String| {
        Error::new(
            SqlState::ObjectNotReady,
            format!("the state of slot {slot:?} of operator {operator} does not fit: {why}"),
        )
        .hint("Restore with the program that wrote it, or drop the view and create it again.")
    };
    let stored = backend.versions().get(operator, slot).cloned();
    if let Some(other) = stored.as_ref().filter(|stored| stored.state_type != wanted.state_type) {
        return Err(refused(format!("it holds {}, this program keeps {}", other.state_type, wanted.state_type)));
    }
    // What is not stamped is version 1.
    let from = stored.map_or(1, |stamp| stamp.version);
    let path = migrations.path(&wanted.state_type, from, wanted.version).ok_or_else(|| {
        refused(format!(
            "it holds version {from} of {}, and no steps lead to version {}",
            wanted.state_type, wanted.version
        ))
    })?;
    let mut changed = 0;
    if !path.is_empty() {
        for group in (0..KEY_GROUPS).map(KeyGroup::new) {
            let (mut batch, mut values) = (WriteBatch::default(), Vec::new());
            backend.scan(operator, &slot_prefix(slot, group), &mut |key, value| {
                values.push((key.to_vec(), value.to_vec()));
                Ok(())
            })?;
            for (key, stored) in values {
                let (deadline, mut value) = match decode_expiring(&stored).filter(|_| expires) {
                    Some((deadline, value)) => (Some(deadline), value.to_vec()),
                    None if expires => continue,
                    None => (None, stored),
                };
                for step in &path {
                    value = step(&value)?;
                }
                batch.put(key, deadline.map_or_else(|| value.clone(), |deadline| encode_expiring(deadline, &value)));
                changed += 1;
                if batch.bytes() >= BATCH_BYTES_MAX {
                    backend.apply(operator, std::mem::take(&mut batch))?;
                }
            }
            backend.apply(operator, batch)?;
        }
    }
    let mut versions = backend.versions().clone();
    versions.set(operator, slot, wanted.clone())?;
    backend.set_versions(versions);
    Ok(changed)
}
