"""CL.THROTTLE: redis-cell's command on the token bucket, without redis-cell's defects.

The command has no NOW. So that nothing depends on how fast a test runs, a bucket is put under the key
whose time is ahead of the server's: it then has exactly the tokens that it was given.
"""

import random
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import hiredis
import pytest

from harness import refusals, scripts, state
from harness.clock import TODAY_MS, server_ms
from harness.connection import RawConnection, Word
from harness.library import build_library
from harness.observed import ObservedServer
from harness.redis_cell import RedisCell
from harness.server import Server, module_path, server_executable
from harness.settable_clock import SettableClock
from harness.tally import Tally
from test_loading import ALLOW_MODULE_COMMAND, assert_refused_in_order, start_and_exit

KEY = b"user123"
ON = ("cl-throttle", "yes")
#: Ahead of any server's clock: a bucket that has refilled up to here refills no more for now.
AHEAD_MS = 2**52
MOST = 2**53
#: How much above count / period the bucket's rate is.
ABOVE_ROUNDING = 1 + 2**-40
RANDOM_CALLS = 2000


@pytest.fixture(scope="module")
def throttling() -> Iterator[ObservedServer]:
    with ObservedServer(module_args=ON) as running:
        yield running


@pytest.fixture
def cell(throttling: ObservedServer) -> ObservedServer:
    """An empty server that has CL.THROTTLE, of which every trace of a change can be read."""
    throttling.connection.call("FLUSHALL")
    return throttling


def put_bucket(connection: RawConnection, tokens: float, last_ms: int = AHEAD_MS) -> None:
    assert connection.call("SET", KEY, state.bucket_bytes(tokens, last_ms), "EX", 5000) == b"OK"


def throttle(connection: RawConnection, line: str, key: Word = KEY) -> object:
    """`throttle(connection, "15 30 60 1")`"""
    return connection.call("CL.THROTTLE", key, *line.split())


# On and off


@pytest.mark.parametrize("arguments", [(), ("cl-throttle", "no"), ("notify-allowed", "yes")], ids=" ".join)
def test_the_command_is_unknown_unless_it_was_asked_for(
    fresh_server: Callable[..., Server], arguments: tuple[str, ...]
) -> None:
    with fresh_server(module_args=arguments).raw_connection() as connection:
        reply = throttle(connection, "15 30 60")
        assert isinstance(reply, hiredis.ReplyError) and "unknown command" in str(reply), reply
        assert connection.call("COMMAND", "INFO", "CL.THROTTLE") == [None]


def names_the_taken_command(log: str) -> bool:
    # The server's names of commands are the same in either case.
    return "load refused: the command cl.throttle is taken" in log.lower()


#: A module that has the command, as redis-cell would. It declares the little of the API that it uses, so
#: that no server's header is needed: the context starts with the function that finds all others.
OTHER_MODULE = """
typedef int (*get_api_function)(const char *, void *);
typedef int (*command_function)(void *, void **, int);

static int (*reply_with)(void *, const char *);

static int throttle(void *context, void **arguments, int count) {
    (void)arguments; (void)count;
    return reply_with(context, "the other module's");
}

int RedisModule_OnLoad(void *context, void **arguments, int count) {
    get_api_function get_api = *(get_api_function *)context;
    int (*set_attributes)(void *, const char *, int, int);
    int (*create_command)(void *, const char *, command_function, const char *, int, int, int);
    (void)arguments; (void)count;
    get_api("RedisModule_SetModuleAttribs", &set_attributes);
    get_api("RedisModule_CreateCommand", &create_command);
    get_api("RedisModule_ReplyWithSimpleString", &reply_with);
    set_attributes(context, "othercell", 1, 1);
    return create_command(context, "cl.throttle", throttle, "write", 1, 1, 1);
}
"""


