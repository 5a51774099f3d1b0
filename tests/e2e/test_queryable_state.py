"""The routes under /api/v1/queryable_state and /api/v1/state/export: statuses and shapes, and what they do better."""

import io
import json
import subprocess
import sys
import threading
import time
import urllib.parse

import psycopg
import pyarrow
import pyarrow.ipc
import pytest

from harness import ROOT, one, rows, strict_json

STATE = "/api/v1/queryable_state"


def quoted(text):
    return urllib.parse.quote(text, safe="")


@pytest.fixture
def filled(server):
    """A view by one text, one by two columns, one without a key; and the number of the first's job."""
    with server.connect() as connection:
        connection.execute("CREATE TABLE sales (id bigint PRIMARY KEY, region text, item int, price numeric(12,2), x double precision)")
        connection.execute(
            "INSERT INTO sales SELECT i, 'r' || (i % 40), (i % 7)::int, i, i / 4.0 FROM generate_series(1, 400) AS s(i)"
        )
        connection.execute("INSERT INTO sales VALUES (9007199254740993, NULL, 1, 1, 1), (1000, 'a b/ü%', 1, 0.5, 0.1)")
        connection.execute(
            "CREATE MATERIALIZED VIEW by_region AS SELECT region, count(*) AS n, sum(price) AS total, max(x) AS most, "
            "max(id) AS last, bool_or(id > 399) AS late FROM sales GROUP BY region"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW by_both AS SELECT region, item, count(*) AS n FROM sales GROUP BY region, item"
        )
        connection.execute("CREATE MATERIALIZED VIEW plain AS SELECT item, price FROM sales")
    return server


def job_of(server, name):
    return next(job["id"] for job in server.json("/api/v1/jobs")["jobs"] if job["name"] == f"public.{name}")


def status_and_json(server, path):
    status, headers, body = server.get(path)
    return status, strict_json(body), headers


def test_slots_are_listed(filled):
    found = filled.json(STATE)
    assert set(found) == {"slots", "json_slots"}
    assert {"by_region:0:agg", "by_region:1:agg", "by_both:1:agg", "sales:0:agg"} <= set(found["json_slots"])
    assert {"by_region:0:rows", "by_region:1:rows"} <= set(found["slots"])


def test_rows_by_key(filled):
    job = job_of(filled, "by_region")
    expected = {"region": "r7", "n": 10, "total": 1870.00, "most": 91.75, "last": 367, "late": False}
    found = filled.json(f"{STATE}/job/{job}/op/by_region/json/agg?key=%22r7%22")
    assert found == {"key": '"r7"', "value": expected}
    # The bare text of a key of one text.
    assert filled.json(f"{STATE}/job/{job}/op/by_region/json/agg?key=r7") == {"key": "r7", "value": expected}
    # The only operator with state may go by the name that all have elsewhere.
    assert filled.json(f"{STATE}/job/{job}/op/__clink_subtask/json/agg?key=r7")["value"] == expected
    # One of the subtasks has it; the other says that it has not.
    answers = [filled.get(f"{STATE}/op/by_region/subtask/{n}/json/agg?key=r7") for n in (0, 1)]
    assert sorted(status for status, *_ in answers) == [200, 404]
    both = job_of(filled, "by_both")
    key = quoted('"r7"\x1f' + str(7 % 7))
    found = filled.json(f"{STATE}/job/{both}/op/by_both/json/agg?key={key}")
    assert found["value"]["region"] == "r7" and found["value"]["item"] == 0
    for path, status, error in [
        (f"/job/{job}/op/by_region/json/agg?key=nowhere", 404, "key not found"),
        (f"/job/{both}/op/by_both/json/agg?key={quoted(chr(34) + 'r7' + chr(34) + chr(31) + 'x')}", 404, "key not found"),
        (f"/job/{both}/op/by_both/json/agg?key=r7", 404, "key not found"),
        (f"/job/{job}/op/by_region/json/other?key=r7", 404, "slot not registered"),
        (f"/job/{job}/op/other/json/agg?key=r7", 404, "slot not registered"),
        ("/job/999999/op/by_region/json/agg?key=r7", 404, "slot not registered"),
        ("/op/by_region/subtask/7/json/agg?key=r7", 404, "slot not registered"),
        ("/job/x/op/by_region/json/agg?key=r7", 400, None),
        ("/op/by_region/subtask/x/json/agg?key=r7", 400, None),
        (f"/job/{job}/op/by_region/json/agg", 400, None),
    ]:
        found, body, _ = status_and_json(filled, STATE + path)
        assert found == status and "error" in body, path
        assert error is None or body["error"] == error, path


