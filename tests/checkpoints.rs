//! Checkpoints and starts from them: with each backend, on another number of workers, with a failure at each step, and
//! with damage to each file.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clink::env::Env;
use clink::types::SqlState;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::{Database, canonical, steps};

/// Views and the queries that say what they are.
const VIEWS: [(&str, &str); 4] = [
    ("per_part", "SELECT part, count(*) n, sum(x) s, min(x) least, count(DISTINCT x) d, avg(f) a FROM t GROUP BY part"),
    ("parts", "SELECT DISTINCT part % 3 p, f FROM t"),
    ("overall", "SELECT sum(n)::bigint n, max(s) s, string_agg(part::text, ',') parts FROM per_part"),
    ("quotients", "SELECT id, 100 / x q FROM t WHERE id % 2 = 0"),
];

async fn create(database: &mut Database, state_backend: Option<&str>) {
    database.run("CREATE TABLE t (id bigint PRIMARY KEY, part bigint, x bigint, f double precision)").await;
    database.run("CREATE TABLE heap (a text, b numeric(10,2))").await;
    let options = state_backend.map(|uri| format!(" WITH (state_backend = '{uri}')")).unwrap_or_default();
    for (view, query) in VIEWS {
        database.run(&format!("CREATE MATERIALIZED VIEW {view}{options} AS {query}")).await;
    }
}

type Model = BTreeMap<i64, (i64, i64)>;

/// A statement that changes rows, and what the rows are then.
fn change(random: &mut StdRng, model: &Model) -> (String, Model) {
    let mut after = model.clone();
    let id = random.random_range(0..60);
    let statement = match random.random_range(0..5) {
        0 | 1 => {
            let rows: Vec<(i64, i64, i64)> = (0..random.random_range(1..9))
                .map(|i| (id + i, (id + i) % 7, random.random_range(-3..20)))
                .filter(|(id, ..)| !model.contains_key(id))
                .collect();
            after.extend(rows.iter().map(|(id, part, x)| (*id, (*part, *x))));
            if rows.is_empty() {
                return ("SELECT 1".to_owned(), after);
            }
            let rows: Vec<String> = rows.iter().map(|(id, part, x)| format!("({id}, {part}, {x}, -0.0)")).collect();
            format!("INSERT INTO heap VALUES ('a', 1.50), ('a', 1.50); INSERT INTO t VALUES {}", rows.join(", "))
        }
        2 => {
            after.retain(|key, _| !(id..id + 5).contains(key));
            format!("DELETE FROM t WHERE id >= {id} AND id < {}", id + 5)
        }
        _ => {
            after.iter_mut().filter(|(key, _)| (id..id + 9).contains(*key)).for_each(|(_, (_, x))| *x += 1);
            format!("UPDATE t SET x = x + 1 WHERE id >= {id} AND id < {}", id + 9)
        }
    };
    (statement, after)
}

async fn check(database: &mut Database, model: &Model, what: &str) {
    let rows = database.run("SELECT id, part, x FROM t ORDER BY id").await;
    let expected: Vec<Vec<String>> =
        model.iter().map(|(id, (part, x))| [id, part, x].map(ToString::to_string).to_vec()).collect();
    assert_eq!(rows, expected, "{what}");
    for (view, query) in VIEWS {
        let shown = canonical(database.run(&format!("SELECT * FROM {view}")).await);
        let query = if view == "quotients" { "SELECT id, 100 / x q FROM t WHERE id % 2 = 0 AND x <> 0" } else { query };
        assert_eq!(shown, canonical(database.run(query).await), "{what}: {view}");
    }
    let errors = database.run("SELECT count(*) FROM quotients_errors").await;
    let expected = model.iter().filter(|(id, (_, x))| *id % 2 == 0 && *x == 0).count();
    assert_eq!(errors, [[expected.to_string()]], "{what}: rows that fail");
}

