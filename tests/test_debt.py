"""FORCE charges what has happened already, MAXWAIT takes now what may be used later, ATLEAST takes a part."""

import pytest

from harness import state
from harness.clock import CLOCK_SLACK_MS, TODAY_MS, server_ms
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer

Words = tuple[Word, ...]

KEY, OTHER_KEY = b"key", b"other"
NOW: Words = ("NOW", TODAY_MS)
BUCKET: Words = ("RL.TOKENBUCKET", KEY, "10", "1")
SLIDING: Words = ("RL.SLIDING", KEY, "10", "60")
DEEPEST_DEBT = -(2.0**53)
MOST = 2**53
INDEX = TODAY_MS // 60_000


def bucket(tokens: float, last_ms: int = TODAY_MS) -> bytes:
    return state.bucket_bytes(tokens, last_ms)


def window(prev: float, curr: float, stored: int = INDEX) -> bytes:
    return state.window_bytes(60.0, stored, prev, curr)


#: The state before, the call, the reply with MS, and the state that is propagated.
WRITTEN: dict[str, tuple[bytes | None, Words, list[int], bytes]] = {
    "forced within the capacity": (bucket(8.0), (*BUCKET, "FORCE", "3"), [1, 5, 5000, 0], bucket(5.0)),
    "forced into debt": (bucket(2.0), (*BUCKET, "FORCE", "5"), [1, 0, 13_000, 0], bucket(-3.0)),
    "forced on a missing key": (None, (*BUCKET, "FORCE", "15"), [1, 0, 15_000, 0], bucket(-5.0)),
    "forced after a refill": (bucket(-5.0, TODAY_MS - 2000), (*BUCKET, "FORCE", "1"), [1, 0, 14_000, 0], bucket(-4.0)),
    "nothing forced": (bucket(2.0), (*BUCKET, "FORCE", "0"), [1, 2, 8000, 0], bucket(2.0)),
    "forced into the deepest debt": (
        bucket(-1.0),
        (*BUCKET, "FORCE", MOST),
        [1, 0, MOST - 1, 0],
        bucket(DEEPEST_DEBT),
    ),
    "forced at the deepest debt": (bucket(DEEPEST_DEBT), (*BUCKET, "FORCE", "1e6"), [1, 0, MOST - 1, 0], bucket(DEEPEST_DEBT)),
    "a debt paid in part": (bucket(-5.0), (*BUCKET, "REFUND", "2"), [1, 0, 13_000, 0], bucket(-3.0)),
    "a debt paid and more": (bucket(-5.0), (*BUCKET, "REFUND", "99"), [1, 10, 0, 0], bucket(10.0)),
    "reserved": (bucket(0.5), (*BUCKET, "COST", "2", "MAXWAIT", "1.5"), [1, 0, 11_500, 1500], bucket(-1.5)),
    "reserved behind others": (bucket(-3.0), (*BUCKET, "MAXWAIT", "4"), [1, 0, 14_000, 4000], bucket(-4.0)),
    "nothing to wait for": (bucket(2.0), (*BUCKET, "MAXWAIT", "4"), [1, 1, 9000, 0], bucket(1.0)),
    "the whole capacity reserved": (
        bucket(0.0),
        (*BUCKET, "COST", "10", "MAXWAIT", "10"),
        [1, 0, 20_000, 10_000],
        bucket(-10.0),
    ),
    "a reservation cancelled": (bucket(-1.5), (*BUCKET, "REFUND", "2"), [1, 0, 9500, 0], bucket(0.5)),
    "a part of a bucket": (bucket(2.5), (*BUCKET, "COST", "7", "ATLEAST", "1"), [1, 0, 9500, 0, 2], bucket(0.5)),
    "all of it from a bucket": (bucket(7.0), (*BUCKET, "COST", "7", "ATLEAST", "1"), [1, 0, 10_000, 0, 7], bucket(0.0)),
    "a window above its limit": (window(0.0, 9.0), (*SLIDING, "FORCE", "5"), [1, 0, 120_000, 0], window(0.0, 14.0)),
    "a window that is new": (None, (*SLIDING, "FORCE", "15"), [1, 0, 120_000, 0], window(0.0, 15.0)),
    "a part of a window": (window(4.0, 3.5), (*SLIDING, "COST", "9", "ATLEAST", "2"), [1, 0, 120_000, 0, 2], window(4.0, 5.5)),
    "a window back within its limit": (window(0.0, 14.0), (*SLIDING, "REFUND", "5"), [1, 1, 120_000, 0], window(0.0, 9.0)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_taken_is_set_and_propagated(observed: ObservedServer, name: str) -> None:
    before, call, expected, after = WRITTEN[name]
    connection = observed.connection
    if before is not None:
        connection.call("SET", KEY, before)
    observed.stream.commands()
    assert TODAY_MS % 60_000 == 0, "the windows of the table begin at that time"
    assert connection.call(*call, *NOW, "MS") == expected
    assert connection.call("GET", KEY) == after
    deadline_ms = connection.call("PEXPIRETIME", KEY)
    assert observed.stream.commands() == [[b"SET", KEY, after, b"PXAT", b"%d" % deadline_ms]]


#: The state before, the call, and the reply with MS: nothing is taken and nothing propagated.
DENIED: dict[str, tuple[bytes | None, Words, list[int]]] = {
    "in debt": (bucket(-5.0), BUCKET, [0, 0, 15_000, 6000]),
    "in debt, nothing asked": (bucket(-5.0), (*BUCKET, "COST", "0"), [0, 0, 15_000, 5000]),
    "too long to wait": (bucket(-3.0), (*BUCKET, "MAXWAIT", "3.999"), [0, 0, 13_000, 1]),
    "no time to wait": (bucket(0.5), (*BUCKET, "MAXWAIT", "0"), [0, 0, 9500, 500]),
    "more than it ever holds": (bucket(0.5), (*BUCKET, "COST", "11", "MAXWAIT", "100"), [0, 0, 9500, -1]),
    "nothing refills": (bucket(0.5), ("RL.TOKENBUCKET", KEY, "10", "0", "MAXWAIT", "100"), [0, 0, -1, -1]),
    "in debt for ever": (bucket(-5.0), ("RL.TOKENBUCKET", KEY, "10", "0", "COST", "0"), [0, 0, -1, -1]),
    "not even the least": (bucket(2.5), (*BUCKET, "COST", "7", "ATLEAST", "3"), [0, 2, 7500, 500, 0]),
    "the least is never there": (bucket(2.5), (*BUCKET, "COST", "20", "ATLEAST", "11"), [0, 2, 7500, -1, 0]),
    "no part of a debt": (bucket(-2.5), (*BUCKET, "COST", "7", "ATLEAST", "1"), [0, 0, 12_500, 3500, 0]),
    "a window above its limit": (window(0.0, 14.0), SLIDING, [0, 0, 120_000, 81_429]),
    "no part of a window": (window(0.0, 9.5), (*SLIDING, "COST", "2", "ATLEAST", "1"), [0, 0, 120_000, 63_158, 0]),
}


@pytest.mark.parametrize("name", DENIED)
def test_a_denial_takes_and_propagates_nothing(observed: ObservedServer, name: str) -> None:
    before, call, expected = DENIED[name]
    connection = observed.connection
    connection.call("SET", KEY, before)
    traces = observed.traces()
    assert connection.call(*call, *NOW, "MS") == expected
    assert connection.call("GET", KEY) == before
    assert observed.traces() == traces


@pytest.mark.parametrize(
    ("call", "ttl_ms"),
    [
        ((*BUCKET, "FORCE", "1"), 70_000),
        ((*BUCKET, "FORCE", "15.5"), 76_000),
        ((*BUCKET, "FORCE", "20"), 80_000),
        (("RL.TOKENBUCKET", KEY, "10", "0.1", "FORCE", "20"), 260_000),
        (("RL.TOKENBUCKET", KEY, "10", "1e-9", "FORCE", "1e6"), 36_500 * 86_400_000),
        ((*BUCKET, "COST", "9", "MAXWAIT", "100"), 70_000),
        (("RL.TOKENBUCKET", KEY, "10", "0", "FORCE", "20"), None),
    ],
    ids=str,
)
def test_a_bucket_in_debt_lives_until_it_is_full(observed: ObservedServer, call: Words, ttl_ms: int | None) -> None:
    connection = observed.connection
    before_ms = server_ms(connection) - CLOCK_SLACK_MS
    connection.call(*call, *NOW)
    deadline_ms = connection.call("PEXPIRETIME", KEY)
    if ttl_ms is None:
        assert deadline_ms == -1
    else:
        assert before_ms <= deadline_ms - ttl_ms <= server_ms(connection) + CLOCK_SLACK_MS


def test_a_denial_in_debt_moves_the_deadline_by_the_debt_too(observed: ObservedServer) -> None:
    connection = observed.connection
    connection.call(*BUCKET, "FORCE", "110", *NOW)
    connection.call("PEXPIRE", KEY, 5000)
    before_ms = server_ms(connection) - CLOCK_SLACK_MS
    assert connection.call(*BUCKET, *NOW)[0] == 0
    deadline_ms = connection.call("PEXPIRETIME", KEY)
    assert before_ms <= deadline_ms - 170_000 <= server_ms(connection) + CLOCK_SLACK_MS


def test_a_debt_is_read_back_down_to_its_end_and_no_further(observed: ObservedServer) -> None:
    connection = observed.connection
    for tokens in (-5e-324, -1.0, -1e15, DEEPEST_DEBT):
        connection.call("SET", KEY, bucket(tokens))
        assert connection.call(*BUCKET, "COST", "0", *NOW)[0] == 0
        assert connection.call("GET", KEY) == bucket(tokens)
    for tokens in (DEEPEST_DEBT - 2, -1e308):
        connection.call("SET", KEY, bucket(tokens))
        before = observed.traces(KEY)
        assert str(connection.call(*BUCKET, *NOW)).startswith("WRONGTYPE ")
        assert observed.traces(KEY) == before


def test_reservations_are_spaced_by_the_refill_however_they_arrive(raw: RawConnection) -> None:
    """One token in 125 ms: whoever comes waits for those before, and nobody else."""
    call = ("RL.TOKENBUCKET", KEY, "1", "8", "MAXWAIT", "100", "MS")
    arrivals_ms = [0, 0, 3, 3, 200, 201, 250, 1000, 1000, 2500, 2510]
    starts_ms: list[int] = []
    for after_ms in arrivals_ms:
        allowed, _, _, wait_ms = raw.call(*call, "NOW", TODAY_MS + after_ms)
        assert allowed == 1
        expected_ms = max(after_ms, starts_ms[-1] + 125) if starts_ms else after_ms
        starts_ms.append(after_ms + wait_ms)
        assert starts_ms[-1] == expected_ms


# In RL.ALL

ALL_OF_TWO: Words = ("RL.ALL", "2", KEY, OTHER_KEY)


def test_a_forced_rule_allows_but_takes_only_where_all_allow(observed: ObservedServer) -> None:
    connection = observed.connection
    call = (*ALL_OF_TWO, "TOKENBUCKET", "10", "1", "FORCE", "15", "SLIDING", "1", "60", *NOW, "MS")
    assert connection.call(*call) == [1, [1, 0, 15_000, 0], [1, 0, 120_000, 0]]
    before = observed.traces(KEY, OTHER_KEY)
    assert connection.call(*call) == [0, [1, 0, 15_000, 0], [0, 0, 120_000, 120_000]]
    assert observed.traces(KEY, OTHER_KEY) == before


def test_in_all_the_buckets_wait_and_the_other_kinds_do_not(observed: ObservedServer) -> None:
    connection = observed.connection
    rules = ("TOKENBUCKET", "2", "1", "COST", "2", "QUOTA", "3", "60")
    call = (*ALL_OF_TWO, *rules, "MAXWAIT", "4", *NOW, "MS")
    assert connection.call(*call) == [1, [1, 0, 2000, 0], [1, 2, 60_000, 0]]
    assert connection.call(*call) == [1, [1, 0, 4000, 2000], [1, 1, 60_000, 0]]
    assert connection.call(*call) == [1, [1, 0, 6000, 4000], [1, 0, 60_000, 0]]
    before = observed.traces(KEY, OTHER_KEY)
    assert connection.call(*call) == [0, [0, 0, 6000, 2000], [0, 0, 60_000, 60_000]]
    assert observed.traces(KEY, OTHER_KEY) == before


def test_a_forced_bucket_beside_a_wait_does_not_wait(raw: RawConnection) -> None:
    rules = ("TOKENBUCKET", "2", "1", "FORCE", "5", "TOKENBUCKET", "2", "1", "COST", "2")
    call = (*ALL_OF_TWO, *rules, "MAXWAIT", "10", *NOW)
    assert raw.call(*call) == [1, [1, 0, TODAY_MS // 1000 + 5, 0], [1, 0, TODAY_MS // 1000 + 2, 0]]
    assert raw.call(*call) == [1, [1, 0, TODAY_MS // 1000 + 10, 0], [1, 0, TODAY_MS // 1000 + 4, 2]]
