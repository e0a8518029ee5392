"""The code of a worker process: import the entry once, then answer messages in order.

Answers have their own pipe, because any code, C++ libraries too, may write to stdout and stderr.
The process ends with its parent, also while C++ code holds the GIL. A message is a header with its
kind and its size, and a body; both sides of the pipes read and write it with the functions here.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import os
import resource
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from typing import BinaryIO

_HEADER = struct.Struct(">cQ")

JOB = b"j"
READY = b"+"
NOTE = b"n"
DONE = b"d"
RAISED = b"e"


def header(kind: bytes, body: bytes) -> bytes:
    """Return the header of ``body``."""
    return _HEADER.pack(kind, len(body))


def read(stream: BinaryIO) -> bytes | None:
    """Return the body of the next message of a blocking stream, or None at its end."""
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


_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main(entry: str, *, requests: int, replies: int, parent: int, talks: bool) -> None:
    """Serve the pool until it closes.

    Args:
      entry: ``"module:function"``.
      requests: descriptor of the pipe for jobs.
      replies: descriptor of the pipe for answers.
      parent: the process that started this one.
      talks: whether the entry takes ``say``, for notes about its next step.
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

            function = functools.partial(function, say=say)
        write(outbox, READY, b"")
        while (payload := read(inbox)) is not None:
            kind, body = _call(function, payload)
            if os.getpid() != own:  # The function forked, and both processes returned.
                os._exit(0)
            _restore_output(output)
            write(outbox, kind, body)
            del payload, body
    _end_group()


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
