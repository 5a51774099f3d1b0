"""Every row is accounted for: what a window counted, and what came too late for it, are together what came in.

Each window kind in a view that gives rows once and in one that follows changes, over generated rows in disorder and over files of
which one is empty, one falls silent and one comes later. DuckDB computes the windows over all rows; a window's rows less those that
were late for it must be what its view says.
"""

import json
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest

from harness import LONG, Server, one, rows, wait_for

START = datetime(2026, 3, 1, tzinfo=timezone.utc)
WINDOWS = {
    "tumble": ("TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '10 seconds')", lambda at: [(floor(at, 10), 10)]),
    "hop": (
        "HOP(TABLE events, DESCRIPTOR(at), INTERVAL '5 seconds', INTERVAL '15 seconds')",
        lambda at: [(floor(at, 5) - 5 * back, 15) for back in range(3)],
    ),
    "cumulate": (
        "CUMULATE(TABLE events, DESCRIPTOR(at), INTERVAL '5 seconds', INTERVAL '20 seconds')",
        lambda at: [(floor(at, 20), size) for size in (5, 10, 15, 20) if at < floor(at, 20) + size],
    ),
}


def floor(seconds, size):
    return seconds // size * size


def seconds(at):
    return (at - START).total_seconds()


def windows_of(kind, at):
    """Start and end of the windows of a time, in seconds behind the start."""
    return [(start, start + size) for start, size in WINDOWS[kind][1](at)]


def create_views(connection):
    for kind, (call, _) in WINDOWS.items():
        for name, emit in ((f"{kind}_once", "EMIT ON WINDOW CLOSE"), (f"{kind}_live", "")):
            connection.execute(
                f"CREATE MATERIALIZED VIEW {name} WITH (background = true) AS SELECT k, window_start, window_end, count(*) AS n, "
                f"sum(x) AS x FROM {call} GROUP BY k, window_start, window_end {emit}"
            )
    connection.execute("CREATE MATERIALIZED VIEW seen WITH (background = true) AS SELECT id, k, x, at FROM events")


def counted(server, view):
    """What a view says of each window: rows and sum."""
    found = server.arrow(view).to_pylist()
    key = lambda row: (row["k"], seconds(row["window_start"]), seconds(row["window_end"]))  # noqa: E731
    assert len({key(row) for row in found}) == len(found), f"{view} has a window twice"
    return {key(row): (row["n"], int(row["x"])) for row in found}


def late(server, view):
    """The rows that came too late for each window, likewise; each was late indeed."""
    sums = Counter()
    counts = Counter()
    for row in server.arrow(f"{view}_late").to_pylist():
        assert row["diff"] == 1 and row["watermark"] >= row["window_end"], row
        content = json.loads(row["row"])
        # Windows of CUMULATE are of many sizes: the row itself says where its own began.
        start = row["window_start"] or datetime.fromisoformat(content["window_start"])
        window = (content["k"], seconds(start), seconds(row["window_end"]))
        counts[window] += 1
        sums[window] += content["x"]
    return {window: (count, sums[window]) for window, count in counts.items()}


def check(server, kind, until=float("inf")):
    """Counted and late are together what came in, for windows that end by a time. Gives how many were late, per view."""
    expected_counts, expected_sums = Counter(), Counter()
    for row in server.arrow("seen").to_pylist():
        for start, end in windows_of(kind, seconds(row["at"])):
            expected_counts[row["k"], start, end] += 1
            expected_sums[row["k"], start, end] += row["x"]
    expected = {window: (count, expected_sums[window]) for window, count in expected_counts.items() if window[2] <= until}
    told = []
    for view in (f"{kind}_once", f"{kind}_live"):
        in_view = {window: sums for window, sums in counted(server, view).items() if window[2] <= until}
        too_late = late(server, view)
        told.append(sum(count for count, _ in too_late.values()))
        for window in expected.keys() | in_view.keys() | too_late.keys():
            (n, x), (m, y) = in_view.get(window, (0, 0)), too_late.get(window, (0, 0))
            assert (n + m, x + y) == expected.get(window, (0, 0)), f"{view}, {window}: {n} counted, {m} late"
    return told


@pytest.mark.parametrize("workers", [1, 3])
def test_generated_rows(tmp_path, workers):
    count = 300_000 if LONG else 15_000
    with Server(tmp_path / "data", workers=workers) as server:
        with server.connect() as c:
            c.execute(
                f"""CREATE TABLE events (id bigint, k text, x bigint, at timestamptz,
                        WATERMARK FOR at AS at - INTERVAL '2 seconds')
                    WITH (connector = 'datagen', number_of_rows = {count}, rows_per_second = {count // 3}, seed = {workers},
                        'fields.id.kind' = 'sequence', 'fields.k.kind' = 'choice', 'fields.k.values' = 'a, b, c',
                        'fields.x.min' = 0, 'fields.x.max' = 1000, 'fields.at.start' = '2026-03-01 00:00:00Z',
                        'fields.at.step' = '20 ms', disorder = '4 seconds', late_share = 0.02, late_by = '1 minute',
                        bad_share = 0.01)"""
            )
            create_views(c)
            bad = lambda: one(c, "SELECT count(*) FROM events_errors")  # noqa: E731
            wait_for(lambda: one(c, "SELECT count(*) FROM seen") + bad() == count)
            assert bad() > 0
            # At the end of the source every window closes.
            c.execute("FLUSH")
        for kind in WINDOWS:
            told = check(server, kind)
            assert all(0 < late < count for late in told), f"{kind}: {told} rows late"


