"""docs/operations.md: its table names tests that exist, a section without one is advice, and its caller fails closed."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness.connection import RawConnection
from harness.server import REPOSITORY, Server, wait_until

PAGE = REPOSITORY / "docs" / "operations.md"
TESTS = Path(__file__).parent
NAMED = re.compile(r"`(test_\w+)`")
ROW = re.compile(r"^\| \[([^\]]+)\]\(#[\w-]+\) \| `(test_\w+)` \|$", re.MULTILINE)
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
WITHOUT_TESTS = {"What to alert on", "Metrics", "The tests behind this page"}
DEFINED = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

KEY, CAPACITY, REFILL_RATE = "key", 2, 0
CALL = ("RL.TOKENBUCKET", KEY, CAPACITY, REFILL_RATE)


def page_text() -> str:
    return PAGE.read_text(encoding="utf-8")


def named_tests() -> dict[str, list[str]]:
    """The tests in the table at the end of the page, by the heading of the section that they stand for."""
    named: dict[str, list[str]] = {}
    for section, test in ROW.findall(page_text()):
        named.setdefault(section, []).append(test)
    return named


def test_each_test_that_the_page_names_exists() -> None:
    named = [test for tests in named_tests().values() for test in tests]
    defined = {name for file in TESTS.glob("test_*.py") for name in DEFINED.findall(file.read_text(encoding="utf-8"))}
    assert len(set(named)) > 30
    assert sorted(set(named) - defined) == []


def test_each_section_of_the_page_has_a_test_in_its_table_but_for_advice() -> None:
    sections = HEADING.findall(page_text())
    assert set(sections) - set(named_tests()) == WITHOUT_TESTS
    assert set(named_tests()) <= set(sections)


def test_the_prose_of_the_page_is_free_of_test_names() -> None:
    """They stand in the table, where they do not get in a reader's way."""
    prose = "".join(line for line in page_text().splitlines(keepends=True) if not ROW.match(line))
    assert NAMED.findall(prose) == []


# The caller


@pytest.fixture(scope="module")
def admit() -> Callable[[redis.Redis, str, float, float], tuple[int, int]]:
    """The function in the page's first example."""
    names: dict = {}
    exec(PYTHON.findall(page_text())[0], names)
    return names["admit"]


def caller_client(server: Server) -> redis.Redis:
    """The client of the page: short timeouts, no retries."""
    return server.client(socket_connect_timeout=0.1, socket_timeout=0.1, retry=Retry(NoBackoff(), 0))


def test_the_client_of_the_page_is_the_one_that_is_tested(server: Server) -> None:
    names: dict = {"redis": redis}
    exec(PYTHON.findall(page_text())[1], names)
    arguments = names["client"].get_connection_kwargs()
    tested = caller_client(server).get_connection_kwargs()
    for name in ("socket_connect_timeout", "socket_timeout"):
        assert arguments[name] == tested[name]
    assert arguments["retry"].get_retries() == tested["retry"].get_retries() == 0


def test_the_caller_answers_200_then_429_with_the_wait(server: Server, raw: RawConnection, admit) -> None:
    client = server.client()
    # A token in ten minutes, so that none comes back meanwhile.
    assert [admit(client, KEY, 2, 1 / 600) for _ in range(2)] == [(200, 0), (200, 0)]
    status, retry_after_s = admit(client, KEY, 2, 1 / 600)
    assert status == 429 and 500 < retry_after_s <= 600
    assert admit(client, "never", 0, 0) == (429, 1)


def test_the_caller_answers_503_when_the_server_is_down(fresh_server: Callable[..., Server], admit) -> None:
    server = fresh_server()
    # Outside of the harness's list, which closes its clients with the server.
    client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
    assert admit(client, KEY, CAPACITY, REFILL_RATE)[0] == 200
    server.kill9()
    for _ in range(3):
        assert admit(client, KEY, CAPACITY, REFILL_RATE) == (503, 1)
    client.close()


@pytest.fixture
def hanging(fresh_server: Callable[..., Server]):
    """A server that can be stopped and goes on in the end."""
    server = fresh_server()
    yield server
    os.kill(server.pid, signal.SIGCONT)


