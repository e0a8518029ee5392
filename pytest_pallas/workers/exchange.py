"""Messages between a pool and a worker: framing, and the wait for the answer."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import select
import struct
import threading
import time
from dataclasses import dataclass
from typing import BinaryIO, Literal

from pytest_pallas.workers.memory import resident_bytes
from pytest_pallas.workers.process import Worker

_HEADER = struct.Struct(">cQ")

JOB = b"j"
READY = b"+"
NOTE = b"n"
DONE = b"d"
RAISED = b"e"


def header(kind: bytes, body: bytes) -> bytes:
    """The header of ``body``."""
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
    """Remove the message at the start of ``received``, and return its kind and body.

    None while it is incomplete.
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


#: Seconds between two checks of the memory and of the size of the output.
_LOOK_SECONDS = 0.1

#: A pipe on Linux holds this much: pipe(7).
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The end of an exchange with a worker.

    Attributes:
      end: ``"answered"``; ``"gone"`` if the worker died or closed its pipe; ``"late"``; ``"large"``
        if it used more memory than its setup allows; ``"stopped"`` if the pool was closed.
      kind: the kind of the answer.
      body: the body of the answer.
      resident: bytes of memory when it exceeded its limit.
      note: the last note.
      silence: seconds since the last note, or since the start.
    """

    end: Literal["answered", "gone", "late", "large", "stopped"]
    kind: bytes = b""
    body: bytes = b""
    resident: int = 0
    note: bytes = b""
    silence: float = 0.0


def exchange(
    worker: Worker,
    *message: bytes,
    deadline: float,
    stopping: threading.Event,
    patience: float | None = None,
) -> Exchange:
    """Send all parts of ``message``, and wait for one answer.

    Sending does not block either: a worker that hangs may not read.

    Args:
      worker: a worker that is free.
      message: the parts to send, which may be empty.
      deadline: when to give up, on the clock of ``time.monotonic``.
      stopping: set when the pool is being closed.
      patience: seconds from each note to a new deadline; None: notes do not change the deadline.
    """
    begun = last = time.monotonic()
    note = b""

    def ended(found: Exchange) -> Exchange:
        return dataclasses.replace(found, note=note, silence=time.monotonic() - last)

    unsent = [memoryview(part) for part in message if part]
    received = bytearray()
    poll = select.poll()
    poll.register(worker.replies, select.POLLIN)
    if worker.death is not None:
        poll.register(worker.death, select.POLLIN)
    if unsent:
        poll.register(worker.requests, select.POLLOUT)
    next_look = begun + _LOOK_SECONDS
    while True:
        now = time.monotonic()
        if now >= deadline:
            # The memory limit has precedence over the time limit.
            return ended(_look(worker, stopping) or Exchange(end="late"))
        if now >= next_look:
            next_look = now + _LOOK_SECONDS
            if intervention := _look(worker, stopping):
                return ended(intervention)
        # Rounded up, or the last millisecond would be a busy loop.
        milliseconds = math.ceil((min(next_look, deadline) - now) * 1000)
        ready = {descriptor for descriptor, _ in poll.poll(milliseconds)}
        if worker.requests in ready:
            _send(worker.requests, unsent)
            if not unsent:
                poll.unregister(worker.requests)
        if worker.replies in ready or worker.death in ready:
            dead = worker.death in ready
            over = _receive(worker.replies, received, all_of_it=dead) or dead
            while answer := parse(received):
                kind, body = answer
                if kind != NOTE:
                    return ended(Exchange(end="answered", kind=kind, body=body))
                note, last = body, time.monotonic()
                if patience is not None:
                    deadline = last + patience
            if over:
                return ended(Exchange(end="gone"))


def _look(worker: Worker, stopping: threading.Event) -> Exchange | None:
    if stopping.is_set():
        return Exchange(end="stopped")
    worker.output.trim()
    limit = worker.setup.memory_bytes
    if limit is not None and (resident := resident_bytes(worker.pid)) > limit:
        return Exchange(end="large", resident=resident)
    return None


def _send(descriptor: int, unsent: list[memoryview]) -> None:
    try:
        while unsent:
            sent = os.write(descriptor, unsent[0][:_CHUNK_BYTES])
            unsent[0] = unsent[0][sent:]
            if not unsent[0]:
                del unsent[0]
    except BlockingIOError:
        pass
    except BrokenPipeError:
        # It closed its end. The pipe of the answers shows that it is gone.
        unsent.clear()


def _receive(descriptor: int, received: bytearray, *, all_of_it: bool) -> bool:
    """Read available bytes into ``received``; returns whether the stream ended."""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            received += chunk
            if not all_of_it:
                return False
        return True
    return False