def test_keys_that_no_address_could_carry_and_null(filled):
    job = job_of(filled, "by_region")
    found = filled.json(f"{STATE}/job/{job}/op/by_region/json/agg?key={quoted('a b/ü%')}")
    assert found["value"]["total"] == 0.5
    assert filled.json(f"/api/v1/views/by_region?key={quoted('a b/ü%')}")["row"] == found["value"]
    # NULL is no text.
    null = filled.json(f"{STATE}/job/{job}/op/by_region/json/agg?key=")
    assert null["value"]["region"] is None and null["value"]["last"] == 9007199254740993


def test_bytes_by_encoded_key(filled):
    assert filled.get(f"{STATE}/by_region:0:rows?key=zz")[0] == 400
    assert filled.get(f"{STATE}/by_region:0:rows?key=0")[0] == 400
    assert filled.get(f"{STATE}/by_region:0:rows")[0] == 400
    assert filled.get(f"{STATE}/nothing:0:rows?key=00")[0] == 404
    assert filled.get(f"{STATE}/nothing?key=00")[0] == 404
    for path in [f"{STATE}/by_region:0:rows", f"{STATE}/op/by_region/subtask/0/slot/rows"]:
        status, body, _ = status_and_json(filled, f"{path}?key=00ff")
        assert (status, body["error"]) == (404, "key not found")
        assert filled.json(f"{path}?key=00ff&treat_missing_as_404=false") == {"value_hex": None}
    # The key and the value stand in the state of the job.
    job = job_of(filled, "by_region")
    status, headers, body = filled.get(f"/api/v1/state/export/job/{job}")
    assert status == 200 and headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    assert headers["X-Clink-Skipped-Subtasks"] == "0"
    state = pyarrow.ipc.open_stream(io.BytesIO(body)).read_all().to_pylist()
    stored = {}
    for entry in state:
        key, value = list(entry.values())[-2:]
        if key[1:].startswith(b"rows|"):
            stored[key[len(b"?rows|") :]] = value
    assert len(stored) == 42
    for key, value in list(stored.items())[:5]:
        hits = [filled.get(f"{STATE}/by_region:{n}:rows?key={key.hex().upper()}") for n in (0, 1)]
        (body,) = [body for status, _, body in hits if status == 200]
        assert json.loads(body) == {"value_hex": value.hex()}
        routed = filled.json(f"{STATE}/job/{job}/op/by_region/route?key={key.hex()}")
        assert hits[routed["subtask_idx"]][0] == 200, "the route names the one that has it"
        assert f"{routed['host']}:{routed['port']}" == filled.http
    assert filled.get("/api/v1/state/export/job/999999")[0] == 404
    assert filled.get("/api/v1/state/export/job/x")[0] == 400


def test_discovery(filled):
    job = job_of(filled, "by_region")
    host, port = filled.http.rsplit(":", 1)
    assert filled.json(f"{STATE}/job/{job}/workers") == {"workers": [{"host": host, "port": int(port)}]}
    assert filled.json(f"{STATE}/job/999999/workers") == {"workers": []}
    version = filled.json(f"{STATE}/job/{job}/topology_version")["version"]
    assert version > 0 and filled.json(f"{STATE}/job/999999/topology_version") == {"version": 0}
    assert filled.json(f"{STATE}/job/{job}/op/by_region/route?key=00")["topology_version"] == version
    status, body, _ = status_and_json(filled, f"{STATE}/job/{job}/op/other/route?key=00")
    assert (status, body["error"]) == (404, "no subtask covers key")
    assert filled.get(f"{STATE}/job/{job}/op/by_region/route?key=0")[0] == 400
    with filled.connect() as connection:
        connection.execute("ALTER SYSTEM SET workers = 3")
    moved = filled.json(f"{STATE}/job/{job}/topology_version")["version"]
    assert moved > version, "keys are with other workers"
    filled.restart(workers=3)
    assert filled.json(f"{STATE}/job/{job}/topology_version")["version"] > moved


