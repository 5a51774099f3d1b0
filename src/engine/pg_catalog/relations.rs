//! The tables of `pg_catalog` that tell of our relations, their columns and keys.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::catalog::TableProvider;

use super::rows::{Values, table as rows_table};
use super::{INDEX_OID, INFORMATION_SCHEMA, PG_CATALOG, relation_oid, schema_oid, secondary_oid, system_oid};
use crate::catalog::{Catalog, Definition, Object, ObjectKind};
use crate::engine::system_tables::{self, SCHEMA as SYSTEM_SCHEMA};
use crate::sql::quote_ident;
use crate::types::{Result, fnv1a, type_length, type_modifier, type_oid};

/// The owner of everything.
pub(super) const OWNER: i32 = 10;

pub(super) fn table(catalog: &Catalog, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    Ok(Some(match name {
        "pg_class" => classes(catalog)?,
        "pg_attribute" => attributes(catalog)?,
        "pg_attrdef" => defaults(catalog)?,
        "pg_namespace" => namespaces(catalog)?,
        "pg_index" => indexes(catalog)?,
        "pg_constraint" => constraints(catalog)?,
        "pg_tables" => tables(catalog)?,
        "pg_views" => views(catalog, ObjectKind::View)?,
        "pg_matviews" => views(catalog, ObjectKind::MaterializedView)?,
        "pg_indexes" => index_views(catalog)?,
        "pg_foreign_data_wrapper" => wrappers()?,
        "pg_foreign_server" => servers(catalog)?,
        "pg_foreign_table" => foreign_tables(catalog)?,
        _ => return Ok(None),
    }))
}

/// What can be read: sinks and functions cannot.
pub(super) fn shown(catalog: &Catalog) -> impl Iterator<Item = &Arc<Object>> {
    catalog.objects().filter(|object| !matches!(object.kind, ObjectKind::Sink | ObjectKind::Function))
}

/// `pg_class.relkind`.
pub(super) fn kind_of(object: &Object) -> &'static str {
    match object.kind {
        ObjectKind::Table if object.is_external() => "f",
        ObjectKind::Table => "r",
        // What the server keeps of rows that failed is read like a view.
        ObjectKind::View | ObjectKind::Errors | ObjectKind::Late => "v",
        ObjectKind::MaterializedView => "m",
        // These are no relations; they are left out before.
        ObjectKind::Sink | ObjectKind::Function => "r",
    }
}

/// What reads and writes the tables of all connectors.
const WRAPPER_OID: i32 = 16_000;

/// The connectors that tables name; each is a server to clients of PostgreSQL.
fn connectors(catalog: &Catalog) -> Vec<String> {
    let mut names: Vec<String> = shown(catalog).filter_map(|object| connector(object)).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn connector(object: &Object) -> Option<String> {
    match &object.definition {
        Definition::Table(table) => table.connector.clone(),
        _ => None,
    }
}

fn server_oid(connector: &str) -> i32 {
    WRAPPER_OID + 1 + i32::try_from(fnv1a(connector.as_bytes()) & 0xff).unwrap_or(0)
}

fn wrappers() -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &[()],
        &[
            ("oid", Values::Int(|()| Some(WRAPPER_OID))),
            ("fdwname", Values::Text(|()| Some("clink".into()))),
            ("fdwowner", Values::Int(|()| Some(OWNER))),
            ("fdwhandler", Values::Int(|()| Some(0))),
            ("fdwvalidator", Values::Int(|()| Some(0))),
            ("fdwacl", Values::NoTexts),
            ("fdwoptions", Values::NoTexts),
        ],
    )
}

fn servers(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &connectors(catalog),
        &[
            ("oid", Values::Int(|name| Some(server_oid(name)))),
            ("srvname", Values::Text(|name| Some(name.clone()))),
            ("srvowner", Values::Int(|_| Some(OWNER))),
            ("srvfdw", Values::Int(|_| Some(WRAPPER_OID))),
            ("srvtype", Values::Text(|_| None)),
            ("srvversion", Values::Text(|_| None)),
            ("srvacl", Values::NoTexts),
            ("srvoptions", Values::NoTexts),
        ],
    )
}

fn foreign_tables(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let rows: Vec<&Arc<Object>> = shown(catalog).filter(|object| connector(object).is_some()).collect();
    rows_table(
        &rows,
        &[
            ("ftrelid", Values::Int(|object| Some(relation_oid(object.id)))),
            ("ftserver", Values::Int(|object| connector(object).map(|name| server_oid(&name)))),
            ("ftoptions", Values::NoTexts),
        ],
    )
}