/// How many jobs were restored at the start.
async fn restored_jobs(database: &mut Database) -> usize {
    let rows = database.run("SELECT jobs FROM clink_catalog.checkpoints WHERE restored AND id > 0").await;
    rows.first().map_or(0, |row| row[0].parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_backend_goes_on_from_a_checkpoint_on_any_number_of_workers() {
    for scheme in [
        "memory://",
        "memory+sharded://",
        "file",
        "changelog://?upload_bytes=200",
        "changelog+file",
        "disagg-local://",
        "rocksdb",
        "changelog+rocksdb",
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("state");
        let uri = if scheme.contains(':') { scheme.to_owned() } else { format!("{scheme}://{}", place.display()) };
        let mut random = StdRng::seed_from_u64(5);
        let mut model = Model::new();
        let mut checkpointed = false;
        let lives = if scheme.contains("rocksdb") { steps(3, 20) } else { steps(5, 40) };
        for life in 0..lives {
            let workers = [1, 4, 3, 2][life % 4];
            let set = |config: &mut clink::engine::CheckpointConfig| {
                config.state_backend = uri.clone();
                config.retained = 2;
            };
            let data = directory.path().join("data");
            let mut database = Database::open_with(&data, workers, Env::system(), set).await.expect("opens");
            if life == 0 {
                create(&mut database, None).await;
            }
            let what = format!("{uri}, life {life}");
            check(&mut database, &model, &what).await;
            assert_eq!(restored_jobs(&mut database).await, if checkpointed { 6 } else { 0 }, "{what}");
            for _ in 0..random.random_range(1..4) {
                for _ in 0..random.random_range(1..6) {
                    let (statement, after) = change(&mut random, &model);
                    database.run(&statement).await;
                    model = after;
                }
                database.run("CHECKPOINT").await;
                checkpointed = true;
            }
            let (statement, after) = change(&mut random, &model);
            database.run(&statement).await;
            model = after;
            check(&mut database, &model, &what).await;
            let complete =
                database.run("SELECT count(*) FROM clink_catalog.checkpoints WHERE status = 'COMPLETE'").await;
            assert!(complete[0][0].parse::<usize>().expect("a number") <= 2, "{what}: older ones are released");
            database.engine.close().await;
        }
        assert_eq!(place.exists(), !scheme.contains(':'), "{uri}: the files lie under the URI");
    }
}

/// A view names its own backend; the server's default changes between two starts, so tables move to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn state_moves_to_another_backend() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut random = StdRng::seed_from_u64(6);
    let mut model = Model::new();
    for (life, uri) in ["changelog://", "memory://", "disagg-local://", "memory+sharded://"].iter().enumerate() {
        let set = |config: &mut clink::engine::CheckpointConfig| config.state_backend = (*uri).to_owned();
        let mut database =
            Database::open_with(directory.path(), 1 + life % 3, Env::system(), set).await.expect("opens");
        if life == 0 {
            create(&mut database, Some("disagg-local://?io_threads=2")).await;
            let text = database.run("SHOW CREATE MATERIALIZED VIEW parts").await;
            assert!(text[0][1].contains("WITH (state_backend = 'disagg-local://?io_threads=2')"), "{text:?}");
        }
        check(&mut database, &model, uri).await;
        assert_eq!(restored_jobs(&mut database).await, if life > 0 { 6 } else { 0 }, "{uri}");
        for _ in 0..10 {
            let (statement, after) = change(&mut random, &model);
            database.run(&statement).await;
            model = after;
        }
        database.run("CHECKPOINT").await;
        check(&mut database, &model, uri).await;
        database.engine.close().await;
    }
}

/// While statements run: other numbers of workers, and a view's state in other backends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_start_again_on_other_workers_and_backends() {
    let directory = tempfile::tempdir().expect("a directory");
    let place = directory.path().join("state");
    let data = directory.path().join("data");
    let mut random = StdRng::seed_from_u64(9);
    let mut model = Model::new();
    let mut database = Database::open(&data, 2, Env::system()).await;
    create(&mut database, None).await;
    database.run("CREATE TABLE kept (part bigint PRIMARY KEY, n bigint)").await;
    database.run("CREATE SINK into_kept INTO kept AS SELECT part, n FROM per_part").await;
    for round in 0..8 {
        for _ in 0..4 {
            let (statement, after) = change(&mut random, &model);
            database.run(&statement).await;
            model = after;
        }
        match round {
            0 => database.run("ALTER SYSTEM SET workers = 4").await,
            1 => {
                database
                    .run(&format!(
                        "ALTER MATERIALIZED VIEW per_part SET (state_backend = 'rocksdb://{}')",
                        place.display()
                    ))
                    .await
            }
            2 => database.run("ALTER SYSTEM SET workers TO 1").await,
            3 => database.run("ALTER MATERIALIZED VIEW per_part SET (state_backend = 'changelog://')").await,
            4 => database.run("PAUSE JOB quotients; ALTER SYSTEM SET workers = 3; RESUME JOB quotients").await,
            5 => database.run("ALTER SYSTEM SET workers = 3").await,
            6 => {
                let text = database.run("SHOW CREATE MATERIALIZED VIEW per_part").await;
                assert!(text[0][1].contains("WITH (state_backend = 'changelog://')"), "{text:?}");
                database.engine.close().await;
                database = Database::open(&data, 2, Env::system()).await;
                Vec::new()
            }
            _ => database.run("FLUSH").await,
        };
        let (statement, after) = change(&mut random, &model);
        database.run(&statement).await;
        model = after;
        database.run("FLUSH").await;
        check(&mut database, &model, &format!("round {round}")).await;
        let kept = database.run("SELECT part, n FROM kept ORDER BY part").await;
        assert_eq!(kept, database.run("SELECT part, n FROM per_part ORDER BY part").await, "round {round}");
        assert_eq!(place.exists(), round >= 1, "round {round}");
    }
    assert_eq!(
        database.fail("ALTER MATERIALIZED VIEW t SET (state_backend = 'memory://')").await.code(),
        SqlState::WrongObjectType
    );
    database.engine.close().await;
}

