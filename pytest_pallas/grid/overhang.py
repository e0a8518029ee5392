"""Find blocks that overhang their array without a mask, and blocks that a compiler rejects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pallas_sim.chips import Excess, OperandMemory, itemsize, padded, smem_excess, vmem_excess
from pallas_sim.traces import argument_names, space_of
from pytest_pallas.grid.bodies import BodyInterpretation, RefContent, Taint, TaintedValue
from pytest_pallas.grid.findings import GridFinding, Kind, finding_of, points
from pytest_pallas.grid.model import GridCall, GridWindow
from pytest_pallas.grid.scalars import Points

_LANES = 128
_SUBLANES = 8


def illegal_tiles(call: GridCall) -> Iterator[GridFinding]:
    """Find blocks that JAX's lowering for TPUs rejects.

    The rules are those of ``jax/_src/pallas/mosaic/lowering.py`` (``_check_block_mappings``) in JAX
    0.11.2 and 0.12.0.1, and for windows in elements and buffers what libtpu 0.0.51 says.
    """
    if call.platform != "tpu":
        return
    for window in call.windows:
        for message, remedy in _illegal(window):
            yield finding_of(call, window, "tile", "warning", (), message, remedy)


def _illegal(window: GridWindow) -> Iterator[tuple[str, str]]:
    shape, sizes, space = window.shape, window.sizes, window.facts.space
    trivial = sizes == shape and (window.starts is None or not window.starts.any())
    if space.startswith("semaphore") or (space == "smem" and trivial):
        return
    if window.whole:
        if not trivial:
            yield (
                f"blocks {sizes} of an array {list(shape)} in memory space {space.upper()}, which "
                "has no blocks",
                "Leave the block shape and the index map out, or put the blocks into VMEM.",
            )
        return
    if not sizes:
        yield "an array without axes", "Give it the shape (1, 1), or put it into SMEM."
        return
    if len(sizes) == 1:
        yield from _illegal_row(window)
    elif (sizes[-1] != shape[-1] and sizes[-1] % _LANES) or (
        sizes[-2] != shape[-2] and sizes[-2] % _SUBLANES
    ):
        yield (
            f"blocks {sizes} of an array {list(shape)}: the last two dims of a block must be "
            f"multiples of {_SUBLANES} and {_LANES}, or those of the array",
            "Choose such a block, or give the array another layout.",
        )
    yield from _unaligned(window)
    if window.facts.buffers is not None and window.facts.buffers > 2:
        yield (
            f"pl.Buffered({window.facts.buffers}): a grid's blocks have one or two buffers",
            "Use pl.Buffered(1) or (2), or pltpu.emit_pipeline, which can have more.",
        )


def _illegal_row(window: GridWindow) -> Iterator[tuple[str, str]]:
    size, total = window.sizes[0], window.shape[0]
    bits = max(itemsize(window.facts.dtype), 0.5) * 8
    if window.facts.dtype == np.dtype(bool):
        bits = 32
    least = int(_LANES * 32 / bits)
    power = size >= least and not size & (size - 1)
    if size != total and size % (_LANES * _SUBLANES) and not power:
        yield (
            f"blocks ({size},) of an array [{total}]: a block of one dim must be a multiple of "
            f"{_LANES * _SUBLANES}, or a power of two of at least {least}, or the whole array",
            "Choose such a block, or give the array two dims.",
        )


def _unaligned(window: GridWindow) -> Iterator[tuple[str, str]]:
    """Find windows in elements that do not start at tiles."""
    if window.starts is None:
        return
    last = len(window.sizes) - 1
    for axis, tile in ((last - 1, _SUBLANES), (last, _LANES)):
        if axis >= 0 and window.facts.dims[axis][0] == "Element":
            starts = window.starts[axis] + window.facts.dims[axis][2][0]
            if (starts % tile).any():
                start = int(starts[np.flatnonzero(starts % tile)[0]])
                yield (
                    f"a window that begins at element {start} of axis {axis}: not a multiple of "
                    f"{tile}",
                    "Let windows begin at tiles, and take the elements out of them in the kernel.",
                )


def buffers(call: GridCall) -> list[OperandMemory]:
    """Return the VMEM that blocks and scratch take, the largest first.

    A block that changes over the grid has two buffers, another one has one, or as many as it names.
    What the compiler takes for temporaries and spills is not counted.
    """
    return _taken(call, ("default", "vmem"))


def _taken(call: GridCall, spaces: Sequence[str]) -> list[OperandMemory]:
    taken: list[OperandMemory] = []
    for window in call.windows:
        if window.facts.space not in spaces:
            continue
        kept = [
            size
            for size, (kind, _, _) in zip(window.sizes, window.facts.dims, strict=True)
            if kind != "Squeezed"
        ]
        changes = window.starts is None or (window.starts != window.starts[:, :1]).any()
        count = window.facts.buffers or (2 if changes else 1)
        taken.append(OperandMemory(window.name, padded(kept, window.facts.dtype), count))
    for name, aval in call.facts.scratch:
        if space_of(aval) in spaces and hasattr(aval, "shape"):
            taken.append(OperandMemory(name, padded(aval.shape, aval.dtype)))
    return sorted(taken, key=lambda buffer: -buffer.total)


def too_much_memory(call: GridCall, chip_name: str) -> Iterator[GridFinding]:
    """Find a kernel that takes more VMEM or SMEM than it may use on a chip."""
    if call.platform != "tpu":
        return
    prefetched = call.body.invars[: len(call.facts.scalars)]
    scalars = [
        OperandMemory(name, padded(var.aval.shape, var.aval.dtype))
        for name, var in zip(argument_names(call.body), prefetched, strict=False)
        if isinstance(var.aval.dtype, np.dtype)
    ]
    limit = getattr(call.facts.params, "vmem_limit_bytes", None)
    excesses: dict[Kind, Excess | None] = {
        "vmem": vmem_excess(buffers(call), chip_name, limit),
        "smem": smem_excess([*scalars, *_taken(call, ("smem",))], chip_name),
    }
    for kind, excess in excesses.items():
        if excess is not None:
            window = next((w for w in call.windows if w.name == excess.largest), call.windows[0])
            yield finding_of(call, window, kind, "warning", (), excess.message, excess.remedy)


#: Limit on the programs that are followed: those with overhanging blocks, and some others.
_MOST = 4096

_REDUCED = {
    "dot_general": "a matrix product contracts",
    "reduce_sum": "a sum takes in",
    "reduce_max": "a maximum takes in",
    "reduce_min": "a minimum takes in",
    "sort": "a sort takes in",
}


def overhang(call: GridCall) -> Iterator[GridFinding]:
    """Find stored reductions that take in elements beyond the edge of an array."""
    hanging = {
        (position, axis): over
        for position, window in enumerate(call.windows)
        if not window.output and not window.whole
        for axis, over in _overhanging(window)
    }
    if not hanging or not call.points.shape[1]:
        return
    chosen = _chosen(call, list(hanging.values()))
    hanging = {source: over[chosen] for source, over in hanging.items()}
    run = BodyInterpretation(call.points[:, chosen], call.facts.vmapped, call.grid)
    body, environment = call.body, dict[Any, Any]()
    offset = len(call.scalars)
    for position, var in enumerate(body.invars):
        cell = RefContent()
        if position < offset:
            cell.known = call.scalars[position]
        elif position - offset < len(call.windows):
            cell.content = _loaded(call.windows[position - offset], position - offset, hanging)
        environment[var] = cell
    run.follow(body, environment, np.ones(len(chosen), bool))
    by_source: dict[tuple[int, int], dict[tuple[str, str], Points]] = {}
    for mark, active in run.stored:
        affected = active & hanging[mark.source]
        if mark.by is not None and affected.any():
            operations = by_source.setdefault(mark.source, {})
            operations[mark.by] = operations.get(mark.by, affected) | affected
    for source, operations in sorted(by_source.items()):
        yield _finding(call, source, operations, chosen)


def _finding(
    call: GridCall,
    source: tuple[int, int],
    operations: Mapping[tuple[str, str], Points],
    chosen: Points,
) -> GridFinding:
    position, axis = source
    window = call.windows[position]
    (name, line), affected = next(iter(operations.items()))
    programs = [int(i) for i in chosen[np.flatnonzero(affected)]]
    others = "".join(f", and {other}{_at(at)}" for other, at in list(operations)[1:3])
    return finding_of(
        call,
        window,
        "overhang",
        "error",
        programs[:3],
        f"{_REDUCED.get(name, f'{name} takes in')}{_at(line)} all of the block "
        f"{window.region(programs[0])} of {points(call, programs)}{others}; but axis {axis} of the "
        f"array has {window.shape[axis]} elements, and what lies beyond is unspecified.",
        "Mask it before: jnp.where(first + jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) < "
        "size, x, 0). Multiplying by 0 does not do, because 0 * NaN is NaN.",
    )


def _at(line: str) -> str:
    return f" at {line}" if line else ""


def _overhanging(window: GridWindow) -> Iterator[tuple[int, Points]]:
    """Yield the axes along which some blocks overhang, with bool[programs]."""
    if window.starts is None:
        return
    ends = window.starts + window.lengths
    for axis, (kind, _, _) in enumerate(window.facts.dims):
        size = window.shape[axis]
        over = (ends[axis] > size) & (window.starts[axis] < size)
        if kind == "Element":
            over |= (window.starts[axis] < 0) & (ends[axis] > 0)
        if kind in ("Blocked", "Element") and over.any():
            yield axis, over


def _chosen(call: GridCall, masks: Sequence[Points]) -> Points:
    """Choose the programs to follow."""
    count = call.points.shape[1]
    if count <= _MOST:
        return np.arange(count)
    share = _MOST // (len(masks) + 1)
    hanging = [np.flatnonzero(mask) for mask in masks]
    parts = [programs[:: max(1, len(programs) // share)][:share] for programs in hanging]
    return np.unique(np.concatenate([np.arange(0, count, max(1, count // share)), *parts]))


def _loaded(
    window: GridWindow, position: int, hanging: Mapping[tuple[int, int], Points]
) -> TaintedValue:
    """Return what the ref of a window, without squeezed axes, holds when the body begins."""
    axes = [a for a, (kind, _, _) in enumerate(window.facts.dims) if kind != "Squeezed"]
    marks = {
        Taint((position, axis), axes.index(axis)): over
        for (owner, axis), over in hanging.items()
        if owner == position
    }
    return TaintedValue(marks)
