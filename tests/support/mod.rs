//! An engine in this process, and what SQL says of it.
#![allow(dead_code, reason = "each test takes what it needs")]

mod state;

use std::path::Path;
use std::sync::Arc;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use clink::engine::{Answer, CheckpointConfig, Engine, EngineConfig, Session};
use clink::env::Env;
use clink::types::{Error, Limits, Result};
use futures::StreamExt;
use state::state_backend;
use tokio_util::sync::CancellationToken;

/// A row, each value as text; NULL is `∅`.
pub(crate) type Row = Vec<String>;

/// An engine and a session of it.
pub(crate) struct Database {
    pub(crate) engine: Arc<Engine>,
    pub(crate) session: Session,
}

impl Database {
    /// Opens the database of a directory.
    pub(crate) async fn open(directory: &Path, workers: usize, env: Env) -> Database {
        Database::open_with(directory, workers, env, |_| {}).await.expect("opens")
    }

    /// Likewise, with other settings of checkpoints than none but on demand.
    pub(crate) async fn open_with(
        directory: &Path,
        workers: usize,
        env: Env,
        change: impl FnOnce(&mut CheckpointConfig),
    ) -> Result<Database> {
        let mut checkpoints = CheckpointConfig::below(directory);
        checkpoints.interval = None;
        if let Some(uri) = state_backend(directory) {
            checkpoints.state_backend = uri;
        }
        change(&mut checkpoints);
        let checkpoints = Some(checkpoints);
        let config = EngineConfig {
            data_dir: directory.to_owned(),
            workers,
            memory_bytes: 1 << 30,
            limits: Limits::default(),
            checkpoints,
        };
        let engine = Engine::open(config, env).await?;
        let session = engine.session();
        Ok(Database { engine, session })
    }

    /// Runs a text of statements; the rows of the last one.
    pub(crate) async fn try_run(&mut self, sql: &str) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for statement in self.session.parse(sql)? {
            rows.clear();
            if let Answer::Rows { rows: mut stream, .. } =
                self.session.execute(&statement, &CancellationToken::new()).await?
            {
                while let Some(batch) = stream.next().await {
                    let batch = batch.map_err(clink::engine::error_of)?;
                    let options = FormatOptions::default().with_null("∅");
                    let columns: Vec<ArrayFormatter<'_>> = batch
                        .columns()
                        .iter()
                        .map(|column| ArrayFormatter::try_new(column, &options).expect("printable"))
                        .collect();
                    for row in 0..batch.num_rows() {
                        rows.push(columns.iter().map(|column| column.value(row).to_string()).collect());
                    }
                }
            }
        }
        Ok(rows)
    }

    /// Runs statements that succeed.
    pub(crate) async fn run(&mut self, sql: &str) -> Vec<Row> {
        match self.try_run(sql).await {
            Ok(rows) => rows,
            Err(error) => panic!("{sql}\n{error:?}"),
        }
    }

    /// Runs statements that fail.
    pub(crate) async fn fail(&mut self, sql: &str) -> Error {
        match self.try_run(sql).await {
            Ok(rows) => panic!("{sql}\nsucceeded with {rows:?}"),
            Err(error) => error,
        }
    }
}

/// Rows in an order that does not depend on how they came; doubles to nine digits.
pub(crate) fn canonical(mut rows: Vec<Row>) -> Vec<Row> {
    for value in rows.iter_mut().flatten() {
        if value.contains(['.', 'e'])
            && let Ok(number) = value.parse::<f64>()
        {
            *value = format!("{number:.9e}");
        }
    }
    rows.sort_unstable();
    rows
}

/// The whole of a length that a long run multiplies.
pub(crate) fn steps(short: usize, long: usize) -> usize {
    let long_run = std::env::var("CLINK_LONG").is_ok_and(|value| !value.is_empty() && value != "0");
    if long_run { long } else { short }
}
