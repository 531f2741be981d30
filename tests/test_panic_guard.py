"""A panic inside a handler becomes an error reply: the server, its keys and its clients go on.

With a separate build, in which a call whose first word is `inject-panic` panics, and RL.ALL over a key
of that name: `cargo build --features inject-panic`, as `make test` does.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import AOF_CONFIG
from harness.server import REPOSITORY, Server

TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target")
MODULE = TARGET / "debug" / ("libredis_rl.dylib" if sys.platform == "darwin" else "libredis_rl.so")
TRIGGER = "inject-panic"
REPLY_TIMEOUT_S = 10.0
ERROR = "ERR internal error in the rl module; see the server's log"

CALLS: dict[str, tuple[Word, ...]] = {
    **{f"RL.{name}{form}": (f"RL.{name}{form}", TRIGGER, "10", "1") for name in ("TOKENBUCKET", "SLIDING", "QUOTA") for form in ("", "_RO")},
    **{f"RL.CONCURRENCY{form}": (f"RL.CONCURRENCY{form}", TRIGGER, "10", "60", "ID", "x") for form in ("", "_RO")},
    "RL.RELEASE": ("RL.RELEASE", TRIGGER, "x"),
    **{f"RL.ALL{form}": (f"RL.ALL{form}", TRIGGER, "a", "TOKENBUCKET", "10", "1") for form in ("", "_RO")},
}  # fmt: skip
GOOD = ("RL.TOKENBUCKET", "good", "10", "1", "NOW", TODAY_MS)


@pytest.fixture(params=[None, "1", "full"], ids=["plain", "RUST_BACKTRACE=1", "RUST_BACKTRACE=full"])
def backtrace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str | None:
    """What an operator may have in the server's environment."""
    monkeypatch.delenv("RUST_BACKTRACE", raising=False)
    if request.param:
        monkeypatch.setenv("RUST_BACKTRACE", request.param)
    return request.param


@pytest.fixture
def panicking(backtrace: str | None, fresh_server: Callable[..., Server]) -> Server:
    """A server with the test build."""
    assert MODULE.is_file(), "no test build: run `cargo build --features inject-panic`"
    return fresh_server({**AOF_CONFIG, "enable-module-command": "yes"}, module=MODULE)


@pytest.fixture
def connection(panicking: Server) -> RawConnection:
    # A reply that lacks its end is waited for in vain.
    return RawConnection(panicking.port, timeout_s=REPLY_TIMEOUT_S)


def assert_guarded(reply: object) -> None:
    assert isinstance(reply, hiredis.ReplyError), f"no panic, so not the test build? {reply!r}"
    assert str(reply) == ERROR


@pytest.mark.parametrize("name", CALLS)
def test_a_panic_is_answered_with_an_error_and_a_line_in_the_log(
    panicking: Server, connection: RawConnection, name: str
) -> None:
    pid, run_id = panicking.pid, panicking.info("server")["run_id"]
    for _ in range(3):
        assert_guarded(connection.call(*CALLS[name]))
    assert "a command panicked and was answered with an error" in panicking.log
    # Where it was, by the module's own hook.
    assert "src/host/handler.rs" in panicking.log
    assert panicking.is_alive and panicking.pid == pid
    assert panicking.info("server")["run_id"] == run_id
    assert connection.call(*GOOD)[:2] == [1, 9]


def test_after_panics_every_key_can_be_read_written_and_deleted(
    panicking: Server, connection: RawConnection
) -> None:
    """And nothing was propagated."""
    assert connection.call("SET", TRIGGER, "value", "EX", 1000) == b"OK"
    before = panicking.aof_commands(), connection.call("DUMP", TRIGGER), connection.call("PEXPIRETIME", TRIGGER)
    for call in CALLS.values():
        for _ in range(50):
            assert_guarded(connection.call(*call))
    assert (panicking.aof_commands(), connection.call("DUMP", TRIGGER), connection.call("PEXPIRETIME", TRIGGER)) == before
    assert connection.call("APPEND", TRIGGER, "s") == 6
    assert connection.call("DEL", TRIGGER) == 1
    assert connection.call(*GOOD)[:2] == [1, 9]
    assert connection.call("DEL", "good") == 1
    assert connection.call("DBSIZE") == 0


