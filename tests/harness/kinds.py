"""Every kind of limiter in plain Python.

Written from docs/design.md alone and made to be evidently right, not fast: it never looks at the module. A Python
float is an IEEE double as in the module and in Lua; the operations appear in the design's order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from .periods import Period
from .state import Bucket, Count, Leases, Window

LATEST_TIME = 2**53 - 1
LONGEST_TTL_S = 36_500 * 86_400
LONGEST_TTL_MS = LONGEST_TTL_S * 1000
SLACK_MS = 60_000
NEVER = -1
DEEPEST_DEBT = -(2.0**53)
COST, FORCE, REFUND = "COST", "FORCE", "REFUND"
# Up to this count a rounding of the time is less than a quarter of a call.
MOST_ALIKE = 100_000.0
# How many windows the model looks at, one by one, for a retry time after the clock went back.
MOST_WINDOWS = 40

State = Bucket | Window | Count | Leases | None


class AtLeast:
    """A retry time that only has to be sufficient: equal to every number from `least` on."""

    def __init__(self, least: int) -> None:
        self.least = least

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and other >= self.least

    def __repr__(self) -> str:
        return f"AtLeast({self.least})"


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
class Request:
    """What a call asks a limiter for."""

    amount: float = 1.0
    how: str = COST
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

    def refilled(self, state: Bucket | None, now_ms: int) -> float:
        """The tokens at `now_ms`."""
        if state is None:
            return self.capacity
        # Exact up to the last NOW, 2^53, and past it too, where waits lead that no call can try.
        elapsed = float(max(0, now_ms - state.last_ms))
        return min(self.capacity, state.tokens + (elapsed / 1000) * self.refill_rate)

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
        can_wait = request.amount <= self.capacity and self.refill_rate > 0 and tokens - request.amount >= DEEPEST_DEBT
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

    def index(self, now_ms: int) -> int:
        return math.floor((float(now_ms) / 1000) / self.window_s)

    def elapsed(self, now_ms: int) -> float:
        return float(now_ms) / 1000 - float(self.index(now_ms)) * self.window_s

    def as_of(self, state: Window | None, now_ms: int) -> Window:
        """Rolled over, or carried over from another length."""
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

    def estimate(self, state: Window | None, now_ms: int) -> float:
        rolled = self.as_of(state, now_ms)
        weight = 1 - self.elapsed(now_ms) / self.window_s
        return rolled.prev * weight + rolled.curr

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
        rolled = self.as_of(state, now_ms)
        if rolled.curr > 0:
            last_counted = rolled.stored + 1
        elif rolled.prev > 0:
            last_counted = rolled.stored
        else:
            return 0
        after = self._first_ms_after(last_counted, now_ms)
        return LATEST_TIME if after is None else min(after - now_ms, LATEST_TIME)

    def reset_at(self, state: Window | None, now_ms: int) -> int:
        window_start = float(self.index(now_ms)) * self.window_s
        return reported(floor(window_start + self.window_s))

    def retry_after(self, state: Window | None, request: Request, now_ms: int) -> int:
        return reported(ceil(self.window_s - self.elapsed(now_ms)))

    def retry_after_ms(self, state: Window | None, request: Request, now_ms: int) -> int | AtLeast:
        """Within one window nothing but the weight changes, and it only falls: a call denied at the
        window's last millisecond is denied in all of it, and otherwise a bisection finds the first that
        is allowed. So the windows are looked at one after another."""
        request = request.least
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
        # Rounding moves the edge of some windows of a few milliseconds, so that they are not alike; and a time of
        # today is rounded to a millionth of such a window, of which a large count makes more than one call costs.
        are_alike = (self.window_s * 1000).is_integer() and self.window_s >= 0.1 and state.prev <= MOST_ALIKE
        return state.stored <= self.index(now_ms) or (are_alike and state.prev <= self.limit)

    def _first_ms_after(self, index: int, from_ms: int) -> int | None:
        """The first millisecond, `from_ms` or later, that lies in a window after number `index`."""
        return smallest(lambda t: self.index(t) > index, from_ms, from_ms + LATEST_TIME)

    def ttl_ms(self, state: Window, now_ms: int) -> int:
        return int(ceil(2 * self.window_s)) * 1000 + SLACK_MS


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
            at_ms = now_ms if request.at_ms is None else min(request.at_ms, now_ms)
            is_counted = period is not None and (request.at_ms is None or at_ms >= period.start_ms)
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
        # A count so large that the cost is lost in it stays as it is.
        written = _set(left) if left != state else ()
        return Decision(True, left, self.remaining(left, now_ms), granted, 0, written)

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
        """The least, after a lease was given or renewed: the deadline is not moved with each call."""
        last_ms = int(max(state.values())) - now_ms
        return min(min(last_ms, 2 * self.lease_ms) + SLACK_MS, LONGEST_TTL_MS)


def _set(state: State) -> tuple[tuple, ...]:
    return (("SET", state),)


KINDS: dict[str, type[Rule]] = {
    "TOKENBUCKET": TokenBucket,
    "SLIDING": SlidingWindow,
    "QUOTA": Quota,
    "CONCURRENCY": Concurrency,
}
