"""Subscriptions: a view's rows and then its changes, over COPY, cursors and HTTP; resumed by tokens; slow ones ended."""

import contextlib
import http.client
import json
import random
import threading
import time
import urllib.parse
from collections import Counter

import psycopg
import pyarrow.ipc
import pytest

from harness import LONG, one, rows
from messages import Raw, fields, query
from test_checkpoints import wait_for

@contextlib.contextmanager
def reading(server):
    """A session that ends in the middle of what it reads, when it must."""
    connection = server.connect()
    try:
        yield connection
    finally:
        connection.pgconn.finish()


TOTALS = "SELECT part, count(*) AS n, sum(v) AS total FROM t GROUP BY part"


def tables(connection, history="10 minutes"):
    connection.execute("CREATE TABLE t (id int PRIMARY KEY, part int NOT NULL, v int NOT NULL)")
    connection.execute(f"CREATE MATERIALIZED VIEW totals WITH (retain_history = '{history}') AS {TOTALS}")
    connection.execute(
        f"CREATE MATERIALIZED VIEW large WITH (retain_history = '{history}') AS SELECT part FROM totals WHERE total > 50"
    )


def copied(connection, statement):
    """Rows of COPY, as tuples of texts."""
    with connection.cursor() as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT") as copy:
        yield from copy.rows()


def until_progress(changes):
    """The rows up to a progress row, and its token."""
    taken = []
    for time_text, diff, kind, token, *row in changes:
        if kind == "progress":
            assert diff == "0" and all(value is None for value in row)
            return taken, token
        assert token is None
        taken.append((int(time_text), int(diff), kind, tuple(row)))
    raise AssertionError("the changes ended")


def next_changes(changes):
    """The rows up to the first progress row that has some before it, and its token."""
    while True:
        taken, token = until_progress(changes)
        if taken:
            return taken, token


def apply(state, changes):
    """Adds changes up; no row may be there less than not at all once a time is through."""
    for _, diff, _, row in changes:
        state[row] += diff
    assert all(count >= 0 for count in state.values()), "a row is retracted that was never given"


def texts(connection, query):
    return Counter(tuple(None if value is None else str(value) for value in row) for row in rows(connection, query))


def test_rows_then_changes_by_copy(server):
    with server.connect() as writer, reading(server) as reader:
        tables(writer)
        writer.execute("INSERT INTO t VALUES (1, 1, 10), (2, 1, 20), (3, 2, 5)")
        changes = copied(reader, "SUBSCRIBE TO totals WITH (SNAPSHOT, PROGRESS)")
        first, _ = next_changes(changes)
        assert sorted(row for *_, row in first) == [("1", "2", "30"), ("2", "1", "5")]
        assert {(diff, kind) for _, diff, kind, _ in first} == {(1, "insert")} and len({at for at, *_ in first}) == 1
        writer.execute("BEGIN; UPDATE t SET v = 25 WHERE id = 2; INSERT INTO t VALUES (4, 3, 1); COMMIT")
        then, token = next_changes(changes)
        assert len({at for at, *_ in then}) == 1 and then[0][0] > first[0][0], "one time, all together"
        assert sorted((kind, diff, row) for _, diff, kind, row in then) == [
            ("insert", 1, ("3", "1", "1")),
            ("update_after", 1, ("1", "2", "35")),
            ("update_before", -1, ("1", "2", "30")),
        ]
        writer.execute("DELETE FROM t WHERE part = 1")
        gone, last = next_changes(changes)
        assert [(kind, diff, row) for _, diff, kind, row in gone] == [("delete", -1, ("1", "2", "35"))]
    with reading(server) as again:
        # From one token up to another: what came to pass between them, and an end.
        between = list(copied(again, f"SUBSCRIBE totals AS OF '{token}' UP TO '{last}'"))
        assert [row[1:] for row in between] == [("-1", "delete", None, "1", "2", "35")]
        assert rows(again, f"SUBSCRIBE totals AS OF '{last}' UP TO '{last}'") == []
        snapshot = rows(again, f"SUBSCRIBE totals AS OF '{token}' WITH (SNAPSHOT) UP TO '{token}'")
        assert sorted(row[4:] for row in snapshot) == [(1, 2, 35), (2, 1, 5), (3, 1, 1)]
        # A plain time, as other answers give it, is a token too.
        assert len(rows(again, f"SUBSCRIBE totals AS OF '{between[0][0]}' UP TO '{last}'")) == 0


