"""Leases are a plain sorted set: who holds one and until when; what changes it is propagated, and nothing else."""

import random

import hiredis
import pytest

from harness.clock import CLOCK_SLACK_MS, TODAY_MS, server_ms
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.periods import DAY_MS

Words = tuple[Word, ...]

KEY, OTHER_KEY = b"key", b"other"
NOW: Words = ("NOW", TODAY_MS)
SLACK_MS = 60_000
LONGEST_TTL_MS = 36_500 * DAY_MS


def acquire(lease_id: Word, *options: Word, limit: Word = "2", lease: Word = "30", now_ms: int = TODAY_MS) -> Words:
    return ("RL.CONCURRENCY", KEY, limit, lease, "ID", lease_id, *options, "NOW", now_ms, "MS")


def held(connection: RawConnection, key: bytes = KEY) -> dict[bytes, float]:
    flat = connection.call("ZRANGE", key, 0, -1, "WITHSCORES")
    return {lease_id: float(end_ms) for lease_id, end_ms in zip(flat[::2], flat[1::2])}


def hold(connection: RawConnection, leases: dict[bytes, Word], key: bytes = KEY, px: int = 5_000_000) -> None:
    """Puts leases into an empty key, by their ends."""
    for lease_id, end_ms in leases.items():
        assert connection.call("ZADD", key, end_ms, lease_id) == 1
    if leases:
        connection.call("PEXPIRE", key, px)


def told(commands: list[list[bytes]]) -> list[list[bytes]]:
    """The commands without what wraps them."""
    return [command for command in commands if command[0] not in (b"MULTI", b"EXEC")]


def without_deadlines(commands: list[list[bytes]]) -> list[list[bytes]]:
    return [command for command in commands if command[0] != b"PEXPIREAT"]


def end(after_ms: int) -> bytes:
    return b"%d" % (TODAY_MS + after_ms)


# What changes the set, and what is propagated of it

