"""Rows come in: bad ones beside good ones, files that grow and are renamed under kills, three formats of one table."""

import json
import os
import random
import threading
import time

import duckdb
import pytest

from harness import LONG, assert_same_rows, one, rows, wait_for
from test_flights import FLIGHTS, ORDER, TABLE, VIEWS, check_views, expected, wait_for_all  # noqa: F401

BAD_ROUNDS = 50
FOLLOW_SECONDS = 30
KILLS = 5


def bad_json():
    """The ten kinds: name, bytes, and a column that has to be named, if one has to."""
    return [
        ("broken", b'{"id": 7x, "n": 2}'),
        ("wrong type", b'{"id": "seven", "n": 2}'),
        ("overflow", b'{"id": 9223372036854775808}'),
        ("40 digits", b'{"id": 1, "n": 1234567890123456789012345678901234567890}'),
        ("no UTF-8", b'{"id": 1, "t": "\xff\xfe"}'),
        ("lone surrogate", b'{"id": 1, "t": "\\ud800"}'),
        ("deep", b'{"id": 1, "t": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
        ("oversized", b'{"id": 1, "t": "' + b"x" * (17 << 20) + b'"}'),
        ("no object", b"[1, 2, 3]"),
        ("NUL", b'{"id": 1, "t": "a\\u0000b"}'),
    ]


def bad_csv():
    return [
        ("broken", b'1,"x"y"z,1'),
        ("wrong type", b"seven,2,t"),
        ("overflow", b"9223372036854775808,2,t"),
        ("40 digits", b"1,1234567890123456789012345678901234567890,t"),
        ("no UTF-8", b"1,2,\xff\xfe"),
        ("carriage return", b"1,2,a\rb"),
        ("open quote", b'1,2,"open'),
        ("oversized", b"1,2," + b"x" * (17 << 20)),
        ("too many columns", b"1,2,t,u"),
        ("NUL", b"1,2,a\x00b"),
    ]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_ten_kinds_of_bad_rows(server, tmp_path, form):
    """Rows in are rows in the table and rows in the errors; offsets, texts and neighbours are right."""
    kinds = bad_json() if form == "json" else bad_csv()
    path = tmp_path / f"rows.{form}"
    faulty, good = {}, []
    with open(path, "wb") as out:
        if form == "csv":
            out.write(b"id,n,t\n")
        for turn in range(BAD_ROUNDS):
            # About two of a hundred rows are bad, each between good ones. The large one comes once.
            for name, raw in kinds:
                if name == "oversized" and turn > 0:
                    continue
                faulty[out.tell()] = raw
                out.write(raw + b"\n")
                for _ in range(49):
                    number = len(good)
                    good.append(number)
                    line = {
                        "json": f'{{"id": {number}, "n": {number}.5, "t": "good"}}\n',
                        "csv": f"{number},{number}.5,good\n",
                    }[form]
                    out.write(line.encode())
    with server.connect() as connection:
        connection.execute(
            f"""CREATE TABLE t (id bigint, n numeric(20,1), t text)
                WITH (connector = 'file', path = '{path}', format = '{form}')"""
        )
        connection.execute(
            """CREATE MATERIALIZED VIEW v AS
               SELECT count(*) AS n, sum(id) AS ids, sum(n) AS ns, count(DISTINCT id) AS d FROM t"""
        )
        connection.execute("FLUSH")

    def check():
        with server.connect() as connection:
            connection.execute("FLUSH")
            total = sum(good)
            assert rows(connection, "SELECT n, ids, ns, d FROM v") == [
                (len(good), total, total + len(good) / 2, len(good))
            ]
            errors = rows(connection, 'SELECT "offset", raw, error, split FROM t_errors ORDER BY 1')
            assert [offset for offset, *_ in errors] == sorted(faulty)
            for offset, raw, error, split in errors:
                expected = faulty[offset][: 8 << 10].decode(errors="replace").replace("\0", "\ufffd")
                assert (raw, split) == (expected, path.name) and error
            # The same without views: a SELECT over the file itself.
            assert rows(connection, "SELECT count(*), sum(id) FROM t") == [(len(good), total)]

    check()
    with server.connect() as connection:
        found = one(connection, "SELECT errors FROM clink_catalog.sources WHERE name = 't'")
        assert found == len(faulty)
    server.restart()
    check()


class Writer(threading.Thread):
    """Appends numbered lines, in halves now and then, and renames the file; the old ones stay in the folder."""

    def __init__(self, folder, seed):
        super().__init__(daemon=True)
        self.folder, self.random = folder, random.Random(seed)
        self.written, self.files = 0, 0
        self.over = threading.Event()

    def run(self):
        log = self.folder / "log.ndjson"
        out = open(log, "ab", buffering=0)
        while not self.over.is_set():
            lines = [json.dumps({"id": self.written + i, "pad": "x" * self.random.randrange(200)}) for i in range(100)]
            data = ("\n".join(lines) + "\n").encode()
            cut = self.random.randrange(len(data))
            out.write(data[:cut])
            if self.random.random() < 0.3:
                time.sleep(0.01)
            out.write(data[cut:])
            self.written += 100
            if self.random.random() < 0.02:
                self.files += 1
                os.rename(log, self.folder / f"log.ndjson.{self.files}")
                fresh = open(log, "ab", buffering=0)
                # Some writers say a last word to the old file.
                if self.random.random() < 0.5:
                    out.write((json.dumps({"id": self.written}) + "\n").encode())
                    self.written += 1
                out.close()
                out = fresh
            time.sleep(0.01)
        out.close()


@pytest.mark.timeout(300)
def test_follow_under_kills_and_renames(start, tmp_path):
    """Each line once, though the server is killed while the file grows and is renamed."""
    folder = tmp_path / "logs"
    folder.mkdir()
    server = start()
    writer = Writer(folder, seed=7)
    with server.connect() as connection:
        # No file need be there yet. The pattern is for those that come and go while the server is not there.
        connection.execute(
            f"""CREATE TABLE log (id bigint NOT NULL)
                WITH (connector = 'file', path = '{folder}/log.ndjson*', format = 'json', mode = 'follow')"""
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, count(DISTINCT id) AS d, max(id) AS last FROM log"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW parts AS SELECT id / 1000 AS part, count(*) AS n FROM log GROUP BY 1"
        )
    writer.start()
    chance = random.Random(11)
    for kill in range(KILLS):
        time.sleep(FOLLOW_SECONDS / (KILLS + 1) * chance.uniform(0.7, 1.3))
        server.restart(workers=kill % 3 + 1)
    time.sleep(FOLLOW_SECONDS / (KILLS + 1))
    writer.over.set()
    writer.join()
    assert writer.files >= 2, "the file was not renamed often enough"
    with server.connect() as connection:
        wait_for(lambda: one(connection, "SELECT n FROM v") >= writer.written)
        connection.execute("FLUSH")
        assert rows(connection, "SELECT n, d, last FROM v") == [(writer.written, writer.written, writer.written - 1)]
        whole, rest = divmod(writer.written, 1000)
        counts = [n for (n,) in rows(connection, "SELECT n FROM parts ORDER BY part")]
        assert counts == [1000] * whole + [rest] * (rest > 0)
        assert one(connection, "SELECT count(*) FROM log_errors") == 0
        assert one(connection, "SELECT sum(lag) FROM clink_catalog.splits") == 0


@pytest.fixture(scope="module")
def flights_files(flights_csv, tmp_path_factory):
    """The flights in three formats."""
    folder = tmp_path_factory.mktemp("formats")
    oracle = duckdb.connect()
    oracle.execute(
        f"""CREATE TABLE flights AS SELECT * FROM read_csv('{flights_csv}', header = true, columns = {{
            time_hour: 'TIMESTAMP', carrier: 'VARCHAR', flight: 'INTEGER', tailnum: 'VARCHAR', origin: 'VARCHAR',
            dest: 'VARCHAR', dep_delay: 'INTEGER', arr_delay: 'INTEGER', distance: 'INTEGER'}})"""
    )
    oracle.execute(f"COPY flights TO '{folder}/flights.json' (FORMAT json)")
    oracle.execute(f"COPY flights TO '{folder}/flights.parquet' (FORMAT parquet)")
    return {"csv": flights_csv, "json": folder / "flights.json", "parquet": folder / "flights.parquet"}


@pytest.mark.parametrize("form, workers", [("json", 1), ("parquet", 2), ("json", 3), ("parquet", 3)])
def test_flights_of_every_format(start, flights_files, expected, form, workers):  # noqa: F811
    """Each view equals DuckDB's; CSV with 1, 2 and 3 workers is in test_flights."""
    server = start(workers=workers)
    with server.connect() as connection:
        table = TABLE.format(path=flights_files[form]).replace("format = 'csv'", f"format = '{form}'")
        connection.execute(table)
        for name, query in VIEWS.items():
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        wait_for_all(connection)
        assert one(connection, "SELECT count(*) FROM flights_errors") == 0
        # Without a view, by a SELECT over the file.
        assert one(connection, "SELECT count(*) FROM flights") == FLIGHTS
    check_views(server, expected)


def test_one_bad_row_in_a_hundred_costs_little(server, tmp_path):
    """Less than twice the time of clean rows: by the server's own CPU time."""
    count = 1_000_000 if LONG else 200_000

    def cpu():
        fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def spent(name, bad_every):
        path = tmp_path / f"{name}.ndjson"
        with open(path, "w") as out:
            for number in range(count):
                identity = '"x"' if bad_every and number % bad_every == 0 else number
                out.write(f'{{"id": {identity}, "name": "name {number}", "price": {number}.25}}\n')
        with server.connect() as connection:
            before = cpu()
            connection.execute(
                f"""CREATE TABLE {name} (id bigint, name text, price double precision)
                    WITH (connector = 'file', path = '{path}', format = 'json')"""
            )
            connection.execute(
                f"""CREATE MATERIALIZED VIEW v_{name} AS
                    SELECT count(*) AS n, max(name) AS m, sum(price) AS p FROM {name}"""
            )
            connection.execute("FLUSH")
            good = one(connection, f"SELECT n FROM v_{name}")
            used = cpu() - before
            bad = one(connection, f"SELECT count(*) FROM {name}_errors")
            assert good + bad == count and bad == (count // bad_every if bad_every else 0)
        return used

    clean, dirty = spent("clean", 0), spent("dirty", 100)
    assert dirty < 2 * clean, f"{dirty} s with bad rows, {clean} s without"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_last_row_of_a_key_stays_over_kills(start, tmp_path, workers):
    """Rows of two growing files replace each other by key; a start comes to the same rows, and so do the views."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.ndjson").touch()
    server = start(workers=workers)
    with server.connect() as connection:
        connection.execute(
            f"""CREATE TABLE prices (k int PRIMARY KEY, v bigint)
                WITH (connector = 'file', path = '{tmp_path}/*.ndjson', format = 'json', mode = 'follow')"""
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT k % 10 AS g, count(*) AS n, sum(v) AS s FROM prices GROUP BY 1")
    chance = random.Random(workers)
    last, number = {}, 0
    for kill in range(3):
        for turn in range(30):
            name = chance.choice("ab")
            with open(tmp_path / f"{name}.ndjson", "a") as out:
                for _ in range(chance.randrange(1, 60)):
                    key = chance.randrange(200)
                    # Most keys have a file of their own, so that their last row is known here too.
                    if key >= 20:
                        key = key // 2 * 2 + (name == "b")
                    number += 1
                    out.write(f'{{"k": {key}, "v": {number}}}\n')
                    last[key] = number
            if turn % 10 == 9:
                time.sleep(0.06)
        with server.connect() as connection:
            connection.execute("FLUSH")
            before = rows(connection, "SELECT k, v FROM prices ORDER BY k")
            assert [row for row in before if row[0] >= 20] == sorted((k, v) for k, v in last.items() if k >= 20)
            assert {k for k, _ in before} == set(last)
            by_view = rows(connection, "SELECT * FROM v ORDER BY g")
            assert by_view == rows(connection, "SELECT k % 10, count(*), sum(v) FROM prices GROUP BY 1 ORDER BY 1")
        server.restart(workers=(workers + kill) % 3 + 1)
        with server.connect() as connection:
            connection.execute("FLUSH")
            assert rows(connection, "SELECT k, v FROM prices ORDER BY k") == before
            assert rows(connection, "SELECT * FROM v ORDER BY g") == by_view


def test_large_files_are_read_in_their_order(server, tmp_path):
    """A file of several splits, whose keys come again at its end: the last ones count."""
    path = tmp_path / "large.ndjson"
    keys, rounds = 1000, 150
    pad = "x" * 900
    with open(path, "w") as out:
        for turn in range(rounds):
            for key in range(keys):
                out.write(f'{{"k": {key}, "turn": {turn}, "pad": "{pad}"}}\n')
    assert path.stat().st_size > 2 * (64 << 20)
    with server.connect() as connection:
        connection.execute(
            f"""CREATE TABLE t (k int PRIMARY KEY, turn int)
                WITH (connector = 'file', path = '{path}', format = 'json')"""
        )
        assert rows(connection, "SELECT count(*), min(turn), max(turn) FROM t") == [(keys, rounds - 1, rounds - 1)]
        assert one(connection, "SELECT count(*) FROM clink_catalog.splits") > 1
    server.restart(workers=3)
    with server.connect() as connection:
        assert rows(connection, "SELECT count(*), min(turn), max(turn) FROM t") == [(keys, rounds - 1, rounds - 1)]


def test_a_record_nested_very_deep(server, tmp_path):
    """A hundred thousand levels are one bad row; what stands before and behind it is read."""
    path = tmp_path / "deep.ndjson"
    depth = 100_000
    path.write_text('{"id": 1}\n{"id": 2, "x": ' + "[" * depth + "]" * depth + '}\n{"id": 3}\n')
    with server.connect() as connection:
        connection.execute(f"CREATE TABLE t (id int, x text) WITH (connector = 'file', path = '{path}', format = 'json')")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
        connection.execute("FLUSH")
        assert rows(connection, "SELECT id FROM v ORDER BY id") == [(1,), (3,)]
        assert rows(connection, 'SELECT "offset", error LIKE \'%128%\' FROM t_errors') == [(10, True)]
