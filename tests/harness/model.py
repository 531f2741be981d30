"""The arithmetic of the commands in plain Python.

Written from the design alone and made to be evidently right, not fast: it never looks at the module.
A Python float is an IEEE double as in the module and in Lua; the operations stand in the design's
order.

    model = Model()
    model.call("RL.TOKENBUCKET", "k", "10", "0.5", "COST", "2", "NOW", "1751662800000")
    model.limiters[b"k"]        # the state: a Bucket or a Window of state.py
    model.ttl_s                 # what the last call on a single key set: seconds, None for no ttl, KEPT

A `Model` answers calls as the commands do. NOW has to be given: a model has no clock.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .state import Bucket, Window

LATEST_TIME = 2**53 - 1
LONGEST_TTL_S = 36_500 * 86_400
NEVER = -1
# How many windows the model looks at, one by one, for a retry time after the clock went back.
MOST_WINDOWS = 5_000

State = Bucket | Window | None


class AtLeast:
    """A retry time that only has to be sufficient: equal to every number from `least` on."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other >= self.least

    def __repr__(self) -> str:
        return f"AtLeast({self.least})"


class Kept:
    """No ttl was set: the key is untouched, or was not created."""

    def __repr__(self) -> str:
        return "KEPT"


KEPT = Kept()


@dataclass(frozen=True)
class Request:
    """What a call wants: to take `amount`, or to give it back, to the counter of `at_ms` if that is said."""

    amount: float = 1.0
    is_refund: bool = False
    at_ms: int | None = None


@dataclass(frozen=True)
class Decision:
    """What a write call on one key comes to."""

    allowed: bool
    #: the state that it leaves behind
    state: State
    #: the four integers without MS
    reply: list[int]


def floor(number: float) -> float:
    return number if math.isinf(number) else math.floor(number)


def ceil(number: float) -> float:
    return number if math.isinf(number) else math.ceil(number)


def reported(time: float) -> int:
    """A time of a reply: whole, and saturated."""
    return int(min(time, LATEST_TIME))


def whole(remaining: float) -> int:
    """`remaining` of a reply: floored and never below 0."""
    return int(max(0, floor(remaining)))


