"""RL.ALL takes what every rule asks for, or nothing at all."""

from collections.abc import Iterator
from dataclasses import dataclass

import hiredis
import pytest

from harness import state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.server import Server, wait_until
from harness.state import hold

COMMANDS = ["RL.ALL", "RL.ALL_RO"]
NOW = ("NOW", TODAY_MS)
INDEX = TODAY_MS // 60_000
TTL_MS = 5_000_000
# More than the eight for which nothing is allocated.
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
    ttl_ms: int | None = TTL_MS


#: Each of them would be changed by its rule, were it committed; the stale ones by a denial of their own too.
MEMBERS: dict[str, Member] = {
    "no bucket": Member(None, BUCKET, [1, 10]),
    "a bucket": Member(state.bucket_bytes(7.0, TODAY_MS), (*BUCKET, "COST", "2"), [1, 7]),
    "a bucket to refill": Member(state.bucket_bytes(3.0, TODAY_MS - 2500), BUCKET, [1, 5]),
    "a bucket without a ttl": Member(state.bucket_bytes(4.0, TODAY_MS), ("TOKENBUCKET", "10", "0"), [1, 4], None),
    "a bucket to give back to": Member(state.bucket_bytes(4.0, TODAY_MS), (*BUCKET, "REFUND", "3"), [1, 4]),
    "no window": Member(None, SLIDING, [1, 10]),
    "a window": Member(state.window_bytes(60.0, INDEX, 2.0, 3.0), (*SLIDING, "COST", "5"), [1, 5]),
    "a window to roll over": Member(state.window_bytes(60.0, INDEX - 1, 2.0, 3.0), SLIDING, [1, 7]),
    "a window of another length": Member(state.window_bytes(120.0, INDEX // 2, 2.0, 3.0), SLIDING, [1, 5]),
    "a window without a ttl": Member(state.window_bytes(60.0, INDEX, 0.0, 3.0), SLIDING, [1, 7], None),
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


@pytest.mark.parametrize("denying", DENYING)
def test_a_denial_anywhere_leaves_every_key_identical_and_no_trace(
    observed: ObservedServer, denying: str
) -> None:
    connection = observed.connection
    for key, member in zip(MEMBER_KEYS, MEMBERS.values()):
        hold(connection, key, member.value, member.ttl_ms)
    hold(connection, DENYING_KEY, DENYING[denying].value, TTL_MS)
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


def test_a_denial_by_all_rules_leaves_every_key_identical_and_no_trace(
    observed: ObservedServer,
) -> None:
    keys = [name.encode() for name in DENYING]
    for key, member in zip(keys, DENYING.values()):
        hold(observed.connection, key, member.value, member.ttl_ms)
    before = observed.traces(*keys)
    rules = flat([member.rule for member in DENYING.values()])
    reply = observed.connection.call("RL.ALL", len(keys), *keys, *rules, *NOW)
    assert observed.traces(*keys) == before
    assert [reply[0], *(four[:2] for four in reply[1:])] == [0, *(member.shown for member in DENYING.values())]


def test_where_all_allow_every_key_is_changed(observed: ObservedServer) -> None:
    """Against a table above that could not fail."""
    for key, member in zip(MEMBER_KEYS, MEMBERS.values()):
        hold(observed.connection, key, member.value, member.ttl_ms)
    before = observed.traces(*MEMBER_KEYS)
    rules = flat([member.rule for member in MEMBERS.values()])
    reply = observed.connection.call("RL.ALL", len(MEMBER_KEYS), *MEMBER_KEYS, *rules, *NOW)
    assert reply[0] == 1
    after = observed.traces(*MEMBER_KEYS)
    for key in MEMBER_KEYS:
        assert after.keys[key][0] != before.keys[key][0], f"{key} is unchanged"


# What is propagated


def test_what_all_took_is_propagated_as_one_transaction_of_sets(
    observed: ObservedServer,
) -> None:
    """In the order of the keys."""
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
def test_a_key_of_a_wrong_type_anywhere_refuses_the_whole_call_untouched(
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


# The clock


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
def test_a_key_that_the_users_pattern_excludes_leaves_all_keys_untouched(
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


def test_keys_of_different_slots_are_refused_and_those_of_one_are_not(cluster: RawConnection) -> None:
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


def test_keys_of_different_slots_are_refused_in_transactions_and_scripts(
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
