//! Whose turn it is to write a table.
//!
//! Statements that read a table in order to write it run one after another. A transaction block
//! keeps its turns until it ends, so two blocks may wait for each other: the one that would close
//! the circle fails with 40P01.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

use super::interrupt::Interrupt;
use crate::types::{Error, RelationId, Result, SqlState};

/// Who takes turns: a transaction block or a single statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HolderId(u64);

/// The turns of all tables.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    last_holder: u64,
    locks: HashMap<RelationId, Arc<tokio::sync::Mutex<()>>>,
    holders: HashMap<RelationId, HolderId>,
    waiting: HashMap<HolderId, RelationId>,
}

/// The turn of one table, given back when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    table: RelationId,
    turns: Turns,
    _guard: OwnedMutexGuard<()>,
}

impl Turn {
    /// The table.
    pub(crate) fn table(&self) -> RelationId {
        self.table
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.state().holders.remove(&self.table);
    }
}

/// Takes an entry of `waiting` back, also when the wait is given up.
struct Waiting {
    holder: HolderId,
    turns: Turns,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.turns.state().waiting.remove(&self.holder);
    }
}

impl Turns {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new holder.
    pub(crate) fn holder(&self) -> HolderId {
        let mut state = self.state();
        state.last_holder += 1;
        HolderId(state.last_holder)
    }

    /// Waits for the turn of a table.
    ///
    /// # Errors
    /// 40P01 when the wait would never end; 57014, 57P01.
    pub(crate) async fn take(&self, table: RelationId, holder: HolderId, interrupt: &Interrupt) -> Result<Turn> {
        let (lock, _waiting) = {
            let mut state = self.state();
            let lock = Arc::clone(state.locks.entry(table).or_default());
            state.waiting.insert(holder, table);
            let waiting = Waiting { holder, turns: self.clone() };
            if circle(&state, table, holder) {
                drop(state);
                return Err(Error::new(SqlState::DeadlockDetected, "deadlock detected")
                    .detail("Another transaction block waits for this one, which would wait for it.")
                    .hint("Run the block again; write tables in the same order in all blocks."));
            }
            (lock, waiting)
        };
        let guard = interrupt.guard(async move { Ok(lock.lock_owned().await) }).await?;
        self.state().holders.insert(table, holder);
        Ok(Turn { table, turns: self.clone(), _guard: guard })
    }

    /// Forgets tables that are gone.
    pub(crate) fn forget(&self, tables: &[RelationId]) {
        self.state().locks.retain(|table, _| !tables.contains(table));
    }
}

/// True when whoever holds `table` waits, over any number of others, for `holder`.
fn circle(state: &State, table: RelationId, holder: HolderId) -> bool {
    let mut table = table;
    // Every step goes to another waiting holder, so there are no more steps than those.
    for _ in 0..=state.waiting.len() {
        match state.holders.get(&table) {
            None => return false,
            Some(found) if *found == holder => return true,
            Some(found) => match state.waiting.get(found) {
                None => return false,
                Some(next) => table = *next,
            },
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::runtime::Handle;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn interrupt() -> Interrupt {
        Interrupt::new(CancellationToken::new(), CancellationToken::new(), None, &Handle::current())
    }

    #[tokio::test]
    async fn a_circle_is_noticed_and_a_queue_is_not() {
        let (turns, interrupt) = (Turns::default(), interrupt());
        let (a, b) = (RelationId(1), RelationId(2));
        let (one, two) = (turns.holder(), turns.holder());
        let one_a = turns.take(a, one, &interrupt).await.unwrap();
        let two_b = turns.take(b, two, &interrupt).await.unwrap();
        let waits = tokio::spawn({
            let (turns, interrupt) = (turns.clone(), interrupt.clone());
            async move { turns.take(b, one, &interrupt).await }
        });
        while turns.state().waiting.is_empty() {
            tokio::task::yield_now().await;
        }
        let error = turns.take(a, two, &interrupt).await.unwrap_err();
        assert_eq!(error.code(), SqlState::DeadlockDetected);
        drop(two_b);
        let one_b = tokio::time::timeout(Duration::from_secs(10), waits).await.unwrap().unwrap().unwrap();
        drop((one_a, one_b));
        assert_eq!(turns.take(a, two, &interrupt).await.unwrap().table(), a);
        assert!(turns.state().holders.is_empty() && turns.state().waiting.is_empty());
    }
}