/// A job stops behind a savepoint that has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_stops_behind_a_savepoint() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().join("savepoint");
    let mut database = Database::open(&directory.path().join("first"), 2, Env::system()).await;
    database.run("CREATE TABLE t (a int PRIMARY KEY)").await;
    database.run("CREATE MATERIALIZED VIEW total AS SELECT sum(a) s FROM t; INSERT INTO t VALUES (1), (2)").await;
    database.run(&format!("STOP JOB total WITH SAVEPOINT 'file://{}'", folder.display())).await;
    assert_eq!(database.fail("SELECT s FROM total").await.code(), SqlState::ObjectNotReady);
    database.run("INSERT INTO t VALUES (3); RESUME JOB total").await;
    assert_eq!(database.run("SELECT s FROM total").await, [["6"]]);
    database.run("STOP JOB total").await;
    assert_eq!(database.fail("SELECT s FROM total").await.code(), SqlState::ObjectNotReady);
    database.engine.close().await;
    let begin = |config: &mut clink::engine::CheckpointConfig| config.restore_from = Some(folder.clone());
    let data = directory.path().join("second");
    let mut database = Database::open_with(&data, 1, Env::system(), begin).await.expect("opens");
    assert_eq!(database.run("SELECT s FROM total").await, [["3"]]);
    assert_eq!(restored_jobs(&mut database).await, 2);
    database.engine.close().await;
}

/// The named places of a checkpoint, in order.
const PLACES: [&str; 13] = [
    "timeline.begin_file",
    "checkpoint.capture",
    "part.write",
    "part.sync",
    "part.rename",
    "part.sync_folder",
    "part.written",
    "checkpoint.manifest",
    "checkpoint.head",
    "checkpoint.release",
    "part.delete",
    "timeline.forget",
    "timeline.append",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_at_any_step_loses_and_doubles_nothing() {
    let mut random = StdRng::seed_from_u64(7);
    for uri in ["memory+sharded://", "changelog://?upload_bytes=100", "disagg-local://"] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut model = Model::new();
        for round in 0..steps(1, 20) {
            for (life, place) in PLACES.iter().enumerate() {
                let set = |config: &mut clink::engine::CheckpointConfig| {
                    config.state_backend = uri.to_owned();
                    config.retained = 2;
                };
                let env = Env::system();
                let workers = 1 + (life + round) % 3;
                let mut database =
                    Database::open_with(directory.path(), workers, env.clone(), set).await.expect("opens");
                if life + round == 0 {
                    create(&mut database, None).await;
                }
                let what = format!("{uri}, after {place}");
                check(&mut database, &model, &what).await;
                env.failpoints().arm(place, random.random_range(0..3));
                for _ in 0..3 {
                    let (statement, after) = change(&mut random, &model);
                    match database.try_run(&statement).await {
                        Ok(_) => model = after,
                        // The log takes no more; nothing of the statement is there.
                        Err(_) => assert!(place.starts_with("timeline."), "{what}: {statement}"),
                    }
                    let _ = database.try_run("CHECKPOINT").await;
                }
                env.failpoints().disarm(place);
                if !place.starts_with("timeline.") {
                    database.run("CHECKPOINT").await;
                    check(&mut database, &model, &what).await;
                }
                database.engine.close().await;
            }
        }
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("below"));
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("made");
        std::fs::copy(&file, target).expect("copied");
    }
}

