"""A server of which every trace of a change can be read."""

from typing import NamedTuple

from .connection import RawConnection, Word
from .replica import ReplicaStream
from .server import Server

AOF_CONFIG = {"appendonly": "yes", "appendfsync": "always"}


class Traces(NamedTuple):
    """All that a call could have changed."""

    #: by key: the value as DUMP gives it, and its deadline (PEXPIRETIME)
    keys: dict[Word, tuple[bytes | None, int]]
    key_count: int
    changes_since_save: int
    aof_bytes: int
    replication_offset: int


class ObservedServer(Server):
    """A server with an AOF and an attached replication stream."""

    def __init__(self, **options: object) -> None:
        """`options` are those of Server: `module_args`, for instance."""
        super().__init__({**AOF_CONFIG, **ReplicaStream.CONFIG}, **options)

    def __enter__(self) -> "ObservedServer":
        super().__enter__()
        self.connection: RawConnection = self.raw_connection()
        self.stream = ReplicaStream(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.close()
        self.connection.close()
        super().__exit__(*exception)

    def traces(self, *keys: Word) -> Traces:
        """What is now to be seen of changes, with `keys` looked at closely."""
        questions = [("DUMP", key) for key in keys] + [("PEXPIRETIME", key) for key in keys]
        *answers, count, info = self.connection.call_all(
            [*questions, ("DBSIZE",), ("INFO", "persistence", "replication")]
        )
        values = _fields(info)
        return Traces(
            keys=dict(zip(keys, zip(answers[: len(keys)], answers[len(keys) :]))),
            key_count=count,
            changes_since_save=int(values[b"rdb_changes_since_last_save"]),
            aof_bytes=int(values[b"aof_current_size"]),
            replication_offset=int(values[b"master_repl_offset"]),
        )


def _fields(info: bytes) -> dict[bytes, bytes]:
    return dict(line.split(b":", 1) for line in info.splitlines() if b":" in line)
