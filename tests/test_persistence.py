"""What reaches the AOF and replicas is the result, as plain SETs that any server can load."""

from collections.abc import Callable, Iterator

import pytest

from harness import state
from harness.clock import TODAY_MS, server_ms
from harness.connection import Word
from harness.model import Model
from harness.observed import AOF_CONFIG, ObservedServer
from harness.replica import ReplicaStream
from harness.server import Server


#: Allowed calls on both algorithms, with a ttl and without one.
ALLOWED = [
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "2.5", "NOW", str(TODAY_MS)),
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "NOW", str(TODAY_MS + 700)),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "NOW", str(TODAY_MS)),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "NOW", str(TODAY_MS + 1)),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "0.1", "NOW", str(TODAY_MS)),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "4", "NOW", str(TODAY_MS + 2600)),
]
# Longer than all of them take, so that time never goes back from one round of them to the next.
ROUND_MS = 3000
DENIED_ON_EXISTING = [
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "9", "NOW", str(TODAY_MS + 800)),
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "11", "NOW", str(TODAY_MS + 900)),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "COST", "2", "NOW", str(TODAY_MS + 2)),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "7", "NOW", str(TODAY_MS + 2700)),
    # With a roll-over, which is kept in memory alone.
    ("RL.SLIDING", "window", "10", "2.5", "COST", "11", "NOW", str(TODAY_MS + 5200)),
]


def without_select(commands: list[list[bytes]]) -> list[list[bytes]]:
    return [command for command in commands if command[0].upper() != b"SELECT"]


def expected_sets(calls: list[tuple[str, ...]]) -> list[tuple[bytes, bytes, int | None]]:
    """For each call what the model sets: key, state and ttl in ms."""
    model, result = Model(), []
    for call in calls:
        model.call(*call)
        ((_, key, left, ttl_ms),) = model.written
        result.append((key, state.bytes_of(left), ttl_ms))
    return result


def assert_sets(commands: list[list[bytes]], calls: list[tuple[str, ...]], not_before_ms: int, not_after_ms: int) -> None:
    """`commands` are exactly `SET key state [PXAT ms]` for each of `calls`."""
    assert len(commands) == len(calls), commands
    for command, (key, value, ttl_ms) in zip(commands, expected_sets(calls)):
        assert command[:3] == [b"SET", key, value]
        if ttl_ms is None:
            assert command[3:] == []
        else:
            keyword, deadline_ms = command[3:]
            assert keyword == b"PXAT"
            assert not_before_ms <= int(deadline_ms) - ttl_ms <= not_after_ms


