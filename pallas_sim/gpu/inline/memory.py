"""The machine of inlined code: memory at addresses, threads with their values, its operations.

Memory is bytes, with the tiles and the swizzle of each reference's buffer. ``run.py`` copies it in
before the code runs, and writes it back afterwards: addresses of the kernel's arrays would not show
the tiles.

Addresses of shared memory are below 2**32, as they are in 32-bit registers. Each buffer begins at a
multiple of 1024 bytes, which is what swizzles assume.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.errors import MissingRuleError, SimulationError
from pallas_sim.gpu.inline.code import InlineOperation, InlineRegion, in_tiles

#: The first address of memory that is not shared.
_GLOBAL = 1 << 40

_NIBBLES = frozenset({"uint4", "int4", "float4_e2m1fn"})


def bits_of(dtype: Any) -> int:
    """Return the bits of an element in memory and in registers."""
    name = np.dtype(dtype).name
    if name in _NIBBLES:
        return 4
    return 2 if name in ("uint2", "int2") else 8 * np.dtype(dtype).itemsize


def to_bytes(value: Array) -> Array:
    """Return the bytes [threads, bytes] of an array [threads, ...], from low bits to high."""
    flat = np.ascontiguousarray(value.reshape(value.shape[0], -1))
    if bits_of(value.dtype) == 4:
        raw = flat.view(np.uint8)
        return raw[:, 0::2] & 15 | raw[:, 1::2] << 4
    if bits_of(value.dtype) == 2:
        raw = flat.view(np.uint8) & 3
        return raw[:, 0::4] | raw[:, 1::4] << 2 | raw[:, 2::4] << 4 | raw[:, 3::4] << 6
    return flat.view(np.uint8).reshape(value.shape[0], -1)


def from_bytes(raw: Array, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Return the elements [threads, *shape] that bytes [threads, bytes] hold."""
    dtype, rows = np.dtype(dtype), raw.shape[0]
    if bits_of(dtype) == 4:
        parts = np.stack([raw & 15, raw >> 4], axis=-1)
        return parts.reshape(rows, *shape).view(ml_dtypes.uint4).view(dtype)
    if bits_of(dtype) == 2:
        parts = np.stack([raw >> shift & 3 for shift in (0, 2, 4, 6)], axis=-1)
        return parts.reshape(rows, *shape).view(dtype)
    return np.ascontiguousarray(raw).view(dtype).reshape(rows, *shape)


class UnreachableError(Exception):
    """An address at which no reference has memory."""


