//! The schema `clink_catalog`: what the server knows of itself, as tables. Each is worked out when a statement that
//! names it is planned.
//!
//! A further table is one more entry of [`TABLES`].

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;

use super::database::Engine;
use super::event_times::SeenTime;
use super::settings::Settings;
use super::show;
use super::source_progress::{Seen, SplitProgress};
use crate::catalog::{Definition, Object, ObjectKind};
use crate::exec::OperatorNumbers;
use crate::types::{Error, Result, Time, Watermark};

/// The schema.
pub(crate) const SCHEMA: &str = "clink_catalog";

/// A table of the server's own knowledge.
pub(crate) struct SystemTable {
    /// Its name.
    pub(crate) name: &'static str,
    columns: &'static [(&'static str, DataType)],
    rows: fn(&Engine) -> Vec<ArrayRef>,
}

const TIME: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

/// All of them, by name.
const TABLES: &[SystemTable] = &[
    SystemTable {
        name: "checkpoints",
        columns: &[
            ("id", DataType::Int64),
            ("time", TIME),
            ("status", DataType::Utf8),
            ("restored", DataType::Boolean),
            ("jobs", DataType::Int64),
            ("parts", DataType::Int64),
            ("bytes", DataType::Int64),
            ("bytes_new", DataType::Int64),
            ("duration_ms", DataType::Int64),
            ("pause_us", DataType::Int64),
            ("error", DataType::Utf8),
        ],
        rows: checkpoints,
    },
    SystemTable {
        name: "errors",
        columns: &[
            ("schema", DataType::Utf8),
            ("name", DataType::Utf8),
            ("kind", DataType::Utf8),
            ("reason", DataType::Utf8),
            ("rows", DataType::Int64),
        ],
        rows: errors,
    },
    SystemTable {
        name: "jobs",
        columns: &[
            ("id", DataType::Int64),
            ("name", DataType::Utf8),
            ("kind", DataType::Utf8),
            ("status", DataType::Utf8),
            ("error", DataType::Utf8),
            ("since", TIME),
            ("rows_in", DataType::Int64),
            ("rows_out", DataType::Int64),
            ("lag_ms", DataType::Int64),
        ],
        rows: |engine| show::job_columns(&engine.jobs()),
    },
    SystemTable {
        name: "limits",
        columns: &[
            ("name", DataType::Utf8),
            ("setting", DataType::Int64),
            ("unit", DataType::Utf8),
            ("standard", DataType::Int64),
            ("description", DataType::Utf8),
        ],
        rows: |engine| show::limit_columns(engine.limits()),
    },
    SystemTable {
        name: "operators",
        columns: &[
            ("job", DataType::Utf8),
            ("operator", DataType::Utf8),
            ("kind", DataType::Utf8),
            ("rows_in", DataType::Int64),
            ("rows_out", DataType::Int64),
            ("bytes_out", DataType::Int64),
            ("busy_us", DataType::Int64),
            ("state_keys", DataType::Int64),
            ("state_bytes", DataType::Int64),
        ],
        rows: operators,
    },
    SystemTable {
        name: "settings",
        columns: &[("name", DataType::Utf8), ("setting", DataType::Utf8), ("description", DataType::Utf8)],
        rows: |_| show::settings_columns(&Settings::default()),
    },
    SystemTable {
        name: "sources",
        columns: &[
            ("schema", DataType::Utf8),
            ("name", DataType::Utf8),
            ("connector", DataType::Utf8),
            ("status", DataType::Utf8),
            ("rows", DataType::Int64),
            ("errors", DataType::Int64),
            ("reasons", DataType::Utf8),
            ("splits", DataType::Int64),
            ("offset", DataType::Int64),
            ("lag", DataType::Int64),
        ],
        rows: sources,
    },
    SystemTable {
        name: "splits",
        columns: &[
            ("schema", DataType::Utf8),
            ("source", DataType::Utf8),
            ("split", DataType::Utf8),
            ("offset", DataType::Int64),
            ("size", DataType::Int64),
            ("lag", DataType::Int64),
            ("time", TIME),
        ],
        rows: splits,
    },
    SystemTable {
        name: "watermarks",
        columns: &[
            ("schema", DataType::Utf8),
            ("name", DataType::Utf8),
            ("kind", DataType::Utf8),
            ("source", DataType::Utf8),
            ("column", DataType::Utf8),
            ("watermark", TIME),
            ("since", TIME),
            ("held_by", DataType::Utf8),
            ("held_since", TIME),
            ("release", DataType::Utf8),
        ],
        rows: watermarks,
    },
];

