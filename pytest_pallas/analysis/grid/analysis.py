"""What affine index maps say of a grid that is too large to be looked at as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.errors import Inline
from pytest_pallas.analysis.grid import coverage, picture, writes
from pytest_pallas.analysis.grid.bodies.accesses import accesses_of
from pytest_pallas.analysis.grid.findings import GridFinding
from pytest_pallas.analysis.grid.model import GridCall, GridWindow, read_call
from pytest_pallas.analysis.grid.overhang import illegal_tiles, overhang, too_much_vmem
from pytest_pallas.analysis.grid.scopes import (
    JaxprScope,
    UnknownValueError,
    located,
    scopes_of,
    use_of,
)
from pytest_pallas.analysis.kernel_calls import KernelCall


def out_of_range(call: GridCall, window: GridWindow) -> Iterator[GridFinding]:
    """Blocks that lie outside of their array, by the range of their index."""
    grid = _grid(call, window)
    if grid is None:
        return
    counts = window.counts
    for axis, (affine, count) in enumerate(zip(window.affine, counts, strict=True)):
        if affine is None or not count:
            continue
        low, high = affine.span(grid)
        if low < 0 or high >= count:
            corner = [
                (n - 1 if (c > 0) == (high >= count) else 0)
                for c, n in zip(affine.coefficients, grid, strict=True)
            ]
            yield GridFinding(
                kind="out-of-range",
                severity="error" if call.platform == "tpu" else "warning",
                kernel=call.call.name,
                source=call.call.source,
                operand=window.name,
                programs=(tuple(corner),),
                message=f"program {tuple(corner)} has the block {high if high >= count else low} "
                f"along axis {axis}, where the array {list(window.shape)} has {count}.",
                remedy="Clamp what the index map returns, or correct the grid.",
            )
            return


def _grid(call: GridCall, window: GridWindow) -> Sequence[int] | None:
    """The grid of a call, if it is too large and the window's index is affine; else None."""
    if call.complete or not call.programs or window.whole or None in window.affine:
        return None
    return [n for n in call.grid if n is not None] if window.uniform else None


def written_twice(call: GridCall, window: GridWindow) -> Iterator[GridFinding]:
    """Blocks of an output that are written twice, because the index ignores dims of the grid."""
    grid = _grid(call, window)
    if grid is None:
        return
    used = {dim for affine in window.affine if affine is not None for dim in affine.dims}
    ignored = [dim for dim, n in enumerate(grid) if n > 1 and dim not in used]
    if not ignored or call.platform != "tpu":
        return
    at_once = [dim for dim in ignored if dim in call.concurrent]
    inner = [dim for dim, n in enumerate(grid) if n > 1 and dim > ignored[0] and dim in used]
    origin = tuple([0] * len(grid))
    if at_once:
        kind, dim = "parallel-write", at_once[0]
        text = f"dim {dim} of the grid is {call.semantics[dim]!r}"
    elif inner and not window.alias and not window.facts.any_revisit:
        kind, dim = "revisited", ignored[0]
        text = f"dim {inner[0]} of the grid, which moves on to other blocks, is inside of dim {dim}"
    else:
        return
    other = tuple(int(i == dim) for i in range(len(grid)))
    yield GridFinding(
        kind=kind,
        severity="error",
        kernel=call.call.name,
        source=call.call.source,
        operand=window.name,
        programs=(origin, other),
        message=f"programs {origin} and {other} write the same block, and {text}.",
        remedy="Let the dim that the index map ignores be 'arbitrary' and come last.",
    )


#: Elements of a prefetched operand up to which its values are looked at.
_MOST_SCALARS = 2**20


