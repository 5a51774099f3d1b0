//! What texts parse to, and how wrong ones are refused.

use super::*;
use crate::types::{Error, SqlState};

fn one(text: &str) -> StatementKind {
    let mut statements = parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}"));
    assert_eq!(statements.len(), 1, "{text}");
    statements.remove(0).kind
}

fn refused(text: &str) -> Error {
    match parse(text) {
        Ok(statements) => panic!("{text} was accepted: {statements:?}"),
        Err(error) => error,
    }
}

#[test]
fn texts_are_split_at_semicolons_with_their_places() {
    let text = " SELECT 1 ;\n;-- nothing\n;;  select ';' /* ; */ -- end\n";
    let statements = parse(text).expect("two statements");
    let shown: Vec<(usize, &str)> = statements.iter().map(|s| (s.offset, s.text.as_str())).collect();
    assert_eq!(shown, vec![(1, "SELECT 1"), (28, "select ';'")]);
    for empty in ["", ";", ";;;", "-- only a comment", "/* one */ ; -- two"] {
        assert!(parse(empty).expect(empty).is_empty(), "{empty}");
    }
    // Positions count characters, over lines and beyond ASCII, in the whole text.
    assert_eq!(refused("SELECT 'é€';\n SELEC 1").position_at(), Some(15));
    assert_eq!(refused("SELECT 1;\nSELECT 'é' FROM t u v").position_at(), Some(31));
}

#[test]
fn statements_become_what_they_say() {
    assert!(matches!(one("flush"), StatementKind::Flush));
    assert!(matches!(one("WAIT;"), StatementKind::Flush));
    assert!(matches!(
        one("start transaction isolation level read committed, read only"),
        StatementKind::Transaction(Transaction::Begin(TransactionModes { read_only: Some(true) }))
    ));
    assert!(matches!(one("end work and chain"), StatementKind::Transaction(Transaction::Commit { chain: true })));
    assert!(
        matches!(one("rollback to savepoint s"), StatementKind::Transaction(Transaction::RollbackTo(name)) if name == "s")
    );
    assert!(matches!(
        one("fetch forward 5 from c"),
        StatementKind::Cursor(CursorStatement::Fetch(Fetch { rows: Some(5), is_move: false, .. }))
    ));
    assert!(matches!(
        one("copy t (a, b) from stdin with csv header"),
        StatementKind::Copy(copy) if copy.options.header && copy.direction == CopyDirection::In
    ));
    assert!(matches!(one("(select 1) union all (values (2))"), StatementKind::Query(_)));
    assert!(matches!(one("table t"), StatementKind::Query(_)));
    assert!(matches!(one("with x as (select 1) select * from x"), StatementKind::Query(_)));
    assert!(matches!(
        one("insert into t (a) values (1) on conflict (a) do update set a = 2 returning a"),
        StatementKind::Insert(_)
    ));
    assert!(matches!(one("update t set a = a + 1 where b returning *"), StatementKind::Update(_)));
    assert!(matches!(one("delete from t where a = 1"), StatementKind::Delete(_)));
    assert!(matches!(one("truncate table s.t, u"), StatementKind::Truncate(names) if names.len() == 2));
    assert!(
        matches!(one("explain select 1"), StatementKind::Explain(explain) if matches!(*explain, Explain::Query(_)))
    );
    assert!(matches!(
        one("explain create materialized view v as select 1"),
        StatementKind::Explain(explain) if matches!(*explain, Explain::View(_))
    ));
    for (text, show) in [
        ("show tables", Show::Tables),
        ("SHOW VIEWS", Show::Views),
        ("SHOW MATERIALIZED VIEWS", Show::MaterializedViews),
        ("show jobs", Show::Jobs),
        ("show time zone", Show::Variable("timezone".into())),
        ("show TimeZone", Show::Variable("timezone".into())),
        ("show clink.read", Show::Variable("clink.read".into())),
        ("show all", Show::Variable("all".into())),
        (
            "show create materialized view S.\"V\"",
            Show::Create(
                ObjectKind::MaterializedView,
                Name { schema: Some("s".into()), name: "V".into(), position: 31 },
            ),
        ),
    ] {
        assert!(matches!(one(text), StatementKind::Show(found) if found == show), "{text}");
    }
    assert!(matches!(one("describe \"T\""), StatementKind::Describe(d) if d.name.name == "T"));
    for (text, name, value) in [
        ("SET rw_implicit_flush = true", "rw_implicit_flush", Some("true")),
        ("set streaming_parallelism = 4", "streaming_parallelism", Some("4")),
        ("SET search_path TO a, \"B\"", "search_path", Some("a, B")),
        ("set session x.y to 'a b'", "x.y", Some("a b")),
        ("set x = -1", "x", Some("-1")),
        ("set x to default", "x", None),
        ("reset x", "x", None),
        ("set time zone 'UTC'", "timezone", Some("UTC")),
        ("set names 'utf8'", "client_encoding", Some("utf8")),
    ] {
        let StatementKind::Set(set) = one(text) else { panic!("{text}") };
        assert_eq!((set.name.as_str(), set.value.as_deref()), (name, value), "{text}");
    }
    let StatementKind::Drop(drop) = one("DROP MATERIALIZED VIEW IF EXISTS a, S.b CASCADE") else { panic!("no drop") };
    assert_eq!((drop.kind, drop.if_exists, drop.cascade), (ObjectKind::MaterializedView, true, true));
    assert_eq!(drop.names.last().map(|name| (name.schema.as_deref(), name.name.as_str())), Some((Some("s"), "b")));
}

