"""Random traces of calls, run through the module and through the Lua reference scripts side by side."""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from . import scripts, state
from .clock import TODAY_MS, Clock
from .connection import RawConnection, Word
from .kinds import SlidingWindow
from .model import Model

HIGHEST = 2**53
SHORTEST_WINDOW_S = 0.001
LONGEST_WINDOW_S = HIGHEST / 1000
TTL_TOLERANCE_MS = 1000
NO_KEY = -2
CALLS_A_TRACE = 60

NICE_AMOUNTS = ["0", "0.1", ".5", "1", "2.5", "3", "5", "10", "60", "100", "1000", "1e6", str(HIGHEST)]
NICE_RATES = ["0", "1e-9", "0.001", "0.016666666666666666", "0.1", "0.3", "0.5", "1", "2.5", "3", "10", "1500", "1e6"]
NICE_WINDOWS = ["0.001", "0.0015", "0.1", "0.25", "0.3", "1", "2.5", "7", "10", "60", "3600", "86400", "2592000", "9e12"]
NICE_COSTS = ["0", "0.1", "0.25", ".5", "1", "1", "1", "1.5", "2", "2.5", "3", "1e-3"]


@dataclass(frozen=True)
class Call:
    """One call on a trace's one key, its numbers as the words that are sent."""

    algorithm: str
    #: capacity or limit
    first: str
    #: refill_rate or window
    second: str
    cost: str
    now_ms: int

    @property
    def scripted(self) -> "Scripted":
        return SCRIPTED[self.algorithm]

    def window_index(self) -> int:
        return SlidingWindow(float(self.first), float(self.second)).index(self.now_ms)

    def module_words(self, key: str) -> list[Word]:
        return [f"RL.{self.algorithm}", key, self.first, self.second, "COST", self.cost, "NOW", str(self.now_ms)]

    def script_arguments(self) -> list[Word]:
        return [self.first, self.second, self.scripted.now(self.now_ms), self.cost]

    def script_keys(self, key: str) -> list[str]:
        return [key + suffix for suffix in self.scripted.suffixes]

    def script_words(self, key: str) -> list[Word]:
        keys = self.script_keys(key)
        return ["EVALSHA", self.scripted.script.sha1, len(keys), *keys, *self.script_arguments()]

    def state_words(self, key: str) -> list[Word]:
        """Asks for what the script stored."""
        name, *fields = self.scripted.stored
        return [name, *self.script_keys(key), *fields]


@dataclass(frozen=True)
class Scripted:
    """A kind of limiter as its script knows it."""

    script: scripts.Script
    #: of its keys
    suffixes: tuple[str, ...]
    now: Callable[[int], str]
    #: the command that asks for what is stored, and its words behind the keys; what it gives, as the module stores it
    stored: tuple[str, ...]
    state: Callable[[list[bytes]], bytes]
    #: the second parameter: nice ones, and the ends of the others
    nice: list[str]
    ends: tuple[float, float]
    #: the time in which something happens: a window, or a cost refilled
    scale_ms: Callable[[Call], float]
    #: whether the second call tells what the script stored at the first, which was denied, from a missing key
    tells_apart: Callable[[Call, Call], bool]


def _bucket_state(values: list[bytes]) -> bytes:
    tokens, last_ms = values
    return state.bucket_bytes(float(tokens), int(last_ms))


def _window_state(values: list[bytes]) -> bytes:
    curr, prev, (index, window_s) = values[0], values[1], values[2].split()
    return state.window_bytes(float(window_s), int(float(index)), float(prev), float(curr))


def _refill_ms(call: Call) -> float:
    refill_rate = float(call.second)
    return 1000 * max(float(call.cost), 0.1) / refill_rate if refill_rate > 0 else 1000.0


SCRIPTED = {
    "TOKENBUCKET": Scripted(
        script=scripts.TOKEN_BUCKET,
        suffixes=("",),
        now=str,
        stored=("HMGET", "tokens", "last_refill_ms"),
        state=_bucket_state,
        nice=NICE_RATES,
        ends=(1e-6, 1e6),
        scale_ms=_refill_ms,
        tells_apart=lambda call, later: float(later.first) > float(call.first),
    ),
    "SLIDING": Scripted(
        script=scripts.SLIDING_WINDOW,
        suffixes=(":curr", ":prev", ":index"),
        # As a double in seconds, printed so that it is read back as it was.
        now=lambda ms: repr(ms / 1000),
        stored=("MGET",),
        state=_window_state,
        nice=NICE_WINDOWS,
        ends=(SHORTEST_WINDOW_S, 1e8),
        scale_ms=lambda call: float(call.second) * 1000,
        tells_apart=lambda call, later: call.second == later.second and later.window_index() < call.window_index(),
    ),
}

