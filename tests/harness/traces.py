"""Random calls of every kind, for a model and a server that answer them side by side."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from . import periods
from .clock import CLOCK_SLACK_MS, TODAY_MS, Clock, server_ms
from .connection import RawConnection, Word
from .kinds import KINDS, State
from .model import Model
from .parity import HIGHEST, log_uniform, random_trace
from .replica import ReplicaStream
from .state import bytes_of

#: Leases end as doubles do: past this the end of one is no whole number any more.
LATEST_LEASE_MS = 2**52
DAY_MS = periods.DAY_MS
IDS = ("a", "b", "c", "d", "e", "f", b"\x00\xff ", "id " * 100)

AMOUNTS = ["0", "0.5", "1", "2", "2.5", "3", "5", "10", "60", "100", "1e6", str(HIGHEST)]
COSTS = ["0", "0.25", "0.5", "1", "1", "1", "2", "3", "5"]
RATES = ["0", "0.001", "0.1", "0.3", "0.5", "1", "2.5", "8", "1500", "1e6"]
WINDOWS = ["0.001", "0.1", "0.25", "1", "2.5", "7", "10", "60", "3600", "86400"]
LENGTHS = ["0.001", "0.0015", "0.7", "1", "1.0004", "2.5", "60", "3600", "86400", "2592000"]
LEASES = ["0.001", "0.1", "1", "2.5", "10", "30", "120", "3600"]
LIMITS_OF_LEASES = ["0", "1", "1", "2", "3", "5", "100"]
WAITS = ["0", "0.001", "0.25", "1", "2.5", "10", "60", "1e6"]
#: Times at which calendars turn.
TURNS = [
    "2024-02-29", "2024-03-01", "2023-02-28", "2023-03-01", "2025-01-01", "2024-12-31", "2025-01-30", "2025-01-31",
    "2025-04-29", "2025-04-30", "2025-05-31", "2100-02-28", "2100-03-01", "2000-02-29", "1970-01-01", "9999-12-31",
]  # fmt: skip

Words = list[Word]


def near(rng: random.Random, ms: int, by_ms: int = DAY_MS) -> int:
    return max(0, ms + rng.choice([0, 0, -1, 1, rng.randrange(-by_ms, by_ms)]))


def any_time(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.4:
        return TODAY_MS + rng.randrange(10**10) * (rng.random() < 0.5)
    if kind < 0.8:
        return near(rng, periods.ms_of_date(rng.choice(TURNS)))
    return rng.choice([rng.randrange(10**6), rng.randrange(LATEST_LEASE_MS), LATEST_LEASE_MS - rng.randrange(10**6)])


@dataclass
class Kind:
    """The words of a rule on one key, which change now and then, and the time in which something happens."""

    name: str
    rng: random.Random
    parameters: Words = field(default_factory=list)

    def __post_init__(self) -> None:
        self.change(0)

    def change(self, now_ms: int) -> None:
        rng = self.rng
        if self.name == "CONCURRENCY":
            self.parameters = [rng.choice(LIMITS_OF_LEASES), rng.choice(LEASES)]
        elif self.name == "QUOTA":
            self.parameters = [self._amount(), *self._period(now_ms)]
        else:
            scales = RATES if self.name == "TOKENBUCKET" else WINDOWS
            low, high = (1e-6, 1e6) if self.name == "TOKENBUCKET" else (0.001, 1e8)
            second = rng.choice(scales) if rng.random() < 0.8 else log_uniform(rng, low, high)
            self.parameters = [self._amount(), second]

    def _amount(self) -> str:
        return self.rng.choice(AMOUNTS) if self.rng.random() < 0.8 else log_uniform(self.rng, 1e-3, 1e9)

    def _period(self, now_ms: int) -> Words:
        rng = self.rng
        kind = rng.random()
        if kind < 0.1:
            return ["UNTIL", now_ms + rng.choice([1, 1000, 3_600_000, rng.randrange(1, 10**10)])]
        period = [rng.choice(periods.UNITS) if kind < 0.6 else rng.choice(LENGTHS)]
        return period + ["ANCHOR", any_time(rng)] * (rng.random() < 0.5)

    @property
    def scale_ms(self) -> int:
        if self.name == "QUOTA":
            word = str(self.parameters[1])
            units = {"DAY": 1, "WEEK": 7, "MONTH": 31, "YEAR": 366, "UNTIL": 1}
            return units[word] * DAY_MS if word in units else int(float(word) * 1000)
        second = float(self.parameters[1])
        if self.name == "TOKENBUCKET":
            return int(1000 / second) if second > 0 else 1000
        return int(second * 1000)

    def rule(self) -> Words:
        return [self.name, *self.parameters]

    def request(self, with_writes: bool, now_ms: int) -> Words:
        """COST, FORCE or REFUND, with AT now and then."""
        rng = self.rng
        first = float(self.parameters[0])
        costs = [rng.choice(COSTS), rng.choice(COSTS), repr(first * rng.random()), self.parameters[0]]
        costs.append(repr(min(first * 1.5 + 1, float(HIGHEST))))
        kind = rng.random()
        if kind < 0.15:
            return []
        if kind < 0.6 or not with_writes:
            return ["COST", rng.choice(costs)]
        if kind < 0.8:
            return ["FORCE", rng.choice(costs)]
        at = ["AT", max(0, now_ms - int(self.scale_ms * rng.choice([-1, 0, rng.random(), 3 * rng.random()])))]
        return ["REFUND", rng.choice(costs), *(at if rng.random() < 0.5 else [])]


def options(rng: random.Random, *more: Words, now_ms: int) -> Words:
    """NOW, half of the time MS, and `more`, in any order."""
    groups: list[Words] = [["NOW", now_ms], *more]
    if rng.random() < 0.5:
        groups.append(["MS"])
    rng.shuffle(groups)
    return [word for group in groups for word in group]


def single_call(rng: random.Random, kind: Kind, key: str, now_ms: int) -> Words:
    is_preview = rng.random() < 0.2
    command = f"RL.{kind.name}" + "_RO" * is_preview
    if kind.name == "CONCURRENCY":
        if rng.random() < 0.25:
            return ["RL.RELEASE", key, *rng.choices(IDS, k=rng.choice([1, 1, 2, 3]))]
        lease = ["ID", rng.choice(IDS[:6] if rng.random() < 0.9 else IDS)]
        return [command, key, *kind.parameters, *options(rng, lease, *[["XX"]] * (rng.random() < 0.2), now_ms=now_ms)]
    request = kind.request(not is_preview, now_ms)
    if not request or request[0] == "COST":
        how = rng.random()
        if kind.name == "TOKENBUCKET" and how < 0.35:
            return [command, key, *kind.parameters, *options(rng, request, ["MAXWAIT", rng.choice(WAITS)], now_ms=now_ms)]
        if how < 0.55:
            cost = rng.choice([1, 2, 3, 7, 10, 100, HIGHEST])
            at_least = rng.choice([1, 1, cost, min(2, cost), rng.randint(1, cost)])
            request = ["COST", cost, "ATLEAST", at_least]
    return [command, key, *kind.parameters, *options(rng, request, now_ms=now_ms)]


def without_stale_ends(kind: Kind, now_ms: int) -> None:
    """An end that the clock has reached is an error: the caller names the next."""
    if kind.parameters[1] == "UNTIL" and int(kind.parameters[2]) <= now_ms:
        kind.parameters[2] = now_ms + kind.rng.choice([1, 1000, 3_600_000])


def single_trace(rng: random.Random, key: str, length: int, name: str | None = None) -> list[Words]:
    """Calls on one key."""
    clock = Clock(rng, any_time(rng), rng.random() < 0.4, LATEST_LEASE_MS)
    kind = Kind(name or rng.choice(list(KINDS)), rng)
    kind.change(clock.now_ms)
    changes = rng.choice([0.0, 0.05, 0.3])
    trace = []
    for _ in range(length):
        if rng.random() < changes:
            kind.change(clock.now_ms)
        without_stale_ends(kind, clock.now_ms)
        trace.append(single_call(rng, kind, key, clock.now_ms))
        clock.go_on(kind.scale_ms)
    return trace


def all_call(rng: random.Random, kinds: dict[str, Kind], now_ms: int) -> Words:
    """RL.ALL on some of the keys, in any order."""
    is_preview = rng.random() < 0.15
    keys = rng.sample(sorted(kinds), rng.randint(1, len(kinds)))
    rules: Words = []
    for key in keys:
        kind = kinds[key]
        without_stale_ends(kind, now_ms)
        rules += kind.rule()
        if kind.name != "CONCURRENCY":
            rules += kind.request(not is_preview, now_ms)
        elif not is_preview and rng.random() < 0.25:
            rules.append("RELEASE")
        rules += ["SHADOW"] * (rng.random() < 0.15)
    more: list[Words] = []
    if any(kinds[key].name == "CONCURRENCY" for key in keys):
        more.append(["ID", rng.choice(IDS[:4])])
        more += [["XX"]] * (rng.random() < 0.2)
    if any(kinds[key].name == "TOKENBUCKET" for key in keys) and rng.random() < 0.3:
        more.append(["MAXWAIT", rng.choice(WAITS)])
    command = "RL.ALL_RO" if is_preview else "RL.ALL"
    return [command, len(keys), *keys, *rules, *options(rng, *more, now_ms=now_ms)]


def all_trace(rng: random.Random, prefix: str, length: int) -> list[Words]:
    """Calls on a few keys, together and one by one."""
    clock = Clock(rng, any_time(rng), rng.random() < 0.4, LATEST_LEASE_MS)
    # Now and then more than the eight that a call decides without memory of its own.
    count = rng.choice([1, 2, 3, 10])
    names = ["CONCURRENCY"] * rng.randint(0, 2) + [rng.choice(list(KINDS)) for _ in range(count)]
    kinds = {f"{prefix}{name[0]}{number}": Kind(name, rng) for number, name in enumerate(names)}
    for kind in kinds.values():
        kind.change(clock.now_ms)
    changes = rng.choice([0.0, 0.05, 0.2])
    trace = []
    for _ in range(length):
        for kind in kinds.values():
            if rng.random() < changes:
                kind.change(clock.now_ms)
        if rng.random() < 0.8:
            trace.append(all_call(rng, kinds, clock.now_ms))
        else:
            key = rng.choice(sorted(kinds))
            without_stale_ends(kinds[key], clock.now_ms)
            trace.append(single_call(rng, kinds[key], key, clock.now_ms))
        clock.go_on(rng.choice(sorted(kind.scale_ms for kind in kinds.values())))
    return trace


def up_to_the_last_now(rng: random.Random, key: str, length: int) -> list[Words]:
    """Calls on a bucket or a window as the scripts take them: alone, in RL.ALL, previewed, or as refunds."""
    calls = random_trace(rng, length)
    trace: list[Words] = []
    for call in calls:
        name, _, *words = call.module_words(key)
        how = rng.random()
        if how < 0.3:
            words[words.index("COST")] = "REFUND"
            words += ["AT", rng.choice([0, HIGHEST, *(taken.now_ms for taken in calls)])] * (rng.random() < 0.5)
        if how < 0.5:
            trace.append([name, key, *words])
        elif how < 0.75:
            trace.append([f"{name}_RO", key, *words])
        else:
            trace.append(["RL.ALL", 1, key, call.algorithm, *words])
    return trace


Maker = Callable[[random.Random, str, int], list[Words]]


def of_kind(kind: str) -> Maker:
    return lambda rng, key, length: single_trace(rng, key, length, kind)


#: Traces on one key.
MAKERS: dict[str, Maker] = {kind: of_kind(kind) for kind in KINDS} | {"up to the last NOW": up_to_the_last_now}


# Side by side


def value_of(held: State) -> object:
    """A state as GET gives it, or as ZRANGE WITHSCORES does, by id."""
    return bytes_of(held) if isinstance(held, tuple) else held


def look(connection: RawConnection, key: bytes, held: State) -> object:
    """What the server holds, in the form of `value_of`."""
    if not isinstance(held, dict):
        return connection.call("GET", key)
    flat = connection.call("ZRANGE", key, 0, -1, "WITHSCORES")
    return {lease_id: float(end_ms) for lease_id, end_ms in zip(flat[::2], flat[1::2])}


@dataclass
class Ran:
    """What came of a batch of traces."""

    models: list[Model] = field(default_factory=list)
    #: what every call propagates, in the form of `propagated`
    expected: list[tuple] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by


def shown(trace: Iterable[Words]) -> str:
    return "\n".join(" ".join(word if isinstance(word, str) else repr(word) for word in words) for words in trace)


def side_by_side(connection: RawConnection, traces: list[list[Words]], ran: Ran) -> None:
    """Runs each trace through a server and a model of its own, and compares each reply. The keys of the traces
    have to be different ones."""
    replies = iter(connection.call_all([words for trace in traces for words in trace]))
    for trace in traces:
        model = Model()
        ran.models.append(model)
        for position, words in enumerate(trace):
            reply, expected = next(replies), model.call(*words)
            assert reply == expected, f"{reply!r}, model {expected!r}, by the last of\n{shown(trace[: position + 1])}"
            ran.expected += [tuple(command) for command in model.written]
            ran.count("calls")
            ran.count("denied", bool(model.denied))
            ran.count("repeats", model.is_repeat)
            ran.count("denied in the shadow", bool(model.shadow_denied))


Command = list[bytes]


def assert_propagated(stream: list[Command], ran: Ran, before_ms: int, after_ms: int) -> None:
    """The stream holds exactly what the model says, a deadline of each state by the server's clock, and of leases
    only PEXPIREAT besides."""
    rest = [command for command in stream if command[0] != b"PEXPIREAT"]
    for number, expected in enumerate(ran.expected):
        assert number < len(rest), f"not propagated: {expected}"
        name, key, *words = expected
        command = rest[number]
        assert command[:2] == [name.encode(), key], f"{command}, model {expected}"
        if name == "SET":
            state, ttl_ms = words
            assert command[2] == value_of(state), f"{command}, model {expected}"
            if ttl_ms is None:
                assert len(command) == 3, f"{command}, model {expected}"
            else:
                assert command[3] == b"PXAT" and len(command) == 5, command
                assert before_ms <= int(command[4]) - ttl_ms <= after_ms, f"{command}, model {expected}"
        elif name == "ZADD":
            assert [float(command[2]), command[3]] == [float(words[0]), words[1]], f"{command}, model {expected}"
        else:
            assert command[2:] == words, f"{command}, model {expected}"
    assert len(rest) == len(ran.expected), f"propagated besides: {rest[len(ran.expected)]}"


def assert_held(connection: RawConnection, ran: Ran, before_ms: int, after_ms: int) -> None:
    """Each key holds what the model says, to the bit, and lives as long."""
    held = {key: (state, model) for model in ran.models for key, state in model.limiters.items()}
    assert connection.call("DBSIZE") == len(held)
    for key, (state, model) in held.items():
        assert look(connection, key, state) == value_of(state), key
        deadline_ms, ttl_ms = connection.call("PEXPIRETIME", key), model.ttls_ms[key]
        if ttl_ms is None:
            assert deadline_ms == -1, key
        elif isinstance(state, dict):
            assert deadline_ms - ttl_ms >= before_ms, key
        else:
            assert before_ms <= deadline_ms - ttl_ms <= after_ms, key


def run_batch(connection: RawConnection, stream: ReplicaStream, traces: list[list[Words]]) -> Ran:
    """Replies, propagated commands, states and deadlines of the traces, all as the model says."""
    connection.call("FLUSHALL")
    stream.commands()
    ran = Ran()
    before_ms = server_ms(connection) - CLOCK_SLACK_MS
    side_by_side(connection, traces, ran)
    after_ms = server_ms(connection) + CLOCK_SLACK_MS
    assert_propagated(stream.commands(), ran, before_ms, after_ms)
    assert_held(connection, ran, before_ms, after_ms)
    return ran


def batches(rng: random.Random, maker: Maker, calls: int, length: int, traces: int) -> Iterable[list[list[Words]]]:
    """Traces of `length` calls, some at a time, of `calls` in all."""
    for _ in range(max(1, calls // (length * traces))):
        yield [maker(rng, f"k{number}", length) for number in range(traces)]


# What a server knows that was told only what is propagated


def told(states: dict[bytes, State], written: Iterable[tuple]) -> None:
    """Carries out what the model says is propagated, as any server would."""
    for name, key, *words in written:
        if name == "SET":
            states[key] = words[0]
            continue
        leases = dict(states.get(key) or {})
        if name == "ZADD":
            leases[words[1]] = float(words[0])
        elif name == "ZREM":
            for lease_id in words:
                leases.pop(lease_id, None)
        else:
            assert name == "ZREMRANGEBYSCORE", name
            leases = {lease_id: end_ms for lease_id, end_ms in leases.items() if end_ms > int(words[1])}
        if leases:
            states[key] = leases
        else:
            states.pop(key, None)


def assert_states(connection: RawConnection, states: dict[bytes, State]) -> None:
    """The server holds exactly these keys, to the bit, and each has a deadline that it has to have."""
    assert connection.call("DBSIZE") == len(states)
    for key, held in states.items():
        assert look(connection, key, held) == value_of(held), key
