"""Rows leave through sinks: all of them, once, also after a kill, and nobody else is held up."""

import json
import subprocess
import threading
import time

import duckdb
import psycopg
import pytest

from harness import LONG, Server, binary, one, rows


def await_true(condition, seconds=30):
    """Waits for a condition, looking again and again."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def written(folder):
    """The records of a folder's visible parts."""
    parts = sorted(part for part in folder.iterdir() if not part.name.startswith("."))
    return [json.loads(line) for part in parts for line in lines(part)]


@pytest.fixture
def server(tmp_path):
    with Server(tmp_path / "data") as server:
        yield server


def test_a_file_gets_each_row_once(server, tmp_path):
    out = tmp_path / "out.ndjson"
    with server.connect() as c:
        c.execute("CREATE TABLE t (id int, x text) APPEND ONLY")
        c.execute(f"CREATE SINK s FROM t WITH (connector = 'file', path = '{out}', format = 'json')")
        c.execute("INSERT INTO t SELECT i, 'x' || i FROM generate_series(1, 5000) AS g(i)")
        await_true(lambda: len(lines(out)) == 5000)
        server.restart(workers=3)
    # The old rows stay until all are there again; then new ones follow.
    assert len(lines(out)) == 5000
    with server.connect() as c:
        c.execute("INSERT INTO t VALUES (5001, 'last')")
        await_true(lambda: len(lines(out)) == 5001)
    records = [json.loads(line) for line in lines(out)]
    assert sorted(record["id"] for record in records) == list(range(1, 5002))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".out")]


def test_a_changelog_adds_up_to_the_view(server, tmp_path):
    folder = tmp_path / "changes"
    with server.connect() as c:
        c.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
        c.execute("CREATE MATERIALIZED VIEW sums AS SELECT k % 3 AS g, sum(v) AS s FROM t GROUP BY k % 3")
        c.execute(
            "CREATE SINK s FROM sums WITH "
            f"(connector = 'file', path = '{folder}/', format = 'json', changelog = 'true')"
        )
        for step in range(30):
            c.execute(f"INSERT INTO t VALUES ({step}, {step * 7})")
            if step % 4 == 3:
                c.execute(f"UPDATE t SET v = v + 1 WHERE k = {step // 2}")
            if step % 5 == 4:
                c.execute(f"DELETE FROM t WHERE k = {step - 1}")
        expected = sorted(rows(c, "SELECT g, s::bigint FROM sums"))

        def summed():
            counts = {}
            for record in written(folder):
                row = (record["g"], record["s"])
                counts[row] = counts.get(row, 0) + (1 if record["op"] == "+I" else -1)
            assert all(count in (0, 1) for count in counts.values()), counts
            return sorted(row for row, count in counts.items() if count)

        await_true(lambda: folder.exists() and summed() == expected)


def test_parquet_and_csv_are_read_by_duckdb(server, tmp_path):
    with server.connect() as c:
        c.execute("CREATE TABLE t (id int, d date, n numeric(12,2), x text, ts timestamptz) APPEND ONLY")
        for format in ("parquet", "csv"):
            c.execute(
                f"CREATE SINK s_{format} FROM t WITH (connector = 'file', path = '{tmp_path}/{format}/', format = '{format}')"
            )
        c.execute(
            "INSERT INTO t VALUES (1, '2026-02-28', 12.50, 'a,\"b\"', '2026-01-01 00:00:00Z'), "
            "(2, NULL, NULL, '', NULL), (3, '1969-12-31', -0.01, NULL, '1969-12-31 23:59:59.5Z')"
        )
        for format in ("parquet", "csv"):
            folder = tmp_path / format
            await_true(lambda: any(p.suffix == f".{format}" and p.name[0] != "." for p in folder.iterdir()))
            read = f"SELECT id, d, n::decimal(12,2), x, epoch_us(ts::timestamptz) FROM '{folder}/*.{format}' ORDER BY id"
            found = duckdb.sql(read).fetchall()
            assert [row[0] for row in found] == [1, 2, 3]
            assert [str(row[1]) for row in found] == ["2026-02-28", "None", "1969-12-31"]
            assert [str(row[2]) for row in found] == ["12.50", "None", "-0.01"]
            assert found[0][3] == 'a,"b"' and found[2][3] is None
            assert [row[4] for row in found] == [1767225600000000, None, -500000]


