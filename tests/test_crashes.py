"""A saved limiter is loaded as it was, in any server; other commands move it intact."""

import random
from collections.abc import Callable

import pytest

from harness import traces
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.model import Model
from harness.observed import AOF_CONFIG
from harness.server import Server, wait_until
from harness.state import Bucket, Count, Window

TRACES = 10

#: The value of a key and its deadline.
Limiter = tuple[object, object]


def look(connection: RawConnection, key: Word) -> Limiter:
    return tuple(connection.call_all([("DUMP", key), ("PEXPIRETIME", key)]))


def persistence(server: Server, *fields: str) -> list[str]:
    info = server.info("persistence")
    return [info[name] for name in fields]


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
def test_saved_limiters_load_in_any_server_and_decisions_go_on(
    fresh_server: Callable[..., Server], rng: random.Random, how: str
) -> None:
    """Of every kind, after a crash, with what denials changed in memory alone."""
    config, save = SAVED[how]
    server, model = fresh_server(config), Model()
    made = [traces.all_trace(rng, f"t{number}", 60) for number in range(TRACES)]

    def make(calls: list[traces.Words]) -> None:
        with server.raw_connection() as connection:
            for call, reply in zip(calls, connection.call_all(calls)):
                assert reply == model.call(*call), traces.shown([call])

    def contents() -> list[Limiter]:
        with server.raw_connection() as connection:
            traces.assert_states(connection, model.limiters)
            return [look(connection, key) for key in model.limiters]

    make([call for trace in made for call in trace[:40]])
    assert {type(held) for held in model.limiters.values()} == {Bucket, Window, Count, dict}
    before = contents()
    for with_module in (True, False, True):
        save(server)
        server.kill9()
        server.restart(with_module=with_module)
        assert contents() == before
    make([call for trace in made for call in trace[40:]])


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
#: Allowed and denied, before and after a move.
CALLS: dict[str, list[tuple[Word, ...]]] = {
    "RL.TOKENBUCKET": [("8", "0.5", "COST", "5", "NOW", TODAY_MS + 1000 * n) for n in range(8)],
    "RL.SLIDING": [("8", "2", "COST", "3", "NOW", TODAY_MS + 1000 * n) for n in range(8)],
    "RL.QUOTA": [("8", "2", "COST", "3", "NOW", TODAY_MS + 1000 * n) for n in range(8)],
    "RL.CONCURRENCY": [("2", "3", "ID", f"{n}", "NOW", TODAY_MS + 1000 * n) for n in range(8)],
}


@pytest.mark.parametrize("command", CALLS)
@pytest.mark.parametrize("how", MOVES)
def test_a_moved_limiter_keeps_its_state_and_its_deadline_and_goes_on(raw: RawConnection, how: str, command: str) -> None:
    model, words = Model(), CALLS[command]
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
