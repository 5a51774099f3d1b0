"""SIGKILL at random moments: what was acknowledged is there, once; nothing is half there."""

import random
import threading
import time

import psycopg

from harness import LONG, assert_same_rows, rows

KILLS = 200 if LONG else 20
CLIENTS = 3
ROUND_SECONDS_MAX = 0.8
IDS = 40

PER_CLIENT = "SELECT client, count(*) AS n, sum(v) AS total, min(v) AS least, max(v) AS most FROM t GROUP BY client"
DISTINCT = "SELECT count(DISTINCT v) AS n, bool_and(v > 0) AS positive FROM t"
OVERALL = "SELECT sum(n) AS n, sum(total) AS total, max(most) AS most FROM per_client"


class Connected:
    """A client that notices when its server is gone."""

    def __init__(self):
        self.failure = None

    def run(self, server):
        try:
            with server.connect() as connection:
                while True:
                    self.step(connection)
        except psycopg.OperationalError as error:
            # A statement that the server refused is a fault; a lost connection is the kill.
            if error.sqlstate is not None and error.sqlstate not in ("57P01", "57P03"):
                self.failure = error
        except BaseException as error:
            self.failure = error


class Writer(Connected):
    """Changes rows of its own in `t`; a model says what they have to be."""

    def __init__(self, number, choose):
        super().__init__()
        self.number = number
        self.choose = choose
        self.model = {}
        self.in_flight = None
        self.acknowledged = 0

    def step(self, connection):
        statement, after, count = self.next_statement()
        self.in_flight = (statement, after)
        answer = connection.execute(statement)
        assert answer.rowcount == count, (statement, answer.statusmessage, count)
        self.model = after
        self.in_flight = None
        self.acknowledged += 1

    def next_statement(self):
        after = dict(self.model)
        mine = f"client = {self.number}"
        kind = self.choose.choice(["insert", "insert", "update", "update", "delete", "upsert"])
        low = self.choose.randrange(IDS)
        touched = [id for id in after if low <= id < low + 10]
        free = [id for id in range(IDS) if id not in after]
        if kind == "insert" and free:
            fresh = self.choose.sample(free, min(len(free), self.choose.randint(1, 8)))
            values = {id: self.choose.randint(1, 100) for id in fresh}
            after |= values
            return f"INSERT INTO t VALUES {self.tuples(values)}", after, len(values)
        if kind == "upsert":
            values = {id: self.choose.randint(1, 100) for id in self.choose.sample(range(IDS), 4)}
            after |= values
            conflict = "ON CONFLICT (client, id) DO UPDATE SET v = excluded.v"
            return f"INSERT INTO t VALUES {self.tuples(values)} {conflict}", after, len(values)
        where = f"WHERE {mine} AND id >= {low} AND id < {low + 10}"
        if kind == "delete":
            for id in touched:
                del after[id]
            return f"DELETE FROM t {where}", after, len(touched)
        for id in touched:
            after[id] += 7
        return f"UPDATE t SET v = v + 7 {where}", after, len(touched)

    def tuples(self, values):
        return ", ".join(f"({self.number}, {id}, {v})" for id, v in values.items())

    def check(self, found):
        """The rows are those of the last acknowledged statement, or of the one after it, wholly."""
        if found != self.model:
            assert self.in_flight, f"client {self.number} lost what was acknowledged: {found}, expected {self.model}"
            statement, after = self.in_flight
            assert found == after, f"{statement} is there in part: {found}, expected {self.model} or {after}"
        self.model = found
        self.in_flight = None


