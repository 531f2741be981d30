"""The time that tests give as NOW, and that of a server."""

from .connection import RawConnection

#: The beginning of a minute.
TODAY_MS = 1_751_662_800_000
#: The clock of TIME and that of a command are read at two moments, and one of them may be cached.
CLOCK_SLACK_MS = 50


def server_ms(connection: RawConnection) -> int:
    seconds, microseconds = connection.call("TIME")
    return int(seconds) * 1000 + int(microseconds) // 1000
