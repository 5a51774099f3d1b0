"""State in a bucket whose answers are late or get lost, and that two servers reach."""

import os
import shutil
import signal
from pathlib import Path

import psycopg
import pytest

from harness import Server, one, rows, wait_for
from object_store import CREDENTIALS, REQUEST_SECONDS, FaultyProxy, state_uri

ENV = CREDENTIALS | {"AWS_TIMEOUT": f"{REQUEST_SECONDS}s"}
# What a server may need more while its store stalls.
STALLED_BYTES_MAX = 128 << 20


def start(tmp_path, name, uri, **options):
    flags = ["--state-backend", uri, "--checkpoint-interval", "off"]
    return Server(tmp_path / name, flags=flags, env=ENV, **options)


def fill(connection):
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, v bigint NOT NULL)")
    connection.execute("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(v) AS v FROM t")
    connection.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 1000) AS g")


def total(server):
    with server.connect() as connection:
        return rows(connection, "SELECT n, v FROM total")


@pytest.mark.parametrize("scheme", ["remote-read", "changelog+s3+rocksdb"])
def test_a_zombie_writes_nothing(tmp_path, object_store, scheme):
    uri = state_uri(scheme, object_store.endpoint, f"zombie-{scheme}")
    with start(tmp_path, "first", uri) as zombie:
        with zombie.connect() as connection:
            fill(connection)
            connection.execute("CHECKPOINT")
        os.kill(zombie.process.pid, signal.SIGSTOP)
        wait_for(lambda: Path(f"/proc/{zombie.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
        # Another machine goes on with a copy of its disk.
        shutil.copytree(tmp_path / "first", tmp_path / "second")
        with start(tmp_path, "second", uri, workers=3) as second:
            assert total(second) == [(1000, 500500)]
            with second.connect() as connection:
                connection.execute("INSERT INTO t VALUES (1001, 1)")
                connection.execute("CHECKPOINT")
                written = object_store.names(f"zombie-{scheme}/")
                os.kill(zombie.process.pid, signal.SIGCONT)
                with zombie.connect() as stale:
                    for _ in range(2):
                        with pytest.raises(psycopg.Error) as refused:
                            stale.execute("INSERT INTO t SELECT max(id) + 1, 7 FROM t")
                            stale.execute("CHECKPOINT")
                        assert refused.value.sqlstate == "57P01", refused.value
                        assert "has taken over" in str(refused.value)
                # Segments of its log may be there; nothing that it should have left is gone.
                assert set(written) <= set(object_store.names(f"zombie-{scheme}/"))
                connection.execute("INSERT INTO t VALUES (1002, 1)")
                connection.execute("CHECKPOINT")
            second.restart(workers=1)
            assert total(second) == [(1002, 500502)]
            with second.connect() as connection:
                assert one(connection, "SELECT jobs FROM clink_catalog.checkpoints WHERE restored") == 2


def test_a_bucket_of_another_database_is_refused(tmp_path, object_store):
    uri = state_uri("remote-read", object_store.endpoint, "shared")
    with start(tmp_path, "first", uri) as first, start(tmp_path, "second", uri) as second:
        with first.connect() as connection:
            fill(connection)
            connection.execute("CHECKPOINT")
        with second.connect() as connection:
            with pytest.raises(psycopg.Error) as refused:
                connection.execute("CREATE TABLE t (id int PRIMARY KEY, v bigint NOT NULL)")
            assert refused.value.sqlstate == "55000", refused.value
            assert "prefix of its own" in refused.value.diag.message_hint
        with first.connect() as connection:
            connection.execute("INSERT INTO t VALUES (1001, 1)")
            connection.execute("CHECKPOINT")
        first.restart()
        assert total(first) == [(1001, 500501)]


def test_lost_answers_of_conditional_writes(tmp_path, object_store):
    with FaultyProxy(object_store, percent=0) as proxy:
        uri = state_uri("remote-read", proxy.endpoint, "lost")
        # The first write takes the place.
        proxy.lose_swaps = 1
        with start(tmp_path, "data", uri) as server:
            with server.connect() as connection:
                fill(connection)
                for id in range(1001, 1004):
                    proxy.lose_swaps = 1
                    connection.execute(f"INSERT INTO t VALUES ({id}, 1)")
                    connection.execute("CHECKPOINT")
                assert proxy.faults["lose a swap"] == 4, proxy.faults
                failed = rows(connection, "SELECT error FROM clink_catalog.checkpoints WHERE status = 'FAILED'")
                assert failed == []
            server.restart(workers=3)
            assert total(server) == [(1003, 500503)]
            with server.connect() as connection:
                assert one(connection, "SELECT jobs FROM clink_catalog.checkpoints WHERE restored") == 2


@pytest.mark.parametrize("scheme", ["remote-read", "changelog+s3"])
def test_a_store_that_stalls_holds_up_checkpoints_alone(tmp_path, object_store, scheme):
    with FaultyProxy(object_store, percent=0) as proxy:
        uri = state_uri(scheme, proxy.endpoint, f"stalled-{scheme}")
        with Server(
            tmp_path / "data", flags=["--state-backend", uri, "--checkpoint-interval", "100ms"], env=ENV
        ) as server:
            with server.connect() as connection:
                fill(connection)
                connection.execute("CHECKPOINT")
                newest = "SELECT max(id) FROM clink_catalog.checkpoints WHERE status = 'COMPLETE'"
                proxy.stalled.set()
                connection.execute("UPDATE t SET v = v + 1")
                connection.execute("UPDATE t SET v = v - 1")
                wait_for(lambda: proxy.faults["stall"] > 0)
                before, rss = one(connection, newest), server.rss_bytes()
                # The same rows again and again: state does not grow.
                while proxy.faults["stall"] < 4:
                    connection.execute("UPDATE t SET v = v + 1")
                    connection.execute("UPDATE t SET v = v - 1")
                assert rows(connection, "SELECT n, v FROM total") == [(1000, 500500)]
                assert server.rss_bytes() - rss < STALLED_BYTES_MAX
                assert one(connection, newest) == before
                proxy.stalled.clear()
                wait_for(lambda: one(connection, newest) > before)
            server.restart(workers=1)
            assert total(server) == [(1000, 500500)]
