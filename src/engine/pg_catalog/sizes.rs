//! How many bytes relations have, and how PostgreSQL shows numbers of bytes.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray as _, Int64Array, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type, Int64Type};
use datafusion::logical_expr::ScalarUDF;

use super::functions::{of_first, relation};
use crate::catalog::CatalogStore;
use crate::types::RelationId;

/// The bytes of a relation's state.
pub(crate) type Sizes = Arc<dyn Fn(RelationId) -> u64 + Send + Sync>;

pub(super) fn functions(catalog: &Arc<CatalogStore>, sizes: &Sizes) -> Vec<ScalarUDF> {
    let of_relation = |name: &'static str, sizes: Option<&Sizes>| {
        let (catalog, sizes) = (Arc::clone(catalog), sizes.map(Arc::clone));
        of_first(name, DataType::Int64, move |oids| {
            let oids = cast(oids, &DataType::Int32)?;
            let catalog = catalog.current();
            let bytes = |oid| {
                let object = relation(&catalog, oid)?;
                Some(sizes.as_ref().map_or(0, |sizes| number(sizes(object.id))))
            };
            let bytes: Int64Array = oids.as_primitive::<Int32Type>().iter().map(|oid| bytes(oid?)).collect();
            Ok(Arc::new(bytes) as ArrayRef)
        })
    };
    // What there is of one database in one place.
    let of_all = |name: &'static str| {
        let (catalog, sizes) = (Arc::clone(catalog), Arc::clone(sizes));
        of_first(name, DataType::Int64, move |names| {
            let all = catalog.current().objects().map(|object| sizes(object.id)).sum();
            Ok(Arc::new(Int64Array::from(vec![number(all); names.len()])))
        })
    };
    vec![
        of_relation("pg_table_size", Some(sizes)),
        of_relation("pg_relation_size", Some(sizes)),
        of_relation("pg_total_relation_size", Some(sizes)),
        // Indexes are part of their relation's state.
        of_relation("pg_indexes_size", None),
        of_all("pg_database_size"),
        of_all("pg_tablespace_size"),
        of_first("pg_size_pretty", DataType::Utf8, |bytes| {
            let bytes = cast(bytes, &DataType::Int64)?;
            let texts: StringArray = bytes.as_primitive::<Int64Type>().iter().map(|bytes| bytes.map(pretty)).collect();
            Ok(Arc::new(texts))
        }),
    ]
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// In the largest unit with at least two digits, halves away from zero.
fn pretty(bytes: i64) -> String {
    if bytes.unsigned_abs() < 10 * 1024 {
        return format!("{bytes} bytes");
    }
    // Twice the size, so that it can be rounded.
    let mut twice = bytes / (1 << 9);
    let units = ["kB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    while twice.unsigned_abs() >= 20 * 1024 - 1 && unit + 1 < units.len() {
        twice /= 1 << 10;
        unit += 1;
    }
    format!("{} {}", (twice + twice.signum()) / 2, units.get(unit).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_in_postgresql() {
        for (bytes, wanted) in [
            (0, "0 bytes"),
            (10_239, "10239 bytes"),
            (10_240, "10 kB"),
            (1_234_567, "1206 kB"),
            (10_484_735, "10239 kB"),
            (10_485_247, "10239 kB"),
            (10_485_248, "10 MB"),
            (-1_234_567_890, "-1177 MB"),
            (i64::MAX, "8192 PB"),
        ] {
            assert_eq!(pretty(bytes), wanted, "{bytes}");
        }
    }
}
