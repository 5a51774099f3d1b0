"""`connector = 'queryable_state'`: a second server reads the first one's live state, once and followed, over kills of both."""

import contextlib
import os
import subprocess
import sys

import psycopg
import pytest

from harness import ROOT, one, rows, wait_for

SCRIPT = ROOT / "examples/live_state/across.sql"
FOLLOWED = "(account text PRIMARY KEY, n bigint, balance numeric(38,2))"


def with_options(first, **options):
    options = {"connector": "queryable_state", "url": f"http://{first.http}", **options}
    return "WITH (" + ", ".join(f"{name} = '{value}'" for name, value in options.items()) + ")"


def payments(first, history="1 hour"):
    """The job of the first server; made by its owner."""
    with first.connect() as connection:
        connection.execute("CREATE TABLE payments (id int PRIMARY KEY, account text NOT NULL, amount numeric(12,2) NOT NULL)")
        kept = f"WITH (retain_history = '{history}')" if history else ""
        connection.execute(
            f"CREATE MATERIALIZED VIEW balances {kept} AS "
            "SELECT account, count(*) AS n, sum(amount) AS balance FROM payments GROUP BY account"
        )
        connection.execute("INSERT INTO payments VALUES (1, 'ada', 10.00), (2, 'bob', 5.50), (3, 'ada', 2.25)")


def run(server, *statements):
    with server.connect() as connection:
        for statement in statements:
            connection.execute(statement)


def read(server, query):
    with server.connect() as connection:
        return rows(connection, query)


def follow(first, second):
    """Waits until the second server shows what the first has."""
    query = "SELECT * FROM balances ORDER BY account"
    wanted = read(first, query)
    wait_for(lambda: read(second, query) == wanted)
    return [tuple(str(value) for value in row) for row in wanted]


@pytest.fixture
def both(start):
    return start("first"), start("second")


def again(server):
    """kill -9, and a start with the same addresses."""
    server.listen = ["--pg", server.pg, "--http", server.http]
    server.restart()


def test_the_script_of_the_document_with_both_servers_killed_in_the_middle(both):
    first, second = both
    script = SCRIPT.read_text()
    assert f"```text\n{script}```\n" in (ROOT / "docs/queryable-state.md").read_text(), "the document prints the script"
    host, port = first.pg.rsplit(":", 1)
    command = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", host, "-p", port, "-U", "me"]
    command += ["-v", f"http=http://{first.http}", "-v", f"second={second.pg.rsplit(':', 1)[1]}", "clink"]
    # The python that runs the tests has pyarrow.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    psql = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PATH": path},
    )
    made, changed = script.split("-- What changes on the first server")
    changed, read_back = changed.split("\\! sleep 1\n")
    try:
        psql.stdin.write(made + "\\echo made\n")
        psql.stdin.flush()
        shown = until(psql, "made")
        assert shown == ["ada|2|12.25", "bob|1|5.50"] * 2
        follow(first, second)
        again(first)
        again(second)
        psql.stdin.write("-- What changes on the first server" + changed + "\\echo changed\n")
        psql.stdin.flush()
        assert until(psql, "changed") == ["bob|1|7.50", "cyd|1|8.00"]
        follow(first, second)
        out, errors = psql.communicate(read_back, timeout=60)
    finally:
        psql.kill()
        psql.wait(10)
    assert psql.returncode == 0, errors
    *tables, arrow = out.splitlines()
    assert tables == ["bob|1|7.50", "cyd|1|8.00", "bob|7.50", "cyd|8.00", "bob|1|7.50", "cyd|1|8.00"]
    assert arrow == (
        "[{'account': 'bob', 'n': 1, 'balance': Decimal('7.50')}, {'account': 'cyd', 'n': 1, 'balance': Decimal('8.00')}]"
    )


def until(process, word):
    """The lines that a process prints before a word."""
    lines = []
    for line in process.stdout:
        if line.rstrip("\n") == word:
            return lines
        lines.append(line.rstrip("\n"))
    raise AssertionError(f"it ended: {lines} {process.stderr.read()}")