/// Every file of checkpoints, cut, changed, removed or replaced: the database falls back to an older checkpoint and comes
/// to the same rows, or refuses with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_passed_over_or_refused_and_never_a_smaller_state() {
    for uri in ["memory+sharded://", "changelog://?upload_bytes=100", "disagg-local://"] {
        let directory = tempfile::tempdir().expect("a directory");
        let whole = directory.path().join("whole");
        let set = |config: &mut clink::engine::CheckpointConfig| {
            config.state_backend = uri.to_owned();
            config.retained = 2;
        };
        let mut random = StdRng::seed_from_u64(8);
        let mut model = Model::new();
        let mut database = Database::open_with(&whole, 1, Env::system(), set).await.expect("opens");
        create(&mut database, None).await;
        for _ in 0..3 {
            for _ in 0..4 {
                let (statement, after) = change(&mut random, &model);
                database.run(&statement).await;
                model = after;
            }
            database.run("CHECKPOINT").await;
        }
        database.engine.close().await;
        let all = files(&whole.join("checkpoints"));
        let every = steps(4, 1);
        let (mut passed_over, mut refused) = (0, 0);
        for (at, file) in all.iter().enumerate() {
            let content = std::fs::read(file).expect("readable");
            let mut flipped = content.clone();
            flipped[content.len() / 2] ^= 4;
            let other = std::fs::read(&all[(at + 1) % all.len()]).expect("readable");
            let damages = [Some(content[..content.len() / 2].to_vec()), Some(flipped), None, Some(other)];
            for (kind, damage) in damages.iter().enumerate() {
                if (at + kind) % every != 0 || damage.as_ref() == Some(&content) {
                    continue;
                }
                let case = directory.path().join(format!("case-{at}-{kind}"));
                copy(&whole, &case);
                let damaged = case.join(file.strip_prefix(&whole).expect("below"));
                match damage {
                    Some(damage) => std::fs::write(&damaged, damage).expect("writable"),
                    None => std::fs::remove_file(&damaged).expect("removed"),
                }
                let what = format!("{uri}: {} with damage {kind}", damaged.display());
                match Database::open_with(&case, 2, Env::system(), set).await {
                    Ok(mut database) => {
                        check(&mut database, &model, &what).await;
                        let damaged =
                            database.run("SELECT id FROM clink_catalog.checkpoints WHERE status = 'DAMAGED'").await;
                        passed_over += damaged.len();
                        database.run("INSERT INTO t VALUES (1000, 1, 1, 1)").await;
                        database.run("CHECKPOINT").await;
                        database.engine.close().await;
                    }
                    Err(error) => {
                        assert_eq!(error.code(), SqlState::DataCorrupted, "{what}: {error:?}");
                        refused += 1;
                    }
                }
                std::fs::remove_dir_all(&case).expect("removed");
            }
        }
        assert!(passed_over > 0, "{uri}: {} files, {refused} refused", all.len());
    }
}

