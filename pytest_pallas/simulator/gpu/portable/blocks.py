"""Blocks of a GPU's programs: references to the memory that all of them share.

Nothing is copied. A block is a window of its array, and an access goes to the memory itself. What
of a block is beyond the edge of the array is as JAX's lowering to Triton has it
(``jax/_src/pallas/triton/lowering.py``): JAX 0.12 masks each access along the axes whose length
is no multiple of the block's, and along those that are indexed by element (``pl.Element``): loads
there give anything, stores there do nothing. Along other axes, and all axes in JAX 0.11, it checks
nothing: there an access beyond the edge is one to other memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_pallas.simulator.gpu.portable.order import GridProgram, Shadow
from pytest_pallas.simulator.grids.kernels import BlockStart, BlockWindow
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.memory.references import Ref

if TYPE_CHECKING:
    from pytest_pallas.simulator.gpu.portable.waiting import WaitingPrograms

Array = np.ndarray[Any, Any]

#: The index of an element that is not in the array: the lowering masks it; it is beyond the edge of
#: an array that blocks hang over, unmasked; it is beyond the edge of one that they do not.
MASKED, HANGING, BEYOND = -1, -2, -3


@dataclass(eq=False)
class SharedArray:
    """An array that the programs of a grid share.

    Attributes:
      array: its elements, row by row.
      shadow: the last accesses to each of them; None if no program writes it.

    """

    array: Array
    shadow: Shadow | None = None
    _indices: Array | None = None

    @property
    def indices(self) -> Array:
        """The number of each element."""
        found = self._indices
        if found is None:
            found = self._indices = np.arange(self.array.size).reshape(self.array.shape)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ProgramBlock:
    """What a reference of a program is to the memory of an operand.

    Attributes:
      memory: the memory.
      program: whose reference it is.
      key: the block in the array; None for one that hangs over an edge.
      numbers: of such a one, the number of each element in the array, or what it is instead.
      waiting: the programs of the grid that wait, or None if they never do.
    """

    memory: SharedArray
    program: GridProgram
    key: tuple[Any, ...] | None
    numbers: Array | None = None
    waiting: WaitingPrograms | None = None

    def indices(self) -> Array:
        """The number of each element of the block."""
        if self.numbers is not None:
            return self.numbers
        assert self.key is not None
        return self.memory.indices[self.key]


@dataclass(frozen=True, slots=True, eq=False)
class GridOperand:
    """An operand of all programs.

    Attributes:
      window: its blocks.
      memory: the array that they are in.
      name: of the body's parameter.
      space: memory space of the body's reference.
      input: whether it is an input that shares no memory with an output.
      codes: what an element beyond the edge is, for each axis.
    """

    window: BlockWindow
    memory: SharedArray
    name: str
    space: str
    input: bool
    codes: Sequence[int]


def block_of(
    machine: Machine,
    operand: GridOperand,
    program: GridProgram,
    start: BlockStart,
    *,
    waiting: WaitingPrograms | None = None,
) -> Ref:
    """The reference of a program to a block.

    Args:
      machine: the run.
      operand: whose block it is.
      program: the program.
      start: the first element along each axis; it may be beyond an edge.
      waiting: see ``ProgramBlock``.
    """
    memory, sizes = operand.memory, operand.window.sizes
    squeezed = operand.window.squeezed
    array = memory.array
    inside = all(
        first >= 0 and first + size <= dim
        for first, size, dim in zip(start, sizes, array.shape, strict=True)
    )
    if inside:
        key = tuple(
            first if axis in squeezed else slice(first, first + size)
            for axis, (first, size) in enumerate(zip(start, sizes, strict=True))
        )
        key = (*key, ...)  # so that a single element is an array, too
        ref = Ref(array[key], operand.name, operand.space, input=operand.input)
        ref.block = ProgramBlock(memory, program, key, waiting=waiting)
        return ref
    numbers: Array = np.zeros((1,) * len(sizes), np.int64)
    beyond: Array = np.zeros((1,) * len(sizes), np.int64)
    stride = array.size
    for axis, (first, size, dim) in enumerate(zip(start, sizes, array.shape, strict=True)):
        stride = stride // dim if dim else 0
        along = [1] * len(sizes)
        along[axis] = size
        at = first + np.arange(size, dtype=np.int64)
        out = (at < 0) | (at >= dim)
        numbers = numbers + (at * stride).reshape(along)
        beyond = np.minimum(beyond, np.where(out, operand.codes[axis], 0).reshape(along))
    numbers = np.where(beyond < 0, beyond, numbers)
    numbers = numbers.reshape([size for axis, size in enumerate(sizes) if axis not in squeezed])
    data = machine.uninitialized(numbers.shape, array.dtype, "padding")
    data[numbers >= 0] = array.reshape(-1)[numbers[numbers >= 0]]
    ref = Ref(data, operand.name, operand.space, input=operand.input)
    ref.block = ProgramBlock(memory, program, None, numbers, waiting)
    return ref
