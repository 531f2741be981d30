"""What was acknowledged of any kind outlives the process, moves to replicas, and loads in any server.

RL_SEED sets which random calls are made.
"""

import random
import threading
from collections.abc import Callable
from copy import deepcopy

import hiredis
import pytest

from harness import traces
from harness.clock import TODAY_MS, Clock
from harness.connection import RawConnection, Word
from harness.kinds import State
from harness.model import Model
from harness.observed import AOF_CONFIG
from harness.server import Server
from harness.state import Bucket, Count, Window
from harness.tally import Tally
from harness.traces import Kind, Words
from test_replication import MASTER_CONFIG, catch_up, start_replica

StartServer = Callable[..., Server]

CALLS_A_TRACE = 60
TRACES = 20
WORKERS = 4
CALLS_BEFORE_THE_CRASH = 400
CALLS_AFTER = 60
CRASHES = 3
TIMEOUT_S = 60
STEP_MS = 250


def propagated(connection: RawConnection, rng: random.Random) -> tuple[dict[bytes, State], int]:
    """Makes random calls of all kinds, and gives what a server holds that was told of them, and how many."""
    ran, states = traces.Ran(), {}
    traces.side_by_side(connection, [traces.all_trace(rng, f"t{n}", CALLS_A_TRACE) for n in range(TRACES)], ran)
    traces.told(states, ran.expected)
    assert {type(held) for held in states.values()} == {Bucket, Window, Count, dict}
    return states, ran.counts["calls"]


@pytest.mark.parametrize("with_module", [True, False], ids=["with the module", "without the module"])
def test_a_replica_holds_all_that_was_propagated_of_every_kind(
    fresh_server: StartServer, rng: random.Random, tally: Tally, with_module: bool
) -> None:
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master, with_module=with_module)
    with master.raw_connection() as connection:
        states, calls = propagated(connection, rng)
        catch_up(master, replica)
        with replica.raw_connection() as reader:
            traces.assert_states(reader, states)
            assert deadlines_of_leases(reader, states) == deadlines_of_leases(connection, states)
    tally.add("durable kinds", calls, "calls of a master")


def deadlines_of_leases(connection: RawConnection, states: dict[bytes, State]) -> list[object]:
    return [connection.call("PEXPIRETIME", key) for key, held in states.items() if isinstance(held, dict)]


@pytest.mark.parametrize("with_module", [True, False], ids=["with the module", "without the module"])
def test_the_aof_loads_every_kind_in_a_server(
    fresh_server: StartServer, rng: random.Random, with_module: bool
) -> None:
    server = fresh_server(AOF_CONFIG)
    with server.raw_connection() as connection:
        states, _ = propagated(connection, rng)
    deadlines = deadlines_in(server.aof_commands())
    server.restart(with_module=with_module)
    with server.raw_connection() as connection:
        traces.assert_states(connection, states)
        assert {key: connection.call("PEXPIRETIME", key) for key in states} == {key: deadlines[key] for key in states}
        (info,) = connection.call("COMMAND", "INFO", "RL.TOKENBUCKET")
        assert (info is not None) == with_module


def deadlines_in(commands: list[list[bytes]]) -> dict[bytes, int]:
    """What the last command that says so makes of each key's deadline, -1 for none."""
    deadlines = {}
    for name, key, *words in (command for command in commands if len(command) > 2):
        if name == b"SET":
            deadlines[key] = int(words[2]) if len(words) > 1 else -1
        elif name == b"PEXPIREAT":
            deadlines[key] = int(words[0])
    return deadlines


# Crashes


