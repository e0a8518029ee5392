"""``grid``: every block is written, once, in order, within its array, and masked at its edge."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax

from pallas_sim.chips import DEFAULT_TARGETS, TARGETS, Label, Target
from pallas_sim.errors import PallasError
from pytest_pallas.backends.analyzing import analyzed, on_chip
from pytest_pallas.backends.protocol import Backend, Call, Outcome, chip_of
from pytest_pallas.backends.tracing import kernels_of, outputs_of
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, call
from pytest_pallas.checks.transformations import gradient_program
from pytest_pallas.draw.arguments import larger_first
from pytest_pallas.errors import GridError, NotApplicableError, facts_of
from pytest_pallas.grid.analysis import Analysis, merged
from pytest_pallas.grid.findings import GridFinding
from pytest_pallas.grid.kernel_calls import KernelCall, one_program
from pytest_pallas.grid.model import has_blocks
from pytest_pallas.grid.ranges import narrow_values, overflows
from pytest_pallas.record import Note
from pytest_pallas.spec import KernelSpec

#: Backends that use a TPU's compiler.
_COMPILED = ("tpu", "tpu-compile")

#: Findings that a compiler rejects and interpreters accept.
_REFUSED = ("tile", "vmem", "smem")

#: Those of them that end a run on a simulated TPU, too.
_OF_MEMORY = ("vmem", "smem")

_MOST_SHOWN = 5

#: Elements of a dim that a kernel must expect.
_MOST_SIZE = 2**20

#: Why the check does not apply to a kernel.
NO_BLOCKS = "no example has a pallas_call with blocks"


def requires_backend(backend: Backend) -> str | None:
    """A backend must keep its traces: the findings do not depend on hardware."""
    if backend.kind in ("simulating", "interpreting"):
        return None
    return "the check reads the grid from a trace, on simulators and interpreters"


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Return the reason why the check does not apply to the kernels of a call, or None.

    It does not see the kernels of a gradient, so for a spec with a gradient the run decides.
    """
    del backend
    if spec.differentiable or any(has_blocks(kernel) for kernel in kernels):
        return None
    return NO_BLOCKS


@declare_check(
    "grid",
    asks="is every block written, once, in order, within its array, and masked at its edge?",
    requires_backend=requires_backend,
    requires_kernels=requires_kernels,
    example_fraction=0.5,
    subjects=larger_first,
    executes=False,
    differentiates="also",
)
def grid(context: CheckContext) -> CheckResult:
    """Trace the kernel and its gradient, if it has one, and check the blocks of every program.

    The check runs and compiles nothing. docs/grid.md lists the findings. Findings about tiles fail
    only for a TPU that the spec claims with ``tpu`` or ``tpu-compile``, and those about memory
    there and on a simulated TPU.

    Raises:
      NotApplicableError: the kernel cannot be jitted, no kernel has blocks, or each kernel has one
        program and no finding.
      GridError: there are findings; the message lists them.
      KernelError: the kernel raised while it was traced.
    """
    if not context.settings.jit:
        raise NotApplicableError(
            "the grid check traces the kernel, and jit=False says that it cannot be traced",
            final=True,
        )
    started = time.perf_counter()
    calls = [call(context, context.kernel, context.arguments.args)]
    if context.differentiable:  # with cotangents, so that ``gradient`` uses the same trace
        cotangents = outputs_of(calls[0], _tracing(context))
        calls.append(call(context, *gradient_program(context, cotangents)))
    analysis = _analysis_of(context, calls)
    whole = all(window.whole for kernel in analysis.calls for window in kernel.windows)
    beyond = tuple(_overflows_of_larger(context, analysis))
    analysis = dataclasses.replace(analysis, findings=(*analysis.findings, *beyond))
    refused = _REFUSED if _claimed_chip(context) is not None else ()
    if not refused and context.backend.kind == "simulating":
        refused = _OF_MEMORY
    wrong = [
        finding
        for finding in analysis.findings
        if finding.severity == "error" or finding.kind in refused
    ]
    if wrong:
        error = GridError(_text(wrong))
        facts_of(error).analysis = analysis
        raise error
    if whole:
        raise NotApplicableError(NO_BLOCKS, final=True)
    reason = None if analysis.others else one_program([kernel.call for kernel in analysis.calls])
    if reason is not None:
        raise NotApplicableError(f"{reason}; draw larger inputs")
    complete = all(kernel.complete for kernel in analysis.calls)
    notes = () if complete else (Note("grid: sampled", "run"),)
    notes += tuple(Note(f.message, "run") for f in analysis.findings if f.kind == "copies")
    return CheckResult(comparisons=(), seconds=time.perf_counter() - started, notes=notes)


