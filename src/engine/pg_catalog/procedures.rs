//! `pg_proc`: PostgreSQL's own functions, and those that were made here.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int16Array, Int32Array, RecordBatch, StringArray, new_null_array};
use arrow::compute::cast;
use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::{MemTable, TableType};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::union::UnionExec;

use super::relations::OWNER;
use super::{relation_oid, schema_oid};
use crate::catalog::{Catalog, Definition, FunctionDefinition, Object};
use crate::types::{Result, type_oid};

/// The number of the language SQL, as in PostgreSQL.
const LANGUAGE_SQL: i32 = 14;

/// The table with a row for each function of the catalog.
///
/// # Errors
/// None but a fault of the program.
pub(super) fn with_own(catalog: &Catalog, built_in: Arc<dyn TableProvider>) -> Result<Arc<dyn TableProvider>> {
    let functions: Vec<(&Object, &FunctionDefinition)> = catalog
        .functions()
        .filter_map(|object| match &object.definition {
            Definition::Function(function) => Some((object.as_ref(), function)),
            _ => None,
        })
        .collect();
    if functions.is_empty() {
        return Ok(built_in);
    }
    let known = built_in.schema();
    let fields = known.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        columns.push(match column(field.name(), &functions) {
            Some(values) => cast(&values, field.data_type())?,
            None => new_null_array(field.data_type(), functions.len()),
        });
    }
    let own = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    let own = MemTable::try_new(Arc::clone(&schema), vec![vec![own]]).map_err(crate::engine::error_of)?;
    Ok(Arc::new(Both { schema, built_in, own }))
}

/// A column's values, where more is known than that it is there.
fn column(name: &str, functions: &[(&Object, &FunctionDefinition)]) -> Option<ArrayRef> {
    let numbers = |of: &dyn Fn(&Object, &FunctionDefinition) -> i32| -> ArrayRef {
        Arc::new(Int32Array::from_iter_values(functions.iter().map(|(object, function)| of(object, function))))
    };
    let texts = |of: &dyn Fn(&Object, &FunctionDefinition) -> String| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(functions.iter().map(|(object, function)| of(object, function))))
    };
    let oid = |data_type: &_| i32::try_from(type_oid(data_type)).unwrap_or(0);
    Some(match name {
        "oid" => numbers(&|object, _| relation_oid(object.id)),
        "proname" => texts(&|object, _| object.name.clone()),
        "pronamespace" => numbers(&|object, _| schema_oid(&object.schema)),
        "proowner" => numbers(&|_, _| OWNER),
        "prolang" => numbers(&|_, _| LANGUAGE_SQL),
        "prokind" => texts(&|_, _| "f".to_owned()),
        "provolatile" => texts(&|_, _| "s".to_owned()),
        "prorettype" => numbers(&|_, function| oid(&function.returns)),
        "prosrc" => texts(&|object, _| object.text.clone()),
        "pronargs" => {
            let count = |function: &FunctionDefinition| i16::try_from(function.parameters.len()).unwrap_or(i16::MAX);
            Arc::new(Int16Array::from_iter_values(functions.iter().map(|(_, function)| count(function))))
        }
        "proretset" => Arc::new(BooleanArray::from(vec![false; functions.len()])),
        _ => return None,
    })
}

/// The rows of two tables of the same columns.
#[derive(Debug)]
struct Both {
    schema: SchemaRef,
    built_in: Arc<dyn TableProvider>,
    own: MemTable,
}

#[async_trait]
impl TableProvider for Both {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        let built_in = self.built_in.scan(state, projection, &[], None).await?;
        let own = self.own.scan(state, projection, &[], None).await?;
        UnionExec::try_new(vec![built_in, own])
    }
}
