"""Time that is far away, goes back, or jumps: what a limiter then gives is bounded, and its answers are in form."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hiredis
import pytest

from harness import state
from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.model import Model
from harness.observed import AOF_CONFIG
from harness.server import Server

FIRST_MS, LAST_MS = 0, 2**53
LIMIT = 10
WINDOW_S = 60
MOST_REPORTED = 2**53 - 1

BUCKET = ("RL.TOKENBUCKET", "bucket", LIMIT, "1")
WINDOW = ("RL.SLIDING", "window", LIMIT, WINDOW_S)
JUMPS = [TODAY_MS, FIRST_MS, LAST_MS, TODAY_MS, TODAY_MS - 1, LAST_MS - 1, 1, TODAY_MS + 1, FIRST_MS, FIRST_MS, LAST_MS, LAST_MS]


def allowed(connection: RawConnection, call: tuple[Word, ...], tries: int = 3 * LIMIT) -> int:
    """How many of `tries` calls are allowed."""
    return sum(reply[0] for reply in connection.call_all([call] * tries))


# NOW


@pytest.mark.parametrize("call", [BUCKET, WINDOW], ids=["bucket", "window"])
@pytest.mark.parametrize("cost", ["0", "1", "7", "10", "11"])
def test_any_now_in_range_after_any_other_is_answered_as_the_design_says(
    raw: RawConnection, call: tuple[Word, ...], cost: str
) -> None:
    model = Model()
    for now_ms in JUMPS:
        words = (*map(str, call), "COST", cost, "NOW", str(now_ms))
        assert raw.call(*words) == model.call(*words), f"NOW {now_ms}"
        _, remaining, reset, retry = raw.call(f"{words[0]}_RO", *words[1:], "MS")
        assert 0 <= remaining <= LIMIT
        assert -1 <= reset <= MOST_REPORTED and -1 <= retry <= MOST_REPORTED


@pytest.mark.parametrize("now", ["-1", "9007199254740993", "1e3", "1751662800.5"])
def test_a_now_out_of_range_is_refused(raw: RawConnection, now: str) -> None:
    for call in (BUCKET, WINDOW):
        assert isinstance(raw.call(*call, "NOW", now), hiredis.ReplyError)
    assert raw.call("DBSIZE") == 0


@pytest.mark.parametrize("later_ms", [1_000, 3_600_000, LAST_MS - TODAY_MS])
def test_a_jump_ahead_refills_a_bucket_at_most_to_its_capacity(
    raw: RawConnection, later_ms: int
) -> None:
    """And the way back gives nothing."""
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS)) == LIMIT
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS + later_ms)) == min(LIMIT, later_ms // 1000)
    # Back at the time before, it is as empty as it was left, and refills from there.
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS)) == 0
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS + 2_000)) == 2


@pytest.mark.parametrize("back_ms", [1_000, 5_000, 3_600_000, TODAY_MS])
def test_a_step_back_gives_a_bucket_again_what_it_refilled_in_that_time(
    raw: RawConnection, back_ms: int
) -> None:
    """And at most its capacity."""
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS)) == LIMIT
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS - back_ms)) == 0
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS)) == min(LIMIT, back_ms // 1000)
    assert allowed(raw, (*BUCKET, "NOW", TODAY_MS)) == 0


@pytest.mark.parametrize("later_ms", [60_000, 3_600_000, 86_400_000 * 365])
def test_a_window_used_at_a_later_time_gives_nothing_before_it(raw: RawConnection, later_ms: int) -> None:
    """The price of one NOW that was too late: the limit is held until the time that it named."""
    assert allowed(raw, (*WINDOW, "NOW", TODAY_MS + later_ms)) == LIMIT
    assert allowed(raw, (*WINDOW, "NOW", TODAY_MS)) == 0
    *_, retry_after_ms = raw.call(*WINDOW, "NOW", TODAY_MS, "MS")
    assert later_ms <= retry_after_ms <= later_ms + 2 * WINDOW_S * 1000
    assert raw.call("RL.SLIDING_RO", *WINDOW[1:], "NOW", TODAY_MS + retry_after_ms - 1)[0] == 0
    assert raw.call("RL.SLIDING_RO", *WINDOW[1:], "NOW", TODAY_MS + retry_after_ms)[0] == 1
    # An operator need not wait.
    assert raw.call("DEL", "window") == 1
    assert allowed(raw, (*WINDOW, "NOW", TODAY_MS)) == LIMIT


def test_a_window_left_by_a_time_far_ahead_expires_by_the_servers_clock(raw: RawConnection) -> None:
    assert raw.call(*WINDOW, "NOW", LAST_MS)[0] == 1
    assert 0 < raw.call("PTTL", "window") <= (2 * WINDOW_S + 60) * 1000


@pytest.mark.parametrize("back_ms", [1, 5_000, 59_999, 60_000, 3_600_000, TODAY_MS])
def test_a_step_back_gives_nothing_to_a_window_that_has_not_turned(raw: RawConnection, back_ms: int) -> None:
    total = allowed(raw, (*WINDOW, "COST", "3", "NOW", TODAY_MS))
    assert total == LIMIT // 3
    assert 3 * allowed(raw, (*WINDOW, "COST", "3", "NOW", TODAY_MS - back_ms)) == 0
    assert allowed(raw, (*WINDOW, "NOW", TODAY_MS - back_ms)) == 1
    assert allowed(raw, (*WINDOW, "NOW", TODAY_MS)) == 0


def test_a_step_back_before_its_turn_gives_a_window_its_limit_once_more(raw: RawConnection) -> None:
    """Even if the call after the turn was denied: it stores the turn."""
    turn_ms = TODAY_MS - TODAY_MS % (WINDOW_S * 1000)
    assert allowed(raw, (*WINDOW, "NOW", turn_ms - 10_000)) == LIMIT
    assert allowed(raw, (*WINDOW, "NOW", turn_ms)) == 0
    # The millisecond before the turn weighs what the window before it counted least.
    assert allowed(raw, (*WINDOW, "NOW", turn_ms - 1)) == LIMIT - 1
    assert allowed(raw, (*WINDOW, "NOW", turn_ms)) == 0


def test_a_jump_of_two_windows_gives_a_window_its_limit_once(raw: RawConnection) -> None:
    assert allowed(raw, (*WINDOW, "NOW", TODAY_MS)) == LIMIT
    later_ms = TODAY_MS + 2 * WINDOW_S * 1000
    assert allowed(raw, (*WINDOW, "NOW", later_ms)) == LIMIT
    assert allowed(raw, (*WINDOW, "NOW", TODAY_MS)) == 0
    assert allowed(raw, (*WINDOW, "NOW", later_ms)) == 0


def test_one_call_that_decides_several_limits_decides_them_all_at_one_time(raw: RawConnection) -> None:
    words = ("RL.ALL", 2, "bucket", "window", "TOKENBUCKET", LIMIT, "1", "SLIDING", LIMIT, "0.001")
    for now_ms in (TODAY_MS, LAST_MS, FIRST_MS):
        assert raw.call(*words, "NOW", now_ms)[0] == 1
        assert state.read_bucket(raw.call("GET", "bucket")).last_ms == now_ms
    # By the server's clock too: the window's number is that of the bucket's millisecond.
    raw.call("FLUSHALL")
    assert raw.call(*words)[0] == 1
    bucket, window = raw.call_all([("GET", "bucket"), ("GET", "window")])
    assert abs(state.read_window(window).stored - state.read_bucket(bucket).last_ms) <= 1


# The server's own clock


@pytest.fixture(scope="session")
def shifted_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the clock of the server into which it is preloaded."""
    if not sys.platform.startswith("linux"):
        pytest.skip("a clock is shifted by preloading, on Linux alone")
    library = tmp_path_factory.mktemp("clock") / "shifted_clock.so"
    source = Path(__file__).parent / "harness" / "shifted_clock.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture
