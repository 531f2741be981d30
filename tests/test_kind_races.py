"""However many connections call at once, leases stay within their limit, and a call that is sent again counts once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word, encode
from harness.observed import ObservedServer
from harness.server import Server, wait_until
from harness.state import read_bucket
from harness.tally import Tally

CONNECTIONS = 40
LIMIT = 3
ROUNDS = 50
CALLS = 25
RATE = 200
Result = TypeVar("Result")


def at_once(server: Server, work: Callable[[int, RawConnection], Result]) -> list[Result]:
    """Runs `work` on a connection each, all let go together, and gives what each came to."""
    barrier = threading.Barrier(CONNECTIONS)

    def run(number: int) -> Result:
        with server.raw_connection() as connection:
            connection.call("PING")
            barrier.wait()
            return work(number, connection)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return list(pool.map(run, range(CONNECTIONS)))


class Gauge:
    """How many are inside, as those see it who were let in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.entries = 0

    def enter(self) -> None:
        with self._lock:
            self.inside += 1
            self.entries += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self._lock:
            self.inside -= 1


RULE = ("CONCURRENCY", LIMIT, "60")
#: A call that takes a lease and one that gives it back: alone, and beside other rules.
ACQUIRE: dict[str, Callable[[str], tuple[Word, ...]]] = {
    "alone": lambda lease_id: ("RL.CONCURRENCY", "leases", LIMIT, "60", "ID", lease_id),
    "in RL.ALL": lambda lease_id: ("RL.ALL", 2, "leases", "q", *RULE, "QUOTA", "1e9", "DAY", "ID", lease_id),
}


def is_allowed(reply: object) -> bool:
    assert isinstance(reply, list), reply
    return reply[0] == 1


@pytest.mark.parametrize("how", ACQUIRE)
def test_no_more_leases_are_held_at_once_than_the_limit(raw: RawConnection, server: Server, how: str, tally: Tally) -> None:
    gauge = Gauge()

    def work(number: int, connection: RawConnection) -> None:
        for turn in range(ROUNDS):
            lease_id = f"{number}:{turn}"
            if is_allowed(connection.call(*ACQUIRE[how](lease_id))):
                gauge.enter()
                connection.call("PING")
                gauge.leave()
                assert connection.call("RL.RELEASE", "leases", lease_id) == 1

    at_once(server, work)
    assert raw.call("EXISTS", "leases") == 0
    assert gauge.entries > LIMIT
    assert gauge.most <= LIMIT
    tally.add("race", CONNECTIONS * ROUNDS, f"leases asked for by {CONNECTIONS} connections, at most {gauge.most} held")


def test_exactly_the_limit_is_let_in_where_nobody_leaves(raw: RawConnection, server: Server) -> None:
    gauge = Gauge()

    def work(number: int, connection: RawConnection) -> None:
        for turn in range(ROUNDS):
            if is_allowed(connection.call("RL.CONCURRENCY", "leases", LIMIT, "60", "ID", f"{number}:{turn}")):
                gauge.enter()

    at_once(server, work)
    assert gauge.inside == raw.call("ZCARD", "leases") == LIMIT


def paid(lease_id: str) -> tuple[Word, ...]:
    """Takes a token, counts one and holds a lease; nothing refills and nothing ends."""
    rules = ("TOKENBUCKET", "1e6", "0", "QUOTA", "1e6", "YEAR", "SLIDING", "1e6", "86400", "CONCURRENCY", "1000000", "3600")
    return ("RL.ALL", 4, "tokens", "quota", "window", "leases", *rules, "ID", lease_id, "NOW", TODAY_MS)


def paid_for(connection: RawConnection) -> list[int]:
    """How many tokens, calls of the quota and of the window, and leases were taken."""
    previews = [
        ("RL.TOKENBUCKET_RO", "tokens", "1e6", "0", "NOW", TODAY_MS),
        ("RL.QUOTA_RO", "quota", "1e6", "YEAR", "NOW", TODAY_MS),
        ("RL.SLIDING_RO", "window", "1e6", "86400", "NOW", TODAY_MS),
    ]
    return [10**6 - connection.call(*words)[1] for words in previews] + [connection.call("ZCARD", "leases")]


def connected_clients(server: Server) -> int:
    return int(server.info("clients")["connected_clients"])


