"""Sessions that close, windows that share panes, and sums that are made before rows are sent."""

import json
from collections import defaultdict
from datetime import datetime, timedelta

import pytest

from harness import LONG, Server, one, rows, wait_for

GAP = timedelta(seconds=3)


def sessions_of(table):
    """Rows and sum of each session of some rows: a row that is less than a gap behind another is in one with it."""
    of_key = defaultdict(list)
    for row in table:
        of_key[row["k"]].append((row["at"], row["x"]))
    found = {}
    for key, times in of_key.items():
        start = last = None
        for at, x in sorted(times):
            if last is None or at - last >= GAP:
                start, n, total = at, 0, 0
            last, n, total = at, n + 1, total + x
            found[key, start] = (last + GAP, n, total)
    return found


@pytest.mark.parametrize("workers, later", [(1, 3), (3, 2)])
def test_sessions_are_those_of_the_rows_that_were_not_late(tmp_path, workers, later):
    count = 100_000 if LONG else 8_000
    with Server(tmp_path / "data", workers=workers) as server:
        with server.connect() as c:
            c.execute(
                f"""CREATE TABLE events (id bigint, k bigint, x bigint, at timestamptz,
                        WATERMARK FOR at AS at - INTERVAL '2 seconds')
                    WITH (connector = 'datagen', number_of_rows = {count}, rows_per_second = {count // 4}, seed = {workers},
                        'fields.id.kind' = 'sequence', 'fields.k.min' = 0, 'fields.k.max' = 60, 'fields.x.min' = 0,
                        'fields.x.max' = 1000, 'fields.at.start' = '2026-03-01 00:00:00Z', 'fields.at.step' = '50 ms',
                        disorder = '4 seconds', late_share = 0.02, late_by = '30 seconds')"""
            )
            for name, emit in (("once", "EMIT ON WINDOW CLOSE"), ("live", "")):
                c.execute(
                    f"""CREATE MATERIALIZED VIEW {name} WITH (background = true) AS
                        SELECT k, window_start, window_end, count(*) AS n, sum(x) AS x
                        FROM SESSION(TABLE events PARTITION BY k, DESCRIPTOR(at), INTERVAL '{GAP.seconds} seconds')
                        GROUP BY k, window_start, window_end {emit}"""
                )
            c.execute("CREATE MATERIALIZED VIEW seen WITH (background = true) AS SELECT id, k, x, at FROM events")
            wait_for(lambda: one(c, "SELECT count(*) FROM once") > 10)
            c.execute("CHECKPOINT")
        server.restart(workers=later)
        with server.connect() as c:
            wait_for(lambda: one(c, "SELECT count(*) FROM seen") == count, seconds=120)
            # At the end of the source every session is over, and nothing of it is kept.
            kept = "SELECT sum(state_keys) FROM clink_catalog.operators WHERE kind = 'SessionWindow'"
            wait_for(lambda: one(c, kept) == 0)
            c.execute("FLUSH")
        seen = {row["id"]: row for row in server.arrow("seen").to_pylist()}
        for view in ("once", "live"):
            late = [json.loads(row["row"]) for row in server.arrow(f"{view}_late").to_pylist()]
            times = {(row["k"], datetime.fromisoformat(row["at"]), row["x"]) for row in late}
            used = [row for row in seen.values() if (row["k"], row["at"], row["x"]) not in times]
            assert len(seen) - len(used) == len(late) and 0 < len(late) < count / 5, f"{view}: {len(late)} rows late"
            found = server.arrow(view).to_pylist()
            found = {(row["k"], row["window_start"]): (row["window_end"], row["n"], int(row["x"])) for row in found}
            assert found == sessions_of(used), view


def work(connection, job):
    """Rows that a job's aggregate and the operators below it took in."""
    found = rows(connection, f"SELECT operator, kind, rows_in FROM clink_catalog.operators WHERE job = 'public.{job}'")
    (aggregate,) = (path for path, kind, _ in found if kind.endswith("Aggregate"))
    return sum(count for path, _, count in found if path.startswith(aggregate))


