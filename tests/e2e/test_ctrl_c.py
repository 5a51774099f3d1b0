"""Ctrl-C in psql: a long scan, a big sort, a view that fills, an INSERT … SELECT, a COPY end within a second."""

import signal
import subprocess
import time

import pytest

from harness import one, rows

ROWS = 300_000
STATEMENTS = {
    "scan": "SELECT count(*) FROM filled f, filled g WHERE (f.n * g.n) % 7 = 3",
    "sort": "SELECT f.n, g.n FROM filled f, filled g ORDER BY g.n DESC, f.n",
    "view": "CREATE MATERIALIZED VIEW slow AS SELECT n, count(DISTINCT n % 1000) AS d, string_agg(n::text, ',') AS s"
    " FROM filled GROUP BY n",
    "insert": "INSERT INTO other SELECT f.n FROM filled f, filled g WHERE (f.n * g.n) % 1000003 = 3",
    "copy": "COPY (SELECT f.n, g.n FROM filled f, filled g) TO STDOUT",
    "prepared": "PREPARE p AS SELECT count(*) FROM filled f, filled g WHERE (f.n * g.n) % $1 = 3; EXECUTE p(7)",
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_ctrl_c(server, what):
    host, port = server.pg.rsplit(":", 1)
    with server.connect() as connection:
        connection.execute("CREATE TABLE filled (n bigint)")
        connection.execute("CREATE TABLE other (n bigint)")
        connection.execute(f"INSERT INTO filled SELECT g FROM generate_series(1, {ROWS}) AS s (g)")
        psql = subprocess.Popen(
            ["psql", "-X", "-q", "-h", host, "-p", port, "-U", "me", "clink", "-c", "SELECT 'begun'"]
            # One by one: of several in one message psql shows no error when it has cancelled.
            + [word for statement in STATEMENTS[what].split("; ") for word in ("-c", statement)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while "begun" not in psql.stdout.readline():
            pass
        if what == "view":
            deadline = time.monotonic() + 20
            while not rows(connection, "SELECT 1 FROM clink_catalog.jobs WHERE name = 'public.slow'"):
                assert time.monotonic() < deadline and psql.poll() is None
        elif what == "copy":
            # Rows are on their way; nobody reads them.
            time.sleep(0.3)
        else:
            time.sleep(0.3)
        asked = time.monotonic()
        psql.send_signal(signal.SIGINT)
        _, errors = psql.communicate(timeout=30)
        took = time.monotonic() - asked
        assert "canceling statement due to user request" in errors, errors
        assert took < 1.0, took
        assert one(connection, "SELECT count(*) FROM other") == 0
        assert rows(connection, "SHOW VIEWS") == []
