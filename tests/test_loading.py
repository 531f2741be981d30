"""The module loads where it can work, says why where it cannot, and can be taken out and put back."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest
import redis

from harness.clock import TODAY_MS
from harness.command_table import COMMANDS
from harness.connection import RawConnection
from harness.server import REPOSITORY, Server, module_path, server_executable

SERVERS = REPOSITORY / "target" / "servers" / "servers.json"
EXIT_TIMEOUT_S = 30
#: Redis 7.0 and 7.2, Redis 8, Valkey 8 and 9 let MODULE be called only if told so.
ALLOW_MODULE_COMMAND = {"enable-module-command": "yes"}
ACCEPTED_ARGUMENTS = (
    "is unknown, incomplete or given twice: accepted are 'cl-throttle yes|no' and 'notify-allowed yes|no', "
    "both no if not given"
)

USE = [
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "2.5", "NOW", TODAY_MS),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "NOW", TODAY_MS),
    ("RL.SLIDING", "window", "10", "60", "COST", "4", "NOW", TODAY_MS),
    ("RL.SLIDING", "window", "10", "60", "COST", "9", "NOW", TODAY_MS + 70_000),
]
KEYS = ("bucket", "allotment", "window")
PREVIEWS = [
    ("RL.TOKENBUCKET_RO", "bucket", "10", "0.5", "NOW", TODAY_MS + 1000, "MS"),
    ("RL.TOKENBUCKET_RO", "allotment", "3", "0", "NOW", TODAY_MS + 1000, "MS"),
    ("RL.SLIDING_RO", "window", "10", "60", "COST", "9", "NOW", TODAY_MS + 71_000, "MS"),
]


def start_and_exit(directory: Path, executable: str, *words: str) -> tuple[int, str]:
    """The exit status and the log of a server that ends by itself."""
    command = [executable, "--port", "0", "--unixsocket", str(directory / "s"), "--dir", str(directory)]
    process = subprocess.run(
        [*command, "--logfile", "server.log", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=EXIT_TIMEOUT_S,
        check=False,
    )
    return process.returncode, (directory / "server.log").read_text(errors="replace")


def assert_refused_in_order(status: int, log: str) -> None:
    """The server ended itself for want of the module: not by a signal, and not by a crash."""
    assert status == 1, f"exit status {status}\n{log}"
    assert "crashed by signal" not in log and "REDIS BUG REPORT" not in log, log
    assert "server aborting" in log, log


def module_names(connection: RawConnection) -> list[bytes]:
    """The modules that are loaded. Some servers come with their own."""
    return [module[module.index(b"name") + 1] for module in connection.call("MODULE", "LIST")]


def version_of(executable: str) -> tuple[str, int]:
    """The product and the first number of its version."""
    output = subprocess.run([executable, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\w+) server v=(\d+)", output)
    assert match, output
    return match[1], int(match[2])


def old_server() -> str | None:
    """A server that is too old: the one under test, or one that was fetched."""
    candidates = [shutil.which(server_executable())]
    if SERVERS.is_file():
        candidates += [entry["server"] for entry in json.loads(SERVERS.read_text())]
    return next((path for path in candidates if path and version_of(path) < ("Redis", 7)), None)


def test_a_server_that_is_too_old_refuses_the_module(tmp_path: Path) -> None:
    """And names the function and the version."""
    executable = old_server()
    if executable is None:
        pytest.skip("no server older than Redis 7.0: tests/servers/fetch.py gets one")
    status, log = start_and_exit(tmp_path, executable, "--loadmodule", str(module_path()))
    assert_refused_in_order(status, log)
    reason = next(line for line in log.splitlines() if "load refused" in line)
    assert "RedisModule_GetCommand" in reason
    assert "Redis has since 7.0" in reason
    assert "needs Redis 7.0 or later, or Valkey 8.0 or later" in reason


@pytest.mark.parametrize("arguments", [("verbose",), ("%s%s%s%n",), ("max-keys", "5"), ("two words",), ("\xff",)], ids=repr)
def test_unknown_module_arguments_are_refused_with_a_line_in_the_log(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    status, log = start_and_exit(tmp_path, server_executable(), "--loadmodule", str(module_path()), *arguments)
    assert_refused_in_order(status, log)
    assert f"load refused: module argument '{' '.join(arguments)}' {ACCEPTED_ARGUMENTS}" in log, log


def test_a_running_server_refuses_unknown_module_arguments_and_goes_on(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server(ALLOW_MODULE_COMMAND, with_module=False)
    with server.raw_connection() as connection:
        reply = connection.call("MODULE", "LOAD", str(module_path()), "verbose", b"\x00\xff")
        assert isinstance(reply, hiredis.ReplyError), reply
        assert re.search(rf"load refused: module argument 'verbose.*' {re.escape(ACCEPTED_ARGUMENTS)}", server.log)
        assert b"rl" not in module_names(connection)
        assert connection.call("MODULE", "LOAD", str(module_path())) == b"OK"
        assert connection.call(*USE[0])[0] == 1


def test_loading_it_twice_is_refused_and_the_first_goes_on(tmp_path: Path, fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(ALLOW_MODULE_COMMAND)
    elsewhere = shutil.copy(module_path(), tmp_path / "copy.so")
    with server.raw_connection() as connection:
        before = [connection.call(*call) for call in USE]
        for path in (str(module_path()), str(elsewhere)):
            reply = connection.call("MODULE", "LOAD", path)
            assert isinstance(reply, hiredis.ReplyError), reply
        assert module_names(connection).count(b"rl") == 1
        connection.call("FLUSHALL")
        assert [connection.call(*call) for call in USE] == before


def test_a_taken_command_name_is_refused_with_a_line_that_names_it(tmp_path: Path) -> None:
    taken = ("--rename-command", "ECHO", "RL.ALL_RO")
    status, log = start_and_exit(tmp_path, server_executable(), *taken, "--loadmodule", str(module_path()))
    assert_refused_in_order(status, log)
    assert re.search("load refused: .*rl.all_ro", log, re.IGNORECASE), log


def test_a_load_refused_for_a_taken_name_leaves_no_command(
    fresh_server: Callable[..., Server],
) -> None:
    server = fresh_server({**ALLOW_MODULE_COMMAND, "rename-command": ["ECHO", "RL.ALL_RO"]}, with_module=False)
    with server.raw_connection() as connection:
        for _ in range(2):
            assert isinstance(connection.call("MODULE", "LOAD", str(module_path())), hiredis.ReplyError)
            assert re.search("load refused: .*rl.all_ro", server.log, re.IGNORECASE), server.log
            assert connection.call("RL.ALL_RO", "still ECHO") == b"still ECHO"
            others = [name for name in COMMANDS if name != "RL.ALL_RO"]
            assert connection.call("COMMAND", "INFO", *others) == [None] * len(others)
        assert connection.call("PING") in (b"PONG", "PONG")


#: What the module propagates its decisions with.
PROPAGATED_WITH = ["SET", "ZADD", "ZREM", "ZREMRANGEBYSCORE", "PEXPIREAT"]
#: What a `rename-command` line gives a command instead of its name.
OTHER_NAMES = {"removed": "", "renamed": "ANOTHER-NAME"}


@pytest.mark.parametrize("other_name", OTHER_NAMES.values(), ids=OTHER_NAMES)
@pytest.mark.parametrize("command", PROPAGATED_WITH)
def test_a_server_without_what_propagates_a_decision_refuses_the_module(
    tmp_path: Path, command: str, other_name: str
) -> None:
    """Allowed calls would reach neither the AOF nor a replica there, and nobody would be told."""
    renamed = ("--rename-command", command, other_name)
    status, log = start_and_exit(tmp_path, server_executable(), *renamed, "--loadmodule", str(module_path()))
    assert_refused_in_order(status, log)
    assert re.search(rf"load refused: .*\b{command}\b", log), log


@pytest.mark.parametrize("command", PROPAGATED_WITH)
def test_a_running_server_without_what_propagates_refuses_it_too(
    fresh_server: Callable[..., Server], command: str
) -> None:
    server = fresh_server({**ALLOW_MODULE_COMMAND, "rename-command": [command, ""]}, with_module=False)
    with server.raw_connection() as connection:
        assert isinstance(connection.call("MODULE", "LOAD", str(module_path())), hiredis.ReplyError)
        assert re.search(rf"load refused: .*\b{command}\b", server.log), server.log
        assert connection.call("COMMAND", "INFO", *COMMANDS) == [None] * len(COMMANDS)
        assert b"rl" not in module_names(connection)
    assert server.is_alive


def test_a_server_without_commands_that_the_module_does_not_need_loads_it(fresh_server: Callable[..., Server]) -> None:
    removed = [word for name in ("FLUSHALL", "KEYS", "GET", "DEL") for word in ("--rename-command", name, "")]
    server = fresh_server({"appendonly": "yes", "rename-command": ["CONFIG", "", *removed]})
    with server.raw_connection() as connection:
        assert connection.call(*USE[0])[0] == 1
        assert [command[:2] for command in server.aof_commands()][-1] == [b"SET", b"bucket"]


@pytest.mark.parametrize("backtrace", [None, "1"], ids=["plain", "RUST_BACKTRACE=1"])
def test_unload_and_reload_keep_every_state_and_decisions_go_on(
    fresh_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch, backtrace: str | None
) -> None:
    if backtrace:
        monkeypatch.setenv("RUST_BACKTRACE", backtrace)
    server = fresh_server(ALLOW_MODULE_COMMAND)
    with server.raw_connection() as connection:
        assert [connection.call(*call)[0] for call in USE] == [1, 1, 1, 0]
        questions = [*((word, key) for key in KEYS for word in ("DUMP", "PEXPIRETIME")), *PREVIEWS]
        before = connection.call_all(questions)
        assert not any(isinstance(answer, hiredis.ReplyError) for answer in before), before
        for _ in range(3):
            assert connection.call("MODULE", "UNLOAD", "rl") == b"OK"
            unknown = connection.call(*USE[0])
            assert isinstance(unknown, hiredis.ReplyError) and "unknown command" in str(unknown)
            # A state needs no module to be read, moved or expired.
            assert connection.call("STRLEN", "bucket") == 20
            assert connection.call("MODULE", "LOAD", str(module_path())) == b"OK"
            assert connection.call_all(questions) == before
        # What the module keeps between calls (two strings) is made anew: by the server's clock.
        assert connection.call("RL.TOKENBUCKET", "new", "10", "0.5")[:2] == [1, 9]
        assert connection.call("PTTL", "new") > 0
    assert server.is_alive


def test_without_the_module_a_call_is_an_unknown_command(fresh_server: Callable[..., Server]) -> None:
    """What the caller sees if the loadmodule line is missing: an error, never an allow."""
    client = fresh_server(with_module=False).client()
    for command in COMMANDS:
        with pytest.raises(redis.ResponseError, match="unknown command"):
            client.execute_command(command, "1", "key", "TOKENBUCKET", "10", "1")
    assert client.dbsize() == 0