def test_changes_are_followed_while_either_is_killed(both):
    first, second = both
    payments(first)
    run(
        second,
        f"CREATE TABLE balances {FOLLOWED} {with_options(first, view='balances', mode='changes')}",
        "CREATE MATERIALIZED VIEW sums AS SELECT count(*) AS accounts, sum(n) AS n, sum(balance) AS balance FROM balances",
    )
    assert follow(first, second) == [("ada", "2", "12.25"), ("bob", "1", "5.50")]
    # The second is away while a row comes, one changes and one goes.
    second.listen = ["--pg", second.pg, "--http", second.http]
    second.kill()
    run(
        first,
        "INSERT INTO payments SELECT i, 'x' || (i % 100), i FROM generate_series(10, 20009) AS s(i)",
        "UPDATE payments SET amount = 1 WHERE account = 'x7'",
        "DELETE FROM payments WHERE account = 'bob'",
    )
    second.start()
    assert len(follow(first, second)) == 101
    # The first is away.
    again(first)
    run(first, "DELETE FROM payments WHERE account = 'ada'")
    assert len(follow(first, second)) == 100
    wanted = read(first, "SELECT count(*), sum(n), sum(balance) FROM balances")
    wait_for(lambda: read(second, "SELECT * FROM sums") == wanted)


def test_both_are_killed_and_the_follower_is_back_first(both):
    """Before any checkpoint: the first server has the past of its view from its log alone."""
    first, second = both
    payments(first)
    run(second, f"CREATE TABLE balances {FOLLOWED} {with_options(first, view='balances', mode='changes')}")
    for turn in range(3):
        with first.connect() as connection:
            for n in range(30):
                connection.execute(f"INSERT INTO payments VALUES ({100 * turn + n + 10}, 'x{n % 7}', {n})")
        follow(first, second)
        with first.connect() as connection:
            for n in range(30):
                connection.execute(f"UPDATE payments SET amount = amount + 1 WHERE id = {100 * turn + n + 10}")
        for server in both:
            server.listen = ["--pg", server.pg, "--http", server.http]
            server.kill()
        second.start()
        first.start()
        run(first, f"DELETE FROM payments WHERE id = {100 * turn + 10}")
        follow(first, second)


def test_a_time_of_the_first_is_never_seen_in_part(both):
    first, second = both
    run(
        first,
        "CREATE TABLE moves (account int PRIMARY KEY, amount int NOT NULL)",
        "INSERT INTO moves SELECT i, 100 FROM generate_series(1, 50) AS s(i)",
        "CREATE MATERIALIZED VIEW held WITH (retain_history = '1 hour') AS SELECT account, sum(amount) AS amount FROM moves GROUP BY account",
    )
    run(
        second,
        f"CREATE TABLE held (account int PRIMARY KEY, amount bigint) {with_options(first, view='held', mode='changes')}",
    )
    wait_for(lambda: read(second, "SELECT sum(amount) FROM held") == [(5000,)])
    with first.connect() as writer, second.connect() as reader:
        for turn in range(40):
            a, b = turn % 50 + 1, (turn * 7 + 3) % 50 + 1
            if a != b:
                writer.execute(
                    f"UPDATE moves SET amount = CASE account WHEN {a} THEN amount - 5 ELSE amount + 5 END "
                    f"WHERE account IN ({a}, {b})"
                )
            assert one(reader, "SELECT sum(amount) FROM held") == 5000
        wanted = rows(writer, "SELECT * FROM held ORDER BY account")
    wait_for(lambda: read(second, "SELECT * FROM held ORDER BY account") == wanted)


def test_what_history_cannot_serve_fails_the_table_with_a_hint(both):
    first, second = both
    payments(first, history=None)
    run(second, f"CREATE TABLE balances {FOLLOWED} {with_options(first, view='balances', mode='changes')}")
    follow(first, second)
    # Without retain_history nothing of before a restart is known.
    again(first)

    def failed():
        (job,) = [job for job in second.json("/api/v1/jobs")["jobs"] if job["name"] == "public.balances"]
        return job["status"] == "FAILED"

    wait_for(failed)
    with second.connect() as connection, pytest.raises(psycopg.Error) as caught:
        connection.execute("SELECT * FROM balances")
    assert caught.value.sqlstate == "55000" and "retain_history" in caught.value.diag.message_detail


