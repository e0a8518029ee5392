"""Checks that get no item because they do not apply, and which of them a run was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_pallas.backends import Backend, label
from pytest_pallas.checks import Check
from pytest_pallas.compat.testing import keywords_match
from pytest_pallas.record import NotApplicable
from pytest_pallas.session import Session, current
from pytest_pallas.spec import KernelSpec
from pytest_pallas.suites.item import SpecItem, item_name, node_id

if TYPE_CHECKING:
    from pytest_pallas.checks.trial import TrialResult


def leave_out(
    session: Session,
    parent: pytest.Collector,
    requirement: str,
    spec: KernelSpec,
    check: Check,
    backend: Backend,
    mesh: Mapping[str, int],
) -> None:
    """Record that a check does not apply to a spec on a backend."""
    test = node_id(parent, item_name(spec, check.name, backend, mesh))
    session.not_applicable[test] = NotApplicable(
        test=test,
        kernel=spec.name,
        family=spec.family,
        check=check.name,
        backend=label(backend),
        mesh=dict(mesh),
        requirement=requirement,
    )


def applies_after_all(item: SpecItem, finding: TrialResult) -> Iterator[Check]:
    """The checks that were left out of the item's spec and apply to the kernels that it just ran.

    A few traced calls need not show every kernel: an example of another shape or dtype may have a
    DMA that none of them has.
    """
    if not item.check.base or finding.outcome is None or not finding.outcome.kernels:
        return
    session = current(item.config)
    for check in session.checks.values():
        if check.requires_kernels is None:
            continue
        entry = session.not_applicable.get(item.id_of(check.name))
        if entry is None or check.unmet(item.spec, item.backend, item.before) is not None:
            continue
        if check.requires_kernels(item.spec, item.backend, finding.outcome.kernels) is None:
            yield check


def keep_selected(config: pytest.Config, items: Sequence[pytest.Item], *, narrowed: bool) -> None:
    """Forget those that the run was not asked for.

    Args:
      config: of the session.
      items: what is left to run.
      narrowed: whether items were deselected: then a kernel without an item was, too.
    """
    entries = current(config).not_applicable
    expression = config.getoption("keyword", "")
    kernels = {_kernel(item.nodeid) for item in items if isinstance(item, SpecItem)}
    for test, entry in list(entries.items()):
        words = {*test.split("::"), entry.kernel, entry.family, entry.check, entry.backend}
        if (
            not _named(test, config.args)
            or (expression and not keywords_match(expression, words))
            or (narrowed and _kernel(test) not in kernels)
        ):
            del entries[test]


def _named(test: str, args: Sequence[str]) -> bool:
    """Whether arguments name a test, or what it is in. Files and folders name all of theirs."""
    inner = test.split("::")[1:]
    named = [arg.split("::")[1:] for arg in args]
    return not named or any(inner[: len(each)] == each for each in named)


def _kernel(test: str) -> str:
    """What the node ids of one kernel have in common."""
    parent, _, name = test.rpartition("::")
    return f"{parent}::{name.partition('-')[0]}"
