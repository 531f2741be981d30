//! The periods that a quota counts in: when a period starts and when it ends.
//!
//! Times are UTC in the proleptic Gregorian calendar, without leap seconds. Every day has 86,400,000 ms,
//! every week seven days, every year twelve months. So there are two kinds of step: a fixed length, and
//! whole months. Periods are counted from an anchor, in both directions; without one, from 1970.
//!
//! `NOW` reaches the year 287,396, far beyond most date crates, and none counts periods from an anchor.
//! Hence a page of arithmetic, which the tests compare with such a crate.

/// The periods that a quota counts in. Anchors are Unix times in ms, 0 to 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// `seconds`: all of one length. Without an anchor, a period starts with its first counted call.
    Length {
        /// 1 to 2^53.
        length_ms: i64,
        /// `ANCHOR`: a time at which one of the periods starts.
        anchor_ms: Option<i64>,
    },
    /// `DAY`, `WEEK`, `MONTH` or `YEAR`. Without an anchor, a period starts at 00:00 UTC: each day, on
    /// Monday, on the 1st, or on 1 January.
    Calendar {
        /// How long a period is.
        unit: Unit,
        /// `ANCHOR`: periods start at its time of day, on its weekday, day of the month, or month and
        /// day; on the last day of the month if that month is too short.
        anchor_ms: Option<i64>,
    },
    /// `UNTIL`: a period starts with its first counted call and ends when that call says.
    Until {
        /// Unix time in ms, later than now.
        end_ms: i64,
    },
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 24 hours.
    Day,
    /// Seven days.
    Week,
    /// 28 to 31 days.
    Month,
    /// Twelve months.
    Year,
}

/// When a period starts and ends: Unix times in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first millisecond of the period. It may be negative, but is above -2^53.
    pub start_ms: i64,
    /// The first millisecond of the next one, at most 2^54.
    pub end_ms: i64,
}

const DAY_MS: i64 = 86_400_000;
const WEEK_MS: i64 = 7 * DAY_MS;

/// 1970 began on a Thursday.
const FIRST_MONDAY_MS: i64 = 4 * DAY_MS;

const MONTHS_IN_YEAR: i64 = 12;

impl Period {
    /// The period that a call at `now_ms` opens, 0 to 2^53: `start_ms <= now_ms < end_ms`.
    ///
    /// ```
    /// use limiter::calendar::{Period, Span, Unit};
    ///
    /// let month = Period::Calendar { unit: Unit::Month, anchor_ms: None };
    /// let july = Span { start_ms: 1_751_328_000_000, end_ms: 1_754_006_400_000 };
    /// assert_eq!(month.containing(1_751_662_800_000), july); // 4 July 2025, 21:00
    /// ```
    pub fn containing(self, now_ms: i64) -> Span {
        match self {
            Self::Length {
                length_ms,
                anchor_ms,
            } => by_length(length_ms, anchor_ms.unwrap_or(now_ms), now_ms),
            Self::Calendar { unit, anchor_ms } => match unit {
                Unit::Day => by_length(DAY_MS, anchor_ms.unwrap_or(0), now_ms),
                Unit::Week => by_length(WEEK_MS, anchor_ms.unwrap_or(FIRST_MONDAY_MS), now_ms),
                Unit::Month => by_months(1, anchor_ms.unwrap_or(0), now_ms),
                Unit::Year => by_months(MONTHS_IN_YEAR, anchor_ms.unwrap_or(0), now_ms),
            },
            Self::Until { end_ms } => Span {
                start_ms: now_ms,
                end_ms,
            },
        }
    }
}

/// The period that contains `now_ms`, if one starts at the anchor + k * `length_ms` for every integer k.
fn by_length(length_ms: i64, anchor_ms: i64, now_ms: i64) -> Span {
    let start_ms = now_ms - (now_ms - anchor_ms).rem_euclid(length_ms);
    Span {
        start_ms,
        end_ms: start_ms + length_ms,
    }
}

