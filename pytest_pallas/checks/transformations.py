"""The kernel under ``jax.grad`` and ``jax.vmap``: the checks ``gradient`` and ``vmap``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_sim.dtypes import is_float, wide
from pallas_sim.traces import grid_facts
from pytest_pallas.backends.protocol import Backend
from pytest_pallas.backends.tracing import traced_kernels
from pytest_pallas.checks import Program, declare_check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    ComparedOutputs,
    call,
    expect,
    judge,
    run,
)
from pytest_pallas.checks.metamorphic import generator
from pytest_pallas.errors import KernelReferenceError, NotApplicableError, SpecError
from pytest_pallas.grid.kernel_calls import KernelCall, has_semantics, reaches_devices
from pytest_pallas.judge.judgement import Expected
from pytest_pallas.judge.references import Leaves, flatten
from pytest_pallas.judge.tolerance import Comparison, Noise
from pytest_pallas.spec import KernelSpec


@dataclass(frozen=True)
class Vjp:
    """``gradient(cotangents, *args)`` of a function, by some of its arguments.

    ``cotangents=None`` stands for ones, if only the gradient_program matters.
    """

    function: Callable[..., Any]
    by: tuple[int, ...]

    def __call__(self, cotangents: Any, *args: Any, **options: Any) -> Any:
        """The cotangents of the arguments ``by``, in that order."""

        def only(*some: Any) -> Any:
            full = list(args)
            for position, value in zip(self.by, some, strict=True):
                full[position] = value
            return self.function(*full, **options)

        outputs, pullback = jax.vjp(only, *(args[position] for position in self.by))
        if cotangents is None:
            typed = jax.tree.map(jnp.ones_like, outputs)
        else:
            typed = jax.tree.map(lambda ct, out: ct.astype(out.dtype), cotangents, outputs)
        return pullback(typed)


def gradient_program(context: CheckContext, cotangents: Any = None) -> Program:
    """Return what a compiling backend compiles: the kernel and its pullback."""
    by = _positions(context)
    return Vjp(context.kernel, by), (cotangents, *context.arguments.args)


@declare_check(
    "gradient",
    asks="is the reverse mode that of the reference?",
    requires_spec=lambda spec: (
        None if spec.differentiable else "the spec names no differentiable arguments"
    ),
    example_fraction=0.5,
    program=gradient_program,
    differentiates="only",
)
def gradient(context: CheckContext) -> CheckResult:
    """Pull one random cotangent back through kernel and reference, and compare.

    The cotangent is unit normal, drawn from a seed that is a hash of the arguments, and rounded
    to the output's dtype, so that kernel, baseline and oracle all see the same one.

    Raises:
      SpecError: an output is not a float array, so it cannot be differentiated.
    """
    assert context.reference is not None
    by = _positions(context)
    outputs = run(context, context.kernel, context.arguments.args, shards=True)
    cotangents = jax.tree.map(_cotangent(context), outputs.values)
    args = (cotangents, *context.arguments.args)
    pulled = replace(
        context,
        kernel=Vjp(context.kernel, by),
        reference=Vjp(context.reference, by),
        arguments=replace(context.arguments, args=args),
    )
    # It may need no output of the kernel, whose forward run was just seen to have one.
    outcome = run(pulled, pulled.kernel, args, shards=True, needs_kernel=False)
    expected = expect(pulled)
    return CheckResult(
        comparisons=judge(context, outcome.values, expected),
        subject=f"gradient by arguments {by}",
        answer=ComparedOutputs(flatten(outcome.values), expected, pulled),
    )


def _positions(context: CheckContext) -> tuple[int, ...]:
    if not context.differentiable:
        raise NotApplicableError(
            "the gradient check needs the positions of the arguments to differentiate by: give "
            "differentiable=, such as differentiable=(0, 1)"
        )
    return tuple(context.differentiable)


def _cotangent(context: CheckContext) -> Callable[[Any], Any]:
    rng = generator(context, seed_bytes=8)

    def draw(output: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if not is_float(output.dtype):
            raise SpecError(
                f"the gradient check needs float outputs, but the kernel returns {output.dtype}; "
                "leave gradient out of the spec's checks"
            )
        return np.asarray(rng.standard_normal(output.shape)).astype(output.dtype)

    return draw


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
            chosen = iter(some)
            full = [
                next(chosen) if is_array else leaf
                for leaf, is_array in zip(leaves, arrays, strict=True)
            ]
            return self.function(*jax.tree.unflatten(tree, full), **options)

        dynamic = [leaf for leaf, is_array in zip(leaves, arrays, strict=True) if is_array]
        return jax.vmap(call, in_axes=tuple(axes))(*dynamic)


def _vmap_program(context: CheckContext) -> Program:
    """Return what a compiling backend compiles: a batch of two of every array.

    Raises:
      NotApplicableError: the kernel allows no batch.
    """
    _require_batches(context)
    leaves, tree = jax.tree.flatten(context.arguments.args)
    stacked = [
        jax.ShapeDtypeStruct((2, *np.shape(leaf)), leaf.dtype) if hasattr(leaf, "dtype") else leaf
        for leaf in leaves
    ]
    count = sum(hasattr(leaf, "dtype") for leaf in leaves)
    return Vmapped(context.kernel, (True,) * count), tuple(jax.tree.unflatten(tree, stacked))


def _requires_batch(spec: KernelSpec) -> str | None:
    """The kernel must take a batch axis, and run on no mesh."""
    if spec.meshes:
        return "the kernel runs on a mesh, and vmap of shard_map is not supported"
    return "the spec declares vmappable=False" if spec.vmappable is False else None


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Kernels that JAX can batch, and that are right in a batch unless the spec says otherwise."""
    return _unmet(spec.vmappable, backend, kernels)