def test_a_panic_inside_a_transaction_fails_only_its_own_command(panicking: Server, connection: RawConnection) -> None:
    assert connection.call("MULTI") == b"OK"
    for call in (GOOD, CALLS["RL.TOKENBUCKET"], CALLS["RL.ALL"], GOOD, ("SET", "after", "1")):
        assert connection.call(*call) in (b"QUEUED", "QUEUED")
    first, panic, panic_of_all, second, last = connection.call("EXEC")
    assert_guarded(panic)
    assert_guarded(panic_of_all)
    assert (first[:2], second[:2], last) == ([1, 9], [1, 8], b"OK")
    assert panicking.is_alive


def test_a_panic_inside_a_script_is_an_error_that_it_can_catch(panicking: Server, connection: RawConnection) -> None:
    script = "local bad = redis.pcall(unpack(ARGV)); return {bad.err, redis.call('SET', 'after', '1').ok}"
    message, ok = connection.call("EVAL", script, "0", *CALLS["RL.SLIDING"])
    assert message.decode() in (ERROR, ERROR.removeprefix("ERR "))
    assert ok == b"OK"
    assert panicking.is_alive


@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
def test_a_panic_while_the_server_asks_for_the_keys_is_caught_too(
    panicking: Server, connection: RawConnection, command: str
) -> None:
    panics = panicking.log.count("a command panicked")
    reply = connection.call("COMMAND", "GETKEYS", *CALLS[command])
    assert isinstance(reply, hiredis.ReplyError), reply
    assert panicking.log.count("a command panicked") == panics + 1
    # The server asks for the keys of a user with key patterns before it runs the command.
    assert connection.call("ACL", "SETUSER", "limited", "on", "nopass", "~a", "+@all") == b"OK"
    with panicking.raw_connection() as limited:
        assert limited.call("AUTH", "limited", "any") == b"OK"
        assert isinstance(limited.call(*CALLS[command]), hiredis.ReplyError)
        assert limited.call("PING") in (b"PONG", "PONG")
    assert panicking.is_alive


BUCKET, WINDOW = ("TOKENBUCKET", "10", "1"), ("SLIDING", "10", "60")
#: How many rules: one, a few, and more than those that need no memory of their own.
COUNTS = (1, 2, 5, 12)


@pytest.mark.parametrize("cost", ["1", "11"], ids=["allowed", "denied"])
@pytest.mark.parametrize("rule", [BUCKET, WINDOW], ids=["buckets", "windows"])
@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
def test_a_panic_over_any_key_of_all_leaves_the_connection_in_step(
    panicking: Server, connection: RawConnection, command: str, rule: tuple[Word, ...], cost: str
) -> None:
    """It comes where the key's answer is computed. A reply that had begun would hold part of the answer,
    and every reply after it would be taken for another command's."""
    for count in COUNTS:
        for position in range(count):
            keys = [f"k{number}" for number in range(count)]
            keys[position] = TRIGGER
            for options in ((), ("MS",)):
                call = (command, count, *keys, *(*rule, "COST", cost) * count, "NOW", TODAY_MS, *options)
                error, echo, pong = connection.call_all([call, ("ECHO", "its own"), ("PING",)])
                assert_guarded(error)
                assert (echo, pong) in ((b"its own", b"PONG"), (b"its own", "PONG")), f"key {position + 1} of {count}"
    assert panicking.is_alive
    # It is computed before anything is stored.
    assert connection.call("DBSIZE") == 0
    assert b"SET" not in {command[0] for command in panicking.aof_commands()}


def test_a_panic_over_a_key_of_all_in_a_transaction_leaves_it_in_step(connection: RawConnection) -> None:
    call = ("RL.ALL", "3", "a", "b", TRIGGER, *BUCKET * 3, "NOW", TODAY_MS)
    *_, replies, echo = connection.call_all([("MULTI",), GOOD, call, GOOD, ("EXEC",), ("ECHO", "its own")])
    first, panic, second = replies
    assert_guarded(panic)
    assert (first[:2], second[:2], echo) == ([1, 9], [1, 8], b"its own")


def test_the_module_can_be_taken_out_and_put_back_after_a_panic(panicking: Server, connection: RawConnection) -> None:
    for _ in range(3):
        assert_guarded(connection.call(*CALLS["RL.TOKENBUCKET"]))
        assert connection.call("MODULE", "UNLOAD", "rl") == b"OK"
        assert connection.call("MODULE", "LOAD", str(MODULE)) == b"OK"
    assert connection.call(*GOOD)[:2] == [1, 9]
    assert panicking.is_alive


def test_the_release_build_has_no_such_trigger(raw: RawConnection) -> None:
    assert raw.call("RL.TOKENBUCKET", TRIGGER, "10", "1", "NOW", TODAY_MS)[:2] == [1, 9]
