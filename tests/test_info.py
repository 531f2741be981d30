"""INFO tells how often each command allowed, denied, refunded, released, repeated and failed."""

import re
from collections.abc import Callable

import hiredis
import pytest

from harness.clock import TODAY_MS
from harness.command_table import WRITES
from harness.connection import RawConnection, Word
from harness.server import REPOSITORY, Server, module_path, wait_until

NOW = ("NOW", TODAY_MS)
OUTCOMES = ("allowed", "denied", "refunded", "released", "repeated", "errors")
WITH_PREVIEW = tuple(command.removeprefix("RL.").lower() for command in WRITES)
WRITE_COMMANDS = (*WITH_PREVIEW, "release")
COMMANDS = (*WRITE_COMMANDS, *(f"{name}_ro" for name in WITH_PREVIEW))
BUCKET, WINDOW = ("TOKENBUCKET", "10", "1"), ("SLIDING", "10", "60")
QUOTA, LEASES = ("QUOTA", "1", "DAY"), ("CONCURRENCY", "1", "60")
OF_THE_SECTION = "rl_"
CRASH_TIMEOUT_S = 60


@pytest.fixture
def counting(fresh_server: Callable[..., Server]) -> Server:
    """A server whose counts start at 0."""
    return fresh_server()


def counts(server: Server, section: str = "rl") -> dict[str, int]:
    """The fields of the module in a section of INFO."""
    return {name: int(value) for name, value in server.info(section).items() if name.startswith(OF_THE_SECTION)}


def expected(**changed: int) -> dict[str, int]:
    """`expected(all_ro_denied=2)`: these counts, 0 for all others, and the totals of the write commands."""
    fields = {f"rl_{command}_{outcome}": 0 for command in COMMANDS for outcome in OUTCOMES}
    fields |= {f"rl_{name}": count for name, count in changed.items()}
    totals = {
        f"rl_total_{outcome}": sum(fields[f"rl_{command}_{outcome}"] for command in WRITE_COMMANDS)
        for outcome in OUTCOMES
    }
    return fields | totals


def test_each_command_has_six_counts_and_all_start_at_0(counting: Server) -> None:
    assert counts(counting) == expected()


