"""What a server says about its commands."""

from .connection import RawConnection


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


def flattened(arguments: list[list]) -> list[dict]:
    """The arguments of a command's docs, with those inside a one-of or a block."""
    result = []
    for argument in map(pairs, arguments):
        result += [argument, *flattened(argument.get(b"arguments", []))]
    return result
