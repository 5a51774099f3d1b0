//! What nothing happened to for so long leaves a view and its state, by a clock that the test moves.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clink::env::{Env, Failpoints, WallClock};
use support::{Database, Row};

/// Milliseconds since 1970 that pass when the test says so.
struct Clock(AtomicU64);

impl WallClock for Clock {
    fn now_millis(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

impl Clock {
    fn pass(&self, millis: u64) {
        self.0.fetch_add(millis, Ordering::AcqRel);
    }
}

const VIEWS: [(&str, &str); 5] = [
    ("changing", "SELECT k, count(*) AS n, max(x) AS most FROM t GROUP BY k"),
    ("growing", "SELECT k, count(*) AS n, max(x) AS most FROM a GROUP BY k"),
    ("different", "SELECT DISTINCT k FROM a"),
    ("joined", "SELECT t.k, a.x FROM t JOIN a ON t.k = a.k"),
    ("first", "SELECT DISTINCT ON (k) k, x FROM a ORDER BY k, x DESC"),
];

async fn view(database: &mut Database, name: &str) -> Vec<Row> {
    database.run("FLUSH").await;
    support::canonical(database.run(&format!("SELECT * FROM {name}")).await)
}

fn rows(rows: &[&[&str]]) -> Vec<Row> {
    rows.iter().map(|row| row.iter().map(|value| (*value).to_owned()).collect()).collect()
}

/// Keys of operators that are kept, but for results.
async fn kept(database: &mut Database) -> String {
    let sum = "SELECT coalesce(sum(state_keys), 0) FROM clink_catalog.operators WHERE kind <> 'Arrangement'";
    database.run(sum).await.remove(0).remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nothing_happened_to_is_forgotten() {
    for backend in ["memory://", "memory+sharded://", "file", "changelog+file", "rocksdb", "disagg-local://"] {
        let directory = tempfile::tempdir().expect("a directory");
        let clock = Arc::new(Clock(AtomicU64::new(1_800_000_000_000)));
        let env = Env::new(Arc::clone(&clock) as Arc<dyn WallClock>, Failpoints::default());
        let data = directory.path().join("data");
        let mut database = Database::open(&data, 2, env.clone()).await;
        database.run("CREATE TABLE t (k text, x int); CREATE TABLE a (k text, x int) APPEND ONLY").await;
        for (name, query) in VIEWS {
            let uri = match backend {
                plain if plain.ends_with("://") => plain.to_owned(),
                scheme => format!("{scheme}://{}/state/{name}", directory.path().display()),
            };
            let options = format!("state_ttl = '1 minute', state_backend = '{uri}'");
            database.run(&format!("CREATE MATERIALIZED VIEW {name} WITH ({options}) AS {query}")).await;
        }
        database.run("INSERT INTO t VALUES ('a', 1), ('b', 2); INSERT INTO a VALUES ('a', 1), ('b', 2)").await;
        clock.pass(45_000);
        database.run("INSERT INTO t VALUES ('b', 3); INSERT INTO a VALUES ('b', 3)").await;
        assert_eq!(view(&mut database, "changing").await, rows(&[&["a", "1", "1"], &["b", "2", "3"]]), "{backend}");
        assert_eq!(view(&mut database, "joined").await.len(), 5, "{backend}");
        database.run("CHECKPOINT").await;

        // The deadline of a comes while the server is away, on another number of workers. A start may be ten seconds ahead of
        // the clock.
        database.engine.close().await;
        clock.pass(30_000);
        let mut database = Database::open(&data, 3, env.clone()).await;
        for name in ["changing", "growing"] {
            assert_eq!(view(&mut database, name).await, rows(&[&["b", "2", "3"]]), "{name}, {backend}");
        }
        assert_eq!(view(&mut database, "different").await, rows(&[&["b"]]), "{backend}");
        assert_eq!(view(&mut database, "first").await, rows(&[&["b", "3"]]), "{backend}");
        // Of the rows of a, the one that did not come again is gone; of t only k is read, and both rows are the same.
        assert_eq!(view(&mut database, "joined").await, rows(&[&["b", "3"], &["b", "3"]]), "{backend}");

        // A retraction of what is forgotten changes nothing, and a later row begins anew.
        database.run("DELETE FROM t WHERE k = 'a'").await;
        assert_eq!(view(&mut database, "changing").await, rows(&[&["b", "2", "3"]]), "{backend}");
        database.run("INSERT INTO t VALUES ('a', 7); INSERT INTO a VALUES ('a', 7)").await;
        for name in ["changing", "growing"] {
            let expected = rows(&[&["a", "1", "7"], &["b", "2", "3"]]);
            assert_eq!(view(&mut database, name).await, expected, "{name}, {backend}");
        }
        clock.pass(150_000);
        for (name, _) in VIEWS {
            assert_eq!(view(&mut database, name).await, Vec::<Row>::new(), "{name}, {backend}");
        }
        assert_eq!(kept(&mut database).await, "0", "{backend}");
        database.engine.close().await;
    }
}
