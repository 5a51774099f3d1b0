"""The wire: point SELECTs by key, and COPY in and out, beside PostgreSQL on the same table in the same run.

Run by `scripts/bench rim`. pgbench asks; PostgreSQL runs only when its server is installed. Latencies are pgbench's own,
of every statement.
"""

import contextlib
import glob
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "e2e"))

from harness import Server  # noqa: E402

ROWS = 100_000
SECONDS = 8


def report(what, figure, unit):
    print(f"{what:<68} {figure:>10.3f} {unit}", flush=True)


def cpu_seconds(pids):
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
    return total / 100


def percentiles(directory):
    latencies = []
    for path in glob.glob(f"{directory}/log.*"):
        with open(path) as log:
            latencies += [int(line.split()[2]) for line in log]
        os.unlink(path)
    latencies.sort()
    return [latencies[int(len(latencies) * share)] / 1000 for share in (0.5, 0.99)]


def points(name, address):
    host, port = address
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "point.sql"
        script.write_text(f"\\set id random(1, {ROWS})\nSELECT v FROM points WHERE id = :id;\n")
        for mode in ("simple", "prepared"):
            for clients in (1, 16, 64):
                done = subprocess.run(
                    ["pgbench", "-n", "-M", mode, "-c", str(clients), "-j", "1", "-T", str(SECONDS), "-l",
                     "--log-prefix", f"{directory}/log", "-f", str(script), "-h", host, "-p", port, "-U", "bench", "clink"],
                    capture_output=True, text=True, timeout=SECONDS * 10,
                )
                if done.returncode != 0:
                    raise SystemExit(f"pgbench failed: {done.stderr}")
                tps = next(line for line in done.stdout.splitlines() if line.startswith("tps"))
                p50, p99 = percentiles(directory)
                report(f"{name}: point SELECT, {mode}, {clients} connections", float(tps.split()[2]), "queries/s")
                print(f"{'':<4}p50 {p50:.2f} ms, p99 {p99:.2f} ms", flush=True)


def copies(name, connection, pids):
    out = io.BytesIO()
    before, began = cpu_seconds(pids()), time.monotonic()
    with connection.cursor().copy("COPY points TO STDOUT") as copy:
        for part in copy:
            out.write(part)
    size = out.tell() / 1e6
    report(f"{name}: COPY out", size / max(cpu_seconds(pids()) - before, 0.01), "MB/CPU s")
    connection.execute("CREATE TABLE copied (id int PRIMARY KEY, v text)")
    before = cpu_seconds(pids())
    with connection.cursor().copy("COPY copied FROM STDIN") as copy:
        copy.write(out.getvalue())
    report(f"{name}: COPY in, {size:.1f} MB", size / max(cpu_seconds(pids()) - before, 0.01), "MB/CPU s")
    report(f"{name}: COPY out and in", time.monotonic() - began, "s")


FILL = f"INSERT INTO points SELECT v, 'value ' || v FROM generate_series(1, {ROWS}) AS g (v)"


@contextlib.contextmanager
def postgres(directory):
    """A PostgreSQL of its own, or None."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    if not found:
        print("PostgreSQL's server is not installed: clink alone", flush=True)
        yield None
        return
    binaries, data = Path(found[-1]).parent, Path(directory) / "pg"
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    data.mkdir()
    if as_user:
        shutil.chown(data, "postgres", "postgres")
        os.chmod(directory, 0o755)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    subprocess.run([*as_user, binaries / "initdb", "-D", data, "-U", "bench", "-A", "trust"], check=True, capture_output=True)
    process = subprocess.Popen(
        [*as_user, binaries / "postgres", "-D", data, "-p", str(port), "-k", data, "-c", "listen_addresses=127.0.0.1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                with psycopg.connect(host="127.0.0.1", port=port, user="bench", dbname="postgres", autocommit=True) as c:
                    c.execute("CREATE DATABASE clink")
                break
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield ("127.0.0.1", str(port)), process.pid
    finally:
        process.terminate()
        process.wait(30)


def children(pid):
    pids = [pid]
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(Path(path).read_text().rsplit(") ", 1)[1].split()[1]) == pid:
                pids.append(int(path.split("/")[2]))
    return pids


def main():
    with tempfile.TemporaryDirectory() as directory:
        with postgres(directory) as other:
            with Server(Path(directory) / "clink", workers=2) as server, server.connect() as connection:
                connection.execute("CREATE TABLE points (id int PRIMARY KEY, v text)")
                connection.execute(FILL)
                points("clink", tuple(server.pg.rsplit(":", 1)))
                copies("clink", connection, lambda: [server.process.pid])
            if other:
                address, pid = other
                with psycopg.connect(host=address[0], port=address[1], user="bench", dbname="clink", autocommit=True) as c:
                    c.execute("CREATE TABLE points (id int PRIMARY KEY, v text)")
                    c.execute(FILL)
                    c.execute("VACUUM ANALYZE points")
                    points("PostgreSQL", address)
                    copies("PostgreSQL", c, lambda: children(pid))


if __name__ == "__main__":
    main()
