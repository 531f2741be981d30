"""Memory: what happens when it is full, and that what is not used gives it back."""

from collections.abc import Callable

import hiredis
import pytest

from harness import state
from harness.clock import TODAY_MS, server_ms
from harness.connection import RawConnection, Word, encode
from harness.kinds import LONGEST_TTL_S
from harness.server import Server, wait_until
from harness.tally import Tally

MIB = 2**20

BUCKET = ("RL.TOKENBUCKET", "bucket", "10", "0.5", "NOW", TODAY_MS)
WINDOW = ("RL.SLIDING", "window", "10", "60", "NOW", TODAY_MS)
BOTH = ("RL.ALL", "2", "bucket", "window", "TOKENBUCKET", "10", "0.5", "SLIDING", "10", "60", "NOW", TODAY_MS)
KEYS = ("bucket", "window", "fresh")

REFUSED_WHEN_FULL: dict[str, tuple[Word, ...]] = {
    "bucket": BUCKET,
    "window": WINDOW,
    "all": BOTH,
    "denied": (*BUCKET, "COST", "99"),
    "new": ("RL.TOKENBUCKET", "fresh", "10", "0.5", "NOW", TODAY_MS),
    "refund": (*BUCKET, "REFUND", "1"),
    "costs nothing": (*WINDOW, "COST", "0"),
    "in a script": ("EVAL", "return redis.call(unpack(ARGV))", "1", "bucket", *BUCKET),
}
PREVIEWS = [
    ("RL.TOKENBUCKET_RO", *BUCKET[1:]),
    ("RL.SLIDING_RO", *WINDOW[1:]),
    ("RL.ALL_RO", *BOTH[1:]),
    ("RL.TOKENBUCKET_RO", "fresh", "10", "0.5", "NOW", TODAY_MS),
]


@pytest.fixture
def full(fresh_server: Callable[..., Server]) -> RawConnection:
    """A connection to a server that is out of memory and evicts nothing. It has two limiters."""
    connection = fresh_server({"maxmemory-policy": "noeviction"}).raw_connection()
    assert connection.call(*BOTH)[0] == 1
    assert connection.call("CONFIG", "SET", "maxmemory", "1") == b"OK"
    return connection


def look(connection: RawConnection) -> list[object]:
    return connection.call_all([(word, key) for key in KEYS for word in ("DUMP", "PEXPIRETIME")])


@pytest.mark.parametrize("name", REFUSED_WHEN_FULL)
def test_without_eviction_a_write_is_refused_with_oom_and_changes_nothing(full: RawConnection, name: str) -> None:
    before = look(full)
    for _ in range(3):
        reply = full.call(*REFUSED_WHEN_FULL[name])
        assert isinstance(reply, hiredis.ReplyError), reply
        assert "OOM" in str(reply), reply
    assert look(full) == before
    # As soon as there is room it answers again.
    assert full.call("CONFIG", "SET", "maxmemory", "0") == b"OK"
    assert not isinstance(full.call(*REFUSED_WHEN_FULL[name]), hiredis.ReplyError)


def test_without_eviction_a_transaction_is_refused_as_a_whole(full: RawConnection) -> None:
    """When memory is full."""
    before = look(full)
    assert full.call("MULTI") == b"OK"
    reply = full.call(*BUCKET)
    assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("OOM"), reply
    reply = full.call("EXEC")
    assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("EXECABORT"), reply
    assert look(full) == before


def test_previews_are_answered_when_memory_is_full(full: RawConnection) -> None:
    before = look(full)
    for call in PREVIEWS:
        assert full.call(*call)[0] == 1
    assert look(full) == before


# Eviction

POLICIES = [f"{keys}-{how}" for keys in ("allkeys", "volatile") for how in ("lru", "lfu", "random")] + ["volatile-ttl"]
EVICTING_CALLS = 30_000
BATCH = 2_000
#: Limiters that never refill, so that their keys have no ttl.
ALLOTMENTS = 50
ALLOTMENT = 5
ROOM = 1 * MIB


