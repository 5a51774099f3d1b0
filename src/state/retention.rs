//! Which parts are still needed.
//!
//! Checkpoints share parts, so a part goes when the last snapshot that names it is released. What a backend has
//! referred to once and no more, it never refers to again; therefore releasing all but the newest complete checkpoint is
//! safe while a later one is under way.

use std::collections::BTreeSet;

use super::snapshot::Snapshot;
use super::store::PartStore;
use crate::types::Result;

/// Names of the parts that only released snapshots need.
pub fn released_parts<'a>(
    released: impl IntoIterator<Item = &'a Snapshot>,
    retained: impl IntoIterator<Item = &'a Snapshot>,
) -> BTreeSet<String> {
    let names = |snapshot: &Snapshot| snapshot.parts().into_iter().map(|part| part.name.clone()).collect::<Vec<_>>();
    let mut parts: BTreeSet<String> = released.into_iter().flat_map(names).collect();
    for name in retained.into_iter().flat_map(names) {
        parts.remove(&name);
    }
    parts
}

/// Removes what nothing names: objects written before `before_millis` that are not in `needed`. Called while no
/// checkpoint is under way, with the parts of all retained snapshots, those that backends hold and the manifests
/// themselves. With `dry_run` nothing is removed. Gives the names.
///
/// # Errors
/// When the store cannot be listed or written.
pub fn sweep(
    store: &dyn PartStore,
    needed: &BTreeSet<String>,
    before_millis: i64,
    dry_run: bool,
) -> Result<Vec<String>> {
    let listed = store.list("")?;
    let mut removed = Vec::new();
    for object in listed {
        if object.modified_millis < before_millis && !needed.contains(&object.name) {
            if !dry_run {
                store.delete(&object.name)?;
            }
            removed.push(object.name);
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::store::LocalStore;
    use super::*;

    #[test]
    fn a_sweep_spares_the_needed_and_the_young() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = LocalStore::open(folder.path(), false, Default::default()).expect("opens");
        for name in ["cp-1/a", "cp-1/b", "c.1-1.part"] {
            store.put(name, Bytes::new()).expect("writes");
        }
        let needed = BTreeSet::from(["cp-1/b".to_owned()]);
        assert_eq!(sweep(&store, &needed, 0, false).expect("lists"), Vec::<String>::new());
        assert_eq!(sweep(&store, &needed, i64::MAX, true).expect("lists").len(), 2);
        assert_eq!(sweep(&store, &needed, i64::MAX, false).expect("lists"), ["c.1-1.part", "cp-1/a"]);
        assert_eq!(store.list("").expect("lists").len(), 1);
    }
}
