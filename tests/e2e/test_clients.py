"""What drivers do: prepare with a parameter of each type, read the value back, transactions, portals."""

import asyncio
import datetime as dt
import decimal
import io
import json
import threading
import uuid

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
from psycopg.types.json import Jsonb

D = decimal.Decimal
UTC = dt.timezone.utc

# A column of each type, and values that have to come back as they are.
TYPES = [
    ("smallint", [-32768, 32767]),
    ("int", [-(2**31), 2**31 - 1]),
    ("bigint", [-(2**63), 2**63 - 1]),
    ("real", [1.5, -0.25]),
    ("double precision", [0.1, 1e300]),
    ("numeric(12,2)", [D("12345.67"), D("-0.01")]),
    ("numeric", [D("1.5"), D("-123456789.0000001")]),
    ("text", ["", "é €\n\"'\\"]),
    ("varchar(10)", ["abc"]),
    ("boolean", [True, False]),
    ("bytea", [b"", b"\x00\xff'\\"]),
    ("date", [dt.date(2020, 2, 29), dt.date(1000, 1, 1)]),
    ("time", [dt.time(23, 59, 59, 999999), dt.time(0)]),
    ("timestamp", [dt.datetime(1969, 12, 31, 23, 59, 59, 999999), dt.datetime(2262, 4, 12, 1)]),
    ("timestamptz", [dt.datetime(2013, 1, 1, 5, 0, 0, 500000, tzinfo=UTC)]),
    ("interval", [dt.timedelta(days=3, seconds=4, microseconds=5), dt.timedelta(days=-1)]),
    ("uuid", [uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")]),
    ("int[]", [[1, 2, 3], []]),
    ("text[]", [["a", "b c", 'q"\\', "NULL", ""]]),
]


@pytest.fixture
def table(server):
    """A table with a column of each type and a key."""
    with server.connect() as connection:
        columns = ", ".join(f"c{index} {kind}" for index, (kind, _) in enumerate(TYPES))
        connection.execute(f"CREATE TABLE t (k int PRIMARY KEY, {columns})")
    return server


def test_lists_for_any_and_all(table):
    """What psycopg sends for a list; its elements' type is the column's."""
    with psycopg3(table) as connection:
        connection.execute("INSERT INTO t (k, c5, c7, c8) VALUES (1, 1.50, 'ada', 'x'), (2, 2.50, 'bob', 'y')")
        for condition, values in [
            ("c7 = ANY(%s)", ["ada", "eve"]),
            ("c8 = ANY(%s)", ["x"]),
            ("c7 <> ALL(%s)", ["bob"]),
            ("c5 = ANY(%s)", [D("1.5")]),
            ("k = ANY(%s)", [1, 7]),
            ("k < ALL(%s)", [2, 3]),
        ]:
            got = connection.execute(f"SELECT k FROM t WHERE {condition}", [values]).fetchall()
            assert got == [(1,)], condition


def address(server):
    host, port = server.pg.rsplit(":", 1)
    return {"host": host, "port": int(port), "user": "test"}


def psycopg3(server, **options):
    return psycopg.connect(**address(server), dbname="clink", autocommit=True, connect_timeout=10, **options)


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_values(table, binary):
    fmt = "%b" if binary else "%t"
    with psycopg3(table) as connection, connection.cursor(binary=binary) as cursor:
        for index, (kind, values) in enumerate(TYPES):
            for value in values:
                where = f"{kind}: {value!r}"
                # A list of small numbers is sent as smallint[], which is no int[].
                given = f"{fmt}::{kind}"
                cursor.execute(f"INSERT INTO t (k, c{index}) VALUES (1, {given})", [value])
                cursor.execute(f"SELECT c{index} FROM t WHERE k = {fmt}", [1])
                assert cursor.fetchone() == (value,), where
                if "[]" not in kind:
                    cursor.execute(f"SELECT count(*) FROM t WHERE c{index} = {given}", [value])
                    assert cursor.fetchone() == (1,), where
                cursor.execute(f"UPDATE t SET c{index} = {fmt} WHERE k = {fmt} RETURNING c{index}", [None, 1])
                assert cursor.fetchone() == (None,), where
                cursor.execute(f"DELETE FROM t WHERE k = {fmt}", [1])
                assert cursor.rowcount == 1, where


def test_psycopg_prepares_and_pipelines(table):
    with psycopg3(table, prepare_threshold=0) as connection:
        with connection.pipeline(), connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t (k, c1) VALUES (%s, %s)", [(k, k * k) for k in range(100)])
        for k in range(20):
            assert connection.execute("SELECT c1 FROM t WHERE k = %s", [k]).fetchone() == (k * k,)
        found = connection.execute("SELECT k FROM t WHERE k = ANY(%s) ORDER BY k", [[3, 5, 500]]).fetchall()
        assert found == [(3,), (5,)]
        assert connection.execute("SELECT count(*) FROM t LIMIT %s OFFSET %s", [5, 0]).fetchone() == (100,)
        assert connection.execute("SELECT %s || 'x', %s::int + 1", ["a", 4]).fetchone() == ("ax", 5)
        # The statement is planned anew when the table is another.
        connection.execute("DROP TABLE t")
        connection.execute("CREATE TABLE t (k int PRIMARY KEY, c1 int)")
        connection.execute("INSERT INTO t VALUES (3, 4)")
        assert connection.execute("SELECT c1 FROM t WHERE k = %s", [3]).fetchone() == (4,)


def test_psycopg_rows_in_portions(table):
    with psycopg3(table) as connection:
        connection.execute("INSERT INTO t (k, c1) SELECT v, v FROM (VALUES (1), (2), (3), (4), (5)) AS r (v)")
        with connection.transaction(), connection.cursor(name="c") as cursor:
            cursor.itersize = 2
            cursor.execute("SELECT k FROM t ORDER BY k")
            assert [k for (k,) in cursor] == [1, 2, 3, 4, 5]
        assert [k for (k,) in connection.cursor().stream("SELECT k FROM t ORDER BY k")] == [1, 2, 3, 4, 5]


def test_psycopg_errors_have_their_places(table):
    with psycopg3(table) as connection:
        cases = [
            ("SELECT nope FROM t WHERE k = %s", [1], "42703", 8),
            ("SELECT * FROM nope WHERE k = %s", [1], "42P01", 15),
            ("INSERT INTO t (k) VALUES (%s)", ["x"], "22P02", None),
            ("SELECT 1 / (%s::int)", [0], "22012", None),
        ]
        for sql, values, code, position in cases:
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(sql, values)
            assert caught.value.sqlstate == code, sql
            if position:
                assert caught.value.diag.statement_position == str(position), sql


def test_psycopg2(table):
    psycopg2.extras.register_uuid()
    connection = psycopg2.connect(**address(table), dbname="clink")
    with connection, connection.cursor() as cursor:
        # Everything in a block, values written into the text.
        for index, (kind, values) in enumerate(TYPES):
            for number, value in enumerate(values):
                cursor.execute(
                    f"INSERT INTO t (k, c{index}) VALUES (%s, CAST(%s AS {kind}))", [index * 10 + number, value]
                )
    with connection, connection.cursor() as cursor:
        for index, (kind, values) in enumerate(TYPES):
            for number, value in enumerate(values):
                cursor.execute(f"SELECT c{index} FROM t WHERE k = %s", [index * 10 + number])
                (got,) = cursor.fetchone()
                assert (bytes(got) if kind == "bytea" else got) == value, kind
    with connection, connection.cursor("named") as cursor:
        cursor.execute("SELECT k FROM t ORDER BY k")
        assert cursor.fetchmany(2) == [(0,), (1,)]
    with connection, connection.cursor() as cursor:
        cursor.copy_expert("COPY t (k, c1) FROM STDIN", io.StringIO("9000\t1\n9001\t\\N\n"))
    with connection, connection.cursor() as cursor:
        out = io.StringIO()
        cursor.copy_expert("COPY (SELECT k, c1 FROM t WHERE k >= 9000 ORDER BY k) TO STDOUT", out)
        assert out.getvalue() == "9000\t1\n9001\t\\N\n"
    with pytest.raises(psycopg2.errors.UniqueViolation), connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t (k) VALUES (9002), (9000)")
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM t WHERE k = 9002")
        assert cursor.fetchone() == (0,)
    timer = threading.Timer(0.3, connection.cancel)
    timer.start()
    with pytest.raises(psycopg2.errors.QueryCanceled), connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b")
    timer.join()
    connection.close()


def test_asyncpg(table):
    async def run():
        connection = await asyncpg.connect(**address(table), database="clink", timeout=10)
        try:
            for index, (kind, values) in enumerate(TYPES):
                statement = await connection.prepare(f"INSERT INTO t (k, c{index}) VALUES ($1, $2) RETURNING c{index}")
                for number, value in enumerate(values):
                    got = await statement.fetchval(index * 10 + number, value)
                    assert got == value, kind
                    got = await connection.fetchval(f"SELECT c{index} FROM t WHERE k = $1", index * 10 + number)
                    assert got == value, kind
            async with connection.transaction():
                rows = [k async for (k,) in connection.cursor("SELECT k FROM t WHERE k < $1 ORDER BY k", 20)]
            assert rows == [0, 1, 10, 11]
            with pytest.raises(asyncpg.UniqueViolationError):
                await connection.execute("INSERT INTO t (k) VALUES ($1)", 0)
            with pytest.raises(asyncpg.RaiseError):
                async with connection.transaction():
                    await connection.execute("INSERT INTO t (k) VALUES ($1)", 1000)
                    raise asyncpg.RaiseError("undo it")
            assert await connection.fetchval("SELECT count(*) FROM t WHERE k = 1000") == 0
            await connection.reset()
            records = [(9000, 1), (9001, None)]
            assert await connection.copy_records_to_table("t", records=records, columns=["k", "c1"]) == "COPY 2"
            out = io.BytesIO()
            await connection.copy_from_query("SELECT k, c1 FROM t WHERE k >= $1 ORDER BY k", 9000, output=out)
            assert out.getvalue() == b"9000\t1\n9001\t\\N\n"
        finally:
            await connection.close(timeout=10)

    asyncio.run(run())


def test_a_cancel_from_asyncpg(table):
    async def run():
        connection = await asyncpg.connect(**address(table), database="clink", timeout=10)
        try:
            slow = "SELECT count(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b"
            with pytest.raises(asyncio.TimeoutError):
                await connection.fetchval(slow, timeout=0.5)
            assert await connection.fetchval("SELECT 1", timeout=5) == 1
        finally:
            await connection.close(timeout=10)

    asyncio.run(run())


def test_settings_are_reported(server):
    with psycopg3(server, options="-c timezone=Asia/Tokyo -c statement_timeout=5s") as connection:
        assert connection.info.parameter_status("TimeZone") == "Asia/Tokyo"
        assert connection.info.timezone.key == "Asia/Tokyo"
        connection.execute("SET TIME ZONE 'America/New_York'")
        assert connection.info.parameter_status("TimeZone") == "America/New_York"
        assert connection.execute("SHOW statement_timeout").fetchone() == ("5s",)
        value = connection.execute("SELECT TIMESTAMPTZ '2024-07-01 12:00:00+00'").fetchone()[0]
        assert value == dt.datetime(2024, 7, 1, 12, tzinfo=UTC) and value.utcoffset() == dt.timedelta(hours=-4)
        connection.execute("RESET TIME ZONE")
        assert connection.info.parameter_status("TimeZone") == "Asia/Tokyo"
    assert server.connect().info.parameter_status("server_version").startswith("16")


def test_a_prepared_statement_has_one_name_everywhere(server):
    with psycopg3(server) as connection:
        connection.execute("CREATE TABLE n (a int)")
        connection.execute("PREPARE p (int) AS INSERT INTO n VALUES ($1), ($1 + 1)")
        connection.execute("EXECUTE p(5)")
        assert connection.execute("SELECT a FROM n ORDER BY a").fetchall() == [(5,), (6,)]
        result = connection.pgconn.exec_prepared(b"p", [b"7"])
        assert result.command_status == b"INSERT 0 2"
        connection.execute("DEALLOCATE p")
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            connection.execute("EXECUTE p(5)")
        assert connection.pgconn.exec_prepared(b"p", [b"7"]).error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"26000"
        connection.pgconn.prepare(b"q", b"SELECT $1::int")
        assert connection.execute("EXECUTE q(3)").fetchone() == (3,)
        connection.execute("DISCARD ALL")
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            connection.execute("EXECUTE q(3)")


DOCUMENT = {"b": [1, None, {"c": "é\"\\"}], "a": 1.5, "long": True}


def test_documents(server):
    with psycopg3(server) as connection:
        connection.execute("CREATE TABLE d (k int PRIMARY KEY, j jsonb)")
        for binary in (False, True):
            cursor = connection.cursor(binary=binary)
            placeholder = "%b" if binary else "%t"
            cursor.execute(f"INSERT INTO d VALUES ({placeholder}, {placeholder}) RETURNING j", [int(binary), Jsonb(DOCUMENT)])
            assert cursor.fetchone() == (DOCUMENT,)
            cursor.execute(f"SELECT k FROM d WHERE j = {placeholder} AND j @> {placeholder} ORDER BY k", [Jsonb(DOCUMENT), Jsonb({"a": 1.5})])
            assert cursor.fetchone() == (0,)
            cursor.execute(f"SELECT j -> 'b' -> 2 ->> {placeholder} FROM d", ["c"])
            assert cursor.fetchone() == ("é\"\\",)
    connection = psycopg2.connect(**address(server), dbname="clink")
    with connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO d VALUES (2, %s)", [psycopg2.extras.Json(DOCUMENT)])
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT j FROM d WHERE k = 2")
        assert cursor.fetchone() == (DOCUMENT,)
    connection.close()

    async def run():
        connection = await asyncpg.connect(**address(server), database="clink", timeout=10)
        text = json.dumps(DOCUMENT)
        got = await connection.fetchval("INSERT INTO d VALUES ($1, $2) RETURNING j", 3, text)
        assert json.loads(got) == DOCUMENT
        assert await connection.fetchval("SELECT count(*) FROM d WHERE j = $1", text) == 4
        await connection.close(timeout=10)

    asyncio.run(run())


def test_json_goes_through_text(server):
    with psycopg3(server) as connection:
        got = connection.execute("SELECT %s::text", [Jsonb({"a": 1})]).fetchone()
        assert got == ('{"a": 1}',)
