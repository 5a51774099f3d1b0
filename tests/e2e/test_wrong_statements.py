"""The table sql-tests/errors/wrong_statements.tsv: code, place and hint of each error."""

import psycopg
import pytest

from harness import ROOT

TABLE = ROOT / "sql-tests" / "errors" / "wrong_statements.tsv"
SETUP = [
    "CREATE TABLE t (id int PRIMARY KEY, name text NOT NULL, amount numeric(12,2), at timestamp)",
    "CREATE TABLE u (id int)",
    "CREATE MATERIALIZED VIEW v AS SELECT id FROM t",
    "CREATE VIEW p AS SELECT id FROM t",
    "INSERT INTO t VALUES (1, 'a')",
    "CREATE TABLE f (a int) WITH (connector = 'datagen', number_of_rows = 1)",
]
# Codes of errors about values: nothing in the text is wrong, so some have no place, and their message says it all.
OF_VALUES = [
    ("SELECT 1/0", "22012"),
    ("SELECT 2147483647 + 1", "22003"),
    ("SELECT 'x'::int", "22P02"),
    ("SELECT '2020-13-01'::date", None),
    ("SELECT 'a' + 1", None),
    ("INSERT INTO t VALUES (99999999999, 'a')", "22003"),
    ("INSERT INTO t VALUES (1, 'again')", "23505"),
    ("INSERT INTO t VALUES (9, NULL)", "23502"),
    ("INSERT INTO t VALUES (9, 'a', 99999999999)", "22003"),
    ("SELECT name + 1 FROM t", "42883"),
    ("SELECT id FROM t WHERE id", "42804"),
    ("SELECT 1 UNION SELECT 'a'::date", "42804"),
    ("SELECT id FROM t LIMIT -1", "2201W"),
    ("SELECT id FROM t OFFSET -1", "2201X"),
    ("SELECT * FROM TUMBLE(TABLE t, DESCRIPTOR(nosuch), INTERVAL '1 minute')", "42703"),
]
# Errors of literals, and the literal that they point at.
OF_LITERALS = [
    ("SELECT 'x'::int", "22P02", "'x'"),
    ("SELECT 1 + 'x'", "22P02", "'x'"),
    ("UPDATE t SET id = 'x'", "22P02", "'x'"),
    ("SELECT id FROM t WHERE id = 'x'", "22P02", "'x'"),
    ("SELECT id FROM t WHERE id IN (1, 'x')", "22P02", "'x'"),
    ("SELECT id FROM t LIMIT 'x'", "22P02", "'x'"),
    ("SELECT id FROM t WHERE at > '2026-02-30'", "22008", "'2026-02-30'"),
    ("INSERT INTO t SELECT 'x', 'a'", "22P02", "'x'"),
    ("CREATE TABLE x (a int DEFAULT 'x')", "22P02", "'x'"),
    ("SELECT COALESCE(id, 'x') FROM t", "22P02", "'x'"),
]


@pytest.fixture
def connection(server):
    with server.connect() as connection:
        for statement in SETUP:
            connection.execute(statement)
        yield connection


def test_wrong_statements(connection):
    wrong = [line.split("\t") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    assert len(wrong) >= 60
    faults = []
    for code, word, statement in wrong:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(statement)
        error = caught.value
        if error.sqlstate != code:
            faults.append(f"{statement}: {error.sqlstate} instead of {code}: {error}")
        if not error.diag.message_hint:
            faults.append(f"{statement}: no hint: {error}")
        position = error.diag.statement_position
        found = None if position is None else statement[int(position) - 1 :]
        if found is None or (found != "" if word == "(end)" else not found.startswith(word)):
            faults.append(f"{statement}: points at {found!r}, not at {word!r}")
    assert not faults, "\n".join(faults)
    assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("statement, code", OF_VALUES)
def test_wrong_values(connection, statement, code):
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    assert caught.value.sqlstate != "XX000" and code in (None, caught.value.sqlstate)


@pytest.mark.parametrize("statement, code, literal", OF_LITERALS)
def test_wrong_literals(connection, statement, code, literal):
    with pytest.raises(psycopg.Error) as caught:
        connection.execute(statement)
    assert caught.value.sqlstate == code
    assert statement[int(caught.value.diag.statement_position) - 1 :].startswith(literal)
