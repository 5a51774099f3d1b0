//! The router and its listener.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use super::{changes, connections, openapi, queryable, routes, sql};
use crate::engine::Engine;
use crate::env::Env;
use crate::server::metrics;

/// What the routes share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
    pub(super) env: Env,
    pub(super) started_millis: u64,
    /// Where this server listens.
    pub(super) address: SocketAddr,
}

/// Serves until `stop` fires and the requests have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    engine: Arc<Engine>,
    env: Env,
    stop: CancellationToken,
) {
    let started_millis = env.now_millis();
    let limits = Arc::clone(engine.limits());
    let router = router(Shared { engine, env, started_millis, address });
    connections::serve(listener, router, limits, stop).await;
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/api/v1/health", get(routes::health))
        .route("/api/v1/jobs", get(routes::jobs))
        .route("/api/v1/jobs/{job}/operators", get(routes::operators))
        .route("/api/v1/jobs/{job}/operators/{operator}", get(routes::operator))
        .route("/api/v1/jobs/{job}/operators/{operator}/scan.arrow", get(routes::operator_arrow))
        .route("/api/v1/sql", post(sql::sql))
        .route("/api/v1/openapi.json", get(openapi::openapi))
        .route("/metrics", get(metrics_text))
        .route("/api/v1/views", get(routes::views))
        .route("/api/v1/views/{view}", get(routes::view))
        .route("/api/v1/views/{view}/changes", get(changes::changes))
        .route("/api/v1/views/{view}/scan", get(routes::scan))
        .route("/api/v1/views/{view}/scan.arrow", get(routes::scan_arrow))
        .merge(queryable_routes())
        .fallback(not_found)
        .method_not_allowed_fallback(wrong_method)
        // The one route that takes a body reads it within limits of its own.
        .layer(DefaultBodyLimit::disable())
        .layer(from_fn(count))
        .with_state(shared)
}

/// The routes of live state by job, operator and slot.
fn queryable_routes() -> Router<Shared> {
    const STATE: &str = "/api/v1/queryable_state";
    let at = |path: &str| format!("{STATE}{path}");
    Router::new()
        .route(STATE, get(queryable::slots))
        .route(&at("/{slot}"), get(queryable::byte_slot))
        .route(&at("/op/{role}/subtask/{subtask}/slot/{slot}"), get(queryable::subtask_slot))
        .route(&at("/op/{role}/subtask/{subtask}/json/{slot}"), get(queryable::subtask_row))
        .route(&at("/op/{role}/subtask/{subtask}/json/{slot}/scan"), get(queryable::subtask_scan))
        .route(&at("/op/{role}/subtask/{subtask}/json/{slot}/scan.arrow"), get(queryable::subtask_scan_arrow))
        .route(&at("/job/{job}/workers"), get(queryable::workers))
        .route(&at("/job/{job}/topology_version"), get(queryable::topology_version))
        .route(&at("/job/{job}/op/{role}/route"), get(queryable::route))
        .route(&at("/job/{job}/op/{role}/json/{slot}"), get(queryable::job_row))
        .route(&at("/job/{job}/op/{role}/json/{slot}/scan"), get(queryable::job_scan))
        .route(&at("/job/{job}/op/{role}/json/{slot}/scan.arrow"), get(queryable::job_scan_arrow))
        .route("/api/v1/state/export/job/{job}", get(queryable::export))
}

/// Everything that is counted, as Prometheus reads it.
async fn metrics_text(State(shared): State<Shared>) -> Response {
    let text = metrics::render(&shared.engine);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

async fn count(request: Request, next: Next) -> Response {
    metrics::request();
    next.run(request).await
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::not_found(format!("no such route: {}", uri.path())).hint(
        "Routes: /api/v1/health, /api/v1/jobs, /api/v1/jobs/{job}/operators/{operator}, /api/v1/openapi.json, /api/v1/sql, /api/v1/views, /api/v1/views/{view}, \
         /api/v1/views/{view}/changes, /api/v1/views/{view}/scan, /api/v1/views/{view}/scan.arrow, \
         /api/v1/queryable_state…, /api/v1/state/export/job/{job}, /metrics.",
    )
}

async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let hint = if uri.path() == "/api/v1/sql" { "Use POST, with the SQL as the body." } else { "Use GET." };
    ApiError::wrong_method(format!("{method} is not offered on {}", uri.path())).hint(hint)
}