@dataclass(eq=False)
class InlineBuffer:
    """The memory of one reference.

    Attributes:
      name: of the reference.
      base: its first address.
      array: its elements, as the kernel names them.
      data: its bytes, as they lie in memory.
      owners: for each byte, the element of ``array`` (flat) that it belongs to; None where the
        order is the same.
      read: marks of the bytes that were read.
      written: marks of the bytes that were written.
      noted_reads: marks of the reads that the monitor of order has.
      noted_writes: as ``noted_reads``.
    """

    name: str
    base: int
    array: Array
    data: Array
    owners: Array | None
    read: Array = field(init=False)
    written: Array = field(init=False)
    noted_reads: Array = field(init=False)
    noted_writes: Array = field(init=False)

    def __post_init__(self) -> None:
        """Begin without accesses."""
        marks = np.zeros((4, self.data.size), np.bool_)
        self.read, self.written, self.noted_reads, self.noted_writes = marks

    def touched(self, marks: Array) -> list[tuple[slice, ...]]:
        """Return the smallest box around the elements with marked bytes; none without marks."""
        at = np.flatnonzero(marks)
        if not at.size:
            return []
        if not self.array.ndim:
            return [()]
        bits = bits_of(self.array.dtype)
        flat = at * 8 // bits if self.owners is None else self.owners[at]
        if bits < 8 and self.owners is None:  # a byte has several elements
            flat = np.concatenate([flat, flat + 8 // bits - 1])
        indices = np.unravel_index(np.minimum(flat, self.array.size - 1), self.array.shape)
        return [tuple(slice(int(axis.min()), int(axis.max()) + 1) for axis in indices)]

    def give_back(self) -> None:
        """Copy the written elements to the kernel's memory."""
        if not self.written.any():
            return
        if self.owners is None:
            dtype = self.array.dtype
            flat = from_bytes(self.data[None], dtype, (-1,))[0][: self.array.size]
            per = max(8 // bits_of(dtype), 1)
            size = max(bits_of(dtype) // 8, 1)
            marks = np.repeat(self.written[::size], per)[: self.array.size]
            self.array[marks.reshape(self.array.shape)] = flat[marks]
            return
        raw = np.ascontiguousarray(self.array).reshape(-1)
        size = self.array.dtype.itemsize
        bytes_ = raw.view(np.uint8).reshape(-1, size)
        at = np.flatnonzero(self.written)
        bytes_[self.owners[at], _within(self.owners)[at]] = self.data[at]
        self.array[...] = raw.reshape(self.array.shape)


def _within(owners: Array) -> Array:
    """Return the number of each byte in its element, whose bytes are neighbours."""
    starts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
    return np.arange(owners.size) - np.repeat(starts, np.diff(np.r_[starts, owners.size]))


@dataclass(eq=False)
class AddressSpace:
    """All memory that inlined code reaches.

    Attributes:
      buffers: of its references.
    """

    buffers: list[InlineBuffer] = field(default_factory=list[InlineBuffer])

    def add(
        self, name: str, array: Array, *, shared: bool, tiling: tuple[int, ...], swizzle: int
    ) -> InlineBuffer:
        """Give a reference an address.

        Args:
          name: of the reference.
          array: its elements.
          shared: whether it is in shared memory.
          tiling: of the last axes.
          swizzle: bytes of a swizzled row, or 0.
        """
        base = _GLOBAL if not shared else 1024
        for buffer in self.buffers:
            if (buffer.base >= _GLOBAL) == (not shared):
                base = max(base, -(-(buffer.base + buffer.data.size) // 1024) * 1024)
        raw = to_bytes(np.ascontiguousarray(array).reshape(1, -1))[0]
        owners: Array | None = None
        if tiling or swizzle:
            owners = _owners(array, tiling, swizzle)
            raw = raw.reshape(-1, array.dtype.itemsize)[owners, _within(owners)]
        self.buffers.append(InlineBuffer(name, base, array, raw.copy(), owners))
        return self.buffers[-1]

    def load(self, addresses: Array, size: int, active: Array | None) -> Array:
        """Load the bytes [threads, size] that begin at addresses [threads].

        Raises:
          UnreachableError: no reference has them.
        """
        raw = np.zeros((addresses.size, size), np.uint8)
        for buffer, rows, at in self._parts(addresses, size, active, "load"):
            raw[rows] = buffer.data[at]
            buffer.read[at] = True
        return raw

    def store(self, addresses: Array, raw: Array, active: Array | None) -> None:
        """Store bytes [threads, size] at addresses [threads].

        Raises:
          UnreachableError: no reference has them.
        """
        for buffer, rows, at in self._parts(addresses, raw.shape[1], active, "store"):
            buffer.data[at] = raw[rows]
            buffer.written[at] = True

    def _parts(self, addresses: Array, size: int, active: Array | None, how: str) -> Any:
        left = np.ones(addresses.size, np.bool_) if active is None else active.copy()
        signed = addresses.astype(np.int64)
        for buffer in self.buffers:
            at = signed - buffer.base
            inside = left & (at >= 0) & (at + size <= buffer.data.size)
            if inside.any():
                yield buffer, inside, at[inside, None] + np.arange(size)
                left &= ~inside
        if left.any():
            thread = int(np.flatnonzero(left)[0])
            raise UnreachableError(f"{how} of {size} bytes {self._near(int(signed[thread]))}")

    def _near(self, address: int) -> str:
        before = [buffer for buffer in self.buffers if buffer.base <= address]
        if not before:
            return "at an address that no reference has"
        last = max(before, key=lambda buffer: buffer.base)
        return f"at byte {address - last.base} of {last.name}, which has {last.data.size}"


def _owners(array: Array, tiling: tuple[int, ...], swizzle: int) -> Array:
    """Return the element (flat) of each byte of memory.

    Swizzles exchange the 16 byte pieces of a row by the number of the row (PTX ISA, "Tensors",
    "Swizzling modes").
    """
    flat = in_tiles(np.arange(array.size).reshape(array.shape), tiling)
    owners = np.repeat(flat.reshape(-1), array.dtype.itemsize)
    if swizzle > 16:
        address = np.arange(owners.size)
        owners = owners[address ^ ((address >> 7 & (swizzle // 16 - 1)) << 4)]
    return owners


# The threads that run inlined code, and the registry of its operations.


@dataclass
class InlineFrame:
    """The threads that run the code, and the values that they have computed.

    Attributes:
      threads: how many.
      first: the number of the first one in its block.
      geometry: for ``"thread_id"``, ``"block_id"``, ``"block_dim"``, ``"grid_dim"``,
        ``"cluster_block_id"`` and ``"cluster_dim"``, three numbers; of ``"thread_id"`` those of the
        first thread.
      space: the memory that it reaches.
      fence: called at a fence; its argument is whether the fence orders engines, too.
      meet: called at a barrier of the block with its number, how many threads meet there, and
        whether these wait for the others.
      values: by number.
      active: the threads that are in this branch, or None for all.
      rounds: of loops.
    """

    threads: int
    first: int
    geometry: dict[str, tuple[int, int, int]]
    space: AddressSpace
    fence: Callable[[bool], None]
    meet: Callable[[int, int, bool], None]
    values: dict[int, Any] = field(default_factory=dict[int, Any])
    active: Array | None = None
    rounds: int = 0

    def evaluate(self, region: InlineRegion, arguments: Any = ()) -> list[Any]:
        """Run the operations of a region; returns the operands of its last one."""
        self.values.update(zip(region.arguments, arguments, strict=True))
        for op in region.operations:
            operands = [self.values[number] for number in op.operands]
            if op.name in _ENDS:
                return operands
            results = find(op.name)(self, op, *operands)
            if not isinstance(results, list | tuple):
                results = [results][: len(op.results)]
            self.values.update(zip(op.results, results, strict=True))
        return []

    def step(self) -> None:
        """Count a round of a loop that may have no end.

        Raises:
          SimulationError: there are too many of them.
        """
        self.rounds += 1
        if self.rounds > _ROUNDS:
            raise SimulationError(f"a loop of inline_mgpu does not end in {_ROUNDS} rounds")

    def all(self, value: Array) -> Array:
        """Repeat a value, so that it has one row for each thread."""
        return np.broadcast_to(value, (self.threads, *value.shape[1:]))


#: Limit on the rounds of a loop: inlined code runs alone, so no other thread can end it.
_ROUNDS = 100_000

#: Operations that end a region.
_ENDS = frozenset({"func.return", "scf.yield", "scf.condition"})

Evaluate = Callable[..., Any]
_OPERATIONS: dict[str, Evaluate] = {}


def operation(*names: str) -> Callable[[Evaluate], Evaluate]:
    """Register a function that evaluates operations of these names.

    It takes the frame, the operation and its operands. It returns the result, a list or a tuple of
    several results, or None.
    """

    def register(evaluate: Evaluate) -> Evaluate:
        for name in names:
            _OPERATIONS[name] = evaluate
        return evaluate

    return register


def pure(*names: str) -> Callable[[Evaluate], Evaluate]:
    """Register operations whose results depend on their operands and attributes alone.

    The function takes the operation and its operands, and no frame.
    """

    def register(evaluate: Evaluate) -> Evaluate:
        operation(*names)(lambda _, op, *operands: evaluate(op, *operands))
        return evaluate

    return register


def find(name: str) -> Evaluate:
    """Return the function that evaluates an operation.

    Raises:
      MissingRuleError: there is none.
    """
    if name not in _OPERATIONS:
        raise MissingRuleError(f"the simulator does not know {name}, which inline_mgpu inlines")
    return _OPERATIONS[name]


def check(region: InlineRegion) -> None:
    """Look up all operations, so that a missing one is reported before anything runs.

    Raises:
      MissingRuleError: there is no function for one of them.
    """
    for op in region.operations:
        if op.name not in _ENDS:
            find(op.name)
        for inner in op.regions:
            check(inner)


def signed(value: Array) -> Array:
    """Convert integers to numbers with a sign."""
    name = value.dtype.name
    if value.dtype == np.bool_:
        return -value.astype(np.int8)
    if name in ("uint4", "uint2"):
        bits = int(name[-1])
        raw = value.astype(np.int8)
        return np.where(raw >= 1 << (bits - 1), raw - (1 << bits), raw).astype(np.int8)
    return value.view(np.dtype(f"int{8 * value.dtype.itemsize}"))


def as_type(value: Array, op: InlineOperation) -> Array:
    """Convert a value to the dtype of an operation's result; integers wrap around."""
    dtype = op.types[0].dtype
    if value.dtype == dtype:
        return value
    if dtype.name in ("uint4", "uint2"):
        return (value.astype(np.int64) & ((1 << int(dtype.name[-1])) - 1)).astype(dtype)
    if dtype == np.bool_ and value.dtype.kind in "iu":
        return (value & 1).astype(np.bool_)
    return value.astype(dtype)
