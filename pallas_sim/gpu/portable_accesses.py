"""Loads, stores and atomics of a GPU's programs, which access the memory that all of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.accesses import beyond_edge, bounds_error
from pallas_sim.dtypes import Array
from pallas_sim.gpu.portable_grids import HANGING, MASKED, ProgramBlock, SharedArray
from pallas_sim.gpu.portable_order import Kind, Selection
from pallas_sim.machine import Thread
from pallas_sim.memory import Outside, Ref
from pallas_sim.transforms import Bitcast, Transform
from pallas_sim.windows import masked, read, write

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
    if memory.shadow is not None:
        _note(thread, ref, "read", _SelectedWindow(block.key, _same_size(window), operands), line)
    return part


def _gathered(thread: Thread, ref: Ref, numbers: Array, other: Any, kind: Kind, line: str) -> Array:
    """The elements of these numbers; in place of those that are left out ``other``, or anything."""
    memory: SharedArray = ref.block.memory
    values = thread.machine.uninitialized(numbers.shape, memory.array.dtype, "padding")
    if other is not None:
        values[...] = other
    chosen = numbers >= 0
    inside = numbers[chosen]
    values[chosen] = memory.array.reshape(-1)[inside]
    if memory.shadow is not None:
        _note(thread, ref, kind, _SelectedElements(inside), line)
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
    block: ProgramBlock = ref.block
    if block.key is None:
        store_masked(thread, ref, window, operands, None, None, value, line)
        return
    memory = block.memory
    try:
        write(memory.array[block.key], window, operands, lambda _: value)
    except Outside as outside:
        raise beyond_edge(thread, ref, STORE, outside, line) from None
    if memory.shadow is not None:
        _note(thread, ref, "write", _SelectedWindow(block.key, _same_size(window), operands), line)
    _changed(block)


def _scatter(thread: Thread, ref: Ref, numbers: Array, values: Array, line: str) -> None:
    memory: SharedArray = ref.block.memory
    memory.array.reshape(-1)[numbers] = values
    if memory.shadow is not None:
        _note(thread, ref, "write", _SelectedElements(numbers), line)
    if ref.block.numbers is not None and thread.machine.inspector is not None:
        inside = ref.block.numbers >= 0  # who looks at the reference sees its data
        ref.data[inside] = memory.array.reshape(-1)[ref.block.numbers[inside]]
    _changed(ref.block)


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
    values = _gathered(thread, ref, numbers, other, "volatile" if volatile else "read", line)
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
    chosen = numbers >= 0
    _scatter(thread, ref, numbers[chosen], np.broadcast_to(value, numbers.shape)[chosen], line)


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
    if len(np.unique(inside)) == len(inside):
        flat[inside] = change(before, values)
    else:  # an element several times: each sees what the one before it did
        for at, number in enumerate(inside):
            before[at] = flat[number]
            flat[number] = change(before[at : at + 1], values[at : at + 1])[0]
    differs = before.tobytes() != flat[inside].tobytes()
    shadow, me = block.memory.shadow, block.program
    if shadow is not None:
        _note(thread, ref, "atomic", _SelectedElements(inside), line)
        places = [(id(block.memory), inside.tobytes())]
        shadow.order.synchronize(me, places, learns=used)
    if differs:
        _changed(block)
    elif block.waiting is not None:
        block.waiting.looked(thread, ref, (line, inside.tobytes(), before.tobytes()))
    old = thread.machine.uninitialized(shape, flat.dtype, "padding")
    old[chosen] = before
    return old


def _note(thread: Thread, ref: Ref, kind: Kind, where: Selection, line: str) -> None:
    block: ProgramBlock = ref.block
    assert block.memory.shadow is not None
    block.memory.shadow.note(thread, block.program, kind, where, (ref.name, line))


def _changed(block: ProgramBlock) -> None:
    if block.waiting is not None:
        block.waiting.changed(block.memory)


def _same_size(window: Sequence[Transform]) -> Sequence[Transform]:
    """A window of an array of another dtype: up to where the elements of this one are divided."""
    at = next((n for n, each in enumerate(window) if isinstance(each, Bitcast)), None)
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