@pytest.fixture(scope="module")
def other_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with another module that has CL.THROTTLE."""
    folder = tmp_path_factory.mktemp("other-module")
    source = folder / "othercell.c"
    source.write_text(OTHER_MODULE)
    return build_library(source, folder)


def test_a_name_that_another_module_has_refuses_the_load_and_is_logged(other_module: Path, tmp_path: Path) -> None:
    loads = ["--loadmodule", str(other_module), "--loadmodule", str(module_path()), *ON]
    status, log = start_and_exit(tmp_path, server_executable(), *loads)
    assert_refused_in_order(status, log)
    assert names_the_taken_command(log), log


def test_a_name_that_another_module_has_leaves_a_running_server_as_it_was(
    other_module: Path, fresh_server: Callable[..., Server]
) -> None:
    server = fresh_server(ALLOW_MODULE_COMMAND, with_module=False)
    with server.raw_connection() as connection:
        assert connection.call("MODULE", "LOAD", str(other_module)) == b"OK"
        reply = connection.call("MODULE", "LOAD", str(module_path()), *ON)
        assert isinstance(reply, hiredis.ReplyError), reply
        assert names_the_taken_command(server.log), server.log
        assert throttle(connection, "15 30 60") in ("the other module's", b"the other module's")
        assert connection.call("COMMAND", "INFO", "RL.TOKENBUCKET") == [None]
        # Without the command, the two can be there side by side.
        assert connection.call("MODULE", "LOAD", str(module_path())) == b"OK"
        assert connection.call("RL.TOKENBUCKET", KEY, "10", "1")[0] == 1


# The reply, as redis-cell documents it: limited, limit, remaining, retry_after, reset_after

#: With the tokens in the bucket (None: no key yet), the words of the call and the reply.
REPLIES: list[tuple[float | None, str, list[int]]] = [
    # The example of its README, which starts a burst of 16.
    (None, "15 30 60", [0, 16, 15, -1, 2]),
    (None, "15 30 60 1", [0, 16, 15, -1, 2]),
    (15.0, "15 30 60 1", [0, 16, 14, -1, 4]),
    (None, "15 30 60 16", [0, 16, 0, -1, 32]),
    (1.0, "15 30 60", [0, 16, 0, -1, 32]),
    (0.0, "15 30 60", [1, 16, 0, 2, 32]),
    (0.5, "15 30 60", [1, 16, 0, 1, 31]),
    (0.999, "15 30 60", [1, 16, 0, 1, 31]),
    (2.0, "15 30 60 5", [1, 16, 2, 6, 28]),
    # A quantity of 0 shows the state and takes nothing.
    (None, "15 30 60 0", [0, 16, 16, -1, 0]),
    (3.0, "15 30 60 0", [0, 16, 3, -1, 26]),
    (0.0, "15 30 60 0", [0, 16, 0, -1, 32]),
    # More than the bucket holds: never.
    (None, "15 30 60 17", [1, 16, 16, -1, 0]),
    (3.0, "15 30 60 17", [1, 16, 3, -1, 26]),
    (0.0, f"15 30 60 {MOST}", [1, 16, 0, -1, 32]),
    # No burst.
    (None, "0 1 10", [0, 1, 0, -1, 10]),
    (0.0, "0 1 10", [1, 1, 0, 10, 10]),
    (None, "0 1 10 2", [1, 1, 1, -1, 0]),
    # The nearest binary fraction to 1 / 49 is below it.
    (None, "0 1 49", [0, 1, 0, -1, 49]),
    (0.0, "0 1 49", [1, 1, 0, 49, 49]),
    (None, "0 1 2592000", [0, 1, 0, -1, 2_592_000]),
    # A negative quantity gives back, at most to the limit.
    (11.0, "15 30 60 -3", [0, 16, 14, -1, 4]),
    (11.0, "15 30 60 -5", [0, 16, 16, -1, 0]),
    (11.0, "15 30 60 -6", [0, 16, 16, -1, 0]),
    (0.0, f"15 30 60 -{MOST}", [0, 16, 16, -1, 0]),
    (3.0, "15 30 60 -0", [0, 16, 3, -1, 26]),
    (None, "15 30 60 -3", [0, 16, 16, -1, 0]),
    # Rates of many a second, and periods that do not divide.
    (None, "20 1500 1", [0, 21, 20, -1, 1]),
    (None, "20 1500 1 21", [0, 21, 0, -1, 1]),
    (0.0, "20 1500 1", [1, 21, 0, 1, 1]),
    (0.0, "2999 1500 1 3000", [1, 3000, 0, 2, 2]),
    (None, "1000 1000 60", [0, 1001, 1000, -1, 1]),
    (None, "1000 1000 60 1001", [0, 1001, 0, -1, 61]),
    (0.0, "1000 1000 60", [1, 1001, 0, 1, 61]),
    (0.0, "1000 1000 60 100", [1, 1001, 0, 6, 61]),
    (0.0, "999 1000000 1", [1, 1000, 0, 1, 1]),
    (0.0, "0 1 86400", [1, 1, 0, 86400, 86400]),
    # The ends of the ranges.
    (None, f"{MOST - 1} {MOST} 1", [0, MOST, MOST - 1, -1, 1]),
    (None, f"{MOST - 1} 1 1 {MOST}", [0, MOST, 0, -1, MOST // 1000 + 1]),  # reported times saturate at 2^53 - 1 ms
]


@pytest.mark.parametrize(("tokens", "line", "reply"), REPLIES, ids=lambda value: str(value))
def test_the_reply_is_the_documented_five_integers(
    cell: ObservedServer, tokens: float | None, line: str, reply: list[int]
) -> None:
    if tokens is not None:
        put_bucket(cell.connection, tokens)
    assert throttle(cell.connection, line) == reply


@pytest.mark.parametrize(("line", "burst"), [("15 30 60", 16), ("0 1 10", 1), ("20 1500 1", 21), ("1000 1000 60", 1001)])
def test_a_burst_of_max_burst_and_one_passes_and_no_more(cell: ObservedServer, line: str, burst: int) -> None:
    """Each call leaves the server's time behind: what is left is put ahead of it again."""
    connection = cell.connection
    put_bucket(connection, float(burst))
    for left in reversed(range(burst)):
        assert throttle(connection, line)[:3] == [0, burst, left]
        put_bucket(connection, state.read_bucket(connection.call("GET", KEY)).tokens)
    assert throttle(connection, line)[:3] == [1, burst, 0]


