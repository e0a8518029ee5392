"""``gradient``: compare the kernel's reverse mode with ``jax.vjp`` of the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_sim.dtypes import is_float
from pytest_pallas.checks.check import Program, declare_check
from pytest_pallas.checks.context import (
    CheckContext,
    CheckResult,
    ComparedOutputs,
    expect,
    judge,
    run,
)
from pytest_pallas.checks.metamorphic import generator
from pytest_pallas.errors import NotApplicableError, SpecError
from pytest_pallas.judge.references import flatten
from pytest_pallas.spec import KernelSpec


@dataclass(frozen=True)
class Vjp:
    """``gradient(cotangents, *args)`` of a function, by some of its arguments.

    ``cotangents=None`` stands for ones, if only the program matters.
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


def program(context: CheckContext, cotangents: Any = None) -> Program:
    """Return the program that a compiling backend compiles: the kernel and its pullback."""
    by = _positions(context)
    return Vjp(context.kernel, by), (cotangents, *context.arguments.args)


def requires_spec(spec: KernelSpec) -> str | None:
    """A spec must have the arguments to differentiate by."""
    return None if spec.differentiable else "the spec names no differentiable arguments"


@declare_check(
    "gradient",
    asks="is the reverse mode that of the reference?",
    requires_spec=requires_spec,
    example_fraction=0.5,
    program=program,
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
