"""The keyspace event rl.denied tells who is being refused, to those who ask for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import hiredis
import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.server import Server

NOW = ("NOW", TODAY_MS)
FULL, EMPTY, WINDOW, TEXT = "full", "empty", "window", "text"
BUCKET, SLIDING = ("TOKENBUCKET", "10", "1"), ("SLIDING", "10", "60")
MARK_CHANNEL = b"mark"


@pytest.fixture(scope="module")
def silent() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(scope="module")
def talkative() -> Iterator[Server]:
    """A server that is to publish rl.allowed too."""
    with Server(module_args=("notify-allowed", "yes", "cl-throttle", "yes")) as running:
        yield running


class Subscriber:
    """Hears every keyspace and keyevent channel of a server."""

    def __init__(self, connection: RawConnection) -> None:
        self._connection = connection
        self._marks = 0
        for command in (("PSUBSCRIBE", "__key*__:*"), ("SUBSCRIBE", MARK_CHANNEL)):
            connection.call(*command)

    def heard(self, publisher: RawConnection) -> list[tuple[bytes, bytes]]:
        """Channel and message of all that was published up to now and not yet heard. A mark is published
        last, so what was not heard before it was not published."""
        self._marks += 1
        mark = b"%d" % self._marks
        publisher.call("PUBLISH", MARK_CHANNEL, mark)
        messages = []
        while True:
            *_, channel, message = self._connection.read()
            if (channel, message) == (MARK_CHANNEL, mark):
                return messages
            messages.append((channel, message))


@contextmanager
def listening(server: Server, classes: str) -> Iterator[tuple[RawConnection, Callable[[], list[tuple[bytes, bytes]]]]]:
    """A connection to an empty server that notifies of `classes`, some limiters in it, and what is
    heard of the events of this module from then on."""
    with server.raw_connection() as connection, server.raw_connection() as ears:
        connection.call("CONFIG", "SET", "notify-keyspace-events", "")
        connection.call("FLUSHALL")
        connection.call("RL.TOKENBUCKET", EMPTY, "10", "1", "COST", "10", *NOW)
        connection.call("RL.SLIDING", WINDOW, "10", "60", "COST", "10", *NOW)
        connection.call("SET", TEXT, "hello")
        assert connection.call("CONFIG", "SET", "notify-keyspace-events", classes) == b"OK"
        subscriber = Subscriber(ears)

        def heard() -> list[tuple[bytes, bytes]]:
            events = subscriber.heard(connection)
            return [event for event in events if b"rl." in b" ".join(event)]

        try:
            yield connection, heard
        finally:
            connection.call("CONFIG", "SET", "notify-keyspace-events", "")


def keyevent(event: str, *keys: str) -> list[tuple[bytes, bytes]]:
    return [(f"__keyevent@0__:{event}".encode(), key.encode()) for key in keys]


DENIED_CALL = ("RL.TOKENBUCKET", EMPTY, "10", "1", *NOW)


@pytest.mark.parametrize("classes", ["", "d", "K", "E", "KE", "KEg$lshzxe", "KEtmn"], ids=repr)
def test_nothing_is_published_unless_the_classes_have_d_and_k_or_e(silent: Server, classes: str) -> None:
    with listening(silent, classes) as (connection, heard):
        assert connection.call(*DENIED_CALL)[0] == 0
        assert heard() == []


@pytest.mark.parametrize(
    ("classes", "published"),
    [
        ("Kd", [(b"__keyspace@0__:empty", b"rl.denied")]),
        ("Ed", keyevent("rl.denied", EMPTY)),
        ("KEd", [(b"__keyspace@0__:empty", b"rl.denied"), *keyevent("rl.denied", EMPTY)]),
        ("KEA", [(b"__keyspace@0__:empty", b"rl.denied"), *keyevent("rl.denied", EMPTY)]),
    ],
)
def test_a_denial_is_published_as_the_classes_ask_for(
    silent: Server, classes: str, published: list[tuple[bytes, bytes]]
) -> None:
    with listening(silent, classes) as (connection, heard):
        assert connection.call(*DENIED_CALL)[0] == 0
        assert heard() == published


#: The keys for which rl.denied is published, in the order of the calls' keys.
PUBLISHED: dict[str, tuple[tuple[Word, ...], list[str]]] = {
    "bucket denied": (DENIED_CALL, [EMPTY]),
    "bucket denied on a missing key": (("RL.TOKENBUCKET", "new", "10", "1", "COST", "11", *NOW), ["new"]),
    "bucket allowed": (("RL.TOKENBUCKET", FULL, "10", "1", *NOW), []),
    "bucket refunded": (("RL.TOKENBUCKET", EMPTY, "10", "1", "REFUND", "1", *NOW), []),
    "bucket refused": (("RL.TOKENBUCKET", EMPTY, "ten", "1", *NOW), []),
    "bucket on text": (("RL.TOKENBUCKET", TEXT, "10", "1", *NOW), []),
    "bucket previewed": (("RL.TOKENBUCKET_RO", EMPTY, "10", "1", *NOW), []),
    "window denied": (("RL.SLIDING", WINDOW, "10", "60", *NOW), [WINDOW]),
    "window denied on a missing key": (("RL.SLIDING", "new", "10", "60", "COST", "11", *NOW), ["new"]),
    "window allowed": (("RL.SLIDING", FULL, "10", "60", *NOW), []),
    "window refunded": (("RL.SLIDING", WINDOW, "10", "60", "REFUND", "1", *NOW), []),
    "window refused": (("RL.SLIDING", WINDOW, "10", "0", *NOW), []),
    "window previewed": (("RL.SLIDING_RO", WINDOW, "10", "60", *NOW), []),
    "all denied by one": (("RL.ALL", "3", FULL, EMPTY, "other", *BUCKET, *BUCKET, *SLIDING, *NOW), [EMPTY]),
    "all denied by two": (("RL.ALL", "3", WINDOW, FULL, EMPTY, *SLIDING, *BUCKET, *BUCKET, *NOW), [WINDOW, EMPTY]),
    "all denied beside a refund": (("RL.ALL", "2", EMPTY, WINDOW, *BUCKET, "REFUND", "1", *SLIDING, *NOW), [WINDOW]),
    "all allowed": (("RL.ALL", "2", FULL, "other", *BUCKET, *SLIDING, *NOW), []),
    "all refunded": (("RL.ALL", "1", EMPTY, *BUCKET, "REFUND", "1", *NOW), []),
    "all refused": (("RL.ALL", "2", EMPTY, EMPTY, *BUCKET, *BUCKET, *NOW), []),
    "all with text": (("RL.ALL", "2", EMPTY, TEXT, *BUCKET, *BUCKET, *NOW), []),
    "all previewed": (("RL.ALL_RO", "2", EMPTY, WINDOW, *BUCKET, *SLIDING, *NOW), []),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_exactly_the_keys_whose_rule_denied_are_published(silent: Server, name: str) -> None:
    call, keys = PUBLISHED[name]
    with listening(silent, "Ed") as (connection, heard):
        connection.call(*call)
        assert heard() == keyevent("rl.denied", *keys)


#: With `notify-allowed yes`: what is published as rl.allowed.
ALLOWED: dict[str, tuple[tuple[Word, ...], list[tuple[bytes, bytes]]]] = {
    "bucket allowed": (("RL.TOKENBUCKET", FULL, "10", "1", *NOW), keyevent("rl.allowed", FULL)),
    "bucket allowed, nothing taken": (
        ("RL.TOKENBUCKET", EMPTY, "10", "1", "COST", "0", *NOW),
        keyevent("rl.allowed", EMPTY),
    ),
    "bucket denied": (DENIED_CALL, keyevent("rl.denied", EMPTY)),
    "bucket refunded": (("RL.TOKENBUCKET", EMPTY, "10", "1", "REFUND", "1", *NOW), []),
    "bucket refused": (("RL.TOKENBUCKET", FULL, "ten", "1", *NOW), []),
    "bucket previewed": (("RL.TOKENBUCKET_RO", FULL, "10", "1", *NOW), []),
    "window allowed": (("RL.SLIDING", FULL, "10", "60", *NOW), keyevent("rl.allowed", FULL)),
    "all allowed": (
        ("RL.ALL", "2", FULL, "other", *BUCKET, *SLIDING, *NOW),
        keyevent("rl.allowed", FULL, "other"),
    ),
    "all denied by one": (("RL.ALL", "2", FULL, EMPTY, *BUCKET, *BUCKET, *NOW), keyevent("rl.denied", EMPTY)),
    "all allowed beside a refund": (
        ("RL.ALL", "2", EMPTY, FULL, *BUCKET, "REFUND", "1", *BUCKET, *NOW),
        keyevent("rl.allowed", FULL),
    ),
    "all previewed": (("RL.ALL_RO", "1", FULL, *BUCKET, *NOW), []),
    "throttle allowed": (("CL.THROTTLE", "t", "0", "1", "10"), keyevent("rl.allowed", "t")),
    "throttle denied": (("CL.THROTTLE", "t", "0", "1", "10", "2"), keyevent("rl.denied", "t")),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_calls_are_published_if_the_module_was_told_to(talkative: Server, name: str) -> None:
    call, events = ALLOWED[name]
    with listening(talkative, "Ed") as (connection, heard):
        connection.call(*call)
        assert heard() == events


def test_config_set_turns_rl_allowed_on_and_off_on_a_running_server(silent: Server) -> None:
    with listening(silent, "Ed") as (connection, heard):
        for value, events in [("yes", keyevent("rl.allowed", FULL)), ("no", [])] * 2:
            assert connection.call("CONFIG", "SET", "rl.notify-allowed", value) == b"OK"
            connection.call("RL.TOKENBUCKET", FULL, "10", "1", *NOW)
            assert heard() == events


@pytest.mark.parametrize("classes", ["", "KE", "KEg$"], ids=repr)
def test_allowed_calls_too_are_published_only_if_the_classes_have_d(talkative: Server, classes: str) -> None:
    with listening(talkative, classes) as (connection, heard):
        connection.call("RL.TOKENBUCKET", FULL, "10", "1", *NOW)
        connection.call(*DENIED_CALL)
        assert heard() == []


def test_a_key_of_any_bytes_is_published_as_it_is(silent: Server) -> None:
    key = b"\xff\x00 \r\n"
    with listening(silent, "Ed") as (connection, heard):
        connection.call("RL.TOKENBUCKET", key, "1", "0", "COST", "2", *NOW)
        assert heard() == [(b"__keyevent@0__:rl.denied", key)]


def test_the_channel_names_the_database_of_the_key(silent: Server) -> None:
    with listening(silent, "Ed") as (connection, heard):
        connection.call("SELECT", "3")
        connection.call("RL.TOKENBUCKET", "key", "1", "0", "COST", "2", *NOW)
        assert heard() == [(b"__keyevent@3__:rl.denied", b"key")]


@pytest.mark.parametrize("runs_in", ["a transaction", "a script"])
def test_denials_in_a_transaction_or_script_are_published_too(silent: Server, runs_in: str) -> None:
    with listening(silent, "Ed") as (connection, heard):
        if runs_in == "a script":
            words = ", ".join(f"'{word}'" for word in DENIED_CALL)
            connection.call("EVAL", f"for _ = 1, 2 do redis.call({words}) end", "1", EMPTY)
        else:
            connection.call_all([("MULTI",), DENIED_CALL, DENIED_CALL, ("EXEC",)])
        assert heard() == keyevent("rl.denied", EMPTY, EMPTY)


def test_a_published_denial_still_propagates_nothing(observed: ObservedServer) -> None:
    with listening(observed, "KEd") as (connection, heard):
        before = observed.traces()
        assert connection.call(*DENIED_CALL)[0] == 0
        assert observed.traces() == before
        assert len(heard()) == 2


def test_the_key_can_be_asked_about_while_the_event_is_heard(silent: Server) -> None:
    """What a listener does first: how full is it, and for how long."""
    with listening(silent, "Ed") as (connection, heard):
        connection.call(*DENIED_CALL)
        ((_, key),) = heard()
        reply = connection.call("RL.TOKENBUCKET_RO", key, "10", "1", *NOW, "MS")
        assert not isinstance(reply, hiredis.ReplyError)
        assert reply == [0, 0, 10_000, 1000]