def test_scans_have_a_limit_and_say_when_there_is_more(filled):
    job = job_of(filled, "by_region")
    scan = f"{STATE}/job/{job}/op/by_region/json/agg/scan"
    found = filled.json(scan)
    assert len(found["entries"]) == 42 and found["truncated"] is False
    for limit, truncated in [(0, True), (41, True), (42, False), (1_000_000, False)]:
        cut = filled.json(f"{scan}?limit={limit}")
        assert cut["entries"] == found["entries"][:limit] and cut["truncated"] is truncated
    of_subtasks = [filled.json(f"{STATE}/op/by_region/subtask/{n}/json/agg/scan")["entries"] for n in (0, 1)]
    assert of_subtasks[0] + of_subtasks[1] == found["entries"] and all(of_subtasks)
    for entry in found["entries"]:
        assert filled.json(f"{STATE}/job/{job}/op/by_region/json/agg?key={quoted(entry['key'])}")["value"] == entry["value"]
    assert filled.get(f"{scan}?limit=x")[0] == 400 and filled.get(f"{scan}?limit=-1")[0] == 400
    assert filled.get(f"{STATE}/job/{job}/op/by_region/json/other/scan")[0] == 404
    status, headers, body = filled.get(f"{scan}.arrow?limit=10")
    assert status == 200 and headers["Content-Type"] == "application/vnd.apache.arrow.stream"
    assert headers["X-Clink-Truncated"] == "true"
    table = pyarrow.ipc.open_stream(io.BytesIO(body)).read_all()
    assert table.column_names == ["__key", "region", "n", "total", "most", "last", "late"]
    assert table["__key"].to_pylist() == [entry["key"] for entry in found["entries"][:10]]
    assert filled.get(f"{scan}.arrow")[1]["X-Clink-Truncated"] == "false"


