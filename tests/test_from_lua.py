"""A key that holds the hash of the token bucket's script is a bucket that goes on, under a state of the module's own."""

import random
from collections.abc import Callable, Iterator

import hiredis
import pytest

from harness import parity, refusals, scripts, state
from harness.clock import TODAY_MS, server_ms
from harness.connection import RawConnection, Word
from harness.observed import AOF_CONFIG, ObservedServer
from harness.parity import Trace
from harness.replica import ReplicaStream
from harness.server import Server
from harness.tally import Tally
from test_replication import catch_up, contents, start_replica
from test_wrong_types import ALL, KEY, NEIGHBOUR, assert_refused

TRACES = 60
CAPACITY, RATE = "10", "0.5"
BUCKET = ("TOKENBUCKET", CAPACITY, RATE)
#: Of a bucket of 10 at half a token a second: 10 / 0.5 + 60.
TTL_S = 80
NOW = ("NOW", TODAY_MS)
FIELDS = ("tokens", "last_refill_ms")


def script_call(key: Word, cost: str, now_ms: int, capacity: str = CAPACITY, rate: str = RATE) -> list[Word]:
    return ["EVAL", scripts.TOKEN_BUCKET.source, "1", key, capacity, rate, str(now_ms), cost]


def leave_hash(connection: RawConnection, key: Word = KEY, cost: str = "7.5") -> None:
    """What the script leaves after a call: with a cost of 7.5, 2.5 tokens of 10."""
    assert connection.call(*script_call(key, cost, TODAY_MS))[0] == 1
    assert connection.call("TYPE", key) == b"hash"


def leave_own_state(connection: RawConnection, hash_key: Word, key: Word) -> None:
    """The bucket of `hash_key`, under `key` as the module stores it."""
    tokens, last_ms = connection.call("HMGET", hash_key, *FIELDS)
    connection.call("SET", key, state.bucket_bytes(float(tokens), int(last_ms)))


# Going on


def calls_of(trace: Trace, key: str, taken_over_at: int) -> Iterator[list[Word]]:
    """The first calls by the script, the others by the module, with a look at the ttl after each."""
    for position, call in enumerate(trace):
        yield call.script_words(key) if position < taken_over_at else call.module_words(key)
        yield ["PTTL", key]


