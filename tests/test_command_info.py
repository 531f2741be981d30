"""What the server says about the commands: arity, flags, keys and documentation."""

from collections.abc import Iterator

import hiredis
import pytest

from harness.command_table import command_docs, command_info, flattened, pairs
from harness.connection import RawConnection
from harness.server import Server

COMMANDS = {
    "RL.TOKENBUCKET": ("capacity", "refill_rate"),
    "RL.SLIDING": ("limit", "window"),
}
SINCE = "0.1.0"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_call_needs_a_key_and_two_parameters(raw: RawConnection, command: str) -> None:
    name, arity, *_ = command_info(raw, command)
    assert name.decode().upper() == command
    assert arity == -4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_write_command_is_fast_and_refused_when_memory_is_out(raw: RawConnection, command: str) -> None:
    flags = {flag.decode() for flag in command_info(raw, command)[2]}
    assert {"write", "denyoom", "fast"} <= flags
    assert not flags & {"readonly", "noscript", "no_multi", "blocking", "loading", "admin", "movablekeys", "no_auth"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_key_is_the_first_argument_read_and_written(raw: RawConnection, command: str) -> None:
    info = command_info(raw, command)
    assert info[3:6] == [1, 1, 1]
    (spec,) = (pairs(spec) for spec in info[8])
    assert {flag.decode() for flag in spec[b"flags"]} == {"RW", "access", "update"}
    begin, find = pairs(spec[b"begin_search"]), pairs(spec[b"find_keys"])
    assert (begin[b"type"], pairs(begin[b"spec"])) == (b"index", {b"index": 1})
    assert (find[b"type"], pairs(find[b"spec"])) == (b"range", {b"lastkey": 0, b"keystep": 1, b"limit": 0})


@pytest.mark.parametrize("command", COMMANDS)
def test_getkeys_gives_the_key(raw: RawConnection, command: str) -> None:
    call = (command, "the key", "10", "1")
    for options in ((), ("COST", "2"), ("NOW", "0", "COST", "2")):
        assert raw.call("COMMAND", "GETKEYS", *call, *options) == [b"the key"]
    assert raw.call("COMMAND", "GETKEYSANDFLAGS", *call) == [[b"the key", [b"RW", b"access", b"update"]]]


@pytest.mark.parametrize("command", COMMANDS)
def test_docs_have_a_summary_and_since_and_the_module(raw: RawConnection, command: str) -> None:
    docs = command_docs(raw, command)
    assert docs[b"summary"]
    assert docs[b"since"].decode() == SINCE
    assert docs[b"module"] == b"rl"
    assert docs[b"complexity"].startswith(b"O(1)")


@pytest.mark.parametrize("command", COMMANDS)
def test_docs_name_each_argument_in_its_order_with_its_keyword(raw: RawConnection, command: str) -> None:
    arguments = [pairs(argument) for argument in command_docs(raw, command)[b"arguments"]]
    first, second = (parameter.encode() for parameter in COMMANDS[command])
    assert [argument[b"name"] for argument in arguments[:3]] == [b"key", first, second]
    assert [argument[b"type"] for argument in arguments[:3]] == [b"key", b"double", b"double"]
    assert arguments[0][b"key_spec_index"] == 0
    for argument in arguments[:3]:
        assert b"optional" not in argument.get(b"flags", [])
    assert all(b"optional" in argument[b"flags"] for argument in arguments[3:])
    every = flattened(command_docs(raw, command)[b"arguments"])
    tokens = {argument[b"token"]: argument[b"type"] for argument in every if b"token" in argument}
    assert {b"COST", b"REFUND", b"AT", b"MS"} <= tokens.keys()
    assert tokens[b"NOW"] == tokens[b"AT"] == b"unix-time"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_run_inside_scripts_and_transactions(raw: RawConnection, command: str) -> None:
    call = (command, "k", "10", "60", "NOW", "1751662800000")
    expected = raw.call(*call)
    raw.call("DEL", "k")
    script = "return redis.call(unpack(ARGV))"
    assert raw.call("EVAL", script, "0", *call) == expected
    raw.call("DEL", "k")
    raw.call("MULTI")
    assert raw.call(*call) == b"QUEUED"
    assert raw.call("EXEC") == [expected]


def test_the_module_is_loaded_under_its_name(raw: RawConnection) -> None:
    modules = [pairs(module) for module in raw.call("MODULE", "LIST")]
    assert b"rl" in [module[b"name"] for module in modules]


def test_getkeys_of_a_call_without_a_key_is_an_error(raw: RawConnection) -> None:
    assert isinstance(raw.call("COMMAND", "GETKEYS", "RL.TOKENBUCKET"), hiredis.ReplyError)


# Tips for clients

CHANGES_WITH_TIME = b"nondeterministic_output"


@pytest.fixture(scope="module")
def with_all_commands() -> Iterator[RawConnection]:
    with Server(module_args=("cl-throttle", "yes")) as server, server.raw_connection() as connection:
        yield connection


def test_every_preview_and_no_other_command_is_tipped_not_to_be_cached(with_all_commands: RawConnection) -> None:
    """A preview's answer changes with time alone, without a write that would invalidate a cached one."""
    names = [name.decode().upper() for name in with_all_commands.call("COMMAND", "LIST", "FILTERBY", "MODULE", "rl")]
    assert {"RL.TOKENBUCKET", "RL.TOKENBUCKET_RO", "RL.SLIDING_RO", "RL.ALL", "RL.ALL_RO", "CL.THROTTLE"} <= set(names)
    for name in names:
        tips = command_info(with_all_commands, name)[7]
        assert (CHANGES_WITH_TIME in tips) == name.endswith("_RO"), f"{name}: {tips}"
        # Not every server repeats them here.
        assert command_docs(with_all_commands, name).get(b"tips", tips) == tips