#[test]
fn tables_are_read_with_columns_keys_and_options() {
    let StatementKind::CreateTable(table) = one(
        "CREATE TABLE IF NOT EXISTS S.Orders (\n Id bigint, \"Note\" character varying(10) NOT NULL DEFAULT 'x' , \
         tags int[], m MAP<text, STRUCT<a int, b ARRAY<text>>>, CONSTRAINT pk PRIMARY KEY (\"Note\", ID)) APPEND ONLY \
         WITH (Connector = 'file', properties.group.id = 5, 'Quoted.Key' = true)",
    ) else {
        panic!("no table")
    };
    assert_eq!((table.name.schema.as_deref(), table.name.name.as_str()), (Some("s"), "orders"));
    assert!(table.if_not_exists && table.append_only);
    let columns: Vec<(&str, &str, bool)> =
        table.columns.iter().map(|c| (c.name.as_str(), c.sql_type.as_str(), c.nullable)).collect();
    assert_eq!(
        columns,
        vec![
            ("id", "bigint", false),
            ("Note", "character varying(10)", false),
            ("tags", "integer[]", true),
            ("m", "map<text, struct<a integer, b text[]>>", true),
        ]
    );
    assert_eq!(table.primary_key, vec![1, 0]);
    let options: Vec<(&str, &str)> =
        table.options.iter().map(|(key, value)| (key.as_str(), value.text.as_str())).collect();
    assert_eq!(options, vec![("connector", "file"), ("properties.group.id", "5"), ("quoted.key", "true")]);

    let words = "CREATE TABLE k(\"table\" TEXT, \"group\" INT, \"order\" INT, \"window\" INT, \"timestamp\" TIMESTAMP, \"user\" TEXT, \"end\" INT)";
    let StatementKind::CreateTable(table) = one(words) else { panic!("no table") };
    let names: Vec<&str> = table.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, vec!["table", "group", "order", "window", "timestamp", "user", "end"]);

    let StatementKind::CreateMaterializedView(view) =
        one("CREATE MATERIALIZED VIEW m(Low,\"High\") WITH (background = true) AS  SELECT 1,2 -- two")
    else {
        panic!("no view")
    };
    assert_eq!(view.columns, vec!["low", "High"]);
    assert!(view.background);
    assert_eq!(view.query_text, "SELECT 1,2");
}

