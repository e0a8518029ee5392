"""Run a worker process: import the entry once, then answer messages in order.

Answers have a pipe of their own, because any code, C++ libraries too, may write to stdout and
stderr. The process ends when its parent ends, even while C++ code holds the GIL. A message is a
header, with its kind and size, and a body; both sides of the pipes read and write messages with the
functions here.
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

# Kinds of messages. The pool sends ``JOB``; all others come from the worker.
JOB = b"j"
READY = b"+"  # the entry is imported
NOTE = b"n"  # what the entry passed to ``say``
DONE = b"d"  # the bytes that the entry returned
RAISED = b"e"  # the traceback of an error


def header(kind: bytes, body: bytes) -> bytes:
    """Return the header of a message with this kind and body."""
    return _HEADER.pack(kind, len(body))


def read(stream: BinaryIO) -> bytes | None:
    """Read the next message of a blocking stream, and return its body; None at the stream's end."""
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

    While the message is incomplete, it returns None and removes nothing.
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
    """Answer the jobs of the pool until it closes the pipe, then end the process group.

    Args:
      entry: ``"module:function"``, which takes and returns bytes.
      requests: descriptor of the pipe for jobs.
      replies: descriptor of the pipe for answers.
      parent: the id of the process that started this one.
      talks: whether the entry takes ``say``, which sends a note about the next step to the pool.
    """
    for descriptor in (requests, replies):
        os.set_inheritable(descriptor, False)
    _end_with_parent(parent, requests)
    _limit_core_files()
    faulthandler.enable(file=2)
    worker = os.getpid()
    output = os.dup(1)
    with open(requests, "rb") as inbox, open(replies, "wb") as outbox:
        try:
            function = _load(entry)
        except Exception as error:
            write(outbox, RAISED, _explain(error, frames_of_ours=2))
            return
        if talks:
            lock = threading.Lock()  # threads of the entry may say something at the same time

            def say(note: bytes) -> None:
                with lock:
                    write(outbox, NOTE, note)

            function = functools.partial(function, say=say)
        write(outbox, READY, b"")
        while (payload := read(inbox)) is not None:
            kind, body = _call(function, payload)
            if os.getpid() != worker:  # the function forked: only the worker itself may answer
                os._exit(0)
            _restore_output(output)
            write(outbox, kind, body)
            del payload, body
    _kill_group()


def _load(entry: str) -> Callable[..., bytes]:
    """Import the module of the entry, and return the function."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def _call(function: Callable[[bytes], bytes], payload: bytes) -> tuple[bytes, bytes]:
    """Call the entry, and return the kind and body of the answer.

    SystemExit and KeyboardInterrupt are not caught: they end the process.
    """
    try:
        value = function(payload)
    except Exception as error:
        return RAISED, _explain(error, frames_of_ours=1)
    return DONE, value


def _explain(error: Exception, *, frames_of_ours: int) -> bytes:
    """Return the traceback as text, without the first ``frames_of_ours``: those of this file."""
    trace = error.__traceback__
    for _ in range(frames_of_ours):
        trace = trace.tb_next if trace else None
    text = "".join(traceback.format_exception(error.with_traceback(trace)))
    return text.encode(errors="backslashreplace")


def _restore_output(output: int) -> None:
    """Restore stdout and stderr for the next job, in case this one closed or redirected them.

    Both descriptors become ``output``, a copy of stdout from before the first job.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        os.dup2(output, descriptor)
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(descriptor, "w", buffering=1, closefd=False))  # noqa: SIM115


def _limit_core_files() -> None:
    """Disable core dumps, because a compiler that aborts would leave gigabytes in the folder."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard))


def _end_with_parent(parent: int, requests: int) -> None:
    """End this process when ``parent`` ends, in two ways: by a signal of Linux, and by a thread."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the signal was requested
        os._exit(1)
    # The thread is for systems without that signal, and for children of this process: the signal
    # kills only this process.
    threading.Thread(target=_watch, args=(parent, requests), daemon=True).start()


def _watch(parent: int, requests: int) -> None:
    """Wait until the parent closes its pipe or ends, then kill the process group."""
    hangup = select.poll()
    hangup.register(requests, 0)  # no events: poll then reports only that the other side closed
    while not hangup.poll(1000) and os.getppid() == parent:
        pass
    _kill_group()


def _kill_group() -> None:
    """Kill the process group, or only this process if it does not lead a group."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)