def test_the_caller_answers_503_while_the_server_hangs_and_200_after(hanging: Server, admit) -> None:
    client = caller_client(hanging)
    assert admit(client, "before", CAPACITY, REFILL_RATE)[0] == 200
    os.kill(hanging.pid, signal.SIGSTOP)
    assert admit(client, "meanwhile", CAPACITY, REFILL_RATE) == (503, 1)
    os.kill(hanging.pid, signal.SIGCONT)
    with hanging.raw_connection() as connection:
        assert connection.call("PING") in (b"PONG", "PONG")
    assert admit(client, "after", CAPACITY, REFILL_RATE)[0] == 200


def test_a_call_whose_reply_never_came_may_have_taken_its_cost(hanging: Server) -> None:
    client = caller_client(hanging)
    client.ping()
    os.kill(hanging.pid, signal.SIGSTOP)
    with pytest.raises(redis.TimeoutError):
        client.execute_command(*CALL)
    os.kill(hanging.pid, signal.SIGCONT)
    with hanging.raw_connection() as connection:
        preview = ("RL.TOKENBUCKET_RO", *CALL[1:])
        wait_until(lambda: connection.call(*preview)[1] == CAPACITY - 1, what="the call is carried out")


def assert_unavailable(server: Server, admit, error: str) -> None:
    """The server refuses with `error`, the caller answers 503, and the limiter stays as it was."""
    with server.raw_connection() as connection:
        before = connection.call_all([("DUMP", KEY), ("PTTL", KEY)])
        reply = connection.call(*CALL)
        assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith(error), reply
        assert admit(server.client(), KEY, CAPACITY, REFILL_RATE) == (503, 1)
        assert connection.call_all([("DUMP", KEY), ("PTTL", KEY)]) == before


def used_once(server: Server) -> Server:
    with server.raw_connection() as connection:
        assert connection.call(*CALL)[:2] == [1, CAPACITY - 1]
    return server


def test_the_caller_answers_503_when_memory_is_full(fresh_server: Callable[..., Server], admit) -> None:
    server = used_once(fresh_server({"maxmemory-policy": "noeviction"}))
    server.client().config_set("maxmemory", 1)
    assert_unavailable(server, admit, "OOM")


def test_the_caller_answers_503_when_the_module_is_missing(
    fresh_server: Callable[..., Server], admit
) -> None:
    assert_unavailable(fresh_server(with_module=False), admit, "ERR unknown command")


def test_the_caller_answers_503_from_a_read_only_replica(
    fresh_server: Callable[..., Server], admit
) -> None:
    assert_unavailable(replica_of(used_once(fresh_server(SYNC_AT_ONCE)), fresh_server), admit, "READONLY")


def test_a_read_only_replica_answers_previews(fresh_server: Callable[..., Server]) -> None:
    replica = replica_of(used_once(fresh_server(SYNC_AT_ONCE)), fresh_server)
    with replica.raw_connection() as connection:
        assert connection.call("RL.TOKENBUCKET_RO", *CALL[1:])[:2] == [1, CAPACITY - 1]
        assert connection.call("RL.ALL_RO", "1", KEY, "TOKENBUCKET", CAPACITY, REFILL_RATE, "COST", "2")[0] == 0


SYNC_AT_ONCE = {"repl-diskless-sync-delay": 0}


def replica_of(master: Server, fresh_server: Callable[..., Server]) -> Server:
    replica = fresh_server({"replicaof": ["127.0.0.1", str(master.port)]})
    replica.wait_until_linked()
    return replica


def test_the_caller_answers_503_from_a_master_without_enough_replicas(
    fresh_server: Callable[..., Server], admit
) -> None:
    server = used_once(fresh_server())
    server.client().config_set("min-replicas-to-write", 1)
    assert_unavailable(server, admit, "NOREPLICAS")


def test_the_caller_answers_503_when_the_server_cannot_write_to_disk(
    fresh_server: Callable[..., Server], admit, tmp_path: Path
) -> None:
    server = used_once(fresh_server({"enable-protected-configs": "yes"}))
    client = server.client()
    # A folder that is gone is as good as a full disk: the snapshot fails.
    gone = tmp_path / "gone"
    gone.mkdir()
    client.config_set("dir", str(gone))
    gone.rmdir()
    client.config_set("save", "3600 1")
    client.bgsave()
    wait_until(lambda: server.info("persistence")["rdb_last_bgsave_status"] == "err", what="the snapshot fails")
    try:
        assert_unavailable(server, admit, "MISCONF")
    finally:
        # A server with save points does not end in the orderly way while it cannot save.
        client.config_set("save", "")
