//! The tables of `pg_catalog` that tell of the server: its one database and its one role.

use std::sync::Arc;

use datafusion::catalog::TableProvider;

use super::relations::OWNER;
use super::rows::{Values, table as rows_table};
use crate::types::Result;

/// Nothing is in these tables.
const EMPTY: &[(&str, &[&str])] = &[
    ("pg_stat_activity", &["datname", "usename", "application_name", "state", "query"]),
    ("pg_prepared_statements", &["name", "statement"]),
    ("pg_cursors", &["name", "statement"]),
    ("pg_locks", &["locktype", "mode"]),
    ("pg_policies", &["schemaname", "tablename", "policyname"]),
    ("pg_rules", &["schemaname", "tablename", "rulename", "definition"]),
    ("pg_sequences", &["schemaname", "sequencename", "sequenceowner"]),
    ("pg_timezone_names", &["name", "abbrev"]),
    ("pg_available_extensions", &["name", "default_version", "installed_version", "comment"]),
    ("pg_shadow", &["usename"]),
    ("pg_group", &["groname"]),
];

pub(super) fn table(name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    Ok(Some(match name {
        "pg_database" => database()?,
        "pg_roles" | "pg_authid" => roles()?,
        "pg_user" => users()?,
        "pg_tablespace" => tablespaces()?,
        "pg_description" | "pg_shdescription" => descriptions()?,
        "pg_statistic_ext" => statistics()?,
        "pg_db_role_setting" => role_settings()?,
        "pg_parameter_acl" => parameter_privileges()?,
        "pg_user_mappings" => user_mappings()?,
        name => match EMPTY.iter().find(|(table, _)| *table == name) {
            Some((_, columns)) => {
                let columns: Vec<_> = columns.iter().map(|column| (*column, Values::Text(|(): &()| None))).collect();
                rows_table::<()>(&[], &columns)?
            }
            None => return Ok(None),
        },
    }))
}

fn database() -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &[()],
        &[
            ("oid", Values::Int(|()| Some(5))),
            ("datname", Values::Text(|()| Some("clink".into()))),
            ("datdba", Values::Int(|()| Some(OWNER))),
            ("encoding", Values::Int(|()| Some(6))),
            ("datlocprovider", Values::Text(|()| Some("c".into()))),
            ("datistemplate", Values::Boolean(|()| false)),
            ("datallowconn", Values::Boolean(|()| true)),
            ("datconnlimit", Values::Int(|()| Some(-1))),
            ("datfrozenxid", Values::Int(|()| Some(0))),
            ("datminmxid", Values::Int(|()| Some(0))),
            ("dattablespace", Values::Int(|()| Some(1663))),
            ("datcollate", Values::Text(|()| Some("C".into()))),
            ("datctype", Values::Text(|()| Some("C".into()))),
            ("daticulocale", Values::Text(|()| None)),
            ("daticurules", Values::Text(|()| None)),
            ("datcollversion", Values::Text(|()| None)),
            ("datacl", Values::NoTexts),
        ],
    )
}

fn roles() -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &[()],
        &[
            ("oid", Values::Int(|()| Some(OWNER))),
            ("rolname", Values::Text(|()| Some("clink".into()))),
            ("rolsuper", Values::Boolean(|()| true)),
            ("rolinherit", Values::Boolean(|()| true)),
            ("rolcreaterole", Values::Boolean(|()| false)),
            ("rolcreatedb", Values::Boolean(|()| false)),
            ("rolcanlogin", Values::Boolean(|()| true)),
            ("rolreplication", Values::Boolean(|()| false)),
            ("rolconnlimit", Values::Int(|()| Some(-1))),
            ("rolpassword", Values::Text(|()| None)),
            ("rolvaliduntil", Values::Text(|()| None)),
            ("rolbypassrls", Values::Boolean(|()| true)),
            ("rolconfig", Values::NoTexts),
        ],
    )
}

fn users() -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &[()],
        &[
            ("usename", Values::Text(|()| Some("clink".into()))),
            ("usesysid", Values::Int(|()| Some(OWNER))),
            ("usecreatedb", Values::Boolean(|()| false)),
            ("usesuper", Values::Boolean(|()| true)),
            ("userepl", Values::Boolean(|()| false)),
            ("usebypassrls", Values::Boolean(|()| true)),
            ("passwd", Values::Text(|()| None)),
            ("valuntil", Values::Text(|()| None)),
            ("useconfig", Values::NoTexts),
        ],
    )
}

fn tablespaces() -> Result<Arc<dyn TableProvider>> {
    rows_table(
        &[()],
        &[
            ("oid", Values::Int(|()| Some(1663))),
            ("spcname", Values::Text(|()| Some("pg_default".into()))),
            ("spcowner", Values::Int(|()| Some(OWNER))),
            ("spcacl", Values::NoTexts),
            ("spcoptions", Values::NoTexts),
        ],
    )
}

fn statistics() -> Result<Arc<dyn TableProvider>> {
    rows_table::<()>(
        &[],
        &[
            ("oid", Values::Int(|()| None)),
            ("stxrelid", Values::Int(|()| None)),
            ("stxname", Values::Text(|()| None)),
            ("stxnamespace", Values::Int(|()| None)),
            ("stxowner", Values::Int(|()| None)),
            ("stxstattarget", Values::Int(|()| None)),
            ("stxkeys", Values::Numbers(|()| None)),
            ("stxkind", Values::NoTexts),
        ],
    )
}

fn role_settings() -> Result<Arc<dyn TableProvider>> {
    rows_table::<()>(
        &[],
        &[("setdatabase", Values::Int(|()| None)), ("setrole", Values::Int(|()| None)), ("setconfig", Values::NoTexts)],
    )
}

fn parameter_privileges() -> Result<Arc<dyn TableProvider>> {
    rows_table::<()>(
        &[],
        &[("oid", Values::Int(|()| None)), ("parname", Values::Text(|()| None)), ("paracl", Values::NoTexts)],
    )
}

fn user_mappings() -> Result<Arc<dyn TableProvider>> {
    rows_table::<()>(
        &[],
        &[
            ("umid", Values::Int(|()| None)),
            ("srvid", Values::Int(|()| None)),
            ("srvname", Values::Text(|()| None)),
            ("umuser", Values::Int(|()| None)),
            ("usename", Values::Text(|()| None)),
            ("umoptions", Values::NoTexts),
        ],
    )
}

fn descriptions() -> Result<Arc<dyn TableProvider>> {
    rows_table::<()>(
        &[],
        &[
            ("objoid", Values::Int(|()| None)),
            ("classoid", Values::Int(|()| None)),
            ("objsubid", Values::Int(|()| None)),
            ("description", Values::Text(|()| None)),
        ],
    )
}
