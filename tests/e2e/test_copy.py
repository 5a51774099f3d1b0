"""COPY in and out, in text, CSV and binary, and what is wrong with rows."""

import io
import subprocess

import psycopg
import psycopg2
import pytest

from harness import one, rows

SCHEMA = """CREATE TABLE t (
    k int PRIMARY KEY, name text, amount numeric(12,2) DEFAULT 1.5, at timestamptz, tags text[], raw bytea
)"""
VALUES = """INSERT INTO t VALUES
    (1, 'a', 1.25, '2020-01-01 00:00:00+00', ARRAY['x', 'y z'], '\\x00ff'),
    (2, E'tab\\there "q" back\\\\slash', NULL, NULL, NULL, NULL),
    (3, '', -7, '1969-12-31 23:59:59.5+00', ARRAY[]::text[], '\\x')"""
ALL = "SELECT k, name, amount, at, tags, raw FROM t ORDER BY k"


@pytest.fixture
def connection(server):
    with server.connect() as connection:
        connection.execute(SCHEMA)
        connection.execute(VALUES)
        # Sees what other sessions were answered.
        connection.execute("SET clink.read = 'strict'")
        yield connection


def copied_out(connection, text):
    with connection.cursor().copy(text) as copy:
        return b"".join(bytes(part) for part in copy)


def copied_in(connection, text, *parts):
    cursor = connection.cursor()
    with cursor.copy(text) as copy:
        for part in parts:
            copy.write(part)
    return cursor.rowcount


def test_text_and_csv_as_postgresql_writes_them(connection):
    out = copied_out(connection, "COPY (SELECT k, name, amount, tags FROM t ORDER BY k) TO STDOUT")
    assert out == (
        b"1\ta\t1.25\t{x,\"y z\"}\n" b"2\ttab\\there \"q\" back\\\\slash\t\\N\t\\N\n" b"3\t\t-7.00\t{}\n"
    )
    out = copied_out(connection, "COPY (SELECT k, name, at FROM t ORDER BY k) TO STDOUT WITH (FORMAT csv, HEADER)")
    assert out == (
        b"k,name,at\n"
        b"1,a,2020-01-01 00:00:00+00\n"
        b'2,"tab\there ""q"" back\\slash",\n'
        b'3,"",1969-12-31 23:59:59.5+00\n'
    )


@pytest.mark.parametrize("options", ["", "(FORMAT csv)", "(FORMAT csv, HEADER, DELIMITER ';', NULL 'nil')", "(FORMAT binary)"])
def test_what_goes_out_comes_back(connection, options):
    before = rows(connection, ALL)
    out = copied_out(connection, f"COPY t TO STDOUT {options}")
    connection.execute("DELETE FROM t")
    # Cut at places that mean nothing.
    parts = [out[at : at + 7] for at in range(0, len(out), 7)]
    assert copied_in(connection, f"COPY t FROM STDIN {options}", *parts) == 3
    assert rows(connection, ALL) == before


def test_rows_and_types_of_psycopg(connection):
    with connection.cursor().copy("COPY (SELECT k, name FROM t ORDER BY k) TO STDOUT (FORMAT binary)") as copy:
        copy.set_types(["int4", "text"])
        assert [k for k, _ in copy.rows()] == [1, 2, 3]
    cursor = connection.cursor()
    with cursor.copy("COPY t (k, name) FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(["int4", "text"])
        for k in range(10, 20):
            copy.write_row((k, None if k == 15 else f"n{k}"))
    assert rows(connection, "SELECT count(*), count(name), sum(amount) FROM t WHERE k >= 10") == [(10, 9, 15)]


def test_bad_rows_name_their_line(connection):
    cases = [
        ("COPY t (k, name) FROM STDIN", "10\ta\n11\n", "22P04", "line 2"),
        ("COPY t (k, name) FROM STDIN", "10\ta\tb\n", "22P04", "line 1"),
        ("COPY t (k, name) FROM STDIN", "10\ta\nx\tb\n", "22P02", "line 2, column k"),
        ("COPY t (k, name) FROM STDIN CSV", '10,"a\n', "22P04", "line 1"),
        ("COPY t (k) FROM STDIN", "\\N\n", "23502", "line 1"),
        ("COPY t (k) FROM STDIN", "10\n1\n", "23505", "already exists"),
        ("COPY t (k, amount) FROM STDIN", "10\t99999999999\n", "22003", "line 1, column amount"),
        ("COPY t (k, name) FROM STDIN", b"10\t\xff\n", "22021", "line 1"),
        ("COPY t FROM STDIN (FORMAT binary)", b"nothing that one would know", "22P04", "line 1"),
    ]
    for text, data, code, detail in cases:
        with pytest.raises(psycopg.Error) as caught:
            copied_in(connection, text, data)
        assert caught.value.sqlstate == code, (text, caught.value)
        assert detail in caught.value.diag.message_detail, (text, caught.value.diag.message_detail)
        # Nothing of a copy that failed is there, and the connection goes on.
        assert one(connection, "SELECT count(*) FROM t") == 3
    for text, code in [
        ("COPY nope FROM STDIN", "42P01"),
        ("COPY t (nope) FROM STDIN", "42703"),
        ("COPY t FROM '/etc/passwd'", "0A000"),
        ("COPY t TO PROGRAM 'cat'", "0A000"),
        ("COPY t TO STDOUT (FORMAT xml)", "22023"),
        ("COPY t TO STDOUT (NONSENSE 1)", "42601"),
        ("COPY t TO STDOUT (DELIMITER 'ab')", "0A000"),
    ]:
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(text)
        assert caught.value.sqlstate == code and caught.value.diag.message_hint, (text, caught.value)


def test_a_client_that_gives_up_leaves_nothing(connection):
    with pytest.raises(ZeroDivisionError):
        with connection.cursor().copy("COPY t (k) FROM STDIN") as copy:
            copy.write("10\n")
            1 / 0
    assert one(connection, "SELECT count(*) FROM t") == 3


def test_copy_in_a_block(server, connection):
    host, port = server.pg.rsplit(":", 1)
    with psycopg2.connect(host=host, port=port, dbname="clink", user="test") as block:
        with block.cursor() as cursor:
            cursor.copy_expert("COPY t (k, name) FROM STDIN CSV", io.StringIO("10,x\n11,y\n"))
            assert one(connection, "SELECT count(*) FROM t") == 3
            cursor.execute("UPDATE t SET name = 'z' WHERE k = 11")
        block.commit()
        assert rows(connection, "SELECT k, name FROM t WHERE k >= 10 ORDER BY k") == [(10, "x"), (11, "z")]
        with block.cursor() as cursor:
            out = io.StringIO()
            cursor.copy_expert("COPY (SELECT k FROM t WHERE k >= 10 ORDER BY k) TO STDOUT", out)
            assert out.getvalue() == "10\n11\n"


def test_psql_copies_files(server, connection, tmp_path):
    host, port = server.pg.rsplit(":", 1)
    path = tmp_path / "rows.csv"
    path.write_text("k,name\n20,a\n21,\"b,c\"\n")
    psql = ["psql", "-X", "-q", "-h", host, "-p", port, "-U", "me", "clink", "-v", "ON_ERROR_STOP=1"]
    done = subprocess.run([*psql, "-c", f"\\copy t (k, name) FROM '{path}' WITH CSV HEADER"], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    out = subprocess.run([*psql, "-c", "\\copy (SELECT k, name FROM t WHERE k >= 20 ORDER BY k) TO STDOUT CSV"], timeout=60, capture_output=True, text=True)
    assert out.stdout == '20,a\n21,"b,c"\n', out.stderr
