"""Calls and values made to do harm: well-formed ones bent out of shape, and words in a heap."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from . import command_table, refusals, state
from .clock import TODAY_MS
from .connection import Word
from .kinds import KINDS

I64 = (0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), TODAY_MS)
U64_BITS = 64
MEGABYTE = 2**20

#: All that a call can touch. The last ones are never limiters at first: see `values`.
KEYS = [b"a", b"b", b"", b"\x00", b"nul\x00inside", b"\xff\xfe{tag}", b"10", b"MS"]
TTL_S = 100_000

GOOD_NUMBERS = [b"0", b"1", b"10", b"0.5", b".5", b"60", b"1e3", b"1e-3", b"9007199254740992", b"0.001", b"100"]
BAD_NUMBERS = [
    *refusals.NOT_DECIMAL,
    *refusals.TOO_LARGE,
    *refusals.TOO_LARGE_BUT_ROUNDED,
    b"9223372036854775807", b"-9223372036854775808", b"1.7976931348623157e308", b"5e-324", b"-1.8e308",
    b"1e-999999999", b"0" * 5000, b"0." + b"0" * 5000 + b"1",
]  # fmt: skip
TIMES = [b"0", b"1", b"1751662800000", b"1751662799999", b"1751662860000", b"9007199254740991", b"9007199254740992"]
KEYWORDS = [
    b"COST", b"REFUND", b"NOW", b"MS", b"TOKENBUCKET", b"SLIDING", b"cost", b"Refund", b"nOw", b"ms", b"sliding",
    b"QUOTA", b"CONCURRENCY", b"FORCE", b"MAXWAIT", b"ATLEAST", b"SHADOW", b"RELEASE", b"ID", b"XX", b"AT",
    b"DAY", b"week", b"MONTH", b"YEAR", b"ANCHOR", b"UNTIL", b"Shadow", b"id", b"xx",
]  # fmt: skip
COUNTS = [b"0", b"1", b"2", b"3", b"8", b"9", b"01", b"-1", b"2.0", b"2147483647", b"4294967297", b"18446744073709551617"]
FAMILIES = [name.encode() for name in KINDS]
COMMANDS = [command.encode() for command in command_table.COMMANDS]
UNITS = [b"DAY", b"WEEK", b"month", b"YEAR"]
IDS = [b"a", b"b", b"\x00", b"XX", b"\xff\xfe", b"id" * 40]
INTEGERS = [b"0", b"1", b"2", b"10", b"9007199254740992"]
LENGTHS = [b"1", b"10", b"0.5", b".5", b"60", b"1e3", b"0.001", b"100", b"9007199254740.992"]


@dataclass(frozen=True)
class Case:
    """What the keys hold, and a call."""

    set_up: list[list[Word]]
    call: list[bytes]

    @property
    def is_preview(self) -> bool:
        return self.call[0].upper().endswith(b"_RO")

    def __str__(self) -> str:
        """As Python that repeats it."""
        return "\n".join(f"raw.call(*{words!r})" for words in [*self.set_up, self.call])


# Values of keys


def _number(rng: random.Random) -> float:
    if rng.random() < 0.5:
        return rng.choice([0.0, -0.0, 1.0, 10.0, 60.0, 0.001, 2.0**53, 5e-324, 1.8e308, -1.0, float("inf"), float("nan")])
    return struct.unpack("<d", struct.pack("<Q", rng.getrandbits(U64_BITS)))[0]


def _integer(rng: random.Random) -> int:
    return rng.choice(I64) if rng.random() < 0.5 else rng.getrandbits(U64_BITS) - 2**63


def _honest_state(rng: random.Random) -> bytes:
    now_ms = TODAY_MS + rng.randrange(-100_000, 100_000)
    kind = rng.random()
    if kind < 0.4:
        return state.bucket_bytes(rng.uniform(-20, 20), now_ms)
    if kind < 0.6:
        return state.count_bytes(now_ms - 30_000, now_ms + 30_000, rng.uniform(0, 20))
    window_s = rng.choice([0.001, 0.5, 1.0, 10.0, 60.0])
    return state.window_bytes(window_s, int(now_ms / 1000 / window_s), rng.uniform(0, 20), rng.uniform(0, 20))


def forged_state(rng: random.Random) -> bytes:
    """A state with one or more things wrong with it: or, by chance, none."""
    kind = rng.random()
    if kind < 0.4:
        value = state.bucket_bytes(_number(rng), _integer(rng))
    elif kind < 0.6:
        value = state.count_bytes(_integer(rng), _integer(rng), _number(rng))
    else:
        value = state.window_bytes(_number(rng), _integer(rng), _number(rng), _number(rng))
    how = rng.randrange(6)
    if how == 0:
        position = rng.randrange(4)
        value = value[:position] + rng.randbytes(1) + value[position + 1 :]
    elif how == 1:
        value = value[: rng.randrange(len(value))]
    elif how == 2:
        value += rng.randbytes(rng.randrange(1, 40))
    return value


def script_hash(rng: random.Random, key: bytes) -> list[Word]:
    """A hash as the token bucket script keeps it, or one that looks like it."""
    numbers = [b"0", b"2.5", b"1751662800000", b"1e308", b"9" * 400, *BAD_NUMBERS[:40]]
    fields: list[Word] = [b"tokens", b"5", b"last_refill_ms", b"1751662799000"]
    for position in (1, 3):
        if rng.random() < 0.3:
            fields[position] = rng.choice(numbers)
    if rng.random() < 0.1:
        fields += [b"other", b"1"]
    if rng.random() < 0.1:
        del fields[:2]
    return ["HSET", key, *fields]


def leases(rng: random.Random, key: bytes) -> list[Word]:
    """A sorted set, of leases or of anything else."""
    scores = [b"%d" % (TODAY_MS + rng.randrange(-60_000, 60_000)), b"inf", b"-inf", b"-1", b"0.5", b"1e308", b"%d" % TODAY_MS]
    members = rng.sample(IDS, rng.randrange(1, 4))
    return ["ZADD", key, *(word for member in members for word in (rng.choice(scores), member))]


def set_up(rng: random.Random, key: bytes) -> list[list[Word]]:
    """Commands that make `key` hold something, with a ttl as often as not."""
    makers: list[Callable[[], list[list[Word]]]] = [
        lambda: [],
        lambda: [["SET", key, _honest_state(rng)]],
        lambda: [["SET", key, _honest_state(rng)]],
        lambda: [["SET", key, forged_state(rng)]],
        lambda: [script_hash(rng, key)],
        lambda: [leases(rng, key)],
        lambda: [leases(rng, key)],
        lambda: [["SET", key, rng.choice([b"", b"7", b"RL", b"RL\x01T", rng.randbytes(20), rng.randbytes(36)])]],
        lambda: [rng.choice([["RPUSH", key, "x"], ["HSET", key, "f", "v"], ["SADD", key, "1"], ["ZADD", key, "1", "x"],
                             ["XADD", key, "1-1", "f", "v"], ["PFADD", key, "x"]])],
    ]  # fmt: skip
    commands = rng.choice(makers)()
    if commands and rng.random() < 0.5:
        commands.append(["EXPIRE", key, TTL_S])
    return commands


# Calls


def _rule(rng: random.Random, family: bytes, with_writes: bool) -> list[bytes]:
    """The words of a rule behind the name of its kind."""
    if family == b"CONCURRENCY":
        return [rng.choice(INTEGERS), rng.choice(LENGTHS)] + [b"RELEASE"] * (with_writes and rng.random() < 0.2)
    words = [rng.choice(GOOD_NUMBERS)]
    if family == b"QUOTA":
        words += _period(rng)
    else:
        words.append(rng.choice(GOOD_NUMBERS if family == b"TOKENBUCKET" else LENGTHS))
    option = rng.randrange(6)
    if option == 0:
        words += [b"COST", rng.choice(GOOD_NUMBERS)]
    elif option == 1 and with_writes:
        words += [b"REFUND", rng.choice(GOOD_NUMBERS)] + [b"AT", rng.choice(TIMES)] * (rng.random() < 0.3)
    elif option == 2 and with_writes:
        words += [b"FORCE", rng.choice(GOOD_NUMBERS)]
    return words


def _period(rng: random.Random) -> list[bytes]:
    if rng.random() < 0.2:
        return [b"UNTIL", rng.choice(TIMES)]
    anchor = [b"ANCHOR", rng.choice(TIMES)] if rng.random() < 0.4 else []
    return [rng.choice(UNITS + LENGTHS), *anchor]


def _options(rng: random.Random, *more: list[bytes]) -> list[bytes]:
    options = [option for option in more if option]
    options += [[b"NOW", rng.choice(TIMES)]] if rng.random() < 0.7 else []
    options += [[b"MS"]] if rng.random() < 0.5 else []
    rng.shuffle(options)
    return [word for option in options for word in option]


def _lease(rng: random.Random) -> list[bytes]:
    return [b"ID", rng.choice(IDS)] + [b"XX"] * (rng.random() < 0.2)


def well_formed(rng: random.Random) -> list[bytes]:
    """A call that may be accepted."""
    command = rng.choice(COMMANDS)
    family, _, form = command.removeprefix(b"RL.").partition(b"_")
    if family == b"RELEASE":
        return [command, rng.choice(KEYS), *rng.choices(IDS, k=rng.randrange(1, 4))]
    wait = [b"MAXWAIT", rng.choice(LENGTHS)] if rng.random() < 0.2 else []
    if family == b"ALL":
        keys, rules = rng.sample(KEYS, rng.randrange(1, 5)), []
        families = [rng.choice(FAMILIES) for _ in keys]
        for of_a_key in families:
            rules += [of_a_key, *_rule(rng, of_a_key, not form)] + [b"SHADOW"] * (rng.random() < 0.1)
        lease = _lease(rng) if b"CONCURRENCY" in families else []
        return [command, b"%d" % len(keys), *keys, *rules, *_options(rng, lease, wait)]
    rule = _rule(rng, family, not form)
    if family == b"CONCURRENCY":
        return [command, rng.choice(KEYS), *rule[:2], *_options(rng, _lease(rng))]
    if family == b"TOKENBUCKET" and not {b"FORCE", b"REFUND"} & set(rule):
        return [command, rng.choice(KEYS), *rule, *_options(rng, wait)]
    if rng.random() < 0.1:
        rule = [word for word in rule[:2] if family != b"QUOTA"] or [b"10", b"DAY"]
        rule += [b"COST", b"10", b"ATLEAST", rng.choice([b"1", b"5", b"10"])]
    return [command, rng.choice(KEYS), *rule, *_options(rng)]


def any_word(rng: random.Random) -> bytes:
    roll = rng.random()
    if roll < 0.001:
        return rng.choice([b"9", b"x", b"\x00", b"."]) * MEGABYTE
    if roll < 0.2:
        return rng.randbytes(rng.randrange(0, 12))
    return rng.choice(rng.choice([GOOD_NUMBERS, BAD_NUMBERS, TIMES, KEYWORDS, COUNTS, KEYS]))


def bend(rng: random.Random, call: list[bytes]) -> list[bytes]:
    """The call with one thing changed in it, behind the command's name."""
    words = list(call)
    at = rng.randrange(1, len(words)) if len(words) > 1 else 1
    how = rng.randrange(8)
    if how == 0:
        words.insert(at, any_word(rng))
    elif how == 1:
        words.insert(at, rng.choice(KEYWORDS))
    elif how == 2:
        del words[at:]
    elif at < len(words):
        other = rng.randrange(1, len(words))
        if how == 3:
            words[at], words[other] = words[other], words[at]
        elif how == 4:
            words[at:at] = words[min(at, other) : max(at, other) + 1]
        elif how == 5:
            position = rng.randrange(len(words[at]) + 1)
            words[at] = words[at][:position] + rng.randbytes(1) + words[at][position + rng.randrange(2) :]
        elif how == 6:
            del words[at]
        else:
            words[at] = any_word(rng)
    return words


def hostile_call(rng: random.Random) -> list[bytes]:
    """A call that is well-formed, or was, or never was one."""
    roll = rng.random()
    if roll < 0.1:
        heap = [any_word(rng) for _ in range(rng.randrange(0, 20))]
        return [rng.choice(COMMANDS), *heap]
    call = well_formed(rng)
    if roll < 0.6:
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            call = bend(rng, call)
    return call


def case(rng: random.Random) -> Case:
    call = hostile_call(rng)
    touched = [key for key in KEYS if key in call]
    return Case([command for key in touched for command in set_up(rng, key)], call)
