//! `clink run`: a file of SQL, or a text, run to its end in a database of its own.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use clink::engine::{Answer, Engine, EngineConfig, Notice, Session, TransactionStatus};
use clink::env::{Env, Step};
use clink::types::text::{Column, JsonObjects};
use clink::types::{Error, Limits, SqlState};
use futures::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::{LogLevel, StopSignals, default_workers, init_logs, memory, one_line, progress};

#[derive(Debug, Args)]
#[group(skip)]
#[command(override_usage = "clink run [OPTIONS] <FILE.sql | -e SQL>")]
pub(super) struct RunFlags {
    /// A file of SQL statements.
    #[arg(value_name = "FILE.sql", required_unless_present = "execute", conflicts_with = "execute")]
    file: Option<PathBuf>,
    /// SQL statements.
    #[arg(short = 'e', long, value_name = "SQL")]
    execute: Option<String>,
    /// How rows are printed.
    #[arg(long, env = "CLINK_OUTPUT", value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    output: Output,
    /// Worker threads, 1 to 128 [default: the number of cores].
    #[arg(long, env = "CLINK_WORKERS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=128))]
    workers: Option<u16>,
    /// The budget of memory, such as 4GiB or 512MB [default: 70 % of the machine or its cgroup].
    #[arg(long, env = "CLINK_MEMORY", value_name = "SIZE", value_parser = memory::parse_size)]
    memory: Option<u64>,
    /// How much to log on stderr.
    #[arg(long, env = "CLINK_LOG", value_enum, default_value_t = LogLevel::Warn, value_name = "LEVEL")]
    pub(super) log: LogLevel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Columns side by side.
    Table,
    /// One object a line.
    Json,
    /// With a header.
    Csv,
}

/// Runs the statements; inputs with an end are read to it. Rows go to stdout, all else to stderr.
///
/// # Errors
/// The first statement's that fails, or a job's.
pub(super) async fn run(flags: RunFlags) -> Result<(), Error> {
    init_logs(flags.log);
    let mut stop = StopSignals::new()?;
    let text = match (&flags.execute, &flags.file) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read(file)?,
        (None, None) => return Err(Error::internal("neither a file nor a text")),
    };
    let directory = tempfile::tempdir()?;
    let config = EngineConfig {
        data_dir: directory.path().to_owned(),
        workers: default_workers(flags.workers),
        memory_bytes: flags.memory.unwrap_or_else(memory::default_budget),
        limits: Limits::default(),
        checkpoints: None,
    };
    let engine = Engine::open(config, Env::system()).await?;
    let cancel = CancellationToken::new();
    let ended = tokio::select! {
        ended = statements(&engine, &text, flags.output, &cancel) => ended,
        () = stop.wait() => Err(Error::new(SqlState::QueryCanceled, "interrupted")),
    };
    engine.close().await;
    ended
}

fn read(file: &Path) -> Result<String, Error> {
    let named = |error: Error| error.detail(format!("The file is \"{}\".", file.display()));
    let bytes = std::fs::read(file).map_err(|error| named(Error::from(error)))?;
    String::from_utf8(bytes).map_err(|error| {
        let message = format!("the file is not UTF-8: byte {} is wrong", error.utf8_error().valid_up_to() + 1);
        named(Error::new(SqlState::CharacterNotInRepertoire, message).hint("Save it in UTF-8."))
    })
}

async fn statements(
    engine: &std::sync::Arc<Engine>,
    text: &str,
    output: Output,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let mut session = engine.session();
    let located = |error: Error| located(error, text);
    let parsed = session.parse(text).map_err(located)?;
    let mut printed = false;
    let mut last_view = None;
    for statement in &parsed {
        if statement.is_query() {
            drained(engine).await?;
        }
        last_view = statement.created_view().or(last_view);
        printed |= statement.is_query();
        let answer = session.execute(statement, cancel).await.map_err(located)?;
        print(answer, output).await?;
    }
    drained(engine).await?;
    if session.status() != TransactionStatus::Idle {
        eprintln!("WARNING: the transaction block is still open: nothing of it was applied");
        eprintln!("HINT: Write COMMIT at its end.");
    }
    if let (false, Some(view)) = (printed, last_view) {
        whole(&mut session, &view, output, cancel).await?;
    }
    Ok(())
}

/// Waits until all input is read, and shows how far that is.
async fn drained(engine: &Engine) -> Result<(), Error> {
    progress::shown(engine.drained(), || {
        let (done, total) = engine.input_read()?;
        Some(Step { what: "reading", done, total })
    })
    .await
}

/// Prints a view.
async fn whole(session: &mut Session, view: &str, output: Output, cancel: &CancellationToken) -> Result<(), Error> {
    for statement in session.parse(&format!("SELECT * FROM {view}"))? {
        let answer = session.execute(&statement, cancel).await?;
        print(answer, output).await?;
    }
    Ok(())
}