def test_cl_throttle_has_counts_if_it_is_on_and_they_are_in_the_totals(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(module_args=("cl-throttle", "yes"))
    with server.raw_connection() as connection:
        assert [connection.call("CL.THROTTLE", "key", "1", "1", "86400")[0] for _ in range(3)] == [0, 0, 1]
        assert isinstance(connection.call("CL.THROTTLE", "key", "x", "1", "1"), hiredis.ReplyError)
        connection.call("RL.TOKENBUCKET", "other", "10", "1")
    cell = {f"rl_cl_throttle_{outcome}": 0 for outcome in OUTCOMES}
    cell |= {"rl_cl_throttle_allowed": 2, "rl_cl_throttle_denied": 1, "rl_cl_throttle_errors": 1}
    totals = {"rl_total_allowed": 3, "rl_total_denied": 1, "rl_total_errors": 1}
    assert counts(server) == expected(tokenbucket_allowed=1) | cell | totals


#: What each call counts as. They follow one another on one server.
CALLS: list[tuple[tuple[Word, ...], str]] = [
    (("RL.TOKENBUCKET", "b", "10", "1", "COST", "9", *NOW), "tokenbucket_allowed"),
    (("RL.TOKENBUCKET", "b", "10", "1", "COST", "0", *NOW), "tokenbucket_allowed"),
    (("RL.TOKENBUCKET", "b", "10", "1", "COST", "9", *NOW), "tokenbucket_denied"),
    (("RL.TOKENBUCKET", "new", "10", "1", "COST", "11", *NOW), "tokenbucket_denied"),
    (("RL.TOKENBUCKET", "b", "10", "1", "REFUND", "2", *NOW), "tokenbucket_refunded"),
    (("RL.TOKENBUCKET", "missing", "10", "1", "REFUND", "2", *NOW), "tokenbucket_refunded"),
    (("RL.TOKENBUCKET", "b", "ten", "1"), "tokenbucket_errors"),
    (("RL.TOKENBUCKET", "b", "10", "1", "SECONDS"), "tokenbucket_errors"),
    (("RL.TOKENBUCKET", "text", "10", "1"), "tokenbucket_errors"),
    (("RL.TOKENBUCKET_RO", "b", "10", "1", *NOW), "tokenbucket_ro_allowed"),
    (("RL.TOKENBUCKET_RO", "b", "10", "1", "COST", "9", *NOW), "tokenbucket_ro_denied"),
    (("RL.TOKENBUCKET_RO", "b", "10", "1", "REFUND", "1"), "tokenbucket_ro_errors"),
    (("RL.SLIDING", "w", "10", "60", "COST", "9", *NOW), "sliding_allowed"),
    (("RL.SLIDING", "w", "10", "60", "COST", "9", *NOW), "sliding_denied"),
    (("RL.SLIDING", "w", "10", "60", "REFUND", "1", *NOW), "sliding_refunded"),
    (("RL.SLIDING", "w", "10", "0"), "sliding_errors"),
    (("RL.SLIDING_RO", "w", "10", "60", *NOW), "sliding_ro_allowed"),
    (("RL.SLIDING_RO", "w", "10", "60", "COST", "9", *NOW), "sliding_ro_denied"),
    (("RL.SLIDING_RO", "b", "10", "60"), "sliding_ro_errors"),
    (("RL.ALL", "2", "b", "w", *BUCKET, *WINDOW, *NOW), "all_allowed"),
    (("RL.ALL", "2", "b", "w", *BUCKET, "COST", "99", *WINDOW, "COST", "99", *NOW), "all_denied"),
    (("RL.ALL", "1", "b", *BUCKET, "REFUND", "1", *NOW), "all_allowed"),
    (("RL.ALL", "2", "b", "b", *BUCKET, *BUCKET), "all_errors"),
    (("RL.ALL", "2", "b", "w", *BUCKET, *BUCKET), "all_errors"),
    (("RL.ALL_RO", "2", "b", "w", *BUCKET, *WINDOW, *NOW), "all_ro_allowed"),
    (("RL.ALL_RO", "2", "b", "w", *BUCKET, "COST", "99", *WINDOW, *NOW), "all_ro_denied"),
    (("RL.ALL_RO", "1", "b", "LEAKY", "1", "1"), "all_ro_errors"),
]
CALLS_WITH_LEASES: list[tuple[tuple[Word, ...], str]] = [
    (("RL.QUOTA", "q", "2", "DAY", *NOW), "quota_allowed"),
    (("RL.QUOTA", "q", "2", "DAY", "COST", "0", *NOW), "quota_allowed"),
    (("RL.QUOTA", "q", "2", "DAY", "FORCE", "1", *NOW), "quota_allowed"),
    (("RL.QUOTA", "q", "2", "DAY", *NOW), "quota_denied"),
    (("RL.QUOTA", "q", "2", "DAY", "REFUND", "1", *NOW), "quota_refunded"),
    (("RL.QUOTA", "q", "2", "HOUR"), "quota_errors"),
    (("RL.QUOTA", "q", "2", "UNTIL", TODAY_MS, *NOW), "quota_errors"),
    (("RL.QUOTA_RO", "q", "2", "DAY", *NOW), "quota_ro_allowed"),
    (("RL.QUOTA_RO", "q", "2", "DAY", "COST", "2", *NOW), "quota_ro_denied"),
    (("RL.QUOTA_RO", "q", "2", "DAY", "FORCE", "2"), "quota_ro_errors"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "x", *NOW), "concurrency_allowed"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "x", *NOW), "concurrency_allowed"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "y", *NOW), "concurrency_denied"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "y", "XX", *NOW), "concurrency_denied"),
    (("RL.CONCURRENCY", "q", "1", "60", "ID", "y", *NOW), "concurrency_errors"),
    (("RL.CONCURRENCY_RO", "c", "1", "60", "ID", "x", *NOW), "concurrency_ro_allowed"),
    (("RL.CONCURRENCY_RO", "c", "1", "60", "ID", "y", *NOW), "concurrency_ro_denied"),
    (("RL.CONCURRENCY_RO", "c", "1", "60", "ID", ""), "concurrency_ro_errors"),
    (("RL.TOKENBUCKET", "b", "1", "1", "FORCE", "3", *NOW), "tokenbucket_allowed"),
    (("RL.TOKENBUCKET", "b", "1", "1", "MAXWAIT", "5", *NOW), "tokenbucket_allowed"),
    (("RL.TOKENBUCKET", "b", "1", "1", "MAXWAIT", "1", *NOW), "tokenbucket_denied"),
    (("RL.SLIDING", "w", "3", "60", "COST", "5", "ATLEAST", "1", *NOW), "sliding_allowed"),
    (("RL.SLIDING", "w", "3", "60", "COST", "5", "ATLEAST", "1", *NOW), "sliding_denied"),
    (("RL.ALL", "2", "q", "c", *QUOTA, "FORCE", "1", *LEASES, "ID", "x", *NOW), "all_repeated"),
    (("RL.ALL", "2", "q", "c", *QUOTA, "FORCE", "1", *LEASES, "RELEASE", "ID", "x", *NOW), "all_allowed"),
    (("RL.ALL", "2", "q", "c", *QUOTA, *LEASES, "RELEASE", "ID", "x", "XX", *NOW), "all_denied"),
    (("RL.ALL", "2", "q", "c", *QUOTA, "SHADOW", *LEASES, "ID", "x", *NOW), "all_allowed"),
    (("RL.ALL_RO", "2", "q", "c", *QUOTA, *LEASES, "ID", "x", *NOW), "all_ro_repeated"),
    (("RL.ALL", "2", "q", "c", *QUOTA, *LEASES, *NOW), "all_errors"),
    (("RL.RELEASE", "c", "x", "y"), "release_released"),
    (("RL.RELEASE", "c", "x"), "release_released"),
    (("RL.RELEASE", "q", "x"), "release_errors"),
]


