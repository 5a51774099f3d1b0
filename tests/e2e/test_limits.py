"""Limits: each has a default, a setting, an error that names it, and a metric that counts it."""

import contextlib
import re
import resource
import socket
import struct
import time
import urllib.error
import urllib.request

import psycopg
import pytest

from harness import Server, one, rows, strict_json
from messages import SYNC, Raw, bind, fields, message, parse, query, startup


def hits(server):
    """How often each limit was hit, as Prometheus reads it."""
    status, _, body = server.get("/metrics")
    assert status == 200
    found = re.findall(r'^clink_limit_hits_total\{limit="(\w+)"\} (\d+)$', body.decode(), re.M)
    return {name: int(count) for name, count in found}


def limited(start, **limits):
    return start(flags=[word for name, value in limits.items() for word in ("--limit", f"{name}={value}")])


def refused(connection, statement):
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    return caught.value


def test_all_limits_are_shown(server):
    with server.connect() as connection:
        limits = rows(connection, "SELECT name, setting, unit, standard, description FROM clink_catalog.limits ORDER BY name")
    assert len(limits) >= 20
    assert ("sessions", 200, "", 200, "sessions of PostgreSQL's protocol at a time") in limits
    assert all(setting == standard and description for _, setting, _, standard, description in limits)
    names = {name for name, *_ in limits}
    assert set(hits(server)) == names
    _, _, body = server.get("/metrics")
    values = dict(re.findall(r'^clink_limit_value\{limit="(\w+)"\} (\d+)$', body.decode(), re.M))
    assert {name: int(value) for name, value in values.items()} == {name: setting for name, setting, *_ in limits}


@pytest.mark.parametrize(
    "limit, value, setup, most, beyond, code",
    [
        ("sql_bytes", 100, [], "SELECT '" + "x" * 91 + "'", "SELECT '" + "x" * 92 + "'", "54000"),
        ("sql_depth", 4, [], "SELECT ((((1))))", "SELECT (((((1)))))", "54001"),
        ("sql_chain", 4, [], "SELECT 1 + 1 + 1", "SELECT 1 + 1 + 1 + 1 + 1 + 1", "54001"),
        ("sql_list_items", 3, [], "SELECT 1 IN (1, 2, 3)", "SELECT 1 IN (1, 2, 3, 4)", "54001"),
        (
            "sql_joins",
            1,
            [],
            "SELECT 1 FROM (VALUES (1)) a JOIN (VALUES (2)) b ON true",
            "SELECT 1 FROM (VALUES (1)) a JOIN (VALUES (2)) b ON true JOIN (VALUES (3)) c ON true",
            "54001",
        ),
        ("sql_subqueries", 2, [], "SELECT (SELECT (SELECT 1))", "SELECT (SELECT (SELECT (SELECT 1)))", "54001"),
        ("result_columns", 2, [], "SELECT 1, 2", "SELECT 1, 2, 3", "54000"),
        ("row_bytes", 1_000, [], "SELECT repeat('x', 996)", "SELECT repeat('x', 997)", "54000"),
        (
            "cursors",
            2,
            ["BEGIN", "DECLARE a CURSOR FOR SELECT 1"],
            "DECLARE b CURSOR FOR SELECT 1",
            "DECLARE c CURSOR FOR SELECT 1",
            "54000",
        ),
        ("savepoints", 2, ["BEGIN", "SAVEPOINT a"], "SAVEPOINT b", "SAVEPOINT c", "54000"),
        (
            "prepared_statements",
            2,
            ["PREPARE a AS SELECT 1"],
            "PREPARE b AS SELECT 1",
            "PREPARE c AS SELECT 1",
            "54000",
        ),
        (
            "block_bytes",
            100_000,
            ["CREATE TABLE t (s text)", "BEGIN"],
            "INSERT INTO t VALUES ('x')",
            "INSERT INTO t SELECT repeat('x', 1000) FROM generate_series(1, 200) AS s (g)",
            "54000",
        ),
    ],
)
def test_statements(start, limit, value, setup, most, beyond, code):
    server = limited(start, **{limit: value})
    with server.connect() as connection:
        for statement in setup:
            connection.execute(statement)
        connection.execute(most)
        error = refused(connection, beyond)
        assert error.sqlstate == code, error
        assert f"The limit {limit} is {value}" in error.diag.message_detail and error.diag.message_hint
    assert hits(server)[limit] == 1


