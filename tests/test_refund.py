"""REFUND gives back what was taken and not used, and never more than that."""

import pytest

from harness import parity, state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer

KEY, OTHER_KEY = b"key", b"other"
WINDOW_S = 60.0
INDEX = TODAY_MS // 60_000
NOW = ("NOW", TODAY_MS)
TTL_MS = 5_000_000
NO_TTL = -1

BUCKET, SLIDING = ("RL.TOKENBUCKET", KEY, "10", "1"), ("RL.SLIDING", KEY, "10", "60")


def bucket(tokens: float, last_ms: int = TODAY_MS) -> bytes:
    return state.bucket_bytes(tokens, last_ms)


def window(prev: float, curr: float, stored: int = INDEX, window_s: float = WINDOW_S) -> bytes:
    return state.window_bytes(window_s, stored, prev, curr)


#: Seven in windows of another length, which begin at the same time.
OTHER_LENGTH = window(4.0, 3.0, INDEX // 2, 2 * WINDOW_S)

#: The call, the state before it, what is given back, the state after it, what remains, and whether it changed anything.
REFUNDS: dict[str, tuple[tuple[Word, ...], bytes, str, bytes, int, bool]] = {
    "a bucket gets back what is given": (BUCKET, bucket(2.5), "3", bucket(5.5), 5, True),
    "a bucket is full at most": (BUCKET, bucket(8.0), "3", bucket(10.0), 10, True),
    "a bucket is full at most of any amount": (BUCKET, bucket(0.0), "9007199254740992", bucket(10.0), 10, True),
    "a fraction of a token": (BUCKET, bucket(0.25), "0.5", bucket(0.75), 0, True),
    "a full bucket stays as it is": (BUCKET, bucket(10.0), "3", bucket(10.0), 10, False),
    "nothing to a bucket": (BUCKET, bucket(4.0), "0", bucket(4.0), 4, False),
    "a bucket is refilled first": (BUCKET, bucket(1.0, TODAY_MS - 2000), "3", bucket(6.0), 6, True),
    "a bucket that is full after its refill": (BUCKET, bucket(9.0, TODAY_MS - 5000), "3", bucket(10.0), 10, False),
    "nothing to a bucket that refills": (BUCKET, bucket(1.0, TODAY_MS - 2000), "0", bucket(3.0), 3, False),
    "a bucket above a lowered capacity": (BUCKET, bucket(50.0), "1", bucket(10.0), 10, False),
    "this window's count first": (SLIDING, window(4.0, 5.0), "3", window(4.0, 2.0), 4, True),
    "then the one before": (SLIDING, window(4.0, 5.0), "7", window(2.0, 0.0), 8, True),
    "neither count below 0": (SLIDING, window(4.0, 5.0), "10", window(0.0, 0.0), 10, True),
    "neither count below 0 of any amount": (SLIDING, window(4.0, 5.0), "1e15", window(0.0, 0.0), 10, True),
    "the window before alone": (SLIDING, window(4.0, 0.0), "1", window(3.0, 0.0), 7, True),
    "a window of nothing": (SLIDING, window(0.0, 0.0), "3", window(0.0, 0.0), 10, False),
    "nothing to a window": (SLIDING, window(4.0, 5.0), "0", window(4.0, 5.0), 1, False),
    "a window is rolled over first": (SLIDING, window(9.0, 5.0, INDEX - 1), "2", window(3.0, 0.0), 7, True),
    "a window long gone": (SLIDING, window(9.0, 5.0, INDEX - 2), "2", window(0.0, 0.0), 10, False),
    "nothing to a window that is rolled over": (SLIDING, window(9.0, 5.0, INDEX - 1), "0", window(5.0, 0.0), 5, False),
    "a window of another length is carried over first": (SLIDING, OTHER_LENGTH, "2", window(5.0, 0.0), 5, True),
    "nothing to a window that is carried over": (SLIDING, OTHER_LENGTH, "0", window(7.0, 0.0), 3, False),
    "a window of another length long gone": (SLIDING, window(9.0, 5.0, window_s=7.0), "2", window(0.0, 0.0), 10, False),
    "AT this window takes from its count alone": (SLIDING, window(4.0, 5.0), f"7 AT {TODAY_MS}", window(4.0, 0.0), 6, True),
    "AT a time to come is AT now": (SLIDING, window(4.0, 5.0), f"2 AT {2**53}", window(4.0, 3.0), 3, True),
    "AT the end of the window before": (SLIDING, window(4.0, 5.0), f"7 AT {TODAY_MS - 1}", window(0.0, 5.0), 5, True),
    "AT its beginning": (SLIDING, window(4.0, 5.0), f"1 AT {TODAY_MS - 60_000}", window(3.0, 5.0), 2, True),
    "AT what is not counted any more": (SLIDING, window(4.0, 5.0), f"7 AT {TODAY_MS - 60_001}", window(4.0, 5.0), 1, False),
    "AT the beginning of time": (SLIDING, window(4.0, 5.0), "7 AT 0", window(4.0, 5.0), 1, False),
    "AT the window before, rolled over first": (
        SLIDING,
        window(9.0, 5.0, INDEX - 1),
        f"2 AT {TODAY_MS - 1}",
        window(3.0, 0.0),
        7,
        True,
    ),
    "AT this window, rolled over first": (
        SLIDING,
        window(9.0, 5.0, INDEX - 1),
        f"2 AT {TODAY_MS}",
        window(5.0, 0.0),
        5,
        False,
    ),
    "AT the window before, carried over first": (SLIDING, OTHER_LENGTH, f"2 AT {TODAY_MS - 1}", window(5.0, 0.0), 5, True),
    "AT this window, carried over first": (SLIDING, OTHER_LENGTH, f"2 AT {TODAY_MS}", window(7.0, 0.0), 3, False),
    "AT a window from which the clock went back": (
        SLIDING,
        window(4.0, 5.0, INDEX + 1),
        f"3 AT {TODAY_MS + 60_000}",
        window(1.0, 5.0, INDEX + 1),
        4,
        True,
    ),
    "AT says nothing to a bucket": (BUCKET, bucket(2.5), "3 AT 0", bucket(5.5), 5, True),
    "AT a time to come says nothing to a bucket": (BUCKET, bucket(2.5), f"3 AT {2**53}", bucket(5.5), 5, True),
}


@pytest.mark.parametrize("ttl_ms", [TTL_MS, NO_TTL], ids=["with a ttl", "without a ttl"])
@pytest.mark.parametrize("name", REFUNDS)
def test_a_refund_is_clamped_and_propagated_only_if_it_changed_something(
    observed: ObservedServer, name: str, ttl_ms: int
) -> None:
    call, before, given, after, remaining, is_change = REFUNDS[name]
    connection = observed.connection
    connection.call("SET", KEY, before, *(("PX", ttl_ms) if ttl_ms != NO_TTL else ()))
    observed.stream.commands()
    traces = observed.traces()
    assert TODAY_MS % (2 * 60_000) == 0, "the windows of the table begin at that time"
    reply = connection.call(*call, "REFUND", *given.split(), *NOW)
    assert (reply[0], reply[1], reply[3]) == (1, remaining, 0)
    assert connection.call("GET", KEY) == after
    propagated = observed.stream.commands()
    if is_change:
        deadline_ms = connection.call("PEXPIRETIME", KEY)
        assert propagated == [[b"SET", KEY, after, b"PXAT", b"%d" % deadline_ms]]
        assert observed.aof_commands()[-len(propagated) :] == propagated
    else:
        assert propagated == []
        now = observed.traces()
        # The stream's own sentinels move the replication offset.
        assert (now.aof_bytes, now.changes_since_save) == (traces.aof_bytes, traces.changes_since_save)


@pytest.mark.parametrize("given", ["0", "1", "10", "9007199254740992", f"3 AT {TODAY_MS}", "3 AT 0"])
@pytest.mark.parametrize("in_ms", [False, True], ids=["in seconds", "in ms"])
@pytest.mark.parametrize("call", [BUCKET, SLIDING], ids=["bucket", "window"])
def test_a_refund_to_a_missing_key_is_answered_fresh_and_leaves_no_trace(
    observed: ObservedServer, call: tuple[Word, ...], in_ms: bool, given: str
) -> None:
    before = observed.traces(KEY)
    reply = observed.connection.call(*call, "REFUND", *given.split(), *NOW, *["MS"] * in_ms)
    now_s = TODAY_MS // 1000
    reset = 0 if in_ms else now_s if call is BUCKET else now_s + 60
    assert reply == [1, 10, reset, 0]
    assert observed.traces(KEY) == before
    assert before.key_count == 0


@pytest.mark.parametrize("call", [BUCKET, SLIDING], ids=["bucket", "window"])
def test_a_reservation_given_back_in_part_leaves_what_the_real_cost_would(
    raw: RawConnection, call: tuple[Word, ...]
) -> None:
    raw.call(*call, "COST", "8", *NOW)
    given_back = raw.call(*call, "REFUND", "5.5", *NOW)
    reserved = raw.call("GET", KEY)
    raw.call("DEL", KEY)
    taken = raw.call(*call, "COST", "2.5", *NOW)
    assert given_back == taken
    assert raw.call("GET", KEY) == reserved


@pytest.mark.parametrize(
    ("call", "ttl_ms"),
    [(BUCKET, 70_000), (SLIDING, 180_000), (("RL.TOKENBUCKET", KEY, "10", "0"), NO_TTL)],
    ids=["bucket", "window", "bucket that never refills"],
)
def test_a_refund_sets_the_ttl_that_every_call_sets(raw: RawConnection, call: tuple[Word, ...], ttl_ms: int) -> None:
    raw.call(*call, "COST", "8", *NOW)
    raw.call("PEXPIRE", KEY, TTL_MS)
    raw.call("MULTI")
    for words in (("TIME",), (*call, "REFUND", "1", *NOW), ("PEXPIRETIME", KEY)):
        raw.call(*words)
    (seconds, microseconds), _, deadline_ms = raw.call("EXEC")
    if ttl_ms == NO_TTL:
        assert deadline_ms == NO_TTL
    else:
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        # The two clocks of a server, that of TIME and that of a command, are read at two moments.
        assert abs(deadline_ms - now_ms - ttl_ms) <= parity.TTL_TOLERANCE_MS


#: In the window before, at its end; in this one, at its end; right after.
TAKEN_MS, COUNTED_MS, SETTLED_MS, TRIED_MS = (TODAY_MS + after_ms for after_ms in (59_000, 119_000, 119_001, 119_002))


@pytest.mark.parametrize(
    ("at", "is_allowed"),
    [(("AT", TAKEN_MS), 0), ((), 1), (("AT", SETTLED_MS), 1)],
    ids=["AT its time", "without AT", "AT the time of the refund"],
)
def test_a_late_refund_gives_back_no_more_than_the_cost_still_counts(
    raw: RawConnection, at: tuple[Word, ...], is_allowed: int
) -> None:
    """A cost of the window before counts a sixtieth of itself by then. Without AT it is credited in full."""
    assert raw.call(*SLIDING, "COST", "10", "NOW", TAKEN_MS)[0] == 1
    assert raw.call(*SLIDING, "COST", "9", "NOW", COUNTED_MS)[0] == 1
    assert raw.call(*SLIDING, "REFUND", "10", *at, "NOW", SETTLED_MS)[0] == 1
    assert raw.call(*SLIDING, "COST", "9", "NOW", TRIED_MS)[0] == is_allowed


@pytest.mark.parametrize(
    "words",
    [
        ("REFUND", "3", "AT", TODAY_MS - 1, "NOW", TODAY_MS),
        ("refund", "3", "NOW", TODAY_MS, "aT", TODAY_MS - 1),
        ("NOW", TODAY_MS, "AT", TODAY_MS - 1, "REFUND", "3"),
        ("AT", TODAY_MS - 1, "MS", "NOW", TODAY_MS, "REFUND", "3"),
    ],
    ids=lambda words: " ".join(map(str, words[::2])),
)
def test_at_may_appear_anywhere_among_the_options(raw: RawConnection, words: tuple[Word, ...]) -> None:
    raw.call("SET", KEY, window(4.0, 5.0))
    assert raw.call(*SLIDING, *words)[:2] == [1, 4]
    assert raw.call("GET", KEY) == window(1.0, 5.0)


# In RL.ALL

ALL_OF_TWO = ("RL.ALL", "2", KEY, OTHER_KEY)
GIVE_3 = {"bucket": ("TOKENBUCKET", "10", "1", "REFUND", "3"), "window": ("SLIDING", "10", "60", "REFUND", "3")}
HELD = {"bucket": bucket(2.0), "window": window(4.0, 5.0)}
GIVEN = {"bucket": bucket(5.0), "window": window(4.0, 2.0)}
REMAINING = {"bucket": (2, 5), "window": (1, 4)}


@pytest.mark.parametrize("kind", GIVE_3)
def test_a_refund_in_all_takes_effect_where_all_allow(observed: ObservedServer, kind: str) -> None:
    connection = observed.connection
    connection.call("SET", KEY, HELD[kind], "PX", TTL_MS)
    observed.stream.commands()
    reply = connection.call(*ALL_OF_TWO, *GIVE_3[kind], "SLIDING", "5", "60", *NOW)
    assert (reply[0], reply[1][:2], reply[2][:2]) == (1, [1, REMAINING[kind][1]], [1, 4])
    assert connection.call("GET", KEY) == GIVEN[kind]
    assert [command[:3] for command in observed.stream.commands()] == [
        [b"SET", KEY, GIVEN[kind]],
        [b"SET", OTHER_KEY, window(0.0, 1.0)],
    ]


@pytest.mark.parametrize("kind", GIVE_3)
def test_a_refund_in_all_leaves_no_trace_where_another_rule_denies(
    observed: ObservedServer, kind: str
) -> None:
    """The refund itself always allows."""
    connection = observed.connection
    connection.call("SET", KEY, HELD[kind], "PX", TTL_MS)
    before = observed.traces(KEY, OTHER_KEY)
    reply = connection.call(*ALL_OF_TWO, *GIVE_3[kind], "SLIDING", "5", "60", "COST", "6", *NOW)
    allowed, given, denied = reply
    assert (allowed, denied[0]) == (0, 0)
    assert (given[0], given[1], given[3]) == (1, REMAINING[kind][0], 0)
    assert observed.traces(KEY, OTHER_KEY) == before


def test_each_refund_in_all_has_a_time_of_its_own(observed: ObservedServer) -> None:
    connection = observed.connection
    keys = (b"a", b"b", b"c", b"d")
    for key in keys:
        connection.call("SET", key, HELD["window"])
    observed.stream.commands()
    ats = (("AT", TODAY_MS), ("AT", TODAY_MS - 1), ("AT", TODAY_MS - 60_001), ())
    rules = [word for at in ats for word in (*GIVE_3["window"], *at)]
    reply = connection.call("RL.ALL", len(keys), *keys, *rules, *NOW)
    assert [reply[0], *(four[1] for four in reply[1:])] == [1, 4, 4, 1, 4]
    left = [window(4.0, 2.0), window(1.0, 5.0), window(4.0, 5.0), window(4.0, 2.0)]
    assert connection.call("MGET", *keys) == left
    assert [command[1] for command in observed.stream.commands()] == [b"a", b"b", b"d"]


def test_refunds_of_all_propagate_those_that_changed_something(observed: ObservedServer) -> None:
    connection = observed.connection
    connection.call("MSET", b"full", bucket(10.0), b"taken", bucket(1.0), b"empty", window(0.0, 0.0), b"used", window(0.0, 2.0))
    observed.stream.commands()
    keys = (b"full", b"missing", b"taken", b"empty", b"used")
    rules = [GIVE_3[kind] for kind in ("bucket", "bucket", "bucket", "window", "window")]
    reply = connection.call("RL.ALL", len(keys), *keys, *(word for rule in rules for word in rule), *NOW)
    assert [reply[0], *(four[:2] for four in reply[1:])] == [1, [1, 10], [1, 10], [1, 4], [1, 10], [1, 10]]
    assert [command[:3] for command in observed.stream.commands()] == [
        [b"SET", b"taken", bucket(4.0)],
        [b"SET", b"used", window(0.0, 0.0)],
    ]
    assert connection.call("EXISTS", b"missing") == 0