/// The columns of the primary key that the user declared.
pub(super) fn declared_key(object: &Object) -> &[usize] {
    match &object.definition {
        Definition::Table(table) => &table.key,
        _ => &[],
    }
}

/// The name of a primary key's index and constraint.
pub(super) fn key_name(object: &Object) -> String {
    format!("{}_pkey", object.name)
}

/// A default as its expression is written.
pub(super) fn default_text(object: &Object, column: usize) -> Option<String> {
    match &object.definition {
        Definition::Table(table) => table.columns.get(column)?.default.as_ref().map(ToString::to_string),
        _ => None,
    }
}

/// The most characters of a column.
pub(super) fn length_max(object: &Object, column: usize) -> Option<usize> {
    match &object.definition {
        Definition::Table(table) => table.columns.get(column)?.length_max,
        _ => None,
    }
}

/// The type of a column: text with a length is `varchar`.
pub(super) fn column_type(object: &Object, column: usize, data_type: &DataType) -> (u32, i32) {
    const VARCHAR: u32 = 1043;
    match length_max(object, column).and_then(|length| i32::try_from(length).ok()) {
        Some(length) => (VARCHAR, length.saturating_add(4)),
        None => (type_oid(data_type), type_modifier(data_type)),
    }
}

pub(super) fn schema(object: &Object) -> Arc<Schema> {
    object.row_schema().unwrap_or_else(|| Arc::new(Schema::empty()))
}

/// The tables of `clink_catalog`: number, name, columns.
fn system_tables() -> impl Iterator<Item = (i32, &'static str, Arc<Schema>)> {
    system_tables::names().enumerate().filter_map(|(place, name)| {
        let table = system_tables::find(name)?;
        Some((system_oid(place), name, table.schema()))
    })
}

struct Class {
    oid: i32,
    name: String,
    namespace: i32,
    kind: &'static str,
    columns: i16,
    has_index: bool,
}

fn small(count: usize) -> i16 {
    i16::try_from(count).unwrap_or(i16::MAX)
}

fn classes(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let mut rows = Vec::new();
    for object in shown(catalog) {
        let (oid, namespace) = (relation_oid(object.id), schema_oid(&object.schema));
        let key = declared_key(object);
        rows.push(Class {
            oid,
            name: object.name.clone(),
            namespace,
            kind: kind_of(object),
            columns: small(schema(object).fields().len()),
            has_index: !key.is_empty() || !object.indexes.is_empty(),
        });
        let indexes = indexes_of(object);
        rows.extend(indexes.into_iter().map(|index| Class {
            oid: index.oid,
            name: index.name,
            namespace,
            kind: "i",
            columns: small(index.columns.len()),
            has_index: false,
        }));
    }
    rows.extend(system_tables().map(|(oid, name, schema)| Class {
        oid,
        name: name.to_owned(),
        namespace: schema_oid(SYSTEM_SCHEMA),
        kind: "r",
        columns: small(schema.fields().len()),
        has_index: false,
    }));
    rows_table(
        &rows,
        &[
            ("oid", Values::Int(|row| Some(row.oid))),
            ("relname", Values::Text(|row| Some(row.name.clone()))),
            ("relnamespace", Values::Int(|row| Some(row.namespace))),
            ("reltype", Values::Int(|_| Some(0))),
            ("reloftype", Values::Int(|_| Some(0))),
            ("relowner", Values::Int(|_| Some(OWNER))),
            // The index is a B-tree to those who ask.
            ("relam", Values::Int(|row| Some(if row.kind == "i" { 403 } else { 0 }))),
            ("relfilenode", Values::Int(|row| Some(row.oid))),
            ("reltablespace", Values::Int(|_| Some(0))),
            ("relpages", Values::Int(|_| Some(0))),
            ("reltuples", Values::Real(|_| -1.0)),
            ("relallvisible", Values::Int(|_| Some(0))),
            ("reltoastrelid", Values::Int(|_| Some(0))),
            ("relhasindex", Values::Boolean(|row| row.has_index)),
            ("relisshared", Values::Boolean(|_| false)),
            ("relpersistence", Values::Text(|_| Some("p".into()))),
            ("relkind", Values::Text(|row| Some(row.kind.into()))),
            ("relnatts", Values::Small(|row| row.columns)),
            ("relchecks", Values::Small(|_| 0)),
            ("relhasrules", Values::Boolean(|row| row.kind == "v")),
            ("relhastriggers", Values::Boolean(|_| false)),
            ("relhassubclass", Values::Boolean(|_| false)),
            ("relrowsecurity", Values::Boolean(|_| false)),
            ("relforcerowsecurity", Values::Boolean(|_| false)),
            ("relispopulated", Values::Boolean(|_| true)),
            ("relreplident", Values::Text(|_| Some("d".into()))),
            ("relispartition", Values::Boolean(|_| false)),
            ("relrewrite", Values::Int(|_| Some(0))),
            ("relfrozenxid", Values::Int(|_| Some(0))),
            ("relminmxid", Values::Int(|_| Some(0))),
            ("relacl", Values::NoTexts),
            ("reloptions", Values::NoTexts),
            ("relpartbound", Values::Text(|_| None)),
        ],
    )
}

