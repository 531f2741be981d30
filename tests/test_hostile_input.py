"""Whatever bytes a client sends, the server lives, answers in its form, and an error changes nothing.

Every choice follows from RL_SEED, shown at the head of the run and with each failure; a failing case is
printed as Python that repeats it.
"""

import math
import random
import struct

import hiredis
import pytest

from harness import hostile, state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.hostile import KEYS, Case
from harness.server import Server
from harness.tally import Tally

CASES = 12_000
BATCH = 100
MOST = 2**53 - 1


def looks() -> list[list[Word]]:
    return [[word, key] for key in KEYS for word in ("DUMP", "PEXPIRETIME")]


def run_id(server: Server) -> str:
    return server.info("server")["run_id"]


def assert_four(four: object, may_wait: bool = False) -> None:
    assert isinstance(four, list) and len(four) == 4 and all(isinstance(number, int) for number in four), four
    allowed, remaining, reset, retry = four
    assert allowed in (0, 1), four
    assert remaining >= 0, four
    assert -1 <= reset <= MOST and -1 <= retry <= MOST, four
    assert not (allowed and retry) or may_wait, four


def assert_well_formed(case: Case, reply: object) -> None:
    if isinstance(reply, hiredis.ReplyError):
        message = str(reply)
        assert message.startswith(("ERR ", "WRONGTYPE ")), message
        assert "internal error" not in message, message
        assert len(message) < 500, "the message repeats what was sent"
        return
    command, words = case.call[0].upper(), {word.upper() for word in case.call}
    if command == b"RL.RELEASE":
        assert reply in range(len(case.call) - 1), reply
        return
    may_wait = b"MAXWAIT" in words
    if not command.startswith(b"RL.ALL"):
        if b"ATLEAST" in words and len(reply) == 5:
            granted = reply.pop()
            assert granted >= 0 and bool(granted) == bool(reply[0]), granted
        assert_four(reply, may_wait)
        return
    assert isinstance(reply, list) and reply[0] in (0, 1), reply
    assert len(reply) == 1 + int(case.call[1]), reply
    for four in reply[1:]:
        assert_four(four, may_wait)
    # A rule in the shadow denies itself alone.
    assert reply[0] == int(all(four[0] == 1 for four in reply[1:])) or b"SHADOW" in words, reply


def words_of(case: Case, rng: random.Random) -> list[Word]:
    """The call, sometimes by way of a script."""
    if rng.random() < 0.1:
        return ["EVAL", "return redis.pcall(unpack(ARGV))", "0", *case.call]
    return list(case.call)


def run(connection: RawConnection, cases: list[Case], rng: random.Random) -> list[tuple[list, object, list, object]]:
    """For each case what the keys held, the reply, what they hold then, and what COMMAND GETKEYS says."""
    commands: list[list[Word]] = []
    for case in cases:
        commands += [["FLUSHALL"], *case.set_up, *looks(), words_of(case, rng), *looks(), ["COMMAND", "GETKEYS", *case.call]]
    replies = iter(connection.call_all(commands))
    results = []
    for case in cases:
        for _ in range(1 + len(case.set_up)):
            answer = next(replies)
            assert not isinstance(answer, hiredis.ReplyError), f"{answer}\n{case}"
        before = [next(replies) for _ in looks()]
        reply = next(replies)
        after = [next(replies) for _ in looks()]
        results.append((before, reply, after, next(replies)))
    return results


