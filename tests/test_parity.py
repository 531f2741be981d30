"""The module answers exactly as the Lua reference scripts do, call for call.

RL_PARITY_CALLS sets how many calls are compared, RL_SEED which.
"""

import os
import random
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import parity
from harness.clock import TODAY_MS
from harness.connection import RawConnection
from harness.kinds import SlidingWindow
from harness.parity import Call, Trace
from harness.tally import Tally

CALLS = int(os.environ.get("RL_PARITY_CALLS") or 200_000)
MODEL_CALLS = CALLS // 10
TRACES_A_BATCH = 20


def batches(rng: random.Random, calls: int):
    traces = iter(parity.random_traces(rng, calls))
    while batch := list(islice(traces, TRACES_A_BATCH)):
        yield batch


@pytest.mark.timeout(60 + CALLS // 1000)
def test_module_and_scripts_give_equal_replies_ttls_and_states(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    for batch in batches(rng, CALLS):
        mismatches = parity.compare(raw, batch)
        assert not mismatches, parity.explain(raw, mismatches[0])
        tally.add("parity", sum(map(len, batch)), "calls equal", seed=seed)


def edge_calls(algorithm: str, seconds: list[str]) -> st.SearchStrategy[Call]:
    """Calls of numbers at which something turns: zero, the smallest, the largest, and their like."""
    amounts = st.sampled_from(["0", "1", "0.1", "2.5", "3", "5e-324", "9007199254740992", "9007199254740991"])
    times = st.one_of(
        st.sampled_from([0, 1, TODAY_MS, parity.HIGHEST - 1, parity.HIGHEST]),
        st.integers(-5000, 5000).map(lambda ms: TODAY_MS + ms),
    )
    return st.builds(Call, st.just(algorithm), amounts, st.sampled_from(seconds), amounts, times)


EDGE_TRACES = st.one_of(
    st.lists(edge_calls("TOKENBUCKET", ["0", "5e-324", "0.3", "1", "1500", "9007199254740992"]), min_size=1, max_size=12),
    st.lists(edge_calls("SLIDING", ["0.001", "0.0015", "0.3", "1", "2.5", "9007199254740.992"]), min_size=1, max_size=12),
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=EDGE_TRACES)
def test_module_and_scripts_are_equal_at_the_ends_of_every_range(raw: RawConnection, tally: Tally, trace: Trace) -> None:
    mismatches = parity.compare(raw, [trace])
    assert not mismatches, f"{mismatches[0].what}\n{parity.replayable(trace)}"
    difference = parity.model_mismatch(raw, trace)
    assert difference is None, difference
    tally.add("parity", len(trace), "calls at the ends of the ranges equal")


def test_the_model_and_the_scripts_give_equal_replies(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally
) -> None:
    for trace in parity.random_traces(rng, MODEL_CALLS):
        difference = parity.model_mismatch(raw, trace)
        assert difference is None, difference
        tally.add("parity", len(trace), "calls of the Python model equal", seed=seed)


def test_a_mismatch_is_shown_with_only_the_calls_that_it_needs(raw: RawConnection, rng: random.Random) -> None:
    def script_that_forgets_a_cost_of_seven(call: Call, key: str) -> list:
        return replace(call, cost="0").script_words(key) if call.cost == "7" else call.script_words(key)

    def take(cost: str) -> Call:
        return Call("TOKENBUCKET", "100", "1", cost, TODAY_MS)

    trace: Trace = [take(rng.choice(["1", "0.5"])) for _ in range(40)]
    trace.insert(rng.randrange(40), take("7"))
    (mismatch,) = parity.compare(raw, [trace], script_that_forgets_a_cost_of_seven)
    shown = parity.explain(raw, mismatch, script_that_forgets_a_cost_of_seven)
    assert shown.splitlines()[1:] == [
        "redis-cli FLUSHALL",
        f"redis-cli RL.TOKENBUCKET m 100 1 COST 7 NOW {TODAY_MS}",
        f"redis-cli --eval lua-reference/token_bucket.lua s , 100 1 {TODAY_MS} 7",
    ]


#: A time at which windows of 1.5 ms are rounded so that it lies before the beginning of its own.
BEFORE_ITS_WINDOW_MS = 1_751_662_800_018


def test_what_is_carried_over_is_never_less_than_a_zero_without_a_sign(raw: RawConnection) -> None:
    """Nothing times less than no time at all is a negative zero, which other bits stand for."""
    assert SlidingWindow(10, 0.0015).elapsed(BEFORE_ITS_WINDOW_MS) < 0
    trace = [
        Call("SLIDING", "10", "1", "1", BEFORE_ITS_WINDOW_MS - 5000),
        Call("SLIDING", "10", "0.0015", "11", BEFORE_ITS_WINDOW_MS),
    ]
    mismatches = parity.compare(raw, [trace])
    assert not mismatches, mismatches[0].what


LATER, EARLIER = TODAY_MS + 15_000, TODAY_MS + 5_000
#: Traces in which the script shows what it stored at a denied call on a missing key, and the same traces
#: without what makes the difference.
DIFFERENCES: dict[str, tuple[Trace, Trace]] = {
    "the capacity is raised": (
        [Call("TOKENBUCKET", "1", "1", "2", EARLIER), Call("TOKENBUCKET", "10", "1", "2", EARLIER)],
        [Call("TOKENBUCKET", "10", "1", "20", EARLIER), Call("TOKENBUCKET", "10", "1", "2", EARLIER)],
    ),
    "time goes back a window": (
        [
            Call("SLIDING", "1", "10", "2", LATER),
            Call("SLIDING", "1", "10", "1", EARLIER),
            Call("SLIDING", "1", "10", "0.5", LATER),
        ],
        [
            Call("SLIDING", "1", "10", "2", LATER),
            Call("SLIDING", "1", "10", "1", LATER),
            Call("SLIDING", "1", "10", "0.5", LATER),
        ],
    ),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_after_a_denial_on_a_missing_key_two_steps_tell_the_two_apart(raw: RawConnection, name: str) -> None:
    """Why `parity.compare` makes the script forget: these are the cases, and each needs all of it."""
    differing, agreeing = DIFFERENCES[name]
    for trace in (differing, agreeing):
        raw.call("FLUSHALL")
        by_module = [raw.call(*call.module_words("m")) for call in trace]
        by_script = [raw.call(*call.script_words("s")) for call in trace]
        assert (by_module == by_script) == (trace is agreeing)
        assert any(parity.where_to_forget(trace)) == (trace is differing)
        assert parity.compare(raw, [trace]) == [], "equal once the script has forgotten"
