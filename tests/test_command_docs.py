"""COMMAND DOCS and COMMAND INFO describe each of the six commands, so that clients can check calls and show hints."""

import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hiredis
import pytest

from harness.command_table import command_docs, command_info, pairs
from harness.connection import RawConnection
from harness.server import Server, server_executable

SINCE = b"0.1.0"

#: An argument as (name, type, keyword, flags, parts).
Argument = tuple[str, str, str | None, frozenset[str], tuple]


def argument(name: str, kind: str, token: str | None = None, flags: str = "", parts: tuple = ()) -> Argument:
    return name, kind, token, frozenset(flags.split()), parts


KEY = argument("key", "key")
KEYS = argument("key", "key", flags="multiple")
NUMKEYS = argument("numkeys", "integer")
CAPACITY, REFILL_RATE = argument("capacity", "double"), argument("refill_rate", "double")
LIMIT, WINDOW = argument("limit", "double"), argument("window", "double")
OPTIONAL_COST = argument("cost", "double", "COST", "optional")
AT = argument("unix_ms", "unix-time", "AT", "optional")
COST_OR_REFUND = argument(
    "request",
    "oneof",
    flags="optional",
    parts=(
        argument("cost", "double", "COST"),
        argument("refund", "block", "REFUND", parts=(argument("amount", "double"), AT)),
    ),
)
NOW = argument("unix_ms", "unix-time", "NOW", "optional")
MS = argument("ms", "pure-token", "MS", "optional")
ALGORITHM = argument(
    "algorithm",
    "oneof",
    parts=(
        argument("token_bucket", "block", "TOKENBUCKET", parts=(CAPACITY, REFILL_RATE)),
        argument("sliding", "block", "SLIDING", parts=(LIMIT, WINDOW)),
    ),
)
RULES = argument("rule", "block", flags="multiple", parts=(ALGORITHM, COST_OR_REFUND))
PREVIEW_RULES = argument("rule", "block", flags="multiple", parts=(ALGORITHM, OPTIONAL_COST))

ARGUMENTS: dict[str, tuple[Argument, ...]] = {
    "RL.TOKENBUCKET": (KEY, CAPACITY, REFILL_RATE, COST_OR_REFUND, NOW, MS),
    "RL.TOKENBUCKET_RO": (KEY, CAPACITY, REFILL_RATE, OPTIONAL_COST, NOW, MS),
    "RL.SLIDING": (KEY, LIMIT, WINDOW, COST_OR_REFUND, NOW, MS),
    "RL.SLIDING_RO": (KEY, LIMIT, WINDOW, OPTIONAL_COST, NOW, MS),
    "RL.ALL": (NUMKEYS, KEYS, RULES, NOW, MS),
    "RL.ALL_RO": (NUMKEYS, KEYS, PREVIEW_RULES, NOW, MS),
}
COMMANDS = list(ARGUMENTS)
#: The command's name, its key or numkeys with a key, and one rule without its options.
LEAST_WORDS = {command: 6 if command.startswith("RL.ALL") else 4 for command in COMMANDS}
COMPLEXITY = {
    command: b"O(N*log(N)) where N is the number of keys." if command.startswith("RL.ALL") else b"O(1)"
    for command in COMMANDS
}


def is_preview(command: str) -> bool:
    return command.endswith("_RO")


def is_all(command: str) -> bool:
    return command.startswith("RL.ALL")


