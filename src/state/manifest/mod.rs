//! What makes a checkpoint complete: a manifest that names every part, and HEAD that names the manifest.
//!
//! ```text
//! HEAD ─▶ manifests/<group>-<checkpoint>.json ─▶ parts, each with length and CRC-32C
//! ```
//!
//! A checkpoint exists when HEAD names its manifest, and not before: parts first, then the manifest, then HEAD by
//! compare-and-swap. A crash between leaves objects that nothing names; they are swept. What is named and missing,
//! or not what was written, is damage: a restore refuses it with the reason, or takes the newest older checkpoint that
//! is whole. What is not named is never read.

mod shared_head;

pub use shared_head::SharedHead;

use std::collections::BTreeSet;

use super::head::HeadCheckpoint;
use super::retention::released_parts;
use super::snapshot::Snapshot;
use super::store::{Part, PartStore};
use crate::types::{CheckpointId, Error, Result, SqlState};

/// The format that this program writes, and the newest that it reads.
const FORMAT_VERSION: u32 = 1;

/// A group's complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Manifest {
    /// Version of this format.
    pub format_version: u32,
    /// The group of jobs.
    pub group: String,
    /// The checkpoint.
    pub checkpoint: CheckpointId,
    /// The incarnation that made it.
    pub incarnation: u64,
    /// The time that all operators had closed, in milliseconds of the clock.
    pub time_millis: u64,
    /// The state URI whose store holds the parts.
    pub state_uri: String,
    /// Each worker's part, in order of workers.
    pub workers: Vec<Snapshot>,
    /// What the engine keeps with it: plans, bindings, pending commits.
    pub engine: serde_json::Value,
}

impl Manifest {
    /// A manifest of the present format.
    pub fn new(group: &str, checkpoint: CheckpointId, state_uri: &str, workers: Vec<Snapshot>) -> Manifest {
        Manifest {
            format_version: FORMAT_VERSION,
            group: group.to_owned(),
            checkpoint,
            incarnation: 0,
            time_millis: 0,
            state_uri: state_uri.to_owned(),
            workers,
            engine: serde_json::Value::Null,
        }
    }

    /// Writes it; all its parts are durable.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, store: &dyn PartStore) -> Result<HeadCheckpoint> {
        let bytes = serde_json::to_vec(self).map_err(|error| Error::internal(error.to_string()))?;
        let manifest = store.put(&format!("manifests/{}-{}.json", self.group, self.checkpoint), bytes.into())?;
        Ok(HeadCheckpoint { checkpoint: self.checkpoint, manifest })
    }

    /// Reads the manifest that HEAD names.
    ///
    /// # Errors
    /// XX001 when it is missing, not what was written, or of a newer format.
    pub fn read(store: &dyn PartStore, named: &HeadCheckpoint) -> Result<Manifest> {
        let bytes = store.get(&named.manifest)?;
        let manifest: Manifest = serde_json::from_slice(&bytes).map_err(|error| named.manifest.damaged(error))?;
        if manifest.format_version > FORMAT_VERSION {
            return Err(Error::new(
                SqlState::DataCorrupted,
                format!(
                    "checkpoint {} was written by a newer clink (format {})",
                    named.checkpoint, manifest.format_version
                ),
            )
            .hint("Start the newer program."));
        }
        if manifest.checkpoint != named.checkpoint {
            return Err(named.manifest.damaged(format!("it is of checkpoint {}", manifest.checkpoint)));
        }
        Ok(manifest)
    }

    /// Every part, each once, in order.
    pub fn parts(&self) -> BTreeSet<&Part> {
        self.workers.iter().flat_map(Snapshot::parts).collect()
    }
}

/// How closely parts are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// That they are there, with their length: one listing.
    Lengths,
    /// Their checksums too: reads everything.
    Checksums,
}

