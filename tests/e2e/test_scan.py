"""A large view read as Arrow while it is written: exact types, one time, little memory."""

import random
import threading
import urllib.request

import pyarrow
import pyarrow.compute
import pyarrow.ipc

from harness import LONG, Background, Server, one

ROWS = 5_000_000 if LONG else 1_000_000
SLICE = 250_000
PAIRS_PER_WRITE = 20
MEMORY_BYTES_MAX = 64 << 20

SCHEMA = pyarrow.schema(
    [
        ("id", pyarrow.int64()),
        ("amount", pyarrow.int64()),
        ("version", pyarrow.int32()),
        ("name", pyarrow.string()),
        ("price", pyarrow.decimal128(12, 2)),
        ("at", pyarrow.timestamp("us", "UTC")),
    ]
)


def fill(connection):
    connection.execute(
        "CREATE TABLE big (id bigint PRIMARY KEY, amount bigint NOT NULL, version int NOT NULL, name text,"
        " price numeric(12,2), at timestamptz)"
    )
    for start in range(0, ROWS, SLICE):
        connection.execute(
            "INSERT INTO big SELECT g, 0, 0, 'row ' || g::text, (g % 10000)::numeric(12,2) / 100,"
            f" to_timestamp(1704067200 + g) FROM generate_series({start}, {start + SLICE - 1}) AS s(g)"
        )
    connection.execute("CREATE MATERIALIZED VIEW seen AS SELECT id, amount, version, name, price, at FROM big")


class Writer(Background):
    """Moves amounts within pairs of rows, `2p` and `2p + 1`: each statement gives its pairs opposite
    amounts and its own number as their version. So amounts always add up to 0, and the versions of a
    read say exactly which statements it has seen."""

    def __init__(self, server, seed):
        super().__init__(server)
        self.choose = random.Random(seed)
        self.statements = [[]]
        self.acknowledged = 0

    def step(self, connection):
        pairs = self.choose.sample(range(ROWS // 2), PAIRS_PER_WRITE)
        version = len(self.statements)
        self.statements.append(pairs)
        values = []
        for pair in pairs:
            amount = self.choose.randint(1, 1000)
            values += [f"({2 * pair}, {amount}, {version})", f"({2 * pair + 1}, -{amount}, {version})"]
        connection.execute(
            f"INSERT INTO big (id, amount, version) VALUES {', '.join(values)}"
            " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, version = excluded.version"
        )
        self.acknowledged = version

    def check(self, table, at_least):
        """The rows are those after the first so many statements, exactly."""
        assert table.schema == SCHEMA
        assert table.num_rows == ROWS
        table = table.select(["id", "amount", "version"]).sort_by("id")
        assert table["id"].to_pylist() == list(range(ROWS)), "rows are missing or stand twice"
        assert pyarrow.compute.sum(table["amount"]).as_py() == 0
        versions = table["version"].to_pylist()
        seen = max(versions)
        assert seen >= at_least, "an acknowledged statement is missing"
        expected = [0] * ROWS
        for version, pairs in enumerate(self.statements[: seen + 1]):
            for pair in pairs:
                expected[2 * pair] = expected[2 * pair + 1] = version
        assert versions == expected, "the rows are not of one time"
        return seen


class Memory:
    """The most memory that the server has while the block runs, above its level at the start."""

    def __init__(self, server):
        self.server = server
        self.level = self.most = server.rss_bytes()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join(10)

    def run(self):
        while not self.stopping.wait(0.02):
            self.most = max(self.most, self.server.rss_bytes())

    def above(self):
        return self.most - self.level


def read(url):
    with urllib.request.urlopen(url, timeout=300) as body:
        return pyarrow.ipc.open_stream(body).read_all(), body.headers


def test_scan_while_rows_are_written(tmp_path):
    # What a checkpoint copies is no part of what a scan takes.
    with Server(tmp_path / "data", flags=["--checkpoint-interval", "1h"]) as server:
        scan_while_rows_are_written(server)


def scan_while_rows_are_written(server):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with server.connect() as connection:
        fill(connection)
        assert one(connection, "SELECT count(*) FROM seen") == ROWS
    with Writer(server, seed) as writer:
        seen = []
        for _ in range(2):
            at_least = writer.acknowledged
            with Memory(server) as memory:
                with urllib.request.urlopen(server.scan_url("seen"), timeout=300) as body:
                    table = pyarrow.ipc.open_stream(body).read_all()
            seen.append(writer.check(table, at_least))
            print(f"{writer.acknowledged - at_least} writes beside a scan, {memory.above() >> 20} MiB more memory")
            assert memory.above() < MEMORY_BYTES_MAX, f"{memory.above() >> 20} MiB above the level before the scan"
        assert writer.failure is None, writer.failure
    assert seen[1] > seen[0], "nothing was written beside the scans"


def test_a_scan_goes_on_at_its_time(server):
    """A scan that ended at its limit is resumed with its cursor at the same time."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with server.connect() as connection:
        fill(connection)
    with Writer(server, seed) as writer:
        # The open scan holds its time, so that the others can still ask for it.
        with urllib.request.urlopen(server.scan_url("seen"), timeout=300) as held:
            time = held.headers["X-Clink-Time"]
            parts = []
            cursor = {}
            while True:
                part, headers = read(server.scan_url("seen", limit=ROWS * 2 // 5, as_of=time, **cursor))
                assert headers["X-Clink-Time"] == time
                parts.append(part)
                if headers["X-Clink-Cursor"] is None:
                    break
                cursor = {"cursor": headers["X-Clink-Cursor"]}
            whole = pyarrow.ipc.open_stream(held).read_all()
        assert [part.num_rows for part in parts] == [ROWS * 2 // 5, ROWS * 2 // 5, ROWS // 5]
        writer.check(pyarrow.concat_tables(parts), 0)
        assert pyarrow.concat_tables(parts).sort_by("id").equals(whole.sort_by("id"))
        assert writer.failure is None, writer.failure