def test_tables_views_on_views_and_rows_that_are_there_twice(server):
    with server.connect() as writer, reading(server) as one_reader, reading(server) as other:
        tables(writer)
        writer.execute("CREATE TABLE heap (a int, b text)")
        heap = copied(one_reader, "SUBSCRIBE heap WITH (PROGRESS)")
        large = copied(other, "SUBSCRIBE large WITH (PROGRESS)")
        states = {"heap": Counter(), "large": Counter()}
        ends = {"heap": until_progress(heap), "large": until_progress(large)}
        assert ends["heap"][0] == ends["large"][0] == []
        for statement in [
            "INSERT INTO heap VALUES (1, NULL), (1, NULL), (2, E'a\\tb')",
            "DELETE FROM heap WHERE a = 2",
            "INSERT INTO heap VALUES (1, NULL)",
        ]:
            writer.execute(statement)
            changed, _ = next_changes(heap)
            apply(states["heap"], changed)
            assert +states["heap"] == texts(writer, "SELECT a, b FROM heap")
        for statement in ["INSERT INTO t VALUES (1, 1, 60), (2, 2, 70)", "UPDATE t SET v = 1 WHERE id = 2"]:
            writer.execute(statement)
            changed, _ = next_changes(large)
            apply(states["large"], changed)
            assert +states["large"] == texts(writer, "SELECT part FROM large")


def test_cursors_fetch_what_is_there_and_wait_when_asked(server):
    with server.connect() as writer, reading(server) as reader:
        tables(writer)
        writer.execute("INSERT INTO t VALUES (1, 1, 10), (2, 2, 20)")
        reader.execute("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE totals WITH (PROGRESS)")
        assert [row[2] for row in rows(reader, "FETCH 2 FROM c")] == ["insert", "insert"]
        assert {row[2] for row in rows(reader, "FETCH ALL FROM c")} == {"progress"}
        began = time.monotonic()
        assert {row[2] for row in rows(reader, "FETCH ALL FROM c WITH (timeout = '300ms')")} <= {"progress"}
        assert 0.25 < time.monotonic() - began < 5
        writer.execute("UPDATE t SET v = 11 WHERE id = 1")
        # Without a timeout it has what came to pass before it.
        kinds = [row[2] for row in rows(reader, "FETCH ALL FROM c")]
        assert kinds[-3:] == ["update_before", "update_after", "progress"] and set(kinds[:-3]) <= {"progress"}
        later = threading.Timer(0.2, lambda: writer.execute("DELETE FROM t WHERE id = 2"))
        later.start()
        fetched = ["progress"]
        while fetched == ["progress"]:
            fetched = [row[2] for row in rows(reader, "FETCH 1 FROM c WITH (timeout = '60s')")]
        assert fetched == ["delete"]
        later.join()
        reader.execute("CLOSE c; DECLARE q CURSOR FOR SELECT 1")
        with pytest.raises(psycopg.Error) as refused:
            reader.execute("FETCH 1 FROM q WITH (timeout = '1s')")
        assert refused.value.sqlstate == "22023"


def lines_of(server, path, **headers):
    host, port = server.http.rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    connection.request("GET", path, headers=headers)
    return connection, connection.getresponse()


