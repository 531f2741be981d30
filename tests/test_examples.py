"""Every program in examples/ runs as its README says, against a real server."""

import hashlib
import http.client
import json
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis

from harness.program import RUN_TIMEOUT_S, run
from harness.server import HOST, REPOSITORY, Server, free_port, wait_until
from harness.tally import Tally

EXAMPLES = REPOSITORY / "examples"
BUILT = REPOSITORY / "target" / "examples"
VENV = REPOSITORY / "target" / "examples-venv"
INSTALL_TIMEOUT_S = 280


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
    together = "RL.ALL of rate, quota, concurrency"
    assert list(rows) == ["read, then write", "Lua script", "RL.TOKENBUCKET", together], output
    allowed = {way: int(fields[0]) for way, fields in rows.items()}
    over_admitted = {way: int(fields[2]) for way, fields in rows.items()}
    server_us = {way: float(fields[4]) for way, fields in rows.items()}
    assert over_admitted["read, then write"] > 0
    assert allowed["Lua script"] == allowed["RL.TOKENBUCKET"] == allowed[together] == 60
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


# The gateway for language models

TENANT = "secret"
MODEL_GATEWAY = EXAMPLES / "llm-token-budget"
MONTHLY_TOKENS = 1_000_000
#: What no test reaches by chance, so that each meets only the limit that it is about.
GENEROUS = {
    "REQUESTS_PER_MINUTE": "100000",
    "TOKENS_PER_MINUTE": "1000000",
    "TOKENS_PER_MONTH": str(MONTHLY_TOKENS),
    "CALLS_AT_ONCE": "100",
    "LEASE_S": "60",
    "TIME_LIMIT_S": "10",
    "SECONDS_PER_TOKEN": "0",
}
#: A model so slow that a call which has its first token is in its middle for as long as a test needs it there.
SLOW = {"SECONDS_PER_TOKEN": "0.05"}
LONG_ANSWER = 500
#: Four words of three letters: 15 characters, estimated as 4 tokens, counted by the model as 4.
PROMPT = "one two six ten"
PROMPT_TOKENS = 4
TOKEN_BYTES = 4


#: The gateway with a model that notes the begin and the end of each answer, on the clock that all processes share. A
#: client sees tokens later than they were written, so its own clock cannot tell how many calls run at once.
WITH_DIARY = """
import os, sys, time
sys.path.insert(0, ".")
import model
diary = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
def note(what, answer):
    os.write(diary, f"{what} {id(answer)} {time.monotonic_ns()}\\n".encode())
class Answer(model.Answer):
    def __iter__(self):
        note("begin", self)
        yield from super().__iter__()
        note("end", self)
model.Answer = Answer
import gateway
gateway.main()
"""


class Stream:
    """A call to the model whose answer has begun, or the reply that it got instead."""

    def __init__(self, port: int, body: object, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=RUN_TIMEOUT_S)
        self._connection.request("POST", "/", json.dumps(body), {"X-API-Key": TENANT, **headers})
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self.headers = {name.lower(): value for name, value in self._response.getheaders()}
        self.id = self.headers.get("x-request-id", "")

    def token(self) -> str:
        """The next token of an answer to PROMPT; empty at the end. Raises IncompleteRead if the answer breaks off."""
        return self._response.read(TOKEN_BYTES).decode()

    def rest(self) -> str:
        """Everything else. Raises IncompleteRead if the answer breaks off."""
        return self._response.read().decode()

    def hang_up(self) -> None:
        self._response.close()
        self._connection.close()