def with_clock(
    shifted_clock: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int, Callable[[], Server]], Server]:
    """`with_clock(-300, start)`: what `start` starts has a clock five minutes behind."""

    def start_shifted(shift_s: int, start: Callable[[], Server]) -> Server:
        with monkeypatch.context() as environment:
            environment.setenv("LD_PRELOAD", str(shifted_clock))
            environment.setenv("CLOCK_SHIFT_S", str(shift_s))
            server = start()
        with server.raw_connection() as connection:
            # The proof that it is shifted; half of the smallest shift is what slowness may cost.
            seconds = int(connection.call("TIME")[0])
        assert abs(seconds - (time.time() + shift_s)) < SMALLEST_SHIFT_S / 2
        return server

    return start_shifted


SMALLEST_SHIFT_S = 300
#: An hour's limit, and a bucket that takes nearly three hours to fill: 0.3 tokens in five minutes.
SLOW_BUCKET = ("RL.TOKENBUCKET", "bucket", LIMIT, "0.001")
SLOW_WINDOW = ("RL.SLIDING", "window", LIMIT, "3600")
SLOW = {"bucket": SLOW_BUCKET, "window": SLOW_WINDOW}
BEYOND_EVERY_TTL_S = 100_000


def failed_over(
    with_clock: Callable[[int, Callable[[], Server]], Server], fresh_server: Callable[..., Server], shift_s: int
) -> Server:
    """A master's quotas are used up; then a replica whose clock is `shift_s` ahead takes its place."""
    config = {"repl-diskless-sync-delay": 0}
    master = fresh_server(config)
    replica = with_clock(
        shift_s, lambda: fresh_server({**config, "replicaof": ["127.0.0.1", str(master.port)]})
    )
    replica.wait_until_linked()
    with master.raw_connection() as connection:
        for call in SLOW.values():
            assert allowed(connection, call) == LIMIT
        assert connection.call("WAIT", 1, 30_000) == 1
    master.kill9()
    with replica.raw_connection() as connection:
        assert connection.call("REPLICAOF", "NO", "ONE") in (b"OK", "OK")
    return replica


