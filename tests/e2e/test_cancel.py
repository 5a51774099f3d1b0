"""Cancelling, as psql's Ctrl-C does it, ends a statement within a second."""

import os
import socket
import threading
import time

import psycopg
import pytest

from harness import cpu_share, one, rows

pytestmark = pytest.mark.timeout(90)

LONG_SELECTS = [
    "SELECT count(*) FROM generate_series(1, 1000000) AS a(x), generate_series(1, 1000000) AS b(y) WHERE (x + y) % 7 = 3",
    "SELECT x, y FROM generate_series(1, 1000000) AS a(x), generate_series(1, 1000000) AS b(y) ORDER BY y DESC, x",
    "SELECT sum(f.n + g.n) FROM filled f, filled g, filled h WHERE (f.n * g.n) % 11 = h.n % 5",
]


def fill(connection, count):
    connection.execute("CREATE TABLE filled (n bigint)")
    connection.execute(f"INSERT INTO filled SELECT g FROM generate_series(1, {count}) AS s(g)")


def cancelled_after(connection, statement, delay):
    """Seconds from the cancel to the end of the statement; `None` when it was done before."""
    asked = []

    def ask():
        asked.append(time.monotonic())
        connection.cancel_safe(timeout=30)

    timer = threading.Timer(delay, ask)
    timer.start()
    try:
        with pytest.raises(psycopg.errors.QueryCanceled) as cancelled:
            connection.execute(statement)
    finally:
        ended = time.monotonic()
        timer.cancel()
        timer.join()
    assert cancelled.value.sqlstate == "57014"
    return ended - asked[0]


@pytest.mark.parametrize("statement", LONG_SELECTS)
def test_a_long_select(server, statement):
    with server.connect() as connection:
        fill(connection, 20_000)
        for delay in (0.05, 1.0):
            assert cancelled_after(connection, statement, delay) < 1.0
        assert one(connection, "SELECT count(*) FROM filled") == 20_000


def test_a_view_that_fills(server):
    with server.connect() as connection, server.connect() as other:
        fill(connection, 500_000)
        create = (
            "CREATE MATERIALIZED VIEW slow AS"
            " SELECT n, count(*) AS c, count(DISTINCT n % 1000) AS d, string_agg(n::text, ',') AS s FROM filled GROUP BY n"
        )
        assert cancelled_after(connection, create, 0.1) < 1.0
        # The cancelled view is gone, for everyone, and its name is free.
        assert rows(other, "SHOW VIEWS") == []
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM slow")
        connection.execute("CREATE MATERIALIZED VIEW slow AS SELECT count(*) AS n FROM filled")
        assert one(other, "SELECT n FROM slow") == 500_000


def test_a_read_of_a_view_that_fills(server):
    """A read waits for the view, and its wait can be cancelled; the view goes on."""
    with server.connect() as connection, server.connect() as other:
        fill(connection, 500_000)
        connection.execute(
            "CREATE MATERIALIZED VIEW slow WITH (background = true) AS"
            " SELECT n, count(*) AS c, string_agg(n::text, ',') AS s FROM filled GROUP BY n"
        )
        assert cancelled_after(other, "SELECT count(*) FROM slow", 0.05) < 1.0
        assert one(other, "SELECT count(*) FROM slow") == 500_000


def test_an_insert_is_wholly_there_or_not(server):
    with server.connect() as connection:
        fill(connection, 1_000)
        insert = "INSERT INTO filled SELECT a.n FROM filled a, filled b, filled c WHERE (a.n + b.n + c.n) % 1000 < 900"
        assert cancelled_after(connection, insert, 0.3) < 1.0
        assert one(connection, "SELECT count(*) FROM filled") == 1_000


def test_statement_timeout(server):
    with server.connect() as connection:
        connection.execute("SET statement_timeout = '200ms'")
        begin = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled) as cancelled:
            connection.execute(LONG_SELECTS[0])
        assert 0.1 < time.monotonic() - begin < 1.2
        assert "statement timeout" in str(cancelled.value)
        connection.execute("SET statement_timeout = 0")
        assert one(connection, "SELECT 1") == 1


def test_a_client_that_goes_away(server):
    """Its statement ends; the server does not work on for nobody."""
    connection = server.connect()
    connection.execute("SET statement_timeout = 0")
    gone = threading.Thread(target=lambda: pytest.raises(psycopg.Error, connection.execute, LONG_SELECTS[0]))
    gone.start()
    time.sleep(0.3)
    held = socket.socket(fileno=os.dup(connection.fileno()))
    held.shutdown(socket.SHUT_RDWR)
    held.close()
    gone.join(10)
    deadline = time.monotonic() + 10
    while cpu_share(server) > 0.3:
        assert time.monotonic() < deadline, "the server still works on a statement that nobody waits for"