def allotment(number: int) -> tuple[Word, ...]:
    return ("RL.TOKENBUCKET", f"allotment:{number}", ALLOTMENT, "0", "NOW", TODAY_MS)


def idle(number: int) -> tuple[Word, ...]:
    return ("RL.TOKENBUCKET", f"idle:{number}", "10", "0.5", "COST", "10")


def evicting_server(fresh_server: Callable[..., Server], policy: str) -> Server:
    """With ALLOTMENTS of which one is used up, and memory for some thousand more limiters."""
    server = fresh_server({"maxmemory-policy": policy})
    with server.raw_connection() as connection:
        for number in range(ALLOTMENTS):
            assert connection.call(*allotment(number), "COST", ALLOTMENT)[:2] == [1, 0]
        used = int(server.info("memory")["used_memory"])
        assert connection.call("CONFIG", "SET", "maxmemory", used + ROOM) == b"OK"
    return server


@pytest.mark.parametrize("policy", POLICIES)
def test_an_evicting_server_answers_and_an_evicted_limiter_starts_fresh(
    fresh_server: Callable[..., Server], policy: str
) -> None:
    server = evicting_server(fresh_server, policy)
    with server.raw_connection() as connection:
        for start in range(0, EVICTING_CALLS, BATCH):
            for reply in connection.call_all(idle(number) for number in range(start, start + BATCH)):
                assert reply[:2] == [1, 0], reply
        assert int(server.info("stats")["evicted_keys"]) > 0
        assert connection.call("DBSIZE") < ALLOTMENTS + EVICTING_CALLS
        # Whoever had used all up has all again: what eviction costs.
        there = connection.call_all(("EXISTS", f"idle:{number}") for number in range(EVICTING_CALLS))
        assert connection.call(*idle(there.index(0)))[:2] == [1, 0]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name.startswith("volatile")])
def test_a_volatile_policy_never_evicts_an_allotment_that_never_refills(
    fresh_server: Callable[..., Server], policy: str
) -> None:
    server = evicting_server(fresh_server, policy)
    with server.raw_connection() as connection:
        for start in range(0, EVICTING_CALLS, BATCH):
            connection.call_all(idle(number) for number in range(start, start + BATCH))
        assert int(server.info("stats")["evicted_keys"]) > 0
        for number in range(ALLOTMENTS):
            assert connection.call(*allotment(number))[:2] == [0, 0], number


def test_volatile_ttl_evicts_first_what_would_be_full_again_first(fresh_server: Callable[..., Server]) -> None:
    # With as many samples as keys the server's choice is exact.
    count, half = 62, 31
    server = fresh_server({"maxmemory-policy": "volatile-ttl", "maxmemory-samples": count + 2})
    with server.raw_connection() as connection:
        # The higher its number, the slower it refills and the longer it lives.
        for number in range(count):
            assert connection.call("RL.TOKENBUCKET", number, 100 * (number + 1), "1")[0] == 1
        # In the middle of them a key that makes all the room that is then asked for.
        connection.call("SET", "ballast", bytes(4 * MIB), "PXAT", connection.call("PEXPIRETIME", half) - 1)
        used = int(server.info("memory")["used_memory"])
        assert connection.call("CONFIG", "SET", "maxmemory", used - 2 * MIB) == b"OK"
        connection.call("PING")
        wait_until(lambda: connection.call("EXISTS", "ballast") == 0, what="eviction")
        there = connection.call_all(("EXISTS", number) for number in range(count))
    assert there == [0] * half + [1] * (count - half)