@pytest.mark.parametrize("calls", [CALLS, CALLS_WITH_LEASES], ids=["rates", "quotas and leases"])
def test_each_call_counts_once_and_as_what_became_of_it(
    counting: Server, calls: list[tuple[tuple[Word, ...], str]]
) -> None:
    with counting.raw_connection() as connection:
        connection.call("SET", "text", "text")
        seen = expected()
        for call, field in calls:
            connection.call(*call)
            now = counts(counting)
            total = {f"rl_total_{field.rsplit('_', 1)[1]}"} if "_ro_" not in field else set()
            assert {name for name in now if now[name] != seen[name]} == {f"rl_{field}"} | total, call
            assert all(now[name] == seen[name] + 1 for name in {f"rl_{field}"} | total), call
            seen = now


def test_calls_in_a_transaction_count_when_they_run(counting: Server) -> None:
    with counting.raw_connection() as connection:
        queued = [("RL.TOKENBUCKET", "b", "2", "1", *NOW)] * 3 + [("RL.SLIDING", "b", "2", "1", *NOW)]
        connection.call_all([("MULTI",), *queued])
        assert counts(counting) == expected()
        connection.call("EXEC")
        assert counts(counting) == expected(tokenbucket_allowed=2, tokenbucket_denied=1, sliding_errors=1)
        connection.call_all([("MULTI",), *queued, ("DISCARD",)])
        assert counts(counting) == expected(tokenbucket_allowed=2, tokenbucket_denied=1, sliding_errors=1)


def test_calls_of_scripts_count_as_those_of_clients(counting: Server) -> None:
    script = """
        for _ = 1, 3 do redis.call('RL.TOKENBUCKET', KEYS[1], '2', '1', 'NOW', '1751662800000') end
        redis.pcall('RL.TOKENBUCKET', KEYS[1], 'ten', '1')
        redis.call('RL.TOKENBUCKET', KEYS[1], '2', '1', 'REFUND', '1')
        return redis.call('RL.SLIDING', KEYS[1], '2', '1')
    """
    with counting.raw_connection() as connection:
        assert isinstance(connection.call("EVAL", script, "1", "b"), hiredis.ReplyError)
    assert counts(counting) == expected(
        tokenbucket_allowed=2, tokenbucket_denied=1, tokenbucket_errors=1, tokenbucket_refunded=1, sliding_errors=1
    )


def refuse_by_acl(connection: RawConnection) -> None:
    for command in (("ACL", "SETUSER", "guest", "on", "nopass", "~other", "+@all"), ("AUTH", "guest", "")):
        assert connection.call(*command) in (b"OK", "OK")


