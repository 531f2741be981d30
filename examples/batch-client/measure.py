"""Decisions per second of each process: tokens taken in batches, next to one call for each token.

    python measure.py --help

    REDIS_URL    redis://127.0.0.1:6379
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from statistics import median

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from batches import BatchedBucket

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379")
WAIT_S = 60
#: Where a process waits for the others; set in each of them.
begin: Barrier

#: More than any process takes while it is measured, so that each decision allows.
CAPACITY = 1_000_000_000
#: One token in three hours: nothing comes back while the bucket is being emptied.
SLOWLY = 0.0001


def connect() -> redis.Redis:
    # redis-py sends again if a connection breaks, unless it is told not to. A cost would then be taken twice.
    return redis.Redis.from_url(REDIS_URL, retry=Retry(NoBackoff(), 0))


@dataclass(frozen=True)
class Way:
    name: str
    #: 0: one call for each token
    batch: int

    def run(self, key: str, seconds: float) -> int:
        """Takes tokens for as long as that, and says how many."""
        client = connect()
        if self.batch == 0:
            return count(lambda: client.execute_command("RL.TOKENBUCKET", key, CAPACITY, 1)[0] == 1, seconds)
        with BatchedBucket(client, key, CAPACITY, 1, self.batch) as bucket:
            return count(bucket.take, seconds)


def count(take: Callable[[], bool], seconds: float) -> int:
    decisions = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not take():
            raise RuntimeError("denied by a bucket that should hold enough")
        decisions += 1
    return decisions


def empty(key: str, capacity: int, batch: int) -> int:
    """Takes tokens until there are none, and says how many."""
    taken = 0
    with BatchedBucket(connect(), key, capacity, SLOWLY, batch) as bucket:
        while bucket.take():
            taken += 1
    return taken


def wait_at(gate: Barrier) -> None:
    global begin
    begin = gate


def run_together(work: Callable[..., int], *arguments: object) -> int:
    begin.wait(WAIT_S)
    return work(*arguments)


def in_processes(processes: int, work: Callable[..., int], *arguments: object) -> list[int]:
    """What the work returns in each of the processes, which begin together."""
    gate = multiprocessing.Barrier(processes)
    with ProcessPoolExecutor(processes, initializer=wait_at, initargs=(gate,)) as pool:
        running = [pool.submit(run_together, work, *arguments) for _ in range(processes)]
        return [future.result() for future in running]


def calls_to_redis(client: redis.Redis) -> int:
    return client.info("commandstats").get("cmdstat_rl.tokenbucket", {"calls": 0})["calls"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures decisions in batches next to one call each.")
    parser.add_argument("--processes", type=int, default=2, help="%(default)s")
    parser.add_argument("--batch", type=int, default=100, help="tokens per batch (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each way, in turn (%(default)s)")
    options = parser.parse_args()

    client = connect()
    key = f"example-{os.getpid()}"
    ways = (Way("one call each", 0), Way(f"batches of {options.batch}", options.batch))
    rates: dict[Way, list[float]] = {way: [] for way in ways}
    calls = dict.fromkeys(ways, 0)
    decisions = dict.fromkeys(ways, 0)
    for _ in range(options.rounds):
        for way in ways:
            before = calls_to_redis(client)
            taken = in_processes(options.processes, way.run, f"{key}:speed", options.seconds)
            calls[way] += calls_to_redis(client) - before
            decisions[way] += sum(taken)
            rates[way].append(sum(taken) / options.processes / options.seconds)

    row = "{:<18}{:>32}{:>22}"
    print(row.format(f"{options.processes} processes", "decisions/s of each (median)", "calls per decision"))
    for way in ways:
        print(row.format(way.name, f"{median(rates[way]):,.0f}", f"{calls[way] / decisions[way]:.4f}"))
    one_each, batches = (median(rates[way]) for way in ways)
    print(f"ratio: {batches / one_each:.1f}")

    capacity = 25 * options.batch * options.processes + 1
    spent = in_processes(options.processes, empty, f"{key}:exact", capacity, options.batch)
    print(f"a bucket of {capacity}, emptied in batches by {options.processes} processes: {sum(spent)} spent")


if __name__ == "__main__":
    main()
