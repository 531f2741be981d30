"""Replicas hold what the master decided, denials cost them nothing, and a failover gives no fresh burst."""

from collections.abc import Callable

import hiredis
import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.model import Model
from harness.replica import ReplicaStream
from harness.sentinel import Sentinel
from harness.server import HOST, Server, wait_until

TIMEOUT_S = 30.0
WAIT_MS = 30_000
#: Not everysec: that puts a write off while an earlier one is being synced, so that the file's size lags.
AOF_CONFIG = {"appendonly": "yes", "appendfsync": "no"}
MASTER_CONFIG = {**ReplicaStream.CONFIG, **AOF_CONFIG, "repl-backlog-size": "4mb"}
FLOOD = 10_000

RULES_OF_ALL = ("TOKENBUCKET", "10", "0.5", "SLIDING", "10", "2.5")
RULES_WITH_LEASES = ("QUOTA", "10", "DAY", "TOKENBUCKET", "10", "0.5", "CONCURRENCY", "2", "30")
SETTLING = ("TOKENBUCKET", "10", "0.5", "FORCE", "4", "CONCURRENCY", "2", "30", "RELEASE")
#: Calls that are propagated: allowed ones, refunds, several at once; with a ttl and without one.
PROPAGATED: list[tuple[Word, ...]] = [
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "2.5", "NOW", TODAY_MS),
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "REFUND", "1", "NOW", TODAY_MS + 100),
    ("RL.TOKENBUCKET", "allotment", "5", "0", "COST", "2", "NOW", TODAY_MS),
    ("RL.TOKENBUCKET", "allotment", "5", "0", "REFUND", "0.5", "NOW", TODAY_MS),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "6", "NOW", TODAY_MS),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "4", "NOW", TODAY_MS + 2600),
    ("RL.SLIDING", "window", "10", "2.5", "REFUND", "1", "NOW", TODAY_MS + 2700),
    ("RL.ALL", "2", "bucket", "window", *RULES_OF_ALL, "NOW", TODAY_MS + 2800),
    ("RL.QUOTA", "quota", "10", "60", "COST", "3", "NOW", TODAY_MS),
    ("RL.QUOTA", "quota", "10", "60", "REFUND", "1", "NOW", TODAY_MS + 100),
    ("RL.QUOTA", "quota", "10", "60", "FORCE", "9", "NOW", TODAY_MS + 200),
    ("RL.TOKENBUCKET", "debt", "10", "0.5", "FORCE", "15", "NOW", TODAY_MS),
    ("RL.TOKENBUCKET", "line", "1", "0.5", "NOW", TODAY_MS),
    ("RL.TOKENBUCKET", "line", "1", "0.5", "MAXWAIT", "10", "NOW", TODAY_MS),
    ("RL.SLIDING", "part", "10", "2.5", "COST", "20", "ATLEAST", "1", "NOW", TODAY_MS),
    ("RL.CONCURRENCY", "leases", "2", "30", "ID", "a", "NOW", TODAY_MS),
    ("RL.CONCURRENCY", "leases", "2", "30", "ID", "b", "NOW", TODAY_MS + 100),
    ("RL.CONCURRENCY", "leases", "2", "30", "ID", "a", "XX", "NOW", TODAY_MS + 200),
    ("RL.RELEASE", "leases", "b"),
    ("RL.ALL", "3", "day", "tokens", "leases", *RULES_WITH_LEASES, "ID", "c", "NOW", TODAY_MS + 300),
    ("RL.ALL", "2", "tokens", "leases", *SETTLING, "ID", "c", "XX", "NOW", TODAY_MS + 400),
]
KEYS = ("bucket", "allotment", "window", "quota", "debt", "line", "part", "leases", "day", "tokens")
WITHOUT_TTL = ("allotment",)
#: After PROPAGATED: denials, previews, refused several and a refund of nothing.
NOT_PROPAGATED: list[tuple[Word, ...]] = [
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "10", "NOW", TODAY_MS + 2900),
    ("RL.TOKENBUCKET", "allotment", "5", "0", "COST", "4", "NOW", TODAY_MS + 2900),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "9", "NOW", TODAY_MS + 2900),
    ("RL.SLIDING", "missing", "10", "2.5", "COST", "11", "NOW", TODAY_MS + 2900),
    ("RL.ALL", "2", "bucket", "window", *RULES_OF_ALL, "COST", "9", "NOW", TODAY_MS + 2900),
    ("RL.TOKENBUCKET_RO", "bucket", "10", "0.5", "NOW", TODAY_MS + 2900),
    ("RL.SLIDING_RO", "window", "10", "2.5", "NOW", TODAY_MS + 2900),
    ("RL.ALL_RO", "2", "bucket", "window", *RULES_OF_ALL, "NOW", TODAY_MS + 2900),
    ("RL.QUOTA", "quota", "10", "60", "NOW", TODAY_MS + 2900),
    ("RL.QUOTA", "quota", "20", "60", "COST", "0", "NOW", TODAY_MS + 2900),
    ("RL.QUOTA", "missing", "10", "DAY", "REFUND", "1", "NOW", TODAY_MS + 2900),
    ("RL.QUOTA_RO", "quota", "20", "60", "NOW", TODAY_MS + 2900),
    ("RL.TOKENBUCKET", "debt", "10", "0.5", "NOW", TODAY_MS + 2900),
    ("RL.TOKENBUCKET", "line", "1", "0.5", "MAXWAIT", "0.5", "NOW", TODAY_MS + 2900),
    ("RL.SLIDING", "part", "10", "2.5", "COST", "20", "ATLEAST", "11", "NOW", TODAY_MS + 2900),
    ("RL.CONCURRENCY", "leases", "1", "30", "ID", "z", "NOW", TODAY_MS + 2900),
    ("RL.CONCURRENCY", "leases", "1", "30", "ID", "z", "XX", "NOW", TODAY_MS + 2900),
    ("RL.CONCURRENCY_RO", "leases", "2", "30", "ID", "z", "NOW", TODAY_MS + 2900),
    ("RL.RELEASE", "leases", "z"),
    ("RL.RELEASE", "missing", "z"),
    ("RL.ALL", "2", "tokens", "leases", *SETTLING, "ID", "c", "XX", "NOW", TODAY_MS + 2900),
    ("RL.ALL", "1", "quota", "QUOTA", "10", "60", "SHADOW", "NOW", TODAY_MS + 2900),
    ("RL.ALL_RO", "2", "tokens", "leases", *RULES_WITH_LEASES[3:], "ID", "z", "NOW", TODAY_MS + 2900),
]
ERRORS: list[tuple[Word, ...]] = [
    ("RL.TOKENBUCKET", "bucket", "10", "x"),
    ("RL.SLIDING", "bucket", "10", "2.5"),
    ("RL.QUOTA", "leases", "10", "60"),
    ("RL.CONCURRENCY", "quota", "10", "60", "ID", "a"),
    ("RL.RELEASE", "quota", "a"),
    ("RL.ALL", "2", "bucket", "bucket", "TOKENBUCKET", "1", "1", "TOKENBUCKET", "1", "1"),
]