#: count and period, and how long to look back for some tokens to have come.
RATES = [(1500, 1, 10), (1000, 60, 6000), (30, 60, 10_000), (1, 10, 25_000), (10**6, 1, 5), (1, 86_400, 200_000_000), (7, 3, 700)]


@pytest.mark.parametrize(("count", "period", "ago_ms"), RATES, ids=lambda value: str(value))
def test_the_refill_is_count_in_period_at_any_rate(cell: ObservedServer, count: int, period: int, ago_ms: int) -> None:
    connection = cell.connection
    before_ms = server_ms(connection)
    put_bucket(connection, 0.0, before_ms - ago_ms)
    limited, _, remaining, *_ = throttle(connection, f"1000000000 {count} {period} 0")
    after_ms = server_ms(connection)
    assert limited == 0
    least, most = (int(Fraction(at_ms - before_ms + ago_ms, 1000) * count / period) for at_ms in (before_ms, after_ms))
    assert 0 < least <= remaining <= most


def test_retry_after_is_never_too_short_and_less_than_a_second_too_long(
    cell: ObservedServer, rng: random.Random, seed: str, tally: Tally
) -> None:
    """Held against the exact milliseconds of RL.TOKENBUCKET_RO on the bucket that the call leaves."""
    connection = cell.connection
    limited_calls = 0
    for _ in range(RANDOM_CALLS):
        max_burst = rng.choice([0, 1, 15, 20, 999, rng.randrange(10**6)])
        count, period = rng.choice([1, 7, 30, 1000, 1500, rng.randrange(1, 10**6)]), rng.choice([1, 3, 60, 86_400, rng.randrange(1, 10**5)])
        capacity, rate = max_burst + 1, repr(count / period * ABOVE_ROUNDING)
        quantity = rng.choice([1, 1, capacity, capacity + 1, rng.randint(0, capacity)])
        tokens = rng.choice([0.0, rng.random() * capacity, max(quantity - rng.random(), 0.0), max(quantity - 1e-9, 0.0)])
        put_bucket(connection, min(tokens, float(capacity)))
        limited, limit, remaining, retry_s, reset_s = throttle(connection, f"{max_burst} {count} {period} {quantity}")
        left_ms = state.read_bucket(connection.call("GET", KEY)).last_ms
        exact = ("RL.TOKENBUCKET_RO", KEY, capacity, rate)
        cost = ("COST", quantity)
        reset_ms = connection.call(*exact, "COST", "0", "NOW", left_ms, "MS")[2]
        shown = f"max_burst {max_burst} count {count} period {period} quantity {quantity} tokens {tokens!r} RL_SEED={seed}"
        assert limit == capacity, shown
        assert (reset_s - 1) * 1000 < reset_ms <= reset_s * 1000, shown
        if not limited:
            assert retry_s == -1, shown
            continue
        retry_ms = connection.call(*exact, *cost, "NOW", left_ms, "MS")[3]
        if quantity > capacity:
            assert (retry_s, retry_ms) == (-1, -1), shown
            continue
        limited_calls += 1
        assert (retry_s - 1) * 1000 < retry_ms <= retry_s * 1000, shown
        assert connection.call(*exact, *cost, "NOW", left_ms + retry_s * 1000)[0] == 1, shown
    assert limited_calls > RANDOM_CALLS // 10
    tally.add("CL.THROTTLE", limited_calls, "retry times never too short", seed=seed)


