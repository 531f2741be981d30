"""However many connections call at once, exactly `limit` calls are allowed."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from harness.clock import TODAY_MS
from harness.server import Server
from harness.tally import Tally

CONNECTIONS = 40
CALLS_A_CONNECTION = 50
LIMIT = 500
# What one connection alone would have to be refused.
SMALL_LIMIT = 10
WINDOW_S = 60
KEY = "contended"

#: One call at a fixed time, so that nothing refills and nothing slides out.
CALLS = {
    "RL.TOKENBUCKET": lambda limit: ("RL.TOKENBUCKET", KEY, limit, 1, "NOW", TODAY_MS),
    "RL.SLIDING": lambda limit: ("RL.SLIDING", KEY, limit, WINDOW_S, "NOW", TODAY_MS),
    "RL.QUOTA": lambda limit: ("RL.QUOTA", KEY, limit, "DAY", "NOW", TODAY_MS),
}


def at_once(server: Server, work: Callable[[redis.Redis, threading.Barrier], int]) -> int:
    """Runs `work` on a connection each, all let go together, and adds up what they give."""
    barrier = threading.Barrier(CONNECTIONS)

    def run(_: int) -> int:
        with server.client(single_connection_client=True) as connection:
            connection.ping()
            barrier.wait()
            return work(connection, barrier)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return sum(pool.map(run, range(CONNECTIONS)))


@pytest.mark.parametrize("command", CALLS)
def test_exactly_the_limit_is_allowed_to_many_connections_at_once(
    server: Server, client: redis.Redis, command: str, tally: Tally
) -> None:
    call = CALLS[command](LIMIT)

    def work(connection: redis.Redis, _: threading.Barrier) -> int:
        return sum(connection.execute_command(*call)[0] for _ in range(CALLS_A_CONNECTION))

    assert at_once(server, work) == LIMIT
    tally.add("race", CONNECTIONS * CALLS_A_CONNECTION, f"calls of {CONNECTIONS} connections, {LIMIT} allowed")


def bucket_by_reading_and_writing(connection: redis.Redis, between: Callable[[], object]) -> int:
    tokens = float(connection.hget(KEY, "tokens") or SMALL_LIMIT)
    between()
    if tokens < 1:
        return 0
    connection.hset(KEY, mapping={"tokens": tokens - 1, "last_refill_ms": TODAY_MS})
    return 1


def window_by_reading_and_writing(connection: redis.Redis, between: Callable[[], object]) -> int:
    count = float(connection.get(KEY) or 0)
    between()
    if count + 1 > SMALL_LIMIT:
        return 0
    connection.set(KEY, count + 1)
    return 1


READ_THEN_WRITE = {
    "RL.TOKENBUCKET": bucket_by_reading_and_writing,
    "RL.SLIDING": window_by_reading_and_writing,
    "RL.QUOTA": window_by_reading_and_writing,
}


@pytest.mark.parametrize("command", CALLS)
def test_a_client_that_reads_then_writes_over_admits_where_the_command_does_not(
    server: Server, client: redis.Redis, command: str
) -> None:
    read_then_write = READ_THEN_WRITE[command]

    # One after another it is right, so it is the race alone that breaks it.
    alone = sum(read_then_write(client, lambda: None) for _ in range(CONNECTIONS))
    assert alone == SMALL_LIMIT

    # Everybody reads before anybody writes: what a network does by chance, done here on purpose.
    client.delete(KEY)
    admitted = at_once(server, lambda connection, barrier: read_then_write(connection, barrier.wait))
    assert admitted == CONNECTIONS > SMALL_LIMIT

    client.delete(KEY)
    call = CALLS[command](SMALL_LIMIT)
    allowed = at_once(server, lambda connection, _: connection.execute_command(*call)[0])
    assert allowed == SMALL_LIMIT
