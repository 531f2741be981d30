"""What the server says about the commands of every kind, what it counts, and what it publishes."""

from collections.abc import Callable

import hiredis
import pytest

from harness.clock import TODAY_MS
from harness.command_table import command_docs, flattened
from harness.connection import RawConnection, Word
from harness.server import Server
from test_events import keyevent, listening

Words = tuple[Word, ...]

NOW: Words = ("NOW", TODAY_MS)
TAKES, GIVES = {"COST"}, {"FORCE", "REFUND", "AT"}
PERIODS = {"DAY", "WEEK", "MONTH", "YEAR", "ANCHOR", "UNTIL"}
ALWAYS = {"NOW", "MS"}
OF_ALL = {"TOKENBUCKET", "SLIDING", "QUOTA", "CONCURRENCY", "SHADOW", "ID", "XX", "MAXWAIT"} | TAKES | PERIODS | ALWAYS
#: The keywords of each command.
KEYWORDS: dict[str, set[str]] = {
    "RL.TOKENBUCKET": TAKES | GIVES | {"ATLEAST", "MAXWAIT"} | ALWAYS,
    "RL.TOKENBUCKET_RO": TAKES | {"ATLEAST", "MAXWAIT"} | ALWAYS,
    "RL.SLIDING": TAKES | GIVES | {"ATLEAST"} | ALWAYS,
    "RL.SLIDING_RO": TAKES | {"ATLEAST"} | ALWAYS,
    "RL.QUOTA": TAKES | GIVES | {"ATLEAST"} | PERIODS | ALWAYS,
    "RL.QUOTA_RO": TAKES | {"ATLEAST"} | PERIODS | ALWAYS,
    "RL.CONCURRENCY": {"ID", "XX"} | ALWAYS,
    "RL.CONCURRENCY_RO": {"ID", "XX"} | ALWAYS,
    "RL.RELEASE": set(),
    "RL.ALL": OF_ALL | GIVES | {"RELEASE"},
    "RL.ALL_RO": OF_ALL,
}


@pytest.mark.parametrize("command", KEYWORDS)
def test_the_documented_keywords_are_those_of_the_command(raw: RawConnection, command: str) -> None:
    arguments = flattened(command_docs(raw, command)[b"arguments"])
    assert {argument[b"token"].decode() for argument in arguments if b"token" in argument} == KEYWORDS[command]


RULES: Words = ("QUOTA", "10", "DAY", "SHADOW", "CONCURRENCY", "5", "60", "RELEASE", "TOKENBUCKET", "1", "1")
#: Calls, well-formed or not, and their keys.
KEYS: dict[str, tuple[Words, list[bytes]]] = {
    "a quota": (("RL.QUOTA", "a", "10", "UNTIL", "5", "COST", "2"), [b"a"]),
    "leases": (("RL.CONCURRENCY", "a", "10", "60", "ID", "b", "XX"), [b"a"]),
    "ids are no keys": (("RL.RELEASE", "a", "b", "c"), [b"a"]),
    "every kind": (("RL.ALL", "3", "a", "b", "c", *RULES, "ID", "d", "MAXWAIT", "1"), [b"a", b"b", b"c"]),
    "every kind previewed": (("RL.ALL_RO", "2", "a", "b", *RULES[:7], "ID", "d"), [b"a", b"b"]),
    "a rule that is no rule": (("RL.ALL", "2", "a", "b", "QUOTA", "ten"), [b"a", b"b"]),
}


@pytest.mark.parametrize("name", KEYS)
def test_getkeys_gives_the_keys_and_no_id(raw: RawConnection, name: str) -> None:
    call, keys = KEYS[name]
    assert raw.call("COMMAND", "GETKEYS", *call) == keys


# Events

QUOTA_KEY, LEASES_KEY, BUCKET_KEY = "quota", "leases", "bucket"
FULL_QUOTA: Words = ("RL.QUOTA", QUOTA_KEY, "1", "DAY", *NOW)
FULL_LEASES: Words = ("RL.CONCURRENCY", LEASES_KEY, "1", "60", "ID", "x", *NOW)
EMPTY_BUCKET: Words = ("RL.TOKENBUCKET", BUCKET_KEY, "1", "1", *NOW)
QUOTA, LEASES, BUCKET = ("QUOTA", "1", "DAY"), ("CONCURRENCY", "1", "60"), ("TOKENBUCKET", "1", "1")
BOTH: Words = ("RL.ALL", "2", QUOTA_KEY, "other")

