"""Blocks of a GPU's programs: references to the memory that all of them share.

Nothing is copied. A block is a window of its array, and an access goes to the memory itself. What
of a block is beyond the edge of the array is as JAX's lowering to Triton has it
(``jax/_src/pallas/triton/lowering.py``): JAX 0.12 masks each access along the axes whose length
is no multiple of the block's, and along those that are indexed by element (``pl.Element``): loads
there give anything, stores there do nothing. Along other axes, and all axes in JAX 0.11, it checks
nothing: there an access beyond the edge is one to other memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pytest_pallas.simulator.gpu.portable.order import Kind, Program, Shadow, Where
from pytest_pallas.simulator.machine import Machine, Thread
from pytest_pallas.simulator.memory.accesses import beyond_edge, bounds_error
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.memory.windows import Outside, masked, read, write
from pytest_pallas.transforms import Bitcast, Transform

Array = np.ndarray[Any, Any]

#: The index of an element that is not in the array: the lowering masks it; it is beyond the edge of
#: an array that blocks hang over, unmasked; it is beyond the edge of one that they do not.
MASKED, HANGING, BEYOND = -1, -2, -3


class Launch(Protocol):
    """A grid whose programs wait for each other by what they see in memory."""

    def changed(self, memory: Memory) -> None:
        """A program changed some memory."""
        ...

    def looked(self, thread: Thread, ref: Ref, seen: tuple[str, bytes, bytes]) -> None:
        """A program looked at memory that others change, and changed nothing.

        Args:
          thread: who did.
          ref: of the memory.
          seen: ``file:line``, where it looked, and what was there.
        """
        ...


#: What a load is called in messages; only it may hang over an edge unmasked.
LOAD = "load from"


@dataclass(eq=False)
class Memory:
    """An array that the programs of a grid share.

    Attributes:
      array: its elements, row by row.
      shadow: the last accesses to each of them; None if no program writes it.
      waiting: the programs that wait until somebody changes it.
    """

    array: Array
    shadow: Shadow | None = None
    waiting: list[Any] = field(default_factory=list)
    _indices: Array | None = None

    @property
    def indices(self) -> Array:
        """The number of each element."""
        found = self._indices
        if found is None:
            found = self._indices = np.arange(self.array.size).reshape(self.array.shape)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """What a reference of a program is to the memory of an operand.

    Attributes:
      memory: the memory.
      program: whose reference it is.
      key: the block in the array; None for one that hangs over an edge.
      numbers: of such a one, the number of each element in the array, or what it is instead.
      launch: the grid that the program belongs to, if its programs may wait for each other.
    """

    memory: Memory
    program: Program
    key: tuple[Any, ...] | None
    numbers: Array | None = None
    launch: Launch | None = None

    def indices(self) -> Array:
        """The number of each element of the block."""
        if self.numbers is not None:
            return self.numbers
        assert self.key is not None
        return self.memory.indices[self.key]


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """A window of a block that is inside of its array."""

    key: tuple[Any, ...]
    window: Sequence[Transform]
    operands: Sequence[Any]

    def get(self, array: Array) -> Array:
        return np.asarray(read(array[self.key], self.window, self.operands))

    def put(self, array: Array, values: Any) -> None:
        write(array[self.key], self.window, self.operands, lambda _: values)


@dataclass(frozen=True, slots=True, eq=False)
class _Elements:
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
    block: Block = ref.block
    memory = block.memory
    try:
        if block.key is not None:
            part = np.array(read(memory.array[block.key], window, operands))
            if memory.shadow is not None:
                where = _Window(block.key, _same_size(window), operands)
                _note(thread, ref, "read", where, line)
            return part
        numbers = read(block.indices(), window, operands)
    except Outside as outside:
        raise beyond_edge(thread, ref, LOAD, outside, line) from None
    _require(thread, ref, np.asarray(numbers), LOAD, line)
    return _gathered(thread, ref, np.asarray(numbers), None, "read", line)


def _gathered(thread: Thread, ref: Ref, numbers: Array, other: Any, kind: Kind, line: str) -> Array:
    """The elements of these numbers; in place of those that are left out ``other``, or anything."""
    memory: Memory = ref.block.memory
    values = thread.machine.uninitialized(numbers.shape, memory.array.dtype, "padding")
    if other is not None:
        values[...] = other
    chosen = numbers >= 0
    inside = numbers[chosen]
    values[chosen] = memory.array.reshape(-1)[inside]
    if memory.shadow is not None:
        _note(thread, ref, kind, _Elements(inside), line)
    return values


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
    block: Block = ref.block
    memory = block.memory
    try:
        if block.key is not None:
            view = memory.array[block.key]
            write(view, window, operands, lambda _: value)
            if memory.shadow is not None:
                where = _Window(block.key, _same_size(window), operands)
                _note(thread, ref, "write", where, line)
            _changed(block)
            return
        numbers = np.asarray(read(block.indices(), window, operands))
    except Outside as outside:
        raise beyond_edge(thread, ref, "store to", outside, line) from None
    _require(thread, ref, numbers, "store to", line)
    chosen = numbers >= 0
    _scatter(thread, ref, numbers[chosen], np.broadcast_to(value, numbers.shape)[chosen], line)


def _scatter(thread: Thread, ref: Ref, numbers: Array, values: Array, line: str) -> None:
    memory: Memory = ref.block.memory
    memory.array.reshape(-1)[numbers] = values
    if memory.shadow is not None:
        _note(thread, ref, "write", _Elements(numbers), line)
    if ref.block.numbers is not None and thread.machine.inspector is not None:
        inside = ref.block.numbers >= 0  # who looks at the reference sees its data
        ref.data[inside] = memory.array.reshape(-1)[ref.block.numbers[inside]]
    _changed(ref.block)


def load_masked(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
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
      shape: of the window.
      mask: of the window, or None.
      other: of the window, or None for anything.
      line: ``file:line``.
      volatile: whether the load sees what other programs do meanwhile.

    Raises:
      BoundsError: as ``load``, of an element that is not left out.
    """
    numbers = _numbers(thread, ref, window, operands, shape, mask, LOAD, line)
    values = _gathered(thread, ref, numbers, other, "volatile" if volatile else "read", line)
    if volatile and ref.block.launch is not None:
        ref.block.launch.looked(thread, ref, (line, numbers.tobytes(), values.tobytes()))
    return values


