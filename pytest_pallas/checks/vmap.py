"""``vmap``: the batched kernel equals the kernel on each element of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pytest_pallas.analysis import KernelCall
from pytest_pallas.analysis.programs import has_semantics
from pytest_pallas.backends import Backend
from pytest_pallas.checks.check import Program, declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, expect, judge, run
from pytest_pallas.numerics import Comparison, Noise, is_float
from pytest_pallas.oracle.expected import Expected, LazyMapping, Leaves
from pytest_pallas.spec import KernelSpec


@dataclass(frozen=True)
class Vmapped:
    """``jax.vmap(function)`` over the array leaves of some arguments; it compares by value."""

    function: Callable[..., Any]
    batched: tuple[bool, ...]

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the batched function; only arrays are batched."""
        leaves, tree = jax.tree.flatten(args)
        axes = [0 if batched else None for batched in self.batched]
        arrays = [hasattr(leaf, "dtype") for leaf in leaves]

        def call(*some: Any) -> Any:
            given = iter(some)
            full = [
                next(given) if is_array else leaf
                for leaf, is_array in zip(leaves, arrays, strict=True)
            ]
            return self.function(*jax.tree.unflatten(tree, full), **options)

        dynamic = [leaf for leaf, is_array in zip(leaves, arrays, strict=True) if is_array]
        return jax.vmap(call, in_axes=tuple(axes))(*dynamic)


def program(context: CheckContext) -> Program:
    """What a compiling backend compiles: a batch of two of every array."""
    leaves, tree = jax.tree.flatten(context.arguments.args)
    stacked = [
        jax.ShapeDtypeStruct((2, *np.shape(leaf)), leaf.dtype) if hasattr(leaf, "dtype") else leaf
        for leaf in leaves
    ]
    count = sum(hasattr(leaf, "dtype") for leaf in leaves)
    return Vmapped(context.kernel, (True,) * count), tuple(jax.tree.unflatten(tree, stacked))


def requires_spec(spec: KernelSpec) -> str | None:
    """The kernel must take a batch axis, and run on no mesh."""
    if spec.meshes:
        return "the kernel runs on a mesh, and vmap of shard_map is not supported"
    return None if spec.vmappable else "the spec declares vmappable=False"


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """JAX's TPU interpreter adds the batch to the grid, and not to dimension_semantics.

    Seen in JAX 0.11.2 and 0.12.0.1.
    """
    del spec
    if backend.name == "tpu-interpret" and any(has_semantics(k.eqn) for k in kernels):
        return "JAX's TPU interpreter cannot run vmap of a kernel with dimension_semantics"
    return None


@declare_check(
    "vmap",
    asks="does the batched kernel equal the stacked results?",
    requires_spec=requires_spec,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    program=program,
    varies_calls=True,
)
def vmap(context: CheckContext) -> CheckResult:
    """Batch all array arguments, then only the first, and compare with the stacked oracle.

    The second element of the batch is the first with its floats negated: other values that are
    valid, too. Indices and lengths are repeated.
    """
    leaves, tree = jax.tree.flatten(context.arguments.args)
    arrays = [hasattr(leaf, "dtype") for leaf in leaves]
    count = sum(arrays)
    first = expect(context)
    comparisons: list[Comparison] = []
    seconds = 0.0
    for batched in {(True,) * count, (True,) + (False,) * (count - 1)}:
        chosen = iter(batched)
        flags = [is_array and next(chosen) for is_array in arrays]
        other = [_negated(leaf) if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
        stacked = [
            np.stack([np.asarray(a), np.asarray(b)]) if flag else a
            for a, b, flag in zip(leaves, other, flags, strict=True)
        ]
        assert context.reference is not None
        second = context.cache.get(
            context.reference,
            jax.tree.unflatten(tree, other),
            context.arguments.options,
            nan_ok=context.nan_ok,
        )
        outcome = run(
            context, Vmapped(context.kernel, batched), tuple(jax.tree.unflatten(tree, stacked))
        )
        seconds += outcome.seconds
        comparisons += judge(context, outcome.values, _stacked(first, second))
    return CheckResult(
        comparisons=comparisons, seconds=seconds, subject="vmap; axis 0 is the batch of 2"
    )


def _stacked(first: Expected, second: Expected) -> Expected:
    """The expected values of a batch of two."""

    def stack(one: Leaves, two: Leaves) -> Leaves:
        return [(path, np.stack([a, b])) for (path, a), (_, b) in zip(one, two, strict=True)]

    def sensitivity() -> Mapping[str, float]:
        return {
            path: max(value, second.sensitivity.get(path, 0.0))
            for path, value in first.sensitivity.items()
        }

    def noise(path: str) -> Noise | None:
        one, two = first.noise(path), second.noise(path)
        if one is None or two is None:
            return None
        return Noise(
            wide=np.stack([one.wide, two.wide], axis=1),
            narrow=np.stack([one.narrow, two.narrow], axis=1),
        )

    return Expected(
        stack(first.oracle, second.oracle),
        stack(first.baseline, second.baseline),
        first.depth,
        LazyMapping(sensitivity),
        noise,
        first.precision,
        first.fallbacks,
    )


def _negated(leaf: Any) -> Any:
    return -np.asarray(leaf) if is_float(leaf.dtype) else leaf
