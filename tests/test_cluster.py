"""Three masters and three replicas: redirections, slots that move under load, a master that dies."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import hiredis
import pytest
from redis.cluster import RedisCluster

from harness.clock import TODAY_MS
from harness.cluster import TIMEOUT_S, WAYS_TO_MOVE, Cluster, Node, begin_to_move, error_word, has_way, move_keys
from harness.command_table import COMMANDS
from harness.connection import RawConnection, Word
from harness.model import Model
from harness.server import HOST, wait_until

CALLERS = 4
#: Keys with one hash tag each, which lie in slots of different masters.
TENANTS = [f"{{tenant {n}}}" for n in range(12)]

LEASE_IDS = itertools.count()
#: One call on `key`; nothing refills and nothing slides out.
CALLS: dict[str, Callable[[str, int], tuple[Word, ...]]] = {
    "RL.TOKENBUCKET": lambda key, limit: ("RL.TOKENBUCKET", key, limit, 0, "NOW", TODAY_MS),
    "RL.SLIDING": lambda key, limit: ("RL.SLIDING", key, limit, 60, "NOW", TODAY_MS),
    "RL.QUOTA": lambda key, limit: ("RL.QUOTA", key, limit, "DAY", "NOW", TODAY_MS),
    # Each call asks for its own lease, which none gives back.
    "RL.CONCURRENCY": lambda key, limit: ("RL.CONCURRENCY", key, limit, 86_400, "ID", next(LEASE_IDS), "NOW", TODAY_MS),
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        yield running


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RedisCluster]:
    """An ordinary client of the cluster, which is empty."""
    for node in cluster.nodes:
        if node.is_master:
            node.ok("FLUSHALL")
    with cluster.client() as connected:
        yield connected


@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_that_does_not_serve_the_slot_says_moved_and_counts_nothing(
    cluster: Cluster, client: RedisCluster, command: str
) -> None:
    key = TENANTS[0]
    slot = cluster.slot_of(key)
    call = (command, "1", key, "SLIDING", "5", "60") if command.startswith("RL.ALL") else (command, key, "5", "60")
    call += ("ID", "x") if "CONCURRENCY" in command else ()
    for node in cluster.masters_without(slot):
        reply = node.call(*call)
        assert isinstance(reply, hiredis.ReplyError)
        assert str(reply) == f"MOVED {slot} {HOST}:{cluster.owner_of(slot).port}"
    assert client.execute_command("EXISTS", key) == 0


@pytest.mark.parametrize("command", CALLS)
def test_an_ordinary_cluster_client_finds_the_node_of_every_key(
    cluster: Cluster, client: RedisCluster, command: str
) -> None:
    model = Model()
    for _ in range(4):
        for tenant in TENANTS:
            call = CALLS[command](tenant, 3)
            assert client.execute_command(*call) == model.call(*call)
    assert len({cluster.owner_of(cluster.slot_of(tenant)).port for tenant in TENANTS}) == 3


def test_a_cluster_client_follows_ask_and_moved_and_the_quota_goes_on(
    cluster: Cluster, client: RedisCluster
) -> None:
    key = TENANTS[1]
    call = CALLS["RL.TOKENBUCKET"](key, 5)
    slot = cluster.slot_of(key)
    source, target = cluster.owner_of(slot), cluster.masters_without(slot)[0]

    assert client.execute_command(*call)[:2] == [1, 4]
    begin_to_move(slot, source, target)
    # The key is still here: no redirection.
    assert client.execute_command(*call)[:2] == [1, 3]
    move_keys(source, target, key)
    reply = source.call(*call)
    assert str(reply) == f"ASK {slot} {HOST}:{target.port}"
    # Without ASKING the target sends everybody back.
    assert error_word(target.call(*call)) == "MOVED"
    assert client.execute_command(*call)[:2] == [1, 2]
    cluster.end_moving(slot, source, target)
    # The client's map of the slots is old by now.
    assert client.nodes_manager.get_node_from_slot(slot).port == source.port
    assert str(source.call(*call)) == f"MOVED {slot} {HOST}:{target.port}"
    assert client.execute_command(*call)[:2] == [1, 1]
    assert client.execute_command(*call)[:2] == [1, 0]
    assert client.execute_command(*call)[0] == 0
    cluster.wait_until_whole()


RULES: tuple[Word, ...] = ("TOKENBUCKET", "3", "0", "SLIDING", "10", "60", "NOW", str(TODAY_MS))


@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
def test_all_works_on_keys_of_one_hash_tag(client: RedisCluster, command: str) -> None:
    model = Model()
    for _ in range(4):
        for tenant in TENANTS:
            call = (command, "2", f"{tenant}:tokens", f"{tenant}:requests", *RULES)
            assert client.execute_command(*call) == model.call(*call)


@pytest.mark.parametrize("command", ["RL.ALL", "RL.ALL_RO"])
def test_all_across_slots_is_refused_by_every_node_and_changes_nothing(
    cluster: Cluster, client: RedisCluster, command: str
) -> None:
    keys = TENANTS[:2]
    call = (command, "2", *keys, *RULES)
    assert cluster.slot_of(keys[0]) != cluster.slot_of(keys[1])
    for node in cluster.nodes:
        reply = node.call(*call)
        assert isinstance(reply, hiredis.ReplyError) and error_word(reply) == "CROSSSLOT", reply
    for key in keys:
        assert client.execute_command("EXISTS", key) == 0


def test_all_on_keys_that_a_moving_slot_has_torn_apart_says_tryagain(
    cluster: Cluster, client: RedisCluster
) -> None:
    """And counts nothing."""
    here, there = "{torn}:tokens", "{torn}:requests"
    call = ("RL.ALL", "2", here, there, *RULES)
    slot = cluster.slot_of(here)
    source, target = cluster.owner_of(slot), cluster.masters_without(slot)[0]
    model = Model()
    assert client.execute_command(*call) == model.call(*call)
    begin_to_move(slot, source, target)
    move_keys(source, target, there)
    assert error_word(source.call(*call)) == "TRYAGAIN"
    with target.raw_connection() as connection:
        assert error_word(connection.call_all([("ASKING",), call])[-1]) == "TRYAGAIN"
    move_keys(source, target, here)
    assert client.execute_command(*call) == model.call(*call)
    cluster.end_moving(slot, source, target)
    assert client.execute_command(*call) == model.call(*call)
    cluster.wait_until_whole()


# A slot that moves under load

KEYS_OF_THE_SLOT = [f"{{moving}}:{n}" for n in range(40)]
MUCH = 1_000_000
#: As CALLS, and one on two keys, a string and a sorted set.
CALLS_WHILE_MOVING: dict[str, Callable[[str, int], tuple[Word, ...]]] = {
    **CALLS,
    "RL.ALL": lambda key, limit: (
        *("RL.ALL", 2, key, f"{key}!", "TOKENBUCKET", limit, 0, "CONCURRENCY", limit, 86_400),
        *("ID", next(LEASE_IDS), "NOW", TODAY_MS),
    ),
}
#: How many calls each stage of the move lets pass before it goes on.
CALLS_BETWEEN = 50


class Load:
    """CALLERS clients that call round and round on the keys, until told to stop."""

    def __init__(self, cluster: Cluster, command: str) -> None:
        self._cluster = cluster
        self._command = command
        self._stop = threading.Event()
        self._counted = threading.Condition()
        self.allowed: Counter[str] = Counter()
        self.calls = 0
        self._pool = ThreadPoolExecutor(CALLERS)
        self._callers: list[Future[None]] = []

    def __enter__(self) -> "Load":
        self._callers = [self._pool.submit(self._call, n) for n in range(CALLERS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def _call(self, number: int) -> None:
        with self._cluster.client() as client:
            at = number
            while not self._stop.is_set():
                key = KEYS_OF_THE_SLOT[at % len(KEYS_OF_THE_SLOT)]
                allowed, *_ = client.execute_command(*CALLS_WHILE_MOVING[self._command](key, MUCH))
                with self._counted:
                    self.allowed[key] += allowed
                    self.calls += 1
                    self._counted.notify_all()
                at += 1

    def let_pass(self, calls: int) -> None:
        with self._counted:
            enough = self.calls + calls
            assert self._counted.wait_for(lambda: self.calls >= enough or any(c.done() for c in self._callers), TIMEOUT_S)
        for caller in self._callers:
            if caller.done():
                caller.result()
                raise AssertionError("a caller stopped")

    def result(self) -> Counter[str]:
        self._stop.set()
        for caller in self._callers:
            caller.result(TIMEOUT_S)
        return self.allowed


def remaining_of(client: RedisCluster, command: str, key: str) -> list[int]:
    """What is left of each limiter of the call, by a preview."""
    _, *arguments = CALLS_WHILE_MOVING[command](key, MUCH)
    reply = client.execute_command(f"{command}_RO", *arguments)
    return [four[1] for four in reply[1:]] if command == "RL.ALL" else [reply[1]]


def assert_every_count_is_right(client: RedisCluster, command: str, load: Load) -> None:
    allowed = load.result()
    assert sum(allowed.values()) == load.calls
    for key in KEYS_OF_THE_SLOT:
        assert set(remaining_of(client, command, key)) == {MUCH - allowed[key]}


@pytest.mark.parametrize("command", CALLS_WHILE_MOVING)
@pytest.mark.parametrize("way", WAYS_TO_MOVE)
def test_a_slot_moved_under_load_neither_loses_nor_doubles_a_count(
    cluster: Cluster, client: RedisCluster, way: str, command: str
) -> None:
    slot = cluster.slot_of(KEYS_OF_THE_SLOT[0])
    source, target = cluster.owner_of(slot), cluster.masters_without(slot)[0]
    if not has_way(source, way):
        pytest.skip(f"this server has no CLUSTER {way}")
    with Load(cluster, command) as load:
        # All keys are there then: a call on two that are missing is told to try again while their slot moves.
        load.let_pass(2 * CALLERS * len(KEYS_OF_THE_SLOT))
        for _ in WAYS_TO_MOVE[way](slot, source, target):
            load.let_pass(CALLS_BETWEEN)
        cluster.wait_until_moved(slot, target)
        load.let_pass(CALLS_BETWEEN)
        assert_every_count_is_right(client, command, load)
    cluster.wait_until_whole()


# A master that dies

LIMIT = 4_000
#: How many allowed calls of each tenant pass before the master is killed.
BEFORE_THE_CRASH = 500
DOOMED = {command: f"{{doomed}}:{command}" for command in CALLS}


class Caller:
    """Calls the master, one call after another, until one is denied; from its death on, the replica."""

    def __init__(self, command: str) -> None:
        self._command = command
        self.allowed = 0
        #: calls that nobody answered: made or not
        self.unanswered = 0

    def run(self, master: Node, replica: Node) -> None:
        with master.raw_connection() as connection:
            try:
                while self._is_allowed(connection.call(*self._call())):
                    pass
                return
            except OSError:
                self.unanswered += 1
        with replica.raw_connection() as connection:
            # Until it is promoted it refuses each call, and counts none.
            reply = wait_until(lambda: self._unless_refused(connection), TIMEOUT_S, "the replica is promoted")
            while self._is_allowed(reply):
                reply = connection.call(*self._call())

    def _call(self) -> tuple[Word, ...]:
        return CALLS[self._command](DOOMED[self._command], LIMIT)

    def _is_allowed(self, reply: object) -> bool:
        assert isinstance(reply, list), reply
        self.allowed += reply[0]
        return bool(reply[0])

    def _unless_refused(self, connection: RawConnection) -> list[int] | None:
        reply = connection.call(*self._call())
        if isinstance(reply, list):
            return reply
        assert error_word(reply) in ("MOVED", "CLUSTERDOWN"), reply
        return None


def test_a_failover_lets_no_tenant_exceed_its_limit(
    cluster: Cluster, client: RedisCluster
) -> None:
    """But by the calls that were in flight when the master died."""
    slot = cluster.slot_of(DOOMED["RL.SLIDING"])
    master = cluster.owner_of(slot)
    replica = cluster.replica_of(master)
    tenants = {command: [Caller(command) for _ in range(CALLERS)] for command in DOOMED}

    def allowed_to_each() -> list[int]:
        return [sum(caller.allowed for caller in callers) for callers in tenants.values()]

    with ThreadPoolExecutor(CALLERS * len(tenants)) as pool:
        running = [pool.submit(caller.run, master, replica) for callers in tenants.values() for caller in callers]
        wait_until(lambda: min(allowed_to_each()) >= BEFORE_THE_CRASH, TIMEOUT_S, "the load runs")
        master.kill9()
        for caller in running:
            caller.result(TIMEOUT_S)
    assert replica.is_master
    for command, callers in tenants.items():
        allowed = sum(caller.allowed for caller in callers)
        unanswered = sum(caller.unanswered for caller in callers)
        # It died in the middle of the quota.
        assert unanswered == CALLERS, command
        # Each caller had one call under way, whose answer it may have had before the replica had the change.
        assert LIMIT - unanswered <= allowed <= LIMIT + CALLERS, command
        # An ordinary client finds the new master, and nothing is left there.
        assert client.execute_command(*CALLS[command](DOOMED[command], LIMIT))[0] == 0

    master.start()
    cluster.wait_until_whole()
    assert not master.is_master
