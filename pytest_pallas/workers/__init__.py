"""Supervised worker processes, for work that may hang, crash or use too much memory.

A ``Pool`` gives jobs (bytes in, bytes out) to processes that it starts, keeps warm, and kills if
they misbehave. A job always ends with a ``Result``, whatever happens to its process.
"""

from __future__ import annotations

from pytest_pallas.workers.jobs import Result, Setup
from pytest_pallas.workers.pool import Pool

__all__ = ["Pool", "Result", "Setup"]