def test_http_as_lines_events_and_arrow(server):
    with server.connect() as writer:
        tables(writer)
        writer.execute("INSERT INTO t VALUES (1, 1, 10)")
        connection, answer = lines_of(server, "/api/v1/views/totals/changes")
        assert answer.status == 200 and answer.headers["Content-Type"] == "application/x-ndjson"
        first, progress = json.loads(answer.readline()), json.loads(answer.readline())
        assert first == {
            "time": first["time"],
            "diff": 1,
            "kind": "insert",
            "row": {"part": 1, "n": 1, "total": 10},
        }
        assert progress["kind"] == "progress" and progress["time"] == first["time"]
        writer.execute("INSERT INTO t VALUES (2, 1, 5)")
        kinds = [json.loads(answer.readline()) for _ in range(3)]
        while kinds[0]["kind"] == "progress":
            kinds = [*kinds[1:], json.loads(answer.readline())]
        assert [line["kind"] for line in kinds] == ["update_before", "update_after", "progress"]
        connection.close()

        connection, answer = lines_of(
            server,
            "/api/v1/views/totals/changes",
            **{"Accept": "text/event-stream", "Last-Event-ID": progress["token"]},
        )
        assert answer.headers["Content-Type"] == "text/event-stream"
        events = [answer.readline().decode().rstrip("\n") for _ in range(10)]
        assert [line for line in events if line.startswith("event")] == ["event: change"] * 2 + ["event: progress"]
        assert json.loads(events[1].removeprefix("data: "))["kind"] == "update_before"
        assert events[6].startswith("id: ") and json.loads(events[8].removeprefix("data: "))["time"] >= kinds[2]["time"]
        connection.close()

        bounds = urllib.parse.urlencode({"as_of": progress["token"], "up_to": kinds[2]["token"], "progress": "false"})
        connection, answer = lines_of(
            server, f"/api/v1/views/totals/changes?{bounds}", Accept="application/vnd.apache.arrow.stream"
        )
        table = pyarrow.ipc.open_stream(answer).read_all()
        assert table.column_names == ["clink_time", "clink_diff", "clink_kind", "clink_token", "part", "n", "total"]
        assert table["clink_kind"].to_pylist() == ["update_before", "update_after"]
        assert table["total"].to_pylist() == [10, 15]
        connection.close()
        for path, status in [
            ("/api/v1/views/nothing/changes", 404),
            ("/api/v1/views/totals/changes?as_of=rubbish", 400),
            ("/api/v1/views/totals/changes?speed=1", 400),
            ("/api/v1/views/totals/changes?snapshot=maybe", 400),
            ("/api/v1/views/totals/changes?as_of=1", 409),
        ]:
            assert server.get(path)[0] == status, path


def test_what_cannot_be_gone_on_with_is_refused_with_the_way_out(server):
    with reading(server) as connection:
        tables(connection)
        connection.execute("CREATE MATERIALIZED VIEW brief AS SELECT id FROM t")
        connection.execute("INSERT INTO t VALUES (1, 1, 1)")
        reader = copied(connection, "SUBSCRIBE brief WITH (PROGRESS)")
        _, token = until_progress(reader)
    server.restart()
    with server.connect() as connection:
        with pytest.raises(psycopg.Error) as refused:
            list(copied(connection, f"SUBSCRIBE brief AS OF '{token}'"))
        assert refused.value.sqlstate == "72000"
        assert "SUBSCRIBE brief WITH (SNAPSHOT, PROGRESS)" in refused.value.diag.message_hint
        for statement, code in [
            (f"SUBSCRIBE totals AS OF '{token}'", "22023"),
            ("SUBSCRIBE totals AS OF 'x'", "22023"),
            ("SUBSCRIBE totals AS OF '99999999999999'", "22023"),
            ("SUBSCRIBE nothing", "42P01"),
        ]:
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(statement)
            assert refused.value.sqlstate == code, statement
            assert refused.value.diag.message_hint, statement


def test_a_dropped_view_ends_and_a_cancel_comes_within_a_second(server):
    with server.connect() as writer, reading(server) as reader:
        tables(writer)
        writer.execute("CREATE MATERIALIZED VIEW short AS SELECT id FROM t")
        changes = copied(reader, "SUBSCRIBE short WITH (PROGRESS)")
        until_progress(changes)
        writer.execute("DROP MATERIALIZED VIEW short")
        with pytest.raises(psycopg.Error) as ended:
            until_progress(changes)
        assert ended.value.sqlstate == "42P01"
    with reading(server) as reader:
        changes = copied(reader, "SUBSCRIBE totals WITH (PROGRESS)")
        until_progress(changes)
        threading.Timer(0.1, reader.cancel).start()
        began = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled):
            until_progress(changes)
        assert time.monotonic() - began < 1.1


def sessions(server):
    body = server.get("/metrics")[2].decode()
    return int(float(next(line for line in body.splitlines() if line.startswith("clink_pg_sessions ")).split()[1]))


def test_clients_that_are_gone_are_noticed(server):
    with server.connect() as writer:
        tables(writer)
        for _ in range(5):
            with Raw(server) as raw:
                raw.send(query("COPY (SUBSCRIBE totals) TO STDOUT"))
                assert raw.next()[0] == "H"
        wait_for(lambda: sessions(server) == 1, 10)


