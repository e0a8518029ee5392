"""How arrays lie in tensor memory, and in shared memory that is tiled."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Literal

from pytest_pallas.compat.avals import space_of, union_parts
from pytest_pallas.compat.jaxprs import argument_names, open_jaxpr

#: How an array lies in tensor memory. ``"rows"``: a row in each of the 128 lanes. ``"half"``: 64
#: rows, of which each has two lanes. ``"scales"`` and ``"scales of a pair"``: of 8 bits, for
#: operands of products. ``"metadata"``: of sparse operands. ``"other"``: none of these.
Layout = Literal["rows", "half", "scales", "scales of a pair", "metadata", "other"]


def tensor_memory_layout(aval: Any) -> Layout:
    """How an array lies in tensor memory.

    Args:
      aval: abstract value of a reference, or anything else with its ``layout``.
    """
    layout = getattr(aval, "layout", None)
    if layout is None:
        return "rows"
    tcgen05 = importlib.import_module("jax.experimental.mosaic.gpu.tcgen05")
    if layout == tcgen05.scales_layout():
        return "scales"
    paired = getattr(tcgen05, "b_scales_m64_collective_layout", None)
    if paired is not None and layout == paired():
        return "scales of a pair"
    if layout == tcgen05.sparse_meta_layout():
        return "metadata"
    packing = layout.vector_length
    if layout == tcgen05.tmem_default_layout(packing):
        return "rows"
    return "half" if layout.base_tile_shape[0] == 64 else "other"


def tensor_memory_columns(aval: Any) -> int:
    """How many of the 512 columns of tensor memory a reference takes, before rounding.

    Args:
      aval: abstract value of the reference, or a part of a union.
    """
    if union_parts(aval):
        return int(aval.shape[1])
    import jax

    rows, columns = _two_dimensional(aval.shape)
    return int(aval.layout.cols_in_shape((rows, columns), jax.dtypes.itemsize_bits(aval.dtype)))


def _two_dimensional(shape: Sequence[int]) -> tuple[int, int]:
    """The shape in tensor memory, where leading axes follow each other along the columns."""
    *leading, rows, columns = shape
    for size in leading:
        columns *= size
    return rows, columns


def union_scale(aval: Any) -> int:
    """How many bytes a byte of a union takes, where each element takes one at least."""
    import jax

    bits = [jax.dtypes.itemsize_bits(each.dtype) for each in jax.tree.leaves(aval.refs)]
    return max((-(-8 // each) for each in bits), default=1)


def tilings_of(params: Any, count: int) -> tuple[tuple[int, ...], ...]:
    """For each reference that a ``run_scoped`` makes: the tiles of its last axes, or ()."""
    given = params.get("ref_transforms") or ((),) * count
    found: list[tuple[int, ...]] = []
    for transforms in given:
        tiles = [each.tiling for each in transforms or () if hasattr(each, "tiling")]
        found.append(tuple(tiles[0]) if tiles else ())
    return tuple(found)


def scope_axes(params: Any) -> tuple[Any, ...]:
    """The axes whose threads share what a ``run_scoped`` makes."""
    axes = params.get("collective_axes") or ()
    named = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    # ``dynamic_scheduling_loop`` names None where a block has one warpgroup.
    return tuple(axis for axis in named if axis is not None)


def made_by(eqn: Any) -> list[tuple[str, Any]]:
    """Names and abstract values of the references that a ``run_scoped`` makes; else none."""
    if eqn.primitive.name != "run_scoped":
        return []
    inner, _ = open_jaxpr(eqn.params["jaxpr"])
    avals = (var.aval for var in inner.invars)
    return list(zip(argument_names(inner), avals, strict=True))


def makes_paired_memory(eqn: Any) -> bool:
    """Whether an equation makes tensor memory that two blocks share."""
    return any(
        space_of(aval) == "tmem" and bool(getattr(aval, "collective", False))
        for _, aval in made_by(eqn)
    )
