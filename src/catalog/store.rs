//! The catalog's one writer.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::types::{Error, RelationId, Result};

use super::log::{CatalogLog, Change, ObjectRecord};
use super::objects::Object;
use super::version::Catalog;

/// The current version of the catalog and the log behind it.
///
/// Changes come from one statement at a time: the caller holds a lock from looking at a version to
/// applying the change that follows from it.
#[derive(Debug)]
pub struct CatalogStore {
    current: RwLock<Arc<Catalog>>,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    log: CatalogLog,
    next_id: u64,
}

impl CatalogStore {
    /// Opens the catalog of a data directory. Gives the objects that are there now, by number: what
    /// an object stands on comes before it. The store shows the schemas, but each object only after
    /// [`CatalogStore::restore`].
    ///
    /// # Errors
    /// As [`CatalogLog::open`].
    pub fn open(data_dir: &Path) -> Result<(CatalogStore, Vec<ObjectRecord>)> {
        let (log, changes) = CatalogLog::open(data_dir)?;
        let mut records: std::collections::BTreeMap<RelationId, ObjectRecord> = std::collections::BTreeMap::new();
        let mut catalog = Catalog::default();
        let mut highest = 0;
        for change in changes {
            match &change {
                Change::Create(record) => {
                    highest = highest.max(record.last_id().0);
                    records.insert(record.id, record.clone());
                }
                Change::Alter(record) => drop(records.insert(record.id, record.clone())),
                Change::Drop { ids, .. } => records.retain(|id, _| !ids.contains(id)),
                Change::CreateSchema { .. } => {}
            }
            catalog = catalog.after(&change, None);
        }
        let store = CatalogStore {
            current: RwLock::new(Arc::new(catalog)),
            writer: Mutex::new(Writer { log, next_id: highest.saturating_add(1) }),
        };
        Ok((store, records.into_values().collect()))
    }

    /// The current version.
    pub fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number that no object had or will have, when an object is then created with it.
    pub fn next_id(&self) -> RelationId {
        RelationId(self.writer.lock().unwrap_or_else(PoisonError::into_inner).next_id)
    }

    /// Shows an object that the log already has.
    pub fn restore(&self, object: Object) {
        self.show(&Change::Create(ObjectRecord::of(&object)), Some(Arc::new(object)));
    }

    /// Makes an object durable and shows it. Blocks on the disk.
    ///
    /// # Errors
    /// As [`CatalogLog::append`].
    pub fn create(&self, object: Object) -> Result<()> {
        self.apply(&Change::Create(ObjectRecord::of(&object)), Some(Arc::new(object)))
    }

    /// Makes another text of an object durable and shows it. Blocks on the disk.
    ///
    /// # Errors
    /// As [`CatalogLog::append`].
    pub fn alter(&self, object: Object) -> Result<()> {
        self.apply(&Change::Alter(ObjectRecord::of(&object)), Some(Arc::new(object)))
    }

    /// Makes another change durable and shows it. Blocks on the disk.
    ///
    /// # Errors
    /// As [`CatalogLog::append`].
    pub fn change(&self, change: &Change) -> Result<()> {
        if matches!(change, Change::Create(_) | Change::Alter(_)) {
            return Err(Error::internal("an object has its definition"));
        }
        self.apply(change, None)
    }

    /// The bytes of the log. Blocks on the disk.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn log_bytes(&self) -> Result<Vec<u8>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner).log.bytes()
    }

    fn apply(&self, change: &Change, object: Option<Arc<Object>>) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Change::Create(record) = change
            && record.id.0 < writer.next_id
        {
            return Err(Error::internal(format!("catalog number {} was given out before", record.id)));
        }
        writer.log.append(change)?;
        if let Change::Create(record) = change {
            writer.next_id = record.last_id().0.saturating_add(1);
        }
        self.show(change, object);
        Ok(())
    }

    fn show(&self, change: &Change, object: Option<Arc<Object>>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let next = current.after(change, object);
        *current = Arc::new(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Definition, ObjectKind};

    fn object(id: RelationId, depends_on: &[RelationId]) -> Object {
        Object {
            id,
            schema: "public".into(),
            name: format!("o{id}"),
            kind: ObjectKind::View,
            depends_on: depends_on.to_vec(),
            text: format!("CREATE VIEW o{id} AS SELECT 1"),
            errors: None,
            late: None,
            definition: Definition::Broken(Error::internal("not planned")),
        }
    }

    #[test]
    fn numbers_are_never_used_twice_also_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = CatalogStore::open(dir.path()).unwrap();
        let first = store.next_id();
        store.create(object(first, &[])).unwrap();
        let second = store.next_id();
        assert!(second > first);
        store.create(object(second, &[first])).unwrap();
        store.change(&Change::Drop { ids: vec![first, second], schemas: vec![] }).unwrap();
        drop(store);

        let (store, records) = CatalogStore::open(dir.path()).unwrap();
        assert!(records.is_empty(), "a cascade drops all of them");
        assert!(store.next_id() > second);
    }

    #[test]
    fn objects_come_back_with_their_text() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = CatalogStore::open(dir.path()).unwrap();
        let id = store.next_id();
        store.create(object(id, &[])).unwrap();
        store.change(&Change::CreateSchema { schema: "s".into() }).unwrap();
        drop(store);

        let (store, records) = CatalogStore::open(dir.path()).unwrap();
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].text, "CREATE VIEW o1 AS SELECT 1");
        assert!(store.current().has_schema("s"));
        assert!(store.current().find(None, "o1").is_none(), "not before it is planned");
        store.restore(records[0].clone().into_object(Definition::Broken(Error::internal("x"))));
        assert!(store.current().find(None, "o1").is_some());
    }
}
