"""Functions for worker processes to run: good ones, and every kind of bad one."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def call(payload: bytes) -> bytes:
    """Call the function of this module that the payload begins with, with the rest of it."""
    name, _, rest = payload.partition(b" ")
    return globals()[name.decode()](rest)


def echo(payload: bytes) -> bytes:
    return payload


def pid(payload: bytes) -> bytes:
    """The process's number, after as many seconds as the payload says."""
    time.sleep(float(payload or b"0"))
    return str(os.getpid()).encode()


def parent(payload: bytes) -> bytes:
    return str(os.getppid()).encode()


def places(payload: bytes) -> bytes:
    """Where hypothesis and ``tempfile`` put files, and a number that numpy draws."""
    import tempfile

    import numpy as np
    from hypothesis.configuration import storage_directory

    examples = str(storage_directory("examples").path)
    return json.dumps([examples, tempfile.gettempdir(), np.random.random()]).encode()


def variable(payload: bytes) -> bytes:
    return os.environ[payload.decode()].encode()


def stdin(payload: bytes) -> bytes:
    return sys.stdin.buffer.read()


def fail(payload: bytes) -> bytes:
    raise ValueError(payload.decode())


def print_everywhere(payload: bytes) -> bytes:
    print("printed", payload.decode())  # noqa: T201
    print("complained", file=sys.stderr)  # noqa: T201
    os.write(1, b"written to 1\n")
    os.write(2, b"written to 2\n")
    ctypes.CDLL(None).puts(b"put by C")
    return payload


def print_much(payload: bytes) -> bytes:
    for _ in range(int(payload)):
        os.write(1, b"x" * 2**20)
    os.write(1, b"the end")
    return payload


def print_slowly(payload: bytes) -> bytes:
    """Print as many megabytes as the payload says, and return what the file then holds."""
    for _ in range(int(payload)):
        os.write(1, b"x" * 2**20)
        time.sleep(0.02)
    return str(os.fstat(1).st_size).encode()


def print_late(payload: bytes) -> bytes:
    """Let a child write after the job has ended, and return its number."""
    child = subprocess.Popen(["sh", "-c", f"sleep {payload.decode()}; echo late"])
    return b"%d" % child.pid


def close_output(payload: bytes) -> bytes:
    sys.stdout.close()
    sys.stderr.close()
    return payload


def close_descriptors(payload: bytes) -> bytes:
    os.close(1)
    os.close(2)
    return payload


def close_everything(payload: bytes) -> bytes:
    """Close the pool's pipes too, and go on."""
    os.closerange(3, 100)
    time.sleep(60)
    return payload


def hang(payload: bytes) -> bytes:
    time.sleep(60)
    return payload


def hang_in_c(payload: bytes) -> bytes:
    """Hang in C code that keeps the interpreter's lock; the payload is a file for our number."""
    Path(payload.decode()).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(60)
    return payload


def hang_with_child(payload: bytes) -> bytes:
    """Hang with a child that hangs too; the payload is a file for the child's number."""
    child = subprocess.Popen(["sleep", "60"])
    Path(payload.decode()).write_text(str(child.pid))
    return hang(payload)


def raise_signal(payload: bytes) -> bytes:
    print("about to die")  # noqa: T201
    os.kill(os.getpid(), signal.Signals[payload.decode()])
    return payload


def abort(payload: bytes) -> bytes:
    os.abort()


def segfault(payload: bytes) -> bytes:
    ctypes.string_at(0)
    return payload


def leave(payload: bytes) -> bytes:
    sys.exit(int(payload))


def leave_at_once(payload: bytes) -> bytes:
    os._exit(int(payload))


def fork_and_return(payload: bytes) -> bytes:
    """Return in two processes."""
    os.fork()
    return payload


def die_with_heir(payload: bytes) -> bytes:
    """Die, while a forked child holds the pipes open."""
    if os.fork() == 0:
        time.sleep(60)
    os._exit(int(payload))


def stop_when_idle(payload: bytes) -> bytes:
    """Return our number, and be stopped a moment later: alive, but deaf."""
    subprocess.Popen(["sh", "-c", f"sleep 0.05; kill -STOP {os.getpid()}"])
    return b"%d" % os.getpid()


def die_when_idle(payload: bytes) -> bytes:
    """Return our number, and be dead a moment later."""
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    return b"%d" % os.getpid()


_HELD: list[bytes] = []


def fill(payload: bytes) -> bytes:
    """Hold on to as many megabytes as the payload says, and stay for a while."""
    _HELD.append(b"x" * (int(payload) * 2**20))
    time.sleep(5)
    return payload


def hoard(payload: bytes) -> bytes:
    """Hold on to as many megabytes as the payload says, and return our number."""
    _HELD.append(b"x" * (int(payload) * 2**20))
    return str(os.getpid()).encode()


def fill_in_child(payload: bytes) -> bytes:
    source = f"import time; held = b'x' * ({int(payload)} * 2**20); time.sleep(5)"
    subprocess.run([sys.executable, "-c", source], check=True)
    return payload


def talk(payload: bytes, say) -> bytes:
    """Say each word of the payload; some do something first."""
    for word in payload.split():
        if word == b"exit":
            os._exit(1)
        if word in (b"pause", b"hang"):
            time.sleep(0.3 if word == b"pause" else 60)
        say(word)
    return payload
