"""COMMAND DOCS and COMMAND INFO describe each command, so that clients can check calls and show hints."""

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
from harness.connection import RawConnection, Word
from harness.server import Server, server_executable

FIRST_COMMANDS = {
    *(f"RL.{name}{form}" for name in ("TOKENBUCKET", "SLIDING", "ALL") for form in ("", "_RO")),
    "CL.THROTTLE",
}

#: An argument as (name, type, keyword, flags, parts).
Argument = tuple[str, str, str | None, frozenset[str], tuple]


def argument(name: str, kind: str, token: str | None = None, flags: str = "", parts: tuple = ()) -> Argument:
    return name, kind, token, frozenset(flags.split()), parts


KEY = argument("key", "key")
KEYS = argument("key", "key", flags="multiple")
NUMKEYS = argument("numkeys", "integer")
CAPACITY, REFILL_RATE = argument("capacity", "double"), argument("refill_rate", "double")
LIMIT, WINDOW = argument("limit", "double"), argument("window", "double")
MAX_LEASES, LEASE = argument("limit", "integer"), argument("lease", "double")
MIN = argument("min", "integer", "ATLEAST", "optional")
AT = argument("unix_ms", "unix-time", "AT", "optional")
ANCHOR = argument("unix_ms", "unix-time", "ANCHOR", "optional")
UNITS = tuple(argument(unit.lower(), "pure-token", unit) for unit in ("DAY", "WEEK", "MONTH", "YEAR"))
PERIOD = argument(
    "period",
    "oneof",
    parts=(
        argument("length", "block", parts=(argument("seconds", "double"), ANCHOR)),
        argument("calendar", "block", parts=(argument("unit", "oneof", parts=UNITS), ANCHOR)),
        argument("unix_ms", "unix-time", "UNTIL"),
    ),
)
COST = argument("cost", "double", "COST")
COST_OR_PART = argument("cost", "block", "COST", parts=(argument("cost", "double"), MIN))
FORCE = argument("cost", "double", "FORCE")
REFUND = argument("refund", "block", "REFUND", parts=(argument("amount", "double"), AT))


def optional(documented: Argument) -> Argument:
    name, kind, token, flags, parts = documented
    return name, kind, token, flags | {"optional"}, parts


REQUEST = argument("request", "oneof", flags="optional", parts=(COST_OR_PART, FORCE, REFUND))
RULE_REQUEST = argument("request", "oneof", flags="optional", parts=(COST, FORCE, REFUND))
PART = optional(COST_OR_PART)
MAXWAIT = argument("seconds", "double", "MAXWAIT", "optional")
ID, XX = argument("id", "string", "ID"), argument("xx", "pure-token", "XX", "optional")
IDS = argument("id", "string", flags="multiple")
CALL_ID = argument("lease", "block", "ID", "optional", parts=(argument("id", "string"), XX))
SHADOW = argument("shadow", "pure-token", "SHADOW", "optional")
RELEASE = argument("release", "pure-token", "RELEASE", "optional")
MAX_BURST, COUNT = argument("max_burst", "integer"), argument("count", "integer")
THROTTLE_PERIOD, QUANTITY = argument("period", "integer"), argument("quantity", "integer", flags="optional")
NOW = argument("unix_ms", "unix-time", "NOW", "optional")
MS = argument("ms", "pure-token", "MS", "optional")


def rules(request: Argument, *more: Argument) -> Argument:
    """A rule of any kind, repeated."""
    kinds = {
        "token_bucket": ("TOKENBUCKET", CAPACITY, REFILL_RATE, request, SHADOW),
        "sliding": ("SLIDING", LIMIT, WINDOW, request, SHADOW),
        "quota": ("QUOTA", LIMIT, PERIOD, request, SHADOW),
        "concurrency": ("CONCURRENCY", MAX_LEASES, LEASE, *more, SHADOW),
    }
    blocks = tuple(argument(name, "block", token, parts=tuple(parts)) for name, (token, *parts) in kinds.items())
    return argument("rule", "oneof", flags="multiple", parts=blocks)


