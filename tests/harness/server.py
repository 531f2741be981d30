"""A real redis-server (or valkey-server) on 127.0.0.1."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import redis

from .connection import RawConnection

REPOSITORY = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
START_TIMEOUT_S = 30.0
LINK_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0
POLL_S = 0.01
START_ATTEMPTS = 5
# The cluster bus listens at the port plus 10000, which has to be a port too.
CLUSTER_BUS_OFFSET = 10_000
HIGHEST_PORT = 65_535
LOG_NAME = "server.log"


def server_executable() -> str:
    """The server to test: the environment's REDIS_SERVER, or redis-server from the path."""
    return os.environ.get("REDIS_SERVER") or "redis-server"


def module_path() -> Path:
    """The module to test: the environment's REDIS_RL_MODULE, or the release build."""
    suffix = "dylib" if sys.platform == "darwin" else "so"
    default = REPOSITORY / "target" / "release" / f"libredis_rl.{suffix}"
    path = Path(os.environ.get("REDIS_RL_MODULE") or default).resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no module at {path}: run `make build`, or set REDIS_RL_MODULE")
    return path


def wait_until(predicate: Callable[[], object], timeout_s: float = 10.0, what: str = "") -> object:
    """Asks until the answer is true, and returns it. The only place where a test waits."""
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := predicate():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {what or predicate}")
        time.sleep(POLL_S)


