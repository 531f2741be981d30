"""What docs/operations.md says of leases and quotas: renewals, hands on the set, eviction, a failover, the clock."""

from collections.abc import Callable

import hiredis
import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection
from harness.server import Server, wait_until

LEASE_S = 30
LEASE_MS = 1000 * LEASE_S
KEY, LIMIT = "run", 2
#: On the server's clock, and longer than any test.
LONG_S = 3600
QUOTA = ("RL.QUOTA", "month", "3", "MONTH")

Start = Callable[..., Server]


def acquire(name: str, *options: object, limit: int = LIMIT, lease_s: float = LONG_S) -> tuple:
    return "RL.CONCURRENCY", KEY, str(limit), str(lease_s), "ID", name, *map(str, options)


def at(now_ms: int) -> tuple[str, int, str]:
    return "NOW", now_ms, "MS"


def is_allowed(connection: RawConnection, *call: object) -> bool:
    reply = connection.call(*map(str, call))
    assert isinstance(reply, list), reply
    return reply[0] == 1


def take_all_places(connection: RawConnection) -> None:
    assert [is_allowed(connection, *acquire(name)) for name in ("a", "b", "c")] == [True, True, False]


# Length and renewal


def test_the_place_of_a_crashed_holder_is_free_when_its_lease_ends(raw: RawConnection) -> None:
    def attempt(name: str, now_ms: int) -> list:
        return raw.call(*acquire(name, *at(now_ms), limit=1, lease_s=LEASE_S))

    assert attempt("crashed", TODAY_MS)[0] == 1
    assert attempt("next", TODAY_MS + 1) == [0, 0, LEASE_MS - 1, LEASE_MS - 1]
    assert attempt("next", TODAY_MS + LEASE_MS - 1)[0] == 0
    assert attempt("next", TODAY_MS + LEASE_MS)[0] == 1


def test_a_lease_renewed_at_half_its_length_survives_one_lost_renewal(raw: RawConnection) -> None:
    def renew(now_ms: int) -> list:
        return raw.call(*acquire("worker", "XX", *at(now_ms), lease_s=LEASE_S))

    assert is_allowed(raw, *acquire("worker", *at(TODAY_MS), lease_s=LEASE_S))
    half_ms = LEASE_MS // 2
    # Each second renewal is lost; the one after it comes a moment before the lease would end.
    for number in range(1, 20):
        assert renew(TODAY_MS + number * 2 * (half_ms - 1))[0] == 1, number
    last_ms = TODAY_MS + 19 * 2 * (half_ms - 1)
    assert renew(last_ms + LEASE_MS) == [0, LIMIT, 0, -1]


def test_a_lowered_limit_ends_no_lease_and_denies_new_ones(raw: RawConnection) -> None:
    for name in ("a", "b", "c"):
        assert is_allowed(raw, *acquire(name, limit=3))
    for name in ("a", "b", "c"):
        assert is_allowed(raw, *acquire(name, limit=1)) and is_allowed(raw, *acquire(name, "XX", limit=1))
    assert not is_allowed(raw, *acquire("d", limit=1))
    raw.call("RL.RELEASE", KEY, "a", "b")
    assert not is_allowed(raw, *acquire("d", limit=1))
    raw.call("RL.RELEASE", KEY, "c")
    assert is_allowed(raw, *acquire("d", limit=1))


def test_a_shorter_lease_shortens_none_that_is_held(raw: RawConnection) -> None:
    assert is_allowed(raw, *acquire("a", *at(TODAY_MS), lease_s=LEASE_S))
    assert raw.call(*acquire("a", *at(TODAY_MS), lease_s=1)) == [1, LIMIT - 1, LEASE_MS, 0]


# Hands on the set


def test_zrange_shows_leases_and_zrem_and_del_free_them(raw: RawConnection) -> None:
    take_all_places(raw)
    assert raw.call("ZRANGE", KEY, 0, -1) == [b"a", b"b"]
    assert raw.call("ZREM", KEY, "a") == 1
    assert not is_allowed(raw, *acquire("a", "XX"))
    assert is_allowed(raw, *acquire("c"))
    raw.call("DEL", KEY)
    assert not is_allowed(raw, *acquire("b", "XX"))
    assert is_allowed(raw, *acquire("d"))


def test_a_settlement_whose_lease_was_freed_is_denied_and_charges_nothing(raw: RawConnection) -> None:
    rules = ("TOKENBUCKET", "10", "0", "FORCE", "3", "CONCURRENCY", LIMIT, LONG_S, "RELEASE")
    raw.call("RL.TOKENBUCKET", "bucket", "10", "0", "COST", "1")
    take_all_places(raw)
    raw.call("ZREM", KEY, "a")
    assert not is_allowed(raw, "RL.ALL", 2, "bucket", KEY, *rules, "ID", "a", "XX")
    assert raw.call("RL.TOKENBUCKET_RO", "bucket", "10", "0")[1] == 9


