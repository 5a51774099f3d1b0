"""Reads an Arrow route again and again until stdin ends, with pyarrow, polars and DuckDB in turn; a line of JSON for each read.

    python beside.py URL
"""

import json
import os
import sys
import threading
import urllib.request

import duckdb
import polars
import pyarrow.compute
import pyarrow.ipc


def by_pyarrow(rows):
    total = [pyarrow.compute.sum(rows[name]).as_py() for name in ("amount", "version")]
    return [rows.num_rows, *total, pyarrow.compute.count_distinct(rows["id"]).as_py()]


def by_polars(rows):
    frame = polars.from_arrow(rows)
    return [frame.height, frame["amount"].sum(), frame["version"].sum(), frame["id"].n_unique()]


def by_duckdb(rows):
    return duckdb.sql("SELECT count(*), sum(amount), sum(version), count(DISTINCT id) FROM rows").fetchone()


def main():
    # What readers do with the rows is to take nothing from the server.
    os.nice(19)
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    turn = 0
    while not stopping.is_set():
        read = (by_pyarrow, by_polars, by_duckdb)[turn % 3]
        with urllib.request.urlopen(sys.argv[1], timeout=600) as answer:
            time = int(answer.headers["X-Clink-Time"])
            # Inside of a job the columns have the names of what they are computed from.
            rows = pyarrow.ipc.open_stream(answer).read_all().rename_columns(["id", "amount", "version"])
        print(json.dumps({"by": read.__name__, "time": time, "found": [int(value) for value in read(rows)]}), flush=True)
        turn += 1


if __name__ == "__main__":
    main()
