"""RL.ALL takes what every rule asks for, or nothing at all.

RL_ALL_CALLS sets how many random calls are run, RL_SEED which.
"""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import hiredis
import pytest

from harness import parity, state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.model import Model
from harness.observed import ObservedServer
from harness.parity import Call
from harness.server import Server, wait_until
from harness.tally import Tally

CALLS = int(os.environ.get("RL_ALL_CALLS") or 20_000)
CALLS_A_TRACE = 50
TRACES_A_BATCH = 20
COMMANDS = ["RL.ALL", "RL.ALL_RO"]
NOW = ("NOW", TODAY_MS)
INDEX = TODAY_MS // 60_000
TTL_MS = 5_000_000
# More than the eight that need no memory of their own.
MANY = 20

BUCKET, SLIDING = ("TOKENBUCKET", "10", "1"), ("SLIDING", "10", "60")


def flat(rules: list[tuple[Word, ...]]) -> list[Word]:
    return [word for rule in rules for word in rule]


# A denial


@dataclass(frozen=True)
class Member:
    """A key of a call, what it holds, a rule that allows, and the first two numbers of the answer to that
    rule where another denies."""

    value: bytes | None
    rule: tuple[Word, ...]
    shown: list[int]
    has_ttl: bool = True


#: Each of them would be changed by its rule, were it carried out; the stale ones by a denial of their own too.
MEMBERS: dict[str, Member] = {
    "no bucket": Member(None, BUCKET, [1, 10]),
    "a bucket": Member(state.bucket_bytes(7.0, TODAY_MS), (*BUCKET, "COST", "2"), [1, 7]),
    "a bucket to refill": Member(state.bucket_bytes(3.0, TODAY_MS - 2500), BUCKET, [1, 5]),
    "a bucket without a ttl": Member(state.bucket_bytes(4.0, TODAY_MS), ("TOKENBUCKET", "10", "0"), [1, 4], False),
    "a bucket to give back to": Member(state.bucket_bytes(4.0, TODAY_MS), (*BUCKET, "REFUND", "3"), [1, 4]),
    "no window": Member(None, SLIDING, [1, 10]),
    "a window": Member(state.window_bytes(60.0, INDEX, 2.0, 3.0), (*SLIDING, "COST", "5"), [1, 5]),
    "a window to roll over": Member(state.window_bytes(60.0, INDEX - 1, 2.0, 3.0), SLIDING, [1, 7]),
    "a window of another length": Member(state.window_bytes(120.0, INDEX // 2, 2.0, 3.0), SLIDING, [1, 5]),
    "a window without a ttl": Member(state.window_bytes(60.0, INDEX, 0.0, 3.0), SLIDING, [1, 7], False),
    "a window to give back to": Member(state.window_bytes(60.0, INDEX, 1.0, 4.0), (*SLIDING, "REFUND", "2"), [1, 5]),
}
MEMBER_KEYS = [name.encode() for name in MEMBERS]

#: What denies: the key's value, the rule, and the first two numbers of its answer.
DENYING: dict[str, Member] = {
    "no bucket": Member(None, (*BUCKET, "COST", "11"), [0, 10]),
    "a bucket": Member(state.bucket_bytes(2.0, TODAY_MS), (*BUCKET, "COST", "5"), [0, 2]),
    "a bucket to refill": Member(state.bucket_bytes(2.0, TODAY_MS - 1000), (*BUCKET, "COST", "5"), [0, 3]),
    "no window": Member(None, (*SLIDING, "COST", "11"), [0, 10]),
    "a window": Member(state.window_bytes(60.0, INDEX, 0.0, 9.0), (*SLIDING, "COST", "2"), [0, 1]),
    "a window to roll over": Member(state.window_bytes(60.0, INDEX - 1, 0.0, 9.0), (*SLIDING, "COST", "2"), [0, 1]),
}
DENYING_KEY = b"denying"


def hold(connection: RawConnection, key: bytes, member: Member) -> None:
    if member.value is not None:
        connection.call("SET", key, member.value, *(("PX", TTL_MS) if member.has_ttl else ()))


@pytest.mark.parametrize("denying", DENYING)
def test_a_denial_anywhere_leaves_every_key_byte_identical_with_its_ttl_and_no_trace(
    observed: ObservedServer, denying: str
) -> None:
    connection = observed.connection
    for key, member in zip(MEMBER_KEYS, MEMBERS.values()):
        hold(connection, key, member)
    hold(connection, DENYING_KEY, DENYING[denying])
    allowing = list(zip(MEMBER_KEYS, MEMBERS.values()))
    for position in range(len(allowing) + 1):
        members = [*allowing[:position], (DENYING_KEY, DENYING[denying]), *allowing[position:]]
        keys = [key for key, _ in members]
        call = ("RL.ALL", len(keys), *keys, *flat([member.rule for _, member in members]), *NOW)
        before = observed.traces(*keys)
        reply = connection.call(*call)
        assert observed.traces(*keys) == before, f"denied at position {position}"
        assert [reply[0], *(four[:2] for four in reply[1:])] == [0, *(member.shown for _, member in members)]
        assert all((four[3] == 0) == bool(four[0]) for four in reply[1:])


def test_a_denial_by_all_rules_leaves_every_key_byte_identical_with_its_ttl_and_no_trace(
    observed: ObservedServer,
) -> None:
    keys = [name.encode() for name in DENYING]
    for key, member in zip(keys, DENYING.values()):
        hold(observed.connection, key, member)
    before = observed.traces(*keys)
    rules = flat([member.rule for member in DENYING.values()])
    reply = observed.connection.call("RL.ALL", len(keys), *keys, *rules, *NOW)
    assert observed.traces(*keys) == before
    assert [reply[0], *(four[:2] for four in reply[1:])] == [0, *(member.shown for member in DENYING.values())]


def test_where_all_allow_every_key_is_changed(observed: ObservedServer) -> None:
    """Against a table above that could not fail."""
    for key, member in zip(MEMBER_KEYS, MEMBERS.values()):
        hold(observed.connection, key, member)
    before = observed.traces(*MEMBER_KEYS)
    rules = flat([member.rule for member in MEMBERS.values()])
    reply = observed.connection.call("RL.ALL", len(MEMBER_KEYS), *MEMBER_KEYS, *rules, *NOW)
    assert reply[0] == 1
    after = observed.traces(*MEMBER_KEYS)
    for key in MEMBER_KEYS:
        assert after.keys[key][0] != before.keys[key][0], f"{key} is unchanged"


# What is propagated


def test_what_all_took_is_propagated_as_one_transaction_of_sets_in_the_order_of_the_keys(
    observed: ObservedServer,
) -> None:
    connection = observed.connection
    for count in (2, 3, MANY):
        connection.call("FLUSHALL")
        keys = [b"k%d" % number for number in range(count)]
        observed.stream.all_commands()
        rules = [(BUCKET, SLIDING, ("TOKENBUCKET", "10", "0"))[number % 3] for number in range(count)]
        assert connection.call("RL.ALL", count, *keys, *flat(rules), *NOW)[0] == 1
        propagated = [command for command in observed.stream.all_commands() if command[0].upper() != b"SELECT"]
        values = connection.call("MGET", *keys)
        deadlines = [connection.call("PEXPIRETIME", key) for key in keys]
        sets = [
            [b"SET", key, value, *([b"PXAT", b"%d" % deadline] if deadline > 0 else [])]
            for key, value, deadline in zip(keys, values, deadlines)
        ]
        assert sum(deadline == -1 for deadline in deadlines) == count // 3
        assert propagated == [[b"MULTI"], *sets, [b"EXEC"]]
        in_aof = [command for command in observed.aof_commands() if command[0].upper() != b"SELECT"]
        assert in_aof[-len(propagated) :] == propagated


def test_what_was_propagated_makes_the_same_keys_on_a_server_without_the_module(
    observed: ObservedServer, fresh_server: Callable[..., Server]
) -> None:
    keys = [b"k%d" % number for number in range(MANY)]
    observed.stream.commands()
    rules = [(BUCKET, SLIDING)[number % 2] for number in range(MANY)]
    observed.connection.call("RL.ALL", MANY, *keys, *flat(rules), *NOW)
    with fresh_server(with_module=False).raw_connection() as plain:
        plain.call_all(observed.stream.commands())
        for key in keys:
            value = plain.call("GET", key)
            assert value is not None and value == observed.connection.call("GET", key)
            assert plain.call("PEXPIRETIME", key) == observed.connection.call("PEXPIRETIME", key)


# What is refused

HELD_A, HELD_B = state.bucket_bytes(5.0, TODAY_MS - 1000), state.bucket_bytes(6.0, TODAY_MS - 1000)
TWO_RULES = [*BUCKET, *BUCKET]

#: Everything behind the command's name, and what the message names.
REFUSED: dict[str, tuple[list[Word], str]] = {
    **{
        f"numkeys {numkeys!r}": ([numkeys, "a", "b", *TWO_RULES, *NOW], "numkeys")
        for numkeys in (
            "0", "-1", "-2", "-9223372036854775808", "11", "16", "2147483647", "2147483648", "4294967298",
            "9223372036854775807", "9223372036854775808", "18446744073709551618", "9" * 100, "two", "", " ", " 2", "2 ",
            "+2", "2.0", "2e0", "0x2", "02", "002", "00", b"2\x00", b"\xff", "inf", "nan", "a",
        )
    },
    "a key named twice": (["2", "a", "a", *TWO_RULES, *NOW], "duplicate key"),
    "a key named twice with another between": (["3", "a", "b", "a", *TWO_RULES, *BUCKET, *NOW], "duplicate key"),
    "the last of many named twice": (
        [MANY, *(f"k{number}" for number in range(1, MANY)), "k1", *BUCKET * MANY, *NOW],
        "duplicate key",
    ),
    "a numkeys that counts a rule's word as a key": (["3", "a", "b", *TWO_RULES, *NOW], "rule"),
    "a numkeys that counts all but one word as keys": (["9", "a", "b", *TWO_RULES, *NOW], "rule"),
    "a key too few for the rules": (["1", "a", *TWO_RULES, *NOW], "syntax error; expected"),
    "a rule too few": (["2", "a", "b", *BUCKET, *NOW], "rule"),
    "no rule": (["2", "a", "b", *NOW, "MS"], "rule"),
    "a rule too many": (["2", "a", "b", *TWO_RULES, *SLIDING, *NOW], "syntax error; expected"),
    "a rule after the options": (["2", "a", "b", *BUCKET, *NOW, *BUCKET], "rule"),
    "a rule without its second parameter": (["2", "a", "b", *BUCKET, "TOKENBUCKET", "10"], "rule"),
    "a bad number in the last rule": (["2", "a", "b", *BUCKET, "TOKENBUCKET", "10", "x", *NOW], "refill_rate"),
    "a bad time": (["2", "a", "b", *TWO_RULES, "NOW", "-1"], "NOW"),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", REFUSED)
def test_a_malformed_call_says_what_is_wrong_and_consumes_nothing(
    observed: ObservedServer, command: str, name: str
) -> None:
    words, named = REFUSED[name]
    keys = ("a", "b", "k1")
    observed.connection.call("SET", "a", HELD_A, "PX", TTL_MS)
    observed.connection.call("SET", "b", HELD_B)
    before = observed.traces(*keys)
    reply = observed.connection.call(command, *words)
    assert isinstance(reply, hiredis.ReplyError), f"accepted: {reply}"
    assert str(reply).startswith("ERR ") and named in str(reply)
    assert observed.traces(*keys) == before


OTHER_VALUES: dict[str, tuple[Word, ...]] = {
    "a list": ("RPUSH", b"wrong", "x"),
    "a hash": ("HSET", b"wrong", "field", "value"),
    "a foreign string": ("SET", b"wrong", "x" * state.TOKEN_BUCKET_BYTES),
    "an integer": ("SET", b"wrong", "5"),
    "a window": ("SET", b"wrong", state.window_bytes(60.0, INDEX, 0.0, 1.0)),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_key_of_a_wrong_type_in_any_position_refuses_the_whole_call_untouched(
    observed: ObservedServer, name: str, command: str
) -> None:
    others = [b"bucket", b"window", b"missing"]
    rules = {
        b"bucket": (*BUCKET, "COST", "2"),
        b"window": SLIDING,
        b"missing": BUCKET,
        # A denial does not hide it.
        b"empty": (*BUCKET, "COST", "11"),
        b"wrong": BUCKET,
    }
    observed.connection.call("SET", b"bucket", HELD_A, "PX", TTL_MS)
    observed.connection.call("SET", b"window", state.window_bytes(60.0, INDEX - 1, 0.0, 1.0), "PX", TTL_MS)
    observed.connection.call(*OTHER_VALUES[name])
    for neighbours in ([], others, [b"empty", *others]):
        for position in range(len(neighbours) + 1):
            keys = [*neighbours[:position], b"wrong", *neighbours[position:]]
            before = observed.traces(*keys)
            reply = observed.connection.call(command, len(keys), *keys, *flat([rules[key] for key in keys]), *NOW)
            assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE "), f"{keys}: {reply}"
            assert observed.traces(*keys) == before, f"{keys}"


# One rule


def of_one(key: str, call: Call) -> list[Word]:
    return ["RL.ALL", "1", key, call.algorithm, call.first, call.second, "COST", call.cost, "NOW", call.now_ms]


def test_all_of_one_rule_decides_and_leaves_what_the_single_command_does_from_the_same_state(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    """From the same state each time: a denial leaves a refilled limiter behind, and a refused RL.ALL does not."""
    traces = (parity.random_trace(rng, CALLS_A_TRACE) for _ in range(CALLS // CALLS_A_TRACE))
    allowed = 0
    while batch := list(islice(traces, TRACES_A_BATCH)):
        raw.call("FLUSHALL")
        commands: list[tuple[Word, ...] | list[Word]] = []
        calls = [(f"k{number}", call) for number, trace in enumerate(batch) for call in trace]
        for key, call in calls:
            commands += [("DEL", "all"), ("COPY", key, "all"), of_one("all", call), call.module_words(key)]
            commands += [("MGET", key, "all"), ("PTTL", key), ("PTTL", "all")]
        replies = iter(raw.call_all(commands))
        for _, call in calls:
            _, _, by_all, single, (single_state, all_state), single_ttl, all_ttl = (next(replies) for _ in range(7))
            assert by_all == [single[0], single], call
            if single[0]:
                assert all_state == single_state, call
                # Both are -1, or neither: the shortest ttl is a minute.
                assert abs(all_ttl - single_ttl) <= parity.TTL_TOLERANCE_MS, call
            allowed += single[0]
    assert 0 < allowed < CALLS
    tally.add("RL.ALL", CALLS, "calls of one rule equal to the single command", seed=seed)


# Steps of an eighth of a second, amounts and rates of eighths: none of it is ever rounded.
EIGHTH_MS = 125
UNROUNDED_SECONDS = {"TOKENBUCKET": ["0", "0.125", "0.5", "1", "2.5", "16"], "SLIDING": ["1", "2.5", "60"]}


def unrounded_trace(rng: random.Random, length: int) -> list[Call]:
    algorithm = rng.choice(["TOKENBUCKET", "SLIDING"])
    first = str(rng.randrange(1, 200) / 8)
    second = rng.choice(UNROUNDED_SECONDS[algorithm])
    now_ms = TODAY_MS
    trace = []
    for _ in range(length):
        trace.append(Call(algorithm, first, second, str(rng.randrange(0, 40) / 8), now_ms))
        now_ms += EIGHTH_MS * rng.choice([0, 0, 1, 2, 7, 40, 480])
    return trace


def test_all_of_one_rule_equals_the_single_command_through_whole_traces_where_nothing_is_rounded(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    denied = 0
    for number in range(CALLS // 2 // CALLS_A_TRACE):
        trace = unrounded_trace(rng, CALLS_A_TRACE)
        in_ms = ["MS"] * (number % 2)
        commands = [[*words, *in_ms] for call in trace for words in (of_one("all", call), call.module_words("single"))]
        replies = raw.call_all([("DEL", "all", "single"), *commands])[1:]
        for call, by_all, single in zip(trace, replies[::2], replies[1::2]):
            assert by_all == [single[0], single], call
            denied += 1 - single[0]
        tally.add("RL.ALL", len(trace), "calls of whole traces of one rule equal", seed=seed)
    assert denied > 0


# Several rules


POOL = [b"pool:%d" % number for number in range(12)]
POOL_RULES: dict[str, list[tuple[list[str], list[str]]]] = {
    "TOKENBUCKET": [
        (["10", "25", "0.5"], ["1", "0.3", "1500"]),
        (["100"], ["0", "0.001", "33.3"]),
        (["3", "1e6"], ["1e-9", "1e6"]),
    ],
    "SLIDING": [
        (["10", "25", "0.5"], ["1", "60"]),
        (["100"], ["0.25", "7", "2592000"]),
        (["3", "1e6"], ["0.3", "3600"]),
    ],
}


def random_rule(rng: random.Random, number: int, with_refund: bool, now_ms: int) -> list[str]:
    """A rule for a key of the pool. Those of even numbers are buckets. Each has parameters of its own,
    which now and then change."""
    algorithm = ("TOKENBUCKET", "SLIDING")[number % 2]
    firsts, seconds = POOL_RULES[algorithm][number // 2 % 3]
    first = firsts[0] if rng.random() < 0.9 else rng.choice(firsts)
    second = seconds[number % len(seconds)] if rng.random() < 0.97 else rng.choice(seconds)
    kind = rng.random()
    if kind < 0.2:
        options = []
    elif kind < 0.9 or not with_refund:
        options = ["COST", repr(float(first) * rng.choice([0, 0.01, 0.05, 0.1, 0.3, 1.01, rng.random() / 4]))]
    else:
        options = ["REFUND", repr(float(first) * rng.random())]
        if rng.random() < 0.5:
            options += ["AT", str(now_ms - int(2500 * float(second) * rng.random()))]
    return [algorithm, first, second, *options]


def random_calls(rng: random.Random, count: int) -> Iterator[list[Word]]:
    now_ms = TODAY_MS
    for _ in range(count):
        is_preview = rng.random() < 0.1
        chosen = rng.sample(range(len(POOL)), rng.choice([1, 2, 2, 2, 3, 3, 4, 8, 9, len(POOL)]))
        keys = [POOL[number] for number in chosen]
        rules = [random_rule(rng, number, not is_preview, now_ms) for number in chosen]
        options: list[list[Word]] = [["NOW", now_ms]] + [["MS"]] * (rng.random() < 0.2)
        rng.shuffle(options)
        words: list[Word] = ["RL.ALL_RO" if is_preview else "RL.ALL", len(keys), *keys]
        yield words + [word for part in (*rules, *options) for word in part]
        now_ms += rng.choice([0, 0, 1, 7, 100, 333, 1000, 2500, -1, -400])


def test_random_traces_of_several_rules_equal_a_model_that_checks_first_and_consumes_after(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    allowed = rules = traces = 0
    for _ in range(CALLS // CALLS_A_TRACE):
        raw.call("FLUSHALL")
        limiters = Model()
        calls = list(random_calls(rng, CALLS_A_TRACE))
        for number, (words, reply) in enumerate(zip(calls, raw.call_all(calls))):
            expected = limiters.call(*words)
            assert reply == expected, f"call {number}, {words}: {reply}, model {expected}"
            allowed += reply[0]
            rules += len(reply) - 1
        held = [limiters.limiters.get(key) for key in POOL]
        assert raw.call("MGET", *POOL) == [value and state.bytes_of(value) for value in held]
        traces += 1
    assert 0 < allowed < CALLS
    tally.add("RL.ALL", traces, "multi-rule traces equal to the model", seed=seed)
    tally.add("RL.ALL", traces * CALLS_A_TRACE, "calls in them")
    tally.add("RL.ALL", allowed, "allowed")
    tally.add("RL.ALL", rules, "rules decided")


def test_all_rules_are_decided_at_one_time_of_the_servers_clock(raw: RawConnection) -> None:
    keys = [b"k%d" % number for number in range(MANY)]
    assert raw.call("RL.ALL", MANY, *keys, *BUCKET * MANY)[0] == 1
    assert len({state.read_bucket(value).last_ms for value in raw.call("MGET", *keys)}) == 1
    deadlines = {raw.call("PEXPIRETIME", key) for key in keys}
    assert len(deadlines) == 1


# Where the keys are

RW, RO = [b"RW", b"access", b"update"], [b"RO", b"access"]
KEYS = [b"first key", b"", b"\x00\xff", b"2", b"TOKENBUCKET", b"NOW"]


@pytest.mark.parametrize("command", ["RL.TOKENBUCKET", "RL.SLIDING"])
def test_getkeys_gives_the_key_of_a_single_command_in_every_form(raw: RawConnection, command: str) -> None:
    for key in KEYS:
        for options in ([], ["MS"], ["COST", "2"], ["NOW", "0", "MS", "COST", "2"], ["REFUND", "1"]):
            for form, flags in (("", RW), ("_RO", RO)):
                call = (f"{command}{form}", key, "10", "1", *options)
                assert raw.call("COMMAND", "GETKEYS", *call) == [key]
                assert raw.call("COMMAND", "GETKEYSANDFLAGS", *call) == [[key, flags]]


@pytest.mark.parametrize(("command", "flags"), [("RL.ALL", RW), ("RL.ALL_RO", RO)])
def test_getkeys_gives_each_key_of_all_in_every_form(raw: RawConnection, command: str, flags: list[bytes]) -> None:
    many = [b"k%d" % number for number in range(1000)]
    for keys in [KEYS[:count] for count in range(1, len(KEYS) + 1)] + [many]:
        count = len(keys)
        for rest in (
            [*BUCKET * count],
            [*SLIDING * count, *NOW, "MS"],
            [*(*BUCKET, "COST", "2") * count, "MS"],
            # The rules are none of the key finder's business.
            [*BUCKET * (count + 1)],
            ["x", "y", "z"],
        ):
            call = (command, count, *keys, *rest)
            assert raw.call("COMMAND", "GETKEYS", *call) == keys
            assert raw.call("COMMAND", "GETKEYSANDFLAGS", *call) == [[key, flags] for key in keys]


@pytest.mark.parametrize("numkeys", ["0", "-1", "9", "18446744073709551618", "02", "2.0", "two", ""])
@pytest.mark.parametrize("command", COMMANDS)
def test_getkeys_gives_no_key_of_a_call_whose_numkeys_is_refused(
    raw: RawConnection, command: str, numkeys: str
) -> None:
    call = (command, numkeys, "a", "b", *BUCKET)
    for form in ("GETKEYS", "GETKEYSANDFLAGS"):
        assert isinstance(raw.call("COMMAND", form, *call), hiredis.ReplyError)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_key_that_the_users_pattern_excludes_in_any_position_leaves_all_keys_untouched(
    observed: ObservedServer, command: str
) -> None:
    """What else access control does is told by test_acl.py."""
    connection = observed.connection
    connection.call("ACL", "SETUSER", "tenant", "on", ">secret", "+auth", f"+{command.lower()}", "~own:*")
    own = [b"own:%d" % number for number in range(3)]
    for key in (*own, b"other"):
        connection.call("SET", key, HELD_A, "PX", TTL_MS)
    try:
        with observed.raw_connection() as tenant:
            assert tenant.call("AUTH", "tenant", "secret") == b"OK"
            for position in range(len(own) + 1):
                keys = [*own[:position], b"other", *own[position:]]
                before = observed.traces(*keys)
                reply = tenant.call(command, len(keys), *keys, *BUCKET * len(keys), *NOW)
                assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOPERM"), reply
                assert observed.traces(*keys) == before
            assert tenant.call(command, len(own), *own, *BUCKET * len(own), *NOW)[0] == 1
    finally:
        connection.call("ACL", "DELUSER", "tenant")


# In a cluster


@pytest.fixture(scope="module")
def _cluster_node() -> Iterator[RawConnection]:
    with Server({"cluster-enabled": "yes"}) as node, node.raw_connection() as connection:
        assert connection.call("CLUSTER", "ADDSLOTSRANGE", "0", "16383") == b"OK"
        wait_until(lambda: b"cluster_state:ok" in connection.call("CLUSTER", "INFO"), what="the cluster is ready")
        yield connection


@pytest.fixture
def cluster(_cluster_node: RawConnection) -> RawConnection:
    """An empty cluster of one node, which has all the slots."""
    _cluster_node.call("FLUSHALL")
    return _cluster_node


def test_in_a_cluster_keys_of_different_slots_are_refused_and_those_of_one_are_not(cluster: RawConnection) -> None:
    tagged = [b"{tenant}:%d" % number for number in range(4)]
    for command in COMMANDS:
        for count in range(1, len(tagged) + 1):
            for position in range(count + 1):
                keys = [*tagged[:position], b"elsewhere", *tagged[position:count]]
                before = cluster.call("DBSIZE")
                reply = cluster.call(command, len(keys), *keys, *BUCKET * len(keys), *NOW)
                assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("CROSSSLOT"), f"{keys}: {reply}"
                assert cluster.call("DBSIZE") == before == 0
    for command in reversed(COMMANDS):
        assert cluster.call(command, len(tagged), *tagged, *BUCKET * len(tagged), *NOW)[0] == 1
    assert cluster.call("DBSIZE") == len(tagged)


def test_in_a_cluster_keys_of_different_slots_are_refused_in_a_transaction_and_in_a_script(
    cluster: RawConnection,
) -> None:
    call = ("RL.ALL", "2", "a", "b", *BUCKET, *BUCKET, *NOW)
    assert cluster.call("CLUSTER", "KEYSLOT", "a") != cluster.call("CLUSTER", "KEYSLOT", "b")
    cluster.call("MULTI")
    assert str(cluster.call(*call)).startswith("CROSSSLOT")
    assert str(cluster.call("EXEC")).startswith("EXECABORT")
    reply = cluster.call("EVAL", "return redis.pcall(unpack(ARGV))", "1", "a", *call)
    assert isinstance(reply, hiredis.ReplyError)
    assert cluster.call("DBSIZE") == 0
