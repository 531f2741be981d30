"""A quota is a string with the period's ends and its count; only what is counted is written and propagated."""

from collections.abc import Callable

import pytest

from harness.clock import CLOCK_SLACK_MS, TODAY_MS, server_ms
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.periods import DAY_MS, ms_of_date
from harness.server import Server
from harness.state import Count, count_bytes, read_count

Words = tuple[Word, ...]

KEY, OTHER_KEY = b"key", b"other"
NOW: Words = ("NOW", TODAY_MS)
LONGEST_TTL_MS = 36_500 * DAY_MS
SLACK_MS = 60_000
TODAY, TOMORROW = ms_of_date("2025-07-04"), ms_of_date("2025-07-05")

#: What a call on a missing key stores.
STORED: dict[str, tuple[Words, Count]] = {
    "seconds from the first counted call": (("60",), Count(TODAY_MS, TODAY_MS + 60_000, 2.5)),
    "a fraction of a second": (("0.7",), Count(TODAY_MS, TODAY_MS + 700, 2.5)),
    "seconds of an anchor": (("60", "ANCHOR", TODAY_MS + 15_000), Count(TODAY_MS - 45_000, TODAY_MS + 15_000, 2.5)),
    "a day": (("DAY",), Count(TODAY, TOMORROW, 2.5)),
    "a day of an anchor": (("DAY", "ANCHOR", 1), Count(TODAY + 1, TOMORROW + 1, 2.5)),
    "a week": (("WEEK",), Count(ms_of_date("2025-06-30"), ms_of_date("2025-07-07"), 2.5)),
    "a month": (("MONTH",), Count(ms_of_date("2025-07-01"), ms_of_date("2025-08-01"), 2.5)),
    "a month from the 31st": (
        ("MONTH", "ANCHOR", ms_of_date("2024-01-31")),
        Count(ms_of_date("2025-06-30"), ms_of_date("2025-07-31"), 2.5),
    ),
    "a year": (("YEAR",), Count(ms_of_date("2025-01-01"), ms_of_date("2026-01-01"), 2.5)),
    "a year from a leap day": (
        ("YEAR", "ANCHOR", ms_of_date("2024-02-29")),
        Count(ms_of_date("2025-02-28"), ms_of_date("2026-02-28"), 2.5),
    ),
    "the caller's own end": (("UNTIL", TODAY_MS + 7), Count(TODAY_MS, TODAY_MS + 7, 2.5)),
}


@pytest.mark.parametrize("name", STORED)
def test_the_state_is_the_documented_bytes(observed: ObservedServer, name: str) -> None:
    period, expected = STORED[name]
    connection = observed.connection
    assert connection.call("RL.QUOTA", KEY, "10", *period, "COST", "2.5", *NOW)[:2] == [1, 7]
    assert connection.call("GET", KEY) == count_bytes(*expected)
    assert connection.call("TYPE", KEY) == b"string"


def test_a_period_may_begin_before_1970(raw: RawConnection) -> None:
    raw.call("RL.QUOTA", KEY, "10", "MONTH", "ANCHOR", ms_of_date("2024-05-15"), "NOW", 0)
    assert read_count(raw.call("GET", KEY)) == Count(ms_of_date("1969-12-15"), ms_of_date("1970-01-15"), 1.0)
    reply = raw.call("RL.QUOTA", KEY, "10", "DAY", "NOW", 1, "MS")
    assert reply == [1, 8, 14 * DAY_MS - 1, 0]


#: By the period and NOW: how long the key lives.
LIVES: dict[str, tuple[Words, int]] = {
    "the rest of the period": (("60", "ANCHOR", TODAY_MS + 15_000, *NOW), 15_000 + SLACK_MS),
    "a whole period": (("3600", *NOW), 3_600_000 + SLACK_MS),
    "the rest of the day": (("DAY", *NOW), TOMORROW - TODAY_MS + SLACK_MS),
    "the last millisecond": (("UNTIL", TODAY_MS + 1, *NOW), 1 + SLACK_MS),
    "a century at most": (("9007199254740.992", *NOW), LONGEST_TTL_MS),
}


