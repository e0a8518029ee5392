"""What a session and its compiler workers say to each other, and what compilers print meanwhile."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pallas_sim.findings import Text
from pytest_pallas.analysis.machine_code import Cost
from pytest_pallas.decoding import Count, decode, parse


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """What a worker is to compile.

    Attributes:
      target: name of the chip, such as ``"v6e"`` or ``"h100"``.
      module: a program exported and serialized with ``jax.export``, lowered for that chip.
      devices: how many devices the program runs on.
      dump: folder to keep the compiler's intermediate and final code in, or "".
      chip: what the worker must ``learn`` of the chip; nothing of one that is built in.
    """

    target: str
    module: bytes
    devices: int = 1
    dump: str = ""
    chip: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def encode(self) -> bytes:
        """As bytes: a line of JSON, then the module."""
        head = {each: getattr(self, each) for each in ("target", "devices", "dump", "chip")}
        return json.dumps(head).encode() + b"\n" + self.module

    @staticmethod
    def decode(data: bytes) -> CompileRequest:
        """From bytes."""
        head, _, module = data.partition(b"\n")
        return decode(CompileRequest, {**parse(head), "module": module})


@dataclass(frozen=True, kw_only=True)
class CompileReply:
    """What the compiler made of it.

    Attributes:
      compiled: whether it compiled.
      message: of the compiler if it did not, in full.
      kernels: what each kernel's machine code costs, in the order of the program.
      code_bytes: size of the whole executable's code.
      kernel_calls: Pallas custom calls in the executable.
      costs_skipped: whether the compiler was not asked for costs (``--pallas-cost=skip``).
    """

    compiled: bool
    message: Text = ""
    kernels: tuple[Cost, ...] = ()
    code_bytes: Count | None = None
    kernel_calls: Count = 0
    costs_skipped: bool = False

    def encode(self) -> bytes:
        """As bytes of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @staticmethod
    def decode(data: bytes) -> CompileReply:
        """From bytes."""
        return decode(CompileReply, parse(data))


#: Begins a message of a C++ log: its severity, the date, the time, the thread and the place.
_LOGGED = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\] ")


class CapturedOutput:
    """What was written; complete when the context has ended.

    Attributes:
      text: all of it.
    """

    def __init__(self) -> None:
        self.text = ""

    def remarks(self) -> str:
        """The text without the messages of a C++ log that are only information."""
        return "".join(_remarks(self.text))


@contextmanager
def divert(descriptor: int) -> Generator[CapturedOutput]:
    """Keep what is written to a file descriptor from being seen.

    Args:
      descriptor: 1 or 2. What is in Python's buffers is not touched.
    """
    captured = CapturedOutput()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(descriptor)
        os.dup2(file.fileno(), descriptor)
        try:
            yield captured
        finally:
            os.dup2(saved, descriptor)
            os.close(saved)
            file.seek(0)
            captured.text = file.read().decode(errors="replace")


@contextmanager
def overhear_log() -> Generator[CapturedOutput]:
    """Capture what is written to stderr, and leave nothing of it there.

    But a compiler that ends the process says why on stderr. That survives if stderr is a file that
    is appended to, as the supervisor of workers makes it: it is read there, not diverted.
    """
    if not _appends(2):
        with divert(2) as captured:
            yield captured
        return
    captured = CapturedOutput()
    start = os.fstat(2).st_size
    try:
        yield captured
    finally:
        if os.fstat(2).st_size < start:  # its reader has emptied it in the meantime
            start = 0
        with open("/proc/self/fd/2", "rb") as file:
            file.seek(start)
            captured.text = file.read().decode(errors="replace")
        os.ftruncate(2, start)


def _appends(descriptor: int) -> bool:
    """Whether a descriptor is a regular file to which every write goes to the end."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not os.path.exists("/proc/self/fd"):
        return False
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND)


def _remarks(log: str) -> Generator[str]:
    """The lines of a log that are not of a message, of one line or several, of information."""
    information = False
    for line in log.splitlines(keepends=True):
        if _LOGGED.match(line):
            information = line.startswith("I")
        elif line[:1].strip() and not line.startswith("ptxas info"):
            information = False
        if not information:
            yield line
