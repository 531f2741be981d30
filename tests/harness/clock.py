"""The time that tests give as NOW, and that of a server."""

import random
from dataclasses import dataclass

from .connection import RawConnection

#: The beginning of a minute.
TODAY_MS = 1_751_662_800_000
#: The clock of TIME and that of a command are read at two moments, and one of them may be cached.
CLOCK_SLACK_MS = 50
HOUR_MS = 3_600_000


def server_ms(connection: RawConnection) -> int:
    seconds, microseconds = connection.call("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000


@dataclass
class Clock:
    """Stands still, goes on, jumps and, if it may, goes back."""

    rng: random.Random
    now_ms: int
    may_go_back: bool
    latest_ms: int

    def go_on(self, scale_ms: float) -> None:
        """By a time that has to do with `scale_ms`, in which something happens."""
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            step = 0
        elif kind < 0.5:
            step = rng.randint(1, 20)
        elif kind < 0.92:
            step = int(min(scale_ms, 1e15) * rng.choice([0.1, 0.25, 0.5, 1, rng.random(), 3 * rng.random()]))
        else:
            step = int(HOUR_MS * rng.choice([1, 5, 24, 1000 * rng.random()]))
        if self.may_go_back and rng.random() < 0.2:
            step = -step
        self.now_ms = min(max(self.now_ms + step, 0), self.latest_ms)
