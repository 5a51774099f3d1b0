"""The protocol message by message: what clients rely on, and where other servers went wrong."""

import struct

import pytest

from harness import one
from messages import SYNC, Raw, all_rows, bind, describe, execute, fields, message, parse, query


@pytest.fixture
def raw(server):
    with Raw(server) as raw:
        yield raw


@pytest.mark.parametrize("text", [";", "", "   ", "-- c", ";;;", "/* a */ ; -- b"])
def test_empty_texts(raw, text):
    assert raw.ask(query(text))[0] == "IZ"
    kinds, _ = raw.ask(parse(text), bind(), describe(b"S"), describe(b"P"), execute(), SYNC)
    assert kinds == "12tnnIZ"
    assert all_rows(raw.ask(query("SELECT 1"))[1]) == [[b"1"]]


def test_several_statements_in_one_message(raw):
    text = "SELECT 1; SELECT 2 AS b, 'x;y' AS c; CREATE TABLE m (a int); INSERT INTO m VALUES (1); SELECT a FROM m"
    kinds, found = raw.ask(query(text))
    assert kinds == "TDCTDCCCTDCZ"
    assert all_rows(found) == [[b"1"], [b"2", b"x;y"], [b"1"]]
    kinds, found = raw.ask(query("SELECT 1; SELECT 1/0; SELECT 3"))
    assert kinds == "TDCTEZ" or kinds == "TDCEZ"
    assert fields(dict(found)["E"])["C"] == "22012"


def test_rows_in_portions(raw):
    kinds, found = raw.ask(
        parse("SELECT x FROM (VALUES (10), (20), (30), (40), (50)) AS t (x) ORDER BY x"),
        bind(portal="c1"),
        execute("c1", 2),
        execute("c1", 2),
        execute("c1", 2),
        SYNC,
    )
    assert kinds == "12DDsDDsDCZ"
    assert all_rows(found) == [[b"10"], [b"20"], [b"30"], [b"40"], [b"50"]]


def test_a_large_result_in_portions_takes_no_memory(server):
    with Raw(server) as raw:
        raw.ask(query("BEGIN"))
        raw.ask(parse("SELECT g, 'some text' FROM generate_series(1, 1000000) AS s (g)"), bind(portal="c"), SYNC)
        raw.ask(execute("c", 1_000), SYNC)
        before = server.rss_bytes()
        got = 1_000
        while got < 200_000:
            kinds, _ = raw.ask(execute("c", 10_000), SYNC)
            assert kinds == "D" * 10_000 + "sZ"
            got += 10_000
        assert server.rss_bytes() - before < 64 << 20


@pytest.mark.parametrize("form", [0, 1])
def test_null_of_no_type(server, raw, form):
    with server.connect() as connection:
        connection.execute("CREATE TABLE n (ts timestamp, i int)")
    kinds, _ = raw.ask(
        parse("INSERT INTO n VALUES ($1, $2)", types=[0, 0]), bind([None, None], formats=[form]), execute(), SYNC
    )
    assert kinds == "12CZ"
    with server.connect() as connection:
        assert connection.execute("SELECT ts, i FROM n").fetchall() == [(None, None)]


def test_what_statements_describe(raw):
    raw.ask(query("CREATE TABLE d (a int PRIMARY KEY, b text)"))
    for text, shown, tag in [
        ("INSERT INTO d VALUES (1, 'x')", "n", b"INSERT 0 1"),
        ("UPDATE d SET b = 'y' WHERE a = 1", "n", b"UPDATE 1"),
        ("DELETE FROM d WHERE a = 7", "n", b"DELETE 0"),
        ("CREATE TABLE e (a int)", "n", b"CREATE TABLE"),
        ("SELECT a, b FROM d", "T", b"SELECT 1"),
        ("UPDATE d SET b = 'z' RETURNING b", "T", b"UPDATE 1"),
    ]:
        kinds, _ = raw.ask(parse(text), describe(b"S"), SYNC)
        assert kinds == f"1t{shown}Z", text
        rows = "D" if shown == "T" else ""
        kinds, found = raw.ask(bind(), describe(b"P"), execute(), SYNC)
        assert kinds == f"2{shown}{rows}CZ", text
        assert dict(found)["C"] == tag + b"\0", text
    assert all_rows(raw.ask(query("SELECT a, b FROM d"))[1]) == [[b"1", b"z"]]


