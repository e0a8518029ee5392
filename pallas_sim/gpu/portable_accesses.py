"""Blocks of a GPU's programs, and accesses to them: all programs share the memory.

Nothing is copied: a block is a window of its array, and an access goes to the memory itself. Beyond
the edge of the array, accesses are those of JAX's lowering to Triton
(``jax/_src/pallas/triton/lowering.py``). JAX 0.12 masks each access along the axes whose length is
no multiple of the block's, and along those that are indexed by element (``pl.Element``): loads
there return anything, stores there do nothing. Along other axes, and all axes in JAX 0.11, nothing
is checked, and an access beyond the edge is one to other memory.

A block inside of its array is accessed by its slices. For one that hangs over an edge, and for
masks and atomics, each element has its number in the array, or a code that says why it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_sim.choices import AwaitedElements, atomic_kind
from pallas_sim.dtypes import Array
from pallas_sim.edges import (
    Contents,
    contents_of,
    edge_finding,
    masked_window,
    read_inside,
    report,
    undefined,
)
from pallas_sim.findings import Finding
from pallas_sim.gpu.launch_order import GlobalAccessKind
from pallas_sim.gpu.portable_order import (
    ElementSelection,
    GridProgram,
    SharedArray,
    WaitingPrograms,
)
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Elements, Outside, Ref
from pallas_sim.pallas_calls import BlockStart, BlockWindow
from pallas_sim.transforms import Bitcast, Transform
from pallas_sim.windows import read, write

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
        """Return the number of each element of the block."""
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
      blocks: how many are whole, and have an overhang.
    """

    window: BlockWindow
    memory: SharedArray
    name: str
    space: str
    is_input: bool
    codes: Sequence[int]
    blocks: list[int] = field(default_factory=lambda: [0, 0])


def block_of(
    machine: Machine,
    operand: GridOperand,
    program: GridProgram,
    start: BlockStart,
    *,
    waiting: WaitingPrograms | None = None,
) -> Ref:
    """Make the reference of a program to a block.

    Args:
      machine: the run.
      operand: whose block it is.
      program: the program.
      start: the first element along each axis; it may be beyond an edge.
      waiting: see ``ProgramBlock``.
    """
    memory, sizes, squeezed = operand.memory, operand.window.sizes, operand.window.squeezed
    array, numbers, key = memory.array, None, None
    axes = list(enumerate(zip(start, sizes, array.shape, strict=True)))
    whole = all(first >= 0 and first + size <= dim for _, (first, size, dim) in axes)
    operand.blocks[not whole] += 1
    if whole:
        inside = (
            first if axis in squeezed else slice(first, first + size)
            for axis, (first, size, _) in axes
        )
        key = (*inside, ...)  # so that a single element is an array, too
        data = array[key]
    else:
        numbers = np.zeros((1,) * len(sizes), np.int64)
        beyond = np.zeros((1,) * len(sizes), np.int64)
        stride = array.size
        for axis, (first, size, dim) in axes:
            stride = stride // dim if dim else 0
            along = [1] * len(sizes)
            along[axis] = size
            at = first + np.arange(size, dtype=np.int64)
            out = (at < 0) | (at >= dim)
            numbers = numbers + (at * stride).reshape(along)
            beyond = np.minimum(beyond, np.where(out, operand.codes[axis], 0).reshape(along))
        numbers = np.where(beyond < 0, beyond, numbers)
        numbers = numbers.reshape([size for axis, (_, size, _) in axes if axis not in squeezed])
        data = machine.uninitialized(numbers.shape, array.dtype, "padding")
        data[numbers >= 0] = array.reshape(-1)[numbers[numbers >= 0]]
    ref = Ref(data, operand.name, operand.space, is_input=operand.is_input)
    ref.block = ProgramBlock(memory, program, key, numbers, waiting)
    return ref


# Accesses.


def _beyond(shape: tuple[int, ...], _: Any) -> Array:
    """Return the numbers of elements beyond the edge of a block."""
    return np.full(shape, BEYOND, np.int64)


#: Names of accesses in messages. Only a load may hang over an edge unmasked.
LOAD, STORE, ATOMIC = "load from", "store to", "atomic access to"


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