StartServer = Callable[..., Server]


def start_replica(fresh_server: StartServer, master: Server, *, with_module: bool = True) -> Server:
    config = {**ReplicaStream.CONFIG, "replicaof": [HOST, master.port]}
    replica = fresh_server(config, with_module=with_module)
    replica.wait_until_linked()
    return replica


def catch_up(master: Server, *replicas: Server) -> None:
    """Waits until the replicas have applied all that the master sent."""
    offset = master.replication_offset()
    for replica in replicas:
        wait_until(
            lambda: replica.is_linked and int(replica.info("replication")["slave_repl_offset"]) >= offset, TIMEOUT_S
        )


def contents(server: Server, keys: tuple[str, ...] = KEYS) -> list[tuple[object, object]]:
    with server.raw_connection() as connection:
        return [(connection.call("DUMP", key), connection.call("PEXPIRETIME", key)) for key in keys]


def is_allowed(reply: object) -> bool:
    """RL.RELEASE says how many it released, all others begin with 1."""
    return (reply[0] if isinstance(reply, list) else reply) == 1


def make(connection: RawConnection, calls: list[tuple[Word, ...]] = PROPAGATED) -> None:
    for call in calls:
        assert is_allowed(connection.call(*call)), call


def test_replicas_hold_the_same_bytes_and_deadlines_with_or_without_it(
    fresh_server: StartServer,
) -> None:
    """Of allowed and of refunded keys, with or without the module."""
    master = fresh_server(MASTER_CONFIG)
    replicas = [start_replica(fresh_server, master, with_module=with_module) for with_module in (True, False)]
    with master.raw_connection() as connection:
        for call in PROPAGATED:
            assert is_allowed(connection.call(*call))
            catch_up(master, *replicas)
            expected = contents(master)
            for replica in replicas:
                assert contents(replica) == expected, call
    assert all(value is not None for value, _ in expected)
    assert [deadline_ms > 0 for _, deadline_ms in expected] == [key not in WITHOUT_TTL for key in KEYS]


