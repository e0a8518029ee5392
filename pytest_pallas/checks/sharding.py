"""``sharding``: a kernel that is sharded over devices computes what the unsharded one computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from pytest_pallas.backends.devices import make_mesh
from pytest_pallas.backends.processes import gang
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, exactly, expect, judge, run
from pytest_pallas.errors import NotApplicableError, SpecError
from pytest_pallas.record import Note
from pytest_pallas.spec import KernelSpec

#: Numbers of devices; those that are not available are left out.
DEVICES = (1, 2, 4, 8)

_AXIS = "shards"


@dataclass(frozen=True)
class Sharded:
    """A function under ``jax.shard_map`` over all devices of a mesh of one axis.

    Attributes:
      function: what each device calls with its part of the arguments.
      axes: the axis of each positional argument that is sharded; None replicates the argument.
      mesh: the devices. Axis 0 of every output is gathered from them.
    """

    function: Callable[..., Any]
    axes: tuple[int | None, ...]
    mesh: Mesh

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the function on every device; arguments without arrays are passed unchanged."""
        whole = dict(enumerate(args))
        spread = {p: arg for p, arg in whole.items() if _has_arrays(arg)}

        def call(*parts: Any) -> Any:
            full = {**whole, **dict(zip(spread, parts, strict=True))}
            return self.function(*full.values(), **options)

        specs = tuple(_spec(self.axes[position]) for position in spread)
        return jax.shard_map(
            call,
            mesh=self.mesh,
            in_specs=specs,
            out_specs=PartitionSpec(_AXIS),
            check_vma=False,  # pallas_call does not declare over which axes its outputs vary
        )(*spread.values())


def requires_spec(spec: KernelSpec) -> str | None:
    """A spec must have the axes along which its arguments can be divided."""
    return None if spec.batch_axes else "the spec names no batch_axes"


@declare_check(
    "sharding",
    asks="is it the same under shard_map on 1, 2, 4 and 8 devices?",
    requires_spec=requires_spec,
    example_fraction=0.125,
    varies_calls=True,
)
def sharding(context: CheckContext) -> CheckResult:
    """Shard the kernel over 1, 2, 4 and 8 devices, and compare with the oracle of the whole call.

    The arrays are copies of the drawn ones, one for each device, each rolled by one more element.
    With all devices, each device has a call of the drawn shape; with fewer, it has a larger one.
    The call is valid, because the elements are independent.

    Raises:
      NotApplicableError: the spec has no batch_axes, or the kernel is not jitted.
      SpecError: ``batch_axes`` does not fit the arguments.
    """
    axes = tuple(context.batch_axes)
    if not axes or not context.settings.jit:
        raise NotApplicableError(
            "the sharding check needs a spec with batch_axes, and a kernel that can be jitted"
        )
    platform = context.backend.platform if context.backend.kind == "hardware" else "cpu"
    counts = _counts(len(jax.devices(platform)))
    args = _several(context.arguments.args, axes, counts[-1])
    expected = expect(context, args)
    comparisons: list[Any] = []
    for count in counts:
        mesh = make_mesh({_AXIS: count}, platform)
        spread = replace(context, settings=replace(context.settings, devices=count))
        outcome = run(spread, Sharded(context.kernel, axes, mesh), args, shards=True)
        judged = judge(context, outcome.values, expected, exact=exactly(context))
        if not all(comparison.passed for comparison in judged):
            subject = f"shard_map on {count} devices; {counts[-1]} copies of the drawn inputs"
            return CheckResult(comparisons=judged, subject=subject)
        comparisons += judged
    notes = (Note(f"sharded over {', '.join(map(str, counts))} devices", "run"),)
    return CheckResult(comparisons=comparisons, notes=notes)


def _counts(devices: int) -> list[int]:
    """Return the numbers of devices to run on; each of several processes has a part of all."""
    processes = gang()
    if processes is None:
        return [count for count in DEVICES if count <= devices]
    even = [count for count in DEVICES if count <= devices and count % processes.count == 0]
    return even or [devices]


def _several(args: tuple[Any, ...], axes: Sequence[int | None], copies: int) -> tuple[Any, ...]:
    """Concatenate ``copies`` rolled copies of the arguments along their axes."""
    if len(axes) != len(args):
        raise SpecError(
            f"batch_axes={tuple(axes)} has {len(axes)} entries for {len(args)} positional "
            "arguments; give one for each, None for an argument that is not split"
        )

    several: list[Any] = []
    for position, (arg, axis) in enumerate(zip(args, axes, strict=True)):
        if axis is not None:
            shapes = [np.shape(leaf) for leaf in jax.tree.leaves(arg)]
            short = [shape for shape in shapes if len(shape) <= axis]
            if short:
                raise SpecError(
                    f"batch_axes: argument {position} has shape {short[0]} and no axis {axis}"
                )
            arg = jax.tree.map(
                lambda leaf, axis=axis: np.concatenate(
                    [np.roll(np.asarray(leaf), copy, axis) for copy in range(copies)], axis
                ),
                arg,
            )
        several.append(arg)
    return tuple(several)


def _has_arrays(arg: Any) -> bool:
    leaves = jax.tree.leaves(arg)
    return bool(leaves) and all(hasattr(leaf, "dtype") for leaf in leaves)


def _spec(axis: int | None) -> PartitionSpec:
    return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, _AXIS)
