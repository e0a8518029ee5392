"""Resident memory of a process and its descendants, from ``/proc``."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import faulthandler
import functools
import importlib
import math
import os
import resource
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

from pytest_pallas.workers.process import Worker

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Resident memory of process ``pid`` and all its descendants, in bytes.

    Shared pages count for each process. A process that ended, or cannot be read (there is no
    ``/proc`` outside Linux), counts as 0.
    """
    return sum(_resident_pages(process) for process in _family(pid)) * _PAGE_BYTES


def _resident_pages(pid: int) -> int:
    # The second field of statm is VmRSS of status in pages, and quicker to read: proc_pid_statm(5).
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return 0


def _family(pid: int) -> Iterator[int]:
    """``pid`` and its descendants; a child is listed under the thread that started it."""
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        threads: list[str] = []
        with contextlib.suppress(OSError):
            threads = os.listdir(f"/proc/{process}/task")
        for thread in threads:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{process}/task/{thread}/children").read_bytes()
                waiting.extend(int(child) for child in children.split())


# Messages between a pool and a worker: framing, and the wait for the answer.


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


# The code of a worker process: import the entry once, then answer messages in order.
#
# Answers have their own pipe, because any code, C++ libraries too, may write to stdout and stderr.
# The process ends with its parent, also while C++ code holds the GIL.


_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(entry: str, *, requests: int, replies: int, parent: int, talks: bool) -> None:
    """Serve the pool until it closes.

    Args:
      entry: ``"module:function"``.
      requests: descriptor of the pipe for jobs.
      replies: descriptor of the pipe for answers.
      parent: the process that started this one.
      talks: whether the entry takes a second argument, for notes about its next step.
    """
    for descriptor in (requests, replies):
        os.set_inheritable(descriptor, False)
    _end_with(parent, requests)
    _limit_core_files()
    faulthandler.enable(file=2)
    own = os.getpid()
    output = os.dup(1)
    with open(requests, "rb") as inbox, open(replies, "wb") as outbox:
        try:
            function = _load(entry)
        except Exception as error:
            write(outbox, RAISED, _explain(error, frames_of_ours=2))
            return
        if talks:
            speaking = threading.Lock()

            def say(note: bytes) -> None:
                with speaking:
                    write(outbox, NOTE, note)

            function = functools.partial(_talking, function, say)
        write(outbox, READY, b"")
        while (payload := read(inbox)) is not None:
            kind, body = _call(function, payload)
            if os.getpid() != own:  # The function forked, and both processes returned.
                os._exit(0)
            _restore_output(output)
            write(outbox, kind, body)
            del payload, body
    _end_group()


def _talking(
    function: Callable[[bytes, Callable[[bytes], None]], bytes],
    say: Callable[[bytes], None],
    payload: bytes,
) -> bytes:
    return function(payload, say)


def _load(entry: str) -> Callable[..., bytes]:
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def _call(function: Callable[[bytes], bytes], payload: bytes) -> tuple[bytes, bytes]:
    # SystemExit and KeyboardInterrupt end the process, as usual
    try:
        value = function(payload)
        if not isinstance(value, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"the entry of a worker must return bytes, not {type(value).__name__}")
    except Exception as error:
        return RAISED, _explain(error, frames_of_ours=1)
    return DONE, value


def _explain(error: Exception, *, frames_of_ours: int) -> bytes:
    trace = error.__traceback__
    for _ in range(frames_of_ours):
        trace = trace.tb_next if trace else None
    text = "".join(traceback.format_exception(error.with_traceback(trace)))
    return text.encode(errors="backslashreplace")


def _restore_output(output: int) -> None:
    """Restore stdout and stderr for the next job, in case this one closed them."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(output, descriptor)
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False))  # noqa: SIM115


def _limit_core_files() -> None:
    """Disable core dumps: a compiler that aborts would leave gigabytes in the project's folder."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _end_with(parent: int, requests: int) -> None:
    """Make sure that this process does not outlive ``parent``."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)
    # for systems without it, and for children of this process, which get no signal
    threading.Thread(target=_watch, args=(parent, requests), daemon=True).start()


def _watch(parent: int, requests: int) -> None:
    hangup = select.poll()
    hangup.register(requests, 0)  # poll reports only the end of the other side
    while not hangup.poll(1000) and os.getppid() == parent:
        pass
    _end_group()


def _end_group() -> None:
    """Kill the process group, or only this process if it does not lead a group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
