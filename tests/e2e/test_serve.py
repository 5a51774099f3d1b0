"""The command line: ready line, addresses, clean stop, exit codes, restart."""

import socket
import subprocess

import pytest

from harness import READY, binary, cpu_share, one, rows


def run(*args):
    """Runs `clink serve` with flags that make it exit at once."""
    return subprocess.run([binary(), "serve", *args], capture_output=True, text=True, timeout=60)


def test_one_ready_line_and_a_clean_stop(server):
    assert READY.fullmatch(server.ready_line)
    for address in (server.pg, server.http):
        host, port = address.rsplit(":", 1)
        assert host == "127.0.0.1" and int(port) > 0
    with server.connect() as connection:
        assert one(connection, "SELECT 1") == 1
        # An idle session does not hold up the stop.
        code, rest = server.stop()
    assert (code, rest) == (0, "")


def test_an_idle_server_rests(start):
    """Also when checkpoints are due and there is nothing new to keep."""
    server = start(flags=["--checkpoint-interval", "100ms"])
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (k int, v int)")
        for number in range(10):
            connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS SELECT k, sum(v) AS s FROM t GROUP BY k")
        connection.execute("INSERT INTO t SELECT g % 100, g FROM generate_series(1, 1000) AS g")
        connection.execute("CHECKPOINT")
        assert any(cpu_share(server) < 0.05 for _ in range(20)), "an idle server goes on working"
        assert sum(cpu_share(server) for _ in range(4)) / 4 < 0.1, "and begins to work again by itself"


def test_interrupt_stops_cleanly(server):
    server.process.send_signal(2)
    assert server.process.wait(30) == 0


def test_off_opens_nothing(start):
    server = start("pg", http="off")
    assert server.http is None
    with server.connect() as connection:
        assert one(connection, "SELECT 2") == 2
    server = start("http", pg="off")
    assert server.pg is None
    assert server.json("/api/v1/health")["ok"] is True


@pytest.mark.parametrize(
    "flags, word",
    [
        (["--pg", "0.0.0.0:0"], "authentication"),
        (["--http", "0.0.0.0:0"], "authentication"),
        (["--pg", "[::]:0"], "authentication"),
        (["--pg", "off", "--http", "off"], "off"),
        (["--pg", "nonsense"], "--pg"),
        (["--workers", "0"], "--workers"),
        (["--state-backend", "nosuch:///tmp/x"], "--state-backend"),
        (["--state-backend", "file:///tmp/x?a=1"], "no parameter"),
        (["--checkpoint-dir", "s3://bucket/x"], "--checkpoint-dir"),
        (["--checkpoint-interval", "soon"], "--checkpoint-interval"),
        (["--retained-checkpoints", "0"], "--retained-checkpoints"),
        (["--restore-from", "here"], "--restore-from"),
        (["--memory", "much"], "--memory"),
        (["--log", "loud"], "--log"),
        (["--fast"], "--fast"),
    ],
)
def test_wrong_flags_exit_with_2(tmp_path, flags, word):
    for listen in ("--pg", "--http"):
        if listen not in flags:
            flags = [*flags, listen, "127.0.0.1:0"]
    done = run("--data-dir", str(tmp_path / "data"), *flags)
    assert done.returncode == 2, done
    assert word in done.stderr and done.stdout == ""
    assert not (tmp_path / "data").exists(), "a refused start leaves nothing behind"


def test_a_data_directory_has_one_server(server):
    done = run("--data-dir", str(server.data_dir), "--pg", "127.0.0.1:0", "--http", "127.0.0.1:0")
    assert done.returncode == 1 and done.stdout == "", done
    assert str(server.data_dir) in done.stderr, done.stderr
    with server.connect() as connection:
        assert one(connection, "SELECT 1") == 1


def test_a_taken_port_exits_with_1(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "127.0.0.1:%d" % taken.getsockname()[1]
        done = run("--data-dir", str(tmp_path / "data"), "--pg", address, "--http", "127.0.0.1:0")
    assert done.returncode == 1 and done.stdout == "", done
    assert address in done.stderr, done.stderr


def test_settings_come_from_the_environment(tmp_path, monkeypatch, start):
    monkeypatch.setenv("CLINK_LOG", "error")
    server = start()
    assert "INFO" not in server.log()
    monkeypatch.setenv("CLINK_WORKERS", "many")
    done = run("--data-dir", str(tmp_path / "other"), "--pg", "127.0.0.1:0", "--http", "off")
    assert done.returncode == 2 and "--workers" in done.stderr, done


def test_a_restart_keeps_everything(server):
    with server.connect() as connection:
        connection.execute("CREATE SCHEMA s")
        connection.execute("CREATE TABLE s.t (id bigint PRIMARY KEY, name text DEFAULT 'none', amount numeric(10,2))")
        connection.execute('CREATE TABLE "Odd name" (a int)')
        connection.execute("INSERT INTO s.t (id, amount) VALUES (1, 1.50), (2, NULL)")
        connection.execute("INSERT INTO s.t VALUES (3, 'x', -0.25)")
        connection.execute("DELETE FROM s.t WHERE id = 2")
        connection.execute("CREATE VIEW plain AS SELECT id, name FROM s.t WHERE id > 1")
        connection.execute("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n, sum(amount) AS amount FROM s.t")
        connection.execute("CREATE MATERIALIZED VIEW twice AS SELECT n * 2 AS n FROM total")
        connection.execute("CREATE TABLE gone (a int)")
        connection.execute("DROP TABLE gone")
        queries = [
            "SELECT * FROM s.t ORDER BY id",
            "SELECT * FROM plain",
            "SELECT * FROM total",
            "SELECT * FROM twice",
            'SELECT * FROM "Odd name"',
            "SHOW TABLES",
            "SHOW VIEWS",
            "SHOW CREATE TABLE s.t",
            "SHOW CREATE MATERIALIZED VIEW total",
        ]
        before = [rows(connection, query) for query in queries]
    assert [len(answer) for answer in before] == [2, 1, 1, 1, 0, 2, 3, 1, 1]
    for stop in (server.stop, server.kill):
        stop()
        server.workers = server.workers % 3 + 1
        server.start()
        with server.connect() as connection:
            assert [rows(connection, query) for query in queries] == before
    # Defaults and keys still hold, and views follow.
    with server.connect() as connection:
        connection.execute("INSERT INTO s.t (id) VALUES (4)")
        assert rows(connection, "SELECT * FROM s.t WHERE id = 4") == [(4, "none", None)]
        assert rows(connection, "SELECT * FROM twice") == [(6,)]
        with pytest.raises(Exception) as refused:
            connection.execute("INSERT INTO s.t (id) VALUES (4)")
        assert refused.value.sqlstate == "23505"
