"""The race that a rate limiter has to win: many instances of an application, and a tenant with three requests left.

Three ways to take a token from a bucket, each in the same rounds by the same instances on a real server:
reading and then writing, the Lua script of lua-reference/, and RL.TOKENBUCKET. Then three limits in one call: a rate,
a quota and a number of calls at once, by RL.ALL.

    REDIS_SERVER      the server to start; redis-server if not set
    REDIS_RL_MODULE   the module to load; the release build if not set
"""

import argparse
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier
from pathlib import Path

import redis

REPOSITORY = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"

CAPACITY = 100
# A hundred per day: too slow to refill anything during the demonstration.
REFILL_RATE = CAPACITY / 86_400
LEFT = 3
# One call runs before the race begins, so LEFT places are free too.
AT_ONCE = LEFT + 1
LEASE_S = 600
WAIT_S = 30
ENDINGS = (signal.SIGINT, signal.SIGTERM)


class Way:
    """A way to decide, with the commands that it takes and how often it waits for the server."""

    name: str
    commands: tuple[str, ...]
    round_trips: int

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def take(self, key: str, cost: int = 1) -> bool:
        raise NotImplementedError

    def end(self, key: str) -> None:
        """The request is done. Only a limit on calls at once has to know."""


class ReadThenWrite(Way):
    """The usual first attempt: read the bucket, decide in the application, write the bucket."""

    name = "read, then write"
    commands = ("hmget", "hset", "expire")
    round_trips = 2

    def take(self, key: str, cost: int = 1) -> bool:
        now = time.time()
        tokens, last_refill = self.client.hmget(key, "tokens", "last_refill")
        if tokens is None:
            tokens = CAPACITY
        else:
            tokens = min(CAPACITY, float(tokens) + max(0, now - float(last_refill)) * REFILL_RATE)
        allowed = tokens >= cost
        if allowed:
            tokens -= cost
        with self.client.pipeline(transaction=False) as pipeline:
            pipeline.hset(key, mapping={"tokens": tokens, "last_refill": now})
            pipeline.expire(key, 86_400)
            pipeline.execute()
        return allowed


class LuaScript(Way):
    """The same in a script, which the server runs atomically."""

    name = "Lua script"
    commands = ("evalsha",)
    round_trips = 1

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.sha1 = client.script_load((REPOSITORY / "lua-reference" / "token_bucket.lua").read_text())

    def take(self, key: str, cost: int = 1) -> bool:
        now_ms = time.time_ns() // 1_000_000
        allowed, *_ = self.client.evalsha(self.sha1, 1, key, CAPACITY, REFILL_RATE, now_ms, cost)
        return allowed == 1


class Module(Way):
    """The command."""

    name = "RL.TOKENBUCKET"
    commands = ("rl.tokenbucket",)
    round_trips = 1

    def take(self, key: str, cost: int = 1) -> bool:
        allowed, *_ = self.client.execute_command("RL.TOKENBUCKET", key, CAPACITY, REFILL_RATE, "COST", cost)
        return allowed == 1


class ThreeLimits(Way):
    """The same bucket, a quota per day and a number of calls at once. All of them allow, or none takes anything."""

    name = "RL.ALL of rate, quota, concurrency"
    commands = ("rl.all",)
    round_trips = 1

    def __init__(self, client: redis.Redis) -> None:
        super().__init__(client)
        self.id = ""

    def take(self, key: str, cost: int = 1) -> bool:
        # A fresh id for each request: with the same one again the call would be a repeat, which takes nothing.
        self.id = uuid.uuid4().hex
        keys = (f"{{{key}}}:rate", f"{{{key}}}:quota", f"{{{key}}}:running")
        rate = ("TOKENBUCKET", CAPACITY, REFILL_RATE, "COST", cost)
        quota = ("QUOTA", CAPACITY, "DAY", "COST", cost)
        concurrency = ("CONCURRENCY", AT_ONCE, LEASE_S)
        allowed, *_ = self.client.execute_command("RL.ALL", 3, *keys, *rate, *quota, *concurrency, "ID", self.id)
        return allowed == 1

    def end(self, key: str) -> None:
        self.client.execute_command("RL.RELEASE", f"{{{key}}}:running", self.id)


WAYS = (ReadThenWrite, LuaScript, Module, ThreeLimits)


def progress(text: str = "") -> None:
    """One line that overwrites itself, and only in a terminal: it would fill a log."""
    if sys.stdout.isatty():
        print(f"\r\x1b[2K{text}", end="", flush=True)


