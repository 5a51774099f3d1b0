"""The 22 queries of TPC-H, as views and as SELECT, against DuckDB's answers."""

import math
from decimal import Decimal

import duckdb
import pyarrow
import pytest
import tpch

# What is refused, and why; empty: all of them run.
REFUSED_IN_VIEWS = {}
REFUSED_IN_SELECT = {}

NUMBERS = (int, float, Decimal)


def plain(row):
    return tuple(float(value) if isinstance(value, NUMBERS) else value for value in row)


def same(found, expected):
    """True when the rows are equal in any order, numbers to nine digits."""
    order = lambda row: tuple(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row)
    found, expected = sorted(map(plain, found), key=order), sorted(map(plain, expected), key=order)
    close = lambda a, b: math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) if isinstance(b, float) and isinstance(a, float) else a == b
    return len(found) == len(expected) and all(
        len(a) == len(b) and all(map(close, a, b)) for a, b in zip(found, expected)
    )


class Both:
    """The same tables in clink and in DuckDB."""

    def __init__(self, connection):
        self.clink = connection
        self.duckdb = duckdb.connect()
        for name, columns in tpch.TABLES.items():
            for database in (self.clink, self.duckdb):
                database.execute(f"CREATE TABLE {name} ({columns})")

    def load(self, name, rows):
        if not rows:
            return
        with self.clink.cursor().copy(f"COPY {name} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        columns = {f"c{at}": list(values) for at, values in enumerate(zip(*rows))}
        self.duckdb.register("loaded", pyarrow.table(columns))
        self.duckdb.execute(f"INSERT INTO {name} SELECT * FROM loaded")
        self.duckdb.unregister("loaded")

    def run(self, statement):
        self.clink.execute(statement)
        self.duckdb.execute(statement)

    def expected(self, number):
        return self.duckdb.execute(tpch.QUERIES[number]).fetchall()

    def check(self, relations, seen):
        """Holds each relation of a query's rows against DuckDB's answer; gives the queries with rows."""
        wrong = []
        for number, relation in relations.items():
            expected = self.expected(number)
            found = self.clink.execute(relation).fetchall()
            if any(value is not None for row in expected for value in row):
                seen.add(number)
            if not same(found, expected):
                wrong.append(f"q{number}: {found[:3]} and not {expected[:3]} ({len(found)} and {len(expected)} rows)")
        assert not wrong, "\n".join(wrong)


def create(connection, prefix):
    """A view for each query; the statements that read them."""
    for number, query in tpch.QUERIES.items():
        if number not in REFUSED_IN_VIEWS:
            connection.execute(f"CREATE MATERIALIZED VIEW {prefix}{number} AS {query}")
    return {n: f"SELECT * FROM {prefix}{n}" for n in tpch.QUERIES if n not in REFUSED_IN_VIEWS}


@pytest.mark.parametrize("workers", [1, 3])
def test_views_and_selects_equal_duckdb(start, workers):
    server = start(workers=workers)
    rows = tpch.generate(seed=7)
    with server.connect() as connection:
        both = Both(connection)
        seen = set()
        early = create(connection, "early")
        # The facts before what they refer to, and in pieces.
        for piece in range(3):
            for name in ["lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region"]:
                both.load(name, rows[name][piece::3])
        both.check(early, seen)
        both.check({n: query for n, query in tpch.QUERIES.items() if n not in REFUSED_IN_SELECT}, seen)
        # Every answer had a value, so equal means something.
        assert seen == set(tpch.QUERIES), set(tpch.QUERIES) - seen

        # Taken back in part, and changed.
        both.run("DELETE FROM lineitem WHERE l_orderkey % 3 = 0")
        both.run("DELETE FROM orders WHERE o_orderkey % 3 = 0")
        both.run("UPDATE customer SET c_acctbal = 0 - c_acctbal WHERE c_custkey % 4 = 1")
        both.run("DELETE FROM supplier WHERE s_suppkey = 3")
        both.check(early, seen)

        late = create(connection, "late")
        both.check(late, seen)

        for name in tpch.TABLES:
            both.run(f"DELETE FROM {name}")
        both.check(early, seen)
        both.check(late, seen)
