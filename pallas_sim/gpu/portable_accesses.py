"""Blocks of a GPU's programs, and their loads, stores and atomics: all programs share the memory.

Nothing is copied. A block is a window of its array, and an access goes to the memory itself. What
of a block is beyond the edge of the array is as JAX's lowering to Triton has it
(``jax/_src/pallas/triton/lowering.py``): JAX 0.12 masks each access along the axes whose length
is no multiple of the block's, and along those that are indexed by element (``pl.Element``): loads
there give anything, stores there do nothing. Along other axes, and all axes in JAX 0.11, it
checks nothing: there an access beyond the edge is one to other memory.

A block inside of its array is accessed by its slices (``load``, ``store``). For one that hangs over
an edge, and for masks and atomics, each element has its number in the array, or a code that says
why it has none (``load_masked``, ``store_masked``, ``update``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.accesses import beyond_edge, bounds_error
from pallas_sim.dtypes import Array
from pallas_sim.gpu.portable_order import (
    ElementSelection,
    GridProgram,
    Kind,
    SharedArray,
    WaitingPrograms,
)
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Outside, Ref
from pallas_sim.pallas_calls import BlockStart, BlockWindow
from pallas_sim.transforms import Bitcast, Transform
from pallas_sim.windows import masked, read, write

#: The index of an element that is not in the array: the lowering masks it; it is beyond the edge of
#: an array that blocks hang over, unmasked; it is beyond the edge of one that they do not.
MASKED, HANGING, BEYOND = -1, -2, -3


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
      is_input: whether it is an input that shares no memory with an output.
      codes: what an element beyond the edge is, for each axis.
    """

    window: BlockWindow
    memory: SharedArray
    name: str
    space: str
    is_input: bool
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
        ref = Ref(array[key], operand.name, operand.space, is_input=operand.is_input)
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
    ref = Ref(data, operand.name, operand.space, is_input=operand.is_input)
    ref.block = ProgramBlock(memory, program, None, numbers, waiting)
    return ref


# Accesses.


#: What accesses are called in messages. Only a load may hang over an edge unmasked.
LOAD, STORE = "load from", "store to"


@dataclass(frozen=True, slots=True, eq=False)
class _SelectedWindow:
    """A window of a block that is inside of its array."""

    key: tuple[Any, ...]
    window: Sequence[Transform]
    operands: Sequence[Any]

    def get(self, array: Array) -> Array:
        return np.asarray(read(array[self.key], self.window, self.operands))

    def put(self, array: Array, values: Any) -> None:
        write(array[self.key], self.window, self.operands, lambda _: values)


@dataclass(frozen=True, slots=True, eq=False)
class _SelectedElements:
    """Elements by their number."""

    numbers: Array

    def get(self, array: Array) -> Array:
        return array.reshape(-1)[self.numbers]

    def put(self, array: Array, values: Any) -> None:
        array.reshape(-1)[self.numbers] = values


def load(
    thread: Thread, ref: Ref, window: Sequence[Transform], operands: Sequence[Any], line: str
) -> Array:
    """The elements of a window of a block.

    Raises:
      BoundsError: an element is beyond the edge of the block, or of an array that no block may
        hang over.
    """
    block: ProgramBlock = ref.block
    if block.key is None:
        return load_masked(thread, ref, window, operands, None, None, None, line)
    memory = block.memory
    try:
        part = np.array(read(memory.array[block.key], window, operands))
    except Outside as outside:
        raise beyond_edge(thread, ref, LOAD, outside, line) from None
    if memory.shadow is not None:  # asked here, too: most loads are of memory that nobody writes
        _note(thread, ref, "read", _SelectedWindow(block.key, _same_size(window), operands), line)
    return part


def store(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    value: Any,
    line: str,
) -> None:
    """Change the elements of a window of a block.

    Raises:
      BoundsError: as ``load``; or an element is beyond the edge of an array, and not masked.
    """
    block: ProgramBlock = ref.block
    if block.key is None:
        store_masked(thread, ref, window, operands, None, None, value, line)
        return
    memory = block.memory
    try:
        write(memory.array[block.key], window, operands, lambda _: value)
    except Outside as outside:
        raise beyond_edge(thread, ref, STORE, outside, line) from None
    _note(thread, ref, "write", _SelectedWindow(block.key, _same_size(window), operands), line)
    _changed(block)


def load_masked(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...] | None,
    mask: Any,
    other: Any,
    line: str,
    *,
    volatile: bool = False,
) -> Array:
    """The elements of a window that a mask does not leave out; in place of the others, ``other``.

    Args:
      thread: who loads.
      ref: of a block.
      window: of the block; it may reach beyond it where it is masked.
      operands: of the equation.
      shape: of the window; None for its own where there is no mask.
      mask: of the window, or None.
      other: of the window, or None for anything.
      line: ``file:line``.
      volatile: whether the load sees what other programs do meanwhile.

    Raises:
      BoundsError: as ``load``, of an element that is not left out.
    """
    numbers = _numbers(thread, ref, window, operands, shape, mask, LOAD, line)
    memory: SharedArray = ref.block.memory
    values = thread.machine.uninitialized(numbers.shape, memory.array.dtype, "padding")
    if other is not None:
        values[...] = other
    chosen = numbers >= 0
    inside = numbers[chosen]
    values[chosen] = memory.array.reshape(-1)[inside]
    _note(thread, ref, "volatile" if volatile else "read", _SelectedElements(inside), line)
    if volatile and ref.block.waiting is not None:
        ref.block.waiting.looked(thread, ref, (line, numbers.tobytes(), values.tobytes()))
    return values