#: A call on limiters that have no room left, and the events with the keys that are published.
PUBLISHED: dict[str, tuple[Words, list[tuple[str, str]]]] = {
    "a quota denied": (FULL_QUOTA, [("rl.denied", QUOTA_KEY)]),
    "a quota denied on a missing key": (("RL.QUOTA", "new", "0", "DAY", *NOW), [("rl.denied", "new")]),
    "a quota forced": ((*FULL_QUOTA, "FORCE", "1"), []),
    "a quota given back": ((*FULL_QUOTA, "REFUND", "1"), []),
    "a quota previewed": (("RL.QUOTA_RO", *FULL_QUOTA[1:]), []),
    "a lease denied": (("RL.CONCURRENCY", LEASES_KEY, "1", "60", "ID", "y", *NOW), [("rl.denied", LEASES_KEY)]),
    "a lease lost": (("RL.CONCURRENCY", "new", "1", "60", "ID", "x", "XX", *NOW), [("rl.denied", "new")]),
    "a lease renewed": (FULL_LEASES, []),
    "a lease released": (("RL.RELEASE", LEASES_KEY, "x"), []),
    "a lease previewed": (("RL.CONCURRENCY_RO", LEASES_KEY, "1", "60", "ID", "y", *NOW), []),
    "a wait too long": ((*EMPTY_BUCKET, "MAXWAIT", "0.5"), [("rl.denied", BUCKET_KEY)]),
    "a wait accepted": ((*EMPTY_BUCKET, "MAXWAIT", "1"), []),
    "not even a part": ((*EMPTY_BUCKET, "COST", "5", "ATLEAST", "1"), [("rl.denied", BUCKET_KEY)]),
    "denied by a quota": ((*BOTH, *QUOTA, *BUCKET, *NOW), [("rl.denied", QUOTA_KEY)]),
    "denied by two": (
        ("RL.ALL", "3", QUOTA_KEY, "other", LEASES_KEY, *QUOTA, *BUCKET, *LEASES, "ID", "y", *NOW),
        [("rl.denied", QUOTA_KEY), ("rl.denied", LEASES_KEY)],
    ),
    "denied in the shadow": ((*BOTH, *QUOTA, "SHADOW", *BUCKET, *NOW), [("rl.shadow", QUOTA_KEY)]),
    "allowed in the shadow": (("RL.ALL", "1", "other", *BUCKET, "SHADOW", *NOW), []),
    "in the shadow of a preview": (("RL.ALL_RO", *BOTH[1:], *QUOTA, "SHADOW", *BUCKET, *NOW), []),
    "in the shadow of a denied call": (
        ("RL.ALL", "2", QUOTA_KEY, BUCKET_KEY, *QUOTA, "SHADOW", *BUCKET, *NOW),
        [("rl.shadow", QUOTA_KEY), ("rl.denied", BUCKET_KEY)],
    ),
    "a repeat": (("RL.ALL", "2", QUOTA_KEY, LEASES_KEY, *QUOTA, *LEASES, "ID", "x", *NOW), [("rl.repeated", LEASES_KEY)]),
    "a repeat previewed": (("RL.ALL_RO", "2", QUOTA_KEY, LEASES_KEY, *QUOTA, *LEASES, "ID", "x", *NOW), []),
    "settled twice": (("RL.ALL", "1", "other", *LEASES, "RELEASE", "ID", "x", "XX", *NOW), [("rl.denied", "other")]),
    "an error": (("RL.QUOTA", QUOTA_KEY, "1", "HOUR"), []),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_denials_shadows_and_repeats_are_published_by_key(server: Server, name: str) -> None:
    call, events = PUBLISHED[name]
    with listening(server, "Ed") as (connection, heard):
        for words in (FULL_QUOTA, FULL_LEASES, EMPTY_BUCKET):
            assert connection.call(*words)[0] == 1
        connection.call(*call)
        assert heard() == [event for event_name, key in events for event in keyevent(event_name, key)]


@pytest.mark.parametrize("classes", ["", "KE", "KEg$z"], ids=repr)
def test_shadows_and_repeats_are_published_only_to_those_who_ask(server: Server, classes: str) -> None:
    with listening(server, classes) as (connection, heard):
        for name in ("denied in the shadow", "a repeat", "a lease denied"):
            for words in (FULL_QUOTA, FULL_LEASES, PUBLISHED[name][0]):
                connection.call(*words)
        assert heard() == []


# INFO

OF_THE_SECTION = "rl_"


def counts(server: Server) -> dict[str, int]:
    return {name: int(value) for name, value in server.info("rl").items() if name.startswith(OF_THE_SECTION)}


#: What each call counts as. They follow one another on one server.
COUNTED: list[tuple[Words, str]] = [
    (("RL.QUOTA", "q", "2", "DAY", *NOW), "quota_allowed"),
    (("RL.QUOTA", "q", "2", "DAY", "COST", "0", *NOW), "quota_allowed"),
    (("RL.QUOTA", "q", "2", "DAY", "FORCE", "1", *NOW), "quota_allowed"),
    (("RL.QUOTA", "q", "2", "DAY", *NOW), "quota_denied"),
    (("RL.QUOTA", "q", "2", "DAY", "REFUND", "1", *NOW), "quota_refunded"),
    (("RL.QUOTA", "q", "2", "HOUR"), "quota_errors"),
    (("RL.QUOTA", "q", "2", "UNTIL", TODAY_MS, *NOW), "quota_errors"),
    (("RL.QUOTA_RO", "q", "2", "DAY", *NOW), "quota_ro_allowed"),
    (("RL.QUOTA_RO", "q", "2", "DAY", "COST", "2", *NOW), "quota_ro_denied"),
    (("RL.QUOTA_RO", "q", "2", "DAY", "FORCE", "2"), "quota_ro_errors"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "x", *NOW), "concurrency_allowed"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "x", *NOW), "concurrency_allowed"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "y", *NOW), "concurrency_denied"),
    (("RL.CONCURRENCY", "c", "1", "60", "ID", "y", "XX", *NOW), "concurrency_denied"),
    (("RL.CONCURRENCY", "q", "1", "60", "ID", "y", *NOW), "concurrency_errors"),
    (("RL.CONCURRENCY_RO", "c", "1", "60", "ID", "x", *NOW), "concurrency_ro_allowed"),
    (("RL.CONCURRENCY_RO", "c", "1", "60", "ID", "y", *NOW), "concurrency_ro_denied"),
    (("RL.CONCURRENCY_RO", "c", "1", "60", "ID", ""), "concurrency_ro_errors"),
    (("RL.TOKENBUCKET", "b", "1", "1", "FORCE", "3", *NOW), "tokenbucket_allowed"),
    (("RL.TOKENBUCKET", "b", "1", "1", "MAXWAIT", "5", *NOW), "tokenbucket_allowed"),
    (("RL.TOKENBUCKET", "b", "1", "1", "MAXWAIT", "1", *NOW), "tokenbucket_denied"),
    (("RL.SLIDING", "w", "3", "60", "COST", "5", "ATLEAST", "1", *NOW), "sliding_allowed"),
    (("RL.SLIDING", "w", "3", "60", "COST", "5", "ATLEAST", "1", *NOW), "sliding_denied"),
    (("RL.ALL", "2", "q", "c", *QUOTA, "FORCE", "1", *LEASES, "ID", "x", *NOW), "all_repeated"),
    (("RL.ALL", "2", "q", "c", *QUOTA, "FORCE", "1", *LEASES, "RELEASE", "ID", "x", *NOW), "all_allowed"),
    (("RL.ALL", "2", "q", "c", *QUOTA, *LEASES, "RELEASE", "ID", "x", "XX", *NOW), "all_denied"),
    (("RL.ALL", "2", "q", "c", *QUOTA, "SHADOW", *LEASES, "ID", "x", *NOW), "all_allowed"),
    (("RL.ALL_RO", "2", "q", "c", *QUOTA, *LEASES, "ID", "x", *NOW), "all_ro_repeated"),
    (("RL.ALL", "2", "q", "c", *QUOTA, *LEASES, *NOW), "all_errors"),
    (("RL.RELEASE", "c", "x", "y"), "release_released"),
    (("RL.RELEASE", "c", "x"), "release_released"),
    (("RL.RELEASE", "q", "x"), "release_errors"),
]


def test_each_call_counts_once_and_as_what_became_of_it(fresh_server: Callable[..., Server]) -> None:
    server = fresh_server()
    before = counts(server)
    assert set(before.values()) == {0}
    with server.raw_connection() as connection:
        for call, field in COUNTED:
            connection.call(*call)
            now = counts(server)
            changed = {name: now[name] - before[name] for name in now if now[name] != before[name]}
            totals = {name: by for name, by in changed.items() if name.startswith("rl_total_")}
            assert changed.get(f"rl_{field}") == 1, f"{call}: {changed}"
            assert set(changed) - set(totals) == {f"rl_{field}"}, f"{call}: {changed}"
            assert set(totals.values()) <= {1}, f"{call}: {changed}"
            assert bool(totals) == ("_ro_" not in field), f"{call}: {changed}"
            before = now