def free_port() -> int:
    """A port that is free now, and whose cluster bus port is free too."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = probe.getsockname()[1]
        if port + CLUSTER_BUS_OFFSET > HIGHEST_PORT:
            # The kernel's choice is too high: take one from below, if it is free.
            port -= 2 * CLUSTER_BUS_OFFSET
        try:
            for candidate in (port, port + CLUSTER_BUS_OFFSET):
                with socket.socket() as probe:
                    probe.bind((HOST, candidate))
        except OSError:
            continue
        return port


class Server:
    """One server process with its own folder. Nothing is saved unless the configuration says so.

    `config` holds what would stand in redis.conf: {"appendonly": "yes"}. A value that is a list is
    given as several words.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        with_module: bool = True,
        executable: str | None = None,
        module: Path | None = None,
        directory: Path | None = None,
        port: int | None = None,
        module_args: tuple[str, ...] = (),
    ) -> None:
        # No wait at the end for a replica that does not acknowledge.
        self.config = {"save": "", "shutdown-timeout": 0, **(config or {})}
        self.with_module = with_module
        self.executable = executable or server_executable()
        self.module = module
        self.module_args = module_args
        self._owns_directory = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="redis-rl-test-")) if directory is None else Path(directory)
        self._fixed_port = port
        self.port = port or 0
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    # Life and death

    def start(self) -> "Server":
        for attempt in range(1, START_ATTEMPTS + 1):
            self.port = self.port or free_port()
            self._process = subprocess.Popen(
                self.command_line(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                wait_until(self._is_ready, START_TIMEOUT_S, "the server answers PING")
                return self
            except ServerExited:
                # Between the choice of the port and its use somebody else may have taken it.
                lost_port = "in use" in self.log
                if self._fixed_port or not lost_port or attempt == START_ATTEMPTS:
                    raise
                self.port = 0
            except TimeoutError:
                self.kill9()
                raise
        raise AssertionError("unreachable")

    def command_line(self) -> list[str]:
        words = [self.executable, "--port", str(self.port), "--bind", HOST, "--dir", str(self.directory)]
        words += ["--logfile", LOG_NAME, "--enable-debug-command", "yes", "--daemonize", "no"]
        for name, value in self.config.items():
            values = value if isinstance(value, (list, tuple)) else [value]
            words += [f"--{name}", *map(str, values)]
        if self.with_module:
            words += ["--loadmodule", str(self.module or module_path()), *self.module_args]
        return words

    def _is_ready(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise ServerExited(f"the server ended while starting:\n{self.log[-4000:]}")
        try:
            with RawConnection(self.port, timeout_s=START_TIMEOUT_S) as connection:
                return connection.call("PING") in (b"PONG", "PONG")
        except OSError:
            return False

    def stop(self) -> None:
        """Ends the process in the orderly way and waits for its end."""
        self._end(signal.SIGTERM)

    def kill9(self) -> None:
        """Ends the process as a power cut would, for the process itself."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        for client in self._clients:
            client.close()
        self._clients.clear()
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def restart(self, *, with_module: bool | None = None, config: Mapping[str, object] | None = None) -> "Server":
        """Stops if it still runs, and starts again in the same folder at the same port."""
        self.stop()
        if with_module is not None:
            self.with_module = with_module
        self.config.update(config or {})
        return self.start()

    def close(self) -> None:
        """Ends the process and removes its folder."""
        try:
            self.stop()
        finally:
            if self._owns_directory:
                shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> "Server":
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not running"
        return self._process.pid

    @property
    def log(self) -> str:
        path = self.directory / LOG_NAME
        return path.read_text(errors="replace") if path.exists() else ""

    # Ways to talk to it

    def client(self, **options: object) -> redis.Redis:
        """A redis-py client that gives bytes."""
        client = redis.Redis(host=HOST, port=self.port, decode_responses=False, **{"protocol": 2, **options})
        self._clients.append(client)
        return client

    def raw_connection(self) -> RawConnection:
        return RawConnection(self.port)

    # What it wrote

    def info(self, section: str) -> dict[str, str]:
        with self.raw_connection() as connection:
            text = connection.call("INFO", section)
        assert isinstance(text, bytes), text
        pairs = (line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
        return dict(pairs)

    @property
    def is_linked(self) -> bool:
        """Whether it is a replica in step with its master."""
        return self.info("replication").get("master_link_status") == "up"

    def wait_until_linked(self) -> None:
        wait_until(lambda: self.is_linked, LINK_TIMEOUT_S, "the replica is linked")

    def replication_offset(self) -> int:
        """How many bytes went to the replicas. It only moves once a replica was attached
        (replica.ReplicaStream is enough)."""
        return int(self.info("replication")["master_repl_offset"])

    def changes_since_save(self) -> int:
        """The server's count of changes, which save points go by."""
        return int(self.info("persistence")["rdb_changes_since_last_save"])

    def _aof_paths(self, types: str) -> list[Path]:
        folder = self.directory / str(self.config.get("appenddirname", "appendonlydir"))
        manifests = list(folder.glob("*.manifest"))
        assert len(manifests) == 1, f"no AOF manifest in {folder}"
        files = []
        for line in manifests[0].read_text().splitlines():
            words = line.split()
            entry = dict(zip(words[::2], words[1::2]))
            if entry["type"] in types:
                files.append((entry["type"] != "b", int(entry["seq"]), folder / entry["file"]))
        return [path for *_, path in sorted(files)]

    def aof_size(self) -> int:
        """Bytes in the incremental AOF files. The server writes to them before it replies."""
        return sum(path.stat().st_size for path in self._aof_paths("i"))

    def aof_commands(self) -> list[list[bytes]]:
        """What the incremental AOF files hold, command by command. A last one cut short is left out."""
        return [command for path in self._aof_paths("i") for command in parse_commands(path.read_bytes())]


class ConfiguredServer(Server):
    """A server that is started with a configuration file of these lines alone, as a service is."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.lines = lines

    @property
    def configuration(self) -> Path:
        return self.directory / "redis.conf"

    def command_line(self) -> list[str]:
        # Written for each port that is tried. After that, the file is the server's.
        port_line = f"port {self.port}"
        if not self.configuration.exists() or port_line not in self.configuration.read_text().splitlines():
            own = [port_line, f"bind {HOST}", f"dir {self.directory}", f"logfile {LOG_NAME}", 'save ""']
            self.configuration.write_text("\n".join([*own, *self.lines]) + "\n")
        return [self.executable, str(self.configuration)]

    def rewrite(self) -> None:
        """What Sentinel does to every server of a failover."""
        with self.raw_connection() as connection:
            assert connection.call("CONFIG", "REWRITE") == b"OK"
        assert "Generated by CONFIG REWRITE" in self.configuration.read_text()


class ServerExited(RuntimeError):
    """The process ended instead of answering."""


def parse_commands(data: bytes) -> list[list[bytes]]:
    """RESP commands in a row, as in an AOF or in a replication stream. A last one cut short is left out."""
    commands = []
    position = 0
    while position < len(data):
        if data.startswith(b"#", position):
            # `#TS:...`: an annotation of an AOF, which stands between commands.
            position = data.find(b"\r\n", position) + 2
            continue
        command, position = _parse_command(data, position)
        if command is None:
            break
        commands.append(command)
    return commands


def _parse_command(data: bytes, position: int) -> tuple[list[bytes] | None, int]:
    """The command at `position` and where the next begins; None if it is cut short."""
    line_end = data.find(b"\r\n", position)
    if line_end < 0:
        return None, position
    if data[position : position + 1] != b"*":
        raise ValueError(f"not a command: {data[position : position + 80]!r}")
    words = []
    at = line_end + 2
    for _ in range(int(data[position + 1 : line_end])):
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None, position
        start = line_end + 2
        end = start + int(data[at + 1 : line_end])
        if end + 2 > len(data):
            return None, position
        words.append(data[start:end])
        at = end + 2
    return words, at
