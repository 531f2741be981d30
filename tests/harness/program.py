"""Programs that are run to their end."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .server import REPOSITORY

RUN_TIMEOUT_S = 120


def run(command: Sequence[object], cwd: Path = REPOSITORY, timeout_s: float = RUN_TIMEOUT_S, **environment: str) -> str:
    """The standard output of a program that has to end well."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
