"""Every HTTP route: statuses, strict JSON, names, values, errors."""

import http.client
import re
import threading
import urllib.error
import urllib.parse
from datetime import datetime

import pyarrow
import pytest

from harness import Server, rows, strict_json

SETUP = """
CREATE TABLE t (id bigint PRIMARY KEY, name text, price numeric(12,2), ratio double precision, at timestamptz,
    day date, ok boolean, raw bytea, small smallint, local timestamp, code uuid);
INSERT INTO t VALUES
    (1, 'a "quoted" line' || chr(10) || 'and ü', 12.50, '0.1', '2024-02-29 23:59:59.5+00', '2024-02-29', true,
     '\\x00ff', -3, '2024-02-29 01:02:03', '00000000-0000-0000-0000-00000000002a'),
    (2, NULL, NULL, 'NaN', NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (9007199254740993, '', -0.01, '-Infinity', '1969-12-31 23:59:59+00', '0001-01-01', false, '', 32767,
     '1970-01-01 00:00:00', 'ffffffff-ffff-ffff-ffff-ffffffffffff');
CREATE MATERIALIZED VIEW v AS SELECT * FROM t;
CREATE MATERIALIZED VIEW counts AS SELECT ok, count(*) AS n, sum(price) AS total FROM t GROUP BY ok;
CREATE MATERIALIZED VIEW pairs AS SELECT small, name, count(*) AS n FROM t GROUP BY small, name;
CREATE MATERIALIZED VIEW "Ödd/na me.%" AS SELECT id AS "the id" FROM t;
CREATE SCHEMA s;
CREATE MATERIALIZED VIEW s.v AS SELECT count(*) AS n FROM t;
CREATE TABLE many (id bigint PRIMARY KEY, x int);
INSERT INTO many SELECT g, (g % 10)::int FROM generate_series(1, 2500) AS s(g);
CREATE MATERIALIZED VIEW many_v AS SELECT id, x FROM many;
CREATE VIEW plain AS SELECT id FROM t
"""
V = "/api/v1/views"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("http") / "data") as server:
        with server.connect() as connection:
            for statement in SETUP.split(";\n"):
                connection.execute(statement)
        yield server


def error(server, path, status, sqlstate, method="GET"):
    """The fields of an error, whose status and SQLSTATE are as said."""
    got, headers, body = server.get(path, method)
    assert got == status, (path, got, body)
    assert headers["Content-Type"] == "application/json"
    fields = strict_json(body)
    assert set(fields) <= {"error", "sqlstate", "detail", "hint", "position"}, fields
    assert fields["sqlstate"] == sqlstate and fields["error"], fields
    return fields


def test_health(server):
    health = server.json("/api/v1/health")
    assert set(health) == {"role", "ok", "uptime_s", "version"}
    assert health["ok"] is True and health["uptime_s"] >= 0 and re.fullmatch(r"\d+\.\d+\.\d+", health["version"])


def test_jobs(server):
    jobs = {job["name"]: job for job in server.json("/api/v1/jobs")["jobs"]}
    assert set(jobs) >= {"public.t", "public.v", "public.counts", "s.v", "public.many_v"}
    for job in jobs.values():
        assert set(job) == {"id", "name", "kind", "status", "error", "since", "rows_in", "rows_out", "lag_ms"}
        assert job["status"] == "RUNNING" and job["error"] is None
        assert datetime.fromisoformat(job["since"]).utcoffset().total_seconds() == 0
    assert jobs["public.v"]["kind"] == "materialized view" and jobs["public.t"]["kind"] == "table"
    assert len({job["id"] for job in jobs.values()}) == len(jobs)


