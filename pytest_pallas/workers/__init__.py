"""Supervised worker processes, for work that may hang, crash or use too much memory.

A ``WorkerPool`` gives jobs (bytes in, bytes out) to processes that it starts, keeps warm, and kills
if they misbehave. A job always ends with a ``JobResult``, whatever happens to its process.
"""

from __future__ import annotations

from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup

__all__ = ["JobResult", "WorkerPool", "WorkerSetup"]
