"""``memory``: reads of uninitialized memory, unwritten outputs, out-of-bounds accesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np

from pallas_sim.errors import Explanation, Fact
from pallas_sim.findings import Finding
from pallas_sim.traces import grid_facts
from pytest_pallas.backends.protocol import WORDS, Backend, Contents, Fill, Outcome, fill_value
from pytest_pallas.checks import declare_sanitizer
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.checks.grid import idle_kernels
from pytest_pallas.checks.metamorphic import run_again, unchanged
from pytest_pallas.errors import MismatchError
from pytest_pallas.grid.model import unwritten_memory
from pytest_pallas.judge.tolerance import Comparison

#: The fills of two runs. An element that holds 0 in one run and the largest number in the other was
#: never written, or is a copy of uninitialized memory.
PAIR: tuple[Contents, Contents] = ("zero", "high")

#: Number of blocks of an output that a message lists.
_SHOWN = 4

#: The parameters of a kernel's equation, and its outputs.
KernelOutputs = tuple[Any, Sequence[Any]]


def never_written(first: Sequence[KernelOutputs], second: Sequence[KernelOutputs]) -> Iterator[str]:
    """Yield one line for each output with elements that were never written.

    Args:
      first: the outputs of the kernels of a run, in order, with outputs filled by ``PAIR[0]``.
      second: those of a run with ``PAIR[1]``.
    """
    seen: set[str] = set()
    for (params, before), (_, after) in zip(first, second, strict=False):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            missing = unwritten(np.asarray(old), np.asarray(new))
            if missing is None or not missing.any():
                continue
            name, where = f"output {number}", _box_of(missing)
            if "grid_mapping" in params:
                block = grid_facts(SimpleNamespace(params=params)).outputs[number]
                name, where = f"{name} ({block.name})", _blocks(missing, block.dims)
            text = f"{name} of {_kernel(params)}: {where}"
            if text not in seen:
                seen.add(text)
                yield text


def unwritten(old: Any, new: Any) -> Any:
    """Return the elements that hold the fill in both runs; None if the dtype has no such fills."""
    fills = [fill_value(name, old.dtype) for name in PAIR]
    if old.shape != new.shape or any(fill is None for fill in fills):
        return None
    return (old == np.asarray(fills[0], old.dtype)) & (new == np.asarray(fills[1], old.dtype))


def _kernel(params: Any) -> str:
    body = params["jaxpr"] if "jaxpr" in params else params["jaxprs"][0]
    return str(params.get("name") or body.debug_info.func_name or "the kernel")


def _box_of(missing: Any) -> str:
    """Return the unwritten elements of an output without blocks."""
    if missing.all():
        return "no element was ever written"
    count = f"{np.count_nonzero(missing)} of {missing.size} elements were never written"
    return f"{count}: {_box(missing)}"


def _blocks(missing: Any, dims: Sequence[tuple[str, int, tuple[int, int]]]) -> str:
    """List the blocks that are not written at all, and those written in part: ``block (1, 0)``."""
    if missing.all() or any(kind not in ("Blocked", "Squeezed") for kind, _, _ in dims):
        return _box_of(missing)
    count = f"{np.count_nonzero(missing)} of {missing.size} elements were never written"
    sizes = [size for _, size, _ in dims]
    indices = np.unique(np.argwhere(missing) // np.asarray(sizes), axis=0)
    if all(size >= length for size, length in zip(sizes, missing.shape, strict=True)):
        return f"{count}: {_box(missing)}"
    described: list[str] = []
    for index in indices[:_SHOWN]:
        window = tuple(
            slice(int(i) * size, (int(i) + 1) * size) for i, size in zip(index, sizes, strict=True)
        )
        inside = missing[window]
        at = tuple(int(i) for i in index)
        described.append(f"block {at}" if inside.all() else f"in block {at} {_box(inside)}")
    more = len(indices) - _SHOWN
    if more > 0:
        described.append(f"{more} more blocks")
    total = int(np.prod([-(-n // size) for n, size in zip(missing.shape, sizes, strict=True)]))
    return f"{count}, in {len(indices)} of {total} blocks: {', '.join(described)}"


def _box(missing: Any) -> str:
    """Describe the bounding box of the missing elements: ``[0:8, 3]``."""
    where = np.argwhere(missing)
    low, high = where.min(axis=0), where.max(axis=0) + 1
    ranges = [
        f"{a}" if b == a + 1 and n > 1 else f"{a}:{b}"
        for a, b, n in zip(low, high, missing.shape, strict=True)
    ]
    full = int(np.prod(high - low)) == len(where)
    return f"[{', '.join(ranges)}]" if full else f"{len(where)} elements of [{', '.join(ranges)}]"


def requires_backend(backend: Backend) -> str | None:
    """A backend must fill memory with given values."""
    if getattr(backend, "fills", False):
        return None
    return f"{backend.name} cannot set the contents of uninitialized memory"


@declare_sanitizer(
    "memory",
    asks="is all memory written before it is read, and is every index within bounds?",
    requires_backend=requires_backend,
    example_fraction=0.25,
)
def memory(context: CheckContext) -> CheckResult:
    """Run the kernel with several fills of uninitialized memory, and compare.

    Scratch memory and outputs hold NaN in the first run (integers an end of their range) and 0 in
    the second; if the kernel could read them, the largest and the lowest numbers in two more. If
    the output changes, the message names the memory that causes it, and the blocks of each output
    that were never written.

    Raises:
      BoundsError: an access is out of bounds; with the kernel's line.
      MismatchError: the output depends on uninitialized memory.
      KernelError: the kernel raised.
    """
    args = context.arguments.args
    first = run(context, context.kernel, args, races=False)
    comparisons = list[Comparison]()
    for fill in _fills(context, first):
        change = f"with {fill}"
        again = run_again(context, args, change, races=False, fill=fill)
        comparisons += unchanged(again, first, change)
        if failed := [comparison for comparison in comparisons if not comparison.passed]:
            explanation = failed[0].explanation or Explanation("wrong")
            raise _error(context, first, fill, explanation)
    return CheckResult(comparisons=comparisons, outcome=first)


def _fills(context: CheckContext, first: Outcome) -> Sequence[Fill]:
    """Return the fills: 0 for outputs that are not read shows what was not written."""
    kernels = first.kernels
    if not context.settings.jit or any(unwritten_memory(kernel) for kernel in kernels):
        return (Fill("zero", "memory"), Fill("high", "memory"), Fill("low", "memory"))
    # An uninitialized bool or unsigned integer may be 0 already, or the largest number.
    dtypes = [var.aval.dtype for kernel in kernels for var in kernel.eqn.outvars]
    low = any(
        jnp.issubdtype(dtype, jnp.bool) or jnp.issubdtype(dtype, jnp.unsignedinteger)
        for dtype in dtypes
    )
    zero = Fill("zero", "output")
    return (zero, Fill("high", "output")) if low else (zero,)


def _error(
    context: CheckContext, first: Outcome, fill: Fill, explanation: Explanation
) -> MismatchError:
    """Name the memory that changes the output, found by runs that fill a part of the memory."""
    args, value = context.arguments.args, fill.value
    rest: Any = {"races": False}
    scratch = run(context, context.kernel, args, fill=Fill(value, "scratch"), **rest)
    filled = [
        run(context, context.kernel, args, fill=Fill(contents, "output"), probe="outputs", **rest)
        for contents in PAIR
    ]
    lines: list[str] = []
    loads: list[Finding] = []
    if any(_changes(outcome, first) for outcome in filled):
        lines = list(never_written(filled[0].probe_results, filled[1].probe_results))
        if lines:
            lines += [
                f"{name} has the grid {grid}: no program runs"
                for name, _, grid in idle_kernels(context, first)
            ]
        if not lines:
            lines = [
                f"{_name(first)} reads an output before it writes it: "
                f"its memory held {WORDS[value]}"
            ]
            loads += _loads(context, Fill(value, "output"))
        elif len(first.kernels) == 1 and first.kernels[0].source:
            lines[-1] += f" ({first.kernels[0].source})"
    if _changes(scratch, first):
        lines.append(
            f"{_name(first)} reads scratch memory before it writes it: it held {WORDS[value]}"
        )
        loads += _loads(context, Fill(value, "scratch"))
    summary = "\n".join(lines) or f"the answer depends on {fill.memory}"
    facts = [Fact("read", str(load)) for load in loads]
    error = MismatchError.explained(explanation.under(summary).with_facts(*facts))
    error.findings = tuple(loads)
    return error


def _loads(context: CheckContext, fill: Fill) -> list[Finding]:
    """Return the first load that returns other values with this fill; empty if it is not known."""
    if "loads" not in getattr(context.backend, "probes", ()):
        return []
    from pallas_sim import uninitialized_load

    args = context.arguments.args
    settings: Any = {"races": False, "probe": "loads"}
    plain, other = (
        run(context, context.kernel, args, fill=contents, **settings) for contents in (None, fill)
    )
    load = uninitialized_load(plain.probe_results, other.probe_results)
    return [] if load is None else [load]


def _changes(again: Outcome, first: Outcome) -> bool:
    return any(not comparison.passed for comparison in unchanged(again, first, ""))


def _name(first: Outcome) -> str:
    if len(first.kernels) != 1:
        return "a kernel"
    kernel = first.kernels[0]
    return f"{kernel.name} ({kernel.source})" if kernel.source else kernel.name
