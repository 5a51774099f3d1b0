"""State without a server: the verbs of the command line, and what other programs see of it."""

import csv
import io
import subprocess

import duckdb
import pyarrow.ipc
import pytest

from harness import Server, binary, rows

VERB_SECONDS = 60


def verb(*args):
    """Exit code and stdout; what goes wrong is on stderr."""
    done = subprocess.run([binary(), *map(str, args)], capture_output=True, text=True, timeout=VERB_SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def data(tmp_path):
    """A data directory with two checkpoints and a savepoint between them."""
    with Server(tmp_path / "data", workers=2, flags=["--checkpoint-interval", "off"]) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, part text, v bigint)")
            connection.execute("CREATE MATERIALIZED VIEW counts AS SELECT part, count(*) AS n FROM t GROUP BY part")
            connection.execute("INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, 'a', 30)")
            connection.execute("CHECKPOINT")
            connection.execute(f"CREATE SAVEPOINT 'file://{tmp_path}/savepoint'")
            connection.execute("DELETE FROM t WHERE id = 2")
            connection.execute("CHECKPOINT")
            ids = [id for (id,) in rows(connection, "SELECT id FROM clink_catalog.checkpoints ORDER BY id")]
        server.stop()
    assert len(ids) == 2
    return tmp_path / "data", tmp_path / "savepoint", ids


def test_checkpoints_and_savepoints_are_checked(data):
    directory, savepoint, ids = data
    code, out, err = verb("checkpoint-verify", directory)
    assert (code, err) == (0, "")
    assert [line.split(":")[0] for line in out.splitlines()] == [f"checkpoint {id}" for id in reversed(ids)]
    # The newer one has all that the older has, and what changed.
    parts = [6, 4]
    assert all(f"whole, 2 tables and views, {n} parts" in line for n, line in zip(parts, out.splitlines())), out
    code, out, _ = verb("check-savepoint", savepoint)
    assert code == 0 and out.splitlines()[1:] == ["  public.t", "  public.counts"], out
    # A file that nobody names goes; nothing else does.
    (directory / "checkpoints" / "cp-5").mkdir()
    (directory / "checkpoints" / "cp-5" / "errors-3.arrow").write_bytes(b"left behind")
    (directory / "checkpoints" / "mine.txt").write_text("not clink's")
    assert verb("state-sweep", directory, "--dry-run")[1].splitlines()[-1] == "1 files would be removed"
    code, out, _ = verb("state-sweep", directory)
    assert code == 0 and out.splitlines() == [f"{directory}/checkpoints/cp-5/errors-3.arrow", "1 files removed"]
    assert verb("checkpoint-verify", directory)[0] == 0
    part = next((directory / "checkpoints" / "jobs").glob(f"*/cp-{ids[1]}/w*/*.arrow"))
    part.write_bytes(part.read_bytes()[:-1])
    code, out, _ = verb("checkpoint-verify", directory / "checkpoints")
    assert code == 1 and [line.split(": ")[1][:5] for line in out.splitlines()] == ["damag", "whole"], out
    assert verb("checkpoint-verify", directory / "nosuch")[0] == 2


def test_entries_are_rows_for_everybody(data, tmp_path):
    directory, savepoint, ids = data
    code, out, _ = verb("state-cat", directory, "--job", "counts")
    assert code == 0 and out.splitlines()[0] == "public.counts: 2 entries", out
    # The result's row and the group of 'a', which alone is left.
    assert {line.split()[2] for line in out.splitlines()[1:]} == {"rows", "groups"}
    query = "SELECT slot, count(*) AS n FROM state GROUP BY slot ORDER BY slot"
    code, out, _ = verb("state-query", savepoint, "--sql", query, "--output", "csv")
    assert code == 0 and list(csv.reader(io.StringIO(out))) == [["slot", "n"], ["groups", "2"], ["rows", "5"]]
    arrow, parquet = tmp_path / "state.arrow", tmp_path / "state.parquet"
    assert verb("state-export", savepoint, "--out", arrow)[0] == 0
    table = pyarrow.ipc.open_stream(arrow.read_bytes()).read_all()
    assert table.schema.names == ["op_id", "key_bytes", "value_bytes"] and table.num_rows == 7
    assert table.schema.metadata[b"clink.format_version"] == b"1"
    assert verb("state-export", savepoint, "--format", "parquet", "--out", parquet)[0] == 0
    found = duckdb.sql(f"SELECT slot, count(*) FROM '{parquet}' GROUP BY slot ORDER BY slot").fetchall()
    assert found == [("groups", 2), ("rows", 5)]
    # A snapshot file is a place too.
    assert verb("state-cat", arrow)[1].splitlines()[0] == f"{arrow}: 7 entries"


