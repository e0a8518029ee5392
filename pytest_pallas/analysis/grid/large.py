"""What affine index maps say of a grid that is too large to be looked at as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_pallas.analysis.grid.findings import GridFinding
from pytest_pallas.analysis.grid.model import GridCall, Window


def out_of_range(call: GridCall, window: Window) -> Iterator[GridFinding]:
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


def _grid(call: GridCall, window: Window) -> Sequence[int] | None:
    """The grid of a call, if it is too large and the window's index is affine; else None."""
    if call.complete or not call.programs or window.whole or None in window.affine:
        return None
    return [n for n in call.grid if n is not None] if window.uniform else None


def written_twice(call: GridCall, window: Window) -> Iterator[GridFinding]:
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