/// What was dropped, created, paused or was filling at a checkpoint is as it should be after a start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_come_and_go_around_a_checkpoint() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut database = Database::open(directory.path(), 2, Env::system()).await;
    create(&mut database, None).await;
    database.run("CREATE TABLE gone (a int); INSERT INTO gone VALUES (1)").await;
    database.run("CREATE MATERIALIZED VIEW of_gone AS SELECT count(*) n FROM gone").await;
    database.run("CREATE MATERIALIZED VIEW constant AS SELECT 7 a UNION ALL SELECT part::int FROM t").await;
    database.run("CREATE MATERIALIZED VIEW on_errors AS SELECT count(*) n FROM quotients_errors").await;
    database.run("INSERT INTO t VALUES (1, 1, 5, 0.5), (2, 2, 0, 1.5), (4, 2, 3, 2.5)").await;
    database.run("PAUSE JOB per_part").await;
    database.run("CHECKPOINT").await;
    database.run("DROP TABLE gone CASCADE").await;
    database.run("CREATE TABLE new (a int PRIMARY KEY); INSERT INTO new VALUES (3)").await;
    database.run("CREATE MATERIALIZED VIEW of_new AS SELECT sum(a) s FROM new").await;
    database.run("INSERT INTO t VALUES (6, 3, 0, 0.0)").await;
    database.engine.close().await;

    let mut database = Database::open(directory.path(), 3, Env::system()).await;
    // t, heap, parts, quotients, on_errors, constant, gone, of_gone; of per_part and overall nothing was captured.
    assert_eq!(database.run("SELECT jobs FROM clink_catalog.checkpoints WHERE restored").await, [["8"]]);
    let model = Model::from([(1, (1, 5)), (2, (2, 0)), (4, (2, 3)), (6, (3, 0))]);
    check(&mut database, &model, "after the start").await;
    assert_eq!(database.run("SELECT s FROM of_new").await, [["3"]]);
    assert_eq!(database.run("SELECT n FROM on_errors").await, [["2"]]);
    assert_eq!(database.run("SELECT a FROM constant ORDER BY a").await, [["1"], ["2"], ["2"], ["3"], ["7"]]);
    assert!(database.fail("SELECT * FROM gone").await.message().contains("gone"));
    database.run("CHECKPOINT; DELETE FROM t WHERE id = 2").await;
    assert_eq!(
        database.run("SELECT jobs FROM clink_catalog.checkpoints WHERE status = 'COMPLETE' LIMIT 1").await,
        [["10"]]
    );
    database.engine.close().await;
    let mut database = Database::open(directory.path(), 1, Env::system()).await;
    let model = Model::from([(1, (1, 5)), (4, (2, 3)), (6, (3, 0))]);
    check(&mut database, &model, "after the second start").await;
    assert_eq!(database.run("SELECT n FROM on_errors").await, [["1"]]);
    database.engine.close().await;
}

/// A source's rows are in the checkpoint: its files may go. Rows that cannot be read too. What comes later is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_were_read_may_go() {
    let directory = tempfile::tempdir().expect("a directory");
    let input = directory.path().join("input");
    std::fs::create_dir(&input).expect("made");
    let data = directory.path().join("data");
    let write = |name: &str, lines: &str| std::fs::write(input.join(name), lines).expect("written");
    write("1.ndjson", "{\"k\":1,\"v\":10}\nbad one\n{\"k\":2,\"v\":20}\n");
    let mut database = Database::open(&data, 2, Env::system()).await;
    database
        .run(&format!(
            "CREATE TABLE s (k int, v int) WITH (connector = 'file', path = '{}', format = 'json', mode = 'follow')",
            input.display()
        ))
        .await;
    database.run("CREATE MATERIALIZED VIEW sums AS SELECT k, sum(v) v, count(*) n FROM s GROUP BY k").await;
    database.run("CREATE MATERIALIZED VIEW bad AS SELECT raw FROM s_errors").await;
    database.run("FLUSH; CHECKPOINT").await;
    std::fs::remove_file(input.join("1.ndjson")).expect("removed");
    write("2.ndjson", "{\"k\":1,\"v\":1}\nbad two\n");
    database.run("FLUSH").await;
    let sums =
        |v: &str, n: &str| [vec!["1".into(), v.to_owned(), n.to_owned()], vec!["2".into(), "20".into(), "1".into()]];
    for life in 0..4 {
        database.engine.close().await;
        database = Database::open(&data, 1 + life, Env::system()).await;
        // From the checkpoint, and from the second file, which is read again.
        assert_eq!(database.run("SELECT k, v, n FROM sums ORDER BY k").await, sums("11", "2"), "life {life}");
        assert_eq!(database.run("SELECT raw FROM bad ORDER BY raw").await, [["bad one"], ["bad two"]], "life {life}");
        assert_eq!(database.run("SELECT raw FROM s_errors ORDER BY raw").await, [["bad one"], ["bad two"]]);
        if life == 1 {
            database.run("CHECKPOINT").await;
            std::fs::remove_file(input.join("2.ndjson")).expect("removed");
        }
    }
    write("3.ndjson", "{\"k\":1,\"v\":100}\nbad three\n");
    database.run("FLUSH").await;
    assert_eq!(database.run("SELECT k, v, n FROM sums ORDER BY k").await, sums("111", "3"));
    assert_eq!(database.run("SELECT count(*) FROM bad").await, [["3"]]);
    database.engine.close().await;
}

