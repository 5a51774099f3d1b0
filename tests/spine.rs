//! The pieces most likely to be wrong: times and logs under failures, fairness on a worker, reads and
//! new views while everything changes.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clink::env::{Env, Failpoints, WallClock};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Database, canonical, steps};
use tokio_util::sync::CancellationToken;

/// Statements fail at named places of the log and the clock; the database is opened again, with another
/// number of workers. What was answered is there once; what failed is wholly there or not; every view
/// equals its query.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_of_the_log_lose_and_double_nothing() {
    let seed = 7;
    let mut random = StdRng::seed_from_u64(seed);
    let directory = tempfile::tempdir().expect("a directory");
    let mut answered: Vec<i64> = Vec::new();
    let mut unsure: Vec<i64> = Vec::new();
    let mut next = 0;
    for life in 0..steps(12, 200) {
        let env = Env::system();
        let mut database = Database::open(directory.path(), 1 + life % 3, env.clone()).await;
        if life == 0 {
            database.run("CREATE TABLE t (id bigint PRIMARY KEY, part bigint)").await;
            database
                .run("CREATE MATERIALIZED VIEW per_part AS SELECT part, count(*) n, sum(id) s FROM t GROUP BY part")
                .await;
            database.run("CREATE MATERIALIZED VIEW total AS SELECT sum(n) n, sum(s) s FROM per_part").await;
        }
        let place = ["timeline.append", "timeline.sync", "clock.reserve"][random.random_range(0..3)];
        env.failpoints().arm(place, random.random_range(0..8));
        for _ in 0..10 {
            let ids = [next, next + 1, next + 2];
            next += 3;
            let values: Vec<String> = ids.iter().map(|id| format!("({id}, {})", id % 5)).collect();
            match database.try_run(&format!("INSERT INTO t VALUES {}", values.join(", "))).await {
                Ok(_) => answered.extend(ids),
                Err(_) => unsure.extend(ids),
            }
        }
        database.engine.close().await;
        let mut database = Database::open(directory.path(), 1 + (life + 1) % 3, Env::system()).await;
        let ids: Vec<i64> = database
            .run("SELECT id FROM t ORDER BY id")
            .await
            .iter()
            .map(|row| row[0].parse().expect("a number"))
            .collect();
        assert!(answered.iter().all(|id| ids.binary_search(id).is_ok()), "life {life}: an answered row is lost");
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "life {life}: a row is there twice");
        for statement in unsure.chunks(3) {
            let there = statement.iter().filter(|id| ids.binary_search(id).is_ok()).count();
            assert!(there == 0 || there == 3, "life {life}: a statement is half there");
        }
        for (view, query) in [
            ("per_part", "SELECT part, count(*) n, sum(id) s FROM t GROUP BY part"),
            ("total", "SELECT count(*)::numeric(38,0) n, sum(id) s FROM t"),
        ] {
            let shown = canonical(database.run(&format!("SELECT * FROM {view}")).await);
            assert_eq!(shown, canonical(database.run(query).await), "life {life}: {view}");
        }
        database.engine.close().await;
    }
}

/// A hundred jobs on one worker, one of them closing a time of many keys: a point read beside it is not
/// held up, and a statement that waits can be cancelled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_job_does_not_hold_up_the_others() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut database = Database::open(directory.path(), 1, Env::system()).await;
    database.run("CREATE TABLE small (id int PRIMARY KEY, x int); INSERT INTO small VALUES (1, 10), (2, 20)").await;
    for view in 0..98 {
        database.run(&format!("CREATE MATERIALIZED VIEW s{view} AS SELECT x, count(*) n FROM small GROUP BY x")).await;
    }
    database.run("CREATE TABLE big (k bigint, v bigint)").await;
    database.run("CREATE MATERIALIZED VIEW many AS SELECT k, count(*) n, sum(v) s FROM big GROUP BY k").await;
    let keys = steps(200_000, 1_000_000);
    // Answered when durable; the view then closes a time of that many keys.
    database.run(&format!("INSERT INTO big SELECT g, g FROM generate_series(1, {keys}) AS t(g)")).await;
    let begun = Instant::now();
    let mut reader = database.engine.session();
    let mut waits = Vec::new();
    let finished = Arc::new(AtomicBool::new(false));
    let waiter = {
        let (finished, mut session) = (Arc::clone(&finished), database.engine.session());
        tokio::spawn(async move {
            let statement = session.parse("SELECT count(*) FROM many").expect("parses").remove(0);
            let answer = session.execute(&statement, &CancellationToken::new()).await;
            finished.store(true, Ordering::Release);
            answer.is_ok()
        })
    };
    reader.parse("SELECT 1").expect("parses");
    let statement = reader.parse("SELECT n FROM s1 WHERE x = 10").expect("parses").remove(0);
    while !finished.load(Ordering::Acquire) {
        let start = Instant::now();
        let answer = reader.execute(&statement, &CancellationToken::new()).await.expect("reads");
        drop(answer);
        waits.push(start.elapsed());
        tokio::task::yield_now().await;
    }
    assert!(waiter.await.expect("ends"), "the view answers in the end");
    waits.sort_unstable();
    let p99 = waits[waits.len() * 99 / 100];
    eprintln!(
        "{} point reads beside it, p50 {:?}, p99 {p99:?}; closed in {:?}",
        waits.len(),
        waits[waits.len() / 2],
        begun.elapsed()
    );
    // A fresh time of many keys, and a read of it that is cancelled.
    database.run(&format!("INSERT INTO big SELECT g, 1 FROM generate_series(1, {keys}) AS t(g)")).await;
    let mut session = database.engine.session();
    let statement = session.parse("SELECT sum(s) FROM many").expect("parses").remove(0);
    let cancel = CancellationToken::new();
    cancel.cancel();
    let start = Instant::now();
    let code = session.execute(&statement, &cancel).await.err().map(|error| error.code().code());
    assert_eq!(code, Some("57014"));
    assert!(start.elapsed() < Duration::from_secs(1), "cancelled within a second");
    database.engine.close().await;
    assert!(waits.len() > 20, "the reads were held up");
}

