"""Quotas, leases, debt and waits: a refused call says which argument and what it accepts, and changes nothing."""

import pytest

from harness.clock import TODAY_MS
from harness.connection import RawConnection, Word
from harness.observed import ObservedServer
from harness.refusals import (
    AMOUNT_BOUNDS,
    KEY,
    KEYS,
    NOT_AN_INTEGER,
    NOT_DECIMAL,
    TOO_LARGE,
    TOO_LARGE_BUT_ROUNDED,
    WINDOW_BOUNDS,
    WINDOW_OUT_OF_RANGE,
)
from harness.tally import Tally
from test_errors import refused

Words = tuple[Word, ...]

NOW: Words = ("NOW", TODAY_MS)
BUCKET: Words = ("TOKENBUCKET", "10", "1")
SLIDING: Words = ("SLIDING", "10", "60")
QUOTA: Words = ("QUOTA", "10", "60")
LEASES: Words = ("CONCURRENCY", "10", "60")
LONGEST_ID = 512
WAIT_BOUNDS = ("0", "9007199254740.992")
ID_BOUNDS = ("1", "512")
OVER_LONG = [b"9007199254741", b"9.1e12", b"1e13", b"1e400", b"9007199254740992"]

AMOUNTS = NOT_DECIMAL + TOO_LARGE + TOO_LARGE_BUT_ROUNDED
INTEGERS = AMOUNTS + NOT_AN_INTEGER
LENGTHS = NOT_DECIMAL + WINDOW_OUT_OF_RANGE
BAD_IDS = [b"", b"x" * (LONGEST_ID + 1), b"\x00" * 100_000]

#: What a key holds before the refused call.
STATES: dict[str, list[Words]] = {
    "missing": [],
    "quotas": [("RL.QUOTA", key, "10", "60", "COST", "3", *NOW) for key in KEYS],
    "leases": [("RL.CONCURRENCY", key, "10", "60", "ID", "a", *NOW) for key in KEYS],
}