def idle_kernels(
    context: CheckContext, outcome: Outcome
) -> Sequence[tuple[str, str, tuple[int | None, ...]]]:
    """Return the kernels whose grid has no programs, so that nothing writes their outputs.

    Each as its name, its source line, and its grid. What a simulator does not know of dynamic sizes
    is computed from the arguments.
    """
    grids = [(kernel, kernel.facts.grid) for kernel in outcome.kernels if kernel.facts is not None]
    if not outcome.idle and any(None in grid for _, grid in grids):
        with contextlib.suppress(PallasError):
            made = call(context, context.kernel, context.arguments.args)
            grids = [(one.call, one.grid) for one in _analysis_of(context, [made]).calls]
    idle = [
        (kernel.name, kernel.source, grid)
        for kernel, grid in grids
        if 0 in grid and any(0 not in aval.shape for aval in kernel.eqn.params["out_avals"])
    ]
    return outcome.idle or list(dict.fromkeys(idle))


def _analysis_of(context: CheckContext, calls: Sequence[Call]) -> Analysis:
    """Analyze calls for the chip of the backend, or for the one that the spec claims."""
    target, tracing, platform = _target(context), _tracing(context), _platform(context)
    return merged([analyzed(c, platform=platform, target=target, context=tracing) for c in calls])


def _target(context: CheckContext) -> Target:
    chip = _claimed_chip(context) if context.backend.target is None else None
    return chip_of(context.backend) if chip is None else TARGETS[chip]


def _tracing(context: CheckContext) -> Callable[[], AbstractContextManager[Any]]:
    """Return the backend's own context, so that JAX reuses the trace for the run."""
    backend: Any = context.backend
    return getattr(backend, "context", None) or functools.partial(on_chip, _target(context))


def _overflows_of_larger(context: CheckContext, analysis: Analysis) -> Iterator[GridFinding]:
    """Yield findings of positions that wrap around for larger sizes than the drawn ones.

    Only if a kernel has positions in narrow integers that fit in the drawn call. Then the call is
    traced for dims as large as the integers, and again with as many tiles: those that the spec
    draws around tiles, so without an upper limit. A kernel that raises needs no larger integers.
    """
    arguments = context.arguments
    values = [v for one in analysis.calls for v in narrow_values(one.call, one.grid)]
    values = [value for value in values if value.fits and value.range[0] < value.range[1]]
    if not values or arguments.declared is None:
        return
    numbers = max(high - low for low, high in (value.limits for value in values)) + 1
    drawn = [size for size in arguments.recipe.values() if type(size) is int]
    tiles = {
        name: sizes[0]
        for name, sizes in arguments.declared.tiles.items()
        if drawn.count(arguments.recipe.get(name, 0)) == 1
    }
    for programs in (False, True) if tiles else ():
        larger = {
            arguments.recipe[name]: arguments.recipe[name]
            + (min(numbers * tile, _MOST_SIZE) if programs else -(-numbers // tile) * tile)
            for name, tile in tiles.items()
        }
        made = call(context, context.kernel, _resized(arguments.args, larger))
        sizes = " ".join(f"{name}={larger[arguments.recipe[name]]}" for name in tiles)
        beyond = [
            finding
            for kernel in kernels_of(made, _tracing(context)) or ()
            if kernel.facts is not None
            for finding in overflows(kernel, kernel.facts.grid, f"with {sizes}, ")
        ]
        yield from beyond
        if beyond:
            return


def _resized(args: tuple[Any, ...], sizes: Mapping[int, int]) -> tuple[Any, ...]:
    """Return arguments of other shapes: abstract arrays where an axis has one of these sizes."""

    def resized(leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            return leaf
        shape = tuple(sizes.get(size, size) for size in leaf.shape)
        return leaf if shape == tuple(leaf.shape) else jax.ShapeDtypeStruct(shape, leaf.dtype)

    return jax.tree.map(resized, args)


def _text(findings: Sequence[GridFinding]) -> str:
    count = len(findings)
    lines = [f"the blocks of the grid are wrong in {count} place{'s' if count > 1 else ''}"]
    lines += [
        f"  {line}" for finding in findings[:_MOST_SHOWN] for line in str(finding).splitlines()
    ]
    if count > _MOST_SHOWN:
        lines.append(f"  and {count - _MOST_SHOWN} more")
    return "\n".join(lines)


def _claimed_chip(context: CheckContext) -> str | None:
    """Return the TPU whose compiler must accept the spec; that of the backend, if it has one."""
    claims = map(Label.of, context.claimed)
    chips = [claim.target for claim in claims if claim.name in _COMPILED]
    own = context.backend.target
    if own is not None:
        return own.name if own.platform == "tpu" and {"", own.name} & set(chips) else None
    usual = DEFAULT_TARGETS["tpu"]
    if not chips or context.backend.platform == "gpu":
        return None
    return usual if {"", usual} & set(chips) else chips[0]


def _platform(context: CheckContext) -> str:
    """Return the platform of kernels that do not show their own: the first that the spec claims."""
    if context.backend.platform != "any":
        return context.backend.platform
    claimed = (Label.of(name).platform for name in context.claimed)
    return next(filter(None, claimed), "tpu")
