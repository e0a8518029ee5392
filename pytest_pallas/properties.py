"""What must hold of a kernel's answers, as specs, calls in tests and checks have it in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.relations import AnyRelation


@dataclass(frozen=True, kw_only=True)
class Properties:
    """What must hold of a kernel's answers, besides being close to the reference's.

    Attributes:
      exact: True if the kernel is linear, so that small integers held in floats give a bitwise
        equal answer in any order of summation. A number if integers up to that size do: those that
        the value class ``"full"`` draws are up to 2**20, which sums of a few may be of, and
        products not.
      differentiable: positions of the arguments to differentiate by; the gradient check needs it.
      vmappable: whether ``jax.vmap`` of the kernel is promised to work.
      batch_axes: for each positional argument the axis along which the kernel computes independent
        things, or None for one that all of them need: ``(0, None)`` for ``x @ w``. Axis 0 of every
        output is that axis. The sharding check needs it. It excludes ``meshes``.
      relations: what must hold between answers of the kernel, whatever is right: ``Linear``,
        ``Permuted`` and ``Relation`` of ``pytest_pallas``, for the checks linearity, permutation
        and relation. They also find what kernel and reference have in common.
      nan_ok: whether NaN is a right answer where all inputs are finite.
      ignored: which elements of the arguments must not matter, such as keys beyond a sequence's
        length: called ``ignored(*args, **options)``, it returns for each positional argument None
        or a bool array of its shape, True where ignored. The padding check poisons these.
    """

    exact: bool | int = False
    differentiable: Sequence[int] = ()
    vmappable: bool = True
    batch_axes: Sequence[int | None] = ()
    relations: Sequence[AnyRelation] = ()
    nan_ok: bool = False
    ignored: Callable[..., Any] | None = None


def properties_of(holder: Properties) -> dict[str, Any]:
    """The properties of anything that has them, to make something else that has them, too."""
    return {each.name: getattr(holder, each.name) for each in dataclasses.fields(Properties)}