@pytest.mark.parametrize("shift_s", [-SMALLEST_SHIFT_S, SMALLEST_SHIFT_S, -BEYOND_EVERY_TTL_S])
def test_a_failover_to_a_server_whose_clock_differs_gives_no_fresh_burst(
    with_clock: Callable[[int, Callable[[], Server]], Server], fresh_server: Callable[..., Server], shift_s: int
) -> None:
    with failed_over(with_clock, fresh_server, shift_s).raw_connection() as connection:
        for name, call in SLOW.items():
            assert connection.call("EXISTS", name) == 1
            assert allowed(connection, call) == 0, name


def test_a_failover_to_a_clock_ahead_of_every_ttl_gives_one_burst(
    with_clock: Callable[[int, Callable[[], Server]], Server], fresh_server: Callable[..., Server]
) -> None:
    """And no more."""
    with failed_over(with_clock, fresh_server, BEYOND_EVERY_TTL_S).raw_connection() as connection:
        for name, call in SLOW.items():
            assert allowed(connection, call) == LIMIT, name
            assert allowed(connection, call) == 0, name


@pytest.mark.parametrize("shift_s", [SMALLEST_SHIFT_S, BEYOND_EVERY_TTL_S])
def test_a_clock_set_back_at_a_restart_gives_no_fresh_burst(
    with_clock: Callable[[int, Callable[[], Server]], Server], fresh_server: Callable[..., Server], shift_s: int
) -> None:
    """And the bucket goes on refilling."""
    server = with_clock(shift_s, lambda: fresh_server(AOF_CONFIG))
    with server.raw_connection() as connection:
        for call in SLOW.values():
            assert allowed(connection, call) == LIMIT
    assert "LD_PRELOAD" not in os.environ
    server.restart()
    with server.raw_connection() as connection:
        for name, call in SLOW.items():
            assert allowed(connection, call) == 0, name
        # The bucket took over the new time with that denial: what it lacks comes back from now on.
        seconds, _ = connection.call("TIME")
        last_ms = state.read_bucket(connection.call("GET", "bucket")).last_ms
        assert abs(last_ms / 1000 - int(seconds)) < SMALLEST_SHIFT_S / 2
        # The window says how long it holds on to the later time.
        *_, retry_after_ms = connection.call(*SLOW_WINDOW, "MS")
        assert 0 < retry_after_ms <= (shift_s + 2 * 3600) * 1000
