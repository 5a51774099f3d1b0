//! Functions that clients call over the tables of `pg_catalog`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, AsArray as _, BooleanArray, Int32Array, StringArray};
use arrow::datatypes::{DataType, Int32Type};
use datafusion::common::ScalarValue;
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use datafusion_pg_catalog::pg_catalog as library;

use super::relations::{declared_key, index_definition, key_columns, query_text};
use super::{FIRST_OID, INDEX_OID};
use crate::catalog::{Catalog, CatalogStore, Object};
use crate::types::RelationId;

/// All of them, over the catalog as it is when they are called.
pub(crate) fn functions(catalog: &Arc<CatalogStore>) -> Vec<ScalarUDF> {
    let of = |name, answer| ScalarUDF::new_from_impl(OfRelation::new(name, answer, Arc::clone(catalog)));
    let mut functions = vec![
        library::create_current_schemas_udf(),
        ScalarUDF::new_from_impl(Visible { catalog: Arc::clone(catalog), signature: any() }),
        library::create_pg_get_partkeydef_udf(),
        library::create_pg_relation_is_publishable_udf(),
        library::create_pg_get_statisticsobjdef_columns_udf(),
        ScalarUDF::new_from_impl(Fixed { name: "pg_encoding_to_char", text: "UTF8", signature: any() }),
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
        ScalarUDF::new_from_impl(Fixed { name: "pg_get_userbyid", text: "clink", signature: any() }),
        ScalarUDF::new_from_impl(Fixed { name: "pg_size_pretty", text: "0 bytes", signature: any() }),
        ScalarUDF::new_from_impl(Number {
            name: "pg_table_size",
            answer: |_, _| Some(0),
            catalog: Arc::clone(catalog),
            signature: any(),
        }),
        ScalarUDF::new_from_impl(Number {
            name: "to_regclass",
            answer: |catalog, name| {
                let (schema, name) = match name.split_once('.') {
                    Some((schema, name)) => (Some(schema), name),
                    None => (None, name),
                };
                catalog.find(schema, name.trim_matches('"')).map(|object| super::relation_oid(object.id))
            },
            catalog: Arc::clone(catalog),
            signature: any(),
        }),
        ScalarUDF::new_from_impl(Number {
            name: "to_regtype",
            answer: |_, name| {
                crate::sql::type_by_name(name).and_then(|stored| i32::try_from(crate::types::type_oid(&stored)).ok())
            },
            catalog: Arc::clone(catalog),
            signature: any(),
        }),
        ScalarUDF::new_from_impl(Number {
            name: "pg_advisory_unlock_all",
            answer: |_, _| None,
            catalog: Arc::clone(catalog),
            signature: Signature::one_of(vec![TypeSignature::Nullary, TypeSignature::VariadicAny], Volatility::Stable),
        }),
        of("pg_get_constraintdef", |object| {
            (!declared_key(object).is_empty()).then(|| format!("PRIMARY KEY ({})", key_columns(object)))
        }),
        of("pg_get_indexdef", |object| (!declared_key(object).is_empty()).then(|| index_definition(object))),
        of("pg_get_viewdef", |object| Some(query_text(object))),
        // There are no comments, rules and triggers.
        of("obj_description", |_| None),
        of("col_description", |_| None),
        of("shobj_description", |_| None),
        of("pg_get_ruledef", |_| None),
        of("pg_get_triggerdef", |_| None),
        of("pg_get_serial_sequence", |_| None),
        of("pg_get_functiondef", |_| None),
        of("pg_get_function_result", |_| None),
        of("pg_get_function_arguments", |_| None),
        of("pg_get_function_identity_arguments", |_| None),
        ScalarUDF::new_from_impl(FirstText { signature: any() }),
    ];
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
    for name in ["pg_function_is_visible", "pg_type_is_visible", "pg_operator_is_visible", "pg_collation_is_visible"] {
        functions
            .push(ScalarUDF::new_from_impl(Always { name, signature: Signature::variadic_any(Volatility::Stable) }));
    }
    functions
}

fn any() -> Signature {
    Signature::variadic_any(Volatility::Stable)
}

/// The same text for every row.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Fixed {
    name: &'static str,
    text: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for Fixed {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        Ok(ColumnarValue::Scalar(ScalarValue::Utf8(Some(self.text.to_owned()))))
    }
}

/// A number for a text; NULL for others.
struct Number {
    name: &'static str,
    answer: fn(&Catalog, &str) -> Option<i32>,
    catalog: Arc<CatalogStore>,
    signature: Signature,
}

