"""Memory by references and by pointers (``memref``, loads and stores), and control flow (``scf``).

A reference is a ``MemrefView`` of addresses, so that views of it cost nothing; a load or a store
passes the address of each thread to ``AddressSpace``. Threads may take different branches: a region
runs for the active ones, and values are merged thread by thread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.errors import MissingRuleError
from pallas_sim.gpu.inline.arithmetic import chosen, combined
from pallas_sim.gpu.inline.code import InlineOperation, InlineRegion, InlineType
from pallas_sim.gpu.inline.memory import (
    InlineFrame,
    as_type,
    bits_of,
    from_bytes,
    operation,
    pure,
    signed,
    to_bytes,
)

_DYNAMIC = -(1 << 63)
_DYNAMIC_32 = -(1 << 31)


@dataclass(frozen=True)
class MemrefView:
    """A reference: elements at regular distances.

    Attributes:
      base: the address that the distances count from.
      offset: of the first element, in elements, for each thread.
      shape: sizes.
      strides: distances in elements.
      dtype: of the elements.
    """

    base: Array
    offset: Array
    shape: tuple[int, ...]
    strides: tuple[Any, ...]
    dtype: np.dtype[Any]

    def addresses(self, index: Sequence[Array]) -> Array:
        """Return the address [threads] of the byte with an element."""
        offset = self.offset
        for at, stride in zip(index, self.strides, strict=True):
            offset = offset + at.astype(np.int64) * stride
        return self.base.astype(np.int64) + offset * bits_of(self.dtype) // 8


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of rows one after the other."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _size(kind: InlineType) -> int:
    return -(-math.prod(kind.shape) * bits_of(kind.dtype) // 8)


def _load(frame: InlineFrame, addresses: Array, kind: InlineType) -> Array:
    if kind.dtype is None:
        raise MissingRuleError(f"the simulator does not load {kind.text}, which inline_mgpu does")
    addresses = frame.all(addresses) if frame.active is not None else addresses
    raw = frame.space.load(addresses, _size(kind), frame.active)
    return from_bytes(raw, kind.dtype, kind.shape)


def _store(frame: InlineFrame, addresses: Array, value: Array) -> None:
    raw = to_bytes(frame.all(value))
    frame.space.store(np.ascontiguousarray(frame.all(addresses)), raw, frame.active)


@operation("memref.load", "vector.load")
def _load_elements(
    frame: InlineFrame, op: InlineOperation, view: MemrefView, *index: Array
) -> Array:
    _require_bytes(view, op)
    return _load(frame, view.addresses(index), op.types[0])


@operation("memref.store", "vector.store")
def _store_elements(
    frame: InlineFrame, op: InlineOperation, value: Array, view: MemrefView, *index: Array
) -> None:
    _require_bytes(view, op)
    _store(frame, view.addresses(index), value)


def _require_bytes(view: MemrefView, op: InlineOperation) -> None:
    """Reject one element that is a part of a byte; vectors have whole bytes."""
    if bits_of(view.dtype) < 8 and op.name.startswith("memref"):
        raise MissingRuleError(f"{op.name} of one {view.dtype} inside a byte is not simulated")


operation("llvm.load")(lambda frame, op, pointer: _load(frame, pointer, op.types[0]))
operation("llvm.store")(lambda frame, _op, value, pointer: _store(frame, pointer, value))


@pure("llvm.ptrtoint", "llvm.inttoptr", "llvm.addrspacecast")
def _as_address(op: InlineOperation, value: Array) -> Array:
    return value.astype(np.uint64) if op.types[0].dtype is None else as_type(value, op)


@pure("llvm.getelementptr")
def _element_pointer(op: InlineOperation, pointer: Array, *dynamic: Array) -> Array:
    kind: InlineType = op.attributes["elem_type"]
    indices = op.attributes["rawConstantIndices"]
    if len(indices) != 1 or kind.dtype is None:
        raise MissingRuleError(f"llvm.getelementptr into {kind.text} is not simulated")
    at = dynamic[0] if indices[0] == _DYNAMIC_32 else np.array([indices[0]], np.int64)
    distance = signed(at).astype(np.int64) if at.dtype.kind == "u" else at
    return (pointer.astype(np.int64) + distance * _size(kind)).astype(np.uint64)


@pure("builtin.unrealized_conversion_cast")
def _cast(op: InlineOperation, value: Any) -> Any:
    kind, before = op.types[0], op.operand_types[0]
    if isinstance(value, MemrefView) and kind.kind != "memory":
        # A structure: two pointers, the offset, sizes and strides.
        pointers = dict.fromkeys([(0,), (1,)], value.base)
        fields: dict[tuple[int, ...], Any] = {**pointers, (2,): value.offset}
        for axis, (size, stride) in enumerate(zip(value.shape, value.strides, strict=True)):
            fields[3, axis] = np.array([size], np.uint64)
            fields[4, axis] = np.asarray(stride).reshape(-1).astype(np.uint64)
        return fields
    if isinstance(value, dict) and kind.kind == "memory":
        strides = tuple(value[4, axis].astype(np.int64) for axis in range(len(kind.shape)))
        offset = value[2,].astype(np.int64)
        return MemrefView(value[1,], offset, kind.shape, strides, kind.dtype)
    if kind.dtype == before.dtype and kind.kind == before.kind:
        return value
    raise MissingRuleError(f"a cast of {before.text} to {kind.text} is not simulated")


@pure("memref.subview")
def _subview(op: InlineOperation, view: MemrefView, *dynamic: Array) -> MemrefView:
    operands = iter(dynamic)
    offsets, sizes, steps = (
        [next(operands).astype(np.int64) if n == _DYNAMIC else int(n) for n in op.attributes[name]]
        for name in ("static_offsets", "static_sizes", "static_strides")
    )
    offset = view.offset
    for at, stride in zip(offsets, view.strides, strict=True):
        offset = offset + at * stride
    strides = [step * stride for step, stride in zip(steps, view.strides, strict=True)]
    shape = op.types[0].shape
    kept = list(_kept_axes(sizes, shape))
    return replace(view, offset=offset, shape=shape, strides=tuple(strides[axis] for axis in kept))


def _kept_axes(sizes: Sequence[Any], shape: Sequence[int]) -> Iterator[int]:
    """Yield the axes that a view of this shape keeps: it may drop those of one element."""
    dropped = len(sizes) - len(shape)
    rest = list(shape)
    for axis, size in enumerate(sizes):
        is_next = bool(rest) and (isinstance(size, np.ndarray) or size == rest[0])
        more = len(sizes) - axis > len(rest)
        if is_next and not (size == 1 and dropped and more and rest[0] != 1):
            rest.pop(0)
            yield axis
        else:
            dropped -= 1


@pure("memref.cast", "memref.memory_space_cast", "memref.reinterpret_cast")
def _same(op: InlineOperation, view: MemrefView, *dynamic: Array) -> MemrefView:
    """Keep the memory; ``reinterpret_cast`` gives it another shape."""
    if not op.name.endswith("reinterpret_cast"):
        return view
    if dynamic:
        raise MissingRuleError("memref.reinterpret_cast of computed sizes is not simulated")
    offset = np.array([op.attributes["static_offsets"][0]], np.int64)
    kind = op.types[0]
    return replace(view, offset=offset, shape=kind.shape, strides=kind.strides)


@pure("memref.transpose")
def _transpose(op: InlineOperation, view: MemrefView) -> MemrefView:
    # Such as ``(d0, d1) -> (d1, d0)``.
    before, after = re.findall(r"\(([^)]*)\)", op.attributes["permutation"])
    names = before.replace(" ", "").split(",")
    order = map(names.index, after.replace(" ", "").split(","))
    strides = tuple(view.strides[axis] for axis in order)
    return replace(view, shape=op.types[0].shape, strides=strides)


@pure("memref.collapse_shape")
def _collapse(op: InlineOperation, view: MemrefView) -> MemrefView:
    strides = tuple(view.strides[group[-1]] for group in op.attributes["reassociation"])
    return replace(view, shape=op.types[0].shape, strides=strides)


@pure("memref.expand_shape")
def _expand(op: InlineOperation, view: MemrefView, *_sizes: Array) -> MemrefView:
    shape, groups = op.types[0].shape, op.attributes["reassociation"]
    if not groups:
        return replace(view, shape=shape, strides=dense_strides(shape))
    strides = tuple(
        inner * stride
        for group, stride in zip(groups, view.strides, strict=True)
        for inner in dense_strides([shape[axis] for axis in group])
    )
    return replace(view, shape=shape, strides=strides)


pure("memref.dim")(
    lambda _op, view, axis: np.array([view.shape[int(axis.reshape(-1)[0])]], np.uint64)
)


@pure("memref.extract_strided_metadata")
def _metadata(_op: InlineOperation, view: MemrefView) -> tuple[Any, ...]:
    base = replace(view, offset=np.zeros(1, np.int64), shape=(), strides=())
    sizes = (np.array([size], np.uint64) for size in view.shape)
    strides = (np.asarray(stride).reshape(-1).astype(np.uint64) for stride in view.strides)
    return (base, view.offset.astype(np.uint64), *sizes, *strides)


@operation("memref.atomic_rmw")
def _atomic(
    frame: InlineFrame, op: InlineOperation, value: Array, view: MemrefView, *index: Array
) -> Array:
    """Update memory one thread after the other, because threads may share an element."""
    _require_bytes(view, op)
    kind = _ATOMICS.get(op.attributes["kind"])
    if kind is None:
        number = op.attributes["kind"]
        raise MissingRuleError(f"memref.atomic_rmw of kind {number} is not simulated")
    addresses, values = frame.all(view.addresses(index)), frame.all(value)
    old = np.zeros(frame.threads, value.dtype)
    threads = range(frame.threads) if frame.active is None else np.flatnonzero(frame.active)
    for at in threads:
        here = addresses[at : at + 1]
        raw = frame.space.load(here, value.dtype.itemsize, None)
        old[at] = from_bytes(raw, value.dtype, ())[0]
        new = values[at : at + 1]
        if kind:
            new = as_type(combined(kind, old[at : at + 1], new), op)
        frame.space.store(here, to_bytes(new), None)
    return old


#: Reductions by the number of MLIR's ``AtomicRMWKind``; "" overwrites.
_ATOMICS = dict(
    enumerate(("add", "add", "", "maximumf", "maxsi", "maxui", "minimumf", "minsi", "minui"))
)


# Branches and loops, in which threads may go different ways: the dialect ``scf``.


def _inside(
    frame: InlineFrame, active: Array, region: InlineRegion, arguments: Any = ()
) -> list[Any]:
    """Run a region on some threads."""
    before, frame.active = frame.active, active
    try:
        return frame.evaluate(region, arguments)
    finally:
        frame.active = before


def _merged(where: Array, ours: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Merge two lists of values: ``ours`` for some threads, ``others`` for the rest."""
    return [chosen(where, a, b) for a, b in zip(ours, others, strict=True)]


