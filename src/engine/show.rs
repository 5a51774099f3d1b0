//! What the catalog and the coordinator know, as rows: SHOW, DESCRIBE.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;

use crate::catalog::{self, Definition, Object};
use crate::sql::{Describe, Name, ObjectKind, Show, show_create, sql_name};
use crate::types::{Error, Limit, Limits, Result, SqlState};

use super::api::{Answer, JobInfo, Tag};
use super::database::columns;
use super::ddl::no_object;
use super::functions;
use super::session::Session;
use super::settings::Settings;
use super::system_tables;

fn schema_of(columns: &[(&str, DataType)]) -> SchemaRef {
    Arc::new(Schema::new(
        columns.iter().map(|(name, data_type)| Field::new(*name, data_type.clone(), true)).collect::<Vec<_>>(),
    ))
}

fn texts<T: Into<String>>(values: impl IntoIterator<Item = T>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values.into_iter().map(Into::into)))
}

pub(super) fn rows(schema: SchemaRef, columns: Vec<ArrayRef>, tag: &'static str) -> Result<Answer> {
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    let stream = futures::stream::iter([Ok(batch)]);
    let rows = Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&schema), stream));
    Ok(Answer::Rows { schema, rows, tag: Tag::Show(tag), notices: Vec::new() })
}

/// The columns of a SHOW's answer.
///
/// # Errors
/// 42704 for an unknown setting.
pub(crate) fn schema(session: &Session, show: &Show) -> Result<SchemaRef> {
    let text = DataType::Utf8;
    Ok(match show {
        Show::Tables | Show::Views | Show::MaterializedViews => {
            schema_of(&[("schema", text.clone()), ("name", text.clone()), ("kind", text)])
        }
        Show::Sinks => schema_of(&[
            ("schema", text.clone()),
            ("name", text.clone()),
            ("connector", text.clone()),
            ("target", text.clone()),
            ("status", text.clone()),
            ("error", text),
            ("rows", DataType::Int64),
        ]),
        Show::Jobs => jobs_schema(),
        Show::Sources => system_table("sources")?.schema(),
        Show::Functions => schema_of(&[
            ("schema", text.clone()),
            ("name", text.clone()),
            ("arguments", text.clone()),
            ("returns", text),
        ]),
        Show::Checkpoints => system_table("checkpoints")?.schema(),
        Show::Watermarks => system_table("watermarks")?.schema(),
        Show::Create(_, _) => schema_of(&[("name", text.clone()), ("create_statement", text)]),
        Show::Variable(name) if name == "all" => settings_schema(),
        Show::Variable(name) => schema_of(&[(session.settings().show(name)?.0, text)]),
    })
}

/// The columns of `SHOW JOBS`.
pub(crate) fn jobs_schema() -> SchemaRef {
    let text = DataType::Utf8;
    schema_of(&[
        ("id", DataType::Int64),
        ("name", text.clone()),
        ("kind", text.clone()),
        ("status", text.clone()),
        ("error", text),
        ("since", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        ("rows_in", DataType::Int64),
        ("rows_out", DataType::Int64),
        ("lag_ms", DataType::Int64),
    ])
}

/// The columns of `SHOW ALL`.
pub(crate) fn settings_schema() -> SchemaRef {
    schema_of(&[("name", DataType::Utf8), ("setting", DataType::Utf8), ("description", DataType::Utf8)])
}

/// The rows of `SHOW ALL`.
pub(crate) fn settings_columns(settings: &Settings) -> Vec<ArrayRef> {
    let all: Vec<_> = settings.all().collect();
    vec![
        texts(all.iter().map(|(name, _, _)| *name)),
        texts(all.iter().map(|(_, value, _)| value.as_str())),
        texts(all.iter().map(|(_, _, description)| *description)),
    ]
}

/// The columns of `clink_catalog.limits`.
pub(crate) fn limit_columns(limits: &Limits) -> Vec<ArrayRef> {
    let all = Limit::ALL.iter();
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    vec![
        texts(all.clone().map(|limit| limit.name())),
        Arc::new(all.clone().map(|limit| Some(number(limits.get(*limit)))).collect::<Int64Array>()),
        texts(all.clone().map(|limit| limit.unit().name())),
        Arc::new(all.clone().map(|limit| Some(number(limit.default_value()))).collect::<Int64Array>()),
        texts(all.map(|limit| limit.description())),
    ]
}

/// `SHOW`.
///
/// # Errors
/// 42704 for an unknown setting; 42P01 and 42809 for `SHOW CREATE`.
pub(crate) fn show(session: &Session, show: &Show) -> Result<Answer> {
    let schema = schema(session, show)?;
    match show {
        Show::Tables => rows(schema, object_columns(session, is_table), "SHOW"),
        Show::Views => {
            let views = |kind| matches!(kind, catalog::ObjectKind::View | catalog::ObjectKind::MaterializedView);
            rows(schema, object_columns(session, views), "SHOW")
        }
        Show::Sinks => rows(schema, sink_columns(session), "SHOW"),
        Show::MaterializedViews => {
            rows(schema, object_columns(session, |kind| kind == catalog::ObjectKind::MaterializedView), "SHOW")
        }
        Show::Jobs => rows(schema, job_columns(&session.engine().jobs()), "SHOW"),
        Show::Sources => {
            let found = system_table("sources")?.rows(session.engine())?;
            rows(schema, found.columns().to_vec(), "SHOW")
        }
        Show::Checkpoints => {
            let found = system_table("checkpoints")?.rows(session.engine())?;
            rows(schema, found.columns().to_vec(), "SHOW")
        }
        Show::Watermarks => {
            let found = system_table("watermarks")?.rows(session.engine())?;
            rows(schema, found.columns().to_vec(), "SHOW")
        }
        Show::Functions => rows(schema, function_columns(session), "SHOW"),
        Show::Create(ObjectKind::Function, name) => {
            let object = functions::find(&session.engine().catalog(), name)?;
            rows(schema, vec![texts([object.qualified_name()]), texts([object.text.as_str()])], "SHOW")
        }
        Show::Create(kind, name) => {
            let object = find(session, name)?;
            check_kind(&object, *kind, name)?;
            let relation = Name { schema: name.schema.clone(), name: object.name.clone(), position: name.position };
            let mut text = object.text.clone();
            for index in &object.indexes {
                text.push_str(";\n");
                text.push_str(&show_create::index(&index.name, &relation, &index.columns));
            }
            rows(schema, vec![texts([object.qualified_name()]), texts([text])], "SHOW")
        }
        Show::Variable(name) if name == "all" => rows(schema, settings_columns(session.settings()), "SHOW"),
        Show::Variable(name) => rows(schema, vec![texts([session.settings().shown(name)?.1])], "SHOW"),
    }
}

fn system_table(name: &str) -> Result<&'static system_tables::SystemTable> {
    system_tables::find(name).ok_or_else(|| Error::internal(format!("there is no table of {name}")))
}