def test_a_copy_that_fails_leaves_the_session_in_step(raw):
    # The client sends its rows before it hears that there is no such table.
    rows = [message(b"d", b"1,2\n")] * 1_000
    raw.send(query("COPY missing FROM STDIN (FORMAT csv)"), *rows, message(b"c"))
    kinds = "".join(kind for kind, _ in raw.until_ready())
    assert kinds == "EZ"
    assert all_rows(raw.ask(query("SELECT 1"))[1]) == [[b"1"]]
    kinds, _ = raw.ask(query("COPY (SELECT 1) TO STDOUT"))
    assert kinds == "HdcCZ"
    raw.ask(query("CREATE TABLE c (a int)"))
    raw.send(query("COPY c FROM STDIN"))
    assert raw.next()[0] == "G"
    kinds, found = raw.ask(message(b"d", b"1\n2\nx\n4\n"), message(b"c"))
    assert kinds == "EZ" and "line 3" in fields(found[0][1])["D"], fields(found[0][1])
    raw.send(query("COPY c FROM STDIN"))
    assert raw.next()[0] == "G"
    kinds, found = raw.ask(message(b"d", b"1\n2\n"), message(b"f", b"no more\0"))
    assert kinds == "EZ" and "no more" in fields(found[0][1])["M"]
    assert all_rows(raw.ask(query("SELECT count(*) FROM c"))[1]) == [[b"0"]]


@pytest.mark.parametrize(
    "frame, code",
    [
        (message(b"B", b"\0\0\0"), "08P01"),
        (message(b"B", b"\0\0\0\0\0\1\0\0\0\5ab"), "08P01"),
        (message(b"P", b"\0SELECT 1\0\0\5"), "08P01"),
        (message(b"E", b"\0\0"), "08P01"),
        (message(b"D", b""), "08P01"),
        (message(b"C", b"Sx"), "08P01"),
        (message(b"S", b"x"), "08P01"),
        (message(b"P", b"\0SELECT '\xff'\0\0\0"), "22021"),
    ],
)
def test_messages_cut_short(raw, frame, code):
    """The session goes on behind the next Sync."""
    kinds, found = raw.ask(frame, parse("SELECT 1"), SYNC)
    assert kinds == "EZ" and fields(found[0][1])["C"] == code
    assert all_rows(raw.ask(query("SELECT 1"))[1]) == [[b"1"]]
    kinds, found = raw.ask(message(b"Q", b"SELECT 1"))
    assert kinds == "EZ" and fields(found[0][1])["C"] == "08P01"
    assert all_rows(raw.ask(query("SELECT 2"))[1]) == [[b"2"]]


@pytest.mark.parametrize(
    "frame, code, words",
    [
        (b"Q" + struct.pack("!i", 3), "08P01", "message length"),
        (b"Q" + struct.pack("!i", -1), "08P01", "message length"),
        (b"S" + struct.pack("!i", 20_000), "08P01", "message length"),
        (b"Q" + struct.pack("!i", (64 << 20) + 1), "54000", "67108864"),
        (b"y" + struct.pack("!i", 4), "08P01", "message type 121"),
        (b"F" + struct.pack("!i", 4), "08P01", "message type 70"),
    ],
)
def test_frames_that_cannot_be(server, raw, frame, code, words):
    """Nobody knows where the next message begins: the connection ends, and says why."""
    raw.send(frame)
    kind, body = raw.next()
    said = fields(body)
    assert (kind, said["S"], said["C"]) == ("E", "FATAL", code) and words in said["M"], said
    assert raw.next() is None
    with server.connect() as connection:
        assert one(connection, "SELECT 1") == 1


def test_an_error_in_a_block_stays_one(raw):
    raw.ask(query("BEGIN"))
    kinds, found = raw.ask(message(b"B", b"\0"), SYNC)
    assert kinds == "EZ" and found[-1][1] == b"E"
    assert fields(dict(raw.ask(query("SELECT 1"))[1])["E"])["C"] == "25P02"
    assert raw.ask(query("ROLLBACK"))[1][-1][1] == b"I"