def test_weak_spot_13_readers_do_not_hold_up_the_fold(filled):
    """While many scans run, statements go on, and each scan is of one time."""
    stop, slow = threading.Event(), []

    def write():
        with filled.connect() as connection:
            while not stop.is_set():
                began = time.monotonic()
                connection.execute("UPDATE sales SET price = price + 1 WHERE id = 7; UPDATE sales SET price = price - 1 WHERE id = 7")
                slow.append(time.monotonic() - began)

    writer = threading.Thread(target=write)
    writer.start()
    job = job_of(filled, "plain")
    deadline, scans = time.monotonic() + 60, 0
    while len(slow) < 20 and time.monotonic() < deadline:
        found = filled.json(f"{STATE}/job/{job}/op/plain/json/agg/scan?limit=100000")
        # Each statement is at a time of its own: a scan has the sum of before or that of between.
        total = sum(round(entry["value"]["price"] * 100) for entry in found["entries"])
        assert total in (8_020_150, 8_020_250), total
        scans += 1
    stop.set()
    writer.join()
    assert len(slow) >= 20 and scans > 5 and sorted(slow)[len(slow) // 2] < 1


def test_weak_spot_14_scans_go_on_filter_choose_and_order(filled):
    page, seen = filled.json("/api/v1/views/by_region/scan?limit=10&columns=region,n"), []
    while True:
        seen += page["rows"]
        if page["cursor"] is None:
            break
        page = filled.json(f"/api/v1/views/by_region/scan?limit=10&columns=region,n&cursor={page['cursor']}")
    assert len(seen) == 42 and set(seen[0]) == {"region", "n"}
    top = filled.json(f"/api/v1/views/by_region/scan?limit=3&order={quoted('total desc')},region&filter=n+%3E+1&columns=region")
    with filled.connect() as connection:
        expected = rows(connection, "SELECT region FROM by_region WHERE n > 1 ORDER BY total DESC, region LIMIT 3")
    assert [(row["region"],) for row in top["rows"]] == expected and top["cursor"] is None
    assert filled.json("/api/v1/views/by_region?key=r7&columns=n,total")["row"] == {"n": 10, "total": 1870.00}
    assert filled.get("/api/v1/views/by_region?key=r7&filter=n+%3E+99")[0] == 404
    assert filled.get("/api/v1/views/by_region/scan?order=nothing")[0] == 422
    assert filled.get("/api/v1/views/by_region/scan?order=n&cursor=x")[0] == 400
    status, headers, _ = filled.get(f"/api/v1/views/by_region/scan?as_of={top['time']}&order=region")
    assert status == 409 or headers["X-Clink-Time"] == str(top["time"])


def test_weak_spot_15_operators_do_not_mix(filled):
    one_job, other = job_of(filled, "by_region"), job_of(filled, "by_both")
    assert len(filled.json(f"{STATE}/job/{one_job}/op/by_region/json/agg/scan")["entries"]) == 42
    assert len(filled.json(f"{STATE}/job/{other}/op/by_both/json/agg/scan")["entries"]) > 42
    # Two aggregates of one job: neither is taken for the other.
    with filled.connect() as connection:
        connection.execute(
            "CREATE MATERIALIZED VIEW twice AS SELECT n, count(*) AS m FROM (SELECT region, count(*) AS n FROM sales GROUP BY region) AS a GROUP BY n"
        )
    status, body, _ = status_and_json(filled, f"{STATE}/job/{job_of(filled, 'twice')}/op/__clink_subtask/json/agg/scan")
    assert status == 409 and "twice" in body["hint"]


def test_weak_spot_16_every_view_is_there_on_every_backend(filled, tmp_path):
    with filled.connect() as connection:
        for number, uri in enumerate(
            ["memory+sharded://", "changelog://", f"file://{tmp_path}/a", f"rocksdb://{tmp_path}/b", f"changelog+rocksdb://{tmp_path}/c"]
        ):
            connection.execute(
                f"CREATE MATERIALIZED VIEW on_{number} WITH (state_backend = '{uri}') AS SELECT item, max(price) AS most FROM sales GROUP BY item"
            )
            expected = dict(rows(connection, "SELECT item, max(price) FROM sales GROUP BY item"))
            found = filled.json(f"{STATE}/job/{job_of(filled, f'on_{number}')}/op/on_{number}/json/agg/scan")
            assert {entry["value"]["item"]: entry["value"]["most"] for entry in found["entries"]} == {
                item: float(most) for item, most in expected.items()
            }, uri
            inside = filled.json(operators_of(filled, f"on_{number}")["aggregate"])["rows"]
            assert sorted(row["item"] for row in inside) == sorted(expected), uri
        connection.execute("CREATE MATERIALIZED VIEW joined AS SELECT s.id, b.n FROM sales AS s JOIN by_region AS b ON b.region = s.region")
        connection.execute("CREATE MATERIALIZED VIEW top AS SELECT id FROM sales ORDER BY price DESC LIMIT 5")
        connection.execute("CREATE MATERIALIZED VIEW stacked AS SELECT n, count(*) AS m FROM by_region GROUP BY n")
        for view in ["joined", "top", "stacked", "plain"]:
            job = job_of(filled, view)
            found = filled.json(f"{STATE}/job/{job}/op/{view}/json/agg/scan?limit=100000")
            assert len(found["entries"]) == one(connection, f"SELECT count(*) FROM {view}"), view


def test_weak_spot_17_arrow_has_the_types_of_the_plan(filled):
    job = job_of(filled, "by_region")
    _, _, body = filled.get(f"{STATE}/job/{job}/op/by_region/json/agg/scan.arrow")
    table = pyarrow.ipc.open_stream(io.BytesIO(body)).read_all()
    types = {field.name: field.type for field in table.schema}
    assert types["n"] == pyarrow.int64() and types["last"] == pyarrow.int64() and types["late"] == pyarrow.bool_()
    assert types["total"] == pyarrow.decimal128(38, 2) and types["most"] == pyarrow.float64()
    assert 9007199254740993 in table["last"].to_pylist(), "beyond the whole numbers of a double"
    _, _, body = filled.get(f"{STATE}/job/{job}/op/by_region/json/agg/scan.arrow?limit=0")
    assert pyarrow.ipc.open_stream(io.BytesIO(body)).read_all().schema == table.schema


def test_weak_spot_18_one_server_answers_for_all_subtasks(filled):
    """No call goes from one process to another without its caller's rights: there is one process."""
    job = job_of(filled, "by_region")
    (worker,) = filled.json(f"{STATE}/job/{job}/workers")["workers"]
    assert f"{worker['host']}:{worker['port']}" == filled.http
    found = filled.json(f"{STATE}/job/{job}/op/by_region/json/agg/scan")
    assert len(found["entries"]) == 42


def operators_of(server, job):
    """The operators of a job with state, by kind: their addresses."""
    found = server.json(f"/api/v1/jobs/{job}/operators")["operators"]
    return {operator["kind"]: f"/api/v1/jobs/{job}/operators/{quoted(operator['operator'])}" for operator in found}


def test_operators_inside_of_a_job(filled):
    with filled.connect() as connection:
        connection.execute(
            "CREATE MATERIALIZED VIEW inside AS SELECT a.region, a.n, b.most FROM "
            "(SELECT region, count(*) AS n FROM sales GROUP BY region) AS a JOIN by_region AS b ON b.region = a.region"
        )
        connection.execute("CREATE MATERIALIZED VIEW ranked AS SELECT id, price FROM sales ORDER BY price DESC, id LIMIT 5")
        operators = {found["kind"]: found for found in filled.json("/api/v1/jobs/inside/operators")["operators"]}
        assert set(operators) == {"aggregate", "join"}
        (part,) = operators["aggregate"]["parts"]
        assert part["part"] == "rows" and part["key"] == ["region"] and len(part["columns"]) == 2
        counted = part["columns"][1]["name"]
        address = f"/api/v1/jobs/inside/operators/{quoted(operators['aggregate']['operator'])}"
        found = filled.json(address)
        expected = dict(rows(connection, "SELECT region, count(*) FROM sales GROUP BY region"))
        assert {row["region"]: row[counted] for row in found["rows"]} == expected
        # As it is now: what was answered is in, by scan, by key and as Arrow.
        for n in range(5):
            connection.execute(f"INSERT INTO sales VALUES ({2000 + n}, 'r7', 1, 1, 1)")
            expected["r7"] += 1
            assert {row["region"]: row[counted] for row in filled.json(address)["rows"]} == expected
            status, headers, body = filled.get(f"{address}?key=r7&columns={quoted(counted)}")
            assert status == 200 and strict_json(body)["rows"] == [{counted: expected["r7"]}]
            assert int(headers["X-Clink-Time"]) > found["time"]
        assert filled.json(f"{address}?key=nowhere")["rows"] == []
        assert filled.json(f"{address}?key={quoted('a b/ü%')}")["rows"] == [{"region": "a b/ü%", counted: 1}]
        status, headers, body = filled.get(f"{address}/scan.arrow?filter={quoted('region > ')}{quoted(chr(39) + 'r3' + chr(39))}")
        assert status == 200 and int(headers["X-Clink-Time"]) > found["time"]
        table = pyarrow.ipc.open_stream(io.BytesIO(body)).read_all()
        assert sorted(table["region"].to_pylist()) == sorted(r for r in expected if r is not None and r > "r3")
        assert len(filled.json(f"{address}?limit=3")["rows"]) == 3
        (most,) = filled.json(f"{address}?limit=1&order={quoted(counted + ' desc')}&filter={quoted('region IS NOT NULL')}")["rows"]
        assert most == {"region": "r7", counted: 15}
        sides = f"/api/v1/jobs/inside/operators/{quoted(operators['join']['operator'])}"
        assert filled.get(sides)[0] == 404, "which side has to be said"
        assert filled.get(f"{sides}?part=middle")[0] == 404
        for side in ("left", "right"):
            # A region that is NULL joins nothing, and is not kept.
            assert len(filled.json(f"{sides}?part={side}")["rows"]) == 41
            assert len(filled.json(f"{sides}?part={side}&key=r7")["rows"]) == 1
        (rank,) = filled.json("/api/v1/jobs/ranked/operators")["operators"]
        assert rank["kind"] == "rank"
        found = filled.json(f"/api/v1/jobs/{job_of(filled, 'ranked')}/operators/{quoted(rank['operator'])}")
        assert len(found["rows"]) == 407
    for path, status in [
        ("/api/v1/jobs/nothing/operators", 404),
        ("/api/v1/jobs/sales/operators", 422),
        ("/api/v1/jobs/inside/operators/nothing", 404),
        (f"{address}?columns=nothing", 422),
        (f"{address}?key.nothing=1", 400),
        (f"{address}?fresh=true", 400),
        (f"{address}?filter=region", 422),
    ]:
        assert filled.get(path)[0] == status, path


def test_operators_in_sql_are_of_one_time_with_all_else(filled):
    with filled.connect() as connection, filled.connect() as writer:
        connection.execute(
            "CREATE MATERIALIZED VIEW spread AS SELECT n, count(*) AS regions FROM "
            "(SELECT region, count(*) AS n FROM sales GROUP BY region) AS a GROUP BY n"
        )
        names = [found["operator"] for found in filled.json("/api/v1/jobs/spread/operators")["operators"]]
        inner = max(names, key=len)
        query = (
            f'SELECT (SELECT sum(count) FROM "spread/{inner}"), (SELECT sum(n * regions) FROM spread),'
            f' (SELECT count(*) FROM sales), (SELECT count(*) FROM "spread/{inner}" AS a JOIN "spread/{inner}" AS b USING (region))'
        )
        stop = threading.Event()

        def write():
            n = 10_000
            while not stop.is_set():
                n += 1
                writer.execute(f"INSERT INTO sales VALUES ({n}, 'r{n % 40}', 1, 1, 1)")

        thread = threading.Thread(target=write)
        thread.start()
        try:
            seen = set()
            for _ in range(20):
                ((inside, outside, there, joined),) = rows(connection, query)
                assert inside == outside == there and joined == 41
                seen.add(there)
        finally:
            stop.set()
            thread.join()
        assert len(seen) > 1, "nothing was written beside the reads"
        assert rows(connection, f'SELECT count FROM "spread/{inner}" WHERE region IS NULL') == [(1,)]
        assert len(rows(connection, f'SELECT * FROM public."spread/{inner}" LIMIT 3')) == 3
        for statement, code, hint in [
            ('SELECT * FROM "spread/nothing"', "42704", inner),
            ('SELECT * FROM "nothing/root"', "42P01", None),
            ('SELECT * FROM "sales/root"', "42809", "SHOW JOBS"),
            (f'SELECT * FROM "spread/{inner}:left"', "42704", "rows"),
            (f'SUBSCRIBE "spread/{inner}"', "42P01", None),
            (f'INSERT INTO "spread/{inner}" VALUES (1)', "42P01", None),
        ]:
            with pytest.raises(psycopg.Error) as refused:
                connection.execute(statement)
            assert refused.value.sqlstate == code, (statement, refused.value)
            assert hint is None or hint in refused.value.diag.message_hint, (statement, refused.value.diag.message_hint)
        # An operator has no past: it is read before anything else in a block.
        connection.execute("BEGIN")
        ((first,),) = rows(connection, f'SELECT sum(count) FROM "spread/{inner}"')
        writer.execute("INSERT INTO sales VALUES (99999, 'r1', 1, 1, 1)")
        assert rows(connection, "SELECT count(*) FROM sales") == [(first,)]
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute(f'SELECT * FROM "spread/{inner}"')
        connection.execute("ROLLBACK")
        # A plain view over it falls with the job.
        connection.execute(f'CREATE VIEW looked AS SELECT * FROM "spread/{inner}"')
        assert one(connection, "SELECT count(*) FROM looked") == 42
        with pytest.raises(psycopg.Error) as refused:
            connection.execute("DROP MATERIALIZED VIEW spread")
        assert refused.value.sqlstate == "2BP01"


def test_rows_held_back_and_operators_of_sinks_are_read(filled, tmp_path):
    with filled.connect() as connection:
        connection.execute(
            "CREATE TABLE clicks (page text, at timestamp, WATERMARK FOR at AS at - INTERVAL '1 minute')"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW minutes AS SELECT window_start, page, count(*) AS n FROM "
            "TUMBLE(clicks, at, INTERVAL '1 minute') GROUP BY window_start, window_end, page EMIT ON WINDOW CLOSE"
        )
        connection.execute("INSERT INTO clicks VALUES ('a', '2026-01-01 00:00:10'), ('a', '2026-01-01 00:00:20'), ('b', '2026-01-01 00:00:30')")
        assert rows(connection, "SELECT * FROM minutes") == []
        (address,) = operators_of(filled, "minutes").values()
        held = filled.json(address)["rows"]
        assert sorted(row["page"] for row in held) == ["a", "b"], held
        connection.execute("INSERT INTO clicks VALUES ('c', '2026-01-01 00:05:00')")
        assert sorted(rows(connection, "SELECT page, n FROM minutes")) == [("a", 2), ("b", 1)]
        assert [row["page"] for row in filled.json(address)["rows"]] == ["c"], "what is over is forgotten"
        connection.execute(
            f"CREATE SINK counts WITH (connector = 'file', path = '{tmp_path}/counts.jsonl', format = 'json', changelog = 'true') AS "
            "SELECT region, count(*) AS n FROM sales GROUP BY region"
        )
        address = operators_of(filled, "counts")["aggregate"]
        assert len(filled.json(address)["rows"]) == 42


def test_the_example_reads_with_pyarrow_polars_and_duckdb(filled):
    command = [sys.executable, str(ROOT / "examples/live_state/read.py"), filled.http, "by_region", "--changes", "42"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "pyarrow: 42 rows at " in shown and "n int64" in shown and "total decimal128(38, 2)" in shown
    assert "polars: 42 rows" in shown and "duckdb: 42 rows" in shown and "changes: 42 up to " in shown


def test_an_index_serves_filters_over_http_page_by_page(filled):
    with filled.connect() as connection:
        connection.execute("CREATE MATERIALIZED VIEW each AS SELECT id, region, item, price FROM sales")
        before = filled.json("/api/v1/views/each/scan?filter=" + quoted("item = 3"))
        connection.execute("CREATE INDEX each_item ON each (item)")
        assert one(connection, "SELECT count(*) FROM pg_class WHERE relname = 'each_item' AND relkind = 'i'") == 1
        connection.execute("UPDATE sales SET item = 3 WHERE id = 1000")
        rows_by_id = {row["id"]: row for row in before["rows"]}
        assert sorted(rows_by_id) == [i for i in range(1, 401) if i % 7 == 3]
        found, cursor = [], ""
        while cursor is not None:
            page = filled.json(f"/api/v1/views/each/scan?limit=7&filter={quoted('item = 3')}" + (f"&cursor={cursor}" if cursor else ""))
            found += [row["id"] for row in page["rows"]]
            cursor = page["cursor"]
        assert sorted(found) == sorted([*rows_by_id, 1000]) and len(set(found)) == len(found)
        table = filled.arrow("each", filter="item = 3 AND region = 'r3'", columns="id")
        assert sorted(table.column("id").to_pylist()) == [i for i in range(1, 401) if i % 7 == 3 and i % 40 == 3]
        by_key = filled.json("/api/v1/views/each/scan?key.item=3&key.region=r3&columns=id")["rows"]
        assert sorted(row["id"] for row in by_key) == sorted(table.column("id").to_pylist())
        assert filled.get("/api/v1/views/each/scan?key=3")[0] == 400
    filled.restart(workers=3)
    assert len(filled.json("/api/v1/views/each/scan?filter=" + quoted("item = 3"))["rows"]) == len(found)
    host, port = filled.pg.rsplit(":", 1)
    command = ["psql", "-X", "-A", "-t", "-h", host, "-p", port, "-U", "me", "-c", r"\di", "clink"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "each_item|index" in shown and "sales_pkey|index" in shown


def test_equal_reads_at_one_time_are_shared(filled):
    def shared():
        lines = filled.get("/metrics")[2].decode().splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("clink_reads_shared_total"))

    address = "/api/v1/views/by_region/scan?filter=" + quoted("n > 1")
    found = filled.json(address)
    # Whether two reads meet is chance; whether ten in a row do is none.
    for _ in range(10):
        assert filled.json(f"{address}&as_of={found['time']}") == found
    before = shared()
    assert before > 0
    # Other rows, columns, times and relations are no equal reads.
    with filled.connect() as connection:
        connection.execute("INSERT INTO sales VALUES (5000, 'r7', 1, 1, 1)")
    assert [row["n"] for row in filled.json(address)["rows"] if row["region"] == "r7"] == [11]
    assert set(filled.json(f"{address}&columns=n")["rows"][0]) == {"n"}
    assert len(filled.json("/api/v1/views/by_both/scan")["rows"]) > len(found["rows"])