@pytest.mark.parametrize("name", LIVES)
def test_the_key_lives_a_minute_longer_than_its_period(observed: ObservedServer, name: str) -> None:
    words, ttl_ms = LIVES[name]
    connection = observed.connection
    observed.stream.commands()
    before_ms = server_ms(connection) - CLOCK_SLACK_MS
    connection.call("RL.QUOTA", KEY, "10", *words)
    after_ms = server_ms(connection) + CLOCK_SLACK_MS
    deadline_ms = connection.call("PEXPIRETIME", KEY)
    assert before_ms <= deadline_ms - ttl_ms <= after_ms
    written = [[b"SET", KEY, connection.call("GET", KEY), b"PXAT", b"%d" % deadline_ms]]
    assert observed.stream.commands() == written
    assert observed.aof_commands()[-1:] == written


OPEN = Count(TODAY_MS - 1000, TODAY_MS + 59_000, 4.0)
ENDED = Count(TODAY_MS - 60_000, TODAY_MS, 4.0)
QUOTA: Words = ("RL.QUOTA", KEY, "5", "60")

#: The state before, the call and its reply with MS; it leaves no trace.
UNWRITTEN: dict[str, tuple[Count | None, Words, list[int]]] = {
    "a cost of 0": (OPEN, (*QUOTA, "COST", "0"), [1, 1, 59_000, 0]),
    "a cost of 0 on a missing key": (None, (*QUOTA, "COST", "0"), [1, 5, 0, 0]),
    "a cost of 0 after the period": (ENDED, (*QUOTA, "COST", "0"), [1, 5, 0, 0]),
    "nothing forced": (OPEN, (*QUOTA, "FORCE", "0"), [1, 1, 59_000, 0]),
    "nothing forced on a missing key": (None, (*QUOTA, "FORCE", "0"), [1, 5, 0, 0]),
    "denied": (OPEN, (*QUOTA, "COST", "2"), [0, 1, 59_000, 59_000]),
    "denied for good": (OPEN, (*QUOTA, "COST", "6"), [0, 1, 59_000, -1]),
    "denied on a missing key": (None, (*QUOTA, "COST", "6"), [0, 5, 0, -1]),
    "denied after the period": (ENDED, (*QUOTA, "COST", "6"), [0, 5, 0, -1]),
    "not even the least": (OPEN, (*QUOTA, "COST", "3", "ATLEAST", "2"), [0, 1, 59_000, 59_000, 0]),
    "nothing given back": (OPEN, (*QUOTA, "REFUND", "0"), [1, 1, 59_000, 0]),
    "given back to a missing key": (None, (*QUOTA, "REFUND", "2"), [1, 5, 0, 0]),
    "given back after the period": (ENDED, (*QUOTA, "REFUND", "2"), [1, 5, 0, 0]),
    "given back from before the period": (
        OPEN,
        (*QUOTA, "REFUND", "2", "AT", TODAY_MS - 1001),
        [1, 1, 59_000, 0],
    ),
    "given back to a count of 0": (OPEN._replace(count=0.0), (*QUOTA, "REFUND", "2"), [1, 5, 0, 0]),
    "previewed": (OPEN, ("RL.QUOTA_RO", *QUOTA[1:]), [1, 1, 59_000, 0]),
    "previewed on a missing key": (None, ("RL.QUOTA_RO", *QUOTA[1:]), [1, 5, 0, 0]),
    "previewed after the period": (ENDED, ("RL.QUOTA_RO", *QUOTA[1:], "COST", "5"), [1, 5, 0, 0]),
    "previewed and denied": (OPEN, ("RL.QUOTA_RO", *QUOTA[1:], "COST", "2"), [0, 1, 59_000, 59_000]),
}


@pytest.mark.parametrize("name", UNWRITTEN)
def test_what_counts_nothing_leaves_no_trace(observed: ObservedServer, name: str) -> None:
    before, call, expected = UNWRITTEN[name]
    connection = observed.connection
    if before is not None:
        connection.call("SET", KEY, count_bytes(*before), "PX", 5_000_000)
    traces = observed.traces(KEY)
    assert connection.call(*call, *NOW, "MS") == expected
    assert observed.traces(KEY) == traces


