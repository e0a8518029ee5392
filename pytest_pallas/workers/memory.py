"""Resident memory of a process and its descendants, from ``/proc``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

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
