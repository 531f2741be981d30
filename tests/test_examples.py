"""Every program in examples/ runs as its README says, against a real server."""

import http.client
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from harness.server import HOST, REPOSITORY, Server, free_port, wait_until
from harness.tally import Tally

EXAMPLES = REPOSITORY / "examples"
BUILT = REPOSITORY / "target" / "examples"
VENV = REPOSITORY / "target" / "examples-venv"
INSTALL_TIMEOUT_S = 280
RUN_TIMEOUT_S = 120


def run(command: Sequence[object], cwd: Path, timeout_s: float = RUN_TIMEOUT_S, **environment: str) -> str:
    """The standard output of a program that has to end well."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def url_of(server: Server) -> str:
    return f"redis://{HOST}:{server.port}"


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python that has what the examples' requirements name and nothing of the tests' own."""
    requirements = sorted(EXAMPLES.glob("**/requirements.txt"))
    wanted = "".join(path.read_text() for path in requirements)
    stamp = VENV / "requirements.txt"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(VENV, ignore_errors=True)
        run([sys.executable, "-m", "venv", VENV], REPOSITORY)
        pip = [VENV / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        for path in requirements:
            pip += ["-r", path]
        run(pip, REPOSITORY, INSTALL_TIMEOUT_S)
        stamp.write_text(wanted)
    return VENV / "bin" / "python"


# The demonstration

SMALL_DEMO = ("--rounds", "20", "--calls", "1000")


def demo(*options: str) -> list[object]:
    return [sys.executable, EXAMPLES / "demo" / "demo.py", *options]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def server_pid(output: str) -> int:
    match = re.search(r"pid (\d+)", output)
    assert match, output
    return int(match[1])


def test_only_reading_then_writing_over_admits_in_the_demonstration() -> None:
    output = run(demo(*SMALL_DEMO), REPOSITORY)
    row = re.compile(r"^(\S.*?) +(\d+) +(\d+) +(-?\d+) +\d+ for 3 +(\d) +([\d.]+)$", re.MULTILINE)
    rows = {match[1]: match.groups()[1:] for match in row.finditer(output)}
    assert list(rows) == ["read, then write", "Lua script", "RL.TOKENBUCKET"], output
    allowed = {way: int(fields[0]) for way, fields in rows.items()}
    over_admitted = {way: int(fields[2]) for way, fields in rows.items()}
    server_us = {way: float(fields[4]) for way, fields in rows.items()}
    assert over_admitted["read, then write"] > 0
    assert allowed["Lua script"] == allowed["RL.TOKENBUCKET"] == 60
    assert server_us["RL.TOKENBUCKET"] < server_us["Lua script"]
    assert not is_running(server_pid(output))
    assert "\r" not in output, "a progress line outside of a terminal"


def test_the_demonstration_shows_its_progress_in_a_terminal() -> None:
    master, slave = pty.openpty()
    with subprocess.Popen([str(word) for word in demo(*SMALL_DEMO)], stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        output = b""
        try:
            while chunk := os.read(master, 65536):
                output += chunk
        except OSError:
            pass  # how a terminal tells that the other side is gone
        os.close(master)
    assert process.returncode == 0, output
    assert b"\r\x1b[2KLua script: round 20 of 20" in output


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=lambda ending: ending.name)
def test_the_demonstration_ends_its_server_when_it_is_interrupted(ending: signal.Signals) -> None:
    with subprocess.Popen(
        [str(word) for word in demo("--rounds", "100000")],
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            pid = server_pid(process.stdout.readline())
            assert is_running(pid)
            process.stdout.readline()  # the race begins
            process.send_signal(ending)
            output, _ = process.communicate(timeout=60)
        finally:
            process.terminate()
    assert process.returncode == 130, output
    assert not is_running(pid)


# The clients

WHAT_EVERY_CLIENT_SAYS = r"""one call: allowed 1, remaining 4, full at \d{10}, retry after 0 s
batch of five: allowed allowed allowed allowed denied
preview: allowed 0, retry after \d{4,5} ms
refund of two: remaining 2
both limits, cost 1: allowed 1, remaining 1 and 99
both limits, cost 3: allowed 0, remaining 1 and 99
"""


def needs(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is missing")


def python_client(python: Path, server: Server) -> str:
    return run([python, "client.py"], EXAMPLES / "clients" / "python", REDIS_URL=url_of(server))


def node_client(_: Path, server: Server) -> str:
    needs("node")
    needs("npm")
    # Installed in a copy, so that the sources stay as they are.
    folder = BUILT / "node"
    shutil.copytree(
        EXAMPLES / "clients" / "node", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules")
    )
    run(["npm", "ci", "--no-audit", "--no-fund"], folder, INSTALL_TIMEOUT_S)
    return run(["node", "client.js"], folder, REDIS_URL=url_of(server))


def rust_client(_: Path, server: Server) -> str:
    needs("cargo")
    folder = EXAMPLES / "clients" / "rust"
    run(["cargo", "build", "--locked"], folder, INSTALL_TIMEOUT_S, CARGO_TARGET_DIR=str(BUILT))
    return run([BUILT / "debug" / "redis-rl-client"], folder, REDIS_URL=url_of(server))


def shell_client(_: Path, server: Server) -> str:
    return run(["./client.sh"], EXAMPLES / "clients" / "shell", REDIS_URL=url_of(server))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client_program", [python_client, node_client, rust_client, shell_client])
def test_every_client_gets_the_same_answers(
    python: Path, server: Server, client: redis.Redis, client_program: Callable[[Path, Server], str]
) -> None:
    output = client_program(python, server)
    assert re.fullmatch(WHAT_EVERY_CLIENT_SAYS, output), output


# The token budget


@contextmanager
def commands_of(client: redis.Redis, name: bytes) -> Iterator[list[list[bytes]]]:
    """The arguments of each call of the command within the block, in order, from the server's slow log."""
    calls: list[list[bytes]] = []
    before = client.config_get("slowlog-*")
    client.config_set("slowlog-log-slower-than", 0)
    client.config_set("slowlog-max-len", 1000)
    client.slowlog_reset()
    try:
        yield calls
        entries = sorted(client.slowlog_get(1000), key=lambda entry: entry["id"])
        calls += [words for entry in entries if (words := entry["command"].split())[0].upper() == name]
    finally:
        for setting, value in before.items():
            client.config_set(setting, value)


def test_the_token_budget_charges_what_was_used_by_failed_calls_too(
    python: Path, server: Server, client: redis.Redis
) -> None:
    begin_ms = time.time_ns() // 1_000_000
    with commands_of(client, b"RL.TOKENBUCKET") as calls:
        output = run([python, "budget.py"], EXAMPLES / "llm-token-budget", REDIS_URL=url_of(server))
    end_ms = time.time_ns() // 1_000_000
    refunds = [words[words.index(b"REFUND") :] for words in calls if b"REFUND" in words]
    # Of 405: ten used; seven, then a failure; none, then a failure. The other call uses all of its 400.
    assert [int(amount) for _, amount, *_ in refunds] == [395, 398, 405]
    # Each with the time of its own reservation.
    times = [int(at_ms) for _, _, at, at_ms in refunds if at == b"AT"]
    assert len(times) == 3 and times == sorted(times) and begin_ms <= times[0] and times[-1] <= end_ms
    assert re.search(r"^at first: 600 tokens$", output, re.MULTILINE)
    assert re.search(r"^answer: Everything flows and nothing stays$", output, re.MULTILINE)
    assert re.findall(r"^failed: the connection broke after (\d) tokens$", output, re.MULTILINE) == ["2", "0"]
    assert re.search(r"^while another call holds 400: 405 tokens asked for, .* in \d+\.\d s$", output, re.MULTILINE)
    assert re.search(r"^too much at once: 1005 tokens asked for, .* never$", output, re.MULTILINE)


# The HTTP gateway

API_KEY = "secret"
#: What a busy machine does not reach, for tests in which Redis is well.
AMPLE = {"TIME_LIMIT_S": "10"}
WINDOW_S = 60
THREADS = 32
ITEM = r'"(?P<name>\w+)";r=(?P<r>\d+);t=(?P<t>\d+)'


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]

    @property
    def limits(self) -> dict[str, tuple[int, int]]:
        """`r` and `t` of each item in the RateLimit header."""
        header = self.headers["ratelimit"]
        assert re.fullmatch(rf"{ITEM}(, {ITEM.replace('?P<', '?P<other_')})*", header), header
        return {match["name"]: (int(match["r"]), int(match["t"])) for match in re.finditer(ITEM, header)}


def get(port: int, path: str, headers: dict[str, str] | None = None) -> Answer:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        response.read()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()})
    finally:
        connection.close()


