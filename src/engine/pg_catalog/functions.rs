//! Functions that clients call over the tables of `pg_catalog`.

use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, BooleanArray, Int16Builder, Int32Array, ListBuilder, StringArray,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Signature, SimpleScalarUDF, TypeSignature, Volatility};
use datafusion_pg_catalog::pg_catalog as library;

use super::relations::{declared_key, index_definition, key_columns, query_text};
use super::{FIRST_OID, INDEX_OID, INDEXES_MAX, SECONDARY_OID};
use crate::catalog::{Catalog, CatalogStore, DEFAULT_SCHEMA, Definition, FunctionDefinition, Object};
use crate::engine::functions::parameters_text;
use crate::sql::sql_name;
use crate::types::{Error, RelationId, SqlState};

/// All of them, over the catalog as it is when they are called.
pub(crate) fn functions(catalog: &Arc<CatalogStore>) -> Vec<ScalarUDF> {
    let of = |name, answer| of_relation(name, catalog, answer);
    let mut functions = vec![
        library::create_current_schemas_udf(),
        table_is_visible(catalog),
        library::create_pg_get_partkeydef_udf(),
        library::create_pg_relation_is_publishable_udf(),
        library::create_pg_get_statisticsobjdef_columns_udf(),
        constant("pg_encoding_to_char", "UTF8".into()),
        library::create_pg_backend_pid_udf(),
        library::create_pg_relation_size_udf(),
        library::create_pg_total_relation_size_udf(),
        library::create_pg_stat_get_numscans(),
        library::create_pg_get_partition_ancestors_udf(),
        library::format_type::create_format_type_udf(),
        library::quote_ident_udf::create_quote_ident_udf(),
        library::quote_ident_udf::create_parse_ident_udf(),
        library::array_bounds_udf::create_array_upper_udf(),
        library::array_bounds_udf::create_array_lower_udf(),
        constant("pg_get_userbyid", "clink".into()),
        constant("pg_size_pretty", "0 bytes".into()),
        constant("pg_table_size", ScalarValue::Int32(Some(0))),
        of_name("to_regclass", catalog, |catalog, name| {
            named_relation(catalog, name).map(|object| super::relation_oid(object.id))
        }),
        relation_number(catalog),
        relation_name(catalog),
        constant("pg_tablespace_location", "".into()),
        of_name("to_regtype", catalog, |_, name| {
            crate::sql::type_by_name(name).and_then(|stored| i32::try_from(crate::types::type_oid(&stored)).ok())
        }),
        constant("pg_advisory_unlock_all", ScalarValue::Int32(None)),
        of("pg_get_constraintdef", |object| {
            (!declared_key(object).is_empty()).then(|| format!("PRIMARY KEY ({})", key_columns(object)))
        }),
        of_number("pg_get_indexdef", catalog, index_definition),
        of("pg_get_function_result", |object| of_function(object, |function| sql_name(&function.returns))),
        of("pg_get_function_arguments", |object| of_function(object, parameters_text)),
        of("pg_get_function_identity_arguments", |object| of_function(object, parameters_text)),
        of("pg_get_functiondef", |object| of_function(object, |_| object.text.clone())),
        of("pg_get_viewdef", |object| Some(query_text(object))),
        of_first("quote_literal", DataType::Utf8, |values| {
            let texts = crate::sql::cast_array(values, &DataType::Utf8).map_err(to_datafusion)?;
            let quoted = |text: &str| {
                let escaped = text.replace('\'', "''").replace('\\', "\\\\");
                if text.contains('\\') { format!(" E'{escaped}'") } else { format!("'{escaped}'") }
            };
            Ok(Arc::new(texts.as_string::<i32>().iter().map(|text| text.map(quoted)).collect::<StringArray>()))
        }),
        column_default(catalog),
        vector_numbers(),
        // Expressions are kept as they are written.
        of_first("pg_get_expr", DataType::Utf8, |texts| Ok(cast(texts, &DataType::Utf8)?)),
    ];
    // There are no comments, rules and triggers.
    for name in [
        "obj_description",
        "col_description",
        "shobj_description",
        "pg_get_ruledef",
        "pg_get_triggerdef",
        "pg_get_serial_sequence",
    ] {
        functions.push(constant(name, ScalarValue::Utf8(None)));
    }
    for name in [
        "has_table_privilege",
        "has_schema_privilege",
        "has_database_privilege",
        "has_column_privilege",
        "has_any_column_privilege",
        "has_function_privilege",
        "has_tablespace_privilege",
    ] {
        functions.push(library::has_privilege_udf::create_has_privilege_udf(name));
    }
    for name in [
        "pg_function_is_visible",
        "pg_type_is_visible",
        "pg_operator_is_visible",
        "pg_collation_is_visible",
        "pg_conversion_is_visible",
    ] {
        functions.push(constant(name, true.into()));
    }
    functions
}

