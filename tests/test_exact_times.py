"""With MS every kind says to the millisecond when a call is allowed, when to act and when all is as new.

RL_EXACT_TRACES sets how many random traces are run, RL_SEED which.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from harness import traces
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.kinds import LATEST_TIME, NEVER, SlidingWindow, State
from harness.model import Model
from harness.parity import HIGHEST
from harness.state import Bucket, Window, read_window
from harness.tally import Tally
from harness.traces import Words

TRACES = int(os.environ.get("RL_EXACT_TRACES") or 240)
CALLS_A_TRACE = 40
EARLIER_PROBES = 4
# Above it the least that is counted is lost in the sum with the limit.
LARGEST_LIMIT = 1e9


@dataclass(frozen=True)
class Asked:
    """A call on its own key with MS, its reply, and that of the model."""

    words: Words
    reply: list[int]
    expected: list
    #: what the call left behind, by the model
    held: State

    @property
    def kind(self) -> str:
        return str(self.words[0]).removeprefix("RL.").removesuffix("_RO")

    @property
    def now_ms(self) -> int:
        return int(self.words[self.words.index("NOW") + 1])

    @property
    def is_preview(self) -> bool:
        return str(self.words[0]).endswith("_RO")

    @property
    def is_back(self) -> bool:
        """Whether the bucket's time lies ahead of the call's."""
        return isinstance(self.held, Bucket) and self.held.last_ms > self.now_ms

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


def never(rng: random.Random, question: Asked) -> list[Probe]:
    """Denied up to the last NOW that there is."""
    left = HIGHEST - question.now_ms
    return [(question, wait, False) for wait in {0, left, int(left * rng.random()), int(left * 2.0 ** -rng.uniform(1, 40))}]


def retry_probes(rng: random.Random, asked: Asked) -> list[Probe]:
    allowed, _, _, retry, *_ = asked.reply
    if allowed:
        return []
    if retry == NEVER:
        return never(rng, asked)
    is_exact = isinstance(asked.expected[3], int)
    if not is_exact:
        # It has to be sufficient, and no later than when nothing counts, by the length that the window has.
        assert isinstance(asked.held, Window)
        stored_rule = SlidingWindow(float(asked.words[2]), asked.held.window_s)
        assert retry <= stored_rule.reset_after_ms(asked.held, asked.now_ms), asked
    return around(rng, asked, retry, is_exact)


def wait_probes(rng: random.Random, asked: Asked) -> list[Probe]:
    """A preview that may wait is told when the call would be allowed without waiting, on the bucket as it is then."""
    if not is_told_to_wait(asked):
        return []
    name, key, *words = asked.without("MAXWAIT").words
    return around(rng, replace(asked, words=[name, refilled(key), *words]), asked.reply[3])


def is_told_to_wait(asked: Asked) -> bool:
    return asked.is_preview and not asked.is_back and bool(asked.reply[0]) and "MAXWAIT" in asked.words


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
    if question is None:
        return []
    return never(rng, question) if reset == NEVER else around(rng, question, reset)


def window_reset_probes(rng: random.Random, asked: Asked) -> list[Probe]:
    """What a preview says of a window of another length is the reset of the state carried over to now."""
    if asked.kind != "SLIDING":
        return []
    if asked.is_preview and isinstance(asked.held, Window) and asked.held.window_s != float(asked.words[3]):
        return []
    return around(rng, asked, asked.reply[2])


def in_range(probes: list[Probe]) -> list[Probe]:
    """An end has to lie ahead of the time."""
    return [probe for probe in probes if probe[0].now_ms + probe[1] <= HIGHEST - (probe[0].words[3] == "UNTIL")]


def checked(raw: RawConnection, probes: list[Probe]) -> int:
    """On the very state that the call left, by previews, which do not disturb it."""
    answers = raw.call_all([asked.preview(wait) for asked, wait, _ in probes])
    for (asked, wait, expected), answer in zip(probes, answers):
        assert answer[0] == int(expected), f"{'denied' if expected else 'allowed'} after {wait} ms: {asked}: {answer}"
    return len(probes)


def checked_on_copies(raw: RawConnection, probes: list[Probe]) -> int:
    """A window counts nothing when a call of cost 0 finds both counters at 0."""
    commands: list[Words] = []
    for asked, wait, _ in probes:
        look: Words = ["RL.SLIDING", "copy", *asked.words[2:4], "COST", "0", "NOW", asked.now_ms + wait]
        commands += [["DEL", "copy"], ["COPY", asked.words[1], "copy"], look, ["GET", "copy"]]
    for (asked, wait, expected), value in zip(probes, raw.call_all(commands)[3::4]):
        is_new = read_window(value)[2:] == (0, 0)
        assert is_new == expected, f"{'not yet' if expected else 'already'} as new after {wait} ms: {asked}"
    return len(probes)


#: What is probed, where, and how it is answered.
PROBED = [
    ("retry times", retry_probes, checked),
    ("waits", wait_probes, checked),
    ("reset times", reset_probes, checked),
    ("resets of windows", window_reset_probes, checked_on_copies),
]


def in_step(rng: random.Random, maker: traces.Maker, count: int) -> Iterator[list[Words]]:
    """The first calls of all traces, each on its own key, then the second ones, and so on; all with MS."""
    made = [maker(rng, f"k{number}", CALLS_A_TRACE) for number in range(count)]
    for calls in zip(*made):
        yield [words if "MS" in words or words[0] == "RL.RELEASE" else [*words, "MS"] for words in calls]


@pytest.mark.parametrize("name", traces.MAKERS)
def test_the_times_are_exact_to_the_millisecond(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally, name: str
) -> None:
    counts = dict.fromkeys([what for what, *_ in PROBED], 0)
    limiters = Model()
    for calls in in_step(rng, traces.MAKERS[name], TRACES // 4):
        step = []
        for words, reply in zip(calls, raw.call_all(calls)):
            expected = limiters.call(*words)
            assert reply == expected, f"{traces.shown([words])}: {reply}, model {expected}"
            if words[0] not in ("RL.RELEASE", "RL.ALL"):
                step.append(Asked(words, reply, expected, limiters.limiters.get(str(words[1]).encode())))
        raw.call_all([words for asked in step if is_told_to_wait(asked) for words in refill(asked)])
        for what, probes_of, check in PROBED:
            counts[what] += check(raw, in_range([probe for asked in step for probe in probes_of(rng, asked)]))
    assert counts["retry times"]
    assert bool(counts["waits"]) == (name == "TOKENBUCKET")
    assert bool(counts["reset times"]) == (name != "SLIDING")
    assert bool(counts["resets of windows"]) == (name in ("SLIDING", "up to the last NOW"))
    for what, count in counts.items():
        if count:
            tally.add(f"exact times of {name}", count, f"{what} probed", seed=seed)


# By hand: what the property above may miss by chance.

NOW, BEFORE = ("NOW", TODAY_MS), ("NOW", TODAY_MS - 5000)
#: Calls in a row, and the two times of the last reply.
TIMES: dict[str, tuple[list[tuple[Word, ...]], list[int]]] = {
    "a third of a token a millisecond too early": (
        [("RL.TOKENBUCKET", "k", "1", "3", *NOW)] * 2,
        [334, 334],
    ),
    "a cost above the capacity": ([("RL.TOKENBUCKET", "k", "5", "1", "COST", "5.5", *NOW)], [0, NEVER]),
    "no refill": ([("RL.TOKENBUCKET", "k", "5", "0", "COST", "5", *NOW)] * 2, [NEVER, NEVER]),
    "no refill, but full": ([("RL.TOKENBUCKET", "k", "5", "0", "COST", "0", *NOW)], [0, 0]),
    "no refill, too much asked of a full one": ([("RL.TOKENBUCKET", "k", "5", "0", "COST", "6", *NOW)], [0, NEVER]),
    "a refill that takes longer than time": ([("RL.TOKENBUCKET", "k", "1", "5e-324", *NOW)] * 2, [LATEST_TIME] * 2),
    "a refill within a millisecond": ([("RL.TOKENBUCKET", "k", "1", "1e15", *NOW)] * 2, [1, 1]),
    "a bucket of no capacity": ([("RL.TOKENBUCKET", "k", "0", "1", *NOW)], [0, NEVER]),
    "the bucket's clock went back": (
        [("RL.TOKENBUCKET", "k", "1", "1", *NOW), ("RL.TOKENBUCKET_RO", "k", "1", "1", "NOW", TODAY_MS - 5000)],
        [6000, 6000],
    ),
    "a cost above the limit": ([("RL.SLIDING", "k", "5", "60", "COST", "5.5", *NOW)], [0, NEVER]),
    "a limit of nothing": ([("RL.SLIDING", "k", "0", "60", *NOW)], [0, NEVER]),
    "the whole limit until the window after the next": (
        [("RL.SLIDING", "k", "5", "60", "COST", "5", *NOW)] * 2,
        [120_000, 120_000],
    ),
    "one of five until a fifth of the next window": (
        [("RL.SLIDING", "k", "5", "60", "COST", "5", *NOW), ("RL.SLIDING", "k", "5", "60", *NOW)],
        [120_000, 72_000],
    ),
    "a window of a millisecond": (
        [("RL.SLIDING", "k", "1", "0.001", "COST", "1", *NOW)] * 2,
        [2, 2],
    ),
    "the window's clock went back": (
        [
            ("RL.SLIDING", "k", "5", "60", "COST", "5", *NOW),
            ("RL.SLIDING", "k", "5", "60", "NOW", TODAY_MS - 600_000),
        ],
        [720_000, 672_000],
    ),
    "only the window before still counts": (
        [
            ("RL.SLIDING", "k", "5", "60", "COST", "5", *NOW),
            ("RL.SLIDING", "k", "5", "60", "COST", "5", "NOW", TODAY_MS + 60_000),
        ],
        [60_000, 60_000],
    ),
    "another window length carries the count over": (
        [("RL.SLIDING", "k", "5", "60", "COST", "5", *NOW), ("RL.SLIDING", "k", "5", "10", "COST", "1", *NOW)],
        [10_000, 2_000],
    ),
    "a preview of another length resets with the state carried over": (
        [("RL.SLIDING", "k", "5", "60", "COST", "5", *NOW), ("RL.SLIDING_RO", "k", "5", "10", "COST", "0", *NOW)],
        [10_000, 0],
    ),
    "a full bucket of the future": (
        [("RL.TOKENBUCKET", "k", "10", "1", "COST", "0", *NOW), ("RL.TOKENBUCKET_RO", "k", "10", "1", *BEFORE)],
        [0, 0],
    ),
    "the refill starts at the stored time": (
        [("RL.TOKENBUCKET", "k", "10", "1", "COST", "5", *NOW), ("RL.TOKENBUCKET_RO", "k", "10", "1", *BEFORE)],
        [10_000, 0],
    ),
    "the refill starts at the time that a write takes over": (
        [("RL.TOKENBUCKET", "k", "10", "1", "COST", "5", *NOW), ("RL.TOKENBUCKET", "k", "10", "1", "COST", "6", *BEFORE)],
        [5_000, 1_000],
    ),
}


@pytest.mark.parametrize("name", TIMES)
def test_the_times_are_those_worked_out_by_hand(raw: RawConnection, name: str) -> None:
    calls, expected = TIMES[name]
    assert TODAY_MS % 60_000 == 0, "the windows of the table start at that time"
    *_, last = raw.call_all([(*call, "MS") for call in calls])
    assert last[2:] == expected


@pytest.mark.parametrize("command", ["RL.TOKENBUCKET", "RL.TOKENBUCKET_RO", "RL.SLIDING", "RL.SLIDING_RO"])
def test_ms_changes_the_unit_of_the_times_and_nothing_else(raw: RawConnection, command: str) -> None:
    write = command.removesuffix("_RO")
    raw.call(write, "k", "5", "60", "COST", "3", *NOW)
    raw.call("COPY", "k", "other")
    for cost in ("0", "2", "3", "6"):
        call = (command, "k", "5", "60", "COST", cost, *NOW)
        in_s, in_ms = raw.call(*call), raw.call(command, "other", *call[2:], "MS")
        assert in_s[:2] == in_ms[:2]
        assert in_s[2] >= TODAY_MS // 1000 and in_ms[2] <= 120_000
        assert raw.call("GET", "k") == raw.call("GET", "other")
