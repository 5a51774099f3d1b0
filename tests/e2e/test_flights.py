"""Views over a year of real flights give DuckDB's answers, also after kills in the middle."""

import time

import duckdb
import pytest

from harness import assert_same_rows, one, rows

FLIGHTS = 336_776
LOAD_SECONDS = 120

TABLE = """
CREATE TABLE flights (
    time_hour timestamptz, carrier text, flight int, tailnum text, origin text, dest text,
    dep_delay int, arr_delay int, distance int
) WITH (connector = 'file', path = '{path}', format = 'csv')
"""

# Each in SQL that both systems read the same way: the view's definition is the oracle's query.
VIEWS = {
    "per_carrier": """
        SELECT carrier, count(*) AS flights, avg(arr_delay) AS avg_delay, count(DISTINCT dest) AS dests,
               count(arr_delay) AS arrived, min(arr_delay) AS earliest, max(arr_delay) AS latest
        FROM flights GROUP BY carrier""",
    "per_origin": """
        SELECT origin, count(*) AS flights, sum(distance) AS miles, min(time_hour) AS first, max(time_hour) AS last,
               count(DISTINCT tailnum) AS planes, count(*) FILTER (WHERE dep_delay IS NULL) AS cancelled
        FROM flights GROUP BY origin""",
    "busy": """
        SELECT dest, origin, count(*) AS flights, stddev_samp(arr_delay) AS spread
        FROM flights WHERE distance > 500 GROUP BY dest, origin HAVING count(*) > 1000""",
    "whole": """
        SELECT count(*) AS carriers, sum(flights) AS flights, sum(arrived) AS arrived, max(dests) AS dests
        FROM per_carrier""",
}
ORDER = {"per_carrier": "1", "per_origin": "1", "busy": "1, 2", "whole": "1"}


def create(connection, path):
    connection.execute(TABLE.format(path=path))
    for name, query in VIEWS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")


def plain(value):
    """Times without zone (all are UTC) and exact numbers as integers, as the oracle has them."""
    if hasattr(value, "tzinfo"):
        return value.replace(tzinfo=None)
    if type(value).__name__ == "Decimal":
        return int(value) if value == int(value) else float(value)
    return value


@pytest.fixture(scope="module")
def expected(flights_csv):
    """DuckDB's rows of each view."""
    oracle = duckdb.connect()
    oracle.execute(
        f"""CREATE TABLE flights AS SELECT * FROM read_csv('{flights_csv}', header = true, columns = {{
            time_hour: 'TIMESTAMP', carrier: 'VARCHAR', flight: 'INTEGER', tailnum: 'VARCHAR', origin: 'VARCHAR',
            dest: 'VARCHAR', dep_delay: 'INTEGER', arr_delay: 'INTEGER', distance: 'INTEGER'}})"""
    )
    assert oracle.execute("SELECT count(*) FROM flights").fetchall() == [(FLIGHTS,)]
    answers = {}
    for name, query in VIEWS.items():
        oracle.execute(f"CREATE VIEW {name} AS {query}")
        answer = oracle.execute(f"SELECT * FROM {name} ORDER BY {ORDER[name]}").fetchall()
        answers[name] = [tuple(map(plain, row)) for row in answer]
    return answers


def loaded(connection):
    return one(connection, "SELECT coalesce(sum(flights), 0) FROM per_carrier")


def wait_until(connection, enough):
    deadline = time.monotonic() + LOAD_SECONDS
    while not enough(count := loaded(connection)):
        assert time.monotonic() < deadline, f"{count} flights after {LOAD_SECONDS} s"
        time.sleep(0.01)
    return count


def wait_for_all(connection):
    """Until every view has every row: one view may be ahead of another for sessions apart."""
    wait_until(connection, lambda count: count == FLIGHTS)
    connection.execute("FLUSH")


def check_views(server, expected):
    with server.connect() as connection:
        for name, answer in expected.items():
            actual = rows(connection, f"SELECT * FROM {name} ORDER BY {ORDER[name]}")
            assert_same_rows([tuple(map(plain, row)) for row in actual], answer, name)
    # The same state by the other ways to read it.
    table = server.arrow("per_carrier").sort_by("carrier").select(["carrier", "flights", "avg_delay", "dests"])
    by_arrow = [tuple(map(plain, row.values())) for row in table.to_pylist()]
    assert_same_rows(by_arrow, [row[:4] for row in expected["per_carrier"]], "per_carrier by Arrow")
    by_json = server.json("/api/v1/views/per_carrier/scan")["rows"]
    by_json = sorted((row["carrier"], row["flights"], row["avg_delay"], row["dests"]) for row in by_json)
    assert_same_rows(by_json, [row[:4] for row in expected["per_carrier"]], "per_carrier by JSON")


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_views_equal_the_oracle(start, flights_csv, expected, workers):
    server = start(workers=workers)
    with server.connect() as connection:
        create(connection, flights_csv)
        wait_for_all(connection)
    check_views(server, expected)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_views_equal_the_oracle_after_kills(start, flights_csv, expected, workers):
    server = start(workers=workers)
    with server.connect() as connection:
        create(connection, flights_csv)
    for part in (1, FLIGHTS // 3, FLIGHTS * 2 // 3):
        with server.connect() as connection:
            count = wait_until(connection, lambda count: count >= part)
            assert count <= FLIGHTS
        server.restart()
    with server.connect() as connection:
        wait_for_all(connection)
    check_views(server, expected)
    # A kill after all is in, and another number of workers.
    server.restart(workers=workers % 3 + 1)
    with server.connect() as connection:
        wait_for_all(connection)
    check_views(server, expected)


ONE_TIME = """
    SELECT (SELECT coalesce(sum(flights), 0) FROM per_carrier), (SELECT coalesce(sum(flights), 0) FROM per_origin),
           (SELECT coalesce(max(flights), 0) FROM whole), (SELECT count(*) FROM per_carrier),
           (SELECT max(carriers) FROM whole)
"""


def read_to_the_end(connection):
    """Reads until all flights are in; every answer has to be of one time. Returns the partial ones."""
    counts = [0]
    deadline = time.monotonic() + LOAD_SECONDS
    while counts[-1] < FLIGHTS:
        assert time.monotonic() < deadline
        ((by_carrier, by_origin, whole, carriers, carriers_of_whole),) = rows(connection, ONE_TIME)
        assert by_carrier == by_origin == whole and carriers == carriers_of_whole
        assert whole >= counts[-1], "an answer went back in time"
        counts.append(whole)
    return [count for count in counts if 0 < count < FLIGHTS]


def test_answers_while_loading_are_of_one_time(server, flights_csv):
    """The views of one table, and a view on one of them, never show different numbers of rows."""
    with server.connect() as connection:
        create(connection, flights_csv)
        assert read_to_the_end(connection), "the load was never seen in the middle"


def test_answers_after_a_restart_are_of_one_time(server, flights_csv):
    """Also when each view has to read the file again."""
    with server.connect() as connection:
        create(connection, flights_csv)
        wait_for_all(connection)
    server.restart()
    with server.connect() as connection:
        read_to_the_end(connection)
