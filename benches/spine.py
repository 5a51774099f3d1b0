"""How fast the spine is: rows per CPU second, waits beside load, and what an idle server costs.

Run by `scripts/bench spine`. Figures are of one run on one machine: compare them with each other, and
with those of docs/performance.md, not with those of another machine.
"""

import random
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))

from harness import Server  # noqa: E402

ROWS = 2_000_000
KEYS = 1_000_000


def cpu_seconds(server):
    """User and system time of the server so far."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] * 1000


def report(what, figure, unit):
    print(f"{what:<68} {figure:>10.3f} {unit}", flush=True)


def rates(directory, workers):
    """From a JSON file and from a table in the process: count and sum by a bigint key."""
    path = Path(directory) / "rows.json"
    if not path.exists():
        numbers = random.Random(1)
        with path.open("w") as out:
            for row in range(ROWS):
                out.write('{"k":%d,"v":%d}\n' % (numbers.randrange(KEYS), row))
    with Server(Path(directory) / f"rates-{workers}", workers=workers) as server, server.connect() as c:
        c.execute(f"CREATE TABLE f (k bigint, v bigint) WITH (connector = 'file', path = '{path}', format = 'json')")
        before = cpu_seconds(server)
        c.execute("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM f")
        c.execute("FLUSH")
        decoding = cpu_seconds(server) - before
        report(f"count(*) over JSON lines, {workers} workers", ROWS / decoding / 1e6, "M rows/CPU s")
        c.execute("DROP MATERIALIZED VIEW n")
        before = cpu_seconds(server)
        c.execute("CREATE MATERIALIZED VIEW g AS SELECT k, count(*) AS n, sum(v) AS s FROM f GROUP BY k")
        c.execute("FLUSH")
        both = cpu_seconds(server) - before
        report(f"count, sum by key, {KEYS} keys, from JSON lines, {workers} workers", ROWS / both / 1e6, "M rows/CPU s")
        report("  without the decoding", ROWS / max(both - decoding, 0.01) / 1e6, "M rows/CPU s")
        c.execute("CREATE TABLE t (k bigint, v bigint)")
        c.execute("CREATE MATERIALIZED VIEW h AS SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k")
        before = cpu_seconds(server)
        for _ in range(4):
            c.execute(f"INSERT INTO t SELECT g * 7919 % {KEYS}, g FROM generate_series(1, {ROWS // 4}) AS s(g)")
        c.execute("FLUSH")
        report(f"insert, keep and aggregate in the process, {workers} workers",
               ROWS / (cpu_seconds(server) - before) / 1e6, "M rows/CPU s")


def exchange(directory):
    """What it costs to move rows between two workers: many rows, few groups, against one worker."""
    spent = {}
    for workers in (1, 2):
        with Server(Path(directory) / f"exchange-{workers}", workers=workers) as server, server.connect() as c:
            c.execute("CREATE TABLE t (k bigint, v bigint)")
            c.execute(f"INSERT INTO t SELECT g % 1000, g FROM generate_series(1, {ROWS}) AS s(g)")
            c.execute("FLUSH")
            before = cpu_seconds(server)
            c.execute("CREATE MATERIALIZED VIEW g AS SELECT k, count(*) AS n FROM t GROUP BY k")
            c.execute("SELECT count(*) FROM g")
            spent[workers] = cpu_seconds(server) - before
            report(f"fill a view of 1,000 groups from a table, {workers} workers", ROWS / spent[workers] / 1e6, "M rows/CPU s")
    extra = spent[2] - spent[1]
    report("keyed exchange between two workers (the difference)", ROWS / max(extra, 0.01) / 1e6, "M rows/CPU s")


def waits(directory):
    """Point reads and inserts, alone and beside a job at full rate."""
    with Server(Path(directory) / "waits", workers=2) as server, server.connect() as c, server.connect() as load:
        c.execute("CREATE TABLE t (k bigint, v bigint)")
        c.execute("CREATE MATERIALIZED VIEW g AS SELECT k, count(*) AS n, sum(v) AS s FROM t GROUP BY k")
        for part in range(4):
            c.execute(f"INSERT INTO t SELECT g, g FROM generate_series({part * KEYS // 4}, {(part + 1) * KEYS // 4 - 1}) AS s(g)")
        c.execute("CREATE TABLE small (id bigint PRIMARY KEY, x bigint)")
        c.execute("CREATE MATERIALIZED VIEW v AS SELECT x, count(*) AS n FROM small GROUP BY x")
        c.execute("FLUSH")
        stop = threading.Event()
        numbers = random.Random(2)

        def write():
            while not stop.is_set():
                load.execute(f"INSERT INTO t SELECT g * 7919 % {KEYS}, 1 FROM generate_series(1, 50000) AS s(g)")

        for beside in ("alone", "beside a job at full rate"):
            writer = threading.Thread(target=write)
            if beside != "alone":
                writer.start()
            reads, inserts = [], []
            for i in range(1_000):
                start = time.perf_counter()
                c.execute(f"SELECT n FROM g WHERE k = {numbers.randrange(KEYS)}").fetchall()
                reads.append(time.perf_counter() - start)
            for i in range(200):
                start = time.perf_counter()
                c.execute(f"INSERT INTO small VALUES ({len(beside) * 100_000 + i}, {i % 10})")
                c.execute("SELECT sum(n) FROM v").fetchall()
                inserts.append(time.perf_counter() - start)
            stop.set()
            if writer.is_alive():
                writer.join()
            for name, values in (("point SELECT on 1 M keys", reads), ("insert to visible in a view", inserts)):
                report(f"{name}, {beside}: p50", percentile(values, 0.5), "ms")
                report(f"{name}, {beside}: p99", percentile(values, 0.99), "ms")
            stop.clear()


def idle(directory):
    with Server(Path(directory) / "idle", workers=2) as server, server.connect() as c:
        c.execute("CREATE TABLE t (k bigint, v bigint)")
        for view in range(10):
            c.execute(f"CREATE MATERIALIZED VIEW v{view} AS SELECT k, count(*) AS n FROM t GROUP BY k")
        before, start = cpu_seconds(server), time.monotonic()
        # Ten seconds of doing nothing are what is measured.
        time.sleep(10)
        report("idle server with 10 views", 100 * (cpu_seconds(server) - before) / (time.monotonic() - start), "% of a core")


def main():
    with tempfile.TemporaryDirectory() as directory:
        for workers in (1, 2):
            rates(directory, workers)
        exchange(directory)
        waits(directory)
        idle(directory)


main()
