"""What was acknowledged outlives the process, in an AOF and in an RDB file; other commands move a limiter intact."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness import state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.kinds import State
from harness.model import Model
from harness.observed import AOF_CONFIG
from harness.server import Server, wait_until

WORKERS = 4
CALLS_BEFORE_THE_CRASH = 400
MOST_CALLS_OF_A_WORKER = 100_000
CRASHES = 3
CALLS_AFTER = 60
#: Rates, costs and steps of time are multiples of powers of two, so that a sum of refills is exact and what a
#: denial refilled in memory alone cannot be told from a refill worked out later.
STEP_MS = 125
RULES = [
    ("RL.TOKENBUCKET", ("16", "2")),
    ("RL.SLIDING", ("8", "4")),
    ("RL.TOKENBUCKET", ("1e6", "0")),
    ("RL.SLIDING", ("64", "0.5")),
]

#: The value of a key and its deadline.
Limiter = tuple[object, object]


def value_of(limiter: State) -> bytes | None:
    return None if limiter is None else state.bytes_of(limiter)


def look(connection: RawConnection, key: Word) -> Limiter:
    return tuple(connection.call_all([("GET", key), ("PEXPIRETIME", key)]))


@dataclass
class Caller:
    """Calls on a key of its own, one after another, and what was acknowledged of them."""

    name: str
    rule: tuple[str, tuple[str, ...]]
    rng: random.Random
    model: Model = field(default_factory=Model)
    now_ms: int = TODAY_MS
    allowed: int = 0
    #: what the last propagated call left: the value, and its deadline once that was read
    durable: bytes | None = None
    deadline_ms: int | None = None
    in_flight: tuple[Word, ...] | None = None
    failure: BaseException | None = None

    @property
    def key(self) -> bytes:
        return self.name.encode()

    def next_call(self) -> tuple[Word, ...]:
        self.now_ms += STEP_MS * self.rng.randrange(3)
        command, parameters = self.rule
        option = self.rng.choice([(), (), ("COST", "0.5"), ("COST", "4"), ("REFUND", "0.25")])
        return (command, self.name, *parameters, *option, "NOW", str(self.now_ms))

    def acknowledge(self, call: tuple[Word, ...], reply: object) -> None:
        expected = self.model.call(*call)
        assert reply == expected, (call, reply, expected)
        self.in_flight = None
        # A refund that gives nothing back propagates nothing.
        if self.model.written:
            self.allowed += 1
            self.durable, self.deadline_ms = value_of(self.model.limiters[self.key]), None

    def note_deadline(self, connection: RawConnection) -> None:
        """Reads the deadline that the last call left, if it is one that is to last."""
        value, deadline_ms = look(connection, self.key)
        if self.deadline_ms is None and self.durable is not None:
            assert value == self.durable
            self.deadline_ms = deadline_ms

    def run(self, server: Server, acknowledged: Callable[[], None]) -> None:
        try:
            with server.raw_connection() as connection:
                for _ in range(MOST_CALLS_OF_A_WORKER):
                    call = self.next_call()
                    self.in_flight = call
                    self.acknowledge(call, connection.call(*call))
                    self.note_deadline(connection)
                    acknowledged()
        except OSError:
            pass  # the crash
        except BaseException as failure:
            self.failure = failure

    def assert_nothing_forgotten(self, connection: RawConnection) -> None:
        assert self.failure is None, self.failure
        value, deadline_ms = look(connection, self.key)
        if value == self.durable:
            assert self.deadline_ms in (None, deadline_ms)
            self.deadline_ms = deadline_ms
            return
        # The one call that nobody answered may have been made all the same.
        assert self.in_flight is not None, (value, self.durable)
        self.model.call(*self.in_flight)
        self.durable, self.deadline_ms = value_of(self.model.limiters[self.key]), deadline_ms
        assert value == self.durable


def crash_under_load(server: Server, callers: list[Caller]) -> None:
    """Kills the server while all callers call, after CALLS_BEFORE_THE_CRASH answers."""
    enough, lock, count = threading.Event(), threading.Lock(), 0

    def acknowledged() -> None:
        nonlocal count
        with lock:
            count += 1
            if count >= CALLS_BEFORE_THE_CRASH:
                enough.set()

    threads = [threading.Thread(target=caller.run, args=(server, acknowledged)) for caller in callers]
    for thread in threads:
        thread.start()
    assert enough.wait(60), [caller.failure for caller in callers]
    server.kill9()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_after_sigkill_under_load_no_acknowledged_allow_is_forgotten_and_decisions_go_on_as_if_nothing_had_been(
    fresh_server: Callable[..., Server], rng: random.Random
) -> None:
    server = fresh_server(AOF_CONFIG)
    callers = [Caller(f"caller {n}", RULES[n % len(RULES)], random.Random(rng.random())) for n in range(WORKERS)]
    for _ in range(CRASHES):
        crash_under_load(server, callers)
        server.start()
        with server.raw_connection() as connection:
            for caller in callers:
                caller.assert_nothing_forgotten(connection)
                assert caller.allowed > 0
                for _ in range(CALLS_AFTER):
                    call = caller.next_call()
                    caller.acknowledge(call, connection.call(*call))
                    caller.note_deadline(connection)


def persistence(server: Server, *fields: str) -> list[str]:
    info = server.info("persistence")
    return [info[name] for name in fields]


#: Allowed, denied and refunded calls on each kind of limiter.
CALLS: list[tuple[Word, ...]] = [
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "2.5", "NOW", TODAY_MS),
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "9", "NOW", TODAY_MS + 700),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "NOW", TODAY_MS),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "REFUND", "0.5", "NOW", TODAY_MS),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "6", "NOW", TODAY_MS),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "4", "NOW", TODAY_MS + 2600),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "9", "NOW", TODAY_MS + 2700),
    ("RL.SLIDING", "window", "10", "2.5", "REFUND", "1", "NOW", TODAY_MS + 2800),
]
LATER: list[tuple[Word, ...]] = [
    ("RL.TOKENBUCKET", "bucket", "10", "0.5", "COST", "6", "NOW", TODAY_MS + 3000),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "COST", "2.5", "NOW", TODAY_MS + 3000),
    ("RL.TOKENBUCKET", "allotment", "3", "0", "NOW", TODAY_MS + 3000),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "2", "NOW", TODAY_MS + 3000),
    ("RL.SLIDING", "window", "10", "2.5", "COST", "8", "NOW", TODAY_MS + 3100),
]
KEYS = ("bucket", "allotment", "window")


def make(connection: RawConnection, model: Model, calls: list[tuple[Word, ...]]) -> None:
    for call in calls:
        assert connection.call(*call) == model.call(*call), call


def look_at_all(server: Server) -> list[Limiter]:
    with server.raw_connection() as connection:
        return [look(connection, key) for key in KEYS]


def test_save_points_fire_from_allowed_calls_and_not_from_denials(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server({"save": ["1", "5"]})
    with server.raw_connection() as connection:
        call = ("RL.TOKENBUCKET", "bucket", "4", "0")
        assert connection.call(*call)[0] == 1
        for _ in range(20):
            assert connection.call(*call, "COST", "4")[0] == 0
        assert server.changes_since_save() == 1
        assert not (server.directory / "dump.rdb").exists()
        for _ in range(4):
            assert connection.call("RL.TOKENBUCKET", "others", "100", "0")[0] == 1
    wait_until((server.directory / "dump.rdb").exists, 30, "the save point fires")
    wait_until(lambda: persistence(server, "rdb_changes_since_last_save", "rdb_bgsave_in_progress") == ["0", "0"], 30)
    server.kill9()
    server.start()
    with server.raw_connection() as connection:
        assert connection.call("RL.TOKENBUCKET_RO", "bucket", "4", "0")[1] == 3
        assert connection.call("RL.TOKENBUCKET_RO", "others", "100", "0")[1] == 96


def bgsave(server: Server) -> None:
    with server.raw_connection() as connection:
        connection.call("BGSAVE")
    wait_until((server.directory / "dump.rdb").exists, 30, "the RDB file is there")
    wait_until(lambda: persistence(server, "rdb_bgsave_in_progress", "rdb_last_bgsave_status") == ["0", "ok"], 30)


def rewrite(server: Server) -> None:
    bases_before = {path.name for path in (server.directory / "appendonlydir").glob("*.base.*")}
    with server.raw_connection() as connection:
        connection.call("BGREWRITEAOF")

    def is_done() -> bool:
        bases = {path.name for path in (server.directory / "appendonlydir").glob("*.base.*")}
        running = persistence(server, "aof_rewrite_in_progress", "aof_rewrite_scheduled")
        return running == ["0", "0"] and bases.isdisjoint(bases_before) and len(bases) == 1

    wait_until(is_done, 30, "the AOF is rewritten")
    # What the restart loads comes from the base file alone.
    assert server.aof_commands() == []


#: How a server is told to save, and how it saves.
SAVED: dict[str, tuple[dict[str, object], Callable[[Server], None]]] = {
    "BGSAVE": ({}, bgsave),
    "BGREWRITEAOF as RDB": ({**AOF_CONFIG, "aof-use-rdb-preamble": "yes"}, rewrite),
    "BGREWRITEAOF as commands": ({**AOF_CONFIG, "aof-use-rdb-preamble": "no"}, rewrite),
}


@pytest.mark.parametrize("how", SAVED)
def test_a_saved_limiter_is_identical_after_a_crash_and_decisions_go_on(
    fresh_server: Callable[..., Server], how: str
) -> None:
    config, save = SAVED[how]
    server, model = fresh_server(config), Model()
    with server.raw_connection() as connection:
        make(connection, model, CALLS)
    before = look_at_all(server)
    # A snapshot holds what denials changed in memory too.
    assert [value for value, _ in before] == [value_of(model.limiters[key.encode()]) for key in KEYS]
    save(server)
    server.kill9()
    server.start()
    assert look_at_all(server) == before
    with server.raw_connection() as connection:
        make(connection, model, LATER)


@pytest.mark.parametrize("how", SAVED)
def test_a_saved_limiter_loads_without_the_module_and_works_again_with_it(
    fresh_server: Callable[..., Server], how: str
) -> None:
    config, save = SAVED[how]
    server, model = fresh_server(config), Model()
    with server.raw_connection() as connection:
        make(connection, model, CALLS)
    before = look_at_all(server)
    save(server)
    server.kill9()
    server.restart(with_module=False)
    assert look_at_all(server) == before
    save_again = {"BGSAVE": bgsave}.get(how, rewrite)
    save_again(server)
    server.restart(with_module=True)
    assert look_at_all(server) == before
    with server.raw_connection() as connection:
        make(connection, model, LATER)


def _dump_restore(connection: RawConnection) -> bytes:
    deadline_ms = connection.call("PEXPIRETIME", "limiter")
    dump = connection.call("DUMP", "limiter")
    assert connection.call("DEL", "limiter") == 1
    assert connection.call("RESTORE", "other", deadline_ms, dump, "ABSTTL") == b"OK"
    return b"other"


def _copy(connection: RawConnection) -> bytes:
    assert connection.call("COPY", "limiter", "other") == 1
    return b"other"


def _copy_to_another_database(connection: RawConnection) -> bytes:
    assert connection.call("COPY", "limiter", "other", "DB", "1") == 1
    assert connection.call("SELECT", "1") == b"OK"
    return b"other"


def _move(connection: RawConnection) -> bytes:
    assert connection.call("MOVE", "limiter", "1") == 1
    assert connection.call("SELECT", "1") == b"OK"
    return b"limiter"


def _rename(connection: RawConnection) -> bytes:
    assert connection.call("RENAME", "limiter", "other") == b"OK"
    return b"other"


def _swapdb(connection: RawConnection) -> bytes:
    assert connection.call("SWAPDB", "0", "1") == b"OK"
    assert connection.call("EXISTS", "limiter") == 0
    assert connection.call("SELECT", "1") == b"OK"
    return b"limiter"


MOVES: dict[str, Callable[[RawConnection], bytes]] = {
    "DUMP and RESTORE": _dump_restore,
    "COPY": _copy,
    "COPY DB": _copy_to_another_database,
    "MOVE": _move,
    "RENAME": _rename,
    "SWAPDB": _swapdb,
}
RULE_CALLS = {
    "RL.TOKENBUCKET": [("8", "0.5", "COST", "5", "NOW", TODAY_MS + 1000 * n) for n in range(8)],
    "RL.SLIDING": [("8", "2", "COST", "3", "NOW", TODAY_MS + 1000 * n) for n in range(8)],
}


@pytest.mark.parametrize("command", RULE_CALLS)
@pytest.mark.parametrize("how", MOVES)
def test_a_moved_limiter_keeps_its_state_and_its_deadline_and_goes_on(raw: RawConnection, how: str, command: str) -> None:
    model, words = Model(), RULE_CALLS[command]
    for arguments in words[:3]:
        assert raw.call(command, "limiter", *arguments) == model.call(command, "limiter", *arguments)
    before = look(raw, "limiter")
    assert before[1] > 0
    key = MOVES[how](raw)
    try:
        assert look(raw, key) == before
        model.limiters[key] = model.limiters[b"limiter"]
        for arguments in words[3:]:
            assert raw.call(command, key, *arguments) == model.call(command, key, *arguments)
    finally:
        raw.call("SELECT", "0")


def test_a_copied_limiter_and_the_one_it_was_copied_from_go_their_own_ways(raw: RawConnection) -> None:
    call = ("RL.TOKENBUCKET", "limiter", "5", "0")
    assert raw.call(*call)[:2] == [1, 4]
    assert raw.call("COPY", "limiter", "other") == 1
    assert raw.call(*call, "COST", "4")[:2] == [1, 0]
    assert raw.call("RL.TOKENBUCKET", "other", "5", "0", "COST", "3")[:2] == [1, 1]
    assert raw.call(*call)[:2] == [0, 0]
