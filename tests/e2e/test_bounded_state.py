"""What closes by event time keeps as much after an hour of event time as after the first minutes."""

from statistics import median

import pytest

from harness import LONG, Server, one, rows, wait_for

# Of 50 events one is a person, three are auctions and 46 are bids. An hour of event time, or the tenth part of one.
EVENTS = 5_000_000 if LONG else 150_000
SECONDS = 3_600 if LONG else 360
AUCTIONS, BIDS = EVENTS * 3 // 50, EVENTS * 46 // 50
VIEWS = {
    "tumbling": """SELECT auction, window_end, count(*) AS n FROM TUMBLE(TABLE bid, DESCRIPTOR(date_time), INTERVAL '10 seconds')
        GROUP BY auction, window_end""",
    "hopping": """SELECT bidder, window_end, max(price) AS most
        FROM HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '5 seconds', INTERVAL '10 seconds') GROUP BY bidder, window_end
        EMIT ON WINDOW CLOSE""",
    "joined": """SELECT a.id, b.price FROM auction AS a JOIN bid AS b
        ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.date_time + INTERVAL '10 seconds'""",
    "versions": """SELECT b.auction, a.id FROM bid AS b JOIN auction FOR SYSTEM_TIME AS OF b.date_time AS a
        ON a.id % 10 = b.auction % 10""",
}


@pytest.mark.parametrize("workers", [2])
def test_state_stays_flat(tmp_path, workers):
    with Server(tmp_path / "data", workers=workers) as server, server.connect() as c:
        for event, count, columns in (
            ("auction", AUCTIONS, "id bigint"),
            ("bid", BIDS, "auction bigint, bidder bigint, price bigint"),
        ):
            c.execute(
                f"""CREATE TABLE {event} ({columns}, date_time timestamp,
                        WATERMARK FOR date_time AS date_time - INTERVAL '1 second')
                    WITH (connector = 'nexmark', event = '{event}', number_of_rows = {count}, event_rate = {EVENTS // SECONDS},
                        max_drift = '10 seconds')"""
            )
        # Sinks, so that no result grows beside.
        for name, query in VIEWS.items():
            c.execute(f"CREATE SINK {name} WITH (connector = 'blackhole') AS {query}")
        kept = {name: [] for name in VIEWS}

        def ended():
            read = one(c, "SELECT max(rows_in) FROM clink_catalog.operators WHERE job = 'public.tumbling' AND kind = 'Aggregate'")
            for job, keys in rows(
                c, "SELECT job, sum(state_keys) FROM clink_catalog.operators WHERE kind NOT IN ('Arrangement') GROUP BY job"
            ):
                if (name := job.split(".")[1]) in kept:
                    kept[name].append((read or 0, int(keys or 0)))
            return (read or 0) >= BIDS

        wait_for(ended, seconds=3_000 if LONG else 120)
        for name, samples in kept.items():
            # In the middle of a tick all of its rows are there, so one sample says little.
            first = median(keys for read, keys in samples if 0 < read <= BIDS / 4)
            later = median(keys for read, keys in samples if read > BIDS / 4)
            most = max(keys for _, keys in samples)
            print(f"{name}: {first} keys in the first quarter, {later} in the others, at most {most}, {len(samples)} samples")
            assert later <= 2 * first + 1_000, name
        c.execute("FLUSH")
        left = one(c, "SELECT sum(state_keys) FROM clink_catalog.operators WHERE kind NOT IN ('Arrangement')")
        assert int(left) <= 10, "all is over at the end, but for the newest version of each key"
