"""Fixtures: servers of the tests' own, and the counts that the summary shows."""

import os
import random
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
import redis

from harness import scripts
from harness.connection import RawConnection
from harness.observed import ObservedServer
from harness.server import Server
from harness.tally import TALLY, Tally

AnyServer = TypeVar("AnyServer", bound=Server)
SEED = os.environ.get("RL_SEED") or str(random.SystemRandom().randrange(2**32))


def pytest_report_header() -> str:
    return f"RL_SEED={SEED}"


def pytest_terminal_summary(terminalreporter) -> None:
    if lines := TALLY.lines():
        terminalreporter.section("counts")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def tally() -> Tally:
    """Adds to the counts at the end of the run."""
    return TALLY


@pytest.fixture(scope="session")
def seed() -> str:
    """What every random choice follows from: RL_SEED, or one of the run's own, shown in its header."""
    return SEED


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: str) -> random.Random:
    """Random choices that depend on the seed and on the test's name alone."""
    return random.Random(f"{seed}:{request.node.name}")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server with the module for every test that leaves it as it was."""
    with Server() as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A client of an empty server."""
    with server.client() as connected:
        connected.flushall()
        yield connected


@pytest.fixture
def raw(server: Server) -> Iterator[RawConnection]:
    """A raw connection to an empty server that knows the Lua reference scripts."""
    with server.raw_connection() as connection:
        connection.call("FLUSHALL")
        scripts.load_all(connection)
        yield connection


@pytest.fixture(scope="session")
def _observed_server() -> Iterator[ObservedServer]:
    with ObservedServer() as running:
        yield running


@pytest.fixture
def observed(_observed_server: ObservedServer) -> ObservedServer:
    """An empty server of which every trace of a change can be read: see ObservedServer."""
    _observed_server.connection.call("FLUSHALL")
    return _observed_server


@pytest.fixture
def closed_at_the_end() -> Iterator[Callable[[AnyServer], AnyServer]]:
    """Takes a server of one test alone, and closes it after the test."""
    servers: list[Server] = []

    def take(server: AnyServer) -> AnyServer:
        servers.append(server)
        return server

    yield take
    for server in reversed(servers):
        server.close()


@pytest.fixture
def fresh_server(closed_at_the_end: Callable[[Server], Server]) -> Callable[..., Server]:
    """Starts servers for one test alone: `fresh_server({"appendonly": "yes"}, with_module=False)`."""
    return lambda *args, **kwargs: closed_at_the_end(Server(*args, **kwargs)).start()