def test_views(server):
    views = {(view["schema"], view["name"]): view for view in server.json("/api/v1/views")["views"]}
    expected = {("public", "v"), ("public", "counts"), ("public", "pairs"), ("public", "Ödd/na me.%")}
    assert set(views) == expected | {("public", "many_v"), ("s", "v")}
    counts = views["public", "counts"]
    assert set(counts) == {"id", "name", "schema", "columns", "key"}
    assert counts["key"] == ["ok"]
    types = {column["name"]: column["type"] for column in views["public", "v"]["columns"]}
    assert types == {
        "id": "bigint",
        "name": "text",
        "price": "numeric(12,2)",
        "ratio": "double precision",
        "at": "timestamptz",
        "day": "date",
        "ok": "boolean",
        "raw": "bytea",
        "small": "smallint",
        "local": "timestamp",
        "code": "uuid",
    }
    assert views["public", "v"]["key"] == ["id"]
    assert server.json(f"{V}/counts") == counts


def test_scan_values(server):
    status, headers, body = server.get(f"{V}/v/scan")
    assert status == 200 and headers["Content-Type"] == "application/json"
    answer = strict_json(body)
    assert set(answer) == {"time", "rows", "cursor"} and answer["cursor"] is None
    assert headers["X-Clink-Time"] == str(answer["time"])
    by_id = {row["id"]: row for row in answer["rows"]}
    assert by_id[1] == {
        "id": 1,
        "name": 'a "quoted" line\nand ü',
        "price": 12.50,
        "ratio": 0.1,
        "at": "2024-02-29T23:59:59.5Z",
        "day": "2024-02-29",
        "ok": True,
        "raw": "AP8=",
        "small": -3,
        "local": "2024-02-29T01:02:03",
        "code": "00000000-0000-0000-0000-00000000002a",
    }
    assert {key: value for key, value in by_id[2].items() if value is not None} == {"id": 2, "ratio": "NaN"}
    third = by_id[9007199254740993]
    assert (third["ratio"], third["at"], third["day"]) == ("-Infinity", "1969-12-31T23:59:59Z", "0001-01-01")
    assert (third["name"], third["raw"], third["price"]) == ("", "", -0.01)
    # Numbers have all their digits.
    assert b'"id":9007199254740993' in body and b'"price":12.50' in body


def test_scan_parameters(server):
    answer = server.json(f"{V}/v/scan?columns=name,id&filter={urllib.parse.quote('id > 1 AND ok IS NOT NULL')}")
    assert answer["rows"] == [{"name": "", "id": 9007199254740993}]
    assert server.json(f"{V}/many_v/scan?columns=x&filter=id+%3D+7")["rows"] == [{"x": 7}]
    assert len(server.json(f"{V}/many_v/scan")["rows"]) == 1000
    assert server.json(f"{V}/many_v/scan?limit=0")["rows"] == []
    assert server.json(f"{V}/many_v/scan?filter=false") | {"time": 0} == {"time": 0, "rows": [], "cursor": None}


def test_cursors_give_every_row_once(server):
    for parameters in ("", "&filter=x+%3C+3", "&columns=id"):
        ids, cursor, pages = [], "", 0
        while cursor is not None:
            after = f"&cursor={urllib.parse.quote(cursor)}" if cursor else ""
            answer = server.json(f"{V}/many_v/scan?limit=400{parameters}{after}")
            assert len(answer["rows"]) <= 400
            ids += [row["id"] for row in answer["rows"]]
            cursor, pages = answer["cursor"], pages + 1
        expected = [id for id in range(1, 2501) if "filter" not in parameters or id % 10 < 3]
        assert sorted(ids) == expected and pages >= len(expected) / 400