/// Views are made, on tables and on views, while rows come and go: each equals its query as soon as it
/// answers, and what is read of several views is of one time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn views_fill_while_rows_come_and_go() {
    for workers in [1, 3] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut database = Database::open(directory.path(), workers, Env::system()).await;
        database.run("CREATE TABLE t (id bigint PRIMARY KEY, part bigint, x bigint)").await;
        database.run("INSERT INTO t SELECT g, g % 1000, 1 FROM generate_series(1, 30000) AS s(g)").await;
        let stop = CancellationToken::new();
        let writer = {
            let (stop, mut session) = (stop.clone(), database.engine.session());
            tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(11);
                let mut statements = 0;
                while !stop.is_cancelled() {
                    // The sum over all rows stays what it is.
                    let (from, to) = (random.random_range(1..15_000), random.random_range(15_000..30_000));
                    let text = format!(
                        "UPDATE t SET x = CASE WHEN id = {from} THEN x - 7 ELSE x + 7 END WHERE id IN ({from}, {to})"
                    );
                    let statement = session.parse(&text).expect("parses").remove(0);
                    session.execute(&statement, &CancellationToken::new()).await.expect("updates");
                    statements += 1;
                }
                statements
            })
        };
        for view in 0..4 {
            database
                .run(&format!(
                    "CREATE MATERIALIZED VIEW a{view} AS SELECT part, sum(x) s, count(*) n FROM t GROUP BY part"
                ))
                .await;
            database
                .run(&format!(
                    "CREATE MATERIALIZED VIEW b{view} AS SELECT n, sum(s) s, count(*) parts FROM a{view} GROUP BY n"
                ))
                .await;
            for _ in 0..5 {
                let sums = database
                    .run(&format!(
                        "SELECT (SELECT sum(s) FROM a{view}) a, (SELECT sum(s) FROM b{view}) b, (SELECT sum(x) FROM t) t"
                    ))
                    .await;
                assert_eq!(sums, vec![vec!["30000".to_owned(); 3]], "{workers} workers, view {view}");
            }
            let shown = database.run(&format!("SELECT count(*) FROM (SELECT part, sum(x) s FROM t GROUP BY part) q JOIN a{view} v ON q.part = v.part AND q.s = v.s")).await;
            assert_eq!(shown, vec![vec!["1000".to_owned()]], "{workers} workers, view {view}");
        }
        stop.cancel();
        assert!(writer.await.expect("ends") > 0);
        database.engine.close().await;
    }
}

/// A clock that stands still until it is set.
struct SetClock(AtomicU64);

