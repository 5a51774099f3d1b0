"""SIGKILL at random moments, a restart with another number of workers: the state goes on from a checkpoint."""

import json
import os
import random
import threading
import time

import psycopg
import pytest

from harness import LONG, Server, one, rows, wait_for
from object_store import CREDENTIALS, REQUEST_SECONDS, FaultyProxy, state_uri

# scripts/crashtest sets these.
KILLS = int(os.environ.get("CLINK_KILLS", 30 if LONG else 2))
KEYS = int(os.environ.get("CLINK_KEYS", 100_000 if LONG else 20_000))
SEED = os.environ.get("CLINK_SEED")
PARTS = 97
SCHEMES = [
    "memory://",
    "memory+sharded://",
    "file",
    "changelog://",
    "changelog+file",
    "disagg-local://",
    "rocksdb",
    "changelog+rocksdb",
]
BUCKET_SCHEMES = ["remote-read", "changelog+s3", "s3+rocksdb", "changelog+s3+rocksdb"]
# The client's own patience is half a minute.
BUCKET_ENV = CREDENTIALS | {"AWS_TIMEOUT": f"{REQUEST_SECONDS}s"}

BY_PART = (
    "SELECT part, count(*) AS n, sum(v) AS total, max(v) AS most, count(DISTINCT v % 10) AS kinds FROM t GROUP BY part"
)
OVERALL = "SELECT sum(n)::bigint AS n, max(total) AS total FROM by_part"
READ = "SELECT g, count(*) AS n, sum(v) AS total FROM events GROUP BY g"


def write_events(path, start, count):
    """A file of rows, each hundredth of which cannot be read; appears under its name as a whole."""
    rows = range(start, start + count)
    lines = [json.dumps({"g": i % 13, "v": i}) if i % 100 else f"bad {i}" for i in rows]
    hidden = path.with_name("." + path.name)
    hidden.write_text("\n".join(lines) + "\n")
    hidden.rename(path)


def changes(server, choose, model, stop):
    """Updates, deletes and inserts, each acknowledged before the model has it."""
    try:
        with server.connect() as connection:
            while not stop.is_set():
                low = choose.randrange(KEYS)
                span = f"id >= {low} AND id < {low + 50}"
                touched = [id for id in range(low, min(low + 50, KEYS))]
                kind = choose.choice(["update", "delete", "insert"])
                after = dict(model["rows"])
                if kind == "update":
                    statement = f"UPDATE t SET v = v + 1 WHERE {span}"
                    after |= {id: after[id] + 1 for id in touched if id in after}
                elif kind == "delete":
                    statement = f"DELETE FROM t WHERE {span}"
                    for id in touched:
                        after.pop(id, None)
                else:
                    fresh = {id: choose.randrange(1000) for id in touched if id not in after}
                    if not fresh:
                        continue
                    values = ", ".join(f"({id}, {id % PARTS}, {v})" for id, v in fresh.items())
                    statement = f"INSERT INTO t VALUES {values}"
                    after |= fresh
                model["next"] = after
                connection.execute(statement)
                model["rows"] = after
                model["done"] += 1
    except psycopg.OperationalError as error:
        if error.sqlstate is not None and error.sqlstate not in ("57P01", "57P03"):
            model["failure"] = error
    except BaseException as error:
        model["failure"] = error


def complete(connection, behind=0):
    """The newest complete checkpoint, if it is behind a time."""
    query = f"SELECT max(id) FROM clink_catalog.checkpoints WHERE status = 'COMPLETE' AND id > {behind}"
    return one(connection, query)


def check(server, model, files):
    with server.connect() as connection:
        table = dict(rows(connection, "SELECT id, v FROM t"))
        if table != model["rows"]:
            assert table == model["next"], "a statement is there in part, or one that was acknowledged is not"
        model["rows"] = table
        groups = {}
        for id, v in table.items():
            groups.setdefault(id % PARTS, []).append(v)
        expected = {
            part: (len(values), sum(values), max(values), len({v % 10 for v in values}))
            for part, values in groups.items()
        }
        assert {row[0]: row[1:] for row in rows(connection, "SELECT * FROM by_part")} == expected
        assert rows(connection, "SELECT * FROM overall") == [
            (sum(n for n, *_ in expected.values()), max(total for _, total, *_ in expected.values()))
        ]
        connection.execute("FLUSH")
        numbers = range(files * 1000)
        read = {g: [i for i in numbers if i % 100 and i % 13 == g] for g in range(13)}
        assert sorted(rows(connection, "SELECT g, n, total FROM by_g")) == [
            (g, len(values), sum(values)) for g, values in sorted(read.items())
        ]
        # in = used + errors
        assert one(connection, "SELECT count(*) FROM events_errors") == files * 10