/// Checks that all parts of a checkpoint are what was written.
///
/// # Errors
/// XX001 naming the first part that is not.
pub fn verify(store: &dyn PartStore, manifest: &Manifest, depth: Depth) -> Result<()> {
    let listed: std::collections::HashMap<String, u64> =
        store.list("")?.into_iter().map(|object| (object.name, object.bytes)).collect();
    for part in manifest.parts() {
        match listed.get(&part.name) {
            None => return Err(part.damaged("it is missing")),
            Some(bytes) if *bytes != part.bytes => {
                return Err(part.damaged(format!("it has {bytes} bytes, {} were written", part.bytes)));
            }
            Some(_) => {}
        }
        if depth == Depth::Checksums {
            store.get(part)?;
        }
    }
    Ok(())
}

/// Removes released checkpoints: the parts that no retained one needs, and their manifests. HEAD names them no more, so a
/// crash in between leaves objects that a sweep removes. Gives the names of what is gone.
///
/// # Errors
/// XX001 when a retained manifest cannot be read: then nothing is removed. When the store cannot be written.
pub fn release(store: &dyn PartStore, released: &[HeadCheckpoint], retained: &[HeadCheckpoint]) -> Result<Vec<String>> {
    let retained: Vec<Manifest> = retained.iter().map(|named| Manifest::read(store, named)).collect::<Result<_>>()?;
    let mut removed = Vec::new();
    for named in released {
        // What a damaged one named is left to the sweep.
        let Ok(manifest) = Manifest::read(store, named) else { continue };
        let parts = released_parts(&manifest.workers, retained.iter().flat_map(|manifest| &manifest.workers));
        for name in parts.into_iter().chain([named.manifest.name.clone()]) {
            store.delete(&name)?;
            removed.push(name);
        }
    }
    Ok(removed)
}

/// Objects in the store that no manifest needs: left by a crash, or put there by somebody.
///
/// # Errors
/// When the store cannot be listed.
pub fn foreign_objects(store: &dyn PartStore, manifests: &[(HeadCheckpoint, Manifest)]) -> Result<Vec<String>> {
    let mut needed: BTreeSet<&str> = BTreeSet::from(["HEAD"]);
    for (named, manifest) in manifests {
        needed.insert(&named.manifest.name);
        needed.extend(manifest.parts().into_iter().map(|part| part.name.as_str()));
    }
    let listed = store.list("")?.into_iter().map(|object| object.name);
    Ok(listed.filter(|name| !needed.contains(name.as_str())).collect())
}

/// The checkpoint to restore, and those that were passed over.
#[derive(Debug)]
pub struct Chosen {
    /// The newest whole one.
    pub manifest: Manifest,
    /// Newer ones that are damaged, with the reason: to be told loudly.
    pub refused: Vec<(CheckpointId, Error)>,
}

/// The newest whole checkpoint of those that HEAD names, newest first; `None` when it names none.
///
/// # Errors
/// XX001 when it names some and none is whole: never a state that is smaller.
pub fn choose(store: &dyn PartStore, named: &[HeadCheckpoint], depth: Depth) -> Result<Option<Chosen>> {
    let mut refused: Vec<(CheckpointId, Error)> = Vec::new();
    for candidate in named {
        let read =
            Manifest::read(store, candidate).and_then(|manifest| verify(store, &manifest, depth).map(|()| manifest));
        match read {
            Ok(manifest) => return Ok(Some(Chosen { manifest, refused })),
            Err(error) if error.code() == SqlState::DataCorrupted => refused.push((candidate.checkpoint, error)),
            // A store that cannot be reached is no damage: an older checkpoint would not be the answer.
            Err(error) => return Err(error),
        }
    }
    match refused.into_iter().next() {
        None => Ok(None),
        Some((checkpoint, error)) => Err(Error::new(
            SqlState::DataCorrupted,
            format!("no checkpoint is whole; of the newest, {checkpoint}: {}", error.message()),
        )
        .hint("Restore the checkpoint folder from a copy, or start from a savepoint with --restore-from.")),
    }
}

#[cfg(test)]
pub(super) mod tests;