@dataclass(frozen=True)
class Analysis(Inline):
    """What is known of the grids of a function without running it.

    Attributes:
      findings: what is wrong, in the order of the kernels.
      calls: every ``pallas_call`` that was found.
      others: kernels that have no blocks, such as those of ``pl.kernel``.
      chip: name of the chip whose VMEM and tiles were checked, such as ``"v6e"``.
    """

    findings: tuple[GridFinding, ...]
    calls: tuple[GridCall, ...] = field(repr=False)
    others: tuple[KernelCall, ...] = field(repr=False)
    chip: str = "v6e"

    @property
    def errors(self) -> tuple[GridFinding, ...]:
        """The findings that are wrong on their kernel's platform, whatever the chip."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def report(self) -> str:
        """Every kernel with its grid, blocks and findings, in 100 columns of plain text."""
        return picture.report(self.calls, self.others, self.findings)


def analyze_jaxpr(
    closed: Any, arrays: Sequence[Any], *, platform: str = "tpu", chip: str = "v6e"
) -> Analysis:
    """Analyze the grids of a traced function.

    Args:
      closed: its closed jaxpr.
      arrays: its inputs, in order. A ``jax.ShapeDtypeStruct`` may stand for an array; then index
        maps that read it are not known.
      platform: ``"tpu"`` or ``"gpu"``: of kernels that do not show which they are written for.
      chip: whose VMEM is checked, such as ``"v6e"``.
    """
    calls: list[GridCall] = []
    others: list[KernelCall] = []
    findings: list[GridFinding] = []
    for call, scope in located(scopes_of(closed, arrays)):
        if call.eqn.primitive.name != "pallas_call":
            others.append(call)
            continue
        read = _read(call, scope, platform)
        calls.append(read)
        findings += _shortened(read, list(_findings(read, scope, chip)))
    return Analysis(tuple(dict.fromkeys(findings)), tuple(calls), tuple(others), chip)


def _read(call: KernelCall, scope: JaxprScope, platform: str) -> GridCall:
    eqn = call.eqn
    mapping = eqn.params["grid_mapping"]
    dynamic = sum(not isinstance(n, int) for n in mapping.grid)
    sizes = [_value(scope, var) for var in eqn.invars[:dynamic]]
    scalars = [_value(scope, var) for var in eqn.invars[dynamic:][: mapping.num_index_operands]]
    counts = [None if size is None else max(0, int(size)) for size in sizes]
    return read_call(call, counts, scalars, platform)


def _value(scope: JaxprScope, var: Any) -> Any:
    if np.prod(getattr(var.aval, "shape", ()), dtype=np.int64) > _MOST_SCALARS:
        return None
    try:
        return np.asarray(scope.value(var))
    except UnknownValueError:
        return None


def _shortened(call: GridCall, findings: Sequence[GridFinding]) -> Sequence[GridFinding]:
    """Of a large grid both what was seen and what was reasoned can be the same finding."""
    if call.complete:
        return findings
    first: dict[tuple[str, str], GridFinding] = {}
    for finding in findings:
        first.setdefault((finding.kind, finding.operand), finding)
    return list(first.values())


def _findings(call: GridCall, scope: JaxprScope, chip: str) -> Iterator[GridFinding]:
    accesses = accesses_of(call)
    for window in call.windows:
        yield from coverage.out_of_range(call, window, accesses)
        if window.output:
            use = use_of(scope, call.call.eqn.outvars[window.position])
            if not use.none:
                yield from coverage.never_written(call, window, use)
                yield from writes.written_twice(call, window, accesses)
                yield from written_twice(call, window)
        else:
            yield from writes.read_after_write(call, window, accesses)
        yield from out_of_range(call, window)
    yield from overhang(call)
    yield from illegal_tiles(call)
    yield from too_much_vmem(call, chip)


def merged(analyses: Sequence[Analysis]) -> Analysis:
    """Several analyses as one; what they have in common is there once."""
    first = analyses[0]
    findings = dict.fromkeys(f for analysis in analyses for f in analysis.findings)
    return dataclasses.replace(
        first,
        findings=tuple(findings),
        calls=tuple(call for analysis in analyses for call in analysis.calls),
        others=tuple(call for analysis in analyses for call in analysis.others),
    )