impl WallClock for SetClock {
    fn now_millis(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Seconds after midnight of the day on which the clock is set.
const MIDNIGHT_MILLIS: u64 = 1_772_323_200_000;

/// Rows of views with conditions on now() come and go with the clock, also those of views on them, over checkpoints, starts
/// from them and other numbers of workers; each view equals its query.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_come_and_go_with_the_clock() {
    let clock = Arc::new(SetClock(AtomicU64::new(MIDNIGHT_MILLIS)));
    let env = || Env::new(Arc::clone(&clock) as Arc<dyn WallClock>, Failpoints::default());
    let set = |second: u64| clock.0.store(MIDNIGHT_MILLIS + second * 1_000, Ordering::Release);
    let directory = tempfile::tempdir().expect("a directory");
    let mut database = Database::open(directory.path(), 2, env()).await;
    database.run("CREATE TABLE t (id int PRIMARY KEY, part int, at timestamptz, until timestamptz)").await;
    let views = [
        ("recent", "SELECT id, part FROM t WHERE at > now() - INTERVAL '60 seconds'"),
        ("valid", "SELECT id FROM t WHERE now() BETWEEN at AND until AND id <> 5"),
        ("begun", "SELECT id FROM t WHERE at <= current_timestamp"),
        ("recent_parts", "SELECT part, count(*) AS n FROM t WHERE at + INTERVAL '60 seconds' > now() GROUP BY part"),
        ("lately", "SELECT part, max(at) AS last FROM t GROUP BY part HAVING max(at) >= now() - INTERVAL '1 minute'"),
        (
            "pairs",
            "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.part = b.part AND a.id < b.id WHERE b.at > now() - INTERVAL '60 seconds'",
        ),
    ];
    for (name, query) in views {
        database.run(&format!("CREATE MATERIALIZED VIEW {name} AS {query}")).await;
    }
    database.run("CREATE MATERIALIZED VIEW how_many AS SELECT count(*) AS n FROM recent").await;
    database
        .run(
            "INSERT INTO t VALUES (1, 1, '2026-03-01 00:00:00Z', '2026-03-01 00:00:30Z'), \
             (2, 1, '2026-03-01 00:00:20Z', '2026-03-01 00:01:10Z'), (3, 2, '2026-03-01 00:00:20Z', NULL), \
             (4, 2, NULL, '2026-03-01 00:01:00Z'), (5, 2, '2026-03-01 00:10:00Z', '2026-03-01 00:20:00Z')",
        )
        .await;
    // By second of the clock: ids of the first three views.
    let seconds: [(u64, &str, &str, &str); 8] = [
        (1, "1 2 3 5", "1", "1"),
        (21, "1 2 3 5", "1 2", "1 2 3"),
        (31, "1 2 3 5", "2", "1 2 3"),
        (61, "2 3 5", "2", "1 2 3"),
        (71, "2 3 5", "", "1 2 3"),
        (81, "5", "", "1 2 3"),
        (601, "5", "", "1 2 3 5"),
        (661, "", "", "1 2 3 5"),
    ];
    for (step, (second, recent, valid, begun)) in seconds.into_iter().enumerate() {
        if step % 3 == 2 {
            // From a checkpoint, or from the log alone.
            if step % 2 == 0 {
                database.run("CHECKPOINT").await;
            }
            database.engine.close().await;
            set(second);
            database = Database::open(directory.path(), 1 + step % 4, env()).await;
        } else {
            set(second);
        }
        database.run("SET clink.read = 'strict'").await;
        for (view, expected) in [("recent", recent), ("valid", valid), ("begun", begun)] {
            let rows = database.run(&format!("SELECT id FROM {view} ORDER BY id")).await;
            let ids: Vec<String> = rows.into_iter().map(|mut row| row.remove(0)).collect();
            assert_eq!(ids.join(" "), expected, "{view} at second {second}");
        }
        let counted = database.run("SELECT n FROM how_many").await;
        assert_eq!(
            counted[0][0],
            recent.split_whitespace().count().to_string(),
            "a view on a view, at second {second}"
        );
        for (view, query) in views {
            let shown = canonical(database.run(&format!("SELECT * FROM {view}")).await);
            assert_eq!(shown, canonical(database.run(query).await), "{view} at second {second}");
        }
    }
    // What has gone, or has come for good, is not kept.
    let kept = database
        .run("SELECT job, state_keys FROM clink_catalog.operators WHERE lower(kind) LIKE '%temporal%' AND state_keys > 0")
        .await;
    assert!(kept.is_empty(), "{kept:?}");
    // A change that comes too late changes nothing, one in time does.
    database.run("UPDATE t SET part = 7 WHERE id = 1; DELETE FROM t WHERE id = 2").await;
    assert_eq!(database.run("SELECT * FROM recent").await.len(), 0);
    assert_eq!(database.run("SELECT id FROM begun").await.len(), 3);
    database.run("INSERT INTO t VALUES (6, 9, '2026-03-01 00:11:00Z', NULL)").await;
    assert_eq!(database.run("SELECT id FROM recent").await, [["6"]]);
    // Nobody asks for a time, and the row goes all the same.
    database.run("RESET clink.read").await;
    set(721);
    let start = Instant::now();
    while !database.run("SELECT id FROM recent").await.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20), "the row does not go");
        tokio::task::yield_now().await;
    }
    assert_eq!(database.run("SELECT n FROM how_many").await, [["0"]]);
    database.engine.close().await;
}