def store_masked(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
    mask: Any,
    value: Any,
    line: str,
) -> None:
    """Change the elements of a window that a mask does not leave out; see ``load_masked``."""
    numbers = _numbers(thread, ref, window, operands, shape, mask, "store to", line)
    chosen = numbers >= 0
    _scatter(thread, ref, numbers[chosen], np.broadcast_to(value, shape)[chosen], line)


def _numbers(
    thread: Thread,
    ref: Ref,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
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
            part, key = masked(numbers, window, operands, shape, mask)
            numbers = np.where(mask, part[key], MASKED)
    except Outside as outside:
        raise beyond_edge(thread, ref, access, outside, line) from None
    _require(thread, ref, numbers, access, line)
    return np.broadcast_to(numbers, shape)


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
      used: whether somebody uses what they were.

    Raises:
      BoundsError: as ``load``, of an element that is not left out.
    """
    numbers = _numbers(thread, ref, window, operands, shape, mask, "atomic access to", line)
    chosen = numbers >= 0
    block: Block = ref.block
    flat = block.memory.array.reshape(-1)
    inside = numbers[chosen]
    values = np.broadcast_to(value, shape)[chosen]
    before = np.array(flat[inside])
    if len(np.unique(inside)) == len(inside):
        flat[inside] = change(before, values)
    else:  # an element several times: each sees what the one before it did
        for at, number in enumerate(inside):
            before[at] = flat[number]
            flat[number] = change(before[at : at + 1], values[at : at + 1])[0]
    differs = before.tobytes() != flat[inside].tobytes()
    shadow, me = block.memory.shadow, block.program
    if shadow is not None:
        _note(thread, ref, "atomic", _Elements(inside), line)
        places = [(id(block.memory), inside.tobytes())]
        shadow.order.synchronize(me, places, learns=used)
    if differs:
        _changed(block)
    elif block.launch is not None:
        block.launch.looked(thread, ref, (line, inside.tobytes(), before.tobytes()))
    old = thread.machine.uninitialized(shape, flat.dtype, "padding")
    old[chosen] = before
    return old


def _note(thread: Thread, ref: Ref, kind: Kind, where: Where, line: str) -> None:
    block: Block = ref.block
    assert block.memory.shadow is not None
    block.memory.shadow.note(thread, block.program, kind, where, (ref.name, line))


def _changed(block: Block) -> None:
    if block.launch is not None:
        block.launch.changed(block.memory)


def _same_size(window: Sequence[Transform]) -> Sequence[Transform]:
    """A window of an array of another dtype: up to where the elements of this one are divided."""
    at = next((n for n, each in enumerate(window) if isinstance(each, Bitcast)), None)
    return window if at is None else window[:at]


def _require(thread: Thread, ref: Ref, numbers: Array, access: str, line: str) -> None:
    """Refuse elements that are in no array, where nothing masks them.

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


def block_of(
    machine: Machine,
    memory: Memory,
    program: Program,
    start: Sequence[int],
    sizes: Sequence[int],
    squeezed: Sequence[int],
    codes: Sequence[int],
    name: str,
    space: str,
    *,
    launch: Launch | None = None,
    input: bool = False,
) -> Ref:
    """The reference of a program to a block.

    Args:
      machine: the run.
      memory: of the operand.
      program: the program.
      start: the first element along each axis; it may be beyond an edge.
      sizes: of the block along each axis.
      squeezed: the axes that the body does not see.
      codes: what an element beyond the edge is, for each axis.
      name: of the reference.
      space: memory space of the reference.
      launch: see ``Block``.
      input: whether it is an input's, that shares no memory with an output.
    """
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
        ref = Ref(array[key], name, space, input=input)
        ref.block = Block(memory, program, key, launch=launch)
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
        beyond = np.minimum(beyond, np.where(out, codes[axis], 0).reshape(along))
    numbers = np.where(beyond < 0, beyond, numbers)
    numbers = numbers.reshape([size for axis, size in enumerate(sizes) if axis not in squeezed])
    data = machine.uninitialized(numbers.shape, array.dtype, "padding")
    data[numbers >= 0] = array.reshape(-1)[numbers[numbers >= 0]]
    ref = Ref(data, name, space, input=input)
    ref.block = Block(memory, program, None, numbers, launch)
    return ref