/// The period that contains `now_ms`, if one starts k * `step` months after the anchor for every integer k.
fn by_months(step: i64, anchor_ms: i64, now_ms: i64) -> Span {
    let anchor_day = anchor_ms / DAY_MS;
    let anchor_month = month_of(anchor_day);
    let days_into_month = anchor_day - first_day_of(anchor_month);
    // Always counted from the anchor: 31 January and 28 February are followed by 31 March.
    let start_ms = |k: i64| {
        let month = anchor_month + k * step;
        let last_day = first_day_of(month + 1) - 1;
        let day = (first_day_of(month) + days_into_month).min(last_day);
        day * DAY_MS + anchor_ms % DAY_MS
    };
    // The last period that starts in the month of now or earlier. If it starts in that very month, that
    // may be after now, and now is in the period before.
    let latest = (month_of(now_ms / DAY_MS) - anchor_month).div_euclid(step);
    let k = if start_ms(latest) <= now_ms {
        latest
    } else {
        latest - 1
    };
    Span {
        start_ms: start_ms(k),
        end_ms: start_ms(k + 1),
    }
}

// Days are counted from 1 January 1970, months from March of the year 0. A year that starts in March ends
// with its leap day, and its months have 31, 30, 31, 30, 31 days over and over. So the number of days before
// a century, before a year of it and before a month of that takes one division each, rounded down:
//
//     before century c: 146,097 c / 4      before year y: 1,461 y / 4      before month m: (153 m + 2) / 5
//
// The inverse takes one too: floor((p n + q) / r) <= d if and only if n <= (r d + r - 1 - q) / p. See Cassio
// Neri and Lorenz Schneider, "Euclidean affine functions and their application to calendar algorithms".
// Plain division suffices: no period of months starts before 1969, so no dividend is negative.

/// From 1 March of the year 0 to 1 January 1970.
const DAYS_BEFORE_1970: i64 = 719_468;

/// The day on which `month` starts.
fn first_day_of(month: i64) -> i64 {
    let (year, month) = (month / MONTHS_IN_YEAR, month % MONTHS_IN_YEAR);
    let (century, year) = (year / 100, year % 100);
    century * 146_097 / 4 + year * 1_461 / 4 + (month * 153 + 2) / 5 - DAYS_BEFORE_1970
}