struct Attribute {
    relation: i32,
    name: String,
    number: i16,
    type_oid: i32,
    length: i16,
    modifier: i32,
    dimensions: i32,
    not_null: bool,
    has_default: bool,
}

fn attributes(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let mut rows = Vec::new();
    for object in shown(catalog) {
        let schema = schema(object);
        let attribute = |relation: i32, number: usize, column: usize| {
            let field = schema.fields().get(column)?;
            let (oid, modifier) = column_type(object, column, field.data_type());
            Some(Attribute {
                relation,
                name: field.name().clone(),
                number: small(number),
                type_oid: i32::try_from(oid).unwrap_or(0),
                length: type_length(oid),
                modifier,
                dimensions: i32::from(matches!(field.data_type(), DataType::List(_))),
                // Only tables promise it.
                not_null: object.kind == ObjectKind::Table && !field.is_nullable(),
                has_default: default_text(object, column).is_some(),
            })
        };
        let oid = relation_oid(object.id);
        rows.extend((0..schema.fields().len()).filter_map(|column| attribute(oid, column + 1, column)));
        for index in indexes_of(object) {
            let columns = index.columns.iter().enumerate();
            rows.extend(columns.filter_map(|(at, column)| attribute(index.oid, at + 1, *column)));
        }
    }
    for (relation, _, schema) in system_tables() {
        rows.extend(schema.fields().iter().enumerate().map(|(at, field)| {
            let oid = type_oid(field.data_type());
            Attribute {
                relation,
                name: field.name().clone(),
                number: small(at + 1),
                type_oid: i32::try_from(oid).unwrap_or(0),
                length: type_length(oid),
                modifier: -1,
                dimensions: 0,
                not_null: false,
                has_default: false,
            }
        }));
    }
    rows_table(
        &rows,
        &[
            ("attrelid", Values::Int(|row| Some(row.relation))),
            ("attname", Values::Text(|row| Some(row.name.clone()))),
            ("atttypid", Values::Int(|row| Some(row.type_oid))),
            ("attstattarget", Values::Int(|_| Some(-1))),
            ("attlen", Values::Small(|row| row.length)),
            ("attnum", Values::Small(|row| row.number)),
            ("attndims", Values::Int(|row| Some(row.dimensions))),
            ("attcacheoff", Values::Int(|_| Some(-1))),
            ("atttypmod", Values::Int(|row| Some(row.modifier))),
            ("attbyval", Values::Boolean(|row| (1..=8).contains(&row.length))),
            ("attalign", Values::Text(|_| Some("i".into()))),
            ("attstorage", Values::Text(|row| Some(if row.length < 0 { "x" } else { "p" }.into()))),
            ("attcompression", Values::Text(|_| Some(String::new()))),
            ("attnotnull", Values::Boolean(|row| row.not_null)),
            ("atthasdef", Values::Boolean(|row| row.has_default)),
            ("atthasmissing", Values::Boolean(|_| false)),
            ("attidentity", Values::Text(|_| Some(String::new()))),
            ("attgenerated", Values::Text(|_| Some(String::new()))),
            ("attisdropped", Values::Boolean(|_| false)),
            ("attislocal", Values::Boolean(|_| true)),
            ("attinhcount", Values::Int(|_| Some(0))),
            ("attcollation", Values::Int(|row| Some(if matches!(row.type_oid, 25 | 1043) { 100 } else { 0 }))),
            ("attacl", Values::NoTexts),
            ("attoptions", Values::NoTexts),
            ("attfdwoptions", Values::NoTexts),
            ("attmissingval", Values::Text(|_| None)),
        ],
    )
}

