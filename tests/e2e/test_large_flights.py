"""Three million flights of the package vega-datasets: every row of every view is DuckDB's, from three formats.

A long test. The package comes from npm once, into the user's cache.
"""

import os
import subprocess
import tarfile
from pathlib import Path

import duckdb
import pytest

from harness import LONG, assert_same_rows, one, rows
from test_flights import plain

pytestmark = pytest.mark.skipif(not LONG, reason="a long test: scripts/test --long")

PACKAGE = "vega-datasets@3.2.1"
FLIGHTS = 3_000_000

TABLE = """
CREATE TABLE flights (date timestamp, delay bigint, distance bigint, origin text, destination text)
WITH (connector = 'file', path = '{path}', format = '{form}')
"""

VIEWS = {
    "per_origin": """
        SELECT origin, count(*) AS flights, avg(delay) AS avg_delay, count(DISTINCT destination) AS destinations
        FROM flights GROUP BY origin""",
    "routes": """
        SELECT origin, destination, count(*) AS flights, sum(distance) AS miles, min(delay) AS best,
               max(date) AS last, stddev_samp(delay) AS spread
        FROM flights WHERE delay > -60 GROUP BY origin, destination HAVING count(*) > 10""",
    "by_destinations": """
        SELECT destinations, count(*) AS origins, sum(flights) AS flights, max(avg_delay) AS worst
        FROM per_origin GROUP BY destinations""",
}
ORDER = {"per_origin": "1", "routes": "1, 2", "by_destinations": "1"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The flights in three formats."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "clink-vega"
    parquet = cache / "flights-3m.parquet"
    if not parquet.exists():
        cache.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", cache, PACKAGE], check=True, capture_output=True, text=True
        )
        with tarfile.open(cache / packed.stdout.strip().splitlines()[-1]) as package:
            with package.extractfile("package/data/flights-3m.parquet") as data:
                parquet.with_suffix(".part").write_bytes(data.read())
        parquet.with_suffix(".part").rename(parquet)
    folder = tmp_path_factory.mktemp("large")
    oracle = duckdb.connect()
    oracle.execute(f"COPY (SELECT * FROM '{parquet}') TO '{folder}/flights.csv' (FORMAT csv, HEADER)")
    oracle.execute(f"COPY (SELECT * FROM '{parquet}') TO '{folder}/flights.json' (FORMAT json)")
    return {"csv": folder / "flights.csv", "json": folder / "flights.json", "parquet": parquet}


@pytest.fixture(scope="module")
def expected(files):
    """DuckDB's rows of each view."""
    oracle = duckdb.connect()
    oracle.execute(f"CREATE TABLE flights AS SELECT * FROM '{files['parquet']}'")
    assert oracle.execute("SELECT count(*) FROM flights").fetchall() == [(FLIGHTS,)]
    answers = {}
    for name, query in VIEWS.items():
        oracle.execute(f"CREATE VIEW {name} AS {query}")
        answer = oracle.execute(f"SELECT * FROM {name} ORDER BY {ORDER[name]}").fetchall()
        answers[name] = [tuple(map(plain, row)) for row in answer]
    return answers


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("form", ["csv", "json", "parquet"])
def test_each_row_equals_the_oracle(start, files, expected, form, workers):
    server = start(workers=workers)
    with server.connect() as connection:
        connection.execute(TABLE.format(path=files[form], form=form))
        for name, query in VIEWS.items():
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        connection.execute("FLUSH")
        assert one(connection, "SELECT count(*) FROM flights_errors") == 0
        assert one(connection, "SELECT sum(flights) FROM per_origin") == FLIGHTS
        for name, answer in expected.items():
            actual = rows(connection, f"SELECT * FROM {name} ORDER BY {ORDER[name]}")
            assert_same_rows([tuple(map(plain, row)) for row in actual], answer, name)