class ModelGateway:
    """A real process of the gateway. With a diary, its model notes there when it is at work."""

    def __init__(self, python: Path, redis_port: int, diary: Path | None = None, **environment: str) -> None:
        self._diary = diary
        self._killed_ns = 0
        self._process = subprocess.Popen(
            [python, "gateway.py"] if diary is None else [python, "-c", WITH_DIARY, diary],
            cwd=MODEL_GATEWAY,
            env={
                **os.environ, **GENEROUS, "PORT": "0", "REDIS_URL": f"redis://{HOST}:{redis_port}", "API_KEYS": TENANT,
                **environment,
            },
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        self._told_to_end = False
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        match = re.fullmatch(r"listening on http://.*:(\d+)\n", line)
        assert match, line
        self.port = int(match[1])

    def begin(self, max_tokens: int | None, prompt: str = PROMPT, **headers: str) -> Stream:
        return Stream(self.port, {"prompt": prompt, "max_tokens": max_tokens}, **headers)

    def ask(self, max_tokens: int | None, prompt: str = PROMPT) -> int:
        """The status of a call that is read to its end."""
        stream = self.begin(max_tokens, prompt)
        stream.rest()
        return stream.status

    def signal(self, number: signal.Signals) -> None:
        self._told_to_end |= number == signal.SIGTERM
        self._process.send_signal(number)

    def kill9(self) -> None:
        self._killed_ns = time.monotonic_ns()
        self._process.kill()
        self._process.wait()

    def model_at_work(self) -> list[tuple[int, int]]:
        """From when to when the model wrote each answer. What the kill cut short ends with the kill."""
        assert self._diary is not None
        begun: dict[str, int] = {}
        intervals = []
        for line in self._diary.read_text().splitlines():
            what, name, ns = line.split()
            if what == "begin":
                begun[name] = int(ns)
            else:
                intervals.append((begun.pop(name), int(ns)))
        return intervals + [(begin, max(begin, self._killed_ns)) for begin in begun.values()]

    def close(self) -> int:
        """Ends it in the orderly way, if it does not end already, and gives its exit code."""
        if not self._told_to_end and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        code = self._process.wait(RUN_TIMEOUT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


@pytest.fixture
def start_model_gateway(python: Path, server: Server, client: redis.Redis) -> Iterator[Callable[..., ModelGateway]]:
    """Starts the gateway, by default on the session's server, emptied."""
    started: list[ModelGateway] = []

    def start(redis_port: int = server.port, **options: Any) -> ModelGateway:
        started.append(ModelGateway(python, redis_port, **options))
        return started[-1]

    yield start
    for gateway in started:
        gateway.close()


class Ledger:
    """What the limiters of the one tenant hold."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        tag = hashlib.sha256(TENANT.encode()).hexdigest()[:32]
        self._key = f"{{{tag}}}:%s"

    def charged(self) -> int:
        """Tokens counted for this month."""
        reply = self._client.execute_command("RL.QUOTA_RO", self._key % "month", MONTHLY_TOKENS, "MONTH")
        return MONTHLY_TOKENS - reply[1]

    def requests(self) -> int:
        limit = int(GENEROUS["REQUESTS_PER_MINUTE"])
        return limit - self._client.execute_command("RL.SLIDING_RO", self._key % "rpm", limit, 60)[1]

    def leases(self) -> dict[str, int]:
        """The leases that live, and until when."""
        seconds, microseconds = self._client.time()
        now_ms = seconds * 1000 + microseconds // 1000
        return {
            name.decode(): int(until_ms)
            for name, until_ms in self._client.zrange(self._key % "run", 0, -1, withscores=True)
            if until_ms > now_ms
        }


@pytest.fixture
def ledger(client: redis.Redis) -> Ledger:
    return Ledger(client)


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


def after(words: Sequence[bytes], word: bytes) -> list[int]:
    """The number behind each place where the word stands."""
    return [int(words[index + 1]) for index, each in enumerate(words) if each == word]


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "estimate", "used"),
    [
        pytest.param(PROMPT, 10, PROMPT_TOKENS + 10, PROMPT_TOKENS + 10, id="as estimated"),
        pytest.param(PROMPT, 800, PROMPT_TOKENS + 800, PROMPT_TOKENS + 500, id="less: given back"),
        pytest.param(PROMPT, None, PROMPT_TOKENS + 100, PROMPT_TOKENS + 500, id="more: forced"),
        pytest.param("one break six ten", 10, 5 + 10, PROMPT_TOKENS + 2, id="the model breaks off"),
    ],
)
def test_each_model_call_is_charged_what_it_used(
    start_model_gateway: Callable[..., ModelGateway], client: redis.Redis, ledger: Ledger,
    prompt: str, max_tokens: int | None, estimate: int, used: int,
) -> None:  # fmt: skip
    gateway = start_model_gateway()
    begin_ms = time.time_ns() // 1_000_000
    with commands_of(client, b"RL.ALL") as calls:
        stream = gateway.begin(max_tokens, prompt)
        try:
            stream.rest()
            assert "break" not in prompt
        except http.client.IncompleteRead:
            assert "break" in prompt
        wait_until(lambda: not ledger.leases(), what="the call is settled")
    end_ms = time.time_ns() // 1_000_000
    assert stream.status == 200
    assert ledger.charged() == used
    assert ledger.requests() == 1
    reserve, settle = calls
    # The bucket and the month, by the same amount.
    assert after(reserve, b"COST") == [estimate] * 2
    assert after(settle, b"FORCE") == ([used - estimate] * 2 if used >= estimate else [])
    assert after(settle, b"REFUND") == ([estimate - used] * 2 if used < estimate else [])
    assert all(begin_ms <= at_ms <= end_ms for at_ms in after(settle, b"AT"))
    assert len(after(settle, b"AT")) == len(after(settle, b"REFUND"))


def test_a_call_that_did_not_reach_the_model_gets_everything_back(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger
) -> None:
    assert start_model_gateway().ask(10, "unavailable") == 502
    assert (ledger.charged(), ledger.requests(), ledger.leases()) == (0, 0, {})


@pytest.mark.parametrize(
    ("limit", "value", "status", "says"),
    [
        ("REQUESTS_PER_MINUTE", 1, 429, "requests per minute"),
        ("TOKENS_PER_MINUTE", 520, 429, "tokens per minute"),
        ("TOKENS_PER_MONTH", 520, 429, "tokens per month"),
        ("CALLS_AT_ONCE", 1, 429, "calls at once"),
        ("TOKENS_PER_MINUTE", 10, 403, "tokens per minute"),
        ("TOKENS_PER_MONTH", 10, 403, "tokens per month"),
    ],
)
def test_each_limit_of_the_model_gateway_denies_by_its_name(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger, limit: str, value: int, status: int, says: str
) -> None:
    gateway = start_model_gateway(**SLOW, **{limit: str(value)})
    first = gateway.begin(LONG_ANSWER)
    if status == 403:
        denied = first
    else:
        assert first.status == 200
        denied = gateway.begin(LONG_ANSWER)
    assert (denied.status, denied.rest()) == (status, f"denied by the limit on {says}\n")
    assert ("retry-after" in denied.headers) == (status == 429)
    if says == "calls at once":
        # The lease has a minute left. Calls end earlier.
        assert denied.headers["retry-after"] == "1"
    # It took nothing.
    assert len(ledger.leases()) == (1 if status == 429 else 0)
    first.hang_up()


def test_a_client_that_hangs_up_pays_for_what_it_got_and_frees_its_place(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger
) -> None:
    gateway = start_model_gateway(**SLOW)
    stream = gateway.begin(LONG_ANSWER)
    assert stream.token() == "one "
    assert ledger.charged() == PROMPT_TOKENS + LONG_ANSWER
    assert list(ledger.leases()) == [stream.id]
    stream.hang_up()
    wait_until(lambda: not ledger.leases(), what="the place is free")
    assert PROMPT_TOKENS + 1 <= ledger.charged() < PROMPT_TOKENS + LONG_ANSWER


def test_a_gateway_that_is_told_to_end_settles_the_calls_that_run(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger
) -> None:
    gateway = start_model_gateway(SECONDS_PER_TOKEN="0.01")
    stream = gateway.begin(100)
    stream.token()
    gateway.signal(signal.SIGTERM)
    assert len(stream.rest().split()) == 99
    assert gateway.close() == 0
    assert (ledger.charged(), ledger.leases()) == (PROMPT_TOKENS + 100, {})


def test_a_client_cannot_choose_the_id_of_its_call(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger
) -> None:
    gateway = start_model_gateway(**SLOW)
    named = {"X-Request-Id": "mine", "Idempotency-Key": "mine"}
    streams = [gateway.begin(LONG_ANSWER, **named) for _ in range(2)]
    assert set(ledger.leases()) == {stream.id for stream in streams}
    assert "mine" not in ledger.leases()
    assert (len(ledger.leases()), ledger.requests()) == (2, 2)
    assert ledger.charged() == 2 * (PROMPT_TOKENS + LONG_ANSWER)
    for stream in streams:
        stream.hang_up()


def test_a_call_longer_than_its_lease_keeps_its_place(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger
) -> None:
    stream = start_model_gateway(LEASE_S="1", **SLOW).begin(LONG_ANSWER)
    first = ledger.leases()[stream.id]
    # Renewed until it has lived for more than three lengths of the first lease.
    wait_until(lambda: ledger.leases().get(stream.id, 0) > first + 3000, what="the lease is renewed")
    assert stream.token() == "one "
    stream.hang_up()


def test_a_call_that_lost_its_lease_is_charged_once_and_frees_no_other(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger
) -> None:
    frozen = start_model_gateway(LEASE_S="1", CALLS_AT_ONCE="1", SECONDS_PER_TOKEN="0.01")
    other = start_model_gateway(CALLS_AT_ONCE="1", **SLOW)
    # Eight tokens that are estimated as four: there is something left to charge when it ends.
    lost = frozen.begin(100, "a b c d e f g h")
    lost.token()
    frozen.signal(signal.SIGSTOP)
    assert list(ledger.leases()) == [lost.id]
    assert other.ask(10) == 429
    wait_until(lambda: not ledger.leases(), what="the lease of the frozen process is over")
    running = other.begin(LONG_ANSWER)
    assert running.status == 200
    reserved = PROMPT_TOKENS + LONG_ANSWER

    frozen.signal(signal.SIGCONT)
    lost.rest()
    assert ledger.charged() == 8 + 100 + reserved
    assert list(ledger.leases()) == [running.id]
    running.hang_up()


# Replies that are lost


class FaultyProxy:
    """Stands between a gateway and Redis. It loses chosen replies, with their connections, and keeps commands waiting."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server((HOST, 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._lose: list[bytes] = []
        self.lost = 0
        self._hold: bytes | None = None
        self.holds, self.go_on, self.passed = threading.Event(), threading.Event(), threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, *markers: bytes) -> None:
        """Loses the reply to the next command that holds the first marker, then the next with the second, ..."""
        with self._lock:
            self._lose += markers

    def hold(self, marker: bytes) -> None:
        """Keeps commands that hold the marker: sets `holds`, waits for `go_on`, and sets `passed` after the reply."""
        self._hold = marker

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _is_lost(self, command: bytes) -> bool:
        with self._lock:
            if self._lose and self._lose[0] in command:
                del self._lose[0]
                self.lost += 1
                return True
            return False

    def _serve(self, near: socket.socket) -> None:
        # redis-py sends each command in one piece and waits for its reply.
        with near, socket.create_connection((HOST, self._to)) as far:
            try:
                while command := near.recv(1 << 16):
                    held = self._hold is not None and self._hold in command
                    if held:
                        self.holds.set()
                        self.go_on.wait(RUN_TIMEOUT_S)
                    far.sendall(command)
                    reply = far.recv(1 << 16)
                    if self._is_lost(command):
                        return
                    near.sendall(reply)
                    if held:
                        self.passed.set()
            except OSError:
                return  # the gateway has ended

    def close(self) -> None:
        self.go_on.set()
        self._listener.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultyProxy]:
    running = FaultyProxy(server.port)
    yield running
    running.close()


