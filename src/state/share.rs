//! Which part of the state a worker keeps.

use std::ops::Range;

use crate::types::{Error, KEY_GROUPS, KeyGroup, Result, SqlState};

/// First byte of operator state: no key group, so that no filter by key group drops it.
pub const OPERATOR_STATE: u8 = 0xFF;

/// One worker among all: it keeps a range of key groups, and its part of the operator state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    worker: usize,
    workers: usize,
}

impl Share {
    /// Everything, kept by a single worker.
    pub const WHOLE: Share = Share { worker: 0, workers: 1 };

    /// The share of `worker` among `workers`.
    ///
    /// # Errors
    /// 22023 when there are more workers than key groups, none, or not this one.
    pub fn new(worker: usize, workers: usize) -> Result<Share> {
        if workers == 0 || workers > KEY_GROUPS || worker >= workers {
            return Err(Error::new(
                SqlState::InvalidParameterValue,
                format!("there is no share for worker {worker} of {workers}"),
            )
            .hint(format!("Use 1 to {KEY_GROUPS} workers.")));
        }
        Ok(Share { worker, workers })
    }

    /// The worker's number.
    pub fn worker(self) -> usize {
        self.worker
    }

    /// How many workers there are.
    pub fn workers(self) -> usize {
        self.workers
    }

    /// The numbers of its key groups: `[ceil(i*128/p), ceil((i+1)*128/p))`, the inverse of [`KeyGroup::worker`].
    pub fn groups(self) -> Range<usize> {
        let bound = |worker: usize| (worker * KEY_GROUPS).div_ceil(self.workers);
        bound(self.worker)..bound(self.worker + 1)
    }

    /// Whether a stored key is operator state, which belongs to no key group.
    pub fn is_operator_state(key: &[u8]) -> bool {
        key.first().is_none_or(|first| usize::from(*first) >= KEY_GROUPS)
    }

    /// Whether a keyed entry is kept; operator state is not asked for here.
    pub fn keeps(self, key: &[u8]) -> bool {
        key.first().is_some_and(|first| self.groups().contains(&usize::from(*first)))
    }

    /// Whether a key group is kept.
    pub fn keeps_group(self, group: KeyGroup) -> bool {
        self.groups().contains(&group.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_each_group_once_and_agree_with_routing() {
        for workers in 1..=KEY_GROUPS {
            let mut next = 0;
            for worker in 0..workers {
                let groups = Share::new(worker, workers).expect("a worker").groups();
                assert_eq!(groups.start, next);
                next = groups.end;
                for group in groups {
                    assert_eq!(KeyGroup::new(group).worker(workers), worker);
                }
            }
            assert_eq!(next, KEY_GROUPS);
        }
        assert_eq!(Share::new(0, 129).expect_err("too many").code(), SqlState::InvalidParameterValue);
        assert_eq!(Share::new(3, 3).expect_err("no such worker").code(), SqlState::InvalidParameterValue);
    }
}