/// A table with a connector and a key, and sinks into tables: what they know is in the checkpoint, in the order in which it
/// came, and nothing of it is read or written twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyed_sources_and_sinks_into_tables_go_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let input = directory.path().join("input");
    std::fs::create_dir(&input).expect("made");
    let append = |name: &str, rows: &[(i64, i64)]| {
        use std::io::Write as _;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(input.join(name));
        let lines: String = rows.iter().map(|(k, v)| format!("{{\"k\":{k},\"v\":{v}}}\n")).collect();
        file.and_then(|mut file| file.write_all(lines.as_bytes())).expect("written");
    };
    append("a.ndjson", &[(1, 10), (2, 20)]);
    let data = directory.path().join("data");
    let set = |config: &mut clink::engine::CheckpointConfig| config.retained = 1;
    let mut database = Database::open_with(&data, 2, Env::system(), set).await.expect("opens");
    database
        .run(&format!(
            "CREATE TABLE newest (k int PRIMARY KEY, v int) WITH (connector = 'file', path = '{}/*.ndjson', \
             format = 'json', mode = 'follow')",
            input.display()
        ))
        .await;
    database.run("CREATE TABLE typed (k int, v int) APPEND ONLY").await;
    database.run("CREATE MATERIALIZED VIEW total AS SELECT count(*) n, sum(v) v FROM newest").await;
    database.run("CREATE TABLE log (k int, v int); CREATE TABLE kept (k int PRIMARY KEY, v int)").await;
    database.run("CREATE SINK into_log INTO log FROM typed; CREATE SINK into_kept INTO kept FROM newest").await;
    // The order of the two files decides, and it is no longer to be seen in them.
    database.run("INSERT INTO typed VALUES (1, 1), (1, 1); FLUSH").await;
    append("b.ndjson", &[(1, 11), (3, 30)]);
    database.run("FLUSH").await;
    append("a.ndjson", &[(2, 21), (3, 31)]);
    database.run("FLUSH; CHECKPOINT").await;
    append("b.ndjson", &[(2, 22)]);
    database.run("INSERT INTO typed VALUES (2, 2); FLUSH").await;
    append("a.ndjson", &[(1, 12)]);
    database.run("FLUSH").await;
    let rows = |rows: &[(i64, i64)]| -> Vec<Vec<String>> {
        rows.iter().map(|(k, v)| vec![k.to_string(), v.to_string()]).collect()
    };
    let mut expected = vec![(1, 12), (2, 22), (3, 31)];
    let mut logged = vec![(1, 1), (1, 1), (2, 2)];
    for life in 0..4 {
        database.engine.close().await;
        database = Database::open_with(&data, 1 + life % 3, Env::system(), set).await.expect("opens");
        database.run("FLUSH").await;
        // newest, typed, total, log, kept: and no errors relation, since nothing was wrong.
        let restored = restored_jobs(&mut database).await;
        assert!(restored >= 5, "life {life}: {restored}");
        let sum: i64 = expected.iter().map(|(_, v)| v).sum();
        assert_eq!(database.run("SELECT k, v FROM newest ORDER BY k").await, rows(&expected), "life {life}");
        assert_eq!(database.run("SELECT n, v FROM total").await, rows(&[(expected.len() as i64, sum)]), "life {life}");
        assert_eq!(database.run("SELECT k, v FROM kept ORDER BY k").await, rows(&expected), "life {life}");
        assert_eq!(database.run("SELECT k, v FROM log ORDER BY k, v").await, rows(&logged), "life {life}");
        if life > 0 {
            let key = 10 + life as i64;
            append(if life % 2 == 0 { "a.ndjson" } else { "b.ndjson" }, &[(3, key), (key, 1)]);
            database.run(&format!("INSERT INTO typed VALUES ({key}, 0); FLUSH")).await;
            expected[2] = (3, key);
            expected.push((key, 1));
            logged.push((key, 0));
            if life == 2 {
                database.run("RESUME JOB into_log; RESUME JOB into_kept; FLUSH").await;
            }
            if life != 1 {
                database.run("CHECKPOINT").await;
            }
        }
        if life == 2 {
            // What the checkpoint has need not be read again: neither by the table nor by its views.
            std::fs::remove_file(input.join("a.ndjson")).expect("removed");
        }
    }
    database.engine.close().await;
}