#: Stands where the value goes.
HERE = "<here>"
#: By argument: the calls with a place for its value, what it refuses, and what the message says.
PLACES: dict[str, tuple[list[Words], list[bytes], tuple[str, ...]]] = {
    "limit of a quota": (
        [
            ("RL.QUOTA", KEY, HERE, "60", *NOW),
            ("RL.QUOTA", KEY, HERE, "MONTH", "COST", "1"),
            ("RL.QUOTA_RO", KEY, HERE, "60"),
            ("RL.ALL", "2", *KEYS, *QUOTA, "QUOTA", HERE, "60", *NOW),
            ("RL.ALL_RO", "2", *KEYS, *QUOTA, "QUOTA", HERE, "DAY", *NOW),
        ],
        AMOUNTS,
        ("limit", *AMOUNT_BOUNDS),
    ),
    "period": (
        [
            ("RL.QUOTA", KEY, "10", HERE, *NOW),
            ("RL.QUOTA", KEY, "10", HERE, "ANCHOR", "0", *NOW),
            ("RL.QUOTA_RO", KEY, "10", HERE),
            ("RL.ALL", "2", *KEYS, *QUOTA, "QUOTA", "10", HERE, *NOW),
            ("RL.ALL_RO", "1", KEY, "QUOTA", "10", HERE, *NOW),
        ],
        [*LENGTHS, b"HOUR", b"DAYS", b"D", b"month ", b"QUARTER", b"ANCHOR", b"COST"],
        ("period", *WINDOW_BOUNDS),
    ),
    "ANCHOR": (
        [
            ("RL.QUOTA", KEY, "10", "60", "ANCHOR", HERE, *NOW),
            ("RL.QUOTA_RO", KEY, "10", "MONTH", "ANCHOR", HERE),
            ("RL.ALL", "2", *KEYS, *QUOTA, *QUOTA, "ANCHOR", HERE, *NOW),
        ],
        INTEGERS,
        ("ANCHOR", *AMOUNT_BOUNDS),
    ),
    "UNTIL": (
        [
            ("RL.QUOTA", KEY, "10", "UNTIL", HERE, *NOW),
            ("RL.QUOTA_RO", KEY, "10", "UNTIL", HERE),
            ("RL.ALL", "2", *KEYS, *QUOTA, "QUOTA", "10", "UNTIL", HERE, *NOW),
        ],
        INTEGERS,
        ("UNTIL", *AMOUNT_BOUNDS),
    ),
    "FORCE": (
        [
            ("RL.TOKENBUCKET", KEY, "10", "1", "FORCE", HERE, *NOW),
            ("RL.SLIDING", KEY, "10", "60", "FORCE", HERE, *NOW),
            ("RL.QUOTA", KEY, "10", "60", "FORCE", HERE, *NOW),
            ("RL.ALL", "2", *KEYS, *QUOTA, *BUCKET, "FORCE", HERE, *NOW),
        ],
        AMOUNTS,
        ("FORCE", *AMOUNT_BOUNDS),
    ),
    "COST of a quota": (
        [("RL.QUOTA", KEY, "10", "60", "COST", HERE, *NOW), ("RL.QUOTA_RO", KEY, "10", "60", "COST", HERE)],
        AMOUNTS,
        ("COST", *AMOUNT_BOUNDS),
    ),
    "REFUND of a quota": (
        [("RL.QUOTA", KEY, "10", "60", "REFUND", HERE, *NOW)],
        AMOUNTS,
        ("REFUND", *AMOUNT_BOUNDS),
    ),
    "MAXWAIT": (
        [
            ("RL.TOKENBUCKET", KEY, "10", "1", "MAXWAIT", HERE, *NOW),
            ("RL.TOKENBUCKET_RO", KEY, "10", "1", "MAXWAIT", HERE),
            ("RL.ALL", "2", *KEYS, *BUCKET, *QUOTA, "MAXWAIT", HERE, *NOW),
            ("RL.ALL_RO", "2", *KEYS, *BUCKET, *QUOTA, "MAXWAIT", HERE, *NOW),
        ],
        NOT_DECIMAL + OVER_LONG,
        ("MAXWAIT", *WAIT_BOUNDS),
    ),
    "ATLEAST": (
        [
            ("RL.TOKENBUCKET", KEY, "10", "1", "COST", "5", "ATLEAST", HERE, *NOW),
            ("RL.SLIDING", KEY, "10", "60", "COST", "5", "ATLEAST", HERE, *NOW),
            ("RL.QUOTA", KEY, "10", "60", "COST", "5", "ATLEAST", HERE, *NOW),
            ("RL.QUOTA_RO", KEY, "10", "60", "COST", "5", "ATLEAST", HERE),
        ],
        [*INTEGERS, b"0", b"6", b"9007199254740992"],
        ("ATLEAST", "1"),
    ),
    "COST with ATLEAST": (
        [
            ("RL.TOKENBUCKET", KEY, "10", "1", "COST", HERE, "ATLEAST", "1", *NOW),
            ("RL.SLIDING", KEY, "10", "60", "COST", HERE, "ATLEAST", "1", *NOW),
            ("RL.QUOTA", KEY, "10", "60", "COST", HERE, "ATLEAST", "1", *NOW),
            ("RL.TOKENBUCKET_RO", KEY, "10", "1", "ATLEAST", "1", "COST", HERE),
        ],
        [b"0", b"0.5", b"1.5", b"2.25"],
        ("COST", "ATLEAST"),
    ),
    "limit of leases": (
        [
            ("RL.CONCURRENCY", KEY, HERE, "60", "ID", "a", *NOW),
            ("RL.CONCURRENCY_RO", KEY, HERE, "60", "ID", "a"),
            ("RL.ALL", "2", *KEYS, *LEASES, "CONCURRENCY", HERE, "60", "ID", "a", *NOW),
        ],
        INTEGERS,
        ("limit", *AMOUNT_BOUNDS),
    ),
    "lease": (
        [
            ("RL.CONCURRENCY", KEY, "10", HERE, "ID", "a", *NOW),
            ("RL.CONCURRENCY_RO", KEY, "10", HERE, "ID", "a"),
            ("RL.ALL", "2", *KEYS, *LEASES, "CONCURRENCY", "10", HERE, "ID", "a", *NOW),
        ],
        LENGTHS,
        ("lease", *WINDOW_BOUNDS),
    ),
    "ID": (
        [
            ("RL.CONCURRENCY", KEY, "10", "60", "ID", HERE, *NOW),
            ("RL.CONCURRENCY_RO", KEY, "10", "60", "ID", HERE, "XX"),
            ("RL.ALL", "2", *KEYS, *QUOTA, *LEASES, "ID", HERE, *NOW),
            ("RL.ALL_RO", "1", KEY, *LEASES, *NOW, "ID", HERE),
        ],
        BAD_IDS,
        ("ID", *ID_BOUNDS),
    ),
    "id to release": (
        [("RL.RELEASE", KEY, HERE), ("RL.RELEASE", KEY, "a", HERE), ("RL.RELEASE", KEY, HERE, "a")],
        BAD_IDS,
        ("id", *ID_BOUNDS),
    ),
    "NOW": (
        [("RL.QUOTA", KEY, "10", "60", "NOW", HERE), ("RL.CONCURRENCY", KEY, "10", "60", "ID", "a", "NOW", HERE)],
        INTEGERS,
        ("NOW", *AMOUNT_BOUNDS),
    ),
}