Trace = list[Call]


# Making traces


def log_uniform(rng: random.Random, low: float, high: float) -> str:
    """A number between `low` and `high` with every digit it can have, any order of magnitude alike."""
    exponent = rng.uniform(math.log(low), math.log(high))
    return repr(min(max(math.exp(exponent), low), high))


def _amount(rng: random.Random) -> str:
    return rng.choice(NICE_AMOUNTS) if rng.random() < 0.7 else log_uniform(rng, 1e-3, 1e9)


def _second(rng: random.Random, scripted: Scripted) -> str:
    return rng.choice(scripted.nice) if rng.random() < 0.7 else log_uniform(rng, *scripted.ends)


def _cost(rng: random.Random, first: str) -> str:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(NICE_COSTS)
    if kind < 0.8:
        return repr(float(first) * rng.random())
    if kind < 0.87:
        return first
    if kind < 0.93:
        return log_uniform(rng, 1e-6, 1e6)
    return repr(min(float(first) * 1.5 + 1, float(HIGHEST)))


def random_trace(rng: random.Random, length: int = CALLS_A_TRACE, algorithms: Sequence[str] = tuple(SCRIPTED)) -> Trace:
    """Calls on one key: parameters that change now and then, a clock that stands still, jumps and,
    in some traces, goes back."""
    algorithm = rng.choice(algorithms)
    changes = rng.choice([0.0, 0.0, 0.05, 0.3])
    now_ms = rng.choice([TODAY_MS, TODAY_MS + rng.randrange(10**10), rng.randrange(10**6), HIGHEST - rng.randrange(10**6)])
    clock = Clock(rng, now_ms, rng.random() < 0.4, HIGHEST)
    first, second = _amount(rng), _second(rng, SCRIPTED[algorithm])
    trace: Trace = []
    for _ in range(length):
        if rng.random() < changes:
            first = _amount(rng)
        if rng.random() < changes:
            second = _second(rng, SCRIPTED[algorithm])
        call = Call(algorithm, first, second, _cost(rng, first), clock.now_ms)
        trace.append(call)
        clock.go_on(call.scripted.scale_ms(call))
    return trace


def random_traces(rng: random.Random, calls: int) -> Iterable[Trace]:
    """Traces of `calls` calls in all."""
    while calls > 0:
        trace = random_trace(rng, min(CALLS_A_TRACE, calls))
        calls -= len(trace)
        yield trace


# Running them


@dataclass(frozen=True)
class Mismatch:
    """Where the two sides of a trace differ first."""

    trace: Trace
    position: int
    what: str


def leaves_no_key(trace: Trace) -> list[bool]:
    """For each call: whether the module has no key after it. A call that is denied on a missing key
    creates none, and everything else does."""
    is_missing = True
    result = []
    for call in trace:
        # A missing bucket holds its capacity, a missing window counts 0.
        is_missing = is_missing and float(call.cost) > float(call.first)
        result.append(is_missing)
    return result


def where_to_forget(trace: Trace) -> list[bool]:
    """For each call: whether the script has to forget what it stored, before the next call.

    After a denial on a missing key the module has nothing, and the script has a full bucket or counters of
    zero. These answer alike until the capacity is raised, or until time goes back to an earlier window.
    There, and only there, the two may differ."""
    pairs = zip(trace, trace[1:], leaves_no_key(trace))
    return [no_key and call.scripted.tells_apart(call, next_call) for call, next_call, no_key in pairs] + [False]


ScriptWords = Callable[[Call, str], list[Word]]


