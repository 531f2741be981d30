"""Random traces of every kind of limiter are answered, stored, kept and propagated as the model says.

RL_KINDS_CALLS sets how many calls each test makes, RL_SEED which.
"""

import os
import random

import pytest

from harness import traces
from harness.observed import ObservedServer
from harness.tally import Tally

CALLS = int(os.environ.get("RL_KINDS_CALLS") or 20_000)
CALLS_A_TRACE = 50
TRACES_A_BATCH = 20


def run(observed: ObservedServer, rng: random.Random, maker: traces.Maker, calls: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    for batch in traces.batches(rng, maker, calls, CALLS_A_TRACE, TRACES_A_BATCH):
        ran = traces.run_batch(observed.connection, observed.stream, batch)
        for what, count in {**ran.counts, "propagated": len(ran.expected)}.items():
            counts[what] = counts.get(what, 0) + count
    return counts


@pytest.mark.parametrize("name", traces.MAKERS)
def test_traces_on_one_key_are_as_the_model_says(
    observed: ObservedServer, rng: random.Random, seed: str, tally: Tally, name: str
) -> None:
    counts = run(observed, rng, traces.MAKERS[name], CALLS // 2)
    assert counts["denied"] and counts["propagated"]
    tally.add(f"traces of {name}", counts["calls"], "calls as the model says", seed=seed)
    tally.add(f"traces of {name}", counts["denied"], "denied")
    tally.add(f"traces of {name}", counts["propagated"], "commands propagated")


def test_traces_of_several_at_once_are_as_the_model_says(
    observed: ObservedServer, rng: random.Random, seed: str, tally: Tally
) -> None:
    counts = run(observed, rng, traces.all_trace, CALLS)
    assert all(counts.values()), counts
    for what, count in counts.items():
        tally.add("traces of RL.ALL", count, what, seed=seed)
