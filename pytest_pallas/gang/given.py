"""``@given`` tests in a gang: all processes draw the same examples, and agree on each of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from pytest_pallas.compat.fuzzing import (
    hypothesis_seed,
    hypothesis_settings,
    set_hypothesis_settings,
)
from pytest_pallas.devices.processes import agree
from pytest_pallas.errors import PeerError
from pytest_pallas.sampling.together import of_all

#: Seconds that a process with a failed example waits for the others, to fail together with them.
PATIENCE = 2.0

#: Set on the function of a test that agrees already.
_AGREES = "pallas_agrees"


class FailedExampleError(Exception):
    """An example that failed in some process.

    All processes raise it at one line, so that Hypothesis sees one failure, and shrinks it in the
    same way in all of them.
    """

    def __init__(self, error: Exception) -> None:
        """With the error of this process."""
        super().__init__(str(error))
        self.error = error

    def original(self) -> Exception:
        """The error of this process, with Hypothesis' notes about the example."""
        for note in getattr(self, "__notes__", ()):
            self.error.add_note(note)
        return self.error


class OutOfStepError(BaseException):
    """A failure that the other processes do not know, because they wait in a collective.

    Not an ``Exception``, so that Hypothesis does not run further examples, in which this process
    would be alone.
    """

    def __init__(self, error: Exception) -> None:
        """With the failure."""
        super().__init__(str(error))
        self.error = error

    def original(self) -> Exception:
        """The failure."""
        return self.error


def settle_given(item: pytest.Item, *, seed: int, seconds: float) -> None:
    """Let a ``@given`` test draw the same in all processes, which agree on each example.

    Args:
      item: the test; nothing is done for others.
      seed: of the draws, unless the test has a seed of its own.
      seconds: how long to wait for the other processes at the end of an example.
    """
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if not getattr(test, "is_hypothesis_test", False):
        return
    inner = test.hypothesis.inner_test
    if getattr(inner, _AGREES, False):
        return
    import hypothesis

    own = hypothesis_settings(test) or hypothesis.settings.default
    assert own is not None  # it is the current profile
    if hypothesis_seed(test) is None and not own.derandomize:
        hypothesis.seed(seed)(test)
    changes: dict[str, Any] = {
        # Decisions by the clock would differ between processes.
        "deadline": None,
        "suppress_health_check": list(hypothesis.HealthCheck),
        "phases": [phase for phase in own.phases if phase.name != "explain"],
        "report_multiple_bugs": False,
        "database": of_all(own.database),
    }
    set_hypothesis_settings(test, hypothesis.settings(own, **changes))

    @functools.wraps(inner)
    def together(*args: Any, **rest: Any) -> Any:
        __tracebackhide__ = True
        found: Any = None
        failed: Exception | None = None
        try:
            found = inner(*args, **rest)
        except Exception as error:
            failed = error
        failed = _agreed(failed, seconds)
        if failed is None:
            return found
        raise FailedExampleError(failed)

    setattr(together, _AGREES, True)
    test.hypothesis.inner_test = together


def _agreed(failed: Exception | None, seconds: float) -> Exception | None:
    """The error of an example, here or in another process; None if it passed everywhere.

    Raises:
      OutOfStepError: the other processes did not come to the end of the example.
    """
    if getattr(failed, "shared", False):
        return failed  # all processes know of it, and are here
    if isinstance(failed, PeerError):
        if failed.step == "example":
            return failed
        raise OutOfStepError(failed)
    problem = "" if failed is None else f"{type(failed).__name__}: {failed}"
    try:
        statements = agree(
            "example", problem=problem, timeout=seconds if failed is None else PATIENCE
        )
    except PeerError as error:
        return error
    if failed is not None and len(statements) == 1:
        raise OutOfStepError(failed)
    return failed