# Held against redis-cell's algorithm in whole numbers, by a clock that stands still

PERIODS, COUNTS, BURSTS = range(1, 3601), range(1, 61), range(21)
CALLS_AT_ONCE = 50_000


class Stopped(NamedTuple):
    """A server whose clock moves only when it is told to."""

    clock: SettableClock
    connection: RawConnection

    def replies(self, calls: list[tuple[Word, ...]]) -> Iterator[object]:
        for start in range(0, len(calls), CALLS_AT_ONCE):
            yield from self.connection.call_all(calls[start : start + CALLS_AT_ONCE])


@pytest.fixture(scope="module")
def stopped_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stopped]:
    if not sys.platform.startswith("linux"):
        pytest.skip("a clock is set by preloading, on Linux alone")
    clock = SettableClock(tmp_path_factory.mktemp("clock"), TODAY_MS)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in clock.environment.items():
            environment.setenv(name, value)
        server = Server(module_args=ON).start()
    try:
        with server.raw_connection() as connection:
            yield Stopped(clock, connection)
    finally:
        server.close()


@pytest.fixture
def stopped(stopped_server: Stopped) -> Stopped:
    """Empty, at TODAY_MS."""
    stopped_server.clock.now_ms = TODAY_MS
    stopped_server.connection.call("FLUSHALL")
    assert server_ms(stopped_server.connection) == TODAY_MS
    return stopped_server


def test_every_period_count_and_burst_is_answered_as_redis_cell_does(stopped: Stopped, tally: Tally) -> None:
    """Every period with every count, and each of the two with every burst: some taken, then the whole burst asked for."""
    settings = [(BURSTS[(period + count) % len(BURSTS)], count, period) for period in PERIODS for count in COUNTS]
    asked = [((burst * period) % (burst + 1) + 1, burst + 1) for burst, _, period in settings]
    calls = [
        ("CL.THROTTLE", f"{burst}:{count}:{period}", burst, count, period, quantity)
        for (burst, count, period), quantities in zip(settings, asked)
        for quantity in quantities
    ]
    replies = stopped.replies(calls)
    for setting, quantities in zip(settings, asked):
        cell = RedisCell(*setting)
        for quantity in quantities:
            reply = next(replies)
            assert reply == cell.call(quantity, TODAY_MS), f"{setting}, quantity {quantity}"
    tally.add("CL.THROTTLE", len(calls), "replies that are redis-cell's, by setting")


