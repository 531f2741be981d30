"""Counts for the end of a test run, so that a green run also says how much it tried."""

from collections import defaultdict


class Tally:
    """Adds up counts by theme and prints a line for each, in the order in which they came."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = defaultdict(int)
        self._seeds: dict[str, str] = {}

    def add(self, theme: str, count: int, what: str, seed: object = None) -> None:
        """`add("parity", 200000, "calls equal", seed=7)`: shown as `parity: 200000 calls equal (seed 7)`."""
        self._counts[theme, what] += count
        if seed is not None:
            self._seeds[theme] = str(seed)

    def lines(self) -> list[str]:
        by_theme: dict[str, list[str]] = defaultdict(list)
        for (theme, what), count in self._counts.items():
            by_theme[theme].append(f"{count} {what}")
        return [
            f"{theme}: {', '.join(counts)}"
            + (f" (seed {self._seeds[theme]})" if theme in self._seeds else "")
            for theme, counts in by_theme.items()
        ]


TALLY = Tally()