@pytest.mark.parametrize("max_tokens", [10, 800, None], ids=["as estimated", "less", "more"])
@pytest.mark.parametrize("marker", [b"COST", b"RELEASE"], ids=["reserving", "settling"])
def test_a_reply_that_is_lost_charges_a_model_call_once(
    start_model_gateway: Callable[..., ModelGateway], proxy: FaultyProxy, ledger: Ledger, marker: bytes,
    max_tokens: int | None,
) -> None:  # fmt: skip
    gateway = start_model_gateway(proxy.port)
    proxy.lose(marker)
    assert gateway.ask(max_tokens) == 200
    assert proxy.lost == 1
    assert ledger.charged() == PROMPT_TOKENS + (10 if max_tokens == 10 else 500)
    assert (ledger.requests(), ledger.leases()) == (1, {})


def test_a_reservation_without_an_answer_is_given_back(
    start_model_gateway: Callable[..., ModelGateway], proxy: FaultyProxy, ledger: Ledger
) -> None:
    gateway = start_model_gateway(proxy.port, LEASE_S="10")
    proxy.lose(b"COST", b"COST")
    refused = gateway.begin(10)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert proxy.lost == 2
    wait_until(lambda: (ledger.charged(), ledger.requests(), ledger.leases()) == (0, 0, {}), what="it is given back")


