//! What the catalog holds.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::logical_expr::ScalarUDF;
use serde::{Deserialize, Serialize};
use sqlparser::ast;

use crate::exec::plan::{JobPlan, late_rows_schema, row_errors_schema};
use crate::types::{Error, RelationId};

/// The kinds of relations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// A table, with or without a connector.
    Table,
    /// A plain view.
    View,
    /// A materialized view.
    MaterializedView,
    /// A standing query whose rows leave.
    Sink,
    /// A scalar function of SQL: no relation, and found by a name of its own kind.
    Function,
    /// The rows of a table with a connector that could not be read, or those for which an expression of a view or sink
    /// failed. It comes and goes with its object.
    Errors,
    /// The changes that came too late for a view or sink, or, of a table, for all that stands on it. It comes and goes
    /// with its object.
    Late,
}

impl ObjectKind {
    /// How messages call it.
    pub fn name(self) -> &'static str {
        match self {
            ObjectKind::Table => "table",
            ObjectKind::View => "view",
            ObjectKind::MaterializedView => "materialized view",
            ObjectKind::Sink => "sink",
            ObjectKind::Function => "function",
            ObjectKind::Errors => "errors table",
            ObjectKind::Late => "table of late rows",
        }
    }

    /// How statements call it.
    pub fn keyword(self) -> &'static str {
        match self {
            ObjectKind::Table => "TABLE",
            ObjectKind::View => "VIEW",
            ObjectKind::MaterializedView => "MATERIALIZED VIEW",
            ObjectKind::Sink => "SINK",
            ObjectKind::Function => "FUNCTION",
            // No statement names it: its object's does.
            ObjectKind::Errors | ObjectKind::Late => "TABLE",
        }
    }
}

/// A relation of the catalog.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its number, never used twice.
    pub id: RelationId,
    /// Its schema.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// What kind it is.
    pub kind: ObjectKind,
    /// The relations that its text names.
    pub depends_on: Vec<RelationId>,
    /// Its CREATE statement in canonical form.
    pub text: String,
    /// The number of its errors relation, if it has one.
    pub errors: Option<RelationId>,
    /// The number of its relation of late rows, if it has one.
    pub late: Option<RelationId>,
    /// What the text means.
    pub definition: Definition,
}

/// What an object's text means.
#[derive(Clone, Debug)]
pub enum Definition {
    /// A table.
    Table(Table),
    /// A plain view.
    View(View),
    /// A materialized view.
    MaterializedView(MaterializedView),
    /// A sink.
    Sink(SinkDefinition),
    /// A scalar function.
    Function(FunctionDefinition),
    /// The bad rows of this table with a connector.
    Errors(RelationId),
    /// The rows for which an expression of this view or sink failed.
    RowErrors(RelationId),
    /// The changes that came too late for this view or sink.
    LateRows(RelationId),
    /// The changes that came too late for what stands on this table.
    Late(RelationId),
    /// The text could not be planned when the database was opened; reads fail with the reason.
    Broken(Error),
}

/// A table's definition.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its columns.
    pub columns: Vec<TableColumn>,
    /// The columns as rows carry them.
    pub row_schema: SchemaRef,
    /// Indexes of the primary key's columns; empty when it has none.
    pub key: Vec<usize>,
    /// UPDATE and DELETE are refused.
    pub append_only: bool,
    /// The connector's name; `None` for an ordinary table.
    pub connector: Option<String>,
    /// Its column of event time, and how much longer than the watermark says windows over it can be changed, in
    /// microseconds.
    pub event_time: Option<(usize, i64)>,
}

impl Table {
    /// A table's definition, with the schema that follows from its columns.
    pub fn new(columns: Vec<TableColumn>, key: Vec<usize>, append_only: bool, connector: Option<String>) -> Table {
        let fields: Vec<Field> =
            columns.iter().map(|column| Field::new(&column.name, column.data_type.clone(), column.nullable)).collect();
        Table { columns, row_schema: Arc::new(Schema::new(fields)), key, append_only, connector, event_time: None }
    }
}

/// A column of a table.
#[derive(Clone, Debug)]
pub struct TableColumn {
    /// Its name.
    pub name: String,
    /// How its values are stored.
    pub data_type: DataType,
    /// The SQL type in its documented spelling.
    pub sql_type: String,
    /// For `varchar(n)` and `char(n)`: the most characters.
    pub length_max: Option<usize>,
    /// False for `NOT NULL` and primary keys.
    pub nullable: bool,
    /// The `DEFAULT` expression.
    pub default: Option<ast::Expr>,
}

/// A plain view's definition.
#[derive(Clone, Debug)]
pub struct View {
    /// The query, as parsed.
    pub query: Box<ast::Query>,
    /// Names of its columns when the statement gave them; else the query's own.
    pub column_names: Vec<String>,
    /// Columns and types of its rows.
    pub row_schema: SchemaRef,
}

/// A materialized view's definition.
#[derive(Clone, Debug)]
pub struct MaterializedView {
    /// What keeps it.
    pub plan: Arc<JobPlan>,
}