impl fmt::Debug for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Number) -> bool {
        self.name == other.name
    }
}

impl Eq for Number {}

impl Hash for Number {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for Number {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Int32)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(texts) = args.args.first() else { return Ok(ColumnarValue::Scalar(ScalarValue::Int32(None))) };
        let texts = arrow::compute::cast(&texts.to_array(args.number_rows)?, &DataType::Utf8)?;
        let catalog = self.catalog.current();
        let numbers: Int32Array = texts.as_string::<i32>().iter().map(|text| (self.answer)(&catalog, text?)).collect();
        Ok(ColumnarValue::Array(Arc::new(numbers)))
    }
}

/// A text about the relation whose number is the first argument.
struct OfRelation {
    name: &'static str,
    answer: fn(&Object) -> Option<String>,
    catalog: Arc<CatalogStore>,
    signature: Signature,
}

impl OfRelation {
    fn new(name: &'static str, answer: fn(&Object) -> Option<String>, catalog: Arc<CatalogStore>) -> OfRelation {
        OfRelation { name, answer, catalog, signature: Signature::variadic_any(Volatility::Stable) }
    }
}

impl fmt::Debug for OfRelation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for OfRelation {
    fn eq(&self, other: &OfRelation) -> bool {
        self.name == other.name
    }
}

impl Eq for OfRelation {}

impl Hash for OfRelation {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl ScalarUDFImpl for OfRelation {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(oids) = args.args.first() else { return Ok(ColumnarValue::Scalar(Option::<&str>::None.into())) };
        let oids = oids.to_array(args.number_rows)?;
        let Ok(oids) = arrow::compute::cast(&oids, &DataType::Int32) else {
            return Ok(ColumnarValue::Scalar(Option::<&str>::None.into()));
        };
        let catalog = self.catalog.current();
        let texts: StringArray = oids
            .as_primitive::<Int32Type>()
            .iter()
            .map(|oid| {
                let oid = oid?;
                let relation = if oid >= INDEX_OID { oid - INDEX_OID } else { oid };
                let id = u64::try_from(relation).ok()?.checked_sub(FIRST_OID)?;
                (self.answer)(catalog.get(RelationId(id))?)
            })
            .collect();
        Ok(ColumnarValue::Array(Arc::new(texts)))
    }
}

/// `pg_get_expr(text, …)`: expressions are kept as they are written.
#[derive(Debug, PartialEq, Eq, Hash)]
struct FirstText {
    signature: Signature,
}

impl ScalarUDFImpl for FirstText {
    fn name(&self) -> &str {
        "pg_get_expr"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        match args.args.first() {
            Some(text) => {
                Ok(ColumnarValue::Array(arrow::compute::cast(&text.to_array(args.number_rows)?, &DataType::Utf8)?))
            }
            None => Ok(ColumnarValue::Scalar(Option::<&str>::None.into())),
        }
    }
}

/// `pg_table_is_visible(oid)`: true for what needs no schema in front.
struct Visible {
    catalog: Arc<CatalogStore>,
    signature: Signature,
}

impl fmt::Debug for Visible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("pg_table_is_visible")
    }
}

impl PartialEq for Visible {
    fn eq(&self, _: &Visible) -> bool {
        true
    }
}

impl Eq for Visible {}

impl Hash for Visible {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl ScalarUDFImpl for Visible {
    fn name(&self) -> &str {
        "pg_table_is_visible"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let Some(oids) = args.args.first() else { return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(None))) };
        let oids = arrow::compute::cast(&oids.to_array(args.number_rows)?, &DataType::Int32)?;
        let catalog = self.catalog.current();
        let visible: BooleanArray = oids
            .as_primitive::<Int32Type>()
            .iter()
            .map(|oid| {
                let oid = oid?;
                let relation = if oid >= INDEX_OID { oid - INDEX_OID } else { oid };
                let id = u64::try_from(relation).ok().and_then(|relation| relation.checked_sub(FIRST_OID));
                let object = id.and_then(|id| catalog.get(RelationId(id)));
                // What is not ours is PostgreSQL's own.
                Some(object.is_none_or(|object| object.schema == crate::catalog::DEFAULT_SCHEMA))
            })
            .collect();
        Ok(ColumnarValue::Array(Arc::new(visible)))
    }
}

/// True for every row.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Always {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for Always {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let truths: ArrayRef = Arc::new(BooleanArray::from(vec![true; args.number_rows]));
        debug_assert_eq!(truths.len(), args.number_rows, "one truth a row");
        Ok(ColumnarValue::Array(truths))
    }
}