#: The leases before, the call, its reply, what is propagated, and the leases after.
Change = tuple[dict[bytes, Word], Words, object, list[list[bytes]], dict[bytes, int]]
CHANGES: dict[str, Change] = {
    "added": (
        {b"a": end(10_000)},
        acquire("b"),
        [1, 0, 30_000, 0],
        [[b"ZADD", KEY, end(30_000), b"b"]],
        {b"a": 10_000, b"b": 30_000},
    ),
    "renewed": (
        {b"a": end(10_000), b"b": end(20_000)},
        acquire("a"),
        [1, 0, 30_000, 0],
        [[b"ZADD", KEY, end(30_000), b"a"]],
        {b"a": 30_000, b"b": 20_000},
    ),
    "renewed for less": (
        {b"a": end(40_000)},
        acquire("a"),
        [1, 1, 40_000, 0],
        [[b"ZADD", KEY, end(40_000), b"a"]],
        {b"a": 40_000},
    ),
    "renewed by XX": (
        {b"a": end(10_000)},
        acquire("a", "XX"),
        [1, 1, 30_000, 0],
        [[b"ZADD", KEY, end(30_000), b"a"]],
        {b"a": 30_000},
    ),
    "the dead make room": (
        {b"a": end(0), b"b": end(-5), b"c": end(1)},
        acquire("d"),
        [1, 0, 30_000, 0],
        [[b"ZREMRANGEBYSCORE", KEY, b"-inf", end(0)], [b"ZADD", KEY, end(30_000), b"d"]],
        {b"c": 1, b"d": 30_000},
    ),
    "one's own dead lease": (
        {b"a": end(0), b"b": end(5)},
        acquire("a"),
        [1, 0, 30_000, 0],
        [[b"ZREMRANGEBYSCORE", KEY, b"-inf", end(0)], [b"ZADD", KEY, end(30_000), b"a"]],
        {b"b": 5, b"a": 30_000},
    ),
    "all were dead": (
        {b"a": end(-1), b"b": end(-2)},
        acquire("c"),
        [1, 1, 30_000, 0],
        [[b"ZREMRANGEBYSCORE", KEY, b"-inf", end(0)], [b"ZADD", KEY, end(30_000), b"c"]],
        {b"c": 30_000},
    ),
    "released": (
        {b"a": end(10), b"b": end(20)},
        ("RL.RELEASE", KEY, "a"),
        1,
        [[b"ZREM", KEY, b"a"]],
        {b"b": 20},
    ),
    "the last one released": ({b"a": end(10)}, ("RL.RELEASE", KEY, "a"), 1, [[b"ZREM", KEY, b"a"]], {}),
    "a dead one released": ({b"a": end(-10), b"b": end(5)}, ("RL.RELEASE", KEY, "a"), 1, [[b"ZREM", KEY, b"a"]], {b"b": 5}),
    "released by a rule": (
        {b"a": end(10), b"b": end(20)},
        ("RL.ALL", "1", KEY, "CONCURRENCY", "2", "30", "RELEASE", "ID", "a", *NOW, "MS"),
        [1, [1, 1, 20, 0]],
        [[b"ZREM", KEY, b"a"]],
        {b"b": 20},
    ),
    "released by a rule after the dead": (
        {b"a": end(10), b"b": end(-20)},
        ("RL.ALL", "1", KEY, "CONCURRENCY", "2", "30", "RELEASE", "ID", "a", "XX", *NOW, "MS"),
        [1, [1, 2, 0, 0]],
        [[b"ZREMRANGEBYSCORE", KEY, b"-inf", end(0)], [b"ZREM", KEY, b"a"]],
        {},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_propagated_as_plain_commands(observed: ObservedServer, name: str) -> None:
    before, call, expected, written, after = CHANGES[name]
    connection = observed.connection
    hold(connection, before)
    observed.stream.commands()
    assert connection.call(*call) == expected
    assert held(connection) == {lease_id: TODAY_MS + end_ms for lease_id, end_ms in after.items()}
    assert without_deadlines(told(observed.stream.commands())) == written
    assert without_deadlines(told(observed.aof_commands()))[-len(written) :] == written


#: The leases before, the call and its reply: nothing changes, not even the dead go.
UNCHANGED: dict[str, tuple[dict[bytes, Word], Words, object]] = {
    "denied": ({b"a": end(10), b"b": end(20)}, acquire("c"), [0, 0, 20, 10]),
    "denied for good": ({b"a": end(10)}, acquire("c", limit="0"), [0, 0, 10, -1]),
    "denied on a missing key": ({}, acquire("c", limit="0"), [0, 0, 0, -1]),
    "denied although some are dead": (
        {b"a": end(10), b"b": end(20), b"c": end(30), b"d": end(-5)},
        acquire("e"),
        [0, 0, 30, 20],
    ),
    "lost": ({b"a": end(10)}, acquire("b", "XX"), [0, 1, 10, -1]),
    "lost as it ended": ({b"a": end(0), b"b": end(7)}, acquire("a", "XX"), [0, 1, 7, -1]),
    "lost on a missing key": ({}, acquire("b", "XX"), [0, 2, 0, -1]),
    "previewed": ({b"a": end(10), b"b": end(-5)}, ("RL.CONCURRENCY_RO", *acquire("c")[1:]), [1, 1, 10, 0]),
    "previewed on a missing key": ({}, ("RL.CONCURRENCY_RO", *acquire("c")[1:]), [1, 2, 0, 0]),
    "a renewal previewed": ({b"a": end(10), b"b": end(5)}, ("RL.CONCURRENCY_RO", *acquire("a")[1:]), [1, 0, 10, 0]),
    "a denial previewed": ({b"a": end(10), b"b": end(5)}, ("RL.CONCURRENCY_RO", *acquire("c")[1:]), [0, 0, 10, 5]),
    "somebody else's lease released": ({b"a": end(10)}, ("RL.RELEASE", KEY, "b", "c"), 0),
    "released from a missing key": ({}, ("RL.RELEASE", KEY, "b"), 0),
    "settled twice": (
        {b"b": end(10), b"c": end(-1)},
        ("RL.ALL", "1", KEY, "CONCURRENCY", "2", "30", "RELEASE", "ID", "a", "XX", *NOW, "MS"),
        [0, [0, 1, 10, -1]],
    ),
    "not released, as another rule denies": (
        {b"a": end(10)},
        ("RL.ALL", "2", KEY, OTHER_KEY, "CONCURRENCY", "2", "30", "RELEASE", "TOKENBUCKET", "0", "0", "ID", "a", *NOW, "MS"),
        [0, [1, 1, 10, 0], [0, 0, 0, -1]],
    ),
    "not taken, as another rule denies": (
        {b"a": end(10), b"b": end(-1)},
        ("RL.ALL", "2", KEY, OTHER_KEY, "CONCURRENCY", "2", "30", "TOKENBUCKET", "0", "0", "ID", "c", *NOW, "MS"),
        [0, [1, 1, 10, 0], [0, 0, 0, -1]],
    ),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_changes_nothing_leaves_no_trace(observed: ObservedServer, name: str) -> None:
    before, call, expected = UNCHANGED[name]
    connection = observed.connection
    hold(connection, before)
    traces = observed.traces(KEY, OTHER_KEY)
    assert connection.call(*call) == expected
    assert observed.traces(KEY, OTHER_KEY) == traces


# How long the set lives


def deadline_after(observed: ObservedServer, call: Words) -> tuple[int, list[list[bytes]], tuple[int, int]]:
    """The key's deadline after the call, what was propagated, and the server's times before and after."""
    connection = observed.connection
    observed.stream.commands()
    before_ms = server_ms(connection) - CLOCK_SLACK_MS
    assert connection.call(*call)[0] == 1
    after_ms = server_ms(connection) + CLOCK_SLACK_MS
    return connection.call("PEXPIRETIME", KEY), told(observed.stream.commands()), (before_ms, after_ms)


def test_the_first_lease_gives_the_set_two_leases_and_a_minute(observed: ObservedServer) -> None:
    deadline_ms, written, (before_ms, after_ms) = deadline_after(observed, acquire("a"))
    assert before_ms <= deadline_ms - (2 * 30_000 + SLACK_MS) <= after_ms
    assert written == [[b"ZADD", KEY, end(30_000), b"a"], [b"PEXPIREAT", KEY, b"%d" % deadline_ms]]
    assert observed.connection.call("PEXPIRETIME", KEY) == deadline_ms


def test_a_set_in_use_costs_one_command_a_call(observed: ObservedServer) -> None:
    """Until the deadline comes before the last lease and a minute."""
    first_ms, _, _ = deadline_after(observed, acquire("a"))
    for number in range(20):
        deadline_ms, written, _ = deadline_after(observed, acquire(f"b{number}", limit="100"))
        assert deadline_ms == first_ms
        assert [command[0] for command in written] == [b"ZADD"]


#: The leases before and the key's deadline from the server's time on, the lease asked for, and where the deadline goes.
DEADLINES: dict[str, tuple[dict[bytes, Word], int | None, Word, int | None]] = {
    "far enough": ({b"a": end(10_000)}, 30_000 + SLACK_MS + 5000, "30", None),
    "too near": ({b"a": end(10_000)}, 30_000 + SLACK_MS - 5000, "30", 2 * 30_000 + SLACK_MS),
    "none": ({b"a": end(10_000)}, None, "30", 2 * 30_000 + SLACK_MS),
    "far enough for the last, too near for a longer one": (
        {b"a": end(10_000)},
        30_000 + SLACK_MS + 5000,
        "60",
        2 * 60_000 + SLACK_MS,
    ),
    "far beyond": ({b"a": end(10_000)}, 10**9, "30", None),
    "a century at most": ({}, None, "9007199254740", LONGEST_TTL_MS),
}


@pytest.mark.parametrize("name", DEADLINES)
def test_the_deadline_moves_only_when_it_comes_too_early(observed: ObservedServer, name: str) -> None:
    before, px, lease, expected = DEADLINES[name]
    connection = observed.connection
    hold(connection, before)
    if before and px is None:
        assert connection.call("PERSIST", KEY) == 1
    elif before:
        connection.call("PEXPIRE", KEY, px)
    deadline_before_ms = connection.call("PEXPIRETIME", KEY)
    deadline_ms, written, (before_ms, after_ms) = deadline_after(observed, acquire("z", lease=lease))
    if expected is None:
        assert deadline_ms == deadline_before_ms
        assert [command[0] for command in written] == [b"ZADD"]
    else:
        assert before_ms <= deadline_ms - expected <= after_ms
        assert [command[0] for command in written] == [b"ZADD", b"PEXPIREAT"]
        assert written[1] == [b"PEXPIREAT", KEY, b"%d" % deadline_ms]


def test_a_set_that_empties_gets_its_deadline_anew(observed: ObservedServer) -> None:
    deadline_after(observed, acquire("a"))
    assert observed.connection.call("RL.RELEASE", KEY, "a") == 1
    assert observed.connection.call("EXISTS", KEY) == 0
    _, written, _ = deadline_after(observed, acquire("b"))
    assert [command[0] for command in written] == [b"ZADD", b"PEXPIREAT"]
    # The dead are removed first, and with the last of them goes the deadline.
    deadline_ms, written, _ = deadline_after(observed, acquire("c", now_ms=TODAY_MS + 30_000))
    assert [command[0] for command in written] == [b"ZREMRANGEBYSCORE", b"ZADD", b"PEXPIREAT"]
    assert written[2] == [b"PEXPIREAT", KEY, b"%d" % deadline_ms]


def test_no_lease_ends_before_its_time_by_the_keys_deadline(observed: ObservedServer, rng: random.Random) -> None:
    """Whatever lengths the calls ask for, one after another."""
    connection = observed.connection
    for number in range(300):
        lease_ms = rng.choice([1, 1000, 30_000, 600_000, rng.randrange(1, 10**7)])
        connection.call(*acquire(f"id{number % 7}", limit="7", lease=repr(lease_ms / 1000)))
        last_ms = max(held(connection).values()) - TODAY_MS
        assert connection.call("PTTL", KEY) >= last_ms + SLACK_MS - CLOCK_SLACK_MS


# By hand, and by others


def test_what_is_freed_by_hand_is_free(raw: RawConnection) -> None:
    assert [raw.call(*acquire(lease_id))[0] for lease_id in "abc"] == [1, 1, 0]
    assert raw.call("ZREM", KEY, "a") == 1
    assert raw.call(*acquire("c"))[0] == 1
    assert raw.call("DEL", KEY) == 1
    assert [raw.call(*acquire(lease_id))[0] for lease_id in "abc"] == [1, 1, 0]


@pytest.mark.parametrize(
    "ids", [[f"{n:03}" for n in range(300)], [f"{'x' * 60}{n:03}" for n in range(128)]], ids=["many", "long"]
)
def test_any_number_of_leases_is_counted_in_either_encoding(raw: RawConnection, ids: list[str]) -> None:
    limit = len(ids)
    for number, lease_id in enumerate(ids):
        reply = raw.call(*acquire(lease_id, limit=limit, now_ms=TODAY_MS + number))
        assert reply == [1, limit - number - 1, 30_000, 0]
    now_ms = TODAY_MS + limit
    assert raw.call(*acquire("one more", limit=limit, now_ms=now_ms)) == [0, 0, 30_000 - 1, 30_000 - limit]
    assert raw.call(*acquire("one more", limit=limit - 9, now_ms=now_ms)) == [0, 0, 30_000 - 1, 30_000 - limit + 9]
    assert raw.call("OBJECT", "ENCODING", KEY) in (b"skiplist", b"listpack")
    assert raw.call("RL.RELEASE", KEY, *ids[::2]) == len(ids[::2])
    assert raw.call(*acquire("one more", limit=limit, now_ms=now_ms))[:2] == [1, len(ids[::2]) - 1]


#: Scores that no call of this module sets, and whether they count as live now.
FOREIGN_SCORES: dict[str, tuple[Word, bool]] = {
    "infinite": ("inf", True),
    "minus infinity": ("-inf", False),
    "negative": ("-5", False),
    "zero": ("0", False),
    "a fraction ahead": (f"{TODAY_MS}.5", True),
    "a fraction behind": (f"{TODAY_MS - 1}.5", False),
    "huge": ("1.7976931348623157e308", True),
    "tiny": ("5e-324", False),
    "beyond the integers": (str(2**60), True),
}


@pytest.mark.parametrize("name", FOREIGN_SCORES)
def test_a_score_of_any_number_is_live_or_dead_and_answered(observed: ObservedServer, name: str) -> None:
    score, is_live = FOREIGN_SCORES[name]
    connection = observed.connection
    member = b"\x00\xff\r\n" * 300
    connection.call("ZADD", KEY, score, member)
    observed.stream.commands()
    preview = connection.call("RL.CONCURRENCY_RO", *acquire("a")[1:])
    assert preview[:2] == [1, 2 - is_live]
    assert (0 < preview[2] < 2**53) == is_live
    denied = connection.call(*acquire("a", limit="1")) if is_live else [0, 0, 1, 1]
    assert denied[:2] == [0, 0] and 0 < denied[2] < 2**53 and 0 < denied[3] < 2**53
    allowed = connection.call(*acquire("a"))
    assert allowed[:2] == [1, 1 - is_live] and 0 < allowed[2] < 2**53
    assert (member in held(connection)) == is_live
    assert connection.call("RL.RELEASE", KEY, "a") == 1
    names = [command[0] for command in observed.stream.commands() if command[0] != b"PEXPIREAT"]
    assert names == [b"ZREMRANGEBYSCORE"] * (not is_live) + [b"ZADD", b"ZREM"]


@pytest.mark.parametrize(
    "make",
    [
        ("ZADD", KEY, TODAY_MS + 5, "a"),
        ("GEOADD", KEY, "13.361389", "38.115556", "Palermo"),
        ("ZUNIONSTORE", KEY, "1", "source"),
    ],
    ids=lambda command: command[0],
)
def test_any_sorted_set_is_taken_for_leases(raw: RawConnection, make: Words) -> None:
    raw.call("ZADD", "source", TODAY_MS + 5, "a")
    assert raw.call(*make) == 1
    assert raw.call(*acquire("b"))[:2] == [1, 0]


# What is no sorted set

CALLS: dict[str, Words] = {
    "acquire": acquire("a"),
    "renew": acquire("a", "XX"),
    "no room": acquire("a", limit="0"),
    "preview": ("RL.CONCURRENCY_RO", *acquire("a")[1:]),
    "release": ("RL.RELEASE", KEY, "a"),
    "all": ("RL.ALL", "1", KEY, "CONCURRENCY", "2", "30", "ID", "a", *NOW),
    "release in all": ("RL.ALL", "1", KEY, "CONCURRENCY", "2", "30", "RELEASE", "ID", "a", *NOW),
    "in the shadow": ("RL.ALL", "1", KEY, "CONCURRENCY", "2", "30", "SHADOW", "ID", "a", *NOW),
    "all previewed": ("RL.ALL_RO", "1", KEY, "CONCURRENCY", "2", "30", "ID", "a", *NOW),
}
OTHER_TYPES: dict[str, Words] = {
    "a string": ("SET", KEY, "text"),
    "a bucket": ("RL.TOKENBUCKET", KEY, "10", "1"),
    "a window": ("RL.SLIDING", KEY, "10", "60"),
    "a quota": ("RL.QUOTA", KEY, "10", "60"),
    "a list": ("RPUSH", KEY, "a"),
    "a hash": ("HSET", KEY, "a", "1"),
    "a set": ("SADD", KEY, "a"),
    "a stream": ("XADD", KEY, "1-1", "a", "1"),
    "a bitmap": ("SETBIT", KEY, "7", "1"),
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_a_key_of_another_type_is_refused_untouched(observed: ObservedServer, kind: str) -> None:
    connection = observed.connection
    assert not isinstance(connection.call(*OTHER_TYPES[kind]), hiredis.ReplyError)
    before = observed.traces(KEY)
    for name, call in CALLS.items():
        reply = connection.call(*call)
        assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE "), f"{name}: {reply!r}"
    assert observed.traces(KEY) == before


OF_STRINGS: dict[str, Words] = {
    "bucket": ("RL.TOKENBUCKET", KEY, "10", "1"),
    "window": ("RL.SLIDING", KEY, "10", "60"),
    "quota": ("RL.QUOTA", KEY, "10", "60"),
    "all": ("RL.ALL", "2", OTHER_KEY, KEY, "CONCURRENCY", "1", "60", "QUOTA", "10", "60", "ID", "a"),
}


@pytest.mark.parametrize("kind", OF_STRINGS)
def test_leases_are_no_other_limiter(observed: ObservedServer, kind: str) -> None:
    connection = observed.connection
    assert connection.call(*acquire("a"))[0] == 1
    before = observed.traces(KEY, OTHER_KEY)
    name, *words = OF_STRINGS[kind]
    for command in (name, f"{name}_RO"):
        reply = connection.call(command, *words, *NOW)
        assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE ")
    assert observed.traces(KEY, OTHER_KEY) == before


def test_a_lease_of_the_longest_id_is_held_and_released(raw: RawConnection) -> None:
    lease_id = bytes(range(256)) * 2
    assert raw.call(*acquire(lease_id))[0] == 1
    assert held(raw) == {lease_id: TODAY_MS + 30_000}
    assert raw.call("RL.RELEASE", KEY, lease_id, lease_id) == 1


def test_scores_are_whole_milliseconds_without_an_exponent(observed: ObservedServer) -> None:
    """As people read them, and as every client parses them."""
    observed.stream.commands()
    observed.connection.call(*acquire("a"))
    (written,) = [command for command in told(observed.stream.commands()) if command[0] == b"ZADD"]
    assert written == [b"ZADD", KEY, end(30_000), b"a"]
    assert float(observed.connection.call("ZSCORE", KEY, "a")) == TODAY_MS + 30_000
