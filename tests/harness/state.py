"""What a limiter's key holds, read and forged without the module."""

import struct
from typing import NamedTuple

from .connection import RawConnection

MAGIC = b"RL"
VERSION = 1
TOKEN_BUCKET_KIND = b"T"
SLIDING_KIND = b"S"
QUOTA_KIND = b"Q"
TOKEN_BUCKET_FORMAT = "<2sBcdq"
SLIDING_FORMAT = "<2sBcdqdd"
QUOTA_FORMAT = "<2sBcqqd"
TOKEN_BUCKET_BYTES = 20
SLIDING_BYTES = 36
QUOTA_BYTES = 28


class Bucket(NamedTuple):
    """tokens left at `last_ms` (Unix time in ms)."""

    tokens: float
    last_ms: int


class Window(NamedTuple):
    """Counts of the window number `stored` and of the one before, for windows of `window_s` seconds."""

    window_s: float
    stored: int
    prev: float
    curr: float


class Count(NamedTuple):
    """What was counted in a quota's period of `start_ms` to `end_ms`."""

    start_ms: int
    end_ms: int
    count: float


#: When each lease of a sorted set ends, by its id.
Leases = dict[bytes, float]


def bucket_bytes(tokens: float, last_ms: int) -> bytes:
    return struct.pack(TOKEN_BUCKET_FORMAT, MAGIC, VERSION, TOKEN_BUCKET_KIND, tokens, last_ms)


def window_bytes(window_s: float, stored: int, prev: float, curr: float) -> bytes:
    return struct.pack(SLIDING_FORMAT, MAGIC, VERSION, SLIDING_KIND, window_s, stored, prev, curr)


def count_bytes(start_ms: int, end_ms: int, count: float) -> bytes:
    return struct.pack(QUOTA_FORMAT, MAGIC, VERSION, QUOTA_KIND, start_ms, end_ms, count)


def bytes_of(held: Bucket | Window | Count) -> bytes:
    """A state as GET gives it."""
    if isinstance(held, Bucket):
        return bucket_bytes(*held)
    return window_bytes(*held) if isinstance(held, Window) else count_bytes(*held)


def read_bucket(data: bytes) -> Bucket:
    assert len(data) == TOKEN_BUCKET_BYTES, data
    magic, version, kind, *fields = struct.unpack(TOKEN_BUCKET_FORMAT, data)
    assert (magic, version, kind) == (MAGIC, VERSION, TOKEN_BUCKET_KIND), data
    return Bucket(*fields)


def read_window(data: bytes) -> Window:
    assert len(data) == SLIDING_BYTES, data
    magic, version, kind, *fields = struct.unpack(SLIDING_FORMAT, data)
    assert (magic, version, kind) == (MAGIC, VERSION, SLIDING_KIND), data
    return Window(*fields)


def read_count(data: bytes) -> Count:
    assert len(data) == QUOTA_BYTES, data
    magic, version, kind, *fields = struct.unpack(QUOTA_FORMAT, data)
    assert (magic, version, kind) == (MAGIC, VERSION, QUOTA_KIND), data
    return Count(*fields)


def hold(connection: RawConnection, key: bytes, value: bytes | None, ttl_ms: int | None) -> None:
    """Makes a key hold a state, if it is to hold one."""
    if value is not None:
        assert connection.call("SET", key, value, *(("PX", ttl_ms) if ttl_ms else ())) == b"OK"