def test_the_defaults_hold(server):
    with server.connect() as connection:
        for sql, code, name in [
            ("SELECT '" + "x" * (1 << 20) + "'", "54000", "sql_bytes"),
            ("SELECT " + "(" * 10_000 + "1" + ")" * 10_000, "54001", "sql_depth"),
            ("SELECT 1" + " + 1" * 600, "54001", "sql_chain"),
            ("WITH a AS (" * 7 + "SELECT 1" + ") SELECT * FROM a" * 7, "54001", "sql_subqueries"),
            ("SELECT 1 IN (" + ", ".join("1" for _ in range(10_001)) + ")", "54001", "sql_list_items"),
            ("SELECT " + ", ".join("1" for _ in range(1_665)), "54000", "result_columns"),
        ]:
            error = refused(connection, sql)
            assert error.sqlstate == code and f"The limit {name} is" in error.diag.message_detail, error


def test_the_deepest_statements_that_the_limits_let_through_have_an_answer(server):
    """Each shape as deep as it may be: its value, or a named limit, and the server lives."""
    shapes = [
        ("CASE WHEN true THEN ", "1", " END", 120),
        ("abs(", "1", ")", 120),
        ("(SELECT ", "1", ")", 6),
        ("EXISTS (SELECT 1 WHERE ", "true", ")", 6),
        ("(SELECT 1 WHERE 1 IN (SELECT ", "1", "))", 3),
    ]
    statements = [f"SELECT {before * deep}{inner}{after * deep}" for before, inner, after, deep in shapes]
    statements += [
        "SELECT * FROM " + "(SELECT * FROM " * 125 + "(VALUES (1)) AS v" + ") AS q" * 125,
        "SELECT a FROM " + "(SELECT a, count(*) AS n FROM " * 100 + "(VALUES (1)) AS v (a)" + " GROUP BY a) AS q" * 100,
        "(" * 120 + "SELECT 1" + " UNION SELECT 1)" * 120,
        "SELECT 1" + " UNION SELECT 1" * 500,
        "SELECT count(*) FROM (SELECT 1" + " UNION ALL SELECT 1" * 500 + ") AS q HAVING count(*) = 501",
        "WITH a AS (" * 6 + "SELECT 1" + ") SELECT * FROM a" * 6,
        "SELECT 1 WHERE " + " AND ".join(f"1 <> {n + 2}" for n in range(240)),
        "SELECT 1" + " + 0" * 60,
    ]
    with server.connect() as connection:
        for statement in statements:
            try:
                assert rows(connection, statement), statement[:80]
            except psycopg.Error as error:
                assert error.sqlstate == "54001", (statement[:80], error)
        for name, statement in [("deep", statements[5]), ("wide", statements[9])]:
            try:
                connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {statement}")
                assert rows(connection, f"TABLE {name}")
            except psycopg.Error as error:
                assert error.sqlstate in ("54001", "0A000", "42P16"), (name, error)
        assert one(connection, "SELECT 1") == 1


def test_results_that_no_memory_holds_are_refused(server):
    with server.connect() as connection:
        for sql in [
            "SELECT repeat('x', 2000000000)",
            "SELECT lpad('x', 1000000000)",
            "SELECT rpad('x', 1000000000, 'ab')",
            "SELECT length(repeat('x', 60000000 + g::int)) FROM generate_series(1, 100) AS s (g)",
            "SELECT array_length(array_repeat(1, 2000000000), 1)",
            "SELECT repeat(repeat('x', 100000), g) FROM generate_series(100000, 100001) AS s (g)",
        ]:
            error = refused(connection, sql)
            assert error.sqlstate == "54000" and error.diag.message_hint, (sql, error)
        assert one(connection, "SELECT length(repeat('x', 1000000) || lpad('y', 1000000))") == 2_000_000


