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
        query("key.{column}", "string", "Only rows with this value in the column"),
        query("order", "string", "Names with commas between, each with desc behind it or not; without a cursor then"),
        query("limit", "integer", "The most rows"),
        query("cursor", "string", "Where another answer ended"),
        query("as_of", "integer", "Exactly this time, in milliseconds of clink's clock"),
    ]);
    let mut document = json!({
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
                json!([
                    view,
                    query("key", "string", "The key; key.<column> for each column of a key of several"),
                    query("columns", "string", "Names with commas between; all when absent"),
                    query("filter", "string", "A predicate in SQL that the row has to fulfil"),
                    query("as_of", "integer", "Exactly this time, in milliseconds of clink's clock"),
                ]),
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
    });
    if let Some(paths) = document.get_mut("paths").and_then(Value::as_object_mut) {
        paths.extend(queryable_state());
    }
    document
}

/// The routes of live state by job, operator and slot.
fn queryable_state() -> Vec<(String, Value)> {
    let (json_type, arrow) = ("application/json", "application/vnd.apache.arrow.stream");
    let in_path = |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let query = |name: &str, kind: &str, description: &str| json!({ "name": name, "in": "query", "required": name == "key", "schema": { "type": kind }, "description": description });
    let hex = || query("key", "string", "The encoded key, two hex digits for each byte");
    let missing = || query("treat_missing_as_404", "boolean", "false: a key that is not there is answered with null");
    let text = || query("key", "string", "JSON literals of the key's columns with the byte 0x1F between them");
    let limit = || query("limit", "integer", "1000 when absent, 100000 at most");
    let of_subtask = || vec![in_path("role"), in_path("subtask"), in_path("slot")];
    let of_job = || vec![in_path("job"), in_path("role"), in_path("slot")];
    let with = |mut list: Vec<Value>, more: Vec<Value>| {
        list.extend(more);
        Value::from(list)
    };
    let subtask = "/op/{role}/subtask/{subtask}";
    let job = "/job/{job}/op/{role}";
    let routes = [
        (String::new(), "All slots, as role:subtask:slot", json!([]), json_type),
        ("/{slot}".to_owned(), "A value as bytes", json!([in_path("slot"), hex(), missing()]), json_type),
        (format!("{subtask}/slot/{{slot}}"), "A value as bytes", with(of_subtask(), vec![hex(), missing()]), json_type),
        (format!("{subtask}/json/{{slot}}"), "A row", with(of_subtask(), vec![text()]), json_type),
        (format!("{subtask}/json/{{slot}}/scan"), "Rows of a subtask", with(of_subtask(), vec![limit()]), json_type),
        (format!("{subtask}/json/{{slot}}/scan.arrow"), "Rows of a subtask", with(of_subtask(), vec![limit()]), arrow),
        ("/job/{job}/workers".to_owned(), "Who runs a job", json!([in_path("job")]), json_type),
        ("/job/{job}/topology_version".to_owned(), "Grows when keys move", json!([in_path("job")]), json_type),
        (format!("{job}/route"), "Who has a key", json!([in_path("job"), in_path("role"), hex()]), json_type),
        (format!("{job}/json/{{slot}}"), "A row", with(of_job(), vec![text()]), json_type),
        (format!("{job}/json/{{slot}}/scan"), "Rows of all subtasks", with(of_job(), vec![limit()]), json_type),
        (format!("{job}/json/{{slot}}/scan.arrow"), "Rows of all subtasks", with(of_job(), vec![limit()]), arrow),
    ];
    let mut paths: Vec<(String, Value)> = routes
        .into_iter()
        .map(|(path, summary, parameters, content)| {
            (format!("/api/v1/queryable_state{path}"), get(summary, parameters, content))
        })
        .collect();
    let rows = || {
        let part = query("part", "string", "The part of its state, where there are several: left, right");
        let columns = query("columns", "string", "Names with commas between; all when absent");
        let filter = query("filter", "string", "A predicate in SQL");
        let limit = query("limit", "integer", "The most rows");
        let order = query(
            "order",
            "string",
            "Columns with commas between, each with desc behind it when the greatest comes first",
        );
        json!([in_path("job"), in_path("operator"), part, columns, filter, order, limit])
    };
    let operator = "/api/v1/jobs/{job}/operators/{operator}";
    let list = get("The operators of a job that keep state", json!([in_path("job")]), json_type);
    paths.push(("/api/v1/jobs/{job}/operators".to_owned(), list));
    paths.push((operator.to_owned(), get("Rows of an operator's state", rows(), json_type)));
    paths.push((format!("{operator}/scan.arrow"), get("The same as one Arrow IPC stream", rows(), arrow)));
    let export = get("A job's state as one canonical Arrow stream", json!([in_path("job")]), arrow);
    paths.push(("/api/v1/state/export/job/{job}".to_owned(), export));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_tells_its_errors() {
        let document = document();
        let paths = document["paths"].as_object().expect("paths");
        assert_eq!(paths.len(), 26);
        for (path, methods) in paths {
            for method in methods.as_object().expect("methods").values() {
                assert!(method["responses"]["default"].is_object(), "{path}");
            }
        }
    }
}
