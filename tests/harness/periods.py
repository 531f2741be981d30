"""When the period of a quota begins and ends.

Written from docs/design.md alone. Python's calendar ends with the year 9999, the times of a call long after it;
but the Gregorian calendar repeats every 400 years, days of the week included, so each time is looked at in
the 400 years from 2000 on.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

DAY_MS = 86_400_000
CYCLE_YEARS = 400
CYCLE_DAYS = 146_097
CYCLE_MS = CYCLE_DAYS * DAY_MS
FIRST_YEAR = 2000
MONTHS = 12
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
MONDAY_MS = 4 * DAY_MS

DAY, WEEK, MONTH, YEAR = "DAY", "WEEK", "MONTH", "YEAR"
UNITS = (DAY, WEEK, MONTH, YEAR)
SHIFTS = {DAY: DAY_MS, WEEK: 7 * DAY_MS}
MONTHS_OF_A_UNIT = {MONTH: 1, YEAR: MONTHS}

Span = tuple[int, int]


def unix_ms(date: datetime) -> int:
    return (date - EPOCH) // timedelta(milliseconds=1)


def ms_of_date(date: str) -> int:
    """Unix milliseconds of an ISO date, which may be before 1970."""
    return unix_ms(datetime.fromisoformat(date).replace(tzinfo=UTC))


FIRST_MS = unix_ms(FIRST)


@dataclass(frozen=True)
class Moment:
    """A time as the calendar shows it: months since the year 0, the day of the month, ms of the day."""

    month: int
    day: int
    ms_of_day: int


def shown(ms: int) -> Moment:
    cycle, rest = divmod(ms - FIRST_MS, CYCLE_MS)
    date = FIRST + timedelta(milliseconds=rest)
    year = date.year + CYCLE_YEARS * cycle
    return Moment(year * MONTHS + date.month - 1, date.day, rest % DAY_MS)


def first_of_month_ms(month: int) -> int:
    """00:00 on the first day of a month that is counted since the year 0."""
    year, month_of_year = divmod(month, MONTHS)
    cycle, year_of_cycle = divmod(year - FIRST_YEAR, CYCLE_YEARS)
    date = datetime(FIRST_YEAR + year_of_cycle, month_of_year + 1, 1, tzinfo=UTC)
    return unix_ms(date) + cycle * CYCLE_MS


def in_month_ms(month: int, moment: Moment) -> int:
    """The day and the time of `moment` in another month, on its last day if it is too short."""
    days = (first_of_month_ms(month + 1) - first_of_month_ms(month)) // DAY_MS
    return first_of_month_ms(month) + (min(moment.day, days) - 1) * DAY_MS + moment.ms_of_day


def even(length_ms: int, anchor_ms: int, now_ms: int) -> Span:
    start_ms = anchor_ms + (now_ms - anchor_ms) // length_ms * length_ms
    return start_ms, start_ms + length_ms


def of_calendar(unit: str, anchor_ms: int | None, now_ms: int) -> Span:
    """The period of `now_ms` that `unit` gives: from its natural beginning, or counted from the anchor."""
    if unit in SHIFTS:
        natural_ms = MONDAY_MS if unit == WEEK else 0
        return even(SHIFTS[unit], natural_ms if anchor_ms is None else anchor_ms, now_ms)
    anchor = shown(0 if anchor_ms is None else anchor_ms)
    months = MONTHS_OF_A_UNIT[unit]

    def start_ms(number: int) -> int:
        return in_month_ms(anchor.month + number * months, anchor)

    number = (shown(now_ms).month - anchor.month) // months
    # The month of now is right, but for the days before that of the anchor.
    number -= start_ms(number) > now_ms
    assert start_ms(number) <= now_ms < start_ms(number + 1)
    return start_ms(number), start_ms(number + 1)


@dataclass(frozen=True)
class Period:
    """What a call says of the period that it would open: one of a length in ms, a unit or an end."""

    length_ms: int | None = None
    unit: str | None = None
    until_ms: int | None = None
    anchor_ms: int | None = None

    def opened_at(self, now_ms: int) -> Span:
        if self.unit is not None:
            return of_calendar(self.unit, self.anchor_ms, now_ms)
        if self.until_ms is not None:
            return now_ms, self.until_ms
        assert self.length_ms is not None
        if self.anchor_ms is not None:
            return even(self.length_ms, self.anchor_ms, now_ms)
        return now_ms, now_ms + self.length_ms