def set_up(observed: ObservedServer, state: str) -> None:
    for call in STATES[state]:
        reply = observed.connection.call(*call)
        assert reply[0] == 1, reply


def lacking(message: str, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name not in message]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("argument", PLACES)
def test_a_bad_value_is_refused_by_name_and_range_and_changes_nothing(
    observed: ObservedServer, argument: str, state: str, tally: Tally
) -> None:
    set_up(observed, state)
    calls, values, names = PLACES[argument]
    wrong = []
    for call in calls:
        for value in values:
            try:
                message = refused(observed, tuple(value if word is HERE else word for word in call))
                assert not lacking(message, names), f"{call} with {value[:40]!r}: {message!r} lacks {lacking(message, names)}"
            except AssertionError as error:
                wrong.append(str(error).splitlines()[0])
            tally.add("errors", 1, "refused calls without a trace")
    assert not wrong, "\n".join(wrong)


SINGLE = {
    "RL.TOKENBUCKET": ("RL.TOKENBUCKET", KEY, "10", "1"),
    "RL.SLIDING": ("RL.SLIDING", KEY, "10", "60"),
    "RL.QUOTA": ("RL.QUOTA", KEY, "10", "60"),
}
LEASE = ("RL.CONCURRENCY", KEY, "10", "60")
ALL_OF_TWO = ("RL.ALL", "2", *KEYS)


