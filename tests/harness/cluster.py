"""A dedicated cluster on 127.0.0.1: three masters, and a replica of each."""

from collections.abc import Callable, Iterator

from redis.cluster import ClusterNode, RedisCluster

from .connection import RawConnection, Word
from .replica import ReplicaStream
from .server import HOST, Server, wait_until

MASTERS = 3
SLOTS = 16_384
# Longer than a busy machine keeps a node from answering; a failover takes about twice as long.
NODE_TIMEOUT_MS = 3_000
TIMEOUT_S = 60.0
MIGRATE_TIMEOUT_MS = 10_000
KEYS_AT_ONCE = 4
MANY_KEYS = 10_000
CONFIG = {
    **ReplicaStream.CONFIG,
    "cluster-enabled": "yes",
    "cluster-config-file": "nodes.conf",
    "cluster-node-timeout": NODE_TIMEOUT_MS,
    "cluster-announce-ip": HOST,
    # A master that lost its replica does not get another's.
    "cluster-migration-barrier": MASTERS,
    # A replica stands for election however long it did not hear of its master.
    "cluster-replica-validity-factor": 0,
}


class Node(Server):
    """A server of the cluster, with a connection that stays open while it runs."""

    def __init__(self, *, with_module: bool = True) -> None:
        super().__init__(CONFIG, with_module=with_module)
        self._connection: RawConnection | None = None

    def call(self, *words: Word) -> object:
        if self._connection is None:
            self._connection = self.raw_connection()
        return self._connection.call(*words)

    def ok(self, *words: Word) -> None:
        reply = self.call(*words)
        assert reply == b"OK", (words, reply)

    def _end(self, how) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        super()._end(how)

    @property
    def id(self) -> bytes:
        node_id = self.call("CLUSTER", "MYID")
        assert isinstance(node_id, bytes), node_id
        return node_id

    @property
    def is_master(self) -> bool:
        return self.call("ROLE")[0] == b"master"

    def acquaintances(self) -> set[bytes]:
        """The ids of the nodes that this one has met, and its own."""
        lines = self.call("CLUSTER", "NODES").splitlines()
        return {line.split()[0] for line in lines if b"handshake" not in line}

    def serves(self, slot: int) -> bool:
        return self.is_alive and self.is_master and self.knows_as_owner(slot) == self.port

    def is_replica_of(self, master: "Node") -> bool:
        return self.call("ROLE")[:3] == [b"slave", HOST.encode(), master.port]

    def knows_as_owner(self, slot: int) -> int:
        """The port of the master that this node takes for the owner of `slot`; 0 for none."""
        for first, last, (_, port, *_), *_ in self.call("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return port
        return 0


def begin_to_move(slot: int, source: Node, target: Node) -> None:
    target.ok("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
    source.ok("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)


def move_keys(source: Node, target: Node, *keys: Word) -> None:
    reply = source.call("MIGRATE", HOST, target.port, "", 0, MIGRATE_TIMEOUT_MS, "KEYS", *keys)
    assert reply in (b"OK", b"NOKEY"), reply


def _move_by_keys(slot: int, source: Node, target: Node) -> Iterator[None]:
    begin_to_move(slot, source, target)
    yield
    keys = sorted(source.call("CLUSTER", "GETKEYSINSLOT", slot, MANY_KEYS))
    assert keys
    # Pairs of keys that follow one another stay together: a call on two that are torn apart would be told
    # to try again.
    for first in range(0, len(keys), KEYS_AT_ONCE):
        move_keys(source, target, *keys[first : first + KEYS_AT_ONCE])
        yield
    assert source.call("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
    for node in (target, source):
        node.ok("CLUSTER", "SETSLOT", slot, "NODE", target.id)


def _move_from_the_source(slot: int, source: Node, target: Node) -> Iterator[None]:
    source.ok("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.id)
    yield


def _move_to_the_target(slot: int, source: Node, target: Node) -> Iterator[None]:
    task = target.call("CLUSTER", "MIGRATION", "IMPORT", slot, slot)
    assert isinstance(task, bytes), task
    yield


#: Every way to move a slot that any server has, by the subcommand of CLUSTER that it takes. Each yields
#: after each of its steps; `Cluster.wait_until_moved` tells when it is over.
WAYS_TO_MOVE: dict[str, Callable[[int, Node, Node], Iterator[None]]] = {
    "SETSLOT": _move_by_keys,
    # Valkey 9.0
    "MIGRATESLOTS": _move_from_the_source,
    # Redis 8.4
    "MIGRATION": _move_to_the_target,
}


def has_way(node: Node, way: str) -> bool:
    return node.call("COMMAND", "INFO", f"CLUSTER|{way}") != [None]


class Cluster:
    """`with Cluster() as cluster:` and all six nodes agree."""

    def __init__(self) -> None:
        self.nodes = [Node() for _ in range(2 * MASTERS)]

    def __enter__(self) -> "Cluster":
        try:
            for node in self.nodes:
                node.start()
            self._form()
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _form(self) -> None:
        masters, replicas = self.nodes[:MASTERS], self.nodes[MASTERS:]
        bounds = [SLOTS * n // MASTERS for n in range(MASTERS + 1)]
        for epoch, (node, first, end) in enumerate(zip(masters, bounds, bounds[1:]), 1):
            node.ok("CLUSTER", "SET-CONFIG-EPOCH", epoch)
            node.ok("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for node in self.nodes[1:]:
            node.ok("CLUSTER", "MEET", HOST, self.nodes[0].port)
        everybody = {node.id for node in self.nodes}

        def know_each_other() -> bool:
            return all(node.acquaintances() == everybody for node in self.nodes)

        wait_until(know_each_other, TIMEOUT_S, "all nodes have met")
        for master, replica in zip(masters, replicas):
            replica.ok("CLUSTER", "REPLICATE", master.id)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Waits until each master has its replica and all nodes agree on the slots."""

        def is_whole() -> bool:
            if any(b"cluster_state:ok" not in node.call("CLUSTER", "INFO") for node in self.nodes):
                return False
            masters = [node for node in self.nodes if node.is_master]
            if len(masters) != MASTERS:
                return False
            for node in self.nodes:
                info = node.info("replication")
                if node in masters:
                    if info["connected_slaves"] != "1" or "state=online" not in info["slave0"]:
                        return False
                elif info["master_link_status"] != "up":
                    return False
            return len({self._map(node) for node in self.nodes}) == 1

        wait_until(is_whole, TIMEOUT_S, "the cluster is whole")

    @staticmethod
    def _map(node: Node) -> tuple[object, ...]:
        """Who owns which slots, and how many replicas each has, as `node` sees it."""
        ranges = node.call("CLUSTER", "SLOTS")
        return tuple(sorted((first, last, owner[1], len(others)) for first, last, owner, *others in ranges))

    def slot_of(self, key: Word) -> int:
        slot = self.nodes[0].call("CLUSTER", "KEYSLOT", key)
        assert isinstance(slot, int), slot
        return slot

    def owner_of(self, slot: int) -> Node:
        """The master that serves `slot`, by its own word."""
        (owner,) = [node for node in self.nodes if node.serves(slot)]
        return owner

    def masters_without(self, slot: int) -> list[Node]:
        return [node for node in self.nodes if node.is_master and node is not self.owner_of(slot)]

    def replica_of(self, master: Node) -> Node:
        (replica,) = [node for node in self.nodes if node.is_replica_of(master)]
        return replica

    def end_moving(self, slot: int, source: Node, target: Node) -> None:
        for node in (target, source):
            node.ok("CLUSTER", "SETSLOT", slot, "NODE", target.id)
        self.wait_until_moved(slot, target)

    def wait_until_moved(self, slot: int, target: Node) -> None:
        wait_until(lambda: all(node.knows_as_owner(slot) == target.port for node in self.nodes), TIMEOUT_S, "all know")

    def client(self) -> RedisCluster:
        """An ordinary cluster client that gives bytes."""
        nodes = [ClusterNode(HOST, node.port) for node in self.nodes if node.is_alive]
        return RedisCluster(startup_nodes=nodes, decode_responses=False, protocol=2)


def error_word(error: object) -> str:
    """The first word of an error reply: MOVED, ASK, CROSSSLOT."""
    return str(error).split(" ", 1)[0]
