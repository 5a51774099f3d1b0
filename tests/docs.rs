//! The examples of the documents run as they stand.
//!
//! A block marked `sql` runs without an error, one marked `sql,error:42P01` fails with that code; the
//! blocks of a file run in order on a fresh server. A block marked `sh` with `curl` in it runs in bash
//! with `CLINK_HTTP` set to the server's address; what it prints is JSON or nothing. A block marked
//! `json` is JSON.

mod served;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use served::Server;

/// How long a block may take.
const BLOCK_WITHIN: Duration = Duration::from_secs(60);

/// A fenced block: its mark, its text, and the line where the text starts.
struct Block {
    mark: String,
    text: String,
    line: usize,
}

/// The fenced blocks of a document.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in document.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(mark), None) => {
                open = Some(Block { mark: mark.trim().to_owned(), text: String::new(), line: index + 2 });
            }
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "the last block is not closed");
    blocks
}

/// Runs a shell script, for a bounded time.
fn shell(script: &str, http: &str, directory: &Path) -> Output {
    let child = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .env("CLINK_HTTP", http)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.expect("bash starts");
    let start = Instant::now();
    // The answers of the examples are small: they fit the pipe.
    while child.try_wait().expect("the child can be asked").is_none() {
        if start.elapsed() > BLOCK_WITHIN {
            let _ = child.kill();
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("the child has ended")
}

/// Runs a document's blocks; the faults in it.
async fn run(name: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let document = std::fs::read_to_string(&path).expect("the document is there");
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let server = Server::start(&data, 2);
    let connection = server.connect().await.expect("connects");
    let mut faults = Vec::new();
    let mut ran = 0;
    for block in blocks(&document) {
        let mut fault = |text: String| faults.push(format!("{name}:{}: {text}\n{}", block.line, block.text));
        let expected = block.mark.strip_prefix("sql,error:");
        if block.mark == "sql" || expected.is_some() {
            ran += 1;
            let answer = tokio::time::timeout(BLOCK_WITHIN, connection.client.simple_query(&block.text)).await;
            match (answer.map(|answer| answer.map_err(served::Failure::from)), expected) {
                (Err(_), _) => fault(format!("not done within {BLOCK_WITHIN:?}")),
                (Ok(Ok(_)), None) => {}
                (Ok(Ok(_)), Some(code)) => fault(format!("succeeded, not {code}")),
                (Ok(Err(failure)), Some(code)) if failure.code() == Some(code) => {}
                (Ok(Err(failure)), _) => fault(failure.to_string()),
            }
        } else if block.mark == "sh" && block.text.contains("curl") {
            ran += 1;
            let output = shell(&block.text, &server.http, directory.path());
            let answer = String::from_utf8_lossy(&output.stdout);
            if !output.status.success() {
                fault(format!("{}: {answer}{}", output.status, String::from_utf8_lossy(&output.stderr)));
            } else if !answer.trim().is_empty() && !is_json(&answer) {
                fault(format!("no JSON: {answer}"));
            }
        } else if block.mark == "json" && !is_json(&block.text) {
            fault("no JSON".to_owned());
        }
    }
    assert!(ran > 0, "{name} has no examples");
    faults
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(text).is_ok()
}

async fn check(name: &str) {
    let faults = run(name).await;
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test]
async fn the_readme_runs() {
    check("README.md").await;
}

#[tokio::test]
async fn the_sql_reference_runs() {
    check("docs/sql.md").await;
}

#[tokio::test]
async fn the_connectors_run() {
    check("docs/connectors.md").await;
}

#[tokio::test]
async fn the_http_reference_runs() {
    check("docs/http.md").await;
}

#[tokio::test]
async fn the_ways_to_live_state_run() {
    check("docs/queryable-state.md").await;
}
