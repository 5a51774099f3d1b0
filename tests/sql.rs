//! What SQL shows: runs every `sql-tests/**/*.slt` on a fresh server, with one worker and with three.
//!
//! A line `# --- kill and start again ---` kills the server and starts it on the same directory. An
//! error is matched as `SQLSTATE: message | hint: … | position: n`. NULL is `NULL`, an empty text is
//! `(empty)`, and runs of white space count as one space.
//!
//! `CLINK_TEST_STATE=rocksdb://{dir}` keeps state there, `{dir}` being a folder of each data directory.
//! `CLINK_SLT=part` runs the files whose path contains it. `CLINK_SLT_COMPLETE=1` writes what the
//! server answered into the files: review the difference before you keep it.

mod served;

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use served::{Connection, Failure, Server};
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Record, Runner};
use tokio_postgres::SimpleQueryMessage;

const RESTART: &str = "# --- kill and start again ---";
/// How long a part of a file may take.
const PART_WITHIN: Duration = Duration::from_secs(120);
/// Files that run at one time.
const AT_ONCE: usize = 2;

/// What sqllogictest speaks to.
struct Session(Connection);

#[async_trait]
impl AsyncDB for Session {
    type Error = Failure;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Failure> {
        let messages = self.0.client.simple_query(sql).await?;
        let mut columns = None;
        let mut rows = Vec::new();
        let mut count = 0;
        // The last statement's answer is the one that counts.
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(described) => {
                    columns = Some(described.len());
                    rows.clear();
                }
                SimpleQueryMessage::Row(row) => {
                    rows.push((0..row.len()).map(|column| shown(row.get(column))).collect());
                }
                SimpleQueryMessage::CommandComplete(changed) => count = changed,
                _ => {}
            }
        }
        Ok(match columns {
            Some(columns) => DBOutput::Rows { types: vec![DefaultColumnType::Text; columns], rows },
            None => DBOutput::StatementComplete(count),
        })
    }

    async fn shutdown(&mut self) {}

    fn engine_name(&self) -> &str {
        "clink"
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    fn error_sql_state(error: &Failure) -> Option<String> {
        error.code().map(str::to_owned)
    }
}

/// A value as the files have it.
fn shown(value: Option<&str>) -> String {
    match value {
        None => "NULL".to_owned(),
        Some("") => "(empty)".to_owned(),
        Some(text) => text.split_ascii_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// All files below a folder, in order of name.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder).expect("sql-tests can be read");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "slt") {
            found.push(path);
        }
    }
}

/// The parts between restarts, each with as many empty lines before it as make its line numbers
/// those of the file.
fn parts(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut lines = 0;
    for part in text.split(RESTART) {
        parts.push("\n".repeat(lines) + part);
        lines += part.matches('\n').count();
    }
    parts
}

/// Runs a file; the faults in it as text.
async fn run(path: &Path, workers: usize) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let name = path.display().to_string();
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let data = directory.path().join("data");
    std::fs::create_dir(&data).map_err(|error| error.to_string())?;
    let mut faults = String::new();
    for part in parts(&text) {
        let records = sqllogictest::parse_with_name::<DefaultColumnType>(&part, name.as_str())
            .map_err(|error| error.to_string())?;
        let server = Server::start(&data, workers);
        let ran = tokio::time::timeout(PART_WITHIN, run_records(&server, records)).await;
        server.kill();
        match ran {
            Ok(of_part) => faults.push_str(&of_part),
            Err(_) => {
                let _ = writeln!(faults, "{name}: not done within {PART_WITHIN:?}");
                break;
            }
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Runs all records, also those after a fault.
async fn run_records(server: &Server, records: Vec<Record<DefaultColumnType>>) -> String {
    let mut runner = Runner::new(|| async { server.connect().await.map(Session) });
    let mut faults = String::new();
    for record in records {
        if let Err(error) = runner.run_async(record).await {
            let _ = writeln!(faults, "{}\n", error.display(false));
        }
    }
    runner.shutdown_async().await;
    faults
}

/// Writes the answers into a file.
async fn complete(path: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let data = directory.path().join("data");
    std::fs::create_dir(&data).map_err(|error| error.to_string())?;
    let part_path = directory.path().join("part.slt");
    let mut completed = Vec::new();
    for part in text.split(RESTART) {
        std::fs::write(&part_path, part).map_err(|error| error.to_string())?;
        let server = Server::start(&data, 2);
        let mut runner = Runner::new(|| async { server.connect().await.map(Session) });
        runner
            .update_test_file(
                &part_path,
                " ",
                sqllogictest::default_validator,
                sqllogictest::default_normalizer,
                sqllogictest::default_column_validator,
            )
            .await
            .map_err(|error| error.to_string())?;
        runner.shutdown_async().await;
        drop(runner);
        server.kill();
        let part = std::fs::read_to_string(&part_path).map_err(|error| error.to_string())?;
        completed.push(part.trim_matches('\n').to_owned());
    }
    let text = completed.join(&format!("\n\n{RESTART}\n\n")) + "\n";
    std::fs::write(path, text).map_err(|error| error.to_string())
}

#[test]
fn sql_shows_what_the_files_say() {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("sql-tests"), &mut found);
    if let Ok(wanted) = std::env::var("CLINK_SLT") {
        found.retain(|path| path.display().to_string().contains(&wanted));
    }
    assert!(!found.is_empty(), "there are no files to run");
    let completing = std::env::var_os("CLINK_SLT_COMPLETE").is_some();
    let workers: &[usize] = if completing { &[2] } else { &[1, 3] };
    let todo = Mutex::new(
        found.iter().flat_map(|path| workers.iter().map(move |workers| (path, *workers))).collect::<VecDeque<_>>(),
    );
    let faults = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime of one thread starts");
                loop {
                    let next = todo.lock().expect("no thread panics with it").pop_front();
                    let Some((path, workers)) = next else { break };
                    let done = runtime
                        .block_on(async { if completing { complete(path).await } else { run(path, workers).await } });
                    if let Err(fault) = done {
                        let fault = format!("== {} with {workers} worker(s)\n{fault}", path.display());
                        faults.lock().expect("no thread panics with it").push(fault);
                    }
                }
            });
        }
    });
    let faults = faults.into_inner().expect("no thread panics with it");
    assert!(
        faults.is_empty(),
        "{} of {} runs failed\n{}",
        faults.len(),
        found.len() * workers.len(),
        faults.join("\n")
    );
}
