"""Cases that other rate limiters got wrong, each from the report that its source names, and cases worked
out by hand from docs/design.md."""

import json
from pathlib import Path

import hiredis
import pytest

from harness.command_table import command_docs, flattened
from harness.connection import RawConnection

FILES = ("cases.json", "cases-kinds.json")
CASES = [case for name in FILES for case in json.loads((Path(__file__).parent / name).read_text())]
#: Commands and keywords that the server may lack. A case that needs another one that is lacking fails.
NOT_YET = {
    *("RL.QUOTA", "RL.QUOTA_RO", "RL.CONCURRENCY", "RL.CONCURRENCY_RO", "RL.RELEASE", "QUOTA", "CONCURRENCY"),
    *("FORCE", "MAXWAIT", "ATLEAST", "SHADOW"),
}


def lacking(raw: RawConnection, case: dict) -> list[str]:
    """The commands and keywords of the case that are not there yet."""
    wanted = sorted({(call[0], word) for call in case["calls"] for word in map(str.upper, call) if word in NOT_YET})
    commands = sorted({command for command, _ in wanted})
    present = [command for command in commands if raw.call("COMMAND", "INFO", command) != [None]]
    known = {(command, keyword) for command in present for keyword in (command, *keywords(raw, command))}
    return sorted({word for command, word in wanted if (command, word) not in known})


def keywords(raw: RawConnection, command: str) -> set[str]:
    """The keywords that are documented for the command."""
    arguments = flattened(command_docs(raw, command)[b"arguments"])
    return {argument[b"token"].decode() for argument in arguments if b"token" in argument}


def shown(reply: object) -> object:
    """An error as the cases write it: by its first word."""
    return f"-{str(reply).split()[0]}" if isinstance(reply, hiredis.ReplyError) else reply


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(raw: RawConnection, case: dict) -> None:
    if missing := lacking(raw, case):
        pytest.skip(f"the server lacks {', '.join(missing)}")
    assert len(case["calls"]) == len(case["replies"])
    for number, (call, expected) in enumerate(zip(case["calls"], case["replies"]), 1):
        reply = raw.call(*call)
        assert shown(reply) == expected, f"call {number}, {' '.join(call)}: {reply}\n{case['why']} ({case['source']})"


def test_each_case_has_a_name_of_its_own() -> None:
    assert len({case["name"] for case in CASES}) == len(CASES)