def test_differences_are_exactly_what_changed(data):
    directory, savepoint, ids = data
    assert verb("state-diff", savepoint, directory, "--after-checkpoint", ids[0])[:2] == (0, "0 differ\n")
    code, out, _ = verb("state-diff", savepoint, directory)
    # The row with id 2, the group 'b', and its row in the view.
    assert code == 1 and out.splitlines()[-1] == "3 differ"
    assert [line[0] for line in out.splitlines()[:-1]] == ["-", "-", "-"]
    assert verb("state-diff", savepoint, directory, "--job", "t")[1].splitlines()[-1] == "1 differ"
    code, _, err = verb("state-diff", savepoint, directory, "--job", "nosuch")
    assert code == 2 and "public.counts" in err


def test_a_running_job_is_a_place_too(start, tmp_path):
    server = start(flags=["--checkpoint-interval", "off"])
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, part text, v bigint)")
        connection.execute("CREATE MATERIALIZED VIEW counts AS SELECT part, count(*) AS n FROM t GROUP BY part")
        connection.execute("INSERT INTO t VALUES (1, 'a', 10), (2, 'b', 20), (3, 'a', 30)")
        (number,) = [job["id"] for job in server.json("/api/v1/jobs")["jobs"] if job["name"] == "public.counts"]
        job = ["--job", "counts", "--coordinator", f"http://{server.http}"]
        code, out, err = verb("state-cat", *job)
        assert (code, err) == (0, "") and out.splitlines()[0] == "public.counts: 4 entries", out
        assert {line.split()[2] for line in out.splitlines()[1:]} == {"rows", "groups"}
        by_number = ["--job", number, "--coordinator", server.http]
        assert verb("state-cat", *by_number, "--limit", 1)[1].splitlines()[-1] == "… and 3 more"
        before, parquet = tmp_path / "before.arrow", tmp_path / "state.parquet"
        assert verb("state-export", *job, "--out", before)[1] == f"4 entries in {before}\n"
        assert pyarrow.ipc.open_stream(before.read_bytes()).read_all().num_rows == 4
        # As it is now: what was answered is in it.
        assert verb("state-diff", before, *job)[:2] == (0, "0 differ\n")
        connection.execute("DELETE FROM t WHERE id = 2")
        code, out, _ = verb("state-diff", before, *job)
        assert code == 1 and [line[0] for line in out.splitlines()] == ["-", "-", "2"], out
        query = "SELECT slot, count(*) AS n FROM state GROUP BY slot ORDER BY slot"
        code, out, _ = verb("state-query", *job, "--sql", query, "--output", "csv")
        assert code == 0 and list(csv.reader(io.StringIO(out))) == [["slot", "n"], ["groups", "1"], ["rows", "1"]]
        assert verb("state-export", *job, "--format", "parquet", "--out", parquet)[0] == 0
        assert duckdb.sql(f"SELECT count(*) FROM '{parquet}'").fetchall() == [(2,)]
        # A data directory and the job that runs on it.
        connection.execute("CHECKPOINT")
        assert verb("state-diff", server.data_dir, *by_number)[:2] == (0, "0 differ\n")
        for arguments, said in [
            (["state-cat", "--job", "nothing", "--coordinator", server.http], "It has: public.t, public.counts"),
            (["state-cat", "--job", "counts", "--coordinator", "http://127.0.0.1:1"], "cannot read from http://127.0.0.1:1"),
            (["state-cat", "--job", "counts", "--coordinator", server.pg], "cannot"),
            (["state-cat", "--job", "counts", "--coordinator", "https://127.0.0.1:1"], "https is not supported"),
            (["state-cat", "--job", "counts", "--coordinator", "http://127.0.0.1:1/x"], "no address"),
            (["state-cat", *job, "--checkpoint", "1"], "no checkpoints"),
            (["state-cat", "--coordinator", server.http], "--job"),
            (["state-cat", server.data_dir, *job], "cannot be used with"),
            (["state-cat"], "PLACE"),
            (["state-diff", before], "AFTER"),
            (["state-query", *job, "--sql", "SELECT nothing FROM state"], "nothing"),
        ]:
            code, _, err = verb(*arguments)
            assert code == 2 and said in err, (arguments, code, err)
    server.stop()
    code, _, err = verb("state-cat", *job)
    assert code == 2 and "cannot read from" in err, err