def test_a_sink_that_cannot_go_on_fails_alone(server):
    """The view beside the sink and its readers know nothing of it."""
    with server.connect() as c:
        c.execute("CREATE TABLE t (id int) APPEND ONLY")
        with pytest.raises(psycopg.Error):
            c.execute("CREATE SINK s FROM t WITH (connector = 'file', path = '/proc/none/x', format = 'json')")
        c.execute("CREATE TABLE out (id int NOT NULL) WITH (connector = 'blackhole')")
        c.execute("CREATE SINK s INTO out AS SELECT id FROM t")
        c.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
        c.execute("INSERT INTO t VALUES (1), (NULL)")
        await_true(lambda: one(c, "SELECT count(*) FROM t") == 2)
        await_true(lambda: dict((row[1], row[4]) for row in rows(c, "SHOW SINKS"))["s"] == "FAILED")
        ((*_, error, _),) = rows(c, "SHOW SINKS")
        assert "null value" in error
        assert one(c, "SELECT n FROM n") == 2


def run(*arguments):
    done = subprocess.run([binary(), "run", *arguments], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_run_prints_the_last_view_and_fails_with_the_reason(tmp_path):
    source = tmp_path / "in.ndjson"
    source.write_text('{"k": 1, "v": 2.5}\n{"k": 1, "v": 1}\n{"k": 2, "v": null}\n')
    create = f"CREATE TABLE t (k int, v numeric(10,2)) WITH (connector = 'file', path = '{source}', format = 'json');"
    view = "CREATE MATERIALIZED VIEW s AS SELECT k, sum(v) AS s FROM t GROUP BY k;"
    code, out, _ = run("-e", f"{create} {view}", "--output", "json")
    assert (code, sorted(out.splitlines())) == (0, ['{"k":1,"s":3.50}', '{"k":2,"s":null}'])
    code, out, _ = run("-e", f"{create} {view} SELECT k, s FROM s ORDER BY k", "--output", "csv")
    assert (code, out) == (0, "k,s\n1,3.50\n2,\n")
    script = tmp_path / "script.sql"
    script.write_text(f"{create}\n{view}\nSELECT k, s FROM s ORDER BY k;\n")
    code, out, _ = run(str(script))
    assert (code, out) == (0, " k | s\n---+------\n 1 | 3.50\n 2 |\n(2 rows)\n")
    copied = tmp_path / "copy.csv"
    code, _, _ = run("-e", f"{create} CREATE SINK c FROM t WITH (connector='file', path='{copied}', format='csv')")
    assert code == 0 and sorted(copied.read_text().splitlines()) == ["1,1.00", "1,2.50", "2,", "k,v"]
    code, out, err = run("-e", "SELECT 1;\nSELECT 1 / 0")
    assert code == 1 and "22012" in err
    code, _, err = run("-e", "SELECT\n  x")
    assert code == 1 and "42703" in err and "Line 2, column 3" in err
    assert run("-e", "SELECT 1", "--output", "xml")[0] == 2
    assert run()[0] == 2


def test_a_crash_looping_job_holds_up_nobody(server, tmp_path):
    """Rows go through a chain into a file while one of twenty jobs fails again and again."""
    seconds = 60 if LONG else 10
    out = tmp_path / "out"
    with server.connect() as c:
        c.execute("CREATE TABLE t (id bigint, g int, v int) APPEND ONLY")
        c.execute("CREATE MATERIALIZED VIEW first AS SELECT id, g, v * 2 AS v FROM t")
        c.execute("CREATE MATERIALIZED VIEW second AS SELECT id, v + 1 AS v FROM first")
        c.execute(f"CREATE SINK s FROM second WITH (connector = 'file', path = '{out}/', format = 'json')")
        for job in range(19):
            c.execute(f"CREATE MATERIALIZED VIEW j{job} AS SELECT g, sum(v) AS s FROM first WHERE g % 19 = {job} GROUP BY g")
    stop = threading.Event()
    crashes = []

    def crash_loop():
        with server.connect() as c:
            c.execute("CREATE TABLE p (x int)")
            c.execute("INSERT INTO p VALUES (1)")
            c.execute("CREATE MATERIALIZED VIEW poisoned WITH (on_error = 'fail') AS SELECT 1 / x AS q FROM p")
            while not stop.is_set():
                c.execute("INSERT INTO p VALUES (0)")
                await_true(lambda: "FAILED" in {row[3] for row in rows(c, "SHOW JOBS")})
                crashes.append(1)
                c.execute("DELETE FROM p WHERE x = 0")
                c.execute("RESUME JOB poisoned")
                await_true(lambda: "FAILED" not in {row[3] for row in rows(c, "SHOW JOBS")})

    sent = 0

    def write(seconds):
        """A thousand rows a second; how long each hundred takes to be seen, in order."""
        nonlocal sent
        lags = []
        with server.connect() as c:
            started, before = time.monotonic(), sent
            while time.monotonic() - started < seconds:
                values = ",".join(f"({sent + i}, {(sent + i) % 1000}, {i})" for i in range(100))
                c.execute(f"INSERT INTO t VALUES {values}")
                sent += 100
                asked = time.monotonic()
                assert one(c, f"SELECT v FROM second WHERE id = {sent - 1}") == 199
                lags.append(time.monotonic() - asked)
                time.sleep(max(0, started + (sent - before) / 1000 - time.monotonic()))
        return sorted(lags)

    calm = write(seconds / 3)
    looping = threading.Thread(target=crash_loop)
    looping.start()
    try:
        lags = write(seconds)
    finally:
        stop.set()
        looping.join(60)
    assert crashes, "the poisoned job never failed"
    middle = lags[len(lags) // 2]
    before = calm[len(calm) // 2]
    # As without it, but for what the other sessions' statements take of two cores.
    assert middle < 3 * before + 0.05, f"p50 {middle:.3f} s over {len(lags)} reads, {before:.3f} s without the crashes"
    await_true(lambda: len(written(out)) == sent)
    assert sorted(record["id"] for record in written(out)) == list(range(sent))
    with server.connect() as c:
        assert one(c, "SELECT count(*) FROM second") == sent
        total = sum(2 * (i % 100) for i in range(sent))
        views = " UNION ALL ".join(f"SELECT sum(s) AS s FROM j{job}" for job in range(19))
        assert one(c, f"SELECT sum(s)::bigint FROM ({views}) AS x") == total
    print(
        f"{sent} rows, {len(crashes)} crashes, lag p50 {middle * 1000:.0f} ms, max {lags[-1] * 1000:.0f} ms; "
        f"without crashes p50 {before * 1000:.0f} ms, max {calm[-1] * 1000:.0f} ms"
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checkpoints", ["off", "120ms"])
def test_a_table_gets_each_row_once_under_kills(start, tmp_path, checkpoints):
    """Rows of DML and of a growing file go through views into tables; the server is killed in between."""
    source = tmp_path / "in.ndjson"
    source.touch()
    server = start(flags=["--checkpoint-interval", checkpoints])
    with server.connect() as c:
        c.execute("CREATE TABLE typed (id bigint, g int) APPEND ONLY")
        c.execute(
            f"CREATE TABLE read (id bigint, g int) WITH (connector = 'file', path = '{source}', format = 'json', mode = 'follow')"
        )
        c.execute(
            f"CREATE TABLE newest (g int PRIMARY KEY, id bigint) WITH (connector = 'file', path = '{source}', format = 'json', mode = 'follow')"
        )
        c.execute("CREATE MATERIALIZED VIEW every AS SELECT id, g FROM typed UNION ALL SELECT id, g FROM read")
        c.execute("CREATE MATERIALIZED VIEW sums AS SELECT g, count(*) AS n, sum(id) AS s FROM every GROUP BY g")
        c.execute("CREATE TABLE log (id bigint, g int)")
        c.execute("CREATE TABLE latest (g int PRIMARY KEY, n bigint, s numeric(38,0))")
        c.execute("CREATE SINK into_log INTO log FROM every")
        c.execute("CREATE SINK into_latest INTO latest FROM sums")
        c.execute("CREATE MATERIALIZED VIEW logged AS SELECT count(*) AS n, count(DISTINCT id) AS d, sum(id) AS s FROM log")
    sent = 0
    rounds = 10 if LONG else 5
    for kill in range(rounds):
        with server.connect() as c, open(source, "a") as out:
            for _ in range(40):
                # Even numbers are typed, odd ones come from the file.
                values = ",".join(f"({sent + 2 * i}, {i % 7})" for i in range(25))
                out.write("".join(f'{{"id": {sent + 2 * i + 1}, "g": {i % 7}}}\n' for i in range(25)))
                out.flush()
                c.execute(f"INSERT INTO typed VALUES {values}")
                sent += 50
            if kill % 2:
                c.execute("RESUME JOB into_log")
            # A fast machine is through before the first checkpoint is due.
            complete = "SELECT count(*) FROM clink_catalog.checkpoints WHERE status = 'COMPLETE'"
            while checkpoints != "off" and one(c, complete) == 0:
                pass
        server.restart(workers=kill % 3 + 1)
        with server.connect() as c:
            restored = one(c, "SELECT count(*) FROM clink_catalog.checkpoints WHERE restored AND id > 0")
            assert restored == (checkpoints != "off")
    with server.connect() as c:
        c.execute("FLUSH")
        newest = [(g, sent - 49 + 2 * max(i for i in range(25) if i % 7 == g)) for g in range(7)]
        assert rows(c, "SELECT g, id FROM newest ORDER BY g") == newest
        assert rows(c, "SELECT n, d, s::bigint FROM logged") == [(sent, sent, sent * (sent - 1) // 2)]
        assert rows(c, "SELECT * FROM latest ORDER BY g") == rows(c, "SELECT * FROM sums ORDER BY g")
        assert one(c, "SELECT sum(n)::bigint FROM latest") == sent


def present(path):
    """What the changes of a file come to, by their first two columns; each row is there once at most."""
    state = {}
    for line in lines(path):
        row = json.loads(line)
        key = tuple(value for column, value in row.items() if column != "op")
        state[key] = state.get(key, 0) + (1 if row["op"] == "+I" else -1)
    assert set(state.values()) <= {0, 1}, "a change is there twice, or one is missing"
    return sorted(key[:2] for key, count in state.items() if count)


@pytest.mark.timeout(300)
def test_files_get_each_change_once_under_kills(start, tmp_path):
    """Sinks into a file and a folder, appends and changelogs; what was read is deleted, and the server is killed."""
    source = tmp_path / "in"
    source.mkdir()
    server = start(flags=["--checkpoint-interval", "150ms"])
    with server.connect() as c:
        c.execute(
            "CREATE TABLE events (id bigint, g int) WITH (connector = 'file', format = 'json', "
            f"path = '{source}/*.ndjson', mode = 'follow')"
        )
        c.execute("CREATE TABLE typed (id bigint PRIMARY KEY, g int)")
        c.execute("CREATE MATERIALIZED VIEW sums AS SELECT g, count(*) AS n, sum(id) AS s FROM events GROUP BY g")
        into = f"WITH (connector = 'file', format = 'json', path = '{tmp_path}"
        c.execute(f"CREATE SINK direct {into}/direct.ndjson') AS SELECT id, g + 1 AS g FROM events WHERE id >= 0")
        c.execute(f"CREATE SINK parts {into}/parts/') AS SELECT id FROM events")
        c.execute(f"CREATE SINK changes FROM sums {into}/changes.ndjson', changelog = 'true')")
        c.execute(f"CREATE SINK typed_changes FROM typed {into}/typed.ndjson', changelog = 'true')")
    sent = 0
    model = {}
    for kill in range(8 if LONG else 4):
        path = source / f"{kill}.ndjson"
        hidden = source / f".{kill}"
        hidden.write_text("".join(json.dumps({"id": sent + i, "g": i % 5}) + "\n" for i in range(500)))
        hidden.rename(path)
        sent += 500
        with server.connect() as c:
            c.execute("FLUSH; CHECKPOINT")
            path.unlink()
            for i in range(30):
                c.execute(f"INSERT INTO typed VALUES ({i}, {kill}) ON CONFLICT (id) DO UPDATE SET g = excluded.g")
                model[i] = kill
                if i % 7 == kill:
                    c.execute(f"DELETE FROM typed WHERE id = {i}")
                    del model[i]
        server.restart(workers=kill % 3 + 1)
        with server.connect() as c:
            c.execute("FLUSH")
            direct = lambda: [json.loads(line)["id"] for line in lines(tmp_path / "direct.ndjson")]
            await_true(lambda: len(direct()) >= sent)
            assert sorted(direct()) == list(range(sent))
            await_true(lambda: len(written(tmp_path / "parts")) >= sent)
            assert sorted(row["id"] for row in written(tmp_path / "parts")) == list(range(sent))
            for name, view in [("changes", "SELECT g, n FROM sums"), ("typed", "SELECT id, g FROM typed")]:
                await_true(lambda: present(tmp_path / f"{name}.ndjson") == sorted(rows(c, view)))
            assert dict(rows(c, "SELECT id, g FROM typed")) == model
            # Two tables, a view, its source's errors if there are any, and four sinks.
            assert one(c, "SELECT max(jobs) FROM clink_catalog.checkpoints WHERE restored") >= 6
