"""The _RO forms answer what the write form would decide, and nobody can tell that they were called.

RL_PREVIEW_CALLS sets how many random calls are previewed, RL_SEED which.
"""

import os
import random
from collections.abc import Callable, Iterator
from itertools import islice

import hiredis
import pytest

from harness import parity, state
from harness.clock import TODAY_MS, server_ms
from harness.command_table import PREVIEWS
from harness.connection import RawConnection, Word
from harness.model import Model
from harness.observed import ObservedServer
from harness.parity import Call
from harness.server import HOST, Server, wait_until
from harness.state import hold
from harness.tally import Tally

CALLS = int(os.environ.get("RL_PREVIEW_CALLS") or 20_000)
CALLS_A_TRACE = 50
TRACES_A_BATCH = 20
NOW = ("NOW", TODAY_MS)
INDEX = TODAY_MS // 60_000
TTL_MS = 5_000_000
KEY = b"key"

#: What a key may hold for a preview to look at, with the algorithm that it is for. Of some, a call makes more or less.
HELD: dict[str, tuple[str, bytes | None]] = {
    "no bucket": ("TOKENBUCKET", None),
    "a full bucket": ("TOKENBUCKET", state.bucket_bytes(10.0, TODAY_MS)),
    "an empty bucket": ("TOKENBUCKET", state.bucket_bytes(0.0, TODAY_MS)),
    "a bucket to refill": ("TOKENBUCKET", state.bucket_bytes(0.5, TODAY_MS - 700)),
    "a bucket from the future": ("TOKENBUCKET", state.bucket_bytes(0.5, TODAY_MS + 99_000)),
    "a bucket above the capacity": ("TOKENBUCKET", state.bucket_bytes(99.0, TODAY_MS)),
    "no window": ("SLIDING", None),
    "a window": ("SLIDING", state.window_bytes(60.0, INDEX, 2.0, 3.0)),
    "a full window": ("SLIDING", state.window_bytes(60.0, INDEX, 10.0, 10.0)),
    "a window to roll over": ("SLIDING", state.window_bytes(60.0, INDEX - 1, 2.0, 9.5)),
    "a window long gone": ("SLIDING", state.window_bytes(60.0, INDEX - 9, 2.0, 9.5)),
    "a window from the future": ("SLIDING", state.window_bytes(60.0, INDEX + 3, 2.0, 9.5)),
    "a window of another length": ("SLIDING", state.window_bytes(120.0, INDEX // 2, 2.0, 3.0)),
}
RULES = {"TOKENBUCKET": ("TOKENBUCKET", "10", "1"), "SLIDING": ("SLIDING", "10", "60")}
COSTS = ("0", "1", "10", "11")


def single_and_all(algorithm: str, key: bytes, *options: Word) -> list[tuple[Word, ...]]:
    """A preview of `key`, by both commands that can give it. Options of the rule come first."""
    rule = RULES[algorithm]
    return [(f"RL.{algorithm}_RO", key, *rule[1:], *options), ("RL.ALL_RO", "1", key, *rule, *options)]


@pytest.mark.parametrize("ttl_ms", [TTL_MS, None], ids=["with a ttl", "without a ttl"])
@pytest.mark.parametrize("name", HELD)
def test_a_preview_leaves_no_trace(observed: ObservedServer, name: str, ttl_ms: int | None, tally: Tally) -> None:
    algorithm, value = HELD[name]
    hold(observed.connection, KEY, value, ttl_ms)
    for cost in COSTS:
        for options in (("COST", cost), ("COST", cost, *NOW), ("COST", cost, *NOW, "MS")):
            for call in single_and_all(algorithm, KEY, *options):
                before = observed.traces(KEY)
                reply = observed.connection.call(*call)
                assert isinstance(reply, list), f"{call}: {reply!r}"
                assert observed.traces(KEY) == before, f"{call} changed something"
                tally.add("previews", 1, "calls without a trace")


def test_a_preview_of_several_leaves_no_trace(observed: ObservedServer) -> None:
    keys = [name.encode() for name in HELD]
    for key, (_, value) in zip(keys, HELD.values()):
        hold(observed.connection, key, value, TTL_MS)
    rules = [word for algorithm, _ in HELD.values() for word in RULES[algorithm]]
    before = observed.traces(*keys)
    reply = observed.connection.call("RL.ALL_RO", len(keys), *keys, *rules, *NOW)
    assert len(reply) == 1 + len(keys) and {four[0] for four in reply[1:]} == {0, 1}
    assert observed.traces(*keys) == before


@pytest.mark.parametrize("name", HELD)
def test_a_preview_does_not_break_a_watch(raw: RawConnection, name: str) -> None:
    algorithm, value = HELD[name]
    hold(raw, KEY, value, TTL_MS)
    for call in single_and_all(algorithm, KEY, *NOW):
        raw.call("WATCH", KEY)
        assert isinstance(raw.call(*call), list)
        raw.call("MULTI")
        raw.call("PING")
        assert raw.call("EXEC") is not None
    # A call that is allowed does.
    raw.call("WATCH", KEY)
    assert raw.call(f"RL.{algorithm}", KEY, "1000", "60", "COST", "0", *NOW)[0] == 1
    raw.call("MULTI")
    raw.call("PING")
    assert raw.call("EXEC") is None


# The same answers


def preview_words(key: str, call: Call) -> list[Word]:
    return [f"RL.{call.algorithm}_RO", *call.module_words(key)[1:]]


def test_a_preview_decides_as_the_call_after_it_and_as_the_model(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    traces = (parity.random_trace(rng, CALLS_A_TRACE) for _ in range(CALLS // CALLS_A_TRACE))
    denied = 0
    while batch := list(islice(traces, TRACES_A_BATCH)):
        raw.call("FLUSHALL")
        limiters = Model()
        pairs = [(f"k{number}", call) for number, trace in enumerate(batch) for call in trace]
        commands: list[list[Word]] = []
        for key, call in pairs:
            # The second key sees the calls alone, and no previews.
            commands += [preview_words(key, call), call.module_words(key), call.module_words(f"{key}:alone")]
        replies = raw.call_all(commands)
        for (key, call), preview, reply, alone in zip(pairs, replies[::3], replies[1::3], replies[2::3]):
            assert reply == alone, f"the preview of {call} changed what it decides"
            assert preview == limiters.call(*map(str, preview_words(key, call))), call
            limiters.call(*map(str, call.module_words(key)))
            if reply[0]:
                assert (preview[0], preview[3]) == (1, 0), f"{call}: {preview}, then {reply}"
            else:
                assert preview == reply, f"{call}: {preview}, then {reply}"
            denied += 1 - reply[0]
    assert 0 < denied < CALLS
    tally.add("previews", CALLS, "calls decided as previewed", seed=seed)


def test_a_preview_says_what_remains_and_the_reset_before_the_cost(raw: RawConnection) -> None:
    now_s = TODAY_MS // 1000
    for call in single_and_all("TOKENBUCKET", b"bucket", "COST", "4", *NOW):
        reply = raw.call(*call)
        assert (reply if call[0] != "RL.ALL_RO" else reply[1]) == [1, 10, now_s, 0]
    assert raw.call("RL.TOKENBUCKET", b"bucket", "10", "1", "COST", "4", *NOW) == [1, 6, now_s + 4, 0]
    for call in single_and_all("SLIDING", b"window", "COST", "4", *NOW):
        reply = raw.call(*call)
        assert (reply if call[0] != "RL.ALL_RO" else reply[1]) == [1, 10, now_s + 60, 0]
    assert raw.call("RL.SLIDING", b"window", "10", "60", "COST", "4", *NOW) == [1, 6, now_s + 60, 0]


# Expired keys


def pass_deadline(connection: RawConnection, deadline_ms: int) -> None:
    """Waits for the server's clock to be past it."""

    wait_until(lambda: server_ms(connection) > deadline_ms, what="the deadline is past")


EMPTY = {"TOKENBUCKET": state.bucket_bytes(0.0, TODAY_MS), "SLIDING": state.window_bytes(60.0, INDEX, 10.0, 10.0)}


@pytest.mark.parametrize("algorithm", EMPTY)
def test_an_expired_key_that_the_server_still_holds_is_a_missing_one(
    fresh_server: Callable[..., Server], algorithm: str
) -> None:
    with fresh_server().raw_connection() as connection:
        connection.call("DEBUG", "SET-ACTIVE-EXPIRE", "0")
        deadline_ms = server_ms(connection) + 20
        for call in single_and_all(algorithm, KEY, *NOW):
            connection.call("SET", KEY, EMPTY[algorithm], "PXAT", deadline_ms)
            pass_deadline(connection, deadline_ms)
            reply = connection.call(*call)
            assert (reply if call[0] != "RL.ALL_RO" else reply[1])[:2] == [1, 10]


# Replicas


@pytest.fixture
def pair(fresh_server: Callable[..., Server]) -> Iterator[tuple[RawConnection, RawConnection]]:
    """A primary and its read-only replica, both with the module, in step."""
    primary = fresh_server({"repl-diskless-sync-delay": 0})
    replica = fresh_server({"replicaof": [HOST, primary.port], "repl-diskless-load": "disabled"})
    with primary.raw_connection() as to_primary, replica.raw_connection() as to_replica:
        replica.wait_until_linked()
        yield to_primary, to_replica


def catch_up(primary: RawConnection) -> None:
    assert primary.call("WAIT", "1", "10000") == 1


def test_a_read_only_replica_answers_previews_as_its_primary(
    pair: tuple[RawConnection, RawConnection],
) -> None:
    """And refuses the write forms."""
    primary, replica = pair
    for name, (_, value) in HELD.items():
        hold(primary, name.encode(), value, TTL_MS)
    primary.call("SET", b"last", b"x")
    catch_up(primary)
    for name, (algorithm, _) in HELD.items():
        key = name.encode()
        before = replica.call("DUMP", key), replica.call("PEXPIRETIME", key), replica.call("DBSIZE")
        for cost in COSTS:
            for call in single_and_all(algorithm, key, "COST", cost, *NOW, "MS"):
                reply = replica.call(*call)
                assert isinstance(reply, list), f"{call}: {reply!r}"
                assert reply == primary.call(*call)
        for call in single_and_all(algorithm, key, *NOW):
            write = (str(call[0]).removesuffix("_RO"), *call[1:])
            reply = replica.call(*write)
            assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("READONLY"), f"{write}: {reply!r}"
        assert (replica.call("DUMP", key), replica.call("PEXPIRETIME", key), replica.call("DBSIZE")) == before


@pytest.mark.parametrize("algorithm", EMPTY)
def test_on_a_replica_a_key_past_its_deadline_is_a_missing_one(
    pair: tuple[RawConnection, RawConnection], algorithm: str
) -> None:
    """Before its primary has deleted it."""
    primary, replica = pair
    primary.call("DEBUG", "SET-ACTIVE-EXPIRE", "0")
    deadline_ms = server_ms(primary) + 300
    primary.call("SET", KEY, EMPTY[algorithm], "PXAT", deadline_ms)
    catch_up(primary)
    pass_deadline(replica, deadline_ms)
    for call in single_and_all(algorithm, KEY, *NOW):
        reply = replica.call(*call)
        assert (reply if call[0] != "RL.ALL_RO" else reply[1])[:2] == [1, 10]
    assert replica.call("DBSIZE") == 1, "the replica still holds what its primary has not deleted"


# Where writing is not allowed


@pytest.mark.parametrize("algorithm", RULES)
def test_a_user_who_may_only_read_gets_the_answers_that_everybody_gets(
    raw: RawConnection, server: Server, algorithm: str
) -> None:
    """What such a user may call is told by test_acl.py."""
    # Redis before 7.2 has no categories for the commands of modules.
    has_categories = b"rl.all_ro" in raw.call("ACL", "CAT", "read")
    allowed = ["+@read"] if has_categories else [f"+{command.lower()}" for command in PREVIEWS]
    assert raw.call("ACL", "SETUSER", "reader", "on", ">secret", "%R~*", "+auth", *allowed) == b"OK"
    try:
        hold(raw, KEY, EMPTY[algorithm], TTL_MS)
        with server.raw_connection() as reader:
            reader.call("AUTH", "reader", "secret")
            for cost in COSTS:
                for call in single_and_all(algorithm, KEY, "COST", cost, *NOW, "MS"):
                    reply = reader.call(*call)
                    assert isinstance(reply, list) and reply == raw.call(*call), f"{call}: {reply!r}"
            assert str(reader.call(f"RL.{algorithm}", KEY, "10", "60")).startswith("NOPERM")
    finally:
        raw.call("ACL", "DELUSER", "reader")


@pytest.mark.parametrize("algorithm", RULES)
def test_a_preview_runs_in_a_script_that_may_not_write(raw: RawConnection, algorithm: str) -> None:
    script = "return redis.pcall(unpack(ARGV))"
    for call in single_and_all(algorithm, KEY, *NOW):
        assert raw.call("EVAL_RO", script, "1", KEY, *call) == raw.call(*call)
        write = (str(call[0]).removesuffix("_RO"), *call[1:])
        assert isinstance(raw.call("EVAL_RO", script, "1", KEY, *write), hiredis.ReplyError)
    assert raw.call("EXISTS", KEY) == 0


def test_a_preview_runs_when_memory_is_out_and_the_write_form_does_not(raw: RawConnection) -> None:
    raw.call("CONFIG", "SET", "maxmemory", "1")
    try:
        for algorithm in RULES:
            for call in single_and_all(algorithm, KEY, *NOW):
                assert isinstance(raw.call(*call), list)
                write = (str(call[0]).removesuffix("_RO"), *call[1:])
                assert str(raw.call(*write)).startswith("OOM")
    finally:
        raw.call("CONFIG", "SET", "maxmemory", "0")
