"""Small libraries in C that a test loads into a server."""

import shutil
import subprocess
from pathlib import Path

import pytest


def build_library(source: Path, folder: Path) -> Path:
    """Compiles `source` into `folder`."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc)")
    library = folder / f"{source.stem}.so"
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return library
