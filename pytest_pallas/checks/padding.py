"""``padding``: what lies beyond the edge of an array, or is ignored, never matters."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_pallas.analysis import KernelCall
from pytest_pallas.analysis.unwritten import has_blocks, overhanging_blocks
from pytest_pallas.backends import Backend, Outcome, label
from pytest_pallas.backends.variations import Fill
from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.checks.ignored import masks_of, poisoned
from pytest_pallas.checks.rerun import run_again, unchanged
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.numerics import Comparison
from pytest_pallas.spec import KernelSpec

#: What is put beyond the edges of arrays, besides the interpreters' own.
_FILLS = (Fill("high", "padding"), Fill("low", "padding"))


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Why the check does not apply to the kernels of a call, or None if it may.

    Which blocks hang over an edge depends on shapes, and is not asked of kernels that have blocks.
    """
    if spec.ignored is not None:
        return None
    fills = getattr(backend, "fills", False)
    return None if fills and any(has_blocks(k.eqn) for k in kernels) else _why_not(backend)


@declare_check(
    "padding",
    asks="does nothing change with what lies beyond the edge, or is ignored?",
    requires_kernels=requires_kernels,
    example_fraction=0.5,
)
def padding(context: CheckContext) -> CheckResult:
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
    first = run(context, context.kernel, context.arguments.args)
    fills = _FILLS if _exposed(context, first) else ()
    masks = masks_of(context.ignored, context.arguments)
    if not fills and masks is None:
        raise NotApplicableError(_why_not(context.backend))
    seconds, comparisons = first.seconds, list[Comparison]()
    for fill in fills:
        words = f"with {fill}"
        # Races were looked for in the first run.
        again = run_again(context, context.arguments.args, words, races=False, fill=fill)
        seconds += again.seconds
        comparisons += unchanged(again, first, words)
    for words, args in poisoned(context.arguments.args, masks) if masks is not None else ():
        again = run_again(context, args, words, races=context.races)
        seconds += again.seconds
        comparisons += unchanged(again, first, words)
    return CheckResult(comparisons=comparisons, outcome=first, seconds=seconds)


def _exposed(context: CheckContext, first: Outcome) -> bool:
    """Whether a kernel could read beyond an edge, and the backend says what is there."""
    if not getattr(context.backend, "fills", False):
        return False
    return not context.jit or any(overhanging_blocks(kernel.eqn) for kernel in first.kernels)


def _why_not(backend: Backend) -> str:
    if getattr(backend, "fills", False):
        return "no block hangs over the edge of its array, and no ignored= is declared"
    return (
        f"{label(backend)} does not control what is beyond the edge of an array, and no ignored= "
        "is declared"
    )
