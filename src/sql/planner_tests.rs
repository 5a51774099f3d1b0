//! What queries mean, evaluated; and what views are lowered to.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Decimal128Array, Float64Array, Int16Array, Int32Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::catalog::{CatalogProvider, MemoryCatalogProvider, MemorySchemaProvider, SchemaProvider};
use datafusion::common::TableReference;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionStateBuilder;
use datafusion::prelude::SessionContext;

use super::*;
use crate::types::{Error, RelationId, SqlState};

fn batch() -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("k", Arc::new(Int32Array::from(vec![Some(1), Some(2), Some(1), None]))),
        ("s", Arc::new(Int16Array::from(vec![1, 2, 3, 4]))),
        ("b", Arc::new(Int64Array::from(vec![10, 20, 30, 40]))),
        ("d", Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5, 0.0]))),
        (
            "n",
            Arc::new(
                Decimal128Array::from(vec![150, 250, 350, 800]).with_precision_and_scale(9, 2).expect("numeric(9,2)"),
            ),
        ),
        ("t", Arc::new(StringArray::from(vec!["a", "b", "c", "d"]))),
        ("ts", Arc::new(TimestampMicrosecondArray::from(vec![0, 60_000_000, 90_000_000_000, 1]))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .expect("a batch")
}

fn context() -> SessionContext {
    let builder = SessionStateBuilder::new_with_default_features().with_config(session_config());
    let context = SessionContext::new_with_state(configure(builder).build());
    let schema = Arc::new(MemorySchemaProvider::new());
    let rows = batch();
    let table = MemTable::try_new(rows.schema(), vec![vec![rows]]).expect("a table");
    schema.register_table("t".into(), Arc::new(table)).expect("registered");
    let catalog = Arc::new(MemoryCatalogProvider::new());
    catalog.register_schema(DEFAULT_SCHEMA, schema).expect("registered");
    context.register_catalog("clink", catalog);
    context
}

fn query(text: &str) -> Box<sqlparser::ast::Query> {
    match parse(text).unwrap_or_else(|error| panic!("{text}: {error:?}")).remove(0).kind {
        StatementKind::Query(query) => query,
        other => panic!("{other:?}"),
    }
}

/// Columns with types, and rows as text.
async fn answer(text: &str) -> Result<(Vec<String>, Vec<String>), Error> {
    let context = context();
    let plan = plan_query(&context.state(), &query(text)).await?;
    let frame = context.execute_logical_plan(plan).await.map_err(|error| from_datafusion(&error))?;
    let schema = frame.schema().inner().clone();
    let batches = frame.collect().await.map_err(|error| from_datafusion(&error))?;
    let names = schema
        .fields()
        .iter()
        .map(|field| format!("{} {}", shown_name(field.name()), sql_name(field.data_type())))
        .collect();
    let options = FormatOptions::new().with_null("NULL");
    let mut rows = Vec::new();
    for batch in batches {
        let columns: Vec<ArrayFormatter<'_>> =
            batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).expect("a column")).collect();
        for row in 0..batch.num_rows() {
            rows.push(columns.iter().map(|column| column.value(row).to_string()).collect::<Vec<_>>().join("|"));
        }
    }
    Ok((names, rows))
}

