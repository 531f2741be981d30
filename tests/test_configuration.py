"""The settings: on the loadmodule line, in the configuration file, in MODULE LOADEX, by CONFIG."""

import shutil
from collections.abc import Callable, Iterator

import hiredis
import pytest

from harness.command_table import pairs
from harness.connection import RawConnection
from harness.server import ConfiguredServer, Server, ServerExited, module_path

BOTH_NO = {b"rl.cl-throttle": b"no", b"rl.notify-allowed": b"no"}
SWITCH = ("no", "yes")
THROTTLE = ("CL.THROTTLE", "key", "0", "1", "60")


def settings(connection: RawConnection) -> dict[bytes, bytes]:
    return pairs(connection.call("CONFIG", "GET", "rl.*"))


def has_throttle(connection: RawConnection) -> bool:
    return connection.call("COMMAND", "INFO", THROTTLE[0]) != [None]


def assert_refused(reply: object, reason: str = "") -> None:
    assert isinstance(reply, hiredis.ReplyError) and reason in str(reply), reply


class ServerWithFile(ConfiguredServer):
    """A server that loads the module by its file, with these arguments and further lines."""

    def __init__(self, arguments: str, *lines: str) -> None:
        super().__init__()
        # CONFIG REWRITE does not quote the path: a copy, whose path has no spaces.
        library = shutil.copy(module_path(), self.directory)
        self.load_line = f"loadmodule {library} {arguments}".strip()
        self.lines = (self.load_line, *lines)

    def lines_about_the_module(self) -> list[str]:
        lines = self.configuration.read_text().splitlines()
        return [line for line in lines if line == self.load_line or line.startswith("rl.")]


@pytest.fixture
def with_file(closed_at_the_end: Callable[..., ServerWithFile]) -> Callable[..., ServerWithFile]:
    """`with_file("notify-allowed yes", "rl.cl-throttle yes")`: module arguments, then lines of the file."""
    return lambda arguments, *lines: closed_at_the_end(ServerWithFile(arguments, *lines))


#: Module arguments, lines of the configuration file, and what CL-THROTTLE and NOTIFY-ALLOWED are then.
SOURCES: dict[str, tuple[str, tuple[str, ...], str, str]] = {
    "nothing": ("", (), "no", "no"),
    "arguments": ("CL-Throttle YES notify-allowed no", (), "yes", "no"),
    "the file": ("", ("rl.notify-allowed yes", "rl.cl-throttle yes"), "yes", "yes"),
    "one each": ("cl-throttle yes", ("RL.Notify-Allowed yes",), "yes", "yes"),
    "the file against arguments": (
        "cl-throttle yes notify-allowed no",
        ("rl.cl-throttle no", "rl.notify-allowed yes"),
        "no",
        "yes",
    ),
}


@pytest.mark.parametrize("source", SOURCES)
def test_the_file_wins_over_module_arguments_which_win_over_no(
    with_file: Callable[..., ServerWithFile], source: str
) -> None:
    arguments, lines, cl_throttle, notify_allowed = SOURCES[source]
    with with_file(arguments, *lines).start().raw_connection() as connection:
        assert settings(connection) == {
            b"rl.cl-throttle": cl_throttle.encode(),
            b"rl.notify-allowed": notify_allowed.encode(),
        }
        assert has_throttle(connection) == (cl_throttle == "yes")


@pytest.mark.parametrize("argument", SWITCH)
@pytest.mark.parametrize("value", SWITCH)
def test_config_rewrite_keeps_what_config_set_said(
    with_file: Callable[..., ServerWithFile], argument: str, value: str
) -> None:
    """Whatever the loadmodule line says, which is kept as it is; twice, as the second rewrites what the first wrote."""
    server = with_file(f"notify-allowed {argument} cl-throttle yes").start()
    for written in (value, "no" if value == "yes" else "yes"):
        with server.raw_connection() as connection:
            assert connection.call("CONFIG", "SET", "rl.notify-allowed", written) == b"OK"
        server.rewrite()
        assert server.lines_about_the_module()[0] == server.load_line
        server.restart()
        with server.raw_connection() as connection:
            assert settings(connection) == {b"rl.cl-throttle": b"yes", b"rl.notify-allowed": written.encode()}
            assert has_throttle(connection)


def test_config_rewrite_keeps_what_only_the_file_sets(with_file: Callable[..., ServerWithFile]) -> None:
    server = with_file("", "rl.cl-throttle yes").start()
    server.rewrite()
    assert server.lines_about_the_module() == [server.load_line, "rl.cl-throttle yes"]
    with server.restart().raw_connection() as connection:
        assert connection.call(*THROTTLE)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "line"), [("", "rl.cl-throttle maybe"), ("notify-allowed yes", "rl.notify-allowed 1")]
)
def test_a_value_in_the_file_that_is_neither_yes_nor_no_ends_the_start(
    with_file: Callable[..., ServerWithFile], arguments: str, line: str
) -> None:
    server = with_file(arguments, line)
    with pytest.raises(ServerExited):
        server.start()
    assert line.split()[0] in server.log and "must be 'yes' or 'no'" in server.log, server.log
    assert "load refused: a setting rl.* was given an invalid value" in server.log, server.log
    assert "crashed by signal" not in server.log


def test_a_setting_in_the_file_that_is_unknown_ends_the_start(with_file: Callable[..., ServerWithFile]) -> None:
    server = with_file("", "rl.verbose yes")
    with pytest.raises(ServerExited):
        server.start()
    assert "crashed by signal" not in server.log