def test_arrow(server):
    table = server.arrow("v").sort_by("id")
    assert table.schema == pyarrow.schema(
        [
            ("id", pyarrow.int64()),
            ("name", pyarrow.string()),
            ("price", pyarrow.decimal128(12, 2)),
            ("ratio", pyarrow.float64()),
            ("at", pyarrow.timestamp("us", "UTC")),
            ("day", pyarrow.date32()),
            ("ok", pyarrow.bool_()),
            ("raw", pyarrow.binary()),
            ("small", pyarrow.int16()),
            ("local", pyarrow.timestamp("us")),
            ("code", pyarrow.binary(16)),
        ]
    )
    assert table["id"].to_pylist() == [1, 2, 9007199254740993]
    assert [str(price) for price in table["price"].to_pylist()] == ["12.50", "None", "-0.01"]
    assert table["raw"].to_pylist() == [b"\x00\xff", None, b""]
    # No default limit, and an empty answer still has its schema.
    assert server.arrow("many_v").num_rows == 2500
    assert server.arrow("v", filter="false").schema == table.schema
    status, headers, _ = server.get(f"{V}/many_v/scan.arrow?limit=10")
    assert status == 200 and headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    assert int(headers["X-Clink-Time"]) > 0 and headers["X-Clink-Cursor"]
    ids = server.arrow("many_v", limit=10)["id"].to_pylist()
    rest = server.arrow("many_v", cursor=headers["X-Clink-Cursor"])["id"].to_pylist()
    assert sorted(ids + rest) == list(range(1, 2501))


def test_key_lookup(server):
    status, headers, body = server.get(f"{V}/counts?key=true")
    answer = strict_json(body)
    assert status == 200 and headers["X-Clink-Time"] == str(answer["time"])
    assert answer["row"] == {"ok": True, "n": 1, "total": 12.50}
    assert server.json(f"{V}/v?key=2")["row"]["id"] == 2
    assert server.json(f"{V}/v?key.id=2")["row"]["id"] == 2
    assert server.json(f"{V}/pairs?key.small=32767&key.name=")["row"] == {"small": 32767, "name": "", "n": 1}
    error(server, f"{V}/counts?key=true&key.n=1", 400, "22023")
    error(server, f"{V}/pairs?key=1", 400, "22023")
    error(server, f"{V}/v?key=one", 400, "22P02")
    assert error(server, f"{V}/v?key=77", 404, "02000")["error"]


def test_as_of(server):
    with server.connect() as connection:
        connection.execute("CREATE TABLE moving (id int PRIMARY KEY, x int)")
        connection.execute("INSERT INTO moving VALUES (1, 1)")
        connection.execute("CREATE MATERIALIZED VIEW moving_v AS SELECT id, x FROM moving")
        before = server.json(f"{V}/moving_v/scan")
        connection.execute("UPDATE moving SET x = 2")
        then = server.json(f"{V}/moving_v/scan?as_of={before['time']}")
        assert then["rows"] == before["rows"] == [{"id": 1, "x": 1}] and then["time"] == before["time"]
        assert server.json(f"{V}/moving_v/scan")["rows"] == [{"id": 1, "x": 2}]
    error(server, f"{V}/moving_v/scan?as_of=1", 409, "72000")
    error(server, f"{V}/moving_v/scan?as_of=soon", 400, "22023")


def test_names(server):
    name = urllib.parse.quote("Ödd/na me.%", safe="")
    assert sorted(row["the id"] for row in server.json(f"{V}/{name}/scan")["rows"]) == [1, 2, 9007199254740993]
    assert server.json(f"{V}/{name}")["name"] == "Ödd/na me.%"
    assert server.json(f"{V}/{name}/scan?columns=the+id&filter=%22the%20id%22=1")["rows"] == [{"the id": 1}]
    assert server.json(f"{V}/s.v/scan")["rows"] == [{"n": 3}]
    # Names are taken as stored, never folded.
    error(server, f"{V}/V/scan", 404, "42P01")
    error(server, f"{V}/%ff/scan", 400, "22023")