ARGUMENTS: dict[str, tuple[Argument, ...]] = {
    "RL.TOKENBUCKET": (KEY, CAPACITY, REFILL_RATE, REQUEST, MAXWAIT, NOW, MS),
    "RL.TOKENBUCKET_RO": (KEY, CAPACITY, REFILL_RATE, PART, MAXWAIT, NOW, MS),
    "RL.SLIDING": (KEY, LIMIT, WINDOW, REQUEST, NOW, MS),
    "RL.SLIDING_RO": (KEY, LIMIT, WINDOW, PART, NOW, MS),
    "RL.QUOTA": (KEY, LIMIT, PERIOD, REQUEST, NOW, MS),
    "RL.QUOTA_RO": (KEY, LIMIT, PERIOD, PART, NOW, MS),
    "RL.CONCURRENCY": (KEY, MAX_LEASES, LEASE, ID, XX, NOW, MS),
    "RL.CONCURRENCY_RO": (KEY, MAX_LEASES, LEASE, ID, XX, NOW, MS),
    "RL.RELEASE": (KEY, IDS),
    "RL.ALL": (NUMKEYS, KEYS, rules(RULE_REQUEST, RELEASE), CALL_ID, MAXWAIT, NOW, MS),
    "RL.ALL_RO": (NUMKEYS, KEYS, rules(optional(COST)), CALL_ID, MAXWAIT, NOW, MS),
    "CL.THROTTLE": (KEY, MAX_BURST, COUNT, THROTTLE_PERIOD, QUANTITY),
}
COMMANDS = list(ARGUMENTS)
#: The shortest call of each command.
SHORTEST: dict[str, tuple[Word, ...]] = {
    **{command: (command, "k", "10", "60") for command in COMMANDS},
    **{command: (command, "k", "10", "60", "ID", "x") for command in ("RL.CONCURRENCY", "RL.CONCURRENCY_RO")},
    **{command: (command, 1, "k", "SLIDING", "10", "60") for command in ("RL.ALL", "RL.ALL_RO")},
    "RL.RELEASE": ("RL.RELEASE", "k", "x"),
    "CL.THROTTLE": ("CL.THROTTLE", "k", "15", "30", "60"),
}
OF_ALL = b"O(N*log(N)) where N is the number of keys, and that of RL.CONCURRENCY for each of its rules."
OF_LEASES = (
    b"O(log(N)+M) where N is the number of leases and M the number of those that have ended,"
    b" O(N) up to zset-max-listpack-entries."
)
COMPLEXITY = {
    **dict.fromkeys(COMMANDS, b"O(1)"),
    **dict.fromkeys(("RL.ALL", "RL.ALL_RO"), OF_ALL),
    **dict.fromkeys(("RL.CONCURRENCY", "RL.CONCURRENCY_RO"), OF_LEASES),
    "RL.RELEASE": b"O(M*log(N)) where M is the number of ids and N the number of leases.",
}


@pytest.fixture(scope="module")
def with_all_commands() -> Iterator[Server]:
    """A server with the command that is opt-in too."""
    with Server(module_args=("cl-throttle", "yes")) as server:
        yield server