class Definer(Connected):
    """Creates and drops objects; a model says which have to be there."""

    def __init__(self, choose):
        super().__init__()
        self.choose = choose
        self.model = {}
        self.in_flight = None
        self.acknowledged = 0

    def step(self, connection):
        statement, after = self.next_statement()
        self.in_flight = (statement, after)
        connection.execute(statement)
        self.model = after
        self.in_flight = None
        self.acknowledged += 1

    def next_statement(self):
        after = dict(self.model)
        number = self.choose.randrange(6)
        kind = self.choose.choice(["table", "view", "materialized view"])
        name = f"{kind.split()[0]}_{number}"
        if name in after:
            # What stands on a view goes with it.
            for on_it in [other for other, (_, below) in after.items() if below == name]:
                del after[on_it]
            del after[name]
            return f"DROP {kind} {name} CASCADE", after
        if kind == "table":
            after[name] = (kind, None)
            return f"CREATE TABLE {name} (a bigint, b text)", after
        base = f"materialized_{(number + 1) % 6}"
        if base in after and after[base][1] is None and self.choose.random() < 0.5:
            after[name] = (kind, base)
            return f"CREATE {kind} {name} AS SELECT count(*) AS client, max(n) AS n FROM {base}", after
        after[name] = (kind, None)
        return f"CREATE {kind} {name} AS SELECT client, count(*) AS n FROM t GROUP BY client", after

    def check(self, listed, server):
        expected = {name: kind for name, (kind, _) in self.model.items()}
        if listed != expected:
            assert self.in_flight, f"the catalog lists {listed}, expected {expected}"
            statement, after = self.in_flight
            expected = {name: kind for name, (kind, _) in after.items()}
            assert listed == expected, f"after {statement} the catalog lists {listed}, expected {expected}"
            self.model = after
        self.in_flight = None
        with server.connect() as connection:
            for name in listed:
                connection.execute(f"SELECT * FROM {name}")
                assert rows(connection, f"SHOW CREATE {listed[name]} {name}")


def kind_of(name):
    return {"table": "table", "view": "view", "materialized": "materialized view"}[name.split("_")[0]]


def check(server, writers, definer):
    with server.connect() as connection:
        table = rows(connection, "SELECT client, id, v FROM t")
        assert len({row[:2] for row in table}) == len(table), "a key stands twice"
        for writer in writers:
            writer.check({id: v for client, id, v in table if client == writer.number})
        for view, query in [("per_client", PER_CLIENT), ("distinct_values", DISTINCT), ("overall", OVERALL)]:
            by_view = sorted(rows(connection, f"SELECT * FROM {view}"), key=repr)
            assert_same_rows(by_view, sorted(rows(connection, query), key=repr), view)
        fixed = {"t", "per_client", "distinct_values", "overall"}
        listed = {name for _, name, _ in rows(connection, "SHOW TABLES") + rows(connection, "SHOW VIEWS")} - fixed
        for name, (kind, base) in definer.model.items():
            if name in listed and kind != "table" and base is None:
                by_view = sorted(rows(connection, f"SELECT client, n FROM {name}"))
                assert by_view == sorted(rows(connection, "SELECT client, n FROM per_client")), name
    definer.check({name: kind_of(name) for name in listed}, server)
    jobs = server.json("/api/v1/jobs")["jobs"]
    assert all(job["status"] == "RUNNING" for job in jobs), jobs


def test_kills(server):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    choose = random.Random(seed)
    with server.connect() as connection:
        connection.execute("CREATE TABLE t (client int, id int, v bigint NOT NULL, PRIMARY KEY (client, id))")
        connection.execute(f"CREATE MATERIALIZED VIEW per_client AS {PER_CLIENT}")
        connection.execute(f"CREATE MATERIALIZED VIEW distinct_values AS {DISTINCT}")
        connection.execute(f"CREATE MATERIALIZED VIEW overall AS {OVERALL}")
    writers = [Writer(number, random.Random(seed + number)) for number in range(CLIENTS)]
    definer = Definer(random.Random(seed - 1))
    clients = [*writers, definer]
    starts = []
    for kill in range(KILLS):
        threads = [threading.Thread(target=client.run, args=(server,)) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(choose.random() * ROUND_SECONDS_MAX)
        server.kill()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a client hangs"
        failures = [client.failure for client in clients if client.failure]
        assert not failures, (kill, failures)
        server.workers = choose.randint(1, 3)
        begin = time.monotonic()
        server.start()
        starts.append(time.monotonic() - begin)
        check(server, writers, definer)
    done = [client.acknowledged for client in clients]
    print(f"{KILLS} kills, statements acknowledged by each client: {done}")
    print(f"seconds to start: first {starts[0]:.2f}, last {starts[-1]:.2f}, most {max(starts):.2f}")
    assert min(done) >= KILLS // 4