fn of_function(object: &Object, text: impl Fn(&FunctionDefinition) -> String) -> Option<String> {
    match &object.definition {
        Definition::Function(function) => Some(text(function)),
        _ => None,
    }
}

fn to_datafusion(error: crate::types::Error) -> datafusion::error::DataFusionError {
    datafusion::error::DataFusionError::External(Box::new(error))
}

type Answer = dyn Fn(&[ColumnarValue]) -> DataFusionResult<ColumnarValue> + Send + Sync;

/// A function of any arguments, none too.
fn function(name: &str, returns: DataType, answer: Arc<Answer>) -> ScalarUDF {
    let signature = Signature::one_of(vec![TypeSignature::Nullary, TypeSignature::VariadicAny], Volatility::Stable);
    ScalarUDF::new_from_impl(SimpleScalarUDF::new_with_signature(name, signature, returns, answer))
}

/// The same for every row.
fn constant(name: &str, value: ScalarValue) -> ScalarUDF {
    function(name, value.data_type(), Arc::new(move |_| Ok(ColumnarValue::Scalar(value.clone()))))
}

/// A function of its first argument, once for a constant; NULL without one.
fn of_first(
    name: &str,
    returns: DataType,
    answer: impl Fn(&ArrayRef) -> DataFusionResult<ArrayRef> + Send + Sync + 'static,
) -> ScalarUDF {
    let null = ScalarValue::try_from(&returns);
    let of_arguments = move |arguments: &[ColumnarValue]| match arguments.first() {
        None => Ok(ColumnarValue::Scalar(null.as_ref().map_or(ScalarValue::Null, Clone::clone))),
        Some(ColumnarValue::Array(values)) => Ok(ColumnarValue::Array(answer(values)?)),
        Some(ColumnarValue::Scalar(value)) => {
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&answer(&value.to_array()?)?, 0)?))
        }
    };
    function(name, returns, Arc::new(of_arguments))
}

/// The relation that a text names as SQL would: folded unless quoted, with a schema or without.
fn named_relation<'a>(catalog: &'a Catalog, text: &str) -> Option<&'a Arc<Object>> {
    let (mut parts, mut quoted) = (vec![String::new()], false);
    for character in text.trim().chars() {
        match (character, parts.last_mut()) {
            ('"', _) => quoted = !quoted,
            ('.', _) if !quoted => parts.push(String::new()),
            (character, Some(part)) if quoted => part.push(character),
            (character, Some(part)) => part.extend(character.to_lowercase()),
            (_, None) => return None,
        }
    }
    match parts.as_slice() {
        [name] => catalog.find(None, name),
        [schema, name] => catalog.find(Some(schema.as_str()), name),
        _ => None,
    }
}

/// True for names of PostgreSQL's own relations, of which only some are here.
fn is_systems(name: &str) -> bool {
    ["pg_", "information_schema.", "clink_catalog."].iter().any(|prefix| name.starts_with(prefix))
}

fn no_relation(name: &str) -> datafusion::error::DataFusionError {
    let error = Error::new(SqlState::UndefinedTable, format!("relation \"{name}\" does not exist"));
    to_datafusion(error.hint("SHOW TABLES and SHOW VIEWS list what is there."))
}

/// `pg_regclass(name)`: `name::regclass` as a number.
fn relation_number(catalog: &Arc<CatalogStore>) -> ScalarUDF {
    let catalog = Arc::clone(catalog);
    of_first("pg_regclass", DataType::Int32, move |names| {
        let names = cast(names, &DataType::Utf8)?;
        let catalog = catalog.current();
        let number = |name: &str| match named_relation(&catalog, name) {
            Some(object) => Ok(Some(super::relation_oid(object.id))),
            None if is_systems(name) => Ok(None),
            None => Err(no_relation(name)),
        };
        let numbers = names.as_string::<i32>().iter().map(|name| name.map_or(Ok(None), number));
        Ok(Arc::new(numbers.collect::<DataFusionResult<Int32Array>>()?))
    })
}

/// `pg_regclass_name(name)`: the same as it is shown.
fn relation_name(catalog: &Arc<CatalogStore>) -> ScalarUDF {
    let catalog = Arc::clone(catalog);
    of_first("pg_regclass_name", DataType::Utf8, move |names| {
        let names = cast(names, &DataType::Utf8)?;
        let catalog = catalog.current();
        let shown = |name: &str| match named_relation(&catalog, name) {
            Some(object) if object.schema == DEFAULT_SCHEMA => Ok(Some(crate::sql::quoted_name(&object.name))),
            Some(object) => Ok(Some(object.qualified_name())),
            None if is_systems(name) => Ok(Some(name.strip_prefix("pg_catalog.").unwrap_or(name).to_owned())),
            None => Err(no_relation(name)),
        };
        let texts = names.as_string::<i32>().iter().map(|name| name.map_or(Ok(None), shown));
        Ok(Arc::new(texts.collect::<DataFusionResult<StringArray>>()?))
    })
}

