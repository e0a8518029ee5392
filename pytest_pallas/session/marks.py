"""The backends in the ``pallas`` marks of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pallas_sim.errors import OptionError

if TYPE_CHECKING:
    from pytest_pallas.backends import Backend, Family


def names_and_targets(
    marks: Sequence[pytest.Mark],
) -> tuple[list[str] | None, list[str] | None, str]:
    """The names of backends and of targets, each None if no mark has them, and the reason.

    Args:
      marks: closest first.

    Raises:
      OptionError: a mark has a positional argument.
    """
    names: list[str] | None = None
    targets: list[str] | None = None
    reason = ""
    for mark in reversed(marks):
        if mark.args:
            raise OptionError(
                f"the pallas mark takes keywords only, such as backends=[...], not {mark.args!r}"
            )
        if "backends" in mark.kwargs:
            names = _names(mark.kwargs["backends"])
        if "targets" in mark.kwargs:
            targets = _names(mark.kwargs["targets"])
        reason = mark.kwargs.get("reason", reason)
    return names, targets, reason


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def with_targets(
    wanted: Sequence[Backend], targets: Sequence[str], families: Mapping[str, Family]
) -> list[Backend]:
    """Backends for selected targets: one without a target gets each of its family's.

    Raises:
      OptionError: no family has such a target.
    """
    from pytest_pallas.backends import with_target

    known = {name for family in families.values() for name in family.targets}
    unknown = sorted(set(targets) - known)
    if unknown:
        raise OptionError(
            f"the pallas mark names unknown targets {unknown}; known: {', '.join(sorted(known))}"
        )
    found: list[Backend] = []
    for backend in wanted:
        family = families[backend.name]
        if not family.targets:
            found.append(backend)  # it has no targets
        elif backend.target is None:
            for target in targets:
                if target in family.targets:
                    found.append(with_target(backend, target, families))
        elif backend.target.name in targets:
            found.append(backend)
    return found
