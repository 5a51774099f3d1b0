//! `pg_catalog` and `information_schema`: what clients ask to find out what is there.
//!
//! Facts about PostgreSQL itself (types, functions, operators) are datafusion-pg-catalog's static
//! tables. Facts about our objects are made here from one version of the catalog, when a statement
//! names the table.

mod built_in;
mod functions;
mod information_schema;
mod procedures;
mod relations;
mod rows;
mod server;
mod settings;
mod sizes;

use std::sync::{Arc, OnceLock};

use datafusion::catalog::TableProvider;
use datafusion_pg_catalog::pg_catalog::{PgCatalogSchemaProvider, context::EmptyContextProvider};

use super::index_ddl::INDEXES_MAX;
use crate::catalog::Catalog;
use crate::types::{Result, fnv1a};

pub(crate) use functions::functions;
pub(crate) use relations::key_index_of;
pub(crate) use settings::settings_table;
pub(crate) use sizes::Sizes;

/// The schema of PostgreSQL's own tables.
pub(crate) const PG_CATALOG: &str = "pg_catalog";
/// The schema of the SQL standard's views.
pub(crate) const INFORMATION_SCHEMA: &str = "information_schema";

/// The number of the schema `pg_catalog`, as in PostgreSQL.
const PG_CATALOG_OID: i32 = 11;
/// The number of the schema `public`, as in PostgreSQL.
const PUBLIC_OID: i32 = 2200;
/// The tables of `clink_catalog` are numbered from here.
const SYSTEM_OID: i32 = 15_000;
/// Relations are numbered from here, as PostgreSQL numbers the user's objects.
const FIRST_OID: u64 = 16_384;
/// The index of a relation's primary key has the relation's number and this.
const INDEX_OID: i32 = 1 << 29;
/// Other indexes have numbers from here: their relation's id and their place among its indexes.
const SECONDARY_OID: i32 = INDEX_OID + (1 << 28);
/// Schemas have numbers made of their names, from here.
const SCHEMA_OID: i32 = 1 << 30;

/// The number of a relation.
fn relation_oid(id: crate::types::RelationId) -> i32 {
    i32::try_from(FIRST_OID + id.0).unwrap_or(i32::MAX)
}

/// The number of an index by its place among those of a relation.
fn secondary_oid(id: crate::types::RelationId, place: usize) -> i32 {
    let number = id.0.saturating_mul(INDEXES_MAX as u64).saturating_add(place as u64);
    i32::try_from(number).ok().and_then(|number| SECONDARY_OID.checked_add(number)).unwrap_or(i32::MAX)
}

/// The number of a table of `clink_catalog` by its place among them.
fn system_oid(place: usize) -> i32 {
    SYSTEM_OID.saturating_add(i32::try_from(place).unwrap_or(i32::MAX))
}

/// The table of `clink_catalog` with a number.
fn system_table(oid: i32) -> Option<&'static str> {
    let place = usize::try_from(oid.checked_sub(SYSTEM_OID)?).ok()?;
    crate::engine::system_tables::names().nth(place)
}

/// The number of a schema.
fn schema_oid(name: &str) -> i32 {
    match name {
        PG_CATALOG => PG_CATALOG_OID,
        "public" => PUBLIC_OID,
        name => SCHEMA_OID | i32::try_from(fnv1a(name.as_bytes()) & 0x1fff_ffff).unwrap_or(0),
    }
}

type Library = PgCatalogSchemaProvider<Arc<dyn datafusion::catalog::CatalogProviderList>, EmptyContextProvider>;

/// A table of one of the two schemas; `None` when there is none of that name.
///
/// # Errors
/// When the library's table cannot be read.
pub(crate) fn table(catalog: &Catalog, schema: &str, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    if schema == INFORMATION_SCHEMA {
        return information_schema::table(catalog, name);
    }
    if let Some(table) = relations::table(catalog, name)? {
        return Ok(Some(table));
    }
    if let Some(table) = server::table(name)? {
        return Ok(Some(table));
    }
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let tables = Arc::clone(built_in::tables()?);
        let nothing: Arc<dyn datafusion::catalog::CatalogProviderList> =
            Arc::new(datafusion::catalog::MemoryCatalogProviderList::new());
        PgCatalogSchemaProvider::try_new(nothing, tables, EmptyContextProvider).ok()
    });
    let Some(library) = library else { return Ok(None) };
    let table = library.build_table_by_name(name).map_err(crate::engine::error_of)?;
    let table = table.map(|table| table.try_into_table_provider().map_err(crate::engine::error_of)).transpose()?;
    match table {
        Some(built_in) if name == "pg_proc" => procedures::with_own(catalog, built_in).map(Some),
        table => Ok(table),
    }
}

/// True for the schemas of this module.
pub(crate) fn has_schema(name: &str) -> bool {
    matches!(name, PG_CATALOG | INFORMATION_SCHEMA)
}
