"""With MS the two times of a reply are exact to the millisecond: denied or counted at every earlier one, not at that one.

RL_EXACT_TRACES sets how many random traces are run, RL_SEED which.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from harness import kinds, parity
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.kinds import AtLeast, Request, SlidingWindow
from harness.model import Model
from harness.parity import HIGHEST, Call
from harness.state import Bucket, Window, read_bucket, read_window
from harness.tally import Tally

TRACES = int(os.environ.get("RL_EXACT_TRACES") or 240)
CALLS_A_TRACE = 40
SATURATED = kinds.LATEST_TIME
NEVER = kinds.NEVER
EARLIER_PROBES = 4
# The model walks window by window where the clock went back: past these the probes alone decide.
MOST_WINDOWS_OF_THE_MODEL = 40
BLOCKED = "blocked"
ALWAYS_DENIED = ("TOKENBUCKET", "0", "0", "COST", "1")


@dataclass(frozen=True)
class Waited:
    """A reply in ms to a call, and the state that it left behind."""

    key: str
    call: Call
    reply: list[int]
    state: Bucket | Window | None

    def __str__(self) -> str:
        return f"{self.call} on {self.state}: {self.reply}"

    @property
    def cost(self) -> Request:
        return Request(float(self.call.cost))

    @property
    def rule(self) -> kinds.Rule:
        return kinds.KINDS[self.call.algorithm](float(self.call.first), float(self.call.second))

    def is_retry_exact(self) -> bool:
        """Whether the retry time has to be the smallest, or one that is sufficient will do."""
        return not isinstance(self.rule, SlidingWindow) or self.rule.is_retry_exact(self.state, self.call.now_ms)


def written(key: str, call: Call) -> list[Word]:
    return [*call.module_words(key), "MS"]


def previewed(key: str, call: Call, *, cost: str | None = None, after_ms: int = 0) -> list[Word]:
    """The call's preview, or that of another cost or of a later time."""
    cost = call.cost if cost is None else cost
    return [f"RL.{call.algorithm}_RO", key, call.first, call.second, "COST", cost, "NOW", call.now_ms + after_ms, "MS"]


def rule_words(call: Call) -> list[Word]:
    return [call.algorithm, call.first, call.second, "COST", call.cost]


def read_state(call: Call, value: bytes | None) -> Bucket | Window | None:
    if value is None:
        return None
    return read_window(value) if call.is_sliding else read_bucket(value)