def test_ten_thousand_denials_and_previews_move_neither_offset_nor_aof(
    fresh_server: StartServer,
) -> None:
    """The offset is that of replication."""
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master)
    with master.raw_connection() as connection:
        make(connection)
        catch_up(master, replica)
        replicated = contents(replica)

        def written() -> tuple[int, int, int]:
            return master.replication_offset(), master.aof_size(), master.changes_since_save()

        before = written()
        for _ in range(FLOOD // (10 * len(NOT_PROPAGATED))):
            for reply in connection.call_all(NOT_PROPAGATED * 10):
                assert not isinstance(reply, hiredis.ReplyError)
        denied = [reply[0] for reply in connection.call_all(NOT_PROPAGATED)[:5]]
        assert denied == [0] * 5
        assert written() == before
        assert contents(replica) == replicated
        # An allowed call moves all three, so they would have told.
        assert connection.call(*PROPAGATED[3])[0] == 1
        assert all(now > then for now, then in zip(written(), before))


def _plainly(connection: RawConnection, calls: list[tuple[Word, ...]]) -> list[object]:
    return [connection.call(*call) for call in calls]


def _in_multi(connection: RawConnection, calls: list[tuple[Word, ...]]) -> list[object]:
    assert connection.call("MULTI") == b"OK"
    for call in calls:
        assert connection.call(*call) == b"QUEUED"
    return connection.call("EXEC")


def keys_of(call: tuple[Word, ...]) -> tuple[Word, ...]:
    return call[2 : 2 + int(call[1])] if str(call[0]).startswith("RL.ALL") else call[1:2]


def _in_lua(connection: RawConnection, calls: list[tuple[Word, ...]]) -> list[object]:
    script = "return redis.call(unpack(ARGV))"
    return [connection.call("EVAL", script, len(keys_of(call)), *keys_of(call), *call) for call in calls]


FUNCTION = """#!lua name=limits
redis.register_function('limit', function(keys, args) return redis.call(unpack(args)) end)
"""


def _in_a_function(connection: RawConnection, calls: list[tuple[Word, ...]]) -> list[object]:
    return [connection.call("FCALL", "limit", len(keys_of(call)), *keys_of(call), *call) for call in calls]


WAYS = {"alone": _plainly, "MULTI": _in_multi, "Lua": _in_lua, "FUNCTION": _in_a_function}


@pytest.mark.parametrize("way", WAYS)
def test_in_a_transaction_or_script_replicas_hold_what_the_master_holds(
    fresh_server: StartServer, way: str
) -> None:
    """Or in a function; and denials send nothing."""
    master, model, run = fresh_server(MASTER_CONFIG), Model(), WAYS[way]
    replicas = [start_replica(fresh_server, master, with_module=with_module) for with_module in (True, False)]
    with master.raw_connection() as connection:
        assert connection.call("FUNCTION", "LOAD", FUNCTION) == b"limits"
        assert run(connection, PROPAGATED) == [model.call(*call) for call in PROPAGATED]
        catch_up(master, *replicas)
        expected = contents(master)
        assert all(value is not None for value, _ in expected)
        for replica in replicas:
            assert contents(replica) == expected
        before = (master.replication_offset(), master.aof_size())
        assert run(connection, NOT_PROPAGATED) == [model.call(*call) for call in NOT_PROPAGATED]
        assert (master.replication_offset(), master.aof_size()) == before


def test_after_a_broken_link_a_replica_catches_up_by_a_partial_resync(fresh_server: StartServer) -> None:
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master)
    with master.raw_connection() as connection:
        make(connection, PROPAGATED[:3])
        catch_up(master, replica)
        before = master.info("stats")
        # In one write: the calls are made before the replica can come back.
        replies = connection.call_all([("CLIENT", "KILL", "TYPE", "replica"), *PROPAGATED[3:]])
        assert replies[0] == 1
        assert all(map(is_allowed, replies[1:]))
    wait_until(
        lambda: int(master.info("stats")["sync_partial_ok"]) == int(before["sync_partial_ok"]) + 1, TIMEOUT_S, "resync"
    )
    catch_up(master, replica)
    assert master.info("stats")["sync_full"] == before["sync_full"]
    assert contents(replica) == contents(master)


#: Half of each quota, then what is left of it. With no refill, or in a window longer than any test.
HALF: list[tuple[Word, ...]] = [
    ("RL.TOKENBUCKET", "bucket", "10", "0", "COST", "6"),
    ("RL.SLIDING", "window", "10", "1e6", "COST", "6"),
    ("RL.QUOTA", "quota", "10", "1e6", "COST", "6"),
]


def assert_only_the_rest_is_left(server: Server) -> None:
    with server.raw_connection() as connection:
        for call in HALF:
            assert connection.call(*call)[0] == 0
        for call in HALF:
            assert connection.call(*call[:-1], "4")[:2] == [1, 0]
            assert connection.call(*call[:-1], "1")[0] == 0