fn is_table(kind: catalog::ObjectKind) -> bool {
    matches!(kind, catalog::ObjectKind::Table | catalog::ObjectKind::Errors | catalog::ObjectKind::Late)
}

fn object_columns(session: &Session, of: impl Fn(catalog::ObjectKind) -> bool) -> Vec<ArrayRef> {
    let catalog = session.engine().catalog();
    // The errors of views are found by their names; listed, they would hide the tables.
    let listed = |object: &&Arc<Object>| {
        of(object.kind) && !matches!(object.definition, Definition::RowErrors(_) | Definition::LateRows(_))
    };
    let mut objects: Vec<&Arc<Object>> = catalog.objects().filter(listed).collect();
    objects.sort_by(|left, right| (&left.schema, &left.name).cmp(&(&right.schema, &right.name)));
    vec![
        texts(objects.iter().map(|object| object.schema.as_str())),
        texts(objects.iter().map(|object| object.name.as_str())),
        texts(objects.iter().map(|object| if object.is_external() { "source" } else { object.kind.name() })),
    ]
}

fn function_columns(session: &Session) -> Vec<ArrayRef> {
    let catalog = session.engine().catalog();
    let functions: Vec<&Arc<Object>> = catalog.functions().collect();
    // One whose text could not be planned has a name alone.
    let of = |object: &Object, text: fn(&catalog::FunctionDefinition) -> String| match &object.definition {
        Definition::Function(function) => Some(text(function)),
        _ => None,
    };
    let parameters = functions.iter().map(|object| of(object, functions::parameters_text));
    let returns = functions.iter().map(|object| of(object, |function| sql_name(&function.returns)));
    vec![
        texts(functions.iter().map(|object| object.schema.as_str())),
        texts(functions.iter().map(|object| object.name.as_str())),
        Arc::new(parameters.collect::<StringArray>()),
        Arc::new(returns.collect::<StringArray>()),
    ]
}

fn sink_columns(session: &Session) -> Vec<ArrayRef> {
    let catalog = session.engine().catalog();
    let jobs = session.engine().jobs();
    let mut sinks = Vec::new();
    for object in catalog.objects().filter(|object| object.kind == catalog::ObjectKind::Sink) {
        let (connector, target) = match &object.definition {
            Definition::Sink(sink) => {
                (Some(sink.connector.clone()), sink.table.and_then(|id| catalog.get(id)).map(|t| t.qualified_name()))
            }
            _ => (None, None),
        };
        sinks.push((object, connector, target, jobs.iter().find(|job| job.id == object.id)));
    }
    sinks.sort_by(|(left, ..), (right, ..)| (&left.schema, &left.name).cmp(&(&right.schema, &right.name)));
    let status = sinks.iter().map(|(.., job)| job.map_or("FILLING", |job| job.status));
    let error = sinks.iter().map(|(.., job)| job.and_then(|job| Some(job.error.as_ref()?.message().to_owned())));
    let count = sinks.iter().map(|(.., job)| i64::try_from(job.map_or(0, |job| job.rows_out)).unwrap_or(i64::MAX));
    vec![
        texts(sinks.iter().map(|(object, ..)| object.schema.as_str())),
        texts(sinks.iter().map(|(object, ..)| object.name.as_str())),
        Arc::new(sinks.iter().map(|(_, connector, ..)| connector.clone()).collect::<StringArray>()),
        Arc::new(sinks.iter().map(|(_, _, target, _)| target.clone()).collect::<StringArray>()),
        texts(status),
        Arc::new(error.collect::<StringArray>()),
        Arc::new(Int64Array::from_iter_values(count)),
    ]
}