def earlier(rng: random.Random, wait_ms: int) -> list[int]:
    """Waits from 0 to below `wait_ms`: the last one, and some of any order of magnitude."""
    if wait_ms < 1:
        return []
    some = [int(wait_ms * rng.random()) for _ in range(EARLIER_PROBES // 2)]
    some += [wait_ms - 1 - int(wait_ms * 2.0 ** -rng.uniform(1, 40)) for _ in range(EARLIER_PROBES // 2)]
    return sorted({wait_ms - 1, *(wait for wait in some if 0 <= wait < wait_ms)})


def later(rng: random.Random, now_ms: int) -> list[int]:
    """Waits up to the last NOW that there is."""
    left = HIGHEST - now_ms
    return sorted({0, left, *(int(left * rng.random()) for _ in range(2)), int(left * 2.0 ** -rng.uniform(1, 40))})


def retry_probes(rng: random.Random, waited: Waited) -> dict[int, bool]:
    """By wait: whether the same call is allowed then."""
    allowed, _, _, retry = waited.reply
    now_ms = waited.call.now_ms
    if allowed:
        assert retry == 0, waited
        return {}
    if retry == NEVER:
        return {wait: False for wait in later(rng, now_ms)}
    assert 1 <= retry <= SATURATED, waited
    # It is exact also in that it is sufficient, which no call can try beyond the last NOW.
    probes = {retry: True} if retry < SATURATED else {}
    if waited.is_retry_exact():
        probes |= {wait: False for wait in earlier(rng, retry)}
    else:
        assert retry <= until_nothing_counts(waited), waited
    return {wait: expected for wait, expected in probes.items() if now_ms + wait <= HIGHEST}


def until_nothing_counts(waited: Waited) -> int:
    """How long the stored window and the one after it take, by the length that they have."""
    assert isinstance(waited.state, Window)
    stored_rule = SlidingWindow(float(waited.call.first), waited.state.window_s)
    return stored_rule.reset_after_ms(waited.state, waited.call.now_ms)


def reset_probes(rng: random.Random, waited: Waited) -> dict[int, bool]:
    """By wait: whether the limiter is as good as new then."""
    reset, now_ms = waited.reply[2], waited.call.now_ms
    if reset == NEVER:
        assert not waited.call.is_sliding, waited
        return {wait: False for wait in later(rng, now_ms)}
    assert 0 <= reset <= SATURATED, waited
    probes = {reset: True} if reset < SATURATED else {}
    probes |= {wait: False for wait in earlier(rng, reset)}
    return {wait: expected for wait, expected in probes.items() if now_ms + wait <= HIGHEST}


def check_retries(raw: RawConnection, rng: random.Random, replies: list[Waited]) -> int:
    """Tries each retry time on the very state that the call left, by previews, which do not disturb it."""
    probes = [(waited, wait, expected) for waited in replies for wait, expected in retry_probes(rng, waited).items()]
    answers = raw.call_all([previewed(waited.key, waited.call, after_ms=wait) for waited, wait, _ in probes])
    for (waited, wait, expected), answer in zip(probes, answers):
        assert answer[0] == int(expected), f"{'denied' if expected else 'allowed'} after {wait} ms: {waited}"
    return len(probes)


def check_retries_by_the_call_itself(raw: RawConnection, replies: list[Waited]) -> int:
    """As above by the write form, on copies: at the retry time and the millisecond before."""
    commands, expectations = [], []
    for waited in replies:
        allowed, _, _, retry = waited.reply
        if allowed or waited.state is None or retry in (NEVER, SATURATED) or waited.call.now_ms + retry > HIGHEST:
            continue
        for wait, expected in [(retry, 1)] + [(retry - 1, 0)] * waited.is_retry_exact():
            at = parity.replace(waited.call, now_ms=waited.call.now_ms + wait)
            commands += [("COPY", waited.key, "copy", "REPLACE"), at.module_words("copy")]
            expectations.append((waited, wait, expected))
    answers = raw.call_all(commands)
    for (waited, wait, expected), copied, answer in zip(expectations, answers[::2], answers[1::2]):
        assert (copied, answer[0]) == (1, expected), f"after {wait} ms: {waited}"
    return len(expectations)


def check_resets(raw: RawConnection, rng: random.Random, replies: list[Waited]) -> int:
    """A bucket is full when it allows its capacity. A window counts nothing when a call of cost 0,
    on a copy, finds both counters at 0."""
    probes = [(waited, wait, expected) for waited in replies for wait, expected in reset_probes(rng, waited).items()]
    commands: list[list[Word]] = []
    for waited, wait, _ in probes:
        if waited.call.is_sliding:
            at = parity.replace(waited.call, cost="0", now_ms=waited.call.now_ms + wait)
            copied = [["COPY", waited.key, "copy", "REPLACE"], at.module_words("copy"), ["GET", "copy"]]
            commands += [["DEL", "copy"], *copied]
        else:
            commands.append(previewed(waited.key, waited.call, cost=waited.call.first, after_ms=wait))
    answers = iter(raw.call_all(commands))
    for waited, wait, expected in probes:
        if waited.call.is_sliding:
            *_, value = (next(answers) for _ in range(4))
            counters = read_window(value)
            is_new = counters.prev == counters.curr == 0
        else:
            is_new = next(answers)[0] == 1
        assert is_new == expected, f"{'not yet' if expected else 'already'} as new after {wait} ms: {waited}"
    return len(probes)


def compare_with_the_model(limiters: Model, words: list[Word], waited: Waited) -> bool:
    """The model says the same; whether it could say all four to the millisecond."""
    expected = limiters.call(*map(str, words))
    assert waited.reply == expected, f"model {expected}: {waited}"
    return not isinstance(expected[3], AtLeast)


def in_step(rng: random.Random, traces: int) -> Iterator[list[tuple[str, Call]]]:
    """The first calls of all traces, each on a key of its own, then the second ones, and so on."""
    random_traces = [parity.random_trace(rng, CALLS_A_TRACE) for _ in range(traces)]
    for calls in zip(*random_traces):
        yield [(f"k{number}", call) for number, call in enumerate(calls)]


@pytest.fixture
def limiters(monkeypatch: pytest.MonkeyPatch) -> Model:
    monkeypatch.setattr(kinds, "MOST_WINDOWS", MOST_WINDOWS_OF_THE_MODEL)
    return Model()


def ask(raw: RawConnection, words: list[list[Word]], step: list[tuple[str, Call]]) -> list[Waited]:
    """Sends the words, one command for each call of the step, and reads the states afterwards."""
    replies = raw.call_all(words)
    values = raw.call_all([("GET", key) for key, _ in step])
    for command, reply in zip(words, replies):
        assert isinstance(reply, list), f"{command}: {reply!r}"
    return [
        Waited(key, call, reply, read_state(call, value))
        for (key, call), reply, value in zip(step, replies, values)
    ]


def test_a_call_is_denied_until_its_retry_time_and_a_limiter_is_as_new_from_its_reset_on_and_not_before(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally, limiters: Model
) -> None:
    counts = dict.fromkeys(("replies", "equal", "denied", "never", "retries", "on copies", "resets"), 0)
    for step in in_step(rng, TRACES):
        words = [written(key, call) for key, call in step]
        replies = ask(raw, words, step)
        counts["replies"] += len(replies)
        counts["denied"] += sum(1 - waited.reply[0] for waited in replies)
        counts["never"] += sum(waited.reply[3] == NEVER for waited in replies)
        counts["equal"] += sum(map(compare_with_the_model, [limiters] * len(step), words, replies))
        counts["retries"] += check_retries(raw, rng, replies)
        counts["on copies"] += check_retries_by_the_call_itself(raw, replies)
        counts["resets"] += check_resets(raw, rng, replies)
    assert all(counts.values()), counts
    tally.add("exact times", counts["replies"], "calls with MS", seed=seed)
    tally.add("exact times", counts["equal"], "replies equal to the model's")
    tally.add("exact times", counts["denied"], "denials")
    tally.add("exact times", counts["retries"] + counts["on copies"], "retry times probed")
    tally.add("exact times", counts["resets"], "reset times probed")


def is_of_its_length(waited: Waited) -> bool:
    return not isinstance(waited.state, Window) or waited.state.window_s == float(waited.call.second)


def test_previews_and_refused_alls_count_from_the_untouched_state(
    raw: RawConnection, rng: random.Random, seed: str, tally: Tally, limiters: Model
) -> None:
    """In particular where NOW lies before the stored time. Only the reset of a window of another length is
    that of the state carried over to now."""
    denied = before_the_stored_time = 0
    for step in in_step(rng, TRACES // 2):
        words = [previewed(key, call) for key, call in step]
        previews = ask(raw, words, step)
        for waited, command in zip(previews, words):
            compare_with_the_model(limiters, command, waited)
        denied += sum(1 - waited.reply[0] for waited in previews)
        probed = check_retries(raw, rng, previews)
        tally.add("exact times", probed, "retry times of previews probed", seed=seed)
        resets = check_resets(raw, rng, [waited for waited in previews if is_of_its_length(waited)])
        tally.add("exact times", resets, "reset times of previews probed")
        before_the_stored_time += sum(
            isinstance(waited.state, Bucket) and waited.call.now_ms < waited.state.last_ms for waited in previews
        )
        of_one = raw.call_all([("RL.ALL_RO", 1, key, *rule_words(call), "NOW", call.now_ms, "MS") for key, call in step])
        assert of_one == [[waited.reply[0], waited.reply] for waited in previews]
        refused = raw.call_all(
            [
                ("RL.ALL", 2, key, BLOCKED, *rule_words(call), *ALWAYS_DENIED, "NOW", call.now_ms, "MS")
                for key, call in step
            ]
        )
        assert refused == [[0, waited.reply, [0, 0, 0, NEVER]] for waited in previews]
        # On to the next state.
        raw.call_all([call.module_words(key) for key, call in step])
        for key, call in step:
            limiters.call(*map(str, call.module_words(key)))
    assert denied and before_the_stored_time


def test_all_gives_exact_times_when_it_allows(raw: RawConnection, rng: random.Random, tally: Tally) -> None:
    for step in in_step(rng, TRACES // 4):
        words = [("RL.ALL", 1, key, *rule_words(call), "NOW", call.now_ms, "MS") for key, call in step]
        replies = raw.call_all(words)
        states = raw.call_all([("GET", key) for key, _ in step])
        allowed = [
            Waited(key, call, reply[1], read_state(call, value))
            for (key, call), reply, value in zip(step, replies, states)
            if reply[0]
        ]
        tally.add("exact times", check_resets(raw, rng, allowed), "reset times of RL.ALL probed")


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
    "a refill that takes longer than time": ([("RL.TOKENBUCKET", "k", "1", "5e-324", *NOW)] * 2, [SATURATED] * 2),
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