@pytest.mark.parametrize(
    "path, status, sqlstate",
    [
        ("/", 404, "42704"),
        ("/api/v1/none", 404, "42704"),
        ("/api/v1/views/none", 404, "42P01"),
        ("/api/v1/views/none/scan", 404, "42P01"),
        ("/api/v1/views/none/scan.arrow", 404, "42P01"),
        ("/api/v1/views/plain/scan", 422, "42809"),
        ("/api/v1/views/v/scan?limit=-1", 400, "22023"),
        ("/api/v1/views/v/scan?limit=1&limit=2", 400, "22023"),
        ("/api/v1/views/v/scan?limt=1", 400, "22023"),
        ("/api/v1/views/v/scan?cursor=nonsense", 400, "22023"),
        ("/api/v1/views/v/scan?columns=id,nome", 422, "42703"),
        ("/api/v1/views/v/scan?filter=nome+%3D+1", 422, "42703"),
        ("/api/v1/views/v/scan?filter=id+%3D", 422, "42601"),
        ("/api/v1/views/v/scan?filter=id", 422, "42804"),
        ("/api/v1/views/v/scan?filter=1%2F(id-id)+%3D+1", 422, "22012"),
        ("/api/v1/views/v/scan.arrow?filter=1%2F(id-id)+%3D+1", 422, "22012"),
        ("/api/v1/views/v/scan?filter=%zz", 400, "22023"),
        ("/api/v1/health?x=1", 400, "22023"),
        ("/api/v1/jobs?x=1", 400, "22023"),
        ("/api/v1/views?x=1", 400, "22023"),
    ],
)
def test_errors(server, path, status, sqlstate):
    error(server, path, status, sqlstate)


def test_error_fields(server):
    fields = error(server, f"{V}/v/scan?filter=id+%3E+1+AND+nome+%3D+1", 422, "42703")
    assert fields["position"] == len("id > 1 AND ") + 1 and "nome" in fields["error"]
    assert "limit" in error(server, f"{V}/v/scan?limt=1", 400, "22023")["hint"]


def test_an_error_after_rows_shows(server):
    """JSON ends with the error's fields, and stays JSON; an Arrow stream lacks its end."""
    filter = urllib.parse.quote("id < 2500 OR 1 / (id - 2500) = 1")
    status, _, body = server.get(f"{V}/many_v/scan?limit=100000&filter={filter}")
    answer = strict_json(body)
    if status == 200:
        assert answer["cursor"] is None
    assert answer["sqlstate"] == "22012" and answer["error"] == "division by zero"
    with pytest.raises((urllib.error.HTTPError, http.client.HTTPException, pyarrow.ArrowException, OSError)):
        server.arrow("many_v", filter="id < 2500 OR 1 / (id - 2500) = 1")


def test_methods(server):
    for path in ("/api/v1/health", f"{V}/v/scan"):
        error(server, path, 405, "0A000", method="POST")
        error(server, path, 405, "0A000", method="DELETE")


def test_a_failed_job_is_named(server, tmp_path):
    """A bad row fails the job of its table's view, with reason and place; the rest goes on."""
    path = tmp_path / "bad.csv"
    path.write_text("a,b\n1,x\nnope,y\n")
    with server.connect() as connection:
        connection.execute(
            f"""CREATE TABLE bad (a int, b text)
                WITH (connector = 'file', path = '{path}', format = 'csv', on_error = 'fail')"""
        )
        # A statement that waits for the view would fail with it, and take it back.
        connection.execute("CREATE MATERIALIZED VIEW bad_v WITH (background = true) AS SELECT count(*) AS n FROM bad")
        with pytest.raises(Exception) as failed:
            while rows(connection, "SELECT * FROM bad_v") != [(2,)]:
                pass
        assert failed.value.sqlstate == "55000"
        jobs = {job["name"]: job for job in server.json("/api/v1/jobs")["jobs"]}
        assert jobs["public.bad_v"]["status"] == "FAILED" and "nope" in jobs["public.bad_v"]["error"]
        assert jobs["public.v"]["status"] == "RUNNING"
        error(server, f"{V}/bad_v/scan", 409, "55000")
        connection.execute("DROP TABLE bad CASCADE")


def test_many_requests_at_once(server):
    """Reads of one view do not wait for each other's clients."""
    answers = []

    def read():
        for _ in range(20):
            answers.append(server.arrow("many_v").num_rows)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [2500] * 160
