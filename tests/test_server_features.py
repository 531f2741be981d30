"""What a server can do without the module it can do with it.

A server restricts itself for the sake of a module of which it does not know that it can cope. So each test
does the same on a server without the module and on one with it, and expects the same of both. None of them
lists what a server can do where the server can be asked: what its next version brings is compared too.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import hiredis
import pytest

from harness import state
from harness.clock import TODAY_MS
from harness.cluster import SLOTS, WAYS_TO_MOVE, Node, has_way
from harness.command_table import command_info, pairs
from harness.connection import RawConnection, Word
from harness.replica import ReplicaStream
from harness.server import HOST, Server, wait_until

TIMEOUT_S = 60.0
BUCKET: tuple[Word, ...] = ("RL.TOKENBUCKET", "bucket", "10", "0", "COST", "4", "NOW", TODAY_MS)

StartServer = Callable[..., Server]


class Both(NamedTuple):
    """Two servers that differ in nothing but the module."""

    without: Server
    with_module: Server


@pytest.fixture
def start_both(fresh_server: StartServer) -> Callable[..., Both]:
    """Starts both with the same configuration."""

    def start(config: dict[str, object] | None = None) -> Both:
        return Both(fresh_server(config, with_module=False), fresh_server(config))

    return start


# What the servers say in their logs

#: "1234:M 30 Nov 2026 21:00:00.000 # "
LINE_START = re.compile(r"^\d+:\w \d+ \w+ \d+ [\d:.]+ . ", re.MULTILINE)
#: What loading a module says, and what it says itself.
OF_THE_LOAD = re.compile(r"^(Module 'rl' loaded from |Legacy Redis Module \S+ found|<rl> |<module> )")


def lines_about_modules(server: Server) -> set[str]:
    lines = LINE_START.sub("", server.log).splitlines()
    return {line for line in lines if "module" in line.lower() and not OF_THE_LOAD.match(line)}


def assert_nothing_is_said_because_of_the_module(both: Both) -> None:
    """Such as "Skipping diskless-load because there are modules that are not aware of async replication"."""
    assert lines_about_modules(both.with_module) - lines_about_modules(both.without) == set()


# Commands, parameters, INFO

#: Not called: it would end the server, make a replica of the connection, or connect it to another server.
NOT_CALLED = {"SHUTDOWN", "SYNC", "PSYNC", "REPLICAOF", "SLAVEOF", "MIGRATE"}


def command_names(connection: RawConnection) -> list[bytes]:
    return sorted(connection.call("COMMAND", "LIST"))


def shortest_calls(connection: RawConnection) -> Iterator[list[Word]]:
    """Each command and subcommand with as few arguments as it takes, but those that would block."""
    for name in command_names(connection):
        if name.decode().upper() in NOT_CALLED:
            continue
        info = command_info(connection, name.decode().upper())
        for command in [info, *info[9]]:
            words = command[0].split(b"|")
            if b"blocking" not in command[2]:
                yield [*words, *[b"1"] * (abs(command[1]) - len(words))]


def outcome(reply: object) -> str:
    """What has to be equal: the error, or the type of what was answered."""
    return str(reply) if isinstance(reply, hiredis.ReplyError) else type(reply).__name__


@pytest.mark.parametrize("cluster_enabled", ["no", "yes"], ids=["alone", "in a cluster"])
def test_every_command_is_there_and_answers_its_shortest_call_alike(
    start_both: Callable[..., Both], cluster_enabled: str
) -> None:
    both = start_both({"cluster-enabled": cluster_enabled})
    with both.without.raw_connection() as connection:
        names, calls = command_names(connection), list(shortest_calls(connection))
    with both.with_module.raw_connection() as connection:
        own = connection.call("COMMAND", "LIST", "FILTERBY", "MODULE", "rl")
        assert sorted(set(command_names(connection)) - set(own)) == names
    assert len(calls) > 200
    for call in calls:
        outcomes = []
        for server in both:
            # A separate connection: the call may change what the connection is.
            with server.raw_connection() as connection:
                outcomes.append(outcome(connection.call(*call)))
        assert outcomes[0] == outcomes[1], b" ".join(call)
    assert all(server.is_alive for server in both)
    assert_nothing_is_said_because_of_the_module(both)


OTHER_SWITCH = {"yes": "no", "no": "yes"}


def test_every_parameter_is_there_and_can_be_set_alike(start_both: Callable[..., Both]) -> None:
    """Switches are set to the other value and back, and all others to the value that they have."""
    both = start_both()
    with both.without.raw_connection() as without, both.with_module.raw_connection() as with_module:
        parameters = [pairs(connection.call("CONFIG", "GET", "*")) for connection in (without, with_module)]
        assert sorted(parameters[0]) == sorted(name for name in parameters[1] if not name.startswith(b"rl."))
        assert len(parameters[0]) > 100
        for name in sorted(parameters[0]):
            outcomes = []
            for connection, values in zip((without, with_module), parameters):
                value = values[name].decode()
                tried = [OTHER_SWITCH[value], value] if value in OTHER_SWITCH else [value]
                outcomes.append([outcome(connection.call("CONFIG", "SET", name, one)) for one in tried])
            assert outcomes[0] == outcomes[1], name
    assert_nothing_is_said_because_of_the_module(both)


def info_fields(server: Server) -> set[str]:
    # What is there only once it has happened.
    happened = ("cmdstat_", "errorstat_", "latency_percentiles_", "eventloop_", "db0", "slave0", "module")
    return {name for name in server.info("everything") if not name.startswith(happened)}


def test_info_has_every_field_that_it_has_without_the_module(start_both: Callable[..., Both]) -> None:
    both = start_both()
    without, with_module = map(info_fields, both)
    assert without <= with_module
    assert {name for name in with_module - without if not name.startswith("rl_")} == set()


def test_info_and_module_list_name_the_module_in_every_form(start_both: Callable[..., Both]) -> None:
    _, server = start_both()
    with server.raw_connection() as connection:
        (listed,) = [module for module in map(pairs, connection.call("MODULE", "LIST")) if module[b"name"] == b"rl"]
        assert listed[b"ver"] > 0
        for section in ("modules", "Modules", "everything"):
            assert b"module:name=rl," in connection.call("INFO", section), section
        assert connection.call("MODULE", "HELP")


# Saving

#: What makes a file, one way or another.
WAYS_TO_SAVE: list[tuple[Word, ...]] = [
    ("SAVE",),
    ("BGSAVE",),
    ("BGSAVE", "SCHEDULE"),
    ("BGSAVE", "CANCEL"),
    ("BGREWRITEAOF",),
    ("DEBUG", "RELOAD"),
    ("CONFIG", "SET", "appendonly", "yes"),
    ("DEBUG", "LOADAOF"),
    ("CONFIG", "SET", "rdbcompression", "no"),
    ("BGSAVE",),
    ("BGREWRITEAOF",),
]


def wait_until_saved(server: Server) -> dict[str, str]:
    """What INFO says of it at the end."""

    def idle() -> dict[str, str] | None:
        info = server.info("persistence")
        busy = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled", "loading")
        return None if any(info[name] == "1" for name in busy) else info

    return wait_until(idle, TIMEOUT_S, "nothing is being saved")


def when_no_child_runs(connection: RawConnection, words: tuple[Word, ...]) -> object:
    """The outcome; None if another save was under way."""
    reply = connection.call(*words)
    return None if "child process is active" in str(reply) else outcome(reply)


def test_every_way_to_save_works_alike_and_keeps_the_limiters(start_both: Callable[..., Both]) -> None:
    both = start_both()
    value = state.bucket_bytes(6.0, TODAY_MS)
    with both.without.raw_connection() as without, both.with_module.raw_connection() as with_module:
        without.call("SET", "bucket", value)
        assert with_module.call(*BUCKET)[0] == 1
        for words in WAYS_TO_SAVE:
            outcomes = []
            for server, connection in zip(both, (without, with_module)):
                # A server may have begun to save by itself, once more, what it was told to save.
                reply = wait_until(lambda: when_no_child_runs(connection, words), TIMEOUT_S, f"{words} is accepted")
                info = wait_until_saved(server)
                assert connection.call("GET", "bucket") == value
                outcomes.append((reply, info["rdb_last_bgsave_status"], info["aof_last_bgrewrite_status"]))
            assert outcomes[0] == outcomes[1], words
    assert_nothing_is_said_because_of_the_module(both)


# Full synchronisations

KEYS_TO_LOAD = 300
LOAD_DELAY_US = 10_000
#: A server that loads looks after its clients once for so many bytes: here, for each key.
BYTES_BETWEEN_EVENTS = 1024
LOADED_VALUE = "x" * BYTES_BETWEEN_EVENTS
#: More than the backlog holds, so that what comes after a broken link is a full synchronisation.
BACKLOG_BYTES, MORE_THAN_THE_BACKLOG = 16_384, "x" * 100_000
MASTER_CONFIG = {
    **ReplicaStream.CONFIG,
    "repl-diskless-sync": "yes",
    "repl-backlog-size": BACKLOG_BYTES,
    "rdbcompression": "no",
}
#: Parameters that some servers have, and that change how a snapshot travels.
CHANNELS = ("repl-rdb-channel", "dual-channel-replication-enabled")
PREVIEWS: list[tuple[Word, ...]] = [
    ("RL.TOKENBUCKET_RO", "bucket", "10", "0", "COST", "7", "NOW", TODAY_MS),
    ("RL.SLIDING_RO", "window", "10", "60", "NOW", TODAY_MS),
    ("RL.ALL_RO", "2", "bucket", "window", "TOKENBUCKET", "10", "0", "SLIDING", "10", "60", "NOW", TODAY_MS),
]
BYTES = {"bucket": state.bucket_bytes(6.0, TODAY_MS), "window": state.window_bytes(60.0, TODAY_MS // 60_000, 0.0, 7.0)}


@contextmanager
def loading_anew(fresh_server: StartServer, replica_config: dict[str, object], *, with_module: bool) -> Iterator[Server]:
    """A replica that holds all that its master has, and takes a new snapshot of it, slowly."""
    master = fresh_server(MASTER_CONFIG, with_module=with_module)
    replica = fresh_server({**replica_config, "replicaof": [HOST, master.port]}, with_module=with_module)
    with master.raw_connection() as to_master, replica.raw_connection() as to_replica:
        replica.wait_until_linked()
        to_master.call("MSET", *(word for pair in BYTES.items() for word in pair))
        to_master.call("MSET", *(word for number in range(KEYS_TO_LOAD) for word in (f"k{number}", LOADED_VALUE)))
        assert to_master.call("WAIT", "1", int(TIMEOUT_S * 1000)) == 1
        for name, value in (("key-load-delay", LOAD_DELAY_US), ("loading-process-events-interval-bytes", BYTES_BETWEEN_EVENTS)):
            assert to_replica.call("CONFIG", "SET", name, value) == b"OK"
        # At once, so that the link is not made anew in between.
        broken = [("MULTI",), ("CLIENT", "KILL", "TYPE", "replica"), ("SET", "large", MORE_THAN_THE_BACKLOG)]
        assert to_master.call_all([*broken, ("EXEC",)])[-1][0] == 1
        yield replica
        to_replica.call("CONFIG", "SET", "key-load-delay", "0")
        wait_until(lambda: replica.is_linked and master.info("stats")["sync_full"] == "2", TIMEOUT_S, "in step again")
        with replica.raw_connection() as connection:
            assert connection.call("STRLEN", "large") == len(MORE_THAN_THE_BACKLOG)
            assert connection.call("MGET", *BYTES) == list(BYTES.values())


def test_a_replica_answers_previews_while_it_loads_beside_its_data(fresh_server: StartServer) -> None:
    """`repl-diskless-load swapdb`: until the new data is whole, the old data is served."""
    with ExitStack() as stack:
        replicas = [
            stack.enter_context(loading_anew(fresh_server, {"repl-diskless-load": "swapdb"}, with_module=with_module))
            for with_module in (False, True)
        ]
        for replica in replicas:

            def is_loading() -> bool:
                persistence = replica.info("persistence")
                return "1" in (persistence["loading"], persistence["async_loading"])

            wait_until(is_loading, TIMEOUT_S, "the replica loads")
            assert replica.info("persistence")["async_loading"] == "1", replica.log[-2000:]
        both = Both(*replicas)
        with both.without.raw_connection() as without, both.with_module.raw_connection() as with_module:
            for connection in (without, with_module):
                assert connection.call("MGET", *BYTES) == list(BYTES.values())
            bucket, window, of_both = with_module.call_all(PREVIEWS)
            assert (bucket[:2], window[:2], of_both[0]) == ([0, 6], [1, 3], 1)
            # Not at the end of it by chance: it still loads.
            assert both.with_module.info("persistence")["async_loading"] == "1"
        assert_nothing_is_said_because_of_the_module(both)


WAYS_TO_LOAD = ("disabled", "on-empty-db", "swapdb", "flush-before-load")


def synchronise(replica: Server, master: Server, way: str, channels: dict[str, str]) -> None:
    """Empties the replica and takes a full snapshot of the master."""
    with replica.raw_connection() as connection:
        connection.call("REPLICAOF", "NO", "ONE")
        connection.call("FLUSHALL")
        for name, value in {"repl-diskless-load": way, **channels}.items():
            assert connection.call("CONFIG", "SET", name, value) == b"OK"
        assert connection.call("REPLICAOF", HOST, master.port) == b"OK"
        replica.wait_until_linked()
        assert connection.call("MGET", *BYTES) == list(BYTES.values())


@pytest.mark.parametrize("way", WAYS_TO_LOAD)
def test_every_way_of_a_full_synchronisation_works_alike(start_both: Callable[..., Both], way: str) -> None:
    masters, replicas = start_both({**ReplicaStream.CONFIG, "repl-diskless-sync": "yes"}), start_both()
    with replicas.without.raw_connection() as connection:
        if isinstance(connection.call("CONFIG", "SET", "repl-diskless-load", way), hiredis.ReplyError):
            pytest.skip(f"this server has no repl-diskless-load {way}")
        channels = [name.decode() for name in pairs(connection.call("CONFIG", "GET", *CHANNELS))]
    for master, replica in zip(masters, replicas):
        with master.raw_connection() as connection:
            connection.call("MSET", *(word for pair in BYTES.items() for word in pair))
            synchronise(replica, master, way, dict.fromkeys(channels, "no"))
            for channel in channels:
                assert connection.call("CONFIG", "SET", channel, "yes") == b"OK"
            if channels:
                synchronise(replica, master, way, dict.fromkeys(channels, "yes"))
    for both in (masters, replicas):
        assert_nothing_is_said_because_of_the_module(both)


# Slots on the move

SLOT = 12_182
KEY_OF_THE_SLOT = "foo"


@contextmanager
def two_masters(*, with_module: bool) -> Iterator[list[Node]]:
    """A cluster of two, of which the first has all the slots."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(Node(with_module=with_module)) for _ in range(2)]
        nodes[0].ok("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS - 1)
        for epoch, node in enumerate(nodes, 1):
            node.ok("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        nodes[0].ok("CLUSTER", "MEET", HOST, nodes[1].port)
        everybody = {node.id for node in nodes}

        def agree() -> bool:
            return all(
                node.acquaintances() == everybody
                and b"cluster_state:ok" in node.call("CLUSTER", "INFO")
                and node.knows_as_owner(SLOT) == nodes[0].port
                for node in nodes
            )

        wait_until(agree, TIMEOUT_S, "both agree")
        yield nodes


@pytest.mark.parametrize("way", WAYS_TO_MOVE)
def test_every_way_to_move_a_slot_works_alike(way: str) -> None:
    """What it does to the counts under load is told by test_cluster.py."""
    with two_masters(with_module=False) as without, two_masters(with_module=True) as with_module:
        if not has_way(without[0], way):
            pytest.skip(f"this server has no CLUSTER {way}")
        for source, target in (without, with_module):
            source.ok("SET", KEY_OF_THE_SLOT, BYTES["bucket"])
            for _ in WAYS_TO_MOVE[way](SLOT, source, target):
                pass
            nodes = (source, target)
            wait_until(lambda: all(node.knows_as_owner(SLOT) == target.port for node in nodes), TIMEOUT_S, "it moved")
            assert target.call("GET", KEY_OF_THE_SLOT) == BYTES["bucket"]
        for pair in zip(without, with_module):
            assert_nothing_is_said_because_of_the_module(Both(*pair))
