"""``padding``: elements beyond the edge of an array, or ignored, do not affect the output."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_pallas.backends.protocol import Backend, Fill, Outcome, label
from pytest_pallas.checks.check import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.checks.inputs import masks_of, poisoned
from pytest_pallas.checks.metamorphic import run_again, unchanged
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.grid.unwritten import is_tiled, overhanging_blocks
from pytest_pallas.judge.tolerance import Comparison
from pytest_pallas.spec import KernelSpec

#: Values beyond the edges of arrays, besides the interpreters' own.
_FILLS = (Fill("high", "padding"), Fill("low", "padding"))


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """The reason why the check does not apply to the kernels of a call, or None.

    Kernels with blocks pass, because it depends on shapes whether a block extends over an edge.
    """
    if spec.ignored is not None:
        return None
    fills = getattr(backend, "fills", False)
    return None if fills and any(map(is_tiled, kernels)) else _why_not(backend)


@declare_check(
    "padding",
    asks="is the output independent of elements beyond the edge and of ignored elements?",
    requires_kernels=requires_kernels,
    example_fraction=0.5,
)
def padding(context: CheckContext) -> CheckResult:
    """Run the kernel with other values in padding and ignored elements, and compare bit for bit.

    First, it fills the padding of blocks that extend beyond an array. The interpreters fill it with
    NaN, which comparisons can hide and integers do not have; so the check also fills it with the
    largest and the lowest finite numbers. It does not run a kernel without such blocks again. Then
    it replaces the elements of the arguments that the spec declares as ignored. (The sanitizer
    ``memory`` checks uninitialized scratch memory and outputs.)

    Raises:
      NotApplicableError: there is neither padding nor an ignored element.
      KernelError: the kernel raised, and did not before; the message has the values.
    """
    first = run(context, context.kernel, context.arguments.args)
    fills = _FILLS if _exposed(context, first) else ()
    masks = masks_of(context.ignored, context.arguments)
    if not fills and masks is None:
        raise NotApplicableError(_why_not(context.backend))
    seconds, comparisons = first.seconds, list[Comparison]()
    for fill in fills:
        words = f"with {fill}"
        # the first run detects races
        again = run_again(context, context.arguments.args, words, races=False, fill=fill)
        seconds += again.seconds
        comparisons += unchanged(again, first, words)
    for words, args in poisoned(context.arguments.args, masks) if masks is not None else ():
        again = run_again(context, args, words, races=context.settings.races)
        seconds += again.seconds
        comparisons += unchanged(again, first, words)
    return CheckResult(comparisons=comparisons, outcome=first, seconds=seconds)


def _exposed(context: CheckContext, first: Outcome) -> bool:
    """Whether a kernel could read beyond an edge, and the backend controls the values there."""
    if not getattr(context.backend, "fills", False):
        return False
    return not context.settings.jit or any(map(overhanging_blocks, first.kernels))


def _why_not(backend: Backend) -> str:
    if getattr(backend, "fills", False):
        return "no block extends beyond its array, and the spec has no ignored="
    return (
        f"{label(backend)} does not control the values beyond the edge of an array, and the spec "
        "has no ignored="
    )