def test_each_call_denied_or_not_counts_as_use_for_lfu_and_lru(fresh_server: Callable[..., Server]) -> None:
    # With this factor each use counts in full, so that there is no chance in it.
    server = fresh_server({"maxmemory-policy": "allkeys-lfu", "lfu-log-factor": 0, "lfu-decay-time": 0})
    calls = {
        "allowed": ("RL.TOKENBUCKET", "allowed", "1000", "1", "NOW", TODAY_MS),
        "denied": ("RL.SLIDING", "denied", "1", "60", "NOW", TODAY_MS),
        "previewed": ("RL.TOKENBUCKET_RO", "previewed", "10", "1", "NOW", TODAY_MS),
    }
    with server.raw_connection() as connection:
        for key in (*calls, "idle"):
            connection.call("RL.SLIDING" if key == "denied" else "RL.TOKENBUCKET", key, "1", "60", "NOW", TODAY_MS)
        for key, call in calls.items():
            before = connection.call("OBJECT", "FREQ", key)
            connection.call_all([call] * 50)
            assert connection.call("OBJECT", "FREQ", key) >= before + 50, key
        idle_freq = connection.call("OBJECT", "FREQ", "idle")
        assert all(connection.call("OBJECT", "FREQ", key) > idle_freq for key in calls)


# No growth

MILLION = 1_000_000
LIMITERS = 100
#: An eighth of a byte a call, and more than what the buffers of connections differ by.
TOLERANCE = 128 * 1024


def a_round() -> list[tuple[Word, ...]]:
    """Ten calls on each limiter: allowed and denied, by NOW and by the server's clock, refunds, previews."""
    calls: list[tuple[Word, ...]] = []
    for number in range(LIMITERS):
        bucket, window = f"bucket:{number}", f"window:{number}"
        calls += [
            ("RL.TOKENBUCKET", bucket, "1e6", "1e6"),
            ("RL.TOKENBUCKET", bucket, "1e6", "1e6", "COST", "2e6"),
            ("RL.TOKENBUCKET", bucket, "1e6", "1e6", "REFUND", "1", "MS"),
            ("RL.TOKENBUCKET_RO", bucket, "1e6", "1e6", "MS"),
            ("RL.SLIDING", window, "100", "60"),
            ("RL.SLIDING", window, "100", "60", "COST", "101", "MS"),
            ("RL.SLIDING", window, "100", "60", "REFUND", "0.5"),
            ("RL.SLIDING_RO", window, "100", "60"),
            ("RL.ALL", "2", bucket, window, "TOKENBUCKET", "1e6", "1e6", "SLIDING", "1e9", "60", "COST", "0"),
            ("RL.TOKENBUCKET", bucket, "wrong", "1"),
        ]
    return calls


def used_memory(server: Server) -> int:
    """Once no connection but the one that asks is left."""
    wait_until(lambda: server.info("clients")["connected_clients"] == "1", what="the others are gone")
    return int(server.info("memory")["used_memory"])


def test_a_million_calls_on_the_same_keys_leave_used_memory_where_it_was(
    fresh_server: Callable[..., Server], tally: Tally
) -> None:
    # Without logs of its own, which have a bound but are not full at first.
    server = fresh_server({"slowlog-max-len": 0, "latency-tracking": "no"})
    calls = a_round()
    batch = b"".join(encode(*call) for call in calls)

    def run(rounds: int) -> None:
        with server.raw_connection() as connection:
            for _ in range(rounds):
                connection.send(batch)
                errors = sum(isinstance(connection.read(), hiredis.ReplyError) for _ in calls)
                assert errors == LIMITERS

    run(20)
    before = used_memory(server)
    rounds = MILLION // len(calls)
    run(rounds)
    growth = used_memory(server) - before
    assert abs(growth) < TOLERANCE, f"{growth} bytes"
    with server.raw_connection() as connection:
        assert connection.call("DBSIZE") == 2 * LIMITERS
    tally.add("memory", rounds * len(calls), "calls without growth")


# Idle limiters

WITH_TTL = {
    "bucket": (("RL.TOKENBUCKET", "key", "10", "0.5"), 20 + 60),
    "a bucket that is slow": (("RL.TOKENBUCKET", "key", "10", "1e-12"), LONGEST_TTL_S),
    "bucket of nothing": (("RL.TOKENBUCKET", "key", "0", "1", "COST", "0"), 60),
    "window": (("RL.SLIDING", "key", "10", "60"), 120 + 60),
    "a window of a moment": (("RL.SLIDING", "key", "10", "0.001"), 1 + 60),
}


