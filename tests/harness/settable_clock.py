"""A wall clock for a server that stands still, and moves when the test says so."""

import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path

from .library import build_library

SOURCE = Path(__file__).with_suffix(".c")
NS_PER_MS = 1_000_000
#: Nanoseconds of Unix time, as the library reads them.
CONTENTS = struct.Struct("=q")


class SettableClock:
    """What is started in its `environment` has this clock. Linux alone preloads a library."""

    def __init__(self, folder: Path, now_ms: int) -> None:
        library = build_library(SOURCE, folder)
        file = folder / "clock"
        file.write_bytes(bytes(CONTENTS.size))
        with file.open("r+b") as opened:
            self._shared = mmap.mmap(opened.fileno(), CONTENTS.size)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": os.fspath(library), "CLOCK_FILE": os.fspath(file)}
        self.now_ms = now_ms

    @property
    def now_ms(self) -> int:
        """Unix time in ms."""
        return self._now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._shared[:] = CONTENTS.pack(now_ms * NS_PER_MS)