class Gateway:
    """A real uvicorn with the service."""

    def __init__(self, python: Path, redis_port: int, **environment: str) -> None:
        self.port = free_port()
        self._process = subprocess.Popen(
            [python, "-m", "uvicorn", "gateway:app", "--host", HOST, "--port", str(self.port), "--log-level", "critical"],
            cwd=EXAMPLES / "http-gateway",
            env={**os.environ, "REDIS_URL": f"redis://{HOST}:{redis_port}", "API_KEYS": f"{API_KEY},other", **environment},
        )
        try:
            wait_until(self._is_ready, RUN_TIMEOUT_S, "the gateway answers")
        except BaseException:
            self.close()
            raise

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "the gateway ended while starting"
        try:
            return self.get("/health").status == 200
        except OSError:
            return False

    def get(self, path: str = "/quote", api_key: str = API_KEY) -> Answer:
        return get(self.port, path, {"X-API-Key": api_key})

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)


@pytest.fixture
def start_gateway(python: Path, server: Server, client: redis.Redis) -> Iterator[Callable[..., Gateway]]:
    """Starts the service, by default on the session's server, emptied."""
    started: list[Gateway] = []

    def start(redis_port: int = server.port, **environment: str) -> Gateway:
        started.append(Gateway(python, redis_port, **environment))
        return started[-1]

    yield start
    for gateway in started:
        gateway.close()