def line(id, at, k="a"):
    stamp = (START + timedelta(seconds=at)).isoformat()
    return json.dumps({"id": id, "k": k, "x": id, "at": stamp}) + "\n"


def test_splits_that_are_empty_fall_silent_and_come_later(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    steady, silent = folder / "steady.jsonl", folder / "silent.jsonl"
    (folder / "empty.jsonl").write_text("")
    steady.write_text(line(1, 1))
    silent.write_text(line(2, 2, "b"))
    with Server(tmp_path / "data", workers=2) as server:

        def ask(query):
            with server.connect() as c:
                return rows(c, query)

        def append(file, text):
            ((before,),) = ask("SELECT count(*) FROM seen")
            with open(file, "a") as out:
                out.write(text)
            wait_for(lambda: ask("SELECT count(*) FROM seen") == [(before + text.count("\n"),)])

        with server.connect() as c:
            c.execute(
                f"""CREATE TABLE events (id bigint, k text, x bigint, at timestamptz,
                        WATERMARK FOR at AS at - INTERVAL '1 second')
                    WITH (connector = 'file', path = '{folder}', format = 'json', mode = 'follow', idle_timeout = '500 ms')"""
            )
            create_views(c)
        wait_for(lambda: ask("SELECT count(*) FROM seen") == [(2,)])
        # What is silent holds the windows back until it is idle, and so does what is empty.
        append(steady, line(3, 31))
        wait_for(lambda: len(ask("SELECT k FROM tumble_once")) == 2)
        append(silent, line(4, 3, "b"))
        assert late(server, "tumble_once") == {("b", 0, 10): (1, 4)}
        # One that comes later, with rows that are late for some of the windows that they are in, and a bad one.
        append(folder / "later.jsonl", line(5, 29) + line(6, 36) + line(7, 28))
        with open(steady, "a") as out:
            out.write('{"id": 8, "k": "a", "x": 8, "at": "never"}\n')
        wait_for(lambda: ask("SELECT count(*) FROM events_errors") == [(1,)])
        server.restart(workers=3)
        append(steady, line(9, 100) + line(10, 5))
        append(silent, line(11, 100, "b"))
        append(folder / "later.jsonl", line(12, 100))
        wait_for(lambda: seconds(ask("SELECT max(window_end) FROM tumble_once")[0][0]) >= 40)
        assert ask("SELECT count(*) FROM seen") == [(11,)]
        for kind in WINDOWS:
            wait_for(lambda: seconds(ask(f"SELECT max(window_end) FROM {kind}_once")[0][0]) >= 40)
            check(server, kind, until=60)


def test_a_source_that_is_ahead_waits(tmp_path):
    """The faster of two sources of a job is read no further ahead than it may be, and both come to their ends."""
    drift, tick = 20, 66
    tables = {"fast": (200_000, "1 ms", "", f", max_drift = '{drift} seconds'"), "slow": (200, "1 second", "rows_per_second = 100,", "")}
    with Server(tmp_path / "data", workers=2) as server, server.connect() as c:
        for name, (count, step, rate, drifting) in tables.items():
            c.execute(
                f"""CREATE TABLE {name} (id bigint, at timestamptz, WATERMARK FOR at AS at)
                    WITH (connector = 'datagen', number_of_rows = {count}, {rate} 'fields.id.kind' = 'sequence',
                        'fields.at.start' = '2026-03-01 00:00:00Z', 'fields.at.step' = '{step}'{drifting})"""
            )
        c.execute(
            """CREATE MATERIALIZED VIEW met WITH (background = true) AS SELECT f.id, s.id AS other FROM fast AS f JOIN slow AS s
               ON f.at BETWEEN s.at AND s.at + INTERVAL '1 second'"""
        )
        seen = []

        def ended():
            found = dict(rows(c, "SELECT name, watermark FROM clink_catalog.watermarks WHERE kind = 'table'"))
            if None not in found.values():
                seen.append(seconds(found["fast"]) - seconds(found["slow"]))
            return one(c, "SELECT count(*) FROM clink_catalog.watermarks WHERE release LIKE 'nothing holds it%'") == 4

        wait_for(ended)
        # What one tick takes comes on top.
        assert seen and max(seen) <= drift + tick
        c.execute("FLUSH")
        # Milliseconds 1000 s to 1000 s + 1000 of 199 whole seconds, and one of the last.
        assert one(c, "SELECT count(*) FROM met") == 199 * 1_001 + 1_000