def test_an_aof_of_allowed_calls_holds_only_set_with_state_and_deadline(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(AOF_CONFIG)
    with server.raw_connection() as connection:
        before_ms = server_ms(connection)
        for call in ALLOWED:
            assert connection.call(*call)[0] == 1
        after_ms = server_ms(connection)
    commands = server.aof_commands()
    assert [command for command in commands if command[0].upper() == b"SELECT"] == [[b"SELECT", b"0"]]
    assert_sets(without_select(commands), ALLOWED, before_ms, after_ms)


def test_the_deadline_in_the_aof_is_that_of_the_key(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(AOF_CONFIG)
    with server.raw_connection() as connection:
        for call in ALLOWED:
            connection.call(*call)
            command = server.aof_commands()[-1]
            deadline_ms = int(command[4]) if len(command) == 5 else -1
            assert connection.call("PEXPIRETIME", call[1]) == deadline_ms
            assert connection.call("GET", call[1]) == command[2]


def test_replicas_receive_what_the_aof_holds(observed: ObservedServer) -> None:
    observed.stream.commands()
    before_ms = server_ms(observed.connection)
    for call in ALLOWED:
        assert observed.connection.call(*call)[0] == 1
    assert_sets(observed.stream.commands(), ALLOWED, before_ms, server_ms(observed.connection))


def test_a_denial_on_an_existing_key_adds_nothing_to_aof_or_stream(observed: ObservedServer) -> None:
    """The stream is that of replication."""
    connection = observed.connection
    for call in ALLOWED:
        connection.call(*call)
    before = observed.traces()
    values = {}
    for call in DENIED_ON_EXISTING * 20:
        assert connection.call(*call)[0] == 0
        values[call[1]] = connection.call("GET", call[1])
    assert observed.traces() == before
    # They are kept in memory all the same.
    assert state.read_bucket(values["bucket"]).last_ms == TODAY_MS + 900
    assert state.read_window(values["window"]).stored == (TODAY_MS + 5200) // 2500


#: Denied on a missing key: more than there can ever be.
DENIED_ON_MISSING: dict[str, tuple[Word, ...]] = {
    "a bucket": ("RL.TOKENBUCKET", "fresh", "10", "1", "COST", "11"),
    "a bucket that never refills": ("RL.TOKENBUCKET", "fresh", "10", "0", "COST", "11"),
    "a bucket of nothing": ("RL.TOKENBUCKET", "fresh", "0", "0"),
    "a window": ("RL.SLIDING", "fresh", "10", "60", "COST", "11"),
    "a window of nothing": ("RL.SLIDING", "fresh", "0", "60"),
    "one of RL.ALL": ("RL.ALL", "1", "fresh", "TOKENBUCKET", "10", "0", "COST", "11"),
    "several of RL.ALL": (
        *("RL.ALL", "3", "fresh", "fresh too", "fresh as well"),
        *("TOKENBUCKET", "10", "0", "COST", "11", "SLIDING", "10", "60", "TOKENBUCKET", "10", "1"),
    ),
    "CL.THROTTLE": ("CL.THROTTLE", "fresh", "9", "10", "60", "11"),
}
FLOOD = 2_000
# Below any that a call sets, and long enough to be there when the next call comes.
EARLIER_TTL_MS = 30_000


@pytest.fixture(scope="module")
def _throttling() -> Iterator[ObservedServer]:
    with ObservedServer(module_args=("cl-throttle", "yes")) as running:
        yield running


@pytest.fixture
def throttling(_throttling: ObservedServer) -> ObservedServer:
    """An observed server that has CL.THROTTLE too."""
    _throttling.connection.call("FLUSHALL")
    return _throttling


def is_denied(reply: list) -> bool:
    """CL.THROTTLE alone says first whether it limited."""
    return reply[0] == (1 if len(reply) == 5 else 0)


@pytest.mark.parametrize("in_ms", [False, True], ids=["in seconds", "in ms"])
@pytest.mark.parametrize("name", DENIED_ON_MISSING)
def test_a_denial_on_a_missing_key_creates_and_propagates_nothing(
    throttling: ObservedServer, name: str, in_ms: bool
) -> None:
    call = DENIED_ON_MISSING[name]
    options = () if call[0] == "CL.THROTTLE" else ("NOW", TODAY_MS, *["MS"] * in_ms)
    before = throttling.traces("fresh")
    assert is_denied(throttling.connection.call(*call, *options))
    assert throttling.traces("fresh") == before
    assert throttling.connection.call("DBSIZE") == 0


@pytest.mark.parametrize("name", DENIED_ON_MISSING)
def test_a_flood_of_denials_with_new_keys_leaves_no_key_and_no_trace(throttling: ObservedServer, name: str) -> None:
    """With the server's clock. The keys of RL.ALL are replaced too."""
    call = DENIED_ON_MISSING[name]
    calls = [[f"{word} {n}" if str(word).startswith("fresh") else word for word in call] for n in range(FLOOD)]
    before = throttling.traces()
    assert all(map(is_denied, throttling.connection.call_all(calls)))
    assert throttling.traces() == before
    assert before.key_count == 0


def test_a_denial_moves_the_deadline_in_memory_as_an_allowed_call_does(observed: ObservedServer) -> None:
    connection = observed.connection
    for call in (ALLOWED[0], ALLOWED[4]):
        connection.call(*call)
        connection.call("PEXPIRE", call[1], EARLIER_TTL_MS)
    for call, ttl_s in ((DENIED_ON_EXISTING[0], 80), (DENIED_ON_EXISTING[4], 65)):
        before_ms = server_ms(observed.connection)
        connection.call(*call)
        deadline_ms = connection.call("PEXPIRETIME", call[1])
        assert before_ms <= deadline_ms - ttl_s * 1000 <= server_ms(observed.connection)


def test_a_rate_of_zero_takes_the_ttl_away(observed: ObservedServer) -> None:
    connection = observed.connection
    connection.call("RL.TOKENBUCKET", "bucket", "10", "1", "NOW", TODAY_MS)
    assert connection.call("PTTL", "bucket") > 0
    observed.stream.commands()
    connection.call("RL.TOKENBUCKET", "bucket", "10", "0", "NOW", TODAY_MS)
    assert connection.call("PTTL", "bucket") == -1
    (command,) = observed.stream.commands()
    assert command == [b"SET", b"bucket", state.bucket_bytes(8.0, TODAY_MS)]


def test_the_state_is_the_documented_bytes(observed: ObservedServer) -> None:
    connection = observed.connection
    connection.call("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "2.5", "NOW", TODAY_MS)
    connection.call("RL.SLIDING", "window", "10", "2.5", "COST", "0.1", "NOW", TODAY_MS)
    connection.call("RL.SLIDING", "window", "10", "2.5", "COST", "4", "NOW", TODAY_MS + 2600)
    assert connection.call("GET", "bucket") == b"RL\x01T" + bytes.fromhex("0000000000001e40") + TODAY_MS.to_bytes(8, "little")
    index = (TODAY_MS + 2600) // 2500
    assert state.read_window(connection.call("GET", "window")) == state.Window(2.5, index, 0.1, 4.0)
    assert connection.call("TYPE", "bucket") == connection.call("TYPE", "window") == b"string"


def test_decisions_go_on_after_a_restart_from_what_allowed_calls_left(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server(AOF_CONFIG)
    model, saved = Model(), {}
    for round_ms in range(0, 5 * ROUND_MS, ROUND_MS):
        with server.raw_connection() as connection:
            for command, key, *words, now_ms in ALLOWED:
                call = (command, key, *words, str(int(now_ms) + round_ms))
                expected = model.call(*call)
                assert connection.call(*call) == expected
                if expected[0] == 1:
                    saved[key.encode()] = model.limiters[key.encode()]
        server.restart()
        # What denials changed was kept in memory alone.
        model.limiters = dict(saved)


def test_the_replication_stream_of_the_harness_sees_ordinary_commands(fresh_server: Callable[..., Server]) -> None:
    """The instrument itself: silence on the stream must mean that nothing was sent."""
    server = fresh_server(ReplicaStream.CONFIG, with_module=False)
    with ReplicaStream(server) as stream, server.raw_connection() as connection:
        offset = server.replication_offset()
        connection.call("SET", "a", "1")
        assert server.replication_offset() > offset
        connection.call("GET", "a")
        connection.call("DEL", "a")
        assert stream.commands() == [[b"SET", b"a", b"1"], [b"DEL", b"a"]]
        assert stream.commands() == []