impl SystemTable {
    /// Its columns.
    pub(crate) fn schema(&self) -> SchemaRef {
        let field = |(name, data_type): &(&str, DataType)| {
            let data_type = match data_type {
                // A constant cannot hold a zone.
                DataType::Timestamp(unit, None) => DataType::Timestamp(*unit, Some("UTC".into())),
                other => other.clone(),
            };
            Field::new(*name, data_type, true)
        };
        Arc::new(Schema::new(self.columns.iter().map(field).collect::<Vec<_>>()))
    }

    /// Its rows now.
    ///
    /// # Errors
    /// None but a fault of the program.
    pub(crate) fn rows(&self, engine: &Engine) -> Result<RecordBatch> {
        Ok(RecordBatch::try_new(self.schema(), (self.rows)(engine))?)
    }
}

/// The names of all tables.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|table| table.name)
}

/// A table by name.
pub(crate) fn find(name: &str) -> Option<&'static SystemTable> {
    TABLES.iter().find(|table| table.name == name)
}

/// A table's rows for one statement.
///
/// # Errors
/// None but a fault of the program.
pub(crate) fn provider(engine: &Engine, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
    let Some(table) = find(name) else { return Ok(None) };
    let rows = table.rows(engine)?;
    let provider = MemTable::try_new(rows.schema(), vec![vec![rows]]);
    Ok(Some(Arc::new(provider.map_err(|error| Error::internal(error.to_string()))?)))
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn texts<T: AsRef<str>>(values: impl IntoIterator<Item = T>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

fn numbers(values: impl IntoIterator<Item = Option<u64>>) -> ArrayRef {
    Arc::new(values.into_iter().map(|value| value.map(number)).collect::<Int64Array>())
}

fn times(values: impl IntoIterator<Item = Option<Time>>) -> ArrayRef {
    let micros = values.into_iter().map(|time| time.map(|time| number(time.as_millis()).saturating_mul(1_000)));
    Arc::new(micros.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
}

fn checkpoints(engine: &Engine) -> Vec<ArrayRef> {
    let infos = engine.coordinator().checkpoints();
    let size = |size: usize| Some(size as u64);
    vec![
        numbers(infos.iter().map(|info| Some(info.id.0))),
        times(infos.iter().map(|info| Some(Time::from_millis(info.id.0)))),
        texts(infos.iter().map(|info| info.status)),
        Arc::new(infos.iter().map(|info| Some(info.restored)).collect::<BooleanArray>()),
        numbers(infos.iter().map(|info| size(info.jobs))),
        numbers(infos.iter().map(|info| size(info.parts))),
        numbers(infos.iter().map(|info| Some(info.bytes))),
        numbers(infos.iter().map(|info| Some(info.bytes_new))),
        numbers(infos.iter().map(|info| info.duration_millis)),
        numbers(infos.iter().map(|info| info.pause.map(|pause| u64::try_from(pause.as_micros()).unwrap_or(u64::MAX)))),
        Arc::new(infos.iter().map(|info| info.error.as_deref()).collect::<StringArray>()),
    ]
}

/// What went wrong and was kept: rows that could not be read, rows for which an expression failed, jobs that stopped.
fn errors(engine: &Engine) -> Vec<ArrayRef> {
    let catalog = engine.catalog();
    let mut found: Vec<(String, String, &str, String, Option<u64>)> = Vec::new();
    for (object, seen) in seen(engine) {
        let place = || (object.schema.clone(), object.name.clone());
        let reasons = seen.bad.iter().filter(|(_, rows)| **rows > 0);
        found.extend(reasons.map(|(reason, rows)| (place().0, place().1, "bad row", reason.to_string(), Some(*rows))));
    }
    for job in engine.jobs() {
        let Some(object) = catalog.objects().find(|object| object.id == job.id) else { continue };
        let place = || (object.schema.clone(), object.name.clone());
        let counts = engine.coordinator().operators(job.id);
        let failed = counts.iter().find(|counts| counts.path == "errors" && object.kind != ObjectKind::Errors);
        let rows = failed.map(|counts| counts.numbers().state.keys as u64).filter(|rows| *rows > 0);
        found.extend(
            rows.map(|rows| (place().0, place().1, "expression", "a row's expression failed".to_owned(), Some(rows))),
        );
        let error = job.error.filter(|_| job.status == "FAILED");
        found.extend(error.map(|error| (place().0, place().1, "job", error.message().to_owned(), None)));
    }
    found.sort();
    vec![
        texts(found.iter().map(|(schema, ..)| schema)),
        texts(found.iter().map(|(_, name, ..)| name)),
        texts(found.iter().map(|(_, _, kind, ..)| kind)),
        texts(found.iter().map(|(_, _, _, reason, _)| reason)),
        numbers(found.iter().map(|(.., rows)| *rows)),
    ]
}

fn operators(engine: &Engine) -> Vec<ArrayRef> {
    let found: Vec<_> = engine
        .jobs()
        .iter()
        .flat_map(|job| {
            let counts = engine.coordinator().operators(job.id);
            // These run within the job of their view, where its operators are listed.
            let counts = if matches!(job.kind, "errors" | "late rows") { Vec::new() } else { counts };
            counts.into_iter().map(|counts| (job.name.clone(), counts.numbers(), counts))
        })
        .collect();
    let column = |of: &dyn Fn(&OperatorNumbers) -> u64| numbers(found.iter().map(|(_, now, _)| Some(of(now))));
    vec![
        texts(found.iter().map(|(job, ..)| job)),
        texts(found.iter().map(|(.., counts)| &counts.path)),
        texts(found.iter().map(|(.., counts)| &counts.name)),
        column(&|now| now.rows_in),
        column(&|now| now.rows_out),
        column(&|now| now.bytes_out),
        column(&|now| now.busy_micros),
        column(&|now| now.state.keys as u64),
        column(&|now| now.state.bytes as u64),
    ]
}

/// The tables with a connector and what was seen of them.
fn seen(engine: &Engine) -> Vec<(Arc<Object>, Seen)> {
    let catalog = engine.catalog();
    let mut sources: Vec<_> = catalog
        .objects()
        .filter(|object| object.is_external())
        .map(|object| {
            let progress = engine.coordinator().source_progress(object.id);
            (Arc::clone(object), progress.map(|progress| progress.seen()).unwrap_or_default())
        })
        .collect();
    sources.sort_by(|(a, _), (b, _)| (&a.schema, &a.name).cmp(&(&b.schema, &b.name)));
    sources
}

fn sources(engine: &Engine) -> Vec<ArrayRef> {
    let seen = seen(engine);
    let connector = |object: &Object| match &object.definition {
        Definition::Table(table) => table.connector.clone().unwrap_or_default(),
        _ => String::new(),
    };
    let jobs = engine.jobs();
    let status = |object: &Object| jobs.iter().find(|job| job.id == object.id).map_or("FAILED", |job| job.status);
    let reasons =
        |seen: &Seen| seen.bad.iter().map(|(reason, rows)| format!("{reason}={rows}")).collect::<Vec<_>>().join(", ");
    // One split whose end is not known leaves the whole open.
    let lag = |seen: &Seen| seen.splits.values().map(SplitProgress::lag).sum::<Option<u64>>();
    vec![
        texts(seen.iter().map(|(object, _)| &object.schema)),
        texts(seen.iter().map(|(object, _)| &object.name)),
        texts(seen.iter().map(|(object, _)| connector(object))),
        texts(seen.iter().map(|(object, _)| status(object))),
        numbers(seen.iter().map(|(_, seen)| Some(seen.rows))),
        numbers(seen.iter().map(|(_, seen)| Some(seen.bad.values().sum()))),
        texts(seen.iter().map(|(_, seen)| reasons(seen))),
        numbers(seen.iter().map(|(_, seen)| Some(seen.splits.len() as u64))),
        numbers(seen.iter().map(|(_, seen)| Some(seen.splits.values().map(SplitProgress::read).sum()))),
        numbers(seen.iter().map(|(_, seen)| lag(seen))),
    ]
}

fn splits(engine: &Engine) -> Vec<ArrayRef> {
    let seen = seen(engine);
    let rows: Vec<_> =
        seen.iter().flat_map(|(object, seen)| seen.splits.iter().map(move |split| (object, split))).collect();
    vec![
        texts(rows.iter().map(|(object, _)| &object.schema)),
        texts(rows.iter().map(|(object, _)| &object.name)),
        texts(rows.iter().map(|(_, (split, _))| split.as_str())),
        numbers(rows.iter().map(|(_, (_, progress))| Some(progress.offset.0))),
        numbers(rows.iter().map(|(_, (_, progress))| progress.size.map(|size| size.0))),
        numbers(rows.iter().map(|(_, (_, progress))| progress.lag())),
        times(rows.iter().map(|(_, (_, progress))| progress.time)),
    ]
}

/// How far event time is of tables, and of what jobs know.
fn watermarks(engine: &Engine) -> Vec<ArrayRef> {
    let catalog = engine.catalog();
    let mut seen: Vec<(Arc<Object>, Arc<Object>, SeenTime)> = engine
        .coordinator()
        .event_times()
        .into_iter()
        .filter_map(|seen| {
            let (object, of) = (catalog.get(seen.relation)?, catalog.get(seen.of)?);
            Some((Arc::clone(object), Arc::clone(of), seen))
        })
        .collect();
    seen.sort_by(|(a, of_a, seen_a), (b, of_b, seen_b)| {
        (&a.schema, &a.name, &of_a.name, seen_a.column).cmp(&(&b.schema, &b.name, &of_b.name, seen_b.column))
    });
    let column = |of: &Object, seen: &SeenTime| {
        let schema = of.row_schema();
        schema.and_then(|schema| Some(schema.fields().get(seen.column)?.name().clone())).unwrap_or_default()
    };
    let shown = |watermark: Watermark| match watermark {
        Watermark::NONE | Watermark::END => None,
        other => Some(other.as_micros()),
    };
    let release = |of: &Object, seen: &SeenTime| match (seen.watermark, &seen.split) {
        (Watermark::END, _) => "nothing holds it: the source has ended".to_owned(),
        (Watermark::NONE, None) => "a row with an event time".to_owned(),
        (_, Some(split)) => format!("later rows in {split}, its end, or idle_timeout on the table"),
        (_, None) if seen.relation == seen.of => "a later row".to_owned(),
        (_, None) => format!("later rows in {}", of.qualified_name()),
    };
    let held_by = |seen: &SeenTime| seen.split.as_ref().map(|split| split.as_str().to_owned());
    let micros = seen.iter().map(|(_, _, seen)| shown(seen.watermark)).collect::<TimestampMicrosecondArray>();
    vec![
        texts(seen.iter().map(|(object, ..)| &object.schema)),
        texts(seen.iter().map(|(object, ..)| &object.name)),
        texts(seen.iter().map(|(object, ..)| object.kind.name())),
        texts(seen.iter().map(|(_, of, _)| of.qualified_name())),
        texts(seen.iter().map(|(_, of, seen)| column(of, seen))),
        Arc::new(micros.with_timezone("UTC")),
        times(seen.iter().map(|(_, _, seen)| seen.since)),
        Arc::new(seen.iter().map(|(_, _, seen)| held_by(seen)).collect::<StringArray>()),
        times(seen.iter().map(|(_, _, seen)| seen.split_since)),
        texts(seen.iter().map(|(_, of, seen)| release(of, seen))),
    ]
}
