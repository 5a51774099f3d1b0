//! Arrows between the layers point one way: each file's `crate::` imports are held against the
//! table of the design.

use std::path::{Path, PathBuf};

/// Each layer and the paths that it may import besides its own; `exec::plan` allows that module
/// alone.
const ALLOWED: [(&str, &[&str]); 9] = [
    ("types", &[]),
    ("env", &["types"]),
    ("state", &["types", "env"]),
    ("exec", &["types", "env", "state"]),
    ("connectors", &["types", "env", "exec::source", "exec::sink", "state"]),
    ("catalog", &["types", "env", "exec::plan"]),
    (
        "sql",
        &[
            "types",
            "env",
            "catalog",
            "exec::plan",
            "exec::aggregate_types",
            "connectors::options",
            "connectors::OptionValue",
        ],
    ),
    ("engine", &["types", "env", "sql", "connectors", "catalog", "exec", "state"]),
    ("server", &["types", "env", "engine"]),
];

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The text without line comments, whose links may name any layer.
fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Every path behind `crate::`, groups taken apart one level: `crate::{a::b, c}` is `a::b` and `c`.
fn crate_paths(text: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        // `$crate::` of a macro and names that end in `crate` are something else.
        if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        expand(&text[at + "crate::".len()..], "", &mut paths);
    }
    paths
}

/// Reads one path, or the members of a group, at the start of `text`; gives what is left.
fn expand<'a>(text: &'a str, prefix: &str, paths: &mut Vec<String>) -> &'a str {
    let mut path = prefix.to_owned();
    let mut rest = text.trim_start();
    loop {
        if let Some(mut group) = rest.strip_prefix('{') {
            loop {
                group = expand(group, &path, paths).trim_start();
                match group.strip_prefix(',') {
                    Some(next) if next.trim_start().starts_with('}') => return &next.trim_start()[1..],
                    Some(next) => group = next,
                    None => return group.strip_prefix('}').unwrap_or(group),
                }
            }
        }
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(rest.len());
        path.push_str(&rest[..end]);
        rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(next) => {
                path.push_str("::");
                rest = next;
            }
            None => break,
        }
    }
    paths.push(path);
    // An alias is part of the member.
    rest.find([',', '}', ';', ')', '\n']).map_or("", |end| &rest[end..])
}

fn is_allowed(layer: &str, allowed: &[&str], path: &str) -> bool {
    let first = path.split("::").next().unwrap_or_default();
    let is_layer = ALLOWED.iter().any(|(name, _)| *name == first);
    let within = |place: &str| path == place || path.strip_prefix(place).is_some_and(|rest| rest.starts_with("::"));
    !is_layer || first == layer || allowed.iter().any(|place| within(place))
}

#[test]
fn imports_point_down() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut faults = Vec::new();
    for (layer, allowed) in ALLOWED {
        let mut files = Vec::new();
        rust_files(&root.join(layer), &mut files);
        assert!(!files.is_empty(), "no sources in {layer}");
        for file in files {
            let text = without_comments(&std::fs::read_to_string(&file).expect("UTF-8"));
            for path in crate_paths(&text) {
                if !is_allowed(layer, allowed, &path) {
                    faults.push(format!("{}: {layer} must not import crate::{path}", file.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn groups_are_taken_apart() {
    let text =
        "use crate::{types::{Error, Time as T}, exec::plan};\nfn f() -> crate::sql::Statement {}\nuse $crate::x;";
    assert_eq!(crate_paths(text), ["types::Error", "types::Time", "exec::plan", "sql::Statement"]);
    assert!(is_allowed("sql", &["exec::plan"], "exec::plan::JobPlan"));
    assert!(!is_allowed("sql", &["exec::plan"], "exec::source::Source"));
    assert!(!is_allowed("state", &[], "exec::plan"));
}