def test_a_settlement_without_an_answer_is_sent_again_and_acts_once(
    start_model_gateway: Callable[..., ModelGateway], proxy: FaultyProxy, client: redis.Redis, ledger: Ledger
) -> None:
    gateway = start_model_gateway(proxy.port, LEASE_S="10")
    with commands_of(client, b"RL.ALL") as calls:
        proxy.lose(b"RELEASE", b"RELEASE")
        assert gateway.ask(None) == 200
        # The worker's attempt is the last word on it.
        assert gateway.close() == 0
    assert [b"RELEASE" in words for words in calls] == [False, True, True, True]
    assert (ledger.charged(), ledger.leases()) == (PROMPT_TOKENS + 500, {})


def test_a_renewal_that_comes_after_the_settlement_takes_no_place(
    start_model_gateway: Callable[..., ModelGateway], proxy: FaultyProxy, ledger: Ledger
) -> None:
    gateway = start_model_gateway(proxy.port, LEASE_S="4", **SLOW)
    proxy.hold(b"$14\r\nRL.CONCURRENCY\r\n")
    stream = gateway.begin(LONG_ANSWER)
    assert proxy.holds.wait(RUN_TIMEOUT_S)
    assert list(ledger.leases()) == [stream.id]
    stream.hang_up()
    wait_until(lambda: not ledger.leases(), what="the call is settled")
    proxy.go_on.set()
    assert proxy.passed.wait(RUN_TIMEOUT_S)
    assert not ledger.leases()


