"""``padding``: what lies beyond the edge of an array, or is ignored, never matters."""

from __future__ import annotations

from pytest_pallas import compat
from pytest_pallas.backends import Outcome, label
from pytest_pallas.backends.fills import words_of
from pytest_pallas.checks.again import run_again, unchanged
from pytest_pallas.checks.ignored import masks_of, poisoned
from pytest_pallas.checks.trial import Finding, Trial, run
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.numerics import Comparison

#: What is put beyond the edges of arrays, besides the interpreters' own.
_FILLS = ("high:padding", "low:padding")


def padding(trial: Trial) -> Finding:
    """Run the kernel with other numbers where none should matter, and compare bit for bit.

    First, in blocks that hang over the edge of an array. The interpreters fill them with NaN, which
    hides from comparisons and does not exist in integers; so they are filled with the largest and
    with the lowest finite numbers too. A kernel without such blocks is not run again. Then the
    elements of the arguments that the spec says are ignored. (Scratch and outputs that nobody has
    written are the matter of the sanitizer ``memory``.)

    Raises:
      NotApplicableError: there is neither.
      KernelError: the kernel raised, and did not before; the message says with what.
    """
    first = run(trial, trial.kernel, trial.arguments.args)
    fills = _FILLS if _exposed(trial, first) else ()
    masks = masks_of(trial.ignored, trial.arguments)
    if not fills and masks is None:
        raise NotApplicableError(_why_not(trial))
    seconds, comparisons = first.seconds, list[Comparison]()
    for fill in fills:
        words = f"with {words_of(fill)}"
        # Races were looked for in the first run.
        again = run_again(trial, trial.arguments.args, words, races=False, fill=fill)
        seconds += again.seconds
        comparisons += unchanged(again, first, words)
    for words, args in poisoned(trial.arguments.args, masks) if masks is not None else ():
        again = run_again(trial, args, words, races=trial.races)
        seconds += again.seconds
        comparisons += unchanged(again, first, words)
    return Finding(comparisons=comparisons, outcome=first, seconds=seconds)


def _exposed(trial: Trial, first: Outcome) -> bool:
    """Whether a kernel could read beyond an edge, and the backend says what is there."""
    if not getattr(trial.backend, "fills", False):
        return False
    return not trial.jit or any(compat.overhanging_blocks(kernel.eqn) for kernel in first.kernels)


def _why_not(trial: Trial) -> str:
    if getattr(trial.backend, "fills", False):
        return (
            "in no example does a block hang over the edge of its array; and no ignored= says what "
            "else must not matter"
        )
    return (
        f"{label(trial.backend)} cannot be told what is beyond the edge of an array, and no "
        "ignored= says what else must not matter"
    )
