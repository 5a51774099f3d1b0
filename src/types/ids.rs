//! Identities that must not be mixed up.

use std::fmt;

/// Number of key groups: the unit in which keyed work moves between workers.
pub const KEY_GROUPS: usize = 128;

/// FNV-1a, 64 bits (Fowler, Noll, Vo): the published hash behind key groups and operator ids.
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// A fixed hash bucket of keys, `0..KEY_GROUPS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyGroup(u8);

impl KeyGroup {
    /// The group of an encoded key.
    pub fn of(key: &[u8]) -> KeyGroup {
        KeyGroup::of_hash(fnv1a(key))
    }

    /// The group of an encoded key with this [`fnv1a`].
    pub fn of_hash(hash: u64) -> KeyGroup {
        // The remainder is below 128.
        KeyGroup((hash % KEY_GROUPS as u64) as u8)
    }

    /// The group with this number.
    ///
    /// # Panics
    /// When `index` is not below [`KEY_GROUPS`].
    pub fn new(index: usize) -> KeyGroup {
        assert!(index < KEY_GROUPS, "key group {index} out of range");
        KeyGroup(index as u8)
    }

    /// Its number, `0..KEY_GROUPS`.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The worker that owns the group among `workers`.
    pub fn worker(self, workers: usize) -> usize {
        self.index() * workers / KEY_GROUPS
    }
}

/// A catalog object's number: tables, views and the jobs that keep them. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct RelationId(pub u64);

impl fmt::Display for RelationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A read of an operator's rows, begun and not ended. Never used twice in the life of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InspectionId(pub u64);

/// Names an operator's state: the hash of its view's name and its place in the plan, so that a
/// restart finds it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorId(u64);

impl OperatorId {
    /// The id of the operator at `path` of `schema.name`: FNV-1a of `view/<schema>.<name>/<path>`.
    pub fn of(qualified_name: &str, path: &str) -> OperatorId {
        OperatorId(fnv1a(format!("view/{qualified_name}/{path}").as_bytes()))
    }

    /// The id with this number, as read from stored state.
    pub const fn from_u64(number: u64) -> OperatorId {
        OperatorId(number)
    }

    /// The number as stored.
    pub fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for OperatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Numbers a checkpoint. Ids ascend and are never used twice, those of abandoned checkpoints included, so a name
/// with an id in it is written once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct CheckpointId(pub u64);

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fnv1a_matches_the_published_vectors() {
        assert_eq!(fnv1a(b""), 0xcbf29ce484222325);
        assert_eq!(fnv1a(b"a"), 0xaf63dc4c8601ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x85944171f73967e8);
    }

    #[test]
    fn groups_cover_the_workers_evenly_and_in_order() {
        for workers in [1, 2, 3, 4, 8] {
            let owners: Vec<usize> = (0..KEY_GROUPS).map(|g| KeyGroup::new(g).worker(workers)).collect();
            assert!(owners.is_sorted());
            assert_eq!(owners[0], 0);
            assert_eq!(owners[KEY_GROUPS - 1], workers - 1);
        }
    }
}
