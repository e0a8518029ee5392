"""The state that checks share (``state``), and the additions for pytest (``pytest_session``)."""

from pytest_pallas.session.pytest_session import (
    OUTPUT,
    PART_OUTCOME,
    PART_RESULT,
    PROBLEM,
    RAISED,
    RAISED_ON,
    SESSION,
    SHARD,
    STATUS,
    STOPPED_BY,
    WORKER,
    PytestSession,
    current,
    look_for_named_backends,
    start,
    variant_of,
)
from pytest_pallas.session.state import Harness, LastRun, Session

__all__ = [
    "OUTPUT",
    "PART_OUTCOME",
    "PART_RESULT",
    "PROBLEM",
    "RAISED",
    "RAISED_ON",
    "SESSION",
    "SHARD",
    "STATUS",
    "STOPPED_BY",
    "WORKER",
    "Harness",
    "LastRun",
    "PytestSession",
    "Session",
    "current",
    "look_for_named_backends",
    "start",
    "variant_of",
]
