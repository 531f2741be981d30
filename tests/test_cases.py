"""Cases that other rate limiters got wrong, each from the issue that its source names."""

import json
from pathlib import Path

import pytest

from harness.connection import RawConnection

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())


def lacking(raw: RawConnection, case: dict) -> list[str]:
    """The commands of the case that the server does not have."""
    names = sorted({call[0] for call in case["calls"]})
    return [name for name, info in zip(names, raw.call("COMMAND", "INFO", *names)) if info is None]


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(raw: RawConnection, case: dict) -> None:
    if missing := lacking(raw, case):
        pytest.skip(f"the server has no {', '.join(missing)}")
    assert len(case["calls"]) == len(case["replies"])
    for number, (call, expected) in enumerate(zip(case["calls"], case["replies"]), 1):
        reply = raw.call(*call)
        assert reply == expected, f"call {number}, {' '.join(call)}\n{case['why']} ({case['source']})"
