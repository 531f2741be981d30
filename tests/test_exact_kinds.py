"""With MS every kind says to the millisecond when a call is allowed, when to act and when all is as new.

RL_EXACT_TRACES sets how many random traces are run, RL_SEED which.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from harness import kinds, traces
from harness.connection import RawConnection
from harness.kinds import LATEST_TIME, NEVER
from harness.model import Model
from harness.parity import HIGHEST
from harness.state import Bucket
from harness.tally import Tally
from harness.traces import Words

TRACES = int(os.environ.get("RL_EXACT_TRACES") or 240)
CALLS_A_TRACE = 40
EARLIER_PROBES = 4
# Above it the least that is counted is lost in the sum with the limit.
LARGEST_LIMIT = 1e9
MOST_WINDOWS_OF_THE_MODEL = 40


@dataclass(frozen=True)
class Asked:
    """A call on its own key with MS, its reply, and that of the model."""

    words: Words
    reply: list[int]
    expected: list
    #: whether the key's time lies ahead of the call's
    is_back: bool = False

    @property
    def kind(self) -> str:
        return str(self.words[0]).removeprefix("RL.").removesuffix("_RO")

    @property
    def now_ms(self) -> int:
        return int(self.words[self.words.index("NOW") + 1])

    def preview(self, after_ms: int) -> Words:
        """The same question at a later time."""
        words = list(self.words)
        words[0] = f"RL.{self.kind}_RO"
        now_ms = words[words.index("NOW") + 1] = self.now_ms + after_ms
        if words[3] == "UNTIL":
            # An end that has passed is an error.
            words[4] = max(int(words[4]), now_ms + 1)
        return words

    def without(self, keyword: str) -> "Asked":
        at = self.words.index(keyword)
        return replace(self, words=self.words[:at] + self.words[at + 2 :])

    def for_all_of_it(self) -> "Asked | None":
        """A call that is allowed if and only if the limiter is as new; None if there is none."""
        name, key, first, *_ = self.words
        options = ["NOW", self.now_ms, "MS"]
        if self.kind == "CONCURRENCY":
            words = [name, key, 1, self.words[3], "ID", "somebody else", *options]
        elif self.kind == "SLIDING" or (self.kind == "QUOTA" and float(first) > LARGEST_LIMIT):
            return None
        else:
            at = self.words.index("ANCHOR") if "ANCHOR" in self.words else 0
            until = [self.words[4]] if self.words[3] == "UNTIL" else []
            anchor = self.words[at : at + 2] if at else []
            words = [name, key, first, self.words[3], *until, *anchor, "COST", first, *options]
        return replace(self, words=words)

    def __str__(self) -> str:
        return f"{traces.shown([self.words])}: {self.reply}"


Probe = tuple[Asked, int, bool]


def earlier(rng: random.Random, wait_ms: int) -> list[int]:
    """Waits from 0 to below `wait_ms`: the last one, and some of any order of magnitude."""
    some = [int(wait_ms * rng.random()) for _ in range(EARLIER_PROBES // 2)]
    some += [wait_ms - 1 - int(wait_ms * 2.0 ** -rng.uniform(1, 40)) for _ in range(EARLIER_PROBES // 2)]
    return sorted({wait_ms - 1, *(wait for wait in some if 0 <= wait < wait_ms)})


def around(rng: random.Random, question: Asked, wait_ms: int, is_exact: bool = True) -> list[Probe]:
    """Denied before, allowed then."""
    probes = [(question, wait_ms, True)] if wait_ms < LATEST_TIME else []
    if is_exact and wait_ms > 0:
        probes += [(question, wait, False) for wait in earlier(rng, wait_ms)]
    return probes


def retry_probes(rng: random.Random, asked: Asked) -> list[Probe]:
    allowed, _, _, retry, *_ = asked.reply
    if allowed:
        return []
    if retry == NEVER:
        left = HIGHEST - asked.now_ms
        return [(asked, wait, False) for wait in {0, left, int(left * rng.random())}]
    return around(rng, asked, retry, is_exact=isinstance(asked.expected[3], int))


def wait_probes(rng: random.Random, asked: Asked) -> list[Probe]:
    """A preview that may wait is told when the call would be allowed without waiting, on the bucket as it is then."""
    if not is_told_to_wait(asked):
        return []
    name, key, *words = asked.without("MAXWAIT").words
    return around(rng, replace(asked, words=[name, refilled(key), *words]), asked.reply[3])


def is_told_to_wait(asked: Asked) -> bool:
    is_preview = str(asked.words[0]).endswith("_RO")
    return is_preview and not asked.is_back and bool(asked.reply[0]) and "MAXWAIT" in asked.words


def refilled(key: object) -> str:
    """The key of a copy that was refilled, which rounds, as the call itself would do."""
    return f"{key}:refilled"


def refill(asked: Asked) -> list[Words]:
    _, key, capacity, refill_rate, *_ = asked.words
    copy = refilled(key)
    nothing = ["RL.TOKENBUCKET", copy, capacity, refill_rate, "COST", "0", "NOW", asked.now_ms]
    return [["DEL", copy], ["COPY", key, copy], nothing]


def reset_probes(rng: random.Random, asked: Asked) -> list[Probe]:
    question, reset = asked.for_all_of_it(), asked.reply[2]
    if question is None or reset == NEVER:
        return []
    return around(rng, question, reset)


def checked(raw: RawConnection, probes: list[Probe]) -> int:
    # An end has to lie ahead of the time.
    probes = [(asked, wait, allowed) for asked, wait, allowed in probes if asked.now_ms + wait < HIGHEST]
    answers = raw.call_all([asked.preview(wait) for asked, wait, _ in probes])
    for (asked, wait, expected), answer in zip(probes, answers):
        assert answer[0] == int(expected), f"{'denied' if expected else 'allowed'} after {wait} ms: {asked}: {answer}"
    return len(probes)


def in_step(rng: random.Random, kind: str, count: int) -> Iterator[list[Words]]:
    """The first calls of all traces, each on a key of its own, then the second ones, and so on; all with MS."""
    made = [traces.single_trace(rng, f"k{number}", CALLS_A_TRACE, kind) for number in range(count)]
    for calls in zip(*made):
        yield [words if "MS" in words or words[0] == "RL.RELEASE" else [*words, "MS"] for words in calls]


@pytest.mark.parametrize("kind", traces.KINDS)
def test_the_times_are_exact_to_the_millisecond(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kinds, "MOST_WINDOWS", MOST_WINDOWS_OF_THE_MODEL)
    counts = dict.fromkeys(("retry times", "waits", "reset times"), 0)
    limiters = Model()
    for calls in in_step(rng, kind, TRACES // 4):
        step = []
        for words, reply in zip(calls, raw.call_all(calls)):
            held = limiters.limiters.get(str(words[1]).encode())
            expected = limiters.call(*words)
            assert reply == expected, f"{traces.shown([words])}: {reply}, model {expected}"
            if words[0] != "RL.RELEASE":
                asked = Asked(words, reply, expected)
                step.append(replace(asked, is_back=isinstance(held, Bucket) and held.last_ms > asked.now_ms))
        raw.call_all([words for asked in step if is_told_to_wait(asked) for words in refill(asked)])
        for what, probes in zip(counts, (retry_probes, wait_probes, reset_probes)):
            counts[what] += checked(raw, [probe for asked in step for probe in probes(rng, asked)])
    assert counts["retry times"]
    assert bool(counts["waits"]) == (kind == "TOKENBUCKET")
    assert bool(counts["reset times"]) == (kind != "SLIDING")
    for what, count in counts.items():
        if count:
            tally.add(f"exact times of {kind}", count, f"{what} probed", seed=seed)