class Caller:
    """Calls of all kinds on its own keys, one after another, and what was acknowledged of them."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.clock = Clock(rng, TODAY_MS, may_go_back=False, latest_ms=traces.LATEST_LEASE_MS)
        self.kinds = {f"{name}{kind}": Kind(kind, rng) for kind in traces.KINDS}
        self.kinds[f"{name}more"] = Kind("CONCURRENCY", rng)
        self.model = Model()
        #: what was propagated, as far as it was acknowledged
        self.durable: dict[bytes, State] = {}
        self.in_flight: Words | None = None
        self.acknowledged = 0
        self.failure: BaseException | None = None

    def next_call(self) -> Words:
        self.clock.now_ms += STEP_MS * self.rng.randrange(4)
        if self.rng.random() < 0.05:
            self.rng.choice(list(self.kinds.values())).change(self.clock.now_ms)
        if self.rng.random() < 0.7:
            return traces.all_call(self.rng, self.kinds, self.clock.now_ms)
        key = self.rng.choice(list(self.kinds))
        traces.without_stale_ends(self.kinds[key], self.clock.now_ms)
        return traces.single_call(self.rng, self.kinds[key], key, self.clock.now_ms)

    def call(self, connection: RawConnection) -> None:
        self.in_flight = self.next_call()
        reply = connection.call(*self.in_flight)
        expected = self.model.call(*self.in_flight)
        assert reply == expected, f"{reply}, model {expected}: {traces.shown([self.in_flight])}"
        traces.told(self.durable, self.model.written)
        self.in_flight = None
        self.acknowledged += 1

    def run(self, server: Server, after_each: Callable[[], None]) -> None:
        try:
            with server.raw_connection() as connection:
                while True:
                    self.call(connection)
                    after_each()
        except OSError:
            pass  # the crash
        except BaseException as failure:
            self.failure = failure

    def holds(self, connection: RawConnection, states: dict[bytes, State]) -> bool:
        return all(
            traces.look(connection, key.encode(), held := states.get(key.encode())) == traces.value_of(held)
            for key in self.kinds
        )

    def assert_nothing_lost_or_doubled(self, connection: RawConnection) -> None:
        assert self.failure is None, self.failure
        if not self.holds(connection, self.durable):
            # The one call that nobody answered may have been made all the same, as a whole.
            assert self.in_flight is not None
            self.model.call(*self.in_flight)
            traces.told(self.durable, self.model.written)
            assert self.holds(connection, self.durable), traces.shown([self.in_flight])
        # What denials changed was kept in memory alone.
        self.model.limiters = deepcopy(self.durable)
        self.in_flight = None


def crash_under_load(server: Server, callers: list[Caller]) -> None:
    enough, lock, count = threading.Event(), threading.Lock(), 0

    def after_each() -> None:
        nonlocal count
        with lock:
            count += 1
            if count >= CALLS_BEFORE_THE_CRASH:
                enough.set()

    threads = [threading.Thread(target=caller.run, args=(server, after_each)) for caller in callers]
    for thread in threads:
        thread.start()
    assert enough.wait(TIMEOUT_S), [caller.failure for caller in callers]
    server.kill9()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_after_sigkill_no_lease_count_or_debt_is_lost_or_doubled(
    fresh_server: StartServer, rng: random.Random, tally: Tally
) -> None:
    server = fresh_server(AOF_CONFIG)
    callers = [Caller(f"caller{n}:", random.Random(rng.random())) for n in range(WORKERS)]
    for _ in range(CRASHES):
        crash_under_load(server, callers)
        server.start()
        with server.raw_connection() as connection:
            for caller in callers:
                caller.assert_nothing_lost_or_doubled(connection)
                for _ in range(CALLS_AFTER):
                    caller.call(connection)
    tally.add("durable kinds", sum(caller.acknowledged for caller in callers), "calls around crashes")


def test_a_promoted_replica_goes_on_with_what_was_acknowledged(
    fresh_server: StartServer, rng: random.Random, tally: Tally
) -> None:
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master)
    callers = [Caller(f"caller{n}:", random.Random(rng.random())) for n in range(WORKERS)]
    with master.raw_connection() as connection:
        for _ in range(CALLS_BEFORE_THE_CRASH // WORKERS):
            for caller in callers:
                caller.call(connection)
        catch_up(master, replica)
    master.kill9()
    with replica.raw_connection() as connection:
        assert connection.call("REPLICAOF", "NO", "ONE") == b"OK"
        for caller in callers:
            caller.assert_nothing_lost_or_doubled(connection)
            for _ in range(CALLS_AFTER):
                caller.call(connection)
    tally.add("durable kinds", sum(caller.acknowledged for caller in callers), "calls before and after a failover")


# What is propagated of a transaction, a script and a function


FUNCTION = "#!lua name=kinds\nredis.register_function('kinds', function(k, a) return redis.call(unpack(a)) end)"


def in_multi(connection: RawConnection, call: Words) -> object:
    *_, replies = connection.call_all([("MULTI",), call, ("EXEC",)])
    return replies[0]


def in_a_script(connection: RawConnection, call: Words) -> object:
    return connection.call("EVAL", "return redis.call(unpack(ARGV))", 0, *call)


def in_a_function(connection: RawConnection, call: Words) -> object:
    connection.call("FUNCTION", "LOAD", "REPLACE", FUNCTION)
    return connection.call("FCALL", "kinds", 0, *call)


WAYS: dict[str, Callable[[RawConnection, Words], object]] = {
    "MULTI": in_multi,
    "a script": in_a_script,
    "a function": in_a_function,
}


@pytest.mark.parametrize("way", WAYS)
def test_in_a_transaction_or_a_script_replicas_hold_the_same(
    fresh_server: StartServer, rng: random.Random, way: str
) -> None:
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master, with_module=False)
    states, limiters = {}, Model()
    with master.raw_connection() as connection, replica.raw_connection() as reader:
        for words in traces.all_trace(rng, "t", 150):
            assert WAYS[way](connection, words) == limiters.call(*words), traces.shown([words])
            traces.told(states, limiters.written)
        catch_up(master, replica)
        traces.assert_states(reader, states)


# Memory


def test_a_lease_is_released_when_memory_is_full(fresh_server: StartServer) -> None:
    with fresh_server({"maxmemory-policy": "noeviction"}).raw_connection() as connection:
        acquire: Words = ["RL.CONCURRENCY", "k", "2", "60", "ID"]
        assert [connection.call(*acquire, lease_id)[0] for lease_id in "ab"] == [1, 1]
        assert connection.call("RL.QUOTA", "q", "5", "DAY")[0] == 1
        assert connection.call("CONFIG", "SET", "maxmemory", "1") == b"OK"
        writes: list[list[Word]] = [
            [*acquire, "c"],
            [*acquire, "a"],
            ["RL.QUOTA", "q", "5", "DAY"],
            ["RL.QUOTA", "q", "5", "DAY", "REFUND", "1"],
            ["RL.ALL", "1", "k", "CONCURRENCY", "2", "60", "RELEASE", "ID", "a"],
        ]
        for words in writes:
            reply = connection.call(*words)
            assert isinstance(reply, hiredis.ReplyError) and "OOM" in str(reply), words
        assert connection.call("RL.CONCURRENCY_RO", "k", "2", "60", "ID", "c")[0] == 0
        assert connection.call("RL.QUOTA_RO", "q", "5", "DAY")[:2] == [1, 4]
        assert connection.call("RL.RELEASE", "k", "a", "b") == 2
        assert connection.call("EXISTS", "k") == 0


EVICTING_CALLS = 20_000
BATCH = 2_000


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-lru", "volatile-ttl"])
def test_under_eviction_every_answer_is_that_of_a_limiter(fresh_server: StartServer, policy: str) -> None:
    """What was evicted starts afresh; nothing else changes, and the server goes on."""
    server = fresh_server({"maxmemory-policy": policy})
    with server.raw_connection() as connection:
        used = int(server.info("memory")["used_memory"])
        connection.call("CONFIG", "SET", "maxmemory", used + 2**20)
        for start in range(0, EVICTING_CALLS, BATCH):
            calls: list[list[Word]] = []
            for number in range(start, start + BATCH):
                keys = (f"c{number}", f"q{number}")
                calls.append(["RL.ALL", "2", *keys, "CONCURRENCY", "1", "60", "QUOTA", "1", "60", "ID", "x"])
            assert all(reply[0] == 1 and reply[1][:2] == reply[2][:2] == [1, 0] for reply in connection.call_all(calls))
        assert int(server.info("stats")["evicted_keys"]) > 0
        # No more is evicted while one looks.
        connection.call("CONFIG", "SET", "maxmemory", "0")
        names = [f"c{number}" for number in range(EVICTING_CALLS)]
        there = connection.call_all([("EXISTS", name) for name in names])
        assert 0 < sum(there) < EVICTING_CALLS
        # What is there holds one lease, and what is gone holds none.
        previews = connection.call_all([("RL.CONCURRENCY_RO", name, "1", "60", "ID", "y") for name in names])
        assert [reply[0] for reply in previews] == [1 - exists for exists in there]
