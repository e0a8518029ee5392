"""Former names of `pytest_pallas.checks.context`, deprecated in 0.1 and removed in 0.2."""

from __future__ import annotations

import warnings
from typing import Any

from pytest_pallas.checks import context

_RENAMED = {"Trial": "CheckContext", "TrialResult": "CheckResult"}


def __getattr__(name: str) -> Any:
    """The object under its old name.

    Raises:
      AttributeError: there was no such name.
    """
    if name.startswith("__"):
        raise AttributeError(name)
    today = _RENAMED.get(name, name)
    found = getattr(context, today)
    warnings.warn(
        f"pytest_pallas.checks.trial.{name} is pytest_pallas.checks.context.{today} now",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