/// The log of changes is no longer than what the retained checkpoints need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_timeline_is_cut() {
    let directory = tempfile::tempdir().expect("a directory");
    let set = |config: &mut clink::engine::CheckpointConfig| config.retained = 1;
    let mut database = Database::open_with(directory.path(), 2, Env::system(), set).await.expect("opens");
    database.run("CREATE TABLE t (a bigint PRIMARY KEY)").await;
    for round in 0..10 {
        let values: Vec<String> = (0..500).map(|i| format!("({})", round * 500 + i)).collect();
        database.run(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
        database.run("CHECKPOINT").await;
    }
    // Nothing came since: the newest is the answer.
    let newest = database.run("SELECT max(id) FROM clink_catalog.checkpoints").await;
    database.run("CHECKPOINT").await;
    assert_eq!(database.run("SELECT max(id) FROM clink_catalog.checkpoints").await, newest);
    database.engine.close().await;
    let logs = files(directory.path()).into_iter().filter(|file| {
        file.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("timeline"))
    });
    let bytes: u64 = logs.map(|file| file.metadata().expect("there").len()).sum();
    assert_eq!(bytes, 0, "all is in the checkpoint");
    let mut database = Database::open_with(directory.path(), 1, Env::system(), set).await.expect("opens");
    assert_eq!(database.run("SELECT count(*), sum(a) FROM t").await, [["5000", "12497500"]]);
    database.engine.close().await;
}

/// A savepoint begins another database, on another backend, and stays as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_savepoint_begins_another_database() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().join("savepoint");
    let uri = format!("file://{}", folder.display());
    let set = |config: &mut clink::engine::CheckpointConfig| config.state_backend = "disagg-local://".to_owned();
    let first = directory.path().join("first");
    let mut database = Database::open_with(&first, 3, Env::system(), set).await.expect("opens");
    create(&mut database, None).await;
    database.run("INSERT INTO t VALUES (1, 1, 5, 0.5), (2, 2, 0, 1.5)").await;
    database.run(&format!("CREATE SAVEPOINT '{uri}'")).await;
    assert_eq!(database.fail(&format!("CREATE SAVEPOINT '{uri}'")).await.code(), SqlState::DuplicateObject);
    assert_eq!(database.fail("CREATE SAVEPOINT 's3://b/p'").await.code(), SqlState::FeatureNotSupported);
    assert_eq!(database.fail("CREATE SAVEPOINT 'here'").await.code(), SqlState::InvalidParameterValue);
    database.run("INSERT INTO t VALUES (3, 3, 3, 3); DROP MATERIALIZED VIEW parts").await;
    database.engine.close().await;
    for life in 0..2 {
        let data = directory.path().join(format!("other-{life}"));
        let begin = |config: &mut clink::engine::CheckpointConfig| config.restore_from = Some(folder.clone());
        let mut database = Database::open_with(&data, 1 + life, Env::system(), begin).await.expect("opens");
        let mut model = Model::from([(1, (1, 5)), (2, (2, 0))]);
        check(&mut database, &model, "from the savepoint").await;
        assert_eq!(restored_jobs(&mut database).await, 6);
        database.run("UPDATE t SET x = 4 WHERE id = 2").await;
        model.insert(2, (2, 4));
        database.run("CHECKPOINT").await;
        database.engine.close().await;
        let error = Database::open_with(&data, 1, Env::system(), begin).await.err().expect("it has a database");
        assert_eq!(error.code(), SqlState::ObjectNotReady);
        let mut database = Database::open(&data, 2, Env::system()).await;
        check(&mut database, &model, "afterwards").await;
        database.engine.close().await;
    }
    std::fs::remove_file(folder.join("catalog.log")).expect("removed");
    let begin = |config: &mut clink::engine::CheckpointConfig| config.restore_from = Some(folder.clone());
    let data = directory.path().join("last");
    let error = Database::open_with(&data, 1, Env::system(), begin).await.err().expect("it is damaged");
    assert_eq!(error.code(), SqlState::DataCorrupted);
}
