"""A key that holds anything but a state of the rule's algorithm is refused and left as it is."""

import math
import struct
from collections.abc import Callable

import hiredis
import pytest

from harness import state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.tally import Tally

KEY = b"key"
# Another key of RL.ALL, which must be left alone too.
NEIGHBOUR = b"neighbour"
TTL_S = 5000
I64_MAX = 2**63 - 1
I64_MIN = -(2**63)

BUCKET = ("TOKENBUCKET", "10", "1")
WINDOW = ("SLIDING", "10", "60")
QUOTA = ("QUOTA", "10", "60")
A_BUCKET = state.bucket_bytes(7.5, TODAY_MS)
A_WINDOW = state.window_bytes(60.0, TODAY_MS // 60_000, 2.0, 3.0)
A_COUNT = state.count_bytes(TODAY_MS - 1000, TODAY_MS + 59_000, 3.0)
STATES = {"TOKENBUCKET": A_BUCKET, "SLIDING": A_WINDOW, "QUOTA": A_COUNT}

#: Every way to reach KEY with a rule of each kind that is a string; NEIGHBOUR is a bucket.
CALLS: dict[str, dict[str, tuple[Word, ...]]] = {
    rule[0]: {
        "allowed": (f"RL.{rule[0]}", KEY, *rule[1:], "NOW", TODAY_MS),
        "denied": (f"RL.{rule[0]}", KEY, *rule[1:], "COST", "99", "NOW", TODAY_MS),
        "by the server's clock": (f"RL.{rule[0]}", KEY, *rule[1:]),
        "in ms": (f"RL.{rule[0]}", KEY, *rule[1:], "NOW", TODAY_MS, "MS"),
        "refund": (f"RL.{rule[0]}", KEY, *rule[1:], "REFUND", "1", "NOW", TODAY_MS),
        "forced": (f"RL.{rule[0]}", KEY, *rule[1:], "FORCE", "1", "NOW", TODAY_MS),
        "in part": (f"RL.{rule[0]}", KEY, *rule[1:], "COST", "2", "ATLEAST", "1", "NOW", TODAY_MS),
        "preview": (f"RL.{rule[0]}_RO", KEY, *rule[1:], "NOW", TODAY_MS),
        "all of one": ("RL.ALL", "1", KEY, *rule, "NOW", TODAY_MS),
        "in the shadow": ("RL.ALL", "1", KEY, *rule, "SHADOW", "NOW", TODAY_MS),
        "first of all": ("RL.ALL", "2", KEY, NEIGHBOUR, *rule, *BUCKET, "NOW", TODAY_MS),
        "last of all": ("RL.ALL", "2", NEIGHBOUR, KEY, *BUCKET, *rule, "NOW", TODAY_MS),
        "last of all after a denial": ("RL.ALL", "2", NEIGHBOUR, KEY, *BUCKET, "COST", "99", *rule, "NOW", TODAY_MS),
        "preview of all": ("RL.ALL_RO", "2", NEIGHBOUR, KEY, *BUCKET, *rule, "NOW", TODAY_MS),
    }
    for rule in (BUCKET, WINDOW, QUOTA)
}
ALL = tuple(CALLS)
STATE_LENGTHS = tuple(map(len, STATES.values()))


def assert_refused(observed: ObservedServer, algorithms: tuple[str, ...], tally: Tally) -> None:
    """Every call on KEY is answered with WRONGTYPE and leaves no trace. With a ttl and without."""
    connection = observed.connection
    assert connection.call("SET", NEIGHBOUR, A_BUCKET, "EX", TTL_S) == b"OK"
    encoding = connection.call("OBJECT", "ENCODING", KEY)
    for set_ttl in (("PERSIST", KEY), ("EXPIRE", KEY, TTL_S)):
        connection.call(*set_ttl)
        before = observed.traces(KEY, NEIGHBOUR)
        for algorithm in algorithms:
            for name, call in CALLS[algorithm].items():
                reply = connection.call(*call)
                assert isinstance(reply, hiredis.ReplyError), f"{algorithm} {name}: {reply!r}"
                assert str(reply).startswith("WRONGTYPE "), f"{algorithm} {name}: {reply}"
                assert observed.traces(KEY, NEIGHBOUR) == before, f"{algorithm} {name} changed something"
                tally.add("wrong types", 1, "calls refused without a trace")
    # The server re-encodes a string that a module looks into, and looking is refused to none of the
    # right length; its bytes are the same (DUMP says so). Anything else is not even looked into.
    if connection.call("TYPE", KEY) != b"string" or connection.call("STRLEN", KEY) not in STATE_LENGTHS:
        assert connection.call("OBJECT", "ENCODING", KEY) == encoding
    assert observed.is_alive


OTHER_TYPES: dict[str, tuple[Word, ...]] = {
    "list": ("RPUSH", KEY, "a", "b"),
    "hash": ("HSET", KEY, "tokens", "1", "timestamp", "2"),
    "set of integers": ("SADD", KEY, "1", "2"),
    "set of strings": ("SADD", KEY, "a", "b"),
    "sorted set": ("ZADD", KEY, "1", "a"),
    "stream": ("XADD", KEY, "1-1", "field", "value"),
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_a_key_of_another_type_is_refused_untouched(observed: ObservedServer, kind: str, tally: Tally) -> None:
    assert not isinstance(observed.connection.call(*OTHER_TYPES[kind]), hiredis.ReplyError)
    assert_refused(observed, ALL, tally)


FOREIGN_STRINGS: dict[str, bytes] = {
    "empty": b"",
    "one byte": b"R",
    "the magic alone": b"RL",
    "an integer": b"12345",
    "a shared integer": b"7",
    "an integer of 20 bytes": b"-9223372036854775808",
    "digits of 20 bytes": b"12345678901234567890",
    "text of 20 bytes": b"x" * 20,
    "text of 28 bytes": b"x" * 28,
    "text of 36 bytes": b"y" * 36,
    "zeros of 20 bytes": bytes(20),
    "zeros of 28 bytes": bytes(28),
    "zeros of 36 bytes": bytes(36),
    "a uuid of 36 bytes": b"123e4567-e89b-12d3-a456-426614174000",
    "text of 44 bytes": b"z" * 44,
    "text of 45 bytes": b"z" * 45,
    "a megabyte": b"RL\x01T" + bytes(2**20),
}


@pytest.mark.parametrize("name", FOREIGN_STRINGS)
def test_a_foreign_string_is_refused_untouched(observed: ObservedServer, name: str, tally: Tally) -> None:
    assert observed.connection.call("SET", KEY, FOREIGN_STRINGS[name]) == b"OK"
    assert_refused(observed, ALL, tally)


@pytest.mark.parametrize(
    "set_up",
    [
        ("PFADD", KEY, "a", "b"),
        ("SETBIT", KEY, "159", "1"),
        ("SETRANGE", KEY, "35", "x"),
        ("INCRBYFLOAT", KEY, "0.125"),
        ("APPEND", KEY, "a" * 20),
    ],
    ids=lambda command: command[0],
)
def test_a_string_of_another_command_is_refused_untouched(
    observed: ObservedServer, set_up: tuple[Word, ...], tally: Tally
) -> None:
    assert not isinstance(observed.connection.call(*set_up), hiredis.ReplyError)
    assert_refused(observed, ALL, tally)


@pytest.mark.parametrize("kind", STATES)
def test_another_kinds_state_is_refused_untouched(observed: ObservedServer, kind: str, tally: Tally) -> None:
    observed.connection.call("SET", KEY, STATES[kind])
    assert_refused(observed, tuple(other for other in ALL if other != kind), tally)


def with_byte(value: bytes, position: int, byte: int) -> bytes:
    return value[:position] + bytes([byte]) + value[position + 1 :]


def corrupted_headers(value: bytes) -> list[bytes]:
    return [
        with_byte(value, position, byte)
        for position in range(4)
        for byte in {0, 1, 2, 0x20, 0x7F, 0x80, 0xFF, *b"RLTSQtsq"}
        if byte != value[position]
    ]


@pytest.mark.parametrize("value", STATES.values(), ids=STATES)
def test_a_state_with_any_other_header_byte_is_refused_untouched(
    observed: ObservedServer, value: bytes, tally: Tally
) -> None:
    for corrupted in corrupted_headers(value):
        observed.connection.call("SET", KEY, corrupted)
        assert_refused(observed, ALL, tally)


@pytest.mark.parametrize("value", STATES.values(), ids=STATES)
def test_a_state_that_is_cut_short_or_too_long_is_refused_untouched(
    observed: ObservedServer, value: bytes, tally: Tally
) -> None:
    for length in range(len(value)):
        observed.connection.call("SET", KEY, value[:length])
        assert_refused(observed, ALL, tally)
    for extra in (b"\x00", b"\n", bytes(8), bytes(16), value):
        observed.connection.call("SET", KEY, value + extra)
        assert_refused(observed, ALL, tally)


NOT_STORED = [math.nan, -math.nan, math.inf, -math.inf, -1.0, -1e-300, -5e-324, -1e308]
SIGNALLING_NAN = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf0\x7f")[0]

#: A bucket may be in debt, down to -2^53.
DEEPEST_DEBT = -(2.0**53)
NO_TOKENS = [bad for bad in [*NOT_STORED, SIGNALLING_NAN] if not bad >= -1.0] + [math.nextafter(DEEPEST_DEBT, -math.inf)]

FORGED: dict[str, tuple[str, Callable[[], list[bytes]]]] = {
    "tokens": ("TOKENBUCKET", lambda: [state.bucket_bytes(bad, TODAY_MS) for bad in NO_TOKENS]),
    "last": ("TOKENBUCKET", lambda: [state.bucket_bytes(5.0, bad) for bad in (-1, I64_MIN)]),
    "window": ("SLIDING", lambda: [state.window_bytes(bad, 1, 0.0, 0.0) for bad in [*NOT_STORED, -0.0]]),
    "stored": ("SLIDING", lambda: [state.window_bytes(60.0, bad, 0.0, 0.0) for bad in (-1, I64_MIN)]),
    "prev": ("SLIDING", lambda: [state.window_bytes(60.0, 1, bad, 0.0) for bad in NOT_STORED]),
    "count": ("QUOTA", lambda: [state.count_bytes(0, I64_MAX, bad) for bad in NOT_STORED]),
    "curr": ("SLIDING", lambda: [state.window_bytes(60.0, 1, 0.0, bad) for bad in NOT_STORED]),
}


@pytest.mark.parametrize("field", FORGED)
def test_a_stored_number_not_finite_or_too_low_is_refused_untouched(
    observed: ObservedServer, field: str, tally: Tally
) -> None:
    algorithm, values = FORGED[field]
    for value in values():
        observed.connection.call("SET", KEY, value)
        assert_refused(observed, (algorithm,), tally)


EXTREMES: dict[str, list[bytes]] = {
    "TOKENBUCKET": [
        state.bucket_bytes(tokens, last_ms)
        for tokens in (DEEPEST_DEBT, -1.0, -5e-324, 0.0, 5e-324, 2.0**53, 1.7976931348623157e308)
        for last_ms in (0, TODAY_MS, 2**53, 2**53 + 1, I64_MAX - 1, I64_MAX)
    ],
    "SLIDING": [
        state.window_bytes(60.0, stored, prev, curr)
        for stored in (0, TODAY_MS // 60_000 - 1, TODAY_MS // 60_000, 2**53, I64_MAX - 1, I64_MAX)
        for prev in (0.0, 5e-324, 1.7976931348623157e308)
        for curr in (0.0, 5e-324, 1.7976931348623157e308)
    ],
    "QUOTA": [
        state.count_bytes(start_ms, end_ms, count)
        for start_ms in (I64_MIN, -1, 0, TODAY_MS, I64_MAX)
        for end_ms in (0, TODAY_MS, TODAY_MS + 1, 2**54, I64_MAX)
        for count in (0.0, 5e-324, 4.0, 1.7976931348623157e308)
    ],
}


@pytest.mark.parametrize("algorithm", ALL)
def test_a_stored_number_at_the_end_of_its_type_is_answered(raw: RawConnection, algorithm: str) -> None:
    """Nothing that RESTORE or SET can bring in stops the server or its answers."""
    for value in EXTREMES[algorithm]:
        for name, call in CALLS[algorithm].items():
            raw.call("SET", NEIGHBOUR, A_BUCKET)
            raw.call("SET", KEY, value)
            reply = raw.call(*call)
            assert isinstance(reply, list), f"{name} on {value.hex()}: {reply!r}"
            for four in reply[1:] if call[0].startswith("RL.ALL") else [reply]:
                allowed, remaining, reset, retry, *_ = four
                assert allowed in (0, 1), f"{name} on {value.hex()}: {reply}"
                assert remaining <= 10, f"{name} on {value.hex()}: {reply}"
                assert min(remaining, reset + 1, retry + 1) >= 0, f"{name} on {value.hex()}: {reply}"
                assert max(reset, retry) < 2**53, f"{name} on {value.hex()}: {reply}"
            assert raw.call("STRLEN", KEY) == len(value)
