"""``raises``: the kernel rejects the calls that the spec lists, with the right error."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pytest_pallas.backends.execution import brief, describe_arrays
from pytest_pallas.backends.protocol import Outcome
from pytest_pallas.backends.tracing import signature
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, call, count_run
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
    problems = list[tuple[str, Exception | None]]()
    for number, rejection in enumerate(context.raises):
        name = rejection.name or f"raises[{number}]"
        rejected = _rejected(rejection, name, context.arguments)
        other = dataclasses.replace(context, arguments=rejected)
        made = call(other, context.kernel, rejected.args)
        # The kernel need not get as far as its pallas_call.
        outcome = context.backend.run(dataclasses.replace(made, needs_kernel=False))
        count_run(context, outcome)
        if outcome.error is None or not rejection.accepts(outcome.error):
            text = f"{name}: {_difference(rejection, outcome)}; called with {signature(made)}"
            problems.append((text, outcome.error))
    if problems:
        raise _error(problems)
    return CheckResult(comparisons=())


def _error(problems: Sequence[tuple[str, Exception | None]]) -> MismatchError:
    """Return the error with a line for each problem."""
    error = MismatchError(
        "the kernel does not reject wrong calls as the spec says:\n  "
        + "\n  ".join(text for text, _ in problems)
    )
    error.__cause__ = next((cause for _, cause in problems if cause is not None), None)
    return error


def _difference(rejection: Raises, outcome: Outcome) -> str:
    """Describe what happened instead of the expected error."""
    error = outcome.error
    if error is None:
        shapes = describe_arrays(outcome.values) or "nothing"
        return f"the kernel returned {shapes}, and must raise {rejection.description}"
    text = brief(str(error), lines=3)
    if isinstance(error, rejection.errors):
        return f"{type(error).__name__} says {text!r}, which does not match {rejection.match!r}"
    return (
        f"the kernel raised {type(error).__name__}: {text}, and must raise {rejection.description}"
    )


def _rejected(rejection: Raises, label: str, drawn: Arguments) -> Arguments:
    """Return the call that must raise, with zeros for shapes.

    Raises:
      SpecError: the function of ``rejection`` raised, or returned no call.
    """
    arguments: Any = rejection.args
    if callable(arguments):
        try:
            arguments = arguments(drawn)
        except Exception as error:
            raise SpecError(
                f"{label}: args raised {type(error).__name__} for a drawn call: {error}"
            ) from error
        if isinstance(arguments, tuple):
            arguments = dataclasses.replace(drawn, args=arguments, kin=None)
    elif isinstance(arguments, tuple):
        arguments = Arguments(arguments)
    if not isinstance(arguments, Arguments):
        raise SpecError(
            f"{label}: args returned {type(arguments).__name__}, not a tuple or "
            "strategies.Arguments"
        )
    tuning = {
        name: value for name, value in arguments.tuning.items() if name not in rejection.options
    }
    return dataclasses.replace(
        arguments,
        args=jax.tree.map(_array, arguments.args),
        options={**arguments.options, **rejection.options},
        tuning=tuning,
        kin=None,
    )


def _array(leaf: Any) -> Any:
    return np.zeros(leaf.shape, leaf.dtype) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf
