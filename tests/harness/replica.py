"""The replication stream of a server, as any replica receives it."""

from .connection import RawConnection
from .server import Server, parse_commands

SENTINEL_CHANNEL = b"replica-stream-sentinel"
# What the server says by itself, or only to delimit.
HOUSEKEEPING = {b"PING", b"REPLCONF", b"SELECT", b"MULTI", b"EXEC"}


class ReplicaStream:
    """Attaches to `server` as a replica and keeps what is propagated from then on. Once it is attached,
    the server counts its replication offset. Needs no acknowledgements, so it never becomes a
    replica that WAIT would count."""

    # It acknowledges nothing, for which the server would drop it after repl-timeout.
    CONFIG = {"repl-diskless-sync-delay": 0, "repl-ping-replica-period": 3600, "repl-timeout": 7200}

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stream = RawConnection(server.port)
        self._stream.send(b"PSYNC ? -1\r\n")
        self._rest = b""
        self._sentinels = 0
        self._skip_snapshot()

    def _line(self) -> bytes:
        while b"\r\n" not in self._rest:
            self._rest += self._read()
        line, _, self._rest = self._rest.partition(b"\r\n")
        # Bare newlines keep the connection alive while the snapshot is made.
        return line.lstrip(b"\n")

    def _read(self) -> bytes:
        data = self._stream.read_bytes()
        if not data:
            raise ConnectionError("the server ended the replication stream")
        return data

    def _skip_snapshot(self) -> None:
        line = self._line()
        assert line.startswith(b"+FULLRESYNC"), line
        line = self._line()
        assert line.startswith(b"$"), line
        length = int(line[1:])
        while len(self._rest) < length:
            self._rest += self._read()
        self._rest = self._rest[length:]

    def commands(self) -> list[list[bytes]]:
        """What was propagated since the last call, without PING, REPLCONF, SELECT, MULTI and EXEC."""
        return [command for command in self.all_commands() if command[0].upper() not in HOUSEKEEPING]

    def all_commands(self) -> list[list[bytes]]:
        """What was propagated since the last call, whatever it is."""
        self._sentinels += 1
        sentinel = [b"PUBLISH", SENTINEL_CHANNEL, b"%d" % self._sentinels]
        with self._server.raw_connection() as connection:
            connection.call(*sentinel)
        while True:
            commands = parse_commands(self._rest)
            upper = [[command[0].upper(), *command[1:]] for command in commands]
            if sentinel in upper:
                # The sentinel is the last: nobody else writes while a test asks.
                self._rest = b""
                return commands[: upper.index(sentinel)]
            self._rest += self._read()

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> "ReplicaStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
