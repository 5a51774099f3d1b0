//! Transaction blocks.
//!
//! - All SELECTs of a block read one time, that of the first.
//! - DML runs at once, over tables as they are with the block's own changes, and what it changes is
//!   kept until COMMIT, which applies all of it at one time. The block keeps the turn of each table
//!   that it changed, so nothing that it read in order to write changes meanwhile.
//! - A SELECT after a change of the block itself is refused: views do not know the change yet.
//! - A statement of DDL runs at COMMIT, and has to be the only one that changes anything.
//!
//! - A savepoint is what was changed up to then; going back to it takes the later changes away. The
//!   turns are kept.
//!
//! A crash before COMMIT has been answered leaves all or nothing; a client that goes away leaves
//! nothing.

use std::sync::Arc;

use futures::FutureExt as _;

use crate::sql::{StatementKind, TransactionModes};
use crate::types::{Error, Limit, Limits, RelationId, Result, SqlState, Time};

use super::coordinator::{Coordinator, Pin, ReadBound, TableWrite};
use super::database::Writer;
use super::pending::Pending;
use super::settings::Settings;
use super::turns::{HolderId, Turn};

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionStatus {
    /// Each statement is by itself.
    Idle,
    /// In a block.
    InBlock,
    /// In a block that failed; only its end is taken.
    Failed,
}

/// An open block.
pub(crate) struct Block {
    pub(crate) failed: bool,
    pub(crate) read_only: bool,
    /// The settings that ROLLBACK brings back.
    pub(crate) settings: Settings,
    /// Settings that last until the end, and what they were.
    pub(crate) locals: Vec<(String, String)>,
    /// True when a statement ran in it.
    pub(crate) used: bool,
    holder: HolderId,
    turns: Vec<Turn>,
    writers: Vec<(RelationId, Arc<Writer>)>,
    pub(crate) pending: Arc<Pending>,
    /// The relations of the first SELECT and others, kept readable at its time.
    pins: Vec<Pin>,
    read_at: Option<Time>,
    /// Runs at COMMIT.
    pub(crate) ddl: Option<StatementKind>,
    savepoints: Vec<Savepoint>,
}

/// What the block had done at a moment.
struct Savepoint {
    name: String,
    pending: Arc<Pending>,
    writers: Vec<(RelationId, Arc<Writer>)>,
    ddl: Option<StatementKind>,
    settings: Settings,
    locals: Vec<(String, String)>,
}

impl Block {
    pub(crate) fn new(settings: Settings, modes: TransactionModes, default_read_only: bool, holder: HolderId) -> Block {
        Block {
            failed: false,
            read_only: modes.read_only.unwrap_or(default_read_only),
            settings,
            locals: Vec::new(),
            used: false,
            holder,
            turns: Vec::new(),
            writers: Vec::new(),
            pending: Arc::default(),
            pins: Vec::new(),
            read_at: None,
            ddl: None,
            savepoints: Vec::new(),
        }
    }