def write_on(server, stop, failures, seed):
    """Random DML over the kills of the server."""
    choose = random.Random(seed)
    while not stop.is_set():
        try:
            with server.connect() as connection:
                while not stop.is_set():
                    low = choose.randrange(200)
                    statement = choose.choice(
                        [
                            f"UPDATE t SET v = v + 1 WHERE id >= {low} AND id < {low + 9}",
                            f"DELETE FROM t WHERE id >= {low} AND id < {low + 3}",
                            f"INSERT INTO t VALUES ({low}, {low % 17}, {low % 10}) ON CONFLICT DO NOTHING",
                        ]
                    )
                    connection.execute(statement)
        except psycopg.OperationalError:
            time.sleep(0.01)
        except BaseException as failure:
            failures.append(failure)
            raise


def test_killed_subscribers_go_on_without_a_gap_while_the_server_is_killed(start):
    clients, kills = (100, 10) if LONG else (10, 2)
    server = start(flags=["--checkpoint-interval", "1s"])
    choose = random.Random(7)
    with server.connect() as connection:
        tables(connection)
    stop, failures = threading.Event(), []
    writer = threading.Thread(target=write_on, args=(server, stop, failures, 11))
    writer.start()
    names = {"totals": "part, n, total", "large": "part"}
    states = {name: Counter() for name in names}
    tokens = dict.fromkeys(names)
    killed_at = set(choose.sample(range(1, clients), kills))
    try:
        for client in range(clients):
            if client in killed_at:
                server.restart(workers=choose.choice([1, 2, 3]))
            for name in names:
                connection = server.connect()
                since = f"AS OF '{tokens[name]}'" if tokens[name] else ""
                changes = copied(connection, f"SUBSCRIBE {name} WITH (PROGRESS) {since}")
                for _ in range(choose.randrange(1, 12)):
                    taken, tokens[name] = until_progress(changes)
                    apply(states[name], taken)
                # Gone in the middle of what it was sent; what it has not had whole, it forgets.
                connection.pgconn.finish()
    finally:
        stop.set()
        writer.join()
    assert not failures
    for name, columns in names.items():
        with reading(server) as connection:
            changes = copied(connection, f"SUBSCRIBE {name} WITH (PROGRESS) AS OF '{tokens[name]}'")
            with server.connect() as other:
                expected = texts(other, f"SELECT {columns} FROM {name}")
                # The last word of the writer is in: one more change, so that there is a progress row behind it.
                other.execute("INSERT INTO t VALUES (100000, 99, 0) ON CONFLICT DO NOTHING")
                other.execute("DELETE FROM t WHERE id = 100000")
            final = Counter(states[name])
            while +final != expected:
                taken, _ = until_progress(changes)
                apply(final, taken)


def test_a_stopped_subscriber_is_ended_and_memory_stays_flat(start):
    # One that reads nothing for so long is cut off without a word; here it is to hear why.
    # A checkpoint holds what changed for a while, too.
    server = start(workers=1, flags=["--limit", "reader_time=600s", "--checkpoint-interval", "1h"])
    with server.connect() as writer:
        writer.execute("CREATE TABLE wide (id int PRIMARY KEY, n int, filling text)")
        writer.execute("INSERT INTO wide SELECT i, 0, repeat('x', 20000) FROM generate_series(1, 400) AS s(i)")
        raw = Raw(server)
        raw.send(query("COPY (SUBSCRIBE wide) TO STDOUT"))
        assert raw.next()[0] == "H"
        # 8 MB before and 8 MB after for each statement: far more than the server keeps for one who does not read. The
        # changes of the last second are kept in any case.
        levels = []
        for n in range(60):
            writer.execute(f"UPDATE wide SET n = {n}")
            levels.append(server.rss_bytes())
        grown = max(levels[30:]) - max(levels[:30])
        assert grown < 64 << 20, f"{grown >> 20} MiB more for a reader that does not read"
        kinds = Counter()
        while (message := raw.next())[0] not in ("E", "Z"):
            kinds[message[0]] += 1
        kind, body = message
        assert kind == "E" and fields(body)["C"] == "72000", body
        assert "fell too far behind" in fields(body)["D"] and "SUBSCRIBE wide" in fields(body)["H"]
        assert kinds["d"] >= 400
        raw.__exit__()
        assert one(writer, "SELECT min(n) FROM wide") == 59
