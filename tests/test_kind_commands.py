"""Which keys a call of any kind has, and what it publishes of them."""

import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.server import Server
from test_events import keyevent, listening

Words = tuple[Word, ...]

NOW: Words = ("NOW", TODAY_MS)
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
