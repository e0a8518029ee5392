"""Properties of a kernel, which specs, calls in tests and checks share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.raises import Raises
from pytest_pallas.relations import AnyRelation


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Properties of a kernel, besides outputs that are close to the reference.

    Attributes:
      exact: True if the kernel is linear, so that small integers held in floats give a bitwise
        equal output in any order of summation. A number if integers up to that size do: the value
        class ``"full"`` draws integers up to 2**20, which are exact in sums of a few terms, but not
        in products.
      differentiable: positions of the arguments to differentiate by; the gradient check needs it.
      vmappable: whether the kernel supports ``jax.vmap``. None: unless it reaches other devices,
        or has operands in HBM, of which JAX compiles no batch for a TPU.
      batch_axes: for each positional argument the axis along which the kernel's computations are
        independent, or None for an argument that all of them need: ``(0, None)`` for ``x @ w``.
        Axis 0 of every output is that axis. The sharding check needs it. It excludes ``meshes``.
      relations: relations between outputs of the kernel: ``Linear``, ``Permuted`` and ``Relation``
        of ``pytest_pallas``, for the checks linearity, permutation and relation. They also find
        errors that kernel and reference share.
      deterministic: False if the order of additions depends on the schedule, as with atomic
        additions: two right runs may differ in their last bits. The determinism check does not
        apply then, and what compares other runs bit for bit compares them with the reference.
      nan_ok: whether NaN is a right output for finite inputs.
      ignored: a function for elements of the arguments that must not affect the output, such as
        keys beyond a sequence's length: ``ignored(*args, **options)`` returns for each positional
        argument None or a bool array of its shape, True where ignored. The padding check replaces
        these elements.
      raises: calls that the kernel must reject, each with its error: ``Raises`` of
        ``pytest_pallas``, for the check raises.
    """

    exact: bool | int = False
    differentiable: Sequence[int] = ()
    vmappable: bool | None = None
    batch_axes: Sequence[int | None] = ()
    relations: Sequence[AnyRelation] = ()
    deterministic: bool = True
    nan_ok: bool = False
    ignored: Callable[..., Any] | None = None
    raises: Sequence[Raises] = ()


def properties_of(holder: Properties) -> dict[str, Any]:
    """The properties of an object, as keyword arguments for another one."""
    return {each.name: getattr(holder, each.name) for each in dataclasses.fields(Properties)}