@pytest.mark.parametrize("name", WITH_TTL)
@pytest.mark.parametrize("now", [(), ("NOW", 0), ("NOW", 2**53)], ids=["server's clock", "past", "future"])
def test_a_limiter_has_a_ttl_on_the_servers_clock_whatever_now_says(
    raw: RawConnection, name: str, now: tuple[Word, ...]
) -> None:
    call, ttl_s = WITH_TTL[name]
    before_ms = server_ms(raw)
    assert raw.call(*call, *now)[0] == 1
    deadline_ms = raw.call("PEXPIRETIME", "key")
    assert before_ms <= deadline_ms - ttl_s * 1000 <= server_ms(raw)


def test_a_limiter_outlives_the_moment_at_which_it_is_as_new_by_a_minute(raw: RawConnection) -> None:
    """So that its end changes no decision, and that a clock a minute ahead changes none either."""
    for call in (("RL.TOKENBUCKET", "key", "10", "0.3", "COST", "7"), ("RL.SLIDING", "other", "10", "2.5")):
        now_ms = server_ms(raw)
        reset_after_ms = raw.call(*call, "NOW", now_ms, "MS")[2]
        assert reset_after_ms > 0
        assert raw.call("PEXPIRETIME", call[1]) >= now_ms + reset_after_ms + 60_000


def test_an_idle_limiter_vanishes_at_its_deadline_unasked(raw: RawConnection) -> None:
    for number in range(200):
        raw.call("RL.TOKENBUCKET", f"bucket:{number}", "10", "0.5")
        raw.call("RL.SLIDING", f"window:{number}", "10", "60")
    assert raw.call("RL.TOKENBUCKET", "allotment", "10", "0")[0] == 1
    keys = raw.call("KEYS", "[bw]*")
    assert len(keys) == 400
    # The deadline itself comes in a minute or later: bring it near.
    assert raw.call_all(("PEXPIRE", key, 1) for key in keys) == [1] * len(keys)
    wait_until(lambda: raw.call("DBSIZE") == 1, what="the server removes what has expired")
    assert raw.call("EXISTS", "allotment") == 1


@pytest.mark.parametrize("call", [BUCKET, WINDOW], ids=["bucket", "window"])
def test_a_limiter_that_has_expired_but_is_not_removed_is_missing(
    raw: RawConnection, call: tuple[Word, ...]
) -> None:
    key = call[1]
    fresh = raw.call(*call)
    raw.call("FLUSHALL")
    assert raw.call(*call, "COST", "10")[:2] == [1, 0]
    assert raw.call("DEBUG", "SET-ACTIVE-EXPIRE", "0") == b"OK"
    try:
        assert raw.call("PEXPIRE", key, 1) == 1
        deadline_ms = server_ms(raw) + 1
        wait_until(lambda: server_ms(raw) > deadline_ms, what="the deadline")
        assert raw.call("DBSIZE") == 1
        assert raw.call(f"{call[0]}_RO", *call[1:])[:2] == [1, 10]
        assert raw.call(*call) == fresh
        assert raw.call("PTTL", key) > 1
    finally:
        raw.call("DEBUG", "SET-ACTIVE-EXPIRE", "1")


def test_a_limiter_takes_little_more_memory_than_a_string_of_its_length(raw: RawConnection) -> None:
    raw.call(*BUCKET)
    raw.call(*WINDOW)
    for key, length in ((b"bucket", state.TOKEN_BUCKET_BYTES), (b"window", state.SLIDING_BYTES)):
        for _ in range(10):
            raw.call(*(BUCKET if key == b"bucket" else WINDOW))
        raw.call("SET", b"string", "x" * length, "EX", 1000)
        # Written in place: one header and one block of their own, where a short string has one for both.
        assert raw.call("MEMORY", "USAGE", key) <= raw.call("MEMORY", "USAGE", b"string") + 64
