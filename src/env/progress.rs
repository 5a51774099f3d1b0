//! How far a long piece of work is, for people to see.

use std::sync::{Arc, Mutex, PoisonError};

/// The work that is done now, if one takes long. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LongWork(Arc<Mutex<Option<Step>>>);

/// A piece of work and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done, in a few words.
    pub what: &'static str,
    /// How much of it.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

impl LongWork {
    /// A piece of work is so far; `None` when it is over.
    pub fn set(&self, step: Option<Step>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }

    /// What is done now.
    pub fn now(&self) -> Option<Step> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
