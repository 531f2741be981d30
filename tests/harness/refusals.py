"""Calls that must be refused: each argument of each command with everything it does not accept."""

from dataclasses import dataclass

from .clock import TODAY_MS
from .connection import Word

KEY = b"key"
OTHER_KEY = b"other"
KEYS = (KEY, OTHER_KEY)

#: Never a decimal number, whatever the range.
NOT_DECIMAL: list[bytes] = [
    b"", b" ", b".", b"-", b"+", b"e", b"e5", b"1e", b"1e+", b"1e1.5", b"1.2.3", b"1,5", b"1_000", b"1'000",
    b"+1", b"-1", b"-0", b"+0", b"-0.5", b"-.5", b"-1e-3",
    b"inf", b"+inf", b"-inf", b"Inf", b"infinity", b"INFINITY", b"nan", b"NaN", b"-nan", b"nan(1)",
    b"0x10", b"0X1p3", b"0b1", b"0o7", b"1f", b"1d", b"1L", b"10%", b"ten", b"1/2",
    b" 1", b"1 ", b"\t1", b"1\n", b"1\r\n", b"1 2",
    b"\x001", b"1\x00", b"1\x002", b"\x00", b"\xff", b"1\xff", b"\xc3\x28", "١".encode(), "１".encode(), "½".encode(),
    b"--1", b"++1", b"1-", b"1e--1", b"(1", b"$1", b"1" * 400, b"9" * 100_000,
]  # fmt: skip

#: Decimal numbers above 2^53.
TOO_LARGE: list[bytes] = [
    b"9007199254740994", b"9007199254740993.5", b"9.1e15", b"1e16", b"1e308", b"1e400", b"1e99999999999999999999",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9" * 40,
]  # fmt: skip

#: Above 2^53 too, though the nearest double is 2^53 itself.
TOO_LARGE_BUT_ROUNDED: list[bytes] = [b"9007199254740993", b"9007199254740992.5", b"9.007199254740993e15"]

WINDOW_OUT_OF_RANGE: list[bytes] = [
    b"0", b"0.0", b"0.0009", b"0.000999999", b"1e-4", b"1e-400", b"5e-324",
    b"9007199254741", b"9.1e12", b"1e13", b"1e400", b"9007199254740992",
]  # fmt: skip

NOT_AN_INTEGER: list[bytes] = [b"1.0", b"1.5", b".5", b"1e3", b"0.0", b"1751662800000.5"]

AMOUNT_BOUNDS = ("0", "9007199254740992")
WINDOW_BOUNDS = ("0.001", "9007199254740.992")

#: By argument: what it refuses, and what the message must say of its range.
ARGUMENTS: dict[str, tuple[list[bytes], tuple[str, ...]]] = {
    "capacity": (NOT_DECIMAL + TOO_LARGE, AMOUNT_BOUNDS),
    "refill_rate": (NOT_DECIMAL + TOO_LARGE, AMOUNT_BOUNDS),
    "limit": (NOT_DECIMAL + TOO_LARGE, AMOUNT_BOUNDS),
    "window": (NOT_DECIMAL + WINDOW_OUT_OF_RANGE, WINDOW_BOUNDS),
    "COST": (NOT_DECIMAL + TOO_LARGE, AMOUNT_BOUNDS),
    "REFUND": (NOT_DECIMAL + TOO_LARGE, AMOUNT_BOUNDS),
    "AT": (NOT_DECIMAL + TOO_LARGE + NOT_AN_INTEGER, AMOUNT_BOUNDS),
    "NOW": (NOT_DECIMAL + TOO_LARGE + NOT_AN_INTEGER, AMOUNT_BOUNDS),
    "numkeys": (NOT_DECIMAL + TOO_LARGE + NOT_AN_INTEGER + [b"0", b"00", b"01", b"02", b"11"], ("1",)),
}

PARAMETERS = {"TOKENBUCKET": ("capacity", "refill_rate"), "SLIDING": ("limit", "window")}
FAMILIES = tuple(PARAMETERS)
SINGLE_COMMANDS = [f"RL.{family}{form}" for family in FAMILIES for form in ("", "_RO")]
ALL_COMMANDS = ["RL.ALL", "RL.ALL_RO"]


@dataclass(frozen=True)
class Shape:
    """A well-formed call with one place in it for the argument's value."""

    command: str
    argument: str
    before: tuple[Word, ...]
    after: tuple[Word, ...]

    def call(self, value: bytes) -> list[Word]:
        return [self.command, *self.before, value, *self.after]

    def __str__(self) -> str:
        return f"{self.command} {self.argument}"


