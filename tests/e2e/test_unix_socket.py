"""The Unix socket: the same protocol for this user alone."""

import shutil
import stat
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg
import pytest


@pytest.fixture
def folder():
    # The path of a Unix socket may be about a hundred characters long, which those of tests are not.
    folder = Path(tempfile.mkdtemp(prefix="clink-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def socket_file(start, folder):
    server = start(flags=["--pg-socket", str(folder)])
    port = server.pg.rsplit(":", 1)[1]
    return server, folder / f".s.PGSQL.{port}", port


def connect(folder, port):
    return psycopg.connect(host=str(folder), port=port, user="me", dbname="clink", autocommit=True, connect_timeout=10)


def test_clients_find_it(socket_file, folder):
    server, path, port = socket_file
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    with connect(folder, port) as connection:
        connection.execute("CREATE TABLE t (a int)")
        connection.execute("INSERT INTO t VALUES (%s)", [7])
        out = subprocess.run(
            ["psql", "-X", "-A", "-t", "-h", str(folder), "-p", port, "-U", "me", "clink", "-c", "SELECT a FROM t"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert out.stdout == "7\n", out.stderr
        timer = threading.Timer(0.3, connection.cancel_safe)
        timer.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b")
        timer.join()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert server.stop()[0] == 0
    assert not path.exists()


def test_a_client_that_goes_away_ends_its_statement(socket_file, folder):
    server, _, port = socket_file
    slow = subprocess.Popen(
        ["psql", "-X", "-h", str(folder), "-p", port, "-U", "me", "clink"]
        + ["-c", "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"],
        stdout=subprocess.DEVNULL,
    )
    time.sleep(0.7)
    slow.kill()
    slow.wait(10)
    deadline = time.monotonic() + 10
    while cpu_seconds(server, 0.5) > 0.2:
        assert time.monotonic() < deadline, "the server works on for nobody"


def cpu_seconds(server, during):
    def used():
        fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    before = used()
    time.sleep(during)
    return used() - before


def test_a_file_that_was_left_behind(start, folder):
    server = start(flags=["--pg-socket", str(folder)], pg="off")
    path = folder / ".s.PGSQL.7432"
    assert path.exists()
    server.kill()
    assert path.exists()
    server.start()
    with connect(folder, "7432") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