def test_windows_that_overlap_cost_no_more_than_twice_those_that_do_not(tmp_path):
    """In rows of work: an hour each second, in which each row is 3600 times, beside one hour behind the other."""
    count = 40_000
    with Server(tmp_path / "data", workers=2) as server, server.connect() as c:
        c.execute(
            f"""CREATE TABLE events (k bigint, x bigint, at timestamptz, WATERMARK FOR at AS at - INTERVAL '1 second')
                WITH (connector = 'datagen', number_of_rows = {count}, 'fields.k.min' = 0, 'fields.k.max' = 3, 'fields.x.min' = 0,
                    'fields.x.max' = 1000, 'fields.at.start' = '2026-03-01 00:00:00Z', 'fields.at.step' = '100 ms')"""
        )
        for name, call in (
            ("tumble", "TUMBLE(TABLE events, DESCRIPTOR(at), INTERVAL '1 hour')"),
            ("hop", "HOP(TABLE events, DESCRIPTOR(at), INTERVAL '1 second', INTERVAL '1 hour')"),
        ):
            c.execute(
                f"""CREATE MATERIALIZED VIEW {name} AS SELECT k, window_end, count(*) AS n, sum(x) AS x, max(x) AS most
                    FROM {call} GROUP BY k, window_end EMIT ON WINDOW CLOSE"""
            )
        c.execute("FLUSH")
        wait_for(lambda: one(c, "SELECT sum(n) FROM tumble") == count)
        wait_for(lambda: one(c, "SELECT sum(n) FROM hop") == count * 3_600)
        hop, tumble = work(c, "hop"), work(c, "tumble")
        print(f"rows of work: {hop} and {tumble}, {hop / tumble:.2f} times as many")
        assert hop < 2 * tumble
        same = one(
            c,
            """SELECT count(*) FROM hop AS h JOIN tumble AS t ON h.k = t.k AND h.window_end = t.window_end
               WHERE h.n = t.n AND h.x = t.x AND h.most = t.most""",
        )
        assert same == one(c, "SELECT count(*) FROM tumble") > 0


def test_one_group_uses_all_workers(tmp_path):
    """What the worker of the one group takes in are sums of the others."""
    count = 100_000
    with Server(tmp_path / "data", workers=3) as server, server.connect() as c:
        c.execute("CREATE TABLE t (k int, x bigint)")
        for name, query in (
            ("all_rows", "SELECT count(*) AS n, sum(x) AS x, avg(x) AS mean FROM t"),
            ("skewed", "SELECT k, count(*) AS n, sum(x) AS x FROM t GROUP BY k"),
            ("spread", "SELECT x, count(*) AS n FROM t GROUP BY x"),
        ):
            c.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        c.execute(f"INSERT INTO t SELECT x % 10 / 9, x FROM generate_series(1, {count}) AS s(x)")
        c.execute("DELETE FROM t WHERE x > 90000")
        left = 90_000
        assert c.execute("SELECT n, x, mean FROM all_rows").fetchone() == (left, left * (left + 1) // 2, (left + 1) / 2)
        view, query = (c.execute(f"{text} ORDER BY 1").fetchall() for text in ("SELECT * FROM skewed", "SELECT k, count(*), sum(x) FROM t GROUP BY k"))
        assert view == query and len(view) == 2
        assert one(c, "SELECT count(*) FROM spread WHERE n = 1") == left
        taken = lambda job: one(  # noqa: E731
            c, f"SELECT rows_in FROM clink_catalog.operators WHERE job = 'public.{job}' AND kind = 'Aggregate'"
        )
        came = count + 10_000
        assert taken("all_rows") < came / 50 and taken("skewed") < came / 25, (taken("all_rows"), taken("skewed"))
        assert taken("spread") == came
