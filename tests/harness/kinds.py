"""Every kind of limiter, and the commands on them, in plain Python.

Written from docs/design.md alone and made to be evidently right, not fast: it never looks at the module. A Python
float is an IEEE double as in the module and in Lua; the operations appear in the design's order.

    model = Model()
    model.call("RL.TOKENBUCKET", "k", "10", "0.5", "COST", "2", "NOW", "1751662800000")
    model.limiters[b"k"]        # the state: a Bucket, Window, Count or Leases of state.py
    model.written               # what the last call propagates, but for the deadlines of leases
    model.ttls_ms[b"k"]         # how long the key lives by the server's clock, None if for ever

NOW has to be given: a model has no clock.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from .model import LATEST_TIME, NEVER, AtLeast, ceil, floor, reported, smallest, whole
from .model import SlidingWindow as WindowArithmetic
from .model import TokenBucket as BucketArithmetic
from .periods import UNITS, Period
from .state import MAGIC, VERSION, Bucket, Window

LONGEST_TTL_MS = 36_500 * 86_400_000
SLACK_MS = 60_000
DEEPEST_DEBT = -(2.0**53)
COST, FORCE, REFUND = "COST", "FORCE", "REFUND"


class Count(NamedTuple):
    """What was counted in a quota's period of `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    count: float


QUOTA_KIND = b"Q"
QUOTA_FORMAT = "<2sBcqqd"
QUOTA_BYTES = 28


def count_bytes(start_ms: int, end_ms: int, count: float) -> bytes:
    return struct.pack(QUOTA_FORMAT, MAGIC, VERSION, QUOTA_KIND, start_ms, end_ms, count)


def read_count(data: bytes) -> Count:
    assert len(data) == QUOTA_BYTES, data
    magic, version, kind, *fields = struct.unpack(QUOTA_FORMAT, data)
    assert (magic, version, kind) == (MAGIC, VERSION, QUOTA_KIND), data
    return Count(*fields)


#: When each lease ends, by id.
Leases = dict[bytes, float]
State = Bucket | Window | Count | Leases | None


class Refused(Exception):
    """The call is an error."""


@dataclass(frozen=True)
class Request:
    """What a call asks a limiter for."""

    how: str = COST
    amount: float = 1.0
    #: REFUND AT
    at_ms: int | None = None
    #: COST ATLEAST
    at_least: int | None = None
    max_wait_ms: int | None = None
    #: CONCURRENCY
    lease_id: bytes = b""
    is_release: bool = False
    must_be_live: bool = False

    @property
    def least(self) -> "Request":
        """The same call for the least that it accepts."""
        return self if self.at_least is None else replace(self, amount=float(self.at_least))


@dataclass(frozen=True)
class Decision:
    """What a call on one key comes to, if it is made alone."""

    allowed: bool
    #: what is left behind
    state: State
    remaining: int
    granted: int = 0
    #: how long to wait before acting, although the call is allowed
    wait_ms: int = 0
    #: the commands that are propagated, without key and deadlines
    written: tuple[tuple, ...] = ()