def documented(flat: list) -> Argument:
    fields = pairs(flat)
    token = fields.get(b"token")
    return (
        fields[b"name"].decode(),
        fields[b"type"].decode(),
        token.decode() if token else None,
        frozenset(flag.decode() for flag in fields.get(b"flags", [])),
        tuple(documented(part) for part in fields.get(b"arguments", [])),
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_the_arguments_are_documented_with_their_keywords_choices_and_repeated_rules(
    raw: RawConnection, command: str
) -> None:
    assert tuple(map(documented, command_docs(raw, command)[b"arguments"])) == ARGUMENTS[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_only_the_key_refers_to_the_key_spec(raw: RawConnection, command: str) -> None:
    arguments = [pairs(flat) for flat in command_docs(raw, command)[b"arguments"]]
    indices = {fields[b"name"]: fields[b"key_spec_index"] for fields in arguments if b"key_spec_index" in fields}
    assert indices == {b"key": 0}


@pytest.mark.parametrize("command", COMMANDS)
def test_summary_since_complexity_and_module_are_documented(raw: RawConnection, command: str) -> None:
    docs = command_docs(raw, command)
    assert docs[b"since"] == SINCE
    assert docs[b"complexity"] == COMPLEXITY[command]
    assert docs[b"module"] == b"rl"
    summary = docs[b"summary"].decode()
    assert summary[0].isupper() and summary.endswith(".") and "\n" not in summary


def test_each_command_has_a_summary_of_its_own_and_a_previews_names_the_command_that_it_previews(
    raw: RawConnection,
) -> None:
    summaries = {command: command_docs(raw, command)[b"summary"].decode() for command in COMMANDS}
    assert len(set(summaries.values())) == len(COMMANDS)
    for command in filter(is_preview, COMMANDS):
        assert f"what {command.removesuffix('_RO')} would" in summaries[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_arity_is_that_of_the_shortest_call_which_is_accepted_and_none_shorter(
    raw: RawConnection, command: str
) -> None:
    assert command_info(raw, command)[1] == -LEAST_WORDS[command]
    shortest = (command, 1, "k", "SLIDING", "10", "60") if is_all(command) else (command, "k", "10", "60")
    assert len(shortest) == LEAST_WORDS[command]
    assert isinstance(raw.call(*shortest), list)
    for count in range(1, len(shortest)):
        reply = raw.call(*shortest[:count])
        assert isinstance(reply, hiredis.ReplyError) and "wrong number of arguments" in str(reply)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_are_those_of_a_fast_command_that_reads_or_that_writes(raw: RawConnection, command: str) -> None:
    flags = {flag.decode() for flag in command_info(raw, command)[2]}
    expected = {"module", "fast"} | ({"readonly"} if is_preview(command) else {"write", "denyoom"})
    # Without it a cluster would not look at the keys of a call with a number of them.
    assert flags == expected | ({"movablekeys"} if is_all(command) else set())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_key_spec_says_where_the_keys_are_and_what_is_done_to_them(raw: RawConnection, command: str) -> None:
    (spec,) = (pairs(spec) for spec in command_info(raw, command)[8])
    expected = {b"RO", b"access"} if is_preview(command) else {b"RW", b"access", b"update"}
    assert set(spec[b"flags"]) == expected
    begin, find = pairs(spec[b"begin_search"]), pairs(spec[b"find_keys"])
    assert (begin[b"type"], pairs(begin[b"spec"])) == (b"index", {b"index": 1})
    if is_all(command):
        assert (find[b"type"], pairs(find[b"spec"])) == (b"keynum", {b"keynumidx": 0, b"firstkey": 1, b"keystep": 1})
    else:
        assert (find[b"type"], pairs(find[b"spec"])) == (b"range", {b"lastkey": 0, b"keystep": 1, b"limit": 0})


# Hints while typing

HINTS: dict[str, str] = {
    "RL.TOKENBUCKET ": "key capacity refill_rate [COST cost|REFUND amount [AT unix_ms]] [NOW unix_ms] [MS]",
    "RL.TOKENBUCKET_RO ": "key capacity refill_rate [COST cost] [NOW unix_ms] [MS]",
    "RL.SLIDING k ": "limit window [COST cost|REFUND amount [AT unix_ms]] [NOW unix_ms] [MS]",
    "RL.SLIDING_RO k 10 ": "window [COST cost] [NOW unix_ms] [MS]",
    "RL.ALL ": (
        "numkeys key [key ...] "
        "TOKENBUCKET capacity refill_rate|SLIDING limit window [COST cost|REFUND amount [AT unix_ms]] "
        "[TOKENBUCKET capacity refill_rate|SLIDING limit window [COST cost|REFUND amount [AT unix_ms]] ...] "
        "[NOW unix_ms] [MS]"
    ),
    "RL.ALL_RO ": (
        "numkeys key [key ...] "
        "TOKENBUCKET capacity refill_rate|SLIDING limit window [COST cost] "
        "[TOKENBUCKET capacity refill_rate|SLIDING limit window [COST cost] ...] "
        "[NOW unix_ms] [MS]"
    ),
}
READ_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 20
# Wide enough for a hint on one line.
ROWS, COLUMNS = 50, 500
CLEAR_LINE = b"\x15"
#: Colours and movements of a terminal.
ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
FIRST_WITH_HINTS_OF_MODULES = 7


def cli_executable() -> str | None:
    """The redis-cli of the server under test, or the one in the path."""
    beside = Path(server_executable()).with_name("cli")
    return str(beside) if beside.is_file() else shutil.which("redis-cli")


class Terminal:
    """A program that believes that somebody types."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.shown = ""

    def type(self, keys: bytes) -> None:
        os.write(self._descriptor, keys)

    def shows(self, text: str) -> bool:
        """Whether it shows the text, at last."""
        while text not in ESCAPES.sub("", self.shown):
            ready, _, _ = select.select([self._descriptor], [], [], ANSWER_TIMEOUT_S)
            if not ready:
                return False
            self.shown += os.read(self._descriptor, READ_BYTES).decode(errors="replace")
        return True


@contextmanager
def typing_in(*command: str) -> Iterator[Terminal]:
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    # A terminal that can place its cursor, without anyone's settings or history.
    environment = {"TERM": "xterm", "HOME": os.devnull, "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(mine)
    finally:
        process.kill()
        process.wait()
        os.close(mine)


def test_redis_cli_shows_what_may_follow_while_one_types(server: Server) -> None:
    cli = cli_executable()
    if cli is None:
        pytest.skip("no redis-cli")
    version = subprocess.run([cli, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(re.search(r"(\d+)\.\d+", version)[1])
    if major < FIRST_WITH_HINTS_OF_MODULES:
        pytest.skip(f"no hints for the commands of modules: {version}")
    with typing_in(cli, "-p", str(server.port)) as terminal:
        assert terminal.shows("> "), terminal.shown
        for typed, hint in HINTS.items():
            terminal.shown = ""
            terminal.type(CLEAR_LINE + typed.encode())
            assert terminal.shows(f"> {typed}{hint}\r"), f"{typed!r}: {terminal.shown}"