    /// The block takes nothing more, and lets go of what it holds unless it can go back to a
    /// savepoint.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
        if !self.savepoints.is_empty() {
            return;
        }
        self.turns.clear();
        self.pins.clear();
        self.pending = Arc::default();
        self.writers.clear();
        self.ddl = None;
    }

    /// Remembers what was done up to now.
    ///
    /// # Errors
    /// 54000 when there are too many.
    pub(crate) fn save(&mut self, name: String, settings: Settings, limits: &Limits) -> Result<()> {
        let most = limits.size(Limit::Savepoints);
        if self.savepoints.len() >= most {
            let message = format!("a transaction block may have at most {most} savepoints");
            return Err(limits.exceeded(Limit::Savepoints, message).hint("RELEASE those that are done."));
        }
        self.savepoints.push(Savepoint {
            name,
            pending: Arc::clone(&self.pending),
            writers: self.writers.clone(),
            ddl: self.ddl.clone(),
            settings,
            locals: self.locals.clone(),
        });
        Ok(())
    }

    /// Forgets a savepoint and those after it.
    ///
    /// # Errors
    /// 3B001.
    pub(crate) fn release(&mut self, name: &str) -> Result<()> {
        let at = self.savepoint(name)?;
        self.savepoints.truncate(at);
        Ok(())
    }

    /// Undoes what was done since a savepoint, which stays; gives the settings of then.
    ///
    /// # Errors
    /// 3B001.
    pub(crate) fn back_to(&mut self, name: &str) -> Result<Settings> {
        let at = self.savepoint(name)?;
        self.savepoints.truncate(at + 1);
        let Some(saved) = self.savepoints.last() else { return Err(Error::internal("a savepoint is lost")) };
        self.pending = Arc::clone(&saved.pending);
        self.writers.clone_from(&saved.writers);
        self.ddl.clone_from(&saved.ddl);
        self.locals.clone_from(&saved.locals);
        self.failed = false;
        Ok(saved.settings.clone())
    }

    fn savepoint(&self, name: &str) -> Result<usize> {
        self.savepoints.iter().rposition(|saved| saved.name == name).ok_or_else(|| {
            Error::new(SqlState::InvalidSavepoint, format!("savepoint \"{name}\" does not exist"))
                .hint("SAVEPOINT name comes first; COMMIT and ROLLBACK end all savepoints.")
        })
    }

    pub(crate) fn holder(&self) -> HolderId {
        self.holder
    }

    /// True when it changed something.
    pub(crate) fn wrote(&self) -> bool {
        !self.writers.is_empty()
    }

    /// True when the block has the table's turn.
    pub(crate) fn has_turn(&self, table: RelationId) -> bool {
        self.turns.iter().any(|turn| turn.table() == table)
    }

    /// Keeps a turn to the end.
    pub(crate) fn keep_turn(&mut self, turn: Turn) {
        self.turns.push(turn);
    }

    /// The time that SELECTs of the block read, when one has.
    pub(crate) fn read_bound(&self) -> Option<ReadBound> {
        self.read_at.map(ReadBound::At)
    }

    /// The first SELECT read at a time: what others may read of it stays readable.
    pub(crate) fn keep_time(
        &mut self,
        coordinator: &Coordinator,
        time: Time,
        relations: impl Iterator<Item = RelationId>,
    ) {
        if self.read_at.is_some() {
            return;
        }
        self.read_at = Some(time);
        for relation in relations {
            // A relation that cannot be read at that time now gives its error when it is read.
            if let Some(Ok(pin)) = coordinator.pin(&[relation], ReadBound::At(time)).now_or_never() {
                self.pins.push(pin);
            }
        }
    }

    /// Refuses to write a table that changed since the block read.
    ///
    /// # Errors
    /// 40001.
    pub(crate) fn check_unchanged(&self, name: &str, writer: &Writer) -> Result<()> {
        match self.read_at {
            Some(time) if writer.last_write() > time => {
                Err(Error::new(SqlState::SerializationFailure, "could not serialize access due to concurrent update")
                    .detail(format!("Table \"{name}\" was changed after the transaction block had read."))
                    .hint("Run the block again, or change the rows before reading others."))
            }
            _ => Ok(()),
        }
    }

    /// Keeps changes until COMMIT.
    ///
    /// # Errors
    /// 54000 when they are too many.
    pub(crate) fn keep(&mut self, writes: Vec<TableWrite>, writers: Vec<Arc<Writer>>, limits: &Limits) -> Result<()> {
        let pending = Arc::make_mut(&mut self.pending);
        for (write, writer) in writes.into_iter().zip(writers) {
            let Some(schema) = write.changes.first().map(crate::types::Chunk::schema) else { continue };
            pending.add(write.table, &schema, &write.changes)?;
            if !self.writers.iter().any(|(table, _)| *table == write.table) {
                self.writers.push((write.table, writer));
            }
        }
        let most = limits.size(Limit::BlockBytes);
        if pending.bytes() > most {
            let message = format!("the changes of a transaction block may take at most {most} bytes");
            return Err(limits.exceeded(Limit::BlockBytes, message).hint("Commit more often."));
        }
        Ok(())
    }

    /// The block's changes, the writers that are told of them, and the turns to hold meanwhile.
    pub(crate) fn into_writes(self) -> (Vec<TableWrite>, Vec<Arc<Writer>>, Vec<Turn>) {
        let writes = self
            .pending
            .tables()
            .filter_map(|table| {
                let changes = self.pending.of(table)?.chunks();
                (!changes.is_empty()).then_some(TableWrite { table, changes })
            })
            .collect();
        (writes, self.writers.into_iter().map(|(_, writer)| writer).collect(), self.turns)
    }
}