def flood_of_denials(connection: RawConnection) -> None:
    for call in HALF * 50:
        assert connection.call(*call)[0] == 0


def test_a_replica_promoted_by_hand_goes_on_from_the_quota_used(fresh_server: StartServer) -> None:
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master)
    with master.raw_connection() as connection:
        make(connection, HALF)
        flood_of_denials(connection)
        assert connection.call("WAIT", "1", WAIT_MS) == 1
    master.kill9()
    with replica.raw_connection() as connection:
        assert connection.call("REPLICAOF", "NO", "ONE") == b"OK"
    assert_only_the_rest_is_left(replica)


def test_a_replica_promoted_by_sentinel_goes_on_from_the_quota_used(fresh_server: StartServer) -> None:
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master)
    with Sentinel(master) as sentinel:
        wait_until(lambda: sentinel.replica_ports() == [replica.port], TIMEOUT_S, "the sentinel knows the replica")
        with master.raw_connection() as connection:
            make(connection, HALF)
            flood_of_denials(connection)
            assert connection.call("WAIT", "1", WAIT_MS) == 1
        master.kill9()
        wait_until(lambda: sentinel.master_port() == replica.port, TIMEOUT_S, "the sentinel names the new master")
    assert replica.info("replication")["role"] == "master"
    assert_only_the_rest_is_left(replica)


def test_wait_tells_when_a_replica_has_an_allowed_call(fresh_server: StartServer) -> None:
    master = fresh_server(MASTER_CONFIG)
    replica = start_replica(fresh_server, master)
    with master.raw_connection() as connection:
        for call in PROPAGATED:
            assert is_allowed(connection.call(*call))
            assert connection.call("WAIT", "1", WAIT_MS) == 1
            assert contents(replica) == contents(master)
        replica.kill9()
        wait_until(lambda: master.info("replication")["connected_slaves"] == "0", TIMEOUT_S)
        assert connection.call(*PROPAGATED[3])[0] == 1
        assert connection.call("WAIT", "1", "1") == 0


def as_list(call: tuple[Word, ...]) -> str:
    return " ".join(map(str, call[:2]))


@pytest.mark.parametrize("call", PROPAGATED, ids=as_list)
def test_an_allowed_call_aborts_a_transaction_that_watches_its_key(raw: RawConnection, call: tuple[Word, ...]) -> None:
    for key in keys_of(call):
        raw.call("FLUSHALL")
        make(raw, PROPAGATED[: PROPAGATED.index(call)])
        assert raw.call("WATCH", key) == b"OK"
        assert is_allowed(raw.call(*call))
        assert raw.call_all([("MULTI",), ("PING",), ("EXEC",)])[-1] is None


@pytest.mark.parametrize("call", [*NOT_PROPAGATED, *ERRORS], ids=as_list)
def test_a_denial_a_preview_or_an_error_aborts_no_transaction(
    raw: RawConnection, call: tuple[Word, ...]
) -> None:
    """That watches the call's key."""
    make(raw)
    assert raw.call("WATCH", "missing", *KEYS) == b"OK"
    reply = raw.call(*call)
    assert isinstance(reply, hiredis.ReplyError) == (call in ERRORS), reply
    assert raw.call_all([("MULTI",), ("PING",), ("EXEC",)])[-1] == [b"PONG"]


INVALIDATED = b"__redis__:invalidate"
MARKER = b"marker"


def test_client_tracking_hears_of_allowed_calls_alone(
    server: Server, raw: RawConnection
) -> None:
    """Not of a denial, a preview or an error."""
    with server.raw_connection() as listener, server.raw_connection() as cache:
        listener_id = listener.call("CLIENT", "ID")
        assert listener.call_all([("SUBSCRIBE", INVALIDATED), ("SUBSCRIBE", MARKER)])[-1][0] == b"subscribe"
        assert cache.call("CLIENT", "TRACKING", "ON", "REDIRECT", listener_id) == b"OK"

        def heard_of(call: tuple[Word, ...]) -> set[bytes]:
            """The keys that `cache` was told to forget because of `call`."""
            cache.call("MGET", "missing", *KEYS)
            raw.call(*call)
            raw.call("PUBLISH", MARKER, "")
            keys: set[bytes] = set()
            while (message := listener.read())[1] != MARKER:
                assert message[1] == INVALIDATED, message
                keys.update(message[2])
            return keys

        for call in PROPAGATED:
            assert heard_of(call) == {str(key).encode() for key in keys_of(call)}, call
        for call in [*NOT_PROPAGATED, *ERRORS]:
            assert heard_of(call) == set(), call
