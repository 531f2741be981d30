"""A connection that sends exactly the bytes it is told to."""

import socket
from collections.abc import Iterable, Sequence

import hiredis

Word = bytes | str | int
READ_BYTES = 1 << 16


def encode(*words: Word) -> bytes:
    """A command as RESP."""
    return hiredis.pack_command(tuple(words))


class RawConnection:
    """RESP2 over a socket. Errors are returned, not raised: an error is an answer as good as another."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 60.0) -> None:
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> object:
        """The next reply: bytes, int, list, None or a hiredis.ReplyError."""
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply

    def read_bytes(self) -> bytes:
        """Whatever comes next, not parsed."""
        return self._socket.recv(READ_BYTES)

    def call(self, *words: Word) -> object:
        self.send(encode(*words))
        return self.read()

    def call_all(self, commands: Iterable[Sequence[Word]]) -> list[object]:
        """All commands in one write, then all replies."""
        packed = [encode(*command) for command in commands]
        self.send(b"".join(packed))
        return [self.read() for _ in packed]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> "RawConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
