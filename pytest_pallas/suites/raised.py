"""When a kernel raises: the other checks of it on that backend are not run.

They would raise the same. An expected error stops only checks that are expected to fail, too. Each
process finds out for itself: pytest-xdist runs the items of a spec where it likes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_pallas.checks.trial import as_kernel_error, call
from pytest_pallas.errors import (
    GridError,
    KernelError,
    LeakError,
    NoPallasCallError,
    PallasTestError,
    ReferenceError,
)
from pytest_pallas.isolation.isolator import Alone
from pytest_pallas.session import RAISED, STOPPED_BY, current

if TYPE_CHECKING:
    from pytest_pallas.suites.item import SpecItem

#: Errors after which nothing can be learned from other checks, if the base check raises them.
_ERRORS = (KernelError, NoPallasCallError, ReferenceError)

#: What a check found out about a kernel that runs.
_FINDINGS = (GridError, LeakError)


def skip_if_raised(item: SpecItem) -> None:
    """Skip an item whose kernel has raised in an earlier item of this process."""
    found = current(item.config).raised.get(item.place)
    if found is None or item.check.base:
        return
    check, name, expected = found
    if expected and not item.expected:
        return
    _ = item.tally  # the record of this item is made of it
    item.stash[STOPPED_BY] = name
    pytest.skip(f"{check} raised; see `{name}`")


def settle(item: SpecItem, error: PallasTestError) -> None:
    """Note on an item whether its kernel raised, so that its report can say so."""
    if _raises(item, error):
        item.stash[RAISED] = (item.place, item.check.name, item.name, item.expected)


def _raises(item: SpecItem, error: PallasTestError) -> bool:
    """Whether the kernel raises on its own, rather than as a check calls it."""
    if not isinstance(error, _ERRORS) or isinstance(error, _FINDINGS):
        return False
    if item.check.base:
        return True
    if error.failure is None:  # its process died
        return False
    trial = error.failure.trial
    try:
        outcome = trial.backend.run(call(trial, trial.kernel, trial.arguments.args))
    except Alone:  # it must not be executed in this process
        return False
    return outcome.error is not None and isinstance(as_kernel_error(outcome.error), _ERRORS)
