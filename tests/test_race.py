"""However many connections call at once, exactly `limit` calls are allowed."""

import threading
from collections.abc import Callable

import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection
from harness.server import Server
from harness.tally import Tally
from test_kind_races import CONNECTIONS, at_once

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


@pytest.mark.parametrize("command", CALLS)
def test_exactly_the_limit_is_allowed_to_many_connections_at_once(
    server: Server, raw: RawConnection, command: str, tally: Tally
) -> None:
    def work(_: int, connection: RawConnection) -> int:
        return sum(connection.call(*CALLS[command](LIMIT))[0] for _ in range(CALLS_A_CONNECTION))

    assert sum(at_once(server, work)) == LIMIT
    tally.add("race", CONNECTIONS * CALLS_A_CONNECTION, f"calls of {CONNECTIONS} connections, {LIMIT} allowed")


def read_then_write(connection: RawConnection, between: Callable[[], object]) -> int:
    """Whether a client that counts by itself lets a call through."""
    count = int(connection.call("GET", KEY) or 0)
    between()
    if count == SMALL_LIMIT:
        return 0
    connection.call("SET", KEY, count + 1)
    return 1


@pytest.mark.parametrize("command", CALLS)
def test_a_client_that_reads_then_writes_over_admits_and_the_command_not(
    server: Server, raw: RawConnection, command: str
) -> None:
    # One after another it is right, so it is the race alone that breaks it.
    assert sum(read_then_write(raw, lambda: None) for _ in range(CONNECTIONS)) == SMALL_LIMIT

    # Everybody reads before anybody writes: what a network does by chance, done here on purpose.
    raw.call("DEL", KEY)
    barrier = threading.Barrier(CONNECTIONS)
    admitted = at_once(server, lambda _, connection: read_then_write(connection, barrier.wait))
    assert sum(admitted) == CONNECTIONS > SMALL_LIMIT

    raw.call("DEL", KEY)
    allowed = at_once(server, lambda _, connection: connection.call(*CALLS[command](SMALL_LIMIT))[0])
    assert sum(allowed) == SMALL_LIMIT