def test_copies(start):
    server = limited(start, copy_bytes="100kB", row_bytes="10kB")
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (s text)")
        for limit, line in [("copy_bytes", b"x" * 1_000 + b"\n"), ("row_bytes", b"x" * 1_000)]:
            with pytest.raises(psycopg.Error) as caught, connection.cursor().copy("COPY t FROM STDIN") as copy:
                for _ in range(200):
                    copy.write(line)
            assert caught.value.sqlstate == "54000" and f"The limit {limit} is" in caught.value.diag.message_detail
        assert one(connection, "SELECT count(*) FROM t") == 0
    assert hits(server)["copy_bytes"] == 1 and hits(server)["row_bytes"] == 1


def test_portals_and_messages(start):
    server = limited(start, portals=2, message_bytes=1_000)
    with Raw(server) as raw:
        raw.ask(query("BEGIN"))
        raw.ask(parse("SELECT 1", "s"), bind(portal="a", name="s"), bind(portal="b", name="s"), SYNC)
        kinds, found = raw.ask(bind(portal="c", name="s"), SYNC)
        assert kinds == "EZ" and "The limit portals is 2" in fields(found[0][1])["D"]
        raw.ask(query("ROLLBACK"))
        # The length counts itself.
        assert raw.ask(message(b"Q", b"SELECT 1" + b" " * (1_000 - 4 - 9) + b"\0"))[0] == "TDCZ"
        kinds, found = raw.ask(message(b"Q", b"SELECT 1" + b" " * (1_000 - 4 - 8) + b"\0"))
        assert kinds == "E" and "The limit message_bytes is 1000 bytes" in fields(found[0][1])["D"]
    assert hits(server)["portals"] == 1 and hits(server)["message_bytes"] == 1


def test_sessions(start):
    server = limited(start, sessions=2)
    with server.connect(), server.connect() as second:
        with pytest.raises(psycopg.OperationalError) as caught:
            server.connect()
        assert "The limit sessions is 2" in str(caught.value)
        second.close()
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                server.connect().close()
                break
            assert time.monotonic() < deadline
    assert hits(server)["sessions"] >= 1


def opened(address):
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=20)