async fn check(cases: &[(&str, &str, &str)]) {
    let mut wrong = Vec::new();
    for (text, columns, rows) in cases {
        match answer(text).await {
            Ok((names, found)) => {
                let (names, found) = (names.join(", "), found.join("; "));
                if (names.as_str(), found.as_str()) != (*columns, *rows) {
                    wrong.push(format!("{text}\n   is ({names}) {found}\n  not ({columns}) {rows}"));
                }
            }
            Err(error) => wrong.push(format!("{text}\n   {error:?}")),
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

async fn check_errors(cases: &[(&str, SqlState, &str)]) {
    let mut wrong = Vec::new();
    for (text, code, message) in cases {
        match answer(text).await {
            Ok(found) => wrong.push(format!("{text}\n   gave {found:?}")),
            Err(error) => {
                let hinted = error.hint_text().is_some() || !error.code().code().starts_with("42");
                if error.code() != *code || error.message() != *message || !hinted {
                    wrong.push(format!("{text}\n   {error:?} hint {:?}", error.hint_text()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn numbers_have_postgresqls_types_and_values() {
    check(&[
        ("SELECT 1, 3000000000, 1.5", "?column? integer, ?column? bigint, ?column? numeric(2,1)", "1|3000000000|1.5"),
        (
            "SELECT 7 / 2, -7 / 2, 7 % -4, -7 % 4",
            "?column? integer, ?column? integer, ?column? integer, ?column? integer",
            "3|-3|3|-3",
        ),
        (
            "SELECT s + s, s + 1, k + b FROM t WHERE b = 10",
            "?column? smallint, ?column? integer, ?column? bigint",
            "2|2|11",
        ),
        (
            "SELECT n * 2, n + 0.5, n / 3 FROM t WHERE b = 10",
            "?column? numeric(20,2), ?column? numeric(10,2), ?column? numeric(38,16)",
            "3.00|2.00|0.5000000000000000",
        ),
        ("SELECT 1 / n FROM t WHERE s = 4", "?column? numeric(38,16)", "0.1250000000000000"),
        (
            "SELECT -k, -n, -d FROM t WHERE b = 20",
            "?column? integer, ?column? numeric(9,2), ?column? double precision",
            "-2|-2.50|-1.5",
        ),
        (
            "SELECT 0.5::int, 1.5::int, 0.5::float::int, 1.5::float8::int, 2.5::double precision::int",
            "int4 integer, int4 integer, int4 integer, int4 integer, int4 integer",
            "1|2|0|2|2",
        ),
        (
            "SELECT 1 + NULL, '5' + 1, d + 1 FROM t WHERE b = 10",
            "?column? integer, ?column? integer, ?column? double precision",
            "NULL|6|1.5",
        ),
        (
            "SELECT 1.5::text, 1e15::float8::text, true::text, 2.50::numeric::text",
            "text text, text text, text text, text text",
            "1.5|1e+15|true|2.5",
        ),
        (
            "SELECT ' 42 '::int, '1.255'::numeric(10,2), 'abcdef'::varchar(3)",
            "int4 integer, numeric numeric(10,2), varchar text",
            "42|1.26|abc",
        ),
        (
            "SELECT DATE '2024-03-01' - DATE '2024-02-01', DATE '2024-02-28' + 2",
            "?column? integer, ?column? date",
            "29|2024-03-01",
        ),
        (
            "SELECT CASE WHEN k = 1 THEN 0 ELSE 1 / (k - 1) END FROM t WHERE k IS NOT NULL ORDER BY b",
            "case integer",
            "0; 1; 0",
        ),
        ("SELECT 2 x UNION ALL SELECT 2.5 UNION ALL SELECT CAST(2.25 AS REAL) ORDER BY 1", "x real", "2.0; 2.25; 2.5"),
        ("SELECT coalesce(k, 0.25) x FROM t WHERE s = 4 UNION ALL SELECT 3 WHERE 1 = 2", "x numeric(12,2)", "0.25"),
        (
            "SELECT n FROM t WHERE s = 4 UNION SELECT 1 / n FROM t WHERE s = 4 ORDER BY 1",
            "n numeric(38,16)",
            "0.1250000000000000; 8.0000000000000000",
        ),
    ])
    .await;
}

#[tokio::test]
async fn what_cannot_be_computed_is_an_error() {
    let range = SqlState::NumericOutOfRange;
    check_errors(&[
        ("SELECT 2147483647 + 1", range, "integer out of range"),
        ("SELECT s + 32767::smallint FROM t", range, "smallint out of range"),
        ("SELECT 9223372036854775807 + b FROM t", range, "bigint out of range"),
        ("SELECT -((-2147483648)::int)", range, "integer out of range"),
        ("SELECT 1 / (k - k) FROM t", SqlState::DivisionByZero, "division by zero"),
        ("SELECT 1 % 0", SqlState::DivisionByZero, "division by zero"),
        ("SELECT d / 0 FROM t", SqlState::DivisionByZero, "division by zero"),
        ("SELECT n / 0.0 FROM t", SqlState::DivisionByZero, "division by zero"),
        ("SELECT 1e308::float8 * 10", range, "value out of range: overflow"),
        ("SELECT 3000000000::int", range, "integer out of range"),
        ("SELECT 40000::smallint", range, "smallint out of range"),
        ("SELECT 1e10::float8::int", range, "integer out of range"),
        ("SELECT 123.45::numeric(4,2)", range, "numeric field overflow"),
        ("SELECT 'abc'::int", SqlState::InvalidText, "invalid input syntax for type integer: \"abc\""),
        ("SELECT 'x'::date", SqlState::InvalidText, "invalid input syntax for type date: \"x\""),
        ("SELECT t + 1 FROM t", SqlState::UndefinedFunction, "operator does not exist: text + integer"),
        (
            "SELECT 7 a UNION ALL SELECT CAST('seven' AS TEXT) ORDER BY 1",
            SqlState::DatatypeMismatch,
            "UNION types integer and text cannot be matched",
        ),
    ])
    .await;
}

#[tokio::test]
async fn numbers_beside_doubles_are_doubles() {
    check(&[
        ("SELECT 1e-20::double precision > 0.0 AS a, 1e-20::float8 = 0.0 AS b", "a boolean, b boolean", "true|false"),
        ("SELECT 1e100::float8 > 0.5 AS a, 0.5 < 1e100::float8 AS b", "a boolean, b boolean", "true|true"),
        ("SELECT 0.1::real = 0.1 AS a, 0.5::real = 0.5 AS b", "a boolean, b boolean", "false|true"),
        (
            "SELECT 1e-20::float8 IN (0.0) AS a, 1e-20::float8 BETWEEN 0.0 AND 0.00001 AS b, 1e-20::float8 BETWEEN 0.1 AND 1 AS c",
            "a boolean, b boolean, c boolean",
            "false|true|false",
        ),
        ("SELECT CASE 1e-20::float8 WHEN 0.0 THEN 1 ELSE 2 END AS a", "a integer", "2"),
        ("SELECT CASE WHEN k = 1 THEN 1e-20::float8 ELSE 0.0 END AS a FROM t WHERE b = 10", "a double precision", "1e-20"),
        ("SELECT coalesce(d * 1e-20::float8, 0.0) AS a FROM t WHERE b = 10", "a double precision", "5e-21"),
        ("SELECT count(*) AS n FROM t x JOIN t y ON x.d = y.n WHERE y.n > 2", "n bigint", "1"),
        ("SELECT b FROM t WHERE d < 0.00000000000000000001", "b bigint", "40"),
        ("SELECT x FROM (VALUES (1e-20), (1e50), (NULL)) v(x)", "x double precision", "1e-20; 1e50; NULL"),
        ("SELECT x FROM (VALUES (1), (2.5), (1e-30::float8)) v(x)", "x double precision", "1.0; 2.5; 1e-30"),
    ])
    .await;
}

#[tokio::test]
async fn functions_answer_as_in_postgresql() {
    check(&[
        (
            "SELECT round(2.5::float8) AS a, round(3.5::float8) AS b, round(-0.5::real) AS c, round(2.5) AS d",
            "a double precision, b double precision, c double precision, d numeric(2,0)",
            "2.0|4.0|-0.0|3",
        ),
        (
            "SELECT trunc(2.7) AS a, ceil(2.1) AS b, floor(-2.1) AS c, ceil(9.9) AS d",
            "a numeric(2,0), b numeric(2,0), c numeric(2,0), d numeric(2,0)",
            "2|3|-3|10",
        ),
        ("SELECT mod(7, -4), mod(-7.5, 2), sign(-3)", "mod integer, mod numeric(11,1), sign double precision", "3|-1.5|-1.0"),
        (
            "SELECT timestamptz '2022-10-30 02:25:00+02' AT TIME ZONE 'UTC' AS a, timestamp '2022-10-30 02:25:00' AT TIME ZONE 'utc' AS b",
            "a timestamp, b timestamptz",
            "2022-10-30T00:25:00|2022-10-30T02:25:00Z",
        ),
        (
            "SELECT date '2020-01-31' + interval '1 month' AS a, interval '1 day' + date '2020-01-31' AS b, date '2020-03-31' - interval '1 month' AS c",
            "a timestamp, b timestamp, c timestamp",
            "2020-02-29T00:00:00|2020-02-01T00:00:00|2020-02-29T00:00:00",
        ),
        ("SELECT now() > '2020-01-01' AS a, now() = now() AS b, current_date > '2020-01-01' AS c", "a boolean, b boolean, c boolean", "true|true|true"),
        ("SELECT b, sum(DISTINCT k), sum(k) FROM t WHERE b = 20 GROUP BY b", "b bigint, sum bigint, sum bigint", "20|2|2"),
        (
            "SELECT ARRAY[5,NULL]::text AS a, '{1,2}'::int[] AS b, NULL::int[] AS c, '{a,\"b c\"}'::text[]::text AS d",
            "a text, b integer[], c integer[], d text",
            "{5,NULL}|[1, 2]|NULL|{a,\"b c\"}",
        ),
        ("SELECT '1 year 2 mons 3 days 04:05:06.5'::interval::text AS a", "a text", "1 year 2 mons 3 days 04:05:06.5"),
        (
            "SELECT extract(second FROM timestamp '2020-01-01 00:00:01.5') AS a, extract(milliseconds FROM time '10:00:02.25') AS b, extract(minute FROM timestamp '2020-01-01 00:07:01.5') AS c",
            "a numeric(8,6), b numeric(8,3), c integer",
            "1.500000|2250.000|7",
        ),
        ("SELECT sum(1 / x) FILTER (WHERE x <> 0) FROM (VALUES (0), (1)) v(x)", "sum bigint", "1"),
        ("TABLE t ORDER BY b LIMIT 0", "k integer, s smallint, b bigint, d double precision, n numeric(9,2), t text, ts timestamp", ""),
        ("SELECT count(*) FROM (TABLE T) q", "count bigint", "4"),
        (
            "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT sum(n) AS s, count(*) AS c FROM r",
            "s bigint, c bigint",
            "6|3",
        ),
        ("SELECT generate_series FROM generate_series(1, 3)", "generate_series bigint", "1; 2; 3"),
    ])
    .await;
    let unsupported = SqlState::FeatureNotSupported;
    check_errors(&[
        ("SELECT ts AT TIME ZONE '+02' FROM t", unsupported, "time zone \"+02\" is not supported here"),
        ("SELECT k FROM t ORDER BY 3", SqlState::InvalidColumnReference, "ORDER BY position 3 is not in select list"),
        (
            "SELECT CASE WHEN k THEN 1 END FROM t",
            SqlState::DatatypeMismatch,
            "argument of CASE/WHEN must be type boolean, not type integer",
        ),
        ("SELECT ts::date = k FROM t", SqlState::UndefinedFunction, "operator does not exist: date = integer"),
        ("SELECT 1e400::float8", SqlState::NumericOutOfRange, "\"1e400\" is out of range for type double precision"),
        (
            "SELECT (SELECT k FROM t WHERE k IS NOT NULL)",
            SqlState::CardinalityViolation,
            "more than one row returned by a subquery used as an expression",
        ),
    ])
    .await;
}

#[tokio::test]
async fn names_are_postgresqls_and_may_repeat() {
    check(&[
        (
            "SELECT count(*), count(*), k FROM t WHERE k = 1 GROUP BY k",
            "count bigint, count bigint, k integer",
            "2|2|1",
        ),
        ("SELECT *, k FROM (SELECT k, upper(t) FROM t WHERE b = 10) q", "k integer, upper text, k integer", "1|A|1"),
        (
            "SELECT k, *, b FROM (SELECT k, b FROM t WHERE b = 10) q ORDER BY k",
            "k integer, k integer, b bigint, b bigint",
            "1|1|10|10",
        ),
        (
            "SELECT q.k, q.*, q.b FROM (SELECT k, b FROM t WHERE b = 10) q",
            "k integer, k integer, b bigint, b bigint",
            "1|1|10|10",
        ),
        ("WITH cte(Total) AS (SELECT 9) SELECT total FROM cte", "total integer", "9"),
        ("SELECT nn FROM (SELECT 8) tt(NN)", "nn integer", "8"),
        ("SELECT x.k, y.k FROM t x JOIN t y ON x.b = y.b WHERE x.b = 20", "k integer, k integer", "2|2"),
        ("SELECT max FROM (SELECT max(b) FROM t) q", "max bigint", "40"),
        ("SELECT k + 1 FROM t WHERE k IS NOT NULL ORDER BY k + 1 DESC LIMIT 1", "?column? integer", "3"),
        (
            "SELECT k, sum(b) FROM t GROUP BY k HAVING sum(b) > 20 ORDER BY sum(b), k",
            "k integer, sum bigint",
            "1|40; NULL|40",
        ),
        ("SELECT k FROM t ORDER BY b FETCH FIRST 1 ROW ONLY", "k integer", "1"),
        (
            "SELECT row_number() OVER (ORDER BY b), lag(k, 1) OVER (ORDER BY b) FROM t ORDER BY 1 LIMIT 2",
            "row_number bigint, lag integer",
            "1|NULL; 2|1",
        ),
        ("SELECT k FROM t WHERE k IN (SELECT max(k) FROM t) AND b BETWEEN 1 AND 20 + 5", "k integer", "2"),
        (
            "SELECT TIMESTAMP '2024-01-01 10:00:00', date_trunc('hour', ts), NULL FROM t WHERE b = 20",
            "timestamp timestamp, date_trunc timestamp, ?column? text",
            "2024-01-01T10:00:00|1970-01-01T00:00:00|NULL",
        ),
        ("SELECT current_database(), current_schema()", "current_database text, current_schema text", "clink|public"),
        ("SELECT length(t), ARRAY[1,2] FROM t WHERE b = 10", "length integer, array integer[]", "1|[1, 2]"),
        ("SELECT DISTINCT k + 0 AS z FROM t ORDER BY z", "z integer", "1; 2; NULL"),
        ("VALUES (1, 'a'), (2, 'b')", "column1 integer, column2 text", "1|a; 2|b"),
    ])
    .await;
}

#[tokio::test]
async fn what_is_not_there_is_named_with_its_place() {
    for (text, code, message, position) in [
        ("SELECT * FROM tt", SqlState::UndefinedTable, "relation \"tt\" does not exist", 15),
        ("SELECT * FROM s.t", SqlState::UndefinedTable, "relation \"s.t\" does not exist", 15),
        ("SELECT kk FROM t", SqlState::UndefinedColumn, "column \"kk\" does not exist", 8),
        ("SELECT k FROM t WHERE x.k = 1", SqlState::UndefinedTable, "missing FROM-clause entry for table \"x\"", 23),
        ("SELECT nosuch(k) FROM t", SqlState::UndefinedFunction, "function nosuch(...) does not exist", 8),
        (
            "SELECT k, sum(b) FROM t",
            SqlState::GroupingError,
            "column \"t.k\" must appear in the GROUP BY clause or be used in an aggregate function",
            8,
        ),
        ("SELECT k FROM t a, t b", SqlState::AmbiguousColumn, "column reference \"k\" is ambiguous", 8),
        (
            "SELECT k, 3 FROM t ORDER BY 1, 3",
            SqlState::InvalidColumnReference,
            "ORDER BY position 3 is not in select list",
            32,
        ),
        ("SELECT k::nosuch FROM t", SqlState::UndefinedObject, "type \"nosuch\" does not exist", 8),
    ] {
        let error = answer(text).await.expect_err(text);
        assert_eq!((error.code(), error.message()), (code, message), "{text}");
        assert_eq!(error.position_at(), Some(position), "{text}");
        assert!(error.hint_text().is_some_and(|hint| !hint.is_empty()), "{text}");
    }
}

struct Relations {
    schema: SchemaRef,
    append_only: bool,
    bounded: bool,
}

impl Resolver for Relations {
    fn relation(&self, table: &TableReference) -> Option<RelationInfo> {
        (table.table() == "t").then(|| RelationInfo {
            id: RelationId(7),
            schema: Arc::clone(&self.schema),
            key: vec![2],
            append_only: self.append_only,
            keeps_times: true,
            bounded: self.bounded,
            event_times: Vec::new(),
        })
    }
}

async fn view(text: &str) -> Result<PlannedView, Error> {
    let relations = Relations { schema: batch().schema(), append_only: true, bounded: false };
    plan_view(&context().state(), &query(text), &[], Standing::default(), &relations).await
}

async fn explained(text: &str) -> String {
    let planned = view(text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
    let t = ImportedRelation { name: "t".to_owned(), key: vec!["t".to_owned()], append_only: true };
    explain_job(&planned.plan, &HashMap::from([(RelationId(7), t)]), false, &|_| None).join("\n")
}

#[tokio::test]
async fn views_are_lowered_to_operators() {
    for (text, plan) in [
        (
            "SELECT b, t FROM t WHERE k = 1",
            "Result: key b; append-only\n  Project [b, t] (root)\n    Filter k@0 = 1 (root/input)\n      Import t [k integer, b bigint, t text]; key t; append-only (root/input/input)",
        ),
        ("SELECT k, count(*) AS n, sum(b) FROM t GROUP BY k", "Result: key k; updating"),
        (
            "SELECT DISTINCT k FROM t",
            "Result: key k; updating\n  Distinct by k; state groups: a row for each k (root)\n    Project [k] (root/input)\n      Import t [k integer]; key t; append-only (root/input/input)",
        ),
        ("SELECT count(*) FROM t ORDER BY 1", "Result: key whole row; updating"),
        (
            "SELECT 1 AS one",
            "Result: key whole row; append-only\n  Project [1 AS one] (root)\n    Constant 1 rows [unit boolean] (root/input)",
        ),
        (
            "VALUES (1, 'a'), (2, 'b')",
            "Result: key whole row; append-only\n  Constant 2 rows [column1 integer, column2 text] (root)",
        ),
        (
            "SELECT k FROM t UNION ALL SELECT 5",
            "Result: key whole row; append-only\n  Union [k integer] (root)\n    Project [k] (root/union.1)",
        ),
    ] {
        let found = explained(text).await;
        assert!(found.starts_with(plan), "{text}\n{found}\nnot\n{plan}");
    }
    let planned = view("SELECT k, count(*) FROM t GROUP BY k").await.expect("a view");
    assert_eq!(planned.notices.len(), 1);
    assert_eq!(planned.plan.schema().field(1).name(), "count");
    assert_eq!(planned.plan.schema().field(1).data_type(), &DataType::Int64);
}

#[tokio::test]
async fn what_a_view_cannot_keep_is_refused_with_its_place() {
    for (text, position) in [("SELECT now() FROM t", 8), ("SELECT random() FROM t", 8), ("SELECT median(b) FROM t", 8)]
    {
        let error = match view(text).await {
            Ok(planned) => panic!("{text} was accepted: {:?}", planned.plan),
            Err(error) => error,
        };
        assert_eq!(error.code(), SqlState::FeatureNotSupported, "{text}: {error:?}");
        assert!(error.hint_text().is_some_and(|hint| !hint.is_empty()), "{text}");
        if position > 0 {
            assert_eq!(error.position_at(), Some(position), "{text}");
        }
    }
    let error = view("SELECT k, k FROM t").await.expect_err("two columns of one name");
    assert_eq!(error.code(), SqlState::DuplicateColumn);
}

/// Runs the stateless part of a plan over the table's rows.
fn evaluate(plan: &crate::exec::plan::JobPlan) -> Result<Vec<RecordBatch>, Error> {
    use crate::exec::plan::OperatorSpec;
    let mut results: Vec<RecordBatch> = Vec::new();
    for node in &plan.nodes {
        let input = node.inputs.first().and_then(|input| results.get(*input)).cloned();
        let result = match (&node.operator, input) {
            (OperatorSpec::Import { columns, .. }, _) => batch().project(columns)?,
            (OperatorSpec::Constant { rows }, _) => rows.clone(),
            (OperatorSpec::Project { expressions }, Some(input)) => {
                let arrays = expressions
                    .iter()
                    .map(|expression| expression.evaluate(&input).and_then(|value| value.into_array(input.num_rows())))
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|error| from_datafusion(&error))?;
                RecordBatch::try_new(Arc::clone(&node.schema), arrays)?
            }
            (OperatorSpec::Filter { predicate, columns }, Some(input)) => {
                let kept = predicate
                    .evaluate(&input)
                    .and_then(|value| value.into_array(input.num_rows()))
                    .map_err(|error| from_datafusion(&error))?;
                arrow::compute::filter_record_batch(&input.project(columns)?, arrow::array::AsArray::as_boolean(&kept))?
            }
            (other, _) => panic!("{}", other.name()),
        };
        assert_eq!(result.schema().fields().len(), node.schema.fields().len());
        for (column, field) in result.columns().iter().zip(node.schema.fields()) {
            assert_eq!(column.data_type(), field.data_type(), "{}", node.path);
        }
        results.push(result);
    }
    Ok(results)
}

#[tokio::test]
async fn a_lowered_plan_computes_what_the_select_computes() {
    // The first condition keeps the second from dividing by zero.
    let planned =
        view("SELECT b, 10 / (k - 2) AS q, n::text FROM t WHERE k <> 2 AND 10 / (k - 2) < 0").await.expect("a view");
    let results = evaluate(&planned.plan).expect("rows");
    let last = results.last().expect("a root");
    assert_eq!(last.num_rows(), 2);
    assert_eq!(last.column(1).as_ref(), &Int32Array::from(vec![-10, -10]) as &dyn arrow::array::Array);
    assert_eq!(last.column(2).as_ref(), &StringArray::from(vec!["1.50", "3.50"]) as &dyn arrow::array::Array);
    // A constant that cannot be computed is the rows' error, not the plan's.
    let planned = view("SELECT 1 / 0 AS x FROM t").await.expect("a view");
    assert_eq!(evaluate(&planned.plan).expect_err("an error").code(), SqlState::DivisionByZero);
}

#[tokio::test]
async fn predicates_and_defaults_are_planned_over_a_schema() {
    let state = context().state();
    let rows = batch();
    let predicate = plan_predicate(&state, "k = 1 AND b + 1 > 11", rows.schema()).expect("a predicate");
    let kept = predicate.evaluate(&rows).and_then(|value| value.into_array(4)).expect("booleans");
    let kept = arrow::array::AsArray::as_boolean(&kept);
    assert_eq!(
        (0..4).map(|row| arrow::array::Array::is_valid(kept, row) && kept.value(row)).collect::<Vec<_>>(),
        vec![false, false, true, false]
    );
    let error = plan_predicate(&state, "k + 1", rows.schema()).expect_err("no boolean");
    assert_eq!(error.code(), SqlState::DatatypeMismatch);
    let error = plan_predicate(&state, "nosuch = 1", rows.schema()).expect_err("no column");
    assert_eq!((error.code(), error.position_at()), (SqlState::UndefinedColumn, Some(1)));
    let error = plan_predicate(&state, "k = 1; DROP TABLE t", rows.schema()).expect_err("two statements");
    assert_eq!(error.code(), SqlState::SyntaxError);
}
