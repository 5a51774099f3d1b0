"""Starts and stops servers, and asks them.

A server runs on free loopback ports over a data directory of its own. `Server` waits for the ready
line, so nothing here sleeps and hopes. Only processes started here are ever signalled.
"""

import ctypes
import json
import os
import queue
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import psycopg
import pyarrow.ipc

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights" / "flights.csv.gz"
LONG = os.environ.get("CLINK_LONG", "") not in ("", "0")
READY = re.compile(r"clink ready pg=(\S+) http=(\S+)\n")
START_SECONDS = 60
STOP_SECONDS = 30


def binary():
    """The server to test; named by the environment, never searched for."""
    path = os.environ.get("CLINK_BIN")
    if not path:
        raise RuntimeError("set CLINK_BIN to the clink binary (scripts/test does)")
    return path


def end_with_parent():
    """In the child: SIGKILL when the tests end, however they end (Linux)."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Server:
    """One `clink serve` process; start it again on the same data with `start`."""

    def __init__(self, data_dir, workers=2, pg="127.0.0.1:0", http="127.0.0.1:0", flags=(), env=None):
        self.data_dir = Path(data_dir)
        self.workers = workers
        self.flags = list(flags)
        # Beside what the tests have themselves.
        self.env = {**os.environ, **(env or {})}
        self.listen = ["--pg", pg, "--http", http]
        self.log_path = self.data_dir.with_name(self.data_dir.name + ".log")
        self.process = None
        self.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self):
        command = [binary(), "serve", "--data-dir", str(self.data_dir), "--workers", str(self.workers)]
        command += self.listen + self.flags
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.env, preexec_fn=end_with_parent
            )
        # The line comes through a thread, so that a server that never gets ready fails the test.
        lines = queue.Queue(maxsize=1)
        threading.Thread(target=lambda: lines.put(self.process.stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=START_SECONDS)
        except queue.Empty:
            line = "nothing"
        ready = READY.fullmatch(line)
        if not ready:
            self.kill()
            raise AssertionError(f"no ready line but {line!r}; log:\n{self.log()}")
        self.ready_line = line
        self.pg, self.http = (None if text == "off" else text for text in ready.groups())

    def log(self):
        return self.log_path.read_text(errors="replace")[-4000:]

    def kill(self):
        """SIGKILL: what is not durable by now is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_SECONDS)
            self.process.stdout.close()
            self.process = None

    def stop(self):
        """SIGTERM; returns the exit code and what stdout said after the ready line."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS)
        rest = self.process.stdout.read()
        self.process.stdout.close()
        self.process = None
        return code, rest

    def restart(self, workers=None):
        self.kill()
        self.workers = workers or self.workers
        self.start()

    def connect(self, **options):
        """A session over the simple query protocol."""
        host, port = self.pg.rsplit(":", 1)
        return psycopg.connect(
            host=host,
            port=port,
            dbname="clink",
            user="test",
            autocommit=True,
            cursor_factory=psycopg.ClientCursor,
            connect_timeout=10,
            **options,
        )

    def get(self, path, method="GET"):
        """`(status, headers, body)` of a request, whatever its status."""
        request = urllib.request.Request(f"http://{self.http}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def json(self, path):
        """The JSON of a request that has to succeed."""
        status, _, body = self.get(path)
        assert status == 200, (status, body)
        return strict_json(body)

    def scan_url(self, relation, **parameters):
        query = urllib.parse.urlencode(parameters)
        return f"http://{self.http}/api/v1/views/{urllib.parse.quote(relation, safe='')}/scan.arrow?{query}"

    def arrow(self, relation, **parameters):
        """A relation as a pyarrow table."""
        with urllib.request.urlopen(self.scan_url(relation, **parameters), timeout=120) as body:
            return pyarrow.ipc.open_stream(body).read_all()

    def rss_bytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"^VmRSS:\s+(\d+) kB$", status, re.M)[1]) * 1024


class Background:
    """Takes one step after the other on a session of its own while its block runs; `failure` is what a step raised."""

    def __init__(self, server):
        self.server, self.failure = server, None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(120)

    def run(self):
        try:
            with self.server.connect() as connection:
                while not self.stopping.is_set():
                    self.step(connection)
        except BaseException as error:
            self.failure = error


def rows(connection, query):
    return connection.execute(query).fetchall()


def one(connection, query):
    ((value,),) = rows(connection, query)
    return value


def strict_json(body):
    """JSON as RFC 8259 has it: UTF-8, no NaN, no name twice; numbers stay exact text."""

    def once(pairs):
        assert len({name for name, _ in pairs}) == len(pairs), f"a name stands twice: {pairs}"
        return dict(pairs)

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(body.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)


def same(left, right):
    """Equal, doubles to a relative 1e-9."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or abs(left - right) <= 1e-9 * max(abs(left), abs(right))
    return left == right


def assert_same_rows(actual, expected, what):
    """Every row of one answer equals that of the other; both ordered by the same columns."""
    assert len(actual) == len(expected), f"{what}: {len(actual)} rows, expected {len(expected)}"
    for got, want in zip(actual, expected):
        assert len(got) == len(want) and all(map(same, got, want)), f"{what}: {got}, expected {want}"


def cpu_share(server):
    """The share of one core that the server used in the last half second."""

    def seconds():
        fields = open(f"/proc/{server.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100

    before = seconds()
    time.sleep(0.5)
    return (seconds() - before) / 0.5


def wait_for(condition, seconds=60):
    """What a condition gives, once that is something."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not so after {seconds} s"
        time.sleep(0.02)
    return found