def malformed() -> dict[str, tuple[Words, tuple[str, ...]]]:
    """By what is wrong: the call, and what the message has to name."""
    cases: dict[str, tuple[Words, tuple[str, ...]]] = {}
    force, refund, cost = ("FORCE", "1"), ("REFUND", "1"), ("COST", "2")
    for command, start in SINGLE.items():
        preview = (f"{command}_RO", *start[1:])
        cases |= {
            f"{command}: FORCE twice": ((*start, *force, *force), ("FORCE",)),
            f"{command}: FORCE with COST": ((*start, *force, *cost), ("COST", "FORCE")),
            f"{command}: COST with FORCE": ((*start, *cost, *NOW, *force), ("COST", "FORCE")),
            f"{command}: FORCE with REFUND": ((*start, *force, *refund), ("FORCE", "REFUND")),
            f"{command}: FORCE without a value": ((*start, "FORCE"), ("FORCE", *AMOUNT_BOUNDS)),
            f"{command}: FORCE in a preview": ((*preview, *force), ("FORCE",)),
            f"{command}: REFUND in a preview": ((*preview, *refund), ("REFUND",)),
            f"{command}: ATLEAST twice": ((*start, *cost, "ATLEAST", "1", "ATLEAST", "1"), ("ATLEAST",)),
            f"{command}: ATLEAST with FORCE": ((*start, *force, "ATLEAST", "1"), ("ATLEAST", "FORCE")),
            f"{command}: ATLEAST with REFUND": ((*start, *refund, "ATLEAST", "1"), ("ATLEAST", "REFUND")),
            f"{command}: ATLEAST without a value": ((*start, *cost, "ATLEAST"), ("ATLEAST", "1")),
            f"{command}: SHADOW": ((*start, "SHADOW"), ()),
            f"{command}: RELEASE": ((*start, "RELEASE"), ()),
            f"{command}: ID": ((*start, "ID", "a"), ()),
            f"{command}: XX": ((*start, "XX"), ()),
            f"{command}: ID in a preview": ((*preview, "ID", "a"), ()),
        }
        if command != "RL.TOKENBUCKET":
            cases[f"{command}: MAXWAIT"] = ((*start, "MAXWAIT", "1"), ())
        if command != "RL.QUOTA":
            cases[f"{command}: ANCHOR"] = ((*start, "ANCHOR", "0"), ())
            cases[f"{command}: UNTIL"] = ((*start, "UNTIL", TODAY_MS + 1), ())
    bucket, wait = SINGLE["RL.TOKENBUCKET"], ("MAXWAIT", "1")
    cases |= {
        "MAXWAIT twice": ((*bucket, *wait, *wait), ("MAXWAIT",)),
        "MAXWAIT with FORCE": ((*bucket, *wait, *force), ("MAXWAIT", "FORCE")),
        "FORCE with MAXWAIT": ((*bucket, *force, *wait), ("MAXWAIT", "FORCE")),
        "MAXWAIT with REFUND": ((*bucket, *wait, *refund), ("MAXWAIT", "REFUND")),
        "MAXWAIT with ATLEAST": ((*bucket, *wait, *cost, "ATLEAST", "1"), ("MAXWAIT", "ATLEAST")),
        "MAXWAIT without a value": ((*bucket, "MAXWAIT"), ("MAXWAIT", *WAIT_BOUNDS)),
    }
    quota = SINGLE["RL.QUOTA"]
    until = ("RL.QUOTA", KEY, "10", "UNTIL")
    cases |= {
        "ANCHOR twice": ((*quota, "ANCHOR", "0", "ANCHOR", "0"), ("ANCHOR",)),
        "ANCHOR without a value": ((*quota, "ANCHOR"), ("ANCHOR", *AMOUNT_BOUNDS)),
        "UNTIL with ANCHOR": ((*until, TODAY_MS + 1, "ANCHOR", "0", *NOW), ("ANCHOR",)),
        "UNTIL without a value": (until, ("UNTIL", *AMOUNT_BOUNDS)),
        "UNTIL now": ((*until, TODAY_MS, *NOW), ("UNTIL",)),
        "UNTIL a time that has passed": ((*until, TODAY_MS - 1, *NOW), ("UNTIL",)),
        "UNTIL a time that has passed by the server's clock": ((*until, TODAY_MS), ("UNTIL",)),
        "UNTIL now in a preview": (("RL.QUOTA_RO", *until[1:], TODAY_MS, *NOW), ("UNTIL",)),
        "UNTIL now in a refund": ((*until, TODAY_MS, *refund, *NOW), ("UNTIL",)),
        "UNTIL now in the last rule": ((*ALL_OF_TWO, *QUOTA, "QUOTA", "1", "UNTIL", TODAY_MS, *NOW), ("UNTIL",)),
        "UNTIL now of a repeat": (
            (*ALL_OF_TWO, *LEASES, "QUOTA", "1", "UNTIL", TODAY_MS, "ID", "a", *NOW),
            ("UNTIL",),
        ),
        "a quota of a fourth word": ((*quota, "60"), ()),
    }
    for command in ("RL.CONCURRENCY", "RL.CONCURRENCY_RO"):
        lease = (command, *LEASE[1:])
        cases |= {
            f"{command}: no ID": ((*lease, *NOW, "MS"), ("ID",)),
            f"{command}: XX without ID": ((*lease, "XX", *NOW), ("ID",)),
            f"{command}: ID twice": ((*lease, "ID", "a", "ID", "a"), ("ID",)),
            f"{command}: ID without a value": ((*lease, "MS", "ID"), ("ID", *ID_BOUNDS)),
            f"{command}: XX twice": ((*lease, "ID", "a", "XX", "XX"), ("XX",)),
            f"{command}: NOW twice": ((*lease, "ID", "a", *NOW, *NOW), ("NOW",)),
            f"{command}: MS twice": ((*lease, "ID", "a", "MS", "MS"), ("MS",)),
            f"{command}: COST": ((*lease, "ID", "a", "COST", "1"), ()),
            f"{command}: FORCE": ((*lease, "ID", "a", *force), ()),
            f"{command}: REFUND": ((*lease, "ID", "a", *refund), ()),
            f"{command}: RELEASE": ((*lease, "RELEASE", "ID", "a"), ()),
            f"{command}: SHADOW": ((*lease, "SHADOW", "ID", "a"), ()),
            f"{command}: MAXWAIT": ((*lease, "ID", "a", *wait), ()),
            f"{command}: an unknown keyword": ((*lease, "ID", "a", "NX"), ("XX", "NOW", "MS")),
        }
    for command in ("RL.ALL", "RL.ALL_RO"):
        two = (command, "2", *KEYS)
        cases |= {
            f"{command}: leases without ID": ((*two, *BUCKET, *LEASES, *NOW), ("ID",)),
            f"{command}: ID without leases": ((*two, *BUCKET, *QUOTA, "ID", "a", *NOW), ("ID", "CONCURRENCY")),
            f"{command}: ID and XX without leases": ((*two, *BUCKET, *QUOTA, "ID", "a", "XX"), ("ID", "CONCURRENCY")),
            f"{command}: XX without ID": ((*two, *BUCKET, *LEASES, "XX", *NOW), ("ID",)),
            f"{command}: XX without leases": ((*two, *BUCKET, *QUOTA, "XX", *NOW), ()),
            f"{command}: ID twice": ((*two, *BUCKET, *LEASES, "ID", "a", "ID", "a"), ("ID",)),
            f"{command}: ID before the last rule": ((*two, *LEASES, "ID", "a", *BUCKET), ()),
            f"{command}: XX twice": ((*two, *BUCKET, *LEASES, "ID", "a", "XX", "XX"), ("XX",)),
            f"{command}: MAXWAIT twice": ((*two, *BUCKET, *QUOTA, *wait, *wait), ("MAXWAIT",)),
            f"{command}: MAXWAIT before the last rule": ((*two, *BUCKET, *wait, *QUOTA), ()),
            f"{command}: MAXWAIT without a value": ((*two, *QUOTA, *BUCKET, "MAXWAIT"), ("MAXWAIT", *WAIT_BOUNDS)),
            f"{command}: ATLEAST": ((*two, *QUOTA, *BUCKET, *cost, "ATLEAST", "1"), ()),
            f"{command}: COST of a lease": ((*two, *QUOTA, *LEASES, *cost, "ID", "a"), ()),
            f"{command}: SHADOW twice": ((*two, *QUOTA, *BUCKET, "SHADOW", "SHADOW"), ("SHADOW",)),
            f"{command}: SHADOW after NOW": ((*two, *QUOTA, *BUCKET, *NOW, "SHADOW"), ()),
            f"{command}: RELEASE of a bucket": ((*two, *LEASES, *BUCKET, "RELEASE", "ID", "a"), ()),
            f"{command}: a quota without a period": ((*two, *BUCKET, "QUOTA", "10"), ("rule",)),
            f"{command}: leases without a length": ((*two, *BUCKET, "CONCURRENCY", "10"), ("rule",)),
            f"{command}: an end without a time": ((*two, *BUCKET, "QUOTA", "10", "UNTIL"), ("UNTIL",)),
            f"{command}: FORCE with COST": ((*two, *BUCKET, *QUOTA, *force, *cost), ("FORCE",)),
            f"{command}: an unknown kind": ((*two, *BUCKET, "LEAKY", "1", "1"), ("QUOTA", "CONCURRENCY")),
            f"{command}: a key named twice": ((command, "2", KEY, KEY, *QUOTA, *LEASES, "ID", "a"), ("key",)),
        }
    cases |= {
        "RL.ALL_RO: FORCE": (("RL.ALL_RO", "2", *KEYS, *BUCKET, *QUOTA, *force, *NOW), ("FORCE",)),
        "RL.ALL_RO: REFUND": (("RL.ALL_RO", "2", *KEYS, *BUCKET, *QUOTA, *refund, *NOW), ("REFUND",)),
        "RL.ALL_RO: RELEASE": (("RL.ALL_RO", "2", *KEYS, *BUCKET, *LEASES, "RELEASE", "ID", "a"), ("RELEASE",)),
        "RL.ALL: RELEASE twice": ((*ALL_OF_TWO, *BUCKET, *LEASES, "RELEASE", "RELEASE", "ID", "a"), ("RELEASE",)),
    }
    return cases


