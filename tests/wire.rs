//! tokio-postgres: a parameter of each type in binary format, portals, blocks, COPY, a cancel.

mod served;

use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _, TryStreamExt as _};
use served::Server;
use tokio_postgres::NoTls;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

async fn one<T>(client: &tokio_postgres::Client, sql: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    client.query_one(sql, &[]).await.expect(sql).get(0)
}

#[tokio::test]
async fn a_client_does_what_it_does_with_postgresql() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("made");
    let server = Server::start(&data, 2);
    let mut connection = server.connect().await.expect("a connection");
    let client = &mut connection.client;

    client
        .batch_execute(
            "CREATE TABLE v (k int PRIMARY KEY, a smallint, b bigint, c real, d double precision, e text, f boolean, \
             g bytea, h int[], i text[])",
        )
        .await
        .expect("a table");
    let insert =
        client.prepare("INSERT INTO v VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)").await.expect("prepared");
    assert_eq!(
        insert.params(),
        [
            Type::INT4,
            Type::INT2,
            Type::INT8,
            Type::FLOAT4,
            Type::FLOAT8,
            Type::TEXT,
            Type::BOOL,
            Type::BYTEA,
            Type::INT4_ARRAY,
            Type::TEXT_ARRAY
        ]
    );
    let (texts, numbers) = (vec![Some("a b"), None, Some("q\"\\")], vec![Some(1_i32), None]);
    let count = client
        .execute(
            &insert,
            &[&1_i32, &-5_i16, &i64::MAX, &1.5_f32, &0.1_f64, &"é'", &true, &&b"\x00\xff"[..], &numbers, &texts],
        )
        .await
        .expect("inserted");
    assert_eq!(count, 1);
    let row = client.query_one("SELECT * FROM v WHERE k = $1", &[&1_i32]).await.expect("the row");
    assert_eq!((row.get::<_, i16>(1), row.get::<_, i64>(2)), (-5, i64::MAX));
    assert_eq!((row.get::<_, f32>(3), row.get::<_, f64>(4)), (1.5, 0.1));
    assert_eq!((row.get::<_, &str>(5), row.get::<_, bool>(6)), ("é'", true));
    assert_eq!(row.get::<_, &[u8]>(7), b"\x00\xff");
    assert_eq!((row.get::<_, Vec<Option<i32>>>(8), row.get::<_, Vec<Option<&str>>>(9)), (numbers, texts));

    // A portal in portions, within a block.
    client.execute("INSERT INTO v (k) SELECT g FROM generate_series(2, 100) AS s (g)", &[]).await.expect("more");
    let block = client.transaction().await.expect("a block");
    let portal = block.bind("SELECT k FROM v WHERE k > $1 ORDER BY k", &[&90_i32]).await.expect("a portal");
    let first = block.query_portal(&portal, 4).await.expect("rows");
    let rest = block.query_portal(&portal, 100).await.expect("rows");
    assert_eq!((first.len(), rest.len()), (4, 6));
    block.rollback().await.expect("ended");

    let block = client.transaction().await.expect("a block");
    block.execute("DELETE FROM v WHERE k > $1", &[&1_i32]).await.expect("deleted");
    block.rollback().await.expect("undone");
    assert_eq!(one::<i64>(client, "SELECT count(*) FROM v").await, 100);

    let sink = client.copy_in("COPY v (k, e) FROM STDIN").await.expect("a copy");
    let mut sink = pin!(sink);
    sink.send(Bytes::from_static(b"200\tx\n201\t")).await.expect("sent");
    sink.send(Bytes::from_static(b"\\N\n")).await.expect("sent");
    assert_eq!(sink.finish().await.expect("copied"), 2);
    let out = client.copy_out("COPY (SELECT k, e FROM v WHERE k >= 200 ORDER BY k) TO STDOUT").await.expect("a copy");
    let parts: Vec<Bytes> = pin!(out).try_collect().await.expect("rows");
    assert_eq!(parts.concat(), b"200\tx\n201\t\\N\n");

    let token = client.cancel_token();
    let asked = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        token.cancel_query(NoTls).await.map(|()| Instant::now())
    });
    let slow = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b";
    let error = client.query(slow, &[]).await.expect_err("cancelled");
    assert_eq!(error.code().map(tokio_postgres::error::SqlState::code), Some("57014"));
    let asked = asked.await.expect("a task").expect("a cancel");
    assert!(asked.elapsed() < Duration::from_secs(1));

    let rows = client.query_raw("SELECT k FROM v WHERE k < $1", [10_i32]).await.expect("rows");
    assert_eq!(pin!(rows).count().await, 9);
}

/// A value as its bytes in binary format, whatever its type.
#[derive(Debug, PartialEq, Eq)]
struct Raw(Vec<u8>);

type Fault = Box<dyn std::error::Error + Sync + Send>;

impl ToSql for Raw {
    fn to_sql(&self, _: &Type, out: &mut bytes::BytesMut) -> Result<IsNull, Fault> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Raw {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Raw, Fault> {
        Ok(Raw(raw.to_vec()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

#[tokio::test]
async fn binary_values_of_every_other_type_come_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("made");
    let server = Server::start(&data, 1);
    let connection = server.connect().await.expect("a connection");
    let client = &connection.client;
    let joined = |parts: &[&[u8]]| parts.concat();
    let values: [(&str, Type, Vec<u8>); 9] = [
        ("date", Type::DATE, (-730_119_i32).to_be_bytes().to_vec()),
        ("time", Type::TIME, 86_399_999_999_i64.to_be_bytes().to_vec()),
        ("timestamp", Type::TIMESTAMP, (-1_i64).to_be_bytes().to_vec()),
        ("timestamptz", Type::TIMESTAMPTZ, 410_331_600_500_000_i64.to_be_bytes().to_vec()),
        (
            "interval",
            Type::INTERVAL,
            joined(&[&(-5_i64).to_be_bytes(), &3_i32.to_be_bytes(), &(-14_i32).to_be_bytes()]),
        ),
        ("uuid", Type::UUID, (0_u8..16).collect()),
        // -12345.67: two groups of four digits, and one behind the point.
        ("numeric(12,2)", Type::NUMERIC, vec![0, 3, 0, 1, 0x40, 0, 0, 2, 0, 1, 0x09, 0x29, 0x1a, 0x2c]),
        ("varchar(10)", Type::VARCHAR, "é".as_bytes().to_vec()),
        ("jsonb", Type::JSONB, joined(&[&[1], b"{\"a\": [1, null]}"])),
    ];
    for (at, (name, kind, bytes)) in values.into_iter().enumerate() {
        client.batch_execute(&format!("CREATE TABLE b{at} (k int PRIMARY KEY, a {name})")).await.expect(name);
        let insert = client.prepare(&format!("INSERT INTO b{at} VALUES (1, $1) RETURNING a")).await.expect(name);
        let text = [Type::TEXT, kind.clone()];
        assert!(text.contains(&insert.params()[0]), "{name}: {:?}", insert.params());
        let row = client.query_one(&insert, &[&Raw(bytes.clone())]).await.expect(name);
        assert_eq!(row.columns()[0].type_(), &if kind == Type::VARCHAR { Type::TEXT } else { kind }, "{name}");
        assert_eq!(row.get::<_, Raw>(0), Raw(bytes), "{name}");
    }
}
