//! Named places at which tests let things fail.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::types::{Error, Result};

/// The failpoints of one server: off unless a test arms them. Clones share their state.
#[derive(Clone, Default)]
pub struct Failpoints {
    armed: Arc<Mutex<HashMap<&'static str, u64>>>,
}

impl Failpoints {
    /// Lets the failpoint fail once, after it was passed `passes` times.
    pub fn arm(&self, name: &'static str, passes: u64) {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner).insert(name, passes);
    }

    /// Lets the failpoint pass again.
    pub fn disarm(&self, name: &'static str) {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Passes a failpoint.
    ///
    /// # Errors
    /// XX000 naming the failpoint, when it is armed and its turn has come.
    pub fn pass(&self, name: &'static str) -> Result<()> {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        match armed.get_mut(name) {
            None => Ok(()),
            Some(0) => {
                armed.remove(name);
                Err(Error::internal(format!("failpoint {name}")))
            }
            Some(passes) => {
                *passes -= 1;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_once_when_its_turn_has_come() {
        let failpoints = Failpoints::default();
        failpoints.arm("log", 1);
        assert!(failpoints.pass("log").is_ok());
        assert!(failpoints.pass("log").is_err());
        assert!(failpoints.pass("log").is_ok());
        failpoints.arm("log", 0);
        failpoints.disarm("log");
        assert!(failpoints.pass("log").is_ok());
    }
}
