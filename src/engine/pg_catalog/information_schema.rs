//! The views of `information_schema`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::catalog::TableProvider;

use super::relations::{column_type, declared_key, default_text, key_name, length_max, query_text, schema, shown};
use super::rows::{Values, table as rows_table};
use crate::catalog::{Catalog, Object, ObjectKind};
use crate::engine::relations::DATABASE;
use crate::sql::sql_name;
use crate::types::Result;

pub(super) fn table(catalog: &Catalog, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    Ok(Some(match name {
        "tables" => tables(catalog)?,
        "columns" => columns(catalog)?,
        "schemata" => schemata(catalog)?,
        "views" => views(catalog)?,
        "table_constraints" => constraints(catalog)?,
        "key_column_usage" => key_columns(catalog)?,
        "information_schema_catalog_name" => {
            rows_table(&[()], &[("catalog_name", Values::Text(|()| Some(DATABASE.into())))])?
        }
        name => match EMPTY.iter().find(|(view, _)| *view == name) {
            Some((_, columns)) => {
                let columns: Vec<_> = columns.iter().map(|column| (*column, Values::Text(|(): &()| None))).collect();
                rows_table::<()>(&[], &columns)?
            }
            None => return Ok(None),
        },
    }))
}

/// Nothing is in these views.
const EMPTY: &[(&str, &[&str])] = &[
    ("routines", &["specific_schema", "specific_name", "routine_schema", "routine_name", "routine_type", "data_type"]),
    ("sequences", &["sequence_catalog", "sequence_schema", "sequence_name", "data_type"]),
    ("triggers", &["trigger_schema", "trigger_name", "event_object_table"]),
    (
        "referential_constraints",
        &["constraint_schema", "constraint_name", "unique_constraint_schema", "unique_constraint_name"],
    ),
    ("check_constraints", &["constraint_schema", "constraint_name", "check_clause"]),
    ("constraint_column_usage", &["table_schema", "table_name", "column_name", "constraint_schema", "constraint_name"]),
    ("role_table_grants", &["grantor", "grantee", "table_schema", "table_name", "privilege_type"]),
    ("table_privileges", &["grantor", "grantee", "table_schema", "table_name", "privilege_type"]),
];

fn all(catalog: &Catalog) -> Vec<&Arc<Object>> {
    shown(catalog).collect()
}

fn tables(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &all(catalog),
        &[
            ("table_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("table_schema", Values::Text(|object| Some(object.schema.clone()))),
            ("table_name", Values::Text(|object| Some(object.name.clone()))),
            (
                "table_type",
                Values::Text(|object| {
                    Some(
                        match object.kind {
                            ObjectKind::Table if object.is_external() => "FOREIGN",
                            ObjectKind::Table => "BASE TABLE",
                            ObjectKind::View | ObjectKind::Errors | ObjectKind::Late => "VIEW",
                            ObjectKind::MaterializedView | ObjectKind::Sink | ObjectKind::Function => {
                                "MATERIALIZED VIEW"
                            }
                        }
                        .into(),
                    )
                }),
            ),
            (
                "is_insertable_into",
                Values::Text(|object| {
                    let takes = object.kind == ObjectKind::Table && !object.is_external();
                    Some(if takes { "YES" } else { "NO" }.into())
                }),
            ),
        ],
    )
}

struct ColumnRow {
    object: Arc<Object>,
    index: usize,
    name: String,
    data_type: DataType,
    nullable: bool,
}

impl ColumnRow {
    fn precision(&self) -> Option<(i32, i32, i32)> {
        Some(match &self.data_type {
            DataType::Int16 => (16, 2, 0),
            DataType::Int32 => (32, 2, 0),
            DataType::Int64 => (64, 2, 0),
            DataType::Float32 => (24, 2, -1),
            DataType::Float64 => (53, 2, -1),
            DataType::Decimal128(precision, scale) if crate::types::type_modifier(&self.data_type) >= 0 => {
                (i32::from(*precision), 10, i32::from(*scale))
            }
            _ => return None,
        })
    }
}

/// The standard's name of a type.
fn standard_name(row: &ColumnRow) -> String {
    match &row.data_type {
        DataType::Utf8 if length_max(&row.object, row.index).is_some() => "character varying".into(),
        DataType::List(_) => "ARRAY".into(),
        DataType::Decimal128(..) => "numeric".into(),
        DataType::Timestamp(_, None) => "timestamp without time zone".into(),
        DataType::Timestamp(_, Some(_)) => "timestamp with time zone".into(),
        DataType::Time64(_) => "time without time zone".into(),
        other => sql_name(other),
    }
}

/// The name in `pg_type`.
fn type_name(row: &ColumnRow) -> &'static str {
    match column_type(&row.object, row.index, &row.data_type).0 {
        16 => "bool",
        17 => "bytea",
        20 => "int8",
        21 => "int2",
        23 => "int4",
        700 => "float4",
        701 => "float8",
        1043 => "varchar",
        1082 => "date",
        1083 => "time",
        1114 => "timestamp",
        1184 => "timestamptz",
        1186 => "interval",
        1700 => "numeric",
        2950 => "uuid",
        2249 => "record",
        3802 => "jsonb",
        1000 => "_bool",
        1005 => "_int2",
        1007 => "_int4",
        1016 => "_int8",
        1009 => "_text",
        1021 => "_float4",
        1022 => "_float8",
        1231 => "_numeric",
        1182 => "_date",
        1115 => "_timestamp",
        1185 => "_timestamptz",
        2951 => "_uuid",
        _ => "text",
    }
}

