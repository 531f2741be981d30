"""A call that is refused says which argument and what it accepts, and changes nothing."""

from collections.abc import Sequence

import hiredis
import pytest

from harness import refusals
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.refusals import KEY, KEYS, OTHER_KEY, Malformed, Shape
from harness.tally import Tally

#: The two keys' states before a refused call: none, or a limiter of either algorithm with a ttl.
STATES = {
    "missing": [],
    "existing": [
        ("RL.TOKENBUCKET", KEY, "10", "1", "COST", "3", "NOW", TODAY_MS),
        ("RL.TOKENBUCKET", OTHER_KEY, "10", "1", "COST", "3", "NOW", TODAY_MS),
    ],
    "existing windows": [
        ("RL.SLIDING", KEY, "10", "1", "COST", "3", "NOW", TODAY_MS),
        ("RL.SLIDING", OTHER_KEY, "10", "1", "COST", "3", "NOW", TODAY_MS),
    ],
}


def refused(observed: ObservedServer, call: Sequence[Word]) -> str:
    """The message of a call that has to be refused and to leave no trace."""
    before = observed.traces(*KEYS)
    reply = observed.connection.call(*call)
    after = observed.traces(*KEYS)
    assert isinstance(reply, hiredis.ReplyError), f"accepted: {_shown(call)} -> {reply!r}"
    assert after == before, f"{_shown(call)} changed something"
    message = str(reply)
    assert message.startswith("ERR "), f"{_shown(call)} -> {message}"
    return message


def _shown(call: Sequence[Word]) -> str:
    return " ".join(repr(word) if len(str(word)) < 80 else f"{str(word)[:40]!r}..." for word in call)


def set_up(observed: ObservedServer, state: str) -> None:
    for call in STATES[state]:
        reply = observed.connection.call(*call)
        assert reply[0] == 1, reply


def assert_values_refused(observed: ObservedServer, shape: Shape, values: list[bytes], tally: Tally) -> None:
    """Each value is refused with the argument's name and range. All that are not are shown."""
    bounds = refusals.ARGUMENTS[shape.argument][1]
    wrong = []
    for value in values:
        try:
            message = refused(observed, shape.call(value))
            lacking = [part for part in (shape.argument, *bounds) if part not in message]
            assert not lacking, f"{value[:40]!r}: {message!r} does not say {lacking}"
        except AssertionError as error:
            wrong.append(str(error).splitlines()[0])
    assert not wrong, "\n".join(wrong)
    tally.add("errors", len(values), "refused calls without a trace")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("shape", refusals.shapes(), ids=str)
def test_a_bad_value_is_refused_with_the_arguments_name_and_range(
    observed: ObservedServer, shape: Shape, state: str, tally: Tally
) -> None:
    """And changes nothing."""
    set_up(observed, state)
    assert_values_refused(observed, shape, refusals.ARGUMENTS[shape.argument][0], tally)


AMOUNT_SHAPES = [shape for shape in refusals.shapes() if shape.argument not in ("window", "numkeys")]


@pytest.mark.parametrize("shape", AMOUNT_SHAPES, ids=str)
def test_a_number_above_the_range_that_rounds_to_its_end_is_refused_too(
    observed: ObservedServer, shape: Shape, tally: Tally
) -> None:
    assert_values_refused(observed, shape, refusals.TOO_LARGE_BUT_ROUNDED, tally)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("case", refusals.malformed(), ids=lambda case: f"{case.call[0]} {case.why}")
def test_a_malformed_call_is_refused_with_what_is_wrong(
    observed: ObservedServer, case: Malformed, state: str, tally: Tally
) -> None:
    """And changes nothing."""
    set_up(observed, state)
    message = refused(observed, case.call)
    lacking = [name for name in case.names if name not in message]
    assert not lacking, f"{message!r} does not say {lacking}"
    tally.add("errors", 1, "refused calls without a trace")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("command", refusals.SINGLE_COMMANDS)
@pytest.mark.parametrize("count", range(3))
def test_too_few_arguments_are_refused_by_the_server(
    observed: ObservedServer, command: str, count: int, state: str
) -> None:
    set_up(observed, state)
    message = refused(observed, [command, *[KEY, "10"][:count]])
    assert "wrong number of arguments" in message


@pytest.mark.parametrize("argument", ["10", "1e1", "1E+1", "10.", "10.0", "0010", "100e-1", ".1e2"])
def test_every_way_to_write_a_decimal_number_is_accepted(raw: RawConnection, argument: str) -> None:
    assert raw.call("RL.TOKENBUCKET", KEY, argument, "1", "NOW", TODAY_MS) == [1, 9, TODAY_MS // 1000 + 1, 0]
    assert raw.call("RL.SLIDING", OTHER_KEY, argument, "60", "NOW", TODAY_MS)[:2] == [1, 9]


@pytest.mark.parametrize("bound", ["0", "9007199254740992"])
def test_the_ends_of_each_range_are_accepted(raw: RawConnection, bound: str) -> None:
    for position, argument in enumerate(["capacity", "refill_rate", "COST", "NOW"]):
        words = ["10", "1", "1", str(TODAY_MS)]
        words[position] = bound
        reply = raw.call("RL.TOKENBUCKET", argument, words[0], words[1], "COST", words[2], "NOW", words[3])
        assert isinstance(reply, list), f"{argument} {bound}: {reply}"
        if argument != "refill_rate":
            reply = raw.call("RL.SLIDING", f"s:{argument}", words[0], "60", "COST", words[2], "NOW", words[3])
            assert isinstance(reply, list), f"{argument} {bound}: {reply}"


@pytest.mark.parametrize("window", ["0.001", "1e-3", "9007199254740.992"])
def test_the_ends_of_the_windows_range_are_accepted(raw: RawConnection, window: str) -> None:
    assert raw.call("RL.SLIDING", KEY, "1", window, "NOW", TODAY_MS)[0] == 1
    assert raw.call("RL.SLIDING", KEY, "1", window, "NOW", TODAY_MS)[0] == 0


def test_keywords_are_accepted_in_any_case_and_order(raw: RawConnection) -> None:
    expected = raw.call("RL.TOKENBUCKET", "a", "10", "1", "COST", "3", "NOW", TODAY_MS)
    assert expected == [1, 7, TODAY_MS // 1000 + 3, 0]
    assert raw.call("RL.TOKENBUCKET", "b", "10", "1", "now", TODAY_MS, "cOsT", "3") == expected
    expected = raw.call("RL.SLIDING", "c", "10", "60", "COST", "3", "NOW", TODAY_MS)
    assert raw.call("rl.sliding", "d", "10", "60", "Now", TODAY_MS, "cost", "3") == expected