def test_operators_slots_and_the_names_of_the_original(both):
    first, second = both
    payments(first)
    with first.connect() as connection:
        connection.execute(
            "CREATE MATERIALIZED VIEW counted AS SELECT n, count(*) AS accounts FROM "
            "(SELECT account, count(*) AS n FROM payments GROUP BY account) AS a GROUP BY n"
        )
    jobs = {job["name"]: job["id"] for job in first.json("/api/v1/jobs")["jobs"]}
    host, port = first.http.rsplit(":", 1)
    original = {"connector": "queryable_state", "coordinator_host": host, "coordinator_port": port, "format": "json"}
    columns = "(account text, n bigint, balance numeric(38,2))"

    def options(**given):
        return "WITH (" + ", ".join(f"{name} = '{value}'" for name, value in {**original, **given}.items()) + ")"

    found = first.json("/api/v1/jobs/counted/operators")["operators"]
    (operator,) = [operator for operator in found if operator["operator"] == "root/input"]
    of_operator = ", ".join(f'"{column["name"]}" {column["type"]}' for column in operator["parts"][0]["columns"])
    run(
        second,
        f"CREATE TABLE by_id {columns} {options(job_id=jobs['public.balances'])}",
        f"CREATE TABLE by_role {columns} {options(job_id=jobs['public.balances'], role='balances', slot='agg', batch_size=1)}",
        f"CREATE TABLE one_row {columns} {options(job_id=jobs['public.balances'], limit=1)}",
        f"CREATE TABLE inside ({of_operator}) {with_options(first, job='counted', operator='root/input')}",
        f"CREATE TABLE of_table (id int PRIMARY KEY, amount numeric(12,2)) {with_options(first, view='payments')}",
    )
    wanted = [("ada", 2, 12.25), ("bob", 1, 5.5)]
    for table in ("by_id", "by_role"):
        found = read(second, f"SELECT * FROM {table} ORDER BY account")
        assert [(account, n, float(balance)) for account, n, balance in found] == wanted
    assert read(second, "SELECT count(*) FROM one_row") == [(1,)]
    assert read(second, "SELECT * FROM inside ORDER BY 1") == [(1, 1), (2, 1)]
    assert read(second, "SELECT id FROM of_table ORDER BY id") == [(1,), (2,), (3,)]
    # Two operators with state: which one has to be said.
    with pytest.raises(psycopg.Error) as caught:
        run(second, f"CREATE TABLE unclear (n bigint) {options(job_id=jobs['public.counted'])}")
    assert caught.value.sqlstate == "55000" and "counted" in str(caught.value)


def test_what_is_wrong_is_refused_when_the_table_is_made(both):
    first, second = both
    payments(first)
    run(first, "CREATE MATERIALIZED VIEW plain AS SELECT account, amount FROM payments")
    with contextlib.closing(second.connect()) as connection:
        for columns, options, code, hint in [
            ("(account text)", {"view": "nothing"}, "42P01", None),
            ("(account text)", {"view": "balances", "url": "http://127.0.0.1:1"}, "08001", "curl http://127.0.0.1:1/"),
            ("(account text)", {"view": "balances", "url": "127.0.0.1"}, "22023", "http://127.0.0.1:8081"),
            ("(account text)", {"view": "balances", "url": "https://127.0.0.1"}, "0A000", None),
            ("(acount text)", {"view": "balances"}, "42703", 'Perhaps you meant "account"'),
            ("(balance numeric(12,2))", {"view": "balances"}, "42804", "numeric(38,2)"),
            ("(account text, n bigint)", {"view": "balances", "mode": "changes"}, "42P16", "PRIMARY KEY (account)"),
            ("(account text, n bigint PRIMARY KEY)", {"view": "balances", "mode": "changes"}, "42P16", "PRIMARY KEY (account)"),
            ("(account text PRIMARY KEY)", {"view": "plain", "mode": "changes"}, "0A000", "GROUP BY"),
            ("(account text)", {"view": "balances", "viev": "x"}, "22023", "view"),
        ]:
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(f"CREATE TABLE wrong {columns} {with_options(first, **options)}")
            assert caught.value.sqlstate == code, (options, caught.value)
            assert caught.value.diag.message_hint, options
            assert hint is None or hint in caught.value.diag.message_hint, (options, caught.value.diag.message_hint)