MALFORMED = malformed()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("why", MALFORMED)
def test_a_malformed_call_is_refused_with_what_is_wrong_and_no_trace(
    observed: ObservedServer, why: str, state: str, tally: Tally
) -> None:
    set_up(observed, state)
    call, names = MALFORMED[why]
    message = refused(observed, call)
    assert not lacking(message, names), f"{message!r} does not say {lacking(message, names)}"
    tally.add("errors", 1, "refused calls without a trace")


TOO_FEW: list[Words] = [
    ("RL.QUOTA",),
    ("RL.QUOTA", KEY),
    ("RL.QUOTA", KEY, "10"),
    ("RL.QUOTA_RO", KEY, "10"),
    ("RL.CONCURRENCY", KEY, "10", "60"),
    ("RL.CONCURRENCY_RO", KEY, "10"),
    ("RL.RELEASE",),
    ("RL.RELEASE", KEY),
]


@pytest.mark.parametrize("call", TOO_FEW, ids=lambda call: f"{call[0]} {len(call)}")
def test_too_few_words_are_refused(observed: ObservedServer, call: Words) -> None:
    refused(observed, call)


#: Calls at the ends of the ranges, in odd orders and cases, and what they answer first.
ACCEPTED: dict[str, tuple[Words, list[int]]] = {
    "the largest limit": (("RL.QUOTA", KEY, "9007199254740992", "60", *NOW), [1, 2**53 - 1]),
    "the smallest limit": (("RL.QUOTA", KEY, "0", "60", *NOW), [0, 0]),
    "the shortest period": (("RL.QUOTA", KEY, "1", "1e-3", *NOW, "MS"), [1, 0, 1]),
    "the longest period": (("RL.QUOTA", KEY, "1", "9007199254740.992", *NOW, "MS"), [1, 0, 2**53 - 1]),
    "a fraction of a limit": (("RL.QUOTA", KEY, "2.5", "60", "COST", "0.25", *NOW), [1, 2]),
    "the earliest anchor": (("RL.QUOTA", KEY, "1", "MONTH", "ANCHOR", "0", *NOW), [1, 0]),
    "the latest anchor": (("RL.QUOTA", KEY, "1", "YEAR", "ANCHOR", 2**53, *NOW), [1, 0]),
    "the latest end": (("RL.QUOTA", KEY, "1", "UNTIL", 2**53, *NOW, "MS"), [1, 0, 2**53 - TODAY_MS]),
    "the latest NOW": (("RL.QUOTA", KEY, "1", "MONTH", "NOW", 2**53), [1, 0]),
    "units in any case": (("RL.QUOTA", KEY, "1", "mOnTh", "anchor", "0", "ms", "now", TODAY_MS), [1, 0]),
    "the anchor last": (("RL.QUOTA", KEY, "2", "DAY", *NOW, "COST", "2", "MS", "ANCHOR", "0"), [1, 0]),
    "an end in any case": (("RL.QUOTA", KEY, "2", "until", TODAY_MS + 5, "MS", *NOW), [1, 1, 5, 0]),
    "force in any case": (("RL.TOKENBUCKET", KEY, "10", "1", "force", "3", *NOW), [1, 7]),
    "the longest wait": (("RL.TOKENBUCKET", KEY, "10", "1", "maxwait", "9007199254740.992", *NOW), [1, 9]),
    "no wait": (("RL.TOKENBUCKET", KEY, "10", "1", *NOW, "MAXWAIT", "0"), [1, 9]),
    "at least all of it": (("RL.SLIDING", KEY, "10", "60", "atleast", "3", "COST", "3", *NOW), [1, 7]),
    "at least one of all": (("RL.QUOTA", KEY, "10", "60", "COST", 2**53, "ATLEAST", "1", *NOW, "MS"), [1, 0, 60_000, 0, 10]),
    "the shortest lease": (("RL.CONCURRENCY", KEY, "1", "0.001", "ID", "a", *NOW, "MS"), [1, 0, 1, 0]),
    "the most leases": (("RL.CONCURRENCY", KEY, "9007199254740992", "60", "ID", "a", *NOW), [1, 2**53 - 1]),
    "no leases": (("RL.CONCURRENCY", KEY, "0", "60", "ID", "a", *NOW), [0, 0]),
    "an id of all bytes": (("RL.CONCURRENCY", KEY, "2", "60", "ID", bytes(range(256)) * 2, *NOW), [1, 1]),
    "an id that is a keyword": (("RL.CONCURRENCY", KEY, "2", "60", "ID", "XX", *NOW), [1, 1]),
    "options of leases in any order": (("RL.CONCURRENCY", KEY, "2", "60", "ms", *NOW, "id", "a"), [1, 1, 60_000, 0]),
    "a lease rounded to milliseconds": (("RL.CONCURRENCY", KEY, "2", "0.0024", "ID", "a", *NOW, "MS"), [1, 1, 2, 0]),
    "a period rounded to milliseconds": (("RL.QUOTA", KEY, "2", "0.0024", *NOW, "MS"), [1, 1, 2, 0]),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_ends_of_each_range_and_odd_orders_are_accepted(raw: RawConnection, name: str) -> None:
    call, expected = ACCEPTED[name]
    reply = raw.call(*call)
    assert isinstance(reply, list), reply
    assert reply[: len(expected)] == expected


def test_the_options_of_all_may_appear_in_any_order(raw: RawConnection) -> None:
    rules = (*BUCKET, "SHADOW", "FORCE", "2", *LEASES, *QUOTA, "ANCHOR", "0", "cost", "3", "shadow")
    keys = ("3", "b", "c", "q")
    expected = [1, [1, 8, 2000, 0], [1, 9, 60_000, 0], [1, 7, 60_000 - TODAY_MS % 60_000, 0]]
    assert raw.call("RL.ALL", *keys, *rules, "ID", "a", "MAXWAIT", "1", *NOW, "MS") == expected
    raw.call("FLUSHALL")
    assert raw.call("rl.all", *keys, *rules, "ms", *NOW, "maxwait", "1", "id", "a") == expected