def test_settings_in_the_file_of_a_server_without_the_module_end_the_start(
    with_file: Callable[..., ServerWithFile],
) -> None:
    """Why they go together with the loadmodule line: see docs/operations.md."""
    server = with_file("", "rl.notify-allowed yes").start()
    server.stop()
    server.configuration.unlink()
    server.lines = ("rl.notify-allowed yes",)
    with pytest.raises(ServerExited, match="(?i)module configuration detected"):
        server.start()


def test_an_unknown_module_argument_is_refused_whatever_the_file_says(
    with_file: Callable[..., ServerWithFile],
) -> None:
    server = with_file("verbose yes", "rl.cl-throttle yes")
    with pytest.raises(ServerExited):
        server.start()
    assert "load refused: module argument 'verbose yes' is unknown" in server.log, server.log
    assert "crashed by signal" not in server.log


@pytest.fixture
def loadable(fresh_server: Callable[..., Server]) -> Iterator[RawConnection]:
    """A connection to a server that can be told to load the module."""
    server = fresh_server({"enable-module-command": "yes"}, with_module=False)
    with server.raw_connection() as connection:
        yield connection
    assert server.is_alive


def load(connection: RawConnection, *words: str) -> object:
    return connection.call("MODULE", "LOADEX", str(module_path()), *words)


#: Words of MODULE LOADEX, and what the settings are then.
LOADEX: dict[str, tuple[str, str, str]] = {
    "CONFIG": ("CONFIG rl.cl-throttle yes CONFIG rl.notify-allowed yes", "yes", "yes"),
    "ARGS": ("ARGS cl-throttle yes", "yes", "no"),
    "CONFIG and ARGS": ("CONFIG rl.notify-allowed yes ARGS cl-throttle yes", "yes", "yes"),
    "CONFIG against ARGS": ("CONFIG rl.cl-throttle no ARGS cl-throttle yes notify-allowed yes", "no", "yes"),
}


@pytest.mark.parametrize("words", LOADEX)
def test_module_loadex_takes_settings_and_arguments_and_settings_win(loadable: RawConnection, words: str) -> None:
    line, cl_throttle, notify_allowed = LOADEX[words]
    assert load(loadable, *line.split()) == b"OK"
    assert settings(loadable) == {
        b"rl.cl-throttle": cl_throttle.encode(),
        b"rl.notify-allowed": notify_allowed.encode(),
    }
    assert has_throttle(loadable) == (cl_throttle == "yes")


@pytest.mark.parametrize(
    "line",
    [
        "CONFIG rl.verbose yes",
        "CONFIG rl.cl-throttle maybe",
        "CONFIG rl.cl-throttle yes ARGS cl-throttle maybe",
        "CONFIG rl.cl-throttle yes ARGS verbose",
    ],
)
def test_a_refused_loadex_leaves_no_setting_and_the_next_load_works(loadable: RawConnection, line: str) -> None:
    for _ in range(2):
        assert_refused(load(loadable, *line.split()))
        assert settings(loadable) == {}
        assert not has_throttle(loadable)
    assert load(loadable) == b"OK"
    assert settings(loadable) == BOTH_NO


def test_a_load_refused_after_the_settings_leaves_none_of_them(fresh_server: Callable[..., Server]) -> None:
    """CL.THROTTLE is registered last, as its setting says."""
    config = {"enable-module-command": "yes", "rename-command": ["ECHO", "CL.THROTTLE"]}
    server = fresh_server(config, with_module=False)
    with server.raw_connection() as connection:
        for _ in range(2):
            assert_refused(load(connection, "CONFIG", "rl.cl-throttle", "yes"))
            assert settings(connection) == {}
            assert_refused(connection.call("CONFIG", "SET", "rl.notify-allowed", "yes"))
        assert load(connection) == b"OK"
        assert settings(connection) == BOTH_NO
    assert server.is_alive


def test_settings_go_with_the_module_and_come_back_at_their_defaults(loadable: RawConnection) -> None:
    for _ in range(3):
        assert load(loadable, "ARGS", "cl-throttle", "yes") == b"OK"
        assert settings(loadable) == BOTH_NO | {b"rl.cl-throttle": b"yes"}
        assert loadable.call("CONFIG", "SET", "rl.notify-allowed", "yes") == b"OK"
        assert loadable.call("MODULE", "UNLOAD", "rl") == b"OK"
        assert settings(loadable) == {}
        assert not has_throttle(loadable)


def test_cl_throttle_cannot_be_set_on_a_running_server(fresh_server: Callable[..., Server]) -> None:
    with fresh_server().raw_connection() as connection:
        for value in SWITCH:
            assert_refused(connection.call("CONFIG", "SET", "rl.cl-throttle", value), "immutable")
        assert settings(connection) == BOTH_NO
        assert not has_throttle(connection)


@pytest.mark.parametrize(("name", "value"), [("rl.notify-allowed", "maybe"), ("rl.notify-allowed", ""), ("rl.verbose", "yes")])
def test_config_set_refuses_what_is_no_setting_or_no_value_of_it(
    fresh_server: Callable[..., Server], name: str, value: str
) -> None:
    with fresh_server().raw_connection() as connection:
        assert_refused(connection.call("CONFIG", "SET", name, value))
        assert settings(connection) == BOTH_NO
