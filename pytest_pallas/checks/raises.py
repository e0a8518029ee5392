"""``raises``: the kernel rejects the calls that the spec lists, with the right error."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pytest_pallas.backends.execution import brief
from pytest_pallas.backends.protocol import Outcome
from pytest_pallas.backends.tracing import signature
from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, call
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import MismatchError, NotApplicableError, SpecError
from pytest_pallas.spec import KernelSpec, Raises


def requires_spec(spec: KernelSpec) -> str | None:
    """A spec must list calls that the kernel must reject."""
    return None if spec.raises else "the spec lists no calls that must raise (raises)"


@declare_check(
    "raises",
    asks="does it reject the wrong calls of the spec, with the right error?",
    requires_spec=requires_spec,
    example_fraction=0.125,
    executes=False,
    tries_mutants=False,  # a kernel that rejects a call is not traced
)
def raises(context: CheckContext) -> CheckResult:
    """Call the kernel with each ``Raises`` of the spec, and look at the error.

    The reference is not called. An error of the simulator, the compiler or the interpreter is not
    that of the kernel, unless the ``Raises`` names its type.

    Raises:
      MismatchError: the kernel accepts a call, raises another error, or says something else.
      NotApplicableError: the spec lists no such calls.
      SpecError: the function of a ``Raises`` raised, or returned no call.
    """
    if not context.raises:
        raise NotApplicableError("it needs a spec with raises=[Raises(...)]")
    seconds, problems = 0.0, list[tuple[str, Exception | None]]()
    for number, wanted in enumerate(context.raises):
        name = wanted.name or f"raises[{number}]"
        rejected = _rejected(wanted, name, context.arguments)
        other = dataclasses.replace(context, arguments=rejected)
        made = call(other, context.kernel, rejected.args)
        # The kernel need not get as far as its pallas_call.
        outcome = context.backend.run(dataclasses.replace(made, needs_kernel=False))
        seconds += outcome.seconds
        if outcome.error is None or not wanted.accepts(outcome.error):
            text = f"{name}: {_told(wanted, outcome)}; called with {signature(made)}"
            problems.append((text, outcome.error))
    if problems:
        raise _error(problems)
    return CheckResult(comparisons=(), seconds=seconds)


def _error(problems: Sequence[tuple[str, Exception | None]]) -> MismatchError:
    """The error with a line for each problem."""
    error = MismatchError(
        "the kernel does not reject wrong calls as the spec says:\n  "
        + "\n  ".join(text for text, _ in problems)
    )
    error.__cause__ = next((cause for _, cause in problems if cause is not None), None)
    return error


def _told(wanted: Raises, outcome: Outcome) -> str:
    """What happened instead of the wanted error."""
    error = outcome.error
    if error is None:
        shapes = ", ".join(
            f"{leaf.dtype}[{', '.join(map(str, np.shape(leaf)))}]"
            for leaf in jax.tree.leaves(outcome.values)
            if hasattr(leaf, "dtype")
        )
        return f"the kernel returned {shapes or 'nothing'}, and must raise {wanted.description}"
    words = brief(str(error), lines=3)
    if isinstance(error, wanted.errors):
        return f"{type(error).__name__} says {words!r}, which does not match {wanted.match!r}"
    return f"the kernel raised {type(error).__name__}: {words}, and must raise {wanted.description}"


def _rejected(wanted: Raises, name: str, drawn: Arguments) -> Arguments:
    """The call that must raise, with zeros for shapes.

    Raises:
      SpecError: the function of ``wanted`` raised, or returned no call.
    """
    given: Any = wanted.args
    if callable(given):
        try:
            given = given(drawn)
        except Exception as error:
            raise SpecError(
                f"{name}: args raised {type(error).__name__} for a drawn call: {error}"
            ) from error
        if isinstance(given, tuple):
            given = dataclasses.replace(drawn, args=given, kin=None)
    elif isinstance(given, tuple):
        given = Arguments(given)
    if not isinstance(given, Arguments):
        raise SpecError(
            f"{name}: args returned {type(given).__name__}, not a tuple or strategies.Arguments"
        )
    tuning = {word: each for word, each in given.tuning.items() if word not in wanted.options}
    return dataclasses.replace(
        given,
        args=jax.tree.map(_array, given.args),
        options={**given.options, **wanted.options},
        tuning=tuning,
        kin=None,
    )


def _array(leaf: Any) -> Any:
    return np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