fn columns(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let mut rows = Vec::new();
    for object in shown(catalog) {
        for (index, field) in schema(object).fields().iter().enumerate() {
            rows.push(ColumnRow {
                object: Arc::clone(object),
                index,
                name: field.name().clone(),
                data_type: field.data_type().clone(),
                nullable: object.kind != ObjectKind::Table || field.is_nullable(),
            });
        }
    }
    rows_table(
        &rows,
        &[
            ("table_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("table_schema", Values::Text(|row| Some(row.object.schema.clone()))),
            ("table_name", Values::Text(|row| Some(row.object.name.clone()))),
            ("column_name", Values::Text(|row| Some(row.name.clone()))),
            ("ordinal_position", Values::Int(|row| i32::try_from(row.index + 1).ok())),
            ("column_default", Values::Text(|row| default_text(&row.object, row.index))),
            ("is_nullable", Values::Text(|row| Some(if row.nullable { "YES" } else { "NO" }.into()))),
            ("data_type", Values::Text(|row| Some(standard_name(row)))),
            (
                "character_maximum_length",
                Values::Int(|row| length_max(&row.object, row.index).and_then(|length| i32::try_from(length).ok())),
            ),
            ("numeric_precision", Values::Int(|row| row.precision().map(|(precision, _, _)| precision))),
            ("numeric_precision_radix", Values::Int(|row| row.precision().map(|(_, radix, _)| radix))),
            (
                "numeric_scale",
                Values::Int(|row| row.precision().map(|(_, _, scale)| scale).filter(|scale| *scale >= 0)),
            ),
            (
                "datetime_precision",
                Values::Int(|row| {
                    let timed = matches!(row.data_type, DataType::Timestamp(..) | DataType::Time64(_));
                    timed.then_some(6)
                }),
            ),
            ("udt_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("udt_schema", Values::Text(|_| Some("pg_catalog".into()))),
            ("udt_name", Values::Text(|row| Some(type_name(row).into()))),
            ("is_identity", Values::Text(|_| Some("NO".into()))),
            ("is_generated", Values::Text(|_| Some("NEVER".into()))),
            (
                "is_updatable",
                Values::Text(|row| Some(if row.object.kind == ObjectKind::Table { "YES" } else { "NO" }.into())),
            ),
        ],
    )
}

fn schemata(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let own = ["pg_catalog", "information_schema", crate::engine::system_tables::SCHEMA];
    let rows: Vec<String> = catalog.schemas().chain(own).map(str::to_owned).collect();
    rows_table(
        &rows,
        &[
            ("catalog_name", Values::Text(|_| Some(DATABASE.into()))),
            ("schema_name", Values::Text(|name| Some(name.clone()))),
            ("schema_owner", Values::Text(|_| Some("clink".into()))),
        ],
    )
}

fn views(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let rows: Vec<&Arc<Object>> = shown(catalog).filter(|object| object.kind == ObjectKind::View).collect();
    rows_table(
        &rows,
        &[
            ("table_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("table_schema", Values::Text(|object| Some(object.schema.clone()))),
            ("table_name", Values::Text(|object| Some(object.name.clone()))),
            ("view_definition", Values::Text(|object| Some(query_text(object)))),
            ("check_option", Values::Text(|_| Some("NONE".into()))),
            ("is_updatable", Values::Text(|_| Some("NO".into()))),
            ("is_insertable_into", Values::Text(|_| Some("NO".into()))),
        ],
    )
}

fn constraints(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let rows: Vec<&Arc<Object>> = shown(catalog).filter(|object| !declared_key(object).is_empty()).collect();
    rows_table(
        &rows,
        &[
            ("constraint_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("constraint_schema", Values::Text(|object| Some(object.schema.clone()))),
            ("constraint_name", Values::Text(|object| Some(key_name(object)))),
            ("table_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("table_schema", Values::Text(|object| Some(object.schema.clone()))),
            ("table_name", Values::Text(|object| Some(object.name.clone()))),
            ("constraint_type", Values::Text(|_| Some("PRIMARY KEY".into()))),
            ("is_deferrable", Values::Text(|_| Some("NO".into()))),
            ("initially_deferred", Values::Text(|_| Some("NO".into()))),
            ("enforced", Values::Text(|_| Some("YES".into()))),
        ],
    )
}

fn key_columns(catalog: &Catalog) -> Result<Arc<dyn TableProvider>> {
    let mut rows = Vec::new();
    for object in shown(catalog) {
        let schema = schema(object);
        for (at, column) in declared_key(object).iter().enumerate() {
            if let Some(field) = schema.fields().get(*column) {
                rows.push((Arc::clone(object), at, field.name().clone()));
            }
        }
    }
    rows_table(
        &rows,
        &[
            ("constraint_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("constraint_schema", Values::Text(|row| Some(row.0.schema.clone()))),
            ("constraint_name", Values::Text(|row| Some(key_name(&row.0)))),
            ("table_catalog", Values::Text(|_| Some(DATABASE.into()))),
            ("table_schema", Values::Text(|row| Some(row.0.schema.clone()))),
            ("table_name", Values::Text(|row| Some(row.0.name.clone()))),
            ("column_name", Values::Text(|row| Some(row.2.clone()))),
            ("ordinal_position", Values::Int(|row| i32::try_from(row.1 + 1).ok())),
            ("position_in_unique_constraint", Values::Int(|_| None)),
        ],
    )
}
