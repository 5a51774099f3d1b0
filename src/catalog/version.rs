//! One immutable version of the catalog.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::types::RelationId;

use super::log::Change;
use super::objects::{Object, ObjectKind, errors_name, late_name};

/// The schema that is there from the start, and the search path.
pub const DEFAULT_SCHEMA: &str = "public";

/// Schema names that users cannot have.
pub const RESERVED_SCHEMAS: [&str; 3] = ["clink_catalog", "pg_catalog", "information_schema"];

/// The objects of the database at one moment.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// Names in each schema; a schema without objects has an empty map.
    schemas: BTreeMap<String, BTreeMap<String, RelationId>>,
    /// Functions by schema and name: a relation may be called the same.
    functions: BTreeMap<(String, String), RelationId>,
    objects: BTreeMap<RelationId, Arc<Object>>,
}

impl Default for Catalog {
    fn default() -> Catalog {
        let schemas = BTreeMap::from([(DEFAULT_SCHEMA.to_owned(), BTreeMap::new())]);
        Catalog { schemas, functions: BTreeMap::new(), objects: BTreeMap::new() }
    }
}

impl Catalog {
    /// The object with this number.
    pub fn get(&self, id: RelationId) -> Option<&Arc<Object>> {
        self.objects.get(&id)
    }

    /// The object of this name; without a schema in the default one.
    pub fn find(&self, schema: Option<&str>, name: &str) -> Option<&Arc<Object>> {
        let id = self.schemas.get(schema.unwrap_or(DEFAULT_SCHEMA))?.get(name)?;
        self.objects.get(id)
    }

    /// The function of this name; without a schema in the default one.
    pub fn find_function(&self, schema: Option<&str>, name: &str) -> Option<&Arc<Object>> {
        let id = self.functions.get(&(schema.unwrap_or(DEFAULT_SCHEMA).to_owned(), name.to_owned()))?;
        self.objects.get(id)
    }

    /// All functions, by schema and name.
    pub fn functions(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.functions.values().filter_map(|id| self.objects.get(id))
    }

    /// All objects by number: what an object stands on comes before it.
    pub fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.values()
    }

    /// Names of all schemas.
    pub fn schemas(&self) -> impl Iterator<Item = &str> {
        self.schemas.keys().map(String::as_str)
    }

    /// True when the schema is there.
    pub fn has_schema(&self, schema: &str) -> bool {
        self.schemas.contains_key(schema)
    }

    /// Names of the objects in a schema.
    pub fn names(&self, schema: &str) -> impl Iterator<Item = &str> {
        self.schemas.get(schema).into_iter().flat_map(BTreeMap::keys).map(String::as_str)
    }

    /// Everything that stands on one of the objects, directly or not, without the objects
    /// themselves, by number.
    pub fn dependents(&self, of: &[RelationId]) -> Vec<Arc<Object>> {
        // An object only names objects that were there before it, so one pass by number is enough.
        let mut reached: BTreeSet<RelationId> = of.iter().copied().collect();
        let mut found = Vec::new();
        for object in self.objects.values() {
            if !reached.contains(&object.id) && object.depends_on.iter().any(|id| reached.contains(id)) {
                reached.insert(object.id);
                found.push(Arc::clone(object));
            }
        }
        found
    }

    /// The version after a change. `object` is what a created object's record means.
    #[must_use]
    pub(crate) fn after(&self, change: &Change, object: Option<Arc<Object>>) -> Catalog {
        let mut next = self.clone();
        match change {
            Change::Create(record) | Change::Alter(record) if record.kind == ObjectKind::Function => {
                next.functions.insert((record.schema.clone(), record.name.clone()), record.id);
                next.objects.extend(object.map(|object| (record.id, object)));
            }
            Change::Create(record) | Change::Alter(record) => {
                let names = next.schemas.entry(record.schema.clone()).or_default();
                names.insert(record.name.clone(), record.id);
                if let Some(errors) = record.errors {
                    names.insert(errors_name(&record.name), errors);
                }
                if let Some(late) = record.late {
                    names.insert(late_name(&record.name), late);
                }
                if let Some(object) = object {
                    let beside = object.errors_object().into_iter().chain(object.late_object());
                    next.objects.extend(beside.map(|beside| (beside.id, Arc::new(beside))));
                    next.objects.insert(record.id, object);
                }
            }
            Change::CreateSchema { schema } => {
                next.schemas.entry(schema.clone()).or_default();
            }
            Change::Drop { ids, schemas } => {
                for id in ids {
                    next.objects.remove(id);
                }
                next.functions.retain(|_, id| !ids.contains(id));
                for names in next.schemas.values_mut() {
                    names.retain(|_, id| !ids.contains(id));
                }
                for schema in schemas {
                    next.schemas.remove(schema);
                }
            }
        }
        next
    }
}

/// The candidate that was most likely meant: at most a third of its letters differ.
pub fn near_miss<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count().max(name.chars().count()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance with one row of memory.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, from) in left.chars().enumerate() {
        let mut diagonal = line;
        let mut before = line + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(&right) {
            let above = *cell;
            let replaced = diagonal + usize::from(from != *to);
            *cell = replaced.min(above + 1).min(before + 1);
            diagonal = above;
            before = *cell;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Definition;
    use crate::catalog::log::ObjectRecord;
    use crate::types::Error;

    fn add(catalog: &Catalog, id: u64, name: &str, depends_on: &[u64]) -> Catalog {
        let record = ObjectRecord {
            id: RelationId(id),
            schema: DEFAULT_SCHEMA.into(),
            name: name.into(),
            kind: ObjectKind::View,
            depends_on: depends_on.iter().copied().map(RelationId).collect(),
            text: String::new(),
            errors: None,
            late: None,
        };
        let object = record.clone().into_object(Definition::Broken(Error::internal("not planned")));
        catalog.after(&Change::Create(record), Some(Arc::new(object)))
    }

    #[test]
    fn dependents_are_followed_through_all_levels() {
        let catalog = add(&Catalog::default(), 1, "t", &[]);
        let catalog = add(&catalog, 2, "v", &[1]);
        let catalog = add(&catalog, 3, "w", &[2]);
        let catalog = add(&catalog, 4, "other", &[]);
        let names: Vec<String> = catalog.dependents(&[RelationId(1)]).iter().map(|o| o.name.clone()).collect();
        assert_eq!(names, ["v", "w"]);

        let after = catalog
            .after(&Change::Drop { ids: vec![RelationId(1), RelationId(2), RelationId(3)], schemas: vec![] }, None);
        assert_eq!(after.names(DEFAULT_SCHEMA).collect::<Vec<_>>(), ["other"]);
        assert!(catalog.find(None, "t").is_some(), "the old version is as it was");
    }

    #[test]
    fn a_near_miss_is_near() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(near_miss("ordres", ["orders", "totals"]), Some("orders"));
        assert_eq!(near_miss("x", ["orders", "totals"]), None);
    }
}
