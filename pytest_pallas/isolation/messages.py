"""What goes to a worker and what comes from it."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How the session of a worker is made, as bytes that can be compared.

    Attributes:
      args: the command line of pytest.
      folder: the folder that it was started in.
      options: what to change of the options that the command line gives.
      attributes: of the configuration, such as ``workerinput``.
    """

    args: Sequence[str]
    folder: str
    options: Mapping[str, Any]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A test to run.

    Attributes:
      opening: a pickled ``Opening``, the same for all requests to a worker.
      nodeid: of the test.
      path: the file to collect it from; None if it comes from a hook.
      timeout: seconds that one step of a kernel may take.
      seconds: how long it may fuzz, if there is a ``--pallas-fuzz-time``.
      journal: the file in which it keeps what became of its mutants, or None.
    """

    opening: bytes
    nodeid: str
    path: str | None
    timeout: float
    seconds: float | None = None
    journal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What became of a test.

    Attributes:
      reports: as ``pytest_report_to_serializable`` gives them; empty if there is no such test.
      warnings: arguments of ``pytest_warning_recorded``.
      hazards: why its calls are better executed apart (``analysis.hazards``); None if no call was
        made, so that nobody knows.
      stained: whether it left state behind that could not be undone.
      lost_places: as in ``Session``.
      exit: message and status with which the test ended the whole session by ``pytest.exit``.
    """

    reports: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[Mapping[str, Any]] = ()
    hazards: Sequence[str] | None = None
    stained: bool = False
    lost_places: Mapping[str, str] = field(default_factory=dict[str, str])
    exit: tuple[str, int | None] | None = None


@dataclass(frozen=True, kw_only=True)
class Note:
    """What a worker is about to do; the last one tells what it was doing when it died.

    Attributes:
      step: in words.
      limit: seconds that it may take.
      kernel, check, backend: whose example it is.
      examples: how many were begun, with this one.
      drawn: the example, as names and texts of facts.
      running: the kernels that are being executed, as ``name at file:line``.
    """

    step: str
    limit: float
    kernel: str = ""
    check: str = ""
    backend: str = ""
    examples: int = 0
    drawn: Sequence[tuple[str, str]] = ()
    running: Sequence[str] = ()

    def encode(self) -> bytes:
        """As bytes; cheap, since there are several for each example."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> Note | None:
        """The note; None if none was said."""
        return cls(**json.loads(body)) if body else None


def encoded(message: Request | Reply | Opening) -> bytes:
    """A message as bytes. What cannot be pickled in the properties of a report becomes its repr."""
    try:
        return pickle.dumps(message)
    except Exception:
        if not isinstance(message, Reply):
            raise
        plain = dataclasses.replace(
            message,
            reports=[_plain(report) for report in message.reports],
            warnings=[_plain(warning) for warning in message.warnings],
        )
        return pickle.dumps(plain)


def decoded(body: bytes) -> Any:
    """The message, from a process that this one started."""
    return pickle.loads(body)


def _plain(value: Any) -> Any:
    """A value whose parts can be pickled: others are replaced by their repr."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    try:
        pickle.dumps(value)
    except Exception:
        return repr(value)
    return value