def smallest(is_so: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest of low..high for which `is_so`, which stays true once it is; None if there is none."""
    if low > high or not is_so(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if is_so(middle):
            high = middle
        else:
            low = middle + 1
    return low


@dataclass(frozen=True)
class TokenBucket:
    """A bucket of `capacity` tokens."""

    capacity: float
    refill_rate: float

    def refilled(self, state: Bucket | None, now_ms: int) -> float:
        """The tokens at `now_ms`."""
        if state is None:
            return self.capacity
        # Exact up to the last NOW, 2^53, and past it too, where waits lead that no call can try.
        elapsed = float(max(0, now_ms - state.last_ms))
        return min(self.capacity, state.tokens + (elapsed / 1000) * self.refill_rate)

    def as_of(self, state: Bucket | None, now_ms: int) -> Bucket:
        return Bucket(self.refilled(state, now_ms), now_ms)

    def allows(self, state: Bucket | None, request: Request, now_ms: int) -> bool:
        return request.is_refund or self.refilled(state, now_ms) >= request.amount

    def decide(self, state: Bucket | None, request: Request, now_ms: int) -> Decision:
        tokens = self.refilled(state, now_ms)
        allowed = self.allows(state, request, now_ms)
        retry_after = self._retry_after(tokens, request) if not allowed else 0
        if request.is_refund:
            tokens = min(self.capacity, tokens + request.amount)
        elif allowed:
            tokens = tokens - request.amount
        # A full bucket and no key answer alike, so neither a refund nor a denial creates one.
        is_created = allowed and not request.is_refund
        left = Bucket(tokens, now_ms) if state is not None or is_created else None
        return Decision(allowed, left, [int(allowed), whole(tokens), self._reset_at(tokens, now_ms), retry_after])

    def preview(self, state: Bucket | None, request: Request, now_ms: int) -> list[int]:
        """The reply of the write form's decision, with what remains before it takes anything."""
        tokens = self.refilled(state, now_ms)
        allowed = self.allows(state, request, now_ms)
        retry_after = self._retry_after(tokens, request) if not allowed else 0
        return [int(allowed), whole(tokens), self._reset_at(tokens, now_ms), retry_after]

    def _retry_after(self, tokens: float, request: Request) -> int:
        if self.refill_rate == 0:
            return 0
        return reported(ceil((request.amount - tokens) / self.refill_rate))

    def _reset_at(self, tokens: float, now_ms: int) -> int:
        if self.refill_rate == 0:
            return 0
        return reported(ceil(float(now_ms) / 1000 + (self.capacity - tokens) / self.refill_rate))

    def ttl_s(self) -> int | None:
        if self.refill_rate == 0:
            return None
        return int(min(ceil(self.capacity / self.refill_rate) + 60, LONGEST_TTL_S))

    def retry_after_ms(self, state: Bucket | None, request: Request, now_ms: int) -> int:
        """The more time has passed, the more tokens are there, so a bisection finds it."""
        if self.allows(state, request, now_ms):
            return 0
        if request.amount > self.capacity or self.refill_rate == 0:
            return NEVER
        wait = smallest(lambda d: self.allows(state, request, now_ms + d), 1, LATEST_TIME)
        return LATEST_TIME if wait is None else wait

    def reset_after_ms(self, state: Bucket | None, now_ms: int) -> int:
        def is_full(d: int) -> bool:
            return self.refilled(state, now_ms + d) >= self.capacity

        if is_full(0):
            return 0
        if self.refill_rate == 0:
            return NEVER
        wait = smallest(is_full, 0, LATEST_TIME)
        return LATEST_TIME if wait is None else wait


@dataclass(frozen=True)
class SlidingWindow:
    """A window of `window_s` seconds and the one before it."""

    limit: float
    window_s: float

    def index(self, now_ms: int) -> int:
        return math.floor((float(now_ms) / 1000) / self.window_s)

    def as_of(self, state: Window | None, now_ms: int) -> Window:
        return self.rolled_over(state, now_ms)

    def rolled_over(self, state: Window | None, now_ms: int) -> Window:
        index = self.index(now_ms)
        if state is None:
            return Window(self.window_s, index, 0.0, 0.0)
        if state.window_s != self.window_s:
            carried = SlidingWindow(self.limit, state.window_s).estimate(state, now_ms)
            # max() keeps the first of two equal numbers, so that a zero is never a negative one.
            curr = max(0.0, carried * (self.elapsed(now_ms) / self.window_s))
            return Window(self.window_s, index, max(0.0, carried), curr)
        if state.stored < index:
            return Window(self.window_s, index, state.curr if state.stored == index - 1 else 0.0, 0.0)
        return state

    def elapsed(self, now_ms: int) -> float:
        return float(now_ms) / 1000 - float(self.index(now_ms)) * self.window_s

    def estimate(self, state: Window | None, now_ms: int) -> float:
        rolled = self.rolled_over(state, now_ms)
        weight = 1 - self.elapsed(now_ms) / self.window_s
        return rolled.prev * weight + rolled.curr

    def allows(self, state: Window | None, request: Request, now_ms: int) -> bool:
        return request.is_refund or not self.estimate(state, now_ms) + request.amount > self.limit

    def decide(self, state: Window | None, request: Request, now_ms: int) -> Decision:
        rolled = self.rolled_over(state, now_ms)
        estimate = self.estimate(state, now_ms)
        reset_at = self._reset_at(now_ms)
        if request.is_refund:
            left = self._given_back(rolled, request, now_ms)
            remaining = whole(self.limit - self.estimate(left, now_ms))
            return Decision(True, left if state is not None else None, [1, remaining, reset_at, 0])
        if not self.allows(state, request, now_ms):
            # Zero counters and no key answer alike, so a denial creates none.
            left = rolled if state is not None else None
            return Decision(False, left, [0, whole(self.limit - estimate), reset_at, self._retry_after(now_ms)])
        left = rolled._replace(curr=rolled.curr + request.amount)
        return Decision(True, left, [1, whole(self.limit - (estimate + request.amount)), reset_at, 0])

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

    def preview(self, state: Window | None, request: Request, now_ms: int) -> list[int]:
        allowed = self.allows(state, request, now_ms)
        remaining = whole(self.limit - self.estimate(state, now_ms))
        return [int(allowed), remaining, self._reset_at(now_ms), 0 if allowed else self._retry_after(now_ms)]

    def _retry_after(self, now_ms: int) -> int:
        return reported(ceil(self.window_s - self.elapsed(now_ms)))

    def _reset_at(self, now_ms: int) -> int:
        window_start = float(self.index(now_ms)) * self.window_s
        return reported(floor(window_start + self.window_s))

    def ttl_s(self) -> int:
        return ceil(2 * self.window_s) + 60

    def _first_ms_after(self, index: int, from_ms: int) -> int | None:
        """The first millisecond, `from_ms` or later, that lies in a window after number `index`."""
        return smallest(lambda t: self.index(t) > index, from_ms, from_ms + LATEST_TIME)

    def retry_after_ms(self, state: Window | None, request: Request, now_ms: int) -> int | AtLeast:
        """Within one window nothing but the weight changes, and it only falls: a call denied at the
        window's last millisecond is denied in all of it, and otherwise a bisection finds the first that
        is allowed. So the windows are looked at one after another."""
        if self.allows(state, request, now_ms):
            return 0
        if 0.0 + request.amount > self.limit:
            return NEVER
        if state is not None and state.window_s != self.window_s:
            # Two lengths decide, so nothing falls steadily.
            return AtLeast(1)
        wait = self._first_allowed(state, request, now_ms)
        return wait if self.is_retry_exact(state, now_ms) or isinstance(wait, AtLeast) else AtLeast(wait)

    def _first_allowed(self, state: Window | None, request: Request, now_ms: int) -> int | AtLeast:
        first = now_ms + 1
        for _ in range(MOST_WINDOWS):
            next_window = self._first_ms_after(self.index(first), first)
            last = now_ms + LATEST_TIME if next_window is None else next_window - 1
            allowed_at = smallest(lambda t: self.allows(state, request, t), first, last)
            if allowed_at is not None:
                return min(allowed_at - now_ms, LATEST_TIME)
            if next_window is None:
                return LATEST_TIME
            first = next_window
        # The clock went back too many windows to look at each.
        return AtLeast(min(first - now_ms, LATEST_TIME))

    def is_retry_exact(self, state: Window | None, now_ms: int) -> bool:
        """Whether the retry time of this state has to be the smallest, or one that is sufficient will do."""
        if state is None:
            return True
        if state.window_s != self.window_s:
            return False
        # Rounding moves the edge of some windows of a few milliseconds, so that they are not alike.
        are_alike = (self.window_s * 1000).is_integer() and self.window_s >= 0.1
        return state.stored <= self.index(now_ms) or (are_alike and state.prev <= self.limit)

    def reset_after_ms(self, state: Window | None, now_ms: int) -> int:
        rolled = self.rolled_over(state, now_ms)
        if rolled.curr > 0:
            last_counted = rolled.stored + 1
        elif rolled.prev > 0:
            last_counted = rolled.stored
        else:
            return 0
        after = self._first_ms_after(last_counted, now_ms)
        return LATEST_TIME if after is None else min(after - now_ms, LATEST_TIME)


Rule = TokenBucket | SlidingWindow
ALGORITHMS: dict[str, type[Rule]] = {"TOKENBUCKET": TokenBucket, "SLIDING": SlidingWindow}


class Model:
    """Limiters by key, and the commands on them."""

    def __init__(self) -> None:
        self.limiters: dict[bytes, Bucket | Window] = {}
        self.ttl_s: int | None | Kept = KEPT

    def call(self, command: str, *arguments: object) -> list:
        """The reply of `command`, which has to be well-formed and to say NOW."""
        words = [_text(argument) for argument in arguments]
        name, _, form = command.upper().removeprefix("RL.").partition("_")
        is_preview = form == "RO"
        self.ttl_s = KEPT
        if name == "ALL":
            return self._call_all(words, is_preview)
        key, rest = words[0].encode("utf-8", "surrogateescape"), words[1:]
        rule, request, rest = _read_rule([name, *rest], only_rule=True)
        now_ms, in_ms = _read_options(rest)
        state = self.limiters.get(key)
        if is_preview:
            return _preview_reply(rule, state, request, now_ms, in_ms)
        decision = rule.decide(state, request, now_ms)
        self._keep(key, rule, decision)
        return _decision_reply(rule, decision, request, now_ms, in_ms)

    def _call_all(self, words: list[str], is_preview: bool) -> list:
        count = int(words[0])
        keys = [word.encode("utf-8", "surrogateescape") for word in words[1 : count + 1]]
        rest = words[count + 1 :]
        rules: list[tuple[Rule, Request]] = []
        for _ in keys:
            rule, request, rest = _read_rule(rest)
            rules.append((rule, request))
        now_ms, in_ms = _read_options(rest)
        states = [self.limiters.get(key) for key in keys]
        all_allow = all(rule.allows(state, request, now_ms) for (rule, request), state in zip(rules, states))
        replies = []
        for key, (rule, request), state in zip(keys, rules, states):
            if is_preview or not all_allow:
                replies.append(_preview_reply(rule, state, request, now_ms, in_ms))
            else:
                decision = rule.decide(state, request, now_ms)
                self._keep(key, rule, decision)
                replies.append(_decision_reply(rule, decision, request, now_ms, in_ms))
        return [int(all_allow), *replies]

    def _keep(self, key: bytes, rule: Rule, decision: Decision) -> None:
        if decision.state is not None:
            self.limiters[key] = decision.state
            self.ttl_s = rule.ttl_s()


def _decision_reply(rule: Rule, decision: Decision, request: Request, now_ms: int, in_ms: bool) -> list[int | AtLeast]:
    if not in_ms:
        return decision.reply
    retry_after_ms = 0 if decision.allowed else rule.retry_after_ms(decision.state, request, now_ms)
    return [*decision.reply[:2], rule.reset_after_ms(decision.state, now_ms), retry_after_ms]


def _preview_reply(rule: Rule, state: State, request: Request, now_ms: int, in_ms: bool) -> list[int | AtLeast]:
    reply = rule.preview(state, request, now_ms)
    if not in_ms:
        return reply
    # Both times start from the state that is left behind, which here is the stored one.
    reset_after_ms = rule.reset_after_ms(state, now_ms)
    return [*reply[:2], reset_after_ms, rule.retry_after_ms(state, request, now_ms)]


def _read_rule(words: list[str], only_rule: bool = False) -> tuple[Rule, Request, list[str]]:
    """The rule that stands first, and what follows it. In a command with one key (`only_rule`) its COST,
    REFUND and AT may stand after NOW and MS."""
    rule = ALGORITHMS[words[0].upper()](float(words[1]), float(words[2]))
    request, rest, words = Request(), [], words[3:]
    while words:
        keyword = words[0].upper()
        if keyword in ("COST", "REFUND"):
            is_refund = keyword == "REFUND"
            request, words = replace(request, amount=float(words[1]), is_refund=is_refund), words[2:]
        elif keyword == "AT":
            request, words = replace(request, at_ms=int(words[1])), words[2:]
        elif not only_rule:
            break
        else:
            taken = 2 if keyword == "NOW" else 1
            rest, words = rest + words[:taken], words[taken:]
    return rule, request, rest + words


def _read_options(words: list[str]) -> tuple[int, bool]:
    now_ms, in_ms = None, False
    while words:
        if words[0].upper() == "NOW":
            now_ms, words = int(words[1]), words[2:]
        else:
            assert words[0].upper() == "MS", words
            in_ms, words = True, words[1:]
    assert now_ms is not None, "a model has no clock: say NOW"
    return now_ms, in_ms


def _text(word: object) -> str:
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)