def test_without_redis_no_call_reaches_the_model_until_it_is_back(
    fresh_server: Callable[..., Server], start_model_gateway: Callable[..., ModelGateway]
) -> None:
    server = fresh_server()
    gateway = start_model_gateway(server.port)
    assert gateway.ask(10) == 200
    server.kill9()
    # A prompt that the model answers with 502 if it is asked.
    refused = gateway.begin(10, "unavailable")
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    server.start()
    assert gateway.ask(10) == 200


# Processes that are killed in mid-call


def most_at_once(intervals: Sequence[tuple[int, int]]) -> int:
    """How many of the intervals hold at most at one time."""
    changes = sorted([(begin, 1) for begin, _ in intervals] + [(end, -1) for _, end in intervals])
    return max(accumulate(change for _, change in changes))


class Client:
    """Asks again and again, and notes what it saw."""

    def __init__(self, gateways: Sequence[ModelGateway], calls: int, number: int) -> None:
        self._gateways = list(gateways)
        self._calls = calls
        self._number = number
        self.complete = 0
        self.refused = 0
        self.broken_in_answer = 0
        self.broken_before = 0

    def run(self, max_tokens: int, one_is_complete: threading.Event) -> None:
        while self.complete < self._calls:
            gateway = self._gateways[self._number % len(self._gateways)]
            try:
                stream = gateway.begin(max_tokens)
            except (OSError, http.client.HTTPException):
                # Killed. The others go on.
                self.broken_before += 1
                self._gateways.remove(gateway)
                continue
            if stream.status == 429:
                self.refused += 1
                stream.hang_up()
                continue
            assert stream.status == 200
            try:
                stream.rest()
                self.complete += 1
                one_is_complete.set()
            except (OSError, http.client.HTTPException):
                self.broken_in_answer += 1
                self._gateways.remove(gateway)