pub(super) async fn print(answer: Answer, output: Output) -> Result<(), Error> {
    match answer {
        Answer::Done { notices, .. } => {
            tell(&notices);
            Ok(())
        }
        Answer::Rows { schema, mut rows, notices, .. } => {
            tell(&notices);
            let mut printer = Printer::new(output, &schema);
            while let Some(batch) = rows.next().await {
                printer.rows(&batch.map_err(clink::engine::error_of)?)?;
            }
            printer.end()
        }
        Answer::CopyOut { .. } | Answer::CopyIn(_) => Err(Error::unsupported("COPY in clink run is not supported")
            .hint("Write SELECT for rows out, and read files with a table WITH (connector = 'file', …).")),
    }
}

/// Prints rows, of which there is at least an empty batch.
pub(super) fn print_batches(batches: &[arrow::array::RecordBatch], output: Output) -> Result<(), Error> {
    let Some(first) = batches.first() else { return Ok(()) };
    let mut printer = Printer::new(output, &first.schema());
    batches.iter().try_for_each(|batch| printer.rows(batch))?;
    printer.end()
}

fn tell(notices: &[Notice]) {
    for notice in notices {
        eprintln!("NOTICE: {}", notice.message);
        if let Some(hint) = &notice.hint {
            eprintln!("HINT: {hint}");
        }
    }
}

/// The error with the line that its position is in.
fn located(error: Error, text: &str) -> Error {
    let Some(position) = error.position_at() else { return error };
    let before: String = text.chars().take(position.saturating_sub(1)).collect();
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let column = before[start..].chars().count() + 1;
    let detail = error.detail_text().map(|detail| format!("{detail} ")).unwrap_or_default();
    error.detail(format!("{detail}Line {line}, column {column}"))
}

/// Rows of a table that are kept to find how wide its columns are; what follows is printed as wide.
const TABLE_ROWS_MEASURED: usize = 1_000;

pub(super) struct Printer {
    output: Output,
    names: Vec<String>,
    objects: JsonObjects,
    /// The first rows of a table.
    measured: Vec<Vec<String>>,
    widths: Vec<usize>,
    count: usize,
    out: Vec<u8>,
}

impl Printer {
    pub(super) fn new(output: Output, schema: &arrow::datatypes::Schema) -> Printer {
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let widths = names.iter().map(|name| name.chars().count()).collect();
        let mut printer = Printer {
            output,
            objects: JsonObjects::new(schema),
            names,
            measured: Vec::new(),
            widths,
            count: 0,
            out: Vec::new(),
        };
        if output == Output::Csv {
            let names: Vec<String> = printer.names.iter().map(|name| csv_field(name)).collect();
            printer.out.extend_from_slice(names.join(",").as_bytes());
            printer.out.push(b'\n');
        }
        printer
    }

    pub(super) fn rows(&mut self, batch: &arrow::array::RecordBatch) -> Result<(), Error> {
        let columns = JsonObjects::columns(batch)?;
        for row in 0..batch.num_rows() {
            match self.output {
                Output::Json => {
                    self.objects.print(&columns, row, &mut self.out);
                    self.out.push(b'\n');
                }
                Output::Csv => {
                    let fields: Vec<String> = columns
                        .iter()
                        .map(|column| if column.is_null(row) { String::new() } else { csv_field(&text(column, row)) })
                        .collect();
                    self.out.extend_from_slice(fields.join(",").as_bytes());
                    self.out.push(b'\n');
                }
                Output::Table => {
                    let fields: Vec<String> = columns
                        .iter()
                        .map(|column| if column.is_null(row) { String::new() } else { text(column, row) })
                        .collect();
                    if self.count < TABLE_ROWS_MEASURED {
                        for (width, field) in self.widths.iter_mut().zip(&fields) {
                            *width = (*width).max(field.chars().count());
                        }
                        self.measured.push(fields);
                    } else {
                        self.begin_table();
                        self.line(&fields);
                    }
                }
            }
            self.count += 1;
        }
        self.flush()
    }

    fn begin_table(&mut self) {
        if self.measured.is_empty() && self.count > 0 {
            return;
        }
        let names = self.names.clone();
        self.line(&names);
        let rule: Vec<String> = self.widths.iter().map(|width| "-".repeat(width + 2)).collect();
        self.out.extend_from_slice(rule.join("+").as_bytes());
        self.out.push(b'\n');
        for fields in std::mem::take(&mut self.measured) {
            self.line(&fields);
        }
    }

    fn line(&mut self, fields: &[String]) {
        let mut cells = Vec::with_capacity(fields.len());
        for (field, width) in fields.iter().zip(&self.widths) {
            cells.push(format!(" {field:<width$} "));
        }
        self.out.extend_from_slice(cells.join("|").trim_end().as_bytes());
        self.out.push(b'\n');
    }

    pub(super) fn end(mut self) -> Result<(), Error> {
        if self.output == Output::Table {
            self.begin_table();
            let rows = if self.count == 1 { "row" } else { "rows" };
            self.out.extend_from_slice(format!("({} {rows})\n", self.count).as_bytes());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Error> {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&self.out)?;
        stdout.flush()?;
        self.out.clear();
        Ok(())
    }
}

fn text(column: &Column, row: usize) -> String {
    let mut out = Vec::new();
    column.write_text(row, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

fn csv_field(text: &str) -> String {
    if !text.is_empty() && !text.contains([',', '"', '\n', '\r']) {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Tells of an error on stderr.
pub(super) fn report(error: &Error) {
    eprintln!("clink: {} ({})", one_line(error), error.code().code());
}
