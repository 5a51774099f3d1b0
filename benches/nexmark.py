"""Runs the Nexmark queries of examples/nexmark one by one: how fast, how much memory, how many rows.

Run by `scripts/nexmark`. Each query is a `clink run` of its own over the same events, whose changes go to a sink that forgets
them; CPU seconds and peak memory are those of that process, its start included. Figures are of one run on one machine.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from harness import Server, binary  # noqa: E402

EXAMPLES = ROOT / "examples" / "nexmark"
QUERIES = sorted((path.stem for path in EXAMPLES.glob("q*.sql")), key=lambda name: int(name[1:]))
# Of 50 events one is a person, three are auctions and 46 are bids.
SHARES = {"person": 1, "auction": 3, "bid": 46}
COLUMNS = {
    "person": "id bigint, name text, email_address text, credit_card text, city text, state text, date_time timestamp, extra text",
    "auction": "id bigint, item_name text, description text, initial_bid bigint, reserve bigint, date_time timestamp, "
    "expires timestamp, seller bigint, category bigint, extra text",
    "bid": "auction bigint, bidder bigint, price bigint, channel text, url text, date_time timestamp, extra text",
}
SUFFIX = {"json": "jsonl", "parquet": "parquet"}


def number(text):
    """A number of events: 500000, 500k, 10M."""
    factor = {"k": 1_000, "m": 1_000_000}.get(text[-1:].lower(), 1)
    return int(float(text if factor == 1 else text[:-1]) * factor)


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/nexmark", description=__doc__.split("\n\n")[0])
    parser.add_argument("--query", nargs="+", default=QUERIES, metavar="qN", help="which, or a file of one [default: all]")
    parser.add_argument("--events", type=number, default=number("1M"), metavar="N", help="events of all types, such as 10M [default: 1M]")
    parser.add_argument("--data", type=Path, metavar="DIR", help="events in DIR/{person,auction,bid}/*.jsonl or .parquet; made if absent")
    parser.add_argument("--source", choices=["json", "parquet", "generator"], default="generator", help="[default: generator]")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="[default: 1]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep each query's rows as a view, and write them as DIR/qN.parquet")
    given = parser.parse_args()
    for query in given.query:
        if not query_file(query).is_file():
            parser.error(f"there is no query {query}; there are {' '.join(QUERIES)}")
    return given


def query_file(query):
    return Path(query) if query.endswith(".sql") else EXAMPLES / f"{query}.sql"


def query_text(query):
    return query_file(query).read_text().rstrip().rstrip(";")


def generated(event, events):
    return f"connector = 'nexmark', event = '{event}', number_of_rows = {max(1, events * SHARES[event] // 50)}"


def tables(given):
    """The statements that make the tables."""
    statements = []
    for event, columns in COLUMNS.items():
        if given.source == "generator":
            options = generated(event, given.events)
        else:
            options = f"connector = 'file', path = '{given.data}/{event}/*.{SUFFIX[given.source]}', format = '{given.source}'"
            options += ", timestamp_unit = 'ms'" if given.source == "json" else ""
        watermark = "WATERMARK FOR date_time AS date_time - INTERVAL '4 seconds'"
        statements.append(f"CREATE TABLE {event} ({columns}, {watermark}) WITH ({options});")
    return "\n".join(statements)


def run(statements, workers):
    """What `clink run` prints, and its seconds, CPU seconds and peak memory in MiB."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "run.sql"
        script.write_text(statements)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began = time.monotonic()
        command = [binary(), "run", "--workers", str(workers), "--output", "csv", str(script)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            printed = process.stdout.read()
            # Unlike the sum over all children, this is of the one process.
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if process.returncode != 0:
            sys.exit(f"clink run ended with {process.returncode}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return printed, seconds, cpu, usage.ru_maxrss / 1024


def make_data(given):
    """Writes the generator's events as files, unless they are there."""
    for event, columns in COLUMNS.items():
        file = given.data / event / f"part-0.{SUFFIX[given.source]}"
        if any(file.parent.glob(f"*{file.suffix}")):
            continue
        print(f"writing {file}", file=sys.stderr, flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        run(
            f"CREATE TABLE events ({columns}) WITH ({generated(event, given.events)});\n"
            f"CREATE SINK files WITH (connector = 'file', path = '{file}', format = '{given.source}') AS SELECT * FROM events;",
            given.workers,
        )


def measure(given, query):
    text = query_text(query)
    name = query_file(query).stem
    if given.out:
        rows = write_rows(given, name, text)
    sink = f"CREATE SINK forgotten WITH (connector = 'blackhole') AS {text};"
    changes = "SELECT rows_out FROM clink_catalog.jobs WHERE name = 'public.forgotten';"
    printed, seconds, cpu, memory = run(f"{tables(given)}\n{sink}\n{changes}\n", given.workers)
    figures = f"{name:<5} {given.events / seconds / 1e6:>10.3f} {given.events / cpu / 1e6:>14.3f} {memory:>11.0f} {printed.split()[-1]:>12}"
    print(figures + (f" {rows:>12}" if given.out else ""), flush=True)


def write_rows(given, name, text):
    """The final rows into DIR/qN.parquet; how many."""
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, Server(Path(directory) / "data", workers=given.workers) as server:
        with server.connect() as connection:
            for statement in tables(given).split("\n"):
                connection.execute(statement)
            connection.execute(f"CREATE MATERIALIZED VIEW result AS {text}")
            connection.execute("FLUSH")
        rows = server.arrow("result")
        pyarrow.parquet.write_table(rows, given.out / f"{name}.parquet")
        return rows.num_rows


def main():
    given = arguments()
    if given.source != "generator":
        if given.data is None:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
            given.data = cache / "clink-nexmark" / str(given.events)
        given.data = given.data.resolve()
        make_data(given)
    print(f"{given.events} events, {given.source}, {given.workers} worker{'s' if given.workers > 1 else ''}")
    heading = f"{'':<5} {'M events/s':>10} {'M events/CPU s':>14} {'peak MiB':>11} {'changes out':>12}"
    print(heading + (f" {'rows':>12}" if given.out else ""), flush=True)
    for query in given.query:
        measure(given, query)


main()