def test_killed_gateways_leak_no_place_and_over_admit_nothing_under_load(
    start_model_gateway: Callable[..., ModelGateway], ledger: Ledger, tally: Tally, tmp_path: Path
) -> None:
    """Twelve clients compete for five places through three processes, one of which is killed, as are two others.

    The model never writes more than five answers at once. The places of the killed processes stay taken until
    their leases end, and are free after that. Each complete call is charged what it used, each killed one its estimate.
    """
    places, max_tokens, used, calls = 5, 530, PROMPT_TOKENS + 500, 3
    settings = {"CALLS_AT_ONCE": str(places), "LEASE_S": "4", "SECONDS_PER_TOKEN": "0.0005"}
    gateways = [start_model_gateway(**settings, diary=tmp_path / f"gateway-{number}") for number in range(3)]
    holders = [start_model_gateway(**{**settings, **SLOW}, diary=tmp_path / f"holder-{number}") for number in range(2)]
    # Two calls that are certainly in their middle when their processes are killed under the load of the others.
    held = [holder.begin(LONG_ANSWER) for holder in holders]
    assert all(stream.token() == "one " for stream in held)

    clients = [Client(gateways, calls, number) for number in range(12)]
    one_is_complete = threading.Event()
    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(client.run, max_tokens, one_is_complete) for client in clients]
        assert one_is_complete.wait(RUN_TIMEOUT_S)
        for victim in (*holders, gateways[0]):
            victim.kill9()
        # Nobody released them: they are taken until their leases end.
        assert {stream.id for stream in held} <= set(ledger.leases())
        for future in running:
            future.result()

    assert [client.complete for client in clients] == [calls] * len(clients)
    at_work = [interval for gateway in (*gateways, *holders) for interval in gateway.model_at_work()]
    assert len(at_work) >= calls * len(clients) + len(held)
    assert most_at_once(at_work) == places
    wait_until(lambda: not ledger.leases(), what="the leases of the killed are over")

    complete = calls * len(clients)
    held_estimate, estimate = PROMPT_TOKENS + LONG_ANSWER, PROMPT_TOKENS + max_tokens
    in_answer = sum(client.broken_in_answer for client in clients)
    before = sum(client.broken_before for client in clients)
    lost = ledger.charged() - complete * used - len(held) * held_estimate
    # Those whose client saw no end may have been settled all the same, or may not have been reserved yet.
    possible = {
        reserved * estimate + settled * used
        for reserved in range(in_answer + before + 1)
        for settled in range(in_answer + before + 1)
        if in_answer <= reserved + settled <= in_answer + before
    }
    assert lost in possible

    # All places can be had again, and no more than there are.
    last = start_model_gateway(CALLS_AT_ONCE=str(places), **SLOW)
    streams = [last.begin(LONG_ANSWER) for _ in range(places + 1)]
    assert [stream.status for stream in streams] == [200] * places + [429]
    for stream in streams:
        stream.hang_up()
    refused = sum(client.refused for client in clients)
    tally.add("examples", complete, "calls through gateways that were killed")
    tally.add("examples", refused, "refused, none over-admitted")


# Tokens in batches

BATCH_CLIENT = EXAMPLES / "batch-client"
BATCH = 100
CAPACITY = 1000
#: One token in three hours: none comes back during a test.
SLOWLY = 0.0001