@dataclass(slots=True, eq=False)
class BlockAccess:
    """An access of a program to a window of a block.

    Its methods report an element that no mask leaves out, and that is beyond the edge of the block,
    of an array that no block may hang over, or, except for a load, of any array.

    Attributes:
      thread: that runs the program.
      ref: of the block.
      window: of the block; it may reach beyond the block where it is masked.
      operands: of the equation.
      line: ``file:line``.
      shape: of the window; None for a window without a mask, which has its own shape.
      mask: of the window, or None.
    """

    thread: Thread
    ref: Ref
    window: Sequence[Transform]
    operands: Sequence[Any]
    line: str
    shape: tuple[int, ...] | None = None
    mask: Any = None

    def load(self, other: Any = None, *, volatile: bool = False) -> Array:
        """Load the elements of the window.

        Args:
          other: values for elements that the mask leaves out; None for anything.
          volatile: whether the load sees what other programs do meanwhile.
        """
        block: ProgramBlock = self.ref.block
        memory = block.memory
        if not volatile:
            self._stop_if_shared()
        if block.key is not None and self.shape is None:
            try:
                part = np.array(read(memory.array[block.key], self.window, self.operands))
            except Outside:  # found again, and reported, below
                pass
            else:
                # Asked here, too, because most loads are of memory that no program writes.
                if memory.shadow is not None:
                    self._note("read", self._selected(block.key))
                return part
        numbers, finding = self._numbers(LOAD)
        chosen = numbers >= 0
        inside = numbers[chosen]

        def load(contents: Contents) -> Array:
            values = self.thread.machine.uninitialized(numbers.shape, memory.array.dtype, "padding")
            if other is not None:
                values[...] = other
            beyond = numbers < HANGING
            values[beyond] = contents(values[beyond].shape, values.dtype)
            values[chosen] = memory.array.reshape(-1)[inside]
            return values

        if volatile:
            self._stop(inside, looks=True)
        values = load(contents_of(self.thread))
        self._note("volatile" if volatile else "read", _SelectedElements(inside))
        if volatile:
            self._choose(inside, "look")
        if volatile and block.waiting is not None:
            seen = (self.line, inside.tobytes(), values[chosen].tobytes())
            block.waiting.looked(self.thread, self.ref, seen)
        if finding is not None:
            raise undefined(self.thread, load, finding)
        return values

    def store(self, value: Any) -> None:
        """Store a value to the elements of the window that the mask does not leave out."""
        block: ProgramBlock = self.ref.block
        self._stop_if_shared()
        if block.key is not None and self.shape is None and self._stores(block, value):
            self._note("write", self._selected(block.key))
        else:
            numbers = self._reported(STORE)
            chosen, flat = numbers >= 0, block.memory.array.reshape(-1)
            flat[numbers[chosen]] = np.broadcast_to(value, numbers.shape)[chosen]
            self._note("write", _SelectedElements(numbers[chosen]))
            if block.numbers is not None and self.thread.machine.inspector is not None:
                inside = block.numbers >= 0  # the inspector shows the reference's own data
                self.ref.data[inside] = flat[block.numbers[inside]]
        if block.waiting is not None:
            block.waiting.changed(block.memory)

    def _stores(self, block: ProgramBlock, value: Any) -> bool:
        """Store a value to a window; return False if it reaches beyond the block."""
        assert block.key is not None
        try:
            write(block.memory.array[block.key], self.window, self.operands, lambda _: value)
        except Outside:
            return False
        return True

    def update(
        self,
        change: Callable[[Array, Any], Array],
        value: Any,
        operator: str,
        *,
        used: bool,
    ) -> Array:
        """Change the elements atomically, one after the other; returns their old values.

        Args:
          change: returns new elements for old ones and the operand's.
          value: the operand, of the shape of the window.
          operator: its name: see ``choices.atomic_kind``.
          used: whether the program uses the old values.
        """
        assert self.shape is not None
        numbers = self._reported(ATOMIC)
        chosen = numbers >= 0
        block: ProgramBlock = self.ref.block
        flat = block.memory.array.reshape(-1)
        inside = numbers[chosen]
        self._stop(inside)
        values = np.broadcast_to(value, self.shape)[chosen]
        before = np.array(flat[inside])
        if len(np.unique(inside)) == len(inside):  # no element twice: all change at once
            flat[inside] = change(before, values)
        else:  # each access of an element sees what the one before did
            for at, number in enumerate(inside):
                before[at] = flat[number]
                flat[number] = change(before[at : at + 1], values[at : at + 1])[0]
        differs = before.tobytes() != flat[inside].tobytes()
        if block.memory.shadow is not None:
            self._note("atomic", _SelectedElements(inside))
            elements = id(block.memory), inside.tobytes()
            block.memory.shadow.order.synchronize(block.program, elements, learns=used)
        kind = atomic_kind(operator, flat.dtype, used=used)
        self._choose(inside, "look" if used and not differs else kind)
        if block.waiting is not None:
            # An atomic that changes nothing is a look at the memory, as in a loop that waits.
            if differs:
                block.waiting.changed(block.memory)
            else:
                seen = (self.line, inside.tobytes(), before.tobytes())
                block.waiting.looked(self.thread, self.ref, seen)
        old = self.thread.machine.uninitialized(self.shape, flat.dtype, "padding")
        old[chosen] = before
        return old

    def _reported(self, access: str) -> Array:
        """Return the numbers of the elements, and report those that are not there."""
        numbers, finding = self._numbers(access)
        if finding is not None:
            report(self.thread, finding)
        return numbers

    def _numbers(self, access: str) -> tuple[Array, Finding | None]:
        """Return the number in the array of each element; less than 0 for those left out.

        The finding is of elements that nothing masks, and that are not there.
        """
        numbers, finding = self.ref.block.indices(), None
        if self.mask is None:
            try:
                numbers = np.asarray(read(numbers, self.window, self.operands))
            except Outside as outside:
                finding = edge_finding(self.thread, self.ref, access, outside, self.line)
                numbers = read_inside(numbers, self.window, self.operands, _beyond)
        else:
            assert self.shape is not None
            block, at = replace(self.ref, data=numbers), (access, self.line)
            named = masked_window(
                self.thread, block, self.window, self.operands, self.shape, self.mask, *at
            )
            numbers, finding = named.view.take(named.key), named.finding
            numbers = np.where(named.chosen, numbers, np.where(self.mask, BEYOND, MASKED))
        least = int(numbers.min()) if numbers.size else 0
        if finding is None and least < (HANGING if access == LOAD else MASKED):
            finding = self._finding(access, least)
        shape = numbers.shape if self.shape is None else self.shape
        return np.broadcast_to(numbers, shape), finding

    def _finding(self, access: str, least: int) -> Finding:
        """Return the finding of elements that are in no array, where nothing masks them."""
        why = (
            "JAX 0.11 does not mask what is beyond the edge for Triton: pad the array, or mask it"
            if least == HANGING
            else "the block is not in the array, and nothing masks it there"
        )
        shape = tuple(self.ref.block.memory.array.shape)
        name = self.ref.name or "a reference"
        message = f"{access} {name} beyond the edge of its array {list(shape)}: {why}"
        facts: dict[str, Any] = {"ref": self.ref.name, "shape": shape}
        return self.thread.finding("bounds", message, self.line, **facts)

    def _stop(self, numbers: Array, *, looks: bool = False) -> None:
        """Stop before a look at elements, or an atomic access, if another order may matter."""
        choices = self.thread.machine.choices
        if not choices.explores:
            return
        awaited = self._awaited(numbers)
        if looks or choices.repeats(awaited):
            choices.defer(self.thread, awaited)
        self.thread.machine.scheduler.stop()
        choices.await_change(self.thread, awaited, self.line)

    def _awaited(self, numbers: Array) -> AwaitedElements:
        memory = self.ref.block.memory
        flat = memory.array.reshape(-1)
        return AwaitedElements(self.ref.name, flat, numbers, memory.waiting)

    def _stop_if_shared(self) -> None:
        """Stop before a plain access, if the order of these is among the choices."""
        machine = self.thread.machine
        if machine.choices.memory and self.ref.block.memory.shadow is not None:
            machine.scheduler.stop()

    def _choose(self, numbers: Array, atomic: str) -> None:
        """Note an access to elements whose order with those of other programs may matter."""
        awaited, at = self._awaited(numbers), (self.ref.name, self.line)
        region = Elements(awaited.memory, (numbers,))
        self.thread.machine.choices.access(region, atomic, at, awaited=awaited)

    def _note(self, kind: GlobalAccessKind, elements: ElementSelection) -> None:
        block: ProgramBlock = self.ref.block
        if block.memory.shadow is not None:
            at = (self.ref.name, self.line)
            block.memory.shadow.note(self.thread, block.program, kind, elements, at)
            choices = self.thread.machine.choices
            if choices.memory and kind in ("read", "write"):
                numbers = elements.get(block.memory.indices).reshape(-1)
                region = Elements(block.memory.array.reshape(-1), (numbers,))
                choices.access(region, "", at, writes=kind == "write")

    def _selected(self, key: tuple[Any, ...]) -> _SelectedWindow:
        """Select the elements in an array of another dtype: without bitcasts of these elements."""
        window = self.window
        at = next((n for n, step in enumerate(window) if isinstance(step, Bitcast)), len(window))
        return _SelectedWindow(key, window[:at], self.operands)
