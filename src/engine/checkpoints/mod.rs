//! Checkpoints: durable cuts of all jobs at one time, and starts from them.
//!
//! ```text
//! controller (a thread)      sequencer                workers
//!   every interval ───────▶ tick T, offsets at T ──▶ barrier at T
//!   persist  ◀───────────────────────────────────────  capture of each job
//!   manifest → HEAD → release older ones
//!                      ───▶ timeline up to the oldest one goes
//! ```
//!
//! **Consistency.** All jobs are cut at one time `T`: what happened up to it is in the checkpoint, and nothing later. The
//! offsets of sources and the rows that could not be read are those of the same time. A start restores each job at `T`
//! and goes on with what the timeline has behind it.
//!
//! **Who takes part.** Jobs that are whole at `T`. One that fills, failed or was paused is left out, with what stands on
//! it; a start lets it begin anew from what it stands on. A view on sources alone keeps the state of its last checkpoint
//! instead, with its offsets of then: what it read may be gone. Rows of ordinary tables are nowhere else, so without one
//! of them there is no checkpoint. A sink that can go on, as those into files, is captured as a job, and its writer says
//! where it is at `T`. One into a table says what it has written there, so that a start writes the difference. Others keep
//! nothing: they are written anew.
//!
//! **Completion.** Parts first, each durable; then a manifest that names each with length and checksum; then HEAD, which
//! names the manifest. A crash before that leaves the older checkpoints, and files that nothing names, which the next start
//! removes. The number of a checkpoint is its time, so none is used twice.
//!
//! **Retries.** A part that cannot be written abandons the checkpoint; the backend keeps what it captured for the next.
//! **One writer.** HEAD lies in the data directory, which one process locks. Places that other machines reach have a HEAD of
//! their own that says which process writes there; a checkpoint confirms it before it writes and before it completes. So
//! a server that another has superseded completes and removes nothing there any more.
//! **Damage.** A start takes the newest checkpoint that is whole and says loudly which it passed over. When none is
//! whole it refuses.

mod controller;
mod cut;
pub mod offline;
mod restore;
mod savepoint;
mod stores;
mod written;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::state::Registry;
use crate::types::Result;

pub(crate) use controller::CheckpointInfo;
pub(super) use controller::{Begun, Checkpoints, Controller, MemberJob, Message, Start};
pub(super) use cut::{BadBindingCut, BadRowsCut, Cut, JobCut, Offsets, plan_mark};
use restore::is_ours;
pub(super) use restore::{Restored, fresh, restore, sweep};
pub(super) use savepoint::begin_from;
pub use savepoint::savepoint_folder;
pub(super) use stores::{Owner, StateStores};
pub(super) use written::Unsaved;

/// The group of HEAD that all checkpoints of a database are in.
pub(super) const GROUP: &str = "database";

/// How state is kept and checkpointed.
#[derive(Clone, Debug)]
pub struct CheckpointConfig {
    /// The folder of checkpoints; made when absent.
    pub directory: PathBuf,
    /// How often one is taken while something changes; `None`: when asked for.
    pub interval: Option<Duration>,
    /// How many complete ones are kept, at least 1.
    pub retained: usize,
    /// The URI of the backend of jobs that name none.
    pub state_backend: String,
    /// The folder of a savepoint that an empty data directory begins from.
    pub restore_from: Option<PathBuf>,
}

impl CheckpointConfig {
    /// The seconds between checkpoints, unless told otherwise.
    pub const INTERVAL: Duration = Duration::from_secs(10);
    /// Complete checkpoints that are kept, unless told otherwise.
    pub const RETAINED: usize = 3;
    /// The backend of jobs that name none, unless told otherwise.
    pub const STATE_BACKEND: &str = "memory+sharded://";

    /// Checks a state backend's URI without touching its place.
    ///
    /// # Errors
    /// 22023 saying what is wrong and what is known.
    pub fn check_state_backend(uri: &str) -> Result<()> {
        Registry::default().parse(uri).map(drop)
    }

    /// The defaults, below a data directory.
    pub fn below(data_dir: &Path) -> CheckpointConfig {
        CheckpointConfig {
            directory: data_dir.join("checkpoints"),
            interval: Some(Self::INTERVAL),
            retained: Self::RETAINED,
            state_backend: Self::STATE_BACKEND.to_owned(),
            restore_from: None,
        }
    }
}
