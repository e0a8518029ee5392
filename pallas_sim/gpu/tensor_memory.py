"""Tensor memory of a Blackwell SM: 128 lanes of 512 columns of 32 bits.

An array of 128 rows has a row in each lane; packed elements share the 32 bits of a column. Arrays
of 64 rows, scales and metadata have other layouts (PTX ISA 9.0, 9.7.16.3 "data path layout",
9.7.16.10.7 "scale factors"). Layouts matter only where references share memory
(``plgpu.RefUnion``): a write through one of them leaves garbage in the others, and accesses to the
same columns must be ordered. All other arrays are kept as arrays of numpy.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.lib.array_utils import byte_bounds

from pallas_sim.compat.jaxprs import (
    argument_names,
    most_at_a_time,
    open_jaxpr,
    space_of,
    union_parts,
)
from pallas_sim.dtypes import Array
from pallas_sim.errors import SimulationError
from pallas_sim.machine import Machine
from pallas_sim.memory import Ref, Region
from pallas_sim.transforms import Aliased, Transform
from pallas_sim.windows import read, region_of

#: Lanes of tensor memory (PTX ISA 9.0, 9.7.16.1 "tensor memory").
LANES = 128

#: Bytes of a column in a lane.
_CELL = 4


@dataclass(frozen=True, slots=True)
class _Alternative:
    """One of the references of a union.

    Attributes:
      first: its first column.
      end: the column behind its last.
      data: its elements.
      shares: whether the elements are kept in the columns, and not beside them.
      rows: whether each row lies in a lane of the chip.
    """

    first: int
    end: int
    data: Array
    shares: bool
    rows: bool


@dataclass(frozen=True, slots=True)
class TensorMemoryPart:
    """The memory that an operation accesses.

    Attributes:
      data: its elements, as a view.
      region: the memory for the monitor of order.
      overwritten: the elements of other references in a union that a write destroys.
    """

    data: Array
    region: Region
    overwritten: tuple[Array, ...] = ()


class TensorMemory(Ref):
    """A reference to tensor memory.

    Attributes:
      layout: of its elements.
      columns: how many columns it takes.
      alternatives: of a union, its references, by offset, shape and dtype.
    """

    __slots__ = ("alternatives", "columns", "layout")

    def __init__(self, data: Array, name: str, layout: Layout, columns: int) -> None:
        """Make a reference to ``data``, which it keeps and changes."""
        super().__init__(data, name, "tmem")
        self.layout: Layout = layout
        self.columns = columns
        self.alternatives: dict[Any, _Alternative] = {}

    def layout_of(self, transforms: Sequence[Transform]) -> Layout:
        """Return the layout of the part that transforms name."""
        first = transforms[0] if transforms else None
        if isinstance(first, Aliased):
            return tensor_memory_layout(first)
        return self.layout

    def part(self, transforms: Sequence[Transform], operands: Sequence[Any]) -> TensorMemoryPart:
        """Return the memory that an operation accesses.

        Args:
          transforms: from the reference to the part.
          operands: of the equation.

        Raises:
          Outside: an index is beyond the edge.
        """
        first = transforms[0] if transforms else None
        if not isinstance(first, Aliased):
            data = read(self.data, transforms, operands)
            self._require(data)
            return TensorMemoryPart(data, region_of(self.data, transforms, operands, data))
        this = self.alternatives[_key(first)]
        data = read(this.data, transforms[1:], operands)
        self._require(data)
        # A write changes other elements in the same columns; those kept beside them are listed.
        overwritten = tuple(
            other.data
            for other in self.alternatives.values()
            if other is not this
            and (other.first < this.end and this.first < other.end)
            and not (other.shares and this.shares)
        )
        region = data if this.shares else self._columns(this, data)
        return TensorMemoryPart(data, region, overwritten)

    def _columns(self, this: _Alternative, data: Array) -> Array:
        """Return the columns of a part of a reference whose elements are kept beside them."""
        width = this.end - this.first
        per_column, left = divmod(this.data.shape[1], width)
        if not data.size or left or not this.rows:
            return self.data[:LANES, this.first : this.end]
        # From the bytes of the part, beside the columns, to the columns that it stands for.
        low, high = byte_bounds(data)
        start, _ = byte_bounds(this.data)
        row = this.data.strides[0]
        (first, at), (last, end) = divmod(low - start, row), divmod(high - start - 1, row)
        in_column = per_column * this.data.itemsize
        columns = slice(this.first + at // in_column, this.first + end // in_column + 1)
        return self.data[first : last + 1, columns]

    def forget(self, machine: Machine) -> None:
        """Make the content uninitialized, because another scope begins."""
        for data in (self.data, *(other.data for other in self.alternatives.values())):
            data[...] = machine.uninitialized((), data.dtype, "scratch")

    def _require(self, data: Array) -> None:
        if not np.may_share_memory(data, self.data):
            raise SimulationError(
                f"tensor memory {self.name} is accessed in slices, not by lists of indices"
            )


def tensor_memory(machine: Machine, aval: Any, name: str) -> TensorMemory:
    """Make uninitialized tensor memory.

    Args:
      machine: the run.
      aval: abstract value of the reference.
      name: for messages.
    """
    columns = tensor_memory_columns(aval)
    parts = union_parts(aval)
    if not parts:
        data = machine.uninitialized(tuple(aval.shape), aval.dtype, "scratch")
        return TensorMemory(data, name, tensor_memory_layout(aval), columns)
    beside = sum(_cells(part) for part in parts if not _shares(part))
    rows = max(LANES, *(part.shape[0] for part in parts))
    cells = machine.uninitialized((rows, columns + beside), np.int32, "scratch")
    ref = TensorMemory(cells, name, "rows", columns)
    next_free = columns
    for part in parts:
        end = part.offset + tensor_memory_columns(part)
        if _shares(part):
            data = _view(cells[:LANES, part.offset : end], part)
        else:
            data = _view(cells[: part.shape[0], next_free : next_free + _cells(part)], part)
            next_free += _cells(part)
        data[...] = machine.uninitialized(data.shape, data.dtype, "scratch")
        ref.alternatives[_key(part)] = _Alternative(
            part.offset, end, data, _shares(part), _in_rows(part)
        )
    return ref


def _key(part: Aliased) -> Any:
    return part.offset, part.shape, np.dtype(part.dtype)


def _shares(part: Aliased) -> bool:
    """Return whether numpy can keep the elements of a part in their columns."""
    import jax

    return _in_rows(part) and jax.dtypes.itemsize_bits(part.dtype) >= 8


def _in_rows(part: Aliased) -> bool:
    return tensor_memory_layout(part) == "rows" and part.shape[0] == LANES


def _cells(part: Aliased) -> int:
    """Return the number of columns for a row of a part that is kept beside the others."""
    return -(-part.shape[1] * np.dtype(part.dtype).itemsize // _CELL)


def _view(cells: Array, part: Aliased) -> Array:
    """Return the elements of a part in its columns, 32 bits for each that is not packed."""
    elements = cells.view(np.dtype(part.dtype))
    step = max(elements.shape[1] // part.shape[1], 1) if _shares(part) else 1
    return elements[:, ::step][:, : part.shape[1]]


def allocated_columns(jaxpr: Any) -> list[tuple[str, int]]:
    """Return the most tensor memory that a block takes: name and columns of each reference.

    Args:
      jaxpr: of the kernel. Its scopes allocate the memory while they last, its scratch, too.
    """

    def taken(eqn: Any) -> list[tuple[str, int]]:
        made = [(name, aval) for name, aval in made_by(eqn) if space_of(aval) == "tmem"]
        return [(name or "?", tensor_memory_columns(aval)) for name, aval in made]

    return most_at_a_time(jaxpr, taken)


# Layouts of arrays in tensor memory.


#: The layout of an array in tensor memory. ``"rows"``: a row in each of the 128 lanes. ``"half"``:
#: 64 rows with two lanes each. ``"scales"`` and ``"scales of a pair"``: of 8 bits, for operands of
#: products. ``"metadata"``: of sparse operands. ``"other"``: none of these.
Layout = Literal["rows", "half", "scales", "scales of a pair", "metadata", "other"]


def tensor_memory_layout(aval: Any) -> Layout:
    """Return the layout of an array in tensor memory.

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
    """Return how many of the 512 columns of tensor memory a reference takes, before rounding.

    Args:
      aval: abstract value of the reference, or a part of a union.
    """
    if union_parts(aval):
        return int(aval.shape[1])
    import jax

    # Leading axes follow each other along the columns.
    *leading, rows, columns = aval.shape
    shape = rows, math.prod(leading) * columns
    return int(aval.layout.cols_in_shape(shape, jax.dtypes.itemsize_bits(aval.dtype)))


def made_by(eqn: Any) -> list[tuple[str, Any]]:
    """Return names and abstract values of the references that a ``run_scoped`` makes."""
    if eqn.primitive.name != "run_scoped":
        return []
    inner, _ = open_jaxpr(eqn.params["jaxpr"])
    avals = (var.aval for var in inner.invars)
    return list(zip(argument_names(inner), avals, strict=True))


def makes_paired_memory(eqn: Any) -> bool:
    """Return whether an equation makes tensor memory that two blocks share."""
    return any(
        space_of(aval) == "tmem" and bool(getattr(aval, "collective", False))
        for _, aval in made_by(eqn)
    )
