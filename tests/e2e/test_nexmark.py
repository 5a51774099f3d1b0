"""The Nexmark queries as views over the generator give DuckDB's answers over the same events, also after a kill."""

import decimal
import time

import duckdb
import pytest

from harness import LONG, ROOT, Server, one

QUERIES = {path.stem: path.read_text() for path in sorted((ROOT / "examples" / "nexmark").glob("q*.sql"))}
# Of 50 events one is a person, three are auctions and 46 are bids.
EVENTS = 1_000_000 if LONG else 50_000
ROWS = {"person": EVENTS // 50, "auction": EVENTS * 3 // 50, "bid": EVENTS * 46 // 50}
COLUMNS = {
    "person": "id bigint, name text, city text, state text, date_time timestamp",
    "auction": "id bigint, item_name text, initial_bid bigint, date_time timestamp, expires timestamp, seller bigint, category bigint",
    "bid": "auction bigint, bidder bigint, price bigint, channel text, url text, date_time timestamp, extra text",
}
LOAD_SECONDS = 600 if LONG else 120
TUMBLE = "time_bucket(INTERVAL '10 seconds', date_time, TIMESTAMP '1970-01-01')"
COUNTS = """
    SELECT auction, window_start, count(*) AS num FROM (
        SELECT auction, time_bucket(INTERVAL '2 seconds', date_time, TIMESTAMP '1970-01-01')
               - INTERVAL '2 seconds' * unnest([0, 1, 2, 3, 4]) AS window_start FROM bid)
    GROUP BY auction, window_start"""
# Where DuckDB has no words for it, what the query means in others.
ORACLE = {
    "q5": f"""WITH counts AS ({COUNTS})
        SELECT auction, num, window_start FROM counts
        JOIN (SELECT window_start, max(num) AS most FROM counts GROUP BY 1) USING (window_start) WHERE num >= most""",
    "q7": f"""SELECT auction, price, bidder, date_time, extra FROM bid
        JOIN (SELECT {TUMBLE} AS w, max(price) AS most FROM bid GROUP BY 1) AS m ON {TUMBLE} = m.w AND price = most""",
    "q8": f"""SELECT DISTINCT p.id, p.name, w FROM (SELECT id, name, {TUMBLE} AS w FROM person) AS p
        JOIN (SELECT seller, {TUMBLE} AS w FROM auction) AS a USING (w) WHERE p.id = a.seller""",
    "q11": """SELECT bidder, min(date_time), max(date_time) + INTERVAL '10 seconds', count(*) FROM (
        SELECT *, sum(opens) OVER (PARTITION BY bidder ORDER BY date_time) AS nth FROM (
            SELECT *, CASE WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time) < INTERVAL '10 seconds'
                           THEN 0 ELSE 1 END AS opens FROM bid))
        GROUP BY bidder, nth""",
    "q12": f"SELECT bidder, {TUMBLE} AS w, w + INTERVAL '10 seconds', count(*) FROM bid GROUP BY bidder, w",
}


def exact(table):
    """A table's rows in order; numbers that are whole as integers, others to nine digits."""

    def plain(value):
        if isinstance(value, (decimal.Decimal, float)):
            return int(value) if value == int(value) else f"{float(value):.9e}"
        return value

    columns = [column.to_pylist() for column in table.columns]
    return sorted((tuple(map(plain, row)) for row in zip(*columns)), key=repr)


def create(server):
    with server.connect() as connection:
        for event, columns in COLUMNS.items():
            connection.execute(
                f"CREATE TABLE {event} ({columns}) "
                f"WITH (connector = 'nexmark', event = '{event}', number_of_rows = {ROWS[event]})"
            )
        for name, query in QUERIES.items():
            connection.execute(f"CREATE MATERIALIZED VIEW {name} WITH (background = true) AS {query.rstrip().rstrip(';')}")


def until(server, query, value):
    """Waits until a query gives a value."""
    deadline = time.monotonic() + LOAD_SECONDS
    with server.connect() as connection:
        while (found := one(connection, query)) != value:
            assert time.monotonic() < deadline, f"{query}: {found} after {LOAD_SECONDS} s, expected {value}"
            time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 3])
def test_the_views_are_duckdbs_answers(tmp_path, workers):
    with Server(tmp_path / "data", workers=workers) as server:
        create(server)
        server.restart(workers=4 - workers)
        oracle = duckdb.connect()
        for event in COLUMNS:
            with server.connect() as connection:
                connection.execute(f"CREATE MATERIALIZED VIEW all_{event} AS SELECT * FROM {event}")
            until(server, f"SELECT count(*) FROM all_{event}", ROWS[event])
            oracle.register(f"arrow_{event}", server.arrow(f"all_{event}"))
            oracle.execute(f"CREATE TABLE {event} AS SELECT * FROM arrow_{event}")
        with server.connect() as connection:
            connection.execute("FLUSH")
        for name, query in QUERIES.items():
            expected = oracle.execute(ORACLE.get(name, query)).arrow()
            expected = expected.read_all() if hasattr(expected, "read_all") else expected
            found, wanted = exact(server.arrow(name)), exact(expected)
            assert len(found) == len(wanted), f"{name}: {len(found)} rows, expected {len(wanted)}"
            assert found == wanted, f"{name}: {[pair for pair in zip(found, wanted) if pair[0] != pair[1]][:3]}"