fn defaults(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let mut rows = Vec::new();
    for object in shown(catalog) {
        for column in 0..schema(object).fields().len() {
            if let Some(text) = default_text(object, column) {
                rows.push((relation_oid(object.id), small(column + 1), text));
            }
        }
    }
    rows_table(
        &rows,
        &[
            ("oid", Values::Int(|row| Some(row.0 ^ (i32::from(row.1) << 20)))),
            ("adrelid", Values::Int(|row| Some(row.0))),
            ("adnum", Values::Small(|row| row.1)),
            ("adbin", Values::Text(|row| Some(row.2.clone()))),
        ],
    )
}

fn namespaces(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let own = [PG_CATALOG, INFORMATION_SCHEMA, SYSTEM_SCHEMA];
    let rows: Vec<String> = catalog.schemas().chain(own).map(str::to_owned).collect();
    rows_table(
        &rows,
        &[
            ("oid", Values::Int(|name| Some(schema_oid(name)))),
            ("nspname", Values::Text(|name| Some(name.clone()))),
            ("nspowner", Values::Int(|_| Some(OWNER))),
            ("nspacl", Values::NoTexts),
            ("options", Values::NoTexts),
        ],
    )
}

/// Column numbers as PostgreSQL prints an `int2vector`.
fn vector(key: &[usize]) -> String {
    key.iter().map(|column| (column + 1).to_string()).collect::<Vec<_>>().join(" ")
}

fn keyed(catalog: &Catalog) -> Vec<&Arc<Object>> {
    shown(catalog).filter(|object| !declared_key(object).is_empty()).collect()
}

/// An index: that of a primary key, or one of its own.
struct IndexRow {
    oid: i32,
    name: String,
    object: Arc<Object>,
    columns: Vec<usize>,
    primary: bool,
}

fn indexes_of(object: &Arc<Object>) -> Vec<IndexRow> {
    let key = declared_key(object);
    let mut found = Vec::new();
    if !key.is_empty() {
        let oid = relation_oid(object.id) + INDEX_OID;
        let (name, columns) = (key_name(object), key.to_vec());
        found.push(IndexRow { oid, name, object: Arc::clone(object), columns, primary: true });
    }
    for (place, (index, columns)) in object.indexes.iter().zip(object.index_columns()).enumerate() {
        let (oid, name) = (secondary_oid(object.id, place), index.name.clone());
        found.push(IndexRow { oid, name, object: Arc::clone(object), columns, primary: false });
    }
    found
}

fn all_indexes(catalog: &Catalog) -> Vec<IndexRow> {
    shown(catalog).flat_map(indexes_of).collect()
}

/// True when a primary key's index has this name.
pub(crate) fn key_index_of(catalog: &Catalog, schema: &str, name: &str) -> bool {
    keyed(catalog).iter().any(|object| object.schema == schema && key_name(object) == name)
}

fn indexes(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &all_indexes(catalog),
        &[
            ("indexrelid", Values::Int(|index| Some(index.oid))),
            ("indrelid", Values::Int(|index| Some(relation_oid(index.object.id)))),
            ("indnatts", Values::Small(|index| small(index.columns.len()))),
            ("indnkeyatts", Values::Small(|index| small(index.columns.len()))),
            ("indisunique", Values::Boolean(|index| index.primary)),
            ("indnullsnotdistinct", Values::Boolean(|_| false)),
            ("indisprimary", Values::Boolean(|index| index.primary)),
            ("indisexclusion", Values::Boolean(|_| false)),
            ("indimmediate", Values::Boolean(|_| true)),
            ("indisclustered", Values::Boolean(|_| false)),
            ("indisvalid", Values::Boolean(|_| true)),
            ("indcheckxmin", Values::Boolean(|_| false)),
            ("indisready", Values::Boolean(|_| true)),
            ("indislive", Values::Boolean(|_| true)),
            ("indisreplident", Values::Boolean(|_| false)),
            ("indkey", Values::Text(|index| Some(vector(&index.columns)))),
            ("indcollation", Values::Text(|index| Some(vec!["0"; index.columns.len()].join(" ")))),
            ("indclass", Values::Text(|index| Some(vec!["0"; index.columns.len()].join(" ")))),
            ("indoption", Values::Text(|index| Some(vec!["0"; index.columns.len()].join(" ")))),
            ("indexprs", Values::Text(|_| None)),
            ("indpred", Values::Text(|_| None)),
        ],
    )
}

