"""The compilers that tests of this process ask, started once: a worker takes seconds to start."""

from __future__ import annotations

import atexit
import functools
import os

from pytest_pallas.compile.service import Service


@functools.cache
def compile_service() -> Service:
    """A service that keeps no results, which ends with this process."""
    # Beside other processes of pytest-xdist, each has a worker of its own.
    service = Service(workers=2 - in_parallel(), memory_bytes=2**34, cache=None)
    process = os.getpid()
    atexit.register(lambda: service.close() if os.getpid() == process else None)
    return service


def in_parallel() -> bool:
    """Whether other processes run tests of this session, too; each knows all that are selected."""
    return "PYTEST_XDIST_WORKER" in os.environ