def test_zcard_counts_ended_leases_until_the_next_acquisition(raw: RawConnection) -> None:
    for name in ("a", "b"):
        assert is_allowed(raw, *acquire(name, *at(TODAY_MS), lease_s=LEASE_S))
    later = at(TODAY_MS + LEASE_MS)
    assert raw.call("RL.CONCURRENCY_RO", *acquire("c", *later)[1:])[:2] == [1, LIMIT]
    assert raw.call("ZCARD", KEY) == 2
    assert is_allowed(raw, *acquire("c", *later))
    assert raw.call("ZRANGE", KEY, 0, -1) == [b"c"]


def test_a_user_of_leases_needs_no_permission_for_sorted_sets(server: Server, raw: RawConnection) -> None:
    raw.call("ACL", "SETUSER", "worker", "reset", "on", "nopass", f"~{KEY}", "+rl.concurrency", "+rl.release")
    try:
        with server.raw_connection() as worker:
            worker.call("AUTH", "worker", "")
            assert is_allowed(worker, *acquire("a"))
            assert isinstance(worker.call("ZREM", KEY, "a"), hiredis.ReplyError)
            assert worker.call("RL.RELEASE", KEY, "a") == 1
    finally:
        raw.call("ACL", "DELUSER", "worker")


# Eviction and failover


def test_evicted_quotas_start_fresh_and_evicted_leases_are_free(fresh_server: Start) -> None:
    """And who renews with XX is told."""
    server = fresh_server({"maxmemory-policy": "allkeys-random"})
    with server.raw_connection() as connection:
        take_all_places(connection)
        assert is_allowed(connection, *QUOTA, "COST", "3")
        connection.call("CONFIG", "SET", "maxmemory", 1)
        connection.call("PING")
        wait_until(lambda: connection.call("DBSIZE") == 0, what="eviction")
        connection.call("CONFIG", "SET", "maxmemory", 0)
        assert not is_allowed(connection, *acquire("a", "XX"))
        assert is_allowed(connection, *acquire("c"))
        assert is_allowed(connection, *QUOTA, "COST", "3")


@pytest.fixture
def pair(fresh_server: Start) -> tuple[Server, Server]:
    """A master and its replica, in sync."""
    master = fresh_server({"repl-diskless-sync-delay": 0})
    replica = fresh_server({"replicaof": ["127.0.0.1", str(master.port)]})
    replica.wait_until_linked()
    return master, replica


def test_a_lease_that_a_failover_forgot_is_a_free_place(pair: tuple[Server, Server]) -> None:
    """And its holder is told by a renewal with XX."""
    master, replica = pair
    with master.raw_connection() as old, replica.raw_connection() as new:
        assert new.call("REPLICAOF", "NO", "ONE") == b"OK"
        assert is_allowed(old, *acquire("unsent", limit=1))
        assert not is_allowed(new, *acquire("unsent", "XX", limit=1))
        assert is_allowed(new, *acquire("other", limit=1))


# The clock


def test_a_jump_of_the_clock_and_back_frees_no_place_and_no_quota(raw: RawConnection) -> None:
    for name in ("a", "b"):
        assert is_allowed(raw, *acquire(name, *at(TODAY_MS), lease_s=LEASE_S))
    assert is_allowed(raw, *QUOTA, "COST", "3", *at(TODAY_MS))
    year_ms = 366 * 86_400_000
    assert raw.call("RL.CONCURRENCY_RO", *acquire("c", *at(TODAY_MS + year_ms))[1:])[0] == 1
    assert raw.call("RL.QUOTA_RO", *QUOTA[1:], *at(TODAY_MS + year_ms))[0] == 1
    for now_ms in (TODAY_MS, TODAY_MS - year_ms):
        assert not is_allowed(raw, *acquire("c", *at(now_ms)))
        assert not is_allowed(raw, *QUOTA, *at(now_ms))


def test_a_period_opened_at_a_later_time_holds_its_count_until_then(raw: RawConnection) -> None:
    later_ms = TODAY_MS + 366 * 86_400_000
    assert is_allowed(raw, *QUOTA, "COST", "3", *at(later_ms))
    allowed, remaining, reset_ms, retry_ms = raw.call(*QUOTA, *at(TODAY_MS))
    assert (allowed, remaining) == (0, 0)
    assert reset_ms == retry_ms > later_ms - TODAY_MS
    assert raw.call("DEL", "month") == 1
    assert is_allowed(raw, *QUOTA, *at(TODAY_MS))
