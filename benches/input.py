"""How fast rows come in: decoding alone, and what filters, sinks and aggregates cost beside it.

Run by `scripts/bench input`. The threads that read and decode have names of their own, so their CPU time is known apart
from all else: that is the decoder's rate, and the share of the rest. Figures are of one run on one machine.
"""

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))

from harness import Server, one  # noqa: E402

ROWS = 4_000_000
KEYS = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")


class Threads:
    """CPU time of a server's threads by name, also of those that have ended."""

    def __init__(self, server):
        self.tasks = Path(f"/proc/{server.process.pid}/task")
        self.last = {}
        self.over = threading.Event()
        self.look()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def look(self):
        try:
            tasks = list(self.tasks.iterdir())
        except FileNotFoundError:
            return
        for task in tasks:
            try:
                name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(") ", 1)
            except (FileNotFoundError, ProcessLookupError):
                continue
            fields = fields.split()
            self.last[task.name] = (name, int(fields[11]) + int(fields[12]))

    def watch(self):
        while not self.over.wait(0.01):
            self.look()

    def seconds(self):
        """Those that decode, and all."""
        self.look()
        total = sum(ticks for _, ticks in self.last.values())
        return sum(ticks for name, ticks in self.last.values() if name.startswith("feed-")) / TICKS, total / TICKS

    def close(self):
        self.over.set()
        self.thread.join()


def report(what, figure, unit):
    print(f"{what:<68} {figure:>10.3f} {unit}", flush=True)


def make_files(directory):
    """Orders with a wide column that nobody reads, in both formats."""
    oracle = duckdb.connect()
    oracle.execute(
        f"""CREATE TABLE rows AS SELECT i AS id, (i * 7919) % {KEYS} AS k, (i % 100000) / 100.0 AS price,
            'customer ' || (i % 5000) AS name, TIMESTAMP '2026-01-01' + to_milliseconds(i) AS at,
            'https://example.com/items/' || md5(i::text) || '?from=' || md5((i + 1)::text) AS url
            FROM range({ROWS}) AS r(i)"""
    )
    for form in ("json", "parquet"):
        oracle.execute(f"COPY rows TO '{directory}/rows.{form}' (FORMAT {form})")


def measured(server, connection, statement, done):
    """CPU seconds that a statement takes until `done`: of decoding, of all."""
    threads = Threads(server)
    feeds, total = threads.seconds()
    connection.execute(statement)
    deadline = time.monotonic() + 600
    while not done(connection):
        assert time.monotonic() < deadline, f"not done: {statement}"
        # Asking costs the server time too.
        time.sleep(0.25)
    after_feeds, after = threads.seconds()
    threads.close()
    return after_feeds - feeds, after - total


def sunk(name, count):
    return lambda c: one(c, f"SELECT rows_out FROM clink_catalog.jobs WHERE name = 'public.{name}'") >= count


def run(directory, form, workers):
    what = f"{form}, {workers} worker{'s' if workers > 1 else ''}"
    with Server(Path(directory) / f"data-{form}-{workers}", workers=workers) as server, server.connect() as c:
        c.execute(
            f"""CREATE TABLE t (id bigint, k bigint, price double precision, name text, at timestamp, url text)
                WITH (connector = 'file', path = '{directory}/rows.{form}', format = '{form}')"""
        )
        feeds, total = measured(
            server, c,
            "CREATE SINK all_columns WITH (connector = 'blackhole') AS SELECT id, k, price, name, at, url FROM t",
            sunk("all_columns", ROWS))
        report(f"decoding alone, six columns, {what}", ROWS / feeds / 1e6, "M rows/CPU s")
        report("  to a sink that forgets", ROWS / total / 1e6, "M rows/CPU s")
        report("  all else than decoding", 100 * (total - feeds) / total, "% of CPU")
        c.execute("DROP SINK all_columns")
        for share, condition, kept in (("a tenth", "k % 10 = 0", ROWS // 10), ("nine tenths", "k % 10 <> 0", ROWS - ROWS // 10)):
            query = f"SELECT id, price * 0.9 AS price, name, url FROM t WHERE {condition}"
            feeds, total = measured(
                server, c, f"CREATE SINK filtered WITH (connector = 'blackhole') AS {query}", sunk("filtered", kept))
            report(f"decoding alone, five columns, {what}", ROWS / feeds / 1e6, "M rows/CPU s")
            report(f"  a filter that keeps {share}, project, to a sink that forgets", ROWS / total / 1e6, "M rows/CPU s")
            report("  all else than decoding", 100 * (total - feeds) / total, "% of CPU")
            c.execute("DROP SINK filtered")
        feeds, total = measured(
            server, c, "CREATE MATERIALIZED VIEW g AS SELECT k, count(*) AS n, sum(price) AS s FROM t GROUP BY k",
            lambda c: c.execute("FLUSH"))
        report(f"count and sum by {KEYS} keys, {what}", ROWS / total / 1e6, "M rows/CPU s")
        report("  without decoding", ROWS / max(total - feeds, 0.01) / 1e6, "M rows/CPU s")


def main():
    with tempfile.TemporaryDirectory() as directory:
        make_files(directory)
        for form in ("json", "parquet"):
            for workers in (1, 2):
                run(directory, form, workers)


main()