@pytest.mark.parametrize(
    ("why", "prepare", "call"),
    [
        ("too few words", lambda connection: None, ("RL.TOKENBUCKET", "b", "10")),
        ("no permission", refuse_by_acl, ("RL.TOKENBUCKET", "b", "10", "1")),
        (
            "no memory",
            lambda connection: connection.call("CONFIG", "SET", "maxmemory", "1"),
            ("RL.TOKENBUCKET", "b", "10", "1"),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_server_refuses_itself_is_no_call_of_the_module(
    counting: Server, why: str, prepare: Callable[[RawConnection], object], call: tuple[str, ...]
) -> None:
    with counting.raw_connection() as connection:
        prepare(connection)
        assert isinstance(connection.call(*call), hiredis.ReplyError), why
    assert counts(counting) == expected()


@pytest.mark.parametrize("section", ["modules", "everything", "RL"])
def test_the_section_is_in_what_asks_for_modules_too(counting: Server, section: str) -> None:
    with counting.raw_connection() as connection:
        connection.call("RL.TOKENBUCKET", "b", "10", "1")
    assert counts(counting, section) == expected(tokenbucket_allowed=1)


@pytest.mark.parametrize("section", ["default", "all"])
def test_the_section_is_not_in_an_info_that_leaves_modules_out(counting: Server, section: str) -> None:
    """Why an exporter has to ask for `rl`, `modules` or `everything`."""
    assert counts(counting, section) == {}


def test_redis_py_reads_the_counts_as_numbers(counting: Server) -> None:
    client = counting.client()
    client.execute_command("RL.TOKENBUCKET", "b", "10", "1")
    info = client.info("rl")
    assert info == expected(tokenbucket_allowed=1)
    assert {type(value) for value in info.values()} == {int}


def test_the_documented_script_for_an_exporter_gives_every_count(counting: Server) -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"^```lua\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    with counting.raw_connection() as connection:
        connection.call("RL.TOKENBUCKET", "b", "10", "1")
        # The exporter gives an argument that is not needed.
        flat = connection.call("EVAL", script, "0", "0")
    assert {name.decode(): int(count) for name, count in zip(flat[::2], flat[1::2])} == expected(tokenbucket_allowed=1)


@pytest.mark.parametrize("end", ["SEGFAULT", "PANIC"])
def test_a_crash_report_shows_the_counts_and_comes_to_its_end(counting: Server, end: str) -> None:
    """Nothing that the module adds to it crashes a second time, as a backtrace does on Valkey."""
    with counting.raw_connection() as connection:
        connection.call("RL.TOKENBUCKET", "b", "10", "1")
        with pytest.raises(ConnectionError):
            connection.call("DEBUG", end)
    wait_until(lambda: not counting.is_alive, CRASH_TIMEOUT_S, "the server has ended")
    *_, fields = counting.log.partition("\n# rl\n")
    assert "BUG REPORT END" in fields, counting.log
    shown = dict(re.findall(r"^(rl_\w+):(\d+)\r?$", fields, re.MULTILINE))
    assert {name: int(count) for name, count in shown.items()} == expected(tokenbucket_allowed=1)


def test_config_resetstat_leaves_the_counts_as_they_are(counting: Server) -> None:
    """Modules are not told of it: documented in docs/metrics.md."""
    with counting.raw_connection() as connection:
        connection.call("RL.TOKENBUCKET", "b", "10", "1")
        assert connection.call("CONFIG", "RESETSTAT") == b"OK"
        assert counting.info("commandstats").get("cmdstat_rl.tokenbucket") is None
    assert counts(counting) == expected(tokenbucket_allowed=1)


def test_the_counts_start_at_0_after_a_restart_though_the_keys_are_kept(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server({"appendonly": "yes", "appendfsync": "always"})
    with server.raw_connection() as connection:
        connection.call("RL.TOKENBUCKET", "b", "10", "1")
    server.restart()
    assert server.client().exists("b") == 1
    assert counts(server) == expected()


def test_a_reload_starts_the_counts_at_0_or_goes_on_with_each_field_once(
    fresh_server: Callable[..., Server],
) -> None:
    """The library may or may not stay in memory between the two: that is the system's choice."""
    server = fresh_server({"enable-module-command": "yes"})
    with server.raw_connection() as connection:
        connection.call("RL.TOKENBUCKET", "b", "10", "1")
        assert connection.call("MODULE", "UNLOAD", "rl") == b"OK"
        assert counts(server) == {}
        assert connection.call("MODULE", "LOAD", str(module_path())) == b"OK"
        lines = connection.call("INFO", "rl").decode().split()
        assert len(lines) == len(set(lines))
    assert counts(server) in (expected(), expected(tokenbucket_allowed=1))