fn constraints(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &keyed(catalog),
        &[
            ("oid", Values::Int(|object| Some(relation_oid(object.id) + INDEX_OID))),
            ("conname", Values::Text(|object| Some(key_name(object)))),
            ("connamespace", Values::Int(|object| Some(schema_oid(&object.schema)))),
            ("contype", Values::Text(|_| Some("p".into()))),
            ("condeferrable", Values::Boolean(|_| false)),
            ("condeferred", Values::Boolean(|_| false)),
            ("convalidated", Values::Boolean(|_| true)),
            ("conrelid", Values::Int(|object| Some(relation_oid(object.id)))),
            ("contypid", Values::Int(|_| Some(0))),
            ("conindid", Values::Int(|object| Some(relation_oid(object.id) + INDEX_OID))),
            ("conparentid", Values::Int(|_| Some(0))),
            ("confrelid", Values::Int(|_| Some(0))),
            ("confupdtype", Values::Text(|_| Some(" ".into()))),
            ("confdeltype", Values::Text(|_| Some(" ".into()))),
            ("confmatchtype", Values::Text(|_| Some(" ".into()))),
            ("conislocal", Values::Boolean(|_| true)),
            ("coninhcount", Values::Int(|_| Some(0))),
            ("connoinherit", Values::Boolean(|_| true)),
            (
                "conkey",
                Values::Numbers(|object| Some(declared_key(object).iter().map(|column| small(column + 1)).collect())),
            ),
            ("confkey", Values::Numbers(|_| None)),
            ("conbin", Values::Text(|_| None)),
        ],
    )
}

fn tables(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let rows: Vec<&Arc<Object>> = shown(catalog).filter(|object| object.kind == ObjectKind::Table).collect();
    rows_table(
        &rows,
        &[
            ("schemaname", Values::Text(|object| Some(object.schema.clone()))),
            ("tablename", Values::Text(|object| Some(object.name.clone()))),
            ("tableowner", Values::Text(|_| Some("clink".into()))),
            ("tablespace", Values::Text(|_| None)),
            ("hasindexes", Values::Boolean(|object| !declared_key(object).is_empty() || !object.indexes.is_empty())),
            ("hasrules", Values::Boolean(|_| false)),
            ("hastriggers", Values::Boolean(|_| false)),
            ("rowsecurity", Values::Boolean(|_| false)),
        ],
    )
}

/// The query of a view's text.
pub(super) fn query_text(object: &Object) -> String {
    object
        .text
        .split_once(" AS\n")
        .or_else(|| object.text.split_once(" AS "))
        .map_or_else(|| object.text.clone(), |(_, query)| query.trim_end_matches(';').to_owned())
}

fn views(catalog: &Catalog, kind: ObjectKind) -> Result<Arc<dyn TableProvider>> {
    let rows: Vec<&Arc<Object>> = shown(catalog).filter(|object| object.kind == kind).collect();
    let name: (&str, &str) =
        if kind == ObjectKind::View { ("viewname", "viewowner") } else { ("matviewname", "matviewowner") };
    rows_table(
        &rows,
        &[
            ("schemaname", Values::Text(|object| Some(object.schema.clone()))),
            (name.0, Values::Text(|object| Some(object.name.clone()))),
            (name.1, Values::Text(|_| Some("clink".into()))),
            ("ispopulated", Values::Boolean(|_| true)),
            ("definition", Values::Text(|object| Some(query_text(object)))),
        ],
    )
}

fn index_views(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &all_indexes(catalog),
        &[
            ("schemaname", Values::Text(|index| Some(index.object.schema.clone()))),
            ("tablename", Values::Text(|index| Some(index.object.name.clone()))),
            ("indexname", Values::Text(|index| Some(index.name.clone()))),
            ("tablespace", Values::Text(|_| None)),
            ("indexdef", Values::Text(|index| Some(definition(index)))),
        ],
    )
}

/// The names of the primary key's columns.
pub(super) fn key_columns(object: &Object) -> String {
    column_names(object, declared_key(object))
}

fn column_names(object: &Object, columns: &[usize]) -> String {
    let schema = schema(object);
    let names = columns.iter().filter_map(|column| schema.fields().get(*column));
    names.map(|field| quote_ident(field.name())).collect::<Vec<_>>().join(", ")
}

/// `CREATE INDEX …` as PostgreSQL would say it, of the index with a number.
pub(super) fn index_definition(catalog: &Catalog, oid: i32) -> Option<String> {
    all_indexes(catalog).iter().find(|index| index.oid == oid).map(definition)
}

fn definition(index: &IndexRow) -> String {
    format!(
        "CREATE {}INDEX {} ON {}.{} USING btree ({})",
        if index.primary { "UNIQUE " } else { "" },
        quote_ident(&index.name),
        quote_ident(&index.object.schema),
        quote_ident(&index.object.name),
        column_names(&index.object, &index.columns)
    )
}
