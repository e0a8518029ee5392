"""The messages between a pool and a worker: a byte for the kind, eight for the length, a body.

Of a job come any number of notes, and then what was made of it.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

_HEADER = struct.Struct(">cQ")

JOB = b"j"
READY = b"+"
NOTE = b"n"
DONE = b"d"
RAISED = b"e"


def header(kind: bytes, body: bytes) -> bytes:
    """What goes before ``body`` on the wire."""
    return _HEADER.pack(kind, len(body))


def read(stream: BinaryIO) -> bytes | None:
    """The body of the next message of a blocking stream, or None at its end."""
    head = stream.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return None
    _, size = _HEADER.unpack(head)
    body = stream.read(size)
    return body if len(body) == size else None


def write(stream: BinaryIO, kind: bytes, body: bytes) -> None:
    """Write a message to a blocking stream."""
    stream.write(header(kind, body))
    stream.write(body)
    stream.flush()


def parse(received: bytearray) -> tuple[bytes, bytes] | None:
    """Take the message at the start of ``received`` away: its kind and body.

    None while it is not whole.
    """
    if len(received) < _HEADER.size:
        return None
    kind, size = _HEADER.unpack_from(received)
    if len(received) < _HEADER.size + size:
        return None
    with memoryview(received) as view:
        body = bytes(view[_HEADER.size : _HEADER.size + size])
    del received[: _HEADER.size + size]
    return kind, body
