"""The commands, and what a server says about them."""

from .connection import RawConnection
from .kinds import KINDS

#: Of every kind and of all at once.
WRITES = [f"RL.{name}" for name in (*KINDS, "ALL")]
PREVIEWS = [f"{command}_RO" for command in WRITES]
COMMANDS = [*WRITES, *PREVIEWS, "RL.RELEASE"]


def pairs(flat: list) -> dict:
    """A RESP2 map."""
    return dict(zip(flat[::2], flat[1::2]))


def command_info(raw: RawConnection, command: str) -> list:
    (info,) = raw.call("COMMAND", "INFO", command)
    assert info is not None, f"no {command}"
    return info


def command_docs(raw: RawConnection, command: str) -> dict:
    ((name, docs),) = pairs(raw.call("COMMAND", "DOCS", command)).items()
    assert name.decode().upper() == command
    return pairs(docs)
