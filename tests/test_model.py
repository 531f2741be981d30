"""The model of the harness itself, against cases and calendars that were worked out by hand."""

import json
from pathlib import Path

import pytest

from harness import periods
from harness.model import Model, Refused
from harness.periods import Period
from harness.periods import ms_of_date as ms

FILES = ("cases.json", "cases-kinds.json")
CASES = [case for name in FILES for case in json.loads((Path(__file__).parent / name).read_text())]


def answer(model: Model, call: list[str]) -> object:
    """What a server with nothing but the model in it would say."""
    command, *words = call
    if command in ("EXISTS", "ZCARD"):
        held = model.limiters.get(words[0].encode())
        return int(held is not None) if command == "EXISTS" else len(held or {})
    try:
        return model.call(command, *words)
    except Refused:
        return "-ERR"


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_model_gives_each_reply_of_a_case(case: dict) -> None:
    model = Model()
    for number, (call, expected) in enumerate(zip(case["calls"], case["replies"]), 1):
        if call[0] not in ("GET", "DEL", "SET"):
            assert answer(model, call) == expected, f"call {number}: {' '.join(call)}"


#: Unit, anchor, now, and the period of now.
SPANS: dict[str, tuple[str, str | None, str, str, str]] = {
    "a day": ("DAY", None, "2025-07-04T21:00:00", "2025-07-04", "2025-07-05"),
    "the last millisecond of a day": ("DAY", None, "2025-07-04T23:59:59.999", "2025-07-04", "2025-07-05"),
    "the first day of all": ("DAY", None, "1970-01-01", "1970-01-01", "1970-01-02"),
    "a day from an hour": ("DAY", "2031-05-05T06:30", "2025-07-04T06:29:59.999", "2025-07-03T06:30", "2025-07-04T06:30"),
    "a week": ("WEEK", None, "2025-07-04T21:00:00", "2025-06-30", "2025-07-07"),
    "a week begins": ("WEEK", None, "2025-07-07", "2025-07-07", "2025-07-14"),
    "the week of the first day": ("WEEK", None, "1970-01-01", "1969-12-29", "1970-01-05"),
    "a week from a Wednesday": ("WEEK", "2025-07-02T12:00", "2025-07-02T11:59", "2025-06-25T12:00", "2025-07-02T12:00"),
    "February of a leap year": ("MONTH", None, "2024-02-29T23:59:59.999", "2024-02-01", "2024-03-01"),
    "February of another year": ("MONTH", None, "2023-02-28T23:59:59.999", "2023-02-01", "2023-03-01"),
    "no leap year": ("MONTH", None, "2100-02-28T23:59:59.999", "2100-02-01", "2100-03-01"),
    "a month over the year's end": ("MONTH", "2020-05-15", "2025-12-31", "2025-12-15", "2026-01-15"),
    "a month before 1970": ("MONTH", "2020-05-15", "1970-01-01", "1969-12-15", "1970-01-15"),
    "the 31st in a leap year": ("MONTH", "2024-01-31T10:00", "2024-02-29T10:00", "2024-02-29T10:00", "2024-03-31T10:00"),
    "the 31st in another year": ("MONTH", "2024-01-31T10:00", "2025-02-28T10:00", "2025-02-28T10:00", "2025-03-31T10:00"),
    "before the 31st": ("MONTH", "2024-01-31T10:00", "2024-02-29T09:59:59.999", "2024-01-31T10:00", "2024-02-29T10:00"),
    "the 31st in April": ("MONTH", "2024-01-31", "2025-05-30", "2025-04-30", "2025-05-31"),
    "the 30th in February": ("MONTH", "2023-11-30", "2023-02-28", "2023-02-28", "2023-03-30"),
    "the 29th in February": ("MONTH", "2023-12-29", "2023-03-28", "2023-02-28", "2023-03-29"),
    "a year": ("YEAR", None, "2024-12-31T23:59:59.999", "2024-01-01", "2025-01-01"),
    "a year from a day": ("YEAR", "2019-04-06", "2025-04-05T23:59", "2024-04-06", "2025-04-06"),
    "a year from a leap day": ("YEAR", "2024-02-29T01:00", "2025-02-28T01:00", "2025-02-28T01:00", "2026-02-28T01:00"),
    "back to the leap day": ("YEAR", "2020-02-29", "2024-02-28", "2023-02-28", "2024-02-29"),
    "before the anchor's year": ("YEAR", "2024-02-29", "1972-02-28", "1971-02-28", "1972-02-29"),
}


@pytest.mark.parametrize("name", SPANS)
def test_a_calendar_period_is_the_one_worked_out_by_hand(name: str) -> None:
    unit, anchor, now, start, end = SPANS[name]
    period = Period(unit=unit, anchor_ms=ms(anchor) if anchor else None)
    assert period.opened_at(ms(now)) == (ms(start), ms(end))


@pytest.mark.parametrize("cycles", [0, 1, 20, 710])
@pytest.mark.parametrize("anchor", [None, "1970-01-01", "2024-02-29T13:00:00.001", "2025-08-31", "1972-11-30"])
@pytest.mark.parametrize("unit", periods.UNITS)
def test_the_periods_of_a_calendar_follow_one_another_without_a_gap(unit: str, anchor: str | None, cycles: int) -> None:
    """Also far beyond the year 9999, up to which the calendar of Python is asked in steps of 400 years."""
    period = Period(unit=unit, anchor_ms=ms(anchor) if anchor else None)
    start, end = period.opened_at(ms("2023-12-31") + cycles * periods.CYCLE_MS)
    for _ in range(120):
        assert period.opened_at(start) == period.opened_at(end - 1) == (start, end)
        next_start, next_end = period.opened_at(end)
        assert next_start == end
        start, end = next_start, next_end