def rest(connection):
    received = b""
    with contextlib.suppress(OSError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def test_logins(start):
    server = limited(start, logins=3, login_time="500ms", startup_bytes=200)
    silent = [opened(server.pg) for _ in range(4)]
    # The first was cut for the fourth; the others are told when their time is over.
    assert rest(silent[0]) == b""
    assert b"The limit login_time is 500 ms" in rest(silent[1])
    with opened(server.pg) as long:
        long.sendall(startup(application_name="x" * 200))
        assert b"The limit startup_bytes is 200 bytes" in rest(long)
    for connection in silent:
        connection.close()
    found = hits(server)
    assert found["logins"] == 1 and found["login_time"] >= 1 and found["startup_bytes"] == 1
    with server.connect() as connection:
        assert one(connection, "SELECT 1") == 1


def test_a_reader_that_stops(start):
    server = limited(start, reader_time="500ms")
    with opened(server.pg) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.sendall(startup() + query("SELECT g, 'some text' FROM generate_series(1, 10000000) AS s (g)"))
        deadline = time.monotonic() + 20
        while not hits(server)["reader_time"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with opened(server.http) as reader, server.connect() as connection:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        text = b"SELECT g, 'some text' FROM generate_series(1, 10000000) AS s (g)"
        reader.sendall(b"POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
        deadline = time.monotonic() + 20
        while hits(server)["reader_time"] < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert one(connection, "SELECT 1") == 1


def post(server, body, **headers):
    request = urllib.request.Request(f"http://{server.http}/api/v1/sql", data=body, method="POST", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_http_bodies(start):
    server = limited(start, http_body_bytes=100, http_body_time="500ms")
    assert post(server, b"SELECT 1" + b" " * 92)[0] == 200
    status, body = post(server, b"SELECT 1" + b" " * 93)
    error = strict_json(body)
    assert (status, error["sqlstate"]) == (413, "54000") and "The limit http_body_bytes is 100 bytes" in error["detail"]
    with opened(server.http) as slow:
        slow.sendall(b"POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 8\r\n\r\nSEL")
        answer = rest(slow)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"The limit http_body_time is 500 ms" in answer
    # Chunks without a declared length are counted as they come.
    with opened(server.http) as chunked:
        chunked.sendall(b"POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(20):
                chunked.sendall(b"8\r\nSELECT 1\r\n")
        assert chunked.recv(100).startswith(b"HTTP/1.1 413 ")
    found = hits(server)
    assert found["http_body_bytes"] == 2 and found["http_body_time"] == 1


def test_http_headers_and_connections(start):
    server = limited(start, http_header_time="500ms", http_header_bytes=8192, http_connections=3)
    with opened(server.http) as slow:
        slow.sendall(b"GET /api/v1/health HTTP/1.1\r\nHo")
        answer = rest(slow)
        assert answer.startswith(b"HTTP/1.1 408 ") and b"The limit http_header_time is 500 ms" in answer
    with opened(server.http) as silent:
        assert rest(silent) == b""
    with opened(server.http) as large:
        with contextlib.suppress(OSError):
            large.sendall(b"GET /api/v1/health HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n")
        assert large.recv(100).startswith(b"HTTP/1.1 431 ")
    several = [opened(server.http) for _ in range(4)]
    # The first was silent longest.
    assert rest(several[0]) == b""
    found = hits(server)
    assert found["http_header_time"] == 2 and found["http_header_bytes"] == 1 and found["http_connections"] >= 1
    for connection in several:
        connection.close()


def test_busy_connections_are_not_cut(start):
    server = limited(start, http_connections=2)
    text = b"SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
    busy = []
    for _ in range(2):
        busy.append(opened(server.http))
        busy[-1].sendall(b"POST /api/v1/sql HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
    time.sleep(0.5)
    with opened(server.http) as more:
        answer = rest(more)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"The limit http_connections is 2" in answer
    for connection in busy:
        connection.close()


def test_slow_http_clients(server):
    """2,000 connections that send their header byte by byte: others do not feel it."""

    def p99(count=100):
        times = []
        for _ in range(count):
            began = time.perf_counter()
            assert server.get("/api/v1/health")[0] == 200
            times.append(time.perf_counter() - began)
        return sorted(times)[int(count * 0.99)]

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_096, most), most))
    p99()
    quiet, before = p99(), server.rss_bytes()
    slow = []
    for number in range(2_000):
        slow.append(opened(server.http))
        with contextlib.suppress(OSError):
            slow[-1].sendall(b"GET /api/v1/health HTTP/1.1\r\nX-Slow: a")
    busy = p99()
    # Twice the quiet time, and what the machine's own noise may add.
    assert busy < max(2 * quiet, quiet + 0.02), (quiet, busy)
    assert server.rss_bytes() - before <= 64 << 20
    for connection in slow:
        connection.close()


def test_metrics_count_what_happens(server):
    def values():
        _, headers, body = server.get("/metrics")
        assert headers["Content-Type"].startswith("text/plain")
        found = {}
        for line in body.decode().splitlines():
            if not line.startswith("#") and line:
                name, value = line.rsplit(" ", 1)
                assert re.fullmatch(r'clink_[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})?', name), line
                found[name] = float(value)
        return found

    with server.connect() as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM t")
        before = values()
        connection.execute("INSERT INTO t SELECT g FROM generate_series(1, 100) AS s (g)")
        assert len(rows(connection, "SELECT a FROM t")) == 100
        refused(connection, "SELECT nope")
        after = values()
        assert after["clink_pg_sessions"] == 1
        assert after["clink_sql_statements_total"] - before["clink_sql_statements_total"] == 2
        assert after["clink_pg_rows_sent_total"] - before.get("clink_pg_rows_sent_total", 0) == 100
        assert after['clink_sql_errors_total{class="42"}'] == before.get('clink_sql_errors_total{class="42"}', 0) + 1
        assert after['clink_job_rows_in_total{job="public.v",kind="materialized view"}'] == 100
        assert after['clink_job_running{job="public.v",kind="materialized view"}'] == 1
    deadline = time.monotonic() + 10
    while values()["clink_pg_sessions"]:
        assert time.monotonic() < deadline


def test_a_limit_that_is_none(tmp_path):
    with pytest.raises(AssertionError, match="the limits are sessions"):
        Server(tmp_path / "data", flags=["--limit", "nothing=1"])
    with pytest.raises(AssertionError, match="not between 1 and"):
        Server(tmp_path / "data", flags=["--limit", "sessions=none"])
