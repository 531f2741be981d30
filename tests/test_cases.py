"""Cases that other rate limiters got wrong, each from the report that its source names, and cases worked
out by hand from docs/design.md."""

import json
from pathlib import Path

import hiredis
import pytest

from harness.connection import RawConnection

FILES = ("cases.json", "cases-kinds.json")
CASES = [case for name in FILES for case in json.loads((Path(__file__).parent / name).read_text())]


def shown(reply: object) -> object:
    """An error as the cases write it: by its first word."""
    return f"-{str(reply).split()[0]}" if isinstance(reply, hiredis.ReplyError) else reply


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(raw: RawConnection, case: dict) -> None:
    assert len(case["calls"]) == len(case["replies"])
    for number, (call, expected) in enumerate(zip(case["calls"], case["replies"]), 1):
        reply = raw.call(*call)
        assert shown(reply) == expected, f"call {number}, {' '.join(call)}: {reply}\n{case['why']} ({case['source']})"


def test_each_case_has_a_name_of_its_own() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES)