def _options(command: str) -> list[str]:
    return ["COST"] if command.endswith("_RO") else ["COST", "REFUND"]


def _rule_shapes(command: str, family: str, before: tuple[Word, ...], after: tuple[Word, ...]) -> list[Shape]:
    first, second = PARAMETERS[family]
    shapes = [
        Shape(command, first, before, (b"1", *after)),
        Shape(command, second, (*before, b"10"), after),
    ]
    shapes += [Shape(command, option, (*before, b"10", b"1", option), after) for option in _options(command)]
    if "REFUND" in _options(command):
        shapes.append(Shape(command, "AT", (*before, b"10", b"1", "REFUND", b"1", "AT"), after))
    return shapes


def shapes() -> list[Shape]:
    """Each argument of each command; in RL.ALL, of the last of its rules."""
    result: list[Shape] = []
    now = ("NOW", TODAY_MS)
    for family in FAMILIES:
        for form in ("", "_RO"):
            command = f"RL.{family}{form}"
            result += _rule_shapes(command, family, (KEY,), now)
            result.append(Shape(command, "NOW", (KEY, b"10", b"1", "NOW"), ()))
            result.append(Shape(command, "NOW", (KEY, b"10", b"1", "MS", "NOW"), ("COST", b"1")))
    for command in ALL_COMMANDS:
        keys = (b"2", KEY, OTHER_KEY)
        for family in FAMILIES:
            result += _rule_shapes(command, family, (*keys, family, b"10", b"1", family), now)
        rules = ("TOKENBUCKET", b"10", b"1", "SLIDING", b"10", b"1")
        result.append(Shape(command, "NOW", (*keys, *rules, "NOW"), ()))
        result.append(Shape(command, "numkeys", (), (KEY, OTHER_KEY, *rules, *now)))
    return result


@dataclass(frozen=True)
class Malformed:
    """A call whose words do not make one, and what the message must name."""

    why: str
    call: tuple[Word, ...]
    names: tuple[str, ...] = ()


