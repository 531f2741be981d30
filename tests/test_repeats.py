"""A call with a lease that is sent again takes nothing twice, and a rule in the shadow denies nobody."""

import hiredis
import pytest

from harness import state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.state import Count, count_bytes

Words = tuple[Word, ...]

NOW: Words = ("NOW", TODAY_MS)
LATER_MS = TODAY_MS + 1000
LATER: Words = ("NOW", LATER_MS)
R, T, Q, C, D = b"requests", b"tokens", b"quota", b"calls", b"other calls"
KEYS = (R, T, Q, C, D)

RULES: dict[bytes, Words] = {
    R: ("SLIDING", "60", "60"),
    T: ("TOKENBUCKET", "1000", "10", "COST", "100"),
    Q: ("QUOTA", "50", "DAY"),
    C: ("CONCURRENCY", "2", "30"),
    D: ("CONCURRENCY", "1", "60"),
}
DAY_END_MS = 1_751_673_600_000


def all_of(*keys: bytes, more: dict[bytes, Words] | None = None, command: str = "RL.ALL") -> Words:
    """RL.ALL with the rule of each key, to which words may be added."""
    rules = [word for key in keys for word in (*RULES[key], *(more or {}).get(key, ()))]
    return (command, len(keys), *keys, *rules)


def dumps(connection: RawConnection) -> dict[bytes, object]:
    return {key: connection.call("DUMP", key) for key in KEYS}


def propagated(observed: ObservedServer) -> list[list[bytes]]:
    """Without the database, and without deadlines of leases."""
    return [command for command in observed.stream.all_commands() if command[0] not in (b"SELECT", b"PEXPIREAT")]


def end(lease_ms: int, now_ms: int = TODAY_MS) -> bytes:
    return b"%d" % (now_ms + lease_ms)