def load(gateways: Sequence[Gateway], requests: int) -> list[Answer]:
    """Many requests at once, each of the gateways taking its share."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(lambda number: gateways[number % len(gateways)].get(), range(requests)))


def statuses(answers: Sequence[Answer]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


def test_an_answer_tells_its_quotas_in_the_headers_of_the_ietf_draft(start_gateway: Callable[..., Gateway]) -> None:
    answer = start_gateway(**AMPLE).get()
    assert answer.status == 200
    assert answer.headers["ratelimit-policy"] == '"second";q=10;w=1, "minute";q=100;w=60'
    assert answer.limits["second"] == (9, 1)
    remaining, seconds = answer.limits["minute"]
    assert remaining == 99
    assert WINDOW_S <= seconds <= 2 * WINDOW_S
    assert "retry-after" not in answer.headers


def test_a_refused_request_may_pass_once_retry_after_is_over(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(QUOTA_PER_SECOND="1", **AMPLE)
    answers = load([gateway], 5)
    refused = [answer for answer in answers if answer.status == 429]
    assert refused
    for answer in refused:
        assert answer.limits == {"second": (0, 1)}
        assert answer.headers["retry-after"] == "1"
    time.sleep(1)
    assert gateway.get().status == 200


def test_a_quota_of_zero_is_answered_with_403_and_no_time_to_come_back(start_gateway: Callable[..., Gateway]) -> None:
    answer = start_gateway(QUOTA_PER_SECOND="0", QUOTA_PER_MINUTE="0", **AMPLE).get()
    assert answer.status == 403
    assert answer.headers["ratelimit"] == '"second";r=0, "minute";r=0'
    assert "retry-after" not in answer.headers


def test_no_request_beyond_the_quota_passes_under_load_on_two_processes(
    start_gateway: Callable[..., Gateway], tally: Tally
) -> None:
    gateways = [start_gateway(QUOTA_PER_SECOND="1000", QUOTA_PER_MINUTE="50", **AMPLE) for _ in range(2)]
    # All in one window: across its end the estimate lets a part of the quota come back.
    wait_until(lambda: time.time() % WINDOW_S < WINDOW_S / 2, WINDOW_S, "the first half of a minute")
    assert statuses(load(gateways, 400)) == {200: 50, 429: 350}
    tally.add("examples", 400, "requests to two gateways, 50 passed")


def test_a_request_that_one_limit_refuses_takes_nothing_from_the_other(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(QUOTA_PER_SECOND="5", QUOTA_PER_MINUTE="10000", **AMPLE)
    begin = time.monotonic()
    answers = load([gateway], 200)
    elapsed_s = time.monotonic() - begin
    passed = statuses(answers)[200]
    assert 5 <= passed <= 5 + 5 * elapsed_s
    time.sleep(1)
    answer = gateway.get()
    assert answer.status == 200
    assert answer.limits["minute"][0] >= 10_000 - passed - 1


def test_api_keys_have_limits_of_their_own_and_unknown_ones_do_not_pass(start_gateway: Callable[..., Gateway]) -> None:
    gateway = start_gateway(QUOTA_PER_MINUTE="1", **AMPLE)
    assert [gateway.get(api_key=key).status for key in (API_KEY, API_KEY, "other", "unknown", "")] == [
        200, 429, 200, 401, 401,
    ]  # fmt: skip


def test_the_limits_of_an_api_key_share_a_cluster_slot_and_do_not_name_it(
    fresh_server: Callable[..., Server], start_gateway: Callable[..., Gateway]
) -> None:
    server = fresh_server({"cluster-enabled": "yes"})
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), what="the cluster is up")
        assert start_gateway(server.port, **AMPLE).get().status == 200
        keys = client.keys()
    assert len(keys) == 2
    assert not any(API_KEY.encode() in key for key in keys)


def test_without_redis_the_gateway_refuses_and_with_it_back_it_serves(
    fresh_server: Callable[..., Server], start_gateway: Callable[..., Gateway]
) -> None:
    server = fresh_server()
    gateway = start_gateway(server.port, QUOTA_PER_SECOND="1000", QUOTA_PER_MINUTE="1000", **AMPLE)
    assert statuses(load([gateway], 100)) == {200: 100}

    server.kill9()
    answers = load([gateway], 100)
    assert statuses(answers) == {503: 100}
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert gateway.get("/health").status == 200

    server.start()
    assert statuses(load([gateway], 100)) == {200: 100}


def test_a_redis_that_hangs_is_as_good_as_none_and_blocks_nothing(
    fresh_server: Callable[..., Server], start_gateway: Callable[..., Gateway]
) -> None:
    server = fresh_server()
    gateway = start_gateway(server.port, QUOTA_PER_SECOND="1000", QUOTA_PER_MINUTE="1000")
    wait_until(lambda: gateway.get().status == 200, what="a first request passes")

    os.kill(server.pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(load, [gateway], THREADS)
            assert gateway.get("/health").status == 200
            assert statuses(hanging.result()) == {503: THREADS}
        # A quarter of a second each; one after another it would have been eight seconds.
        assert time.monotonic() - begin < 4
    finally:
        os.kill(server.pid, signal.SIGCONT)

    # And no reply that came too late is taken for that of a later request.
    wait_until(lambda: gateway.get().status == 200, what="service is back")
    first, *others = [gateway.get().limits["minute"][0] for _ in range(5)]
    assert others == [first - 1, first - 2, first - 3, first - 4]


# The middleware of docs/migrating.md

#: Express 4 does not handle what an async function throws: the process would end.
EXPRESS_PACKAGES = ("express@4.21.2", "redis@6.3.1")
EXPRESS_APP = """
import express from 'express'
import { createClient } from 'redis'
const app = express()
%s
app.get('/', (req, res) => res.send('served'))
app.listen(Number(process.env.PORT), '127.0.0.1')
"""


@pytest.fixture
def express_app() -> Iterator[Callable[[Server], tuple[subprocess.Popen, int]]]:
    """Starts an Express process with the middleware of the page; gives it and its port."""
    needs("node")
    needs("npm")
    folder = BUILT / "express"
    folder.mkdir(parents=True, exist_ok=True)
    wanted, stamp = "\n".join(EXPRESS_PACKAGES), folder / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        run(["npm", "install", "--no-audit", "--no-fund", *EXPRESS_PACKAGES], folder, INSTALL_TIMEOUT_S)
        stamp.write_text(wanted)
    page = (REPOSITORY / "docs" / "migrating.md").read_text(encoding="utf-8")
    middleware = re.search(r"^```js\n(// after\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert middleware
    (folder / "app.mjs").write_text(EXPRESS_APP % middleware[1])
    started: list[subprocess.Popen] = []

    def start(server: Server) -> tuple[subprocess.Popen, int]:
        port = free_port()
        environment = {**os.environ, "REDIS_URL": url_of(server), "PORT": str(port)}
        started.append(subprocess.Popen(["node", "app.mjs"], cwd=folder, env=environment, stderr=subprocess.DEVNULL))
        return started[-1], port

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


def status_of(port: int) -> int | None:
    """The status of an answer; None if nobody listens."""
    try:
        return get(port, "/").status
    except OSError:
        return None


def test_the_express_middleware_answers_503_without_redis_and_lives_on(
    fresh_server: Callable[..., Server], express_app: Callable[[Server], tuple[subprocess.Popen, int]]
) -> None:
    server = fresh_server()
    process, port = express_app(server)
    wait_until(lambda: status_of(port) == 200, RUN_TIMEOUT_S, "the application serves")

    server.kill9()
    for _ in range(3):
        answer = get(port, "/")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert process.poll() is None

    server.start()
    wait_until(lambda: status_of(port) == 200, RUN_TIMEOUT_S, "the application serves again")

    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert get(port, "/").status == 503
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert process.poll() is None


def test_the_express_middleware_answers_429_beyond_its_limit(
    fresh_server: Callable[..., Server], express_app: Callable[[Server], tuple[subprocess.Popen, int]]
) -> None:
    _, port = express_app(fresh_server())
    wait_until(lambda: status_of(port) is not None, RUN_TIMEOUT_S, "the application answers")
    # Far more than two windows admit.
    answers = [get(port, "/") for _ in range(250)]
    assert statuses(answers).keys() == {200, 429}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in answers if answer.status == 429)
