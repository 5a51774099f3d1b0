"""pyarrow, polars and DuckDB read a large view, and an operator inside of its job, while the job writes: every answer is of one
time, and what the job pays for a row stays what it was."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
from pathlib import Path

from harness import LONG, Background, Server, one, rows
from test_scan import MEMORY_BYTES_MAX, Memory

ROWS = 5_000_000 if LONG else 200_000
BATCH = 20_000 if LONG else 2_000
FILL = 250_000
# So long is measured, and at least so many reads.
SECONDS = 30 if LONG else 2
READS = 6 if LONG else 3
# The long run is on a quiet machine; a busy one says little of what a row costs.
DEARER_MAX = 1.10 if LONG else 2.0


def upsert(start, sign):
    """Every second row gets so much, every other one as much less; each counts one more."""
    return (
        f"INSERT INTO big SELECT g, CASE WHEN g % 2 = 0 THEN {sign} ELSE -({sign}) END, 1"
        f" FROM generate_series({start}, {start + BATCH - 1}) AS s(g)"
        " ON CONFLICT (id) DO UPDATE SET amount = big.amount + excluded.amount, version = big.version + 1"
    )


class Writer(Background):
    """Writes, and knows how many statements were answered."""

    def __init__(self, server):
        super().__init__(server)
        self.statements = 0

    def step(self, connection):
        start = (self.statements * BATCH) % (ROWS - BATCH + 1) // 2 * 2
        connection.execute(upsert(start, self.statements + 1))
        self.statements += 1


def spent(server):
    """CPU seconds of the worker's thread so far; rows that the job folded, and seconds that its operators worked for them."""
    ticks = 0
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        if (task / "comm").read_text().startswith("timely"):
            fields = (task / "stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
    with server.connect() as connection:
        work = rows(connection, "SELECT operator, rows_in, busy_us FROM clink_catalog.operators WHERE job = 'public.per_id'")
    folded = max(rows_in for _, rows_in, _ in work)
    return ticks / os.sysconf("SC_CLK_TCK"), folded, sum(busy for *_, busy in work) / 1e6


def measured(server, writer, enough):
    """What a folded row costs while the writer writes: microseconds of the operators, and of the thread that they run on."""
    cpu, folded, busy = spent(server)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or not enough():
        assert writer.failure is None, writer.failure
        time.sleep(0.05)
    cpu_then, folded_then, busy_then = spent(server)
    count = folded_then - folded
    assert count > 0, "nothing was written"
    return (busy_then - busy) / count * 1e6, (cpu_then - cpu) / count * 1e6, count


@contextlib.contextmanager
def reader(url):
    """A program that reads; gives the lines that it has printed so far."""
    command = [sys.executable, str(Path(__file__).with_name("beside.py")), url]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines = []
    thread = threading.Thread(target=lambda: lines.extend(map(json.loads, program.stdout)))
    thread.start()
    try:
        yield lines
        program.stdin.close()
        assert program.wait(600) == 0
        thread.join(60)
    finally:
        program.kill()
        program.wait(10)
        program.stdout.close()


def test_programs_read_beside_the_fold(tmp_path):
    # A checkpoint has a cost of its own.
    with Server(tmp_path / "data", workers=1, flags=["--checkpoint-interval", "off"]) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE big (id bigint PRIMARY KEY, amount bigint NOT NULL, version bigint NOT NULL)")
            for start in range(0, ROWS, FILL):
                end = min(start + FILL, ROWS) - 1
                connection.execute(f"INSERT INTO big SELECT g, 0, 0 FROM generate_series({start}, {end}) AS s(g)")
            connection.execute(
                "CREATE MATERIALIZED VIEW per_id AS SELECT id, sum(amount) AS amount, sum(version) AS version FROM big GROUP BY id"
            )
            assert one(connection, "SELECT count(*) FROM per_id") == ROWS
        (operator,) = server.json("/api/v1/jobs/per_id/operators")["operators"]
        inside = f"/api/v1/jobs/per_id/operators/{urllib.parse.quote(operator['operator'], safe='')}/scan.arrow"
        with Writer(server) as writer:
            with Memory(server) as alone:
                quiet = [measured(server, writer, lambda: True)]
            for what, path in [("view", "/api/v1/views/per_id/scan.arrow"), ("operator", inside)]:
                before = writer.statements
                with Memory(server) as memory, reader(f"http://{server.http}{path}") as reads:
                    beside = measured(server, writer, lambda: len(reads) >= READS)
                check(what, reads, before)
                # What the writer alone takes at most is no part of it.
                more = memory.most - alone.most
                assert more < MEMORY_BYTES_MAX, f"{more >> 20} MiB more than without readers"
                # Before and after: what a row costs changes with what the operators hold.
                with Memory(server) as alone:
                    quiet.append(measured(server, writer, lambda: True))
                cost = (quiet[-2][0] + quiet[-1][0]) / 2
                print(
                    f"beside readers of the {what}: {beside[0]:.2f} us of operators for a row, quiet {cost:.2f};"
                    f" {beside[1]:.2f} us of CPU of the worker with the reads, quiet {quiet[-1][1]:.2f};"
                    f" {beside[2]} rows, {len(reads)} reads, {more >> 20} MiB more memory"
                )
                assert beside[0] <= cost * DEARER_MAX, f"a row is {beside[0] / cost:.2f} times as dear beside the {what}"


def check(what, reads, before):
    """Every read is of one time, and has each statement that was answered before it."""
    for read in reads:
        count, amount, version, distinct = read["found"]
        assert (count, amount, distinct) == (ROWS, 0, ROWS), (what, read)
        assert version % BATCH == 0 and version // BATCH >= before, (what, read)
    assert {read["by"] for read in reads} == {"by_pyarrow", "by_polars", "by_duckdb"}
    assert len({read["time"] for read in reads}) > 1, "nothing changed beside the reads"