def seconds_of(ms: int) -> int:
    """Milliseconds rounded up; -1 stays."""
    return -(-ms // 1000) if ms >= 0 else ms


def grants(allows: Callable[[int], bool], cost: float, at_least: int) -> int:
    """The largest whole number from `at_least` to `cost` that is allowed; 0 if there is none."""
    if not allows(at_least):
        return 0
    denied = smallest(lambda amount: not allows(amount), at_least, int(cost))
    return int(cost) if denied is None else denied - 1


class Rule:
    """One kind with the parameters of a call.

    Replies are made of the state that the call leaves behind, or of the one that it leaves untouched.
    """

    def decide(self, state: State, request: Request, now_ms: int) -> Decision:
        raise NotImplementedError

    def remaining(self, state: State, now_ms: int) -> int:
        raise NotImplementedError

    def reset_after_ms(self, state: State, now_ms: int) -> int:
        raise NotImplementedError

    def retry_after_ms(self, state: State, request: Request, now_ms: int) -> int | AtLeast:
        """Of a denied call."""
        raise NotImplementedError

    def reset_at(self, state: State, now_ms: int) -> int:
        return reported(seconds_of(now_ms + self.reset_after_ms(state, now_ms)))

    def retry_after(self, state: State, request: Request, now_ms: int) -> int:
        return seconds_of(self.retry_after_ms(state, request, now_ms))

    def ttl_ms(self, state: State, now_ms: int) -> int | None:
        """How long the key lives after a write, by the server's clock."""
        raise NotImplementedError


@dataclass(frozen=True)
class TokenBucket(Rule):
    capacity: float
    refill_rate: float

    @property
    def _arithmetic(self) -> BucketArithmetic:
        return BucketArithmetic(self.capacity, self.refill_rate)

    def refilled(self, state: Bucket | None, now_ms: int) -> float:
        return self._arithmetic.refilled(state, now_ms)

    def as_of(self, state: Bucket | None, now_ms: int) -> Bucket:
        return Bucket(self.refilled(state, now_ms), now_ms)

    def until(self, state: Bucket | None, now_ms: int, tokens: float) -> int | None:
        """How long until so many tokens are there; None if never."""
        if self.refilled(state, now_ms) >= tokens:
            return 0
        if tokens > self.capacity or self.refill_rate == 0:
            return None
        wait_ms = smallest(lambda d: self.refilled(state, now_ms + d) >= tokens, 1, LATEST_TIME)
        return LATEST_TIME if wait_ms is None else wait_ms

    def allows(self, state: Bucket | None, request: Request, now_ms: int) -> bool:
        if request.how != COST:
            return True
        tokens = self.refilled(state, now_ms)
        if tokens >= request.amount or not request.max_wait_ms:
            return tokens >= request.amount
        can_wait = request.amount <= self.capacity and self.refill_rate > 0
        return can_wait and self.refilled(Bucket(tokens, now_ms), now_ms + request.max_wait_ms) >= request.amount

    def decide(self, state: Bucket | None, request: Request, now_ms: int) -> Decision:
        tokens = self.refilled(state, now_ms)
        granted, wait_ms = 0, 0
        if request.at_least is not None:
            granted = grants(lambda amount: tokens >= amount, request.amount, request.at_least)
            request = replace(request, amount=float(granted or request.at_least))
        allowed = self.allows(state, request, now_ms)
        if request.how == REFUND:
            left = Bucket(min(self.capacity, tokens + request.amount), now_ms)
            if state is None:
                return Decision(True, None, whole(self.capacity))
            return Decision(True, left, whole(left.tokens), written=_set(left) if left.tokens != tokens else ())
        if not allowed:
            # A full bucket and no key answer alike, so a denial creates none.
            return Decision(False, None if state is None else Bucket(tokens, now_ms), whole(tokens))
        if request.how == COST:
            wait_ms = self.until(Bucket(tokens, now_ms), now_ms, request.amount)
        left = Bucket(max(DEEPEST_DEBT, tokens - request.amount), now_ms)
        return Decision(True, left, whole(left.tokens), granted, wait_ms, _set(left))

    def remaining(self, state: Bucket | None, now_ms: int) -> int:
        return whole(self.refilled(state, now_ms))

    def reset_after_ms(self, state: Bucket | None, now_ms: int) -> int:
        wait_ms = self.until(state, now_ms, self.capacity)
        return NEVER if wait_ms is None else wait_ms

    def reset_at(self, state: Bucket | None, now_ms: int) -> int:
        if self.refill_rate == 0:
            return 0
        return reported(ceil(float(now_ms) / 1000 + (self.capacity - self.refilled(state, now_ms)) / self.refill_rate))

    def retry_after_ms(self, state: Bucket | None, request: Request, now_ms: int) -> int:
        request = request.least
        if request.amount > self.capacity or self.refill_rate == 0:
            return NEVER
        wait_ms = smallest(lambda d: self.allows(state, request, now_ms + d), 1, LATEST_TIME)
        return LATEST_TIME if wait_ms is None else wait_ms

    def retry_after(self, state: Bucket | None, request: Request, now_ms: int) -> int:
        if request.max_wait_ms is not None:
            return seconds_of(self.retry_after_ms(state, request, now_ms))
        if self.refill_rate == 0:
            return 0
        return reported(ceil((request.least.amount - self.refilled(state, now_ms)) / self.refill_rate))

    def ttl_ms(self, state: Bucket, now_ms: int) -> int | None:
        if self.refill_rate == 0:
            return None
        full_after_s = ceil((self.capacity - min(state.tokens, 0.0)) / self.refill_rate)
        return int(min(full_after_s * 1000 + SLACK_MS, LONGEST_TTL_MS))


@dataclass(frozen=True)
class SlidingWindow(Rule):
    limit: float
    window_s: float

    @property
    def _arithmetic(self) -> WindowArithmetic:
        return WindowArithmetic(self.limit, self.window_s)

    def index(self, now_ms: int) -> int:
        return self._arithmetic.index(now_ms)

    def as_of(self, state: Window | None, now_ms: int) -> Window:
        return self._arithmetic.rolled_over(state, now_ms)

    def estimate(self, state: Window | None, now_ms: int) -> float:
        return self._arithmetic.estimate(state, now_ms)

    def allows(self, state: Window | None, request: Request, now_ms: int) -> bool:
        return request.how != COST or not self.estimate(state, now_ms) + request.amount > self.limit

    def decide(self, state: Window | None, request: Request, now_ms: int) -> Decision:
        estimate, before = self.estimate(state, now_ms), self.as_of(state, now_ms)
        granted = 0
        if request.at_least is not None:
            granted = grants(lambda amount: not estimate + amount > self.limit, request.amount, request.at_least)
            request = replace(request, amount=float(granted or request.at_least))
        if request.how == REFUND:
            left = self._given_back(before, request, now_ms)
            remaining = whole(self.limit - self.estimate(left, now_ms))
            if state is None:
                return Decision(True, None, remaining)
            return Decision(True, left, remaining, written=_set(left) if left != before else ())
        if not self.allows(state, request, now_ms):
            # Zero counters and no key answer alike, so a denial creates none.
            return Decision(False, None if state is None else before, whole(self.limit - estimate))
        left = before._replace(curr=before.curr + request.amount)
        return Decision(True, left, whole(self.limit - (estimate + request.amount)), granted, 0, _set(left))

    def _given_back(self, state: Window, request: Request, now_ms: int) -> Window:
        """Never below 0: from the counter of the time that is said, or else `curr` first, then `prev`."""
        amount = request.amount
        curr, prev = max(0.0, state.curr - amount), max(0.0, state.prev - amount)
        if request.at_ms is None:
            beyond_curr = max(0.0, amount - state.curr)
            return state._replace(curr=curr, prev=max(0.0, state.prev - beyond_curr))
        index = self.index(min(request.at_ms, now_ms))
        if index == state.stored:
            return state._replace(curr=curr)
        if index == state.stored - 1:
            return state._replace(prev=prev)
        return state

    def remaining(self, state: Window | None, now_ms: int) -> int:
        return whole(self.limit - self.estimate(state, now_ms))

    def reset_after_ms(self, state: Window | None, now_ms: int) -> int:
        return self._arithmetic.reset_after_ms(state, now_ms)

    def reset_at(self, state: Window | None, now_ms: int) -> int:
        window_start = float(self.index(now_ms)) * self.window_s
        return reported(floor(window_start + self.window_s))

    def retry_after_ms(self, state: Window | None, request: Request, now_ms: int) -> int | AtLeast:
        # The arithmetic looks at the amount alone.
        return self._arithmetic.retry_after_ms(state, _Take(request.least.amount), now_ms)

    def retry_after(self, state: Window | None, request: Request, now_ms: int) -> int:
        elapsed = float(now_ms) / 1000 - float(self.index(now_ms)) * self.window_s
        return reported(ceil(self.window_s - elapsed))

    def ttl_ms(self, state: Window, now_ms: int) -> int:
        return int(min((ceil(2 * self.window_s)) * 1000 + SLACK_MS, LONGEST_TTL_MS))


@dataclass(frozen=True)
class _Take:
    amount: float
    is_refund: bool = False


@dataclass(frozen=True)
class Quota(Rule):
    limit: float
    period: Period

    def opened(self, state: Count | None, now_ms: int) -> Count | None:
        """The period that is open, whatever period the call states and wherever the clock went."""
        return state if state is not None and now_ms < state.end_ms else None

    def counted(self, state: Count | None, now_ms: int) -> float:
        period = self.opened(state, now_ms)
        return 0.0 if period is None else period.count

    def decide(self, state: Count | None, request: Request, now_ms: int) -> Decision:
        period, count = self.opened(state, now_ms), self.counted(state, now_ms)
        granted = 0
        if request.how == REFUND:
            is_counted = period is not None and (request.at_ms is None or request.at_ms >= period.start_ms)
            left = period._replace(count=max(0.0, count - request.amount)) if is_counted else state
            written = _set(left) if left != state else ()
            return Decision(True, left, self.remaining(left, now_ms), written=written)
        if request.at_least is not None:
            granted = grants(lambda amount: count + amount <= self.limit, request.amount, request.at_least)
            request = replace(request, amount=float(granted or request.at_least))
        if request.how == COST and not count + request.amount <= self.limit:
            return Decision(False, state, self.remaining(state, now_ms))
        if request.amount == 0:
            return Decision(True, state, self.remaining(state, now_ms), granted)
        start_ms, end_ms = self.period.opened_at(now_ms) if period is None else (period.start_ms, period.end_ms)
        left = Count(start_ms, end_ms, count + request.amount)
        return Decision(True, left, self.remaining(left, now_ms), granted, 0, _set(left))

    def remaining(self, state: Count | None, now_ms: int) -> int:
        return whole(self.limit - self.counted(state, now_ms))

    def reset_after_ms(self, state: Count | None, now_ms: int) -> int:
        return reported(state.end_ms - now_ms) if self.counted(state, now_ms) > 0 else 0

    def retry_after_ms(self, state: Count | None, request: Request, now_ms: int) -> int:
        return NEVER if request.least.amount > self.limit else reported(state.end_ms - now_ms)

    def ttl_ms(self, state: Count, now_ms: int) -> int:
        return min(state.end_ms - now_ms + SLACK_MS, LONGEST_TTL_MS)


@dataclass(frozen=True)
class Concurrency(Rule):
    limit: int
    lease_ms: int

    @staticmethod
    def live(state: Leases | None, now_ms: int) -> Leases:
        return {lease_id: end_ms for lease_id, end_ms in (state or {}).items() if end_ms > now_ms}

    def decide(self, state: Leases | None, request: Request, now_ms: int) -> Decision:
        live = self.live(state, now_ms)
        is_live = request.lease_id in live
        if request.must_be_live and not is_live:
            return self._denied(state, now_ms)
        # What is dead goes first.
        written = [] if live == (state or {}) else [("ZREMRANGEBYSCORE", b"-inf", b"%d" % now_ms)]
        if request.is_release:
            if is_live:
                del live[request.lease_id]
                written.append(("ZREM", request.lease_id))
        elif is_live or len(live) < self.limit:
            end_ms = max(live.get(request.lease_id, 0), now_ms + self.lease_ms)
            if live.get(request.lease_id) != end_ms:
                live[request.lease_id] = end_ms
                written.append(("ZADD", b"%d" % end_ms, request.lease_id))
        else:
            return self._denied(state, now_ms)
        left = live or None
        return Decision(True, left, self.remaining(left, now_ms), written=tuple(written))

    def _denied(self, state: Leases | None, now_ms: int) -> Decision:
        return Decision(False, state, self.remaining(state, now_ms))

    def remaining(self, state: Leases | None, now_ms: int) -> int:
        return max(0, self.limit - len(self.live(state, now_ms)))

    def reset_after_ms(self, state: Leases | None, now_ms: int) -> int:
        return reported(max(self.live(state, now_ms).values(), default=now_ms) - now_ms)

    def retry_after_ms(self, state: Leases | None, request: Request, now_ms: int) -> int:
        if request.must_be_live or self.limit == 0:
            return NEVER
        ends_ms = sorted(self.live(state, now_ms).values())
        return reported(ends_ms[len(ends_ms) - self.limit] - now_ms)

    def ttl_ms(self, state: Leases, now_ms: int) -> int:
        """The least: the deadline is not moved with each call."""
        return min(int(max(state.values())) - now_ms + SLACK_MS, LONGEST_TTL_MS)


def _set(state: State) -> tuple[tuple, ...]:
    return (("SET", state),)


KINDS: dict[str, type[Rule]] = {
    "TOKENBUCKET": TokenBucket,
    "SLIDING": SlidingWindow,
    "QUOTA": Quota,
    "CONCURRENCY": Concurrency,
}


# The commands


@dataclass(frozen=True)
class Asked:
    """A rule of a call with what it asks for."""

    rule: Rule
    request: Request
    is_shadow: bool = False

    @property
    def acquires(self) -> bool:
        """Whether it has a say in whether a call is a repeat."""
        return isinstance(self.rule, Concurrency) and not self.request.is_release and not self.is_shadow


@dataclass(frozen=True)
class Options:
    """What appears once in a call."""

    now_ms: int
    in_ms: bool = False
    max_wait_ms: int | None = None
    lease_id: bytes | None = None
    must_be_live: bool = False


class Model:
    """Limiters by key, and the commands on them."""

    def __init__(self) -> None:
        self.limiters: dict[bytes, Bucket | Window | Count | Leases] = {}
        #: (SET, key, state, ttl in ms), (ZADD, key, end, id), (ZREM, key, id ...), (ZREMRANGEBYSCORE, key, -inf, now)
        self.written: list[tuple] = []
        self.ttls_ms: dict[bytes, int | None] = {}
        #: whether the last call repeated an earlier one
        self.is_repeat = False
        #: the keys whose rule denied the last call, and those whose rule only tried to
        self.denied: list[bytes] = []
        self.shadow_denied: list[bytes] = []

    def call(self, command: str, *arguments: object) -> object:
        """The reply of `command`, which has to be well-formed and to say NOW."""
        words = [_text(argument) for argument in arguments]
        name, _, form = command.upper().removeprefix("RL.").partition("_")
        self.written, self.is_repeat, self.denied, self.shadow_denied = [], False, [], []
        if name == "RELEASE":
            return self._release(*map(_bytes, words))
        is_preview = form == "RO"
        if name == "ALL":
            count = int(words[0])
            keys, rest = [_bytes(word) for word in words[1 : count + 1]], words[count + 1 :]
            asked = []
            for _ in keys:
                rule, rest = read_rule(rest)
                asked.append(rule)
            options = read_options(rest)
            return self._call_all(keys, with_options(asked, options), options, is_preview)
        key, rest = _bytes(words[0]), words[1:]
        asked, rest = read_rule([name, *rest], is_alone=True)
        options = read_options(rest)
        (asked,) = with_options([asked], options)
        return self._call_one(key, asked, options, is_preview)

    def _release(self, key: bytes, *lease_ids: bytes) -> int:
        leases = self.limiters.get(key, {})
        held = [lease_id for lease_id in dict.fromkeys(lease_ids) if lease_id in leases]
        self._keep(key, {lease_id: end_ms for lease_id, end_ms in leases.items() if lease_id not in held} or None)
        if held:
            self.written = [("ZREM", key, *held)]
        return len(held)

    def _call_one(self, key: bytes, asked: Asked, options: Options, is_preview: bool) -> list:
        decision = asked.rule.decide(self.limiters.get(key), asked.request, options.now_ms)
        reply = self._preview(key, asked, decision, options) if is_preview else self._commit(key, asked, decision, options)
        if not decision.allowed:
            self.denied = [key]
        return reply + [decision.granted] * (asked.request.at_least is not None)

    def _call_all(self, keys: list[bytes], asked: list[Asked], options: Options, is_preview: bool) -> list:
        pairs = list(zip(keys, asked))
        decisions = [one.rule.decide(self.limiters.get(key), one.request, options.now_ms) for key, one in pairs]
        if self._repeats(pairs, options):
            return [1, *(self._repeat(key, one, options, is_preview) for key, one in pairs)]
        triples = list(zip(keys, asked, decisions))
        self.denied = [key for key, one, decision in triples if not decision.allowed and not one.is_shadow]
        self.shadow_denied = [key for key, one, decision in triples if not decision.allowed and one.is_shadow]
        replies = []
        for key, one, decision in triples:
            takes = not is_preview and not self.denied and (decision.allowed or not one.is_shadow)
            replies.append((self._commit if takes else self._preview)(key, one, decision, options))
        return [int(not self.denied), *replies]

    def _repeats(self, pairs: list[tuple[bytes, Asked]], options: Options) -> bool:
        live = [
            options.lease_id in one.rule.live(self.limiters.get(key), options.now_ms) for key, one in pairs if one.acquires
        ]
        return bool(live) and all(live)

    def _repeat(self, key: bytes, asked: Asked, options: Options, is_preview: bool) -> list:
        """Nothing is taken; a lease that is live is renewed."""
        self.is_repeat = True
        state, now_ms = self.limiters.get(key), options.now_ms
        if isinstance(asked.rule, Concurrency) and not asked.request.is_release and not is_preview:
            if options.lease_id in asked.rule.live(state, now_ms):
                return self._commit(key, asked, asked.rule.decide(state, asked.request, now_ms), options)
        wait_ms = 0
        if isinstance(asked.rule, TokenBucket) and asked.request.max_wait_ms is not None:
            until_ms = asked.rule.until(state, now_ms, 0.0)
            wait_ms = NEVER if until_ms is None else until_ms
        unasked = Decision(True, state, asked.rule.remaining(state, now_ms), wait_ms=wait_ms)
        return self._preview(key, asked, unasked, options)

    def _commit(self, key: bytes, asked: Asked, decision: Decision, options: Options) -> list:
        """Keeps what the call leaves behind, and the reply of it."""
        self._keep(key, decision.state)
        if decision.written or isinstance(decision.state, Bucket | Window):
            # What is kept in memory alone moves the deadline there too.
            state = decision.state
            self.ttls_ms[key] = None if state is None else asked.rule.ttl_ms(state, options.now_ms)
        for name, *rest in decision.written:
            self.written.append((name, key, *rest, self.ttls_ms[key]) if name == "SET" else (name, key, *rest))
        return _reply(asked, decision, decision.state, decision.remaining, options)

    def _preview(self, key: bytes, asked: Asked, decision: Decision, options: Options) -> list:
        """The reply of a decision that is not carried out."""
        state = self.limiters.get(key)
        return _reply(asked, decision, state, asked.rule.remaining(state, options.now_ms), options)

    def _keep(self, key: bytes, state: State) -> None:
        if state is None:
            self.limiters.pop(key, None)
            self.ttls_ms.pop(key, None)
        else:
            self.limiters[key] = state


def _reply(asked: Asked, decision: Decision, shown: State, remaining: int, options: Options) -> list:
    rule, now_ms = asked.rule, options.now_ms
    reset = rule.reset_after_ms(shown, now_ms) if options.in_ms else rule.reset_at(shown, now_ms)
    if decision.allowed:
        retry = decision.wait_ms if options.in_ms else seconds_of(decision.wait_ms)
    else:
        retry = (rule.retry_after_ms if options.in_ms else rule.retry_after)(shown, asked.request, now_ms)
    return [int(decision.allowed), remaining, reset, retry]


def ms_of(seconds: str) -> int:
    """Seconds of an argument as whole milliseconds."""
    return math.floor(float(seconds) * 1000 + 0.5)


def read_period(words: list[str]) -> tuple[Period, list[str]]:
    word, rest = words[0].upper(), words[1:]
    if word == "UNTIL":
        return Period(until_ms=int(rest[0])), rest[1:]
    if word in UNITS:
        return Period(unit=word), rest
    return Period(length_ms=ms_of(word)), rest


def read_rule(words: list[str], is_alone: bool = False) -> tuple[Asked, list[str]]:
    """The rule that comes first, and what follows it. In a command with one key (`is_alone`) what belongs to the
    rule may appear among its options."""
    name, rest = words[0].upper(), words[2:]
    period = None
    if name == "QUOTA":
        period, rest = read_period(rest)
    elif name == "CONCURRENCY":
        rule = Concurrency(int(words[1]), ms_of(words[2]))
        rest = rest[1:]
    else:
        rule = {"TOKENBUCKET": TokenBucket, "SLIDING": SlidingWindow}[name](float(words[1]), float(words[2]))
        rest = rest[1:]
    request, is_shadow, options = Request(), False, []
    while rest:
        keyword = rest[0].upper()
        if keyword in (COST, FORCE, REFUND) and name != "CONCURRENCY":
            request, rest = replace(request, how=keyword, amount=float(rest[1])), rest[2:]
        elif keyword == "AT":
            request, rest = replace(request, at_ms=int(rest[1])), rest[2:]
        elif keyword == "ATLEAST":
            request, rest = replace(request, at_least=int(rest[1])), rest[2:]
        elif keyword == "ANCHOR":
            period, rest = replace(period, anchor_ms=int(rest[1])), rest[2:]
        elif keyword == "RELEASE":
            request, rest = replace(request, is_release=True), rest[1:]
        elif keyword == "SHADOW":
            is_shadow, rest = True, rest[1:]
        elif not is_alone:
            break
        else:
            taken = 1 if keyword in ("MS", "XX") else 2
            options, rest = options + rest[:taken], rest[taken:]
    if name == "QUOTA":
        rule = Quota(float(words[1]), period)
    return Asked(rule, request, is_shadow), options + rest


def read_options(words: list[str]) -> Options:
    options = Options(now_ms=-1)
    while words:
        keyword = words[0].upper()
        if keyword == "NOW":
            options, words = replace(options, now_ms=int(words[1])), words[2:]
        elif keyword == "MAXWAIT":
            options, words = replace(options, max_wait_ms=ms_of(words[1])), words[2:]
        elif keyword == "ID":
            options, words = replace(options, lease_id=_bytes(words[1])), words[2:]
        elif keyword == "XX":
            options, words = replace(options, must_be_live=True), words[1:]
        else:
            assert keyword == "MS", words
            options, words = replace(options, in_ms=True), words[1:]
    assert options.now_ms >= 0, "a model has no clock: say NOW"
    return options


def with_options(asked: list[Asked], options: Options) -> list[Asked]:
    """The rules with what the options say to each of them."""
    has_leases = any(isinstance(one.rule, Concurrency) for one in asked)
    if has_leases != (options.lease_id is not None) or (options.must_be_live and not has_leases):
        raise Refused("ID and CONCURRENCY go together")
    result = []
    for one in asked:
        request = one.request
        if isinstance(one.rule, Quota) and one.rule.period.until_ms is not None:
            if one.rule.period.until_ms <= options.now_ms:
                raise Refused("UNTIL has passed")
        if isinstance(one.rule, TokenBucket) and request.how == COST:
            request = replace(request, max_wait_ms=options.max_wait_ms)
        if isinstance(one.rule, Concurrency):
            request = replace(request, lease_id=options.lease_id, must_be_live=options.must_be_live)
        result.append(replace(one, request=request))
    return result


def _bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")


def _text(word: object) -> str:
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)
