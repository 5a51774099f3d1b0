//! The routes described for programs: OpenAPI 3.1.

use axum::Json;
use serde_json::{Value, json};

/// `GET /api/v1/openapi.json`.
pub(super) async fn openapi() -> Json<Value> {
    Json(document())
}

fn answer(description: &str, content_type: &str, schema: Value) -> Value {
    json!({ "description": description, "content": { content_type: { "schema": schema } } })
}

fn errors() -> Value {
    let schema = json!({ "$ref": "#/components/schemas/Error" });
    answer("What went wrong", "application/json", schema)
}

fn get(summary: &str, parameters: Value, content_type: &str) -> Value {
    json!({ "get": {
        "summary": summary,
        "parameters": parameters,
        "responses": { "200": answer("The answer", content_type, json!({})), "default": errors() },
    } })
}

fn document() -> Value {
    let json_type = "application/json";
    let arrow = "application/vnd.apache.arrow.stream";
    let view = json!({ "name": "view", "in": "path", "required": true, "schema": { "type": "string" },
        "description": "v in the schema public, else schema.v" });
    let query = |name: &str, kind: &str, description: &str| json!({ "name": name, "in": "query", "schema": { "type": kind }, "description": description });
    let scan = json!([
        view,
        query("columns", "string", "Names with commas between; all when absent"),
        query("filter", "string", "A predicate in SQL"),
        query("limit", "integer", "The most rows"),
        query("cursor", "string", "Where another answer ended"),
        query("as_of", "integer", "Exactly this time, in milliseconds of clink's clock"),
    ]);
    json!({
        "openapi": "3.1.0",
        "info": { "title": "clink", "version": env!("CARGO_PKG_VERSION") },
        "paths": {
            "/api/v1/health": get("That the server is there", json!([]), json_type),
            "/api/v1/jobs": get("All jobs", json!([]), json_type),
            "/api/v1/openapi.json": get("This document", json!([]), json_type),
            "/api/v1/sql": { "post": {
                "summary": "Runs statements; the answer is that of the last one",
                "requestBody": { "required": true, "content": {
                    "text/plain": { "schema": { "type": "string" } },
                    json_type: { "schema": {
                        "type": "object",
                        "required": ["sql"],
                        "additionalProperties": false,
                        "properties": { "sql": { "type": "string" }, "params": { "type": "array" } },
                    } },
                } },
                "responses": {
                    "200": { "description": "Rows, one object a line, or what was done", "content": {
                        "application/x-ndjson": { "schema": {} },
                        json_type: { "schema": {} },
                        arrow: { "schema": {} },
                    } },
                    "default": errors(),
                },
            } },
            "/api/v1/views": get("All materialized views", json!([]), json_type),
            "/api/v1/views/{view}": get(
                "A view, or one of its rows",
                json!([view, query("key", "string", "The key; key.<column> for each column of a key of several")]),
                json_type,
            ),
            "/api/v1/views/{view}/changes": { "get": {
                "summary": "A view's rows, then its changes, for as long as the client reads",
                "parameters": [
                    view,
                    query("snapshot", "boolean", "Begin with the rows that are there; when absent: unless as_of is given"),
                    query("progress", "boolean", "Rows that tell how far it is, each with a token; true when absent"),
                    query("as_of", "string", "The token to go on from"),
                    query("up_to", "string", "The token at which it ends"),
                ],
                "responses": {
                    "200": { "description": "Changes, in the form of the Accept header", "content": {
                        "application/x-ndjson": { "schema": {} },
                        "text/event-stream": { "schema": {} },
                        arrow: { "schema": {} },
                    } },
                    "default": errors(),
                },
            } },
            "/api/v1/views/{view}/scan": get("A view's rows as JSON", scan.clone(), json_type),
            "/api/v1/views/{view}/scan.arrow": get("A view's rows as one Arrow IPC stream", scan, arrow),
            "/metrics": get("Counts, as Prometheus reads them", json!([]), "text/plain"),
        },
        "components": { "schemas": { "Error": {
            "type": "object",
            "required": ["error", "sqlstate"],
            "properties": {
                "error": { "type": "string" },
                "sqlstate": { "type": "string", "minLength": 5, "maxLength": 5 },
                "detail": { "type": ["string", "null"] },
                "hint": { "type": ["string", "null"] },
                "position": { "type": ["integer", "null"], "minimum": 1 },
            },
        } } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_tells_its_errors() {
        let document = document();
        let paths = document["paths"].as_object().expect("paths");
        assert_eq!(paths.len(), 10);
        for (path, methods) in paths {
            for method in methods.as_object().expect("methods").values() {
                assert!(method["responses"]["default"].is_object(), "{path}");
            }
        }
    }
}
