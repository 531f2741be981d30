"""What redis-cell replies by its README: the generic cell rate algorithm, in whole numbers alone.

Of a key it keeps one time: when its limit will be whole again. Each of `quantity` moves that time by the
emission interval, period / count; a call is limited if that would put it further ahead than the whole burst
lasts. Times are counted in `count`-ths of a millisecond, in which the interval is a whole number.
"""

MS_PER_S = 1000


class RedisCell:
    """One key, under one rule."""

    def __init__(self, max_burst: int, count: int, period_s: int) -> None:
        self.limit = max_burst + 1
        self.units_per_ms = count
        self.interval = period_s * MS_PER_S
        self.whole_again = 0

    def call(self, quantity: int, now_ms: int) -> list[int]:
        """`[limited, limit, remaining, retry_after, reset_after]`."""
        now, burst = now_ms * self.units_per_ms, self.limit * self.interval
        found = max(now, self.whole_again)
        asked = found + quantity * self.interval
        too_far = asked - (now + burst)
        if too_far <= 0:
            # No more is given back than was taken.
            self.whole_again = max(now, asked)
        left = max(now, self.whole_again) - now
        can_ever_be = quantity <= self.limit
        return [
            int(too_far > 0),
            self.limit,
            max(0, (burst - left) // self.interval),
            self.seconds(too_far) if too_far > 0 and can_ever_be else -1,
            self.seconds(left),
        ]

    def seconds(self, units: int) -> int:
        """Rounded up."""
        return -(-units // (self.units_per_ms * MS_PER_S))