def compare(
    connection: RawConnection, traces: Sequence[Trace], script_words: ScriptWords = Call.script_words
) -> list[Mismatch]:
    """Runs each trace on its own keys through both sides, in one batch on an emptied server, and
    compares each reply, each ttl and the state at the end."""
    commands: list[Sequence[Word]] = [("FLUSHALL",)]
    for number, trace in enumerate(traces):
        module_key, script_key = f"m{number}", f"s{number}"
        for call, forgets in zip(trace, where_to_forget(trace)):
            commands.append(call.module_words(module_key))
            commands.append(script_words(call, script_key))
            commands.append(("PTTL", module_key))
            commands.append(("PTTL", call.script_keys(script_key)[-1]))
            if forgets:
                commands.append(("DEL", *call.script_keys(script_key)))
        commands.append(("GET", module_key))
        commands.append(trace[-1].state_words(script_key))

    replies = iter(connection.call_all(commands))
    next(replies)
    mismatches = []
    for trace in traces:
        found = None
        for position, (no_key, forgets) in enumerate(zip(leaves_no_key(trace), where_to_forget(trace))):
            by_module, by_script, module_ttl, script_ttl = (next(replies) for _ in range(4))
            if forgets:
                next(replies)
            if found:
                continue
            if by_module != by_script or not isinstance(by_module, list):
                found = Mismatch(trace, position, f"module {by_module!r}, script {by_script!r}")
            elif no_key and module_ttl != NO_KEY:
                found = Mismatch(trace, position, f"a denied call created a key (PTTL {module_ttl})")
            elif not no_key and not _ttls_agree(module_ttl, script_ttl):
                found = Mismatch(trace, position, f"PTTL: module {module_ttl}, script {script_ttl}")
        module_state, script_state = next(replies), next(replies)
        if not found and not leaves_no_key(trace)[-1]:
            its = trace[-1].scripted.state(script_state)
            if module_state != its:
                found = Mismatch(trace, len(trace) - 1, f"state: module {module_state!r}, script {its!r}")
        if found:
            mismatches.append(found)
    return mismatches


def _ttls_agree(module_ttl: object, script_ttl: object) -> bool:
    assert isinstance(module_ttl, int) and isinstance(script_ttl, int)
    if module_ttl < 0 or script_ttl < 0:
        return module_ttl == script_ttl
    return abs(module_ttl - script_ttl) <= TTL_TOLERANCE_MS


def model_mismatch(connection: RawConnection, trace: Trace) -> str | None:
    """As `compare`, with the Python model instead of the module, for one trace."""
    model = Model()
    commands: list[Sequence[Word]] = [("FLUSHALL",)]
    for call, forgets in zip(trace, where_to_forget(trace)):
        commands.append(call.script_words("s"))
        commands.append(call.state_words("s"))
        if forgets:
            commands.append(("DEL", *call.script_keys("s")))
    replies = iter(connection.call_all(commands))
    next(replies)
    for position, (call, no_key, forgets) in enumerate(zip(trace, leaves_no_key(trace), where_to_forget(trace))):
        by_script, script_state = next(replies), call.scripted.state(next(replies))
        if forgets:
            next(replies)
        by_model = model.call(*call.module_words("k"))
        held = model.limiters.get(b"k")
        if by_model != by_script or (held is None) != no_key or (held and state.bytes_of(held) != script_state):
            shown = f"model {by_model} {held}, script {by_script} {script_state!r}"
            return f"call {position}: {shown}\n{replayable(trace[: position + 1])}"
    return None


# Showing what went wrong


def replayable(trace: Trace) -> str:
    """The trace as commands for a shell, for an empty server with the module."""
    lines = ["redis-cli FLUSHALL"]
    for call, forgets in zip(trace, where_to_forget(trace)):
        script = call.scripted.script.path.relative_to(scripts.FOLDER.parent)
        lines.append(" ".join(map(str, ["redis-cli", *call.module_words("m")])))
        lines.append(" ".join(map(str, ["redis-cli", "--eval", script, *call.script_keys("s"), ",", *call.script_arguments()])))
        if forgets:
            lines.append(" ".join(["redis-cli", "DEL", *call.script_keys("s")]))
    return "\n".join(lines)


def explain(connection: RawConnection, mismatch: Mismatch, script_words: ScriptWords = Call.script_words) -> str:
    """The mismatch, without the calls before it that it does not need."""
    for position in reversed(range(mismatch.position)):
        trace = mismatch.trace[: mismatch.position + 1]
        for found in compare(connection, [trace[:position] + trace[position + 1 :]], script_words):
            mismatch = found
    trace = mismatch.trace[: mismatch.position + 1]
    return f"{mismatch.what}, after these {len(trace)} calls:\n{replayable(trace)}"
