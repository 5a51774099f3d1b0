"""Reads a view of a running clink into pyarrow, polars and DuckDB, and then follows its changes.

    python examples/live_state/read.py HOST:PORT VIEW [--changes N]

HOST:PORT is what `clink serve` prints behind `http=`. With --changes it goes on until N changed rows have come, and
shows that rows and changes add up to what the view is then.
"""

import argparse
import collections
import json
import urllib.parse
import urllib.request

import duckdb
import polars
import pyarrow.ipc


def table(server, view, **parameters):
    """A view's rows at one time, and that time."""
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"http://{server}/api/v1/views/{view}/scan.arrow?{query}") as answer:
        return pyarrow.ipc.open_stream(answer).read_all(), int(answer.headers["X-Clink-Time"])


def changes(server, view, token=None):
    """The view's rows and then its changes, or those behind a token, as they come to pass."""
    query = urllib.parse.urlencode({"as_of": token} if token else {})
    with urllib.request.urlopen(f"http://{server}/api/v1/views/{view}/changes?{query}") as lines:
        for line in lines:
            change = json.loads(line)
            if "error" in change:
                raise RuntimeError(change["error"])
            yield change


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("server")
    arguments.add_argument("view")
    arguments.add_argument("--changes", type=int, default=0)
    asked = arguments.parse_args()

    rows, time = table(asked.server, asked.view)
    print(f"pyarrow: {rows.num_rows} rows at {time}: {', '.join(f'{f.name} {f.type}' for f in rows.schema)}")
    frame = polars.from_arrow(rows)
    print(f"polars: {frame.height} rows, {frame.estimated_size()} bytes")
    (count,) = duckdb.sql("SELECT count(*) FROM rows").fetchone()
    print(f"duckdb: {count} rows")

    if asked.changes:
        state, seen = collections.Counter(), 0
        for change in changes(asked.server, asked.view):
            if change["kind"] != "progress":
                state[json.dumps(change["row"], sort_keys=True)] += change["diff"]
                seen += 1
            elif seen >= asked.changes:
                # Everything up to this time is in: the token goes on from here, after any kill.
                print(f"changes: {seen} up to {change['time']}, {sum(state.values())} rows; token {change['token']}")
                break


if __name__ == "__main__":
    main()