def malformed() -> list[Malformed]:
    """Keywords that are repeated, unknown, without a value or at odds; in RL.ALL, rules and keys that
    do not pair up."""
    result: list[Malformed] = []
    for command in SINGLE_COMMANDS:
        start = (command, KEY, "10", "1")
        result += [
            Malformed("COST twice", (*start, "COST", "1", "COST", "1"), ("COST",)),
            Malformed("COST twice in different case", (*start, "COST", "1", "NOW", TODAY_MS, "cost", "2"), ("COST",)),
            Malformed("NOW twice", (*start, "NOW", TODAY_MS, "NOW", TODAY_MS), ("NOW",)),
            Malformed("MS twice", (*start, "MS", "MS"), ("MS",)),
            Malformed("COST without a value", (*start, "COST"), ("COST", *AMOUNT_BOUNDS)),
            Malformed("NOW without a value", (*start, "COST", "1", "NOW"), ("NOW", *AMOUNT_BOUNDS)),
            Malformed("a keyword for COST's value", (*start, "COST", "NOW", TODAY_MS), ("COST", *AMOUNT_BOUNDS)),
            Malformed("an unknown keyword", (*start, "COSTS", "1"), ("COST", "NOW", "MS")),
            Malformed("an unknown last keyword", (*start, "NOW", TODAY_MS, "SECONDS"), ("COST", "NOW", "MS")),
            Malformed("a keyword with a NUL byte", (*start, b"COST\x00", "1"), ("COST", "NOW", "MS")),
            Malformed("a keyword that is not UTF-8", (*start, b"\xff\xfe", "1"), ("COST", "NOW", "MS")),
            Malformed("an empty keyword", (*start, b""), ("COST", "NOW", "MS")),
            Malformed("a third parameter", (*start, "1"), ("COST", "NOW", "MS")),
            Malformed("a megabyte for a keyword", (*start, b"x" * 2**20), ("COST", "NOW", "MS")),
        ]
        if command.endswith("_RO"):
            result += [
                Malformed("REFUND in a preview", (*start, "REFUND", "1"), ("REFUND",)),
                Malformed("REFUND AT in a preview", (*start, "REFUND", "1", "AT", TODAY_MS), ("REFUND",)),
                Malformed("AT in a preview", (*start, "AT", TODAY_MS), ("REFUND",)),
            ]
        else:
            result += [
                Malformed("COST with REFUND", (*start, "COST", "1", "REFUND", "1"), ("COST", "REFUND")),
                Malformed("REFUND with COST", (*start, "REFUND", "1", "NOW", TODAY_MS, "COST", "1"), ("COST", "REFUND")),
                Malformed("REFUND twice", (*start, "REFUND", "1", "REFUND", "1"), ("REFUND",)),
                Malformed("REFUND without a value", (*start, "REFUND"), ("REFUND", *AMOUNT_BOUNDS)),
                Malformed("AT without REFUND", (*start, "AT", TODAY_MS), ("AT", "REFUND")),
                Malformed("AT with COST", (*start, "COST", "1", "AT", TODAY_MS), ("AT", "REFUND")),
                Malformed("AT twice", (*start, "REFUND", "1", "AT", TODAY_MS, "AT", TODAY_MS), ("AT",)),
                Malformed("AT without a value", (*start, "REFUND", "1", "AT"), ("AT", *AMOUNT_BOUNDS)),
                Malformed("a keyword for AT's value", (*start, "REFUND", "1", "AT", "NOW", TODAY_MS), ("AT", *AMOUNT_BOUNDS)),
            ]
    bucket, sliding, now = ("TOKENBUCKET", "10", "1"), ("SLIDING", "10", "1"), ("NOW", TODAY_MS)
    for command in ALL_COMMANDS:
        two = (command, "2", KEY, OTHER_KEY)
        result += [
            Malformed("a rule too few", (*two, *bucket, *now), ("rule",)),
            Malformed("a rule too many", (*two, *bucket, *sliding, *bucket, *now), ("NOW", "MS")),
            Malformed("a rule cut short", (*two, *bucket, "SLIDING", "10"), ("rule",)),
            Malformed("an unknown algorithm", (*two, *bucket, "LEAKY", "10", "1"), ("TOKENBUCKET", "SLIDING")),
            Malformed("NOW before the last rule", (*two, *bucket, *now, *sliding), ("rule",)),
            Malformed("a key named twice", (command, "2", KEY, KEY, *bucket, *sliding, *now), ("duplicate key",)),
            Malformed("COST twice in a rule", (*two, *bucket, "COST", "1", "COST", "1", *sliding), ("COST",)),
            Malformed("COST without a value", (*two, *bucket, *sliding, "COST"), ("COST", *AMOUNT_BOUNDS)),
            Malformed("NOW twice", (*two, *bucket, *sliding, *now, *now), ("NOW",)),
            Malformed("MS twice", (*two, *bucket, *sliding, "MS", "MS"), ("MS",)),
            Malformed("COST after NOW", (*two, *bucket, *sliding, *now, "COST", "1"), ("NOW", "MS")),
            Malformed("an unknown last word", (*two, *bucket, *sliding, "SECONDS"), ("NOW", "MS")),
            Malformed("fewer keys than numkeys says", (command, "9", KEY, OTHER_KEY, *bucket), ("numkeys",)),
        ]
    refund, at = ("REFUND", "1"), ("AT", TODAY_MS)
    two = ("RL.ALL", "2", KEY, OTHER_KEY, *sliding)
    result += [
        Malformed("AT without REFUND", (*two, *sliding, *at, *now), ("AT", "REFUND")),
        Malformed("AT without REFUND in the first rule", (*two, *at, *sliding, *refund, *now), ("AT", "REFUND")),
        Malformed("AT twice", (*two, *sliding, *refund, *at, *at, *now), ("AT",)),
        Malformed("AT without a value", (*two, *sliding, *refund, "AT"), ("AT", *AMOUNT_BOUNDS)),
        Malformed("AT after NOW", (*two, *sliding, *refund, *now, *at), ("NOW", "MS")),
        Malformed("REFUND AT in a preview", ("RL.ALL_RO", "1", KEY, *sliding, *refund, *at, *now), ("REFUND",)),
        Malformed("AT in a preview", ("RL.ALL_RO", "1", KEY, *sliding, *at, *now), ("REFUND",)),
        Malformed("COST with REFUND", ("RL.ALL", "1", KEY, *bucket, "COST", "1", *refund, *now), ("COST", "REFUND")),
        Malformed("REFUND in a preview", ("RL.ALL_RO", "1", KEY, *bucket, *refund, *now), ("REFUND",)),
    ]
    return result