def test_a_call_whose_answer_was_lost_counts_once_when_sent_again(raw: RawConnection, server: Server, tally: Tally) -> None:
    """The connection is cut after the server has acted, and before anybody read its answer."""

    def work(number: int, connection: RawConnection) -> None:
        for turn in range(CALLS):
            lease_id = f"{number}:{turn}"
            with server.raw_connection() as lost:
                lost.send(encode(*paid(lease_id)))
                wait_until(lambda: connection.call("ZSCORE", "leases", lease_id), what="the server has acted")
            assert is_allowed(connection.call(*paid(lease_id)))

    at_once(server, work)
    assert paid_for(raw) == [CONNECTIONS * CALLS] * 4
    tally.add("race", CONNECTIONS * CALLS, "calls sent again after their answer was lost, each counted once")


def test_a_call_cut_at_any_moment_and_sent_again_counts_once(raw: RawConnection, server: Server, tally: Tally) -> None:
    """Nobody knows whether the first reached the server, nor which of the two it saw first."""
    clients_before = connected_clients(server)

    def work(number: int, connection: RawConnection) -> None:
        for turn in range(CALLS):
            lease_id = f"{number}:{turn}"
            with server.raw_connection() as lost:
                data = encode(*paid(lease_id))
                lost.send(data[: len(data) - turn % 2])
            assert is_allowed(connection.call(*paid(lease_id)))

    at_once(server, work)
    wait_until(lambda: connected_clients(server) <= clients_before, what="the lost calls have ended")
    assert paid_for(raw) == [CONNECTIONS * CALLS] * 4
    tally.add("race", CONNECTIONS * CALLS, "calls cut at any moment and sent again, each counted once")


def test_a_settling_call_sent_again_charges_once(raw: RawConnection, server: Server) -> None:
    charge, release = ("TOKENBUCKET", "1e6", "0", "FORCE", "3"), ("CONCURRENCY", "1000000", "3600", "RELEASE")
    settle = ("RL.ALL", 2, "tokens", "leases", *charge, *release)

    def work(number: int, connection: RawConnection) -> None:
        for turn in range(CALLS):
            lease_id = f"{number}:{turn}"
            assert is_allowed(connection.call("RL.CONCURRENCY", "leases", "1000000", "3600", "ID", lease_id))
            with server.raw_connection() as lost:
                lost.send(encode(*settle, "ID", lease_id, "XX"))
                wait_until(lambda: connection.call("ZSCORE", "leases", lease_id) is None, what="it is settled")
            assert not is_allowed(connection.call(*settle, "ID", lease_id, "XX"))

    at_once(server, work)
    assert raw.call("RL.TOKENBUCKET_RO", "tokens", "1e6", "0")[1] == 10**6 - 3 * CONNECTIONS * CALLS


def test_reservations_at_one_time_wait_each_their_own_turn(raw: RawConnection, server: Server, tally: Tally) -> None:
    waits: list[int] = []
    lock = threading.Lock()

    def work(number: int, connection: RawConnection) -> None:
        call = ("RL.TOKENBUCKET", "line", "1", "8", "MAXWAIT", "1e6", "NOW", TODAY_MS, "MS")
        mine = [connection.call(*call)[3] for _ in range(CALLS)]
        assert mine == sorted(mine)
        with lock:
            waits.extend(mine)

    at_once(server, work)
    assert sorted(waits) == [125 * turn for turn in range(CONNECTIONS * CALLS)]
    tally.add("race", len(waits), "reservations, each with a turn of its own")


def test_reservations_under_load_start_in_order_and_apart(observed: ObservedServer) -> None:
    """By the server's clock: when each may act follows from the debt that it left."""
    observed.stream.commands()

    def work(number: int, connection: RawConnection) -> None:
        for _ in range(CALLS):
            assert is_allowed(connection.call("RL.TOKENBUCKET", "line", "1", RATE, "MAXWAIT", "1e6"))

    at_once(observed, work)
    left = [read_bucket(command[2]) for command in observed.stream.commands()]
    assert len(left) == CONNECTIONS * CALLS
    starts_ms = [bucket.last_ms + max(0.0, -bucket.tokens * 1000 / RATE) for bucket in left]
    gaps_ms = [later - earlier for earlier, later in zip(starts_ms, starts_ms[1:])]
    assert min(gaps_ms) > 1000 / RATE - 0.001
    # They came faster than the bucket refills, so most of them stand in line.
    assert sum(gap < 1000 / RATE + 0.001 for gap in gaps_ms) > len(gaps_ms) / 2