/// Text, code, and where the error points.
const WRONG: &[(&str, SqlState, usize)] = &[
    ("SELEC 1", SqlState::SyntaxError, 1),
    ("SELECT FROM", SqlState::SyntaxError, 12),
    ("SELECT 1 +", SqlState::SyntaxError, 11),
    ("SELECT (1", SqlState::SyntaxError, 10),
    ("SELECT 'open", SqlState::SyntaxError, 8),
    ("CREATE TABEL t (a int)", SqlState::SyntaxError, 8),
    ("SELECT generate_series(1, 3)", SqlState::FeatureNotSupported, 8),
    ("SELECT date_format(ts, 'YYYY') FROM t", SqlState::FeatureNotSupported, 8),
    ("SELECT a FROM t EXCEPT BY NAME SELECT 2", SqlState::FeatureNotSupported, 32),
    ("SELECT a FROM t INTERSECT ALL BY NAME SELECT 2", SqlState::FeatureNotSupported, 39),
    ("CREATE TABLE t (a int,)", SqlState::SyntaxError, 23),
    ("CREATE TABLE t (a int) x", SqlState::SyntaxError, 24),
    ("CREATE TABLE t (a int, a text)", SqlState::DuplicateColumn, 24),
    ("CREATE TABLE t (a int primary key, b int primary key)", SqlState::InvalidTableDefinition, 42),
    ("CREATE TABLE t (a int, primary key (b))", SqlState::UndefinedColumn, 37),
    ("CREATE TABLE t (a intt)", SqlState::UndefinedObject, 19),
    ("CREATE TABLE t (a json)", SqlState::FeatureNotSupported, 19),
    ("CREATE TABLE t (a serial)", SqlState::FeatureNotSupported, 19),
    ("CREATE TABLE t (a int CHECK (a > 0))", SqlState::FeatureNotSupported, 23),
    ("CREATE TABLE t (a int UNIQUE)", SqlState::FeatureNotSupported, 23),
    ("CREATE TABLE t (a int REFERENCES o(id))", SqlState::FeatureNotSupported, 23),
    ("CREATE TABLE t (a int, UNIQUE (a))", SqlState::FeatureNotSupported, 24),
    ("CREATE TABLE t (a int, CHECK (a > 0))", SqlState::FeatureNotSupported, 24),
    ("CREATE TABLE t (a int, FOREIGN KEY (a) REFERENCES o)", SqlState::FeatureNotSupported, 24),
    ("CREATE TABLE t (a int, b int AS (a + 1))", SqlState::FeatureNotSupported, 30),
    ("CREATE TABLE t (a int, b int GENERATED ALWAYS AS IDENTITY)", SqlState::FeatureNotSupported, 30),
    ("CREATE TABLE t (ts timestamp, WATERMARK FOR tt AS ts)", SqlState::UndefinedColumn, 45),
    ("CREATE TABLE t (ts timestamp, WATERMARK FOR ts - 5)", SqlState::SyntaxError, 48),
    ("CREATE TABLE t (a timestamp, WATERMARK FOR a AS a, WATERMARK FOR a AS a)", SqlState::SyntaxError, 52),
    ("CREATE TABLE t (a timestamp) WITH (idle_timeout = '5 s')", SqlState::InvalidParameterValue, 36),
    ("CREATE TABLE t (a timestamp) WITH (watermark_lag_ms = 5)", SqlState::InvalidParameterValue, 36),
    ("CREATE TABLE t AS SELECT 1", SqlState::FeatureNotSupported, 16),
    ("CREATE TABLE t (a int) PARTITIONED BY (a)", SqlState::FeatureNotSupported, 24),
    ("CREATE TABLE t (a int) WITH (a = 1, A = 2)", SqlState::SyntaxError, 37),
    ("CREATE TABLE a.b.c (a int)", SqlState::FeatureNotSupported, 14),
    ("CREATE SOURCE t (a int)", SqlState::SyntaxError, 15),
    ("CREATE SINK s FROM t", SqlState::SyntaxError, 13),
    ("CREATE STREAM s (a int)", SqlState::FeatureNotSupported, 8),
    ("CREATE UNIQUE INDEX i ON t (a)", SqlState::FeatureNotSupported, 15),
    ("CREATE INDEX CONCURRENTLY i ON t (a)", SqlState::FeatureNotSupported, 14),
    ("CREATE INDEX i ON t USING gin (a)", SqlState::FeatureNotSupported, 21),
    ("CREATE INDEX i ON t (lower(a))", SqlState::FeatureNotSupported, 22),
    ("CREATE INDEX i ON t ((a + 1))", SqlState::FeatureNotSupported, 22),
    ("CREATE INDEX i ON t (a DESC)", SqlState::FeatureNotSupported, 24),
    ("CREATE INDEX i ON t (a, a)", SqlState::DuplicateColumn, 25),
    ("CREATE INDEX i ON t (a) WHERE a > 1", SqlState::FeatureNotSupported, 25),
    ("CREATE INDEX i ON t (a) INCLUDE (b)", SqlState::FeatureNotSupported, 25),
    ("CREATE INDEX i ON t", SqlState::SyntaxError, 20),
    ("CREATE FUNCTION f() RETURNS int", SqlState::InvalidFunctionDefinition, 32),
    ("CREATE FUNCTION f() RETURNS int AS 'SELECT 1'", SqlState::InvalidFunctionDefinition, 17),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE c AS 'f'", SqlState::FeatureNotSupported, 42),
    ("CREATE FUNCTION f(a int, a int) RETURNS int RETURN a", SqlState::InvalidFunctionDefinition, 26),
    ("CREATE FUNCTION f(a int DEFAULT 1) RETURNS int RETURN a", SqlState::FeatureNotSupported, 25),
    ("CREATE FUNCTION f(OUT a int) RETURNS int RETURN a", SqlState::FeatureNotSupported, 19),
    ("CREATE FUNCTION f(a varchar(3)) RETURNS int RETURN 1", SqlState::FeatureNotSupported, 21),
    ("CREATE FUNCTION f() RETURNS SETOF int RETURN 1", SqlState::FeatureNotSupported, 29),
    ("CREATE FUNCTION f() RETURNS int VOLATILE RETURN 1", SqlState::FeatureNotSupported, 33),
    ("CREATE FUNCTION f() RETURNS int COST 5 RETURN 1", SqlState::FeatureNotSupported, 33),
    ("CREATE FUNCTION f() RETURNS int STRICT STRICT RETURN 1", SqlState::SyntaxError, 40),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE SQL AS 'SELECT 1, 2'", SqlState::InvalidFunctionDefinition, 49),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE SQL AS 'SELECT a FROM t'", SqlState::FeatureNotSupported, 49),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE SQL AS 'SELECT 1; SELECT 2'", SqlState::FeatureNotSupported, 49),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE SQL AS ''", SqlState::InvalidFunctionDefinition, 49),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE SQL AS $$SELECT + $$", SqlState::SyntaxError, 59),
    ("CREATE FUNCTION f() RETURNS int LANGUAGE SQL AS 'TRUNCATE t'", SqlState::InvalidFunctionDefinition, 49),
    ("CREATE OR REPLACE VIEW v AS SELECT 1", SqlState::FeatureNotSupported, 11),
    ("CREATE VIEW v (a, A) AS SELECT 1, 2", SqlState::DuplicateColumn, 19),
    ("CREATE MATERIALIZED VIEW v WITH (backgrund = true) AS SELECT 1", SqlState::InvalidParameterValue, 34),
    ("CREATE MATERIALIZED VIEW v WITH (background = 7) AS SELECT 1", SqlState::InvalidParameterValue, 34),
    ("SELECT 1 EMIT ON WINDOW CLOSE", SqlState::FeatureNotSupported, 10),
    ("CREATE MATERIALIZED VIEW v AS (SELECT 1 EMIT FINAL) UNION SELECT 2", SqlState::FeatureNotSupported, 41),
    (
        "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY at PATTERN (A) SUBSET U = (A) DEFINE A AS x > 1)",
        SqlState::FeatureNotSupported,
        58,
    ),
    ("SELECT * FROM a JOIN b FOR SYSTEM_TIME AS OF '2020-01-01' ON true", SqlState::FeatureNotSupported, 24),
    ("SELECT `a` FROM t", SqlState::FeatureNotSupported, 8),
    ("SELECT * FROM t FOR UPDATE", SqlState::FeatureNotSupported, 1),
    ("SELECT 1 INTO t", SqlState::FeatureNotSupported, 1),
    ("TAIL v", SqlState::FeatureNotSupported, 1),
    ("SUBSCRIBE (SELECT 1)", SqlState::FeatureNotSupported, 11),
    ("SUBSCRIBE v WITH (snapshot = 3)", SqlState::InvalidParameterValue, 30),
    ("SUBSCRIBE v WITH (progress, progress)", SqlState::SyntaxError, 29),
    ("SUBSCRIBE v WITH (speed)", SqlState::InvalidParameterValue, 19),
    ("SUBSCRIBE v AS OF 1 AS OF 2", SqlState::SyntaxError, 21),
    ("SUBSCRIBE v WHERE a", SqlState::SyntaxError, 13),
    ("FETCH 1 FROM c WITH (timeout = 'soon')", SqlState::InvalidParameterValue, 22),
    ("FETCH 1 FROM c WITH (speed = 1)", SqlState::InvalidParameterValue, 22),
    ("COPY t FROM 'x'", SqlState::FeatureNotSupported, 13),
    ("COPY t FROM STDIN WHERE a > 1", SqlState::FeatureNotSupported, 19),
    ("DECLARE c SCROLL CURSOR FOR SELECT 1", SqlState::FeatureNotSupported, 11),
    ("FETCH PRIOR FROM c", SqlState::FeatureNotSupported, 7),
    ("BEGIN ISOLATION LEVEL SERIALIZABLE", SqlState::FeatureNotSupported, 7),
    ("COMMIT PREPARED 'x'", SqlState::FeatureNotSupported, 8),
    ("PREPARE p AS CREATE TABLE t (a int)", SqlState::SyntaxError, 14),
    ("ALTER TABLE t ADD COLUMN b int", SqlState::FeatureNotSupported, 1),
    ("REFRESH MATERIALIZED VIEW v", SqlState::FeatureNotSupported, 1),
    ("EXPLAIN ANALYZE CREATE MATERIALIZED VIEW v AS SELECT 1", SqlState::FeatureNotSupported, 9),
    ("EXPLAIN ANALYZE VERBOSE SELECT 1", SqlState::FeatureNotSupported, 9),
    ("EXPLAIN (ANALYZE, BUFFERS) SELECT 1", SqlState::FeatureNotSupported, 9),
    ("EXPLAIN SELECTS 1", SqlState::SyntaxError, 9),
    ("EXPLAIN (FORMAT json) SELECT 1", SqlState::FeatureNotSupported, 9),
    ("DROP INDEX CONCURRENTLY i", SqlState::FeatureNotSupported, 12),
    ("DROP TABEL t", SqlState::SyntaxError, 6),
    ("DROP TABLE", SqlState::SyntaxError, 11),
    ("SHOW CREATE THING t", SqlState::SyntaxError, 13),
    ("SET x", SqlState::SyntaxError, 6),
    ("INSERT t VALUES (1)", SqlState::SyntaxError, 8),
];

