"""``memory``: reads of what nobody has written, outputs nobody writes, accesses out of bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from pytest_pallas.analysis.unwritten import unwritten_memory
from pytest_pallas.backends import Backend, Outcome
from pytest_pallas.backends.fills import WORDS, words_of
from pytest_pallas.checks.again import run_again, unchanged
from pytest_pallas.checks.check import Check
from pytest_pallas.checks.trial import Trial, TrialResult, run
from pytest_pallas.errors import MismatchError
from pytest_pallas.explanations import Explanation, Fact
from pytest_pallas.findings import Finding
from pytest_pallas.numerics import Comparison
from pytest_pallas.sanitizers.unwritten import PAIR, never_written


def memory(trial: Trial) -> TrialResult:
    """Run the kernel with several contents of memory that nobody has written, and compare.

    Scratch and outputs hold NaN in the first run (integers an end of their range) and 0 in the
    second; if the kernel could read them, the largest and the lowest numbers in two more. Where the
    answer changes, it is told which memory is behind that, and which blocks of which output were
    never written.

    Raises:
      BoundsError: an access is out of bounds; with the kernel's line.
      MismatchError: the answer depends on what nobody has written.
      KernelError: the kernel raised.
    """
    args = trial.arguments.args
    first = run(trial, trial.kernel, args, races=False)
    seconds, comparisons = first.seconds, list[Comparison]()
    for fill in _fills(trial, first):
        words = f"with {words_of(fill)}"
        again = run_again(trial, args, words, races=False, fill=fill)
        seconds += again.seconds
        comparisons += unchanged(again, first, words)
        failed = next((each for each in comparisons if not each.passed), None)
        if failed is not None:
            explanation = failed.explanation or Explanation("wrong")
            raise _error(trial, first, fill, explanation)
    return TrialResult(comparisons=comparisons, outcome=first, seconds=seconds)


def _fills(trial: Trial, first: Outcome) -> Sequence[str]:
    """What to fill memory with: 0 for outputs that are not read shows what was not written."""
    kernels = first.kernels
    if not trial.jit or any(unwritten_memory(kernel.eqn) for kernel in kernels):
        return ("zero:memory", "high:memory", "low:memory")
    # A bool or an unsigned integer that nobody has written may be 0 anyway, or the largest.
    dtypes = [var.aval.dtype for kernel in kernels for var in kernel.eqn.outvars]
    low = any(
        jnp.issubdtype(dtype, jnp.bool) or jnp.issubdtype(dtype, jnp.unsignedinteger)
        for dtype in dtypes
    )
    return ("zero:output", "high:output") if low else ("zero:output",)


def _error(trial: Trial, first: Outcome, fill: str, explanation: Explanation) -> MismatchError:
    """What it was that changed the answer, by more runs with a part of the memory filled."""
    args, (name, _, _) = trial.arguments.args, fill.partition(":")
    rest: Any = {"races": False}
    scratch = run(trial, trial.kernel, args, fill=f"{name}:scratch", **rest)
    filled = [
        run(trial, trial.kernel, args, fill=f"{each}:output", probe="outputs", **rest)
        for each in PAIR
    ]
    lines: list[str] = []
    found: list[Finding | None] = []
    if any(_changes(each, first) for each in filled):
        lines = list(never_written(filled[0].told, filled[1].told))
        if not lines:
            lines = [
                f"{_name(first)} reads an output before it writes it: its memory held {WORDS[name]}"
            ]
            found.append(_load(trial, f"{name}:output"))
        elif len(first.kernels) == 1 and first.kernels[0].source:
            lines[-1] += f" ({first.kernels[0].source})"
    if _changes(scratch, first):
        lines.append(
            f"{_name(first)} reads scratch memory before it writes it: it held {WORDS[name]}"
        )
        found.append(_load(trial, f"{name}:scratch"))
    summary = "\n".join(lines) or (
        f"the answer depends on what {words_of(fill).partition(' in ')[2]}"
    )
    loads = [each for each in found if each is not None]
    facts = [Fact("read", str(each)) for each in loads]
    error = MismatchError.explained(explanation.under(summary).with_facts(*facts))
    error.findings = tuple(loads)
    return error


def _load(trial: Trial, fill: str) -> Finding | None:
    """The first load that gives something else if memory is filled so; None if nobody knows."""
    if "loads" not in getattr(trial.backend, "probes", ()):
        return None
    from pytest_pallas.simulator.loads import uninitialized

    args = trial.arguments.args
    asked: Any = {"races": False, "probe": "loads"}
    plain, other = (run(trial, trial.kernel, args, fill=each, **asked) for each in ("", fill))
    return uninitialized(plain.told, other.told)


def _changes(again: Outcome, first: Outcome) -> bool:
    return any(not each.passed for each in unchanged(again, first, ""))


def _name(first: Outcome) -> str:
    if len(first.kernels) != 1:
        return "a kernel"
    kernel = first.kernels[0]
    return f"{kernel.name} ({kernel.source})" if kernel.source else kernel.name


def requires_backend(backend: Backend) -> str | None:
    """A backend must fill memory with given values."""
    if getattr(backend, "fills", False):
        return None
    return f"{backend.name} cannot set the contents of uninitialized memory"


CHECK = Check(
    name="memory",
    asks="is everything written before it is read, and every index within bounds?",
    run=memory,
    kind="sanitizer",
    requires_backend=requires_backend,
    example_fraction=0.25,
)
