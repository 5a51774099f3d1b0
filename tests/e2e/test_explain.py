"""EXPLAIN ANALYZE: what the parts of a query, and the operators of a job, did."""

import re

import psycopg
import pytest


def lines(connection, statement):
    return [line for (line,) in connection.execute(statement).fetchall()]


@pytest.fixture
def filled(start):
    server = start(workers=2)
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, k text, x int)")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT k, count(*) AS n, max(x) AS most FROM t WHERE x > 0 GROUP BY k"
        )
        connection.execute("INSERT INTO t VALUES (1, 'a', 5), (2, 'a', 7), (3, 'b', 9), (4, 'c', -1)")
    return server


def test_a_job_says_what_its_operators_did(filled):
    with filled.connect() as connection:
        # Read after the write, so the view has closed its time.
        assert connection.execute("SELECT count(*) FROM v").fetchone() == (2,)
        plain = lines(connection, "EXPLAIN v")
        assert plain[0] == "Result: key k; updating; state rows: a row for each k"
        ran = lines(connection, "EXPLAIN ANALYZE v")
        assert ran == lines(connection, "EXPLAIN (ANALYZE) MATERIALIZED VIEW public.v")
        assert [line.split(" (in=")[0] for line in ran] == plain
        numbers = {}
        for line in ran:
            found = re.search(r"^ *(\w+).* \(in=(\d+) out=(\d+) bytes=(\d+)(?: keys=(\d+) state_bytes=(\d+))? time=[\d.]+ ms\)$", line)
            assert found, line
            numbers[found[1]] = [int(number or 0) for number in found.groups()[1:]]
        assert numbers["Import"][0] == 4
        assert numbers["Filter"][:2] == [4, 3]
        aggregate = numbers["Aggregate"]
        assert aggregate[:2] == [3, 2] and aggregate[3] == 2 and aggregate[4] > 0
        assert numbers["Result"][3] == 2
        # The same as the table of operators says.
        for path, rows_in, keys in connection.execute(
            "SELECT operator, rows_in, state_keys FROM clink_catalog.operators WHERE job = 'public.v'"
        ).fetchall():
            line = next((line for line in ran if f"({path})" in line), ran[0] if path == "rows" else None)
            assert line is None or f"(in={rows_in} " in line, (path, rows_in, line)

        connection.execute("DELETE FROM t WHERE k = 'a'")
        assert connection.execute("SELECT count(*) FROM v").fetchone() == (1,)
        after = lines(connection, "EXPLAIN ANALYZE v")
        aggregate = next(line for line in after if line.lstrip().startswith("Aggregate"))
        assert "keys=1 " in aggregate


def test_a_query_runs_and_is_counted(filled):
    with filled.connect() as connection:
        ran = lines(connection, "EXPLAIN ANALYZE SELECT k, sum(x) FROM t WHERE x > 0 GROUP BY k")
        assert re.fullmatch(r"Execution: 2 rows, [\d.]+ ms", ran[-1]), ran
        scan = next(line for line in ran if "StreamingTableExec" in line)
        assert "rows=3 " in scan, ran
        assert all("YieldingExec" not in line for line in ran)
        # What fails when it runs fails here too; plain EXPLAIN does not run it.
        assert lines(connection, "EXPLAIN SELECT 1 / (x - x) FROM t")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("EXPLAIN ANALYZE SELECT 1 / (x - x) FROM t")


def test_a_sink_has_a_plan_too(filled):
    with filled.connect() as connection:
        connection.execute("CREATE SINK s FROM v WITH (connector = 'blackhole')")
        plan = lines(connection, "EXPLAIN ANALYZE SINK s")
        assert plan[0].startswith("Result: key k; updating")
        assert "state" not in plan[0]
        assert any("Import public.v" in line for line in plan)