@pytest.fixture
def raw(with_all_commands: Server) -> Iterator[RawConnection]:
    with with_all_commands.raw_connection() as connection:
        connection.call("FLUSHALL")
        yield connection


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
def test_the_arguments_are_documented_with_keywords_choices_and_rules(
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
    assert docs[b"since"] == (b"0.1.0" if command in FIRST_COMMANDS else b"0.2.0")
    assert docs[b"complexity"] == COMPLEXITY[command]
    assert docs[b"module"] == b"rl"
    summary = docs[b"summary"].decode()
    assert summary[0].isupper() and summary.endswith(".") and "\n" not in summary


def test_each_command_has_a_summary_of_its_own(
    raw: RawConnection,
) -> None:
    """That of a preview names the command that it previews."""
    summaries = {command: command_docs(raw, command)[b"summary"].decode() for command in COMMANDS}
    assert len(set(summaries.values())) == len(COMMANDS)
    for command in filter(is_preview, COMMANDS):
        assert f"what {command.removesuffix('_RO')} would" in summaries[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_arity_is_that_of_the_shortest_call(
    raw: RawConnection, command: str
) -> None:
    """Which is accepted, and none shorter."""
    shortest = SHORTEST[command]
    assert command_info(raw, command)[1] == -len(shortest)
    assert not isinstance(raw.call(*shortest), hiredis.ReplyError)
    for count in range(1, len(shortest)):
        reply = raw.call(*shortest[:count])
        assert isinstance(reply, hiredis.ReplyError) and "wrong number of arguments" in str(reply)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_flags_are_those_of_a_fast_command_that_reads_or_that_writes(raw: RawConnection, command: str) -> None:
    flags = {flag.decode() for flag in command_info(raw, command)[2]}
    expected = {"module", "fast"} | ({"readonly"} if is_preview(command) else {"write", "denyoom"})
    if command == "RL.RELEASE":
        # It frees memory, so it has to work when there is none left.
        expected.remove("denyoom")
    # Without it a cluster would not look at the keys of a call with a number of them.
    assert flags == expected | ({"movablekeys"} if is_all(command) else set())


@pytest.mark.parametrize("command", COMMANDS)
def test_the_key_spec_says_where_the_keys_are_and_what_is_done_to_them(raw: RawConnection, command: str) -> None:
    info = command_info(raw, command)
    if not is_all(command):
        assert info[3:6] == [1, 1, 1]
    (spec,) = (pairs(spec) for spec in info[8])
    expected = {b"RO", b"access"} if is_preview(command) else {b"RW", b"access", b"update"}
    if command == "RL.RELEASE":
        expected = {b"RW", b"delete"}
    assert set(spec[b"flags"]) == expected
    begin, find = pairs(spec[b"begin_search"]), pairs(spec[b"find_keys"])
    assert (begin[b"type"], pairs(begin[b"spec"])) == (b"index", {b"index": 1})
    if is_all(command):
        assert (find[b"type"], pairs(find[b"spec"])) == (b"keynum", {b"keynumidx": 0, b"firstkey": 1, b"keystep": 1})
    else:
        assert (find[b"type"], pairs(find[b"spec"])) == (b"range", {b"lastkey": 0, b"keystep": 1, b"limit": 0})


def test_the_module_is_loaded_under_its_name(raw: RawConnection) -> None:
    modules = [pairs(module) for module in raw.call("MODULE", "LIST")]
    assert b"rl" in [module[b"name"] for module in modules]


def test_getkeys_of_a_call_without_a_key_is_an_error(raw: RawConnection) -> None:
    assert isinstance(raw.call("COMMAND", "GETKEYS", "RL.TOKENBUCKET"), hiredis.ReplyError)


# Tips for clients

CHANGES_WITH_TIME = b"nondeterministic_output"


def test_every_preview_and_no_other_command_is_tipped_not_to_be_cached(raw: RawConnection) -> None:
    """A preview's answer changes with time alone, without a write that would invalidate a cached one."""
    names = [name.decode().upper() for name in raw.call("COMMAND", "LIST", "FILTERBY", "MODULE", "rl")]
    assert {"RL.TOKENBUCKET", "RL.TOKENBUCKET_RO", "RL.SLIDING_RO", "RL.ALL", "RL.ALL_RO", "CL.THROTTLE"} <= set(names)
    for name in names:
        tips = command_info(raw, name)[7]
        assert (CHANGES_WITH_TIME in tips) == name.endswith("_RO"), f"{name}: {tips}"
        # Not every server repeats them here.
        assert command_docs(raw, name).get(b"tips", tips) == tips


# Hints while typing

REFUNDED = "REFUND amount [AT unix_ms]"
REQUESTED = f"[COST cost [ATLEAST min]|FORCE cost|{REFUNDED}]"
PERIODS = "seconds [ANCHOR unix_ms]|DAY|WEEK|MONTH|YEAR [ANCHOR unix_ms]|UNTIL unix_ms"


def rules_hint(request: str, release: str = "") -> str:
    rule = (
        f"TOKENBUCKET capacity refill_rate {request} [SHADOW]|SLIDING limit window {request} [SHADOW]|"
        f"QUOTA limit {PERIODS} {request} [SHADOW]|CONCURRENCY limit lease {release}[SHADOW]"
    )
    return f"numkeys key [key ...] {rule} [{rule} ...] [ID id [XX]] [MAXWAIT seconds] [NOW unix_ms] [MS]"


HINTS: dict[str, str] = {
    "RL.TOKENBUCKET ": f"key capacity refill_rate {REQUESTED} [MAXWAIT seconds] [NOW unix_ms] [MS]",
    "RL.TOKENBUCKET_RO ": "key capacity refill_rate [COST cost [ATLEAST min]] [MAXWAIT seconds] [NOW unix_ms] [MS]",
    "RL.SLIDING k ": f"limit window {REQUESTED} [NOW unix_ms] [MS]",
    "RL.SLIDING_RO k 10 ": "window [COST cost [ATLEAST min]] [NOW unix_ms] [MS]",
    "RL.QUOTA k 10 ": f"{PERIODS} {REQUESTED} [NOW unix_ms] [MS]",
    "RL.QUOTA_RO k ": f"limit {PERIODS} [COST cost [ATLEAST min]] [NOW unix_ms] [MS]",
    "RL.CONCURRENCY ": "key limit lease ID id [XX] [NOW unix_ms] [MS]",
    "RL.CONCURRENCY_RO k 10 ": "lease ID id [XX] [NOW unix_ms] [MS]",
    "RL.RELEASE ": "key id [id ...]",
    "RL.ALL ": rules_hint(f"[COST cost|FORCE cost|{REFUNDED}]", "[RELEASE] "),
    "RL.ALL_RO ": rules_hint("[COST cost]"),
    "CL.THROTTLE ": "key max_burst count period [quantity]",
}
READ_BYTES = 1 << 16
ANSWER_TIMEOUT_S = 20
# Wide enough for a hint on one line.
ROWS, COLUMNS = 50, 2000
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


def test_redis_cli_shows_what_may_follow_while_one_types(with_all_commands: Server) -> None:
    cli = cli_executable()
    if cli is None:
        pytest.skip("no redis-cli")
    version = subprocess.run([cli, "--version"], capture_output=True, text=True, check=True).stdout
    major = int(re.search(r"(\d+)\.\d+", version)[1])
    if major < FIRST_WITH_HINTS_OF_MODULES:
        pytest.skip(f"no hints for the commands of modules: {version}")
    with typing_in(cli, "-p", str(with_all_commands.port)) as terminal:
        assert terminal.shows("> "), terminal.shown
        for typed, hint in HINTS.items():
            terminal.shown = ""
            terminal.type(CLEAR_LINE + typed.encode())
            assert terminal.shows(f"> {typed}{hint}\r"), f"{typed!r}: {terminal.shown}"