/// The month in which `day` lies.
fn month_of(day: i64) -> i64 {
    let day = day + DAYS_BEFORE_1970;
    let century = (day * 4 + 3) / 146_097;
    let day = day - century * 146_097 / 4;
    let year = (day * 4 + 3) / 1_461;
    let day = day - year * 1_461 / 4;
    let month = (day * 5 + 2) / 153;
    (century * 100 + year) * MONTHS_IN_YEAR + month
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::civil::{Date, DateTime};
    use jiff::{Timestamp, ToSpan, tz::Offset};
    use proptest::prelude::*;

    const MAX_MS: i64 = 1 << 53;

    /// 400 years: the calendar repeats after them, weekdays included.
    const CYCLE_MS: i64 = 146_097 * DAY_MS;

    /// From 2196 to 287396, the year of 2^53 ms.
    const FAR_CYCLES: i64 = 713;

    /// A day in the year 9995. Much later, the periods that are compared leave the range of jiff.
    const MAX_JIFF_MS: i64 = 253_250_000_000_000;

    const UNITS: [Unit; 4] = [Unit::Day, Unit::Week, Unit::Month, Unit::Year];

    fn calendar(unit: Unit) -> Period {
        Period::Calendar {
            unit,
            anchor_ms: None,
        }
    }

    fn anchored(unit: Unit, anchor_ms: i64) -> Period {
        Period::Calendar {
            unit,
            anchor_ms: Some(anchor_ms),
        }
    }

    /// Unix time in ms of a date and time, or of a date at 00:00.
    fn ms(utc: &str) -> i64 {
        let datetime: DateTime = utc.parse().unwrap();
        datetime_ms(datetime)
    }

    fn datetime_ms(datetime: DateTime) -> i64 {
        Offset::UTC.to_timestamp(datetime).unwrap().as_millisecond()
    }

    fn datetime(ms: i64) -> DateTime {
        Offset::UTC.to_datetime(Timestamp::from_millisecond(ms).unwrap())
    }

    fn span(start: &str, end: &str) -> Span {
        Span {
            start_ms: ms(start),
            end_ms: ms(end),
        }
    }

    #[test]
    fn days_weeks_months_and_years_start_where_the_calendar_says() {
        use Unit::{Day, Month, Week, Year};
        #[rustfmt::skip]
        let cases = [
            // now, unit, start, end
            ("1970-01-01", Day, "1970-01-01", "1970-01-02"),
            ("1970-01-01", Week, "1969-12-29", "1970-01-05"),
            ("1970-01-01", Month, "1970-01-01", "1970-02-01"),
            ("1970-01-01", Year, "1970-01-01", "1971-01-01"),
            ("2024-12-31T23:59:59.999", Day, "2024-12-31", "2025-01-01"),
            ("2024-12-31T23:59:59.999", Week, "2024-12-30", "2025-01-06"),
            ("2024-12-31T23:59:59.999", Month, "2024-12-01", "2025-01-01"),
            ("2024-12-31T23:59:59.999", Year, "2024-01-01", "2025-01-01"),
            ("2025-01-01", Day, "2025-01-01", "2025-01-02"),
            ("2025-01-01", Week, "2024-12-30", "2025-01-06"),
            ("2025-01-01", Month, "2025-01-01", "2025-02-01"),
            ("2025-01-01", Year, "2025-01-01", "2026-01-01"),
            ("2025-07-06T23:59:59.999", Week, "2025-06-30", "2025-07-07"), // a Sunday
            ("2025-07-07", Week, "2025-07-07", "2025-07-14"),              // a Monday
            ("2025-04-30T12:00", Month, "2025-04-01", "2025-05-01"),
            ("2025-08-31T12:00", Month, "2025-08-01", "2025-09-01"),
            // February of a leap year, of a common year, and of the years that end a century.
            ("2024-02-29T12:00", Day, "2024-02-29", "2024-03-01"),
            ("2024-02-29T12:00", Month, "2024-02-01", "2024-03-01"),
            ("2023-02-28T12:00", Month, "2023-02-01", "2023-03-01"),
            ("2000-02-29T12:00", Month, "2000-02-01", "2000-03-01"),
            ("2100-02-28T12:00", Day, "2100-02-28", "2100-03-01"),
            ("2100-02-28T12:00", Month, "2100-02-01", "2100-03-01"),
            ("2400-02-29T12:00", Month, "2400-02-01", "2400-03-01"),
            ("2000-12-31T12:00", Year, "2000-01-01", "2001-01-01"),
            ("2100-12-31T12:00", Year, "2100-01-01", "2101-01-01"),
        ];
        for (now, unit, start, end) in cases {
            let found = calendar(unit).containing(ms(now));
            assert_eq!(found, span(start, end), "the {unit:?} of {now}");
        }
    }

    #[test]
    fn an_anchor_moves_the_start_and_month_ends_clamp_it() {
        use Unit::{Day, Month, Week, Year};
        #[rustfmt::skip]
        let cases = [
            // anchor, unit, now, start, end
            ("2025-07-10T22:30", Day, "2025-07-04T22:29:59.999", "2025-07-03T22:30", "2025-07-04T22:30"),
            ("2025-07-10T22:30", Day, "2025-07-04T22:30", "2025-07-04T22:30", "2025-07-05T22:30"),
            ("2025-07-10T22:30", Day, "2030-01-01", "2029-12-31T22:30", "2030-01-01T22:30"),
            // A Saturday.
            ("2025-07-12T06:00", Week, "2025-07-04", "2025-06-28T06:00", "2025-07-05T06:00"),
            ("2025-07-12T06:00", Week, "2025-07-12T06:00", "2025-07-12T06:00", "2025-07-19T06:00"),
            ("2025-07-12T06:00", Week, "2026-01-01", "2025-12-27T06:00", "2026-01-03T06:00"),
            // The 15th: the day decides, then the time of day.
            ("2025-07-15T08:00", Month, "2025-07-15T07:59:59.999", "2025-06-15T08:00", "2025-07-15T08:00"),
            ("2025-07-15T08:00", Month, "2025-07-15T08:00", "2025-07-15T08:00", "2025-08-15T08:00"),
            ("2025-07-15T08:00", Month, "2026-01-01", "2025-12-15T08:00", "2026-01-15T08:00"),
            ("2025-07-15T08:00", Month, "2024-03-01", "2024-02-15T08:00", "2024-03-15T08:00"),
            // The 29th: only February of a common year is too short.
            ("2025-01-29", Month, "2025-02-27T23:59", "2025-01-29", "2025-02-28"),
            ("2025-01-29", Month, "2025-02-28", "2025-02-28", "2025-03-29"),
            ("2025-01-29", Month, "2024-02-28T23:59", "2024-01-29", "2024-02-29"),
            ("2025-01-29", Month, "2024-02-29", "2024-02-29", "2024-03-29"),
            // The 30th: every February.
            ("2024-11-30", Month, "2024-02-29", "2024-02-29", "2024-03-30"),
            ("2024-11-30", Month, "2025-01-31", "2025-01-30", "2025-02-28"),
            ("2024-11-30", Month, "2025-04-30", "2025-04-30", "2025-05-30"),
            // The 31st: every shorter month, and the clamped day does not stick.
            ("2024-01-31T10:00", Month, "2024-02-29T09:59:59.999", "2024-01-31T10:00", "2024-02-29T10:00"),
            ("2024-01-31T10:00", Month, "2024-02-29T10:00", "2024-02-29T10:00", "2024-03-31T10:00"),
            ("2024-01-31T10:00", Month, "2024-04-30T10:00", "2024-04-30T10:00", "2024-05-31T10:00"),
            ("2024-01-31T10:00", Month, "2025-03-01", "2025-02-28T10:00", "2025-03-31T10:00"),
            ("2024-01-31T10:00", Month, "2023-12-31T09:59", "2023-11-30T10:00", "2023-12-31T10:00"),
            ("2024-01-31T10:00", Month, "2023-03-01", "2023-02-28T10:00", "2023-03-31T10:00"),
            ("2024-01-31T10:00", Month, "2100-03-01", "2100-02-28T10:00", "2100-03-31T10:00"),
            ("2024-01-31T10:00", Month, "2000-03-01", "2000-02-29T10:00", "2000-03-31T10:00"),
            // A year is twelve months, so the day of the year is its month and day.
            ("2025-04-06", Year, "2024-04-05T23:59:59.999", "2023-04-06", "2024-04-06"),
            ("2025-04-06", Year, "2024-04-06", "2024-04-06", "2025-04-06"),
            ("2025-04-06", Year, "2031-04-01", "2030-04-06", "2031-04-06"),
            ("2024-12-31", Year, "2025-01-01", "2024-12-31", "2025-12-31"),
            ("2024-12-31", Year, "2020-12-30", "2019-12-31", "2020-12-31"),
            // 29 February: the 28th in common years.
            ("2024-02-29T18:00", Year, "2024-02-29T17:59", "2023-02-28T18:00", "2024-02-29T18:00"),
            ("2024-02-29T18:00", Year, "2025-02-28T18:00", "2025-02-28T18:00", "2026-02-28T18:00"),
            ("2024-02-29T18:00", Year, "2028-02-28T20:00", "2027-02-28T18:00", "2028-02-29T18:00"),
            ("2024-02-29T18:00", Year, "2100-12-31", "2100-02-28T18:00", "2101-02-28T18:00"),
            ("2024-02-29T18:00", Year, "2000-12-31", "2000-02-29T18:00", "2001-02-28T18:00"),
            // The period of the beginning of 1970 starts before it.
            ("2025-07-10T22:30", Day, "1970-01-01", "1969-12-31T22:30", "1970-01-01T22:30"),
            ("2024-01-31T10:00", Month, "1970-01-01", "1969-12-31T10:00", "1970-01-31T10:00"),
            ("2024-02-29T18:00", Year, "1970-01-01", "1969-02-28T18:00", "1970-02-28T18:00"),
            ("1971-01-01T00:01", Year, "1970-01-01", "1969-01-01T00:01", "1970-01-01T00:01"),
        ];
        for (anchor, unit, now, start, end) in cases {
            let found = anchored(unit, ms(anchor)).containing(ms(now));
            let case = format!("the {unit:?} of {now} from {anchor}");
            assert_eq!(found, span(start, end), "{case}");
        }
    }

    /// 2^53 ms are 12 October 287396, 08:59:00.992, a Wednesday.
    #[test]
    fn the_last_time_of_now_has_periods_too() {
        use Unit::{Day, Month, Week, Year};
        let far_ms = |utc| ms(utc) + FAR_CYCLES * CYCLE_MS;
        assert_eq!(far_ms("2196-10-12T08:59:00.992"), MAX_MS);
        #[rustfmt::skip]
        let cases = [
            (Day, None, "2196-10-12", "2196-10-13"),
            (Week, None, "2196-10-10", "2196-10-17"),
            (Month, None, "2196-10-01", "2196-11-01"),
            (Year, None, "2196-01-01", "2197-01-01"),
            (Month, Some(MAX_MS), "2196-10-12T08:59:00.992", "2196-11-12T08:59:00.992"),
            (Year, Some(MAX_MS), "2196-10-12T08:59:00.992", "2197-10-12T08:59:00.992"),
            (Month, Some(ms("2024-01-31T10:00")), "2196-09-30T10:00", "2196-10-31T10:00"),
            (Year, Some(ms("2024-02-29T18:00")), "2196-02-29T18:00", "2197-02-28T18:00"),
        ];
        for (unit, anchor_ms, start, end) in cases {
            let expected = Span {
                start_ms: far_ms(start),
                end_ms: far_ms(end),
            };
            let period = Period::Calendar { unit, anchor_ms };
            assert_eq!(period.containing(MAX_MS), expected, "{period:?}");
        }
        let first_day_from_the_last = anchored(Day, MAX_MS).containing(0);
        assert_eq!(
            first_day_from_the_last,
            span("1969-12-31T08:59:00.992", "1970-01-01T08:59:00.992")
        );
    }

    #[test]
    fn lengths_start_with_the_call_or_lie_at_the_anchor() {
        #[rustfmt::skip]
        let cases = [
            // length, anchor, now, start, end
            (60_000, None, 12_345, 12_345, 72_345),
            (1, None, 0, 0, 1),
            (MAX_MS, None, MAX_MS, MAX_MS, 2 * MAX_MS),
            (60_000, Some(15_000), 14_999, -45_000, 15_000),
            (60_000, Some(15_000), 15_000, 15_000, 75_000),
            (60_000, Some(15_000), 74_999, 15_000, 75_000),
            (60_000, Some(75_000), 14_999, -45_000, 15_000),
            (700, Some(900), 1_000, 900, 1_600),
            (1, Some(MAX_MS), 7, 7, 8),
            (MAX_MS, Some(MAX_MS), MAX_MS, MAX_MS, 2 * MAX_MS),
            (MAX_MS, Some(MAX_MS), MAX_MS - 1, 0, MAX_MS),
            (MAX_MS, Some(1), 0, 1 - MAX_MS, 1),
        ];
        for (length_ms, anchor_ms, now_ms, start_ms, end_ms) in cases {
            let period = Period::Length {
                length_ms,
                anchor_ms,
            };
            let expected = Span { start_ms, end_ms };
            assert_eq!(period.containing(now_ms), expected, "{period:?} {now_ms}");
        }
    }

    #[test]
    fn until_lasts_from_now_to_where_it_says() {
        let end_ms = MAX_MS;
        let expected = Span {
            start_ms: MAX_MS - 1,
            end_ms,
        };
        assert_eq!(Period::Until { end_ms }.containing(MAX_MS - 1), expected);
    }

    /// The period of `date` without an anchor, computed by jiff.
    fn by_jiff(unit: Unit, date: Date) -> Span {
        let (start, end) = match unit {
            Unit::Day => (date, date.tomorrow()),
            Unit::Week => {
                let monday = date
                    .checked_sub(date.weekday().to_monday_zero_offset().days())
                    .unwrap();
                (monday, monday.checked_add(1.week()))
            }
            Unit::Month => (date.first_of_month(), date.last_of_month().tomorrow()),
            Unit::Year => (date.first_of_year(), date.last_of_year().tomorrow()),
        };
        Span {
            start_ms: datetime_ms(start.into()),
            end_ms: datetime_ms(end.unwrap().into()),
        }
    }

    /// The calendar repeats after 400 years, and `periods_repeat_after_400_years` shows that of the code. So
    /// these are all the days there are.
    #[test]
    fn each_day_of_400_years_has_the_periods_that_jiff_gives_it() {
        let mut date = Date::constant(1970, 1, 1);
        for day in 0..CYCLE_MS / DAY_MS {
            for unit in UNITS {
                let found = calendar(unit).containing(day * DAY_MS);
                assert_eq!(found, by_jiff(unit, date), "the {unit:?} of {date}");
            }
            date = date.tomorrow().unwrap();
        }
        assert_eq!(date, Date::constant(2370, 1, 1));
    }

    /// `k` units after the anchor, computed by jiff.
    fn start_by_jiff(unit: Unit, anchor_ms: i64, k: i64) -> i64 {
        let step = match unit {
            Unit::Day => k.days(),
            Unit::Week => k.weeks(),
            Unit::Month => k.months(),
            Unit::Year => k.years(),
        };
        datetime_ms(datetime(anchor_ms).checked_add(step).unwrap())
    }

    /// The period that contains `now_ms`, computed by jiff: a guess at its number, and its neighbours.
    fn anchored_by_jiff(unit: Unit, anchor_ms: i64, now_ms: i64) -> Span {
        let (now, anchor) = (datetime(now_ms), datetime(anchor_ms));
        let years = i64::from(now.year()) - i64::from(anchor.year());
        let guess = match unit {
            Unit::Day => (now_ms - anchor_ms).div_euclid(DAY_MS),
            Unit::Week => (now_ms - anchor_ms).div_euclid(WEEK_MS),
            Unit::Month => years * 12 + i64::from(now.month()) - i64::from(anchor.month()),
            Unit::Year => years,
        };
        (guess - 1..=guess + 1)
            .map(|k| Span {
                start_ms: start_by_jiff(unit, anchor_ms, k),
                end_ms: start_by_jiff(unit, anchor_ms, k + 1),
            })
            .find(|span| (span.start_ms..span.end_ms).contains(&now_ms))
            .unwrap()
    }

    fn unit() -> impl Strategy<Value = Unit> {
        prop::sample::select(&UNITS[..])
    }

    /// Times up to `max_ms`: all of them, this century, and the days around the end of a month.
    fn time_ms(max_ms: i64) -> impl Strategy<Value = i64> {
        let month_end = (0..max_ms / DAY_MS - 40, -3..=3i64, 0..DAY_MS).prop_map(
            |(day, days_from_end, time_of_day_ms)| {
                let month_end_ms = calendar(Unit::Month).containing(day * DAY_MS).end_ms;
                month_end_ms + days_from_end * DAY_MS + time_of_day_ms
            },
        );
        prop_oneof![
            3 => 0..=max_ms,
            3 => month_end,
            2 => 1_700_000_000_000..1_900_000_000_000i64,
            1 => Just(0),
            1 => Just(max_ms),
        ]
    }

    /// Periods that do not depend on when the first call comes.
    fn fixed_period() -> impl Strategy<Value = Period> {
        let length_ms = prop_oneof![1..100_000i64, 1..=MAX_MS, Just(1), Just(MAX_MS)];
        prop_oneof![
            1 => unit().prop_map(calendar),
            4 => (unit(), time_ms(MAX_MS)).prop_map(|(unit, anchor_ms)| anchored(unit, anchor_ms)),
            2 => (length_ms, time_ms(MAX_MS)).prop_map(|(length_ms, anchor_ms)| Period::Length {
                length_ms,
                anchor_ms: Some(anchor_ms),
            }),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn periods_from_an_anchor_are_those_that_jiff_counts_from_it(
            unit in unit(),
            anchor_ms in time_ms(MAX_JIFF_MS),
            now_ms in time_ms(MAX_JIFF_MS),
        ) {
            let period = anchored(unit, anchor_ms);
            let found = period.containing(now_ms);
            prop_assert_eq!(found, anchored_by_jiff(unit, anchor_ms, now_ms));
            for boundary_ms in [found.start_ms, found.end_ms - 1, found.end_ms] {
                if boundary_ms >= 0 {
                    let expected = anchored_by_jiff(unit, anchor_ms, boundary_ms);
                    prop_assert_eq!(period.containing(boundary_ms), expected);
                }
            }
        }

        #[test]
        fn periods_tile_time_without_a_gap_or_an_overlap(
            period in fixed_period(),
            now_ms in time_ms(MAX_MS),
        ) {
            let found = period.containing(now_ms);
            prop_assert!((found.start_ms..found.end_ms).contains(&now_ms), "{:?}", found);
            prop_assert!(found.end_ms <= 2 * MAX_MS);
            prop_assert_eq!(period.containing(found.start_ms.max(0)), found);
            prop_assert_eq!(period.containing((found.end_ms - 1).min(MAX_MS)), found);
            if found.end_ms <= MAX_MS {
                prop_assert_eq!(period.containing(found.end_ms).start_ms, found.end_ms);
            }
            if found.start_ms > 0 {
                prop_assert_eq!(period.containing(found.start_ms - 1).end_ms, found.start_ms);
            }
        }

        #[test]
        fn a_later_call_never_opens_an_earlier_period(
            period in fixed_period(),
            now_ms in time_ms(MAX_MS),
            later in prop_oneof![0..40 * DAY_MS, 0..=MAX_MS],
        ) {
            let found = period.containing(now_ms);
            let next = period.containing((now_ms + later).min(MAX_MS));
            prop_assert!(next == found || next.start_ms >= found.end_ms);
        }

        /// So what agrees with jiff up to the year 9995 holds for the whole range of `NOW`.
        #[test]
        fn periods_repeat_after_400_years(
            unit in unit(),
            anchor_ms in prop::option::of(time_ms(MAX_MS)),
            now_ms in time_ms(MAX_MS - CYCLE_MS),
            cycles in 1..=FAR_CYCLES,
        ) {
            let cycles = cycles.min((MAX_MS - now_ms) / CYCLE_MS);
            let period = Period::Calendar { unit, anchor_ms };
            let found = period.containing(now_ms);
            let repeated = Span {
                start_ms: found.start_ms + cycles * CYCLE_MS,
                end_ms: found.end_ms + cycles * CYCLE_MS,
            };
            prop_assert_eq!(period.containing(now_ms + cycles * CYCLE_MS), repeated);
        }

        #[test]
        fn periods_from_anchors_400_years_apart_are_the_same(
            unit in unit(),
            anchor_ms in time_ms(MAX_MS - CYCLE_MS),
            now_ms in time_ms(MAX_MS),
            cycles in 1..=FAR_CYCLES,
        ) {
            let cycles = cycles.min((MAX_MS - anchor_ms) / CYCLE_MS);
            let found = anchored(unit, anchor_ms + cycles * CYCLE_MS).containing(now_ms);
            prop_assert_eq!(found, anchored(unit, anchor_ms).containing(now_ms));
        }

        #[test]
        fn a_length_without_an_anchor_starts_with_the_call(
            length_ms in 1..=MAX_MS,
            now_ms in time_ms(MAX_MS),
        ) {
            let period = Period::Length { length_ms, anchor_ms: None };
            let expected = Span { start_ms: now_ms, end_ms: now_ms + length_ms };
            prop_assert_eq!(period.containing(now_ms), expected);
        }
    }
}