def _active(frame: InlineFrame) -> Array:
    return np.ones(frame.threads, np.bool_) if frame.active is None else frame.active


@operation("scf.if")
def _if(frame: InlineFrame, op: InlineOperation, where: Array) -> Any:
    # A branch that no thread takes is not run: it may access memory that is not there.
    now, where = _active(frame), frame.all(where)
    then, other = now & where, now & ~where
    branch, *rest = op.regions
    if not other.any():
        return frame.evaluate(branch)
    otherwise = rest[0] if rest else InlineRegion((), ())
    if not then.any():
        return frame.evaluate(otherwise)
    first = _inside(frame, then, branch)
    second = _inside(frame, other, otherwise)
    return _merged(where, first, second)


@operation("scf.for")
def _for(
    frame: InlineFrame, op: InlineOperation, low: Array, high: Array, step: Array, *carry: Any
) -> Any:
    at, (region,) = low, op.regions
    values = list(carry)
    now = _active(frame)
    while True:
        going = now & frame.all(signed(at) < signed(high))
        if not going.any():
            return values
        if (going == now).all():
            values = frame.evaluate(region, (at, *values))
        else:
            new = _inside(frame, going, region, (at, *values))
            values = _merged(going, new, values)
        at = at + step


@operation("scf.while")
def _while(frame: InlineFrame, op: InlineOperation, *carry: Any) -> Any:
    condition, body = op.regions
    values, going = list(carry), _active(frame)
    results: list[Any] = []
    while True:
        where, *passed = _inside(frame, going, condition, values)
        results = _merged(going, passed, results) if results else passed
        going = going & frame.all(where)
        if not going.any():
            return results
        new = _inside(frame, going, body, results)
        values = _merged(going, new, values)
        frame.step()


@operation("scf.index_switch")
def _switch(frame: InlineFrame, op: InlineOperation, number: Array) -> Any:
    """Run the region of each thread's case; the first region is the default."""
    values: list[Any] = []
    left, number = _active(frame), frame.all(number)
    default, *regions = op.regions
    for case, region in (*zip(op.attributes["cases"], regions, strict=True), (None, default)):
        here = left if case is None else left & (number == case)
        left = left & ~here
        if here.any():
            results = _inside(frame, here, region)
            values = _merged(here, results, values) if values else results
    return values
