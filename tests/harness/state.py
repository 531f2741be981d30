"""The bytes of a limiter's key , read and forged without the module."""

import struct
from typing import NamedTuple

MAGIC = b"RL"
VERSION = 1
TOKEN_BUCKET_KIND = b"T"
SLIDING_KIND = b"S"
TOKEN_BUCKET_FORMAT = "<2sBcdq"
SLIDING_FORMAT = "<2sBcdqdd"
TOKEN_BUCKET_BYTES = 20
SLIDING_BYTES = 36


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


def bucket_bytes(tokens: float, last_ms: int) -> bytes:
    return struct.pack(TOKEN_BUCKET_FORMAT, MAGIC, VERSION, TOKEN_BUCKET_KIND, tokens, last_ms)


def window_bytes(window_s: float, stored: int, prev: float, curr: float) -> bytes:
    return struct.pack(SLIDING_FORMAT, MAGIC, VERSION, SLIDING_KIND, window_s, stored, prev, curr)


def bytes_of(held: Bucket | Window) -> bytes:
    return bucket_bytes(*held) if isinstance(held, Bucket) else window_bytes(*held)


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