/// The rows of `SHOW JOBS`.
pub(crate) fn job_columns(jobs: &[JobInfo]) -> Vec<ArrayRef> {
    let numbers = |of: &dyn Fn(&JobInfo) -> u64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(jobs.iter().map(|job| i64::try_from(of(job)).unwrap_or(i64::MAX))))
    };
    let since = jobs.iter().map(|job| {
        // Zero: it never ran.
        (job.since_millis > 0).then(|| i64::try_from(job.since_millis.saturating_mul(1_000)).unwrap_or(i64::MAX))
    });
    vec![
        numbers(&|job| job.id.0),
        texts(jobs.iter().map(|job| job.name.as_str())),
        texts(jobs.iter().map(|job| job.kind)),
        texts(jobs.iter().map(|job| job.status)),
        Arc::new(
            jobs.iter().map(|job| job.error.as_ref().map(|error| error.message().to_owned())).collect::<StringArray>(),
        ),
        Arc::new(since.collect::<TimestampMicrosecondArray>().with_timezone("UTC")),
        numbers(&|job| job.rows_in),
        numbers(&|job| job.rows_out),
        numbers(&|job| job.lag_millis),
    ]
}

/// The relation that a statement names.
///
/// # Errors
/// 42P01.
pub(super) fn find(session: &Session, name: &Name) -> Result<Arc<Object>> {
    let catalog = session.engine().catalog();
    catalog
        .find(name.schema.as_deref(), &name.name)
        .map(Arc::clone)
        .ok_or_else(|| no_object(&catalog, "relation", name))
}

fn check_kind(object: &Object, wanted: ObjectKind, name: &Name) -> Result<()> {
    let fits = match wanted {
        ObjectKind::Table => object.kind == catalog::ObjectKind::Table,
        ObjectKind::View => object.kind == catalog::ObjectKind::View,
        ObjectKind::MaterializedView => object.kind == catalog::ObjectKind::MaterializedView,
        ObjectKind::Sink => object.kind == catalog::ObjectKind::Sink,
        ObjectKind::Schema | ObjectKind::Function => false,
    };
    if fits {
        return Ok(());
    }
    if matches!(object.kind, catalog::ObjectKind::Errors | catalog::ObjectKind::Late) {
        return Err(Error::new(SqlState::WrongObjectType, format!("\"{}\" was made with its table", object.name))
            .hint("Use SHOW CREATE TABLE with the table's name.")
            .position(name.position));
    }
    Err(Error::new(SqlState::WrongObjectType, format!("\"{}\" is a {}", object.name, object.kind.name()))
        .hint(format!("Use SHOW CREATE {} {}.", object.kind.keyword(), object.name))
        .position(name.position))
}

/// The columns of a DESCRIBE's answer.
pub(crate) fn describe_schema() -> SchemaRef {
    schema_of(&[
        ("column", DataType::Utf8),
        ("type", DataType::Utf8),
        ("nullable", DataType::Boolean),
        ("key", DataType::Boolean),
        ("default", DataType::Utf8),
    ])
}

/// `DESCRIBE`.
///
/// # Errors
/// 42P01.
pub(crate) fn describe(session: &Session, describe: &Describe) -> Result<Answer> {
    let object = find(session, &describe.name)?;
    if let Definition::Broken(error) = &object.definition {
        return Err(super::relations::broken(&object, error));
    }
    let columns = columns(&object);
    let table = match &object.definition {
        Definition::Table(table) => Some(table),
        Definition::View(_)
        | Definition::MaterializedView(_)
        | Definition::Sink(_)
        | Definition::Function(_)
        | Definition::Errors(_)
        | Definition::RowErrors(_)
        | Definition::LateRows(_)
        | Definition::Late(_)
        | Definition::Broken(_) => None,
    };
    let of_table = |index: usize| table.and_then(|table| table.columns.get(index));
    let nullable: Vec<bool> =
        (0..columns.len()).map(|index| of_table(index).is_none_or(|column| column.nullable)).collect();
    let key: Vec<bool> = (0..columns.len()).map(|index| object.key().contains(&index)).collect();
    let default: StringArray = (0..columns.len())
        .map(|index| of_table(index).and_then(|column| column.default.as_ref()).map(ToString::to_string))
        .collect();
    let arrays: Vec<ArrayRef> = vec![
        texts(columns.iter().map(|column| column.name.as_str())),
        texts(columns.iter().map(|column| column.data_type.as_str())),
        Arc::new(BooleanArray::from(nullable)),
        Arc::new(BooleanArray::from(key)),
        Arc::new(default),
    ];
    rows(describe_schema(), arrays, "DESCRIBE")
}
