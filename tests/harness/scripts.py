"""The Lua reference scripts, called with the arguments of the commands."""

import hashlib
from pathlib import Path

from .server import REPOSITORY

FOLDER = REPOSITORY / "lua-reference"


class Script:
    """One of the scripts, by its file name without `.lua`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.source = (FOLDER / f"{name}.lua").read_bytes()
        self.sha1 = hashlib.sha1(self.source).hexdigest()

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.lua"


TOKEN_BUCKET = Script("token_bucket")
SLIDING_WINDOW = Script("sliding_window")


def load_all(connection) -> None:
    """Makes EVALSHA know the scripts. `connection` is a RawConnection."""
    for script in (TOKEN_BUCKET, SLIDING_WINDOW):
        sha1 = connection.call("SCRIPT", "LOAD", script.source)
        assert sha1 == script.sha1.encode(), sha1
