"""Compares each row of each view with DuckDB's answer to the view's query over the same file.

    check_flights.py FLIGHTS.csv VIEWS.sql HOST:PORT

Doubles have to agree to a relative 1e-9, everything else exactly. Exits with 1 on a difference.
"""

import re
import sys
from decimal import Decimal

import duckdb
import psycopg

COLUMNS = {
    "time_hour": "TIMESTAMP",
    "carrier": "VARCHAR",
    "flight": "INTEGER",
    "tailnum": "VARCHAR",
    "origin": "VARCHAR",
    "dest": "VARCHAR",
    "dep_delay": "INTEGER",
    "arr_delay": "INTEGER",
    "distance": "INTEGER",
}


def plain(value):
    """Times lose their zone (all are UTC); an average may be numeric on one side and double on the other."""
    if isinstance(value, Decimal):
        return int(value) if value == int(value) else float(value)
    return value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value


def same(left, right):
    if isinstance(left, float) or isinstance(right, float):
        if left is None or right is None:
            return left is right
        return abs(left - right) <= 1e-9 * max(abs(left), abs(right))
    return left == right


def main(flights, views, address):
    oracle = duckdb.connect()
    columns = ", ".join(f"{name}: '{kind}'" for name, kind in COLUMNS.items())
    oracle.execute(
        f"CREATE TABLE flights AS SELECT * FROM read_csv('{flights}', header = true, columns = {{{columns}}})"
    )
    host, port = address.rsplit(":", 1)
    differences = 0
    with psycopg.connect(
        host=host, port=port, dbname="clink", user="check", autocommit=True, cursor_factory=psycopg.ClientCursor
    ) as clink:
        definitions = re.findall(r"CREATE MATERIALIZED VIEW (\w+) AS\n(.*?);", open(views).read(), re.S)
        assert definitions, f"no views in {views}"
        for name, query in definitions:
            oracle.execute(f"CREATE VIEW {name} AS {query}")
            expected = oracle.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
            actual = clink.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall()
            wrong = abs(len(actual) - len(expected))
            for got, want in zip(actual, expected):
                got, want = tuple(map(plain, got)), tuple(map(plain, want))
                if len(got) != len(want) or not all(map(same, got, want)):
                    wrong += 1
                    print(f"{name}: {got}, DuckDB has {want}")
            print(f"{name}: {len(actual)} rows, {wrong} differ from DuckDB's {len(expected)}")
            differences += wrong
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