def test_hostile_calls_are_answered_in_form(
    server: Server, raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    """And an error or a preview changes nothing."""
    at_first = run_id(server)
    kinds = {"errors": 0, "wrong types": 0, "allowed": 0, "denied": 0, "previews": 0}
    for start in range(0, CASES, BATCH):
        cases = [hostile.case(rng) for _ in range(BATCH)]
        for number, (case, result) in enumerate(zip(cases, run(raw, cases, rng)), start):
            before, reply, after, keys = result
            is_error = isinstance(reply, hiredis.ReplyError)
            try:
                assert_well_formed(case, reply)
                if is_error or case.is_preview:
                    assert after == before, "something changed"
                if not is_error:
                    # What was accepted is found by the server's key finder too, as cluster and ACL need it.
                    count = int(case.call[1]) if case.call[0].upper().startswith(b"RL.ALL") else 1
                    first = 2 if case.call[0].upper().startswith(b"RL.ALL") else 1
                    assert keys == case.call[first : first + count], keys
            except AssertionError as error:
                pytest.fail(f"case {number} of RL_SEED={seed}: {error}\n{str(case)[:4000]}\n-> {reply!r}")
            kinds["wrong types" if is_error and str(reply).startswith("WRONGTYPE") else "errors"] += is_error
            if isinstance(reply, list):
                kinds["previews" if case.is_preview else "allowed" if reply[0] else "denied"] += 1
    assert run_id(server) == at_first
    assert raw.call("PING") in (b"PONG", "PONG")
    # Nothing is shown by cases that are all refused alike.
    assert min(kinds.values()) > CASES // 100, kinds
    for kind, count in kinds.items():
        tally.add("hostile input", count, kind, seed)


FORGED = 4_000

FORMATS = {
    state.TOKEN_BUCKET_KIND: state.TOKEN_BUCKET_FORMAT,
    state.SLIDING_KIND: state.SLIDING_FORMAT,
    state.QUOTA_KIND: state.QUOTA_FORMAT,
}
LEAST_FIRST_FIELDS = {state.TOKEN_BUCKET_KIND: -(2.0**53), state.SLIDING_KIND: 0.0, state.QUOTA_KIND: -(2**63)}


def is_a_state(value: bytes, kind: bytes) -> bool:
    """Told without the module."""
    shape = FORMATS[kind]
    if len(value) != struct.calcsize(shape):
        return False
    magic, version, stored_kind, *fields = struct.unpack(shape, value)
    # Only the first field may be negative: the tokens of a bucket in debt, or a period that began before 1970.
    leasts = [LEAST_FIRST_FIELDS[kind], *[0] * (len(fields) - 1)]
    if kind == state.SLIDING_KIND and math.copysign(1, fields[0]) < 0:
        # A length of minus zero, which would number windows downwards.
        return False
    # NaN fails the comparison.
    return (magic, version, stored_kind) == (state.MAGIC, state.VERSION, kind) and all(
        least <= field < float("inf") for least, field in zip(leasts, fields)
    )


HUGE = 1.7976931348623157e308
#: Window lengths that no call can have stored, but that can be forged.
FORGED_LENGTHS = (0.0, -0.0, 5e-324, 1e-300, 0.0015, 9.1e12, HUGE)


@pytest.mark.parametrize("window_s", FORGED_LENGTHS)
def test_a_forged_window_of_another_length_leaves_a_state(
    raw: RawConnection, window_s: float
) -> None:
    """What is carried over from it may be infinite, negative or no number at all."""
    for index in (0, 1, TODAY_MS // 1000, 2**53, 2**63 - 2, 2**63 - 1):
        for prev in (0.0, 1.0, HUGE):
            for curr in (0.0, 1.0, HUGE):
                value = state.window_bytes(window_s, index, prev, curr)
                for after_ms in (0, 1, 30_000, 59_999):
                    for options in ((), ("COST", "0"), ("REFUND", "1"), ("REFUND", "1", "AT", TODAY_MS - 1)):
                        call = ("RL.SLIDING", "a", "10", "60", *options, "NOW", TODAY_MS + after_ms, "MS")
                        _, reply, after = raw.call_all([("SET", "a", value), call, ("GET", "a")])
                        if isinstance(reply, hiredis.ReplyError):
                            assert str(reply).startswith("WRONGTYPE ") and after == value
                        else:
                            assert_four(reply)
                            assert is_a_state(after, state.SLIDING_KIND), f"{value!r} {call} left {after!r}"


def test_a_forged_state_is_refused_untouched_or_is_in_range_and_answered(
    server: Server, raw: RawConnection, rng: random.Random, tally: Tally, seed: str
) -> None:
    at_first = run_id(server)
    answered = {True: 0, False: 0}
    calls = {
        state.TOKEN_BUCKET_KIND: ("RL.TOKENBUCKET", "a", "10", "1", "NOW", TODAY_MS),
        state.SLIDING_KIND: ("RL.SLIDING", "a", "10", "60", "NOW", TODAY_MS),
        state.QUOTA_KIND: ("RL.QUOTA", "a", "10", "60", "NOW", TODAY_MS),
    }
    for _ in range(FORGED):
        value = hostile.forged_state(rng)
        tried = [
            (kind, words)
            for kind, call in calls.items()
            for words in (call, (*call, "MS"), (*call, "REFUND", "1"), (*call, "FORCE", "1"))
        ]
        replies = iter(raw.call_all(command for _, words in tried for command in (("SET", "a", value), words, ("GET", "a"))))
        for (kind, words), _, reply, after in zip(tried, replies, replies, replies):
            accepted = not isinstance(reply, hiredis.ReplyError)
            assert accepted == is_a_state(value, kind), f"{value!r} {words} -> {reply!r}"
            answered[accepted] += 1
            if accepted:
                assert_four(reply)
                assert is_a_state(after, kind), f"{value!r} {words} left {after!r}"
            else:
                assert str(reply).startswith("WRONGTYPE "), reply
                assert after == value
    assert min(answered.values()) > FORGED // 100, answered
    assert run_id(server) == at_first
    tally.add("hostile input", sum(answered.values()), "calls on forged states", seed)


@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
@pytest.mark.parametrize("count", [1, 8, 9, 1_000, 20_000])
def test_as_many_keys_as_one_likes_are_decided_together(raw: RawConnection, command: str, count: int) -> None:
    keys = [b"key:%d" % number for number in range(count)]
    rules = [word for _ in keys for word in (b"TOKENBUCKET", b"2", b"1")]
    reply = raw.call(command, count, *keys, *rules, "NOW", TODAY_MS)
    assert reply[0] == 1 and len(reply) == 1 + count
    assert raw.call("DBSIZE") == (count if command == "RL.ALL" else 0)
    # The last one alone is enough to refuse them all.
    before = raw.call("DUMP", keys[0])
    reply = raw.call(command, count, *keys, *rules, "COST", "3", "NOW", TODAY_MS)
    assert reply[0] == 0 and [four[0] for four in reply[1:]] == [1] * (count - 1) + [0]
    assert raw.call("DUMP", keys[0]) == before


@pytest.mark.parametrize("numkeys", [0, 9, 2**31 - 1, 2**31, 2**32 + 2, 2**53, 2**63 - 1, 2**64 + 2, -2, "2 ", "+2", "2.0"])
@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
def test_a_number_of_keys_that_is_not_theirs_is_refused_everywhere(
    raw: RawConnection, command: str, numkeys: int | str
) -> None:
    call = (command, numkeys, "a", "b", "TOKENBUCKET", "10", "1", "TOKENBUCKET", "10", "1")
    assert isinstance(raw.call(*call), hiredis.ReplyError)
    keys = raw.call("COMMAND", "GETKEYS", *call)
    # Redis 7.0 reads the low 32 bits of the number, and so two keys: those of the call, which is refused.
    assert isinstance(keys, hiredis.ReplyError) or set(keys) <= {b"a", b"b"}
    assert raw.call("MULTI") == b"OK"
    raw.call(*call)
    (reply,) = raw.call("EXEC")
    assert isinstance(reply, hiredis.ReplyError)
    assert raw.call("DBSIZE") == 0


def test_a_megabyte_for_any_word_is_refused_and_not_repeated(raw: RawConnection) -> None:
    """In the message."""
    for word in (b"9" * 2**20, b"\x00" * 2**20, b"." * 2**20, b"1e" + b"9" * 2**20, b"x" * 2**20):
        for call in (
            ["RL.TOKENBUCKET", "a", "10", "1", "NOW", "0"],
            ["RL.SLIDING_RO", "a", "10", "1", "NOW", "0"],
            ["RL.ALL", "1", "a", "SLIDING", "10", "1", "NOW", "0"],
            ["RL.QUOTA", "a", "10", "60", "ANCHOR", "0", "NOW", "0"],
            ["RL.CONCURRENCY", "a", "10", "60", "ID", "x", "NOW", "0"],
        ):
            for position in range(1, len(call)):
                if call[position] == "a":
                    continue
                bent: list[Word] = [*call[:position], word, *call[position + 1 :]]
                reply = raw.call(*bent)
                assert isinstance(reply, hiredis.ReplyError), f"{call} with {word[:3]!r} at {position}"
                assert len(str(reply)) < 500
    assert raw.call("DBSIZE") == 0


def test_a_megabyte_for_a_key_is_a_key(raw: RawConnection) -> None:
    key = b"k\x00" * 2**19
    assert raw.call("RL.TOKENBUCKET", key, "10", "1", "NOW", TODAY_MS)[:2] == [1, 9]
    assert raw.call("RL.ALL", "2", key, "b", "TOKENBUCKET", "10", "1", "SLIDING", "1", "1", "NOW", TODAY_MS)[:2] == [
        1,
        [1, 8, TODAY_MS // 1000 + 2, 0],
    ]
    assert raw.call("STRLEN", key) == state.TOKEN_BUCKET_BYTES