def test_a_call_is_let_in_at_the_exact_millisecond_and_not_before(stopped: Stopped, tally: Tally) -> None:
    """From an empty bucket: every period with every burst, and with a third of the counts."""
    settings = [(burst, COUNTS[(7 * period + burst) % len(COUNTS)], period) for period in PERIODS for burst in BURSTS]
    calls: list[tuple[Word, ...]] = []
    for burst, count, period in settings:
        whole_again_ms = -(-(burst + 1) * period * 1000 // count)
        throttle_all = ("CL.THROTTLE", KEY, burst, count, period, burst + 1)
        for ago_ms in (whole_again_ms - 1, whole_again_ms):
            calls += [("SET", KEY, state.bucket_bytes(0.0, TODAY_MS - ago_ms)), throttle_all]
    replies = stopped.replies(calls)
    for setting in settings:
        limit = setting[0] + 1
        _, before, _, on_time = (next(replies) for _ in range(4))
        assert (before[0], before[3:], on_time[:4]) == (1, [1, 1], [0, limit, 0, -1]), f"{setting}: {before} {on_time}"
    tally.add("CL.THROTTLE", len(settings), "limits open on the millisecond")


#: How time may pass between calls, in ms. Whole seconds and tenths meet the very moments that replies turn on.
STEPS_MS = {"none": [0], "tenths of a second": [100], "seconds": [1000], "mixed": [0, 20, 50, 500, 1000], "any": list(range(1, 100_000))}


@pytest.mark.parametrize("steps", STEPS_MS)
def test_calls_over_time_are_answered_as_redis_cell_does(
    stopped: Stopped, steps: str, rng: random.Random, seed: str, tally: Tally
) -> None:
    """A quantity of any sign and size, thirty times each on a thousand keys, denied calls among them."""
    rules = [(rng.choice(BURSTS), rng.choice(COUNTS), rng.choice([1, 3, 7, 10, 49, 60, rng.choice(PERIODS)])) for _ in range(1000)]
    cells = [RedisCell(*rule) for rule in rules]
    for _ in range(30):
        quantities = [rng.choice([1, 1, 1, 1, 0, 2, -1, -2, burst + 1, burst + 2]) for burst, *_ in rules]
        calls = [("CL.THROTTLE", f"key{at}", *rule, quantity) for at, (rule, quantity) in enumerate(zip(rules, quantities))]
        for call, cell, quantity, reply in zip(calls, cells, quantities, stopped.replies(calls)):
            expected = cell.call(quantity, stopped.clock.now_ms)
            assert reply == expected, f"{call} {stopped.clock.now_ms - TODAY_MS} ms after the start, RL_SEED={seed}"
        stopped.clock.now_ms += rng.choice(STEPS_MS[steps])
    tally.add("CL.THROTTLE", 30 * len(rules), "replies that are redis-cell's, over time", seed=seed)


# What a negative quantity leaves


def test_giving_back_to_a_missing_key_creates_and_propagates_nothing(cell: ObservedServer) -> None:
    before = cell.traces(KEY)
    assert throttle(cell.connection, "15 30 60 -3") == [0, 16, 16, -1, 0]
    assert cell.traces(KEY) == before


def test_giving_back_is_propagated_as_set_with_its_result_alone(cell: ObservedServer) -> None:
    put_bucket(cell.connection, 5.0)
    cell.stream.commands()
    assert throttle(cell.connection, "15 30 60 -3")[2] == 8
    value, deadline_ms = cell.connection.call("GET", KEY), cell.connection.call("PEXPIRETIME", KEY)
    assert cell.stream.commands() == [[b"SET", KEY, value, b"PXAT", b"%d" % deadline_ms]]
    assert state.read_bucket(value).tokens == 8.0


def test_giving_back_counts_as_refunded(cell: ObservedServer) -> None:
    counts = ("rl_cl_throttle_allowed", "rl_cl_throttle_refunded")
    before = cell.info("rl")
    throttle(cell.connection, "15 30 60 5")
    throttle(cell.connection, "15 30 60 -3")
    after = cell.info("rl")
    assert [int(after[count]) - int(before[count]) for count in counts] == [1, 1]


# Changes of a rule


def test_a_raised_limit_takes_effect_at_once(cell: ObservedServer) -> None:
    connection = cell.connection
    put_bucket(connection, 0.0)
    assert throttle(connection, "0 1 86400") == [1, 1, 0, 86400, 86400]
    # From a wait of a day to one of a second, and to none.
    put_bucket(connection, 0.0)
    assert throttle(connection, "99 100 1 100") == [1, 100, 0, 1, 1]
    put_bucket(connection, 0.0, server_ms(connection) - 1000)
    assert throttle(connection, "99 100 1 100")[:3] == [0, 100, 0]


def test_a_lowered_limit_takes_effect_at_once(cell: ObservedServer) -> None:
    put_bucket(cell.connection, 16.0)
    assert throttle(cell.connection, "3 1 10 0") == [0, 4, 4, -1, 0]


def test_the_key_is_a_bucket_of_rl_tokenbucket(cell: ObservedServer) -> None:
    connection = cell.connection
    put_bucket(connection, 5.0)
    assert throttle(connection, "15 30 60 2")[2] == 3
    left_ms = state.read_bucket(connection.call("GET", KEY)).last_ms
    assert connection.call("RL.TOKENBUCKET", KEY, "16", "0.5", "NOW", left_ms, "MS") == [1, 2, 28_000, 0]


def test_it_goes_on_from_the_token_bucket_scripts_hash(cell: ObservedServer) -> None:
    connection = cell.connection
    assert connection.call("EVAL", scripts.TOKEN_BUCKET.source, "1", KEY, "16", "0.5", AHEAD_MS, "9")[0] == 1
    assert throttle(connection, "15 30 60 2") == [0, 16, 5, -1, 22]
    assert connection.call("TYPE", KEY) == b"string"


# What it must not do

#: What else may be under the key; among them what redis-cell stores there: a time in nanoseconds.
WRONG: dict[str, tuple[Word, ...]] = {
    "redis-cell's own": ("SET", KEY, "1751662800000000000"),
    "text": ("SET", KEY, "hello"),
    "bytes that are not UTF-8": ("SET", KEY, b"\xff\xfe\x00\x80"),
    "an empty string": ("SET", KEY, b""),
    "text of a bucket's length": ("SET", KEY, "x" * state.TOKEN_BUCKET_BYTES),
    "a window": ("SET", KEY, state.window_bytes(60.0, 1, 2.0, 3.0)),
    "a list": ("RPUSH", KEY, "a"),
    "a hash": ("HSET", KEY, "field", "value"),
    "a set": ("SADD", KEY, "a"),
    "a sorted set": ("ZADD", KEY, "1", "a"),
    "a stream": ("XADD", KEY, "1-1", "field", "value"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("line", ["15 30 60", "15 30 60 0", "15 30 60 99"])
def test_a_key_with_anything_else_is_refused_untouched(cell: ObservedServer, name: str, line: str) -> None:
    assert not isinstance(cell.connection.call(*WRONG[name]), hiredis.ReplyError)
    before = cell.traces(KEY)
    reply = throttle(cell.connection, line)
    assert isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE "), reply
    assert cell.traces(KEY) == before
    assert cell.is_alive


@pytest.mark.parametrize("key", [b"\xff\xfe", b"\xc3\x28", b"a\x00b", b"", b"\xf0\x28\x8c\x28" * 1000], ids=lambda key: repr(key[:8]))
def test_a_key_that_is_not_utf_8_is_served_as_any_other(cell: ObservedServer, key: bytes) -> None:
    assert throttle(cell.connection, "15 30 60", key) == [0, 16, 15, -1, 2]
    assert cell.connection.call("KEYS", "*") == [key]
    assert cell.is_alive


@pytest.mark.parametrize("line", ["15 1 86400", "15 1 86400 5", "15 1 86400 17"])
def test_a_denial_propagates_nothing(cell: ObservedServer, line: str) -> None:
    connection = cell.connection
    put_bucket(connection, 0.5)
    before = cell.traces()
    left = []
    for _ in range(20):
        assert throttle(connection, line)[0] == 1
        left.append(state.read_bucket(connection.call("GET", KEY)).last_ms)
    assert cell.traces() == before
    assert left[0] != AHEAD_MS, "the denial is kept in memory"


def test_an_allowed_call_is_propagated_as_set_with_its_result_alone(
    cell: ObservedServer,
) -> None:
    connection = cell.connection
    cell.stream.commands()
    for line, ttl_s in (("15 30 60", 92), ("15 30 60 3", 92), ("20 1500 1", 61), ("1000 1000 60", 121)):
        before_ms = server_ms(connection)
        assert throttle(connection, line)[0] == 0
        (command,) = cell.stream.commands()
        value, deadline_ms = connection.call("GET", KEY), connection.call("PEXPIRETIME", KEY)
        assert command == [b"SET", KEY, value, b"PXAT", b"%d" % deadline_ms]
        assert before_ms <= deadline_ms - ttl_s * 1000 <= server_ms(connection)
        assert cell.aof_commands()[-1] == command


@pytest.mark.parametrize("with_module", [True, False], ids=["with the module", "without the module"])
def test_a_restart_reads_the_state_back_to_the_bit(fresh_server: Callable[..., Server], with_module: bool) -> None:
    server = fresh_server({"appendonly": "yes", "appendfsync": "always"}, module_args=ON)

    def contents() -> list[object]:
        with server.raw_connection() as connection:
            return connection.call_all([("GET", KEY), ("PEXPIRETIME", KEY)])

    with server.raw_connection() as connection:
        for quantity in (1, 3, 0, 5):
            assert throttle(connection, f"15 30 60 {quantity}")[0] == 0
    assert {command[0].upper() for command in server.aof_commands()} <= {b"SELECT", b"SET"}
    before = contents()
    server.restart(with_module=with_module)
    assert contents() == before


# Bad input

WORDS = ["15", "30", "60", "1"]
NOT_AN_INTEGER = refusals.NOT_DECIMAL + refusals.NOT_AN_INTEGER + refusals.TOO_LARGE + refusals.TOO_LARGE_BUT_ROUNDED
#: A quantity may be negative, down to -2^53.
NOT_A_QUANTITY = [value for value in NOT_AN_INTEGER if value not in (b"-1", b"-0")]
NOT_A_QUANTITY += [b"-9007199254740993", b"-9223372036854775808", b"-" + b"9" * 40, b"-+1", b"- 1"]
#: By argument: its place, what it refuses, and its range.
ARGUMENTS: dict[str, tuple[int, list[bytes], tuple[str, str]]] = {
    "max_burst": (0, [*NOT_AN_INTEGER, b"9007199254740992"], ("0", "9007199254740991")),
    "count": (1, [*NOT_AN_INTEGER, b"0", b"00"], ("1", "9007199254740992")),
    "period": (2, [*NOT_AN_INTEGER, b"0", b"00"], ("1", "9007199254740992")),
    "quantity": (3, NOT_A_QUANTITY, ("-9007199254740992", "9007199254740992")),
}


@pytest.mark.parametrize("is_there", [False, True], ids=["missing", "existing"])
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_a_bad_argument_is_refused_with_its_name_and_range_untouched(
    cell: ObservedServer, argument: str, is_there: bool, tally: Tally
) -> None:
    position, refused, bounds = ARGUMENTS[argument]
    if is_there:
        put_bucket(cell.connection, 5.0)
    for value in refused:
        words: list[Word] = [*WORDS[:position], value, *WORDS[position + 1 :]]
        before = cell.traces(KEY)
        message = cell.connection.call("CL.THROTTLE", KEY, *words)
        assert isinstance(message, hiredis.ReplyError), f"{value[:40]!r}: {message}"
        assert str(message).startswith(f"ERR {argument} must be an integer from {bounds[0]} to {bounds[1]} "), message
        assert cell.traces(KEY) == before, f"{value[:40]!r} changed something"
        tally.add("CL.THROTTLE", 1, "refused calls without a trace")


@pytest.mark.parametrize("line", ["15 30 60 1 1", "15 30 60 1 NOW 1751662800000", "15 30 60 1 MS", "15 30 60 1 " + "x " * 100])
def test_words_after_the_quantity_are_refused_untouched(cell: ObservedServer, line: str) -> None:
    put_bucket(cell.connection, 5.0)
    before = cell.traces(KEY)
    message = throttle(cell.connection, line)
    assert isinstance(message, hiredis.ReplyError), message
    assert str(message) == "ERR syntax error; expected key max_burst count period [quantity]"
    assert cell.traces(KEY) == before


@pytest.mark.parametrize("line", ["", "15", "15 30"])
def test_too_few_words_are_refused_by_the_server(cell: ObservedServer, line: str) -> None:
    before = cell.traces(KEY)
    message = throttle(cell.connection, line)
    assert isinstance(message, hiredis.ReplyError) and "wrong number of arguments" in str(message), message
    assert cell.traces(KEY) == before