def test_rate_quota_and_leases_are_taken_in_one_transaction(observed: ObservedServer) -> None:
    observed.stream.commands()
    reply = observed.connection.call(*all_of(R, T, Q, C), "ID", "x", *NOW, "MS")
    day_ms = DAY_END_MS - TODAY_MS
    assert reply == [1, [1, 59, 120_000, 0], [1, 900, 10_000, 0], [1, 49, day_ms, 0], [1, 1, 30_000, 0]]
    assert [[command[0], *command[1:3]] for command in propagated(observed)] == [
        [b"MULTI"],
        [b"SET", R, state.window_bytes(60.0, TODAY_MS // 60_000, 0.0, 1.0)],
        [b"SET", T, state.bucket_bytes(900.0, TODAY_MS)],
        [b"SET", Q, count_bytes(*Count(DAY_END_MS - 86_400_000, DAY_END_MS, 1.0))],
        [b"ZADD", C, end(30_000)],
        [b"EXEC"],
    ]


def test_a_repeat_renews_the_leases_and_takes_nothing(observed: ObservedServer) -> None:
    connection = observed.connection
    call = all_of(R, T, Q, C, D, more={Q: ("FORCE", "7"), R: ("REFUND", "0.5")})
    assert connection.call(*call, "ID", "x", *NOW)[0] == 1
    before = dumps(connection)
    observed.stream.commands()
    reply = connection.call(*call, "ID", "x", *LATER, "MS")
    day_ms = DAY_END_MS - LATER_MS
    assert reply == [1, [1, 60, 0, 0], [1, 910, 9000, 0], [1, 43, day_ms, 0], [1, 1, 30_000, 0], [1, 0, 60_000, 0]]
    after = dumps(connection)
    assert {key for key in KEYS if after[key] != before[key]} == {C, D}
    assert propagated(observed) == [
        [b"MULTI"],
        [b"ZADD", C, end(30_000, LATER_MS), b"x"],
        [b"ZADD", D, end(60_000, LATER_MS), b"x"],
        [b"EXEC"],
    ]


def test_a_preview_of_a_repeat_is_allowed_and_leaves_no_trace(observed: ObservedServer) -> None:
    connection = observed.connection
    assert connection.call(*all_of(T, C), "ID", "x", *NOW)[0] == 1
    before = observed.traces(*KEYS)
    preview = ("RL.ALL_RO", 2, T, C, "TOKENBUCKET", "1000", "10", "COST", "1000", *RULES[C])
    assert connection.call(*preview, "ID", "x", *LATER, "MS") == [1, [1, 910, 9000, 0], [1, 1, 29_000, 0]]
    assert connection.call(*preview, "ID", "y", *LATER, "MS") == [0, [0, 910, 9000, 9000], [1, 1, 29_000, 0]]
    assert observed.traces(*KEYS) == before


def test_a_call_that_holds_only_some_of_its_leases_is_no_repeat(raw: RawConnection) -> None:
    assert raw.call(*all_of(C), "ID", "x", *NOW)[0] == 1
    assert raw.call(*all_of(T, C, D), "ID", "x", *NOW, "MS") == [1, [1, 900, 10_000, 0], [1, 1, 30_000, 0], [1, 0, 60_000, 0]]
    # Now it holds both.
    assert raw.call(*all_of(T, C, D), "ID", "x", *NOW, "MS") == [1, [1, 900, 10_000, 0], [1, 1, 30_000, 0], [1, 0, 60_000, 0]]


def test_a_repeat_whose_limits_have_fallen_is_still_let_in(raw: RawConnection) -> None:
    call = ("RL.ALL", 2, T, C, "TOKENBUCKET", "0", "0", "CONCURRENCY", "0", "30", "ID", "x", *LATER, "MS")
    assert raw.call(*all_of(T, C), "ID", "x", *NOW)[0] == 1
    assert raw.call(*call)[0] == 1
    assert raw.call("ZCARD", C) == 1


def test_a_lease_that_has_ended_repeats_nothing(raw: RawConnection) -> None:
    assert raw.call(*all_of(T, C), "ID", "x", *NOW)[0] == 1
    for after_ms, tokens in ((29_999, 1000), (59_999, 900)):
        # The first renews the lease for 30 s, in which the bucket fills; the second comes as it ends.
        reply = raw.call(*all_of(T, C), "ID", "x", "NOW", TODAY_MS + after_ms)
        assert reply[1][:2] == [1, tokens]


def test_a_release_beside_a_repeat_is_not_carried_out(observed: ObservedServer) -> None:
    connection = observed.connection
    assert connection.call(*all_of(C, D), "ID", "x", *NOW)[0] == 1
    before = connection.call("DUMP", D)
    call = all_of(C, D, more={D: ("RELEASE",)})
    assert connection.call(*call, "ID", "x", *LATER, "MS") == [1, [1, 1, 30_000, 0], [1, 0, 59_000, 0]]
    assert connection.call("DUMP", D) == before


def test_a_lease_handed_over_is_taken_and_released_at_once(raw: RawConnection) -> None:
    assert raw.call(*all_of(D), "ID", "x", *NOW)[0] == 1
    call = all_of(C, D, more={D: ("RELEASE",)})
    assert raw.call(*call, "ID", "x", "XX", *NOW)[0] == 0
    assert raw.call(*call, "ID", "x", *NOW, "MS") == [1, [1, 1, 30_000, 0], [1, 1, 0, 0]]
    assert (raw.call("ZCARD", C), raw.call("EXISTS", D)) == (1, 0)


def test_settling_with_xx_acts_once_and_without_it_twice(observed: ObservedServer) -> None:
    connection = observed.connection
    settle = ("RL.ALL", 2, T, C, "TOKENBUCKET", "1000", "10", "FORCE", "312", *RULES[C], "RELEASE", "ID", "x")
    assert connection.call(*all_of(T, C), "ID", "x", *NOW)[0] == 1
    observed.stream.commands()
    assert connection.call(*settle, "XX", *NOW, "MS") == [1, [1, 588, 41_200, 0], [1, 2, 0, 0]]
    assert [command[:2] for command in propagated(observed)] == [[b"MULTI"], [b"SET", T], [b"ZREM", C], [b"EXEC"]]
    before = observed.traces(*KEYS)
    assert connection.call(*settle, "XX", *NOW, "MS") == [0, [1, 588, 41_200, 0], [0, 2, 0, -1]]
    assert observed.traces(*KEYS) == before
    assert connection.call(*settle, *NOW, "MS") == [1, [1, 276, 72_400, 0], [1, 2, 0, 0]]


def test_an_end_that_has_passed_is_an_error_of_a_repeat_too(observed: ObservedServer) -> None:
    connection = observed.connection
    call = ("RL.ALL", 2, Q, C, "QUOTA", "5", "UNTIL", LATER_MS, *RULES[C], "ID", "x")
    assert connection.call(*call, *NOW)[0] == 1
    before = observed.traces(*KEYS)
    assert isinstance(connection.call(*call, *LATER), hiredis.ReplyError)
    assert observed.traces(*KEYS) == before


def test_a_repeat_waits_until_the_debt_of_its_bucket_is_paid(raw: RawConnection) -> None:
    call = ("RL.ALL", 2, T, C, "TOKENBUCKET", "1", "8", *RULES[C])
    options = ("MAXWAIT", "10", "MS")
    waits = [raw.call(*call, "ID", lease_id, *options, *NOW)[1][3] for lease_id in ("x", "y")]
    assert waits == [0, 125]
    assert raw.call(*call, "ID", "y", *options, *NOW)[1] == [1, 0, 250, 125]
    assert raw.call(*call, "ID", "y", *options, "NOW", TODAY_MS + 100)[1] == [1, 0, 150, 25]
    assert raw.call(*call, "ID", "y", *options, "NOW", TODAY_MS + 125)[1] == [1, 0, 125, 0]
    # Whoever does not wait is not told to.
    assert raw.call(*call, "ID", "y", "MS", *NOW)[1] == [1, 0, 250, 0]


# In the shadow


def test_a_shadow_rule_that_denies_takes_nothing_alone(observed: ObservedServer) -> None:
    connection = observed.connection
    value = state.bucket_bytes(50.0, TODAY_MS - 1000)
    connection.call("SET", T, value, "PX", 5_000_000)
    before = observed.traces(T)
    observed.stream.commands()
    reply = connection.call(*all_of(T, Q, more={T: ("SHADOW",)}), *NOW, "MS")
    assert reply == [1, [0, 60, 94_000, 4000], [1, 49, DAY_END_MS - TODAY_MS, 0]]
    assert observed.traces(T).keys == before.keys
    assert [command[:2] for command in propagated(observed)] == [[b"SET", Q]]


def test_a_shadow_rule_that_allows_takes_as_ever(observed: ObservedServer) -> None:
    connection = observed.connection
    observed.stream.commands()
    shadow = {key: ("SHADOW",) for key in KEYS}
    reply = connection.call(*all_of(R, T, Q, C, more=shadow), "ID", "x", *NOW)
    assert [reply[0], *(four[:2] for four in reply[1:])] == [1, [1, 59], [1, 900], [1, 49], [1, 1]]
    assert [command[0] for command in propagated(observed)] == [b"MULTI", b"SET", b"SET", b"SET", b"ZADD", b"EXEC"]


def test_a_shadow_rule_takes_nothing_in_a_denied_call(observed: ObservedServer) -> None:
    connection = observed.connection
    call = ("RL.ALL", 3, T, C, Q, *RULES[T], "SHADOW", *RULES[C], "SHADOW", "QUOTA", "0", "DAY", "ID", "x", *NOW, "MS")
    before = observed.traces(*KEYS)
    assert connection.call(*call) == [0, [1, 1000, 0, 0], [1, 2, 0, 0], [0, 0, 0, -1]]
    assert observed.traces(*KEYS) == before


@pytest.mark.parametrize("kind", [R, T, Q, C])
def test_each_kind_denies_in_the_shadow_without_a_trace(observed: ObservedServer, kind: bytes) -> None:
    connection = observed.connection
    rule = {R: ("SLIDING", "0", "60"), T: ("TOKENBUCKET", "0", "1"), Q: ("QUOTA", "0", "DAY"), C: ("CONCURRENCY", "0", "9")}
    identity = ("ID", "x") if kind == C else ()
    before = observed.traces(*KEYS)
    reply = connection.call("RL.ALL", 1, kind, *rule[kind], "SHADOW", *identity, *NOW, "MS")
    assert reply[0] == 1 and reply[1][:2] == [0, 0] and reply[1][3] == -1
    assert observed.traces(*KEYS) == before


def test_a_shadow_lease_says_nothing_about_repeats(raw: RawConnection) -> None:
    """It is renewed if it is live, and by a repeat not taken if it is not."""
    shadow = all_of(T, C, D, more={C: ("SHADOW",)})
    assert raw.call(*all_of(C), "ID", "x", *NOW)[0] == 1
    # Live in the shadow alone: no repeat.
    assert raw.call(*all_of(T, C, more={C: ("SHADOW",)}), "ID", "x", *NOW)[1][:2] == [1, 900]
    assert raw.call(*shadow, "ID", "x", *NOW)[1][:2] == [1, 800]
    # Live where it counts: a repeat.
    reply = raw.call(*shadow, "ID", "x", *LATER, "MS")
    assert reply == [1, [1, 810, 19_000, 0], [1, 1, 30_000, 0], [1, 0, 60_000, 0]]
    assert raw.call("RL.RELEASE", C, "x") == 1
    assert raw.call(*shadow, "ID", "x", *LATER, "MS") == [1, [1, 810, 19_000, 0], [1, 2, 0, 0], [1, 0, 60_000, 0]]
    assert raw.call("EXISTS", C) == 0


def test_a_wait_in_the_shadow_is_reported_by_its_rule(raw: RawConnection) -> None:
    call = ("RL.ALL", 2, R, T, "SLIDING", "60", "60", "TOKENBUCKET", "1", "8", "SHADOW", "MAXWAIT", "1", *NOW, "MS")
    assert [raw.call(*call)[2][3] for _ in range(3)] == [0, 125, 250]


def test_more_rules_than_need_no_memory_are_decided_alike(raw: RawConnection) -> None:
    count = 20
    keys = [f"k{number}" for number in range(count)]
    rules = [("QUOTA", "2", "60"), ("CONCURRENCY", "2", "30"), ("TOKENBUCKET", "2", "1"), ("SLIDING", "2", "60")]
    words = [word for number in range(count) for word in rules[number % 4]]
    call = ("RL.ALL", count, *keys, *words, "ID", "x", *NOW)
    assert raw.call(*call)[0] == 1
    assert [four[:2] for four in raw.call(*call)[1:]] == [[1, 1]] * count
    other = (*call[:-3], "y", *NOW)
    assert [four[:2] for four in raw.call(*other)[1:]] == [[1, 0]] * count
    third = (*call[:-3], "z", *NOW)
    assert raw.call(*third)[0] == 0
    assert raw.call("ZCARD", "k1") == 2
