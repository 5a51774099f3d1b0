//! What the wires count, and how Prometheus reads it.

use std::sync::OnceLock;

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use crate::engine::{Engine, JobInfo};
use crate::types::{Limit, Limits, SqlState};

const SESSIONS: &str = "clink_pg_sessions";
const STATEMENTS: &str = "clink_sql_statements_total";
const ERRORS: &str = "clink_sql_errors_total";
const ROWS: &str = "clink_pg_rows_sent_total";
const LIMITS: &str = "clink_limit_hits_total";
const LIMIT_VALUES: &str = "clink_limit_value";
const BAD_MESSAGES: &str = "clink_pg_bad_messages_total";
const IDLE_BLOCKS: &str = "clink_pg_idle_blocks_ended_total";
const REQUESTS: &str = "clink_http_requests_total";
const JOB_ROWS_IN: &str = "clink_job_rows_in_total";
const JOB_ROWS_OUT: &str = "clink_job_rows_out_total";
const JOB_LAG: &str = "clink_job_lag_milliseconds";
const JOB_RUNNING: &str = "clink_job_running";

/// Where counts go: one place for the process, made when the first server starts.
fn exporter() -> Option<&'static PrometheusHandle> {
    static EXPORTER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    EXPORTER
        .get_or_init(|| {
            let handle = PrometheusBuilder::new().install_recorder().ok()?;
            describe_gauge!(SESSIONS, "Open sessions of PostgreSQL's protocol");
            describe_counter!(STATEMENTS, Unit::Count, "Statements that were run");
            describe_counter!(ERRORS, Unit::Count, "Errors sent, by the class of their SQLSTATE");
            describe_counter!(ROWS, Unit::Count, "Rows sent over PostgreSQL's protocol");
            describe_counter!(LIMITS, Unit::Count, "Limits that were hit, by name");
            describe_gauge!(LIMIT_VALUES, "What a limit is set to, in its unit");
            describe_counter!(BAD_MESSAGES, Unit::Count, "Messages of clients that the protocol does not allow");
            describe_counter!(IDLE_BLOCKS, Unit::Count, "Transaction blocks that were left alone for too long");
            describe_counter!(REQUESTS, Unit::Count, "HTTP requests");
            describe_gauge!(JOB_ROWS_IN, "Changed rows that a job took in since the start of the server");
            describe_gauge!(JOB_ROWS_OUT, "Changed rows that a job put out since the start of the server");
            describe_gauge!(JOB_LAG, Unit::Milliseconds, "How far a job's answer is behind the clock");
            describe_gauge!(JOB_RUNNING, "1 when the job runs or fills, 0 when it failed or is blocked");
            Some(handle)
        })
        .as_ref()
}

/// Begins to count; every limit shows its value, and that it was not hit yet.
pub(super) fn start(limits: &Limits) {
    let _ = exporter();
    for limit in Limit::ALL {
        gauge!(LIMIT_VALUES, "limit" => limit.name()).set(limits.get(*limit) as f64);
        counter!(LIMITS, "limit" => limit.name()).increment(0);
    }
}

/// So many sessions are open.
pub(super) fn sessions(open: usize) {
    gauge!(SESSIONS).set(open as f64);
}

/// A statement was run.
pub(super) fn statement() {
    counter!(STATEMENTS).increment(1);
}

/// An error was sent.
pub(super) fn error(code: SqlState) {
    let class = code.code().get(..2).unwrap_or("XX");
    counter!(ERRORS, "class" => class).increment(1);
}

/// Rows were sent.
pub(super) fn rows(count: u64) {
    counter!(ROWS).increment(count);
}

/// A limit was hit.
pub(super) fn limit_hit(limit: Limit) {
    counter!(LIMITS, "limit" => limit.name()).increment(1);
}

/// Bytes came that are no message.
pub(super) fn bad_message() {
    counter!(BAD_MESSAGES).increment(1);
}

/// A transaction block was left alone for too long.
pub(super) fn idle_block_ended() {
    counter!(IDLE_BLOCKS).increment(1);
}

/// A request came.
pub(super) fn request() {
    counter!(REQUESTS).increment(1);
}

/// Everything as Prometheus reads it.
pub(super) fn render(engine: &Engine) -> String {
    for JobInfo { name, kind, status, rows_in, rows_out, lag_millis, .. } in engine.jobs() {
        let labels = [("job", name), ("kind", kind.to_owned())];
        gauge!(JOB_ROWS_IN, &labels).set(rows_in as f64);
        gauge!(JOB_ROWS_OUT, &labels).set(rows_out as f64);
        gauge!(JOB_LAG, &labels).set(lag_millis as f64);
        gauge!(JOB_RUNNING, &labels).set(if matches!(status, "RUNNING" | "FILLING") { 1.0 } else { 0.0 });
    }
    exporter().map(PrometheusHandle::render).unwrap_or_default()
}
