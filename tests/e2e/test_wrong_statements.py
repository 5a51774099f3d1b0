"""A table of wrong statements: code, place and hint of each."""

import psycopg
import pytest

from wrong_statements import WITHOUT_HINT, WRONG


def test_wrong_statements(server):
    assert len(WRONG) >= 60
    faults = []
    with server.connect() as connection:
        for statement in [
            "CREATE TABLE t (id int PRIMARY KEY, name text NOT NULL, amount numeric(12,2), at timestamp)",
            "CREATE TABLE u (id int)",
            "CREATE MATERIALIZED VIEW v AS SELECT id FROM t",
            "CREATE VIEW p AS SELECT id FROM t",
            "INSERT INTO t VALUES (1, 'a')",
        ]:
            connection.execute(statement)
        for statement, code, word in WRONG:
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(statement)
            error = caught.value
            if code is not None and error.sqlstate != code:
                faults.append(f"{statement}: {error.sqlstate} instead of {code}: {error}")
            if error.sqlstate not in WITHOUT_HINT and not error.diag.message_hint:
                faults.append(f"{statement}: no hint: {error}")
            if word is not None:
                position = error.diag.statement_position
                found = None if position is None else statement[int(position) - 1 :]
                if found is None or not found.startswith(word) or (word == "" and found != ""):
                    faults.append(f"{statement}: points at {found!r}, not at {word!r}")
            assert error.sqlstate != "XX000", statement
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert not faults, "\n".join(faults)