/// A sink's definition.
#[derive(Clone, Debug)]
pub struct SinkDefinition {
    /// What computes its rows.
    pub plan: Arc<JobPlan>,
    /// The connector's name.
    pub connector: String,
    /// The table that names the place, when it is not the sink itself.
    pub table: Option<RelationId>,
}

/// A function's definition.
#[derive(Clone, Debug)]
pub struct FunctionDefinition {
    /// Names, where they are given, and types of its parameters.
    pub parameters: Vec<(Option<String>, DataType)>,
    /// The type of its result.
    pub returns: DataType,
    /// What its calls are planned with.
    pub function: Arc<ScalarUDF>,
}

/// The columns of a table's errors relation.
pub fn errors_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        Arc::new(Schema::new(vec![
            Field::new("raw", DataType::Utf8, true),
            Field::new("error", DataType::Utf8, true),
            Field::new("column", DataType::Utf8, true),
            Field::new("split", DataType::Utf8, true),
            Field::new("offset", DataType::Int64, true),
            Field::new("time", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        ]))
    });
    Arc::clone(&SCHEMA)
}

/// The name of the relation of late rows of a relation.
pub fn late_name(name: &str) -> String {
    format!("{name}_late")
}

/// The columns of a table's relation of late rows: the view or sink, and those of its own.
pub fn late_schema() -> SchemaRef {
    static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
        let mut fields = vec![Arc::new(Field::new("view", DataType::Utf8, false))];
        fields.extend(late_rows_schema().fields().iter().cloned());
        Arc::new(Schema::new(fields))
    });
    Arc::clone(&SCHEMA)
}

/// The name of the errors relation of a relation.
pub fn errors_name(name: &str) -> String {
    format!("{name}_errors")
}

impl Object {
    /// Its errors relation as an object of its own, if it has one.
    pub fn errors_object(&self) -> Option<Object> {
        self.errors.map(|id| Object {
            id,
            schema: self.schema.clone(),
            name: errors_name(&self.name),
            kind: ObjectKind::Errors,
            depends_on: vec![self.id],
            text: String::new(),
            errors: None,
            late: None,
            definition: match self.kind {
                ObjectKind::Table => Definition::Errors(self.id),
                _ => Definition::RowErrors(self.id),
            },
        })
    }

    /// Its relation of late rows as an object of its own, if it has one.
    pub fn late_object(&self) -> Option<Object> {
        self.late.map(|id| Object {
            id,
            schema: self.schema.clone(),
            name: late_name(&self.name),
            kind: ObjectKind::Late,
            depends_on: vec![self.id],
            text: String::new(),
            errors: None,
            late: None,
            definition: match self.kind {
                ObjectKind::Table => Definition::Late(self.id),
                _ => Definition::LateRows(self.id),
            },
        })
    }

    /// The numbers of the relations that come and go with it.
    pub fn beside(&self) -> impl Iterator<Item = RelationId> + use<> {
        self.errors.into_iter().chain(self.late)
    }

    /// `schema.name`.
    pub fn qualified_name(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }

    /// Columns and types of its rows; `None` when its text could not be planned.
    pub fn row_schema(&self) -> Option<SchemaRef> {
        match &self.definition {
            Definition::Table(table) => Some(Arc::clone(&table.row_schema)),
            Definition::View(view) => Some(Arc::clone(&view.row_schema)),
            Definition::MaterializedView(view) => Some(Arc::clone(view.plan.schema())),
            Definition::Sink(sink) => Some(Arc::clone(sink.plan.schema())),
            Definition::Errors(_) => Some(errors_schema()),
            Definition::RowErrors(_) => Some(row_errors_schema()),
            Definition::LateRows(_) => Some(late_rows_schema()),
            Definition::Late(_) => Some(late_schema()),
            Definition::Function(_) | Definition::Broken(_) => None,
        }
    }

    /// Columns that identify a row; empty when the whole row does.
    pub fn key(&self) -> &[usize] {
        match &self.definition {
            Definition::Table(table) => &table.key,
            Definition::MaterializedView(view) => &view.plan.key,
            Definition::View(_)
            | Definition::Sink(_)
            | Definition::Function(_)
            | Definition::Errors(_)
            | Definition::RowErrors(_)
            | Definition::LateRows(_)
            | Definition::Late(_)
            | Definition::Broken(_) => &[],
        }
    }

    /// True when the relation's rows only ever grow.
    pub fn append_only(&self) -> bool {
        match &self.definition {
            // Rows of a connector are only ever added, unless they replace each other by key.
            Definition::Table(table) => table.append_only || (table.connector.is_some() && table.key.is_empty()),
            Definition::MaterializedView(view) => view.plan.append_only,
            // Its oldest rows go when there are too many.
            Definition::View(_)
            | Definition::Sink(_)
            | Definition::Function(_)
            | Definition::Errors(_)
            | Definition::RowErrors(_)
            | Definition::Late(_)
            | Definition::Broken(_) => false,
            Definition::LateRows(_) => true,
        }
    }

    /// True for a table with a connector, also one that keeps the last row of each key.
    pub fn is_external(&self) -> bool {
        matches!(&self.definition, Definition::Table(table) if table.connector.is_some())
    }
}