def store_masked(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...] | None,
    mask: Any,
    value: Any,
    line: str,
) -> None:
    """Change the elements of a window that a mask does not leave out; see ``load_masked``."""
    numbers = _numbers(thread, ref, window, operands, shape, mask, STORE, line)
    chosen, block = numbers >= 0, ref.block
    flat = block.memory.array.reshape(-1)
    flat[numbers[chosen]] = np.broadcast_to(value, numbers.shape)[chosen]
    _note(thread, ref, "write", _SelectedElements(numbers[chosen]), line)
    if block.numbers is not None and thread.machine.inspector is not None:
        inside = block.numbers >= 0  # who looks at the reference sees its data
        ref.data[inside] = flat[block.numbers[inside]]
    _changed(block)


def _numbers(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...] | None,
    mask: Any,
    access: str,
    line: str,
) -> Array:
    """The number in the array of each element of a window; less than 0 for what is left out."""
    numbers = ref.block.indices()
    try:
        if mask is None:
            numbers = np.asarray(read(numbers, window, operands))
        else:
            assert shape is not None
            part, key = masked(numbers, window, operands, shape, mask)
            numbers = np.where(mask, part[key], MASKED)
    except Outside as outside:
        raise beyond_edge(thread, ref, access, outside, line) from None
    _require(thread, ref, numbers, access, line)
    return numbers if shape is None else np.broadcast_to(numbers, shape)


def update(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
    mask: Any,
    change: Callable[[Array, Any], Array],
    value: Any,
    line: str,
    *,
    used: bool,
) -> Array:
    """Change the elements of a window atomically, one by one, and give what they were.

    Args:
      thread: who does.
      ref: of a block.
      window: of the block.
      operands: of the equation.
      shape: of the window.
      mask: of the window, or None.
      change: gives new elements for old ones and the operand's.
      value: the operand, of the shape of the window.
      line: ``file:line``.
      used: whether the program uses what they were.

    Raises:
      BoundsError: as ``load``, of an element that is not left out.
    """
    numbers = _numbers(thread, ref, window, operands, shape, mask, "atomic access to", line)
    chosen = numbers >= 0
    block: ProgramBlock = ref.block
    flat = block.memory.array.reshape(-1)
    inside = numbers[chosen]
    values = np.broadcast_to(value, shape)[chosen]
    before = np.array(flat[inside])
    # Without an element that comes twice, all of them may be changed at once.
    if len(np.unique(inside)) == len(inside):
        flat[inside] = change(before, values)
    else:  # an element several times: each sees what the one before it did
        for at, number in enumerate(inside):
            before[at] = flat[number]
            flat[number] = change(before[at : at + 1], values[at : at + 1])[0]
    differs = before.tobytes() != flat[inside].tobytes()
    if block.memory.shadow is not None:
        _note(thread, ref, "atomic", _SelectedElements(inside), line)
        element = id(block.memory), inside.tobytes()
        block.memory.shadow.order.synchronize(block.program, element, learns=used)
    if differs:
        _changed(block)
    elif block.waiting is not None:
        block.waiting.looked(thread, ref, (line, inside.tobytes(), before.tobytes()))
    old = thread.machine.uninitialized(shape, flat.dtype, "padding")
    old[chosen] = before
    return old


def _note(thread: Thread, ref: Ref, kind: Kind, where: ElementSelection, line: str) -> None:
    block: ProgramBlock = ref.block
    if block.memory.shadow is not None:
        block.memory.shadow.note(thread, block.program, kind, where, (ref.name, line))


def _changed(block: ProgramBlock) -> None:
    if block.waiting is not None:
        block.waiting.changed(block.memory)


def _same_size(window: Sequence[Transform]) -> Sequence[Transform]:
    """A window of an array of another dtype: up to where the elements of this one are divided."""
    at = next((n for n, transform in enumerate(window) if isinstance(transform, Bitcast)), None)
    return window if at is None else window[:at]


def _require(thread: Thread, ref: Ref, numbers: Array, access: str, line: str) -> None:
    """Reject elements that are in no array, where nothing masks them.

    Raises:
      BoundsError: there are some.
    """
    least = HANGING if access == LOAD else MASKED
    if not numbers.size or int(numbers.min()) >= least:
        return
    why = (
        "JAX 0.11 does not mask what is beyond the edge for Triton: pad the array, or mask it"
        if int(numbers.min()) == HANGING
        else "the block is not in the array, and nothing masks it there"
    )
    shape = tuple(ref.block.memory.array.shape)
    name = ref.name or "a reference"
    message = f"{access} {name} beyond the edge of its array {list(shape)}: {why}"
    raise bounds_error(thread, message, line, ref=ref.name, shape=shape)