def kills_go_on(tmp_path, uri, env=None):
    """Kills a server and starts it again, while tables and files change; every start goes on from a checkpoint."""
    seed = int(SEED) if SEED else random.randrange(1 << 30)
    print(f"{uri}, seed {seed}")
    choose = random.Random(seed)
    source = tmp_path / "events"
    source.mkdir()
    flags = ["--state-backend", uri, "--checkpoint-interval", "150ms"]
    with Server(tmp_path / "data", workers=2, flags=flags, env=env) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, part int NOT NULL, v bigint NOT NULL)")
            connection.execute(f"CREATE MATERIALIZED VIEW by_part AS {BY_PART}")
            connection.execute(f"CREATE MATERIALIZED VIEW overall AS {OVERALL}")
            connection.execute(
                "CREATE TABLE events (g int, v bigint) WITH (connector = 'file', format = 'json', "
                f"path = '{source}/*.ndjson', mode = 'follow')"
            )
            connection.execute(f"CREATE MATERIALIZED VIEW by_g AS {READ}")
            model = {"rows": {}, "next": {}, "done": 0, "failure": None}
            for low in range(0, KEYS, 10_000):
                fresh = {id: choose.randrange(1000) for id in range(low, min(low + 10_000, KEYS))}
                values = ", ".join(f"({i}, {i % PARTS}, {v})" for i, v in fresh.items())
                connection.execute(f"INSERT INTO t VALUES {values}")
                model["rows"] |= fresh
            wait_for(lambda: complete(connection))
        files = 0
        starts = []
        for kill in range(KILLS):
            path = source / f"{kill}.ndjson"
            write_events(path, files * 1000, 1000)
            files += 1
            with server.connect() as connection:
                # What was read and checkpointed may go.
                connection.execute("FLUSH")
                connection.execute("CHECKPOINT")
            path.unlink()
            stop = threading.Event()
            thread = threading.Thread(target=changes, args=(server, choose, model, stop))
            thread.start()
            time.sleep(0.2 + choose.random())
            server.kill()
            thread.join(30)
            assert not thread.is_alive() and model["failure"] is None, model["failure"]
            server.workers = choose.randint(1, 4)
            begin = time.monotonic()
            server.start()
            starts.append(time.monotonic() - begin)
            check(server, model, files)
            with server.connect() as connection:
                restored = rows(connection, "SELECT id, jobs FROM clink_catalog.checkpoints WHERE restored")
                assert len(restored) == 1 and restored[0][0] > 0 and restored[0][1] == 5, restored
        assert model["done"] > KILLS
        print(f"{KILLS} kills, {model['done']} statements; seconds to start: {[round(s, 2) for s in starts]}")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_kills_go_on_from_checkpoints(tmp_path, scheme):
    place = tmp_path / "state"
    kills_go_on(tmp_path, scheme if ":" in scheme else f"{scheme}://{place}")
    lies = [file for file in place.rglob("*") if file.is_file()] if place.exists() else []
    assert bool(lies) == (":" not in scheme), "the files lie under the URI"
    # Open databases have folders that are named after their lives, the process in the upper half.
    lives = {int(work.name.split("-")[0]) >> 32 for work in place.glob("*/work/*")}
    assert len(lives) <= 1, "what earlier kills left of open databases is gone"
    timeline = sum(file.stat().st_size for file in (tmp_path / "data").glob("timeline*.log"))
    print(f"bytes of the timeline: {timeline}")


@pytest.mark.parametrize("scheme", BUCKET_SCHEMES)
def test_kills_go_on_in_a_bucket(tmp_path, object_store, scheme):
    kills_go_on(tmp_path, state_uri(scheme, object_store.endpoint, scheme), BUCKET_ENV)
    jobs = {name.split("/")[1] for name in object_store.names(f"{scheme}/")} - {"HEAD"}
    assert len(jobs) == 5, "the state of each job lies in the bucket"
    here = [file for file in (tmp_path / "data" / "checkpoints" / "jobs").rglob("*") if file.is_file()]
    assert not here, "and nowhere else"


# Sorted files and segments, with and without a log.
@pytest.mark.parametrize("scheme", BUCKET_SCHEMES if LONG else ["remote-read", "changelog+s3+rocksdb"])
def test_kills_go_on_with_a_bucket_that_fails(tmp_path, object_store, scheme):
    with FaultyProxy(object_store, percent=10) as proxy:
        kills_go_on(tmp_path, state_uri(scheme, proxy.endpoint, f"faulty-{scheme}"), BUCKET_ENV)
        print(f"faults: {dict(proxy.faults)}")
        assert len(proxy.faults) >= 4, proxy.faults


def test_savepoint_on_an_empty_machine(tmp_path):
    with Server(tmp_path / "first", workers=3) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, v bigint)")
            connection.execute("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(v) AS v FROM t")
            connection.execute("INSERT INTO t SELECT g, g * 2 FROM generate_series(1, 1000) AS g")
            connection.execute(f"CREATE SAVEPOINT 'file://{tmp_path}/savepoint'")
            connection.execute("DELETE FROM t")
    flags = ["--restore-from", f"file://{tmp_path}/savepoint", "--state-backend", "changelog://"]
    with Server(tmp_path / "second", workers=1, flags=flags) as server:
        with server.connect() as connection:
            assert rows(connection, "SELECT n, v FROM total") == [(1000, 1001000)]
            assert rows(connection, "SELECT count(*) FROM t") == [(1000,)]
            shown = connection.execute("SHOW CHECKPOINTS")
            columns = [column.name for column in shown.description]
            assert columns[:4] == ["id", "time", "status", "restored"]
            assert [row[2:4] for row in shown.fetchall()] == [("COMPLETE", True)]
