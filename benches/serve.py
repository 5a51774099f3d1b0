"""Reads of live state: point lookups beside a job at full rate, over PostgreSQL's protocol and HTTP, and scans as Arrow.

Run by `scripts/bench serve`. The view has a row for each of a million keys, and a generated source feeds it as fast as it can
while the lookups run. PostgreSQL's own point SELECT, on a table of as many rows and idle otherwise, stands beside them.
"""

import asyncio
import random
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psycopg
import pyarrow.ipc

sys.path.insert(0, str(Path(__file__).resolve().parent))

import rim  # noqa: E402
from rim import Server, cpu_seconds, report  # noqa: E402

KEYS = 1_000_000
SECONDS = 8


async def ask(host, port, keys, ends, latencies):
    reader, writer = await asyncio.open_connection(host, port)
    while time.monotonic() < ends:
        began = time.monotonic()
        key = random.randrange(1, keys)
        writer.write(f"GET /api/v1/views/points?key={key} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"no row {key}: {head!r}")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
        await reader.readexactly(int(length.split(b":")[1]))
        latencies.append(time.monotonic() - began)
    writer.close()


async def http(server):
    host, port = server.http.rsplit(":", 1)
    for clients in (1, 16, 64):
        latencies, ends = [], time.monotonic() + SECONDS
        await asyncio.gather(*(ask(host, int(port), KEYS, ends, latencies) for _ in range(clients)))
        latencies.sort()
        p50, p99 = (latencies[int(len(latencies) * share)] * 1000 for share in (0.5, 0.99))
        report(f"clink: point lookup by HTTP, {clients} connections", len(latencies) / SECONDS, "queries/s")
        print(f"{'':<4}p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)


def scan(server, pids):
    before, rows = cpu_seconds(pids()), 0
    with urllib.request.urlopen(f"http://{server.http}/api/v1/views/points/scan.arrow") as answer:
        for batch in pyarrow.ipc.open_stream(answer):
            rows += batch.num_rows
    report("clink: scan as Arrow", rows / max(cpu_seconds(pids()) - before, 0.01) / 1e6, "M rows/CPU s")


def main():
    rim.ROWS = KEYS
    with tempfile.TemporaryDirectory() as directory:
        with rim.postgres(directory) as other:
            if other is not None:
                (host, port), _ = other
                with psycopg.connect(host=host, port=port, user="bench", dbname="clink", autocommit=True) as connection:
                    connection.execute("CREATE TABLE points (id bigint PRIMARY KEY, v bigint)")
                    connection.execute(f"INSERT INTO points SELECT v, v FROM generate_series(1, {KEYS}) AS g (v)")
                    connection.execute("ANALYZE points")
                rim.points("PostgreSQL", (host, port))
        with Server(Path(directory) / "data", workers=1) as server:
            host, port = server.pg.rsplit(":", 1)
            pids = lambda: [server.process.pid]  # noqa: E731
            with server.connect() as connection:
                connection.execute(
                    "CREATE TABLE made (id bigint, v bigint) WITH (connector = 'datagen', 'fields.id.kind' = 'random', "
                    f"'fields.id.min' = '1', 'fields.id.max' = '{KEYS}')"
                )
                connection.execute("CREATE TABLE seeded (id bigint, v bigint)")
                connection.execute(f"INSERT INTO seeded SELECT v, 0 FROM generate_series(1, {KEYS}) AS g (v)")
                connection.execute(
                    "CREATE MATERIALIZED VIEW points AS SELECT id, count(*) AS v FROM "
                    "(SELECT id FROM made UNION ALL SELECT id FROM seeded) AS a GROUP BY id"
                )
                rim.points("clink, beside a job at full rate", (host, port))
                asyncio.run(http(server))
                scan(server, pids)


if __name__ == "__main__":
    main()