def test_the_module_goes_on_from_the_script_as_the_script_alone_would(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    for _ in range(TRACES):
        trace = parity.random_trace(rng, algorithms=["TOKENBUCKET"])
        taken_over_at = rng.randrange(1, len(trace))
        raw.call("FLUSHALL")
        alone = raw.call_all(calls_of(trace, "alone", len(trace)))
        mixed = raw.call_all(calls_of(trace, "mixed", taken_over_at))
        shown = f"taken over at call {taken_over_at} (RL_SEED={seed}) of\n{parity.replayable(trace)}"
        assert mixed[::2] == alone[::2], shown
        for script_ttl, ttl in zip(alone[1::2], mixed[1::2]):
            assert (ttl < 0) == (script_ttl < 0) and abs(ttl - script_ttl) <= parity.TTL_TOLERANCE_MS, shown
        tokens, last_ms = raw.call("HMGET", "alone", *FIELDS)
        left = state.read_bucket(raw.call("GET", "mixed"))
        assert left == state.Bucket(float(tokens), int(last_ms)), shown
        tally.add("from Lua", len(trace), "calls equal to those of the script alone", seed=seed)


#: Calls on a key that holds 2.5 of 10 tokens.
ANSWERED: dict[str, tuple[Word, ...]] = {
    "allowed": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "2", "NOW", TODAY_MS + 300),
    "allowed in ms": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "2", "NOW", TODAY_MS + 300, "MS"),
    "denied": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "3", "NOW", TODAY_MS + 300),
    "denied in ms": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "3", "NOW", TODAY_MS + 300, "MS"),
    "refunded": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "REFUND", "1.5", "NOW", TODAY_MS + 300, "MS"),
    "at an earlier time": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "NOW", TODAY_MS - 9000, "MS"),
    "under another rule": ("RL.TOKENBUCKET", KEY, "2", "0", "NOW", TODAY_MS + 300, "MS"),
    "preview, allowed": ("RL.TOKENBUCKET_RO", KEY, CAPACITY, RATE, "COST", "2", "NOW", TODAY_MS + 300, "MS"),
    "preview, denied": ("RL.TOKENBUCKET_RO", KEY, CAPACITY, RATE, "COST", "3", "NOW", TODAY_MS + 300, "MS"),
    "all": ("RL.ALL", "1", KEY, *BUCKET, "COST", "2", "NOW", TODAY_MS + 300, "MS"),
    "all, denied": ("RL.ALL", "1", KEY, *BUCKET, "COST", "3", "NOW", TODAY_MS + 300, "MS"),
    "all, preview": ("RL.ALL_RO", "1", KEY, *BUCKET, "COST", "3", "NOW", TODAY_MS + 300, "MS"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_a_call_on_the_hash_answers_as_on_the_same_bucket_as_a_string(
    raw: RawConnection, name: str
) -> None:
    call = ANSWERED[name]
    leave_hash(raw)
    leave_own_state(raw, KEY, "own")
    expected = raw.call(*["own" if word == KEY else word for word in call])
    assert isinstance(expected, list)
    assert raw.call(*call) == expected


@pytest.mark.parametrize("entries", ["128", "0"], ids=["listpack", "hashtable"])
def test_the_hash_is_read_in_either_encoding_of_the_server(raw: RawConnection, entries: str) -> None:
    (_, before) = raw.call("CONFIG", "GET", "hash-max-listpack-entries")
    raw.call("CONFIG", "SET", "hash-max-listpack-entries", entries)
    try:
        leave_hash(raw)
        encoding = raw.call("OBJECT", "ENCODING", KEY)
        assert (encoding == b"hashtable") == (entries == "0")
        assert raw.call("RL.TOKENBUCKET", KEY, CAPACITY, RATE, *NOW)[:2] == [1, 1]
    finally:
        raw.call("CONFIG", "SET", "hash-max-listpack-entries", before)


def test_a_hash_with_its_fields_in_the_other_order_is_the_same_bucket(raw: RawConnection) -> None:
    raw.call("HSET", KEY, "last_refill_ms", TODAY_MS, "tokens", "2.5")
    assert raw.call("RL.TOKENBUCKET", KEY, CAPACITY, RATE, *NOW)[:2] == [1, 1]


# What is written

#: What a call makes of 2.5 of 10 tokens, and the ttl of the key from then on.
TAKEN_OVER: dict[str, tuple[tuple[Word, ...], float, int | None]] = {
    "allowed": (("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "2", *NOW), 0.5, TTL_S),
    "allowed, nothing taken": (("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "0", *NOW), 2.5, TTL_S),
    "denied": (("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "3", *NOW), 2.5, TTL_S),
    "denied for ever": (("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "11", *NOW), 2.5, TTL_S),
    "refunded": (("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "REFUND", "1.5", *NOW), 4.0, TTL_S),
    "refunded, nothing given": (("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "REFUND", "0", *NOW), 2.5, TTL_S),
    "allowed, never refilled": (("RL.TOKENBUCKET", KEY, CAPACITY, "0", "COST", "2", *NOW), 0.5, None),
    "denied, never refilled": (("RL.TOKENBUCKET", KEY, CAPACITY, "0", "COST", "3", *NOW), 2.5, None),
    "all": (("RL.ALL", "1", KEY, *BUCKET, "COST", "2", *NOW), 0.5, TTL_S),
    "all, refunded": (("RL.ALL", "1", KEY, *BUCKET, "REFUND", "1.5", *NOW), 4.0, TTL_S),
}
each_taken_over = pytest.mark.parametrize("name", TAKEN_OVER)


@each_taken_over
def test_the_hash_is_replaced_in_the_same_call_and_propagated_as_one_set(
    observed: ObservedServer, name: str
) -> None:
    """With the deadline that every call sets."""
    call, tokens, ttl_s = TAKEN_OVER[name]
    connection = observed.connection
    leave_hash(connection)
    observed.stream.commands()
    changes = observed.changes_since_save()
    in_aof = len(observed.aof_commands())
    before_ms = server_ms(connection)
    assert isinstance(connection.call(*call), list)
    after_ms = server_ms(connection)

    assert connection.call("TYPE", KEY) == b"string"
    value = state.bucket_bytes(tokens, TODAY_MS)
    assert connection.call("GET", KEY) == value
    deadline_ms = connection.call("PEXPIRETIME", KEY)
    if ttl_s is None:
        assert deadline_ms == -1
    else:
        assert before_ms <= deadline_ms - ttl_s * 1000 <= after_ms
    deadline = [] if ttl_s is None else [b"PXAT", b"%d" % deadline_ms]
    (propagated,) = observed.stream.commands()
    assert propagated == [b"SET", KEY, value, *deadline]
    assert observed.aof_commands()[in_aof:] == [propagated]
    assert observed.changes_since_save() == changes + 1


@each_taken_over
def test_a_watching_client_sees_the_takeover_as_a_change(observed: ObservedServer, name: str) -> None:
    leave_hash(observed.connection)
    with observed.raw_connection() as watching:
        watching.call("WATCH", KEY)
        observed.connection.call(*TAKEN_OVER[name][0])
        watching.call_all([("MULTI",), ("PING",)])
        assert watching.call("EXEC") is None


def test_a_replica_and_a_restarted_server_end_with_the_same_bytes(
    fresh_server: Callable[..., Server],
) -> None:
    """Both without the module."""
    server = fresh_server({**AOF_CONFIG, **ReplicaStream.CONFIG})
    keys = [b"key of " + name.encode() for name in TAKEN_OVER]
    replica = start_replica(fresh_server, server, with_module=False)
    with server.raw_connection() as connection:
        for key, (call, *_) in zip(keys, TAKEN_OVER.values()):
            leave_hash(connection, key)
            assert isinstance(connection.call(*[key if word == KEY else word for word in call]), list)
        catch_up(server, replica)
        before = contents(server, keys)
        assert None not in before
        assert contents(replica, keys) == before
    server.restart(with_module=False)
    assert contents(server, keys) == before


# What leaves the hash as it is

UNTOUCHED: dict[str, tuple[Word, ...]] = {
    "preview, allowed": ("RL.TOKENBUCKET_RO", KEY, CAPACITY, RATE, *NOW),
    "preview, denied": ("RL.TOKENBUCKET_RO", KEY, CAPACITY, RATE, "COST", "9", *NOW),
    "preview by the server's clock": ("RL.TOKENBUCKET_RO", KEY, CAPACITY, RATE),
    "preview of all": ("RL.ALL_RO", "2", KEY, NEIGHBOUR, *BUCKET, *BUCKET, *NOW),
    "refused by its own rule of all": ("RL.ALL", "2", KEY, NEIGHBOUR, *BUCKET, "COST", "9", *BUCKET, *NOW),
    "refused by another rule of all": ("RL.ALL", "2", KEY, NEIGHBOUR, *BUCKET, *BUCKET, "COST", "99", *NOW),
    "refused by a rule before it": ("RL.ALL", "2", NEIGHBOUR, KEY, *BUCKET, "COST", "99", *BUCKET, *NOW),
    "refund in a refused call": ("RL.ALL", "2", KEY, NEIGHBOUR, *BUCKET, "REFUND", "1", *BUCKET, "COST", "99", *NOW),
}
REFUSED: dict[str, tuple[Word, ...]] = {
    "bad capacity": ("RL.TOKENBUCKET", KEY, "ten", RATE, *NOW),
    "bad rate": ("RL.TOKENBUCKET", KEY, CAPACITY, "-1", *NOW),
    "bad cost": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "COST", "nan", *NOW),
    "bad refund": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, "REFUND", "inf", *NOW),
    "an unknown word": ("RL.TOKENBUCKET", KEY, CAPACITY, RATE, *NOW, "SECONDS"),
    "too few words": ("RL.TOKENBUCKET", KEY, CAPACITY),
    "a bad rule beside it": ("RL.ALL", "2", KEY, NEIGHBOUR, *BUCKET, "TOKENBUCKET", "ten", "1", *NOW),
    "a wrong type beside it": ("RL.ALL", "2", KEY, NEIGHBOUR, *BUCKET, "SLIDING", "10", "60", *NOW),
}


@pytest.mark.parametrize("name", [*UNTOUCHED, *REFUSED])
def test_a_preview_and_a_call_that_is_refused_leave_the_hash_as_it_is(observed: ObservedServer, name: str) -> None:
    connection = observed.connection
    leave_hash(connection)
    connection.call("SET", NEIGHBOUR, state.bucket_bytes(5.0, TODAY_MS))
    before = observed.traces(KEY, NEIGHBOUR)
    reply = connection.call(*(UNTOUCHED | REFUSED)[name])
    assert isinstance(reply, hiredis.ReplyError if name in REFUSED else list), reply
    assert observed.traces(KEY, NEIGHBOUR) == before
    assert connection.call("HLEN", KEY) == 2


# What is not the script's hash

A_TIME = str(TODAY_MS)
FOREIGN: dict[str, list[Word]] = {
    "a field more": ["tokens", "2.5", "last_refill_ms", A_TIME, "limit", "10"],
    "a long field more": ["tokens", "2.5", "last_refill_ms", A_TIME, "note", "x" * 1000],
    "no time": ["tokens", "2.5"],
    "no tokens": ["last_refill_ms", A_TIME],
    "another field for the time": ["tokens", "2.5", "timestamp", A_TIME],
    "another field for the tokens": ["level", "2.5", "last_refill_ms", A_TIME],
    "fields in capitals": ["TOKENS", "2.5", "LAST_REFILL_MS", A_TIME],
    "a field with a NUL byte": [b"tokens\x00", "2.5", "last_refill_ms", A_TIME],
    "a field that starts alike": ["tokens", "2.5", "last_refill", A_TIME],
    "no field in common": ["name", "x", "mail", "y"],
}


@pytest.mark.parametrize("name", FOREIGN)
def test_any_other_hash_is_refused_untouched(observed: ObservedServer, name: str, tally: Tally) -> None:
    observed.connection.call("HSET", KEY, *FOREIGN[name])
    assert_refused(observed, ALL, tally)


#: Nothing that the script writes, though `tonumber` would read some of it.
NOT_A_NUMBER = refusals.NOT_DECIMAL + refusals.TOO_LARGE + refusals.TOO_LARGE_BUT_ROUNDED


@pytest.mark.parametrize("field", FIELDS)
def test_a_hash_with_anything_but_a_number_in_range_is_refused_untouched(
    observed: ObservedServer, field: str, tally: Tally
) -> None:
    for value in NOT_A_NUMBER:
        observed.connection.call("DEL", KEY)
        observed.connection.call("HSET", KEY, "tokens", "2.5", "last_refill_ms", A_TIME)
        observed.connection.call("HSET", KEY, field, value)
        assert_refused(observed, ("TOKENBUCKET",), tally)


def test_the_other_kinds_have_no_use_for_the_buckets_hash(observed: ObservedServer, tally: Tally) -> None:
    leave_hash(observed.connection)
    assert_refused(observed, ("SLIDING", "QUOTA"), tally)


def test_the_script_is_answered_with_wrongtype_once_the_hash_is_replaced(raw: RawConnection) -> None:
    """What an old instance sees in a rolling deployment: an error, never a full bucket."""
    leave_hash(raw)
    raw.call("RL.TOKENBUCKET", KEY, CAPACITY, RATE, *NOW)
    value = raw.call("GET", KEY)
    reply = raw.call(*script_call(KEY, "1", TODAY_MS))
    assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE "), reply
    assert raw.call("GET", KEY) == value
