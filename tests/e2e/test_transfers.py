"""Amounts move between accounts while others add them up, by reads and by subscriptions: no sum is ever off."""

import json
import random
import threading
import time
import urllib.request
from collections import Counter

from harness import LONG, rows

ACCOUNTS = 1_000
INITIAL = 100
BRANCHES = 16
WRITERS = 4
READERS = 8
SECONDS = 60 if LONG else 20
# A rate is asked for in the long run alone: that of a busy machine says nothing.
TRANSFERS_MIN = 5_000 if LONG else 20
READS_MIN = 1_000 if LONG else 100
TOTAL = ACCOUNTS * INITIAL


class Run:
    """What the clients share."""

    def __init__(self, server, seed):
        self.server = server
        self.seed = seed
        self.deadline = time.monotonic() + SECONDS
        self.failures = []
        self.transfers = 0
        self.reads = Counter()
        self.moved = Counter()
        self.distributions = set()
        self.lock = threading.Lock()

    def client(self, work, number):
        try:
            work(number)
        except BaseException as error:
            self.failures.append(f"{work.__name__} {number}: {error!r}")

    def going(self):
        return time.monotonic() < self.deadline and not self.failures

    def writer(self, number):
        choose = random.Random(self.seed * 100 + number)
        moved = Counter()
        done = 0
        with self.server.connect() as connection:
            while self.going():
                giver, taker = choose.sample(range(ACCOUNTS), 2)
                amount = choose.randint(1, 50)
                answer = connection.execute(
                    f"UPDATE accounts SET amount = amount + CASE WHEN id = {giver} THEN -{amount} ELSE {amount} END"
                    f" WHERE id IN ({giver}, {taker})"
                )
                assert answer.statusmessage == "UPDATE 2", answer.statusmessage
                moved[giver] -= amount
                moved[taker] += amount
                done += 1
        with self.lock:
            self.transfers += done
            for account, amount in moved.items():
                self.moved[account] += amount

    def psql_reader(self, _):
        query = (
            "SELECT (SELECT sum(total) FROM by_branch), (SELECT sum(accounts) FROM by_branch),"
            " (SELECT total FROM whole), (SELECT accounts FROM whole), (SELECT sum(amount) FROM accounts)"
        )
        done = 0
        with self.server.connect() as connection:
            while self.going():
                answer = rows(connection, query)
                assert answer == [(TOTAL, ACCOUNTS, TOTAL, ACCOUNTS, TOTAL)], answer
                done += 1
        with self.lock:
            self.reads["psql_reader"] += done

    def arrow_reader(self, number):
        done = 0
        while self.going():
            if (done + number) % 2:
                table = self.server.arrow("by_branch")
                totals = table["total"].to_pylist()
                with self.lock:
                    self.distributions.add(tuple(sorted(totals)))
            else:
                table = self.server.arrow("whole")
                totals = table["total"].to_pylist()
            assert sum(totals) == TOTAL, totals
            assert sum(table["accounts"].to_pylist()) == ACCOUNTS, table
            done += 1
        with self.lock:
            self.reads["arrow_reader"] += done

    def json_reader(self, number):
        done = 0
        while self.going():
            view = ("by_branch", "whole")[(done + number) % 2]
            answer = self.server.json(f"/api/v1/views/{view}/scan")
            assert sum(row["total"] for row in answer["rows"]) == TOTAL, answer
            assert sum(row["accounts"] for row in answer["rows"]) == ACCOUNTS, answer
            done += 1
        with self.lock:
            self.reads["json_reader"] += done

    def subscriber(self, _):
        state, done = Counter(), 0
        url = f"http://{self.server.http}/api/v1/views/by_branch/changes"
        with urllib.request.urlopen(url, timeout=60) as lines:
            while self.going():
                change = json.loads(lines.readline())
                if change["kind"] != "progress":
                    state[tuple(change["row"].values())] += change["diff"]
                    continue
                state = +state
                assert len(state) == BRANCHES and set(state.values()) == {1}, state
                assert sum(total for _, total, _ in state) == TOTAL, state
                assert sum(accounts for *_, accounts in state) == ACCOUNTS, state
                done += 1
        with self.lock:
            self.reads["subscriber"] += done


def test_no_sum_is_ever_off(server):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with server.connect() as connection:
        connection.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, branch int NOT NULL, amount bigint NOT NULL)")
        values = ", ".join(f"({id}, {id % BRANCHES}, {INITIAL})" for id in range(ACCOUNTS))
        connection.execute(f"INSERT INTO accounts VALUES {values}")
        connection.execute(
            "CREATE MATERIALIZED VIEW by_branch AS"
            " SELECT branch, sum(amount) AS total, count(*) AS accounts FROM accounts GROUP BY branch"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW whole AS SELECT sum(total) AS total, sum(accounts) AS accounts FROM by_branch"
        )
    run = Run(server, seed)
    work = [run.writer] * WRITERS + [run.psql_reader, run.arrow_reader, run.json_reader, run.subscriber] * (READERS // 4)
    threads = [threading.Thread(target=run.client, args=(what, n)) for n, what in enumerate(work)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS + 60)
        assert not thread.is_alive(), "a client hangs"
    print(f"{run.transfers} transfers in {SECONDS} s beside {dict(run.reads)}")
    assert run.failures == []
    with server.connect() as connection:
        amounts = dict(rows(connection, "SELECT id, amount FROM accounts"))
    assert amounts == {id: INITIAL + run.moved[id] for id in range(ACCOUNTS)}
    assert len(run.distributions) > 10, "the readers saw hardly any change"
    assert run.transfers >= TRANSFERS_MIN and run.reads.total() >= READS_MIN
    assert len(run.reads) == 4 and min(run.reads.values()) > 10, "one way of reading had hardly any answer"
