"""Clients that mean harm or break: silent and slow connections, stopped readers, what goes beyond a limit.

Changed messages are sent by tests/hostile_bytes.rs."""

import socket
import struct
import threading
import time

import psycopg
import pytest

from harness import cpu_share, one
from messages import query, startup

MEMORY_MORE = 64 << 20


def pg_address(server):
    host, port = server.pg.rsplit(":", 1)
    return host, int(port)


def p99(connection, count=300):
    times = []
    for _ in range(count):
        began = time.perf_counter()
        assert one(connection, "SELECT 1") == 1
        times.append(time.perf_counter() - began)
    return sorted(times)[int(count * 0.99)]


def test_silent_and_slow_connections(server):
    with server.connect() as connection:
        p99(connection, 100)
        quiet = p99(connection)
        before = server.rss_bytes()
        silent = []
        for number in range(500):
            one_more = socket.create_connection(pg_address(server), timeout=10)
            if number % 3 == 1:
                one_more.sendall(startup()[:7])
            if number % 3 == 2:
                one_more.sendall(struct.pack("!i", 0x7FFFFFFF))
            silent.append(one_more)
        busy = p99(connection)
        # Others get in beside them.
        with server.connect() as other:
            assert one(other, "SELECT 2") == 2
        for one_more in silent:
            one_more.close()
        # Twice the quiet time, and what the machine's own noise may add.
        assert busy < max(2 * quiet, quiet + 0.02), (quiet, busy)
        assert server.rss_bytes() - before <= MEMORY_MORE


def test_stopped_readers(server):
    with server.connect() as connection:
        p99(connection, 100)
        quiet, before = p99(connection), server.rss_bytes()
        stopped = []
        text = "SELECT v, 'some text that makes the row longer' FROM generate_series(1, 1000000) AS g (v)"
        for _ in range(64):
            reader = socket.create_connection(pg_address(server), timeout=10)
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(startup() + query(text))
            stopped.append(reader)
        # Nobody reads, so soon nothing is worked on.
        deadline = time.monotonic() + 60
        while cpu_share(server) > 0.1:
            assert time.monotonic() < deadline
        busy = p99(connection)
        assert busy < max(2 * quiet, quiet + 0.02), (quiet, busy)
        # Each has a few batches, and what the sockets hold.
        assert server.rss_bytes() - before <= 4 * MEMORY_MORE
        # One that reads on gets all of its rows.
        for reader in stopped[1:]:
            reader.close()
        received = 0
        while received < 1_000_000:
            received += len(stopped[0].recv(1 << 20))
        stopped[0].close()
        assert one(connection, "SELECT 3") == 3



def test_long_texts_beside_others(server):
    """A megabyte of SQL, and nesting of 10,000: refused or run, while others are served."""
    with server.connect() as connection, server.connect() as other:
        p99(connection, 100)
        quiet = p99(connection)
        ended = threading.Event()
        failures = []

        def send():
            deep = "SELECT " + "(" * 10_000 + "1" + ")" * 10_000
            long = "SELECT '" + "x" * ((1 << 20) - 9) + "'"
            while not ended.is_set():
                try:
                    assert len(one(other, long)) == (1 << 20) - 9
                    with pytest.raises(psycopg.errors.StatementTooComplex):
                        other.execute(deep)
                except BaseException as error:
                    failures.append(error)
                    return

        sender = threading.Thread(target=send)
        sender.start()
        busy = p99(connection)
        ended.set()
        sender.join(30)
        assert not failures, failures
        assert busy < max(2 * quiet, quiet + 0.05), (quiet, busy)


def test_idle_blocks_end(server):
    connection = server.connect()
    connection.execute("SET idle_in_transaction_session_timeout = '1s'")
    connection.execute("BEGIN")
    time.sleep(2.5)
    with pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT 1")
    assert "idle-in-transaction timeout" in str(caught.value)
    connection.close()
    with server.connect() as connection:
        connection.execute("SET idle_in_transaction_session_timeout = '1s'")
        time.sleep(2)
        assert one(connection, "SELECT 1") == 1


def test_two_hundred_sessions(start):
    server = start()
    sessions = [server.connect() for _ in range(200)]
    with pytest.raises(Exception) as caught:
        server.connect()
    assert "too many clients" in str(caught.value)
    sessions.pop().close()
    deadline = time.monotonic() + 10
    while True:
        try:
            server.connect().close()
            break
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    threads = [threading.Thread(target=session.close) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