#: The state before, the call, its reply with MS and the state after; it is propagated.
WRITTEN: dict[str, tuple[Count, Words, list[int], Count]] = {
    "counted": (OPEN, QUOTA, [1, 0, 59_000, 0], OPEN._replace(count=5.0)),
    "counted in part": (OPEN, (*QUOTA, "COST", "3", "ATLEAST", "1"), [1, 0, 59_000, 0, 1], OPEN._replace(count=5.0)),
    "forced": (OPEN, (*QUOTA, "FORCE", "7"), [1, 0, 59_000, 0], OPEN._replace(count=11.0)),
    "a new period": (ENDED, QUOTA, [1, 4, 60_000, 0], Count(TODAY_MS, TODAY_MS + 60_000, 1.0)),
    "a new period, forced": (ENDED, (*QUOTA, "FORCE", "7"), [1, 0, 60_000, 0], Count(TODAY_MS, TODAY_MS + 60_000, 7.0)),
    "given back": (OPEN, (*QUOTA, "REFUND", "2.5"), [1, 3, 59_000, 0], OPEN._replace(count=1.5)),
    "all of it given back": (OPEN, (*QUOTA, "REFUND", "9"), [1, 5, 0, 0], OPEN._replace(count=0.0)),
    "given back from its first millisecond": (
        OPEN,
        (*QUOTA, "REFUND", "1", "AT", TODAY_MS - 1000),
        [1, 2, 59_000, 0],
        OPEN._replace(count=3.0),
    ),
    "another period waits for the end of this one": (
        OPEN,
        ("RL.QUOTA", KEY, "5", "MONTH"),
        [1, 0, 59_000, 0],
        OPEN._replace(count=5.0),
    ),
    "an end of one's own as well": (
        OPEN,
        ("RL.QUOTA", KEY, "5", "UNTIL", TODAY_MS + 1),
        [1, 0, 59_000, 0],
        OPEN._replace(count=5.0),
    ),
    "the clock went back": (
        Count(TODAY_MS + 5000, TODAY_MS + 65_000, 4.0),
        QUOTA,
        [1, 0, 65_000, 0],
        Count(TODAY_MS + 5000, TODAY_MS + 65_000, 5.0),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_counted_or_given_back_is_set_and_propagated(observed: ObservedServer, name: str) -> None:
    before, call, expected, after = WRITTEN[name]
    connection = observed.connection
    connection.call("SET", KEY, count_bytes(*before))
    observed.stream.commands()
    assert connection.call(*call, *NOW, "MS") == expected
    assert connection.call("GET", KEY) == count_bytes(*after)
    deadline_ms = connection.call("PEXPIRETIME", KEY)
    assert observed.stream.commands() == [[b"SET", KEY, count_bytes(*after), b"PXAT", b"%d" % deadline_ms]]


# Alone and together


def test_an_hour_and_a_day_count_together_or_not_at_all(observed: ObservedServer) -> None:
    connection = observed.connection
    call = ("RL.ALL", "2", KEY, OTHER_KEY, "QUOTA", "2", "3600", "QUOTA", "3", "DAY", *NOW)
    assert [connection.call(*call)[0] for _ in range(2)] == [1, 1]
    before = observed.traces(KEY, OTHER_KEY)
    assert connection.call(*call) == [0, [0, 0, TODAY_MS // 1000 + 3600, 3600], [1, 1, TOMORROW // 1000, 0]]
    assert observed.traces(KEY, OTHER_KEY) == before


def test_a_quota_goes_on_in_a_server_that_did_not_have_the_module(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server({"appendonly": "yes", "appendfsync": "always"})
    with server.raw_connection() as connection:
        assert connection.call(*QUOTA, "COST", "4", *NOW)[:2] == [1, 1]
        held = connection.call("GET", KEY), connection.call("PEXPIRETIME", KEY)
    for with_module in (False, True):
        server.restart(with_module=with_module)
        with server.raw_connection() as connection:
            assert (connection.call("GET", KEY), connection.call("PEXPIRETIME", KEY)) == held
    with server.raw_connection() as connection:
        assert [connection.call(*QUOTA, *NOW)[0] for _ in range(2)] == [1, 0]