class Worker:
    """A real process that does jobs within a limit, with tokens taken in batches."""

    def __init__(self, python: Path, server: Server) -> None:
        self._process = subprocess.Popen(
            [str(word) for word in (python, "worker.py", "jobs", CAPACITY, SLOWLY, BATCH)],
            cwd=BATCH_CLIENT,
            env={**os.environ, "REDIS_URL": url_of(server)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, jobs: int) -> int:
        """How many of the jobs are done, and not refused."""
        assert self._process.stdin is not None and self._process.stdout is not None
        done = 0
        for job in range(jobs):
            print(job, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
            assert answer in (f"done: {job}\n", f"refused: {job}\n"), answer
            done += answer.startswith("done")
        return done

    def end(self, how: signal.Signals | None = None) -> int:
        """By the signal, or by the end of its input. Gives its exit code."""
        if how is not None:
            self._process.send_signal(how)
            self._process.wait(RUN_TIMEOUT_S)
        self._process.communicate(timeout=RUN_TIMEOUT_S)
        return self._process.returncode


@pytest.fixture
def start_worker(python: Path, server: Server, client: redis.Redis) -> Iterator[Callable[[], Worker]]:
    """Starts processes on the session's server, emptied."""
    started: list[Worker] = []

    def start() -> Worker:
        started.append(Worker(python, server))
        return started[-1]

    yield start
    for worker in started:
        worker.end(signal.SIGKILL)


def tokens_left(client: redis.Redis) -> int:
    return client.execute_command("RL.TOKENBUCKET_RO", "jobs", CAPACITY, SLOWLY)[1]


@pytest.mark.parametrize(
    ("how", "code", "lost"),
    [
        pytest.param(None, 0, 0, id="its work is done"),
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, 0, id="SIGTERM"),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, 70, id="SIGKILL"),
    ],
)
def test_a_process_gives_back_the_tokens_it_has_not_spent(
    start_worker: Callable[[], Worker], client: redis.Redis, how: signal.Signals | None, code: int, lost: int
) -> None:
    """One that is killed cannot: the rest of its batch is missing."""
    worker = start_worker()
    assert worker.do(30) == 30
    assert tokens_left(client) == CAPACITY - BATCH
    assert worker.end(how) == code
    assert tokens_left(client) == CAPACITY - 30 - lost


def test_processes_spend_a_bucket_in_batches_to_its_last_token_and_no_more(
    start_worker: Callable[[], Worker], client: redis.Redis
) -> None:
    client.execute_command("RL.TOKENBUCKET", "jobs", CAPACITY, SLOWLY, "COST", CAPACITY - 250)
    first, second = start_worker(), start_worker()
    with commands_of(client, b"RL.TOKENBUCKET") as calls:
        # A batch for one, a batch for the other, then the half that is left: two turns at Redis are denied.
        assert first.do(100) == 100
        assert second.do(160) == 150
        assert first.do(10) == 0
        assert (first.end(), second.end()) == (0, 0)
    assert tokens_left(client) == 0
    assert [(words[4], words[6]) for words in calls] == [(b"COST", b"ATLEAST")] * 5


def test_batches_cost_a_call_for_a_whole_batch_and_are_faster(python: Path, server: Server, client: redis.Redis) -> None:
    measure = [python, "measure.py", "--seconds", "0.2", "--rounds", "1", "--batch", "50"]
    output = run(measure, BATCH_CLIENT, REDIS_URL=url_of(server))
    row = re.compile(r"^(one call each|batches of 50) +([\d,]+) +(\d\.\d{4})$", re.MULTILINE)
    rows = {match[1]: (int(match[2].replace(",", "")), float(match[3])) for match in row.finditer(output)}
    assert list(rows) == ["one call each", "batches of 50"], output
    assert rows["one call each"][1] == 1
    # A last batch of each of the two processes, and what it gives back, besides one call for fifty.
    assert 1 / 50 <= rows["batches of 50"][1] < 1.5 / 50
    assert rows["batches of 50"][0] > rows["one call each"][0]
    assert re.search(r"^ratio: \d+\.\d$", output, re.MULTILINE)
    assert re.search(r"^a bucket of 2501, emptied in batches by 2 processes: 2501 spent$", output, re.MULTILINE)


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