/// A number for a name; NULL for others.
fn of_name(name: &str, catalog: &Arc<CatalogStore>, answer: fn(&Catalog, &str) -> Option<i32>) -> ScalarUDF {
    let catalog = Arc::clone(catalog);
    of_first(name, DataType::Int32, move |names| {
        let names = cast(names, &DataType::Utf8)?;
        let catalog = catalog.current();
        let numbers: Int32Array = names.as_string::<i32>().iter().map(|name| answer(&catalog, name?)).collect();
        Ok(Arc::new(numbers))
    })
}

/// `pg_column_default(relation, column)`: what stands in `pg_attrdef`.
fn column_default(catalog: &Arc<CatalogStore>) -> ScalarUDF {
    let catalog = Arc::clone(catalog);
    let answer = move |arguments: &[ColumnarValue]| {
        let constant = arguments.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(arguments)?;
        let [relations, columns] = arrays.as_slice() else { return Ok(ColumnarValue::Scalar(ScalarValue::Utf8(None))) };
        let (relations, columns) = (cast(relations, &DataType::Int32)?, cast(columns, &DataType::Int32)?);
        let catalog = catalog.current();
        let places = relations.as_primitive::<Int32Type>().iter().zip(columns.as_primitive::<Int32Type>());
        let texts: StringArray = places
            .map(|(oid, number)| {
                let column = usize::try_from(number?).ok()?.checked_sub(1)?;
                super::relations::default_text(relation(&catalog, oid?)?, column)
            })
            .collect();
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&texts, 0)?));
        }
        Ok(ColumnarValue::Array(Arc::new(texts)))
    };
    function("pg_column_default", DataType::Utf8, Arc::new(answer))
}

/// `pg_vector_numbers(vector)`: the numbers of an `int2vector` as an array.
fn vector_numbers() -> ScalarUDF {
    let list = DataType::List(Arc::new(Field::new_list_field(DataType::Int16, true)));
    of_first("pg_vector_numbers", list, |vectors| {
        let vectors = cast(vectors, &DataType::Utf8)?;
        let mut builder = ListBuilder::new(Int16Builder::new());
        for vector in vectors.as_string::<i32>() {
            let numbers = |text: &str| text.split(' ').map(|number| number.parse().ok()).collect::<Vec<Option<i16>>>();
            builder.append_option(vector.map(numbers));
        }
        Ok(Arc::new(builder.finish()))
    })
}

/// The relation with a number of `pg_class`, or one of whose indexes has it.
fn relation(catalog: &Catalog, oid: i32) -> Option<&Arc<Object>> {
    if oid >= SECONDARY_OID {
        let number = u64::try_from(oid - SECONDARY_OID).ok()?;
        return catalog.get(RelationId(number / INDEXES_MAX as u64));
    }
    let relation = if oid >= INDEX_OID { oid - INDEX_OID } else { oid };
    catalog.get(RelationId(u64::try_from(relation).ok()?.checked_sub(FIRST_OID)?))
}

/// A text about the relation whose number is the first argument; NULL for what is no number.
fn of_relation(name: &str, catalog: &Arc<CatalogStore>, answer: fn(&Object) -> Option<String>) -> ScalarUDF {
    of_number(name, catalog, move |catalog, oid| answer(relation(catalog, oid)?))
}

/// The same about whatever has the number.
fn of_number(
    name: &str,
    catalog: &Arc<CatalogStore>,
    answer: impl Fn(&Catalog, i32) -> Option<String> + Send + Sync + 'static,
) -> ScalarUDF {
    let catalog = Arc::clone(catalog);
    of_first(name, DataType::Utf8, move |oids| {
        let Ok(oids) = cast(oids, &DataType::Int32) else { return Ok(Arc::new(StringArray::new_null(oids.len()))) };
        let catalog = catalog.current();
        let oids = oids.as_primitive::<Int32Type>().iter();
        let texts: StringArray = oids.map(|oid| answer(&catalog, oid?)).collect();
        Ok(Arc::new(texts))
    })
}

/// `pg_table_is_visible(oid)`: true for what needs no schema in front.
fn table_is_visible(catalog: &Arc<CatalogStore>) -> ScalarUDF {
    let catalog = Arc::clone(catalog);
    of_first("pg_table_is_visible", DataType::Boolean, move |oids| {
        let oids = cast(oids, &DataType::Int32)?;
        let catalog = catalog.current();
        // What is not ours is PostgreSQL's own.
        let is_visible = |oid| relation(&catalog, oid).is_none_or(|object| object.schema == DEFAULT_SCHEMA);
        let visible: BooleanArray = oids.as_primitive::<Int32Type>().iter().map(|oid| oid.map(is_visible)).collect();
        Ok(Arc::new(visible))
    })
}