def _unmet(vmappable: bool | None, backend: Backend, kernels: Sequence[KernelCall]) -> str | None:
    """Return why kernels cannot be batched on a backend, or None.

    A batch runs a kernel once for each of its elements, in one launch: a device may signal its
    neighbor twice before another one has signalled once. JAX 0.11.2 and 0.12.0.1 give operands in
    HBM a block for each element, which Mosaic TPU refuses; and JAX's TPU interpreter adds the batch
    to the grid, and not to dimension_semantics.
    """
    if vmappable is None and any(map(reaches_devices, kernels)):
        return "needs vmappable=True: the kernel reaches other devices, once for each batch element"
    if vmappable is None and backend.platform != "gpu" and any(map(_is_in_hbm, kernels)):
        return "needs vmappable=True: JAX compiles no batch of operands in HBM or pl.ANY for a TPU"
    if backend.name == "tpu-interpret" and any(has_semantics(k.eqn) for k in kernels):
        return "JAX's TPU interpreter cannot run vmap of a kernel with dimension_semantics"
    return None


def _require_batches(context: CheckContext) -> None:
    """Raise for a call that cannot be batched.

    Raises:
      NotApplicableError: it has no array, or its kernels do not allow it.
    """
    if not any(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(context.arguments.args)):
        raise NotApplicableError("no array argument: there is nothing to batch")
    made = call(context, context.kernel, context.arguments.args)
    unmet = _unmet(context.vmappable, context.backend, traced_kernels(made, context.backend))
    if unmet is not None:
        raise NotApplicableError(unmet)


@declare_check(
    "vmap",
    asks="does the batched kernel equal the stacked results?",
    requires_spec=_requires_batch,
    requires_kernels=requires_kernels,
    example_fraction=0.25,
    program=_vmap_program,
    varies_calls=True,
)
def vmap(context: CheckContext) -> CheckResult:
    """Batch all array arguments, then only the first, and compare with the stacked oracle.

    The second element of the batch is the first with other floats, each within the range of its
    argument, so that a variance stays positive: nearer to their mean, or if they are integers, in
    the opposite order. If the reference is NaN for those, they are in the opposite order, or the
    same. Indices and lengths are repeated.
    """
    leaves, tree = jax.tree.flatten(context.arguments.args)
    arrays = [hasattr(leaf, "dtype") for leaf in leaves]
    count = sum(arrays)
    _require_batches(context)
    first = expect(context)
    comparisons: list[Comparison] = []
    for batched in {(True,) * count, (True,) + (False,) * (count - 1)}:
        chosen = iter(batched)
        flags = [is_array and next(chosen) for is_array in arrays]
        other, second = _second(context, leaves, flags, tree)
        stacked = [
            np.stack([np.asarray(a), np.asarray(b)]) if flag else a
            for a, b, flag in zip(leaves, other, flags, strict=True)
        ]
        outcome = run(
            # JAX's batched kernel has other names, axes and points.
            replace(context, coverage=[]),
            Vmapped(context.kernel, batched),
            tuple(jax.tree.unflatten(tree, stacked)),
        )
        comparisons += judge(context, outcome.values, _stacked(first, second))
    return CheckResult(comparisons=comparisons, subject="vmap; axis 0 is the batch of 2")


def _stacked(first: Expected, second: Expected) -> Expected:
    """Return the expected values of a batch of two."""

    def stack(one: Leaves, two: Leaves) -> Leaves:
        return [(path, np.stack([a, b])) for (path, a), (_, b) in zip(one, two, strict=True)]

    def noise(path: str) -> Noise | None:
        one, two = first.noise(path), second.noise(path)
        if one is None or two is None:
            return None
        return one.combined(lambda *draws: np.stack(draws, axis=1), two)

    return replace(
        first,
        oracle=stack(first.oracle, second.oracle),
        baseline=stack(first.baseline, second.baseline),
        sensitivity=lambda path: max(first.sensitivity(path), second.sensitivity(path)),
        noise=noise,
    )


def _second(
    context: CheckContext, leaves: Sequence[Any], flags: Sequence[bool], tree: Any
) -> tuple[list[Any], Expected]:
    """Return the leaves of the second element of a batch, and what is expected of them."""
    for change in (_nearer, _reversed):
        other = [change(leaf) if flag else leaf for leaf, flag in zip(leaves, flags, strict=True)]
        try:
            return other, expect(context, tuple(jax.tree.unflatten(tree, other)))
        except KernelReferenceError:  # as where a matrix is no longer triangular
            continue
    return list(leaves), expect(context)


def _nearer(leaf: Any) -> Any:
    """Move floats half way to their mean, in one order and range; integers are reversed."""
    if not is_float(leaf.dtype):
        return leaf
    values = wide(np.asarray(leaf))
    finite = values[np.isfinite(values)]
    if not finite.size or (finite == np.rint(finite)).all():
        return _reversed(leaf)
    middle = finite.mean() if np.ptp(finite) else 0.0
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(values), (values + middle) / 2, values).astype(leaf.dtype)


def _reversed(leaf: Any) -> Any:
    """Return floats in the opposite order; half of them if all are equal."""
    if not is_float(leaf.dtype):
        return leaf
    array = np.asarray(leaf)
    different = array.reshape(-1)[::-1].reshape(array.shape)
    if np.array_equal(different, array, equal_nan=True):
        return (wide(array) / 2).astype(array.dtype)
    return different


def _is_in_hbm(kernel: KernelCall) -> bool:
    """Return whether a ``pallas_call`` gets an operand whole, in HBM or anywhere, not in blocks."""
    if "grid_mapping" not in kernel.eqn.params:
        return False
    facts = grid_facts(kernel.eqn)
    return any(block.space in ("hbm", "any") for block in (*facts.inputs, *facts.outputs))
