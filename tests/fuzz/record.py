"""Writes down what clients send to a server: the sessions that tests/hostile_bytes.rs changes at random.

    CLINK_BIN=… ~/.cache/clink-venv/bin/python tests/fuzz/record.py

Each connection is a file in tests/fuzz/sessions, named after its client. Run it when a client should send something new;
the Java and node clients are those of tests/e2e.
"""

import asyncio
import contextlib
import datetime as dt
import decimal
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import asyncpg
import psycopg
import psycopg2
import sqlalchemy
from psycopg.types.json import Jsonb

HERE = Path(__file__).resolve().parent
SESSIONS = HERE / "sessions"
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import Server  # noqa: E402

# No more of a connection is kept: what follows is more of the same.
BYTES_MAX = 24_000
# No more connections of one client are kept.
CONNECTIONS_MAX = 4

TABLE = """CREATE TABLE t (id int PRIMARY KEY, s text, n numeric(12,2), f double precision, b boolean, x bytea, d date,
    ts timestamptz, i interval, u uuid, a int[], j jsonb)"""
VALUES = [
    1, "é '\"", decimal.Decimal("12.50"), 0.1, True, b"\0\xff", dt.date(2020, 2, 29),
    dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc), dt.timedelta(days=1, seconds=2),
    uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), [1, 2],
]
COLUMNS = "id, s, n, f, b, x, d, ts, i, u, a"


class Recorder:
    """Stands between a client and the server."""

    def __init__(self, address, name):
        self.address, self.name = address, name
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        number = 0
        while True:
            client, _ = self.listener.accept()
            host, port = self.address.rsplit(":", 1)
            server = socket.create_connection((host, int(port)))
            path = SESSIONS / f"{self.name}-{number}.bin" if number < CONNECTIONS_MAX else None
            number += 1
            threading.Thread(target=self.pump, args=(client, server, path), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, None), daemon=True).start()

    @staticmethod
    def pump(source, sink, path):
        kept = b""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept = (kept + data)[:BYTES_MAX]
                if path:
                    path.write_bytes(kept)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def psql(recorder):
    commands = [r"\d", r"\dt", r"\d t", r"\l", "SELECT * FROM t", "SELECT nope", r"\copy t (id, s) FROM STDIN"]
    subprocess.run(
        ["psql", "-X", "-h", recorder.host, "-p", str(recorder.port), "-U", "me", "clink"]
        + [word for command in commands for word in ("-c", command)],
        input="50\tx\n", capture_output=True, text=True, timeout=60,
    )


def psycopg3(recorder):
    options = {"host": recorder.host, "port": recorder.port, "user": "me", "dbname": "clink", "autocommit": True}
    for binary in (False, True):
        with psycopg.connect(**options, prepare_threshold=0) as connection, connection.cursor(binary=binary) as cursor:
            placeholders = ", ".join(["%b" if binary else "%t"] * (len(VALUES) - 1))
            cursor.execute("DELETE FROM t WHERE id = %s", [1])
            with contextlib.suppress(psycopg.Error):
                cursor.execute(f"INSERT INTO t ({COLUMNS}) VALUES ({placeholders}, ARRAY[1, 2])", VALUES[:-1])
            with contextlib.suppress(psycopg.Error):
                cursor.execute("UPDATE t SET j = %s WHERE id = %s", [Jsonb({"a": 1}), 1])
            cursor.execute("SELECT * FROM t WHERE id = %s", [1])
            with connection.transaction(), connection.cursor(name="c") as named:
                named.execute("SELECT id FROM t ORDER BY id")
                named.fetchmany(1)
            with connection.pipeline():
                for number in range(3):
                    connection.execute("SELECT %s::int + 1", [number])
            with cursor.copy(f"COPY t (id, s) TO STDOUT {'(FORMAT binary)' if binary else ''}") as copy:
                list(copy)
            with contextlib.suppress(psycopg.Error), cursor.copy("COPY t (id, s) FROM STDIN") as copy:
                copy.write_row((60 + int(binary), "copied"))
            with contextlib.suppress(psycopg.Error):
                cursor.execute("SELECT 1/0")


def psycopg_2(recorder):
    connection = psycopg2.connect(host=recorder.host, port=recorder.port, user="me", dbname="clink")
    with connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO t (id, s) VALUES (%s, %s) ON CONFLICT DO NOTHING", [2, "a'b"])
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, s FROM t WHERE id = ANY(%s)", [[1, 2]])
        cursor.fetchall()
    with connection, connection.cursor() as cursor:
        cursor.copy_expert("COPY t (id, s) TO STDOUT", io.StringIO())
    connection.close()


def asyncpg_(recorder):
    async def run():
        connection = await asyncpg.connect(host=recorder.host, port=recorder.port, user="me", database="clink")
        await connection.execute("DELETE FROM t WHERE id = 3")
        names = ", ".join(f"${number}" for number in range(1, len(VALUES) + 1))
        with contextlib.suppress(asyncpg.PostgresError):
            await connection.fetch(f"INSERT INTO t ({COLUMNS}) VALUES ({names}) RETURNING *", 3, *VALUES[1:])
        async with connection.transaction():
            async for _ in connection.cursor("SELECT id FROM t WHERE id < $1", 100):
                pass
        with contextlib.suppress(asyncpg.PostgresError):
            await connection.copy_records_to_table("t", records=[(70, "x")], columns=["id", "s"])
        await connection.copy_from_query("SELECT id FROM t", output=io.BytesIO())
        await connection.close()

    asyncio.run(run())


def sqlalchemy_(recorder):
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://me@{recorder.host}:{recorder.port}/clink")
    inspector = sqlalchemy.inspect(engine)
    for ask in (
        inspector.get_table_names,
        lambda: inspector.get_columns("t"),
        lambda: inspector.get_pk_constraint("t"),
        lambda: inspector.get_foreign_keys("t"),
        lambda: inspector.get_indexes("t"),
    ):
        with contextlib.suppress(sqlalchemy.exc.SQLAlchemyError):
            ask()
    engine.dispose()


def jdbc(recorder):
    source = HERE.parent / "e2e" / "clients" / "Jdbc.java"
    command = ["java", "-XX:+UseSerialGC", "-Xmx256m", "-cp", "/usr/share/java/postgresql.jar", str(source)]
    subprocess.run([*command, f"{recorder.host}:{recorder.port}"], capture_output=True, timeout=200)


def node(recorder):
    script = HERE.parent / "e2e" / "clients" / "node_pg.js"
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    environment = {**os.environ, "NODE_PATH": str(cache / "clink-node" / "node_modules")}
    command = ["node", str(script), f"{recorder.host}:{recorder.port}"]
    subprocess.run(command, capture_output=True, timeout=100, env=environment)


def main():
    shutil.rmtree(SESSIONS, ignore_errors=True)
    SESSIONS.mkdir()
    clients = {"psql": psql, "psycopg": psycopg3, "psycopg2": psycopg_2, "asyncpg": asyncpg_, "sqlalchemy": sqlalchemy_}
    for name, run in {**clients, "jdbc": jdbc, "node": node}.items():
        with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "data") as server:
            with server.connect() as connection:
                connection.execute(TABLE)
            run(Recorder(server.pg, name))
    for path in sorted(SESSIONS.iterdir()):
        print(f"{path.stat().st_size:>8} {path.name}")


if __name__ == "__main__":
    main()