#[test]
fn wrong_statements_are_refused_with_code_place_and_hint() {
    let mut wrong = Vec::new();
    for (text, code, position) in WRONG {
        let error = refused(text);
        let hint = error.hint_text().is_some_and(|hint| !hint.is_empty());
        if error.code() != *code || error.position_at() != Some(*position) || !hint {
            wrong.push(format!("{text}: {error:?} at {:?}, hint {:?}", error.position_at(), error.hint_text()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn depth_and_length_are_limited() {
    let deep = |depth: usize| format!("SELECT {}1{}", "(".repeat(depth), ")".repeat(depth));
    assert!(parse(&deep(120)).is_ok());
    for text in [
        deep(100_000),
        format!("SELECT {}", "(".repeat(100_000)),
        format!("SELECT {}1", "NOT ".repeat(100_000)),
        format!("SELECT {}1", "- ".repeat(100_000)),
        format!("SELECT {}", "CASE WHEN ".repeat(50_000)),
        format!("SELECT {}", vec!["1"; 10_000].join(" + ")),
        format!("SELECT 1 WHERE {}", vec!["a = 1"; 10_000].join(" OR ")),
        vec!["SELECT 1"; 10_000].join(" UNION ALL "),
        format!("SELECT a{}", "[1]".repeat(100_000)),
    ] {
        let error = refused(&text);
        assert_eq!(error.code(), SqlState::StatementTooComplex, "{}…: {error:?}", &text[..30]);
    }
    // Work must not double with every level.
    let calls = format!("SELECT {}1{}", "abs(".repeat(100), ")".repeat(100));
    assert!(parse(&calls).is_ok());
    let tables = format!("SELECT * FROM {}t{}", "(".repeat(60), ")".repeat(60));
    let _ = parse(&tables);
    let error = refused(&format!("SELECT '{}'", "x".repeat(1 << 20)));
    assert_eq!(error.code(), SqlState::ProgramLimitExceeded);
    assert!(error.message().contains("1048576"));
    let rows = vec!["(1, 'x')"; 50_000].join(", ");
    assert!(parse(&format!("INSERT INTO t VALUES {rows}")).is_ok());
}
