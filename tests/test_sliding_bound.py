"""How much a sliding window lets through, counted exactly: in any stretch of t seconds, up to a whole
window, at most limit * (1 + t / window).

Two counters estimate what the last window counts, so `limit` in any window is not what they hold. The
worst case comes close to the bound, and with it a whole window holds nearly twice the limit.

RL_BOUND_TRACES sets how many random traces are run, RL_SEED which.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.tally import Tally

TRACES = int(os.environ.get("RL_BOUND_TRACES") or 60)
CALLS_A_TRACE = 600
# What rounding may add, as a part of the limit.
ROUNDING = 1e-9

LIMITS = (1.0, 2.5, 5.0, 10.0, 100.0)
WINDOWS_S = (0.1, 0.25, 1.0, 7.0, 60.0, 3600.0)


@dataclass(frozen=True)
class Admitted:
    """A call that was let through."""

    at_ms: int
    cost: float


@dataclass(frozen=True)
class Sent:
    """A call on the one key of a trace."""

    at_ms: int
    limit: float
    window_s: float
    cost: float = 1.0

    def words(self) -> list[Word]:
        rule = ["RL.SLIDING", "k", repr(self.limit), repr(self.window_s)]
        return [*rule, "COST", repr(self.cost), "NOW", self.at_ms]


def admitted_of(raw: RawConnection, calls: Sequence[Sent]) -> list[Admitted]:
    raw.call("FLUSHALL")
    replies = raw.call_all([call.words() for call in calls])
    return [Admitted(call.at_ms, call.cost) for call, reply in zip(calls, replies) if reply[0]]


def fullest(admitted: Sequence[Admitted], limit: float, window_s: float, longest_s: float) -> float:
    """The largest part of its bound that any stretch of up to `longest_s` seconds holds."""
    most = 0.0
    for position, first in enumerate(admitted):
        total = 0.0
        for call in admitted[position:]:
            stretch_s = (call.at_ms - first.at_ms) / 1000
            if stretch_s > longest_s:
                break
            total += call.cost
            most = max(most, total / (limit * (1 + stretch_s / window_s)))
    return most


def random_times(rng: random.Random, window_s: float, count: int) -> list[int]:
    """Bursts, steady streams and pauses of any length, now and then just before or after a window begins."""
    window_ms = window_s * 1000
    at_ms = TODAY_MS + int(window_ms * rng.random())
    times = []
    while len(times) < count:
        kind = rng.random()
        if kind < 0.4:
            times += [at_ms] * rng.randint(1, 30)
        elif kind < 0.8:
            step_ms = max(1, int(window_ms * rng.choice([0.001, 0.01, 0.05, rng.random() / 5])))
            times += [at_ms + step_ms * number for number in range(rng.randint(1, 60))]
        else:
            into_window_ms = at_ms % window_ms
            at_ms += int(window_ms - into_window_ms) - rng.randint(0, 2)
            times += [at_ms] * rng.randint(1, 120)
        at_ms = times[-1] + int(window_ms * rng.choice([0, 0, 0.1, rng.random(), 2 * rng.random()]))
    return times[:count]


def random_cost(rng: random.Random, limit: float) -> float:
    return rng.choice([0.0, 0.1, limit / 7, limit * rng.random(), limit])


def test_no_stretch_of_up_to_a_window_holds_more_than_its_bound(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    let_through = 0
    for _ in range(TRACES):
        limit, window_s = rng.choice(LIMITS), rng.choice(WINDOWS_S)
        has_single_requests = rng.random() < 0.5
        calls = [
            Sent(at_ms, limit, window_s, 1.0 if has_single_requests else random_cost(rng, limit))
            for at_ms in random_times(rng, window_s, CALLS_A_TRACE)
        ]
        admitted = admitted_of(raw, calls)
        assert 0 < len(admitted)
        assert fullest(admitted, limit, window_s, window_s) <= 1 + ROUNDING, (limit, window_s, seed)
        let_through += len(admitted)
    tally.add("sliding bound", let_through, "calls let through, in any stretch within the bound", seed=seed)


def test_rules_that_share_a_key_hold_the_bound_of_the_loosest(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    """The greater limit and the shorter window. Two routes with one key, or a deployment that changes the
    rule: neither gives a fresh limit."""
    let_through = 0
    for _ in range(TRACES):
        limits, windows_s = rng.choices(LIMITS, k=2), rng.choices(WINDOWS_S, k=2)
        rules = list(zip(limits, windows_s))
        times = random_times(rng, rng.choice(windows_s), CALLS_A_TRACE)
        calls = [Sent(at_ms, *rng.choice(rules), cost=rng.choice([1.0, 0.3])) for at_ms in times]
        admitted = admitted_of(raw, calls)
        assert fullest(admitted, max(limits), min(windows_s), min(windows_s)) <= 1 + ROUNDING, (rules, seed)
        let_through += len(admitted)
    assert let_through
    tally.add("sliding bound", let_through, "calls of two rules let through within the bound", seed=seed)


# The worst cases

LIMIT, WINDOW_S, WINDOW_MS = 100.0, 60.0, 60_000


def test_nearly_twice_the_limit_passes_in_less_than_a_window(raw: RawConnection) -> None:
    """The window before is used up at its end, and what it counts for goes down by one each 0.6 s."""
    assert TODAY_MS % WINDOW_MS == 0
    last_ms = TODAY_MS - 1
    burst = [Sent(last_ms, LIMIT, WINDOW_S)] * 100
    stream = [Sent(TODAY_MS + after_ms, LIMIT, WINDOW_S) for after_ms in range(0, WINDOW_MS, 50)]
    admitted = admitted_of(raw, [*burst, *stream])
    within = [call for call in admitted if call.at_ms - last_ms <= 59_450]
    assert len(within) == 199
    assert len([call for call in admitted if call.at_ms - last_ms <= WINDOW_MS]) == 199
    assert 0.99 < fullest(admitted, LIMIT, WINDOW_S, WINDOW_S) <= 1


def test_a_steady_stream_gets_the_limit_in_each_window(raw: RawConnection) -> None:
    calls = [Sent(TODAY_MS + after_ms, LIMIT, WINDOW_S) for after_ms in range(0, 10 * WINDOW_MS, 300)]
    admitted = admitted_of(raw, calls)
    of_window = [0] * 10
    for call in admitted:
        of_window[(call.at_ms - TODAY_MS) // WINDOW_MS] += 1
    assert of_window[0] == LIMIT
    assert all(LIMIT - 2 <= count <= LIMIT for count in of_window), of_window


@pytest.mark.parametrize(
    ("rules", "most"),
    [([(1.0, 1.0), (100.0, 30.0)], 100), ([(100.0, 60.0), (100.0, 30.0)], 100), ([(10.0, 30.0), (10.0, 60.0)], 10)],
    ids=["two routes", "a shortened window", "a lengthened window"],
)
def test_calls_in_turn_by_two_rules_get_no_fresh_limit_each_time(
    raw: RawConnection, rules: list[tuple[float, float]], most: int
) -> None:
    calls = [Sent(TODAY_MS + 20_500, *rules[number % 2]) for number in range(1000)]
    assert len(admitted_of(raw, calls)) <= most


def test_one_call_in_a_little_more_than_a_window_is_refused_half_the_time(raw: RawConnection) -> None:
    """What an estimate costs at low rates: 1 in 60 s, asked every 70 s."""
    calls = [Sent(TODAY_MS + 70_000 * number, 1.0, WINDOW_S) for number in range(20)]
    assert 9 <= len(admitted_of(raw, calls)) <= 12
