"""`make run` starts what it is asked to start, and setup.sh says in one line what it cannot install."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hiredis
import pytest

from harness.connection import RawConnection
from harness.server import HOST, REPOSITORY, free_port, module_path, server_executable, wait_until

START_TIMEOUT_S = 60.0
README_COMMAND = re.compile(r"^127\.0\.0\.1:6379> (.*)$", re.MULTILINE)
#: A dump of a version that no server knows yet.
DUMP_OF_A_NEWER_SERVER = b"REDIS9999\xff" + bytes(8)


# make run


class MakeRun:
    """`make run` with the module under test, which it does not build anew."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.port = free_port()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        variables = {"CARGO_TARGET_DIR": self.target, "MODULE": module_path(), "PORT": self.port}
        # Not as a part of the `make` that runs the tests.
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        self._process = subprocess.Popen(
            ["make", "--old-file=build", "run", *(f"{name}={value}" for name, value in variables.items())],
            cwd=REPOSITORY,
            env={**environment, "REDIS_SERVER": server_executable()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def connect(self) -> RawConnection:
        """A connection to the server, once it is there."""

        def attempt() -> RawConnection | None:
            assert self._process.poll() is None, self._process.stdout.read()
            try:
                return RawConnection(self.port)
            except OSError:
                return None

        return wait_until(attempt, START_TIMEOUT_S, "make run starts a server")

    def end(self) -> tuple[int, str]:
        """The exit status of make, and what it and the server printed."""
        if self._process.poll() is None:
            self.connect().send(b"SHUTDOWN\r\n")
        output, _ = self._process.communicate(timeout=START_TIMEOUT_S)
        return self._process.returncode, output


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[MakeRun]:
    program = MakeRun(tmp_path / "a target")
    yield program
    program.end()


def test_make_run_starts_where_a_newer_server_left_its_dump(make_run: MakeRun) -> None:
    for folder in (make_run.target, make_run.target / "run" / str(make_run.port)):
        folder.mkdir(parents=True)
        (folder / "dump.rdb").write_bytes(DUMP_OF_A_NEWER_SERVER)
    make_run.start()
    assert make_run.connect().call("RL.TOKENBUCKET", "k", "10", "1", "NOW", 0) == [1, 9, 1, 0]


def test_make_run_leaves_no_dump_behind(make_run: MakeRun) -> None:
    make_run.start()
    assert make_run.connect().call("SET", "k", "v") == b"OK"
    status, output = make_run.end()
    assert status == 0, output
    assert list(make_run.target.rglob("*.rdb")) == []


def test_what_make_run_prints_works_and_takes_no_key_of_the_readme(make_run: MakeRun) -> None:
    make_run.start()
    connection = make_run.connect()
    keys_before = connection.call("KEYS", "*")
    _, output = make_run.end()
    printed = [shlex.split(line) for line in output.splitlines() if line.startswith("  redis-cli ")]
    assert keys_before == [] and len(printed) == 3

    make_run.start()
    connection = make_run.connect()
    for words in printed:
        assert words[1:3] == ["-p", str(make_run.port)]
        reply = connection.call(*words[3:])
        assert not isinstance(reply, hiredis.ReplyError) and reply[0] == 1, (words, reply)
    taken = {key.decode() for key in connection.call("KEYS", "*")}
    shown = {word for command in README_COMMAND.findall((REPOSITORY / "README.md").read_text()) for word in command.split()}
    assert len(taken) == 4 and shown and not taken & shown


def test_make_run_says_that_its_port_is_taken(make_run: MakeRun) -> None:
    with socket.create_server((HOST, make_run.port)):
        make_run.start()
        output, _ = make_run._process.communicate(timeout=START_TIMEOUT_S)
    assert make_run._process.returncode != 0
    assert re.search(rf"{make_run.port}.*Address already in use", output), output


# setup.sh

SHELL = "sh sed head cut sort ls tr dirname id mkdir python3".split()
#: What setup.sh only looks for.
LOOKED_FOR = "redis-cli redis-server cc c++".split()
APT = "apt-get apt-cache dpkg".split()
NEW_CARGO = "[ $1 = --version ] && echo 'cargo 1.999.0 (0123456 2026-01-01)'"
OLD_CARGO = "[ $1 = --version ] && echo 'cargo 1.60.0 (0123456 2022-03-01)'"
NO_TOOLCHAIN = "exit 1"
OFFLINE = "exit 1"
NEEDED_RUST = re.search(r'^rust-version = "(.*)"', (REPOSITORY / "Cargo.toml").read_text(), re.MULTILINE)[1]
NEEDS_RUST = f"and redis-rl needs Rust {NEEDED_RUST} or later"


class Setup:
    """A copy of setup.sh for a user who is not root, with a path of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        folder.chmod(0o777)
        for name in ("setup.sh", "Cargo.toml"):
            shutil.copy(REPOSITORY / name, folder)
        self.link(*SHELL)
        for name in LOOKED_FOR:
            self.program(name, "exit 1")
        self.program("cargo", NEW_CARGO)

    def link(self, *names: str) -> None:
        for name in names:
            (self.programs / name).symlink_to(shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin"))

    def program(self, name: str, script: str) -> None:
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.programs / name).unlink()

    def run(self, *words: str, **environment: str) -> tuple[int, list[str]]:
        """The exit status and the lines of output."""
        drop_root = [shutil.which("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"]
        done = subprocess.run(
            [*(drop_root if os.geteuid() == 0 else []), "./setup.sh", *words],
            cwd=self.folder,
            env={"PATH": str(self.programs), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines()


@pytest.fixture
def setup() -> Iterator[Setup]:
    # Not pytest's own folder, which only its owner may enter.
    with tempfile.TemporaryDirectory(prefix="redis-rl-setup-") as folder:
        yield Setup(Path(folder))


def test_setup_is_silent_where_nothing_is_missing(setup: Setup) -> None:
    assert setup.run() == (0, [])


OLD = (OLD_CARGO, "cargo 1.60.0 (0123456 2022-03-01) is too old")
BROKEN = (NO_TOOLCHAIN, "{programs}/cargo does not run")


@pytest.mark.parametrize(("cargo", "complaint"), [("", "cargo is missing"), OLD], ids=["missing", "too old"])
def test_setup_names_the_rust_that_it_needs_where_it_has_no_packages(setup: Setup, cargo: str, complaint: str) -> None:
    setup.remove("cargo")
    if cargo:
        setup.program("cargo", cargo)
    assert setup.run() == (1, [f"{complaint}, {NEEDS_RUST}: install it from https://rustup.rs"])


@pytest.mark.parametrize(("cargo", "complaint"), [OLD, BROKEN], ids=["too old", "no toolchain"])
def test_setup_leaves_rust_to_rustup_where_that_is(setup: Setup, cargo: str, complaint: str) -> None:
    setup.program("cargo", cargo)
    setup.program("rustup", OFFLINE)
    complaint = complaint.format(programs=setup.programs)
    assert setup.run() == (1, [f"{complaint}, {NEEDS_RUST}: rustup update stable && rustup default stable"])


def test_setup_says_how_rustup_adds_what_lint_needs(setup: Setup) -> None:
    """It has rustup do so, which fails here."""
    setup.program("rustup", OFFLINE)
    status, lines = setup.run("lint")
    assert status == 1
    assert lines == [
        "Installing with rustup: rustfmt clippy",
        "make lint needs rustfmt and clippy: rustup component add rustfmt clippy",
    ]


def apt_knows_packages() -> bool:
    if shutil.which("apt-cache") is None:
        return False
    policy = subprocess.run(["apt-cache", "policy", "cargo"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    return bool(re.search(r"Candidate: \d", policy.stdout))


needs_apt = pytest.mark.skipif(not apt_knows_packages(), reason="no apt with lists of packages")


@needs_apt
def test_setup_tells_who_is_not_root_what_root_has_to_install(setup: Setup) -> None:
    setup.link(*APT)
    setup.remove("redis-server", "redis-cli")
    command = "apt-get install --no-install-recommends redis-server redis-tools"
    assert setup.run() == (1, [f"redis-rl needs what only root can install. As root: {command}"])


@needs_apt
@pytest.mark.parametrize(
    ("server", "line"),
    [
        (
            "no-such-server",
            "no-such-server is no program in the path and no package that apt knows: "
            "name a server with REDIS_SERVER=/path/to/it",
        ),
        ("/nowhere/redis-server", "there is no server at /nowhere/redis-server"),
    ],
    ids=["by name", "by path"],
)
def test_setup_says_that_there_is_no_such_server(setup: Setup, server: str, line: str) -> None:
    setup.link(*APT)
    assert setup.run(REDIS_SERVER=server) == (1, [line])


def test_setup_says_that_a_folder_cannot_be_written_to(setup: Setup) -> None:
    setup.folder.chmod(0o555)
    status, lines = setup.run()
    assert status == 1
    assert lines == [
        "cannot write to target: use a clone of your own, or set CARGO_TARGET_DIR to a folder of your own"
    ]
    assert setup.run(CARGO_TARGET_DIR=tempfile.gettempdir()) == (0, [])
