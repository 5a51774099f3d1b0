"""Transaction blocks: one time for reads, all changes at one time, nothing of what was rolled back."""

import threading

import psycopg
import pytest

from harness import one, rows


@pytest.fixture
def accounts(server):
    with server.connect() as connection:
        connection.execute("CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL)")
        connection.execute("CREATE TABLE log (line text)")
        connection.execute("CREATE MATERIALIZED VIEW total AS SELECT sum(balance) AS total, count(*) AS n FROM accounts")
        connection.execute("INSERT INTO accounts VALUES (1, 100), (2, 100), (3, 100)")
    return server


def watcher(server):
    """A session that sees what others were answered."""
    connection = server.connect()
    connection.execute("SET clink.read = 'strict'")
    return connection


def blocks(server):
    """A connection in the mode that drivers have by default: BEGIN before the first statement."""
    host, port = server.pg.rsplit(":", 1)
    return psycopg.connect(host=host, port=port, dbname="clink", user="test", connect_timeout=10)


def test_changes_come_at_one_time(accounts):
    with blocks(accounts) as connection, watcher(accounts) as other:
        connection.execute("UPDATE accounts SET balance = balance - 30 WHERE id = 1")
        connection.execute("UPDATE accounts SET balance = balance + 30 WHERE id = 2")
        # A statement sees what the block did before.
        got = connection.execute("UPDATE accounts SET balance = balance + 5 WHERE balance >= 130 RETURNING id, balance")
        assert got.fetchall() == [(2, 135)]
        connection.execute("INSERT INTO accounts VALUES (4, 7), (5, 8)")
        connection.execute("DELETE FROM accounts WHERE id IN (3, 4)")
        connection.execute("INSERT INTO accounts VALUES (3, 1)")
        connection.execute("INSERT INTO log VALUES (%s)", ["moved"])
        assert rows(other, "SELECT total, n FROM total") == [(300, 3)]
        assert rows(other, "SELECT * FROM log") == []
        connection.commit()
        assert rows(other, "SELECT total, n FROM total") == [(70 + 135 + 1 + 8, 4)]
        assert rows(other, "SELECT id, balance FROM accounts ORDER BY id") == [(1, 70), (2, 135), (3, 1), (5, 8)]
        assert rows(other, "SELECT * FROM log") == [("moved",)]


def test_a_table_that_was_dropped_meanwhile_fails_the_commit(accounts):
    with blocks(accounts) as connection, watcher(accounts) as other:
        connection.execute("INSERT INTO log VALUES ('lost')")
        connection.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
        other.execute("DROP TABLE log")
        other.execute("CREATE TABLE log (line text)")
        with pytest.raises(psycopg.errors.SerializationFailure) as caught:
            connection.commit()
        assert caught.value.diag.message_hint
        assert rows(other, "SELECT * FROM log") == []
        assert one(other, "SELECT balance FROM accounts WHERE id = 1") == 100


def test_rollback_leaves_nothing(accounts):
    with blocks(accounts) as connection:
        connection.execute("DELETE FROM accounts")
        connection.execute("TRUNCATE log")
        connection.rollback()
        connection.execute("CREATE TABLE gone (a int)")
        connection.rollback()
        assert one(connection, "SELECT count(*) FROM accounts") == 3
        connection.commit()
        connection.execute("SET statement_timeout = '7s'")
        connection.rollback()
        assert one(connection, "SHOW statement_timeout") == "0"
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM gone")


def test_keys_are_checked_against_the_block(accounts):
    with blocks(accounts) as connection:
        connection.execute("INSERT INTO accounts VALUES (9, 1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("INSERT INTO accounts VALUES (9, 2)")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.rollback()
        connection.execute("DELETE FROM accounts WHERE id = 1")
        connection.execute("INSERT INTO accounts VALUES (1, 5)")
        connection.execute("INSERT INTO accounts VALUES (1, 6) ON CONFLICT (id) DO UPDATE SET balance = accounts.balance + excluded.balance")
        connection.execute("UPDATE accounts SET id = 8 WHERE id = 1")
        connection.commit()
        assert rows(connection, "SELECT id, balance FROM accounts WHERE id IN (1, 8)") == [(8, 11)]


def test_all_reads_are_of_one_time(accounts):
    with blocks(accounts) as connection, watcher(accounts) as other:
        assert one(connection, "SELECT total FROM total") == 300
        other.execute("INSERT INTO accounts VALUES (4, 50)")
        other.execute("INSERT INTO log VALUES ('later')")
        assert one(connection, "SELECT sum(balance) FROM accounts") == 300
        assert rows(connection, "SELECT * FROM log") == []
        with pytest.raises(psycopg.errors.SerializationFailure):
            connection.execute("UPDATE accounts SET balance = 0")
        connection.rollback()
        assert one(connection, "SELECT total FROM total") == 350


def test_what_a_block_does_not_take(accounts):
    with blocks(accounts) as connection:
        connection.execute("INSERT INTO accounts VALUES (7, 1)")
        for refused in ["SELECT * FROM accounts", "SELECT * FROM total", "CREATE TABLE x (a int)"]:
            with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
                connection.execute(refused)
            assert caught.value.diag.message_hint
            connection.rollback()
            connection.execute("INSERT INTO accounts VALUES (7, 1)")
        assert one(connection, "SELECT 1") == 1
        connection.rollback()
        connection.execute("CREATE TABLE x (a int)")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("INSERT INTO x VALUES (1)")
        connection.rollback()
        connection.execute("CREATE TABLE x (a int)")
        connection.commit()
        connection.execute("INSERT INTO x VALUES (1)")
        connection.commit()
        connection.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("INSERT INTO x VALUES (2)")
        connection.rollback()
        connection.execute("INSERT INTO x VALUES (3)")
        with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
            connection.execute("INSERT INTO x VALUES (4)")
            connection.execute("SELECT 1 / 0")
        connection.commit()
        assert rows(connection, "SELECT a FROM x ORDER BY a") == [(1,), (3,)]


def test_two_blocks_that_wait_for_each_other(accounts):
    with blocks(accounts) as connection, blocks(accounts) as other:
        connection.execute("UPDATE accounts SET balance = 1 WHERE id = 1")
        other.execute("DELETE FROM log")
        failed = []

        def wait():
            try:
                connection.execute("DELETE FROM log")
            except psycopg.errors.DeadlockDetected as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        try:
            other.execute("UPDATE accounts SET balance = 2 WHERE id = 1")
        except psycopg.errors.DeadlockDetected as error:
            failed.append(error)
            other.rollback()
        waiting.join(30)
        assert not waiting.is_alive() and len(failed) == 1
        connection.rollback()


def test_a_client_that_goes_away_leaves_nothing(accounts):
    connection = blocks(accounts)
    connection.execute("UPDATE accounts SET balance = 0")
    connection.close()
    with watcher(accounts) as other:
        other.execute("SET statement_timeout = '10s'")
        other.execute("UPDATE accounts SET balance = balance + 1")
        assert one(other, "SELECT total FROM total") == 303


def test_blocks_survive_a_kill_whole_or_not_at_all(accounts):
    connection = blocks(accounts)
    connection.execute("UPDATE accounts SET balance = balance - 10 WHERE id = 1")
    connection.execute("UPDATE accounts SET balance = balance + 10 WHERE id = 2")
    connection.commit()
    connection.execute("UPDATE accounts SET balance = 0")
    accounts.restart()
    with accounts.connect() as connection:
        assert rows(connection, "SELECT balance FROM accounts ORDER BY id") == [(90,), (110,), (100,)]
