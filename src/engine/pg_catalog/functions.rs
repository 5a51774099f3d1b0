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

use super::built_in::built_in;
use super::relations::{declared_key, index_definition, key_columns, query_text};
use super::sizes::Sizes;
use super::{FIRST_OID, INDEX_OID, INDEXES_MAX, SECONDARY_OID};
use crate::catalog::{Catalog, CatalogStore, DEFAULT_SCHEMA, Definition, FunctionDefinition, Object};
use crate::engine::functions::parameters_text;
use crate::sql::sql_name;
use crate::types::{Error, RelationId, SqlState};

/// All of them, over the catalog as it is when they are called.
pub(crate) fn functions(catalog: &Arc<CatalogStore>, sizes: &Sizes) -> Vec<ScalarUDF> {
    let of = |name, answer| of_relation(name, catalog, answer);
    let mut functions = vec![
        library::create_current_schemas_udf(),
        table_is_visible(catalog),
        library::create_pg_get_partkeydef_udf(),
        library::create_pg_relation_is_publishable_udf(),
        library::create_pg_get_statisticsobjdef_columns_udf(),
        constant("pg_encoding_to_char", "UTF8".into()),
        constant("getdatabaseencoding", "UTF8".into()),
        constant("pg_char_to_encoding", ScalarValue::Int32(Some(6))),
        library::create_pg_backend_pid_udf(),
        library::create_pg_stat_get_numscans(),
        library::create_pg_get_partition_ancestors_udf(),
        of_pair("format_type", |oid, modifier| Some(built_in().type_name(oid, modifier))),
        library::quote_ident_udf::create_parse_ident_udf(),
        library::array_bounds_udf::create_array_upper_udf(),
        library::array_bounds_udf::create_array_lower_udf(),
        constant("pg_get_userbyid", "clink".into()),
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
        of_number("pg_get_function_result", catalog, |catalog, oid| {
            let own = relation(catalog, oid).and_then(|object| of_function(object, |own| sql_name(&own.returns)));
            own.or_else(|| built_in().result(oid))
        }),
        function_arguments("pg_get_function_arguments", catalog, true),
        function_arguments("pg_get_function_identity_arguments", catalog, false),
        of("pg_get_functiondef", |object| of_function(object, |_| object.text.clone())),
        of("pg_get_function_sqlbody", |_| None),
        of_names("pg_regproc", catalog, function_number),
        of("pg_get_viewdef", |object| Some(query_text(object))),
        {
            let catalog = Arc::clone(catalog);
            // What stands in `pg_attrdef`.
            of_pair("pg_column_default", move |oid, number| {
                let column = usize::try_from(number?).ok()?.checked_sub(1)?;
                super::relations::default_text(relation(&catalog.current(), oid)?, column)
            })
        },
        vector_numbers(),
        // Expressions are kept as they are written.
        of_first("pg_get_expr", DataType::Utf8, |texts| Ok(cast(texts, &DataType::Utf8)?)),
    ];
    functions.extend(super::sizes::functions(catalog, sizes));
    // There are no comments, rules and triggers.
    for name in [
        "obj_description",
        "col_description",
        "shobj_description",
        "pg_get_ruledef",
        "pg_get_triggerdef",
        "pg_get_serial_sequence",
        "pg_describe_object",
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
        "pg_opclass_is_visible",
        "pg_opfamily_is_visible",
        "pg_statistics_obj_is_visible",
        "pg_ts_config_is_visible",
        "pg_ts_dict_is_visible",
        "pg_ts_parser_is_visible",
        "pg_ts_template_is_visible",
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
pub(super) fn of_first(
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

/// The parts of a name as SQL reads it: folded unless quoted, with a schema or without.
fn name_parts(text: &str) -> Vec<String> {
    let (mut parts, mut quoted) = (vec![String::new()], false);
    for character in text.trim().chars() {
        match (character, parts.last_mut()) {
            ('"', _) => quoted = !quoted,
            ('.', _) if !quoted => parts.push(String::new()),
            (character, Some(part)) if quoted => part.push(character),
            (character, Some(part)) => part.push(character.to_ascii_lowercase()),
            (_, None) => {}
        }
    }
    parts
}

/// The relation that a text names.
fn named_relation<'a>(catalog: &'a Catalog, text: &str) -> Option<&'a Arc<Object>> {
    match name_parts(text).as_slice() {
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

/// A number for a name, or an error.
fn of_names(name: &str, catalog: &Arc<CatalogStore>, answer: fn(&Catalog, &str) -> DataFusionResult<i32>) -> ScalarUDF {
    let catalog = Arc::clone(catalog);
    of_first(name, DataType::Int32, move |names| {
        let names = cast(names, &DataType::Utf8)?;
        let catalog = catalog.current();
        let numbers = names.as_string::<i32>().iter().map(|name| name.map(|name| answer(&catalog, name)).transpose());
        Ok(Arc::new(numbers.collect::<DataFusionResult<Int32Array>>()?))
    })
}

/// A text about a number and a second one, which may be NULL.
fn of_pair(name: &str, answer: impl Fn(i32, Option<i32>) -> Option<String> + Send + Sync + 'static) -> ScalarUDF {
    let of_arguments = move |arguments: &[ColumnarValue]| {
        let constant = arguments.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(arguments)?;
        let [first, second] = arrays.as_slice() else { return Ok(ColumnarValue::Scalar(ScalarValue::Utf8(None))) };
        let (first, second) = (cast(first, &DataType::Int32)?, cast(second, &DataType::Int32)?);
        let pairs = first.as_primitive::<Int32Type>().iter().zip(second.as_primitive::<Int32Type>());
        let texts: StringArray = pairs.map(|(first, second)| answer(first?, second)).collect();
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&texts, 0)?));
        }
        Ok(ColumnarValue::Array(Arc::new(texts)))
    };
    function(name, DataType::Utf8, Arc::new(of_arguments))
}