@contextmanager
def own_server() -> Iterator[int]:
    """A server with the module on a free port, which is yielded. It is ended whatever happens."""
    executable = os.environ.get("REDIS_SERVER") or "redis-server"
    library = "libredis_rl.dylib" if sys.platform == "darwin" else "libredis_rl.so"
    module = Path(os.environ.get("REDIS_RL_MODULE") or REPOSITORY / "target" / "release" / library).resolve()
    if not module.is_file():
        sys.exit(f"no module at {module}: run `make build`, or set REDIS_RL_MODULE")
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="redis-rl-demo-") as directory:
        log = Path(directory) / "server.log"
        words = [executable, "--bind", HOST, "--port", str(port), "--dir", directory, "--save", ""]
        words += ["--logfile", str(log), "--loadmodule", str(module)]
        # Its own session: ctrl-C is for this program, which then ends the server.
        server = subprocess.Popen(words, start_new_session=True)
        try:
            wait_for(server, port, log)
            print(f"{executable} (pid {server.pid}) on {HOST}:{port} with {module.name}")
            yield port
        finally:
            server.terminate()
            server.wait()


def wait_for(server: subprocess.Popen, port: int, log: Path) -> None:
    with redis.Redis(host=HOST, port=port) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                if server.poll() is not None:
                    sys.exit(f"the server ended while starting:\n{log.read_text()}")
                time.sleep(0.01)


def instance(port: int, rounds: int, gate: Barrier, allowed: Synchronized) -> None:
    """One instance of the application: its own process and connection, one request per round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is for the parent, which ends its instances
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
    client = redis.Redis(host=HOST, port=port)
    for way in WAYS:
        limiter = way(client)
        for number in range(rounds):
            gate.wait(WAIT_S)
            if limiter.take(f"{way.name}:{number}"):
                with allowed.get_lock():
                    allowed.value += 1
            gate.wait(WAIT_S)


def race(port: int, instances: int, rounds: int) -> dict[str, list[int]]:
    """How many requests were allowed in each round, for each way."""
    gate = multiprocessing.Barrier(instances + 1)
    allowed = multiprocessing.Value("i", 0)
    arguments = (port, rounds, gate, allowed)
    processes = [multiprocessing.Process(target=instance, args=arguments, daemon=True) for _ in range(instances)]
    counts: dict[str, list[int]] = {way.name: [] for way in WAYS}
    # Python drops what a signal raises during a fork, so signals wait until all have started.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        for process in processes:
            process.start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
        with redis.Redis(host=HOST, port=port) as client:
            for way in WAYS:
                limiter = way(client)
                for number in range(rounds):
                    limiter.take(f"{way.name}:{number}", CAPACITY - LEFT)
                    allowed.value = 0
                    gate.wait(WAIT_S)  # go
                    gate.wait(WAIT_S)  # all are back
                    counts[way.name].append(allowed.value)
                    progress(f"{way.name}: round {number + 1} of {rounds}")
    finally:
        for process in multiprocessing.active_children():
            process.terminate()
            process.join()
    return counts


def server_us(port: int, calls: int) -> dict[str, float]:
    """Microseconds of server time per decision, from INFO commandstats, without other clients."""
    costs = {}
    with redis.Redis(host=HOST, port=port) as client:
        for way in WAYS:
            progress(f"{way.name}: server time of {calls} calls")
            limiter = way(client)
            client.config_resetstat()
            for number in range(calls):
                key = f"cost:{way.name}:{number % CAPACITY}"
                limiter.take(key)
                limiter.end(key)
            stats = {name.lower(): stat for name, stat in client.info("commandstats").items()}
            costs[way.name] = sum(stats[f"cmdstat_{command}"]["usec"] for command in way.commands) / calls
    return costs


def report(counts: dict[str, list[int]], costs: dict[str, float], rounds: int) -> None:
    right = LEFT * rounds
    row = "{:<36}{:>9}{:>7}{:>15}{:>14}{:>13}{:>11}"
    print(row.format("", "allowed", "limit", "over-admitted", "worst round", "round trips", "server µs"))
    for way in WAYS:
        allowed = sum(counts[way.name])
        worst = f"{max(counts[way.name])} for {LEFT}"
        print(row.format(way.name, allowed, right, allowed - right, worst, way.round_trips, f"{costs[way.name]:.1f}"))
    print("\nRound trips and server µs are those of one decision; the latter are the server's own, from INFO commandstats.")


def main() -> None:
    parser = argparse.ArgumentParser(description="Shows the race between reading and writing a rate limit.")
    parser.add_argument("--instances", type=int, default=16, help="processes that ask at once (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="rounds of each way (%(default)s)")
    parser.add_argument("--calls", type=int, default=10_000, help="calls whose server time is measured (%(default)s)")
    options = parser.parse_args()
    # Ended by `kill`, it cleans up as after ctrl-C.
    for ending in ENDINGS:
        signal.signal(ending, signal.default_int_handler)
    with own_server() as port:
        print(f"{options.instances} instances ask at once for a tenant that has {LEFT} requests left; {options.rounds} rounds")
        counts = race(port, options.instances, options.rounds)
        costs = server_us(port, options.calls)
        progress()
        print()
        report(counts, costs, options.rounds)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
