"""POST /api/v1/sql."""

import json
import urllib.error
import urllib.request

import pyarrow.ipc
import pytest


def post(server, body, headers=None):
    request = urllib.request.Request(
        f"http://{server.http}/api/v1/sql", data=body.encode(), headers=headers or {"Content-Type": "text/plain"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def lines(body):
    return [json.loads(line) for line in body.decode().splitlines()]


def test_statements_and_rows(server):
    status, body = post(server, "CREATE TABLE t (a int PRIMARY KEY, b text); INSERT INTO t VALUES (1, 'x'), (2, NULL)")
    assert (status, json.loads(body)) == (200, {"tag": "INSERT", "rows": 2, "notices": []})
    status, body = post(server, "SELECT a, b, a * 1.5 AS c FROM t ORDER BY a")
    assert status == 200 and lines(body) == [{"a": 1, "b": "x", "c": 1.5}, {"a": 2, "b": None, "c": 3.0}]
    status, body = post(server, "SELECT a FROM t WHERE false")
    assert (status, body) == (200, b"")
    as_json = {"Content-Type": "application/json"}
    status, body = post(server, json.dumps({"sql": "SELECT a + $1 AS d FROM t WHERE b = $2", "params": [10, "x"]}), as_json)
    assert status == 200 and lines(body) == [{"d": 11}]
    arrow = {"Accept": "application/vnd.apache.arrow.stream"}
    status, body = post(server, "SELECT a FROM t ORDER BY a", arrow)
    assert pyarrow.ipc.open_stream(body).read_all().to_pydict() == {"a": [1, 2]}


def test_arrays_as_parameters(server):
    as_json = {"Content-Type": "application/json"}
    for sql, values, wanted in [
        ("SELECT 1 = ANY($1) AS found", [[1, 2]], True),
        ("SELECT 'b' = ANY($1) AS found", [["a", 'b"', None]], None),
        ("SELECT 1.50::numeric(5,2) <> ALL($1) AS found", [[1.5]], False),
        ("SELECT array_length($1::text[], 1) AS found", [["a,b", "c"]], 2),
    ]:
        status, body = post(server, json.dumps({"sql": sql, "params": values}), as_json)
        assert status == 200 and lines(body) == [{"found": wanted}], (sql, body)
    status, body = post(server, json.dumps({"sql": "SELECT $1", "params": ["a\0"]}), as_json)
    assert status == 422 and json.loads(body)["sqlstate"] == "22021"
    status, body = post(server, json.dumps({"sql": "SELECT 'a\0'"}), as_json)
    assert status == 422 and json.loads(body)["sqlstate"] == "22021"


def test_wrong_requests(server):
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://{server.http}/api/v1/sql", timeout=60)
    with caught.value as error:
        answer = json.loads(error.read())
        assert error.code == 405 and "GET" not in answer["hint"] and "POST" in answer["hint"]
    request = urllib.request.Request(f"http://{server.http}/api/v1/sql", data=b"SELECT '\xff'")
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=60)
    with caught.value as error:
        assert json.loads(error.read())["sqlstate"] == "22021"


def test_errors(server):
    for sql, status, code in [
        ("SELEC 1", 422, "42601"),
        ("SELECT * FROM nope", 404, "42P01"),
        ("SELECT 1/0", 422, "22012"),
        ("SELECT $1", 422, "42P02"),
        ("COPY (SELECT 1) TO STDOUT", 422, "0A000"),
        ("", 422, "42601"),
    ]:
        got, body = post(server, sql)
        fields = json.loads(body)
        assert (got, fields["sqlstate"]) == (status, code), (sql, got, fields)
        assert set(fields) == {"error", "sqlstate", "detail", "hint", "position"} and fields["hint"] is not None or code == "22012", fields
    for body in ["{", "[]", '{"sql": 1}', '{"sql": "SELECT 1", "more": 2}']:
        assert post(server, body, {"Content-Type": "application/json"})[0] == 400
    status, body = post(server, "SELECT '" + "x" * (17 << 20) + "'")
    assert status == 413 and "16777216" in json.loads(body)["error"]
    # What fails behind the first rows is a last line.
    status, body = post(server, "SELECT 10000 / (20000 - v) AS q FROM generate_series(1, 30000) AS g (v)")
    assert status == 200 or json.loads(body)["sqlstate"] == "22012"
    if status == 200:
        assert lines(body)[-1]["sqlstate"] == "22012"


def test_a_block_ends_with_its_request(server):
    post(server, "CREATE TABLE t (a int)")
    assert post(server, "BEGIN; INSERT INTO t VALUES (1)")[0] == 200
    assert lines(post(server, "SELECT count(*) AS n FROM t")[1]) == [{"n": 0}]
    assert post(server, "BEGIN; INSERT INTO t VALUES (1); COMMIT")[0] == 200
    assert lines(post(server, "SELECT count(*) AS n FROM t")[1]) == [{"n": 1}]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_only_post(server, method):
    assert server.get("/api/v1/sql", method)[0] == 405