/// The parameters of a function; with `all`, those too by which it gives something.
fn function_arguments(name: &str, catalog: &Arc<CatalogStore>, all: bool) -> ScalarUDF {
    of_number(name, catalog, move |catalog, oid| {
        let own = relation(catalog, oid).and_then(|object| of_function(object, parameters_text));
        own.or_else(|| built_in().arguments(oid, all))
    })
}

/// `name::regproc` and `name(…)::regprocedure` as numbers.
///
/// # Errors
/// 42883 when there is no such function, 42725 when there are several.
fn function_number(catalog: &Catalog, text: &str) -> DataFusionResult<i32> {
    let (name, arguments) = match text.split_once('(') {
        Some((name, arguments)) => (name, Some(arguments.trim_end().trim_end_matches(')'))),
        None => (text, None),
    };
    let parts = name_parts(name);
    let own = match parts.as_slice() {
        [name] => catalog.find_function(None, name),
        [schema, name] => catalog.find_function(Some(schema.as_str()), name),
        _ => None,
    };
    if let Some(object) = own {
        return Ok(super::relation_oid(object.id));
    }
    let system = parts.len() == 1 || parts.first().is_some_and(|schema| schema == super::PG_CATALOG);
    let named = parts.last().filter(|_| system).map(|name| built_in().named(name)).unwrap_or_default();
    let bare = |types: &str| types.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let fits = |oid: &&i32| {
        arguments.is_none_or(|wanted| built_in().arguments(**oid, false).is_some_and(|own| bare(&own) == bare(wanted)))
    };
    let found: Vec<&i32> = named.iter().filter(fits).collect();
    match found.as_slice() {
        [oid] => Ok(**oid),
        [] => Err(to_datafusion(
            Error::new(SqlState::UndefinedFunction, format!("function \"{text}\" does not exist"))
                .hint("SHOW FUNCTIONS lists those that were made here."),
        )),
        _ => Err(to_datafusion(
            Error::new(SqlState::AmbiguousFunction, format!("more than one function named \"{name}\""))
                .hint("Write its argument types too: name(type, …)."),
        )),
    }
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
pub(super) fn relation(catalog: &Catalog, oid: i32) -> Option<&Arc<Object>> {
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
        let is_visible = |oid| match relation(&catalog, oid) {
            Some(object) => object.schema == DEFAULT_SCHEMA,
            None => super::system_table(oid).is_none(),
        };
        let visible: BooleanArray = oids.as_primitive::<Int32Type>().iter().map(|oid| oid.map(is_visible)).collect();
        Ok(Arc::new(visible))
    })
}
